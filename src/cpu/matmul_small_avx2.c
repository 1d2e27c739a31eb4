/* matmul_small_avx2.c: ternary, 1- and 2-bit formats and MXFP4 on AVX2: how each one's 256 columns unpack.
 *
 * See tile_avx2.h. Largest codes: TQ1_0, PTQ1_0 2; TQ2_0, Q2_0, PQ2_0 3; Q1_0 1; MXFP4 24 (value doubled, plus 12).
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include "cpu/plane_avx2.h"
#include "cpu/tile_avx2.h"

/* ---- base 3 ----
 * A byte q is the fraction 0.t0 t1 t2 t3 t4 in base 3 of 256, rounded up: t0 = 3 q >> 8, and 3 q mod 256 brings t1
 * in front. With s = q - 128 as a signed byte, 3 q mod 256 is 3 s mod 256 (3 * 128 - 128 is 256) and
 * t0 = (s > -43) + (s > 42): no 16-bit lanes, no multiplication. Exact for every byte. */

MOTE_INLINE __m256i triple(__m256i s)
{
    return _mm256_add_epi8(_mm256_add_epi8(s, s), s);
}

MOTE_INLINE __m256i trit(__m256i s)
{
    __m256i one = _mm256_cmpgt_epi8(s, _mm256_set1_epi8(-43)),
            two = _mm256_cmpgt_epi8(s, _mm256_set1_epi8(42));
    return _mm256_abs_epi8(_mm256_add_epi8(one, two));
}

/* 54 bytes: 5 trits a byte in q[32] (trit n of byte m: column 32 n + m) and q[16] (column 160 + 16 n + m), 4 trits a
 * byte in q[4] (column 240 + 4 n + m), f16 d; w = d * (trit - 1) */
MOTE_INLINE void tile_tq1_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * 54;
    const __m256i sign = _mm256_set1_epi8(-128);
    __m256i s = _mm256_xor_si256(mote_load_256(b), sign);
    MOTE_UNROLL for (int n = 0; n < 5; n++)
    {
        t->code[n] = trit(s);
        s = triple(s);
    }
    __m128i low = _mm_xor_si128(mote_load_128(b + 32), _mm256_castsi256_si128(sign));
    __m128i low3 = _mm_add_epi8(_mm_add_epi8(low, low), low);
    s = _mm256_inserti128_si256(_mm256_castsi128_si256(low), low3, 1);
    t->code[5] = trit(s);
    s = triple(triple(s));
    t->code[6] = trit(s);
    /* The last 4 bytes times 1, 3, 9, 27, by 16-bit products of which each keeps one byte. */
    const __m128i power = _mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27), high = _mm_set1_epi16(-256);
    __m128i last = _mm_xor_si128(_mm_set1_epi32((int)mote_load_u32(b + 48)), _mm256_castsi256_si128(sign));
    __m128i even = _mm_andnot_si128(high, _mm_mullo_epi16(last, power));
    last = _mm_or_si128(even, _mm_mullo_epi16(_mm_and_si128(last, high), power));
    t->code[7] = trit(_mm256_inserti128_si256(triple(triple(s)), last, 1));
    t->d = mote_f16_load(b + 52);
}

#define TILE_NAME tq1_0
#define TILE_MAX_CODE 2
#include "cpu/dot_flat_avx2.h"

/* 66 bytes: pairs[64] (bits 2 l of byte 32 g + m: column 128 g + 32 l + m), f16 d; w = d * (code - 1) */
MOTE_INLINE void tile_tq2_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * 66;
    const __m256i three = _mm256_set1_epi8(3);
    MOTE_UNROLL for (int g = 0; g < 2; g++)
    {
        __m256i v = mote_load_256(b + 32 * g);
        MOTE_UNROLL for (int l = 0; l < 4; l++) t->code[4 * g + l] =
            _mm256_and_si256(_mm256_srli_epi16(v, 2 * l), three);
    }
    t->d = mote_f16_load(b + 64);
}

#define TILE_NAME tq2_0
#define TILE_MAX_CODE 3
#include "cpu/dot_flat_avx2.h"

/* 2 blocks of 28 bytes: 5 trits a byte in q[16] (trit n of byte m: column 16 n + m) and q[8] (column 80 + 8 n + m),
 * 4 trits a byte in q[2] (column 120 + 2 n + m), f16 d; w = d * (trit - 1) */
MOTE_INLINE void tile_ptq1_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[2 * 28];
    const uint8_t *b = mote_tile_blocks(w, row, col, 128, 28, buffer);
    const __m128i sign = _mm_set1_epi8(-128), high = _mm_set1_epi16(-256);
    const __m128i power = _mm_setr_epi16(1, 3, 9, 27, 1, 3, 9, 27);
    MOTE_UNROLL for (int h = 0; h < 2; h++, b += 28)
    {
        __m128i q16 = _mm_xor_si128(mote_load_128(b), sign);
        __m128i q8 = _mm_xor_si128(_mm_loadl_epi64((const void *)(b + 16)), sign);
        __m128i q2 = _mm_xor_si128(_mm_set1_epi16((short)mote_load_u16(b + 24)), sign);
        q2 = _mm_or_si128(_mm_andnot_si128(high, _mm_mullo_epi16(q2, power)),
                          _mm_mullo_epi16(_mm_and_si128(q2, high), power));
        __m128i q16_3 = _mm_add_epi8(_mm_add_epi8(q16, q16), q16),
                q8_3 = _mm_add_epi8(_mm_add_epi8(q8, q8), q8);
        __m256i v16 = _mm256_inserti128_si256(_mm256_castsi128_si256(q16), q16_3, 1);
        __m256i v8 = _mm256_castsi128_si256(_mm_unpacklo_epi64(q8, q8_3)); /* columns 80..95 */
        __m256i v8_9 = triple(triple(v8));                                 /* 96..111 */
        t->code[4 * h] = trit(v16);
        v16 = triple(triple(v16));
        t->code[4 * h + 1] = trit(v16);
        v16 = triple(triple(v16)); /* columns 64..79 in its low half */
        t->code[4 * h + 2] = trit(_mm256_inserti128_si256(v16, _mm256_castsi256_si128(v8), 1));
        __m128i end = _mm_unpacklo_epi64(_mm256_castsi256_si128(triple(triple(v8_9))), q2);
        t->code[4 * h + 3] = trit(_mm256_inserti128_si256(v8_9, end, 1));
    }
    t->d = _mm256_set_m128(_mm_set1_ps(mote_f16_load(b - 2)), _mm_set1_ps(mote_f16_load(b - 30)));
}

#define TILE_NAME ptq1_0
#define TILE_MAX_CODE 2
#define TILE_BIAS 0
#define TILE_OFFSET 1
#include "cpu/dot32_avx2.h"

/* ---- bits in column order ---- */

/* 2 blocks of 18 bytes: f16 d, bits[16]; w = d * (2 * code - 1) */
MOTE_INLINE void tile_q1_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[2 * 18];
    const uint8_t *b = mote_tile_blocks(w, row, col, 128, 18, buffer);
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                            2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u), one = _mm256_set1_epi8(1);
    MOTE_UNROLL for (int k = 0; k < 8; k++)
    {
        __m256i v = _mm256_shuffle_epi8(mote_broadcast_u32(b + k / 4 * 18 + 2 + k % 4 * 4), spread);
        t->code[k] = _mm256_min_epu8(_mm256_and_si256(v, bit), one);
    }
    t->d = _mm256_set_m128(_mm_set1_ps(mote_f16_load(b + 18)), _mm_set1_ps(mote_f16_load(b)));
}

MOTE_INLINE void planes_q1_0(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[1], __m256 *d,
                             __m256 *bias)
{
    uint8_t buffer[2 * 18];
    const uint8_t *b = mote_tile_blocks(w, row, col, 128, 18, buffer);
    v[0] = two_blocks(b + 2, b + 20);
    *d = _mm256_set_m128(_mm_set1_ps(mote_f16_load(b + 18)), _mm_set1_ps(mote_f16_load(b)));
    (void)bias;
}

#define PLANE_NAME q1_0
#define PLANE_BITS 1
#define PLANE_SPLIT 0
#define PLANE_CODES(c) (c)
#define PLANE_MAX_CODE 1
#define PLANE_BIAS 0
#define PLANE_UNIT 2
#define PLANE_OFFSET 1
#include "cpu/dot_plane_avx2.h"

MOTE_INLINE __m256 scales_q2_0(const uint8_t *b)
{
    __m128i h = _mm_cvtsi32_si128(mote_load_u16(b));
    h = _mm_insert_epi16(h, mote_load_u16(b + 18), 2);
    h = _mm_insert_epi16(h, mote_load_u16(b + 36), 4);
    h = _mm_insert_epi16(h, mote_load_u16(b + 54), 6);
    return _mm256_moveldup_ps(_mm256_cvtph_ps(h));
}

/* 4 blocks of 18 bytes: f16 d, pairs[16]; w = d * (code - 1) */
MOTE_INLINE void tile_q2_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[4 * 18];
    const uint8_t *b = mote_tile_blocks(w, row, col, 64, 18, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_pairs(b + k / 2 * 18 + 2 + k % 2 * 8);
    t->d = scales_q2_0(b);
}

MOTE_INLINE void planes_q2_0(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[2], __m256 *d,
                             __m256 *bias)
{
    uint8_t buffer[4 * 18];
    const uint8_t *b = mote_tile_blocks(w, row, col, 64, 18, buffer);
    v[0] = two_blocks(b + 2, b + 20);
    v[1] = two_blocks(b + 38, b + 56);
    *d = scales_q2_0(b);
    (void)bias;
}

#define PLANE_NAME q2_0
#define PLANE_BITS 2
#define PLANE_SPLIT 0
#define PLANE_CODES(c) (c)
#define PLANE_MAX_CODE 3
#define PLANE_BIAS 0
#define PLANE_UNIT 1
#define PLANE_OFFSET 1
#include "cpu/dot_plane_avx2.h"

/* 2 blocks of 34 bytes: f16 d, pairs[32]; w = d * (code - 1) */
MOTE_INLINE void tile_pq2_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[2 * 34];
    const uint8_t *b = mote_tile_blocks(w, row, col, 128, 34, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_pairs(b + k / 4 * 34 + 2 + k % 4 * 8);
    t->d = _mm256_set_m128(_mm_set1_ps(mote_f16_load(b + 34)), _mm_set1_ps(mote_f16_load(b)));
}

MOTE_INLINE void planes_pq2_0(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[2], __m256 *d,
                              __m256 *bias)
{
    uint8_t buffer[2 * 34];
    const uint8_t *b = mote_tile_blocks(w, row, col, 128, 34, buffer);
    v[0] = mote_load_256(b + 2);
    v[1] = mote_load_256(b + 36);
    *d = _mm256_set_m128(_mm_set1_ps(mote_f16_load(b + 34)), _mm_set1_ps(mote_f16_load(b)));
    (void)bias;
}

#define PLANE_NAME pq2_0
#define PLANE_BITS 2
#define PLANE_SPLIT 0
#define PLANE_CODES(c) (c)
#define PLANE_MAX_CODE 3
#define PLANE_BIAS 0
#define PLANE_UNIT 1
#define PLANE_OFFSET 1
#include "cpu/dot_plane_avx2.h"

/* ---- FP4 ---- */

MOTE_INLINE __m256 scales_mxfp4(const uint8_t *b)
{
    uint64_t bytes = 0;
    MOTE_UNROLL for (int k = 0; k < 8; k++) bytes |= (uint64_t)b[17 * k] << 8 * k;
    __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
    /* exponent e - 1; 0 and 1 give the subnormals 2^-128 and 2^-127 */
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny));
}

/* 8 blocks of 17 bytes: e8m0 e, nibbles[16]; w = 2^(e - 128) * (code - 12) */
MOTE_INLINE void tile_mxfp4(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 17];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 17, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_fp4_codes(mote_nibbles(b + 17 * k + 1));
    t->d = scales_mxfp4(b);
}

MOTE_INLINE void planes_mxfp4(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[4], __m256 *d,
                              __m256 *bias)
{
    uint8_t buffer[8 * 17];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 17, buffer);
    MOTE_UNROLL for (int k = 0; k < 4; k++) v[k] = two_blocks(b + 34 * k + 1, b + 34 * k + 18);
    *d = scales_mxfp4(b);
    (void)bias;
}

#define PLANE_NAME mxfp4
#define PLANE_BITS 4
#define PLANE_SPLIT 1
#define PLANE_CODES(c) mote_fp4_codes(c)
#define PLANE_MAX_CODE 24
#define PLANE_BIAS 0
#define PLANE_UNIT 1
#define PLANE_OFFSET 12
#include "cpu/dot_plane_avx2.h"

void mote_matmul_small_avx2_fill(struct mote_cpu_kernels *table)
{
#define FILL(act, format, name)                                    \
    table->dot[MOTE_ACT_##act][MOTE_FORMAT_##format] = dot_##name; \
    table->gemm[MOTE_ACT_##act][MOTE_FORMAT_##format] = gemm_##name;
    FILL(I8_256, TQ1_0, tq1_0)
    FILL(I8_256, TQ2_0, tq2_0)
    FILL(I8_32, PTQ1_0, ptq1_0)
    FILL(I8_32, Q1_0, q1_0)
    FILL(I8_32, Q2_0, q2_0)
    FILL(I8_32, PQ2_0, pq2_0)
    FILL(I8_32, MXFP4, mxfp4)
#undef FILL
}

#else

void mote_matmul_small_avx2_fill(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
