// order.cuh: floats as integers of the same order, and back: what selections compare.
#pragma once
#include "common.cuh"

// Larger float, larger number; no NaN. 0 is below every float.
__device__ __forceinline__ u32 ordered(float v)
{
    u32 bits = __float_as_uint(v + 0.f); // -0 is 0
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_order(u32 key)
{
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}
