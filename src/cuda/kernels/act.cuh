// act.cuh: activations in 16-bit integers (struct mote_step_act in cuda/step.h) as kernels write them, rounded as it says.
//
// Owns: the rounding of 32 columns and where they lie. Does not own: what the columns are (norm, attention, experts).
// One idea: a lane holds a column, so that a warp quantises 32 columns in two reductions and writes them coalesced.
#ifndef ACT_CUH
#define ACT_CUH
#include "mxfp4.cuh"
#include "step.h"

// Columns of `rounding` to codes q = 256 hi + lo, lo in [-128, 127], and the scale: x ~ scale * q. I16: scale = amax / 32512, q in
// [-32512, 32512]. MXFP4: the scale is half the block's power of two. All 32 lanes call it with x of their own column;
// q [2: hi, lo][32], scale[0]; the sums lie at scale[4] (all) and scale[8] (the first 16). NaN or infinity among the 32 makes the
// scale so, and with it every product.
template <bool SUMS = true> // sums of codes may be left out where no weight has a zero or a minimum
__device__ __forceinline__ void quantise32(float x, int lane, int rounding, signed char *q, float *scale)
{
    // As integers, magnitudes of floats keep their order and NaN is above all.
    u32 most = __reduce_max_sync(0xffffffffu, __float_as_uint(x) & 0x7fffffffu);
    float amax = __uint_as_float(most);
    int is_zero = amax < 1e-30f; // the inverse would overflow
    int code = is_zero ? 0 : __float2int_rn(x * __fdividef(32512.0f, amax));
    float unit = is_zero ? 0 : amax * (1.0f / 32512.0f);
    if (rounding == MOTE_ROUND_MXFP4) {
        int exponent = mxfp4_exponent(most);
        code = mxfp4_twice(x, mxfp4_inverse(exponent));
        unit = 0.5f * mxfp4_scale(exponent);
    }
    int hi = (code + 128) >> 8;
    q[lane] = (signed char)hi;
    q[32 + lane] = (signed char)(code - 256 * hi);
    if (lane == 0) *scale = unit;
    if constexpr (SUMS) {
        int all = __reduce_add_sync(0xffffffffu, code);
        int first = __reduce_add_sync(0xffffffffu, lane < 16 ? code : 0);
        if (lane == 0) {
            scale[4] = (float)all;
            scale[8] = (float)first;
        }
    }
}

// The same for columns [32 block, + 32) of a row of n_unit units.
template <bool SUMS = true>
__device__ __forceinline__ void quantise32(float x, const mote_step_act &act, int n_unit, int row, int block)
{
    size_t at = (size_t)row * (4 * n_unit) + block;
    quantise32<SUMS>(x, threadIdx.x % 32, act.rounding, act.q + at * 64, act.scale + 3 * at - 2 * (block % 4));
}

#endif
