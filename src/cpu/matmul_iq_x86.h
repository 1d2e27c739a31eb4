/* matmul_iq_x86.h: the IQ formats: how each one's 256 columns unpack. See tile_x86.h.
 *
 * One idea: whatever a format's bit fields, a block becomes 16-bit indices into its code book, one sign byte per 8
 * columns (bit j: column j is negative) and integer scales, by whole-block vector steps; what is left per 32
 * columns is the same few instructions for all: fetch entries, spread sign bits, apply.
 *
 * Codes are offset by the book's largest magnitude, so that they are unsigned: w = d * scale * (code - OFFSET).
 * Bounds (16-bit pairs <= 32512): IQ3_XXS has the largest code, 2 * 124 * 127 = 31496; IQ4 codes are signed.
 *
 * matmul_iq_avx2.c and matmul_iq_avx512.c compile this text, each for its instruction set and under its own
 * MATMUL_FILL; what differs between the two is in simd_x86.h and gemm.h.
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include "cpu/iq_parts_x86.h"

MOTE_INLINE const uint8_t *block_256(const struct mote_matrix *w, int64_t row, int64_t col, int bytes)
{
    return w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * (size_t)bytes;
}

/* ---- scales ---- */

/* 2 v + 1 in 16-bit lanes. */
MOTE_INLINE __m256i odd_scale(__m256i v)
{
    return _mm256_or_si256(_mm256_add_epi16(v, v), _mm256_set1_epi16(1));
}

/* 2 (x >> 28) + 1, twice each. */
MOTE_INLINE __m256i scale_words(__m256i x)
{
    __m256i scale = _mm256_or_si256(_mm256_srli_epi32(x, 27), _mm256_set1_epi32(1));
    return _mm256_or_si256(scale, _mm256_slli_epi32(scale, 16));
}

/* 16 nibbles, low first, one for 16 columns: scale 2 n + 1. */
MOTE_INLINE __m256i scale_nibbles(const uint8_t *nibbles)
{
    __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)nibbles);
    __m128i low = _mm_and_si128(v, _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15));
    return odd_scale(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high)));
}

/* ---- books of magnitudes, with signs ---- */

/* All but IQ1_M begin with their scale. */
MOTE_INLINE uint16_t d_first(const uint8_t *b)
{
    return mote_load_u16(b);
}
#define d_iq1_s d_first
#define d_iq2_xxs d_first
#define d_iq2_xs d_first
#define d_iq2_s d_first
#define d_iq3_xxs d_first
#define d_iq3_s d_first

/* 66 bytes: f16 d, 8 x (index[4], u32: 4 sign codes, scale in the top 4 bits); w = d/8 (2 scale + 1) magnitude */
MOTE_INLINE void head_iq2_xxs(const uint8_t *b, struct book_head *head)
{
    __m256 low = _mm256_castsi256_ps(mote_load_256(b + 2)), high = _mm256_castsi256_ps(mote_load_256(b + 34));
    __m256i x = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xDD)); /* words 0 1 4 5 2 3 6 7 */
    mote_store_256(head->sign, sign_words(x));
    mote_store_256(head->scale, scale_words(x));
}

MOTE_INLINE __m256i entries_iq2_xxs(const uint8_t *b, const struct book_head *head, int k)
{
    (void)head;
    return entries_of_8_at_bytes(mote_iq2xxs_grid, b + 2 + 8 * k);
}

#define BOOK_NAME iq2_xxs
#define BOOK_BYTES 66
#define BOOK_UNIT 0.125f
#define BOOK_GROUP 32
#define BOOK_INTERLEAVED 1
#define BOOK_OFFSET 43
#include "cpu/dot_book_x86.h"

/* 74 bytes: f16 d, u16[32]: index in 9 bits, sign code in 7; nibbles[8]: scales per 16 */
MOTE_INLINE void head_iq2_xs(const uint8_t *b, struct book_head *head)
{
    __m256i low = mote_load_256(b + 2), high = mote_load_256(b + 34);
    mote_store_256(head->index, _mm256_and_si256(low, _mm256_set1_epi16(511)));
    mote_store_256(head->index + 16, _mm256_and_si256(high, _mm256_set1_epi16(511)));
    __m256i code = _mm256_packus_epi16(_mm256_srli_epi16(low, 9), _mm256_srli_epi16(high, 9));
    mote_store_256(head->sign, _mm256_permute4x64_epi64(sign_parity(code), 0xD8));
    mote_store_256(head->scale, scale_nibbles(b + 66));
}

MOTE_INLINE __m256i entries_iq2_xs(const uint8_t *b, const struct book_head *head, int k)
{
    (void)b;
    return entries_of_8_at_words(mote_iq2xs_grid, head->index + 4 * k);
}

#define BOOK_NAME iq2_xs
#define BOOK_BYTES 74
#define BOOK_UNIT 0.125f
#define BOOK_GROUP 16
#define BOOK_INTERLEAVED 0
#define BOOK_OFFSET 43
#include "cpu/dot_book_x86.h"

/* 82 bytes: f16 d, low index bytes[32], sign bytes[32], two more index bits each [8], nibbles[8]: scales per 16 */
MOTE_INLINE void head_iq2_s(const uint8_t *b, struct book_head *head)
{
    __m256i more = _mm256_set1_epi64x((long long)mote_load_u64(b + 66));
    const int z = -128; /* pshufb: zero */
    __m256i at = _mm256_setr_epi8(0, z, 0, z, 0, z, 0, z, 1, z, 1, z, 1, z, 1, z, 2, z, 2, z, 2, z, 2, z, 3,
                                  z, 3, z, 3, z, 3, z);
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        __m256i bits = _mm256_shuffle_epi8(more, _mm256_add_epi8(at, _mm256_set1_epi16((short)(4 * h))));
        bits =
            _mm256_mullo_epi16(bits, _mm256_set1_epi64x(0x0004001000400100)); /* pair l of 4 to bits 8, 9 */
        bits = _mm256_and_si256(bits, _mm256_set1_epi16(0x300));
        __m256i low = _mm256_cvtepu8_epi16(mote_load_128(b + 2 + 16 * h));
        mote_store_256(head->index + 16 * h, _mm256_or_si256(low, bits));
    }
    mote_store_256(head->sign, mote_load_256(b + 34));
    mote_store_256(head->scale, scale_nibbles(b + 74));
}

MOTE_INLINE __m256i entries_iq2_s(const uint8_t *b, const struct book_head *head, int k)
{
    (void)b;
    return entries_of_8_at_words(mote_iq2s_grid, head->index + 4 * k);
}

#define BOOK_NAME iq2_s
#define BOOK_BYTES 82
#define BOOK_UNIT 0.125f
#define BOOK_GROUP 16
#define BOOK_INTERLEAVED 0
#define BOOK_OFFSET 43
#include "cpu/dot_book_x86.h"

/* 98 bytes: f16 d, index[64], 8 x u32: 4 sign codes, scale in the top 4 bits; w = d/4 (2 scale + 1) magnitude */
MOTE_INLINE void head_iq3_xxs(const uint8_t *b, struct book_head *head)
{
    __m256i x = mote_load_256(b + 66);
    mote_store_256(head->sign, sign_words(x));
    mote_store_256(head->scale, scale_words(x));
}

MOTE_INLINE __m256i entries_iq3_xxs(const uint8_t *b, const struct book_head *head, int k)
{
    (void)head;
    return entries_of_4_at_bytes(mote_iq3xxs_grid, b + 2 + 8 * k);
}

#define BOOK_NAME iq3_xxs
#define BOOK_BYTES 98
#define BOOK_UNIT 0.25f
#define BOOK_GROUP 32
#define BOOK_INTERLEAVED 0
#define BOOK_OFFSET 62
#include "cpu/dot_book_x86.h"

/* 110 bytes: f16 d, low index bytes[64], ninth index bits[8], sign bytes[32], nibbles[4]: scales per 32;
 * w = d (2 scale + 1) magnitude */
MOTE_INLINE void head_iq3_s(const uint8_t *b, struct book_head *head)
{
    __m256i more = _mm256_set1_epi64x((long long)mote_load_u64(b + 66));
    const int z = -128;
    __m256i at = _mm256_setr_epi8(0, z, 0, z, 0, z, 0, z, 0, z, 0, z, 0, z, 0, z, 1, z, 1, z, 1, z, 1, z, 1,
                                  z, 1, z, 1, z, 1, z);
    const __m256i to_bit_8 = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
    MOTE_UNROLL for (int h = 0; h < 4; h++)
    {
        __m256i bits = _mm256_shuffle_epi8(more, _mm256_add_epi8(at, _mm256_set1_epi16((short)(2 * h))));
        bits = _mm256_and_si256(_mm256_mullo_epi16(bits, to_bit_8), _mm256_set1_epi16(256));
        __m256i low = _mm256_cvtepu8_epi16(mote_load_128(b + 2 + 16 * h));
        mote_store_256(head->index + 16 * h, _mm256_or_si256(low, bits));
    }
    mote_store_256(head->sign, mote_load_256(b + 74));
    __m256i nibbles = _mm256_set1_epi32((int)mote_load_u32(b + 106));
    nibbles = _mm256_srlv_epi32(nibbles, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
    mote_store_256(head->scale, odd_scale(_mm256_or_si256(nibbles, _mm256_slli_epi32(nibbles, 16))));
}

MOTE_INLINE __m256i entries_iq3_s(const uint8_t *b, const struct book_head *head, int k)
{
    (void)b;
    return entries_of_4_at_words(mote_iq3s_grid, head->index + 8 * k);
}

#define BOOK_NAME iq3_s
#define BOOK_BYTES 110
#define BOOK_UNIT 1.0f
#define BOOK_GROUP 32
#define BOOK_INTERLEAVED 0
#define BOOK_OFFSET 15
#include "cpu/dot_book_x86.h"

/* ---- the book of ternary digits: -1, 0, 1, and a shift of an eighth ---- */

/* 50 bytes: f16 d, low index bytes[32], u16[8]: 4 x 3 more index bits, 3 bits of scale, 1: the shift is negative.
 * Code 0..2: w = d/8 (2 scale + 1) (8 code - 8 +- 1) */
MOTE_INLINE void head_iq1_s(const uint8_t *b, struct book_head *head)
{
    __m256i word = _mm256_broadcastsi128_si256(mote_load_128(b + 34));
    __m256i at = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 6,
                                  7, 6, 7, 6, 7, 6, 7);
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        __m256i bits = _mm256_shuffle_epi8(word, _mm256_add_epi8(at, _mm256_set1_epi8((char)(8 * h))));
        bits = _mm256_mullo_epi16(bits, _mm256_set1_epi64x(0x0001000800400200)); /* 3 bits to bit 9 */
        bits = _mm256_srli_epi16(_mm256_and_si256(bits, _mm256_set1_epi16(0xE00)), 1);
        __m256i low = _mm256_cvtepu8_epi16(mote_load_128(b + 2 + 16 * h));
        mote_store_256(head->index + 16 * h, _mm256_or_si256(low, bits));
    }
    word = _mm256_permute4x64_epi64(word, 0x10);
    word = _mm256_unpacklo_epi16(word, word); /* each twice */
    __m256i scale = _mm256_and_si256(_mm256_srli_epi16(word, 11), _mm256_set1_epi16(14));
    scale = _mm256_or_si256(scale, _mm256_set1_epi16(1));
    __m256i shift = _mm256_sign_epi16(scale, _mm256_or_si256(word, _mm256_set1_epi16(1)));
    scale = _mm256_slli_epi16(scale, 3);
    mote_store_256(head->scale, scale);
    mote_store_256(head->bias, _mm256_sub_epi16(scale, shift));
}

MOTE_INLINE __m256i entries_iq1_s(const uint8_t *b, const struct book_head *head, int k)
{
    (void)b;
    return _mm256_add_epi8(entries_of_8_at_words(mote_iq1s_grid, head->index + 4 * k), _mm256_set1_epi8(1));
}

#define BOOK_NAME iq1_s
#define BOOK_BYTES 50
#define BOOK_UNIT 0.125f
#define BOOK_GROUP 32
#define BOOK_INTERLEAVED 0
#define BOOK_OFFSET 0
#define BOOK_MAX_CODE 2
#include "cpu/dot_book_x86.h"

/* 56 bytes: low index bytes[32], nibbles[16]: 3 more index bits, 1: the shift is negative; u16[4]: 4 x 3 bits of
 * scale per 16, and a quarter of d's bits on top. Code 8 (digit + 1) + 0 or 2: w = d/8 (2 scale + 1) (code - 9) */
MOTE_INLINE void head_iq1_m(const uint8_t *b, struct book_head *head)
{
    __m128i v = mote_load_128(b + 32), nibble = _mm_set1_epi8(15);
    __m128i even = _mm_and_si128(v, nibble), odd = _mm_and_si128(_mm_srli_epi16(v, 4), nibble);
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        __m128i more =
            h ? _mm_unpackhi_epi8(even, odd) : _mm_unpacklo_epi8(even, odd); /* a byte per 8 columns */
        __m128i low = mote_load_128(b + 16 * h), high = _mm_and_si128(more, _mm_set1_epi8(7));
        __m128i *index = (__m128i *)(void *)(head->index + 16 * h);
        _mm_store_si128(index, _mm_unpacklo_epi8(low, high));
        _mm_store_si128(index + 1, _mm_unpackhi_epi8(low, high));
        __m128i up = _mm_srli_epi16(_mm_andnot_si128(more, _mm_set1_epi8(8)), 2);
        _mm_store_si128((__m128i *)(void *)(head->sign + 16 * h), up); /* what the shift adds to a code */
    }
    __m256i sc = _mm256_set1_epi64x((long long)mote_load_u64(b + 48));
    sc = _mm256_shuffle_epi8(sc, _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5,
                                                  4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7));
    sc = _mm256_mullo_epi16(sc, _mm256_set1_epi64x(0x0010008004002000)); /* 3 bits to the top */
    sc = odd_scale(_mm256_srli_epi16(sc, 13));
    mote_store_256(head->scale, sc);
    mote_store_256(head->bias, _mm256_mullo_epi16(sc, _mm256_set1_epi16(9)));
}

MOTE_INLINE __m256i entries_iq1_m(const uint8_t *b, const struct book_head *head, int k)
{
    (void)b;
    __m256i g = entries_of_8_at_words(mote_iq1s_grid, head->index + 4 * k);
    g = _mm256_slli_epi16(_mm256_add_epi8(g, _mm256_set1_epi8(1)), 3);
    __m256i up = _mm256_broadcastsi128_si256(mote_load_128(head->sign + k / 4 * 16));
    return _mm256_add_epi8(g, _mm256_shuffle_epi8(up, spread_of_8(k % 4)));
}

MOTE_INLINE uint16_t d_iq1_m(const uint8_t *b)
{
    return (uint16_t)_pext_u64(mote_load_u64(b + 48), 0xF000F000F000F000u);
}

#define BOOK_NAME iq1_m
#define BOOK_BYTES 56
#define BOOK_UNIT 0.125f
#define BOOK_GROUP 16
#define BOOK_INTERLEAVED 0
#define BOOK_OFFSET 0
#define BOOK_MAX_CODE 18
#include "cpu/dot_book_x86.h"

/* ---- the book of 16 single values ---- */

MOTE_INLINE __m256i iq4_values(const uint8_t *nibbles)
{
    __m256i book = _mm256_broadcastsi128_si256(mote_load_128(mote_iq4nl_value));
    return _mm256_shuffle_epi8(book, mote_nibbles(nibbles));
}

/* 136 bytes: f16 d, u16: 8 x 2 high scale bits, nibbles[4]: low scale bits, nibbles[128]; w = d (scale - 32) value */
MOTE_INLINE void tile_iq4_xs(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = block_256(w, row, col, 136);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = iq4_values(b + 8 + 16 * k);
    __m256i low = _mm256_set1_epi32((int)mote_load_u32(b + 4));
    __m256i high = _mm256_set1_epi32(mote_load_u16(b + 2) << 4);
    low = _mm256_and_si256(_mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                           _mm256_set1_epi32(15));
    high = _mm256_and_si256(_mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                            _mm256_set1_epi32(0x30));
    __m256i scale = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
    t->scale = _mm256_permute4x64_epi64(_mm256_packs_epi32(scale, scale), 0x88);
    t->d = mote_f16_load(b);
}

#define TILE_NAME iq4_xs
#define TILE_GROUP 32
#define TILE_MAX_CODE 0
#define TILE_BIAS 0
#include "cpu/dot256_x86.h"

/* 18 bytes per 32: f16 d, nibbles[16]; w = d value */
MOTE_INLINE void tile_iq4_nl(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 18];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 18, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = iq4_values(b + 18 * k + 2);
    t->d = mote_load_8_f16(b, 18);
}

#define TILE_NAME iq4_nl
#define TILE_MAX_CODE 0
#define TILE_BIAS 0
#include "cpu/dot32_x86.h"

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
#define FILL(act, format, name)                                    \
    table->dot[MOTE_ACT_##act][MOTE_FORMAT_##format] = dot_##name; \
    table->gemm[MOTE_ACT_##act][MOTE_FORMAT_##format] = gemm_##name;
    FILL(I8_256, IQ2_XXS, iq2_xxs)
    FILL(I8_256, IQ2_XS, iq2_xs)
    FILL(I8_256, IQ2_S, iq2_s)
    FILL(I8_256, IQ3_XXS, iq3_xxs)
    FILL(I8_256, IQ3_S, iq3_s)
    FILL(I8_256, IQ1_S, iq1_s)
    FILL(I8_256, IQ1_M, iq1_m)
    FILL(I8_256, IQ4_XS, iq4_xs)
    FILL(I8_32, IQ4_NL, iq4_nl)
#undef FILL
}

#else

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
