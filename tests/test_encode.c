/* test_encode.c: encoders against reference bytes and reference errors (tests/golden/gen_encode.py), and by
 * properties: exact on ternary rows, zero stays zero, nothing decodes to NaN, importance does what it should, every
 * instruction set writes the same bytes, every bad argument is refused by name. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "base/mem.h"
#include "quant/decode.h"
#include "quant/encode.h"

#include "golden/encode_golden.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- rows: the same bits as gen_encode.py makes ---- */

static uint64_t random_bits(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double bell(uint64_t seed, uint64_t i)
{
    double sum = 0;
    for (uint64_t k = 0; k < 12; k++) sum += (double)(random_bits(seed, 12 * i + k) >> 40);
    return (sum - 6 * 0x1p24) / 0x1p24;
}

static struct {
    float *x; /* [n_row][n_col] */
    int n_row, n_col;
} rows[GOLDEN_ROWS];
static float importance[N_COL];

static int load_fable(void)
{
    FILE *file = fopen("../shared/models/fable/model-00001-of-00002.safetensors", "rb");
    if (!file) return -1;
    size_t n = (size_t)FABLE_ROW * FABLE_COL;
    uint16_t *bits = malloc(n * sizeof *bits);
    int ok = bits && !fseek(file, fable_offset, SEEK_SET) && fread(bits, sizeof *bits, n, file) == n;
    if (ok) {
        rows[FABLE].x = malloc(n * sizeof(float));
        rows[FABLE].n_row = FABLE_ROW;
        rows[FABLE].n_col = FABLE_COL;
        for (size_t i = 0; i < n; i++) rows[FABLE].x[i] = mote_bf16_f32(bits[i]);
    }
    free(bits);
    fclose(file);
    return ok ? 0 : -1;
}

static int make_rows(void **state)
{
    (void)state;
    const size_t n = (size_t)N_ROW * N_COL;
    for (int kind = GAUSS; kind <= STUDENT; kind++) {
        rows[kind].x = malloc(n * sizeof(float));
        rows[kind].n_row = N_ROW;
        rows[kind].n_col = N_COL;
        if (!rows[kind].x) return -1;
    }
    for (uint64_t i = 0; i < n; i++) {
        rows[GAUSS].x[i] = (float)(bell(1, i) / 64);
        double square = 0;
        for (uint64_t k = 0; k < 4; k++) square += bell(3 + k, i) * bell(3 + k, i);
        rows[STUDENT].x[i] = (float)(bell(2, i) / sqrt(square / 4) / 64);
    }
    for (uint64_t i = 0; i < N_COL; i++) {
        double b = bell(9, i);
        importance[i] = (float)(b * b * b * b + 1.0 / 64);
    }
    if (load_fable()) print_message("../shared/models/fable is not there: its rows are left out\n");
    return 0;
}

static int free_rows(void **state)
{
    (void)state;
    for (int kind = 0; kind < GOLDEN_ROWS; kind++) free(rows[kind].x);
    return mote_mem_global_total() != 0;
}

static uint64_t fnv(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return hash;
}
#define FNV_START 0xCBF29CE484222325u

/* Encoded rows in memory that ends where they do, so that the sanitizers see a byte too many. */
static uint8_t *encode(enum mote_format format, const float *x, int64_t n_row, int64_t n_col, const float *v)
{
    size_t size = mote_format_row_bytes(format, n_col) * (size_t)n_row;
    uint8_t *out = malloc(size);
    assert_non_null(out);
    memset(out, 0xA5, size);
    mote_status status = mote_encode(format, x, n_row, n_col, v, out);
    if (status) print_error("%s: %s\n", mote_format_traits(format)->name, mote_error());
    assert_int_equal(status, MOTE_OK);
    return out;
}

static float *decode(enum mote_format format, const uint8_t *blocks, int64_t n)
{
    float *y = malloc((size_t)n * sizeof *y);
    assert_non_null(y);
    mote_decode_blocks(format, blocks, n / mote_format_traits(format)->block_elems, y);
    return y;
}

/* Mean of v[c] (x - x')^2 after encoding with `v_encode`. */
static double round_trip(enum mote_format format, const float *x, int64_t n_row, int64_t n_col,
                         const float *v_encode, const float *v)
{
    uint8_t *blocks = encode(format, x, n_row, n_col, v_encode);
    float *y = decode(format, blocks, n_row * n_col);
    double sum = 0;
    for (int64_t i = 0; i < n_row * n_col; i++) {
        double delta = (double)y[i] - (double)x[i];
        sum += (v ? (double)v[i % n_col] : 1) * delta * delta;
    }
    free(blocks);
    free(y);
    return sum / (double)(n_row * n_col);
}

/* ---- against the references ---- */

static void bytes_equal_reference(void **state)
{
    (void)state;
    for (size_t g = 0; g < COUNT(golden_bytes); g++)
        for (int kind = 0; kind < GOLDEN_ROWS; kind++) {
            if (!rows[kind].x) continue;
            enum mote_format format = golden_bytes[g].format;
            size_t size = mote_format_row_bytes(format, rows[kind].n_col) * (size_t)rows[kind].n_row;
            uint8_t *blocks = encode(format, rows[kind].x, rows[kind].n_row, rows[kind].n_col, NULL);
            if (fnv(FNV_START, blocks, size) != golden_bytes[g].hash[kind])
                fail_msg("%s, rows %d: not the reference's bytes", mote_format_traits(format)->name, kind);
            free(blocks);
        }
}

static float stored(enum mote_format format, float x)
{
    if (format == MOTE_FORMAT_F16) return mote_f16_f32(mote_f32_f16(x));
    return format == MOTE_FORMAT_BF16 ? mote_bf16_f32(mote_f32_bf16(x)) : x;
}

static void affine_equals_reference(void **state)
{
    (void)state;
    for (size_t g = 0; g < COUNT(golden_affine); g++)
        for (int kind = 0; kind < GOLDEN_ROWS; kind++) {
            if (!rows[kind].x) continue;
            const int n_row = rows[kind].n_row, n_col = rows[kind].n_col, bits = golden_affine[g].bits;
            enum mote_format format = golden_affine[g].scale_format;
            size_t n = (size_t)n_row * (size_t)n_col, code_bytes = n / 8 * (size_t)bits;
            size_t scale_bytes = n / (size_t)golden_affine[g].group * (format == MOTE_FORMAT_F32 ? 4 : 2);
            float *x = malloc(n * sizeof *x);
            uint8_t *codes = malloc(code_bytes), *scale = malloc(scale_bytes), *bias = malloc(scale_bytes);
            for (size_t i = 0; i < n; i++) x[i] = stored(format, rows[kind].x[i]);
            assert_int_equal(
                mote_encode_affine(bits, golden_affine[g].group, format, x, n_row, n_col, codes, scale, bias),
                0);
            uint64_t hash =
                fnv(fnv(fnv(FNV_START, codes, code_bytes), scale, scale_bytes), bias, scale_bytes);
            if (hash != golden_affine[g].hash[kind])
                fail_msg("affine %d bits, group %d, scales %s, rows %d: not the reference's bytes", bits,
                         golden_affine[g].group, mote_format_traits(format)->name, kind);
            free(x);
            free(codes);
            free(scale);
            free(bias);
        }
}

/* Never more than 2 % above ggml's error, plain and weighted. */
static void error_within_reference(void **state)
{
    (void)state;
    for (size_t g = 0; g < COUNT(golden_error); g++)
        for (int kind = 0; kind < GOLDEN_ROWS; kind++) {
            if (!rows[kind].x) continue;
            enum mote_format format = golden_error[g].format;
            const float *x = rows[kind].x;
            const int n_row = rows[kind].n_row, n_col = rows[kind].n_col;
            double plain = round_trip(format, x, n_row, n_col, NULL, NULL) / golden_error[g].plain[kind];
            double weighted =
                round_trip(format, x, n_row, n_col, importance, importance) / golden_error[g].weighted[kind];
            if (plain > 1.02 || weighted > 1.02)
                fail_msg("%s, rows %d: error is %.4f (plain), %.4f (weighted) of ggml's",
                         mote_format_traits(format)->name, kind, plain, weighted);
        }
}

/* Normalised error (mean square error / mean square) on the bell-shaped rows, plain; and weighted with importance.
 * Budgets are what was measured, rounded up in the third digit: they only ever tighten. */
static const struct {
    enum mote_format format;
    double plain, weighted;
} budgets[] = {
    {MOTE_FORMAT_F16, 4.29e-08, 4.18e-08},     {MOTE_FORMAT_BF16, 2.77e-06, 2.81e-06},
    {MOTE_FORMAT_Q4_0, 7.17e-03, 3.57e-03},    {MOTE_FORMAT_Q4_1, 5.98e-03, 2.23e-03},
    {MOTE_FORMAT_Q5_0, 1.77e-03, 8.94e-04},    {MOTE_FORMAT_Q5_1, 1.40e-03, 5.08e-04},
    {MOTE_FORMAT_Q8_0, 2.79e-05, 2.77e-05},    {MOTE_FORMAT_Q2_K, 6.66e-02, 2.54e-02},
    {MOTE_FORMAT_Q3_K, 2.00e-02, 9.86e-03},    {MOTE_FORMAT_Q4_K, 4.81e-03, 2.29e-03},
    {MOTE_FORMAT_Q5_K, 1.16e-03, 5.74e-04},    {MOTE_FORMAT_Q6_K, 2.98e-04, 1.58e-04},
    {MOTE_FORMAT_IQ2_XXS, 1.07e-01, 3.32e-02}, {MOTE_FORMAT_IQ3_XXS, 3.12e-02, 6.92e-03},
    {MOTE_FORMAT_IQ4_NL, 5.28e-03, 2.57e-03},  {MOTE_FORMAT_IQ4_XS, 5.36e-03, 2.67e-03},
    {MOTE_FORMAT_TQ1_0, 6.26e-01, 1.74e-01},   {MOTE_FORMAT_TQ2_0, 6.26e-01, 1.74e-01},
    {MOTE_FORMAT_MXFP4, 1.33e-02, 1.21e-02},   {MOTE_FORMAT_NVFP4, 1.19e-02, 4.70e-03},
    {MOTE_FORMAT_Q1_0, 3.56e-01, 3.28e-01},    {MOTE_FORMAT_Q2_0, 5.04e-01, 1.26e-01},
    {MOTE_FORMAT_PQ2_0, 5.71e-01, 1.40e-01},   {MOTE_FORMAT_PTQ1_0, 5.71e-01, 1.62e-01},
};

static void error_within_budget(void **state)
{
    (void)state;
    const float *x = rows[GAUSS].x;
    double power = 0, weighted_power = 0;
    for (int i = 0; i < N_ROW * N_COL; i++) {
        double square = (double)x[i] * (double)x[i];
        power += square;
        weighted_power += square * (double)importance[i % N_COL];
    }
    power /= N_ROW * N_COL;
    weighted_power /= N_ROW * N_COL;
    int bad = 0;
    for (size_t b = 0; b < COUNT(budgets); b++) {
        enum mote_format format = budgets[b].format;
        double plain = round_trip(format, x, N_ROW, N_COL, NULL, NULL) / power;
        double weighted = round_trip(format, x, N_ROW, N_COL, importance, importance) / weighted_power;
        if (plain <= budgets[b].plain && weighted <= budgets[b].weighted) continue;
        print_error("%s: error %.4e plain, %.4e weighted; budget %.4e, %.4e\n",
                    mote_format_traits(format)->name, plain, weighted, budgets[b].plain, budgets[b].weighted);
        bad++;
    }
    assert_int_equal(bad, 0);
}

/* ---- properties of every format ---- */

static void every_format_is_listed(void **state)
{
    (void)state;
    static const enum mote_format none[] = {MOTE_FORMAT_IQ1_S, MOTE_FORMAT_IQ1_M,     MOTE_FORMAT_IQ2_XS,
                                            MOTE_FORMAT_IQ2_S, MOTE_FORMAT_IQ3_S,     MOTE_FORMAT_MLX_MXFP4,
                                            MOTE_FORMAT_I8,    MOTE_FORMAT_MLX_NVFP4, MOTE_FORMAT_MLX_MXFP8,
                                            MOTE_FORMAT_F64,   MOTE_FORMAT_I16,       MOTE_FORMAT_I32,
                                            MOTE_FORMAT_I64};
    int n_can = 0;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) n_can += mote_can_encode((enum mote_format)f);
    for (size_t i = 0; i < COUNT(none); i++) {
        assert_false(mote_can_encode(none[i]));
        assert_false(mote_encode_uses_importance(none[i]));
    }
    assert_int_equal(n_can + (int)COUNT(none), MOTE_FORMAT_COUNT);
    assert_false(mote_can_encode(MOTE_FORMAT_COUNT));
}

/* Formats that mote_encode (not the affine call) takes. */
static int is_encoded(int f)
{
    return mote_can_encode((enum mote_format)f) &&
           mote_format_traits((enum mote_format)f)->family != MOTE_FAMILY_PLANAR;
}

static void instruction_sets_agree(void **state)
{
    (void)state;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (!is_encoded(f)) continue;
        enum mote_format format = (enum mote_format)f;
        for (int kind = GAUSS; kind <= STUDENT; kind++)
            for (int weighted = 0; weighted < 2; weighted++) {
                const float *v = weighted ? importance : NULL;
                size_t size = mote_format_row_bytes(format, N_COL) * 4;
                uint8_t *best = encode(format, rows[kind].x, 4, N_COL, v);
                setenv("MOTE_CPU", "scalar", 1);
                uint8_t *portable = encode(format, rows[kind].x, 4, N_COL, v);
                unsetenv("MOTE_CPU");
                if (memcmp(best, portable, size))
                    fail_msg("%s: the portable copy writes other bytes", mote_format_traits(format)->name);
                free(best);
                free(portable);
            }
    }
    setenv("MOTE_CPU", "abacus", 1);
    uint8_t out[18];
    assert_int_equal(mote_encode(MOTE_FORMAT_Q4_0, rows[GAUSS].x, 1, 32, NULL, out), MOTE_ARGUMENT);
    unsetenv("MOTE_CPU");
}

/* A row does not depend on the rows before it. */
static void rows_are_independent(void **state)
{
    (void)state;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (!is_encoded(f)) continue;
        enum mote_format format = (enum mote_format)f;
        size_t row_bytes = mote_format_row_bytes(format, N_COL);
        uint8_t *all = encode(format, rows[STUDENT].x, 4, N_COL, importance);
        for (int row = 0; row < 4; row++) {
            uint8_t *one = encode(format, rows[STUDENT].x + row * N_COL, 1, N_COL, importance);
            assert_memory_equal(one, all + (size_t)row * row_bytes, row_bytes);
            free(one);
        }
        free(all);
    }
}

static void importance_does_what_it_should(void **state)
{
    (void)state;
    static float zero[N_COL], scaled[N_COL];
    for (int i = 0; i < N_COL; i++) scaled[i] = importance[i] * 0x1p40f;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (!is_encoded(f)) continue;
        enum mote_format format = (enum mote_format)f;
        const char *name = mote_format_traits(format)->name;
        size_t size = mote_format_row_bytes(format, N_COL) * 4;
        const float *x = rows[STUDENT].x;
        uint8_t *plain = encode(format, x, 4, N_COL, NULL), *none = encode(format, x, 4, N_COL, zero);
        uint8_t *with = encode(format, x, 4, N_COL, importance), *more = encode(format, x, 4, N_COL, scaled);
        assert_memory_equal(plain, none, size);
        if (memcmp(with, more, size)) fail_msg("%s: the unit of importance matters", name);
        double before = round_trip(format, x, 4, N_COL, NULL, importance);
        double after = round_trip(format, x, 4, N_COL, importance, importance);
        if (mote_encode_uses_importance(format)) {
            if (after > 0.98 * before)
                fail_msg("%s: weighted error %g with, %g without", name, after, before);
        } else {
            assert_memory_equal(plain, with, size);
        }
        free(plain);
        free(none);
        free(with);
        free(more);
    }
}

/* Only some columns of a block count, down to a single one: no division by a zero sum, that column comes out well. */
static void sparse_importance(void **state)
{
    (void)state;
    static float v[512];
    v[3] = 1e-30f;
    v[300] = 1e30f;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (!is_encoded(f)) continue;
        enum mote_format format = (enum mote_format)f;
        uint8_t *blocks = encode(format, rows[GAUSS].x, 1, 512, v);
        float *y = decode(format, blocks, 512);
        for (int i = 0; i < 512; i++) assert_true(fabsf(y[i]) < 1);
        if (mote_encode_uses_importance(format)) {
            double x = (double)rows[GAUSS].x[300], delta = (double)y[300] - x;
            /* e2m1 is coarse, and so are its scales */
            if (fabs(delta) >
                (format == MOTE_FORMAT_MXFP4 || format == MOTE_FORMAT_NVFP4 ? 0.2 : 0.05) * fabs(x))
                fail_msg("%s: the column that counts is %g, was %g", mote_format_traits(format)->name,
                         (double)y[300], x);
        }
        free(blocks);
        free(y);
    }
}

static void ternary_rows_survive(void **state)
{
    (void)state;
    static const enum mote_format formats[] = {MOTE_FORMAT_TQ1_0, MOTE_FORMAT_TQ2_0, MOTE_FORMAT_Q2_0,
                                               MOTE_FORMAT_PQ2_0, MOTE_FORMAT_PTQ1_0};
    enum { N = 1024 };
    static float x[N], v[N];
    for (uint64_t round = 0; round < 200; round++) {
        float s = (float)exp(bell(50, round) * 1.5);
        s = round % 2 ? mote_f16_f32(mote_f32_f16(s)) : mote_bf16_f32(mote_f32_bf16(s));
        for (uint64_t i = 0; i < N; i++) {
            x[i] = s * (float)((int)(random_bits(60 + round, i) % 3) - 1);
            v[i] = importance[random_bits(61 + round, i) % N_COL];
        }
        if (round % 5 == 0) memset(x + 256, 0, 256 * sizeof *x);
        for (size_t f = 0; f < COUNT(formats); f++)
            for (int weighted = 0; weighted < 2; weighted++) {
                uint8_t *blocks = encode(formats[f], x, 1, N, weighted ? v : NULL);
                float *y = decode(formats[f], blocks, N);
                for (int i = 0; i < N; i++)
                    if (y[i] != x[i])
                        fail_msg("%s: %.9g became %.9g (scale %.9g)", mote_format_traits(formats[f])->name,
                                 (double)x[i], (double)y[i], (double)s);
                free(blocks);
                free(y);
            }
    }
}

/* Zero blocks next to others, denormals, the largest floats, one spike, constants: finite, and zero stays zero. */
static void extreme_values(void **state)
{
    (void)state;
    enum { N = 1024 };
    static float x[N];
    for (int which = 0; which < 9; which++) {
        static const float size[9] = {0, 1, 1e-40f, 1e-20f, 6e-8f, 1e5f, 1e30f, 3.4e38f, 0.01f};
        for (uint64_t i = 0; i < N; i++) {
            float r = (float)(random_bits(7, i) >> 40) * 0x1p-23f - 1;
            int zero_block = i >= 256 && i < 512;
            x[i] = zero_block   ? 0
                   : which == 8 ? size[8]
                   : which == 1 ? (i % 512 == 9 ? 1.0f : 0)
                                : r * size[which];
        }
        for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
            if (!is_encoded(f)) continue;
            for (int weighted = 0; weighted < 2; weighted++) {
                enum mote_format format = (enum mote_format)f;
                const char *name = mote_format_traits(format)->name;
                uint8_t *blocks = encode(format, x, 1, N, weighted ? importance : NULL);
                float *y = decode(format, blocks, N);
                for (int i = 0; i < N; i++) {
                    if (!isfinite(y[i]))
                        fail_msg("%s, case %d: %g became %g", name, which, (double)x[i], (double)y[i]);
                    if (i >= 256 && i < 512 && y[i] != 0)
                        fail_msg("%s: a zero block became %g", name, (double)y[i]);
                    /* clamped scales still point the right way; no block overshoots its largest value by much */
                    if (fabsf(y[i]) > 2 * fabsf(size[which]) + 1e-7f)
                        fail_msg("%s, case %d: %g became %g", name, which, (double)x[i], (double)y[i]);
                }
                if (which == 8 && !weighted)
                    for (int i = 0; i < 256; i++)
                        if (fabsf(y[i] - size[8]) > 0.18f * size[8])
                            fail_msg("%s: the constant %g became %g", name, (double)size[8], (double)y[i]);
                free(blocks);
                free(y);
            }
        }
    }
}

static void affine_extremes(void **state)
{
    (void)state;
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    static const float size[] = {0, 1e-40f, 1e-9f, 1, 1e30f, 3.4e38f};
    static float x[256], scale[8], bias[8], y[256];
    static uint8_t codes[256];
    for (size_t w = 0; w < COUNT(widths); w++)
        for (size_t s = 0; s < COUNT(size); s++)
            for (int constant = 0; constant < 2; constant++) {
                for (uint64_t i = 0; i < 256; i++)
                    x[i] = constant ? size[s] : size[s] * ((float)(random_bits(8, i) >> 40) * 0x1p-23f - 1);
                assert_int_equal(
                    mote_encode_affine(widths[w], 32, MOTE_FORMAT_F32, x, 1, 256, codes, scale, bias),
                    MOTE_OK);
                struct mote_matrix m = {.format = (enum mote_format)(MOTE_FORMAT_AFFINE2 + (int)w),
                                        .scale_format = MOTE_FORMAT_F32,
                                        .n_row = 1,
                                        .n_col = 256,
                                        .row_bytes = (size_t)(32 * widths[w]),
                                        .data = codes,
                                        .scale = (const uint8_t *)scale,
                                        .bias = (const uint8_t *)bias,
                                        .group = 32,
                                        .factor = 1};
                mote_decode(&m, 0, 0, 256, y);
                /* ranges beyond a float's are cut to +-1.6e38; else codes clip by at most 1.5 steps */
                float step = 2 * size[s] / (float)((1 << widths[w]) - 1);
                float tolerance = constant ? 1e-6f * size[s] : size[s] > 1.7e38f ? 2.8e38f : 1.1f * step;
                for (int i = 0; i < 256; i++)
                    if (!(fabsf(y[i] - x[i]) <= tolerance + 1e-7f))
                        fail_msg("%d bits: %g became %g", widths[w], (double)x[i], (double)y[i]);
            }
}

/* What a format can hold exactly, it gives back: decoding, encoding and decoding changes (nearly) nothing. */
static void representable_rows_survive(void **state)
{
    (void)state;
    static const struct {
        enum mote_format format;
        double tolerance; /* normalised square error of the second pass */
    } cases[] = {
        {MOTE_FORMAT_Q8_0, 1e-6},    {MOTE_FORMAT_Q4_1, 1e-6},    {MOTE_FORMAT_Q5_1, 1e-6},
        {MOTE_FORMAT_IQ2_XXS, 5e-4}, {MOTE_FORMAT_IQ3_XXS, 5e-4}, {MOTE_FORMAT_IQ4_NL, 1e-6},
        {MOTE_FORMAT_MXFP4, 1e-9},   {MOTE_FORMAT_Q1_0, 1e-9},    {MOTE_FORMAT_Q6_K, 2e-4},
        {MOTE_FORMAT_IQ4_XS, 2e-4},  {MOTE_FORMAT_NVFP4, 1e-2},
    };
    for (size_t c = 0; c < COUNT(cases); c++) {
        uint8_t *first = encode(cases[c].format, rows[GAUSS].x, N_ROW, N_COL, NULL);
        float *y = decode(cases[c].format, first, N_ROW * N_COL);
        double power = 0;
        for (int i = 0; i < N_ROW * N_COL; i++) power += (double)y[i] * (double)y[i];
        double error = round_trip(cases[c].format, y, N_ROW, N_COL, NULL, NULL) * (N_ROW * N_COL) / power;
        if (error > cases[c].tolerance)
            fail_msg("%s: a second pass changes the weights by %g", mote_format_traits(cases[c].format)->name,
                     error);
        free(first);
        free(y);
    }
}

/* ---- refusals ---- */

static void not_finite_is_refused(void **state)
{
    (void)state;
    enum { N = 512 };
    static float x[3 * N];
    static uint8_t out[3 * N * 4], scale[3 * N], bias[3 * N];
    const int columns[] = {0, 7, 255, 256, N - 1};
    for (size_t c = 0; c < COUNT(columns); c++)
        for (int what = 0; what < 3; what++)
            for (int row = 0; row < 3; row += 2) {
                memcpy(x, rows[GAUSS].x, sizeof x);
                x[row * N + columns[c]] = what == 0 ? NAN : what == 1 ? INFINITY : -INFINITY;
                char where[64];
                snprintf(where, sizeof where, "%s at row %d, column %d;", what ? "infinity" : "NaN", row,
                         columns[c]);
                for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
                    if (!is_encoded(f)) continue;
                    assert_int_equal(mote_encode((enum mote_format)f, x, 3, N, NULL, out), MOTE_NUMERIC);
                    assert_non_null(strstr(mote_error(), where));
                }
                assert_int_equal(mote_encode_affine(4, 64, MOTE_FORMAT_F32, x, 3, N, out, scale, bias),
                                 MOTE_NUMERIC);
                assert_non_null(strstr(mote_error(), where));
            }
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    static float x[512];
    static uint8_t out[2048], scale[128], bias[128];
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        enum mote_format format = (enum mote_format)f;
        if (!is_encoded(f)) {
            assert_int_equal(mote_encode(format, x, 1, 512, NULL, out), MOTE_UNSUPPORTED);
            assert_non_null(strstr(mote_error(), mote_format_traits(format)->name));
            continue;
        }
        assert_int_equal(mote_encode(format, x, 0, 512, NULL, NULL), MOTE_OK);
        if (mote_format_traits(format)->block_elems == 1) continue;
        assert_int_equal(mote_encode(format, x, 1, 511, NULL, out), MOTE_ARGUMENT);
        assert_non_null(strstr(mote_error(), "511"));
        assert_int_equal(mote_encode(format, x, 1, -256, NULL, out), MOTE_ARGUMENT);
        assert_int_equal(mote_encode(format, x, INT64_MAX / 256, 512, NULL, out), MOTE_ARGUMENT);
    }
    assert_int_equal(mote_encode((enum mote_format) - 1, x, 1, 512, NULL, out), MOTE_ARGUMENT);
    assert_int_equal(mote_encode(MOTE_FORMAT_COUNT, x, 1, 512, NULL, out), MOTE_ARGUMENT);

    float v[512] = {0};
    static const float bad[] = {-1, -1e-30f, NAN, INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        v[77] = bad[i];
        assert_int_equal(mote_encode(MOTE_FORMAT_Q4_K, x, 1, 512, v, out), MOTE_NUMERIC);
        assert_non_null(strstr(mote_error(), "column 77"));
    }

    assert_int_equal(mote_encode_affine(7, 64, MOTE_FORMAT_F32, x, 1, 512, out, scale, bias),
                     MOTE_UNSUPPORTED);
    assert_int_equal(mote_encode_affine(1, 64, MOTE_FORMAT_F32, x, 1, 512, out, scale, bias),
                     MOTE_UNSUPPORTED);
    assert_int_equal(mote_encode_affine(4, 48, MOTE_FORMAT_F32, x, 1, 480, out, scale, bias),
                     MOTE_UNSUPPORTED);
    assert_int_equal(mote_encode_affine(4, 64, MOTE_FORMAT_Q4_0, x, 1, 512, out, scale, bias),
                     MOTE_UNSUPPORTED);
    assert_int_equal(mote_encode_affine(4, 128, MOTE_FORMAT_F32, x, 1, 448, out, scale, bias), MOTE_ARGUMENT);
}

static void out_of_memory_is_an_error(void **state)
{
    (void)state;
    static uint8_t out[98];
    mote_mem_fail_at(1);
    assert_int_equal(mote_encode(MOTE_FORMAT_IQ3_XXS, rows[GAUSS].x, 1, 256, NULL, out), MOTE_MEMORY);
    mote_mem_fail_at(0);
    assert_int_equal(mote_encode(MOTE_FORMAT_IQ3_XXS, rows[GAUSS].x, 1, 256, NULL, out), MOTE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_equal_reference),
        cmocka_unit_test(affine_equals_reference),
        cmocka_unit_test(error_within_reference),
        cmocka_unit_test(error_within_budget),
        cmocka_unit_test(every_format_is_listed),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(importance_does_what_it_should),
        cmocka_unit_test(sparse_importance),
        cmocka_unit_test(ternary_rows_survive),
        cmocka_unit_test(extreme_values),
        cmocka_unit_test(affine_extremes),
        cmocka_unit_test(representable_rows_survive),
        cmocka_unit_test(not_finite_is_refused),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_rows, free_rows);
}
