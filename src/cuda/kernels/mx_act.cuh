// mx_act.cuh: rows of activations as the MXFP4 kernels of sm_90 (mx_small.cu, mx_narrow.cu, mx_wide.cu) read them.
//
//   small   q [row][unit][128] e4m3: the e2m1 values; column 8 t + 4 i + e of 32 stands at position 16 i + 4 t + e; scale
//           [row][unit][4 blocks]: what 1 of them stands for
//   large   q likewise, but for a power of two of their block, relative to the largest of all that share a scale: scale [row][unit], or
//           [row][span of MX_SPAN units], or of wide pieces (mx_wide.cu) [row]
//   planes  q [row][unit][2][128] e4m3: numbers that were not rounded to e2m1, as sums of two (MxPlanes); columns as above, scale as
//           small has it, or large, spans being of MX_PLANES_SPAN units
//   halves  bf16 [row][unit][128], for mx_wide.cu; column 8 t + 2 i + e of 32 stands at position 8 i + 2 t + e
//
// Columns are padded with zeros to whole units of 128. A block with a NaN or an infinity has the scale NaN; so have all that share one.
//
// Owns: those layouts and who of a warp holds which column. The rule is mxfp4.cuh's.
#ifndef MX_ACT_CUH
#define MX_ACT_CUH
#include "mxfp4.cuh"

constexpr int MX_SPAN = 4, MX_PLANES_SPAN = 2;

struct MxRows {
    i8 *q;
    float *scale;
};

// Of all blocks that share a scale the largest is held as 2^MX_TOP v, up to 384. One 14 powers of two below is still exact in e4m3, whose smallest
// number is 0.5 * 2^-8; of what lies lower up to 2^-10 is lost, less than 2^-17 of the largest number.
constexpr int MX_TOP = 6;

#ifdef __CUDACC__
MOTE_FN u32 pack_e4m3x4(float a, float b, float c, float d)
{
    u32 v;
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(v)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return v;
}
MOTE_FN float4 unpack_e4m3x4(u32 v)
{
    float4 f;
    asm("{.reg .b16 l, h, a, b, c, d; .reg .b32 x, y; mov.b32 {l, h}, %4; cvt.rn.f16x2.e4m3x2 x, l; cvt.rn.f16x2.e4m3x2 y, h; "
        "mov.b32 {a, b}, x; mov.b32 {c, d}, y; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; cvt.f32.f16 %2, c; cvt.f32.f16 %3, d;}"
        : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w)
        : "r"(v));
    return f;
}
#endif

// By what a block's v are multiplied beside the largest, and what 1 of them stands for.
MOTE_FN float mx_up(int top, int e) { return bits_float((u32)(127 + MX_TOP - min(top - e, 100)) << 23); }
MOTE_FN float mx_large_scale(int top) { return mxfp4_scale(top) * bits_float((127 - MX_TOP) << 23); }
// E of mxfp4_scale(E).
MOTE_FN int mx_scale_exponent(float scale) { return (int)(float_bits(scale) >> 23 & 255); }
// Four e4m3 numbers, multiplied.
MOTE_FN u32 mx_times(u32 four, float by)
{
    float4 v = unpack_e4m3x4(four);
    return pack_e4m3x4(v.x * by, v.y * by, v.z * by, v.w * by);
}

// Where columns c .. c + 3 of a unit (c a multiple of 4) stand in rows for the fp8 tensor cores.
MOTE_FN int mx_position(int c) { return c / 32 * 32 + c / 4 % 2 * 16 + c / 8 % 4 * 4; }

MOTE_FN int mx_half_position(int c) { return c / 32 * 32 + c % 8 / 2 * 8 + c / 8 % 4 * 2 + c % 2; }

// N (4 or 16) neighbouring columns of a unit as e2m1 values, in a lane; the unit by neighbouring lanes.
template <int N> struct MxColumns {
    static constexpr int BLOCK = 32 / N, UNIT = 128 / N; // lanes
    float v[N];
    int e;

    MOTE_FN MxColumns(const float (&x)[N])
    {
        u32 most = 0; // of the block, as bits
        MOTE_UNROLL
        for (int i = 0; i < N; i++) most = max(most, float_bits(x[i]) & 0x7FFFFFFF);
        MOTE_UNROLL
        for (int i = 1; i < BLOCK; i *= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
        e = mxfp4_exponent(most);
        float inverse = mxfp4_inverse(e);
        MOTE_UNROLL
        for (int i = 0; i < N; i++) v[i] = mxfp4_value(x[i], inverse);
    }
    // at: which of all rows' units; part: the lane's place in it.
    MOTE_FN void put_small(const MxRows &rows, size_t at, int part) const
    {
        MOTE_UNROLL
        for (int i = 0; i < N / 4; i++) {
            u32 four = pack_e4m3x4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
            *(u32 *)(rows.q + at * 128 + mx_position(part * N + 4 * i)) = e == MXFP4_NO_NUMBER ? 0 : four;
        }
        if (part % BLOCK == 0) rows.scale[at * 4 + part / BLOCK] = mxfp4_scale(e);
    }
    // The largest exponent of UNITS neighbouring units.
    template <int UNITS> MOTE_FN int top() const
    {
        int v = e;
        MOTE_UNROLL
        for (int i = BLOCK; i < UNITS * UNIT; i *= 2) v = max(v, __shfl_xor_sync(~0u, v, i));
        return v;
    }
    // scale_at: likewise of all scales, by lanes that are to write it.
    MOTE_FN void put_large(const MxRows &rows, size_t at, int part, int top, size_t scale_at, bool writes_scale) const
    {
        float up = mx_up(top, e);
        MOTE_UNROLL
        for (int i = 0; i < N / 4; i++) {
            u32 four = pack_e4m3x4(v[4 * i] * up, v[4 * i + 1] * up, v[4 * i + 2] * up, v[4 * i + 3] * up);
            *(u32 *)(rows.q + at * 128 + mx_position(part * N + 4 * i)) = top == MXFP4_NO_NUMBER ? 0 : four;
        }
        if (writes_scale) rows.scale[scale_at] = mx_large_scale(top);
    }
};

// N neighbouring columns of a unit as two e4m3 numbers each, in a lane; the unit by neighbouring lanes.
//
// With v = x times the power of two that brings the largest magnitude of all that share a scale into [128, 256): the first is the nearest to v, the second
// the nearest to what is left, and ties go to even. For |v| in [2^e, 2^(e + 1)) at most 2^(e - 4) is left, so their sum is v but for at most
// max(2^(e - 9), 2^-10): a bf16 number is exact from e = -2 on, 2^-9 of that largest and more; any number is off by at most
// 2^-9 of itself, or 2^-17 of the largest. (A largest below 2^-119 counts as 2^-119, so that powers and scales are normal floats.)
constexpr int MX_PLANES_TOP = 7, MX_PLANES_LEAST = 127 - 119;

template <int N, int COLUMNS> struct MxPlanes {
    static constexpr int SHARE = COLUMNS / N; // lanes that share a scale
    float v[N], scale;
    bool is_number;

    MOTE_FN MxPlanes(const float (&x)[N])
    {
        u32 most = 0;
        MOTE_UNROLL
        for (int i = 0; i < N; i++) most = max(most, float_bits(x[i]) & 0x7FFFFFFF);
        MOTE_UNROLL
        for (int i = 1; i < SHARE; i *= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
        int e = max((int)(most >> 23), MX_PLANES_LEAST);
        is_number = e < 255;
        scale = bits_float(is_number ? (u32)(e - MX_PLANES_TOP) << 23 : 0x7FC00000u);
        float up = bits_float((u32)(254 + MX_PLANES_TOP - min(e, 254)) << 23);
        MOTE_UNROLL
        for (int i = 0; i < N; i++) v[i] = is_number ? x[i] * up : 0;
    }
    // at: which of all rows' units; part: the lane's place in it.
    MOTE_FN void put(const MxRows &rows, size_t at, int part, size_t scale_at, bool writes_scale) const
    {
        MOTE_UNROLL
        for (int i = 0; i < N / 4; i++) {
            const float *of = v + 4 * i;
            u32 first = pack_e4m3x4(of[0], of[1], of[2], of[3]);
            float4 near = unpack_e4m3x4(first);
            i8 *to = rows.q + at * 256 + mx_position(part * N + 4 * i);
            *(u32 *)to = first, *(u32 *)(to + 128) = pack_e4m3x4(of[0] - near.x, of[1] - near.y, of[2] - near.z, of[3] - near.w);
        }
        if (writes_scale) rows.scale[scale_at] = scale;
    }
};

#endif
