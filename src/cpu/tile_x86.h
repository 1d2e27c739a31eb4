/* tile_x86.h: a format's tile function -> its dot, unpack and gemm.
 *
 * One idea: per format only one thing differs: how 256 columns of a row become codes in column order, scales and
 * biases. A kernel file writes that as an always-inline function and includes a template:
 *
 *     #define TILE_NAME q4_k              the functions become dot_q4_k and gemm_q4_k
 *     #define TILE_GROUP 32               columns per scale: 16 or 32 (dot256); any (dot32: scales are per 32)
 *     #define TILE_MAX_CODE 15            unsigned codes 0..15; 0: signed codes -128..127
 *     #define TILE_BIAS ...               see the template
 *     #include "cpu/dot256_x86.h"        products with I8_256; "cpu/dot32_x86.h": with I8_32
 *
 * which calls
 *     MOTE_INLINE void tile_q4_k(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
 *
 * Products of codes up to 128 and activations of -127..127 added in pairs stay within 32512.
 */
#ifndef MOTE_CPU_TILE_X86_H
#define MOTE_CPU_TILE_X86_H

#include <string.h>

#include "cpu/gemm.h"
#include "cpu/simd_x86.h"

struct mote_tile256 {
    __m256i code[8]; /* column order */
    __m256i scale;   /* int16: low half: of columns 0-15, 32-47, ..; high half: of columns 16-31, 48-63, .. */
    __m256i bias;    /* int16 [16], one for 16 columns in column order */
    float d, d_bias;
};

struct mote_tile32 {
    __m256i code[8];
    __m256 d, bias; /* one for 32 columns */
};

/* Ask for the bytes that will be read about 1 KiB from here: a core's own stream detection alone reaches two thirds of
 * what memory gives. Addresses past the end are never touched. */
MOTE_INLINE void mote_tile_prefetch(const uint8_t *at, int bytes)
{
    MOTE_UNROLL for (int k = 0; k < bytes; k += 64) _mm_prefetch((const char *)at + 1024 + k, _MM_HINT_T0);
}

/* Order in which dot walks n rows: two streams half a matrix apart keep more reads in flight than one. */
MOTE_INLINE int64_t mote_dot_row(int64_t i, int64_t n)
{
    return n < 32 ? i : i / 2 + (i % 2 ? (n + 1) / 2 : 0);
}

/* The bytes of blocks that hold columns [col, col + 256): in the matrix, or, where the row ends sooner, copied to
 * `buffer` (bytes of 256 columns) and followed by zeros: reading past a row's end may be reading past the file's. */
MOTE_INLINE const uint8_t *mote_tile_blocks(const struct mote_matrix *w, int64_t row, int64_t col,
                                            int block_elems, int block_bytes, uint8_t *buffer)
{
    const uint8_t *at =
        w->data + (size_t)row * w->row_bytes + (size_t)(col / block_elems) * (size_t)block_bytes;
    mote_tile_prefetch(at, 256 / block_elems * block_bytes);
    if (__builtin_expect(w->n_col - col >= 256, 1)) return at;
    size_t have = (size_t)((w->n_col - col) / block_elems) * (size_t)block_bytes;
    memcpy(buffer, at, have);
    memset(buffer + have, 0, (size_t)(256 / block_elems * block_bytes) - have);
    return buffer;
}

/* f16 scales at the heads of 8 blocks. */
MOTE_INLINE __m256 mote_load_8_f16(const uint8_t *p, int stride)
{
    __m128i h = _mm_setzero_si128();
    h = _mm_insert_epi16(h, mote_load_u16(p + 0 * stride), 0);
    h = _mm_insert_epi16(h, mote_load_u16(p + 1 * stride), 1);
    h = _mm_insert_epi16(h, mote_load_u16(p + 2 * stride), 2);
    h = _mm_insert_epi16(h, mote_load_u16(p + 3 * stride), 3);
    h = _mm_insert_epi16(h, mote_load_u16(p + 4 * stride), 4);
    h = _mm_insert_epi16(h, mote_load_u16(p + 5 * stride), 5);
    h = _mm_insert_epi16(h, mote_load_u16(p + 6 * stride), 6);
    h = _mm_insert_epi16(h, mote_load_u16(p + 7 * stride), 7);
    return _mm256_cvtph_ps(h);
}

/* 16 scales in column order, as bytes, to the order of mote_tile256.scale. */
MOTE_INLINE __m128i mote_even_odd(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
}

MOTE_INLINE __m256i mote_tile_scale(__m256i scale, int k)
{
    return _mm256_shuffle_epi8(scale, _mm256_set1_epi16((short)(2 * k | (2 * k + 1) << 8)));
}

/* Element k: the sum of the 8 numbers of a[k], which are sums of 4 products of a code and an activation. Codes up to 32
 * leave room for 8 products in 16 bits: 8 * 32 * 127 = 32512. */
MOTE_INLINE __m256i mote_sums_of_8(const __m256i a[8], const int max_code)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i b[4], c[2];
    if (max_code && max_code <= 32) {
        MOTE_UNROLL for (int k = 0; k < 4; k++) b[k] =
            _mm256_madd_epi16(_mm256_packs_epi32(a[2 * k], a[2 * k + 1]), one);
        MOTE_UNROLL for (int k = 0; k < 2; k++) c[k] =
            _mm256_madd_epi16(_mm256_packs_epi32(b[2 * k], b[2 * k + 1]), one);
    } else {
        MOTE_UNROLL for (int k = 0; k < 4; k++) b[k] = _mm256_add_epi32(
            _mm256_unpacklo_epi32(a[2 * k], a[2 * k + 1]), _mm256_unpackhi_epi32(a[2 * k], a[2 * k + 1]));
        MOTE_UNROLL for (int k = 0; k < 2; k++) c[k] = _mm256_add_epi32(
            _mm256_unpacklo_epi64(b[2 * k], b[2 * k + 1]), _mm256_unpackhi_epi64(b[2 * k], b[2 * k + 1]));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(c[0], c[1], 0x20),
                            _mm256_permute2x128_si256(c[0], c[1], 0x31));
}

#define MOTE_CAT_(a, b) a##b
#define MOTE_CAT(a, b) MOTE_CAT_(a, b)

/* dot has one copy of its body per number of activation rows up to 4, with that number as a constant; 5 to 8 rows are
 * two passes over a few weight rows, which a first-level cache holds. x_row is never NULL in a body. */
static inline void mote_dot_passes(mote_matmul_fn *const body[4], MOTE_MATMUL_ARGS)
{
    enum { PASS = 4, BLOCK = 8 };
    static const int32_t in_order[MOTE_DOT_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (!x_row) x_row = in_order;
    if (n_x <= PASS) {
        if (n_x > 0) body[n_x - 1](w, row, n_row, x, x_row, n_x, y, y_stride);
        return;
    }
    for (int64_t r = 0; r < n_row; r += BLOCK) {
        int64_t n = n_row - r < BLOCK ? n_row - r : BLOCK;
        body[PASS - 1](w, row + r, n, x, x_row, PASS, y + r, y_stride);
        body[n_x - PASS - 1](w, row + r, n, x, x_row + PASS, n_x - PASS, y + PASS * y_stride + r, y_stride);
    }
}

#define MOTE_DOT_DEFINE_(name, body)                                                       \
    static void name##_1(MOTE_MATMUL_ARGS)                                                 \
    {                                                                                      \
        body(MOTE_MATMUL_PASS, 1);                                                         \
    }                                                                                      \
    static void name##_2(MOTE_MATMUL_ARGS)                                                 \
    {                                                                                      \
        body(MOTE_MATMUL_PASS, 2);                                                         \
    }                                                                                      \
    static void name##_3(MOTE_MATMUL_ARGS)                                                 \
    {                                                                                      \
        body(MOTE_MATMUL_PASS, 3);                                                         \
    }                                                                                      \
    static void name##_4(MOTE_MATMUL_ARGS)                                                 \
    {                                                                                      \
        body(MOTE_MATMUL_PASS, 4);                                                         \
    }                                                                                      \
    static void name(MOTE_MATMUL_ARGS)                                                     \
    {                                                                                      \
        static mote_matmul_fn *const bodies[4] = {name##_1, name##_2, name##_3, name##_4}; \
        mote_dot_passes(bodies, MOTE_MATMUL_PASS);                                         \
    }

#define MOTE_DOT_DEFINE(name, body) MOTE_DOT_DEFINE_(name, body)

#endif
