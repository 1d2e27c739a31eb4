// prefill_half.cuh: codes of the tile layout as half-precision operands of a matrix product, and the order of columns
// that this implies for the other operand.
//
// A product of 16 columns wants from lane (g, t) columns 2 t, 2 t + 1 and 8 + 2 t, 9 + 2 t of rows g and g + 8. The lane
// holds columns 8 t .. 8 t + 7 of each 32 instead, and a sum over columns has no order: two products take them, position
//   p = 16 i + 8 h + 2 t + e   of 32 means column   8 t + 4 i + h + 2 e      (i, h, e: 0 or 1)
// so activations are written in that order (prefill_step.cu, gate_up's result) and weights are never moved.
//
// Owns arithmetic alone; compiles on the host too, given what stands under __CUDACC__ (tests/test_prefill_half.cc,
// tests/test_prefill_kernels.cc).
#ifndef PREFILL_HALF_CUH
#define PREFILL_HALF_CUH
#include "common.cuh"

// What activations are copied as: f16 (see below), bf16 as they are, or numbers of MXFP4 (mxfp4.cuh), which bf16 holds exactly.
enum { AS_F16, AS_BF16, AS_MXFP4 };

// What f16 operands are multiplied by, so that neither small scales nor their products with a code are lost to f16's
// short exponent: weights up to +-1023 are right, from 2^-20 on to f16's full precision. Activations are brought to
// +-1024 row by row (x_scale undoes it); what gate_up leaves for down is divided by 16 and saturates at +-1e6.
constexpr float WEIGHT_UP = 64, HIDDEN_DOWN = 0.0625f;

// Column (of 32) that stands at position p, and back.
MOTE_FN int prefill_column(int p) { return (p >> 1 & 3) * 8 + (p >> 4) * 4 + (p >> 3 & 1) + (p & 1) * 2; }
MOTE_FN int prefill_position(int c) { return (c >> 2 & 1) * 16 + (c & 1) * 8 + (c >> 3) * 2 + (c >> 1 & 1); }

// Where chunk c (16 bytes, of a unit's 256) of a token lies in a stage of N tokens: two panels of [N] x 64 halves; in a
// panel the eight chunks of a row are turned by the row, so that the same chunk of eight rows meets no bank twice (and
// as wgmma's swizzle of 128 bytes has it).
template <int N> MOTE_FN u32 stage_place(u32 row, u32 chunk)
{
    return (chunk >> 3) * (N * 128) + row * 128 + ((chunk ^ row) & 7) * 16;
}

#ifdef __CUDACC__
MOTE_FN u32 add_half2(u32 a, u32 b)
{
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
MOTE_FN u32 mul_half2(u32 a, u32 b)
{
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
MOTE_FN u32 fma_half2(u32 a, u32 b, u32 c)
{
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
MOTE_FN u32 fma_bf16x2(u32 a, u32 b, u32 c)
{
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// Within what a half can hold; NaN stays.
MOTE_FN float clamp_to_half(float v)
{
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(v), "f"(65504.0f));
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(v), "f"(-65504.0f));
    return v;
}
// The low (0) or high (1) half in both places: a modifier of the operand, not an instruction.
template <int WHICH> MOTE_FN u32 both_halves(u32 pair)
{
    u32 d;
    if (WHICH) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(pair));
    else asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(pair));
    return d;
}
#endif

MOTE_FN constexpr u32 twice(u32 half) { return half << 16 | half; }

// E8M0 scales span far more than f16, and their products with the values of E2M1 are exact in bf16: kinds with such
// scales use bf16, all others f16 (and bf16, in a dearer way, when they read the same input as one).
template <class T, int BF16> struct Operand {
    static constexpr bool SHORT = T::CODE_MIN >= -64 && T::CODE_MAX < 64 && T::ZERO == 0 && !T::HAS_MIN;

    // Scales of row g (low half) and of row g + 8 (high half), as the lane that loaded them sends them to the others.
    static MOTE_FN u32 pair(float row_g, float row_g8)
    {
        return BF16 ? pack_bf16x2(row_g, row_g8) : pack_half2(row_g * WEIGHT_UP, row_g8 * WEIGHT_UP);
    }

    // Fields of a word become halves without being bytes before.
    static constexpr bool IS_FIELDS = T::FIELD > 0 && !(BF16 && SHORT);

    // Of a unit: the words that `convert` reads.
    static MOTE_FN void codes(const typename T::Raw &raw, const u32 *lut, int lane, u32 code[4][4])
    {
        if constexpr (IS_FIELDS) {
            MOTE_UNROLL
            for (int i = 0; i < 8; i++) {
                u32 w = raw.code[T::field_word(i >> 1, i & 1)];
                code[i >> 1][i & 1] = w, code[i >> 1][2 + (i & 1)] = w >> 8;
            }
        } else T::template codes<true>(raw, lut, lane, code);
    }

    // Eight codes of two rows of sub-block s, scale and min pairs of it: the operands a[i] of two products. Columns of the
    // pair (i, h): 4 i + h, 4 i + h + 2.
    static MOTE_FN void convert(const u32 code[4], int s, u32 scale, u32 min, u32 a[2][4])
    {
        MOTE_UNROLL
        for (int r = 0; r < 2; r++) {
            u32 sc = r ? both_halves<1>(scale) : both_halves<0>(scale), m = r ? both_halves<1>(min) : both_halves<0>(min);
            MOTE_UNROLL
            for (int i = 0; i < 2; i++)
                MOTE_UNROLL
                for (int h = 0; h < 2; h++)
                    a[i][2 * h + r] = IS_FIELDS ? weights(field_pair(code[2 * h + r], T::field_at(s, i)), sc, m)
                                                : byte_pair(code[2 * i + r], h ? 0x4341 : 0x4240, sc, m);
        }
    }

    // Fields at bits `at` of bytes 0 and 2 as integers, the zero taken off. Below a fixed exponent a field is an integer,
    // 2^at times too large; what that exponent adds is taken off exactly.
    static MOTE_FN u32 field_pair(u32 w, int at)
    {
        u32 v = (w & ((1u << T::FIELD) - 1) * 0x10001u << at) | 0x64006400; // 1024 + 2^at code
        if (at == 0) return add_half2(v, twice(0x8000u | (u32)(0x6400 + T::ZERO)));
        // 2^-at, and -(1024 2^-at + zero): both whole in a half (at: 2, 4, 6)
        u32 zero = 0xE400u - ((u32)at << 10) + ((u32)T::ZERO << at);
        return fma_half2(v, twice(0x3C00u - ((u32)at << 10)), twice(zero));
    }

    // Two bytes of a word of codes (chosen by `pick`) as weights; lifted where they may be negative.
    static MOTE_FN u32 byte_pair(u32 bytes, u32 pick, u32 scale, u32 min)
    {
        if constexpr (BF16 && SHORT) { // 128 + (64 + code): 128 .. 255 count by one
            u32 v = prmt((bytes ^ 0x40404040) & 0x7F7F7F7F, 0x43434343, pick);
            v = fma_bf16x2(v, twice(0x3F80), twice(0xC340)); // - 192
            return fma_bf16x2(v, scale, twice(0x8000));
        } else { // 1024 + (128 + code): 1024 .. 2047 count by one
            constexpr int LIFT = T::CODE_MIN < 0 ? 128 : 0;
            u32 v = add_half2(prmt(bytes, 0x64646464, pick), twice(0x8000u | (u32)(0x6400 + LIFT + T::ZERO)));
            return weights(v, scale, min);
        }
    }

    // Integers (as halves) as weights.
    static MOTE_FN u32 weights(u32 v, u32 scale, u32 min)
    {
        if constexpr (BF16) {
            float s = bf16_to_float(scale & 0xFFFF), m = T::HAS_MIN ? bf16_to_float(min & 0xFFFF) : 0;
            return pack_bf16x2(half_to_float(v & 0xFFFF) * s + m, half_to_float(v >> 16) * s + m);
        } else if constexpr (T::HAS_MIN) return fma_half2(v, scale, min);
        else return mul_half2(v, scale);
    }
};

// The 16 columns of a tile as down reads them: lane (g, t) has columns g, g + 8 of tokens 2 t, 2 t + 1. It gives one
// token's pair to the lane of g ^ 2 and gets that lane's pair of the other: columns g & 5, + 2, + 8, + 10 of one token,
// which stand next to each other. `pair` [2]: (column g, column g + 8) of the even and of the odd token.
constexpr int HIDDEN_OTHER = 8; // lanes to the one of g ^ 2
MOTE_FN int hidden_keeps(int lane) { return lane / HIDDEN_OTHER & 1; } // which token stays; the other is given
MOTE_FN uint2 hidden_words(const u32 pair[2], u32 got, int lane)
{
    int odd = hidden_keeps(lane);
    u32 low = odd ? got : pair[0], high = odd ? pair[1] : got;
    uint2 words;
    words.x = prmt(low, high, 0x5410), words.y = prmt(low, high, 0x7632);
    return words;
}
MOTE_FN int hidden_place(int tile, int lane) // of the four, in a row of columns
{
    return tile / 2 * 32 + prefill_position(tile % 2 * 16 + (lane >> 2 & 5));
}

#endif
