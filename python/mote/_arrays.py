"""torch tensors and numpy arrays, as far as this package tells them apart.

Neither is imported before one of its arrays comes along. Types have the names of the library: "f32", "bf16", "f16".
"""

from __future__ import annotations

import sys
from typing import Any

from ._library import argument

FLOAT_TYPES = ("f32", "bf16", "f16")  # by their number in mote/float_type.h
_TORCH_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_numpy(array: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def need_array(array: Any, what: str) -> None:
    if not is_torch(array) and not is_numpy(array):
        raise argument(f"{what}: {type(array).__name__}, expected a torch tensor or a numpy array")


def float_name(dtype: Any, what: str) -> str:
    """The name of a type ("f32", "bf16", "f16") that is given by name, as a torch dtype or a numpy dtype."""
    text = str(dtype).rsplit(".", 1)[-1].strip("<>'")
    for name, full in _TORCH_NAMES.items():
        if text in (name, full):
            return name
    raise argument(f"{what}: {dtype}, expected float32, bfloat16 or float16")


def is_float(array: Any) -> bool:
    return str(array.dtype).rsplit(".", 1)[-1] in _TORCH_NAMES.values()


def on_gpu(array: Any) -> bool:
    return is_torch(array) and array.is_cuda


def address(array: Any) -> int:
    return array.data_ptr() if is_torch(array) else array.ctypes.data


def item_bytes(array: Any) -> int:
    return array.element_size() if is_torch(array) else array.itemsize


def packed(array: Any) -> Any:
    """The same without gaps."""
    if is_torch(array):
        return array.detach().contiguous()
    import numpy

    return numpy.ascontiguousarray(array)


def new(like: Any, shape: tuple, kind: str) -> Any:
    """An array of `kind` ("u8", "i32" or a float's name) where `like` is, of like's library."""
    if is_torch(like):
        import torch

        dtype = {"u8": torch.uint8, "i32": torch.int32}.get(kind) or getattr(torch, _TORCH_NAMES[kind])
        return torch.empty(shape, dtype=dtype, device=like.device)
    import numpy

    if kind == "bf16":
        raise argument("numpy has no bfloat16: expected float32 or float16, or a torch tensor")
    return numpy.empty(shape, {"u8": numpy.uint8, "i32": numpy.int32}.get(kind) or _TORCH_NAMES[kind])


def converted(array: Any, kind: str, what: str) -> Any:
    """Packed, of `kind`: "i32" from any integers, "f32" from any floats."""
    need_array(array, what)
    is_integer = str(array.dtype).rsplit(".", 1)[-1].startswith(("int", "uint"))
    if is_integer != (kind == "i32"):
        raise argument(f"{what}: {array.dtype}, expected {'integers' if kind == 'i32' else 'floats'}")
    if is_torch(array):
        import torch

        return packed(array.to(torch.int32 if kind == "i32" else torch.float32))
    import numpy

    return packed(array.astype(numpy.int32 if kind == "i32" else numpy.float32, copy=False))


def on_host(array: Any) -> Any:
    return array.cpu() if is_torch(array) else array
