/* test_cuda_linear.c: the CUDA backend's products in every format against float64 over decoded weights, embedding and norm
 * against their definitions, and its memory against the budget. Without a device: need_device.h. */
#include "cuda_pair.h"

enum { GAP = 3 }; /* y_stride is the rows of W + GAP */
enum { MAX_X = 512 };

static struct mote_rng rng;

static const struct mote_backend_limits limits = {
    .max_row = MAX_X, .max_col = 8192, .d_model = 2048, .n_ff = 256, .n_ff_shared = 256, .act_linear = 7};

/* ---- one matrix of every format ---- */

struct linear_case {
    struct matrix w;
    struct mote_weight weight;
    int is_placed;
    float *bias;      /* host [n_row] or NULL */
    int has_residual; /* 1: of its own, 2: y itself */
};

static const enum mote_format hot[] = {
    MOTE_FORMAT_IQ2_XXS, MOTE_FORMAT_IQ3_XXS, MOTE_FORMAT_TQ1_0,   MOTE_FORMAT_Q4_K,
    MOTE_FORMAT_Q2_K,    MOTE_FORMAT_Q8_0,    MOTE_FORMAT_MXFP4,   MOTE_FORMAT_Q1_0,
    MOTE_FORMAT_AFFINE4, MOTE_FORMAT_F16,     MOTE_FORMAT_AFFINE6, MOTE_FORMAT_IQ4_XS,
};

static int is_hot(enum mote_format format)
{
    for (size_t i = 0; i < sizeof hot / sizeof *hot; i++)
        if (hot[i] == format) return 1;
    return 0;
}

/* Widths that a format is tried at, ended by 0. A program is compiled for each: odd ones take turns. */
static void widths_of(enum mote_format format, int64_t width[6])
{
    int block = mote_format_traits(format)->block_elems, n = 0;
    if (is_plain(format)) {
        static const int64_t plain[] = {33, 256, 1408, 2048, 8192};
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            if (plain[i] % block == 0) width[n++] = plain[i];
    } else if (quick()) {
        width[n++] = block <= 32 ? 288 : 256;
    } else {
        width[n++] = 256;
        width[n++] = 2048;
        if (block == 256) width[n++] = format % 2 ? 768 : 1280;
        else if (block > 32) width[n++] = format % 2 ? 1408 : 384;
        else width[n++] = format % 3 == 0 ? 288 : format % 3 == 1 ? 1408 : 96;
        if (is_hot(format)) width[n++] = 8192;
    }
    width[n] = 0;
}

static struct linear_case case_make(enum mote_format format, int64_t n_col, int index, enum mote_act_wish act)
{
    static const enum mote_format scales[] = {MOTE_FORMAT_F16, MOTE_FORMAT_BF16, MOTE_FORMAT_F32};
    static const int groups[] = {64, 32, 128};
    int group = groups[index % 3];
    int64_t n_row = n_col == 256 ? 531 : n_col == 2048 ? 77 : n_col == 8192 ? 40 : 139;
    while (n_col % group) group /= 2;
    struct linear_case c = {
        .w = matrix_make(&rng, format, n_row, n_col, group, scales[index / 2 % 3], n_col >= 1000)};
    if (index % 4 == 1 && !is_plain(format)) c.w.m.factor = -1.25f;
    if (index % 2) c.bias = new_normals(&rng, n_row);
    c.has_residual = index % 3;
    c.weight = (struct mote_weight){.name = mote_format_traits(format)->name, .w = c.w.m, .act = act};
    return c;
}

/* Device buffers of a case. */
struct linear_memory {
    struct mote_backend *cuda;
    float *x, *one, *y, *residual, *bias;  /* device */
    float *host_x, *host_residual, *start; /* host */
};

static void run_linear(const struct linear_case *c, const struct linear_memory *m, const float *x,
                       const float *residual, int64_t n_x, float *out)
{
    const struct mote_backend_ops *ops = m->cuda->ops;
    int64_t stride = c->w.m.n_row + GAP;
    size_t bytes = (size_t)(n_x * stride) * sizeof(float);
    if (c->has_residual == 2) {
        must(ops->upload(m->cuda, m->y, residual, bytes));
    } else {
        must(ops->upload(m->cuda, m->y, m->start, bytes));
        if (residual) must(ops->upload(m->cuda, m->residual, residual, bytes));
    }
    begin_rows(m->cuda, n_x);
    struct mote_linear job = {.n_row = n_x,
                              .n_col = c->w.m.n_col,
                              .x = x,
                              .n_out = 1,
                              .out = {{&c->weight, m->y, stride,
                                       c->has_residual == 2   ? m->y
                                       : c->has_residual == 1 ? m->residual
                                                              : NULL}}};
    must(ops->linear(m->cuda, &job));
    must(ops->download(m->cuda, out, m->y, bytes));
}

static void check_linear(struct mote_backend *cuda, struct linear_case *c, struct worst *worst,
                         struct report *report)
{
    static const int64_t all_sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 129, 512, 0},
                         few_sizes[] = {1, 2, 9, 16, 17, 33, 0};
    const int64_t *sizes = quick() ? few_sizes : all_sizes;
    const struct mote_matrix *w = &c->w.m;
    const char *name = mote_format_traits(w->format)->name;
    int64_t n_row = w->n_row, n_col = w->n_col, stride = n_row + GAP, max_x = quick() ? 33 : MAX_X;
    struct linear_memory m = {.cuda = cuda,
                              .host_x = new_normals(&rng, max_x * n_col),
                              .host_residual = c->has_residual ? new_normals(&rng, max_x * stride) : NULL,
                              .start = new_floats(max_x * stride)};
    poison(m.start, max_x * stride);
    for (int64_t i = 0; c->has_residual && i < max_x; i++) poison(m.host_residual + i * stride + n_row, GAP);
    m.x = put_floats(cuda, m.host_x, max_x * n_col);
    m.one = put_floats(cuda, NULL, n_col);
    m.y = put_floats(cuda, NULL, max_x * stride);
    m.residual = put_floats(cuda, NULL, max_x * stride);
    matrix_decode(&c->w);
    double *x = widened(m.host_x, max_x * n_col);
    if (mote_act_chosen(w->format, c->weight.act) == MOTE_ACT_MXFP4) round_mxfp4(x, max_x * n_col);
    double *want = product64(&c->w, x, max_x), *size = new_doubles(max_x);
    for (int64_t i = 0; i < max_x; i++) {
        size[i] = norm64(want + i * n_row, n_row);
        for (int64_t r = 0; r < n_row; r++) {
            if (c->bias) want[i * n_row + r] += c->bias[r];
            if (c->has_residual) want[i * n_row + r] += m.host_residual[i * stride + r];
        }
    }
    float *y = new_floats(max_x * stride), *again = new_floats(max_x * stride),
          *first = new_floats(DECODE_ROWS * stride);
    report_subject(report);
    int64_t n_first = 0; /* rows whose result in the smallest step is known */
    for (; *sizes; sizes++) {
        int64_t n_x = *sizes;
        int is_many = n_x > DECODE_ROWS;
        double budget = budget_of(w, is_many, c->weight.act);
        report->n_case++;
        run_linear(c, &m, m.x, m.host_residual, n_x, y);
        for (int64_t i = 0; i < n_x; i++) {
            double error = error_against(y + i * stride, want + i * n_row, n_row, size[i]);
            worst_note(worst, w->format, is_many, error);
            if (!(error <= budget)) {
                report_failure(report,
                               "linear %s %lld x %lld group %d rows %lld (row %lld) bias %d residual %d: "
                               "error %.2e, budget %.0e",
                               name, (long long)n_row, (long long)n_col, w->group, (long long)n_x,
                               (long long)i, c->bias != NULL, c->has_residual, error, budget);
                break;
            }
            for (int g = 0; g < GAP; g++)
                if (!is_poison(y[i * stride + n_row + g]))
                    report_failure(report, "linear %s %lld x %lld rows %lld: wrote beyond row %lld", name,
                                   (long long)n_row, (long long)n_col, (long long)n_x, (long long)i);
        }
        run_linear(c, &m, m.x, m.host_residual, n_x, again);
        if (memcmp(y, again, (size_t)(n_x * stride) * sizeof *y))
            report_failure(report, "linear %s %lld x %lld rows %lld: another run gives other bits", name,
                           (long long)n_row, (long long)n_col, (long long)n_x);
        if (is_many) continue;
        if (memcmp(y, first, (size_t)(n_first * stride) * sizeof *y))
            report_failure(report, "linear %s %lld x %lld rows %lld: bits depend on the rows beside", name,
                           (long long)n_row, (long long)n_col, (long long)n_x);
        memcpy(first + n_first * stride, y + n_first * stride,
               (size_t)((n_x - n_first) * stride) * sizeof *y);
        n_first = n_x;
    }
    for (int64_t i = 3; i < n_first; i += 6) { /* a row alone that stood elsewhere in the batch */
        must(cuda->ops->upload(cuda, m.one, m.host_x + i * n_col, (size_t)n_col * sizeof(float)));
        run_linear(c, &m, m.one, m.host_residual ? m.host_residual + i * stride : NULL, 1, y);
        if (memcmp(y, first + i * stride, (size_t)n_row * sizeof *y))
            report_failure(report, "linear %s %lld x %lld: row %lld alone gives other bits than in a batch",
                           name, (long long)n_row, (long long)n_col, (long long)i);
    }
    take_back(cuda, m.x), take_back(cuda, m.one), take_back(cuda, m.y), take_back(cuda, m.residual);
    free(m.host_x), free(m.host_residual), free(m.start);
    free(x), free(want), free(size), free(y), free(again), free(first);
}

/* Every format; or those that lie otherwise when compact, whose activations are others with act. */
static int is_tried(enum mote_format format, int compact, enum mote_act_wish act)
{
    if (act == MOTE_WISH_MXFP4) return mote_act_chosen(format, act) == MOTE_ACT_MXFP4;
    int act_f32 = act == MOTE_WISH_F32;
    if (compact || act_f32) return (!compact || lies_compact(format)) && (!act_f32 || is_int8(format));
    return mote_format_traits(format)->family != MOTE_FAMILY_OTHER &&
           (!quick() || format <= MOTE_FORMAT_BF16 || is_hot(format));
}

static void check_formats(const char *what, int compact, enum mote_act_wish act)
{
    enum { MAX_CASE = MOTE_FORMAT_COUNT * 5 };
    static struct linear_case cases[MAX_CASE];
    struct worst worst = {0};
    struct report report;
    mote_rng_seed(&rng, 31);
    report_begin(&report);
    struct mote_backend_options options = {.compact = compact};
    struct mote_backend *cuda = open_backend_with(&mote_backend_cuda, &options, &limits, NULL);
    int n = 0;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        enum mote_format format = (enum mote_format)f;
        int64_t width[6];
        if (!is_tried(format, compact, act)) continue;
        widths_of(format, width);
        for (int i = 0; width[i]; i++) {
            struct linear_case *c = &cases[n];
            *c = case_make(format, width[i], n, act);
            if (c->bias) c->weight.bias = put_floats(cuda, c->bias, c->w.m.n_row);
            n++;
            c->is_placed = cuda->ops->place(cuda, &c->weight) == MOTE_OK;
            if (!c->is_placed) report_failure(&report, "place: %s", mote_error());
        }
    }
    double start = mote_seconds();
    make_ready(cuda);
    print_message("%d matrices ready in %.1f s\n", n, mote_seconds() - start);
    for (int i = 0; i < n; i++) {
        if (cases[i].is_placed) check_linear(cuda, &cases[i], &worst, &report);
        cuda->ops->unplace(cuda, cases[i].weight.placed);
        take_back(cuda, (void *)(uintptr_t)cases[i].weight.bias);
        free(cases[i].bias);
        matrix_free(&cases[i].w);
    }
    cuda->ops->destroy(cuda);
    worst_print(&worst, what);
    report_end(&report, what);
}

static void test_formats(void **state)
{
    (void)state;
    need_device();
    check_formats("linear", 0, MOTE_WISH_DEFAULT);
    check_formats("linear, f32 activations", 0, MOTE_WISH_F32);
    check_formats("linear, MXFP4 activations", 0, MOTE_WISH_MXFP4);
}

static void test_compact_formats(void **state)
{
    (void)state;
    need_device();
    check_formats("linear, compact", 1, MOTE_WISH_DEFAULT);
    check_formats("linear, compact, f32 activations", 1, MOTE_WISH_F32);
}

/* ---- a norm, several outs, and inputs handed from one operation to the next ---- */

enum { N_OUT = 4, D = 2048 };

static void normed64(const float *x, const float *norm, int64_t n, float eps, double *out)
{
    double square = 0;
    for (int64_t c = 0; c < n; c++) square += (double)x[c] * x[c];
    for (int64_t c = 0; c < n; c++) out[c] = x[c] / sqrt(square / (double)n + (double)eps) * norm[c];
}

static void test_jobs(void **state)
{
    (void)state;
    need_device();
    static const struct {
        enum mote_format format[N_OUT];
        int64_t n_row[N_OUT];
        enum mote_act_wish act[N_OUT];
    } jobs[] = {
        {{MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q8_0, MOTE_FORMAT_F16}, {300, 40, 33, 61}},
        {{MOTE_FORMAT_AFFINE4, MOTE_FORMAT_AFFINE6, MOTE_FORMAT_AFFINE4, MOTE_FORMAT_AFFINE4},
         {96, 40, 17, 1}},
        {{MOTE_FORMAT_F32, MOTE_FORMAT_TQ1_0, MOTE_FORMAT_BF16, MOTE_FORMAT_F32}, {60, 200, 1, 128}},
        /* one x in two roundings, of matrices of one kind too */
        {{MOTE_FORMAT_MXFP4, MOTE_FORMAT_Q8_0, MOTE_FORMAT_MXFP4, MOTE_FORMAT_MLX_MXFP4},
         {96, 33, 40, 17},
         {MOTE_WISH_MXFP4, MOTE_WISH_MXFP4, MOTE_WISH_DEFAULT, MOTE_WISH_MXFP4}},
    };
    static const int64_t sizes[] = {1, 5, 16, 17, 129};
    struct report report;
    mote_rng_seed(&rng, 32);
    report_begin(&report);
    struct mote_backend *cuda = open_backend(&mote_backend_cuda, &limits, NULL, 0);
    const struct mote_backend_ops *ops = cuda->ops;
    enum { JOBS = sizeof jobs / sizeof *jobs, MOST = 129 };
    struct matrix w[JOBS][N_OUT];
    struct mote_weight weight[JOBS][N_OUT];
    for (int j = 0; j < JOBS; j++)
        for (int o = 0; o < N_OUT; o++) {
            w[j][o] = matrix_make(&rng, jobs[j].format[o], jobs[j].n_row[o], D, 64, MOTE_FORMAT_F16, 1);
            weight[j][o] = (struct mote_weight){
                .name = mote_format_traits(jobs[j].format[o])->name, .w = w[j][o].m, .act = jobs[j].act[o]};
            must(ops->place(cuda, &weight[j][o]));
            matrix_decode(&w[j][o]);
        }
    make_ready(cuda);
    float *x = new_normals(&rng, MOST * D), *norm = new_floats(D), *h = new_floats(MOST * D);
    for (int c = 0; c < D; c++) norm[c] = (float)random_uniform(&rng, 0.5, 1.5);
    for (int i = 0; i < MOST * D; i++) x[i] *= (float)(1 + i / D % 7); /* rows of different size */
    double *h64 = new_doubles(MOST * D);
    for (int i = 0; i < MOST; i++) normed64(x + i * D, norm, D, 1e-6f, h64 + i * D);
    double *h4 = new_doubles(MOST * D); /* the same in MXFP4 */
    memcpy(h4, h64, MOST * D * sizeof *h4);
    round_mxfp4(h4, MOST * D);
    float *dx = put_floats(cuda, NULL, MOST * D), *dh = put_floats(cuda, NULL, MOST * D),
          *dnorm = put_floats(cuda, norm, D), *dy[N_OUT], *y = new_floats(MOST * 300),
          *z = new_floats(MOST * 300);
    for (int o = 0; o < N_OUT; o++) dy[o] = put_floats(cuda, NULL, MOST * 300);
    for (int j = 0; j < JOBS; j++) {
        report_subject(&report);
        double *want[N_OUT];
        for (int o = 0; o < N_OUT; o++) {
            int is_mxfp4 = mote_act_chosen(jobs[j].format[o], jobs[j].act[o]) == MOTE_ACT_MXFP4;
            want[o] = product64(&w[j][o], is_mxfp4 ? h4 : h64, MOST);
        }
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int in_place = 0; in_place < 2; in_place++) {
                int64_t n = sizes[s];
                report.n_case++;
                must(ops->upload(cuda, dx, x, (size_t)(n * D) * sizeof *x));
                poison(y, MOST * 300);
                for (int o = 0; o < N_OUT; o++) must(ops->upload(cuda, dy[o], y, MOST * 300 * sizeof *y));
                struct mote_linear job = {.n_row = n,
                                          .n_col = D,
                                          .x = dx,
                                          .norm = dnorm,
                                          .eps = 1e-6f,
                                          .norm_out = in_place ? dx : dh,
                                          .n_out = N_OUT};
                for (int o = 0; o < N_OUT; o++)
                    job.out[o] = (struct mote_linear_out){&weight[j][o], dy[o], jobs[j].n_row[o], NULL};
                begin_rows(cuda, n);
                must(ops->linear(cuda, &job));
                /* the next operation of the step reads what this one left */
                struct mote_linear next = {.n_row = n, .n_col = D, .x = job.norm_out, .n_out = 1};
                float *dz = put_floats(cuda, NULL, n * jobs[j].n_row[0]);
                next.out[0] = (struct mote_linear_out){&weight[j][0], dz, jobs[j].n_row[0], NULL};
                must(ops->linear(cuda, &next));
                get_floats(cuda, h, job.norm_out, n * D);
                for (int64_t i = 0; i < n; i++) {
                    double error = error_against(h + i * D, h64 + i * D, D, norm64(h64 + i * D, D));
                    if (!(error <= 1e-6))
                        report_failure(&report, "norm, rows %lld row %lld: error %.2e", (long long)n,
                                       (long long)i, error);
                }
                for (int o = 0; o < N_OUT; o++) {
                    int64_t n_row = jobs[j].n_row[o];
                    get_floats(cuda, y, dy[o], n * n_row);
                    double error = error_against(y, want[o], n * n_row, norm64(want[o], n * n_row));
                    double budget = budget_of(&w[j][o].m, n > DECODE_ROWS, jobs[j].act[o]);
                    /* a number of h as near to two of MXFP4's as f32 can tell may become the other one */
                    if (mote_act_chosen(jobs[j].format[o], jobs[j].act[o]) == MOTE_ACT_MXFP4) budget = 1e-2;
                    if (!(error <= budget))
                        report_failure(&report,
                                       "job %d out %d (%s, %lld rows of W) rows %lld in place %d: error "
                                       "%.2e, budget %.0e",
                                       j, o, weight[j][o].name, (long long)n_row, (long long)n, in_place,
                                       error, budget);
                    if (o) continue;
                    get_floats(cuda, z, dz, n * n_row);
                    if (memcmp(y, z, (size_t)(n * n_row) * sizeof *y))
                        report_failure(&report,
                                       "job %d rows %lld: the norm's output read again gives other bits", j,
                                       (long long)n);
                    /* and the same from memory in a step of its own */
                    must(ops->upload(cuda, dh, h, (size_t)(n * D) * sizeof *h));
                    next.x = dh;
                    begin_rows(cuda, n);
                    must(ops->linear(cuda, &next));
                    get_floats(cuda, z, dz, n * n_row);
                    if (memcmp(y, z, (size_t)(n * n_row) * sizeof *y))
                        report_failure(&report,
                                       "job %d rows %lld: the norm's output from memory gives other bits", j,
                                       (long long)n);
                }
                take_back(cuda, dz);
            }
        for (int o = 0; o < N_OUT; o++) free(want[o]);
    }
    for (int j = 0; j < JOBS; j++)
        for (int o = 0; o < N_OUT; o++) {
            ops->unplace(cuda, weight[j][o].placed);
            matrix_free(&w[j][o]);
        }
    take_back(cuda, dx), take_back(cuda, dh), take_back(cuda, dnorm);
    for (int o = 0; o < N_OUT; o++) take_back(cuda, dy[o]);
    free(x), free(norm), free(h), free(h64), free(h4), free(y), free(z);
    ops->destroy(cuda);
    report_end(&report, "jobs");
}

/* ---- rows of the step ---- */

/* Weight = one number times another, or the number itself: exact in any order. */
static int is_exact(enum mote_format format)
{
    switch (format) {
    case MOTE_FORMAT_Q4_0:
    case MOTE_FORMAT_Q5_0:
    case MOTE_FORMAT_Q8_0:
    case MOTE_FORMAT_IQ4_NL:
    case MOTE_FORMAT_TQ1_0:
    case MOTE_FORMAT_TQ2_0:
    case MOTE_FORMAT_Q1_0:
    case MOTE_FORMAT_Q2_0:
    case MOTE_FORMAT_PQ2_0:
    case MOTE_FORMAT_PTQ1_0:
    case MOTE_FORMAT_MXFP4:
    case MOTE_FORMAT_MLX_MXFP4: return 1;
    default: return is_plain(format);
    }
}

static void check_embed(int compact)
{
    enum { VOCAB = 203, ROWS = 19 };
    static const int32_t token[ROWS] = {0,  202, 7,   8,   15, 16, 17, 7,  100, 31,
                                        32, 199, 200, 201, 1,  2,  9,  63, 64};
    struct report report;
    mote_rng_seed(&rng, 33);
    report_begin(&report);
    struct mote_backend_options options = {.compact = compact};
    struct mote_backend *cuda = open_backend_with(&mote_backend_cuda, &options, &limits, NULL);
    const struct mote_backend_ops *ops = cuda->ops;
    struct matrix w[MOTE_FORMAT_COUNT] = {0};
    struct mote_weight weight[MOTE_FORMAT_COUNT] = {0};
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        enum mote_format format = (enum mote_format)f;
        if (!is_tried(format, compact, MOTE_WISH_DEFAULT)) continue;
        /* widths that the products have had compiled already */
        w[f] = matrix_make(&rng, format, VOCAB, 256, 64, MOTE_FORMAT_F16, 0);
        weight[f] = (struct mote_weight){.name = mote_format_traits(format)->name, .w = w[f].m};
        must(ops->place(cuda, &weight[f]));
    }
    make_ready(cuda);
    float *dy = put_floats(cuda, NULL, ROWS * 256), y[ROWS * 256], want[256];
    struct mote_span span = {.kv = {.n_ctx = ROWS}, .n_row = ROWS};
    struct mote_batch batch = {.n_row = ROWS, .token = token, .n_span = 1, .span = &span};
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (!w[f].data) continue;
        report_subject(&report);
        report.n_case++;
        poison(y, ROWS * 256);
        must(ops->upload(cuda, dy, y, sizeof y));
        must(ops->begin(cuda, &batch));
        must(ops->embed(cuda, &weight[f], dy));
        get_floats(cuda, y, dy, ROWS * 256);
        for (int i = 0; i < ROWS; i++) {
            float largest = 0;
            mote_decode(&w[f].m, token[i], 0, 256, want);
            for (int c = 0; c < 256; c++) largest = fmaxf(largest, fabsf(want[c]));
            float slack = is_exact((enum mote_format)f) ? 0 : 1e-6f * largest;
            for (int c = 0; c < 256; c++)
                if (!(fabsf(y[i * 256 + c] - want[c]) <= slack)) {
                    report_failure(&report, "embed %s token %d column %d: %.9g, expected %.9g",
                                   weight[f].name, token[i], c, (double)y[i * 256 + c], (double)want[c]);
                    break;
                }
        }
    }
    for (int bad = 0; bad < 2 && !compact; bad++) {
        int32_t odd[ROWS];
        memcpy(odd, token, sizeof odd);
        odd[11] = bad ? VOCAB : -1;
        batch.token = odd;
        const struct mote_weight *embedding = &weight[bad ? MOTE_FORMAT_F16 : MOTE_FORMAT_Q8_0];
        must(ops->begin(cuda, &batch));
        mote_status status = ops->embed(cuda, embedding, dy);
        must_fail(status == MOTE_OK ? ops->sync(cuda) : status, MOTE_ARGUMENT, "row 11");
        batch.token = token; /* said once; the next step is clean */
        must(ops->begin(cuda, &batch));
        must(ops->embed(cuda, embedding, dy));
        must(ops->sync(cuda));
    }
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        ops->unplace(cuda, weight[f].placed);
        matrix_free(&w[f]);
    }
    take_back(cuda, dy);
    ops->destroy(cuda);
    report_end(&report, "embed");
}

static void test_embed(void **state)
{
    (void)state;
    need_device();
    check_embed(0);
    check_embed(1);
}

static void test_rms_norm(void **state)
{
    (void)state;
    need_device();
    enum { ROWS = 70 };
    static const int64_t widths[] = {64, 512, 2048, 8192}, counts[] = {1, 3, 16, 17, 33, 70};
    struct report report;
    mote_rng_seed(&rng, 34);
    report_begin(&report);
    struct mote_backend *cuda = open_backend(&mote_backend_cuda, &limits, NULL, 0);
    const struct mote_backend_ops *ops = cuda->ops;
    struct matrix head = matrix_make(&rng, MOTE_FORMAT_Q8_0, 77, 2048, 0, MOTE_FORMAT_F16, 1);
    struct mote_weight weight = {.name = "head", .w = head.m, .act = MOTE_WISH_F32};
    must(ops->place(cuda, &weight));
    make_ready(cuda);
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        int64_t n_col = widths[k];
        report_subject(&report);
        float *x = new_normals(&rng, ROWS * n_col), *norm = new_normals(&rng, n_col),
              *y = new_floats(ROWS * n_col), *logits = new_floats(2 * ROWS * 77);
        float *dx = put_floats(cuda, x, ROWS * n_col), *dnorm = put_floats(cuda, norm, n_col),
              *dy = put_floats(cuda, NULL, ROWS * n_col), *dlogits = put_floats(cuda, NULL, ROWS * 77);
        double *want = new_doubles(n_col);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int64_t n = counts[c];
            int32_t row[ROWS];
            report.n_case++;
            for (int64_t i = 0; i < n; i++) row[i] = (int32_t)(i * 37 % ROWS); /* out of order */
            poison(y, n * n_col);
            must(ops->upload(cuda, dy, y, (size_t)(n * n_col) * sizeof *y));
            begin_rows(cuda, ROWS);
            must(ops->rms_norm(cuda, dx, row, n, n_col, dnorm, 1e-5f, dy));
            struct mote_linear job = {
                .n_row = n, .n_col = n_col, .x = dy, .n_out = 1, .out = {{&weight, dlogits, 77, NULL}}};
            if (n_col == 2048) must(ops->linear(cuda, &job));
            get_floats(cuda, y, dy, n * n_col);
            for (int64_t i = 0; i < n; i++) {
                normed64(x + row[i] * n_col, norm, n_col, 1e-5f, want);
                double error = error_against(y + i * n_col, want, n_col, norm64(want, n_col));
                if (!(error <= 1e-6))
                    report_failure(&report, "rms_norm %lld columns, %lld rows, row %lld: error %.2e",
                                   (long long)n_col, (long long)n, (long long)i, error);
            }
            if (n_col != 2048) continue;
            get_floats(cuda, logits, dlogits, n * 77);
            begin_rows(cuda, n);
            must(ops->linear(cuda, &job));
            get_floats(cuda, logits + ROWS * 77, dlogits, n * 77);
            if (memcmp(logits, logits + ROWS * 77, (size_t)(n * 77) * sizeof *logits))
                report_failure(&report, "rms_norm, %lld rows: what it hands on differs from what it wrote",
                               (long long)n);
        }
        take_back(cuda, dx), take_back(cuda, dnorm), take_back(cuda, dy), take_back(cuda, dlogits);
        free(x), free(norm), free(y), free(logits), free(want);
    }
    ops->unplace(cuda, weight.placed);
    matrix_free(&head);
    ops->destroy(cuda);
    report_end(&report, "rms_norm");
}

/* ---- memory ---- */

static void test_memory(void **state)
{
    (void)state;
    need_device();
    struct mote_budget *budget;
    must(mote_budget_create(0, &budget));
    struct mote_backend_options options = {0};
    size_t scratch, bytes;
    must(mote_backend_cuda.scratch(&options, &limits, &scratch));
    struct mote_backend *cuda = open_backend(&mote_backend_cuda, &limits, budget, 0);
    const struct mote_backend_ops *ops = cuda->ops;
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_SCRATCH), scratch); /* as planned */

    enum { SIZE = 5000003 };
    uint8_t *host = malloc(SIZE), *back = malloc(SIZE), *memory;
    must(ops->alloc(cuda, MOTE_MEM_KV, SIZE, &memory));
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_KV), SIZE);
    memset(back, 0x5A, SIZE);
    must(ops->download(cuda, back, memory, SIZE));
    for (size_t i = 0; i < SIZE; i++) assert_int_equal(back[i], 0);
    mote_rng_seed(&rng, 35);
    for (size_t i = 0; i < SIZE; i++) host[i] = (uint8_t)mote_rng_u64(&rng);
    must(ops->upload(cuda, memory, host, SIZE));
    must(ops->download(cuda, back, memory, SIZE));
    assert_memory_equal(host, back, SIZE);
    must(ops->upload(cuda, memory + 1000, host, 12345)); /* any place, any length */
    must(ops->download(cuda, back, memory + 999, 12347));
    assert_true(back[0] == host[999] && back[12346] == host[13345]);
    assert_memory_equal(host, back + 1, 12345);
    ops->free(cuda, memory);
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_KV), 0);

    struct matrix w = matrix_make(&rng, MOTE_FORMAT_Q4_K, 77, 2048, 0, MOTE_FORMAT_F16, 0);
    struct mote_matrix expert[3] = {w.m, w.m, w.m};
    struct mote_weight weight = {.name = "blk.0.odd", .w = w.m};
    struct mote_expert_set set = {.name = "exps",
                                  .n_expert = 1,
                                  .n_ff = 77,
                                  .d_model = 2048,
                                  .gate = &expert[0],
                                  .up = &expert[1],
                                  .down = &expert[2]};
    struct matrix down = matrix_make(&rng, MOTE_FORMAT_F16, 2048, 77, 0, MOTE_FORMAT_F16, 0);
    expert[2] = down.m;
    must(mote_backend_cuda.weight_bytes(&options, &weight, &bytes));
    must(ops->place(cuda, &weight));
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_WEIGHTS), bytes);
    ops->unplace(cuda, weight.placed);
    must(mote_backend_cuda.expert_bytes(&options, &set, &bytes));
    must(ops->place_experts(cuda, &set));
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_WEIGHTS), bytes);
    ops->unplace(cuda, set.placed);
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_WEIGHTS), 0);
    set.activation.kind = MOTE_ACTIVATION_RELU2, set.gate = NULL; /* takes no memory for a gate */
    size_t gated = bytes;
    must(mote_backend_cuda.expert_bytes(&options, &set, &bytes));
    assert_true(bytes < gated);
    must(ops->place_experts(cuda, &set));
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_WEIGHTS), bytes);
    ops->unplace(cuda, set.placed);
    struct mote_matrix integers = {.format = MOTE_FORMAT_I32, .n_row = 1, .n_col = 1, .factor = 1};
    struct mote_weight odd = {.name = "odd.weight", .w = integers};
    must_fail(ops->place(cuda, &odd), MOTE_UNSUPPORTED, "odd.weight");
    ops->destroy(cuda);
    assert_int_equal(mote_budget_total(budget), 0);
    mote_budget_destroy(budget);

    /* a limit that the scratch passes by a byte; one that leaves no room for a weight */
    must(mote_budget_create(scratch - 1, &budget));
    must_fail(mote_backend_cuda.create(&options, &limits, budget, &cuda), MOTE_BUDGET, "");
    assert_null(cuda);
    assert_int_equal(mote_budget_total(budget), 0);
    mote_budget_destroy(budget);
    must(mote_budget_create(scratch + (1 << 20), &budget));
    cuda = open_backend(&mote_backend_cuda, &limits, budget, 0);
    size_t before = mote_budget_total(budget);
    must_fail(cuda->ops->alloc(cuda, MOTE_MEM_KV, 2 << 20, &memory), MOTE_BUDGET, "");
    struct matrix large = matrix_make(&rng, MOTE_FORMAT_Q8_0, 1024, 2048, 0, MOTE_FORMAT_F16, 0);
    struct mote_weight big = {.name = "blk.7.big", .w = large.m};
    must_fail(cuda->ops->place(cuda, &big), MOTE_BUDGET, "blk.7.big");
    assert_true(mote_budget_total(budget) <= before + (64 << 10)); /* tables may have grown, nothing else */
    cuda->ops->destroy(cuda);
    assert_int_equal(mote_budget_total(budget), 0);
    mote_budget_destroy(budget);
    matrix_free(&w), matrix_free(&down), matrix_free(&large);
    free(host), free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_formats),
        cmocka_unit_test(test_compact_formats), cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_rms_norm),        cmocka_unit_test(test_embed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
