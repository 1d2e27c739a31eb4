/* test_cuda_mx.c: expert blocks of MXFP4 weights on a device (cuda_mx.c) against float64: with MXFP4 activations on the same quantised
 * operands, with others on rows of bf16 precision. Each product alone, the block from end to end, reruns. Scales of blocks from all
 * alike to beyond what the fp8 kernels hold. Without a device: need_device.h.
 *
 * How a product is seen alone: with a down that copies, the block gives its hidden row, as the device quantised it; that row is
 * then the exact input of another down. */
#include "activation64.h"
#include "cuda_pair.h"
#include "mxfp4_excess.h"
#include "quant/mxfp4.h"

enum spread { UNIFORM, GAUSSIAN, HEAVY, WINDOW, BEYOND, SPREADS };
static const char *const spread_name[SPREADS] = {"uniform", "gaussian", "heavy-tailed", "whole window",
                                                 "beyond it"};

struct shape {
    int32_t n_expert, n_used;
    int64_t d_model, n_ff;
    enum mote_act_wish act;
    struct mote_activation activation;
};

static struct mote_rng rng;

/* ---- weights ---- */

enum { BLOCK = 17 };
enum { COPY_ROW = 1 }; /* down copies: row r has 1 in column r */

/* Exponent and e2m1 codes of a block, in a row whose largest exponent is `top`. */
static void draw_block(enum spread spread, int top, uint8_t *out)
{
    int below = 0;
    if (spread == GAUSSIAN) below = (int)mote_rng_below(&rng, 2);
    if (spread == HEAVY)
        while (below < 9 && mote_rng_below(&rng, 2)) below++;
    if (spread == WINDOW) below = (int)mote_rng_below(&rng, 12);
    if (spread == BEYOND) below = (int)mote_rng_below(&rng, 40);
    out[0] = (uint8_t)(top - below);
    for (int i = 0; i < 16; i++) {
        int code[2];
        for (int j = 0; j < 2; j++) {
            double z[2];
            mote_rng_normal2(&rng, z);
            double v = fabs(z[0]) * 2;
            int m = v < 0.25   ? 0
                    : v < 0.75 ? 1
                    : v < 1.25 ? 2
                    : v < 1.75 ? 3
                    : v < 2.5  ? 4
                    : v < 3.5  ? 5
                    : v < 5    ? 6
                               : 7;
            code[j] =
                spread == GAUSSIAN || spread == HEAVY ? m + (z[0] < 0) * 8 : (int)mote_rng_below(&rng, 16);
        }
        out[1 + i] = (uint8_t)(code[0] | code[1] << 4);
    }
    if (mote_rng_below(&rng, 50) == 0)
        memset(out + 1, 0, 16), out[0] = (uint8_t)mote_rng_below(&rng, 255); /* zeros under any scale */
}

static struct mote_matrix matrix_of(int64_t n_row, int64_t n_col, uint8_t *data)
{
    size_t row_bytes = (size_t)(n_col / 32 * BLOCK);
    return (struct mote_matrix){.format = MOTE_FORMAT_MXFP4,
                                .n_row = n_row,
                                .n_col = n_col,
                                .row_bytes = row_bytes,
                                .data = data,
                                .factor = 1};
}

/* What a row stands for. */
static void row_values(const struct mote_matrix *w, int64_t row, double *to)
{
    static const double value[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
    const uint8_t *block = w->data + (size_t)row * w->row_bytes;
    for (int64_t c = 0; c < w->n_col; c += 32, block += BLOCK) {
        double scale = ldexp(1, block[0] - 127);
        for (int i = 0; i < 16; i++)
            to[c + i] = scale * value[block[1 + i] & 15], to[c + 16 + i] = scale * value[block[1 + i] >> 4];
    }
}

struct layer {
    struct shape shape;
    uint8_t *data;
    struct mote_matrix *view; /* [4][n_expert]: gate, up, down, a down that copies, the same for all */
    struct mote_expert_set set[2];
};

static void layer_make(struct layer *l, const struct shape *s, enum spread spread)
{
    int64_t d = s->d_model, f = s->n_ff, n = s->n_expert;
    size_t each = (size_t)(d * f / 32 * BLOCK), at = 0;
    *l = (struct layer){.shape = *s, .data = calloc(3 * (size_t)n + 1, each)};
    l->view = calloc(4 * (size_t)n, sizeof *l->view);
    for (int p = 0; p < 3; p++)
        for (int64_t e = 0; e < n; e++, at += each) {
            struct mote_matrix *w = &l->view[p * n + e];
            *w = p < 2 ? matrix_of(f, d, l->data + at) : matrix_of(d, f, l->data + at);
            for (int64_t row = 0; row < w->n_row; row++) {
                int top = (p < 2 ? 121 : 122) + (int)mote_rng_below(&rng, 3);
                for (size_t b = 0; b < w->row_bytes; b += BLOCK)
                    draw_block(spread, top, l->data + at + (size_t)row * w->row_bytes + b);
            }
        }
    struct mote_matrix copy = matrix_of(d, f, l->data + at);
    for (int64_t row = 0; row < d; row++)
        for (int64_t b = 0; b < f / 32; b++) {
            uint8_t *to = l->data + at + (size_t)row * copy.row_bytes + b * BLOCK;
            to[0] = 127;
            if (row / 32 == b) to[1 + row % 16] = row % 32 < 16 ? 2 : 2 << 4;
        }
    for (int64_t e = 0; e < n; e++) l->view[3 * n + e] = copy;
    for (int v = 0; v < 2; v++)
        l->set[v] = (struct mote_expert_set){.name = "mx",
                                             .n_expert = s->n_expert,
                                             .n_ff = f,
                                             .d_model = d,
                                             .gate = l->view,
                                             .up = l->view + n,
                                             .down = l->view + (v == COPY_ROW ? 3 : 2) * n,
                                             .activation = s->activation,
                                             .act = s->act};
}

static void layer_free(struct layer *l)
{
    free(l->data), free(l->view);
}

/* A row of gate, up, down (0, 1, 2) of expert e times x. */
static double product64_of(const struct layer *l, int p, int32_t e, int64_t row, const double *x)
{
    const struct mote_matrix *w = &l->view[p * l->shape.n_expert + e];
    double *value = new_doubles(w->n_col), sum = 0;
    row_values(w, row, value);
    for (int64_t i = 0; i < w->n_col; i++) sum += value[i] * x[i];
    free(value);
    return sum;
}

/* ---- inputs and results ---- */

static void draw_rows(enum spread spread, int64_t n, float *x)
{
    for (int64_t b = 0; b < n / 32; b++) {
        int below = 0;
        if (spread == HEAVY)
            while (below < 9 && mote_rng_below(&rng, 2)) below++;
        if (spread == WINDOW) below = (int)mote_rng_below(&rng, 13);
        if (spread == BEYOND) below = (int)mote_rng_below(&rng, 40);
        for (int i = 0; i < 32; i++) {
            double z[2];
            mote_rng_normal2(&rng, z);
            x[b * 32 + i] = (float)ldexp(spread == UNIFORM ? random_uniform(&rng, -2, 2) : z[0], -below);
        }
    }
}

/* What products read of x: MXFP4, or nothing less than bf16 numbers, which it holds. */
static void operands(enum mote_act_wish act, const float *x, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = (double)x[i];
    for (int64_t b = 0; act == MOTE_WISH_MXFP4 && b < n; b += 32) {
        int8_t q[32];
        double scale = mote_mxfp4_block(x + b, q);
        for (int i = 0; i < 32; i++) out[b + i] = scale * q[i];
    }
}

/* h of one row and expert, before it is an operand and after. */
static void hidden_of(const struct layer *l, const double *x, int32_t e, double *right, double *h)
{
    int64_t f = l->shape.n_ff;
    float *raw = new_floats(f);
    for (int64_t r = 0; r < f; r++) {
        double gate = product64_of(l, 0, e, r, x), up = product64_of(l, 1, e, r, x);
        right[r] = activation64(&l->shape.activation, gate, up);
        raw[r] = (float)right[r];
    }
    operands(l->shape.act, raw, f, h);
    free(raw);
}

/* 1 - 2 <x, y> / (<x, x> + <y, y>) */
static double difference(const float *x, const double *y, int64_t n)
{
    double xy = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < n; i++) xy += x[i] * y[i], xx += (double)x[i] * x[i], yy += y[i] * y[i];
    return xx + yy == 0 ? 0 : 1 - 2 * xy / (xx + yy); /* NaN stays */
}

/* ---- the checks ---- */

struct rows {
    int64_t n;
    float *x, *weights, *residual;
    int32_t *ids;
    double *value; /* [n][d_model]: x as products read it */
};

static void rows_make(struct rows *r, const struct shape *s, int64_t n, int32_t k, enum spread spread)
{
    *r = (struct rows){.n = n,
                       .x = new_floats(n * s->d_model),
                       .weights = new_floats(n * k),
                       .residual = new_floats(n * s->d_model),
                       .ids = calloc((size_t)(n * k), sizeof(int32_t)),
                       .value = new_doubles(n * s->d_model)};
    draw_rows(spread, n * s->d_model, r->x);
    for (int64_t i = 0; s->act != MOTE_WISH_MXFP4 && i < n * s->d_model; i++)
        r->x[i] = mote_bf16_f32(mote_f32_bf16(r->x[i]));
    operands(s->act, r->x, n * s->d_model, r->value);
    draw_rows(UNIFORM, n * s->d_model, r->residual);
    for (int64_t i = 0; i < n; i++)
        for (int32_t j = 0; j < k; j++) { /* different experts; a third of the rows want expert 1 first */
            int32_t *id = &r->ids[i * k + j], again;
            do {
                *id = j == 0 && i % 3 == 0 ? 1 : (int32_t)mote_rng_below(&rng, (uint64_t)s->n_expert);
                again = 0;
                for (int32_t other = 0; other < j; other++) again |= id[-1 - other] == *id;
            } while (again);
            r->weights[i * k + j] = (float)random_uniform(&rng, 0.1, 1);
        }
}

static void rows_free(struct rows *r)
{
    free(r->x), free(r->weights), free(r->residual), free(r->ids), free(r->value);
}

static int unordered; /* as struct mote_moe has it */

/* set: routed experts, or NULL; shared: one expert, or NULL, whose gate logits are residual's first numbers. */
static void run_beside(struct mote_backend *backend, const struct mote_expert_set *set,
                       const struct mote_expert_set *shared, const struct rows *r, int32_t k,
                       const float *weights, const float *residual, float *y)
{
    int64_t d = set ? set->d_model : shared->d_model, n = r->n * d;
    float *x = put_floats(backend, r->x, n), *w = put_floats(backend, weights, r->n * k),
          *to = put_floats(backend, NULL, n), *rest = residual ? put_floats(backend, residual, n) : NULL;
    int32_t *ids = put(backend, r->ids, (size_t)(r->n * k) * sizeof *ids);
    poison(y, n);
    must(backend->ops->upload(backend, to, y, (size_t)n * sizeof *y));
    begin_rows(backend, r->n);
    struct mote_moe job = {.n_row = r->n,
                           .d_model = d,
                           .n_used = set ? k : 0,
                           .shared = shared,
                           .shared_gate = shared ? rest : NULL,
                           .x = x,
                           .experts = set,
                           .ids = ids,
                           .weights = w,
                           .residual = rest,
                           .y = to,
                           .unordered = unordered};
    must(backend->ops->moe(backend, &job));
    get_floats(backend, y, to, n);
    take_back(backend, x), take_back(backend, w), take_back(backend, to), take_back(backend, rest),
        take_back(backend, ids);
}
static void run(struct mote_backend *backend, const struct mote_expert_set *set, const struct rows *r,
                int32_t k, const float *weights, const float *residual, float *y)
{
    run_beside(backend, set, NULL, r, k, weights, residual, y);
}

/* 1 - 2 <x, y> / (<x, x> + <y, y>), of h by what it says of the products before its rounding (mxfp4_excess.h): some 1e-7 where those
 * are 1e-5 off. What is seen of a product is rounded to bf16, which is 1e-6 of it; sums of fp8 are some 3e-8 off (test_mx_narrow). */
struct errors {
    double hidden, product, block;
};
static const struct errors mxfp4_limit = {5e-7, 1e-5, 1e-3};
/* Of rows of bf16 precision: what is seen is rounded to bf16 or to two planes of fp8 (mx_act.cuh), h before that likewise:
 * 1e-6 for every bf16, 3e-7 for planes, and sums of fp8 as above. */
static const struct errors bf16_limit = {5e-6, 1e-5, 5e-6};

static double larger(double a, double b)
{
    return b <= a ? a : b; /* NaN wins */
}

/* Rows that are looked at: every `step` th, `n` in all. */
struct sample {
    const struct layer *l;
    const struct rows *r;
    const float *y; /* [rows][d_model] */
    int64_t step, n;
    double *right; /* [n][n_ff]: h before it is an operand */
    float *seen;   /* [n][n_ff]: and after, as the device has it */
    double *want;  /* [n][d_model] */
    float *got;
};

static void sample_hidden(void *context, int64_t i)
{
    struct sample *s = context;
    int64_t row = i * s->step, d = s->l->shape.d_model, f = s->l->shape.n_ff;
    double *h = new_doubles(f);
    hidden_of(s->l, s->r->value + row * d, s->r->ids[row], s->right + i * f, h);
    memcpy(s->seen + i * f, s->y + row * d, (size_t)f * sizeof *s->seen);
    free(h);
}

/* Down of h as the device has it. */
static void sample_down(void *context, int64_t i)
{
    struct sample *s = context;
    int64_t row = i * s->step, d = s->l->shape.d_model, f = s->l->shape.n_ff;
    double *h = new_doubles(f);
    for (int64_t c = 0; c < f; c++) h[c] = (double)s->seen[i * f + c];
    for (int64_t c = 0; c < d; c++) s->want[i * d + c] = product64_of(s->l, 2, s->r->ids[row], c, h);
    memcpy(s->got + i * d, s->y + row * d, (size_t)d * sizeof *s->got);
    free(h);
}

static void sample_block(void *context, int64_t i)
{
    struct sample *s = context;
    int64_t row = i * s->step, d = s->l->shape.d_model, f = s->l->shape.n_ff;
    int32_t n_used = s->l->shape.n_used;
    double *h = new_doubles(f), *right = new_doubles(f), *want = s->want + i * d;
    for (int64_t c = 0; c < d; c++) want[c] = (double)s->r->residual[row * d + c];
    for (int64_t pair = row * n_used; pair < (row + 1) * n_used; pair++) {
        int32_t e = s->r->ids[pair];
        hidden_of(s->l, s->r->value + row * d, e, right, h);
        for (int64_t c = 0; c < d; c++)
            want[c] += (double)s->r->weights[pair] * product64_of(s->l, 2, e, c, h);
    }
    memcpy(s->got + i * d, s->y + row * d, (size_t)d * sizeof *s->got);
    free(h), free(right);
}

static void check_rows(struct mote_backend *backend, struct layer *l, int64_t n, int64_t most,
                       enum spread spread, struct errors *worst, struct report *report)
{
    const struct shape *s = &l->shape;
    int64_t d = s->d_model, f = s->n_ff, size = n * d, step = (n + most - 1) / most;
    struct rows r;
    float *y = new_floats(size), *again = new_floats(size), *ones = new_floats(n * s->n_used);
    struct sample sample = {.l = l, .r = &r, .y = y, .step = step, .n = (n + step - 1) / step};
    sample.right = new_doubles(sample.n * f), sample.seen = new_floats(sample.n * f);
    sample.want = new_doubles(sample.n * d), sample.got = new_floats(sample.n * d);
    report->n_case++;
    /* products, one expert a row */
    rows_make(&r, s, n, 1, spread);
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    run(backend, &l->set[COPY_ROW], &r, 1, ones, NULL, y);
    in_parallel(sample.n, sample_hidden, &sample);
    double hidden = s->act == MOTE_WISH_MXFP4 ? mxfp4_excess(sample.seen, sample.right, sample.n * f)
                                              : difference(sample.seen, sample.right, sample.n * f);
    run(backend, &l->set[0], &r, 1, ones, NULL, y);
    in_parallel(sample.n, sample_down, &sample);
    double product = difference(sample.got, sample.want, sample.n * d);
    rows_free(&r);
    /* the block */
    rows_make(&r, s, n, s->n_used, spread);
    run(backend, &l->set[0], &r, s->n_used, r.weights, r.residual, y);
    run(backend, &l->set[0], &r, s->n_used, r.weights, r.residual, again);
    in_parallel(sample.n, sample_block, &sample);
    double block = difference(sample.got, sample.want, sample.n * d);
    if (memcmp(y, again, (size_t)size * sizeof *y))
        report_failure(report, "%s, %lld rows: another run gives other bits", spread_name[spread],
                       (long long)n);
    unordered = 1;
    run(backend, &l->set[0], &r, s->n_used, r.weights, r.residual, again);
    unordered = 0;
    double *ordered = new_doubles(size);
    for (int64_t i = 0; i < size; i++) ordered[i] = (double)y[i];
    double moved = difference(again, ordered, size);
    free(ordered);
    if (!(moved <= 4e-6)) /* results in bf16 where they are summed in order */
        report_failure(report, "%s, %lld rows: summed in any order %.1e away", spread_name[spread],
                       (long long)n, moved);
    const struct errors *limit = s->act == MOTE_WISH_MXFP4 ? &mxfp4_limit : &bf16_limit;
    if (!(hidden <= limit->hidden) || !(product <= limit->product) || !(block <= limit->block))
        report_failure(report, "%d/%lld/%lld/%d %s, %lld rows: hidden %.1e, product %.1e, block %.1e",
                       s->n_expert, (long long)d, (long long)f, s->n_used, spread_name[spread], (long long)n,
                       hidden, product, block);
    worst->hidden = larger(worst->hidden, hidden), worst->product = larger(worst->product, product);
    worst->block = larger(worst->block, block);
    rows_free(&r);
    free(y), free(again), free(ones);
    free(sample.right), free(sample.seen), free(sample.want), free(sample.got);
}

enum { COUNTS = 13 };
/* Rows of these counts, of which at most so many are looked at; spreads from..end. */
struct trial {
    struct shape shape;
    int64_t counts[COUNTS]; /* 0: no more */
    int64_t most;
    int from, end;
};

static void check_shape(const struct trial *t, struct report *report)
{
    const struct shape *s = &t->shape;
    struct mote_backend_limits limits = {.max_col = s->d_model,
                                         .d_model = s->d_model,
                                         .n_ff = s->n_ff,
                                         .n_expert = s->n_expert,
                                         .n_used = s->n_used,
                                         .act_moe = 15,
                                         .act_down = 15};
    for (int c = 0; c < COUNTS && t->counts[c]; c++) limits.max_row = t->counts[c];
    struct mote_backend_options options = {0};
    struct mote_backend *backend = open_backend_with(&mote_backend_cuda, &options, &limits, NULL);
    for (int spread = t->from; spread < t->end; spread++) {
        struct layer l;
        struct errors worst = {0};
        report_subject(report);
        layer_make(&l, s, (enum spread)spread);
        for (int v = 0; v < 2; v++) must(backend->ops->place_experts(backend, &l.set[v]));
        make_ready(backend);
        for (int c = 0; c < COUNTS && t->counts[c]; c++)
            if (!quick() || t->counts[c] < 100 ||
                (t->counts[c] == 300 && spread == GAUSSIAN)) /* 300: wide pieces */
                check_rows(backend, &l, t->counts[c], t->most, (enum spread)spread, &worst, report);
        print_message("%d/%lld/%lld/%d %s: at most hidden %.1e, product %.1e, block %.1e\n", s->n_expert,
                      (long long)s->d_model, (long long)s->n_ff, s->n_used, spread_name[spread], worst.hidden,
                      worst.product, worst.block);
        for (int v = 0; v < 2; v++) backend->ops->unplace(backend, l.set[v].placed);
        layer_free(&l);
    }
    backend->ops->destroy(backend);
}

static void test_block(void **state)
{
    (void)state;
    need_device();
    static const struct shape shapes[] = {{8, 2, 512, 256, .act = MOTE_WISH_MXFP4},
                                          {6, 3, 1056, 160, .act = MOTE_WISH_MXFP4},
                                          {4, 2, 512, 512, .act = MOTE_WISH_MXFP4},
                                          {12, 2, 512, 96, .act = MOTE_WISH_MXFP4},
                                          {8, 2, 512, 256},
                                          {6, 3, 1056, 160, .activation = {MOTE_ACTIVATION_SWIGLU_OAI, 7}},
                                          {12, 2, 512, 96}};
    struct report report;
    report_begin(&report);
    mote_rng_seed(&rng, 51);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (quick() && i % 4 > 1) continue;
        /* some of each shape's few as one pair an expert: the fewest of two planes */
        struct trial trial = {shapes[i], {1, 2, 3, 4, 6, 7, 8, 13, 17, 90, 300, 700}, 700, 0, SPREADS};
        check_shape(&trial, &report);
    }
    report_end(&report, "MXFP4 blocks");
}

static void check_trial(const struct trial *trial, uint64_t seed, const char *what)
{
    struct report report;
    need_device();
    if (quick()) skip();
    report_begin(&report);
    mote_rng_seed(&rng, seed);
    check_shape(trial, &report);
    report_end(&report, what);
}

/* Kimi-K2.5's block with 40 of its 385 experts, and rows as many an expert has of 1, 16, 64, 256, 1024, 2048, 4096, 8192, 32768. */
static void test_table(void **state)
{
    (void)state;
    static const struct trial trial = {{40, 9, 7168, 512, .act = MOTE_WISH_MXFP4},
                                       {1, 2, 7, 27, 106, 213, 426, 851, 3404},
                                       24,
                                       GAUSSIAN,
                                       GAUSSIAN + 1};
    check_trial(&trial, 52, "MXFP4 blocks of 7168 x 512");
}

/* gpt-oss's block with 8 of its 128 experts, activations as it has them: columns end inside a unit; as many pairs an expert as at 4,
 * 16, 64, .. 1024, 2240 and 9600 rows. */
static void test_gpt_oss(void **state)
{
    (void)state;
    static const struct trial trial = {{8, 4, 2880, 2880, .activation = {MOTE_ACTIVATION_SWIGLU_OAI, 7}},
                                       {1, 2, 4, 8, 16, 63, 65, 140, 600},
                                       12,
                                       GAUSSIAN,
                                       GAUSSIAN + 1};
    check_trial(&trial, 53, "MXFP4 blocks of 2880 x 2880");
}

/* A shared expert beside the routed ones: what these make and what that makes, but for the order of sums. */
static void test_shared(void **state)
{
    (void)state;
    need_device();
    static const struct shape shapes[] = {{8, 2, 512, 256, .act = MOTE_WISH_MXFP4}, {8, 2, 512, 256}};
    static const int64_t counts[] = {1, 3, 17, 90, 300};
    mote_rng_seed(&rng, 54);
    for (int i = 0; i < 2; i++) {
        const struct shape *s = &shapes[i];
        struct mote_backend_limits limits = {.max_row = 300,
                                             .max_col = s->d_model,
                                             .d_model = s->d_model,
                                             .n_ff = s->n_ff,
                                             .n_ff_shared = s->n_ff,
                                             .n_expert = s->n_expert,
                                             .n_used = s->n_used,
                                             .act_moe = 15,
                                             .act_down = 15};
        struct mote_backend_options options = {0};
        struct mote_backend *backend = open_backend_with(&mote_backend_cuda, &options, &limits, NULL);
        struct layer l;
        layer_make(&l, s, GAUSSIAN);
        struct mote_expert_set shared = l.set[0];
        shared.n_expert = 1;
        must(backend->ops->place_experts(backend, &l.set[0]));
        must(backend->ops->place_experts(backend, &shared));
        make_ready(backend);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int64_t n = counts[c], size = n * s->d_model;
            struct rows r;
            float *both = new_floats(size), *routed = new_floats(size), *y = new_floats(size);
            rows_make(&r, s, n, s->n_used, GAUSSIAN);
            run_beside(backend, &l.set[0], &shared, &r, s->n_used, r.weights, r.residual, both);
            run(backend, &l.set[0], &r, s->n_used, r.weights, r.residual, routed);
            run_beside(backend, NULL, &shared, &r, s->n_used, r.weights, r.residual, y);
            double wrong = 0, all = 0;
            for (int64_t j = 0; j < size; j++) {
                double want = (double)routed[j] + (double)y[j] - (double)r.residual[j];
                wrong += ((double)both[j] - want) * ((double)both[j] - want), all += want * want;
            }
            if (!(wrong <= 1e-12 * all))
                fail_msg("%d, %lld rows: %g of %g beside a shared expert", i, (long long)n, wrong, all);
            rows_free(&r), free(both), free(routed), free(y);
        }
        backend->ops->unplace(backend, l.set[0].placed), backend->ops->unplace(backend, shared.placed);
        layer_free(&l);
        backend->ops->destroy(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block), cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_gpt_oss), cmocka_unit_test(test_shared)};
    return cmocka_run_group_tests_name("cuda_mx", tests, NULL, NULL);
}
