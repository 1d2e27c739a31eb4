"""The expert block on torch tensors or numpy arrays (include/mote/kernels.h, parts 1 to 3)."""

from __future__ import annotations

import sys
import threading
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Optional, Sequence, Union

from . import _arrays as arrays
from ._library import MoteMoeCall, MoteMoeOptions, argument, call, device as open_device, library, sized
from .rows import Weights

_LAYOUTS = {"stacked": 1, "up_gate": 2, "interleaved": 3}  # enum mote_gate_up

Projection = Union[Weights, Sequence[Any], Any]


def _weights(given: Projection, format: Optional[str], what: str) -> Weights:
    if isinstance(given, Weights):
        return given.packed()
    parts = list(given) if isinstance(given, (tuple, list)) else [given]
    if not 1 <= len(parts) <= 3:
        raise argument(f"{what}: {len(parts)} arrays, expected data, scale, bias")
    arrays.need_array(parts[0], what)
    if format is None:
        if not arrays.is_float(parts[0]):
            raise argument(f"{what}: {parts[0].dtype} and no format; expected format=, floats, or mote.Weights")
        format = arrays.float_name(parts[0].dtype, what)
    return Weights(format, *parts).packed()


class MoE:
    """y[i] = residual[i] + sum over s of weights[i, s] f_ids[i, s](x[i]),  f_e(v) = down_e(activation(gate_e v, up_e v))

    Weights, [experts, rows, ...] each: gate and up have n_ff rows of d_model columns, down has d_model rows of n_ff columns.
    Given as mote.Weights, as an array of floats (its own type is the format), or with `format` as an array of blocks or a
    tuple (data, scale) or (data, scale, bias).

    gate, up    two tensors; or
    gate_up     one of 2 n_ff rows, in the order that `layout` says: "stacked" (gate's rows, then up's), "up_gate" (the other way),
                "interleaved" (gate 0, up 0, gate 1, ..: gpt-oss)
    down
    n_used      experts of a row
    format      of all weights that do not say theirs: a name of mote.formats(); "mxfp4" with (codes, scales) are e2m1 + e8m0 planes
    act         what inputs of products become: "default", "f32", "mxfp4"
    activation  "swiglu", "swiglu_clamped", "swiglu_step", "swiglu_oai", "relu2" (no gate); limit 0: the activation's own
    device      "cpu", "cuda", "cuda:1", a torch.device; None: where down is
    dtype       of x; out_dtype: of results and residual, None: as dtype. Default float32
    n_thread    CPU threads, 0: all
    ordered     False: a row's experts may be added in any order, where that is faster (GPU, few rows): last bits differ from run to run

    On a GPU weights are copied when the block is made; on the CPU they are read in place, and the block keeps the arrays.
    Any number of threads may call a block. Raises mote.Error.
    """

    def __init__(
        self,
        *,
        down: Projection,
        n_used: int,
        gate: Optional[Projection] = None,
        up: Optional[Projection] = None,
        gate_up: Optional[Projection] = None,
        layout: str = "stacked",
        format: Optional[str] = None,
        act: str = "default",
        activation: str = "swiglu",
        limit: float = 0.0,
        device: Any = None,
        dtype: Any = "f32",
        out_dtype: Any = None,
        n_thread: int = 0,
        ordered: bool = True,
    ):
        self._moe = c_void_p()
        self._workspace: dict = {}  # by stream
        self._workspace_sizes: dict = {}  # by rows: asking takes longer than a launch
        self._recorded: list = []  # workspaces that CUDA graphs hold
        parts = {
            name: _weights(given, format, name)
            for name, given in (("gate", gate), ("up", up), ("gate_up", gate_up), ("down", down))
            if given is not None
        }
        if ("up" in parts) == ("gate_up" in parts):
            raise argument("moe: expected gate and up, or up alone, or gate_up")
        if "gate_up" in parts and "gate" in parts:
            raise argument("moe: gate_up holds gate too; expected no gate")
        if layout not in _LAYOUTS:
            raise argument(f"layout '{layout}', expected one of {', '.join(_LAYOUTS)}")
        self._read_shapes(parts)
        self.n_used = int(n_used)
        self.device = self._choose_device(device, parts["down"])
        self._x_type = arrays.float_name(dtype, "dtype")
        self._y_type = self._x_type if out_dtype is None else arrays.float_name(out_dtype, "out_dtype")

        options = sized(MoteMoeOptions)
        options.n_expert, options.n_used = self.n_expert, self.n_used
        options.d_model, options.n_ff = self.d_model, self.n_ff
        for name, weights in parts.items():
            setattr(options, "gate" if name == "gate_up" else name, weights.descriptor())
        options.gate_up = _LAYOUTS[layout] if "gate_up" in parts else 0
        options.on_device = self._where(parts)
        options.activation, options.limit, options.act = activation.encode(), limit, act.encode()
        options.x_type = arrays.FLOAT_TYPES.index(self._x_type)
        options.y_type = arrays.FLOAT_TYPES.index(self._y_type)
        options.unordered = not ordered
        with self._on_device():
            if options.on_device:
                self._torch().cuda.current_stream(self.device).synchronize()  # whoever writes the weights
            call("mote_moe_create", open_device(self.device, n_thread), byref(options), byref(self._moe))
        self._keep = None if self._is_gpu else parts

    # ---- creation ----

    def _read_shapes(self, parts: "dict[str, Weights]") -> None:
        down = parts["down"]
        for name, weights in parts.items():
            if len(weights.data.shape) < 3:
                raise argument(f"{name}: shape {tuple(weights.data.shape)}, expected [experts, rows, ...]")
        self.n_expert, self.d_model = int(down.data.shape[0]), int(down.data.shape[1])
        self.n_ff = down.columns(self.n_expert * self.d_model, "down")
        for name, weights in parts.items():
            experts, rows = int(weights.data.shape[0]), int(weights.data.shape[1])
            columns = weights.columns(experts * rows, name)
            want = (self.n_expert,) + {
                "down": (self.d_model, self.n_ff),
                "gate_up": (2 * self.n_ff, self.d_model),
            }.get(name, (self.n_ff, self.d_model))
            if (experts, rows, columns) != want:
                raise argument(
                    f"{name}: {experts} experts of {rows} rows of {columns} columns, expected {want[0]} of {want[1]} "
                    f"of {want[2]}: down has {self.d_model} rows of {self.n_ff}"
                )
            weights.check_planes(experts * rows, columns, name)
            if weights.factor is not None and tuple(weights.factor.shape) != (self.n_expert,):
                raise argument(f"{name}: factor has shape {tuple(weights.factor.shape)}, expected ({self.n_expert},)")

    def _choose_device(self, device: Any, down: Weights) -> str:
        name = str(down.data.device if arrays.on_gpu(down.data) else "cpu") if device is None else str(device)
        self._is_gpu = name.startswith("cuda")
        if name == "cuda" and "torch" in sys.modules and self._torch().cuda.is_available():
            name = f"cuda:{self._torch().cuda.current_device()}"
        return name

    def _where(self, parts: "dict[str, Weights]") -> int:
        """1: all weights lie on the block's GPU; 0: all on the host."""
        places = {str(a.device) if arrays.on_gpu(a) else "cpu" for w in parts.values() for a in w.arrays()}
        if places == {"cpu"}:
            return 0
        if places != {self.device}:
            raise argument(
                f"weights are on {', '.join(sorted(places))}, expected all on the CPU or all on {self.device}"
            )
        return 1

    @staticmethod
    def _torch() -> Any:
        import torch

        return torch

    def _on_device(self) -> Any:
        """The library makes its device's context current; torch is to find its own again."""
        if self._is_gpu and "torch" in sys.modules:
            return self._torch().cuda.device(self.device)
        return _Nothing()

    # ---- calls ----

    def forward(self, x: Any, ids: Any, weights: Any, out: Any = None, residual: Any = None) -> Any:
        """The block of rows x [..., d_model].

        ids, weights  [..., n_used]: the experts of a row (any integers, from 0) and their shares (floats)
        residual      [..., d_model] of out_dtype, or None
        out           as the result: written and returned; may be residual. None: a new one

        On a GPU the work is queued on torch's current stream, and nothing waits; inside torch.cuda.graph it is recorded (call
        once before, so that the workspace is there). An id out of range raises on the CPU; on a GPU `check` tells.
        """
        lead = tuple(x.shape[:-1]) if hasattr(x, "shape") else ()
        rows = self._rows(x, lead, self._x_type, "x")
        ids = self._choices(ids, lead, "i32", "ids")
        weights = self._choices(weights, lead, "f32", "weights")
        if residual is not None:
            residual = self._rows(residual, lead, self._y_type, "residual")
        if out is None:
            out = arrays.new(rows, lead + (self.d_model,), self._y_type)
        elif arrays.address(self._rows(out, lead, self._y_type, "out")) != arrays.address(out):
            raise argument("out: has gaps, expected a contiguous one")
        own = sized(MoteMoeCall)
        own.n_row = 1
        for extent in lead:
            own.n_row *= int(extent)
        if own.n_row == 0:
            return out
        with self._on_device():
            own.stream = self._torch().cuda.current_stream().cuda_stream if self._is_gpu else None
            workspace = self._workspace_for(own.n_row, own.stream, rows)
            own.x, own.ids, own.weights = (arrays.address(a) for a in (rows, ids, weights))
            own.residual = None if residual is None else arrays.address(residual)
            own.y = arrays.address(out)
            own.workspace = arrays.address(workspace)
            own.workspace_bytes = int(workspace.shape[0])
            call("mote_moe_forward", self._handle(), byref(own))
        return out

    __call__ = forward

    def check(self) -> None:
        """Wait for the current stream, and raise if a call on a GPU has met an id out of range since the last check."""
        with self._on_device():
            stream = self._torch().cuda.current_stream().cuda_stream if self._is_gpu else None
            call("mote_moe_check", self._handle(), stream)

    def workspace_bytes(self, n_row: int) -> int:
        """Memory that a call of n_row rows needs beside its arguments. The block keeps it, one for each stream."""
        if n_row not in self._workspace_sizes:
            size = c_size_t()
            call("mote_moe_workspace", self._handle(), n_row, byref(size))
            self._workspace_sizes[n_row] = size.value
        return self._workspace_sizes[n_row]

    def close(self) -> None:
        """Give everything back; waits for the GPU. Also done when the block is no longer referred to."""
        moe, self._moe = self._moe, c_void_p()
        if not moe:
            return
        if self._is_gpu and "torch" in sys.modules:
            self._torch().cuda.synchronize(self.device)
        library().mote_moe_destroy(moe)
        self._keep = None
        self._workspace.clear()
        self._recorded.clear()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is going down, or a capture forbids to wait: the process keeps it
            pass

    def __repr__(self) -> str:
        return f"mote.MoE(n_expert={self.n_expert}, n_used={self.n_used}, d_model={self.d_model}, n_ff={self.n_ff}, device='{self.device}')"

    def _handle(self) -> c_void_p:
        if not self._moe:
            raise argument("moe: the block is closed")
        return self._moe

    def _check_place(self, array: Any, what: str) -> None:
        place = str(array.device) if arrays.on_gpu(array) else "cpu"
        if place != (self.device if self._is_gpu else "cpu"):
            raise argument(f"{what}: on {place}, expected {self.device}")

    def _rows(self, array: Any, lead: tuple, kind: str, what: str) -> Any:
        arrays.need_array(array, what)
        self._check_place(array, what)
        if tuple(array.shape) != lead + (self.d_model,):
            raise argument(f"{what}: shape {tuple(array.shape)}, expected {lead + (self.d_model,)}")
        if arrays.float_name(array.dtype, what) != kind:
            raise argument(f"{what}: {array.dtype}, expected {kind} as the block was made for (dtype, out_dtype)")
        return arrays.packed(array)

    def _choices(self, array: Any, lead: tuple, kind: str, what: str) -> Any:
        arrays.need_array(array, what)
        self._check_place(array, what)
        if tuple(array.shape) != lead + (self.n_used,):
            raise argument(f"{what}: shape {tuple(array.shape)}, expected {lead + (self.n_used,)}")
        return arrays.converted(array, kind, what)

    def _workspace_for(self, n_row: int, stream: Optional[int], like: Any) -> Any:
        """The stream's own (on the CPU the thread's), grown when needed. What a graph has recorded must outlive it: such ones
        are kept."""
        size = self.workspace_bytes(n_row)
        key = ("stream", stream) if self._is_gpu else (arrays.is_torch(like), threading.get_ident())
        held = self._workspace.get(key)
        if held is None or int(held.shape[0]) < size:
            held = self._workspace[key] = arrays.new(like, (size,), "u8")
        if self._is_gpu and self._torch().cuda.is_current_stream_capturing():
            self._recorded.append(held)
        return held


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        return None
