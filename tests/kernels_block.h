/* kernels_block.h: for tests of mote/kernels.h: a block with weights in any format and layout, rows for it, and what comes out
 * in float64 over the decoded weights.
 *
 * One idea: the reference reads weights row by row through the format's decoder, in the order in which the layout says they
 * lie; it knows nothing of how the library finds them. */
#ifndef MOTE_TESTS_KERNELS_BLOCK_H
#define MOTE_TESTS_KERNELS_BLOCK_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "activation64.h"
#include "base/float_rows.h"
#include "mote/kernels.h"
#include "must.h"
#include "quant/mxfp4.h"
#include "random_matrix.h"

enum { BLOCK_EXPERTS = 4, BLOCK_USED = 2, BLOCK_MODEL = 512, BLOCK_FF = 256, BLOCK_ROWS = 11 };
enum { GATE, UP, DOWN, PROJECTIONS };

struct recipe {
    const char *format[PROJECTIONS]; /* gate (NULL: none), up, down */
    enum mote_gate_up gate_up;
    const char *activation, *act;
    float limit;
    enum mote_float_type scale_type, x_type, y_type;
    int group, has_factor;
};

struct block {
    struct mote_moe_options options;
    struct mote_activation activation;
    struct mote_matrix tensor[PROJECTIONS]; /* as they lie, all experts: [BLOCK_EXPERTS * rows][columns] */
    void *plane[PROJECTIONS][3];            /* data, scale, bias behind them */
    int64_t n_weight[PROJECTIONS];
    float factor[PROJECTIONS][BLOCK_EXPERTS];
    double *value[PROJECTIONS]; /* [expert][row][column], gate and up apart */
};

/* Gaussian rows of unit length through the encoder; random bytes where there is none. */
static inline struct mote_weights weights_make(struct mote_rng *rng, struct block *b, int p,
                                               const struct recipe *r, int64_t n_row, int64_t n_col)
{
    struct mote_weights w = {.format = r->format[p], .scale_type = r->scale_type, .group = r->group};
    size_t size[3], n = (size_t)(n_row * n_col);
    must(mote_rows_bytes(&w, n_row, n_col, &size[0], &size[1], &size[2]));
    for (int i = 0; i < 3; i++) b->plane[p][i] = size[i] ? malloc(size[i]) : NULL;
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i += 2) {
        double two[2];
        mote_rng_normal2(rng, two);
        x[i] = (float)(two[0] / sqrt((double)n_col));
        x[i + 1] = (float)(two[1] / sqrt((double)n_col));
    }
    struct mote_matrix m =
        mote_matrix_view((enum mote_format)mote_format_from_name(w.format), NULL, n_row, n_col);
    static const enum mote_format scale_format[] = {MOTE_FORMAT_F32, MOTE_FORMAT_BF16, MOTE_FORMAT_F16};
    m.scale_format = scale_format[r->scale_type];
    m.group = random_group(m.format, r->group ? r->group : 64);
    mote_status status =
        mote_rows_quantise(&w, x, n_row, n_col, NULL, b->plane[p][0], b->plane[p][1], b->plane[p][2]);
    if (status == MOTE_UNSUPPORTED)
        random_fill(rng, &m, RANDOM, b->plane[p][0], b->plane[p][1], b->plane[p][2]);
    else must(status);
    free(x);
    m.data = w.data = b->plane[p][0];
    m.scale = w.scale = b->plane[p][1];
    m.bias = w.bias = b->plane[p][2];
    b->tensor[p] = m;
    b->n_weight[p] = (int64_t)n;
    return w;
}

/* Row `row` of an expert's projection, decoded, to `out`. */
static inline void decode_weights(const struct block *b, int p, int64_t e, int64_t row, double *out)
{
    enum mote_gate_up how = b->options.gate_up;
    int64_t rows = p == DOWN ? BLOCK_MODEL : BLOCK_FF, at = e * rows + row;
    int tensor = p;
    if (p != DOWN && how != MOTE_GATE_UP_APART) {
        int is_second = (p == UP) != (how == MOTE_UP_GATE_STACKED);
        tensor = GATE;
        at = how == MOTE_GATE_UP_INTERLEAVED ? 2 * (e * BLOCK_FF + row) + (p == UP)
                                             : e * 2 * BLOCK_FF + is_second * BLOCK_FF + row;
    }
    const struct mote_matrix *m = &b->tensor[tensor];
    float wide[BLOCK_MODEL];
    mote_decode(m, at, 0, m->n_col, wide);
    for (int64_t c = 0; c < m->n_col; c++) out[c] = (double)wide[c] * (double)b->factor[tensor][e];
}

static inline void block_make(struct mote_rng *rng, struct block *b, const struct recipe *r)
{
    *b = (struct block){.options = MOTE_OPTIONS(mote_moe_options)};
    struct mote_moe_options *o = &b->options;
    o->n_expert = BLOCK_EXPERTS, o->n_used = BLOCK_USED, o->d_model = BLOCK_MODEL, o->n_ff = BLOCK_FF;
    o->gate_up = r->gate_up, o->activation = r->activation, o->limit = r->limit, o->act = r->act;
    o->x_type = r->x_type, o->y_type = r->y_type;
    must(mote_activation_find(r->activation ? r->activation : "swiglu", &b->activation));
    if (r->limit > 0) b->activation.limit = r->limit;
    struct mote_weights *to[PROJECTIONS] = {&o->gate, &o->up, &o->down};
    for (int p = 0; p < PROJECTIONS; p++) {
        for (int e = 0; e < BLOCK_EXPERTS; e++)
            b->factor[p][e] = r->has_factor ? 0.5f + 0.25f * (float)(e + p) : 1;
        if (!r->format[p] || (p == UP && r->gate_up)) continue;
        int64_t rows = p == DOWN ? BLOCK_MODEL : p == GATE && r->gate_up ? 2 * BLOCK_FF : BLOCK_FF;
        *to[p] = weights_make(rng, b, p, r, BLOCK_EXPERTS * rows, p == DOWN ? BLOCK_FF : BLOCK_MODEL);
        if (r->has_factor) to[p]->factor = b->factor[p];
    }
    for (int p = 0; p < PROJECTIONS; p++) {
        if (!r->format[p]) continue;
        int64_t rows = p == DOWN ? BLOCK_MODEL : BLOCK_FF, cols = p == DOWN ? BLOCK_FF : BLOCK_MODEL;
        b->value[p] = malloc((size_t)(BLOCK_EXPERTS * rows * cols) * sizeof(double));
        for (int64_t e = 0; e < BLOCK_EXPERTS; e++)
            for (int64_t row = 0; row < rows; row++)
                decode_weights(b, p, e, row, b->value[p] + (e * rows + row) * cols);
    }
}

static inline void block_free(struct block *b)
{
    for (int p = 0; p < PROJECTIONS; p++) {
        for (int i = 0; i < 3; i++) free(b->plane[p][i]);
        free(b->value[p]);
    }
}

/* The same numbers as GGUF's blocks. */
static inline uint8_t *mxfp4_blocks(const struct mote_weights *w, int64_t n_weight)
{
    const uint8_t *code = w->data, *scale = w->scale;
    uint8_t *out = calloc((size_t)n_weight / 32, 17);
    for (int64_t i = 0; i < n_weight; i++) {
        int64_t block = i / 32, at = i % 32;
        uint8_t nibble = i % 2 ? code[i / 2] >> 4 : code[i / 2] & 15;
        out[block * 17] = scale[block];
        out[block * 17 + 1 + at % 16] |= (uint8_t)(at < 16 ? nibble : nibble << 4);
    }
    return out;
}

/* ---- rows ---- */

struct rows {
    int64_t n_row;
    void *x, *residual, *y; /* of the block's types; residual may be NULL */
    size_t x_bytes, y_bytes;
    int32_t *ids;
    float *weights;
};

static inline void *random_floats(struct mote_rng *rng, enum mote_float_type type, int64_t n)
{
    float *wide = malloc((size_t)n * sizeof *wide);
    void *out = malloc((size_t)n * mote_float_bytes(type));
    for (int64_t i = 0; i < n; i++) wide[i] = (float)random_uniform(rng, -2, 2);
    mote_floats_narrow(type, wide, n, out);
    free(wide);
    return out;
}

static inline void rows_make(struct mote_rng *rng, struct rows *rows, const struct block *b, int64_t n_row,
                             int has_residual)
{
    int64_t n = n_row * BLOCK_MODEL, n_pair = n_row * BLOCK_USED;
    enum mote_float_type x = b->options.x_type, y = b->options.y_type;
    *rows = (struct rows){.n_row = n_row,
                          .x = random_floats(rng, x, n),
                          .residual = has_residual ? random_floats(rng, y, n) : NULL,
                          .x_bytes = (size_t)n * mote_float_bytes(x),
                          .y_bytes = (size_t)n * mote_float_bytes(y),
                          .ids = malloc((size_t)n_pair * sizeof(int32_t)),
                          .weights = malloc((size_t)n_pair * sizeof(float))};
    rows->y = malloc(rows->y_bytes);
    for (int64_t p = 0; p < n_pair; p++) {
        rows->ids[p] = (int32_t)mote_rng_below(rng, BLOCK_EXPERTS);
        rows->weights[p] = (float)random_uniform(rng, 0.1, 1);
    }
}

static inline void rows_free(struct rows *rows)
{
    free(rows->x), free(rows->residual), free(rows->y), free(rows->ids), free(rows->weights);
}

static inline struct mote_moe_call rows_call(const struct rows *rows, int64_t n_row)
{
    struct mote_moe_call call = MOTE_OPTIONS(mote_moe_call);
    call.n_row = n_row;
    call.x = rows->x, call.ids = rows->ids, call.weights = rows->weights;
    call.residual = rows->residual, call.y = rows->y;
    return call;
}

static inline double *widened_floats(enum mote_float_type type, const void *from, int64_t n)
{
    float *wide = malloc((size_t)n * sizeof *wide);
    double *out = malloc((size_t)n * sizeof *out);
    mote_floats_widen(type, from, n, wide);
    for (int64_t i = 0; i < n; i++) out[i] = wide[i];
    free(wide);
    return out;
}

/* ---- the reference ---- */

static inline double dot_of(const double *w, const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += w[i] * x[i];
    return sum;
}

/* What inputs of products with MXFP4 weights become under act "mxfp4". */
static inline int is_mxfp4_act(const struct block *b, int p)
{
    enum mote_format f = b->tensor[b->tensor[p].data ? p : GATE].format;
    return b->options.act && !strcmp(b->options.act, "mxfp4") &&
           (f == MOTE_FORMAT_MXFP4 || f == MOTE_FORMAT_MLX_MXFP4);
}

static inline void to_mxfp4(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 32) {
        float block[32];
        int8_t twice[32];
        for (int c = 0; c < 32; c++) block[c] = (float)x[i + c];
        double unit = (double)mote_mxfp4_block(block, twice);
        for (int c = 0; c < 32; c++) x[i + c] = unit * twice[c];
    }
}

/* y[BLOCK_MODEL] += weight * f_e(x) */
static inline void add_expert64(const struct block *b, int64_t e, const double *x, double weight, double *y)
{
    double own[BLOCK_MODEL], hidden[BLOCK_FF];
    memcpy(own, x, sizeof own);
    if (is_mxfp4_act(b, UP)) to_mxfp4(own, BLOCK_MODEL);
    for (int64_t f = 0; f < BLOCK_FF; f++) {
        int64_t at = (e * BLOCK_FF + f) * BLOCK_MODEL;
        double g = b->value[GATE] ? dot_of(b->value[GATE] + at, own, BLOCK_MODEL) : 0;
        hidden[f] = activation64(&b->activation, g, dot_of(b->value[UP] + at, own, BLOCK_MODEL));
    }
    if (is_mxfp4_act(b, DOWN)) to_mxfp4(hidden, BLOCK_FF);
    for (int64_t d = 0; d < BLOCK_MODEL; d++)
        y[d] += weight * dot_of(b->value[DOWN] + (e * BLOCK_MODEL + d) * BLOCK_FF, hidden, BLOCK_FF);
}

/* How far off a row may be: inputs of products in 8 bits, or a borderline value of 4 bits that fell to the other side; the
 * rounding of y. */
static inline double error_budget(const struct block *b)
{
    static const double rounding[MOTE_FLOAT_TYPE_COUNT] = {0, 0x1p-8, 0x1p-11};
    int is_f32 = b->options.act && !strcmp(b->options.act, "f32");
    return (is_f32 ? 2e-6 : 0.04) + rounding[b->options.y_type];
}

/* ids, weights, x and residual as rows has them; y what came out. */
static inline void rows_check_within(const struct block *b, const struct rows *rows, int64_t n_row,
                                     double budget, const char *what)
{
    int64_t n = n_row * BLOCK_MODEL;
    double *x = widened_floats(b->options.x_type, rows->x, n),
           *y = widened_floats(b->options.y_type, rows->y, n),
           *residual = rows->residual ? widened_floats(b->options.y_type, rows->residual, n) : NULL;
    for (int64_t i = 0; i < n_row; i++) {
        double want[BLOCK_MODEL] = {0}, off = 0, all = 0;
        if (residual) memcpy(want, residual + i * BLOCK_MODEL, sizeof want);
        for (int s = 0; s < BLOCK_USED; s++) {
            int64_t pair = i * BLOCK_USED + s;
            add_expert64(b, rows->ids[pair], x + i * BLOCK_MODEL, (double)rows->weights[pair], want);
        }
        for (int d = 0; d < BLOCK_MODEL; d++) {
            double difference = y[i * BLOCK_MODEL + d] - want[d];
            off += difference * difference;
            all += want[d] * want[d];
        }
        if (!(off <= budget * budget * all))
            fail_msg("%s: %s/%s/%s layout %d act %s types %d %d: row %d of %d is %.2e off, budget %.0e", what,
                     b->options.gate.format ? b->options.gate.format : "-",
                     b->options.up.format ? b->options.up.format : "-", b->options.down.format,
                     (int)b->options.gate_up, b->options.act ? b->options.act : "default",
                     (int)b->options.x_type, (int)b->options.y_type, (int)i, (int)n_row, sqrt(off / all),
                     budget);
    }
    free(x), free(y), free(residual);
}

static inline void rows_check(const struct block *b, const struct rows *rows, int64_t n_row, const char *what)
{
    rows_check_within(b, rows, n_row, error_budget(b), what);
}

#endif
