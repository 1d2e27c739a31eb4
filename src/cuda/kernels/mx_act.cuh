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

// N (4 or 16) neighbouring columns of a unit as e2m1 values, in a lane; the unit by neighbouring lanes.
template <int N> struct MxColumns {
    static constexpr int BLOCK = 32 / N, UNIT = 128 / N; // lanes
    float v[N];
    u32 most; // of the block, as bits
    int e;

    MOTE_FN MxColumns(const float (&x)[N]) : most(0)
    {
        MOTE_UNROLL
        for (int i = 0; i < N; i++) most = max(most, float_bits(x[i]) & 0x7FFFFFFF);
        MOTE_UNROLL
        for (int i = 1; i < BLOCK; i *= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
        e = mxfp4_exponent(most);
        float inverse = mxfp4_inverse(e);
        MOTE_UNROLL
        for (int i = 0; i < N; i++) v[i] = mxfp4_value(x[i], inverse);
    }
    // Twice the values of columns 4 i .. + 3, as s8. (Beside 1.5 * 2^23 an integer is a float's low bits.)
    MOTE_FN u32 twice(int i) const
    {
        u32 w[4];
        MOTE_UNROLL
        for (int j = 0; j < 4; j++) w[j] = float_bits(__fmaf_rn(v[4 * i + j], 2, 12582912.0f));
        return prmt(prmt(w[0], w[1], 0x0040), prmt(w[2], w[3], 0x0040), 0x5410);
    }
    // at: which of all rows' units; part: the lane's place in it.
    MOTE_FN void put_small(const MxRows &rows, size_t at, int part) const
    {
        MOTE_UNROLL
        for (int i = 0; i < N / 4; i++) *(u32 *)(rows.q + at * 128 + part * N + 4 * i) = e == MXFP4_NO_NUMBER ? 0 : twice(i);
        if (part % BLOCK == 0) rows.scale[at * 4 + part / BLOCK] = mxfp4_scale(e) * 0.5f;
    }
    // The largest exponent of the unit.
    MOTE_FN int top() const
    {
        int v = e;
        MOTE_UNROLL
        for (int i = BLOCK; i < UNIT; i *= 2) v = max(v, __shfl_xor_sync(~0u, v, i));
        return v;
    }
    // Whether the block lies below what e4m3 holds beside the largest.
    MOTE_FN bool is_wide(int top) const { return top != MXFP4_NO_NUMBER && most > 0 && top - e > MX_WINDOW; }
    MOTE_FN void put_large(const MxRows &rows, size_t at, int part, int top) const
    {
        bool is_number = top != MXFP4_NO_NUMBER;
        float up = is_number ? bits_float((u32)(127 + MX_TOP - min(top - e, 100)) << 23) : 0;
        MOTE_UNROLL
        for (int i = 0; i < N / 4; i++) {
            int c = part * N + 4 * i;
            u32 four = pack_e4m3x4(v[4 * i] * up, v[4 * i + 1] * up, v[4 * i + 2] * up, v[4 * i + 3] * up);
            *(u32 *)(rows.q + at * 128 + c / 32 * 32 + c / 4 % 2 * 16 + c / 8 % 4 * 4) = is_number ? four : 0;
        }
        if (part == 0) rows.scale[at] = mxfp4_scale(top) * bits_float((127 - MX_TOP) << 23);
    }
};

#endif
