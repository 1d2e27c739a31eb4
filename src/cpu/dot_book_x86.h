/* dot_book_x86.h: template (no include guard): products of the formats whose weights are entries of a code book.
 *
 * One idea: a block's bit fields become a head (sign bytes, scales, indices) by whole-block vector steps, four blocks
 * ahead of their use, so that the processor has independent work while entries of the book come. Signs are applied
 * to a lone activation row itself; several rows share codes with an offset instead. Both give the same integer for
 * 256 columns, and floats begin only there: a row alone equals the row in a batch.
 *
 * BOOK_NAME        the functions become dot_NAME and gemm_NAME
 * BOOK_BYTES       of a block
 * BOOK_UNIT        w = d * BOOK_UNIT * scale * (code - offset)
 * BOOK_GROUP       16 or 32 columns per scale
 * BOOK_INTERLEAVED see book_place
 * BOOK_OFFSET      the book's largest magnitude, where it has signs: codes are 0 .. 2 * BOOK_OFFSET. 0: the head has
 *                  biases, w = d * BOOK_UNIT * (scale * code - bias), and BOOK_MAX_CODE is the largest code
 * Calls head_NAME(b, head), entries_NAME(b, head, k): 32 magnitudes or codes, and d_NAME(b): the f16 of a block.
 */

#if BOOK_OFFSET
#define BOOK_MAX_CODE (2 * BOOK_OFFSET)
#endif

/* Codes 0 .. BOOK_MAX_CODE of 32 columns. */
MOTE_INLINE __m256i MOTE_CAT(code_, BOOK_NAME)(const uint8_t *b, const struct book_head *head, int k)
{
    __m256i v = MOTE_CAT(entries_, BOOK_NAME)(b, head, k);
    if (!BOOK_OFFSET) return v;
    v = _mm256_sign_epi8(v, book_sign(head, book_place(k, BOOK_INTERLEAVED)));
    return _mm256_add_epi8(v, _mm256_set1_epi8(BOOK_OFFSET));
}

/* One for 16 columns, in column order. */
MOTE_INLINE __m256i MOTE_CAT(bias_, BOOK_NAME)(const struct book_head *head)
{
    if (!BOOK_OFFSET) return mote_load_256(head->bias);
    __m256i scale = mote_load_256(head->scale);
    if (BOOK_INTERLEAVED) scale = _mm256_permute4x64_epi64(scale, 0xD8);
    return _mm256_mullo_epi16(scale, _mm256_set1_epi16(BOOK_OFFSET));
}

/* f16 scales of n blocks, then zeros. */
MOTE_INLINE __m128 MOTE_CAT(scales_, BOOK_NAME)(const uint8_t *b, int n)
{
    __m128i h = _mm_cvtsi32_si128(MOTE_CAT(d_, BOOK_NAME)(b));
    if (n > 1) h = _mm_insert_epi16(h, MOTE_CAT(d_, BOOK_NAME)(b + BOOK_BYTES), 1);
    if (n > 2) h = _mm_insert_epi16(h, MOTE_CAT(d_, BOOK_NAME)(b + 2 * BOOK_BYTES), 2);
    if (n > 3) h = _mm_insert_epi16(h, MOTE_CAT(d_, BOOK_NAME)(b + 3 * BOOK_BYTES), 3);
    return _mm_cvtph_ps(h);
}

/* Up to four blocks of two weight rows with one activation row: sums of each block, spread over lanes. */
MOTE_INLINE void MOTE_CAT(lone_, BOOK_NAME)(const uint8_t *const b[2], const int8_t *q, const int16_t *sum,
                                            int n_block, __m256i total[2][BOOK_RUN])
{
    struct book_head head[BOOK_RUN][2];
    for (int i = 0; i < n_block; i++) {
        MOTE_UNROLL for (int r = 0; r < 2; r++)
        {
            mote_tile_prefetch(b[r] + BOOK_BYTES * i, BOOK_BYTES);
            MOTE_CAT(head_, BOOK_NAME)(b[r] + BOOK_BYTES * i, &head[i][r]);
        }
    }
    for (int i = 0; i < n_block; i++) {
        __m256i s[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        MOTE_UNROLL for (int k = 0; k < 8; k++)
        {
            int place = book_place(k, BOOK_INTERLEAVED);
            __m256i v = mote_load_256(q + 256 * i + 32 * k);
            MOTE_UNROLL for (int r = 0; r < 2; r++)
            {
                __m256i g = MOTE_CAT(entries_, BOOK_NAME)(b[r] + BOOK_BYTES * i, &head[i][r], k);
                __m256i x = BOOK_OFFSET ? _mm256_sign_epi8(v, book_sign(&head[i][r], place)) : v;
                s[r] = mote_add_pairs(s[r], _mm256_maddubs_epi16(g, x),
                                      book_scale(&head[i][r], place, BOOK_GROUP));
            }
        }
        MOTE_UNROLL for (int r = 0; r < 2; r++)
        {
            if (!BOOK_OFFSET)
                s[r] = _mm256_sub_epi32(
                    s[r], _mm256_madd_epi16(mote_load_256(head[i][r].bias), mote_load_256(sum + 16 * i)));
            total[r][i] = s[r];
        }
    }
    for (int i = n_block; i < BOOK_RUN; i++) total[0][i] = total[1][i] = _mm256_setzero_si256();
}

static void MOTE_CAT(dot_1_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    (void)n_x, (void)y_stride;
    int64_t n_block = w->n_col / 256, at = x_row[0] * x->stride;
    const int8_t *q = x->q + at;
    const float *scale = x->scale + at / 256;
    const int16_t *sum = x->sum + at / 16;
    for (int64_t r = 0; r < n_row; r += 2) {
        /* an odd last row is done twice */
        const uint8_t *first = w->data + (size_t)(row + r) * w->row_bytes;
        const uint8_t *b[2] = {first, r + 1 < n_row ? first + w->row_bytes : first};
        __m128 acc[2] = {_mm_setzero_ps(), _mm_setzero_ps()};
        for (int64_t i = 0; i < n_block; i += BOOK_RUN) {
            __m256i total[2][BOOK_RUN];
            int n = (int)(n_block - i < BOOK_RUN ? n_block - i : BOOK_RUN);
            if (__builtin_expect(n == BOOK_RUN, 1))
                MOTE_CAT(lone_, BOOK_NAME)(b, q + 256 * i, sum + 16 * i, BOOK_RUN, total);
            else MOTE_CAT(lone_, BOOK_NAME)(b, q + 256 * i, sum + 16 * i, n, total);
            __m128 by = book_x_scale(scale + i, n);
            MOTE_UNROLL for (int k = 0; k < 2; k++)
            {
                acc[k] = book_fold(total[k], MOTE_CAT(scales_, BOOK_NAME)(b[k], n), by, acc[k]);
                b[k] += BOOK_RUN * BOOK_BYTES;
            }
        }
        y[r] = book_sum(acc[0]) * (BOOK_UNIT * w->factor);
        if (r + 1 < n_row) y[r + 1] = book_sum(acc[1]) * (BOOK_UNIT * w->factor);
    }
}

MOTE_INLINE void MOTE_CAT(several_, BOOK_NAME)(MOTE_MATMUL_ARGS, const int n_act)
{
    (void)n_x;
    int64_t n_block = w->n_col / 256;
    const int8_t *q[MOTE_DOT_ROWS];
    const float *scale[MOTE_DOT_ROWS];
    const int16_t *sum[MOTE_DOT_ROWS];
    MOTE_UNROLL for (int a = 0; a < n_act; a++)
    {
        int64_t at = x_row[a] * x->stride;
        q[a] = x->q + at, scale[a] = x->scale + at / 256, sum[a] = x->sum + at / 16;
    }
    for (int64_t r = 0; r < n_row; r++) {
        const uint8_t *b = w->data + (size_t)(row + r) * w->row_bytes;
        __m128 acc[MOTE_DOT_ROWS];
        MOTE_UNROLL for (int a = 0; a < n_act; a++) acc[a] = _mm_setzero_ps();
        for (int64_t i = 0; i < n_block; i += BOOK_RUN, b += BOOK_RUN * BOOK_BYTES) {
            struct book_head head[BOOK_RUN];
            __m256i total[MOTE_DOT_ROWS][BOOK_RUN];
            int n = (int)(n_block - i < BOOK_RUN ? n_block - i : BOOK_RUN);
            for (int j = 0; j < n; j++) {
                mote_tile_prefetch(b + BOOK_BYTES * j, BOOK_BYTES);
                MOTE_CAT(head_, BOOK_NAME)(b + BOOK_BYTES * j, &head[j]);
            }
            for (int j = 0; j < n; j++) {
                __m256i s[MOTE_DOT_ROWS], bias = MOTE_CAT(bias_, BOOK_NAME)(&head[j]);
                MOTE_UNROLL for (int a = 0; a < n_act; a++) s[a] = _mm256_setzero_si256();
                MOTE_UNROLL for (int k = 0; k < 8; k++)
                {
                    __m256i code = MOTE_CAT(code_, BOOK_NAME)(b + BOOK_BYTES * j, &head[j], k);
                    __m256i by = book_scale(&head[j], book_place(k, BOOK_INTERLEAVED), BOOK_GROUP);
                    MOTE_UNROLL for (int a = 0; a < n_act; a++)
                    {
                        __m256i v = mote_load_256(q[a] + 256 * (i + j) + 32 * k);
                        s[a] = mote_add_pairs(s[a], _mm256_maddubs_epi16(code, v), by);
                        MOTE_KEEP(s[a]);
                    }
                }
                MOTE_UNROLL for (int a = 0; a < n_act; a++) total[a][j] =
                    _mm256_sub_epi32(s[a], _mm256_madd_epi16(bias, mote_load_256(sum[a] + 16 * (i + j))));
            }
            __m128 d = MOTE_CAT(scales_, BOOK_NAME)(b, n);
            MOTE_UNROLL for (int a = 0; a < n_act; a++)
            {
                for (int j = n; j < BOOK_RUN; j++) total[a][j] = _mm256_setzero_si256();
                acc[a] = book_fold(total[a], d, book_x_scale(scale[a] + i, n), acc[a]);
            }
        }
        MOTE_UNROLL for (int a = 0; a < n_act; a++) y[a * y_stride + r] =
            book_sum(acc[a]) * (BOOK_UNIT * w->factor);
    }
}

static void MOTE_CAT(dot_2_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    MOTE_CAT(several_, BOOK_NAME)(MOTE_MATMUL_PASS, 2);
}

static void MOTE_CAT(dot_3_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    MOTE_CAT(several_, BOOK_NAME)(MOTE_MATMUL_PASS, 3);
}

static void MOTE_CAT(dot_4_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    MOTE_CAT(several_, BOOK_NAME)(MOTE_MATMUL_PASS, 4);
}

static void MOTE_CAT(dot_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    static mote_matmul_fn *const bodies[4] = {MOTE_CAT(dot_1_, BOOK_NAME), MOTE_CAT(dot_2_, BOOK_NAME),
                                              MOTE_CAT(dot_3_, BOOK_NAME), MOTE_CAT(dot_4_, BOOK_NAME)};
    mote_dot_passes(bodies, MOTE_MATMUL_PASS);
}

MOTE_INLINE void MOTE_CAT(tile_, BOOK_NAME)(const struct mote_matrix *w, int64_t row, int64_t col,
                                            struct mote_tile256 *t)
{
    const uint8_t *b = w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * BOOK_BYTES;
    struct book_head head;
    MOTE_CAT(head_, BOOK_NAME)(b, &head);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = MOTE_CAT(code_, BOOK_NAME)(b, &head, k);
    __m256i scale = mote_load_256(head.scale);
    if (BOOK_INTERLEAVED) scale = _mm256_permute4x64_epi64(scale, 0xD8);
    t->scale = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(scale, even_odd_words()), 0xD8);
    t->bias = MOTE_CAT(bias_, BOOK_NAME)(&head);
    t->d = _cvtsh_ss(MOTE_CAT(d_, BOOK_NAME)(b)) * BOOK_UNIT;
}

#define TILE_NAME BOOK_NAME
#define TILE_GROUP BOOK_GROUP
#define TILE_MAX_CODE BOOK_MAX_CODE
#define TILE_BIAS (BOOK_OFFSET == 0)
#define TILE_OFFSET BOOK_OFFSET
#define TILE_OWN_DOT
#include "cpu/dot256_x86.h"

#undef BOOK_NAME
#undef BOOK_BYTES
#undef BOOK_UNIT
#undef BOOK_GROUP
#undef BOOK_INTERLEAVED
#undef BOOK_OFFSET
#undef BOOK_MAX_CODE
