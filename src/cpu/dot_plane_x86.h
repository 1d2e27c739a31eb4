/* dot_plane_x86.h: template (no include guard): products with I8_32 of formats whose codes of 1, 2 or 4 bits lie in
 * column order. Template files of tile_x86.h are its relatives.
 *
 * One idea: for decoding, codes are cheapest as they lie: shifting 32 bytes right and masking gives every second (4
 * bits), fourth or eighth column. So the activations are brought into that order instead, once for all rows of a
 * call. Then whole vectors add up in 16 bits and each 32-bit lane belongs to one block of 32 columns.
 *
 *     column of byte j of vector v, plane p:   (32 v + j) * (8 / bits) + p
 *     split 1:                                 32 (2 v + j / 16) + 16 p + j % 16       (GGUF's order of nibbles)
 *     split 2:                                 16 (4 v + j / 8) + 8 p + j % 8          (GGUF's NVFP4)
 *
 *     #define PLANE_NAME q2_0        calls planes_q2_0 (below) and, for gemm, tile_q2_0 (tile_x86.h)
 *     #define PLANE_BITS 2           1, 2, 4
 *     #define PLANE_SPLIT 0          1, 2: above, instead of the first line
 *     #define PLANE_CODES(c) c       masked codes to what is multiplied, 0..PLANE_MAX_CODE
 *     #define PLANE_MAX_CODE 3       2 * (8 / bits) * max * 127 < 2^15
 *     #define PLANE_BIAS 0           0: w = d * (PLANE_UNIT * code - PLANE_OFFSET), 1: w = d * code + bias
 *     #define PLANE_UNIT 1           1, 2
 *     #define PLANE_OFFSET 1
 *     #define PLANE_SUB 1            (0 if not defined; 4 bits only) scales per 16 columns
 *     #define PLANE_CENTRED 1        (0 if not defined; PLANE_UNIT 1) the offset is taken off before scaling, so that a
 *                                    block of zeros adds nothing, whatever its scale
 *
 *     MOTE_INLINE void planes_q2_0(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[PLANE_BITS],
 *                                  __m256 *d, __m256 *bias)
 *
 * With PLANE_SUB d is [2], 16 scales in column order; bias is not read; and the function for gemm gives codes [256] and
 * scales [16] in column order:
 *
 *     MOTE_INLINE void rows_nvfp4(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code, float *scale)
 */

#ifndef PLANE_SUB
#define PLANE_SUB 0
#endif
#ifndef PLANE_CENTRED
#define PLANE_CENTRED 0
#endif
#define PLANE_COUNT (8 / PLANE_BITS)

MOTE_INLINE void MOTE_CAT(body_, PLANE_NAME)(MOTE_MATMUL_ARGS, const int n)
{
    _Alignas(64) int8_t arranged[MOTE_DOT_PASS][PLANE_CHUNK];
    _Alignas(64) float sum16[MOTE_DOT_PASS][PLANE_SUB ? PLANE_CHUNK / 16 : 16];
    __m256i centre[MOTE_DOT_PASS][PLANE_CENTRED ? PLANE_CHUNK / 256 * PLANE_BITS : 1];
    const __m256i mask = _mm256_set1_epi8((char)((1 << PLANE_BITS) - 1));
    (void)n_x, (void)sum16, (void)centre;
    for (int64_t begin = 0; begin < w->n_col; begin += PLANE_CHUNK) {
        int64_t end = w->n_col - begin < PLANE_CHUNK ? w->n_col : begin + PLANE_CHUNK;
        const float *scale[MOTE_DOT_PASS], *sum[MOTE_DOT_PASS];
        MOTE_UNROLL for (int i = 0; i < n; i++)
        {
            int64_t at = x_row[i] * x->stride;
            scale[i] = x->scale + at / 32, sum[i] = x->sum32 + at / 32;
            for (int64_t col = begin; col < end; col += 256)
                arrange(x->q + at + col, PLANE_SPLIT ? -PLANE_SPLIT : PLANE_BITS,
                        arranged[i] + (col - begin));
            for (int64_t col = begin; PLANE_SUB && col < end; col += 256)
                sums_of_16(x->sum + (at + col) / 16, x->scale + (at + col) / 32,
                           sum16[i] + (col - begin) / 16);
            for (int64_t col = begin; PLANE_CENTRED && col < end; col += 256)
                less_offset(arranged[i] + (col - begin), PLANE_SPLIT ? -PLANE_SPLIT : PLANE_BITS,
                            PLANE_OFFSET, centre[i] + (col - begin) / 256 * PLANE_BITS);
        }
        for (int64_t nth = 0; nth < n_row; nth++) {
            int64_t r = mote_dot_row(nth, n_row);
            __m256 acc[MOTE_DOT_PASS][2], acc_bias[MOTE_DOT_PASS];
            MOTE_UNROLL for (int i = 0; i < n; i++) acc[i][0] = acc[i][1] = acc_bias[i] = _mm256_setzero_ps();
            for (int64_t col = begin; col < end; col += 256) {
                __m256i v[PLANE_BITS];
                __m256 d[PLANE_SUB ? 2 : 1], bias, by[MOTE_DOT_PASS];
                MOTE_CAT(planes_, PLANE_NAME)(w, row + r, col, v, d, &bias);
                MOTE_UNROLL for (int i = 0; i < n; i++)
                {
                    by[i] = _mm256_loadu_ps(scale[i] + col / 32);
                    if (PLANE_SUB) {
                        const float *part = sum16[i] + (col - begin) / 16;
                        acc_bias[i] = _mm256_fmadd_ps(d[0], _mm256_load_ps(part), acc_bias[i]);
                        acc_bias[i] = _mm256_fmadd_ps(d[PLANE_SUB], _mm256_load_ps(part + 8), acc_bias[i]);
                        continue;
                    }
                    by[i] = _mm256_mul_ps(by[i], d[0]);
                    if (PLANE_CENTRED) by[i] = mote_finite(by[i]);
                    else
                        acc_bias[i] = _mm256_fmadd_ps(PLANE_BIAS ? bias : d[0],
                                                      _mm256_loadu_ps(sum[i] + col / 32), acc_bias[i]);
                }
                MOTE_UNROLL for (int k = 0; k < PLANE_BITS; k++)
                {
                    __m256i run[MOTE_DOT_PASS];
                    MOTE_UNROLL for (int i = 0; i < n; i++) run[i] =
                        PLANE_CENTRED ? centre[i][(col - begin) / 256 * PLANE_BITS + k]
                                      : _mm256_setzero_si256();
                    MOTE_UNROLL for (int p = 0; p < PLANE_COUNT; p++)
                    {
                        __m256i code =
                            PLANE_CODES(_mm256_and_si256(_mm256_srli_epi16(v[k], PLANE_BITS * p), mask));
                        MOTE_UNROLL for (int i = 0; i < n; i++)
                        {
                            const int8_t *q = arranged[i] + (col - begin) +
                                              place(PLANE_SPLIT ? -PLANE_SPLIT : PLANE_BITS, p, k);
                            run[i] = mote_run_add(run[i], code, mote_load_256(q));
                        }
                    }
                    MOTE_UNROLL for (int i = 0; i < n; i++)
                    {
                        __m256 f = _mm256_cvtepi32_ps(mote_run_end(run[i]));
                        __m256 each = block_scales(by[i], PLANE_BITS, k);
                        if (PLANE_SUB) each = _mm256_mul_ps(each, sub_scales(d, k));
                        acc[i][k & 1] = _mm256_fmadd_ps(f, each, acc[i][k & 1]);
                    }
                }
            }
            MOTE_UNROLL for (int i = 0; i < n; i++)
            {
                __m256 total = PLANE_BITS == 1 ? acc[i][0] : _mm256_add_ps(acc[i][0], acc[i][1]);
                if (PLANE_UNIT != 1) total = _mm256_mul_ps(total, _mm256_set1_ps(PLANE_UNIT));
                if (!PLANE_CENTRED)
                    total =
                        _mm256_fmadd_ps(_mm256_set1_ps(PLANE_BIAS ? 1 : -PLANE_OFFSET), acc_bias[i], total);
                float *out = y + i * y_stride + r, value = mote_hsum(total) * w->factor;
                *out = begin ? *out + value : value;
            }
        }
    }
}

MOTE_DOT_DEFINE(MOTE_CAT(dot_, PLANE_NAME), MOTE_CAT(body_, PLANE_NAME))

static void MOTE_CAT(unpack_, PLANE_NAME)(const struct mote_matrix *w, int64_t row, int64_t col,
                                          uint8_t *code, float *scale, float *bias)
{
#if PLANE_SUB
    MOTE_CAT(rows_, PLANE_NAME)(w, row, col, code, scale);
    MOTE_UNROLL for (int g = 0; g < 16; g += 8)
        _mm256_store_ps(scale + g, _mm256_mul_ps(_mm256_load_ps(scale + g), _mm256_set1_ps(w->factor)));
    (void)bias;
#else
    struct mote_tile32 t;
    MOTE_CAT(tile_, PLANE_NAME)(w, row, col, &t);
    MOTE_UNROLL for (int k = 0; k < 8; k++)
        mote_store_256(code + 32 * k, PLANE_UNIT == 2 ? _mm256_add_epi8(t.code[k], t.code[k]) : t.code[k]);
    __m256 factor = _mm256_set1_ps(w->factor);
    _mm256_store_ps(scale, _mm256_mul_ps(t.d, factor));
    if (PLANE_BIAS) _mm256_store_ps(bias, _mm256_mul_ps(t.bias, factor));
#endif
}

static void MOTE_CAT(gemm_, PLANE_NAME)(MOTE_MATMUL_ARGS)
{
    static const struct mote_unpack unpack = {
        .unpack = MOTE_CAT(unpack_, PLANE_NAME),
        .group = PLANE_SUB ? 16 : 32,
        .max_code = PLANE_UNIT * PLANE_MAX_CODE,
        .has_bias = PLANE_BIAS,
        .offset = PLANE_OFFSET,
    };
    MOTE_GEMM(&unpack, MOTE_MATMUL_PASS);
}

#undef PLANE_NAME
#undef PLANE_BITS
#undef PLANE_SPLIT
#undef PLANE_CODES
#undef PLANE_MAX_CODE
#undef PLANE_BIAS
#undef PLANE_UNIT
#undef PLANE_OFFSET
#undef PLANE_SUB
#undef PLANE_COUNT
#undef PLANE_CENTRED
