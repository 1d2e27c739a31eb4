// prefill_int8.cuh: rows of activations in 8-bit integers, for weights that are small integers under scales of 128 columns and
// more: both are operands of an integer product as they lie, exact inside a group, and floats are met once a group.
//
//   x = scale * q, q in [-127, 127], a scale for every group of 128 or 256 columns
//   q       [n_row][columns to 128] s8; column 8 t + 4 i + e of 32 stands at position 16 i + 4 t + e: as operands of weights
//           have them (layout.h)
//   group   [n_row][n_group] {scale, scale * sum of q}
//
// Owns: that layout and its rounding. Does not own: what the columns are, products.
#ifndef PREFILL_INT8_CUH
#define PREFILL_INT8_CUH
#include "common.cuh"

struct Int8Rows {
    i8 *q;
    float2 *group;
};

MOTE_FN constexpr int int8_groups(int n_col, int group) { return ((n_col + 127) / 128 * 128 + group - 1) / group; }
MOTE_FN constexpr int int8_position(int c) { return (c & ~31) | (c >> 2 & 1) << 4 | (c >> 3 & 3) << 2 | (c & 3); }

// Of a unit (128 columns) of a row, by one warp: four columns a lane. four(c): columns c .. c + 3, of n_col, a multiple of 4.
// `most`: the largest magnitude; as integers, magnitudes of floats keep their order and NaN is above all.
template <class Four> MOTE_FN float4 int8_take(Four four, int unit, int n_col, u32 &most)
{
    int c = unit * 128 + threadIdx.x % 32 * 4;
    float4 v = c < n_col ? four(c) : make_float4(0, 0, 0, 0);
    most = max(max(float_bits(v.x) & 0x7FFFFFFF, float_bits(v.y) & 0x7FFFFFFF),
               max(float_bits(v.z) & 0x7FFFFFFF, float_bits(v.w) & 0x7FFFFFFF));
    MOTE_UNROLL
    for (int d = 16; d; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    return v;
}
// Rounded, to q; the sum of all.
MOTE_FN int int8_put(float4 v, u32 most, int unit, i8 *q)
{
    float m = bits_float(most), up = m < 1e-30f ? 0 : __fdividef(127.0f, m); // the inverse of less would overflow
    int a = __float2int_rn(v.x * up), b = __float2int_rn(v.y * up), c = __float2int_rn(v.z * up), d = __float2int_rn(v.w * up);
    *(u32 *)(q + int8_position(unit * 128 + threadIdx.x % 32 * 4)) =
        (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (u32)(d & 255) << 24;
    int sum = a + b + c + d;
    MOTE_UNROLL
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return sum;
}
// NaN and infinity make their group's scale so, and with it every product.
MOTE_FN float2 int8_group(u32 most, int sum)
{
    float m = bits_float(most), scale = m < 1e-30f ? 0 : m * (1.0f / 127);
    float2 both;
    both.x = scale, both.y = scale * (float)sum;
    return both;
}

// A unit of a row, a group; `q` and `to` are the row's.
template <class Four> MOTE_FN void int8_unit(Four four, int unit, int n_col, i8 *q, float2 *to)
{
    u32 most;
    float4 v = int8_take(four, unit, n_col, most);
    int sum = int8_put(v, most, unit, q);
    if (threadIdx.x % 32 == 0) to[unit] = int8_group(most, sum);
}
// Two units, one group of 256; the second may not be there.
template <class Four> MOTE_FN void int8_pair(Four four, int unit, int n_unit, int n_col, i8 *q, float2 *to)
{
    u32 most[2];
    float4 v[2];
    int sum = 0;
    MOTE_UNROLL
    for (int u = 0; u < 2; u++) v[u] = int8_take(four, unit + u, n_col, most[u]);
    most[0] = max(most[0], most[1]);
    MOTE_UNROLL
    for (int u = 0; u < 2; u++)
        if (unit + u < n_unit) sum += int8_put(v[u], most[0], unit + u, q);
    if (threadIdx.x % 32 == 0) to[unit / 2] = int8_group(most[0], sum);
}

// Where chunk c (16 bytes, of a unit's 128) of a token lies in a stage: the eight chunks of a row are turned by the row, so
// that the same chunk of eight rows meets no bank twice (and as wgmma's swizzle of 128 bytes has it).
MOTE_FN u32 int8_place(u32 row, u32 chunk) { return row * 128 + ((chunk ^ row) & 7) * 16; }

#endif
