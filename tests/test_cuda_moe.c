/* test_cuda_moe.c: the CUDA backend's expert block in every format against float64 over decoded weights, and its promises:
 * fused (those of every architecture) and one product at a time give the same bits in short steps, so do reruns and rows alone or together. A router in the
 * block: test_cuda_choice.c. Without a device: need_device.h. */
#include "moe_layer.h"

enum { D_MODEL = 512 };

static struct mote_rng rng;

/* Those that models in use have. */
static const struct recipe common[] = {
    ALL(IQ2_XXS), ALL(IQ3_XXS), ALL(TQ1_0),   ALL(TQ2_0),   ALL(Q4_K),
    ALL(Q4_0),    ALL(Q2_K),    ALL(Q8_0),    ALL(MXFP4),   ALL(Q2_0),
    ALL(Q1_0),    ALL(AFFINE4), ALL(AFFINE6), ALL(AFFINE8), PARTS(AFFINE4, AFFINE4, AFFINE6, 64, F16),
    ALL(F16),
};
enum { COMMON = sizeof common / sizeof *common };

/* ---- a run ---- */

static void run_moe(struct mote_backend *backend, const struct mote_moe *job, float *y)
{
    int64_t n = job->n_row * job->d_model;
    if (job->y != job->residual) {
        poison(y, n);
        must(backend->ops->upload(backend, job->y, y, (size_t)n * sizeof *y));
    }
    begin_rows(backend, job->n_row);
    must(backend->ops->moe(backend, job));
    get_floats(backend, y, job->y, n);
}

/* ---- the check ---- */

static const int64_t sizes[] = {1, 2, 4, 16, 17, 64, 300};
enum { SIZE_COUNT = sizeof sizes / sizeof *sizes, UNFUSED = 1 };

struct check {
    const struct layer *l;
    struct placed placed[2]; /* fused, unfused */
    struct worst *worst;
    struct report *report;
};

static void check_kind(struct check *c, enum routing_kind kind)
{
    const struct layer *l = c->l;
    const struct shape *s = &l->shape;
    int64_t d = s->d_model, most = quick() ? 17 : MAX_ROW, n_first = 0;
    const char *name = recipe_name(&l->recipe);
    struct input in;
    struct reference want;
    struct memory m[2];
    input_make(&rng, &in, s, kind);
    reference_make(&want, l, &in, most);
    for (int v = 0; v < 2; v++) memory_make(&m[v], c->placed[v].backend, &in, most);
    double *full = new_doubles(most * d);
    for (int64_t i = 0; i < most * d; i++) full[i] = want.sum[i] + in.residual[i];
    float *y = new_floats(most * d), *other = new_floats(most * d), *first = new_floats(DECODE_ROWS * d);
    for (int z = 0; z < SIZE_COUNT && sizes[z] <= most; z++) {
        int64_t n = sizes[z];
        int is_many = n > DECODE_ROWS;
        size_t bytes = (size_t)(n * d) * sizeof *y;
        for (int v = 0; v < 2; v++) {
            struct mote_moe job = job_of(&c->placed[v], s, &m[v], 0, n);
            float *out = v ? other : y;
            /* unfused, long steps too multiply integers of 16 bits */
            double flipped, budget = moe_budget(l, is_many && v != UNFUSED ? MANY : FEW, &flipped);
            int64_t n_flipped = 0;
            run_moe(m[v].backend, &job, out);
            c->report->n_case++;
            for (int64_t i = 0; i < n; i++) {
                double error = error_against(out + i * d, full + i * d, d, norm64(want.sum + i * d, d));
                if (v != UNFUSED) worst_note(c->worst, l->recipe.format[0], is_many, error);
                if (error <= budget) continue;
                if (error <= flipped && ++n_flipped <= 1 + n / 4) continue;
                report_failure(
                    c->report,
                    "%s E %d k %d D %lld F %lld+%lld %s %s rows %lld (row %lld): error %.2e, budget %.0e",
                    name, s->n_expert, s->n_used, (long long)d, (long long)s->n_ff, (long long)s->n_ff_shared,
                    kind_name[kind], v ? "unfused" : "fused", (long long)n, (long long)i, error, budget);
                break;
            }
        }
        if (!is_many && memcmp(y, other, bytes))
            report_failure(c->report, "%s E %d k %d F %lld %s rows %lld: fused and unfused differ in bits",
                           name, s->n_expert, s->n_used, (long long)s->n_ff, kind_name[kind], (long long)n);
        struct mote_moe job = job_of(&c->placed[0], s, &m[0], 0, n);
        if (n % 2 == 0) { /* the residual in place this time */
            job.residual = job.y;
            must(m[0].backend->ops->upload(m[0].backend, job.y, in.residual, bytes));
        }
        run_moe(m[0].backend, &job, other);
        if (memcmp(y, other, bytes))
            report_failure(c->report, "%s E %d k %d F %lld %s rows %lld: another run gives other bits", name,
                           s->n_expert, s->n_used, (long long)s->n_ff, kind_name[kind], (long long)n);
        if (is_many) continue;
        if (memcmp(y, first, (size_t)(n_first * d) * sizeof *y))
            report_failure(c->report, "%s E %d k %d F %lld %s rows %lld: bits depend on the rows beside",
                           name, s->n_expert, s->n_used, (long long)s->n_ff, kind_name[kind], (long long)n);
        memcpy(first + n_first * d, y + n_first * d, (size_t)((n - n_first) * d) * sizeof *y);
        n_first = n;
    }
    for (int64_t i = 5; i < n_first; i += 10) {
        struct mote_moe job = job_of(&c->placed[0], s, &m[0], i, 1);
        run_moe(m[0].backend, &job, y);
        if (memcmp(y, first + i * d, (size_t)d * sizeof *y))
            report_failure(c->report,
                           "%s E %d k %d F %lld %s: row %lld alone gives other bits than in a batch", name,
                           s->n_expert, s->n_used, (long long)s->n_ff, kind_name[kind], (long long)i);
    }
    free(full), free(y), free(other), free(first);
    for (int v = 0; v < 2; v++) memory_free(&m[v]);
    reference_free(&want);
    input_free(&in);
}

/* The layer's sets on both backends, all kinds of routing or the first and one other. */
static void check_layer(struct mote_backend *const backend[2], struct layer *l, int kinds,
                        struct worst *worst, struct report *report)
{
    static int turn;
    struct check c = {.l = l, .worst = worst, .report = report};
    report_subject(report);
    int ok = 1;
    for (int v = 0; v < 2 && ok; v++) {
        ok = layer_place(l, backend[v], &c.placed[v]) == MOTE_OK;
        if (!ok) report_failure(report, "place %s: %s", recipe_name(&l->recipe), mote_error());
        else make_ready(backend[v]);
    }
    for (int p = 0; p < 3; p++) {
        matrix_decode(&l->pool[p]);
        if (l->shape.n_ff_shared) matrix_decode(&l->shared[p]);
    }
    for (int k = 0; k < KINDS && ok; k++)
        if (kinds == KINDS || k == UNIFORM || k == 1 + turn % 3) check_kind(&c, (enum routing_kind)k);
    turn++;
    for (int v = 0; v < 2; v++)
        if (c.placed[v].backend) layer_unplace(&c.placed[v]);
}

static void open_both(struct mote_backend *backend[2], int64_t d_model, int compact)
{
    struct mote_backend_limits limits = {.max_row = MAX_ROW,
                                         .max_col = d_model,
                                         .d_model = d_model,
                                         .n_ff = 768,
                                         .n_ff_shared = 512,
                                         .n_expert = 512,
                                         .n_used = 10,
                                         .act_moe = 7,
                                         .act_down = 7};
    for (int v = 0; v < 2; v++) {
        struct mote_backend_options options = {.moe_kernels = v ? MOTE_MOE_UNFUSED : MOTE_MOE_PORTABLE,
                                               .compact = compact};
        backend[v] = open_backend_with(&mote_backend_cuda, &options, &limits, NULL);
    }
}

static void close_both(struct mote_backend *backend[2])
{
    for (int v = 0; v < 2; v++) backend[v]->ops->destroy(backend[v]);
}

/* Kernels of many layers at once, so that all CPUs compile; check_layer finds them ready. */
static void prepare(struct mote_backend *const backend[2], struct layer *layers, int n)
{
    struct placed placed;
    double start = mote_seconds();
    for (int v = 0; v < 2; v++) {
        for (int i = 0; i < n; i++)
            if (layer_place(&layers[i], backend[v], &placed) == MOTE_OK) layer_unplace(&placed);
        make_ready(backend[v]); /* the second finds everything in the cache */
    }
    print_message("%d layers ready in %.1f s\n", n, mote_seconds() - start);
}

/* Every format, a few experts and a shared one; then what models use, in every shape. */
static void test_formats(void **state)
{
    (void)state;
    need_device();
    static const struct shape small = {4, 2, 512, 256, 256};
    static struct layer layers[MOTE_FORMAT_COUNT + 9];
    static struct worst worst;
    static const struct recipe mixed[] = {
        PARTS(AFFINE4, AFFINE4, AFFINE6, 64, F16),
        PARTS(Q4_K, Q4_K, Q6_K, 64, F16),
        PARTS(IQ2_XXS, IQ2_XXS, Q2_K, 64, F16),
        PARTS(Q8_0, Q4_0, TQ1_0, 64, F16), /* gate and up differ */
        PARTS(Q8_0, Q8_0, F16, 64, F16),
        PARTS(F32, BF16, Q4_K, 64, F16), /* plain ones among tiles */
        PARTS(AFFINE4, AFFINE4, AFFINE4, 128, BF16),
        PARTS(AFFINE8, AFFINE8, AFFINE8, 32, F32),
        GROUPS(AFFINE4, 128, AFFINE6, 32, AFFINE8, 64, F16), /* bits and groups of their own */
    };
    struct report report;
    mote_rng_seed(&rng, 41);
    report_begin(&report);
    struct mote_backend *backend[2];
    open_both(backend, D_MODEL, 0);
    int n = 0;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        enum mote_format format = (enum mote_format)f;
        if (mote_format_traits(format)->family == MOTE_FAMILY_OTHER) continue;
        if (quick() && f % 4 != 2) continue;
        struct recipe r = {{format, format, format}, {64, 64, 64}, MOTE_FORMAT_F16};
        layer_make(&rng, &layers[n++], &small, &r);
    }
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed && !quick(); i++)
        layer_make(&rng, &layers[n++], &small, &mixed[i]);
    prepare(backend, layers, n);
    for (int i = 0; i < n; i++) {
        check_layer(backend, &layers[i], quick() ? 1 : KINDS, &worst, &report);
        layer_free(&layers[i]);
    }
    close_both(backend);
    worst_print(&worst, "experts, by gate's format");
    report_end(&report, "every format");
}

static void test_shapes(void **state)
{
    (void)state;
    need_device();
    /* kernels depend on d_model and n_ff alone: one pair of them for many shapes */
    static const struct shape shapes[] = {
        {32, 2, 512, 256, 0},  {60, 4, 512, 256, 256}, {128, 8, 512, 256, 0},
        {257, 9, 512, 256, 0}, {512, 10, 512, 256, 0},
    };
    static struct worst worst;
    static struct layer layers[COMMON];
    struct report report;
    mote_rng_seed(&rng, 42);
    report_begin(&report);
    struct mote_backend *backend[2];
    open_both(backend, D_MODEL, 0);
    int n = quick() ? 3 : COMMON;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        if (quick() && shapes[s].n_expert > 60) continue;
        for (int i = 0; i < n; i++) layer_make(&rng, &layers[i], &shapes[s], &common[i]);
        if (s == 0) prepare(backend, layers, n);
        double start = mote_seconds();
        for (int i = 0; i < n; i++) {
            check_layer(backend, &layers[i], quick() ? 1 : 2, &worst, &report);
            layer_free(&layers[i]);
        }
        print_message("%d of %d experts: %.1f s\n", shapes[s].n_used, shapes[s].n_expert,
                      mote_seconds() - start);
    }
    close_both(backend);
    worst_print(&worst, "experts, by gate's format");
    report_end(&report, "shapes");
}

/* A layer of one shape and recipe; lists of them are sorted by d_model, which a backend is created for. */
struct layer_row {
    struct shape shape;
    struct recipe recipe;
};

/* How rows of a table are tried. */
struct trial {
    int compact; /* mote_backend_options */
    enum mote_act_wish act;
    int all_activations; /* each row with all of them, the shared expert with the next; quick: every other row */
};

enum { MAX_LAYER_ROWS = 16, MAX_LAYERS = MAX_LAYER_ROWS * MOTE_ACTIVATION_COUNT };

/* Rows of one d_model stand together: they share backends. */
static void check_rows(const char *what, const struct layer_row *rows, int n_row, struct trial trial)
{
    struct worst worst = {0};
    static struct layer layers[MAX_LAYERS];
    struct report report;
    int n_variant = trial.all_activations ? MOTE_ACTIVATION_COUNT : 1;
    assert_true(n_row <= MAX_LAYER_ROWS);
    mote_rng_seed(&rng, 43);
    report_begin(&report);
    for (int i = 0, end; i < n_row; i = end) {
        struct mote_backend *backend[2];
        int64_t d_model = rows[i].shape.d_model;
        int n = 0;
        if (quick() && d_model > 512) break;
        for (end = i; end < n_row && rows[end].shape.d_model == d_model; end++)
            for (int k = 0; k < n_variant; k++) {
                struct recipe r = rows[end].recipe;
                r.act = trial.act;
                if (trial.all_activations) {
                    if (quick() && end % 2) continue;
                    r.activation = each_activation[k];
                    r.shared_activation = each_activation[(k + 1) % MOTE_ACTIVATION_COUNT];
                }
                layer_make(&rng, &layers[n++], &rows[end].shape, &r);
            }
        open_both(backend, d_model, trial.compact);
        prepare(backend, layers, n);
        for (int j = 0; j < n; j++) {
            check_layer(backend, &layers[j], quick() ? 1 : 2, &worst, &report);
            layer_free(&layers[j]);
        }
        close_both(backend);
    }
    worst_print(&worst, what);
    report_end(&report, what);
}

/* Widths that fill no unit of columns, widths shared by several warps, a shared expert of its own width. */
static void test_widths(void **state)
{
    (void)state;
    need_device();
    static const struct layer_row rows[] = {
        {{32, 2, 512, 96, 0}, ALL(Q8_0)},
        {{32, 2, 512, 96, 0}, ALL(F16)},
        {{16, 4, 512, 352, 352}, ALL(IQ4_NL)},
        {{16, 4, 512, 96, 96}, PARTS(AFFINE6, AFFINE6, AFFINE8, 32, BF16)},
        {{32, 2, 352, 96, 0}, ALL(MXFP4)},
        {{16, 4, 352, 352, 96}, PARTS(Q5_1, Q5_1, Q8_0, 32, F16)},
        {{16, 4, 352, 96, 96}, ALL(AFFINE4)},
        {{16, 4, 352, 288, 288}, ALL(Q4_0)},
        {{8, 2, 2048, 768, 512}, ALL(Q4_K)},
        {{8, 2, 2048, 768, 512}, ALL(TQ1_0)},
        {{8, 2, 2048, 768, 512}, ALL(IQ2_XXS)},
        {{8, 2, 2048, 768, 512}, ALL(AFFINE4)},
        {{8, 2, 2048, 768, 0}, PARTS(Q4_K, Q4_K, Q8_0, 64, F16)},
    };
    check_rows("widths", rows, sizeof rows / sizeof *rows, (struct trial){0});
}

/* What lies otherwise when memory is short: alone, among others, shared by several warps, of many experts. */
static void test_compact(void **state)
{
    (void)state;
    need_device();
    static const struct layer_row rows[] = {
        {{4, 2, 512, 256, 256}, ALL(TQ1_0)},
        {{4, 2, 512, 384, 128}, ALL(PTQ1_0)},
        {{4, 2, 512, 256, 256}, PARTS(Q8_0, Q4_0, TQ1_0, 64, F16)},
        {{128, 8, 512, 256, 0}, ALL(TQ1_0)},
        {{8, 2, 2048, 768, 512}, ALL(TQ1_0)},
        {{8, 2, 2048, 768, 0}, PARTS(TQ1_0, PTQ1_0, TQ2_0, 64, F16)},
    };
    check_rows("compact", rows, sizeof rows / sizeof *rows, (struct trial){.compact = 1});
    check_rows("compact, f32 activations", rows, sizeof rows / sizeof *rows,
               (struct trial){.compact = 1, .act = MOTE_WISH_F32});
}

/* What long steps multiply in 8-bit integers, in halves. */
static void test_act_f32(void **state)
{
    (void)state;
    need_device();
    static const struct layer_row rows[] = {
        {{4, 2, 512, 256, 256}, ALL(TQ2_0)},
        {{4, 2, 512, 384, 128}, ALL(Q1_0)},
        {{32, 2, 512, 384, 0}, PARTS(PQ2_0, PQ2_0, Q1_0, 64, F16)},
    };
    check_rows("8-bit activations", rows, sizeof rows / sizeof *rows, (struct trial){0});
    check_rows("f32 activations", rows, sizeof rows / sizeof *rows, (struct trial){.act = MOTE_WISH_F32});
}

/* What is read, and made, in MXFP4: x and h, one of them, and plain weights among such. */
static void test_act_mxfp4(void **state)
{
    (void)state;
    need_device();
    static const struct layer_row rows[] = {
        {{4, 2, 512, 256, 256}, ALL(MXFP4)},
        {{4, 2, 512, 256, 256}, ALL(MLX_MXFP4)},
        {{32, 2, 512, 96, 352}, ALL(MXFP4)},
        {{128, 8, 512, 256, 0}, ALL(MXFP4)},
        {{4, 2, 512, 256, 256}, PARTS(MXFP4, MXFP4, Q4_K, 64, F16)},
        {{4, 2, 512, 256, 256}, PARTS(MXFP4, Q8_0, MXFP4, 64, F16)},
        {{4, 2, 512, 256, 256}, PARTS(Q8_0, Q8_0, MXFP4, 64, F16)},
        {{4, 2, 512, 256, 256}, PARTS(MXFP4, MXFP4, F16, 64, F16)},
        {{32, 2, 352, 96, 0}, ALL(MXFP4)},
        {{8, 2, 2048, 768, 512}, ALL(MXFP4)},
    };
    static const struct layer_row active[] = {{{16, 4, 512, 96, 352}, ALL(MXFP4)}};
    check_rows("MXFP4 activations", rows, sizeof rows / sizeof *rows, (struct trial){.act = MOTE_WISH_MXFP4});
    check_rows("MXFP4 activations, each activation", active, 1,
               (struct trial){.act = MOTE_WISH_MXFP4, .all_activations = 1});
}

/* Every activation, with and without a gate, in decode, prefill and one product at a time; the shared expert has one of
 * its own. Widths: gate and up shared by one warp and by four; an up whose second tile of a warp is not there. */
static void test_activations(void **state)
{
    (void)state;
    need_device();
    static const struct layer_row rows[] = {
        {{16, 4, 512, 256, 256}, ALL(Q8_0)},
        {{16, 4, 512, 96, 352}, ALL(MXFP4)},
        {{60, 4, 512, 256, 0}, ALL(IQ2_XXS)},
        {{16, 4, 512, 384, 128}, ALL(Q1_0)},
        {{16, 4, 512, 256, 256}, GROUPS(Q8_0, 32, AFFINE4, 128, AFFINE6, 64, F16)},
        {{16, 4, 512, 256, 256}, ALL(BF16)},
        {{8, 2, 2048, 768, 512}, PARTS(Q4_K, Q4_K, Q6_K, 64, F16)},
    };
    check_rows("activations", rows, sizeof rows / sizeof *rows, (struct trial){.all_activations = 1});
}

/* ---- what else the operation does ---- */

/* The shared expert alone, no gate, no residual; and what calibration sees. */
static void test_dense_and_hidden(void **state)
{
    (void)state;
    need_device();
    static const struct shape shape = {6, 3, 512, 256, 256};
    static const struct recipe recipes[] = {ALL(Q8_0), ALL(F16), PARTS(Q4_K, Q4_K, Q6_K, 64, F16)};
    enum { N = sizeof recipes / sizeof *recipes };
    static const int64_t counts[] = {1, 5, 16, 33};
    struct report report;
    mote_rng_seed(&rng, 44);
    report_begin(&report);
    struct mote_backend *backend[2];
    open_both(backend, D_MODEL, 0);
    static struct layer layers[N];
    for (int i = 0; i < N; i++) layer_make(&rng, &layers[i], &shape, &recipes[i]);
    prepare(backend, layers, N);
    int64_t d = shape.d_model, f = shape.n_ff, k = shape.n_used;
    for (int i = 0; i < N; i++) {
        struct layer *l = &layers[i];
        struct input in;
        struct reference want;
        report_subject(&report);
        for (int p = 0; p < 3; p++) matrix_decode(&l->pool[p]), matrix_decode(&l->shared[p]);
        input_make(&rng, &in, &shape, UNIFORM);
        reference_make(&want, l, &in, 33);
        struct shape alone = shape; /* the same sums without routed experts and with a gate of one */
        alone.n_used = 0;
        struct layer dense = *l;
        dense.shape = alone;
        struct input open = in;
        open.gate = new_floats(MAX_ROW);
        for (int j = 0; j < MAX_ROW; j++) open.gate[j] = INFINITY;
        struct reference want_dense;
        reference_make(&want_dense, &dense, &open, 33);
        float *y = new_floats(33 * d), *h = new_floats(33 * k * f);
        for (int v = 0; v < 2; v++) {
            struct placed placed;
            struct memory m;
            must(layer_place(l, backend[v], &placed));
            make_ready(backend[v]);
            memory_make(&m, backend[v], &in, 33);
            for (size_t z = 0; z < sizeof counts / sizeof *counts; z++) {
                int64_t n = counts[z];
                double flipped, loose = moe_budget(l, n > DECODE_ROWS && v != UNFUSED ? MANY : FEW, &flipped),
                                fine = moe_budget(l, FEW, &flipped);
                struct mote_moe job = job_of(&placed, &alone, &m, 0, n);
                job.experts = NULL, job.ids = NULL, job.weights = NULL, job.shared_gate = NULL,
                job.residual = NULL;
                run_moe(backend[v], &job, y);
                double error = error_against(y, want_dense.sum, n * d, norm64(want_dense.sum, n * d));
                report.n_case++;
                if (!(error <= loose))
                    report_failure(&report, "dense %s variant %d rows %lld: error %.2e, budget %.0e",
                                   recipe_name(&l->recipe), v, (long long)n, error, loose);
                for (int taps = 1; taps < 4; taps++) { /* one, the other, both */
                    job = job_of(&placed, &shape, &m, 0, n);
                    poison(h, n * k * f);
                    must(backend[v]->ops->upload(backend[v], m.hidden, h, (size_t)(n * k * f) * sizeof *h));
                    must(
                        backend[v]->ops->upload(backend[v], m.shared_hidden, h, (size_t)(n * f) * sizeof *h));
                    job.hidden = taps & 1 ? m.hidden : NULL;
                    job.shared_hidden = taps & 2 ? m.shared_hidden : NULL;
                    run_moe(backend[v], &job, y);
                    double e[3] = {0};
                    double norm = norm64(want.sum, n * d);
                    for (int64_t j = 0; j < n * d; j++) y[j] -= in.residual[j];
                    e[0] = error_against(y, want.sum, n * d, norm);
                    if (job.hidden) {
                        get_floats(backend[v], h, m.hidden, n * k * f);
                        e[1] = error_against(h, want.hidden, n * k * f, norm64(want.hidden, n * k * f));
                    }
                    if (job.shared_hidden) {
                        get_floats(backend[v], h, m.shared_hidden, n * f);
                        e[2] = error_against(h, want.shared_hidden, n * f, norm64(want.shared_hidden, n * f));
                    }
                    report.n_case++;
                    for (int j = 0; j < 3; j++)
                        if (!(e[j] <= fine))
                            report_failure(&report,
                                           "taps %d %s variant %d rows %lld, %s: error %.2e, budget %.0e",
                                           taps, recipe_name(&l->recipe), v, (long long)n,
                                           j == 0   ? "y"
                                           : j == 1 ? "hidden"
                                                    : "shared hidden",
                                           e[j], fine);
                }
            }
            memory_free(&m);
            layer_unplace(&placed);
        }
        free(y), free(h), free(open.gate);
        reference_free(&want);
        reference_free(&want_dense);
        input_free(&in);
        layer_free(l);
    }
    close_both(backend);
    report_end(&report, "dense and hidden");
}

/* An id that is no expert's is said at sync at the latest, touches nothing, and is forgotten by the next step. */
static void test_refusals(void **state)
{
    (void)state;
    need_device();
    static const struct shape shape = {4, 2, 512, 256, 0};
    static const struct recipe recipes[] = {ALL(Q8_0), ALL(F16)};
    static const int64_t counts[] = {1, 3, 16, 17};
    struct mote_backend *backend[2];
    mote_rng_seed(&rng, 45);
    open_both(backend, D_MODEL, 0);
    for (int i = 0; i < 2; i++) {
        struct layer l;
        struct input in;
        layer_make(&rng, &l, &shape, &recipes[i]);
        input_make(&rng, &in, &shape, UNIFORM);
        float *y = new_floats(17 * shape.d_model), *want = new_floats(17 * shape.d_model);
        for (int v = 0; v < 2; v++) {
            const struct mote_backend_ops *ops = backend[v]->ops;
            struct placed placed;
            struct memory m;
            must(layer_place(&l, backend[v], &placed));
            make_ready(backend[v]);
            memory_make(&m, backend[v], &in, 17);
            for (size_t z = 0; z < sizeof counts / sizeof *counts; z++) {
                int64_t n = counts[z];
                struct mote_moe job = job_of(&placed, &shape, &m, 0, n);
                run_moe(backend[v], &job, want);
                static const int32_t odd[] = {-1, 4, INT32_MIN, INT32_MAX};
                for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) {
                    must(ops->upload(backend[v], m.ids + n * 2 - 1, &odd[o], sizeof *odd));
                    begin_rows(backend[v], n);
                    mote_status status = ops->moe(backend[v], &job);
                    must_fail(status == MOTE_OK ? ops->sync(backend[v]) : status, MOTE_ARGUMENT, "expert");
                }
                must(ops->upload(backend[v], m.ids + n * 2 - 1, in.ids + n * 2 - 1, sizeof *odd));
                run_moe(backend[v], &job, y);
                assert_memory_equal(y, want, (size_t)(n * shape.d_model) * sizeof *y);
            }
            memory_free(&m);
            layer_unplace(&placed);
        }
        free(y), free(want);
        input_free(&in);
        layer_free(&l);
    }
    /* a gate that the activation does not take, a limit that is none */
    struct layer odd;
    struct placed nowhere;
    layer_make(&rng, &odd, &shape, &recipes[0]);
    odd.experts.activation.kind = MOTE_ACTIVATION_RELU2;
    must_fail(layer_place(&odd, backend[0], &nowhere), MOTE_ARGUMENT,
              "experts: activation relu2, experts with a gate");
    odd.experts.activation.kind = MOTE_ACTIVATION_SWIGLU_OAI;
    must_fail(layer_place(&odd, backend[0], &nowhere), MOTE_ARGUMENT, "limit 0");
    layer_free(&odd);
    /* one format per projection */
    struct layer a, b;
    struct placed placed;
    layer_make(&rng, &a, &shape, &recipes[0]);
    layer_make(&rng, &b, &shape, &recipes[1]);
    a.view[3] = b.view[3];
    must_fail(layer_place(&a, backend[0], &placed), MOTE_UNSUPPORTED,
              "gate of expert 3 is f16, of expert 0 q8_0");
    layer_free(&a);
    layer_free(&b);
    close_both(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),   cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_widths),    cmocka_unit_test(test_compact),
        cmocka_unit_test(test_act_f32),   cmocka_unit_test(test_dense_and_hidden),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_activations),
        cmocka_unit_test(test_act_mxfp4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
