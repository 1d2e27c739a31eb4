/* test_decode.c: the decoders against golden weights, and properties that need none.
 *
 * Golden data: tests/golden/gen_decode.py, from PyPI gguf and mlx. Weights must be bit-equal; a NaN equals
 * any NaN. Blocks are copied to heap buffers of their exact size, at an odd address, so that a sanitizer sees
 * any misstep.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "base/rng.h"
#include "quant/decode.h"
#include "quant/iq_grid.h"

struct golden {
    uint8_t *data;
    size_t size, at;
};

static struct golden golden_open(const char *path)
{
    struct golden g = {0};
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is missing (tests run from the repository root)", path);
    fseek(file, 0, SEEK_END);
    g.size = (size_t)ftell(file);
    rewind(file);
    g.data = malloc(g.size);
    assert_int_equal(fread(g.data, 1, g.size, file), g.size);
    fclose(file);
    return g;
}

static void golden_read(struct golden *g, void *out, size_t n)
{
    assert_true(n <= g->size - g->at);
    memcpy(out, g->data + g->at, n);
    g->at += n;
}

/* A copy of the next n bytes that starts at an odd address; free(*base). */
static const uint8_t *golden_odd(struct golden *g, size_t n, uint8_t **base)
{
    *base = malloc(n + 1);
    golden_read(g, *base + 1, n);
    return *base + 1;
}

static void assert_same(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (mote_f32_bits(got[i]) != mote_f32_bits(want[i]))
            fail_msg("%s: weight %lld is %a, expected %a", what, (long long)i, (double)got[i],
                     (double)want[i]);
    }
}

/* As in the generator: word i of a stream is a function of seed and i. */
static void splitmix_bytes(uint64_t seed, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t z = seed + (i / 8 + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        memcpy(out + i, &z, n - i < 8 ? n - i : 8);
    }
}

static uint64_t weights_hash(const float *weights, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = isnan(weights[i]) ? 0x7FC00000u : mote_f32_bits(weights[i]);
        sum += (bits + 1) * (2 * i + 1) * 0x9E3779B97F4A7C15u;
    }
    return sum;
}

enum { N_HASHED = 1000 };

static void test_golden_blocks(void **state)
{
    (void)state;
    struct golden g = golden_open("tests/golden/decode_blocks.bin");
    int seen[MOTE_FORMAT_COUNT] = {0};
    for (uint64_t seed = 0; g.at < g.size; seed++) {
        char name[12];
        uint32_t n_block;
        uint64_t hash;
        golden_read(&g, name, sizeof name);
        golden_read(&g, &n_block, sizeof n_block);
        golden_read(&g, &hash, sizeof hash);
        int format = mote_format_from_name(name);
        if (format < 0) fail_msg("no format %.12s", name);
        const struct mote_format_traits *traits = mote_format_traits(format);
        size_t elems = (size_t)traits->block_elems, bytes = (size_t)traits->block_bytes;
        seen[format] = 1;

        uint8_t *base;
        const uint8_t *blocks = golden_odd(&g, n_block * bytes, &base);
        float *want = malloc(n_block * elems * sizeof *want), *got = malloc(n_block * elems * sizeof *got);
        golden_read(&g, want, n_block * elems * sizeof *want);
        mote_decode_blocks(format, blocks, n_block, got);
        assert_same(name, got, want, (int64_t)(n_block * elems));
        free(base);
        free(want);
        free(got);

        base = malloc(N_HASHED * bytes);
        got = malloc(N_HASHED * elems * sizeof *got);
        splitmix_bytes(seed, base, N_HASHED * bytes);
        mote_decode_blocks(format, base, N_HASHED, got);
        if (weights_hash(got, N_HASHED * elems) != hash)
            fail_msg("%s: hash of %d random blocks differs", name, N_HASHED);
        free(base);
        free(got);
    }
    for (int i = 0; i < MOTE_FORMAT_COUNT; i++) {
        enum mote_format_family family = mote_format_traits(i)->family;
        if (family == MOTE_FAMILY_PLAIN || family == MOTE_FAMILY_BLOCK) assert_true(seen[i]);
    }
    free(g.data);
}

static void test_golden_planar(void **state)
{
    (void)state;
    struct golden g = golden_open("tests/golden/decode_planar.bin");
    int seen[MOTE_FORMAT_COUNT] = {0};
    while (g.at < g.size) {
        char name[12], scale_name[5] = "";
        uint32_t group, n_row, n_col;
        float factor;
        golden_read(&g, name, sizeof name);
        golden_read(&g, scale_name, 4);
        golden_read(&g, &group, sizeof group);
        golden_read(&g, &n_row, sizeof n_row);
        golden_read(&g, &n_col, sizeof n_col);
        golden_read(&g, &factor, sizeof factor);
        int format = mote_format_from_name(name),
            scale_format = *scale_name ? mote_format_from_name(scale_name) : 0;
        if (format < 0 || scale_format < 0) fail_msg("no format %.12s or %s", name, scale_name);
        seen[format] = 1;

        size_t n = (size_t)n_row * n_col, row_bytes = mote_format_row_bytes(format, n_col);
        size_t plane = n / group * (*scale_name ? (size_t)mote_format_traits(scale_format)->block_bytes : 1);
        uint8_t *data, *scale, *bias = NULL;
        struct mote_matrix w = {format, scale_format, n_row, n_col, row_bytes};
        w.data = golden_odd(&g, n_row * row_bytes, &data);
        w.scale = golden_odd(&g, plane, &scale);
        if (*scale_name) w.bias = golden_odd(&g, plane, &bias);
        w.group = (int32_t)group;
        w.factor = factor;
        float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
        golden_read(&g, want, n * sizeof *want);
        for (int64_t row = 0; row < n_row; row++) mote_decode(&w, row, 0, n_col, got + row * n_col);
        assert_same(name, got, want, (int64_t)n);
        free(data);
        free(scale);
        free(bias);
        free(want);
        free(got);
    }
    for (int i = 0; i < MOTE_FORMAT_COUNT; i++)
        if (mote_format_traits(i)->family == MOTE_FAMILY_PLANAR) assert_true(seen[i]);
    free(g.data);
}

/* A matrix of random bytes; free data, scale, bias. Planes have their exact size. */
static struct mote_matrix random_matrix(enum mote_format format, enum mote_format scale_format, int group,
                                        int64_t n_row, int64_t n_col, uint64_t seed)
{
    struct mote_matrix w = mote_matrix_view(format, NULL, n_row, n_col);
    uint8_t *data = malloc((size_t)n_row * w.row_bytes);
    splitmix_bytes(seed, data, (size_t)n_row * w.row_bytes);
    w.data = data;
    if (mote_format_traits(format)->family != MOTE_FAMILY_PLANAR) return w;
    int affine = format <= MOTE_FORMAT_AFFINE8;
    size_t n_plane = (size_t)(n_row * n_col / group),
           n = affine ? n_plane * (size_t)mote_format_traits(scale_format)->block_bytes : n_plane;
    uint8_t *scale = malloc(n), *bias = affine ? malloc(n) : NULL;
    splitmix_bytes(seed + 1, scale, n);
    if (affine) splitmix_bytes(seed + 2, bias, n);
    w.scale = scale;
    w.bias = bias;
    w.group = group;
    w.scale_format = scale_format;
    return w;
}

static void matrix_free(struct mote_matrix *w)
{
    free((void *)w->data);
    free((void *)w->scale);
    free((void *)w->bias);
}

static void test_sub_ranges(void **state)
{
    (void)state;
    enum { N_ROW = 3, N_COL = 1024 };
    static const int groups[] = {32, 64, 128};
    float whole[N_ROW * N_COL], part[N_COL];
    for (int format = 0; format < MOTE_FORMAT_COUNT; format++) {
        const struct mote_format_traits *traits = mote_format_traits(format);
        if (traits->family == MOTE_FAMILY_OTHER) continue;
        for (int k = 0; k < 3; k++) {
            int planar = traits->family == MOTE_FAMILY_PLANAR,
                group = format == MOTE_FORMAT_MLX_NVFP4 ? 16 : groups[k];
            if (k && (!planar || format > MOTE_FORMAT_AFFINE8)) break; /* these have one group size */
            struct mote_matrix w =
                random_matrix(format, (enum mote_format)k, group, N_ROW, N_COL, (uint64_t)format);
            int unit = planar && group > traits->block_elems ? group : traits->block_elems;
            for (int64_t row = 0; row < N_ROW; row++) mote_decode(&w, row, 0, N_COL, whole + row * N_COL);
            struct mote_rng rng;
            mote_rng_seed(&rng, 5);
            for (int trial = 0; trial < 100; trial++) {
                int64_t row = (int64_t)mote_rng_below(&rng, N_ROW),
                        col = (int64_t)mote_rng_below(&rng, (uint64_t)(N_COL / unit + 1)) * unit;
                int64_t n = (int64_t)mote_rng_below(&rng, (uint64_t)((N_COL - col) / unit + 1)) * unit;
                for (int64_t i = 0; i < N_COL; i++) part[i] = 1234;
                mote_decode(&w, row, col, n, part);
                assert_same(traits->name, part, whole + row * N_COL + col, n);
                for (int64_t i = n; i < N_COL; i++)
                    assert_true(part[i] == 1234); /* nothing written beyond n */
            }
            matrix_free(&w);
        }
    }
}

static void test_factor(void **state)
{
    (void)state;
    enum { N_COL = 512 };
    float plain[N_COL], scaled[N_COL];
    for (int format = 0; format < MOTE_FORMAT_COUNT; format++) {
        if (mote_format_traits(format)->family == MOTE_FAMILY_OTHER) continue;
        struct mote_matrix w =
            random_matrix(format, MOTE_FORMAT_F32, format == MOTE_FORMAT_MLX_NVFP4 ? 16 : 32, 1, N_COL, 77);
        mote_decode(&w, 0, 0, N_COL, plain);
        w.factor =
            0.25f; /* a power of two: exact wherever it is multiplied, away from the ends of the range */
        mote_decode(&w, 0, 0, N_COL, scaled);
        for (int i = 0; i < N_COL; i++)
            if (isfinite(plain[i]) && fabsf(plain[i]) > 0x1p-100f) assert_true(scaled[i] == plain[i] * 0.25f);
        matrix_free(&w);
    }
}

/* ---- packing from the layout text, written independently of the decoders */

static void put_half(uint8_t *at, float value)
{
    uint16_t half = mote_f32_f16(value);
    memcpy(at, &half, 2);
}

/* Five digits of {0,1,2}, the first most significant; fewer leave zeros behind them. */
static uint8_t pack_trits(const int *digit, int n_digit, int stride)
{
    int v = 0;
    for (int k = 0; k < 5; k++) v = 3 * v + (k < n_digit ? digit[k * stride] : 0);
    return (uint8_t)((v * 256 + 242) / 243);
}

static void random_digits(struct mote_rng *rng, int *digit, int n, int base)
{
    for (int i = 0; i < n; i++) digit[i] = (int)mote_rng_below(rng, (uint64_t)base);
}

static void assert_digits(enum mote_format format, const uint8_t *block, const int *digit, float d)
{
    float got[256], want[256];
    int n = mote_format_traits(format)->block_elems;
    mote_decode_blocks(format, block, 1, got);
    for (int i = 0; i < n; i++) want[i] = d * (float)(digit[i] - 1);
    assert_same(mote_format_traits(format)->name, got, want, n);
}

static void test_ternary_packed_here(void **state)
{
    (void)state;
    struct mote_rng rng;
    mote_rng_seed(&rng, 9);
    for (int trial = 0; trial < 500; trial++) {
        float d = mote_f16_f32(mote_f32_f16((float)mote_rng_unit(&rng) - 0.5f));
        int digit[256];
        uint8_t block[66];

        random_digits(&rng, digit, 128, 3);
        for (int m = 0; m < 16; m++) block[m] = pack_trits(digit + m, 5, 16);
        for (int m = 0; m < 8; m++) block[16 + m] = pack_trits(digit + 80 + m, 5, 8);
        for (int h = 0; h < 2; h++) block[24 + h] = pack_trits(digit + 120 + h, 4, 2);
        put_half(block + 26, d);
        assert_digits(MOTE_FORMAT_PTQ1_0, block, digit, d);

        random_digits(&rng, digit, 256, 3);
        for (int m = 0; m < 32; m++) block[m] = pack_trits(digit + m, 5, 32);
        for (int m = 0; m < 16; m++) block[32 + m] = pack_trits(digit + 160 + m, 5, 16);
        for (int j = 0; j < 4; j++) block[48 + j] = pack_trits(digit + 240 + j, 4, 4);
        put_half(block + 52, d);
        assert_digits(MOTE_FORMAT_TQ1_0, block, digit, d);

        random_digits(&rng, digit, 128, 4);
        memset(block, 0, sizeof block);
        put_half(block, d);
        for (int i = 0; i < 128; i++) block[2 + i / 4] |= (uint8_t)(digit[i] << 2 * (i % 4));
        assert_digits(MOTE_FORMAT_PQ2_0, block, digit, d);

        memset(block + 18, 0xAA, sizeof block - 18);
        assert_digits(MOTE_FORMAT_Q2_0, block, digit, d); /* the same codes, 64 to a block */
    }
}

/* All 243 combinations of five digits come back, in every place that holds five. */
static void test_every_trit_combination(void **state)
{
    (void)state;
    for (int v = 0; v < 243; v++) {
        int five[5] = {v / 81, v / 27 % 3, v / 9 % 3, v / 3 % 3, v % 3}, digit[256];
        uint8_t block[54];
        memset(block, pack_trits(five, 5, 1), 48);
        memset(block + 48, pack_trits(five, 4, 1), 4);
        put_half(block + 52, 1);
        for (int i = 0; i < 160; i++) digit[i] = five[i / 32];
        for (int i = 0; i < 80; i++) digit[160 + i] = five[i / 16];
        for (int i = 0; i < 16; i++) digit[240 + i] = five[i / 4];
        assert_digits(MOTE_FORMAT_TQ1_0, block, digit, 1);
    }
}

/* Every code of every PLANAR width at every place of a run, written with a bit-by-bit writer. */
static void test_bit_stream(void **state)
{
    (void)state;
    static const enum mote_format formats[] = {MOTE_FORMAT_AFFINE2, MOTE_FORMAT_AFFINE3, MOTE_FORMAT_AFFINE4,
                                               MOTE_FORMAT_AFFINE5, MOTE_FORMAT_AFFINE6, MOTE_FORMAT_AFFINE8};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        int bits = mote_format_code_bits(formats[f]);
        for (int shift = 0; shift < 1 << bits; shift++) {
            uint8_t data[64] = {0};
            float scale[1] = {1}, bias[1] = {0}, got[64];
            for (int i = 0; i < 64; i++)
                for (int k = 0, code = (i * 5 + shift) & ((1 << bits) - 1); k < bits; k++)
                    data[(i * bits + k) / 8] |= (uint8_t)((code >> k & 1) << (i * bits + k) % 8);
            struct mote_matrix w = {formats[f],       MOTE_FORMAT_F32, 1,  64, (size_t)(8 * bits), data,
                                    (uint8_t *)scale, (uint8_t *)bias, 64, 1};
            mote_decode(&w, 0, 0, 64, got);
            for (int i = 0; i < 64; i++) assert_true(got[i] == (float)((i * 5 + shift) & ((1 << bits) - 1)));
        }
    }
}

/* With all scales one and all offsets zero, random codes must give every value of the format and no other. */
struct code_case {
    enum mote_format format;
    int d_at, one_at, one_n, one; /* f16 1.0 at d_at; bytes [one_at, one_at + one_n) = one: unit scales */
    int first, last;              /* whole numbers from first to last, unless there is a table */
    const int8_t *table;          /* [last - first + 1] */
};

static void test_every_code(void **state)
{
    (void)state;
    static const struct code_case cases[] = {
        {MOTE_FORMAT_Q4_0, 0, 0, 0, 0, -8, 7, NULL},
        {MOTE_FORMAT_Q4_1, 0, 2, 2, 0, 0, 15, NULL},
        {MOTE_FORMAT_Q5_0, 0, 0, 0, 0, -16, 15, NULL},
        {MOTE_FORMAT_Q5_1, 0, 2, 2, 0, 0, 31, NULL},
        {MOTE_FORMAT_Q8_0, 0, 0, 0, 0, -128, 127, NULL},
        {MOTE_FORMAT_Q2_K, 80, 0, 16, 1, 0, 3, NULL},
        {MOTE_FORMAT_Q6_K, 208, 192, 16, 1, -32, 31, NULL},
        {MOTE_FORMAT_TQ2_0, 64, 0, 0, 0, -1, 2, NULL},
        {MOTE_FORMAT_TQ1_0, 52, 0, 0, 0, -1, 1, NULL},
        {MOTE_FORMAT_PTQ1_0, 26, 0, 0, 0, -1, 1, NULL},
        {MOTE_FORMAT_Q2_0, 0, 0, 0, 0, -1, 2, NULL},
        {MOTE_FORMAT_PQ2_0, 0, 0, 0, 0, -1, 2, NULL},
        {MOTE_FORMAT_IQ4_NL, 0, 0, 0, 0, 0, 15, mote_iq4nl_value},
        {MOTE_FORMAT_MXFP4, -1, 0, 1, 128, 0, 15, mote_mxfp4_value},
        {MOTE_FORMAT_NVFP4, -1, 0, 4, 0x40, 0, 15, mote_mxfp4_value}, /* e4m3 2.0, halved */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct mote_format_traits *traits = mote_format_traits(cases[c].format);
        int hits[256] = {0};
        for (uint64_t seed = 0; seed < 400; seed++) {
            uint8_t block[256];
            float got[256];
            splitmix_bytes(seed, block, (size_t)traits->block_bytes);
            memset(block + cases[c].one_at, cases[c].one, (size_t)cases[c].one_n);
            if (cases[c].format == MOTE_FORMAT_Q2_K) put_half(block + 82, 0);
            if (cases[c].d_at >= 0) put_half(block + cases[c].d_at, 1);
            mote_decode_blocks(cases[c].format, block, 1, got);
            for (int i = 0; i < traits->block_elems; i++) {
                int found = 0;
                for (int v = cases[c].first; v <= cases[c].last; v++)
                    if (got[i] == (float)(cases[c].table ? cases[c].table[v - cases[c].first] : v)) {
                        hits[v - cases[c].first]++;
                        found = 1;
                    }
                if (!found) fail_msg("%s: %g is no value of the format", traits->name, (double)got[i]);
            }
        }
        for (int v = cases[c].first; v <= cases[c].last; v++)
            if (!hits[v - cases[c].first]) fail_msg("%s: code %d never decoded", traits->name, v);
    }
}

/* Scales of 6 bits spread over bytes: each of 64 values, in each place, alone. Weights with code 1 (after the
 * format's shift) read it back. */
static void test_split_scales(void **state)
{
    (void)state;
    float got[256];
    for (int value = 0; value < 64; value++)
        for (int k = 0; k < 8; k++) {
            for (int is_offset = 0; is_offset < 2; is_offset++) { /* Q4_K: code 1 everywhere */
                uint8_t block[144] = {0}, *packed = block + 4;
                put_half(block, 1);
                put_half(block + 2, 1);
                memset(block + 16, 0x11, 128);
                if (k < 4) packed[k + 4 * is_offset] = (uint8_t)value;
                else {
                    packed[k + 4] = (uint8_t)((value & 15) << 4 * is_offset);
                    packed[k - 4 + 4 * is_offset] = (uint8_t)(value >> 4 << 6);
                }
                mote_decode_blocks(MOTE_FORMAT_Q4_K, block, 1, got);
                for (int i = 0; i < 256; i++)
                    assert_true(got[i] == (i / 32 == k ? (float)(is_offset ? -value : value) : 0));
            }
            uint8_t block[136] = {0}; /* IQ4_XS: nibble 8 is the value 1 */
            unsigned high = 0xAAAAu & ~(3u << 2 * k);
            high |= (unsigned)value >> 4 << 2 * k; /* others: 32, so zero */
            put_half(block, 1);
            block[2] = (uint8_t)high;
            block[3] = (uint8_t)(high >> 8);
            block[4 + k / 2] = (uint8_t)((value & 15) << 4 * (k & 1));
            memset(block + 8, 0x88, 128);
            mote_decode_blocks(MOTE_FORMAT_IQ4_XS, block, 1, got);
            for (int i = 0; i < 256; i++) assert_true(got[i] == (i / 32 == k ? (float)(value - 32) : 0));
        }
    for (int value = 0; value < 64; value++)
        for (int k = 0; k < 16; k++) { /* Q3_K: mask set and low bits 1 give 1; other scales 32 - 32 = 0 */
            uint8_t block[110];
            memset(block, 0xFF, 32);
            memset(block + 32, 0x55, 64);
            memset(block + 96, 0, 8);
            memset(block + 104, 0xAA, 4);
            put_half(block + 108, 1);
            block[96 + k % 8] = (uint8_t)((value & 15) << 4 * (k / 8));
            block[104 + k % 4] &= (uint8_t) ~(3u << 2 * (k / 4));
            block[104 + k % 4] |= (uint8_t)(value >> 4 << 2 * (k / 4));
            mote_decode_blocks(MOTE_FORMAT_Q3_K, block, 1, got);
            for (int i = 0; i < 256; i++) assert_true(got[i] == (i / 16 == k ? (float)(value - 32) : 0));
        }
}

/* Every entry of every grid through its format's index bits, and every sign code. */
static void test_every_grid_entry(void **state)
{
    (void)state;
    float got[256];
    for (unsigned entry = 0; entry < 2048; entry++) {
        uint8_t block[110] = {0};
        put_half(block, 1);
        for (int g = 0; g < 32; g++) { /* IQ1_S: shift +1/8, scale 1 */
            block[2 + g] = (uint8_t)entry;
            if (g < 8) {
                unsigned word = (entry >> 8) * 0x249u; /* three bits, four times */
                block[34 + 2 * g] = (uint8_t)word;
                block[35 + 2 * g] = (uint8_t)(word >> 8);
            }
        }
        mote_decode_blocks(MOTE_FORMAT_IQ1_S, block, 1, got);
        for (int i = 0; i < 256; i++)
            assert_true(got[i] == 0.125f + (float)(int8_t)(mote_iq1s_grid[entry] >> 8 * (i & 7)));
    }
    for (unsigned entry = 0; entry < 1024; entry++) {
        uint8_t block[110] = {0};
        put_half(block, 8); /* 8 * 0.5 * 0.25 = 1 */
        memset(block + 2, (int)(entry & 255), 32);
        memset(block + 34, (int)(entry & 255), 32); /* signs: explicit masks, all 256 on the way */
        memset(block + 66, (int)((entry >> 8) * 0x55), 8);
        mote_decode_blocks(MOTE_FORMAT_IQ2_S, block, 1, got);
        for (int i = 0; i < 256; i++) {
            float magnitude = (float)(mote_iq2s_grid[entry] >> 8 * (i & 7) & 255);
            assert_true(got[i] == (entry >> (i & 7) & 1 ? -magnitude : magnitude));
        }
    }
    for (unsigned entry = 0; entry < 512; entry++) {
        uint8_t block[110] = {0};
        unsigned sign = entry & 127, word = entry | sign << 9, ones = 0;
        put_half(block, 8);
        for (int g = 0; g < 32; g++) {
            block[2 + 2 * g] = (uint8_t)word;
            block[3 + 2 * g] = (uint8_t)(word >> 8);
        }
        mote_decode_blocks(MOTE_FORMAT_IQ2_XS, block, 1, got);
        for (int k = 0; k < 7; k++) ones += sign >> k & 1;
        for (int i = 0; i < 256; i++) {
            float magnitude = (float)(mote_iq2xs_grid[entry] >> 8 * (i & 7) & 255);
            unsigned negative = (i & 7) < 7 ? sign >> (i & 7) & 1 : ones & 1;
            assert_true(got[i] == (negative ? -magnitude : magnitude));
        }

        memset(block, 0, sizeof block); /* IQ3_S */
        put_half(block, 1);
        memset(block + 2, (int)(entry & 255), 64);
        memset(block + 66, entry >> 8 ? 255 : 0, 8);
        mote_decode_blocks(MOTE_FORMAT_IQ3_S, block, 1, got);
        for (int i = 0; i < 256; i++)
            assert_true(got[i] == (float)(mote_iq3s_grid[entry] >> 8 * (i & 3) & 255));
    }
    for (unsigned entry = 0; entry < 256; entry++) {
        uint8_t block[98] = {0};
        put_half(block, 8);
        for (int k = 0; k < 8; k++) memset(block + 2 + 8 * k, (int)entry, 4);
        mote_decode_blocks(MOTE_FORMAT_IQ2_XXS, block, 1, got);
        for (int i = 0; i < 256; i++)
            assert_true(got[i] == (float)(mote_iq2xxs_grid[entry] >> 8 * (i & 7) & 255));

        put_half(block, 4); /* IQ3_XXS: 4 * 0.5 * 0.5 */
        memset(block + 2, (int)entry, 64);
        mote_decode_blocks(MOTE_FORMAT_IQ3_XXS, block, 1, got);
        for (int i = 0; i < 256; i++)
            assert_true(got[i] == (float)(mote_iq3xxs_grid[entry] >> 8 * (i & 3) & 255));
    }
}

static void test_value_tables(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        float e4m3 = mote_e4m3_f32((uint8_t)code), e2m1 = mote_e2m1_f32(code & 15);
        assert_same("e4m3", &mote_e4m3_value[code], &e4m3, 1);
        assert_same("e2m1", &mote_e2m1_value[code & 15], &e2m1, 1);
        if (code < 128) assert_int_equal(mote_sign_mask[code] & 127, code);
        if (code < 128) assert_int_equal(__builtin_popcount(mote_sign_mask[code]) & 1, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_blocks),       cmocka_unit_test(test_golden_planar),
        cmocka_unit_test(test_sub_ranges),          cmocka_unit_test(test_factor),
        cmocka_unit_test(test_ternary_packed_here), cmocka_unit_test(test_every_trit_combination),
        cmocka_unit_test(test_bit_stream),          cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_split_scales),        cmocka_unit_test(test_every_grid_entry),
        cmocka_unit_test(test_value_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
