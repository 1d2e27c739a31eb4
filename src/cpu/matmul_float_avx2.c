/* matmul_float_avx2.c: products with float activations on AVX2, and the quantisation of activations.
 *
 * Owns: F32 x every format: numbers are multiplied where they lie; blocks are decoded to floats a tile at a time
 * (quant/decode.h), once for all rows of activations.
 * One idea: both sides are contiguous along columns, so a block of rows x activation rows is kept as vectors of 8
 * partial sums and reduced at the end of a tile; nothing is repacked.
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include <string.h>

#include "cpu/gemm.h"
#include "cpu/simd_x86.h"
#include "quant/decode.h"

enum {
    DOT_TILE = 2048,  /* columns decoded at once for dot */
    GEMM_TILE = 512,  /* columns of a gemm tile */
    GEMM_ROWS = 4,    /* weight rows of a gemm tile */
    GEMM_ACTS = 3,    /* activation rows multiplied at once: 4 x 3 sums fill the registers */
    GEMM_BLOCK = 128, /* activation rows for which a tile is decoded: their tile fits a second-level cache */
};

MOTE_INLINE __m256 load_8(const int format, const uint8_t *p)
{
    if (format == MOTE_FORMAT_F16) return _mm256_cvtph_ps(mote_load_128(p));
    if (format == MOTE_FORMAT_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(mote_load_128(p)), 16));
    return _mm256_castsi256_ps(mote_load_256(p));
}

/* y[i * y_stride + r] (+)= factor * sum over n columns; two chains of 8 sums per value, whatever n_r and n_x. */
MOTE_INLINE void dot_rows(const int format, const uint8_t *const *w, const int n_r, const float *const *x,
                          const int n_x, int64_t n, float factor, int add, float *y, int64_t y_stride)
{
    const int size = format == MOTE_FORMAT_F32 ? 4 : 2;
    __m256 acc[4][4][2];
    MOTE_UNROLL for (int r = 0; r < n_r; r++) MOTE_UNROLL for (int i = 0; i < n_x; i++) acc[r][i][0] =
        acc[r][i][1] = _mm256_setzero_ps();
    int64_t c = 0;
    for (; c + 16 <= n; c += 16) {
        MOTE_UNROLL for (int r = 0; r < n_r; r++)
        {
            __m256 w0 = load_8(format, w[r] + c * size), w1 = load_8(format, w[r] + (c + 8) * size);
            MOTE_UNROLL for (int i = 0; i < n_x; i++)
            {
                acc[r][i][0] = _mm256_fmadd_ps(w0, _mm256_loadu_ps(x[i] + c), acc[r][i][0]);
                acc[r][i][1] = _mm256_fmadd_ps(w1, _mm256_loadu_ps(x[i] + c + 8), acc[r][i][1]);
            }
        }
    }
    if (c < n) {
        uint8_t wide[64] = {0};
        float x_wide[4][16] = {{0}};
        MOTE_UNROLL for (int i = 0; i < n_x; i++)
            memcpy(x_wide[i], x[i] + c, (size_t)(n - c) * sizeof(float));
        MOTE_UNROLL for (int r = 0; r < n_r; r++)
        {
            memcpy(wide, w[r] + c * size, (size_t)(n - c) * (size_t)size);
            __m256 w0 = load_8(format, wide), w1 = load_8(format, wide + 8 * size);
            MOTE_UNROLL for (int i = 0; i < n_x; i++)
            {
                acc[r][i][0] = _mm256_fmadd_ps(w0, _mm256_loadu_ps(x_wide[i]), acc[r][i][0]);
                acc[r][i][1] = _mm256_fmadd_ps(w1, _mm256_loadu_ps(x_wide[i] + 8), acc[r][i][1]);
            }
        }
    }
    MOTE_UNROLL for (int r = 0; r < n_r; r++) MOTE_UNROLL for (int i = 0; i < n_x; i++)
    {
        float *out = y + i * y_stride + r;
        float sum = mote_hsum(_mm256_add_ps(acc[r][i][0], acc[r][i][1])) * factor;
        *out = add ? *out + sum : sum;
    }
}

/* n_x is 1..4; more rows at once where there is register room. */
MOTE_INLINE void dot_numbers(const int format, MOTE_MATMUL_ARGS)
{
    const float *act[MOTE_DOT_ROWS];
    for (int i = 0; i < n_x; i++) act[i] = x->x + (x_row ? x_row[i] : i) * x->n_col;
    for (int64_t r = 0; r < n_row;) {
        const uint8_t *at[4];
        for (int k = 0; k < 4; k++)
            at[k] = w->data + (size_t)(row + (r + k < n_row ? r + k : r)) * w->row_bytes;
        int step = n_x == 1 && n_row - r >= 4 ? 4 : n_x <= 2 && n_row - r >= 2 ? 2 : 1;
        if (step == 4) dot_rows(format, at, 4, act, 1, w->n_col, w->factor, 0, y + r, y_stride);
        else if (step == 2 && n_x == 1)
            dot_rows(format, at, 2, act, 1, w->n_col, w->factor, 0, y + r, y_stride);
        else if (step == 2) dot_rows(format, at, 2, act, 2, w->n_col, w->factor, 0, y + r, y_stride);
        else
            for (int i = 0; i < n_x; i += 4) {
                float *out = y + i * y_stride + r;
                switch (n_x - i) {
                case 1: dot_rows(format, at, 1, act + i, 1, w->n_col, w->factor, 0, out, y_stride); break;
                case 2: dot_rows(format, at, 1, act + i, 2, w->n_col, w->factor, 0, out, y_stride); break;
                case 3: dot_rows(format, at, 1, act + i, 3, w->n_col, w->factor, 0, out, y_stride); break;
                default: dot_rows(format, at, 1, act + i, 4, w->n_col, w->factor, 0, out, y_stride); break;
                }
            }
        r += step;
    }
}

static void dot_f32(MOTE_MATMUL_ARGS)
{
    dot_numbers(MOTE_FORMAT_F32, MOTE_MATMUL_PASS);
}
static void dot_f16(MOTE_MATMUL_ARGS)
{
    dot_numbers(MOTE_FORMAT_F16, MOTE_MATMUL_PASS);
}
static void dot_bf16(MOTE_MATMUL_ARGS)
{
    dot_numbers(MOTE_FORMAT_BF16, MOTE_MATMUL_PASS);
}

/* Decoded weights contain w's factor already. */
static void dot_decoded(MOTE_MATMUL_ARGS)
{
    _Alignas(64) float tile[DOT_TILE];
    const uint8_t *at = (const uint8_t *)tile;
    for (int64_t r = 0; r < n_row; r++) {
        for (int64_t col = 0; col < w->n_col; col += DOT_TILE) {
            int64_t n = w->n_col - col < DOT_TILE ? w->n_col - col : DOT_TILE;
            mote_decode(w, row + r, col, n, tile);
            for (int i = 0; i < n_x; i++) {
                const float *act = x->x + (x_row ? x_row[i] : i) * x->n_col + col;
                dot_rows(MOTE_FORMAT_F32, &at, 1, &act, 1, n, 1, col > 0, y + i * y_stride + r, y_stride);
            }
        }
    }
}

/* ---- gemm ---- */

/* Weights [col, col + n) of a row as floats: in place if they are, else in `buffer`. */
static const float *floats_of(const struct mote_matrix *w, int64_t row, int64_t col, int64_t n, float *buffer)
{
    const uint8_t *at = w->data + (size_t)row * w->row_bytes;
    int64_t c = 0;
    switch (w->format) {
    case MOTE_FORMAT_F32:
        at += 4 * col;
        if ((uintptr_t)at % sizeof(float) == 0) return (const float *)(const void *)at;
        memcpy(buffer, at, (size_t)n * sizeof(float));
        return buffer;
    case MOTE_FORMAT_F16:
        for (at += 2 * col; c + 8 <= n; c += 8)
            _mm256_storeu_ps(buffer + c, load_8(MOTE_FORMAT_F16, at + 2 * c));
        for (; c < n; c++) buffer[c] = mote_f16_load(at + 2 * c);
        return buffer;
    case MOTE_FORMAT_BF16:
        for (at += 2 * col; c + 8 <= n; c += 8)
            _mm256_storeu_ps(buffer + c, load_8(MOTE_FORMAT_BF16, at + 2 * c));
        for (; c < n; c++) buffer[c] = mote_bf16_f32(mote_load_u16(at + 2 * c));
        return buffer;
    default: mote_decode(w, row, col, n, buffer); return buffer;
    }
}

/* 4 weight rows x n_x (1..3) activation rows over n columns: out[i] = 4 sums. */
MOTE_INLINE void block_product(const float *const w[GEMM_ROWS], const float *const *x, const int n_x,
                               int64_t n, __m128 *out)
{
    __m256 acc[GEMM_ACTS][GEMM_ROWS];
    MOTE_UNROLL for (int i = 0; i < n_x; i++) MOTE_UNROLL for (int r = 0; r < GEMM_ROWS; r++) acc[i][r] =
        _mm256_setzero_ps();
    int64_t c = 0;
    for (; c + 8 <= n; c += 8) {
        __m256 v[GEMM_ACTS];
        MOTE_UNROLL for (int i = 0; i < n_x; i++) v[i] = _mm256_loadu_ps(x[i] + c);
        MOTE_UNROLL for (int r = 0; r < GEMM_ROWS; r++)
        {
            __m256 a = _mm256_loadu_ps(w[r] + c);
            MOTE_UNROLL for (int i = 0; i < n_x; i++) acc[i][r] = _mm256_fmadd_ps(a, v[i], acc[i][r]);
        }
    }
    if (c < n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n - c)), lane);
        MOTE_UNROLL for (int r = 0; r < GEMM_ROWS; r++)
        {
            __m256 a = _mm256_maskload_ps(w[r] + c, mask);
            MOTE_UNROLL for (int i = 0; i < n_x; i++) acc[i][r] =
                _mm256_fmadd_ps(a, _mm256_maskload_ps(x[i] + c, mask), acc[i][r]);
        }
    }
    MOTE_UNROLL for (int i = 0; i < n_x; i++)
    {
        __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(acc[i][0], acc[i][1]), _mm256_hadd_ps(acc[i][2], acc[i][3]));
        out[i] = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    }
}

static void gemm_float(MOTE_MATMUL_ARGS)
{
    _Alignas(64) float buffer[GEMM_ROWS][GEMM_TILE];
    int is_plain = mote_format_traits(w->format)->family == MOTE_FAMILY_PLAIN;
    __m128 factor = _mm_set1_ps(is_plain ? w->factor : 1);
    for (int64_t first = 0; first < n_x; first += GEMM_BLOCK) {
        int64_t last = first + GEMM_BLOCK < n_x ? first + GEMM_BLOCK : n_x;
        for (int64_t col = 0; col < w->n_col; col += GEMM_TILE) {
            int64_t n = w->n_col - col < GEMM_TILE ? w->n_col - col : GEMM_TILE;
            for (int64_t r = 0; r < n_row; r += GEMM_ROWS) {
                int n_r = (int)(n_row - r < GEMM_ROWS ? n_row - r : GEMM_ROWS);
                const float *tile[GEMM_ROWS];
                for (int k = 0; k < GEMM_ROWS; k++)
                    tile[k] = k < n_r ? floats_of(w, row + r + k, col, n, buffer[k]) : tile[n_r - 1];
                for (int64_t i = first; i < last; i += GEMM_ACTS) {
                    int n_i = (int)(last - i < GEMM_ACTS ? last - i : GEMM_ACTS);
                    const float *act[GEMM_ACTS];
                    __m128 sum[GEMM_ACTS];
                    for (int k = 0; k < n_i; k++)
                        act[k] = x->x + (x_row ? x_row[i + k] : i + k) * x->n_col + col;
                    if (n_i == 3) block_product(tile, act, 3, n, sum);
                    else if (n_i == 2) block_product(tile, act, 2, n, sum);
                    else block_product(tile, act, 1, n, sum);
                    for (int k = 0; k < n_i; k++) {
                        float value[GEMM_ROWS], *out = y + (i + k) * y_stride + r;
                        _mm_storeu_ps(value, _mm_mul_ps(sum[k], factor));
                        for (int j = 0; j < n_r; j++) out[j] = col ? out[j] + value[j] : value[j];
                    }
                }
            }
        }
    }
}

/* ---- quantisation: bit-equal to matmul_scalar.c, whose comments say why ---- */

MOTE_INLINE __m256i magnitude_bits(const float *x)
{
    return _mm256_and_si256(mote_load_256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

MOTE_INLINE uint32_t max_u31(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

/* 32 codes and their two sums of 16. */
MOTE_INLINE void quantise_32(const float *x, __m256 inverse, int8_t *q, int16_t sum[2])
{
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), inverse));
    __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), inverse));
    sum[0] = (int16_t)mote_hsum_i32(_mm256_add_epi32(a, b));
    sum[1] = (int16_t)mote_hsum_i32(_mm256_add_epi32(c, d));
    __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    mote_store_256(q, _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

/* A scale from the bits of the largest magnitude; *inverse is 0 when all codes are to be 0 (and never times a
 * NaN or infinity: *inverse is 0 and *poison set then). */
MOTE_INLINE float scale_of(uint32_t bits, float *inverse, int *poison)
{
    float amax = mote_bits_f32(bits);
    *poison = bits >= 0x7F800000u;
    *inverse = *poison || amax < 0x1p-100f ? 0 : 127.0f / amax;
    if (*poison) return mote_bits_f32(0x7FC00000u);
    return *inverse > 0 ? amax / 127.0f : 0;
}

static void quantise(const float *x, int64_t row, int64_t n_row, struct mote_act *act)
{
    static const float zeros[32] = {0};
    if (act->type == MOTE_ACT_F32) return;
    if (act->type == MOTE_ACT_MXFP4) {
        mote_act_to_mxfp4(x, row, n_row, act);
        return;
    }
    const int is_32 = act->type == MOTE_ACT_I8_32, per_scale = is_32 ? 1 : 8;
    for (int64_t i = row; i < row + n_row; i++) {
        for (int64_t col = 0; col < act->stride; col += 256) {
            const float *from = x + i * act->n_col + (col < act->n_col ? col : 0);
            int64_t at = i * act->stride + col, left = act->n_col - col;
            float padded[256];
            if (left < 256) {
                memset(padded, 0, sizeof padded);
                if (left > 0) memcpy(padded, from, (size_t)left * sizeof(float));
                from = padded;
            }
            for (int k = 0; k < 8; k += per_scale) {
                __m256i most = _mm256_setzero_si256();
                for (int c = 0; c < 32 * per_scale; c += 8)
                    most = _mm256_max_epi32(most, magnitude_bits(from + 32 * k + c));
                float inverse;
                int poison;
                float scale = scale_of(max_u31(most), &inverse, &poison);
                act->scale[at / (32 * per_scale) + k / per_scale] = scale;
                for (int j = k; j < k + per_scale; j++) {
                    int16_t *sum = act->sum + at / 16 + 2 * j;
                    quantise_32(poison ? zeros : from + 32 * j, _mm256_set1_ps(inverse), act->q + at + 32 * j,
                                sum);
                    if (is_32) act->sum32[at / 32 + j] = scale * (float)(sum[0] + sum[1]);
                }
            }
        }
    }
}

void mote_matmul_float_avx2_fill(struct mote_cpu_kernels *table)
{
    mote_matmul_fn **dot = table->dot[MOTE_ACT_F32], **gemm = table->gemm[MOTE_ACT_F32];
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (mote_format_traits((enum mote_format)f)->family == MOTE_FAMILY_OTHER) continue;
        dot[f] = dot_decoded;
        gemm[f] = gemm_float;
    }
    dot[MOTE_FORMAT_F32] = dot_f32;
    dot[MOTE_FORMAT_F16] = dot_f16;
    dot[MOTE_FORMAT_BF16] = dot_bf16;
    table->quantise = quantise;
}

#else

void mote_matmul_float_avx2_fill(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
