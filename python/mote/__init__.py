"""Expert blocks of mixture-of-experts models with weights in 1 to 8 bits.

    moe = mote.MoE(gate=gate, up=up, down=down, n_used=8, device="cuda", dtype=torch.bfloat16)
    y = moe(x, ids, weights)

The C library does the work (include/mote/kernels.h has the contract); this package is ctypes and nothing else. torch is used
where tensors are given, numpy where arrays are; neither is needed to import it.
"""

from ._library import Error, library_path, version
from .moe import MoE
from .rows import Format, Weights, dequantise, formats, mxfp4_quantise, quantise

__all__ = [
    "Error",
    "Format",
    "MoE",
    "Weights",
    "dequantise",
    "formats",
    "library_path",
    "mxfp4_quantise",
    "quantise",
    "version",
]
