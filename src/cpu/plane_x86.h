/* plane_x86.h: what every copy of dot_plane_x86.h shares: the order of activations and of scales. */
#ifndef MOTE_CPU_PLANE_X86_H
#define MOTE_CPU_PLANE_X86_H

#include "cpu/tile_x86.h"

enum {
    PLANE_CHUNK = 4096, /* columns whose activations are rearranged at once, on the stack */
    MOTE_DOT_PASS = 4   /* activation rows of a body */
};

/* Even bytes of a, then of b; odd bytes of a, then of b. */
MOTE_INLINE void every_second(__m256i a, __m256i b, int8_t *even, int8_t *odd)
{
    const __m256i low = _mm256_set1_epi16(0xFF);
    __m256i e = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
    __m256i o = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    mote_store_256(even, _mm256_permute4x64_epi64(e, 0xD8));
    mote_store_256(odd, _mm256_permute4x64_epi64(o, 0xD8));
}

/* 256 activations to planes of `bits` (negative: nibbles split in that way). Halving into even and odd columns again and again
 * leaves the planes in bit-reversed order, which place() knows. */
MOTE_INLINE void arrange(const int8_t *in, const int bits, int8_t *out)
{
    if (bits < 0) {
        for (int v = 0; v < 4; v++) {
            __m256i a = mote_load_256(in + 64 * v), b = mote_load_256(in + 64 * v + 32);
            if (bits == -2) { /* eights 0 1 2 3 and 4 5 6 7 to 0 2 4 6 and 1 3 5 7 */
                __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
                mote_store_256(out + 32 * v, _mm256_permute4x64_epi64(even, 0xD8));
                mote_store_256(out + 128 + 32 * v, _mm256_permute4x64_epi64(odd, 0xD8));
                continue;
            }
            mote_store_256(out + 32 * v, _mm256_permute2x128_si256(a, b, 0x20));
            mote_store_256(out + 128 + 32 * v, _mm256_permute2x128_si256(a, b, 0x31));
        }
        return;
    }
    _Alignas(32) int8_t half[256], quarter[256];
    int8_t *first = bits == 4 ? out : half, *second = bits == 2 ? out : quarter;
    for (int v = 0; v < 4; v++)
        every_second(mote_load_256(in + 64 * v), mote_load_256(in + 64 * v + 32), first + 32 * v,
                     first + 128 + 32 * v);
    if (bits == 4) return;
    for (int h = 0; h < 256; h += 128)
        for (int v = 0; v < 2; v++) {
            int8_t *to = second + h + 32 * v;
            every_second(mote_load_256(half + h + 64 * v), mote_load_256(half + h + 64 * v + 32), to,
                         to + 64);
        }
    if (bits == 2) return;
    for (int h = 0; h < 256; h += 64)
        every_second(mote_load_256(quarter + h), mote_load_256(quarter + h + 32), out + h, out + h + 32);
}

/* Where plane p of vector v lies among the 256. */
MOTE_INLINE int place(const int bits, const int p, const int v)
{
    int index = bits == 2 ? (p & 1) << 1 | p >> 1 : bits == 1 ? (p & 1) << 2 | (p & 2) | p >> 2 : p;
    return index * 32 * (bits > 0 ? bits : 4) + 32 * v;
}

/* Lane l of vector v belongs to block (8 v + l) / bits. */
MOTE_INLINE __m256 block_scales(__m256 by, const int bits, const int v)
{
    if (bits == 1) return by;
    if (bits == 2)
        return _mm256_permutevar8x32_ps(
            by, _mm256_add_epi32(_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), _mm256_set1_epi32(4 * v)));
    return _mm256_permutevar8x32_ps(
        by, _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(2 * v)));
}

/* Lane l of vector k belongs to 16 columns 4 k + l / 2; d: 16 scales. */
MOTE_INLINE __m256 sub_scales(const __m256 d[2], const int k)
{
    const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3),
                  high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    return _mm256_permutevar8x32_ps(d[k / 2], k % 2 ? high : low);
}

/* Sums of 16 activations as numbers: codes' sums [16] times scales [8]. */
MOTE_INLINE void sums_of_16(const int16_t *sum, const float *scale, float *out)
{
    for (int h = 0; h < 2; h++) {
        __m128 four = _mm_loadu_ps(scale + 4 * h);
        __m256 each = _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four));
        __m256 number = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(mote_load_128(sum + 8 * h)));
        _mm256_store_ps(out + 8 * h, _mm256_mul_ps(number, each));
    }
}

/* What runs start from: minus `offset` times the sums of 256 arranged activations, in the lanes that codes' products of
 * vector v will be added in. */
MOTE_INLINE void less_offset(const int8_t *arranged, const int bits, const int offset, __m256i *out)
{
    const int vectors = bits > 0 ? bits : 4;
    MOTE_UNROLL for (int v = 0; v < vectors; v++)
    {
        out[v] = _mm256_setzero_si256();
        MOTE_UNROLL for (int p = 0; p < 8 / vectors; p++)
        {
            __m256i q = mote_load_256(arranged + place(bits, p, v));
            q = _mm256_sub_epi8(_mm256_setzero_si256(), q);
            out[v] = mote_run_add(out[v], _mm256_set1_epi8((char)offset), q);
        }
    }
}

/* 16 bytes each. */
MOTE_INLINE __m256i two_blocks(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(mote_load_128(a)), mote_load_128(b), 1);
}

#endif
