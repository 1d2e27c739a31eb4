/* test_moe.c: the expert block against a float64 loop over decoded weights, and its promises: the same bits
 * for any number of threads, for rows alone or together, fused or one product at a time, routed before or inside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "activation64.h"
#include "backend/backend.h"
#include "base/rng.h"
#include "quant/decode.h"
#include "quant/encode.h"

enum { MAX_ROW = 40 };

struct shape {
    int32_t n_expert, n_used;
    int64_t d_model, n_ff, n_ff_shared; /* n_ff_shared 0: none */
};

struct block {
    struct shape shape;
    void *bytes[6];           /* gate, up, down; of shared */
    struct mote_matrix *view; /* [3][n_expert] */
    struct mote_matrix shared_view[3];
    struct mote_expert_set experts, shared;
};

static struct mote_rng rng;

static float normal(void)
{
    double two[2];
    mote_rng_normal2(&rng, two);
    return (float)two[0];
}

static void *encoded(enum mote_format format, int64_t n_row, int64_t n_col)
{
    float *x = malloc((size_t)(n_row * n_col) * sizeof *x);
    for (int64_t i = 0; i < n_row * n_col; i++) x[i] = normal() / (float)sqrt((double)n_col);
    void *out = malloc((size_t)n_row * mote_format_row_bytes(format, n_col));
    if (mote_encode(format, x, n_row, n_col, NULL, out) != MOTE_OK) fail_msg("%s", mote_error());
    free(x);
    return out;
}

static void block_make(struct block *b, const struct shape *shape, enum mote_format gate, enum mote_format up,
                       enum mote_format down, enum mote_act_wish act)
{
    *b = (struct block){.shape = *shape};
    int32_t n = shape->n_expert;
    b->view = calloc((size_t)(3 * n + 1), sizeof *b->view);
    const enum mote_format format[3] = {gate, up, down};
    for (int p = 0; p < 3; p++) {
        int64_t rows = p == 2 ? shape->d_model : shape->n_ff, cols = p == 2 ? shape->n_ff : shape->d_model;
        size_t bytes = (size_t)rows * mote_format_row_bytes(format[p], cols);
        b->bytes[p] = encoded(format[p], rows * n, cols);
        for (int32_t e = 0; e < n; e++)
            b->view[p * n + e] =
                mote_matrix_view(format[p], (uint8_t *)b->bytes[p] + (size_t)e * bytes, rows, cols);
        if (!shape->n_ff_shared) continue;
        rows = p == 2 ? shape->d_model : shape->n_ff_shared;
        cols = p == 2 ? shape->n_ff_shared : shape->d_model;
        b->bytes[3 + p] = encoded(format[p], rows, cols);
        b->shared_view[p] = mote_matrix_view(format[p], b->bytes[3 + p], rows, cols);
    }
    b->experts = (struct mote_expert_set){.name = "experts",
                                          .n_expert = n,
                                          .n_ff = shape->n_ff,
                                          .d_model = shape->d_model,
                                          .gate = b->view,
                                          .up = b->view + n,
                                          .down = b->view + 2 * n,
                                          .act = act};
    b->shared = (struct mote_expert_set){.name = "shared",
                                         .n_expert = 1,
                                         .n_ff = shape->n_ff_shared,
                                         .d_model = shape->d_model,
                                         .gate = &b->shared_view[0],
                                         .up = &b->shared_view[1],
                                         .down = &b->shared_view[2],
                                         .act = act};
}

static void block_free(struct block *b)
{
    for (int i = 0; i < 6; i++) free(b->bytes[i]);
    free(b->view);
}

static struct mote_backend *backend_for(const struct shape *shape, int n_thread, int unfused)
{
    struct mote_backend_options options = {.n_thread = n_thread,
                                           .moe_kernels = unfused ? MOTE_MOE_UNFUSED : MOTE_MOE_FUSED};
    struct mote_backend_limits limits = {
        .max_row = MAX_ROW,
        .max_col = shape->d_model,
        .d_model = shape->d_model,
        .n_ff = shape->n_ff,
        .n_ff_shared = shape->n_ff_shared,
        .n_expert = shape->n_expert,
        .n_used = shape->n_used,
        .act_linear = 7,
        .act_moe = 15,
        .act_down = 15,
    };
    struct mote_backend *backend;
    if (mote_backend_cpu.create(&options, &limits, NULL, &backend) != MOTE_OK) fail_msg("%s", mote_error());
    return backend;
}

static void dense(const struct mote_matrix *w, const double *x, double *y)
{
    float *row = malloc((size_t)w->n_col * sizeof *row);
    for (int64_t r = 0; r < w->n_row; r++) {
        mote_decode(w, r, 0, w->n_col, row);
        y[r] = 0;
        for (int64_t c = 0; c < w->n_col; c++) y[r] += (double)row[c] * x[c];
    }
    free(row);
}

/* h = activation(gate x, up x); up: scratch, both [n_ff] */
static void hidden_of(const struct mote_expert_set *set, int32_t e, const double *x, double *h, double *up)
{
    if (set->gate) dense(&set->gate[e], x, h);
    dense(&set->up[e], x, up);
    for (int64_t i = 0; i < set->n_ff; i++) h[i] = activation64(&set->activation, h[i], up[i]);
}

static void add_expert(const struct mote_expert_set *set, int32_t e, const double *x, double weight,
                       double *y)
{
    double *gate = malloc((size_t)set->n_ff * sizeof *gate), *up = malloc((size_t)set->n_ff * sizeof *up),
           *out = malloc((size_t)set->d_model * sizeof *out);
    hidden_of(set, e, x, gate, up);
    dense(&set->down[e], gate, out);
    for (int64_t i = 0; i < set->d_model; i++) y[i] += weight * out[i];
    free(gate);
    free(up);
    free(out);
}

/* ||a - b||^2 / ||b||^2 */
static double error_of(const float *a, const double *b, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0 ? difference / norm : difference;
}

struct input {
    int64_t n_row;
    float *x, *residual, *weights, *gate;
    int32_t *ids;
};

enum routing_kind { RANDOM, SKEWED, SAME, DUPLICATES, KINDS };

static void input_make(struct input *in, const struct shape *s, int64_t n_row, enum routing_kind kind)
{
    *in = (struct input){.n_row = n_row};
    in->x = malloc((size_t)(n_row * s->d_model) * sizeof(float));
    in->residual = malloc((size_t)(n_row * s->d_model) * sizeof(float));
    in->weights = malloc((size_t)(n_row * s->n_used + 1) * sizeof(float));
    in->gate = malloc((size_t)n_row * sizeof(float));
    in->ids = malloc((size_t)(n_row * s->n_used + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < n_row * s->d_model; i++) {
        in->x[i] = normal();
        in->residual[i] = normal();
    }
    for (int64_t i = 0; i < n_row; i++) {
        in->gate[i] = normal();
        for (int32_t k = 0; k < s->n_used; k++) {
            int64_t p = i * s->n_used + k;
            in->weights[p] = (float)mote_rng_unit(&rng);
            int again;
            int64_t tries = 0;
            do {
                uint64_t e = mote_rng_below(&rng, (uint64_t)s->n_expert);
                if (kind == SKEWED && tries < 4)
                    e = e * e / (uint64_t)s->n_expert;                 /* the last ones stay empty */
                if (kind == SAME) e = (uint64_t)(s->n_expert - 1 - k); /* one expert, every row */
                in->ids[p] = (int32_t)e;
                again = 0;
                for (int32_t j = 0; j < k; j++) again |= in->ids[p - 1 - j] == in->ids[p];
                tries++;
            } while (again && kind != DUPLICATES);
        }
    }
}

static void input_free(struct input *in)
{
    free(in->x);
    free(in->residual);
    free(in->weights);
    free(in->gate);
    free(in->ids);
}

static struct mote_moe job_of(const struct block *b, const struct input *in, float *y)
{
    return (struct mote_moe){
        .n_row = in->n_row,
        .d_model = b->shape.d_model,
        .n_used = b->shape.n_used,
        .x = in->x,
        .experts = b->shape.n_used ? &b->experts : NULL,
        .ids = in->ids,
        .weights = in->weights,
        .shared = b->shape.n_ff_shared ? &b->shared : NULL,
        .shared_gate = b->shape.n_ff_shared ? in->gate : NULL,
        .residual = in->residual,
        .y = y,
    };
}

static void run(struct mote_backend *backend, const struct mote_moe *job)
{
    if (backend->ops->moe(backend, job) != MOTE_OK) fail_msg("%s", mote_error());
}

/* One thread, two, three, unfused with one and with two. */
enum { VARIANTS = 5 };
static void backends_make(const struct shape *shape, struct mote_backend *backend[VARIANTS])
{
    static const int threads[VARIANTS] = {1, 2, 3, 1, 2};
    for (int v = 0; v < VARIANTS; v++) backend[v] = backend_for(shape, threads[v], v >= 3);
}
static void backends_free(struct mote_backend *backend[VARIANTS])
{
    for (int v = 0; v < VARIANTS; v++) backend[v]->ops->destroy(backend[v]);
}

static void check(struct mote_backend *backend[VARIANTS], const struct block *b, const struct input *in,
                  double budget)
{
    const struct shape *s = &b->shape;
    size_t bytes = (size_t)(in->n_row * s->d_model) * sizeof(float);
    float *y = malloc(bytes), *other = malloc(bytes);
    struct mote_moe job = job_of(b, in, y);
    run(backend[0], &job);

    double *x = malloc((size_t)s->d_model * sizeof *x),
           *expected = malloc((size_t)s->d_model * sizeof *expected);
    for (int64_t i = 0; i < in->n_row; i++) {
        for (int64_t c = 0; c < s->d_model; c++) {
            x[c] = in->x[i * s->d_model + c];
            expected[c] = in->residual[i * s->d_model + c];
        }
        for (int32_t k = 0; k < s->n_used; k++)
            add_expert(&b->experts, in->ids[i * s->n_used + k], x, in->weights[i * s->n_used + k], expected);
        if (s->n_ff_shared) add_expert(&b->shared, 0, x, 1 / (1 + exp(-(double)in->gate[i])), expected);
        double error = error_of(y + i * s->d_model, expected, s->d_model);
        if (!(error <= budget))
            fail_msg("E %d k %d row %lld: error %g, budget %g", s->n_expert, s->n_used, (long long)i, error,
                     budget);
    }
    free(x);
    free(expected);

    for (int v = 0; v < VARIANTS; v++) { /* 0: the residual in place this time */
        job = job_of(b, in, other);
        memset(other, 0xff, bytes);
        if (v == 0) {
            memcpy(other, in->residual, bytes);
            job.residual = other;
        }
        run(backend[v], &job);
        if (memcmp(y, other, bytes))
            fail_msg("E %d k %d rows %lld: variant %d differs from one thread, fused", s->n_expert, s->n_used,
                     (long long)in->n_row, v);
    }
    free(y);
    free(other);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 64, 32, 0},    {2, 1, 64, 96, 0},     {2, 2, 32, 32, 64},    {31, 4, 64, 32, 0},
        {33, 8, 96, 64, 32},  {60, 4, 160, 96, 256}, {128, 8, 64, 32, 0},   {257, 6, 32, 32, 0},
        {512, 10, 32, 64, 0}, {16, 16, 32, 32, 0},   {512, 512, 32, 32, 0},
    };
    static const int64_t rows[] = {1, 2, 9, 33};
    mote_rng_seed(&rng, 21);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct block b;
        struct mote_backend *backend[VARIANTS];
        block_make(&b, &shapes[i], MOTE_FORMAT_F32, MOTE_FORMAT_BF16, MOTE_FORMAT_F16, MOTE_WISH_F32);
        backends_make(&shapes[i], backend);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            if (shapes[i].n_used > 100 && rows[r] > 2) continue; /* the reference is slow */
            for (int kind = 0; kind < KINDS; kind++) {
                struct input in;
                input_make(&in, &shapes[i], rows[r], (enum routing_kind)kind);
                check(backend, &b, &in, 1e-11);
                input_free(&in);
            }
        }
        backends_free(backend);
        block_free(&b);
    }
}

/* Quantised weights, quantised activations, three formats and both activation types in one block. */
static void test_formats(void **state)
{
    (void)state;
    static const struct shape shape = {5, 2, 512, 256, 512};
    static const enum mote_format formats[][3] = {
        {MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0},
        {MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q6_K},
        {MOTE_FORMAT_TQ2_0, MOTE_FORMAT_TQ2_0, MOTE_FORMAT_TQ1_0},
    };
    mote_rng_seed(&rng, 22);
    struct mote_backend *backend[VARIANTS];
    backends_make(&shape, backend);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int64_t rows = 1; rows <= 40; rows += 13) {
            struct block b;
            struct input in;
            block_make(&b, &shape, formats[f][0], formats[f][1], formats[f][2], MOTE_WISH_DEFAULT);
            input_make(&in, &shape, rows, RANDOM);
            check(backend, &b, &in, 4e-4); /* two roundings to 8 bits, one scale for up to 256 */
            input_free(&in);
            block_free(&b);
        }
    backends_free(backend);
}

/* Every activation; the shared expert has one of its own. Without a gate there is nothing to read. */
static void test_activations(void **state)
{
    (void)state;
    static const struct shape shape = {5, 2, 256, 256, 256};
    static const struct {
        enum mote_format format[3];
        enum mote_act_wish act;
        double budget;
    } rows[] = {{{MOTE_FORMAT_F32, MOTE_FORMAT_BF16, MOTE_FORMAT_F16}, MOTE_WISH_F32, 1e-11},
                {{MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0}, MOTE_WISH_DEFAULT, 4e-4},
                {{MOTE_FORMAT_MXFP4, MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q6_K}, MOTE_WISH_DEFAULT, 4e-4},
                /* 4 bits: half a step is a tenth of most numbers */
                {{MOTE_FORMAT_MXFP4, MOTE_FORMAT_MXFP4, MOTE_FORMAT_MXFP4}, MOTE_WISH_MXFP4, 4e-2}};
    mote_rng_seed(&rng, 27);
    struct mote_backend *backend[VARIANTS];
    backends_make(&shape, backend);
    for (int k = 0; k < MOTE_ACTIVATION_COUNT; k++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            struct block b;
            block_make(&b, &shape, rows[r].format[0], rows[r].format[1], rows[r].format[2], rows[r].act);
            b.experts.activation = each_activation[k];
            b.shared.activation = each_activation[(k + 1) % MOTE_ACTIVATION_COUNT];
            if (!is_gated64(&b.experts.activation)) b.experts.gate = NULL;
            if (!is_gated64(&b.shared.activation)) b.shared.gate = NULL;
            assert_int_equal(backend[0]->ops->place_experts(backend[0], &b.experts), MOTE_OK);
            for (int64_t n = 1; n <= 14; n += 13) {
                struct input in;
                input_make(&in, &shape, n, RANDOM);
                check(backend, &b, &in, rows[r].budget);
                input_free(&in);
            }
            block_free(&b);
        }
    backends_free(backend);
}

/* Experts of one layer in different formats. */
static void test_mixed_experts(void **state)
{
    (void)state;
    static const struct shape shape = {4, 2, 256, 256, 0};
    mote_rng_seed(&rng, 23);
    struct block b, q;
    block_make(&b, &shape, MOTE_FORMAT_F16, MOTE_FORMAT_F16, MOTE_FORMAT_F16, MOTE_WISH_DEFAULT);
    block_make(&q, &shape, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q6_K, MOTE_WISH_DEFAULT);
    struct mote_backend *backend[VARIANTS];
    backends_make(&shape, backend);
    for (int p = 0; p < 3; p++) b.view[p * 4 + 2] = q.view[p * 4 + 2];
    for (int64_t rows = 1; rows <= 27; rows += 13) {
        struct input in;
        input_make(&in, &shape, rows, RANDOM);
        check(backend, &b, &in, 4e-4);
        input_free(&in);
    }
    backends_free(backend);
    block_free(&b);
    block_free(&q);
}

/* Up to 8 rows an expert, a row's result does not depend on its neighbours. */
static void test_row_alone(void **state)
{
    (void)state;
    static const struct shape shape = {16, 4, 256, 128, 256};
    mote_rng_seed(&rng, 24);
    struct block b;
    struct input in;
    block_make(&b, &shape, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0, MOTE_FORMAT_BF16, MOTE_WISH_DEFAULT);
    input_make(&in, &shape, 8, RANDOM);
    struct mote_backend *backend = backend_for(&shape, 2, 0);
    float *y = malloc(8 * 256 * sizeof *y), row[256];
    struct mote_moe job = job_of(&b, &in, y);
    run(backend, &job);
    for (int64_t i = 0; i < 8; i++) {
        struct input one = {.n_row = 1,
                            .x = in.x + i * 256,
                            .residual = in.residual + i * 256,
                            .weights = in.weights + i * 4,
                            .gate = in.gate + i,
                            .ids = in.ids + i * 4};
        job = job_of(&b, &one, row);
        run(backend, &job);
        assert_memory_equal(row, y + i * 256, sizeof row);
    }
    free(y);
    backend->ops->destroy(backend);
    input_free(&in);
    block_free(&b);
}

/* Dense: the shared expert alone, no gate, no residual; and what calibration sees. */
static void test_dense_and_hidden(void **state)
{
    (void)state;
    static const struct shape dense_shape = {0, 0, 64, 32, 96}, both = {6, 3, 64, 32, 96};
    mote_rng_seed(&rng, 25);
    struct block b;
    struct input in;
    block_make(&b, &both, MOTE_FORMAT_F32, MOTE_FORMAT_F32, MOTE_FORMAT_F32, MOTE_WISH_F32);
    input_make(&in, &both, 5, RANDOM);
    struct mote_backend *backend = backend_for(&dense_shape, 2, 0);
    float y[5 * 64], hidden[5 * 3 * 32], shared[5 * 96];
    struct mote_moe job = {
        .n_row = 5, .d_model = 64, .x = in.x, .shared = &b.shared, .y = y, .shared_hidden = shared};
    run(backend, &job);
    double x[64], gate[96], up[96], expected[64];
    for (int i = 0; i < 5; i++) {
        memset(expected, 0, sizeof expected);
        for (int c = 0; c < 64; c++) x[c] = in.x[i * 64 + c];
        add_expert(&b.shared, 0, x, 1, expected);
        assert_true(error_of(y + i * 64, expected, 64) < 1e-11);
        hidden_of(&b.shared, 0, x, gate, up);
        assert_true(error_of(shared + i * 96, gate, 96) < 1e-11);
    }
    backend->ops->destroy(backend);

    for (int unfused = 0; unfused < 2; unfused++) {
        backend = backend_for(&both, 2, unfused);
        job = job_of(&b, &in, y);
        job.hidden = hidden;
        job.shared_hidden = shared;
        memset(hidden, 0xff, sizeof hidden);
        run(backend, &job);
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 3; k++) {
                int32_t e = in.ids[i * 3 + k];
                for (int c = 0; c < 64; c++) x[c] = in.x[i * 64 + c];
                hidden_of(&b.experts, e, x, gate, up);
                assert_true(error_of(hidden + (i * 3 + k) * 32, gate, 32) < 1e-11);
            }
        backend->ops->destroy(backend);
    }
    input_free(&in);
    block_free(&b);
}

/* A router in the block: the bits of one before it, in y, ids and weights; its NaN is the block's. */
static void test_route_inside(void **state)
{
    (void)state;
    enum { E = 33, K = 8, D = 96, ROWS = 9, PAIRS = ROWS * K };
    static const struct shape shape = {E, K, D, 64, 32};
    mote_rng_seed(&rng, 28);
    struct block b;
    struct input in;
    block_make(&b, &shape, MOTE_FORMAT_F32, MOTE_FORMAT_BF16, MOTE_FORMAT_F16, MOTE_WISH_F32);
    input_make(&in, &shape, ROWS, RANDOM);
    float *w = encoded(MOTE_FORMAT_F32, E, D), *gate = encoded(MOTE_FORMAT_F32, 1, D), norm[D],
          logits[ROWS * E];
    for (int c = 0; c < D; c++) norm[c] = 1 + normal() / 4;
    struct mote_weight router = {.name = "router",
                                 .w = mote_matrix_view(MOTE_FORMAT_F32, (uint8_t *)w, E, D)},
                       shared = {.name = "gate",
                                 .w = mote_matrix_view(MOTE_FORMAT_F32, (uint8_t *)gate, 1, D)};
    struct mote_routing routing = {
        .n_expert = E, .n_used = K, .n_group = 1, .n_group_used = 1, .renormalise = 1, .scale = 1.5f};
    b.experts.routing = &routing;
    for (int unfused = 0; unfused < 2; unfused++) {
        struct mote_backend *backend = backend_for(&shape, 2, unfused);
        for (int64_t n = 1; n <= ROWS; n += ROWS - 1) {
            int32_t ids[2][PAIRS];
            float y[2][ROWS * D], weights[2][PAIRS], h[ROWS * D];
            memset(ids, 0xff, sizeof ids), memset(weights, 0xff, sizeof weights), memset(y, 0xff, sizeof y);
            for (int inside = 0; inside < 2; inside++) {
                memset(h, 0xff, sizeof h);
                struct mote_linear linear = {
                    .n_row = n,
                    .n_col = D,
                    .x = in.residual,
                    .norm = norm,
                    .eps = 1e-6f,
                    .norm_out = h,
                    .n_out = 2,
                    .out = {{&router, logits, E, NULL}, {&shared, in.gate, 1, NULL}},
                };
                struct mote_route route = {.routing = &routing,
                                           .router = &linear,
                                           .n_row = n,
                                           .logits = logits,
                                           .ids = ids[inside],
                                           .weights = weights[inside]};
                struct mote_moe job = job_of(&b, &in, y[inside]);
                job.n_row = n, job.x = h, job.ids = ids[inside], job.weights = weights[inside];
                if (inside) job.route = &route;
                else assert_int_equal(backend->ops->route(backend, &route), MOTE_OK);
                run(backend, &job);
                if (!inside || n > 1) continue;
                float kept = in.residual[3];
                in.residual[3] = NAN;
                assert_int_equal(backend->ops->moe(backend, &job), MOTE_NUMERIC);
                in.residual[3] = kept;
                run(backend, &job);
            }
            assert_memory_equal(y[0], y[1], sizeof y[0]);
            assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
            assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
            assert_in_range(ids[1][n * K - 1], 0, E - 1);
        }
        backend->ops->destroy(backend);
    }
    free(w), free(gate);
    input_free(&in);
    block_free(&b);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct shape shape = {4, 2, 64, 32, 0};
    mote_rng_seed(&rng, 26);
    struct block b;
    struct input in;
    block_make(&b, &shape, MOTE_FORMAT_F32, MOTE_FORMAT_F32, MOTE_FORMAT_F32, MOTE_WISH_F32);
    input_make(&in, &shape, 3, RANDOM);
    struct mote_backend *backend = backend_for(&shape, 1, 0);
    float y[3 * 64];
    struct mote_moe job = job_of(&b, &in, y);
    for (int bad = 0; bad < 2; bad++) {
        int32_t kept = in.ids[3];
        in.ids[3] = bad ? 4 : -1;
        assert_int_equal(backend->ops->moe(backend, &job), MOTE_ARGUMENT);
        assert_non_null(strstr(mote_error(), "expert"));
        in.ids[3] = kept;
    }
    job.n_row = MAX_ROW + 1;
    assert_int_equal(backend->ops->moe(backend, &job), MOTE_ARGUMENT);
    job.n_row = 0;
    assert_int_equal(backend->ops->moe(backend, &job), MOTE_ARGUMENT);
    job.n_row = 3;
    b.experts.gate = NULL; /* with SwiGLU */
    assert_int_equal(backend->ops->moe(backend, &job), MOTE_ARGUMENT);
    assert_int_equal(backend->ops->place_experts(backend, &b.experts), MOTE_ARGUMENT);
    assert_non_null(strstr(mote_error(), "experts: activation swiglu, experts without a gate"));
    struct mote_matrix integers = {.format = MOTE_FORMAT_I32, .n_row = 1, .n_col = 1, .factor = 1};
    struct mote_weight weight = {.name = "odd.weight", .w = integers};
    assert_int_equal(backend->ops->place(backend, &weight), MOTE_UNSUPPORTED);
    assert_non_null(strstr(mote_error(), "odd.weight"));
    backend->ops->destroy(backend);
    input_free(&in);
    block_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),           cmocka_unit_test(test_formats),
        cmocka_unit_test(test_mixed_experts),    cmocka_unit_test(test_row_alone),
        cmocka_unit_test(test_dense_and_hidden), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_activations),      cmocka_unit_test(test_route_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
