/* bench_moe.c: one expert block through the backend: router, top k, gate, up, activation, down, weighted sum.
 *
 * One idea: what a decode step reads depends on the routing, so every run routes afresh: layers with weights of their
 * own, several seeded inputs, a real router. A run's bytes are those of the experts it chose (each counted once) and
 * the router's; both they and the number of experts are means over the runs that go round.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/bench.h"
#include "api/handle.h"
#include "api/row_pool.h"
#include "api/shape.h"
#include "backend/backend.h"
#include "base/log.h"

enum { MAX_SET = 32, MAX_LAYER = 4096, MAX_WIDTH = 1 << 16 };

/* On a device a run is a chain of blocks, recorded where the backend records, so that what is timed is the device's
 * work; RUNS of them with other inputs go round. */
enum { DEVICE_BLOCKS = 16, DEVICE_RUNS = 6 };
static const size_t device_cold = (size_t)1200 << 20;

struct moe_shape {
    int64_t n_expert, d_model, n_ff, n_used;
    char name[96];
};

struct moe_layer {
    struct mote_weight router; /* f32 [n_expert][d_model] */
    struct mote_expert_set experts;
};

struct moe_bench {
    const struct mote_bench_job *job;
    struct moe_shape shape;
    struct mote_activation activation;
    int n_wide; /* matrices of an expert that read x: gate and up, or up */
    struct mote_routing routing;
    enum mote_format format, down_format;
    struct mote_row_pool wide, narrow; /* rows of gate and up, rows of down */
    size_t expert_bytes, router_bytes;
    int64_t n_layer, most;      /* most: rows of the largest run */
    uint8_t *weights;           /* [n_layer] gate (where there is one), up, down, each [n_expert] */
    float *router;              /* [n_layer][n_expert][d_model] */
    struct mote_matrix *matrix; /* [n_layer][3][n_expert] */
    struct moe_layer *layer;    /* [n_layer] */
    const struct mote_backend_kind *kind;
    int device;
    struct mote_backend *backend;
    /* backend memory */
    float *x; /* [most * n_set][d_model] */
    float *logits, *mix, *y;
    int32_t *ids;
    int32_t *host_ids;  /* [most][n_used] */
    int64_t n_x, n_set; /* of the row being timed */
};

static mote_status read_shape(const char *text, struct moe_shape *out)
{
    if (!text) text = "128/2048/768/8";
    const struct mote_shape *known = mote_shape_find(text);
    *out = (struct moe_shape){0};
    if (known) {
        *out = (struct moe_shape){.n_expert = known->n_expert,
                                  .d_model = known->d_model,
                                  .n_ff = known->n_ff_expert,
                                  .n_used = known->n_used};
        snprintf(out->name, sizeof out->name, "%s", known->name);
    } else {
        long long value[4];
        int end = 0;
        int n = sscanf(text, "%9lld/%9lld/%9lld/%9lld%n", &value[0], &value[1], &value[2], &value[3], &end);
        FAIL_IF(n != 4 || text[end], MOTE_ARGUMENT,
                "shape '%s', expected experts/model width/expert width/used, such as 128/2048/768/8, "
                "or the name "
                "of a shape, such as %s",
                text, mote_shape_at(0)->name);
        *out = (struct moe_shape){
            .n_expert = value[0], .d_model = value[1], .n_ff = value[2], .n_used = value[3]};
        snprintf(out->name, sizeof out->name, "%lld/%lld/%lld/%lld", value[0], value[1], value[2], value[3]);
    }
    FAIL_IF(out->n_expert < 1 || out->n_expert > MOTE_MAX_EXPERTS || out->n_used < 1 ||
                out->n_used > out->n_expert || out->d_model < 32 || out->d_model > MAX_WIDTH ||
                out->n_ff < 32 || out->n_ff > MAX_WIDTH,
            MOTE_ARGUMENT,
            "shape %s: expected 1..%d experts, at least as many as are used, and widths of 32..%d", out->name,
            MOTE_MAX_EXPERTS, MAX_WIDTH);
    return MOTE_OK;
}

/* ---- weights ---- */

static int on_device(const struct moe_bench *bench)
{
    return bench->kind->weight_bytes != NULL;
}

/* Layers until a round trip reads more than caches hold, two at least. */
static mote_status plan_layers(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    bench->expert_bytes = (size_t)bench->n_wide * mote_row_pool_bytes(&bench->wide, s->n_ff) +
                          mote_row_pool_bytes(&bench->narrow, s->d_model);
    bench->router_bytes = (size_t)s->n_expert * (size_t)s->d_model * sizeof(float);
    size_t layer = bench->expert_bytes * (size_t)s->n_expert, all;
    bench->n_layer = (int64_t)((on_device(bench) ? device_cold : MOTE_BENCH_COLD) / layer) + 1;
    if (on_device(bench) && bench->n_layer > DEVICE_BLOCKS) bench->n_layer = DEVICE_BLOCKS;
    if (bench->n_layer < 2) bench->n_layer = 2;
    if (bench->n_layer > MAX_LAYER) bench->n_layer = MAX_LAYER;
    char what[160];
    snprintf(what, sizeof what, "%s in %s", s->name, mote_format_traits(bench->format)->name);
    FAIL_IF(!mote_mul_size(layer + bench->router_bytes, (size_t)bench->n_layer, &all), MOTE_MEMORY,
            "%s is larger than an address space", what);
    return mote_bench_fits(what, all);
}

static struct mote_matrix *draw_part(struct moe_bench *bench, struct mote_rng *rng, int64_t layer, int part,
                                     uint8_t *memory)
{
    const struct moe_shape *s = &bench->shape;
    const struct mote_row_pool *pool = part < 2 ? &bench->wide : &bench->narrow;
    int64_t n_row = part < 2 ? s->n_ff : s->d_model;
    size_t bytes = mote_row_pool_bytes(pool, n_row);
    struct mote_matrix *matrix = bench->matrix + (layer * 3 + part) * s->n_expert;
    for (int64_t e = 0; e < s->n_expert; e++)
        matrix[e] = mote_row_pool_matrix(pool, rng, n_row, memory + (size_t)e * bytes);
    return matrix;
}

static mote_status draw_layers(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    size_t n_layer = (size_t)bench->n_layer, n_expert = (size_t)s->n_expert;
    TRY(mote_mem_alloc(NULL, MOTE_MEM_WEIGHTS, n_layer * n_expert * bench->expert_bytes, &bench->weights));
    TRY(mote_mem_alloc(NULL, MOTE_MEM_WEIGHTS, n_layer * bench->router_bytes, &bench->router));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n_layer * 3 * n_expert, sizeof *bench->matrix,
                        &bench->matrix));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n_layer, sizeof *bench->layer, &bench->layer));
    struct mote_rng rng;
    mote_rng_seed(&rng, 11);
    size_t wide = n_expert * mote_row_pool_bytes(&bench->wide, s->n_ff);
    for (int64_t l = 0; l < bench->n_layer; l++) {
        uint8_t *gate = bench->weights + (size_t)l * n_expert * bench->expert_bytes,
                *up = gate + (size_t)(bench->n_wide - 1) * wide, *down = up + wide;
        float *router = bench->router + l * s->n_expert * s->d_model;
        /* Inputs have variance 1, and logits then too. */
        mote_bench_normals((uint64_t)(100 + l), 1 / sqrt((double)s->d_model), s->n_expert * s->d_model,
                           router);
        struct moe_layer *layer = &bench->layer[l];
        layer->experts =
            (struct mote_expert_set){.name = "experts of the benchmark",
                                     .n_expert = (int32_t)s->n_expert,
                                     .n_ff = s->n_ff,
                                     .d_model = s->d_model,
                                     .activation = bench->activation,
                                     .gate = up == gate ? NULL : draw_part(bench, &rng, l, 0, gate),
                                     .up = draw_part(bench, &rng, l, 1, up),
                                     .down = draw_part(bench, &rng, l, 2, down),
                                     .act = bench->job->act,
                                     .routing = &bench->routing};
        layer->router = (struct mote_weight){
            .name = "router of the benchmark",
            .w = {.format = MOTE_FORMAT_F32,
                  .n_row = s->n_expert,
                  .n_col = s->d_model,
                  .row_bytes = (size_t)s->d_model * sizeof(float),
                  .data = (const uint8_t *)router,
                  .factor = 1},
        };
    }
    return MOTE_OK;
}

/* ---- a run ---- */

/* Inputs to choose from: many for few rows, as those touch few experts each. */
static int64_t sets_of(int64_t n_x)
{
    return n_x >= MAX_SET ? 2 : MAX_SET;
}

static mote_status begin_step(const struct moe_bench *bench, int64_t n_x, const int32_t *tokens,
                              struct mote_span *span, struct mote_batch *batch)
{
    *span = (struct mote_span){.kv = {.n_ctx = n_x}, .n_row = (int32_t)n_x};
    *batch = (struct mote_batch){.n_row = (int32_t)n_x, .token = tokens, .n_span = 1, .span = span};
    return bench->backend->ops->begin(bench->backend, batch);
}

struct router_run {
    struct mote_linear linear;
    struct mote_route route;
};

static void make_route(const struct moe_bench *bench, const struct moe_layer *layer, const float *x,
                       struct router_run *out)
{
    out->linear = (struct mote_linear){.n_row = bench->n_x,
                                       .n_col = bench->shape.d_model,
                                       .x = x,
                                       .n_out = 1,
                                       .out = {{&layer->router, bench->logits, bench->shape.n_expert, NULL}}};
    out->route = (struct mote_route){.routing = &bench->routing,
                                     .router = &out->linear,
                                     .n_row = bench->n_x,
                                     .logits = bench->logits,
                                     .ids = bench->ids,
                                     .weights = bench->mix};
}

static const struct moe_layer *layer_of(const struct moe_bench *bench, int64_t run)
{
    return &bench->layer[run % bench->n_layer];
}
static const float *input_of(const struct moe_bench *bench, int64_t run)
{
    return bench->x + run / bench->n_layer % bench->n_set * bench->n_x * bench->shape.d_model;
}

static mote_status start_block(struct moe_bench *bench, int64_t run)
{
    const struct mote_backend_ops *ops = bench->backend->ops;
    const struct moe_layer *layer = layer_of(bench, run);
    const float *x = input_of(bench, run);
    struct router_run router;
    make_route(bench, layer, x, &router);
    struct mote_moe moe = {.n_row = bench->n_x,
                           .d_model = bench->shape.d_model,
                           .n_used = (int32_t)bench->shape.n_used,
                           .x = x,
                           .route = &router.route,
                           .experts = &layer->experts,
                           .ids = bench->ids,
                           .weights = bench->mix,
                           .residual = x,
                           .y = bench->y};
    return ops->moe(bench->backend, &moe);
}

static mote_status finish(void *context, int64_t run)
{
    (void)run;
    struct moe_bench *bench = context;
    return bench->backend->ops->sync(bench->backend);
}

static mote_status run_block(void *context, int64_t run)
{
    TRY(start_block(context, run));
    return finish(context, run);
}

static mote_status run_chain(void *context, int64_t run)
{
    struct moe_bench *bench = context;
    const struct mote_backend_ops *ops = bench->backend->ops;
    struct mote_replay shape;
    int state;
    memset(&shape, 0, sizeof shape);
    run %= DEVICE_RUNS;
    shape.who = (uint64_t)run + 1; /* nobody else records on this backend */
    shape.n_want = (int32_t)bench->n_x;
    TRY(ops->replay_begin(bench->backend, &shape, &state));
    if (state == MOTE_REPLAY_DONE) return MOTE_OK;
    mote_status status = MOTE_OK;
    for (int64_t b = 0; b < DEVICE_BLOCKS && status == MOTE_OK; b++)
        status = start_block(bench, run * DEVICE_BLOCKS + b);
    return ops->replay_end(bench->backend, status);
}

static mote_status time_block(struct moe_bench *bench, struct mote_bench_row *row)
{
    if (!on_device(bench)) return mote_bench_time(bench->job, run_block, NULL, bench, row);
    TRY(mote_bench_time(bench->job, run_chain, finish, bench, row));
    row->seconds /= DEVICE_BLOCKS;
    row->low /= DEVICE_BLOCKS;
    row->high /= DEVICE_BLOCKS;
    return MOTE_OK;
}

/* Mean number of distinct experts over every layer and input. */
static mote_status count_experts(struct moe_bench *bench, double *mean)
{
    const struct mote_backend_ops *ops = bench->backend->ops;
    int64_t n_run = on_device(bench) ? DEVICE_BLOCKS * DEVICE_RUNS : bench->n_layer * bench->n_set,
            n_pair = bench->n_x * bench->shape.n_used, total = 0;
    for (int64_t run = 0; run < n_run; run++) {
        uint8_t seen[MOTE_MAX_EXPERTS] = {0};
        struct router_run router;
        make_route(bench, layer_of(bench, run), input_of(bench, run), &router);
        TRY(ops->route(bench->backend, &router.route));
        TRY(ops->download(bench->backend, bench->host_ids, bench->ids, (size_t)n_pair * sizeof(int32_t)));
        for (int64_t i = 0; i < n_pair; i++) {
            total += !seen[bench->host_ids[i]];
            seen[bench->host_ids[i]] = 1;
        }
    }
    *mean = (double)total / (double)n_run;
    return MOTE_OK;
}

static mote_status bench_rows(struct moe_bench *bench, int64_t n_x, const int32_t *tokens)
{
    const struct moe_shape *s = &bench->shape;
    struct mote_span span;
    struct mote_batch batch;
    bench->n_x = n_x;
    bench->n_set = sets_of(n_x);
    TRY(begin_step(bench, n_x, tokens, &span, &batch));
    double experts;
    TRY(count_experts(bench, &experts));
    struct mote_bench_row row = {
        .what = "moe",
        .name = s->name,
        .type = mote_format_traits(bench->format)->name,
        .rows = n_x,
        .bytes = experts * (double)bench->expert_bytes + (double)bench->router_bytes,
        .operations = 2.0 * (double)n_x * (double)s->d_model *
                      ((1.0 + bench->n_wide) * (double)s->n_used * (double)s->n_ff + (double)s->n_expert),
        .experts = (int64_t)(experts + 0.5),
    };
    TRY(time_block(bench, &row));
    return mote_bench_report(bench->job, &row);
}

/* ---- a format ---- */

static mote_status make_backend(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    const char *moe = bench->job->model->moe;
    enum mote_act_wish act = bench->job->act;
    struct mote_backend_options options = {.n_thread = bench->job->n_thread,
                                           .moe_unfused = moe && !strcmp(moe, "unfused"),
                                           .compact = bench->job->options->compact};
    struct mote_backend_limits limits = {
        .max_row = bench->most,
        .max_col = s->d_model,
        .d_model = s->d_model,
        .n_ff = s->n_ff,
        .n_expert = (int32_t)s->n_expert,
        .n_used = (int32_t)s->n_used,
        .act_linear = 1u << mote_act_default(MOTE_FORMAT_F32),
        .act_moe = 1u << mote_act_chosen(bench->format, act),
        .act_down = 1u << mote_act_chosen(bench->down_format, act),
    };
    options.device = bench->device;
    TRY(bench->kind->create(&options, &limits, NULL, &bench->backend));
    const struct mote_backend_ops *ops = bench->backend->ops;
    for (int64_t l = 0; l < bench->n_layer; l++) {
        TRY(ops->place(bench->backend, &bench->layer[l].router));
        TRY(ops->place_experts(bench->backend, &bench->layer[l].experts));
    }
    if (ops->place_routing) TRY(ops->place_routing(bench->backend, &bench->routing, &bench->layer[0].router));
    return ops->ready ? ops->ready(bench->backend) : MOTE_OK;
}

/* Rows that take the most input memory are not always the most rows: few rows have many inputs. */
static mote_status make_inputs(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    const struct mote_backend_ops *ops = bench->backend->ops;
    size_t most = (size_t)bench->most, pair = most * (size_t)s->n_used, d = (size_t)s->d_model;
    size_t n_input = (size_t)MAX_SET * MAX_SET > 2 * most ? (size_t)MAX_SET * MAX_SET : 2 * most;
    float *host;
    TRY(mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, n_input * d * sizeof(float), &host));
    mote_bench_normals(5, 1, (int64_t)(n_input * d), host);
    mote_status status = ops->alloc(bench->backend, MOTE_MEM_SCRATCH, n_input * d * sizeof(float), &bench->x);
    if (status == MOTE_OK) status = ops->upload(bench->backend, bench->x, host, n_input * d * sizeof(float));
    mote_mem_free(host);
    TRY(status);
    TRY(ops->alloc(bench->backend, MOTE_MEM_SCRATCH, most * (size_t)s->n_expert * sizeof(float),
                   &bench->logits));
    TRY(ops->alloc(bench->backend, MOTE_MEM_SCRATCH, pair * sizeof(float), &bench->mix));
    TRY(ops->alloc(bench->backend, MOTE_MEM_SCRATCH, pair * sizeof(int32_t), &bench->ids));
    TRY(ops->alloc(bench->backend, MOTE_MEM_SCRATCH, most * d * sizeof(float), &bench->y));
    return mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, pair, sizeof(int32_t), &bench->host_ids);
}

static mote_status make_weights(struct moe_bench *bench)
{
    struct mote_pool *threads;
    TRY(mote_pool_create(bench->job->n_thread, &threads));
    mote_status status = mote_row_pool_create(bench->format, MOTE_FORMAT_BF16, bench->shape.d_model,
                                              MOTE_BENCH_POOL, 1, threads, &bench->wide);
    if (status == MOTE_OK)
        status = mote_row_pool_create(bench->down_format, MOTE_FORMAT_BF16, bench->shape.n_ff,
                                      MOTE_BENCH_POOL, 2, threads, &bench->narrow);
    mote_pool_destroy(threads);
    TRY(status);
    TRY(plan_layers(bench));
    return draw_layers(bench);
}

static void take_down(struct moe_bench *bench)
{
    if (bench->backend) {
        const struct mote_backend_ops *ops = bench->backend->ops;
        for (int64_t l = 0; l < bench->n_layer; l++) {
            ops->unplace(bench->backend, bench->layer[l].router.placed);
            ops->unplace(bench->backend, bench->layer[l].experts.placed);
        }
        void *const memory[] = {bench->x, bench->logits, bench->mix, bench->ids, bench->y};
        for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) ops->free(bench->backend, memory[i]);
        ops->destroy(bench->backend);
    }
    mote_mem_free(bench->host_ids);
    mote_mem_free(bench->layer);
    mote_mem_free(bench->matrix);
    mote_mem_free(bench->router);
    mote_mem_free(bench->weights);
    mote_row_pool_free(&bench->narrow);
    mote_row_pool_free(&bench->wide);
}

static mote_status bench_format(const struct mote_bench_job *job, const struct moe_shape *shape,
                                const struct mote_activation *activation, enum mote_format format,
                                const int64_t *rows, size_t n_rows)
{
    struct moe_bench bench = {
        .job = job,
        .shape = *shape,
        .activation = *activation,
        .n_wide = 1 + mote_activation_traits(activation->kind)->is_gated,
        .format = format,
        /* As `mote synth` and others do: blocks of 256 do not divide every expert width. */
        .down_format = shape->n_ff % mote_format_traits(format)->block_elems ? MOTE_FORMAT_Q8_0 : format,
        .routing = {.score = MOTE_SCORE_SOFTMAX,
                    .n_expert = (int32_t)shape->n_expert,
                    .n_used = (int32_t)shape->n_used,
                    .n_group = 1,
                    .n_group_used = 1,
                    .renormalise = 1,
                    .scale = 1},
        .most = 1,
    };
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i] > bench.most) bench.most = rows[i];
    int32_t *tokens = NULL;
    TRY(mote_device_choose(job->model->device, &bench.kind, &bench.device));
    mote_status status = make_weights(&bench);
    if (status == MOTE_OK) status = make_backend(&bench);
    if (status == MOTE_OK) status = make_inputs(&bench);
    if (status == MOTE_OK)
        status = mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)bench.most, sizeof *tokens, &tokens);
    for (size_t i = 0; status == MOTE_OK && i < n_rows; i++) status = bench_rows(&bench, rows[i], tokens);
    mote_mem_free(tokens);
    take_down(&bench);
    return status;
}

mote_status mote_bench_moe(const struct mote_bench_job *job)
{
    static const int64_t default_rows[] = {1, 8, 64, 256};
    enum mote_format format[MOTE_FORMAT_COUNT];
    struct moe_shape shape;
    struct mote_activation activation = {MOTE_ACTIVATION_SWIGLU, 0};
    const int64_t *rows;
    size_t n_rows;
    int n_format;
    TRY(read_shape(job->options->shape, &shape));
    if (job->options->activation) {
        TRY(mote_activation_find(job->options->activation, &activation));
        size_t end = strlen(shape.name);
        snprintf(shape.name + end, sizeof shape.name - end, " %s", job->options->activation);
    }
    if (job->options->compact) {
        size_t end = strlen(shape.name);
        snprintf(shape.name + end, sizeof shape.name - end, " compact");
    }
    TRY(mote_bench_formats(job, format, &n_format));
    TRY(mote_bench_rows(job, default_rows, sizeof default_rows / sizeof *default_rows, &rows, &n_rows));
    TRY(mote_bench_start(job));
    for (int f = 0; f < n_format; f++) {
        mote_status status = bench_format(job, &shape, &activation, format[f], rows, n_rows);
        /* Of all formats, those that fit. */
        if (status == MOTE_MEMORY && !job->options->type) {
            mote_log(MOTE_LOG_WARNING, "%s", mote_error());
            continue;
        }
        TRY(status);
    }
    return MOTE_OK;
}
