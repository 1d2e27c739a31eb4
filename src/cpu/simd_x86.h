/* simd_x86.h: the small pieces that several kernel files use, and what differs between AVX2 and AVX-512. Include from
 * *_avx2.c, *_avx512.c and the texts that both compile. */
#ifndef MOTE_CPU_SIMD_X86_H
#define MOTE_CPU_SIMD_X86_H

#include <immintrin.h>
#include <stdint.h>

#include "base/float_bits.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define MOTE_VNNI 1
#else
#define MOTE_VNNI 0
#endif

#define MOTE_INLINE static inline __attribute__((always_inline))

/* Before a loop with a constant count that must be unrolled whole (arrays of vectors live in registers then). */
#if defined(__clang__)
#define MOTE_UNROLL _Pragma("unroll")
#else
#define MOTE_UNROLL _Pragma("GCC unroll 16")
#endif

/* Keep a running sum where it is: gcc treats vector additions as arithmetic, rebalances long chains of them into trees
 * and then has no registers left. Generates nothing. */
#define MOTE_KEEP(v) __asm__("" : "+v"(v))

MOTE_INLINE __m256i mote_load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
MOTE_INLINE __m128i mote_load_128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}
MOTE_INLINE void mote_store_256(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

/* The same 4 bytes in all 8 places. */
MOTE_INLINE __m256i mote_broadcast_u32(const void *p)
{
    return _mm256_set1_epi32((int)mote_load_u32(p));
}

MOTE_INLINE float mote_f16_load(const void *p)
{
    return _cvtsh_ss(mote_load_u16(p));
}

/* Sum of 8 lanes, always in this order: halves, then pairs at distance 2, then 1. */
MOTE_INLINE float mote_hsum(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Infinity as the largest number: a block of zeros may have any scale, and 0 times infinity would be no number. NaN stays. */
MOTE_INLINE __m256 mote_finite(__m256 v)
{
    return _mm256_min_ps(_mm256_set1_ps(0x1.fffffep127f), v);
}

MOTE_INLINE int32_t mote_hsum_i32(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* Signed codes x activations, pairs added in 16 bits: |w| * (x with w's sign). Exact as long as activations stay
 * in -127..127: 2 * 128 * 127 = 32512 (|-128| is 128 read as unsigned). */
MOTE_INLINE __m256i mote_mul_signed(__m256i w, __m256i x)
{
    return _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
}

/* ---- codes x activations: where AVX2 and AVX-512 with VNNI differ ---- */

/* 4 products in each 32-bit lane. AVX2: codes signed, or at most 128. */
MOTE_INLINE __m256i mote_dot_4(__m256i code, __m256i x, const int is_signed)
{
#if MOTE_VNNI
    if (is_signed) x = _mm256_sign_epi8(x, code), code = _mm256_abs_epi8(code);
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), code, x);
#else
    __m256i pairs = is_signed ? mote_mul_signed(code, x) : _mm256_maddubs_epi16(code, x);
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

/* sum + products of 16-bit numbers, added in pairs. */
MOTE_INLINE __m256i mote_add_pairs(__m256i sum, __m256i a, __m256i b)
{
#if MOTE_VNNI
    return _mm256_dpwssd_epi32(sum, a, b);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}

/* A run: products that add up in 16 bits without overflow, whether or not an instruction set needs that. It starts from
 * zero or from minus the sums of 16 activations; its end is in 32 bits. */
MOTE_INLINE __m256i mote_run_less(const int16_t *sum)
{
    __m256i v = mote_load_256(sum);
#if MOTE_VNNI
    return _mm256_madd_epi16(v, _mm256_set1_epi16(-1));
#else
    return _mm256_sub_epi16(_mm256_setzero_si256(), v);
#endif
}

MOTE_INLINE __m256i mote_run_add(__m256i run, __m256i code, __m256i x)
{
#if MOTE_VNNI
    return _mm256_dpbusd_epi32(run, code, x);
#else
    return _mm256_add_epi16(run, _mm256_maddubs_epi16(code, x));
#endif
}

MOTE_INLINE __m256i mote_run_end(__m256i run)
{
#if MOTE_VNNI
    return run;
#else
    return _mm256_madd_epi16(run, _mm256_set1_epi16(1));
#endif
}

/* ---- codes ---- */

/* 32 codes of 4 bits from 16 bytes: low nibbles first, then high ones (Q4_0's order, also MXFP4's and IQ4_NL's). */
MOTE_INLINE __m256i mote_nibbles(const void *p)
{
    __m256i twice = _mm256_broadcastsi128_si256(mote_load_128(p));
    return _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
}

/* 32 codes of 2 bits in column order from 8 bytes: copies of a byte at distance 12, then 6, put each pair into the low bits of a byte; what
 * overlaps is masked off. */
MOTE_INLINE __m256i mote_pairs(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x1001)); /* x | x << 12 */
    return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 6)), _mm256_set1_epi8(3));
}

/* 32 codes of 4 bits that lie in column order. */
MOTE_INLINE __m256i mote_nibbles_in_order(const void *p)
{
    __m256i v = _mm256_cvtepu8_epi16(mote_load_128(p));
    return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
}

/* Twice the value of e2m1 codes, plus 12: never negative, so that products need no signs. */
MOTE_INLINE __m256i mote_fp4_codes(__m256i nibbles)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}

/* Scales of 8 blocks of such codes; 0 for a block of zeros, which may have any: nothing times infinity would be no number. */
MOTE_INLINE __m256 mote_fp4_scales(const __m256i code[8], __m256 scale)
{
    __m256i a[8], b[4], c[2];
    MOTE_UNROLL for (int k = 0; k < 8; k++) a[k] = _mm256_xor_si256(code[k], _mm256_set1_epi8(12));
    MOTE_UNROLL for (int k = 0; k < 4; k++) b[k] = _mm256_or_si256(
        _mm256_unpacklo_epi32(a[2 * k], a[2 * k + 1]), _mm256_unpackhi_epi32(a[2 * k], a[2 * k + 1]));
    MOTE_UNROLL for (int k = 0; k < 2; k++) c[k] = _mm256_or_si256(
        _mm256_unpacklo_epi64(b[2 * k], b[2 * k + 1]), _mm256_unpackhi_epi64(b[2 * k], b[2 * k + 1]));
    __m256i any = _mm256_or_si256(_mm256_permute2x128_si256(c[0], c[1], 0x20),
                                  _mm256_permute2x128_si256(c[0], c[1], 0x31));
    __m256i is_zero = _mm256_cmpeq_epi32(any, _mm256_setzero_si256());
    return _mm256_andnot_ps(_mm256_castsi256_ps(is_zero), scale);
}

/* Transpose 8 x 8 elements of 32 bits in registers. */
MOTE_INLINE void mote_transpose_8x8(__m256i v[8])
{
    __m256i a[8], b[8];
    MOTE_UNROLL for (int i = 0; i < 8; i += 2)
    {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    MOTE_UNROLL for (int i = 0; i < 8; i += 4)
    {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    MOTE_UNROLL for (int i = 0; i < 4; i++)
    {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

#endif
