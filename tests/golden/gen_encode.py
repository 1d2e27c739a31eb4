"""Writes encode_golden.h: what the reference encoders make of rows that tests/test_encode.c makes again.

Needs PyPI's gguf, numpy and mlx, and ggml's shared library for the K and IQ formats:
    python tests/golden/gen_encode.py /path/to/libggml-base.so
Rows come from a counter-based generator (SplitMix64) through exact operations only, so that C makes the same bits.
"""
import ctypes
import json
import pathlib
import struct
import sys

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type

ROWS, COLS = 32, 1024
HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent.parent.parent / "shared/models/fable/model-00001-of-00002.safetensors"


def random_bits(seed, first, n):
    """Outputs first .. first + n of SplitMix64 seeded with `seed`."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(first + 1, first + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def bell(seed, n):
    """Sum of 12 uniform numbers less 6: nearly normal, unit variance; every operation is exact in a double."""
    u = (random_bits(seed, 0, 12 * n) >> np.uint64(40)).astype(np.float64).reshape(n, 12)
    return (u.sum(axis=1) - 6 * 2.0**24) / 2.0**24


def gauss_rows():
    return (bell(1, ROWS * COLS) / 64).astype(np.float32).reshape(ROWS, COLS)


def student_rows():
    """Student's t with 4 degrees of freedom."""
    n = ROWS * COLS
    square = np.zeros(n)
    for k in range(4):
        b = bell(3 + k, n)
        square = square + b * b
    return (bell(2, n) / np.sqrt(square / 4) / 64).astype(np.float32).reshape(ROWS, COLS)


def fable_rows():
    """The first expert tensor of the model in shared/ whose rows are 256 long: rows, and their offset in the file."""
    data = MODEL.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    for name, entry in sorted(json.loads(data[8 : 8 + size]).items()):
        if "experts" in name and entry["shape"][-1] == 256:
            at = 8 + size + entry["data_offsets"][0]
            n = entry["shape"][0] * 256
            bits = np.frombuffer(data[at : at + 2 * n], np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(-1, 256).copy(), at
    raise SystemExit("no expert tensor found")


def importance(n):
    """Squared heavy-tailed numbers: a few columns matter much."""
    b = bell(9, n)
    return (b * b * b * b + 1 / 64).astype(np.float32)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value


# ---- rules that no Python package has, written from the formats' description ----


def ternary_codes(x, size, top):
    d = np.abs(x).max(axis=1, keepdims=True)
    y = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0) * x
    t = gguf.quants.np_roundf(y)
    return d[:, 0].astype(np.float16).view(np.uint8).reshape(-1, 2), np.clip(t + 1, 0, top).astype(np.uint32)


def twos(x, size):
    d, t = ternary_codes(x.reshape(-1, size), size, 3)
    q = t.reshape(-1, size // 4, 4) << np.array([0, 2, 4, 6], np.uint32)
    return np.concatenate([d, q.sum(axis=2).astype(np.uint8)], axis=1)


def ptq1_0(x):
    d, t = ternary_codes(x.reshape(-1, 128), 128, 2)

    def pack(part, width, digits):
        v = np.zeros((len(part), width), np.uint32)
        for n in range(5):
            v = v * 3 + (part[:, n * width : (n + 1) * width] if n < digits else 0)
        return ((v * 256 + 242) // 243).astype(np.uint8)

    return np.concatenate([pack(t[:, :80], 16, 5), pack(t[:, 80:120], 8, 5), pack(t[:, 120:], 2, 4), d], axis=1)


def q1_0(x):
    x = x.reshape(-1, 128)
    total = np.zeros(len(x), np.float32)
    for j in range(128):
        total = total + np.abs(x[:, j])
    d = (total / np.float32(128)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return np.concatenate([d, np.packbits(x >= 0, axis=1, bitorder="little")], axis=1)


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointer, long = ctypes.c_void_p, ctypes.c_int64
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, long, long, long, pointer]

    def ggml_encode(kind, x, v):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.zeros((len(x), x.shape[1] // block * size), np.uint8)
        ggml.ggml_quantize_init(int(kind))
        ggml.ggml_quantize_chunk(
            int(kind), x.ctypes.data, out.ctypes.data, 0, len(x), x.shape[1], v.ctypes.data if v is not None else None
        )
        return out

    fable, fable_at = fable_rows()
    rows = {"GAUSS": gauss_rows(), "STUDENT": student_rows(), "FABLE": fable}
    out = [
        "/* encode_golden.h: written by gen_encode.py; do not edit. */",
        "enum golden_rows { GAUSS, STUDENT, FABLE, GOLDEN_ROWS };",
        f"enum {{ N_ROW = {ROWS}, N_COL = {COLS}, FABLE_ROW = {len(fable)}, FABLE_COL = 256 }};",
        f"static const long fable_offset = {fable_at};",
        "",
        "/* FNV-1a of the reference encoder's bytes. */",
        "static const struct {",
        "    enum mote_format format;",
        "    uint64_t hash[GOLDEN_ROWS];",
        "} golden_bytes[] = {",
    ]
    exact = {n: (lambda x, n=n: gguf.quants.quantize(x, Type[n])) for n in
             "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 TQ2_0 MXFP4".split()}
    exact |= {"Q1_0": q1_0, "Q2_0": lambda x: twos(x, 64), "PQ2_0": lambda x: twos(x, 128), "PTQ1_0": ptq1_0}
    for name, encode in exact.items():
        hashes = ", ".join(f"0x{fnv(np.ascontiguousarray(encode(x)).view(np.uint8).tobytes()):016x}u" for x in rows.values())
        out.append(f"    {{MOTE_FORMAT_{name}, {{{hashes}}}}},")
    out += [
        "};",
        "",
        "/* mlx.core.quantize: FNV-1a of codes, then scales, then biases. */",
        "static const struct {",
        "    int bits, group;",
        "    enum mote_format scale_format;",
        "    uint64_t hash[GOLDEN_ROWS];",
        "} golden_affine[] = {",
    ]
    mx.set_default_device(mx.cpu)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for scale, kind in (("F32", mx.float32), ("F16", mx.float16), ("BF16", mx.bfloat16)):
                hashes = []
                for x in rows.values():
                    # the weight has the scales' type: C rounds the rows to it first
                    q, s, b = mx.quantize(mx.array(x).astype(kind), group_size=group, bits=bits)
                    planes = [np.array(p.view(mx.uint32 if scale == "F32" else mx.uint16)) for p in (s, b)]
                    hashes.append(f"0x{fnv(np.array(q).tobytes() + planes[0].tobytes() + planes[1].tobytes()):016x}u")
                out.append(f"    {{{bits}, {group}, MOTE_FORMAT_{scale}, {{{', '.join(hashes)}}}}},")
    out += [
        "};",
        "",
        "/* Mean square error of ggml's encoder: plain, and weighted by the test's importance when it is given it. */",
        "static const struct {",
        "    enum mote_format format;",
        "    double plain[GOLDEN_ROWS], weighted[GOLDEN_ROWS];",
        "} golden_error[] = {",
    ]
    names = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ3_XXS IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4"
    for name in names.split():
        kind = Type[name]
        figures = {"plain": [], "weighted": []}
        for x in rows.values():
            v = importance(x.shape[1])
            # IQ2_XXS refuses to work without weights: equal ones then
            plain = ggml_encode(kind, x, np.ones_like(v) if name == "IQ2_XXS" else None)
            weighted = ggml_encode(kind, x, v)
            for key, code, w in (("plain", plain, 1.0), ("weighted", weighted, v.astype(np.float64))):
                delta = gguf.quants.dequantize(code, kind).astype(np.float64) - x
                figures[key].append(f"{(w * delta * delta).mean():.6e}")
        out.append(f"    {{MOTE_FORMAT_{name}, {{{', '.join(figures['plain'])}}}, {{{', '.join(figures['weighted'])}}}}},")
    out.append("};")
    (HERE / "encode_golden.h").write_text("\n".join(out) + "\n")


main()
