/* iq_parts_x86.h: what the kernels of the IQ formats are made of. Include from matmul_iq_x86.h only.
 *
 * Owns: sign bits to bytes, entries of code books, a block's head, the float end of a decode product.
 */
#ifndef MOTE_CPU_IQ_PARTS_X86_H
#define MOTE_CPU_IQ_PARTS_X86_H

#include "cpu/tile_x86.h"
#include "quant/iq_grid.h"

/* ---- signs ---- */

/* 7-bit sign codes, one in each byte's low bits (bit 7 is ignored) -> sign bytes: bit 7 makes the number of ones
 * even, as mote_sign_mask does. */
MOTE_INLINE __m256i sign_parity(__m256i code)
{
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    code = _mm256_and_si256(code, _mm256_set1_epi8(0x7F));
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(code, 4), _mm256_set1_epi8(15));
    __m256i parity = _mm256_xor_si256(_mm256_shuffle_epi8(odd, code), _mm256_shuffle_epi8(odd, high));
    return _mm256_xor_si256(code, parity);
}

/* Words that hold 4 sign codes in their low 28 bits -> 4 sign bytes each. */
MOTE_INLINE __m256i sign_words(__m256i x)
{
    __m256i pairs = _mm256_blend_epi16(x, _mm256_slli_epi32(x, 2), 0xAA); /* 14 bits in each half */
    __m256i high = _mm256_add_epi16(pairs, pairs);
    return sign_parity(_mm256_blendv_epi8(pairs, high, _mm256_set1_epi16((short)0xFF00)));
}

/* pshufb: bytes 4 i .. 4 i + 3 of a half, 8 times each. */
MOTE_INLINE __m256i spread_of_8(int i)
{
    const long long one = 0x0101010101010101;
    return _mm256_setr_epi64x(4 * i * one, (4 * i + 1) * one, (4 * i + 2) * one, (4 * i + 3) * one);
}

/* Sign bytes 4 i .. 4 i + 3 of each half (both halves are alike) -> 32 bytes, negative where the sign bit is set,
 * else positive, never 0: what psignb takes. 127 plus a single bit wraps to a negative number. */
MOTE_INLINE __m256i sign_spread(__m256i signs, int i)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i byte = _mm256_shuffle_epi8(signs, spread_of_8(i));
    return _mm256_add_epi8(_mm256_and_si256(byte, bit), _mm256_set1_epi8(127));
}

/* ---- entries of code books ---- */

/* Take apart in order: without it compilers turn the shifts into copies, shifts and masks of their own. */
#define IN_ORDER(v) __asm__("" : "+r"(v))

MOTE_INLINE __m128d entries_of_8(const uint64_t *book, unsigned a, unsigned b)
{
    __m128d v = _mm_load_sd((const double *)(const void *)(book + a));
    return _mm_loadh_pd(v, (const double *)(const void *)(book + b));
}

MOTE_INLINE __m128i entries_of_4(const uint32_t *book, unsigned a, unsigned b, unsigned c, unsigned d)
{
    __m128i v = _mm_cvtsi32_si128((int)book[a]);
    v = _mm_insert_epi32(v, (int)book[b], 1);
    v = _mm_insert_epi32(v, (int)book[c], 2);
    return _mm_insert_epi32(v, (int)book[d], 3);
}

/* 32 columns: 4 entries of 8 or 8 of 4. Loads are what is short, so one load brings several indices. */
MOTE_INLINE __m256i entries_of_8_at_bytes(const uint64_t *book, const uint8_t *index)
{
    uint32_t i = mote_load_u32(index);
    __m128d low = entries_of_8(book, i & 255, i >> 8 & 255);
    i >>= 16;
    IN_ORDER(i);
    __m128d high = entries_of_8(book, i & 255, i >> 8);
    return _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(low), high, 1));
}

MOTE_INLINE __m256i entries_of_8_at_words(const uint64_t *book, const uint16_t *index)
{
    uint32_t i = mote_load_u32(index), j = mote_load_u32(index + 2);
    __m128d low = entries_of_8(book, i & 0xFFFF, i >> 16), high = entries_of_8(book, j & 0xFFFF, j >> 16);
    return _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(low), high, 1));
}

MOTE_INLINE __m256i entries_of_4_at_bytes(const uint32_t *book, const uint8_t *index)
{
    __m128i half[2];
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        uint32_t i = mote_load_u32(index + 4 * h);
        unsigned a = i & 255, b = i >> 8 & 255;
        i >>= 16;
        IN_ORDER(i);
        half[h] = entries_of_4(book, a, b, i & 255, i >> 8);
    }
    return _mm256_setr_m128i(half[0], half[1]);
}

MOTE_INLINE __m256i entries_of_4_at_words(const uint32_t *book, const uint16_t *index)
{
    __m128i half[2];
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        uint32_t i = mote_load_u32(index + 4 * h), j = mote_load_u32(index + 4 * h + 2);
        half[h] = entries_of_4(book, i & 0xFFFF, i >> 16, j & 0xFFFF, j >> 16);
    }
    return _mm256_setr_m128i(half[0], half[1]);
}

/* ---- blocks with signs ---- */

/* What a block's bit fields say, in whole-block steps. */
struct book_head {
    _Alignas(32) uint8_t sign[32];   /* one byte per 8 columns, bit j: column j is negative */
    _Alignas(32) uint16_t scale[16]; /* one per 16 columns */
    _Alignas(32) int16_t bias[16];   /* one per 16 columns, of books without signs */
    _Alignas(32) uint16_t index[64]; /* entries of the book; not filled where the block has them as bytes */
};

/* 32-column group k's place in sign and scale. Interleaving two vectors by halves leaves 0 1 4 5 2 3 6 7, and putting
 * that in order would cost more than knowing it. */
MOTE_INLINE int book_place(int k, int interleaved)
{
    return interleaved ? (k >> 1 & 1) * 4 + (k >> 2) * 2 + (k & 1) : k;
}

/* pshufb: words 0 2 4 6 1 3 5 7 of each half. */
MOTE_INLINE __m256i even_odd_words(void)
{
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
}

/* Group k's scales for _mm256_madd_epi16. */
MOTE_INLINE __m256i book_scale(const struct book_head *head, int place, int group)
{
    __m256i two = mote_broadcast_u32(head->scale + 2 * place);
    if (group == 32) return two;
    return _mm256_shuffle_epi8(two, _mm256_setr_epi32(0x01000100, 0x01000100, 0x01000100, 0x01000100,
                                                      0x03020302, 0x03020302, 0x03020302, 0x03020302));
}

MOTE_INLINE __m256i book_sign(const struct book_head *head, int place)
{
    return sign_spread(_mm256_broadcastsi128_si256(mote_load_128(head->sign + place / 4 * 16)), place % 4);
}

/* ---- from integers to floats ---- */

enum { BOOK_RUN = 4 }; /* blocks whose sums are folded together */

MOTE_INLINE __m128 book_x_scale(const float *scale, int n)
{
    if (__builtin_expect(n == BOOK_RUN, 1)) return _mm_loadu_ps(scale);
    return _mm_maskload_ps(scale, _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3)));
}

/* acc[j] += d[j] * by[j] * (sum of total[j]) */
MOTE_INLINE __m128 book_fold(const __m256i total[BOOK_RUN], __m128 d, __m128 by, __m128 acc)
{
    __m256i v =
        _mm256_hadd_epi32(_mm256_hadd_epi32(total[0], total[1]), _mm256_hadd_epi32(total[2], total[3]));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return _mm_fmadd_ps(_mm_cvtepi32_ps(sum), _mm_mul_ps(d, by), acc);
}

MOTE_INLINE float book_sum(__m128 v)
{
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

#endif
