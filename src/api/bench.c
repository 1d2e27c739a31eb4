/* bench.c: mote_bench: checks, the bandwidth of this run, timing and reporting. See bench.h. */
#include "api/bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/handle.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

mote_status mote_bench_start(const struct mote_bench_job *job)
{
    if (job->options->bandwidth > 0) {
        *job->bandwidth = job->options->bandwidth;
        return MOTE_OK;
    }
    return mote_device_bandwidth(job->model->device, job->n_thread, job->bandwidth);
}

/* ---- timing ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(double *sample, int n, struct mote_bench_row *row)
{
    qsort(sample, (size_t)n, sizeof *sample, by_size);
    row->seconds = n % 2 ? sample[n / 2] : (sample[n / 2 - 1] + sample[n / 2]) / 2;
    row->low = sample[0];
    row->high = sample[n - 1];
}

enum { MAX_REPEAT = 1000 };

mote_status mote_bench_time(const struct mote_bench_job *job, mote_bench_run_fn *run,
                            mote_bench_run_fn *finish, void *context, struct mote_bench_row *row)
{
    double sample[MAX_REPEAT];
    int64_t next = 0, batch = 1;
    TRY(run(context, next++));
    if (finish) TRY(finish(context, next));
    for (int i = 0; i < job->n_repeat; i++) {
        double start = mote_seconds();
        for (int64_t j = 0; j < batch; j++) TRY(run(context, next++));
        if (finish) TRY(finish(context, next));
        double took = mote_seconds() - start;
        sample[i] = took / (double)batch;
        if (batch == 1 && took < 0.01) { /* too short for one run to be a sample: again, with more */
            batch = took > 1e-6 ? (int64_t)(0.02 / took) + 1 : 20000;
            i--;
        }
    }
    summarise(sample, job->n_repeat, row);
    return MOTE_OK;
}

mote_status mote_bench_time_long(const struct mote_bench_job *job, mote_bench_run_fn *before,
                                 mote_bench_run_fn *run, void *context, struct mote_bench_row *row)
{
    double sample[MAX_REPEAT];
    for (int i = -1; i < job->n_repeat; i++) {
        TRY(before(context, i + 1));
        double start = mote_seconds();
        TRY(run(context, i + 1));
        if (i >= 0) sample[i] = mote_seconds() - start;
    }
    summarise(sample, job->n_repeat, row);
    return MOTE_OK;
}

mote_status mote_bench_report(const struct mote_bench_job *job, struct mote_bench_row *row)
{
    row->floor = row->bytes / *job->bandwidth;
    if (row->rate > 0 && row->operations / row->rate > row->floor) row->floor = row->operations / row->rate;
    FAIL_IF(job->fn(job->context, row), MOTE_CANCELLED, "bench: stopped after %s", row->name);
    return MOTE_OK;
}

/* ---- what to bench ---- */

mote_status mote_bench_rows(const struct mote_bench_job *job, const int64_t *defaults, size_t n_default,
                            const int64_t **rows, size_t *n)
{
    *rows = job->options->n_row ? job->options->rows : defaults;
    *n = job->options->n_row ? job->options->n_row : n_default;
    for (size_t i = 0; i < *n; i++)
        FAIL_IF((*rows)[i] < 1 || (*rows)[i] > MOTE_BENCH_MAX_ROWS, MOTE_ARGUMENT,
                "%lld rows, expected 1..%d", (long long)(*rows)[i], MOTE_BENCH_MAX_ROWS);
    return MOTE_OK;
}

mote_status mote_bench_formats(const struct mote_bench_job *job, enum mote_format *formats, int *n)
{
    *n = 0;
    if (job->options->type) {
        int format = mote_format_from_name(job->options->type);
        FAIL_IF(format < 0 || mote_format_traits((enum mote_format)format)->family == MOTE_FAMILY_OTHER,
                MOTE_ARGUMENT, "'%s' is no format of weights", job->options->type);
        formats[(*n)++] = (enum mote_format)format;
        return MOTE_OK;
    }
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++)
        if (mote_format_traits((enum mote_format)f)->family != MOTE_FAMILY_OTHER)
            formats[(*n)++] = (enum mote_format)f;
    return MOTE_OK;
}

mote_status mote_bench_fits(const char *what, size_t bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t half = pages > 0 && page > 0 ? (size_t)pages / 2 * (size_t)page : SIZE_MAX;
    FAIL_IF(bytes > half, MOTE_MEMORY, "%s needs %zu bytes, more than half of this machine's memory", what,
            bytes);
    return MOTE_OK;
}

enum { NORMALS = 4096 }; /* of one seed; even */

struct normals_job {
    uint64_t seed;
    double deviation;
    float *x;
    struct mote_chunks chunks;
};

static void draw_normals(void *context, int worker, int n_worker)
{
    struct normals_job *job = context;
    (void)worker;
    (void)n_worker;
    for (int64_t i, end; mote_next_chunk(&job->chunks, &i, &end);) {
        struct mote_rng rng;
        mote_rng_seed(&rng, job->seed + (uint64_t)(i / NORMALS) * 0xD1B54A32D192ED03u);
        for (; i < end; i += 2) {
            double pair[2];
            mote_rng_normal2(&rng, pair);
            job->x[i] = (float)(job->deviation * pair[0]);
            if (i + 1 < end) job->x[i + 1] = (float)(job->deviation * pair[1]);
        }
    }
}

void mote_bench_normals(struct mote_pool *threads, uint64_t seed, double deviation, int64_t n, float *x)
{
    struct normals_job job = {.seed = seed, .deviation = deviation, .x = x};
    mote_chunks_init(&job.chunks, n, NORMALS);
    mote_pool_run(threads, draw_normals, &job);
}

static const struct {
    const char *name;
    mote_status (*run)(const struct mote_bench_job *job);
} benches[] = {{"kernel", mote_bench_kernel}, {"moe", mote_bench_moe}, {"model", mote_bench_model}};

mote_status mote_bench(const struct mote_bench_options *given, double *bandwidth, mote_bench_fn *fn,
                       void *context)
{
    struct mote_bench_options options = {0};
    FAIL_IF(!given || !fn, MOTE_ARGUMENT, "bench: options and fn are needed");
    FAIL_IF(given->struct_size < sizeof(size_t), MOTE_ARGUMENT, "bench options: struct_size is not set");
    MOTE_TAKE_OPTIONS(options, given);
    FAIL_IF(!options.what, MOTE_ARGUMENT, "bench: what is not set; there are: kernel, moe, model");
    size_t which = 0, n = sizeof benches / sizeof *benches;
    while (which < n && strcmp(benches[which].name, options.what)) which++;
    FAIL_IF(which == n, MOTE_ARGUMENT, "'%s' is not known; there are: kernel, moe, model", options.what);
    FAIL_IF((options.n_row && !options.rows) || (options.n_depth && !options.depth), MOTE_ARGUMENT,
            "bench: a list of rows or depths has a length but no values");
    FAIL_IF(
        options.n_repeat < 0 || options.n_repeat > MAX_REPEAT || options.n_thread < 0 ||
            options.n_generate < 0 || !(options.bandwidth >= 0),
        MOTE_ARGUMENT,
        "%d repeats, %d threads, %lld tokens, %g bytes per second: expected up to %d repeats, and nothing "
        "negative",
        options.n_repeat, options.n_thread, (long long)options.n_generate, options.bandwidth, MAX_REPEAT);
    struct mote_model_options model = {0};
    if (options.model_options) MOTE_TAKE_OPTIONS(model, options.model_options);
    double unseen;
    enum mote_act_wish act;
    TRY(mote_act_wish_parse(model.act, &act));
    struct mote_bench_job job = {.options = &options,
                                 .model = &model,
                                 .bandwidth = bandwidth ? bandwidth : &unseen,
                                 .n_repeat = options.n_repeat ? options.n_repeat : 5,
                                 .n_thread = options.n_thread ? options.n_thread : model.n_thread,
                                 .act = act,
                                 .fn = fn,
                                 .context = context};
    return benches[which].run(&job);
}
