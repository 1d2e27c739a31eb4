/* bench_moe.c: one expert block through the backend: router, top k, gate, up, activation, down, weighted sum.
 *
 * One idea: what a decode step reads depends on the routing, so every run routes afresh: layers with weights of their
 * own, several seeded inputs, a real router (or, asked for, choices drawn beforehand, the way that kernels without a
 * router are timed). A run's bytes are those of the experts it chose (each counted once) and the router's; both they
 * and the number of experts are means over the runs that go round.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/bench.h"
#include "api/handle.h"
#include "api/row_pool.h"
#include "api/shape.h"
#include "backend/backend.h"
#include "base/log.h"
#include "cuda/cuda.h"

enum { MAX_SET = 31, MAX_LAYER = 4096, MAX_WIDTH = 1 << 16 };

/* On a device a run is a chain of blocks in one recorded graph, so that what is timed is the device's work; RUNS of them
 * with other inputs go round, through LAYERS of weights at least. */
enum { DEVICE_BLOCKS = 16, DEVICE_RUNS = 6, DEVICE_LAYERS = 4 };
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
    int is_uniform; /* no router: ids and mix are there */
    int n_wide;     /* matrices of an expert that read x: gate and up, or up */
    struct mote_routing routing;
    enum mote_format format, down_format;
    struct mote_row_pool wide, narrow; /* rows of gate and up, rows of down */
    size_t expert_bytes, router_bytes;
    int64_t n_layer, most;      /* most: rows of the largest run */
    int64_t n_input;            /* rows of x */
    uint8_t *weights;           /* [n_layer][n_expert] gate (where there is one), up, down */
    float *router;              /* [n_layer][n_expert][d_model] */
    struct mote_matrix *matrix; /* [n_layer][3][n_expert] */
    struct moe_layer *layer;    /* [n_layer] */
    const struct mote_backend_kind *kind;
    int device;
    struct mote_backend *backend;
    struct mote_pool *threads; /* until everything is there */
    /* backend memory */
    float *x;           /* [n_input][d_model] */
    float *logits;      /* [most][n_expert] */
    float *mix;         /* [n_input][n_used] */
    float *y;           /* [most][d_model] */
    int32_t *ids;       /* [n_input][n_used] */
    int32_t *host_ids;  /* [most][n_used] */
    int64_t n_x, n_set; /* of the row being timed */
    struct mote_cuda_watch watch;
    struct mote_bench_kernel kernel[MOTE_CUDA_WATCHED];
};

const char *mote_bench_shape(size_t index, int64_t dims[4])
{
    const struct mote_shape *shape = mote_shape_at(index);
    if (!shape) return NULL;
    dims[0] = shape->n_expert, dims[1] = shape->d_model, dims[2] = shape->n_ff_expert,
    dims[3] = shape->n_used;
    return shape->name;
}

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
                "or the name of a shape, such as %s",
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

/* Layers until a round trip reads more than caches hold; on a device at least so many that an expert that two steps choose
 * is seldom still there. */
static mote_status plan_layers(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    bench->expert_bytes = (size_t)bench->n_wide * mote_row_pool_bytes(&bench->wide, s->n_ff) +
                          mote_row_pool_bytes(&bench->narrow, s->d_model);
    bench->router_bytes = (size_t)s->n_expert * (size_t)s->d_model * sizeof(float);
    size_t layer = bench->expert_bytes * (size_t)s->n_expert, all;
    bench->n_layer = (int64_t)((on_device(bench) ? device_cold : MOTE_BENCH_COLD) / layer) + 1;
    if (on_device(bench) && bench->n_layer > DEVICE_BLOCKS) bench->n_layer = DEVICE_BLOCKS;
    int64_t least = on_device(bench) ? DEVICE_LAYERS : 2;
    if (bench->n_layer < least) bench->n_layer = least;
    if (bench->n_layer > MAX_LAYER) bench->n_layer = MAX_LAYER;
    char what[160];
    snprintf(what, sizeof what, "%s in %s", s->name, mote_format_traits(bench->format)->name);
    FAIL_IF(!mote_mul_size(layer + bench->router_bytes, (size_t)bench->n_layer, &all), MOTE_MEMORY,
            "%s is larger than an address space", what);
    return mote_bench_fits(what, all);
}

enum { GATE, UP, DOWN, PARTS };

static struct mote_matrix *matrices_of(const struct moe_bench *bench, int64_t layer, int part)
{
    return bench->matrix + (layer * PARTS + part) * bench->shape.n_expert;
}

struct draw_job {
    struct moe_bench *bench;
    struct mote_chunks chunks; /* of the experts of all layers */
};

static void draw_experts(void *context, int worker, int n_worker)
{
    struct draw_job *job = context;
    struct moe_bench *bench = job->bench;
    const struct moe_shape *s = &bench->shape;
    (void)worker;
    (void)n_worker;
    for (int64_t i, end; mote_next_chunk(&job->chunks, &i, &end);)
        for (; i < end; i++) {
            uint8_t *at = bench->weights + (size_t)i * bench->expert_bytes;
            struct mote_rng rng;
            mote_rng_seed(&rng, 11 + (uint64_t)i * 0xD1B54A32D192ED03u);
            for (int part = PARTS - 1 - bench->n_wide; part < PARTS; part++) {
                const struct mote_row_pool *pool = part == DOWN ? &bench->narrow : &bench->wide;
                int64_t n_row = part == DOWN ? s->d_model : s->n_ff;
                matrices_of(bench, i / s->n_expert, part)[i % s->n_expert] =
                    mote_row_pool_matrix(pool, &rng, n_row, at);
                at += mote_row_pool_bytes(pool, n_row);
            }
        }
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
    struct draw_job job = {.bench = bench};
    mote_chunks_init(&job.chunks, bench->n_layer * s->n_expert, 1);
    mote_pool_run(bench->threads, draw_experts, &job);
    for (int64_t l = 0; l < bench->n_layer; l++) {
        float *router = bench->router + l * s->n_expert * s->d_model;
        /* Inputs have variance 1, and logits then too. */
        mote_bench_normals(bench->threads, (uint64_t)(100 + l), 1 / sqrt((double)s->d_model),
                           s->n_expert * s->d_model, router);
        struct moe_layer *layer = &bench->layer[l];
        layer->experts =
            (struct mote_expert_set){.name = "experts of the benchmark",
                                     .n_expert = (int32_t)s->n_expert,
                                     .n_ff = s->n_ff,
                                     .d_model = s->d_model,
                                     .activation = bench->activation,
                                     .gate = bench->n_wide == 1 ? NULL : matrices_of(bench, l, GATE),
                                     .up = matrices_of(bench, l, UP),
                                     .down = matrices_of(bench, l, DOWN),
                                     .act = bench->job->act,
                                     .routing = bench->is_uniform ? NULL : &bench->routing};
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

/* Inputs to choose from: many for few rows, as those touch few experts each. An odd number: layers are often even. */
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

static const struct moe_layer *layer_of(const struct moe_bench *bench, int64_t run)
{
    return &bench->layer[run % bench->n_layer];
}
/* The first of a run's rows; no two runs in a row have the same, so that nothing made of one is used by the next. */
static int64_t first_row(const struct moe_bench *bench, int64_t run)
{
    return run % bench->n_set * bench->n_x;
}

static void make_route(const struct moe_bench *bench, int64_t run, struct router_run *out)
{
    const struct moe_layer *layer = layer_of(bench, run);
    int64_t at = first_row(bench, run), n_used = bench->shape.n_used;
    out->linear = (struct mote_linear){.n_row = bench->n_x,
                                       .n_col = bench->shape.d_model,
                                       .x = bench->x + at * bench->shape.d_model,
                                       .n_out = 1,
                                       .out = {{&layer->router, bench->logits, bench->shape.n_expert, NULL}}};
    out->route = (struct mote_route){.routing = &bench->routing,
                                     .router = &out->linear,
                                     .n_row = bench->n_x,
                                     .logits = bench->logits,
                                     .ids = bench->ids + at * n_used,
                                     .weights = bench->mix + at * n_used};
}

static mote_status start_block(struct moe_bench *bench, int64_t run)
{
    const struct mote_backend_ops *ops = bench->backend->ops;
    struct router_run router;
    make_route(bench, run, &router);
    struct mote_moe moe = {.n_row = bench->n_x,
                           .d_model = bench->shape.d_model,
                           .n_used = (int32_t)bench->shape.n_used,
                           .x = router.linear.x,
                           .route = bench->is_uniform ? NULL : &router.route,
                           .experts = &layer_of(bench, run)->experts,
                           .ids = router.route.ids,
                           .weights = router.route.weights,
                           .residual = router.linear.x,
                           .y = bench->y,
                           .unordered = bench->job->options->unordered};
    bench->watch.n_launch = 0;
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
    /* Nobody else records on this backend. */
    shape.who = (uint64_t)run + 1 + (uint64_t)DEVICE_RUNS * (uint64_t)bench->watch.most;
    shape.n_want = (int32_t)bench->n_x;
    TRY(ops->replay_begin(bench->backend, &shape, &state));
    if (state == MOTE_REPLAY_DONE) return MOTE_OK;
    mote_status status = MOTE_OK;
    for (int64_t b = 0; b < DEVICE_BLOCKS && status == MOTE_OK; b++)
        status = start_block(bench, run * DEVICE_BLOCKS + b);
    return ops->replay_end(bench->backend, status);
}

static mote_status time_chain(struct moe_bench *bench, struct mote_bench_row *row)
{
    for (int64_t run = 0; run < DEVICE_RUNS; run++) TRY(run_chain(bench, run)); /* all are recorded */
    TRY(mote_bench_time(bench->job, run_chain, finish, bench, row));
    row->seconds /= DEVICE_BLOCKS;
    row->low /= DEVICE_BLOCKS;
    row->high /= DEVICE_BLOCKS;
    return MOTE_OK;
}

/* The block's launches: chains of blocks that end after the first, after the second and so on, each less the one before. */
static mote_status time_kernels(struct moe_bench *bench, struct mote_bench_row *row)
{
    struct mote_bench_row part;
    double before = 0;
    bench->watch.most = INT_MAX;
    TRY(run_block(bench, 0));
    int n = bench->watch.n_launch;
    if (n > MOTE_CUDA_WATCHED) {
        mote_log(MOTE_LOG_WARNING, "%s: blocks of %lld rows are %d launches, too many to time each",
                 row->name, (long long)row->rows, n);
        return MOTE_OK;
    }
    for (int i = 0; i < n; i++) {
        bench->watch.most = i + 1;
        TRY(time_chain(bench, &part));
        bench->kernel[i] = (struct mote_bench_kernel){bench->watch.name[i], part.seconds - before};
        before = part.seconds;
    }
    row->kernel = bench->kernel;
    row->n_kernel = (size_t)n;
    return MOTE_OK;
}

static mote_status time_block(struct moe_bench *bench, struct mote_bench_row *row)
{
    const struct mote_backend_ops *ops = bench->backend->ops;
    if (!on_device(bench)) return mote_bench_time(bench->job, run_block, NULL, bench, row);
    bench->watch.most = 0;
    TRY(time_chain(bench, row));
    if (!bench->job->options->kernels) return MOTE_OK;
    ops->watch(bench->backend, &bench->watch);
    mote_status status = time_kernels(bench, row);
    ops->watch(bench->backend, NULL);
    return status;
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
        make_route(bench, run, &router);
        if (!bench->is_uniform) TRY(ops->route(bench->backend, &router.route));
        TRY(ops->download(bench->backend, bench->host_ids, router.route.ids,
                          (size_t)n_pair * sizeof(int32_t)));
        for (int64_t i = 0; i < n_pair; i++) {
            total += !seen[bench->host_ids[i]];
            seen[bench->host_ids[i]] = 1;
        }
    }
    *mean = (double)total / (double)n_run;
    return MOTE_OK;
}

/* What Hopper's tensor cores were measured to keep up, operations per second: 8-bit floats that are promoted every 128
 * columns, and 16-bit ones. 0: not known of this chip. */
static double operation_rate(const struct moe_bench *bench)
{
    struct mote_cuda_info info;
    if (!on_device(bench) || mote_cuda_describe(bench->device, &info) != MOTE_OK || info.cc != 90) return 0;
    return mote_act_chosen(bench->format, bench->job->act) == MOTE_ACT_MXFP4 ? 1200e12 : 620e12;
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
        .bytes = experts * (double)bench->expert_bytes,
        .operations = 2.0 * (double)n_x * (double)s->d_model * (1.0 + bench->n_wide) * (double)s->n_used *
                      (double)s->n_ff,
        .experts = (int64_t)(experts + 0.5),
        .act = bench->job->model->act ? bench->job->model->act : "default",
        .rate = operation_rate(bench),
    };
    if (!bench->is_uniform) {
        row.bytes += (double)bench->router_bytes;
        row.operations += 2.0 * (double)n_x * (double)s->d_model * (double)s->n_expert;
    }
    TRY(time_block(bench, &row));
    return mote_bench_report(bench->job, &row);
}

/* ---- a format ---- */

static mote_status make_backend(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    enum mote_act_wish act = bench->job->act;
    struct mote_backend_options options = {.n_thread = bench->job->n_thread,
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
    TRY(mote_moe_kernels_parse(bench->job->model->moe, &options.moe_kernels));
    TRY(bench->kind->create(&options, &limits, NULL, &bench->backend));
    const struct mote_backend_ops *ops = bench->backend->ops;
    for (int64_t l = 0; l < bench->n_layer; l++) {
        if (!bench->is_uniform) TRY(ops->place(bench->backend, &bench->layer[l].router));
        TRY(ops->place_experts(bench->backend, &bench->layer[l].experts));
    }
    if (ops->place_routing && !bench->is_uniform)
        TRY(ops->place_routing(bench->backend, &bench->routing, &bench->layer[0].router));
    return ops->ready ? ops->ready(bench->backend) : MOTE_OK;
}

/* k of n experts, all different, every set of them as likely as any other (Floyd), and weights whose sum is 1. */
static void draw_choice(struct mote_rng *rng, int64_t n, int64_t k, int32_t *ids, float *mix)
{
    uint8_t seen[MOTE_MAX_EXPERTS] = {0};
    double sum = 0;
    for (int64_t s = 0; s < k; s++) {
        int64_t last = n - k + s, pick = (int64_t)mote_rng_below(rng, (uint64_t)last + 1);
        if (seen[pick]) pick = last;
        seen[pick] = 1;
        ids[s] = (int32_t)pick;
        mix[s] = (float)(0.1 + mote_rng_unit(rng));
        sum += (double)mix[s];
    }
    for (int64_t s = 0; s < k; s++) mix[s] = (float)((double)mix[s] / sum);
}

/* Normal x, and choices for who has no router; host memory as the backend's of these names. */
static mote_status fill_inputs(struct moe_bench *bench, float *x, int32_t *ids, float *mix)
{
    const struct moe_shape *s = &bench->shape;
    const struct mote_backend_ops *ops = bench->backend->ops;
    size_t n = (size_t)bench->n_input, pair = n * (size_t)s->n_used;
    struct mote_rng rng;
    mote_rng_seed(&rng, 13);
    mote_bench_normals(bench->threads, 5, 1, bench->n_input * s->d_model, x);
    for (int64_t i = 0; i < bench->n_input; i++)
        draw_choice(&rng, s->n_expert, s->n_used, ids + i * s->n_used, mix + i * s->n_used);
    TRY(ops->upload(bench->backend, bench->x, x, n * (size_t)s->d_model * sizeof *x));
    TRY(ops->upload(bench->backend, bench->ids, ids, pair * sizeof *ids));
    TRY(ops->upload(bench->backend, bench->mix, mix, pair * sizeof *mix));
    return ops->sync(bench->backend); /* the host's copies go */
}

/* Rows that take the most input memory are not always the most rows: few rows have many inputs. */
static mote_status make_inputs(struct moe_bench *bench)
{
    const struct moe_shape *s = &bench->shape;
    const struct mote_backend_ops *ops = bench->backend->ops;
    bench->n_input = MAX_SET * MAX_SET > 2 * bench->most ? MAX_SET * MAX_SET : 2 * bench->most;
    size_t most = (size_t)bench->most, n_input = (size_t)bench->n_input;
    size_t d = (size_t)s->d_model, n_used = (size_t)s->n_used;
    struct {
        size_t n;
        void *out;
    } const memory[] = {{n_input * d, &bench->x},
                        {most * (size_t)s->n_expert, &bench->logits},
                        {n_input * n_used, &bench->mix},
                        {n_input * n_used, &bench->ids},
                        {most * d, &bench->y}};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        TRY(ops->alloc(bench->backend, MOTE_MEM_SCRATCH, memory[i].n * sizeof(float), memory[i].out));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, most * n_used, sizeof(int32_t), &bench->host_ids));
    float *x = NULL, *mix = NULL;
    int32_t *ids = NULL;
    mote_status status = mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, n_input * d * sizeof *x, &x);
    if (status == MOTE_OK)
        status = mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, n_input * n_used * sizeof *ids, &ids);
    if (status == MOTE_OK)
        status = mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, n_input * n_used * sizeof *mix, &mix);
    if (status == MOTE_OK) status = fill_inputs(bench, x, ids, mix);
    mote_mem_free(x);
    mote_mem_free(ids);
    mote_mem_free(mix);
    return status;
}

static mote_status make_weights(struct moe_bench *bench)
{
    TRY(mote_row_pool_create(bench->format, MOTE_FORMAT_BF16, bench->shape.d_model, MOTE_BENCH_POOL, 1,
                             bench->threads, &bench->wide));
    TRY(mote_row_pool_create(bench->down_format, MOTE_FORMAT_BF16, bench->shape.n_ff, MOTE_BENCH_POOL, 2,
                             bench->threads, &bench->narrow));
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

/* asked: everything that is said before a format is. */
static mote_status bench_format(const struct moe_bench *asked, enum mote_format format, const int64_t *rows,
                                size_t n_rows)
{
    struct moe_bench bench = *asked;
    bench.format = format;
    /* As `mote synth` and others do: blocks of 256 do not divide every expert width. */
    bench.down_format =
        bench.shape.n_ff % mote_format_traits(format)->block_elems ? MOTE_FORMAT_Q8_0 : format;
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i] > bench.most) bench.most = rows[i];
    int32_t *tokens = NULL;
    TRY(mote_pool_create(bench.job->n_thread, &bench.threads));
    mote_status status = make_weights(&bench);
    if (status == MOTE_OK) status = make_backend(&bench);
    if (status == MOTE_OK) status = make_inputs(&bench);
    mote_pool_destroy(bench.threads);
    if (status == MOTE_OK)
        status = mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)bench.most, sizeof *tokens, &tokens);
    for (size_t i = 0; status == MOTE_OK && i < n_rows; i++) status = bench_rows(&bench, rows[i], tokens);
    mote_mem_free(tokens);
    take_down(&bench);
    return status;
}

/* " word" behind the name of a shape that is timed in some other way than the usual one. */
static void qualify(struct moe_shape *shape, const char *word)
{
    size_t end = strlen(shape->name);
    snprintf(shape->name + end, sizeof shape->name - end, " %s", word);
}

static mote_status read_request(const struct mote_bench_job *job, struct moe_bench *out)
{
    const struct mote_bench_options *options = job->options;
    const char *routing = options->routing ? options->routing : "router";
    struct moe_shape *shape = &out->shape;
    *out = (struct moe_bench){.job = job, .activation = {MOTE_ACTIVATION_SWIGLU, 0}, .most = 1};
    TRY(read_shape(options->shape, shape));
    TRY(mote_device_choose(job->model->device, &out->kind, &out->device));
    if (options->activation) {
        TRY(mote_activation_find(options->activation, &out->activation));
        qualify(shape, options->activation);
    }
    if (options->compact) qualify(shape, "compact");
    out->is_uniform = !strcmp(routing, "uniform");
    FAIL_IF(!out->is_uniform && strcmp(routing, "router"), MOTE_ARGUMENT,
            "routing '%s' is not known; there are: router, uniform", routing);
    if (out->is_uniform) qualify(shape, routing);
    FAIL_IF(options->kernels && !on_device(out), MOTE_UNSUPPORTED,
            "bench moe: times of single kernels are a GPU's; on a CPU the block is one job of all threads");
    out->n_wide = 1 + mote_activation_traits(out->activation.kind)->is_gated;
    out->routing = (struct mote_routing){.score = MOTE_SCORE_SOFTMAX,
                                         .n_expert = (int32_t)shape->n_expert,
                                         .n_used = (int32_t)shape->n_used,
                                         .n_group = 1,
                                         .n_group_used = 1,
                                         .renormalise = 1,
                                         .scale = 1};
    return MOTE_OK;
}

mote_status mote_bench_moe(const struct mote_bench_job *job)
{
    static const int64_t default_rows[] = {1, 8, 64, 256};
    enum mote_format format[MOTE_FORMAT_COUNT];
    struct moe_bench asked;
    const int64_t *rows;
    size_t n_rows;
    int n_format;
    TRY(read_request(job, &asked));
    TRY(mote_bench_formats(job, format, &n_format));
    TRY(mote_bench_rows(job, default_rows, sizeof default_rows / sizeof *default_rows, &rows, &n_rows));
    TRY(mote_bench_start(job));
    for (int f = 0; f < n_format; f++) {
        mote_status status = bench_format(&asked, format[f], rows, n_rows);
        /* Of all formats, those that fit. */
        if (status == MOTE_MEMORY && !job->options->type) {
            mote_log(MOTE_LOG_WARNING, "%s", mote_error());
            continue;
        }
        TRY(status);
    }
    return MOTE_OK;
}
