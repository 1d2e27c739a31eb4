/* dot_flat_x86.h: template (no include guard): products with I8_256 of formats with one scale for 256 weights and
 * codes of 0..3 that mean -1..2. See tile_x86.h; of the tile only code and d are read.
 *
 * A tile adds up in 16 bits: |8 * 2 * 3 * 127 + 16 * 127| < 2^13. It starts from minus the sums of 16 activations,
 * which is what the offset 1 of every code adds too much.
 */

#ifndef TILE_OWN_DOT /* defined: dot_NAME comes from elsewhere */
MOTE_INLINE void MOTE_CAT(body_, TILE_NAME)(MOTE_MATMUL_ARGS, const int n)
{
    const int8_t *q[MOTE_DOT_ROWS];
    const float *scale[MOTE_DOT_ROWS];
    const int16_t *sum[MOTE_DOT_ROWS];
    MOTE_UNROLL for (int i = 0; i < n; i++)
    {
        int64_t at = x_row[i] * x->stride;
        q[i] = x->q + at, scale[i] = x->scale + at / 256, sum[i] = x->sum + at / 16;
    }
    (void)n_x;
    for (int64_t r = 0; r < n_row; r++) {
        __m256 acc[MOTE_DOT_ROWS];
        MOTE_UNROLL for (int i = 0; i < n; i++) acc[i] = _mm256_setzero_ps();
        for (int64_t col = 0; col < w->n_col; col += 256) {
            struct mote_tile256 t;
            MOTE_CAT(tile_, TILE_NAME)(w, row + r, col, &t);
            MOTE_UNROLL for (int i = 0; i < n; i++)
            {
                __m256i run = mote_run_less(sum[i] + col / 16);
                MOTE_UNROLL for (int k = 0; k < 8; k++) run =
                    mote_run_add(run, t.code[k], mote_load_256(q[i] + col + 32 * k));
                acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(mote_run_end(run)),
                                         _mm256_set1_ps(t.d * scale[i][col / 256]), acc[i]);
            }
        }
        MOTE_UNROLL for (int i = 0; i < n; i++) y[i * y_stride + r] = mote_hsum(acc[i]) * w->factor;
    }
}

MOTE_DOT_DEFINE(MOTE_CAT(dot_, TILE_NAME), MOTE_CAT(body_, TILE_NAME))
#endif

static void MOTE_CAT(unpack_, TILE_NAME)(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code,
                                         float *scale, float *bias)
{
    (void)bias;
    struct mote_tile256 t;
    MOTE_CAT(tile_, TILE_NAME)(w, row, col, &t);
    MOTE_UNROLL for (int k = 0; k < 8; k++) mote_store_256(code + 32 * k, t.code[k]);
    scale[0] = t.d * w->factor;
}

static void MOTE_CAT(gemm_, TILE_NAME)(MOTE_MATMUL_ARGS)
{
    static const struct mote_unpack unpack = {MOTE_CAT(unpack_, TILE_NAME), 256, TILE_MAX_CODE, 0, 0, 1};
    MOTE_GEMM(&unpack, MOTE_MATMUL_PASS);
}

#undef TILE_NAME
#undef TILE_MAX_CODE
#undef TILE_OWN_DOT
