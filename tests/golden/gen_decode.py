#!/usr/bin/env python3
"""Writes decode_blocks.bin and decode_planar.bin: weights and the floats they stand for.

    python tests/golden/gen_decode.py [libggml-base.so]

References: PyPI gguf's dequantize (0.19.0) for every GGUF format it decodes; mlx.core.dequantize (mlx[cpu] 0.32.4)
for the PLANAR formats. gguf has no decoder for Q1_0, Q2_0, PQ2_0, PTQ1_0: for these the numpy decoders below, written
from docs/formats.md, element by element. Given the path of ggml's library, every block format but PQ2_0 and PTQ1_0 is
checked against its dequantize_row_* too.

decode_blocks.bin, per format: name[12], u32 n_block, u64 hash, blocks, f32 weights[n_block][elems].
decode_planar.bin, per case: name[12], scale format[4], u32 group, n_row, n_col, f32 factor, then data, scale, bias
(AFFINE), f32 weights[n_row][n_col].
hash is that of the weights of N_HASHED blocks of pseudo-random bytes; see splitmix and weights_hash.
"""
import ctypes
import os
import struct
import sys

import gguf
import mlx.core as mx
import numpy as np
from gguf.constants import GGMLQuantizationType as T

HERE = os.path.dirname(os.path.abspath(__file__))
N_HASHED = 1000
rng = np.random.default_rng(20)


def splitmix(seed, n_bytes):
    i = np.arange(1, n_bytes // 8 + 2, dtype=np.uint64)
    z = np.uint64(seed) + i * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.uint8)[:n_bytes]


def weights_hash(weights):
    """Sum of bits * odd number of the place, modulo 2^64; every NaN counts as 0x7FC00000."""
    flat = weights.ravel()
    bits = np.where(np.isnan(flat), np.uint32(0x7FC00000), flat.view(np.uint32)).astype(np.uint64)
    place = np.arange(flat.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return int(((bits + np.uint64(1)) * place * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64))


# ---- decoders of our own, one weight at a time


def f16(block, at):
    return np.float32(np.frombuffer(bytes(block[at : at + 2]), np.float16)[0])


def q1_0(b, j):
    d = f16(b, 0)
    return d if int(b[2 + j // 8]) >> j % 8 & 1 else -d


def q2_0(b, j):
    return f16(b, 0) * np.float32((int(b[2 + j // 4]) >> 2 * (j % 4) & 3) - 1)


def ptq1_0(b, j):
    if j < 80:
        byte, digit = b[j % 16], j // 16
    elif j < 120:
        byte, digit = b[16 + (j - 80) % 8], (j - 80) // 8
    else:
        byte, digit = b[24 + (j - 120) % 2], (j - 120) // 2
    q = int(byte)
    for _ in range(digit):
        q = q * 3 % 256
    return f16(b, 26) * np.float32(q * 3 // 256 - 1)


OWN = {
    "q1_0": (128, 18, q1_0),
    "q2_0": (64, 18, q2_0),
    "pq2_0": (128, 34, q2_0),
    "ptq1_0": (128, 28, ptq1_0),
}
# name: where the f16 scales are
SCALES = {
    "f32": [], "f16": [0], "bf16": [], "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "iq1_s": [0], "iq1_m": None,
    "iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0], "iq3_xxs": [0], "iq3_s": [0], "iq4_nl": [0], "iq4_xs": [0],
    "tq1_0": [52], "tq2_0": [64], "mxfp4": [], "nvfp4": [], "q1_0": [0], "q2_0": [0], "pq2_0": [0], "ptq1_0": [26],
}  # fmt: skip
# 0, -0, smallest and largest subnormal, smallest normal, large, largest, negative, ordinary, infinity
SPECIAL = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7800, 0x7BFF, 0xFBFF, 0xA123, 0x2345, 0x1C00, 0x7C00]


def reference(name, blocks):
    if name in OWN:
        elems, _, element = OWN[name]
        return np.array([[element(b, j) for j in range(elems)] for b in blocks], np.float32)
    return np.ascontiguousarray(gguf.dequantize(blocks, T[name.upper()]).reshape(len(blocks), -1), np.float32)


def check_ggml(ggml, name, blocks, weights):
    if ggml is None or name in ("pq2_0", "ptq1_0", "f32", "f16", "bf16"):
        return "unchecked"
    out = np.empty_like(weights)
    symbol = "dequantize_row_" + {k: k[:-1] + "K" for k in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")}.get(name, name)
    blocks = np.ascontiguousarray(blocks)
    getattr(ggml, symbol)(ctypes.c_void_p(blocks.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
    same = (out.view(np.uint32) == weights.view(np.uint32)) | (np.isnan(out) & np.isnan(weights))
    assert same.all(), f"{name}: ggml differs in {(~same).sum()} of {same.size} weights"
    return "equal"


def blocks_of(name, elems, size):
    n = len(SPECIAL) if elems > 1 else 16
    blocks = rng.integers(0, 256, size=(n, size), dtype=np.uint8)
    if name == "iq1_m":  # the scale lies in the top nibbles of the four last words
        for i, half in enumerate(SPECIAL):
            for k in range(4):
                blocks[i, 49 + 2 * k] = (blocks[i, 49 + 2 * k] & 15) | (half >> 4 * k & 15) << 4
    elif elems > 1:
        for k, at in enumerate(SCALES[name]):
            for i in range(n):
                half = SPECIAL[(i + 5 * k) % n]
                blocks[i, at : at + 2] = [half & 255, half >> 8]
    if name == "mxfp4":
        blocks[:, 0] = [0, 1, 2, 3, 126, 127, 128, 129, 252, 253, 254, 255]
    if name == "nvfp4":
        blocks[:, :4] = np.concatenate([np.arange(16), np.arange(0x78, 0x88), np.arange(0xF0, 0x100)]).reshape(12, 4)
    return blocks


def write_blocks(ggml):
    total = 0
    with open(os.path.join(HERE, "decode_blocks.bin"), "wb") as out, np.errstate(all="ignore"):
        for seed, name in enumerate(SCALES):
            elems, size = OWN[name][:2] if name in OWN else gguf.GGML_QUANT_SIZES[T[name.upper()]]
            blocks = blocks_of(name, elems, size)
            weights = reference(name, blocks)
            many = splitmix(seed, N_HASHED * size).reshape(N_HASHED, size)
            many_weights = reference(name, many)
            state = check_ggml(ggml, name, blocks, weights), check_ggml(ggml, name, many, many_weights)
            out.write(struct.pack("<12sIQ", name.encode(), len(blocks), weights_hash(many_weights)))
            out.write(blocks.tobytes() + weights.tobytes())
            total += weights.size
            print(f"{name}: {weights.size} weights, ggml: {state[0]}, {state[1]}")
    print(total, "weights")


def write_case(out, name, scale_format, group, factor, data, scale, bias, weights):
    weights = np.asarray(weights)
    assert weights.dtype == np.float32
    out.write(struct.pack("<12s4sIIIf", name.encode(), scale_format.encode(), group, *weights.shape, factor))
    out.write(data.tobytes() + scale.tobytes() + (bias.tobytes() if bias is not None else b"") + weights.tobytes())


def stored(values, scale_format):
    """The values rounded to the scale format: (as stored, as f32)."""
    if scale_format == "f32":
        return values, values
    if scale_format == "f16":
        half = values.astype(np.float16)
        return half, half.astype(np.float32)
    bits = values.view(np.uint32)
    half = ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return half, (half.astype(np.uint32) << np.uint32(16)).view(np.float32)


def write_planar():
    with open(os.path.join(HERE, "decode_planar.bin"), "wb") as out, np.errstate(all="ignore"):
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                for scale_format in ("f32", "f16", "bf16"):
                    rows, cols = 2, 256
                    data = rng.integers(0, 2**32, size=(rows, cols * bits // 32), dtype=np.uint32)
                    shape = rows, cols // group
                    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 3, shape)).astype(np.float32)
                    values[0, 0] = [0.0, -1e-7, 3e4][(bits + group // 32) % 3]  # zero, f16 subnormal, large
                    offsets = (rng.standard_normal(shape) * 0.1).astype(np.float32)
                    offsets[1, 0] = 0
                    scale, scale32 = stored(values, scale_format)
                    bias, bias32 = stored(offsets, scale_format)
                    # f32 scales: with 16-bit ones MLX computes (and rounds twice) in 16 bits
                    weights = mx.dequantize(mx.array(data), mx.array(scale32), mx.array(bias32), group_size=group, bits=bits)
                    write_case(out, f"affine{bits}", scale_format, group, 1.0, data, scale, bias, weights)

        every = np.arange(256, dtype=np.uint8)

        def fp(name, bits, group, data, scale, tensor_scale=None):
            mode = name[4:]
            more = {} if tensor_scale is None else {"global_scale": mx.array(tensor_scale)}
            weights = mx.dequantize(mx.array(np.ascontiguousarray(data).view(np.uint32)), mx.array(scale), None,
                                    group_size=group, bits=bits, mode=mode, dtype=mx.float32, **more)  # fmt: skip
            factor = np.float32(1) if tensor_scale is None else np.float32(tensor_scale) / np.float32(448 * 6)
            write_case(out, name, "", group, factor, data, scale, None, weights)

        codes = ((2 * np.arange(16)) % 16 | (2 * np.arange(16) + 1) % 16 << 4).astype(np.uint8)  # 0..15 twice
        fp("mlx_mxfp4", 4, 32, np.tile(codes, 64).reshape(2, -1), every[np.r_[0:16, 112:144, 240:256]].reshape(2, -1))
        fp("mlx_nvfp4", 4, 16, np.tile(codes[:8], 256).reshape(2, -1), every.reshape(2, -1))
        fp("mlx_nvfp4", 4, 16, np.tile(codes[:8], 256).reshape(2, -1), every.reshape(2, -1), 1234.567)
        scale = np.repeat(every[[0, 1, 2, 120, 127, 130, 254, 255]], 8).reshape(2, -1)
        fp("mlx_mxfp8", 8, 32, np.tile(every, 8).reshape(2, -1), scale)


write_blocks(ctypes.CDLL(sys.argv[1]) if len(sys.argv) > 1 else None)
write_planar()
