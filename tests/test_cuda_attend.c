/* test_cuda_attend.c: the CUDA backend's attention against the CPU's with the same type of cache: norm, rotation, what is
 * stored, what comes out, for single rows, many rows, chunks and mixtures of sequences; and what it hands to the
 * product that follows. Without a device: need_device.h.
 *
 * Positions that no token has reached hold large numbers, other layers and the guard NaN: what is read wrongly
 * shows, what is written wrongly too. */
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/kernel.h"
#include "cuda_pair.h"

enum { MAX_ROW = 600, LAYER = 1, LAYERS = 2, MAX_SPAN = 16, OUT_ROWS = 48, SPARE = 7 };

static struct mote_rng rng;

struct heads {
    int64_t n_head, n_head_kv, head_dim, n_rot;
    int has_norm;
};
static const struct heads shapes[] = {
    {8, 2, 128, 128, 1}, {8, 8, 64, 64, 0},  {16, 2, 64, 64, 1},
    {8, 2, 64, 32, 0},   {4, 4, 128, 64, 1}, {16, 2, 128, 128, 0},
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes };

struct step_case {
    const char *what;
    int64_t window;
    struct {
        int32_t n_row;
        int64_t n_past;
    } span[MAX_SPAN];
};
static const struct step_case steps[] = {
    {"first token", 0, {{1, 0}}},
    {"one row", 0, {{1, 5000}}},
    {"five sequences", 0, {{1, 0}, {1, 1}, {1, 63}, {1, 64}, {1, 255}}},
    {"long and short", 0, {{1, 1000}, {1, 5000}, {1, 0}, {1, 256}}},
    {"window", 100, {{1, 0}, {1, 63}, {1, 99}, {1, 100}, {1, 1000}, {1, 5000}}},
    {"three rows of one", 0, {{3, 255}}},
    {"sixteen rows", 0, {{2, 70}, {5, 0}, {8, 300}, {1, 999}}},
    {"prefill 17", 0, {{17, 0}}},
    {"prefill 64", 0, {{64, 0}}},
    {"prefill 129", 0, {{129, 0}}},
    {"prefill 512", 0, {{512, 0}}},
    {"prefill 17 after 100", 0, {{17, 100}}},
    {"prefill 64 after 100", 0, {{64, 100}}},
    {"prefill 129 after 100", 0, {{129, 100}}},
    {"prefill 512 after 100", 0, {{512, 100}}},
    {"two sequences", 0, {{64, 0}, {129, 100}}},
    {"prefill among single rows", 0, {{1, 700}, {40, 33}, {1, 0}, {8, 64}, {9, 64}, {1, 5000}}},
    {"window of many", 50, {{129, 100}, {20, 0}}},
};
enum { N_STEP = sizeof steps / sizeof *steps };

static struct mote_backend_limits limits_of(const struct heads *h)
{
    int64_t width = h->n_head * h->head_dim;
    return (struct mote_backend_limits){.max_row = MAX_ROW,
                                        .max_col = width,
                                        .d_model = width,
                                        .n_head = h->n_head,
                                        .n_head_kv = h->n_head_kv,
                                        .head_dim = h->head_dim,
                                        .n_rot = h->n_rot,
                                        .act_linear = 7};
}

/* Normal numbers, made once and read from anywhere: caches are large. */
enum { STOCK = 1 << 20 };
static float *stock;

static const float *some_normals(int64_t n)
{
    if (!stock) stock = new_normals(&rng, STOCK + 4096);
    assert_true(n <= 4096);
    return stock + mote_rng_below(&rng, STOCK);
}

/* ---- caches ---- */

struct cache {
    struct mote_kv_view view; /* host copy of what both backends start with; k and v point there */
    size_t bytes;             /* of k, of v */
    uint8_t *k[2], *v[2];     /* on the CPU backend, on the CUDA backend */
};

static void store(enum mote_kv_type type, const float *x, int64_t n, uint8_t *out)
{
    mote_cpu_kernels(MOTE_CPU_SCALAR)->kv_store(type, x, n, out);
}

static struct cache cache_make(const struct pair *pair, const struct heads *h, enum mote_kv_type type,
                               int64_t n_past, int64_t n_row)
{
    size_t row = mote_kv_row_bytes(type, h->head_dim);
    int64_t n_ctx = n_past + n_row + SPARE;
    struct cache c = {.view = {.type = type,
                               .n_layer = LAYERS,
                               .n_head_kv = (int32_t)h->n_head_kv,
                               .n_ctx = n_ctx,
                               .k_row_bytes = row,
                               .v_row_bytes = row},
                      .bytes = (size_t)(LAYERS * h->n_head_kv * n_ctx) * row};
    float large[256];
    for (int d = 0; d < 256; d++) large[d] = 30000;
    uint8_t *plane[2] = {malloc(c.bytes), malloc(c.bytes)};
    for (int p = 0; p < 2; p++) {
        memset(plane[p], 0xFF, c.bytes);
        for (int64_t head = 0; head < h->n_head_kv; head++)
            for (int64_t at = 0; at < n_ctx; at++)
                store(type, at < n_past ? some_normals(h->head_dim) : large, h->head_dim,
                      plane[p] + (size_t)((LAYER * h->n_head_kv + head) * n_ctx + at) * row);
    }
    c.view.k = plane[0], c.view.v = plane[1];
    for (int b = 0; b < 2; b++) {
        struct mote_backend *backend = b ? pair->cuda : pair->cpu;
        c.k[b] = put(backend, c.view.k, c.bytes);
        c.v[b] = put(backend, c.view.v, c.bytes);
    }
    return c;
}

static void cache_free(const struct pair *pair, struct cache *c)
{
    for (int b = 0; b < 2; b++) {
        take_back(b ? pair->cuda : pair->cpu, c->k[b]);
        take_back(b ? pair->cuda : pair->cpu, c->v[b]);
    }
    free(c->view.k), free(c->view.v);
}

static double element(enum mote_kv_type type, const uint8_t *row, int64_t d)
{
    if (type == MOTE_KV_F32) return mote_bits_f32(mote_load_u32(row + 4 * d));
    if (type == MOTE_KV_F16) return mote_f16_f32(mote_load_u16(row + 2 * d));
    row += d / 32 * 34;
    return (double)mote_f16_f32(mote_load_u16(row)) * (int8_t)row[2 + d % 32];
}

/* New rows as the CPU stored them, within a rounding of the type; every other byte untouched. */
static void check_cache(const struct pair *pair, const struct heads *h, const struct cache *c, int64_t n_past,
                        int64_t n_row, const char *what, struct report *report)
{
    static const double budget[] = {[MOTE_KV_F32] = 2e-5, [MOTE_KV_F16] = 1e-3, [MOTE_KV_Q8_0] = 1e-2};
    size_t row = c->view.k_row_bytes;
    uint8_t *mine = malloc(c->bytes), *theirs = malloc(c->bytes);
    for (int p = 0; p < 2; p++) {
        const uint8_t *before = p ? c->view.v : c->view.k;
        must(pair->cpu->ops->download(pair->cpu, theirs, p ? c->v[0] : c->k[0], c->bytes));
        must(pair->cuda->ops->download(pair->cuda, mine, p ? c->v[1] : c->k[1], c->bytes));
        for (int64_t at = 0; at < LAYERS * h->n_head_kv * c->view.n_ctx; at++) {
            int64_t position = at % c->view.n_ctx, head = at / c->view.n_ctx;
            size_t offset = (size_t)at * row;
            int is_new = head >= LAYER * h->n_head_kv && position >= n_past && position < n_past + n_row;
            double difference = 0, norm = 0;
            for (int64_t d = 0; d < h->head_dim && is_new; d++) {
                double a = element(c->view.type, mine + offset, d),
                       b = element(c->view.type, theirs + offset, d);
                difference += (a - b) * (a - b), norm += b * b;
            }
            if (is_new ? !(sqrt(difference) <= budget[c->view.type] * sqrt(norm))
                       : memcmp(mine + offset, before + offset, row) != 0) {
                report_failure(report, "%s: %s of layer %lld head %lld position %lld: %s", what,
                               p ? "value" : "key", (long long)(head / h->n_head_kv),
                               (long long)(head % h->n_head_kv), (long long)position,
                               is_new ? "differs from the CPU's" : "was changed");
                break;
            }
        }
    }
    free(mine), free(theirs);
}

/* ---- a step on both backends ---- */

struct inputs {
    float *q, *k, *v; /* host [n_row][heads][head_dim] */
    float q_norm[256], k_norm[256], inv_freq[128];
};

/* Device buffers of one backend. */
struct buffers {
    struct mote_backend *backend;
    float *q, *k, *v, *out, *q_norm, *k_norm;
};

static void buffers_make(struct buffers *b, struct mote_backend *backend, const struct heads *h,
                         const struct inputs *in)
{
    *b = (struct buffers){.backend = backend,
                          .q = put_floats(backend, NULL, MAX_ROW * h->n_head * h->head_dim),
                          .k = put_floats(backend, NULL, MAX_ROW * h->n_head_kv * h->head_dim),
                          .v = put_floats(backend, NULL, MAX_ROW * h->n_head_kv * h->head_dim),
                          .out = put_floats(backend, NULL, MAX_ROW * h->n_head * h->head_dim),
                          .q_norm = put_floats(backend, in->q_norm, h->head_dim),
                          .k_norm = put_floats(backend, in->k_norm, h->head_dim)};
}

static void buffers_free(struct buffers *b)
{
    float *all[] = {b->q, b->k, b->v, b->out, b->q_norm, b->k_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) take_back(b->backend, all[i]);
}

struct attend_run {
    const struct heads *h;
    const struct inputs *in;
    const struct step_case *step;
    struct cache *cache; /* [n_span] */
    int32_t n_span, n_row;
    int which;                      /* 0: CPU's caches, 1: CUDA's */
    int in_place;                   /* out is q */
    const struct mote_weight *head; /* a product that reads out, or NULL */
    float *head_y;
};

/* Rows [from[s], to[s]) of every span: the whole of it, or a chunk. Results of those rows to out. */
static void run_rows(const struct attend_run *r, struct buffers *b, const int32_t *from, const int32_t *to,
                     float *out)
{
    const struct mote_backend_ops *ops = b->backend->ops;
    const struct heads *h = r->h;
    int64_t width = h->n_head * h->head_dim, kv_width = h->n_head_kv * h->head_dim;
    static int32_t token[MAX_ROW];
    struct mote_span span[MAX_SPAN];
    struct mote_batch batch = {.token = token, .span = span};
    int32_t row = 0, at = 0;
    float *blank = new_floats(MAX_ROW * width);
    poison(blank, MAX_ROW * width);
    must(ops->upload(b->backend, b->out, blank, (size_t)(MAX_ROW * width) * sizeof *blank));
    free(blank);
    for (int32_t s = 0; s < r->n_span; s++) {
        int32_t n = to[s] - from[s];
        must(ops->upload(b->backend, b->q + row * width, r->in->q + (at + from[s]) * width,
                         (size_t)(n * width) * sizeof(float)));
        must(ops->upload(b->backend, b->k + row * kv_width, r->in->k + (at + from[s]) * kv_width,
                         (size_t)(n * kv_width) * sizeof(float)));
        must(ops->upload(b->backend, b->v + row * kv_width, r->in->v + (at + from[s]) * kv_width,
                         (size_t)(n * kv_width) * sizeof(float)));
        span[s] = (struct mote_span){
            .kv = r->cache[s].view, .row = row, .n_row = n, .n_past = r->step->span[s].n_past + from[s]};
        span[s].kv.k = r->cache[s].k[r->which];
        span[s].kv.v = r->cache[s].v[r->which];
        row += n, at += r->step->span[s].n_row;
    }
    batch.n_row = row, batch.n_span = r->n_span;
    struct mote_rope rope = {.n_rot = h->n_rot, .inv_freq = r->in->inv_freq, .magnitude = 1};
    struct mote_attention job = {.layer = LAYER,
                                 .n_head = h->n_head,
                                 .n_head_kv = h->n_head_kv,
                                 .head_dim = h->head_dim,
                                 .q = b->q,
                                 .k = b->k,
                                 .v = b->v,
                                 .q_norm = h->has_norm ? b->q_norm : NULL,
                                 .k_norm = h->has_norm ? b->k_norm : NULL,
                                 .eps = 1e-6f,
                                 .scale = (float)(1 / sqrt((double)h->head_dim)),
                                 .window = r->step->window,
                                 .rope = &rope,
                                 .out = r->in_place ? b->q : b->out};
    must(ops->begin(b->backend, &batch));
    must(ops->attend(b->backend, &job));
    if (r->head) {
        struct mote_linear linear = {.n_row = row,
                                     .n_col = width,
                                     .x = job.out,
                                     .n_out = 1,
                                     .out = {{r->head, r->head_y, OUT_ROWS, NULL}}};
        must(ops->linear(b->backend, &linear));
    }
    get_floats(b->backend, out, job.out, row * width);
}

static void run_whole(const struct attend_run *r, struct buffers *b, float *out)
{
    int32_t from[MAX_SPAN] = {0}, to[MAX_SPAN];
    for (int32_t s = 0; s < r->n_span; s++) to[s] = r->step->span[s].n_row;
    run_rows(r, b, from, to, out);
}

/* ---- the check ---- */

struct check {
    const struct pair *pair;
    const struct heads *h;
    struct inputs in;
    struct buffers on[2];
    struct mote_weight head;
    float *head_y, *head_x;              /* on the device */
    double worst[MOTE_KV_TYPE_COUNT][2]; /* single rows, many */
    struct report *report;
};

static void expect_close(struct check *c, enum mote_kv_type type, const char *what, const float *got,
                         const double *want, int64_t n_row, int is_many)
{
    static const double budget[] = {[MOTE_KV_F32] = 2e-3, [MOTE_KV_F16] = 2e-3, [MOTE_KV_Q8_0] = 1e-2};
    int64_t dim = c->h->head_dim, n = n_row * c->h->n_head;
    for (int64_t i = 0; i < n; i++) { /* a head of a row at a time: one that is wrong must not drown */
        double error = error_against(got + i * dim, want + i * dim, dim, norm64(want + i * dim, dim));
        if (error > c->worst[type][is_many]) c->worst[type][is_many] = error;
        if (error <= budget[type]) continue;
        report_failure(c->report, "attend %s: row %lld head %lld: error %.2e, budget %.0e", what,
                       (long long)(i / c->h->n_head), (long long)(i % c->h->n_head), error, budget[type]);
        return;
    }
}

static void check_step(struct check *c, const struct step_case *step, enum mote_kv_type type, int in_place)
{
    static const char *const type_name[] = {
        [MOTE_KV_F32] = "f32", [MOTE_KV_F16] = "f16", [MOTE_KV_Q8_0] = "q8_0"};
    const struct heads *h = c->h;
    int64_t width = h->n_head * h->head_dim, kv_width = h->n_head_kv * h->head_dim;
    struct cache cache[MAX_SPAN];
    struct attend_run run = {.h = h, .in = &c->in, .step = step, .cache = cache, .in_place = in_place};
    char what[160];
    snprintf(what, sizeof what, "%s, %lld/%lld heads of %lld, rotated %lld, norm %d, %s%s", step->what,
             (long long)h->n_head, (long long)h->n_head_kv, (long long)h->head_dim, (long long)h->n_rot,
             h->has_norm, type_name[type], in_place ? ", in place" : "");
    report_subject(c->report);
    c->report->n_case++;
    for (; run.n_span < MAX_SPAN && step->span[run.n_span].n_row; run.n_span++) {
        cache[run.n_span] =
            cache_make(c->pair, h, type, step->span[run.n_span].n_past, step->span[run.n_span].n_row);
        run.n_row += step->span[run.n_span].n_row;
    }
    int is_many = run.n_row > DECODE_ROWS;
    c->in.q = new_normals(&rng, run.n_row * width);
    c->in.k = new_normals(&rng, run.n_row * kv_width);
    c->in.v = new_normals(&rng, run.n_row * kv_width);
    float *want = new_floats(run.n_row * width), *got = new_floats(run.n_row * width),
          *again = new_floats(run.n_row * width);
    run_whole(&run, &c->on[0], want);
    run.which = 1;
    run.head = &c->head, run.head_y = c->head_y;
    run_whole(&run, &c->on[1], got);
    float *y = new_floats(2 * run.n_row * OUT_ROWS);
    get_floats(c->pair->cuda, y, c->head_y, run.n_row * OUT_ROWS);
    double *want64 = widened(want, run.n_row * width);
    expect_close(c, type, what, got, want64, run.n_row, is_many);
    for (int32_t s = 0; s < run.n_span; s++)
        check_cache(c->pair, h, &cache[s], step->span[s].n_past, step->span[s].n_row, what, c->report);

    /* what the operation hands to the next is what it wrote */
    struct mote_linear linear = {.n_row = run.n_row,
                                 .n_col = width,
                                 .x = c->head_x,
                                 .n_out = 1,
                                 .out = {{&c->head, c->head_y, OUT_ROWS, NULL}}};
    must(
        c->pair->cuda->ops->upload(c->pair->cuda, c->head_x, got, (size_t)(run.n_row * width) * sizeof *got));
    begin_rows(c->pair->cuda, run.n_row);
    must(c->pair->cuda->ops->linear(c->pair->cuda, &linear));
    get_floats(c->pair->cuda, y + run.n_row * OUT_ROWS, c->head_y, run.n_row * OUT_ROWS);
    if (memcmp(y, y + run.n_row * OUT_ROWS, (size_t)(run.n_row * OUT_ROWS) * sizeof *y))
        report_failure(c->report, "attend %s: the product after it read something else than what it wrote",
                       what);

    run.head = NULL;
    run_whole(&run, &c->on[1], again);
    if (memcmp(got, again, (size_t)(run.n_row * width) * sizeof *got))
        report_failure(c->report, "attend %s: another run gives other bits", what);

    if (run.n_span == 1 && run.n_row >= 64) { /* in two chunks */
        int32_t cut[] = {run.n_row / 2, 13, run.n_row - 1};
        for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
            int32_t zero = 0;
            run_rows(&run, &c->on[1], &zero, &cut[i], again);
            run_rows(&run, &c->on[1], &cut[i], &run.n_row, again + cut[i] * width);
            snprintf(what, sizeof what, "%s cut at %d, %s", step->what, cut[i], type_name[type]);
            expect_close(c, type, what, again, want64, run.n_row, 1);
        }
    }
    for (int32_t s = 0; s < run.n_span; s++) cache_free(c->pair, &cache[s]);
    free(c->in.q), free(c->in.k), free(c->in.v);
    free(want), free(got), free(again), free(y), free(want64);
}

static struct mote_backend *open_shape(const struct heads *h, struct mote_weight *head)
{
    struct mote_backend_limits limits = limits_of(h);
    struct mote_backend *cuda = open_backend(&mote_backend_cuda, &limits, NULL, 0);
    must(cuda->ops->place(cuda, head));
    make_ready(cuda);
    return cuda;
}

static void check_shape(const struct heads *h, struct report *report)
{
    struct mote_backend_limits limits = limits_of(h);
    struct matrix w =
        matrix_make(&rng, MOTE_FORMAT_Q8_0, OUT_ROWS, h->n_head * h->head_dim, 0, MOTE_FORMAT_F16, 1);
    struct check c = {.h = h, .report = report, .head = {.name = "output", .w = w.m, .act = MOTE_WISH_F32}};
    struct pair pair = {.cpu = open_backend(&mote_backend_cpu, &limits, NULL, 0),
                        .cuda = open_shape(h, &c.head)};
    c.pair = &pair;
    for (int64_t d = 0; d < h->head_dim; d++) {
        c.in.q_norm[d] = (float)random_uniform(&rng, 0.5, 1.5);
        c.in.k_norm[d] = (float)random_uniform(&rng, 0.5, 1.5);
    }
    for (int64_t i = 0; i < h->n_rot / 2; i++)
        c.in.inv_freq[i] = (float)pow(1e4, -2.0 * (double)i / (double)h->n_rot);
    for (int b = 0; b < 2; b++) buffers_make(&c.on[b], b ? pair.cuda : pair.cpu, h, &c.in);
    c.head_y = put_floats(pair.cuda, NULL, MAX_ROW * OUT_ROWS);
    c.head_x = put_floats(pair.cuda, NULL, MAX_ROW * h->n_head * h->head_dim);
    for (int s = 0; s < N_STEP; s++)
        for (int type = 0; type < MOTE_KV_TYPE_COUNT; type++) {
            if (quick() && (s % 3 != 1 || type == MOTE_KV_F32)) continue;
            check_step(&c, &steps[s], (enum mote_kv_type)type, (s + type) % 2);
        }
    print_message("%lld/%lld heads of %lld: worst error of single rows %.1e f32, %.1e f16, %.1e q8_0; of "
                  "many %.1e, %.1e, %.1e\n",
                  (long long)h->n_head, (long long)h->n_head_kv, (long long)h->head_dim,
                  c.worst[MOTE_KV_F32][0], c.worst[MOTE_KV_F16][0], c.worst[MOTE_KV_Q8_0][0],
                  c.worst[MOTE_KV_F32][1], c.worst[MOTE_KV_F16][1], c.worst[MOTE_KV_Q8_0][1]);
    for (int b = 0; b < 2; b++) buffers_free(&c.on[b]);
    take_back(pair.cuda, c.head_y), take_back(pair.cuda, c.head_x);
    pair.cuda->ops->unplace(pair.cuda, c.head.placed);
    pair_close(&pair);
    matrix_free(&w);
}

static void test_attend(void **state)
{
    (void)state;
    need_device();
    struct report report;
    mote_rng_seed(&rng, 61);
    report_begin(&report);
    for (int i = 0; i < (quick() ? 1 : N_SHAPE); i++) check_shape(&shapes[i], &report);
    report_end(&report, "attend");
}

/* Kernels of a shape are a backend's own, and a backend compiles for itself: a process for each, so that all CPUs are
 * busy. They leave what they made in the cache on disk; without one the tests compile again. Before this process
 * has looked at a device: a child could not use one then. */
static void compile_shapes(void)
{
    if (quick()) return;
    pid_t child[N_SHAPE];
    for (int i = 0; i < N_SHAPE; i++) {
        child[i] = fork();
        if (child[i]) continue;
        int n;
        if (mote_cuda_count(&n) != MOTE_OK || n < 1) _exit(0);
        struct mote_backend_limits limits = limits_of(&shapes[i]);
        struct mote_backend_options options = {0};
        struct mote_backend *cuda;
        if (mote_backend_cuda.create(&options, &limits, NULL, &cuda) != MOTE_OK) _exit(1);
        _exit(cuda->ops->ready && cuda->ops->ready(cuda) != MOTE_OK); /* the test says what is wrong */
    }
    for (int i = 0; i < N_SHAPE; i++)
        if (child[i] > 0) waitpid(child[i], NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attend)};
    compile_shapes();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
