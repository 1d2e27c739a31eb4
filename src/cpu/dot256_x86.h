/* dot256_x86.h: template (no include guard): products with I8_256 from a tile function. See tile_x86.h.
 *
 * TILE_BIAS 0: w = d * scale * code
 *           1: w = d * (scale * code - bias)          (one unit for both)
 *           2: w = d * scale * code - d_bias * bias
 * TILE_OFFSET, where defined, of all codes, for gemm alone: w = d * scale * (code - TILE_OFFSET), TILE_BIAS 0.
 * TILE_OWN_DOT, where defined, leaves dot to the file that includes this one.
 * Bounds: 32-bit sums of a tile: 256 * |scale| * max_code * 127 < 2^31, and |bias| <= 4096.
 */

#ifndef TILE_OFFSET
#define TILE_OFFSET 0
#endif

#ifndef TILE_OWN_DOT
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
    for (int64_t nth = 0; nth < n_row; nth++) {
        int64_t r = mote_dot_row(nth, n_row);
        __m256 acc[MOTE_DOT_ROWS], acc_bias[MOTE_DOT_ROWS];
        MOTE_UNROLL for (int i = 0; i < n; i++) acc[i] = acc_bias[i] = _mm256_setzero_ps();
        for (int64_t col = 0; col < w->n_col; col += 256) {
            struct mote_tile256 t;
            MOTE_CAT(tile_, TILE_NAME)(w, row + r, col, &t);
            __m256i total[MOTE_DOT_ROWS];
            MOTE_UNROLL for (int i = 0; i < n; i++) total[i] = _mm256_setzero_si256();
            MOTE_UNROLL for (int k = 0; k < 8; k++)
            {
                __m256i s = mote_tile_scale(t.scale, k);
                MOTE_UNROLL for (int i = 0; i < n; i++)
                {
                    __m256i v = mote_load_256(q[i] + col + 32 * k);
                    __m256i p =
                        TILE_MAX_CODE ? _mm256_maddubs_epi16(t.code[k], v) : mote_mul_signed(t.code[k], v);
                    total[i] = mote_add_pairs(total[i], p, s);
                    MOTE_KEEP(total[i]);
                }
            }
            MOTE_UNROLL for (int i = 0; i < n; i++)
            {
                float by = scale[i][col / 256];
                if (TILE_BIAS) {
                    __m256i b = _mm256_madd_epi16(t.bias, mote_load_256(sum[i] + col / 16));
                    if (TILE_BIAS == 1) total[i] = _mm256_sub_epi32(total[i], b);
                    else
                        acc_bias[i] = _mm256_fmadd_ps(_mm256_set1_ps(t.d_bias * by), _mm256_cvtepi32_ps(b),
                                                      acc_bias[i]);
                }
                acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(t.d * by), _mm256_cvtepi32_ps(total[i]), acc[i]);
            }
        }
        MOTE_UNROLL for (int i = 0; i < n; i++)
        {
            if (TILE_BIAS == 2) acc[i] = _mm256_sub_ps(acc[i], acc_bias[i]);
            y[i * y_stride + r] = mote_hsum(acc[i]) * w->factor;
        }
    }
}

MOTE_DOT_DEFINE(MOTE_CAT(dot_, TILE_NAME), MOTE_CAT(body_, TILE_NAME))
#endif

static void MOTE_CAT(unpack_, TILE_NAME)(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code,
                                         float *scale, float *bias)
{
    struct mote_tile256 t;
    MOTE_CAT(tile_, TILE_NAME)(w, row, col, &t);
    MOTE_UNROLL for (int k = 0; k < 8; k++) mote_store_256(code + 32 * k, t.code[k]);
    __m256 d = _mm256_set1_ps(t.d * w->factor);
    __m256i even = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(t.scale));
    __m256 s = _mm256_mul_ps(d, _mm256_cvtepi32_ps(even));
    if (TILE_GROUP == 16) {
        __m256i odd = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(t.scale, 1));
        __m256 u = _mm256_mul_ps(d, _mm256_cvtepi32_ps(odd));
        __m256 low = _mm256_unpacklo_ps(s, u), high = _mm256_unpackhi_ps(s, u);
        _mm256_store_ps(scale, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_store_ps(scale + 8, _mm256_permute2f128_ps(low, high, 0x31));
    } else {
        _mm256_store_ps(scale, s);
    }
    if (!TILE_BIAS) {
        (void)bias;
        return;
    }
    __m256 unit = TILE_BIAS == 1 ? d : _mm256_set1_ps(t.d_bias * w->factor);
    unit = _mm256_sub_ps(_mm256_setzero_ps(), unit);
    if (TILE_GROUP == 16) {
        __m256i low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(t.bias));
        __m256i high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(t.bias, 1));
        _mm256_store_ps(bias, _mm256_mul_ps(unit, _mm256_cvtepi32_ps(low)));
        _mm256_store_ps(bias + 8, _mm256_mul_ps(unit, _mm256_cvtepi32_ps(high)));
    } else { /* both 16s of a 32 are the same: take the lower */
        __m256i b = _mm256_srai_epi32(_mm256_slli_epi32(t.bias, 16), 16);
        _mm256_store_ps(bias, _mm256_mul_ps(unit, _mm256_cvtepi32_ps(b)));
    }
}

static void MOTE_CAT(gemm_, TILE_NAME)(MOTE_MATMUL_ARGS)
{
    static const struct mote_unpack unpack = {MOTE_CAT(unpack_, TILE_NAME), TILE_GROUP,     TILE_MAX_CODE,
                                              TILE_MAX_CODE == 0,           TILE_BIAS != 0, TILE_OFFSET};
    MOTE_GEMM(&unpack, MOTE_MATMUL_PASS);
}

#undef TILE_NAME
#undef TILE_GROUP
#undef TILE_MAX_CODE
#undef TILE_BIAS
#undef TILE_OFFSET
#undef TILE_OWN_DOT
