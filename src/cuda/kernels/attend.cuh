// attend.cuh: keys and values as they lie in caches, and as operands in halves.
//
// Owns: the bytes of a row in each type (as mote_kv_row_bytes and kv_store of the CPU), pieces of rows in registers,
// and the constants of both texts of attention: HEAD_DIM (a multiple of 16), N_HEAD, N_HEAD_KV, N_ROT.
// One idea: a piece of f32 becomes two halves (the second is what the first left over), of f16 one that is exact, of
// q8_0 one that is rounded: the tensor cores multiply all of them.
#ifndef ATTEND_CUH
#define ATTEND_CUH
#include "fragment.cuh"
#include "step.h"

enum { KV_F32, KV_F16, KV_Q8_0 }; // enum mote_kv_type

constexpr int GROUP = N_HEAD / N_HEAD_KV;

MOTE_FN float never()
{
    return bits_float(0xff800000);
} // -infinity

MOTE_FN constexpr int row_bytes(int type)
{
    return type == KV_F32 ? HEAD_DIM * 4 : type == KV_F16 ? HEAD_DIM * 2 : HEAD_DIM / 32 * 34;
}
template <int TYPE> constexpr int ROW_BYTES = row_bytes(TYPE);

// Position 0 of a head in a sequence's cache.
template <int TYPE> MOTE_FN u8 *cache_head(u8 *base, const mote_step_span &span, int layer, int kv_head)
{
    return base + (u64)(layer * N_HEAD_KV + kv_head) * (u64)span.n_ctx * ROW_BYTES<TYPE>;
}

// The first key that the query at `position` sees.
MOTE_FN int first_key(int position, int window)
{
    return window > 0 && position >= window ? position + 1 - window : 0;
}

// Two signed bytes (1 or 0: which half of the word) times a scale in both halves.
MOTE_FN u32 scaled_bytes(u32 word, int half, u32 scale2)
{
    u32 v = prmt(word ^ 0x80808080, 0x64646464, half ? 0x4342 : 0x4140); // 1024 + 128 + code
    return mul_half2(sub_half2(v, 0x64806480), scale2);
}

// W (2, 4, 8) columns of a row, from column `column` (a multiple of W). PARTS words of halves that add up to a pair.
template <int TYPE, int W> struct Piece;

template <int W> struct Piece<KV_F16, W> {
    static constexpr int PARTS = 1;
    u32 word[W / 2];
    MOTE_FN void load(const u8 *row, int column)
    {
        const u8 *p = row + column * 2;
        if constexpr (W == 8) {
            uint4 v = *(const uint4 *)p;
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
        } else if constexpr (W == 4) {
            uint2 v = *(const uint2 *)p;
            word[0] = v.x, word[1] = v.y;
        } else {
            word[0] = *(const u32 *)p;
        }
    }
    MOTE_FN u32 pair(int i, int) const { return word[i]; }
};

template <int W> struct Piece<KV_F32, W> {
    static constexpr int PARTS = 2;
    float v[W];
    MOTE_FN void load(const u8 *row, int column)
    {
        const u8 *p = row + column * 4;
        if constexpr (W == 2) {
            float2 x = *(const float2 *)p;
            v[0] = x.x, v[1] = x.y;
        } else {
            MOTE_UNROLL
            for (int i = 0; i < W; i += 4) {
                float4 x = *(const float4 *)(p + 4 * i);
                v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
            }
        }
    }
    MOTE_FN u32 pair(int i, int part) const
    {
        u32 whole = pack_half2(v[2 * i], v[2 * i + 1]);
        return part ? pack_half2(v[2 * i] - low_half(whole), v[2 * i + 1] - high_half(whole)) : whole;
    }
};

template <int W> struct Piece<KV_Q8_0, W> {
    static constexpr int PARTS = 1;
    u32 code[(W + 3) / 4], scale2;
    MOTE_FN void load(const u8 *row, int column)
    {
        const u16 *block = (const u16 *)(row + column / 32 * 34), *p = block + 1 + column % 32 / 2;
        scale2 = block[0] * 0x10001u;
        MOTE_UNROLL
        for (int i = 0; i < W / 2; i++) code[i / 2] = i % 2 ? code[i / 2] | (u32)p[i] << 16 : p[i];
    }
    MOTE_FN u32 pair(int i, int) const { return scaled_bytes(code[i / 2], i % 2, scale2); }
};

#endif
