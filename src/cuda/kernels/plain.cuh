// plain.cuh: plain numbers (f32, f16, bf16) sixteen bytes at a time. Constant: ITEM (0 f16, 1 bf16, 2 f32).
#pragma once
#include "common.cuh"

constexpr int PLAIN_EACH = ITEM == 2 ? 4 : 8; // numbers in 16 bytes
constexpr int PLAIN_BYTES = ITEM == 2 ? 4 : 2;

// Sixteen bytes of weights as floats.
__device__ __forceinline__ void plain_unpack(uint4 w, float out[PLAIN_EACH])
{
    u32 word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (ITEM == 2) out[i] = __uint_as_float(word[i]);
        else if constexpr (ITEM == 1) out[2 * i] = __uint_as_float(word[i] << 16), out[2 * i + 1] = __uint_as_float(word[i] & 0xFFFF0000u);
        else out[2 * i] = half_to_float(word[i] & 0xFFFF), out[2 * i + 1] = half_to_float(word[i] >> 16);
    }
}
