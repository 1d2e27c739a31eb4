// mx_act.cuh: rows of activations as the MXFP4 kernels of sm_90 (mx_small.cu, mx_large.cu) read them.
//
//   small   q [row][unit][4 blocks][32] s8: twice the e2m1 value; scale [row][unit][4]: what one of q stands for
//   large   q [row][unit][128] e4m3: e2m1 values times a power of two of their block, relative to the unit's largest; column
//           8 t + 4 i + e of 32 stands at position 16 i + 4 t + e; scale [row][unit]: the unit's
//
// Columns are padded with zeros to whole units of 128. A block with a NaN or an infinity has the scale NaN.
//
// Owns: those layouts and who of a warp holds which column. The rule is mxfp4.cuh's.
#ifndef MX_ACT_CUH
#define MX_ACT_CUH
#include "mxfp4.cuh"

struct MxRows {
    i8 *q;
    float *scale;
};

// Small: block `block` of 32 columns of a row; a lane a column.
MOTE_FN void mx_put_block(float x, const MxRows &rows, size_t row, int n_unit, int block)
{
    size_t at = row * (4 * n_unit) + block;
    int lane = threadIdx.x % 32, e = mxfp4_exponent(__reduce_max_sync(~0u, float_bits(x) & 0x7FFFFFFF));
    rows.q[at * 32 + lane] = e == MXFP4_NO_NUMBER ? 0 : mxfp4_twice(x, mxfp4_inverse(e));
    if (lane == 0) rows.scale[at] = mxfp4_scale(e) * 0.5f;
}

// The largest magnitude of a block, as bits, when a lane holds columns 4 lane .. + 3 of a unit.
MOTE_FN u32 mx_most(float4 x)
{
    u32 most = max(max(float_bits(x.x) & 0x7FFFFFFF, float_bits(x.y) & 0x7FFFFFFF),
                   max(float_bits(x.z) & 0x7FFFFFFF, float_bits(x.w) & 0x7FFFFFFF));
    MOTE_UNROLL
    for (int i = 1; i < 8; i *= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
    return most;
}
MOTE_FN u32 mx_bytes(int a, int b, int c, int d) { return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (u32)d << 24; }

// Small: a unit of a row, by one warp: columns 4 lane .. + 3.
MOTE_FN void mx_put_blocks(float4 x, const MxRows &rows, size_t row, int n_unit, int unit)
{
    int lane = threadIdx.x % 32, e = mxfp4_exponent(mx_most(x));
    size_t block = (row * n_unit + unit) * 4 + lane / 8;
    float inverse = mxfp4_inverse(e);
    u32 four = mx_bytes(mxfp4_twice(x.x, inverse), mxfp4_twice(x.y, inverse), mxfp4_twice(x.z, inverse), mxfp4_twice(x.w, inverse));
    *(u32 *)(rows.q + block * 32 + lane % 8 * 4) = e == MXFP4_NO_NUMBER ? 0 : four;
    if (lane % 8 == 0) rows.scale[block] = mxfp4_scale(e) * 0.5f;
}

// How far below a unit's largest block another may lie and still be exact in e4m3: 0.5 * 2^-8 is its smallest number.
constexpr int MX_TOP = 6, MX_WINDOW = 14;

#ifdef __CUDACC__
MOTE_FN u32 pack_e4m3x4(float a, float b, float c, float d)
{
    u32 v;
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(v)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return v;
}
#endif

// Large: a unit of a row, by one warp: columns 4 lane .. + 3. Returns whether a block lies below what e4m3 holds beside the largest.
MOTE_FN bool mx_put_unit(float4 x, const MxRows &rows, size_t row, int n_unit, int unit)
{
    int lane = threadIdx.x % 32;
    u32 most = mx_most(x);
    int e = mxfp4_exponent(most), top = __reduce_max_sync(~0u, e);
    bool is_number = top != MXFP4_NO_NUMBER, is_wide = is_number && most > 0 && top - e > MX_WINDOW;
    float inverse = mxfp4_inverse(e), up = is_number ? bits_float((u32)(127 + MX_TOP - min(top - e, 100)) << 23) : 0;
    u32 four = pack_e4m3x4(mxfp4_value(x.x, inverse) * up, mxfp4_value(x.y, inverse) * up, mxfp4_value(x.z, inverse) * up,
                           mxfp4_value(x.w, inverse) * up);
    size_t at = row * n_unit + unit;
    *(u32 *)(rows.q + at * 128 + lane / 8 * 32 + (lane & 1) * 16 + (lane >> 1 & 3) * 4) = is_number ? four : 0;
    if (lane == 0) rows.scale[at] = mxfp4_scale(top) * bits_float((127 - MX_TOP) << 23);
    return __any_sync(~0u, is_wide);
}

#endif
