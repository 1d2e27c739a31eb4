/* test_tile.cc: the tile layout, packed by the host and read by the text of the device's kernels (tile.cuh), held to
 * the decoders: every kind, every lane of a warp, weights bit for bit; and what MXFP4 tiles say of their scales.
 *
 * Weights are random bytes with sane scales. MOTE_SEED repeats a run.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

extern "C" {
#include <cmocka.h>

#include "base/error.h"
#include "base/float_bits.h"
#include "base/rng.h"
#include "compact_formats.h"
#include "cuda/pack.h"
#include "quant/decode.h"
#include "random_matrix.h"
}

#include "cuda/kernels/tile.cuh"

static struct mote_rng rng;
static unsigned long long seed;

/* ---- random weights ---- */

struct weights {
    struct mote_matrix m;
    uint8_t *data, *scale, *bias; /* exact sizes, at odd addresses */
};

static uint8_t *odd_bytes(size_t n)
{
    uint8_t *base = (uint8_t *)malloc(n + 1);
    assert_non_null(base);
    return base + 1;
}

/* Scales of one byte in all their range (what is not a number apart), which random_matrix.h keeps narrow. */
static void widen_scales(struct weights *w)
{
    const struct mote_format_traits *traits = mote_format_traits(w->m.format);
    size_t size = w->m.row_bytes * (size_t)w->m.n_row, n_scale = random_scale_bytes(&w->m);
    if (w->m.format == MOTE_FORMAT_MXFP4) /* 2^121 x 12 x factor is finite */
        for (size_t i = 0; i < size; i += (size_t)traits->block_bytes)
            w->data[i] = (uint8_t)mote_rng_below(&rng, 250);
    if (w->m.format == MOTE_FORMAT_NVFP4) /* 0x7F is 0 and the top bit nothing */
        for (size_t i = 0; i < size; i += (size_t)traits->block_bytes)
            for (int k = 0; k < 4; k++) w->data[i + (size_t)k] = (uint8_t)mote_rng_u64(&rng);
    if (w->m.format == MOTE_FORMAT_MLX_MXFP4)
        for (size_t i = 0; i < n_scale; i++) w->scale[i] = (uint8_t)mote_rng_below(&rng, 250);
    if (w->m.format == MOTE_FORMAT_MLX_NVFP4) /* a sign; 0x7F is no number */
        for (size_t i = 0; i < n_scale; i++)
            w->scale[i] = (uint8_t)(mote_rng_below(&rng, 0x7F) | mote_rng_below(&rng, 2) << 7);
}

static struct weights make_weights(enum mote_format format, int64_t n_row, int64_t n_col, int group,
                                   enum mote_format scale_format, float factor)
{
    struct weights w = {};
    size_t size = mote_format_row_bytes(format, n_col) * (size_t)n_row;
    w.data = odd_bytes(size);
    w.m = mote_matrix_view(format, w.data, n_row, n_col);
    w.m.factor = factor;
    w.m.group = group;
    w.m.scale_format = scale_format;
    size_t n_scale = random_scale_bytes(&w.m);
    if (n_scale) w.m.scale = w.scale = odd_bytes(n_scale);
    if (random_is_affine(format)) w.m.bias = w.bias = odd_bytes(n_scale);
    random_fill(&rng, &w.m, RANDOM, w.data, w.scale, w.bias);
    widen_scales(&w);
    return w;
}

static void free_weights(struct weights *w)
{
    free(w->data - 1);
    if (w->scale) free(w->scale - 1);
    if (w->bias) free(w->bias - 1);
}

/* ---- a warp, lane by lane ---- */

#define FAIL(w, ...)                                                                                \
    do {                                                                                            \
        print_error("%s %lld x %lld, group %d, seed %llu\n", mote_format_traits((w)->format)->name, \
                    (long long)(w)->n_row, (long long)(w)->n_col, (int)(w)->group, seed);           \
        fail_msg(__VA_ARGS__);                                                                      \
    } while (0)

/* A Tile<> as values. */
struct view {
    size_t bytes;
    int width, lut_words, has_min;
    void (*fill)(u32 *lut, int thread, int n_thread);
    /* Weights of a record, out[16][width]; size: |scale * code| + |min|; codes stay in their range. */
    void (*read)(const struct mote_matrix *w, const uint8_t *record, const u32 *lut, float *out, float *size);
};

template <class T>
static void read_record(const struct mote_matrix *w, const uint8_t *record, const u32 *lut, float *out,
                        float *size)
{
    for (int unit = 0; unit < T::UNITS; unit++) {
        float scale[32][2][T::SUBS], min[32][2][T::SUBS]; /* [lane][row] */
        u32 a[32][4][4];
        for (int lane = 0; lane < 32; lane++) {
            typename T::Raw raw;
            T::load(raw, record, unit, lane);
            T::codes(raw, lut, lane, a[lane]);
            T::scales(raw, lane, scale[lane], min[lane]);
        }
        for (int row = 0; row < 16; row++)
            for (int c = 0; c < 128; c++) {
                int g = row & 7, r = row >> 3, s = c >> 5, j = c & 7, lane = 4 * g + (c >> 3 & 3);
                int owner = 4 * g + s, sub = T::SUBS == 2 ? c >> 4 & 1 : 0; /* the lane that has the scale */
                int code = (i8)(a[lane][s][2 * (j >> 2) + r] >> 8 * (j & 3));
                if (code < T::CODE_MIN || code > T::CODE_MAX)
                    FAIL(w, "code %d is not in %d..%d", code, T::CODE_MIN, T::CODE_MAX);
                float v = scale[owner][r][sub] * (float)(code - T::ZERO), m = min[owner][r][sub];
                if (!T::HAS_MIN) assert_true(m == 0);
                out[row * (T::UNITS * 128) + unit * 128 + c] = T::HAS_MIN ? v + m : v;
                size[row * (T::UNITS * 128) + unit * 128 + c] = fabsf(v) + fabsf(m);
            }
    }
}

static void check_matrix(const struct view *view, const struct mote_tile_kind *kind,
                         const struct mote_matrix *w)
{
    int64_t n_tile = (w->n_row + 15) / 16, width = view->width, n_col = w->n_col;
    size_t bytes = mote_tile_matrix_bytes(kind, w->n_row, n_col);
    assert_int_equal(bytes, (size_t)n_tile * view->bytes);
    uint8_t *record = (uint8_t *)malloc(bytes); /* its end is the sanitizer's */
    assert_non_null(record);
    memset(record, 0xA5, bytes);
    mote_tile_pack(kind, w, 0, n_tile, record);
    if (n_tile > 1) { /* any range of tiles alone gives the same bytes, and all of them */
        uint8_t *one = (uint8_t *)malloc(view->bytes);
        memset(one, 0x5A, view->bytes);
        mote_tile_pack(kind, w, n_tile - 1, 1, one);
        if (memcmp(one, record + (size_t)(n_tile - 1) * view->bytes, view->bytes))
            FAIL(w, "the last tile alone differs");
        free(one);
    }

    u32 *lut = (u32 *)malloc((size_t)(view->lut_words + 1) * sizeof *lut);
    for (int thread = 0; thread < 96; thread++) view->fill(lut, thread, 96);
    float *got = (float *)malloc((size_t)(48 * width) * sizeof *got), *size = got + 16 * width,
          *want = size + 16 * width;
    for (int64_t tile = 0; tile < n_tile; tile++) {
        view->read(w, record + (size_t)tile * view->bytes, lut, got, size);
        for (int64_t r = 0; r < 16; r++) {
            int64_t row = tile * 16 + r;
            int there = row < w->n_row;
            if (there) mote_decode(w, row, 0, n_col, want);
            for (int64_t c = 0; c < width; c++) {
                float a = got[r * width + c], b = there && c < n_col ? want[c] : 0;
                /* Only with a tensor scale the product associates in another way (and rounds subnormals). */
                double slack = w->factor == 1 ? 0 : (double)size[r * width + c] * 0x1p-22 + 0x1p-144;
                if (a == b || fabs((double)a - (double)b) <= slack) continue;
                FAIL(w, "row %lld, column %lld: %.9g, expected %.9g", (long long)row, (long long)c, (double)a,
                     (double)b);
            }
        }
    }
    free(lut);
    free(got);
    free(record);
}

static void check_view(const struct view *view, const char *arguments, enum mote_format format, int compact,
                       int group, enum mote_format scale_format, int64_t n_col, int has_factor)
{
    static const int rows[] = {1, 16, 37};
    for (int n_row : rows) {
        struct weights all = make_weights(format, n_row, n_col, group, scale_format, has_factor ? 0.7f : 1);
        const struct mote_matrix *w = &all.m;
        struct mote_tile_kind kind;
        char text[MOTE_TILE_TEXT];
        assert_int_equal(mote_tile_kind_of(w, compact, &kind), MOTE_OK);
        mote_tile_kind_text(&kind, text);
        if (strcmp(text, arguments)) FAIL(w, "kind %s, expected %s", text, arguments);
        if (view->bytes != mote_tile_bytes(&kind, n_col))
            FAIL(w, "a record is %zu bytes on the device, %zu on the host", view->bytes,
                 mote_tile_bytes(&kind, n_col));
        check_matrix(view, &kind, w);
        free_weights(&all);
    }
}

template <int CODE, int ZERO, int TABLE, int SUB, int ITEM, int MIN, int EXP, int FACTOR, int K>
static void check_shape(enum mote_format format, int compact, enum mote_format scale_format)
{
    using T = Tile<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, FACTOR, K>;
    const struct view view = {T::BYTES, T::UNITS * 128,          T::LUT_WORDS,
                              MIN,      T::template fill<false>, read_record<T>};
    char arguments[MOTE_TILE_TEXT];
    snprintf(arguments, sizeof arguments, "%d,%d,%d,%d,%d,%d,%d,%d", CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP,
             FACTOR);
    int planar = mote_format_traits(format)->family == MOTE_FAMILY_PLANAR;
    check_view(&view, arguments, format, compact, planar ? SUB : 0, scale_format, K, FACTOR);
}

template <int CODE, int ZERO, int TABLE, int SUB, int ITEM, int MIN, int EXP, int BLOCK>
static void check_format(enum mote_format format, int compact, enum mote_format scale_format)
{
    constexpr int F = ITEM == MOTE_ITEM_UE4M3; /* always with a factor */
    constexpr int UNIT = BLOCK > SUB ? BLOCK : SUB;
    constexpr int K0 = UNIT, K1 = 3 * UNIT, K2 = UNIT <= 32 ? 288 : 2 * UNIT, K3 = UNIT <= 128 ? 1408 : 1280;
    check_shape<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, F, K0>(format, compact, scale_format);
    check_shape<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, F, K1>(format, compact, scale_format);
    check_shape<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, F, K2>(format, compact, scale_format);
    check_shape<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, F, K3>(format, compact, scale_format);
    check_shape<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, 1, K2>(format, compact, scale_format);
    constexpr int WIDE = 4096;
    double bits = Tile<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, F, WIDE>::BYTES * 8.0 / (16 * WIDE);
    const struct mote_format_traits *traits = mote_format_traits(format);
    double own = traits->block_bytes * 8.0 / traits->block_elems; /* PLANAR: of codes alone */
    if (traits->family == MOTE_FAMILY_PLANAR)
        own += (ITEM == MOTE_ITEM_F32                             ? 64.0
                : ITEM == MOTE_ITEM_F16 || ITEM == MOTE_ITEM_BF16 ? 32.0
                                                                  : 8.0) /
               SUB;
    print_message("%-10s sub %3d: %.4f bits a weight (in the file %.4f)\n", traits->name, SUB, bits, own);
    int book = (CODE == MOTE_CODE_LUT4 && ITEM == MOTE_ITEM_U8) || TABLE == MOTE_TABLE_ODD ||
               ITEM == MOTE_ITEM_S8 || MIN;
    int wide = lies_compact(format) && !compact;
    if (!book) assert_true(bits < own * (wide ? 1.23 : 1.03));
}

template <int CODE, int ZERO, int SUB, int ITEM> static void check_affine(enum mote_format format)
{
    static const enum mote_format scales[] = {MOTE_FORMAT_F16, MOTE_FORMAT_BF16,
                                              MOTE_FORMAT_F32}; /* as items */
    check_format<CODE, ZERO, MOTE_TABLE_NONE, SUB, ITEM, 1, 0, 32>(format, 0, scales[ITEM]);
}

/* Elements of a block, as a constant. */
template <int FORMAT> struct block_of;
#define X(id, gguf, name, elems, bytes, family)                                   \
    template <> struct block_of<MOTE_FORMAT_##id> {                               \
        static constexpr int N = elems;                                           \
        static constexpr int PLANAR = MOTE_FAMILY_##family == MOTE_FAMILY_PLANAR; \
    };
MOTE_FORMATS(X)
#undef X

/* COMPACT: a row of MOTE_TILE_COMPACT_KINDS. */
template <int FORMAT, int COMPACT, int CODE, int ZERO, int TABLE, int SUB, int ITEM, int MIN, int EXP>
static void check_one()
{
    constexpr enum mote_format format = (enum mote_format)FORMAT;
    constexpr int BLOCK = block_of<FORMAT>::N;
    if constexpr (block_of<FORMAT>::PLANAR && MIN) {
        check_affine<CODE, ZERO, 32, MOTE_ITEM_F32>(format);
        check_affine<CODE, ZERO, 64, MOTE_ITEM_F16>(format);
        check_affine<CODE, ZERO, 128, MOTE_ITEM_BF16>(format);
        if constexpr (CODE == MOTE_CODE_C4) {
            check_affine<CODE, ZERO, 32, MOTE_ITEM_F16>(format);
            check_affine<CODE, ZERO, 32, MOTE_ITEM_BF16>(format);
            check_affine<CODE, ZERO, 64, MOTE_ITEM_F32>(format);
            check_affine<CODE, ZERO, 128, MOTE_ITEM_F32>(format);
        }
    } else
        check_format<CODE, ZERO, TABLE, SUB ? SUB : BLOCK, ITEM, MIN, EXP, BLOCK>(format, COMPACT,
                                                                                  MOTE_FORMAT_F32);
}

static void test_every_kind(void **state)
{
    (void)state;
#define X(id, code, zero, table, sub, item, min, exponent)                                                 \
    check_one<MOTE_FORMAT_##id, 0, MOTE_CODE_##code, zero, MOTE_TABLE_##table, sub, MOTE_ITEM_##item, min, \
              exponent>();
    MOTE_TILE_KINDS(X)
#undef X
#define X(id, code, zero, table, sub, item, min, exponent)                                                 \
    check_one<MOTE_FORMAT_##id, 1, MOTE_CODE_##code, zero, MOTE_TABLE_##table, sub, MOTE_ITEM_##item, min, \
              exponent>();
    MOTE_TILE_COMPACT_KINDS(X)
#undef X
}

/* ---- what the kinds do not show ---- */

static void test_plain_rows(void **state)
{
    (void)state;
    static const enum mote_format formats[] = {MOTE_FORMAT_F32, MOTE_FORMAT_F16, MOTE_FORMAT_BF16,
                                               MOTE_FORMAT_MLX_MXFP8};
    for (enum mote_format format : formats) {
        int64_t n_row = 19, n_col = format == MOTE_FORMAT_MLX_MXFP8 ? 96 : 37;
        struct weights w = make_weights(format, n_row, n_col, random_group(format, 32), MOTE_FORMAT_F32, 1);
        struct mote_tile_kind kind;
        assert_int_equal(mote_tile_kind_of(&w.m, 0, &kind), MOTE_OK);
        assert_int_equal(kind.code, MOTE_CODE_NONE);
        size_t each = kind.item == MOTE_ITEM_F32 ? 4 : 2, row_bytes = ((size_t)n_col * each + 15) / 16 * 16;
        assert_int_equal(mote_tile_bytes(&kind, n_col), 16 * row_bytes);
        size_t size = mote_tile_matrix_bytes(&kind, n_row, n_col);
        assert_int_equal(size, 32 * row_bytes);
        uint8_t *out = (uint8_t *)malloc(size);
        memset(out, 0xA5, size);
        mote_tile_pack(&kind, &w.m, 0, 2, out);
        float want[96];
        for (int64_t r = 0; r < 32; r++) {
            if (r < n_row) mote_decode(&w.m, r, 0, n_col, want);
            for (size_t c = 0; c < row_bytes / each; c++) {
                const uint8_t *at = out + (size_t)r * row_bytes + c * each;
                float got = kind.item == MOTE_ITEM_F32   ? mote_bits_f32(mote_load_u32(at))
                            : kind.item == MOTE_ITEM_F16 ? mote_f16_f32(mote_load_u16(at))
                                                         : mote_bf16_f32(mote_load_u16(at));
                float expected = r < n_row && c < (size_t)n_col ? want[c] : 0;
                if (got != expected)
                    FAIL(&w.m, "row %lld, column %lld: %.9g, expected %.9g", (long long)r, (long long)c,
                         (double)got, (double)expected);
            }
        }
        free(out);
        free_weights(&w);
    }
}

static void test_refused(void **state)
{
    (void)state;
    uint8_t data[64] = {0};
    struct mote_tile_kind kind;
    struct mote_matrix w = mote_matrix_view(MOTE_FORMAT_I8, data, 1, 32);
    assert_int_equal(mote_tile_kind_of(&w, 0, &kind), MOTE_UNSUPPORTED);
    w = mote_matrix_view(MOTE_FORMAT_F32, data, 1, 16);
    w.factor = 2;
    assert_int_equal(mote_tile_kind_of(&w, 0, &kind), MOTE_UNSUPPORTED);
    w = mote_matrix_view(MOTE_FORMAT_AFFINE4, data, 1, 96);
    w.group = 96;
    assert_int_equal(mote_tile_kind_of(&w, 0, &kind), MOTE_UNSUPPORTED);
}

static void test_same(void **state)
{
    (void)state;
    uint8_t data[256] = {0};
    struct mote_tile_kind a, b;
    struct mote_matrix w = mote_matrix_view(MOTE_FORMAT_Q4_0, data, 1, 32);
    assert_int_equal(mote_tile_kind_of(&w, 0, &a), MOTE_OK);
    b = a;
    assert_true(mote_tile_kind_same(&a, &b));
    w = mote_matrix_view(MOTE_FORMAT_Q4_K, data, 1, 256);
    assert_int_equal(mote_tile_kind_of(&w, 0, &b), MOTE_OK);
    assert_false(mote_tile_kind_same(&a, &b));
    b = a, b.has_factor = !a.has_factor;
    assert_false(mote_tile_kind_same(&a, &b));

    /* Ternary weights run the same kernels, unless compact; what is not ternary knows no compact. */
    static const enum mote_format as_ever[] = {MOTE_FORMAT_TQ2_0, MOTE_FORMAT_Q4_K};
    for (enum mote_format format : as_ever) {
        w = mote_matrix_view(format, data, 1, 256);
        assert_int_equal(mote_tile_kind_of(&w, 0, &a), MOTE_OK);
        assert_int_equal(mote_tile_kind_of(&w, 1, &b), MOTE_OK);
        assert_true(mote_tile_kind_same(&a, &b));
    }
    w = mote_matrix_view(MOTE_FORMAT_TQ2_0, data, 1, 256);
    assert_int_equal(mote_tile_kind_of(&w, 0, &a), MOTE_OK);
    w = mote_matrix_view(MOTE_FORMAT_TQ1_0, data, 1, 256);
    assert_int_equal(mote_tile_kind_of(&w, 0, &b), MOTE_OK);
    assert_true(mote_tile_kind_same(&a, &b));
    assert_int_equal(mote_tile_kind_of(&w, 1, &b), MOTE_OK);
    assert_false(mote_tile_kind_same(&a, &b));
}

/* ---- MXFP4's bases ---- */

/* A block of 32 as both formats have it: its scale, its 16 bytes of codes. */
struct mx_block {
    uint8_t *scale, *codes;
};
static mx_block mx_block_at(const struct weights *w, int64_t row, int64_t block)
{
    int64_t n_block = w->m.n_col / 32;
    if (w->m.format == MOTE_FORMAT_MLX_MXFP4)
        return {w->scale + row * n_block + block, w->data + (row * n_block + block) * 16};
    uint8_t *at = w->data + (row * n_block + block) * 17;
    return {at, at + 1};
}
static int mx_is_zero(const mx_block &b) /* both zeros: +0 and -0 */
{
    int any = 0;
    for (int i = 0; i < 16; i++) any |= b.codes[i] & 0x77;
    return !any;
}

/* What rows are made of: E of a row's blocks lies in top - spread .. top, both there; zeros have any. */
struct mx_rows {
    int top, spread, zeros;
};
static void draw_mx_row(struct weights *w, int64_t row, const mx_rows &is)
{
    int64_t n_block = w->m.n_col / 32;
    for (int64_t b = 0; b < n_block; b++) {
        mx_block at = mx_block_at(w, row, b);
        *at.scale = (uint8_t)(b == row % n_block         ? is.top
                              : b == (row + 1) % n_block ? is.top - is.spread
                                                         : is.top - (int)mote_rng_below(&rng, (u32)is.spread + 1));
        at.codes[row % 16] = 0x17; /* not all zeros */
        if (!is.zeros || b == row % n_block || b == (row + 1) % n_block || mote_rng_below(&rng, 2)) continue;
        *at.scale = (uint8_t)mote_rng_u64(&rng);
        for (int i = 0; i < 16; i++) at.codes[i] = (uint8_t)(mote_rng_u64(&rng) & 0x88);
    }
}

/* Every row's base and the tile's verdict, from the file's bytes. */
static void check_mx_tiles(const struct weights *w, uint8_t *tiles, size_t bytes)
{
    for (int64_t tile = 0; tile * 16 < w->m.n_row; tile++) {
        uint8_t base[MOTE_TILE_ROWS];
        int wide = mote_tile_mx_base(tiles + (size_t)tile * bytes, w->m.n_col, base), want_wide = 0;
        for (int64_t i = 0; i < 16; i++) {
            int most = 0, least = 255;
            for (int64_t b = 0; tile * 16 + i < w->m.n_row && b < w->m.n_col / 32; b++) {
                mx_block at = mx_block_at(w, tile * 16 + i, b);
                if (mx_is_zero(at)) {
                    int e = tiles[(size_t)tile * bytes + (size_t)(w->m.n_col + 127) / 128 * 1024 + (size_t)(b * 16 + i % 8 * 2 + i / 8)];
                    if (e != base[i]) FAIL(&w->m, "row %d, zeros: E %d, expected the base %d", (int)(tile * 16 + i), e, base[i]);
                    continue;
                }
                most = *at.scale > most ? *at.scale : most;
                least = *at.scale < least ? *at.scale : least;
            }
            int want = most > 11 ? most - 11 : 0;
            if (base[i] != want) FAIL(&w->m, "row %d: base %d, expected %d", (int)(tile * 16 + i), base[i], want);
            want_wide |= most == 255 ? MOTE_MX_WIDE | MOTE_MX_NO_NUMBER : least < want ? MOTE_MX_WIDE : 0;
        }
        if (wide != want_wide) FAIL(&w->m, "tile %d is %s", (int)tile, wide & MOTE_MX_NO_NUMBER ? "no number" : wide ? "wide" : "not wide");
    }
}

/* One row of a matrix is drawn otherwise, so that the verdict is that row's. */
static void test_mx_base(void **state)
{
    (void)state;
    static const struct {
        mx_rows rows;
        int wide;
    } odd[] = {
        {{120, 11, 1}, 0}, {{120, 12, 1}, 1}, {{11, 11, 1}, 0}, {{12, 12, 1}, 1}, {{0, 0, 1}, 0},
        {{254, 11, 1}, 0}, {{254, 12, 0}, 1}, {{255, 0, 0}, 3}, {{255, 11, 1}, 3}, {{120, 100, 1}, 1},
    };
    for (enum mote_format format : {MOTE_FORMAT_MXFP4, MOTE_FORMAT_MLX_MXFP4})
        for (int n_col : {64, 128, 352})
            for (auto &o : odd) {
                enum { ROWS = 16 + 13 };
                struct weights w = make_weights(format, ROWS, n_col, random_group(format, 32), MOTE_FORMAT_F32, 1);
                int at = (int)mote_rng_below(&rng, ROWS);
                for (int row = 0; row < ROWS; row++) draw_mx_row(&w, row, row == at ? o.rows : mx_rows{100 + row, 11, 1});
                struct mote_tile_kind kind;
                assert_int_equal(mote_tile_kind_of(&w.m, 0, &kind), MOTE_OK);
                size_t bytes = mote_tile_bytes(&kind, n_col);
                uint8_t *tiles = (uint8_t *)malloc(2 * bytes), base[MOTE_TILE_ROWS];
                assert_non_null(tiles);
                mote_tile_pack(&kind, &w.m, 0, 2, tiles);
                check_mx_tiles(&w, tiles, bytes);
                assert_int_equal(mote_tile_mx_base(tiles + (size_t)(at / 16) * bytes, n_col, base), o.wide);
                assert_int_equal(mote_tile_mx_base(tiles + (size_t)(1 - at / 16) * bytes, n_col, base), 0);
                free(tiles);
                free_weights(&w);
            }
}

int main()
{
    const char *given = getenv("MOTE_SEED");
    seed = given ? strtoull(given, NULL, 10) : 20260821;
    mote_rng_seed(&rng, seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_plain_rows),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_mx_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
