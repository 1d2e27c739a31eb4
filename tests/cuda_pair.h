/* cuda_pair.h: for the tests of the CUDA backend: a CPU and a CUDA backend with the same limits,
 * matrices of every format with their float64 values, products in float64 on all CPUs, and the bookkeeping of errors.
 *
 * One idea: a failing case prints a line and is counted; the test goes on and fails at its end, so that one run
 * on a borrowed device says everything.
 *
 * MOTE_CUDA_QUICK=1: a subset small enough for compute-sanitizer. No device: need_device.h.
 */
#ifndef MOTE_TESTS_CUDA_PAIR_H
#define MOTE_TESTS_CUDA_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/thread.h"
#include "compact_formats.h"
#include "must.h"
#include "need_device.h"
#include "quant/encode.h"
#include "quant/mxfp4.h"
#include "random_matrix.h"

enum { DECODE_ROWS = 16 }; /* steps of more rows run on tensor cores */

static inline int quick(void)
{
    const char *text = getenv("MOTE_CUDA_QUICK");
    return text && *text && strcmp(text, "0") != 0;
}

/* ---- cases that fail ---- */

enum { REPORT_LINES = 80, SUBJECT_LINES = 3 };
struct report {
    int n_failed, n_case, n_line, n_subject_line;
    double start;
};

static inline void report_begin(struct report *report)
{
    *report = (struct report){.start = mote_seconds()};
}

/* Lines of the same matrix, set of experts, ..: the first few say it. */
static inline void report_subject(struct report *report)
{
    report->n_subject_line = 0;
}

__attribute__((format(printf, 2, 3))) static inline void report_failure(struct report *report,
                                                                        const char *format, ...)
{
    report->n_failed++;
    if (report->n_line >= REPORT_LINES || report->n_subject_line >= SUBJECT_LINES) return;
    report->n_line++, report->n_subject_line++;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    print_message("FAIL  %s\n", line);
}

static inline void report_end(const struct report *report, const char *what)
{
    print_message("%s: %d cases, %.1f s\n", what, report->n_case, mote_seconds() - report->start);
    if (report->n_failed)
        fail_msg("%s: %d checks of %d cases failed", what, report->n_failed, report->n_case);
}

/* ---- backends ---- */

static inline struct mote_backend *open_backend_with(const struct mote_backend_kind *kind,
                                                     const struct mote_backend_options *options,
                                                     const struct mote_backend_limits *limits,
                                                     struct mote_budget *budget)
{
    struct mote_backend *backend;
    if (kind->create(options, limits, budget, &backend) != MOTE_OK)
        fail_msg("%s: %s", kind->name, mote_error());
    return backend;
}

static inline struct mote_backend *open_backend(const struct mote_backend_kind *kind,
                                                const struct mote_backend_limits *limits,
                                                struct mote_budget *budget, int unfused)
{
    struct mote_backend_options options = {.moe_kernels = unfused ? MOTE_MOE_UNFUSED : MOTE_MOE_FUSED};
    return open_backend_with(kind, &options, limits, budget);
}

struct pair {
    struct mote_backend *cpu, *cuda;
};

static inline struct pair pair_open(const struct mote_backend_limits *limits)
{
    return (struct pair){.cpu = open_backend(&mote_backend_cpu, limits, NULL, 0),
                         .cuda = open_backend(&mote_backend_cuda, limits, NULL, 0)};
}

static inline void pair_close(struct pair *pair)
{
    pair->cpu->ops->destroy(pair->cpu);
    pair->cuda->ops->destroy(pair->cuda);
}

/* All weights are placed. */
static inline void make_ready(struct mote_backend *backend)
{
    if (backend->ops->ready) must(backend->ops->ready(backend));
}

/* A step of n rows of one sequence without a cache: for operations that ask for no more. */
static inline void begin_rows(struct mote_backend *backend, int64_t n)
{
    static int32_t token[4096];
    static struct mote_span span;
    static struct mote_batch batch;
    assert_true(n <= 4096);
    span = (struct mote_span){.kv = {.n_ctx = 4096}, .n_row = (int32_t)n};
    batch = (struct mote_batch){.n_row = (int32_t)n, .token = token, .n_span = 1, .span = &span};
    must(backend->ops->begin(backend, &batch));
}

/* ---- backend memory ---- */

static inline void *put(struct mote_backend *backend, const void *host, size_t size)
{
    void *memory;
    must(backend->ops->alloc(backend, MOTE_MEM_SCRATCH, size, &memory));
    if (host) must(backend->ops->upload(backend, memory, host, size));
    return memory;
}

static inline float *put_floats(struct mote_backend *backend, const float *host, int64_t n)
{
    return put(backend, host, (size_t)n * sizeof *host);
}

static inline void take_back(struct mote_backend *backend, void *memory)
{
    if (memory) backend->ops->free(backend, memory);
}

static inline void get_floats(struct mote_backend *backend, float *host, const float *from, int64_t n)
{
    must(backend->ops->download(backend, host, from, (size_t)n * sizeof *host));
}

/* A NaN that no operation makes: what an output holds before it is written. */
static const uint32_t POISON = 0x7FABCDEFu;

static inline int is_poison(float value)
{
    return mote_f32_bits(value) == POISON;
}

static inline void poison(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) memcpy(x + i, &POISON, sizeof POISON);
}

static inline float *new_floats(int64_t n)
{
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

static inline double *new_doubles(int64_t n)
{
    double *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

static inline float *new_normals(struct mote_rng *rng, int64_t n)
{
    float *x = new_floats(n);
    for (int64_t i = 0; i < n; i += 2) {
        double two[2];
        mote_rng_normal2(rng, two);
        x[i] = (float)two[0];
        if (i + 1 < n) x[i + 1] = (float)two[1];
    }
    return x;
}

static inline double *widened(const float *x, int64_t n)
{
    double *wide = new_doubles(n);
    for (int64_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

/* ---- loops on all CPUs ---- */

struct loop {
    void (*each)(void *context, int64_t i);
    void *context;
    struct mote_chunks chunks;
};

static inline void loop_worker(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct loop *loop = context;
    for (int64_t i, end; mote_next_chunk(&loop->chunks, &i, &end);)
        for (; i < end; i++) loop->each(loop->context, i);
}

static inline void in_parallel(int64_t n, void (*each)(void *context, int64_t i), void *context)
{
    static struct mote_pool *pool; /* lives as long as the program */
    if (!pool) must(mote_pool_create(0, &pool));
    struct loop loop = {.each = each, .context = context};
    mote_chunks_init(&loop.chunks, n, 1 + n / (8 * mote_pool_size(pool)));
    mote_pool_run(pool, loop_worker, &loop);
}

/* ---- matrices ---- */

struct matrix {
    struct mote_matrix m;
    uint8_t *data, *scale, *bias;
    double *value; /* [n_row][n_col]: what the bytes decode to; NULL until matrix_decode */
};

struct encoding {
    struct matrix *w;
    const float *x;
};

static inline void encode_row(void *context, int64_t row)
{
    const struct encoding *e = context;
    const struct mote_matrix *m = &e->w->m;
    const float *x = e->x + row * m->n_col;
    uint8_t *out = e->w->data + (size_t)row * m->row_bytes;
    size_t at = random_scale_bytes(m) / (size_t)m->n_row * (size_t)row;
    mote_status status = random_is_affine(m->format)
                             ? mote_encode_affine(mote_format_code_bits(m->format), m->group, m->scale_format,
                                                  x, 1, m->n_col, out, e->w->scale + at, e->w->bias + at)
                             : mote_encode(m->format, x, 1, m->n_col, NULL, out);
    if (status != MOTE_OK) abort(); /* not of this thread's test: cmocka could not tell */
}

/* encoded: Gaussian rows of unit length through the format's encoder where it has one; random bytes otherwise. */
static inline struct matrix matrix_make(struct mote_rng *rng, enum mote_format format, int64_t n_row,
                                        int64_t n_col, int group, enum mote_format scale_format, int encoded)
{
    struct matrix w = {.m = mote_matrix_view(format, NULL, n_row, n_col)};
    w.m.group = random_group(format, group);
    w.m.scale_format = scale_format;
    size_t scale_bytes = random_scale_bytes(&w.m);
    w.m.data = w.data = malloc(w.m.row_bytes * (size_t)n_row);
    if (scale_bytes) w.m.scale = w.scale = malloc(scale_bytes);
    if (random_is_affine(format)) w.m.bias = w.bias = malloc(scale_bytes);
    int can = random_is_affine(format) ||
              (mote_format_traits(format)->family != MOTE_FAMILY_PLANAR && mote_can_encode(format));
    if (!encoded || !can) {
        random_fill(rng, &w.m, RANDOM, w.data, w.scale, w.bias);
        return w;
    }
    float *x = new_normals(rng, n_row * n_col), size = 1 / sqrtf((float)n_col);
    for (int64_t i = 0; i < n_row * n_col; i++) x[i] *= size;
    struct encoding e = {.w = &w, .x = x};
    in_parallel(n_row, encode_row, &e);
    free(x);
    return w;
}

static inline void matrix_free(struct matrix *w)
{
    free(w->data);
    free(w->scale);
    free(w->bias);
    free(w->value);
    *w = (struct matrix){0};
}

/* Rows [row, row + n_row) of w. */
static inline struct mote_matrix matrix_rows(const struct matrix *w, int64_t row, int64_t n_row)
{
    struct mote_matrix m = w->m;
    size_t scale_row = random_scale_bytes(&m) / (size_t)m.n_row;
    m.data += (size_t)row * m.row_bytes;
    if (m.scale) m.scale += (size_t)row * scale_row;
    if (m.bias) m.bias += (size_t)row * scale_row;
    m.n_row = n_row;
    return m;
}

static inline void decode_row(void *context, int64_t row)
{
    struct matrix *w = context;
    float *x = new_floats(w->m.n_col);
    mote_decode(&w->m, row, 0, w->m.n_col, x);
    for (int64_t c = 0; c < w->m.n_col; c++) w->value[row * w->m.n_col + c] = x[c];
    free(x);
}

static inline void matrix_decode(struct matrix *w)
{
    w->value = new_doubles(w->m.n_row * w->m.n_col);
    in_parallel(w->m.n_row, decode_row, w);
}

static inline double dot64(const double *a, const double *b, int64_t n)
{
    double sum[4] = {0};
    int64_t whole = n - n % 4;
    for (int64_t i = 0; i < whole; i += 4)
        for (int j = 0; j < 4; j++) sum[j] += a[i + j] * b[i + j];
    for (int64_t i = whole; i < n; i++) sum[0] += a[i] * b[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* y[i][r] = sum over c of w.value[r][c] x[i][c]. */
struct product {
    const struct matrix *w;
    const double *x;
    double *y;
};

static inline void product_row(void *context, int64_t i)
{
    struct product *p = context;
    int64_t n_row = p->w->m.n_row, n_col = p->w->m.n_col;
    for (int64_t r = 0; r < n_row; r++)
        p->y[i * n_row + r] = dot64(p->w->value + r * n_col, p->x + i * n_col, n_col);
}

static inline double *product64(const struct matrix *w, const double *x, int64_t n_x)
{
    struct product p = {.w = w, .x = x, .y = new_doubles(n_x * w->m.n_row)};
    in_parallel(n_x, product_row, &p);
    return p.y;
}

/* x [n] (n a multiple of 32) as MXFP4 activations have it, in place. */
static inline void round_mxfp4(double *x, int64_t n)
{
    for (int64_t c = 0; c < n; c += 32) {
        float block[32];
        int8_t q[32];
        for (int i = 0; i < 32; i++) block[i] = (float)x[c + i];
        float unit = mote_mxfp4_block(block, q);
        for (int i = 0; i < 32; i++) x[c + i] = (double)unit * q[i];
    }
}

/* ---- errors ---- */

static inline double norm64(const double *x, int64_t n)
{
    return sqrt(dot64(x, x, n));
}

/* ||y - want|| / norm; NaN and infinity in y give infinity. */
static inline double error_against(const float *y, const double *want, int64_t n, double norm)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)y[i] - want[i];
        sum += d * d;
    }
    return isfinite(sum) ? sqrt(sum) / (norm > 0 ? norm : 1) : INFINITY;
}

/* How close a product comes: integers of 16 bits for few rows, tensor cores for many; plain numbers in f32. */
enum { FEW, MANY, SIZES };

static inline int is_plain(enum mote_format format)
{
    return mote_format_traits(format)->family == MOTE_FAMILY_PLAIN || format == MOTE_FORMAT_MLX_MXFP8;
}

/* Scales beyond what f16 holds: such weights go to the tensor cores as bf16. */
static inline int is_wide(const struct mote_matrix *m)
{
    return m->format == MOTE_FORMAT_MXFP4 || m->format == MOTE_FORMAT_MLX_MXFP4 ||
           (random_is_affine(m->format) && m->scale_format != MOTE_FORMAT_F16);
}

/* Long steps multiply such weights by activations of 8 bits, unless told otherwise (act). */
static inline int is_int8(enum mote_format format)
{
    return format == MOTE_FORMAT_TQ1_0 || format == MOTE_FORMAT_TQ2_0 || format == MOTE_FORMAT_Q1_0 ||
           format == MOTE_FORMAT_PQ2_0 || format == MOTE_FORMAT_PTQ1_0;
}

/* From x as MXFP4 has it, sums alone are rounded: both operands are exact in whatever multiplies them. */
static inline double budget_of(const struct mote_matrix *m, int size, enum mote_act_wish act)
{
    if (mote_act_chosen(m->format, act) == MOTE_ACT_MXFP4) return 1e-5;
    if (is_plain(m->format)) return size == FEW ? 1e-5 : 1e-3;
    if (size == FEW) return 1e-4;
    if (is_int8(m->format) && act != MOTE_WISH_F32) return 1.5e-2;
    return is_wide(m) ? 1e-2 : 2e-3;
}

/* The worst error by format and size of step. */
struct worst {
    double error[MOTE_FORMAT_COUNT][SIZES];
};

static inline void worst_note(struct worst *worst, enum mote_format format, int size, double error)
{
    if (error > worst->error[format][size]) worst->error[format][size] = error;
}

static inline void worst_print(const struct worst *worst, const char *what)
{
    print_message("%s: worst error, 1 to %d rows and more\n", what, DECODE_ROWS);
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++)
        if (worst->error[f][FEW] > 0 || worst->error[f][MANY] > 0)
            print_message("  %-10s %8.1e %8.1e\n", mote_format_traits((enum mote_format)f)->name,
                          worst->error[f][FEW], worst->error[f][MANY]);
}

#endif
