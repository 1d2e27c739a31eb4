/* matmul_small_x86.h: ternary, 1- and 2-bit formats and MXFP4: how each one's 256 columns unpack.
 *
 * See tile_x86.h. Largest codes: TQ1_0, PTQ1_0 2; TQ2_0, Q2_0, PQ2_0 3; Q1_0 1; MXFP4 24 (value doubled, plus 12).
 *
 * matmul_small_avx2.c and matmul_small_avx512.c compile this text, each for its instruction set and under its own
 * MATMUL_FILL; what differs between the two is in simd_x86.h and gemm.h.
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include "cpu/plane_x86.h"
#include "cpu/tile_x86.h"

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
    mote_tile_prefetch(b, 54);
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
#define TILE_OWN_DOT
#include "cpu/dot_flat_x86.h"

/* Decoding, trits need not be told apart. With D_n = q * 3^n >> 8, the first n digits read as a number, trit n is
 * D_(n+1) - 3 D_n, so
 *     sum over n of trit_n x_n = sum over n >= 1 of D_n y_n,    y_n = x_(n-1) - 3 x_n,    x_5 = 0:
 * one product with 3^n gives 16 D_n, the upper halves of (256 q) * 3^n, and one multiply-add uses them. The y are made
 * once for all rows of a call. Bounds: |D_n y_n| <= 242 * 508, 512 of them in a block below 2^27. */
struct trit_acts {
    int16_t even[5][16], odd[5][16]; /* y of q[32]: even bytes, odd bytes */
    int16_t mid[5][16];              /* of q[16] */
    int16_t last[16];                /* of q[4], lane 4 (n - 1) + m */
    int32_t less[8];                 /* minus the sums of x, for w = trit - 1 */
};

MOTE_INLINE void store_y(__m256i x, __m256i next, int16_t *y) /* x - 3 next */
{
    __m256i twice = _mm256_add_epi16(next, next);
    mote_store_256(y, _mm256_sub_epi16(x, _mm256_add_epi16(twice, next)));
}

MOTE_INLINE void arrange_trits(const int8_t *x, const int16_t *sum, struct trit_acts *out)
{
    for (int n = 0; n < 5; n++) {
        __m256i a = mote_load_256(x + 32 * n),
                b = n < 4 ? mote_load_256(x + 32 * n + 32) : _mm256_setzero_si256();
        store_y(_mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8),
                out->even[n]);
        store_y(_mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8), out->odd[n]);
        const int8_t *mid = x + 160 + 16 * n;
        store_y(_mm256_cvtepi8_epi16(mote_load_128(mid)),
                n < 4 ? _mm256_cvtepi8_epi16(mote_load_128(mid + 16)) : _mm256_setzero_si256(), out->mid[n]);
    }
    __m128i last = mote_load_128(x + 240);
    store_y(_mm256_cvtepi8_epi16(last), _mm256_cvtepi8_epi16(_mm_srli_si128(last, 4)), out->last);
    __m256i total = _mm256_madd_epi16(mote_load_256(sum), _mm256_set1_epi16(-1));
    mote_store_256(out->less, total);
}

enum { TRIT_CHUNK = 16 }; /* blocks whose activations are rearranged at once, on the stack */

/* 32-bit sums of a block. */
MOTE_INLINE __m256i trit_sums(const uint8_t *block, const struct trit_acts *a)
{
    static const int16_t powers[5] = {3, 9, 27, 81, 243};
    const __m256i last_powers = _mm256_setr_epi16(3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27, 81, 81, 81, 81);
    __m256i v = mote_load_256(block), even = _mm256_slli_epi16(v, 8);
    __m256i odd = _mm256_and_si256(v, _mm256_set1_epi16(-256));
    __m256i mid = _mm256_slli_epi16(_mm256_cvtepu8_epi16(mote_load_128(block + 32)), 8);
    __m128i four = _mm_set1_epi32((int)mote_load_u32(block + 48));
    __m256i last = _mm256_mulhi_epu16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(four), 8), last_powers);
    __m256i s_even = mote_add_pairs(mote_load_256(a->less), last, mote_load_256(a->last));
    __m256i s_odd = _mm256_setzero_si256(), s_mid = _mm256_setzero_si256();
    MOTE_UNROLL for (int n = 0; n < 5; n++)
    {
        const __m256i power = _mm256_set1_epi16(powers[n]);
        s_even = mote_add_pairs(s_even, _mm256_mulhi_epu16(even, power), mote_load_256(a->even[n]));
        s_odd = mote_add_pairs(s_odd, _mm256_mulhi_epu16(odd, power), mote_load_256(a->odd[n]));
        s_mid = mote_add_pairs(s_mid, _mm256_mulhi_epu16(mid, power), mote_load_256(a->mid[n]));
    }
    return _mm256_add_epi32(_mm256_add_epi32(s_odd, s_mid), s_even);
}

/* Element k: the sum of the lanes of v[k]. */
MOTE_INLINE __m128i sums_of_4(const __m256i v[4])
{
    __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    __m256i abcd = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}

/* Two ways to the same integer for each block, so that a row alone equals the row in a batch: one row of activations
 * uses D, several share the codes of trits. Either way block b goes to chain b % 4 of floats, and the chains are
 * joined after every chunk. */
static void lone_tq1_0(MOTE_MATMUL_ARGS)
{
    _Alignas(64) struct trit_acts arranged[TRIT_CHUNK];
    const int64_t at = x_row[0] * x->stride, n_block = w->n_col / 256;
    const float *scale = x->scale + at / 256;
    (void)n_x, (void)y_stride;
    for (int64_t begin = 0; begin < n_block; begin += TRIT_CHUNK) {
        int64_t end = n_block - begin < TRIT_CHUNK ? n_block : begin + TRIT_CHUNK;
        for (int64_t b = begin; b < end; b++)
            arrange_trits(x->q + at + 256 * b, x->sum + at / 16 + 16 * b, &arranged[b - begin]);
        for (int64_t nth = 0; nth < n_row; nth++) {
            int64_t r = mote_dot_row(nth, n_row), b = begin;
            const uint8_t *block = w->data + (size_t)(row + r) * w->row_bytes + (size_t)begin * 54;
            __m128 acc = _mm_setzero_ps();
            for (; b < end; b += 4, block += 4 * 54) {
                __m256i total[4];
                __m128i half = _mm_setzero_si128();
                __m128 x_scale;
                if (__builtin_expect(end - b >= 4, 1)) {
                    MOTE_UNROLL for (int k = 0; k < 4; k++)
                    {
                        mote_tile_prefetch(block + 54 * k, 54);
                        total[k] = trit_sums(block + 54 * k, &arranged[b - begin + k]);
                    }
                    half = _mm_insert_epi16(half, mote_load_u16(block + 52), 0);
                    half = _mm_insert_epi16(half, mote_load_u16(block + 54 + 52), 1);
                    half = _mm_insert_epi16(half, mote_load_u16(block + 108 + 52), 2);
                    half = _mm_insert_epi16(half, mote_load_u16(block + 162 + 52), 3);
                    x_scale = _mm_loadu_ps(scale + b);
                } else {
                    _Alignas(16) uint16_t d[8] = {0};
                    float s[4] = {0};
                    for (int k = 0; k < 4; k++) {
                        total[k] = _mm256_setzero_si256();
                        if (k >= end - b) continue;
                        total[k] = trit_sums(block + 54 * k, &arranged[b - begin + k]);
                        d[k] = mote_load_u16(block + 54 * k + 52), s[k] = scale[b + k];
                    }
                    half = mote_load_128(d), x_scale = _mm_loadu_ps(s);
                }
                acc = _mm_fmadd_ps(_mm_cvtepi32_ps(sums_of_4(total)), _mm_mul_ps(_mm_cvtph_ps(half), x_scale),
                                   acc);
            }
            acc = _mm_add_ps(acc, _mm_movehl_ps(acc, acc));
            float value = _mm_cvtss_f32(_mm_add_ss(acc, _mm_movehdup_ps(acc)));
            if (begin) value = y[r] + value;
            y[r] = end == n_block ? value * w->factor : value;
        }
    }
}

MOTE_INLINE void batch_tq1_0(MOTE_MATMUL_ARGS, const int n)
{
    const int8_t *q[MOTE_DOT_PASS];
    const float *scale[MOTE_DOT_PASS];
    const int16_t *sum[MOTE_DOT_PASS];
    MOTE_UNROLL for (int i = 0; i < MOTE_DOT_PASS; i++)
    {
        int64_t at = x_row[i < n ? i : 0] * x->stride;
        q[i] = x->q + at, scale[i] = x->scale + at / 256, sum[i] = x->sum + at / 16;
    }
    const int64_t n_block = w->n_col / 256;
    (void)n_x;
    for (int64_t nth = 0; nth < n_row; nth++) {
        int64_t r = mote_dot_row(nth, n_row);
        __m128 value = _mm_setzero_ps(), acc[4]; /* a row of activations in each lane */
        for (int64_t b = 0; b < n_block; b++) {
            int64_t col = 256 * b;
            struct mote_tile256 t;
            tile_tq1_0(w, row + r, col, &t);
            __m256i total[MOTE_DOT_PASS];
            MOTE_UNROLL for (int i = 0; i < MOTE_DOT_PASS; i++)
            {
                total[i] = _mm256_setzero_si256();
                if (i >= n) continue;
                __m256i run = mote_run_less(sum[i] + col / 16);
                MOTE_UNROLL for (int k = 0; k < 8; k++) run =
                    mote_run_add(run, t.code[k], mote_load_256(q[i] + col + 32 * k));
                total[i] = mote_run_end(run);
            }
            if (b % TRIT_CHUNK == 0) MOTE_UNROLL for (int k = 0; k < 4; k++) acc[k] = _mm_setzero_ps();
            __m128 by = _mm_setr_ps(scale[0][b], scale[1][b], scale[2][b], scale[3][b]);
            acc[b % 4] =
                _mm_fmadd_ps(_mm_cvtepi32_ps(sums_of_4(total)), _mm_mul_ps(_mm_set1_ps(t.d), by), acc[b % 4]);
            if ((b + 1) % TRIT_CHUNK && b + 1 < n_block) continue;
            __m128 chunk = _mm_add_ps(_mm_add_ps(acc[0], acc[2]), _mm_add_ps(acc[1], acc[3]));
            value = b < TRIT_CHUNK ? chunk : _mm_add_ps(value, chunk);
        }
        float out[4];
        _mm_storeu_ps(out, _mm_mul_ps(value, _mm_set1_ps(w->factor)));
        MOTE_UNROLL for (int i = 0; i < n; i++) y[i * y_stride + r] = out[i];
    }
}

static void batch2_tq1_0(MOTE_MATMUL_ARGS)
{
    batch_tq1_0(MOTE_MATMUL_PASS, 2);
}
static void batch3_tq1_0(MOTE_MATMUL_ARGS)
{
    batch_tq1_0(MOTE_MATMUL_PASS, 3);
}
static void batch4_tq1_0(MOTE_MATMUL_ARGS)
{
    batch_tq1_0(MOTE_MATMUL_PASS, 4);
}
static void dot_tq1_0(MOTE_MATMUL_ARGS)
{
    static mote_matmul_fn *const bodies[4] = {lone_tq1_0, batch2_tq1_0, batch3_tq1_0, batch4_tq1_0};
    mote_dot_passes(bodies, MOTE_MATMUL_PASS);
}

/* 66 bytes: pairs[64] (bits 2 l of byte 32 g + m: column 128 g + 32 l + m), f16 d; w = d * (code - 1) */
MOTE_INLINE void tile_tq2_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * 66;
    mote_tile_prefetch(b, 66);
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
#include "cpu/dot_flat_x86.h"

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
#include "cpu/dot32_x86.h"

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
#include "cpu/dot_plane_x86.h"

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
#include "cpu/dot_plane_x86.h"

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
#include "cpu/dot_plane_x86.h"

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
    t->d = mote_fp4_scales(t->code, scales_mxfp4(b));
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
#define PLANE_CENTRED 1
#include "cpu/dot_plane_x86.h"

void MATMUL_FILL(struct mote_cpu_kernels *table)
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

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
