/* gemm_avx2.c: the prefill product of gemm.h with AVX2.
 *
 * A vector of codes is 8 weight rows x 4 columns; an activation's 4 bytes are broadcast against it. 2 panels x 3
 * activation rows are in work at once: 6 vectors of 16-bit sums and 6 of float sums fill the registers, and each
 * broadcast serves 16 rows.
 * How often products may be added in 16 bits before widening (run) follows from the largest code:
 * run * 2 * max_code * 127 <= 32767.
 * Codes with an offset leave room for twice the run: sums of 16 bits may wrap as long as what is left of them once
 * offset times the activations' sum is off fits again (CENTRED).
 */
#include "cpu/gemm.h"

#if defined(__AVX2__)

#include <string.h>

#include "cpu/simd_x86.h"

enum {
    PANEL_ROWS = 8,
    PANELS = 2,
    ROWS = PANELS * PANEL_ROWS,
    COLS = 256,
    ACTS = 3,       /* activation rows in registers */
    ACT_TILE = 129, /* activation rows that a panel is unpacked for: their codes fit a second-level cache */
    BLOCKS = 4,     /* of ROWS weight rows, that a column tile of the activation rows is prepared for */
};

/* A tile of weights. */
struct panel {
    _Alignas(64) uint8_t code[COLS / 4][PANEL_ROWS][4]; /* 4 consecutive columns of a row together */
    _Alignas(64) float scale[16][PANEL_ROWS];           /* [256 / group][row] */
    _Alignas(64) float bias[16][PANEL_ROWS];
};

/* One column tile of the activation rows in work. Rows past the end repeat the last one. */
struct act_tile {
    int8_t (*q)[COLS];            /* [ACT_TILE]: copied: rows a power of two apart share few cache sets */
    const float *scale[ACT_TILE]; /* I8_32: [8]; I8_256: [1] */
    const int16_t *sum[ACT_TILE]; /* [16] */
    const float *sum32[ACT_TILE]; /* I8_32: [8] */
    int32_t (*centre)[COLS / 8];  /* [ACT_TILE]: pairs of 16 bits: what the offset adds to each run's sums */
    float (*acc)[ROWS];           /* [ACT_TILE]: the sums so far */
    float offset;                 /* of the panel's codes */
    int n;                        /* multiple of ACTS */
};

typedef void product_fn(const struct panel *panel, int group_bits, const struct act_tile *x);

/* What w adds to scale * code: nothing, a bias for every group, or scale * -offset, which is taken off before scaling
 * and so leaves weights of zero at exactly zero. CENTRED: as OFFSET, taken off each run's sums of 16 bits (find_centre). */
enum { CODE_ONLY, BIAS, OFFSET, KIND_COUNT, CENTRED = KIND_COUNT };

/* BIAS: what multiplies bias: activation sums per step columns, in the unit of the accumulator it is added to.
 * OFFSET: the sums of codes per step columns times the offset, exactly. */
MOTE_INLINE void load_sums(const struct act_tile *x, int i, int step, int is_32, int kind, float *out)
{
    if (kind == OFFSET) is_32 = 0;
    if (is_32 && step == 32) {
        _mm256_store_ps(out, _mm256_loadu_ps(x->sum32[i]));
        return;
    }
    __m256i sum = mote_load_256(x->sum[i]);
    if (step == 16) {
        __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sum)));
        __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(sum, 1)));
        if (is_32) {
            __m256 s = _mm256_loadu_ps(x->scale[i]);
            low = _mm256_mul_ps(low, _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
            high =
                _mm256_mul_ps(high, _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
        }
        if (kind == OFFSET) {
            low = _mm256_mul_ps(low, _mm256_set1_ps(x->offset));
            high = _mm256_mul_ps(high, _mm256_set1_ps(x->offset));
        }
        _mm256_store_ps(out, low);
        _mm256_store_ps(out + 8, high);
        return;
    }
    __m256i pairs = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    __m256 unit = _mm256_set1_ps(kind == OFFSET ? x->offset : 1);
    if (step == 32) _mm256_store_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(pairs), unit));
    else out[0] = (float)mote_hsum_i32(pairs) * _mm256_cvtss_f32(unit);
}

/* step: columns per float addition (16, 32, 256). A group that is wider than step repeats its scale. */
MOTE_INLINE void start(const struct act_tile *x, int i, const int step, const int is_32, const int kind,
                       float sums[ACTS][16], __m256 acc[PANELS][ACTS])
{
    MOTE_UNROLL for (int a = 0; a < ACTS; a++)
    {
        if (kind == BIAS || kind == OFFSET) load_sums(x, i + a, step, is_32, kind, sums[a]);
        MOTE_UNROLL for (int p = 0; p < PANELS; p++) acc[p][a] =
            is_32 ? _mm256_load_ps(x->acc[i + a] + PANEL_ROWS * p) : _mm256_setzero_ps();
    }
}

/* Step s is done: its integer sums times the scales of group g, and bias times the activations' sums. */
MOTE_INLINE void scale_sums(const struct panel *panel, int g, const struct act_tile *x, int i, int s,
                            const int step, const int is_32, const int kind, __m256i wide[PANELS][ACTS],
                            float sums[ACTS][16], __m256 acc[PANELS][ACTS])
{
    MOTE_UNROLL for (int p = 0; p < PANELS; p++)
    {
        __m256 scale = _mm256_load_ps(panel[p].scale[g]);
        MOTE_UNROLL for (int a = 0; a < ACTS; a++)
        {
            __m256 by = scale;
            if (is_32) by = _mm256_mul_ps(by, _mm256_broadcast_ss(x->scale[i + a] + s * step / 32));
            __m256 sum = _mm256_cvtepi32_ps(wide[p][a]);
            if (kind == OFFSET) sum = _mm256_sub_ps(sum, _mm256_broadcast_ss(&sums[a][s]));
            acc[p][a] = _mm256_fmadd_ps(sum, by, acc[p][a]);
        }
        if (kind != BIAS) continue;
        __m256 bias = _mm256_load_ps(panel[p].bias[g]);
        MOTE_UNROLL for (int a = 0; a < ACTS; a++) acc[p][a] =
            _mm256_fmadd_ps(bias, _mm256_broadcast_ss(&sums[a][s]), acc[p][a]);
    }
}

MOTE_INLINE void finish(const struct act_tile *x, int i, const int is_32, __m256 acc[PANELS][ACTS])
{
    MOTE_UNROLL for (int a = 0; a < ACTS; a++) MOTE_UNROLL for (int p = 0; p < PANELS; p++)
    {
        float *out = x->acc[i + a] + PANEL_ROWS * p;
        if (!is_32)
            acc[p][a] = _mm256_fmadd_ps(acc[p][a], _mm256_broadcast_ss(x->scale[i + a]), _mm256_load_ps(out));
        _mm256_store_ps(out, acc[p][a]);
    }
}

/* How the 8 quads of 32 columns make runs whose offset is taken off in 16 bits: 3 + 3 + 2, or in twos. */
enum { IN_TWOS = 2, IN_THREES = 3 };

/* centre[4 k + j]: offset times the activations' sums over run j of columns [32 k, 32 k + 32), where a quad's columns
 * 0, 1 and 2, 3 are summed apart, as _mm256_maddubs_epi16 does. */
static void find_centre(const int8_t *q, int offset, int run, int32_t centre[COLS / 8])
{
    const __m256i unit = _mm256_set1_epi8((char)offset);
    for (int k = 0; k < COLS / 32; k++) {
        __m256i quad = _mm256_maddubs_epi16(unit, mote_load_256(q + 32 * k)), sum;
        if (run == IN_TWOS) {
            sum = _mm256_add_epi16(quad, _mm256_shuffle_epi32(quad, 0xB1));
            sum = _mm256_permutevar8x32_epi32(sum, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
        } else {
            __m256i second = _mm256_permutevar8x32_epi32(quad, _mm256_setr_epi32(1, 4, 7, 0, 0, 0, 0, 0));
            __m256i third = _mm256_permutevar8x32_epi32(quad, _mm256_setr_epi32(2, 5, 0, 0, 0, 0, 0, 0));
            third = _mm256_blend_epi32(third, _mm256_setzero_si256(), 4);
            sum = _mm256_permutevar8x32_epi32(quad, _mm256_setr_epi32(0, 3, 6, 0, 0, 0, 0, 0));
            sum = _mm256_add_epi16(sum, _mm256_add_epi16(second, third));
        }
        _mm_store_si128((__m128i *)(void *)(centre + 4 * k), _mm256_castsi256_si128(sum));
    }
}

MOTE_INLINE void product(const struct panel *panel, int group_bits, const struct act_tile *x, const int step,
                         const int run, const int is_32, const int kind)
{
    const __m256i one = _mm256_set1_epi16(1);
    for (int i = 0; i < x->n; i += ACTS) {
        _Alignas(32) float sums[ACTS][16];
        __m256 acc[PANELS][ACTS];
        start(x, i, step, is_32, kind, sums, acc);
        const int8_t *q = x->q[i];
        for (int s = 0; s < COLS / step; s++) {
            const int32_t *centre = x->centre[i] + s * (step / 8);
            __m256i wide[PANELS][ACTS];
            MOTE_UNROLL for (int k = 0; k < (step / 4 + run - 1) / run; k++)
            {
                __m256i narrow[PANELS][ACTS];
                int quad = s * (step / 4) + k * run;
                MOTE_UNROLL for (int t = 0; t < run; t++)
                {
                    if (kind == CENTRED && k * run + t >= step / 4) break;
                    const int at = 4 * (quad + t);
                    __m256i c[PANELS];
                    MOTE_UNROLL for (int p = 0; p < PANELS; p++) c[p] =
                        _mm256_load_si256((const __m256i *)(const void *)panel[p].code[quad + t]);
                    MOTE_UNROLL for (int a = 0; a < ACTS; a++)
                    {
                        __m256i b = mote_broadcast_u32(q + a * COLS + at);
                        MOTE_UNROLL for (int p = 0; p < PANELS; p++)
                        {
                            __m256i m = _mm256_maddubs_epi16(c[p], b);
                            narrow[p][a] = t ? _mm256_add_epi16(narrow[p][a], m) : m;
                            MOTE_KEEP(narrow[p][a]);
                        }
                    }
                }
                MOTE_UNROLL for (int p = 0; p < PANELS; p++) MOTE_UNROLL for (int a = 0; a < ACTS; a++)
                {
                    __m256i sum = narrow[p][a];
                    if (kind == CENTRED)
                        sum = _mm256_sub_epi16(sum, mote_broadcast_u32(centre + a * (COLS / 8) + k));
                    sum = _mm256_madd_epi16(sum, one);
                    wide[p][a] = k ? _mm256_add_epi32(wide[p][a], sum) : sum;
                    MOTE_KEEP(wide[p][a]);
                }
            }
            scale_sums(panel, s * step >> group_bits, x, i, s, step, is_32, kind, wide, sums, acc);
        }
        finish(x, i, is_32, acc);
    }
}

/* 8-bit signed codes leave no room in 16 bits: both sides are widened first, columns (0, 2) and (1, 3) of a quad
 * paired, which needs two shifts and no shuffle. */
MOTE_INLINE void product_signed(const struct panel *panel, int group_bits, const struct act_tile *x,
                                const int step, const int is_32, const int kind)
{
    _Alignas(64) int16_t code[PANELS][COLS / 2][PANEL_ROWS][2];
    _Alignas(64) int16_t q[ACTS][COLS / 32][2][16];
    for (int p = 0; p < PANELS; p++)
        for (int k = 0; k < COLS / 4; k++) {
            __m256i c = _mm256_load_si256((const __m256i *)(const void *)panel[p].code[k]);
            mote_store_256(code[p][2 * k], _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8));
            mote_store_256(code[p][2 * k + 1], _mm256_srai_epi16(c, 8));
        }
    for (int i = 0; i < x->n; i += ACTS) {
        _Alignas(32) float sums[ACTS][16];
        __m256 acc[PANELS][ACTS];
        start(x, i, step, is_32, kind, sums, acc);
        for (int a = 0; a < ACTS; a++)
            for (int k = 0; k < COLS / 32; k++) {
                __m256i v = mote_load_256(x->q[i + a] + 32 * k);
                mote_store_256(q[a][k][0], _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
                mote_store_256(q[a][k][1], _mm256_srai_epi16(v, 8));
            }
        for (int s = 0; s < COLS / step; s++) {
            __m256i wide[PANELS][ACTS];
            MOTE_UNROLL for (int half = 0; half < step / 16; half++)
            { /* 4 quads of columns */
                int k = s * step + 16 * half;
                const int16_t *pair = q[0][k / 32][0] + k % 32 / 2;
                MOTE_UNROLL for (int t = 0; t < 8; t++)
                {
                    __m256i b[ACTS];
                    MOTE_UNROLL for (int a = 0; a < ACTS; a++) b[a] =
                        mote_broadcast_u32(pair + a * COLS + t % 2 * 16 + t / 2 * 2);
                    MOTE_UNROLL for (int p = 0; p < PANELS; p++)
                    {
                        __m256i c = _mm256_load_si256((const __m256i *)(const void *)code[p][k / 2 + t]);
                        MOTE_UNROLL for (int a = 0; a < ACTS; a++)
                        {
                            __m256i m = _mm256_madd_epi16(c, b[a]);
                            wide[p][a] = half || t ? _mm256_add_epi32(wide[p][a], m) : m;
                            MOTE_KEEP(wide[p][a]);
                        }
                    }
                }
            }
            scale_sums(panel, s * step >> group_bits, x, i, s, step, is_32, kind, wide, sums, acc);
        }
        finish(x, i, is_32, acc);
    }
}

/* X(step, run); run 0: signed. The index of a product is [position here][is_32][kind]. */
#define PRODUCTS(X) X(16, 1) X(16, 2) X(16, 4) X(16, 0) X(32, 1) X(32, 2) X(32, 4) X(32, 8) X(32, 0)

#define DEFINE_ONE(name, step, run, is_32, kind)                                          \
    static void name(const struct panel *panel, int group_bits, const struct act_tile *x) \
    {                                                                                     \
        if (run) product(panel, group_bits, x, step, run ? run : 1, is_32, kind);         \
        else product_signed(panel, group_bits, x, step, is_32, kind);                     \
    }
#define DEFINE(step, run)                                              \
    DEFINE_ONE(product_##step##_##run##_256, step, run, 0, CODE_ONLY)  \
    DEFINE_ONE(product_##step##_##run##_256_bias, step, run, 0, BIAS)  \
    DEFINE_ONE(product_##step##_##run##_256_off, step, run, 0, OFFSET) \
    DEFINE_ONE(product_##step##_##run##_32, step, run, 1, CODE_ONLY)   \
    DEFINE_ONE(product_##step##_##run##_32_bias, step, run, 1, BIAS)   \
    DEFINE_ONE(product_##step##_##run##_32_off, step, run, 1, OFFSET)
PRODUCTS(DEFINE)
/* One scale for the whole tile needs no float work inside it (TQ1_0, TQ2_0). */
DEFINE_ONE(product_256_8_256, 256, 8, 0, CODE_ONLY)
DEFINE_ONE(product_256_8_256_bias, 256, 8, 0, BIAS)
DEFINE_ONE(product_256_8_256_off, 256, 8, 0, OFFSET)

#define CENTRED_PRODUCTS(X) \
    X(32, IN_THREES, 0)     \
    X(32, IN_THREES, 1) X(32, IN_TWOS, 0) X(32, IN_TWOS, 1) X(16, IN_TWOS, 0) X(16, IN_TWOS, 1)
#define DEFINE_CENTRED(step, run, is_32)                                                    \
    static void centred_##step##_##run##_##is_32(const struct panel *panel, int group_bits, \
                                                 const struct act_tile *x)                  \
    {                                                                                       \
        product(panel, group_bits, x, step, run, is_32, CENTRED);                           \
    }
CENTRED_PRODUCTS(DEFINE_CENTRED)

/* How many quads' products of codes from -offset to offset fit 16 bits, where fewer of codes from 0 on do. */
static int centred_run(const struct mote_unpack *unpack)
{
    if (!unpack->offset || 2 * 2 * 127 * unpack->max_code <= 32767) return 0;
    int far = unpack->max_code - unpack->offset;
    if (far < unpack->offset) far = unpack->offset;
    int room = 32767 / (2 * 127 * far);
    return room >= 3 && unpack->group > 16 ? IN_THREES : room >= 2 ? IN_TWOS : 0;
}

static product_fn *choose(const struct mote_unpack *unpack, int is_32)
{
    static product_fn *const centred[2][2][2] = {
        {{centred_16_IN_TWOS_0, centred_16_IN_TWOS_1}, {centred_16_IN_TWOS_0, centred_16_IN_TWOS_1}},
        {{centred_32_IN_TWOS_0, centred_32_IN_TWOS_1}, {centred_32_IN_THREES_0, centred_32_IN_THREES_1}}};
    int run = centred_run(unpack);
    if (run) return centred[unpack->group > 16][run == IN_THREES][is_32];
    static product_fn *const whole[KIND_COUNT] = {product_256_8_256, product_256_8_256_bias,
                                                  product_256_8_256_off};
    static const struct {
        int step, run;
        product_fn *fn[2][KIND_COUNT];
    } table[] = {
#define ROW(step, run)                                                                                     \
    {step,                                                                                                 \
     run,                                                                                                  \
     {{product_##step##_##run##_256, product_##step##_##run##_256_bias, product_##step##_##run##_256_off}, \
      {product_##step##_##run##_32, product_##step##_##run##_32_bias, product_##step##_##run##_32_off}}},
        PRODUCTS(ROW)
#undef ROW
    };
    int room = unpack->is_signed ? 0 : 32767 / (2 * 127 * (unpack->max_code ? unpack->max_code : 1));
    int kind = unpack->has_bias ? BIAS : unpack->offset != 0 ? OFFSET : CODE_ONLY;
    if (unpack->group == 256 && !is_32 && room >= 8) return whole[kind];
    int step = unpack->group == 16 ? 16 : 32, best = 0;
    for (int i = 0; i < (int)(sizeof table / sizeof table[0]); i++) {
        int fits = unpack->is_signed ? table[i].run == 0 : table[i].run && table[i].run <= room;
        if (table[i].step == step && fits && (table[best].step != step || table[i].run >= table[best].run))
            best = i;
    }
    return table[best].fn[is_32][kind];
}

/* ---- making a panel ---- */

static void transpose_floats(const float rows[PANEL_ROWS][16], int n, float out[16][PANEL_ROWS])
{
    for (int from = 0; from < n; from += 8) {
        __m256i v[8];
        MOTE_UNROLL for (int r = 0; r < 8; r++) v[r] = mote_load_256(&rows[r][from]);
        mote_transpose_8x8(v);
        MOTE_UNROLL for (int g = 0; g < 8; g++) mote_store_256(out[from + g], v[g]);
    }
}

/* Rows [row, row + n_row), n_row <= 8, of columns [col, col + 256); missing rows are zeros. */
static void make_panel(const struct mote_unpack *unpack, const struct mote_matrix *w, int64_t row, int n_row,
                       int64_t col, struct panel *panel)
{
    _Alignas(64) uint8_t code[PANEL_ROWS][COLS];
    _Alignas(64) float scale[PANEL_ROWS][16], bias[PANEL_ROWS][16];
    for (int r = 0; r < n_row; r++) unpack->unpack(w, row + r, col, code[r], scale[r], bias[r]);
    for (int r = n_row; r < PANEL_ROWS; r++) {
        memset(code[r], 0, sizeof code[r]);
        memset(scale[r], 0, sizeof scale[r]);
        memset(bias[r], 0, sizeof bias[r]);
    }
    for (int k = 0; k < COLS / 32; k++) {
        __m256i v[8];
        MOTE_UNROLL for (int r = 0; r < 8; r++) v[r] = mote_load_256(&code[r][32 * k]);
        mote_transpose_8x8(v);
        MOTE_UNROLL for (int j = 0; j < 8; j++) mote_store_256(panel->code[8 * k + j], v[j]);
    }
    transpose_floats((const float(*)[16])scale, COLS / unpack->group, panel->scale);
    if (unpack->has_bias) transpose_floats((const float(*)[16])bias, COLS / unpack->group, panel->bias);
}

/* ---- the loops ---- */

/* The row after the one in work comes from memory anew, and no column tile of it is long enough to be foreseen. */
static void prefetch(const struct mote_matrix *w, int64_t row, int64_t n, int64_t col)
{
    if (col >= w->n_col) return;
    size_t bytes = w->row_bytes * COLS / (size_t)w->n_col, at = w->row_bytes * (size_t)col / (size_t)w->n_col;
    for (int64_t r = row; r < row + n; r++) {
        const char *p = (const char *)w->data + (size_t)r * w->row_bytes + at;
        for (size_t k = 0; k < bytes; k += 64) _mm_prefetch(p + k, _MM_HINT_T0);
    }
}

/* Rows of activations lie apart, more of them than a second-level cache holds: the copy would wait for each. */
static void prefetch_codes(const struct mote_act *x, int64_t row, int64_t col)
{
    if (col >= x->n_col) return;
    const char *p = (const char *)x->q + row * x->stride + col;
    MOTE_UNROLL for (int k = 0; k < COLS; k += 64) _mm_prefetch(p + k, _MM_HINT_T1);
}

void mote_gemm_avx2(const struct mote_unpack *unpack, MOTE_MATMUL_ARGS)
{
    int is_32 = mote_act_group(x->type) == 32, run = centred_run(unpack);
    product_fn *multiply = choose(unpack, is_32);
    int group_bits = __builtin_ctz((unsigned)unpack->group);
    struct panel panel[PANELS];
    _Alignas(64) float acc[BLOCKS][ACT_TILE][ROWS];
    _Alignas(64) int8_t q[ACT_TILE][COLS];
    _Alignas(64) int32_t centre[ACT_TILE][COLS / 8];
    struct act_tile tile = {.q = q, .centre = centre, .offset = (float)unpack->offset};
    int64_t n_tile = (n_x + ACT_TILE - 1) / ACT_TILE;
    for (int64_t t = 0, first = 0; t < n_tile; t++) { /* tiles of even size */
        int n_act = (int)((n_x - first) / (n_tile - t));
        tile.n = (n_act + ACTS - 1) / ACTS * ACTS;
        for (int64_t span = 0; span < n_row; span += BLOCKS * ROWS) {
            int n_span = (int)(n_row - span < BLOCKS * ROWS ? n_row - span : BLOCKS * ROWS);
            int n_block = (n_span + ROWS - 1) / ROWS;
            prefetch(w, row + span, n_span, 0);
            for (int64_t i = first; i < first + n_act; i++) prefetch_codes(x, x_row ? x_row[i] : i, 0);
            for (int b = 0; b < n_block; b++) memset(acc[b], 0, sizeof acc[b][0] * (size_t)tile.n);
            for (int64_t col = 0; col < w->n_col; col += COLS) {
                for (int i = 0; i < tile.n; i++) {
                    int64_t from = first + (i < n_act ? i : n_act - 1), at = x_row ? x_row[from] : from;
                    prefetch_codes(x, at, col + COLS);
                    at = at * x->stride + col;
                    memcpy(q[i], x->q + at, sizeof q[i]);
                    tile.scale[i] = x->scale + at / (is_32 ? 32 : 256);
                    tile.sum[i] = x->sum + at / 16;
                    if (is_32) tile.sum32[i] = x->sum32 + at / 32;
                    if (run) find_centre(q[i], unpack->offset, run, centre[i]);
                }
                for (int b = 0; b < n_block; b++) {
                    int64_t r = span + b * ROWS;
                    int n_r = n_span - b * ROWS < ROWS ? n_span - b * ROWS : ROWS;
                    prefetch(w, row + r, n_r, col + COLS);
                    int64_t below = n_row - (r + BLOCKS * ROWS); /* of the span after this one */
                    prefetch(w, row + r + BLOCKS * ROWS, below < n_r ? below : n_r, col);
                    for (int p = 0; p < PANELS; p++) {
                        int left = n_r - p * PANEL_ROWS, n = left < PANEL_ROWS ? left : PANEL_ROWS;
                        if (n > 0) make_panel(unpack, w, row + r + p * PANEL_ROWS, n, col, &panel[p]);
                        else memset(&panel[p], 0, sizeof panel[p]);
                    }
                    tile.acc = acc[b];
                    multiply(panel, group_bits, &tile);
                }
            }
            for (int i = 0; i < n_act; i++)
                for (int b = 0; b < n_block; b++) {
                    int n_r = n_span - b * ROWS < ROWS ? n_span - b * ROWS : ROWS;
                    memcpy(y + (first + i) * y_stride + span + b * ROWS, acc[b][i],
                           sizeof(float) * (size_t)n_r);
                }
        }
        first += n_act;
    }
}

#endif
