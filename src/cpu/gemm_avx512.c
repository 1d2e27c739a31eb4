/* gemm_avx512.c: the prefill product of gemm.h with AVX-512 VNNI.
 *
 * A vector of codes is 16 weight rows x 4 columns; an activation's 4 bytes are broadcast against it, and vpdpbusd adds
 * the four products to 16 sums of 32 bits: no intermediate can overflow, whatever the codes. 2 panels x 6 activation
 * rows are in work at once: 12 vectors of integer sums and 12 of float sums; each broadcast serves 32 rows.
 *
 * Signed codes are made unsigned by adding 128. That, like a format's own offset, is taken back by where the integer
 * sums start: at minus offset times the sum of the activations, which is exact.
 */
#include "cpu/gemm.h"

#if defined(__AVX512VNNI__)

#include <string.h>

#include "cpu/simd_x86.h"

enum {
    PANEL_ROWS = 16,
    PANELS = 2,
    ROWS = PANELS * PANEL_ROWS,
    COLS = 256,
    ACTS = 6,       /* activation rows in registers */
    ACT_TILE = 126, /* activation rows that a panel is unpacked for: their codes fit a second-level cache */
};

struct panel {
    _Alignas(64) uint8_t code[COLS / 4][PANEL_ROWS][4]; /* 4 consecutive columns of a row together */
    _Alignas(64) float scale[16][PANEL_ROWS];           /* [256 / group][row] */
    _Alignas(64) float bias[16][PANEL_ROWS];
};

/* One column tile of the activation rows in work. */
struct act_tile {
    const int8_t *q[ACT_TILE];    /* [256] */
    const float *scale[ACT_TILE]; /* I8_32: [8]; I8_256: [1] */
    const int16_t *sum[ACT_TILE]; /* [16] */
    const float *sum32[ACT_TILE]; /* I8_32: [8] */
    float (*acc)[ROWS];           /* [ACT_TILE]: the sums so far */
    int offset;                   /* what the panel's codes stand too high: 0..128 */
    int n;                        /* even; an odd last row is there twice */
};

typedef void product_fn(const struct panel panel[PANELS], int group_bits, const struct act_tile *x);

/* ---- multiplying a panel ---- */

/* Where the integer sums of steps of `step` columns start, and what multiplies bias: the activations' sums in the unit
 * of the float sums it is added to. */
MOTE_INLINE void load_sums(const struct act_tile *x, int i, const int step, const int is_32,
                           const int has_bias, int32_t start[16], float sums[16])
{
    __m256i sum = mote_load_256(x->sum[i]);
    if (step == 16) {
        __m512i wide = _mm512_cvtepi16_epi32(sum);
        _mm512_store_si512(start, _mm512_mullo_epi32(wide, _mm512_set1_epi32(-x->offset)));
        if (!has_bias) return;
        __m512 f = _mm512_cvtepi32_ps(wide);
        if (is_32) {
            __m512 s = _mm512_castps256_ps512(_mm256_loadu_ps(x->scale[i]));
            const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            f = _mm512_mul_ps(f, _mm512_permutexvar_ps(twice, s));
        }
        _mm512_store_ps(sums, f);
        return;
    }
    __m256i pairs = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    if (step == 256) {
        int32_t total = mote_hsum_i32(pairs);
        start[0] = total * -x->offset;
        sums[0] = (float)total;
        return;
    }
    _mm256_store_si256((__m256i *)(void *)start, _mm256_mullo_epi32(pairs, _mm256_set1_epi32(-x->offset)));
    if (has_bias) _mm256_store_ps(sums, is_32 ? _mm256_loadu_ps(x->sum32[i]) : _mm256_cvtepi32_ps(pairs));
}

/* step: columns per float addition (16, 32, 256). A group that is wider than step repeats its scale. */
MOTE_INLINE void multiply_rows(const struct panel panel[PANELS], int group_bits, const struct act_tile *x,
                               int i, const int acts, const int step, const int is_32, const int has_bias)
{
    _Alignas(64) int32_t start[ACTS][16];
    _Alignas(64) float sums[ACTS][16];
    const int8_t *q[ACTS];
    __m512 acc[PANELS][ACTS];
    MOTE_UNROLL for (int a = 0; a < acts; a++)
    {
        load_sums(x, i + a, step, is_32, has_bias, start[a], sums[a]);
        q[a] = x->q[i + a];
        MOTE_UNROLL for (int p = 0; p < PANELS; p++) acc[p][a] =
            is_32 ? _mm512_load_ps(x->acc[i + a] + PANEL_ROWS * p) : _mm512_setzero_ps();
    }
    for (int s = 0; s < COLS / step; s++) {
        int g = s * step >> group_bits;
        __m512i wide[PANELS][ACTS];
        MOTE_UNROLL for (int a = 0; a < acts; a++) wide[0][a] = wide[1][a] = _mm512_set1_epi32(start[a][s]);
        const int run = step == 16 ? 4 : 8;
        for (int from = 0; from < step / 4; from += run) {
            int quad = s * step / 4 + from;
            MOTE_UNROLL for (int t = 0; t < run; t++)
            {
                __m512i c0 = _mm512_load_si512(panel[0].code[quad + t]),
                        c1 = _mm512_load_si512(panel[1].code[quad + t]);
                MOTE_UNROLL for (int a = 0; a < acts; a++)
                {
                    __m512i b = _mm512_set1_epi32((int)mote_load_u32(q[a] + 4 * (quad + t)));
                    wide[0][a] = _mm512_dpbusd_epi32(wide[0][a], c0, b);
                    wide[1][a] = _mm512_dpbusd_epi32(wide[1][a], c1, b);
                }
            }
        }
        MOTE_UNROLL for (int p = 0; p < PANELS; p++)
        {
            __m512 scale = _mm512_load_ps(panel[p].scale[g]);
            MOTE_UNROLL for (int a = 0; a < acts; a++)
            {
                __m512 by = scale;
                if (is_32) by = _mm512_mul_ps(by, _mm512_set1_ps(x->scale[i + a][s * step / 32]));
                acc[p][a] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide[p][a]), by, acc[p][a]);
            }
            if (!has_bias) continue;
            __m512 bias = _mm512_load_ps(panel[p].bias[g]);
            MOTE_UNROLL for (int a = 0; a < acts; a++) acc[p][a] =
                _mm512_fmadd_ps(bias, _mm512_set1_ps(sums[a][s]), acc[p][a]);
        }
    }
    MOTE_UNROLL for (int a = 0; a < acts; a++) MOTE_UNROLL for (int p = 0; p < PANELS; p++)
    {
        float *out = x->acc[i + a] + PANEL_ROWS * p;
        if (!is_32)
            acc[p][a] = _mm512_fmadd_ps(acc[p][a], _mm512_set1_ps(x->scale[i + a][0]), _mm512_load_ps(out));
        _mm512_store_ps(out, acc[p][a]);
    }
}

#define DEFINE(name, step, is_32, has_bias)                                                      \
    static void name(const struct panel panel[PANELS], int group_bits, const struct act_tile *x) \
    {                                                                                            \
        int i = 0;                                                                               \
        for (; i + ACTS <= x->n; i += ACTS)                                                      \
            multiply_rows(panel, group_bits, x, i, ACTS, step, is_32, has_bias);                 \
        if (i + 4 <= x->n) multiply_rows(panel, group_bits, x, i, 4, step, is_32, has_bias);     \
        else if (i < x->n) multiply_rows(panel, group_bits, x, i, 2, step, is_32, has_bias);     \
    }
DEFINE(product_16_256, 16, 0, 0)
DEFINE(product_16_256_bias, 16, 0, 1)
DEFINE(product_16_32, 16, 1, 0)
DEFINE(product_16_32_bias, 16, 1, 1)
DEFINE(product_32_256, 32, 0, 0)
DEFINE(product_32_256_bias, 32, 0, 1)
DEFINE(product_32_32, 32, 1, 0)
DEFINE(product_32_32_bias, 32, 1, 1)
/* One scale for the whole tile needs no float work inside it (TQ1_0, TQ2_0). */
DEFINE(product_256_256, 256, 0, 0)
DEFINE(product_256_256_bias, 256, 0, 1)

static product_fn *choose(const struct mote_unpack *unpack, int is_32)
{
    static product_fn *const fn[3][2][2] = {
        {{product_16_256, product_16_256_bias}, {product_16_32, product_16_32_bias}},
        {{product_32_256, product_32_256_bias}, {product_32_32, product_32_32_bias}},
        {{product_256_256, product_256_256_bias}, {product_32_32, product_32_32_bias}},
    };
    int width = unpack->group == 16 ? 0 : unpack->group == 256 ? 2 : 1;
    return fn[width][is_32][unpack->has_bias];
}

/* ---- making a panel ---- */

/* Transpose 16 x 16 elements of 32 bits in registers. */
MOTE_INLINE void transpose_16x16(__m512i v[16])
{
    __m512i a[16], b[16];
    MOTE_UNROLL for (int i = 0; i < 16; i += 2)
    {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    /* b[4 j + c]: rows 4 j .. 4 j + 3 of columns c, c + 4, c + 8, c + 12, a quarter each */
    MOTE_UNROLL for (int i = 0; i < 16; i += 4)
    {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    MOTE_UNROLL for (int c = 0; c < 4; c++)
    {
        /* quarters 0 and 2, then 1 and 3 */
        __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88),
                odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xDD);
        __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88),
                odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xDD);
        v[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        v[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        v[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
        v[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
    }
}

/* Rows [row, row + n_row), n_row <= 16, of columns [col, col + 256); missing rows are zeros. */
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
    const __m512i flip = _mm512_set1_epi8(unpack->is_signed ? -128 : 0);
    __m512i v[PANEL_ROWS];
    for (int k = 0; k < COLS / 64; k++) {
        MOTE_UNROLL for (int r = 0; r < PANEL_ROWS; r++) v[r] =
            _mm512_xor_si512(_mm512_load_si512(code[r] + 64 * k), flip);
        transpose_16x16(v);
        MOTE_UNROLL for (int j = 0; j < 16; j++) _mm512_store_si512(panel->code[16 * k + j], v[j]);
    }
    MOTE_UNROLL for (int r = 0; r < PANEL_ROWS; r++) v[r] = _mm512_load_si512(scale[r]);
    transpose_16x16(v);
    MOTE_UNROLL for (int g = 0; g < 16; g++) _mm512_store_si512(panel->scale[g], v[g]);
    if (!unpack->has_bias) return;
    MOTE_UNROLL for (int r = 0; r < PANEL_ROWS; r++) v[r] = _mm512_load_si512(bias[r]);
    transpose_16x16(v);
    MOTE_UNROLL for (int g = 0; g < 16; g++) _mm512_store_si512(panel->bias[g], v[g]);
}

/* ---- the loops ---- */

void mote_gemm_avx512(const struct mote_unpack *unpack, MOTE_MATMUL_ARGS)
{
    int is_32 = mote_act_group(x->type) == 32;
    product_fn *multiply = choose(unpack, is_32);
    int group_bits = __builtin_ctz((unsigned)unpack->group);
    struct panel panel[PANELS];
    _Alignas(64) float acc[ACT_TILE][ROWS];
    struct act_tile tile = {.acc = acc, .offset = unpack->is_signed ? 128 : unpack->offset};
    int64_t n_tile = (n_x + ACT_TILE - 1) / ACT_TILE;
    for (int64_t t = 0, first = 0; t < n_tile; t++) { /* tiles of even size */
        int n_act = (int)((n_x - first) / (n_tile - t));
        tile.n = n_act + n_act % 2;
        for (int64_t r = 0; r < n_row; r += ROWS) {
            int n_r = (int)(n_row - r < ROWS ? n_row - r : ROWS);
            memset(acc, 0, sizeof acc[0] * (size_t)tile.n);
            for (int64_t col = 0; col < w->n_col; col += COLS) {
                for (int p = 0; p < PANELS; p++) {
                    int left = n_r - p * PANEL_ROWS, n = left < PANEL_ROWS ? left : PANEL_ROWS;
                    if (n > 0) make_panel(unpack, w, row + r + p * PANEL_ROWS, n, col, &panel[p]);
                    else if (!col) memset(&panel[p], 0, sizeof panel[p]);
                }
                for (int i = 0; i < tile.n; i++) {
                    int64_t from = first + (i < n_act ? i : n_act - 1), at = x_row ? x_row[from] : from;
                    at = at * x->stride + col;
                    tile.q[i] = x->q + at;
                    tile.scale[i] = x->scale + at / (is_32 ? 32 : 256);
                    tile.sum[i] = x->sum + at / 16;
                    if (is_32) tile.sum32[i] = x->sum32 + at / 32;
                }
                multiply(panel, group_bits, &tile);
            }
            for (int i = 0; i < n_act; i++)
                memcpy(y + (first + i) * y_stride + r, acc[i], sizeof(float) * (size_t)n_r);
        }
        first += n_act;
    }
}

#endif
