/* dot_book_avx2.h: template (no include guard): decode products of the formats with a code book and signs.
 *
 * One idea: a single activation row takes the signs itself (magnitude x signed activation needs no offset), several
 * rows share offset codes; both give the same integer for 256 columns, and floats begin only there, so that a row
 * alone equals the row in a batch whatever the way.
 *
 * A lone row goes by two weight rows and four blocks: the blocks' heads (signs, scales, indices) are worked out
 * first, which gives the processor independent work while the book's entries come; the sums of four blocks are
 * folded together.
 *
 * BOOK_NAME           the functions become dot_NAME and gemm_NAME; calls head_NAME and magnitude_NAME
 * BOOK_BYTES          of a block; d is its first f16
 * BOOK_UNIT           w = d * BOOK_UNIT * scale * signed magnitude
 * BOOK_GROUP          16 or 32 columns per scale
 * BOOK_INTERLEAVED    see book_place
 * BOOK_OFFSET         largest magnitude: codes are 0 .. 2 * BOOK_OFFSET
 */

MOTE_INLINE void MOTE_CAT(tile_, BOOK_NAME)(const struct mote_matrix *w, int64_t row, int64_t col,
                                            struct mote_tile256 *t)
{
    const uint8_t *b = w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * BOOK_BYTES;
    struct book_head head;
    MOTE_CAT(head_, BOOK_NAME)(b, &head);
    __m256i half[2] = {_mm256_broadcastsi128_si256(mote_load_128(head.sign)),
                       _mm256_broadcastsi128_si256(mote_load_128(head.sign + 16))};
    MOTE_UNROLL for (int k = 0; k < 8; k++)
    {
        int place = book_place(k, BOOK_INTERLEAVED);
        __m256i g = MOTE_CAT(magnitude_, BOOK_NAME)(b, &head, k);
        g = _mm256_sign_epi8(g, sign_spread(half[place / 4], place % 4));
        t->code[k] = _mm256_add_epi8(g, _mm256_set1_epi8(BOOK_OFFSET));
    }
    __m256i scale = mote_load_256(head.scale);
    if (BOOK_INTERLEAVED) scale = _mm256_permute4x64_epi64(scale, 0xD8);
    t->scale = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(scale, even_odd_words()), 0xD8);
    t->bias = _mm256_mullo_epi16(scale, _mm256_set1_epi16(BOOK_OFFSET));
    t->d = mote_f16_load(b) * BOOK_UNIT;
}

/* Four blocks of one row, or fewer at its end, through `n` activation rows: 32-bit sums of each block. */
MOTE_INLINE void MOTE_CAT(lone_, BOOK_NAME)(const uint8_t *const b[2], const int8_t *q, int n_block,
                                            __m256i total[2][BOOK_RUN])
{
    struct book_head head[BOOK_RUN][2];
    for (int i = 0; i < n_block; i++) {
        MOTE_CAT(head_, BOOK_NAME)(b[0] + BOOK_BYTES * i, &head[i][0]);
        MOTE_CAT(head_, BOOK_NAME)(b[1] + BOOK_BYTES * i, &head[i][1]);
    }
    for (int i = 0; i < n_block; i++) {
        __m256i sum[2], half[2][2];
        MOTE_UNROLL for (int r = 0; r < 2; r++)
        {
            half[r][0] = _mm256_broadcastsi128_si256(mote_load_128(head[i][r].sign));
            half[r][1] = _mm256_broadcastsi128_si256(mote_load_128(head[i][r].sign + 16));
        }
        MOTE_UNROLL for (int k = 0; k < 8; k++)
        {
            int place = book_place(k, BOOK_INTERLEAVED);
            __m256i x = mote_load_256(q + 256 * i + 32 * k);
            MOTE_UNROLL for (int r = 0; r < 2; r++)
            {
                __m256i g = MOTE_CAT(magnitude_, BOOK_NAME)(b[r] + BOOK_BYTES * i, &head[i][r], k);
                __m256i p =
                    _mm256_maddubs_epi16(g, _mm256_sign_epi8(x, sign_spread(half[r][place / 4], place % 4)));
                p = _mm256_madd_epi16(p, book_scale(&head[i][r], place, BOOK_GROUP));
                sum[r] = k ? _mm256_add_epi32(sum[r], p) : p;
            }
        }
        total[0][i] = sum[0], total[1][i] = sum[1];
    }
    for (int i = n_block; i < BOOK_RUN; i++) total[0][i] = total[1][i] = _mm256_setzero_si256();
}

static void MOTE_CAT(dot_1_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    (void)n_x, (void)y_stride;
    const int8_t *q = x->q + x_row[0] * x->stride;
    const float *scale = x->scale + x_row[0] * x->stride / 256;
    int64_t n_block = w->n_col / 256;
    for (int64_t r = 0; r < n_row; r += 2) {
        /* an odd last row is done twice */
        const uint8_t *first = w->data + (size_t)(row + r) * w->row_bytes;
        const uint8_t *b[2] = {first, r + 1 < n_row ? first + w->row_bytes : first};
        __m128 acc[2] = {_mm_setzero_ps(), _mm_setzero_ps()};
        for (int64_t i = 0; i < n_block; i += BOOK_RUN) {
            __m256i total[2][BOOK_RUN];
            int n = (int)(n_block - i < BOOK_RUN ? n_block - i : BOOK_RUN);
            if (__builtin_expect(n == BOOK_RUN, 1))
                MOTE_CAT(lone_, BOOK_NAME)(b, q + 256 * i, BOOK_RUN, total);
            else MOTE_CAT(lone_, BOOK_NAME)(b, q + 256 * i, n, total);
            __m128 by = book_x_scale(scale + i, n);
            acc[0] = book_fold(total[0], book_d(b[0], BOOK_BYTES, n), by, acc[0]);
            acc[1] = book_fold(total[1], book_d(b[1], BOOK_BYTES, n), by, acc[1]);
            b[0] += BOOK_RUN * BOOK_BYTES, b[1] += BOOK_RUN * BOOK_BYTES;
        }
        y[r] = book_sum(acc[0]) * (BOOK_UNIT * w->factor);
        if (r + 1 < n_row) y[r + 1] = book_sum(acc[1]) * (BOOK_UNIT * w->factor);
    }
}

MOTE_INLINE void MOTE_CAT(body_, BOOK_NAME)(MOTE_MATMUL_ARGS, const int n_act)
{
    (void)n_x;
    const int8_t *q[MOTE_DOT_ROWS];
    const float *scale[MOTE_DOT_ROWS];
    const int16_t *sum[MOTE_DOT_ROWS];
    MOTE_UNROLL for (int a = 0; a < n_act; a++)
    {
        int64_t at = x_row[a] * x->stride;
        q[a] = x->q + at, scale[a] = x->scale + at / 256, sum[a] = x->sum + at / 16;
    }
    int64_t n_block = w->n_col / 256;
    for (int64_t r = 0; r < n_row; r++) {
        const uint8_t *b = w->data + (size_t)(row + r) * w->row_bytes;
        __m128 acc[MOTE_DOT_ROWS];
        MOTE_UNROLL for (int a = 0; a < n_act; a++) acc[a] = _mm_setzero_ps();
        for (int64_t i = 0; i < n_block; i += BOOK_RUN, b += BOOK_RUN * BOOK_BYTES) {
            __m256i total[MOTE_DOT_ROWS][BOOK_RUN];
            int n = (int)(n_block - i < BOOK_RUN ? n_block - i : BOOK_RUN);
            for (int j = 0; j < BOOK_RUN; j++) {
                __m256i s[MOTE_DOT_ROWS];
                struct mote_tile256 t;
                MOTE_UNROLL for (int a = 0; a < n_act; a++) s[a] = _mm256_setzero_si256();
                if (j < n) {
                    MOTE_CAT(tile_, BOOK_NAME)(w, row + r, 256 * (i + j), &t);
                    MOTE_UNROLL for (int k = 0; k < 8; k++)
                    {
                        __m256i by = mote_tile_scale(t.scale, k);
                        MOTE_UNROLL for (int a = 0; a < n_act; a++)
                        {
                            __m256i v = mote_load_256(q[a] + 256 * (i + j) + 32 * k);
                            __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(t.code[k], v), by);
                            s[a] = _mm256_add_epi32(s[a], p);
                            MOTE_KEEP(s[a]);
                        }
                    }
                    MOTE_UNROLL for (int a = 0; a < n_act; a++) s[a] = _mm256_sub_epi32(
                        s[a], _mm256_madd_epi16(t.bias, mote_load_256(sum[a] + 16 * (i + j))));
                }
                MOTE_UNROLL for (int a = 0; a < n_act; a++) total[a][j] = s[a];
            }
            __m128 d = book_d(b, BOOK_BYTES, n);
            MOTE_UNROLL for (int a = 0; a < n_act; a++) acc[a] =
                book_fold(total[a], d, book_x_scale(scale[a] + i, n), acc[a]);
        }
        MOTE_UNROLL for (int a = 0; a < n_act; a++) y[a * y_stride + r] =
            book_sum(acc[a]) * (BOOK_UNIT * w->factor);
    }
}

static void MOTE_CAT(dot_2_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    MOTE_CAT(body_, BOOK_NAME)(MOTE_MATMUL_PASS, 2);
}
static void MOTE_CAT(dot_3_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    MOTE_CAT(body_, BOOK_NAME)(MOTE_MATMUL_PASS, 3);
}
static void MOTE_CAT(dot_4_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    MOTE_CAT(body_, BOOK_NAME)(MOTE_MATMUL_PASS, 4);
}

static void MOTE_CAT(dot_, BOOK_NAME)(MOTE_MATMUL_ARGS)
{
    static mote_matmul_fn *const bodies[4] = {MOTE_CAT(dot_1_, BOOK_NAME), MOTE_CAT(dot_2_, BOOK_NAME),
                                              MOTE_CAT(dot_3_, BOOK_NAME), MOTE_CAT(dot_4_, BOOK_NAME)};
    mote_dot_passes(bodies, MOTE_MATMUL_PASS);
}

#define TILE_NAME BOOK_NAME
#define TILE_GROUP BOOK_GROUP
#define TILE_MAX_CODE (2 * BOOK_OFFSET)
#define TILE_BIAS 1
#define TILE_OWN_DOT
#include "cpu/dot256_avx2.h"

#undef BOOK_NAME
#undef BOOK_BYTES
#undef BOOK_UNIT
#undef BOOK_GROUP
#undef BOOK_INTERLEAVED
#undef BOOK_OFFSET
