"""The library: where it is, its structs and functions, and errors as exceptions.

Owns: everything that include/mote/kernels.h says in C. One idea: a struct here has the fields of the struct there, in order.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

STATUS = {
    1: "ARGUMENT",
    2: "MEMORY",
    3: "BUDGET",
    4: "IO",
    5: "FORMAT",
    6: "UNSUPPORTED",
    7: "NOT_FOUND",
    8: "CONTEXT",
    9: "NUMERIC",
    10: "CANCELLED",
    11: "DEVICE",
    12: "INTERNAL",
}
ARGUMENT = 1


class Error(Exception):
    """A call that failed. `status` is the name of the status value ("ARGUMENT", "UNSUPPORTED", "DEVICE", ...), the text says
    what, where and what was expected."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = STATUS.get(status, str(status))


def argument(message: str) -> Error:
    return Error(ARGUMENT, message)


class MoteWeights(ctypes.Structure):
    _fields_ = [
        ("format", c_char_p),
        ("data", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("scale_type", c_int),
        ("group", c_int32),
        ("factor", c_void_p),
    ]


class MoteMoeOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_expert", c_int64),
        ("n_used", c_int64),
        ("d_model", c_int64),
        ("n_ff", c_int64),
        ("gate", MoteWeights),
        ("up", MoteWeights),
        ("down", MoteWeights),
        ("gate_up", c_int),
        ("on_device", c_int),
        ("activation", c_char_p),
        ("limit", c_float),
        ("act", c_char_p),
        ("x_type", c_int),
        ("y_type", c_int),
        ("unordered", c_int),
    ]


class MoteMoeCall(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_row", c_int64),
        ("x", c_void_p),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("residual", c_void_p),
        ("y", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


class MoteFormatInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("block", c_int32),
        ("block_bytes", c_int32),
        ("has_scale", c_int),
        ("has_bias", c_int),
        ("can_quantise", c_int),
    ]


def sized(kind):
    """An empty struct that says its size."""
    return kind(struct_size=ctypes.sizeof(kind))


_FUNCTIONS = {  # all give a status
    "mote_device_open": [c_char_p, c_int, POINTER(c_void_p)],
    "mote_moe_create": [c_void_p, POINTER(MoteMoeOptions), POINTER(c_void_p)],
    "mote_moe_workspace": [c_void_p, c_int64, POINTER(c_size_t)],
    "mote_moe_forward": [c_void_p, POINTER(MoteMoeCall)],
    "mote_moe_check": [c_void_p, c_void_p],
    "mote_format_describe": [c_int, POINTER(MoteFormatInfo)],
    "mote_rows_bytes": [POINTER(MoteWeights), c_int64, c_int64] + 3 * [POINTER(c_size_t)],
    "mote_rows_quantise": [POINTER(MoteWeights), c_void_p, c_int64, c_int64] + 4 * [c_void_p],
    "mote_rows_dequantise": [POINTER(MoteWeights), c_int64, c_int64, c_void_p],
    "mote_mxfp4_quantise": [c_void_p, c_int64, c_int64, c_void_p, c_void_p],
}


def _candidates():
    """Where the library may be, best first."""
    here = Path(__file__).resolve().parent
    if os.environ.get("MOTE_LIBRARY"):
        yield os.environ["MOTE_LIBRARY"]
        return
    for path in (here / "libmote.so", here.parent.parent / "build" / "libmote.so"):
        if path.exists():
            yield str(path)
    yield ctypes.util.find_library("mote") or "libmote.so.0"


_library = None
_path = ""


def library():
    """The library, opened at the first call."""
    global _library, _path
    if _library is not None:
        return _library
    tried = []
    for path in _candidates():
        try:
            opened = ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
            continue
        for name, arguments in _FUNCTIONS.items():
            function = getattr(opened, name)
            function.argtypes, function.restype = arguments, c_int
        for name in ("mote_error", "mote_version"):
            getattr(opened, name).restype = c_char_p
        for name in ("mote_moe_destroy", "mote_device_close"):
            getattr(opened, name).argtypes, getattr(opened, name).restype = [c_void_p], None
        _library, _path = opened, path
        return opened
    raise Error(
        7, "mote: no library (" + "; ".join(tried) + "): run `make lib` in the checkout, or set MOTE_LIBRARY=FILE"
    )


def call(name: str, *arguments) -> None:
    """Call a function that gives a status; raise what it failed with."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise Error(status, library().mote_error().decode())


def version() -> str:
    """Of the library: "0.1.0"."""
    return library().mote_version().decode()


def library_path() -> str:
    """The file that was opened."""
    library()
    return _path


_devices = {}  # (name, n_thread): handle; they live as long as the process


def device(name: str, n_thread: int) -> c_void_p:
    key = (name, n_thread)
    if key not in _devices:
        handle = c_void_p()
        call("mote_device_open", name.encode(), n_thread, byref(handle))
        _devices[key] = handle
    return _devices[key]
