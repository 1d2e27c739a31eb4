/* dot32_x86.h: template (no include guard): products with I8_32 from a tile function. See tile_x86.h.
 *
 * TILE_BIAS 0: w = d * (code - TILE_OFFSET)          1: w = d * code + bias
 *
 * TILE_OFFSET is 0 if not defined.
 */

#ifndef TILE_OFFSET
#define TILE_OFFSET 0
#endif

MOTE_INLINE void MOTE_CAT(body_, TILE_NAME)(MOTE_MATMUL_ARGS, const int n)
{
    const int8_t *q[MOTE_DOT_ROWS];
    const float *scale[MOTE_DOT_ROWS], *sum[MOTE_DOT_ROWS];
    MOTE_UNROLL for (int i = 0; i < n; i++)
    {
        int64_t at = x_row[i] * x->stride;
        q[i] = x->q + at, scale[i] = x->scale + at / 32, sum[i] = x->sum32 + at / 32;
    }
    (void)n_x;
    for (int64_t nth = 0; nth < n_row; nth++) {
        int64_t r = mote_dot_row(nth, n_row);
        __m256 acc[MOTE_DOT_ROWS], acc_bias[MOTE_DOT_ROWS];
        MOTE_UNROLL for (int i = 0; i < n; i++) acc[i] = acc_bias[i] = _mm256_setzero_ps();
        for (int64_t col = 0; col < w->n_col; col += 256) {
            struct mote_tile32 t;
            MOTE_CAT(tile_, TILE_NAME)(w, row + r, col, &t);
            MOTE_UNROLL for (int i = 0; i < n; i++)
            {
                __m256i p[8];
                MOTE_UNROLL for (int k = 0; k < 8; k++) p[k] =
                    mote_dot_4(t.code[k], mote_load_256(q[i] + col + 32 * k), TILE_MAX_CODE == 0);
                __m256 sums = _mm256_cvtepi32_ps(mote_sums_of_8(p, TILE_MAX_CODE));
                __m256 by = _mm256_mul_ps(t.d, _mm256_loadu_ps(scale[i] + col / 32));
                acc[i] = _mm256_fmadd_ps(sums, by, acc[i]);
                MOTE_KEEP(acc[i]);
                if (TILE_BIAS || TILE_OFFSET != 0)
                    acc_bias[i] = _mm256_fmadd_ps(TILE_BIAS ? t.bias : t.d,
                                                  _mm256_loadu_ps(sum[i] + col / 32), acc_bias[i]);
            }
        }
        MOTE_UNROLL for (int i = 0; i < n; i++)
        {
            if (TILE_OFFSET) acc[i] = _mm256_fnmadd_ps(_mm256_set1_ps(TILE_OFFSET), acc_bias[i], acc[i]);
            if (TILE_BIAS) acc[i] = _mm256_add_ps(acc[i], acc_bias[i]);
            y[i * y_stride + r] = mote_hsum(acc[i]) * w->factor;
        }
    }
}

MOTE_DOT_DEFINE(MOTE_CAT(dot_, TILE_NAME), MOTE_CAT(body_, TILE_NAME))

static void MOTE_CAT(unpack_, TILE_NAME)(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code,
                                         float *scale, float *bias)
{
    struct mote_tile32 t;
    MOTE_CAT(tile_, TILE_NAME)(w, row, col, &t);
    MOTE_UNROLL for (int k = 0; k < 8; k++) mote_store_256(code + 32 * k, t.code[k]);
    __m256 factor = _mm256_set1_ps(w->factor);
    _mm256_store_ps(scale, _mm256_mul_ps(t.d, factor));
    if (TILE_BIAS) _mm256_store_ps(bias, _mm256_mul_ps(t.bias, factor));
}

static void MOTE_CAT(gemm_, TILE_NAME)(MOTE_MATMUL_ARGS)
{
    static const struct mote_unpack unpack = {MOTE_CAT(unpack_, TILE_NAME), 32,        TILE_MAX_CODE,
                                              TILE_MAX_CODE == 0,           TILE_BIAS, TILE_OFFSET};
    MOTE_GEMM(&unpack, MOTE_MATMUL_PASS);
}

#undef TILE_NAME
#undef TILE_MAX_CODE
#undef TILE_BIAS
#undef TILE_OFFSET
