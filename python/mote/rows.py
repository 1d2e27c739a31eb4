"""Formats, and rows of floats to and from them (include/mote/kernels.h, part 4)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_size_t
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import _arrays as arrays
from ._library import Error, MoteFormatInfo, MoteWeights, argument, call, sized

_IN_PLANES = {"mxfp4": "mlx_mxfp4", "nvfp4": "mlx_nvfp4"}


@dataclass(frozen=True)
class Format:
    """A weight format. Columns of a row are a multiple of `block`, which takes `block_bytes` of data; a format in planes
    (has_scale) keeps scales, and biases where it has them, in arrays of their own."""

    name: str
    block: int
    block_bytes: int
    has_scale: bool
    has_bias: bool
    can_quantise: bool

    def group(self, given: int = 0) -> int:
        """Columns of a scale in planes; 0: scales lie in the blocks."""
        if not self.has_scale:
            return 0
        return given or 64 if self.has_bias else 16 if self.name == "mlx_nvfp4" else 32


@lru_cache(maxsize=None)
def _all_formats() -> tuple:
    found = []
    while True:
        info = sized(MoteFormatInfo)
        try:
            call("mote_format_describe", len(found), byref(info))
        except Error as error:
            if error.status != "NOT_FOUND":
                raise
            return tuple(found)
        found.append(
            Format(
                info.name.decode(),
                info.block,
                info.block_bytes,
                bool(info.has_scale),
                bool(info.has_bias),
                bool(info.can_quantise),
            )
        )


def formats() -> "list[Format]":
    """All weight formats of the library."""
    return list(_all_formats())


def format_named(name: str, in_planes: bool = False) -> Format:
    key = name.lower()
    if in_planes:
        key = _IN_PLANES.get(key, key)
    for candidate in _all_formats():
        if candidate.name == key:
            return candidate
    raise argument(f"format '{name}' is not known; mote.formats() lists all")


@dataclass
class Weights:
    """Rows of weights in a format: data [..., bytes of a row], and for formats in planes scale and bias [..., groups of a row].

    format  a name of formats(); "mxfp4" and "nvfp4" with a scale are "mlx_mxfp4" and "mlx_nvfp4"
    data    uint8 (other integers are taken as their bytes), or floats for "f32", "bf16", "f16"; what follows the dimension of
            rows is one row: gpt-oss' [experts, rows, blocks, 16] is fine
    scale   uint8 (e8m0, e4m3) or, for affine formats, floats; bias as scale
    group   affine: columns of a scale; 0: 64
    factor  float32 [experts]: multiplies an expert's weights (NVFP4's tensor scale)
    """

    format: str
    data: Any
    scale: Any = None
    bias: Any = None
    group: int = 0
    factor: Any = None

    @property
    def kind(self) -> Format:
        return format_named(self.format, self.scale is not None)

    def columns(self, n_row: int, what: str = "weights") -> int:
        """Of the matrix, when it has n_row rows in all."""
        kind, size = self.kind, arrays.item_bytes(self.data)
        for extent in self.data.shape:
            size *= int(extent)
        if n_row < 1 or size % n_row or size // n_row % kind.block_bytes:
            raise argument(
                f"{what}: {size} bytes in {n_row} rows are no whole blocks of {kind.name}, {kind.block_bytes} bytes each"
            )
        return size // n_row // kind.block_bytes * kind.block

    def check_planes(self, n_row: int, n_col: int, what: str) -> None:
        """Scale and bias hold a number for every group: the library cannot see how long an array is."""
        group = self.kind.group(self.group)
        for name, plane in (("scale", self.scale), ("bias", self.bias)):
            if plane is None or not group:
                continue  # the library says what is missing or too much
            if not self.kind.has_bias and arrays.item_bytes(plane) != 1:
                raise argument(f"{what}: {name} is {plane.dtype}, expected a byte for each")
            n = 1
            for extent in plane.shape:
                n *= int(extent)
            if n * group != n_row * n_col:
                raise argument(
                    f"{what}: {name} has {n} numbers, expected {n_row * n_col // group}: "
                    f"one for {group} columns of {n_row} rows of {n_col}"
                )

    def arrays(self) -> list:
        return [a for a in (self.data, self.scale, self.bias) if a is not None]

    def descriptor(self) -> MoteWeights:
        """As the library takes it; the arrays must live on. Packed ones."""
        own = MoteWeights(format=self.format.encode(), group=self.group)
        own.data = arrays.address(self.data)
        if self.scale is not None:
            own.scale = arrays.address(self.scale)
            if self.kind.has_bias:
                own.scale_type = arrays.FLOAT_TYPES.index(arrays.float_name(self.scale.dtype, "scale"))
        if self.bias is not None:
            if self.scale is not None and self.bias.dtype != self.scale.dtype:
                raise argument(f"bias: {self.bias.dtype}, expected {self.scale.dtype} as scale")
            own.bias = arrays.address(self.bias)
        if self.factor is not None:
            own.factor = arrays.address(self.factor)
        return own

    def packed(self) -> "Weights":
        """The same, every array without gaps; factor on the host as float32."""
        for name, array in (("data", self.data), ("scale", self.scale), ("bias", self.bias)):
            if array is not None:
                arrays.need_array(array, name)
        pack = lambda array: None if array is None else arrays.packed(array)  # noqa: E731
        factor = None if self.factor is None else arrays.converted(arrays.on_host(self.factor), "f32", "factor")
        return Weights(self.format, pack(self.data), pack(self.scale), pack(self.bias), self.group, factor)


def _n_row(shape) -> int:
    n = 1
    for extent in shape[:-1]:
        n *= int(extent)
    return n


def _in_threads(n_row: int, work) -> None:
    """work(first, n) over all rows, on all CPUs: the library is not held up by Python's lock."""
    n_part = max(1, min(os.cpu_count() or 1, n_row // 16))
    if n_part == 1:
        return work(0, n_row)
    each = -(-n_row // n_part)
    with ThreadPoolExecutor(n_part) as pool:
        for done in [pool.submit(work, at, min(each, n_row - at)) for at in range(0, n_row, each)]:
            done.result()


def quantise(x: Any, format: str, *, group: int = 0, scale_type: Any = "f16", importance: Any = None) -> Weights:
    """Rows of floats x [..., columns] in a format, with the codes of least squared error (columns weighted by importance [columns]
    where it is given). The result is where x is; the work is done by the CPU.

    group, scale_type: of affine formats. Raises Error: "UNSUPPORTED" without an encoder, "NUMERIC" on a NaN or infinity.
    """
    arrays.need_array(x, "x")
    kind = format_named(format)
    wide = arrays.converted(arrays.on_host(x), "f32", "x")
    n_row, n_col = _n_row(x.shape), int(x.shape[-1])
    if not n_row or not n_col:
        raise argument(f"x: shape {tuple(x.shape)}, expected at least a row")
    scale_name = arrays.float_name(scale_type, "scale_type") if kind.has_bias else "u8"
    own = MoteWeights(format=format.encode(), group=group)
    if kind.has_bias:
        own.scale_type = arrays.FLOAT_TYPES.index(scale_name)
    sizes = [c_size_t() for _ in range(3)]
    call("mote_rows_bytes", byref(own), n_row, n_col, *[byref(size) for size in sizes])
    row_bytes = [size.value // n_row for size in sizes]
    lead = tuple(x.shape[:-1])
    data = arrays.new(wide, lead + (row_bytes[0],), "u8")
    n_group = n_col // kind.group(group) if kind.has_scale else 0
    scale = arrays.new(wide, lead + (n_group,), scale_name) if kind.has_scale else None
    bias = arrays.new(wide, lead + (n_group,), scale_name) if kind.has_bias else None
    weights = None if importance is None else arrays.converted(arrays.on_host(importance), "f32", "importance")
    if weights is not None and tuple(weights.shape) != (n_col,):
        raise argument(f"importance: shape {tuple(weights.shape)}, expected ({n_col},)")

    def work(first: int, n: int) -> None:
        at = lambda array, size: None if array is None else arrays.address(array) + first * size  # noqa: E731
        call(
            "mote_rows_quantise",
            byref(own),
            arrays.address(wide) + first * n_col * 4,
            n,
            n_col,
            None if weights is None else arrays.address(weights),
            at(data, row_bytes[0]),
            at(scale, row_bytes[1]),
            at(bias, row_bytes[2]),
        )

    _in_threads(n_row, work)
    if arrays.on_gpu(x):
        move = lambda array: None if array is None else array.to(x.device)  # noqa: E731
        data, scale, bias = move(data), move(scale), move(bias)
    return Weights(format, data, scale, bias, group)


def dequantise(weights: Weights) -> Any:
    """What the weights are, exactly: float32 [..., columns], where data is. `factor` is not looked at."""
    host = Weights(
        weights.format,
        *(None if a is None else arrays.on_host(a) for a in (weights.data, weights.scale, weights.bias)),
        weights.group,
    ).packed()
    lead = tuple(weights.data.shape[:-1])
    n_row = _n_row(weights.data.shape)
    n_col = host.columns(n_row)
    host.check_planes(n_row, n_col, "weights")
    out = arrays.new(host.data, lead + (n_col,), "f32")
    own = host.descriptor()
    call("mote_rows_dequantise", byref(own), n_row, n_col, arrays.address(out))
    return out.to(weights.data.device) if arrays.on_gpu(weights.data) else out


def mxfp4_quantise(x: Any) -> tuple:
    """Activations x [..., columns] to MXFP4 as act="mxfp4" makes them: codes uint8 [..., columns / 2], the even column in the low
    nibble, and scales uint8 [..., columns / 32] (e8m0)."""
    wide = arrays.converted(arrays.on_host(x), "f32", "x")
    lead, n_col = tuple(x.shape[:-1]), int(x.shape[-1])
    codes = arrays.new(wide, lead + (n_col // 2,), "u8")
    scales = arrays.new(wide, lead + (n_col // 32,), "u8")
    call(
        "mote_mxfp4_quantise",
        arrays.address(wide),
        _n_row(x.shape),
        n_col,
        arrays.address(codes),
        arrays.address(scales),
    )
    if arrays.on_gpu(x):
        codes, scales = codes.to(x.device), scales.to(x.device)
    return codes, scales
