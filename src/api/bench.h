/* bench.h: what the three benchmarks share: how a run is timed and reported.
 *
 * Owns: the clock's rules. Each benchmark brings a function that does run number i, on other weights than run i - 1.
 * One idea: every figure stands beside the seconds that its bytes take at the bandwidth measured in the same run.
 */
#ifndef MOTE_API_BENCH_H
#define MOTE_API_BENCH_H

#include "base/thread.h"
#include "cpu/act.h"
#include "mote.h"
#include "quant/format.h"

enum {
    MOTE_BENCH_COLD = 256 << 20, /* bytes to go round before a weight is read again: more than caches hold */
    MOTE_BENCH_POOL = 1 << 18,   /* weights really encoded per format and width */
    MOTE_BENCH_MAX_ROWS = 1 << 15
};

struct mote_bench_job {
    const struct mote_bench_options *options;
    const struct mote_model_options *model; /* zeros when the caller has none */
    double *bandwidth; /* bytes per second: result of mote_bench_start, the caller's to see */
    int n_repeat, n_thread;
    enum mote_act_wish act;
    mote_bench_fn *fn;
    void *context;
};

/* Measure the bandwidth of the memory that the run reads, unless the caller brings it. Comes after the checks of what is asked for: a wrong request is refused at once. */
mote_status mote_bench_start(const struct mote_bench_job *job);

typedef mote_status mote_bench_run_fn(void *context, int64_t run);

/* Time runs: one unmeasured, then n_repeat samples. A sample is as many runs as take about 20 ms; seconds, low and
 * high of the row are of one run: median, least and most of the samples. Runs are numbered from 0. `finish`, when
 * given, ends a sample inside its clock: a device's runs may be under way when they return. */
mote_status mote_bench_time(const struct mote_bench_job *job, mote_bench_run_fn *run,
                            mote_bench_run_fn *finish, void *context, struct mote_bench_row *row);
/* The same for a run that is long enough to be a sample, with what must be done before each outside the clock. */
mote_status mote_bench_time_long(const struct mote_bench_job *job, mote_bench_run_fn *before,
                                 mote_bench_run_fn *run, void *context, struct mote_bench_row *row);
/* Floor, then hand the row over. MOTE_CANCELLED when the caller wants no more. */
mote_status mote_bench_report(const struct mote_bench_job *job, struct mote_bench_row *row);

/* The rows to bench: the caller's (each 1..MOTE_BENCH_MAX_ROWS, or an error) or the defaults. */
mote_status mote_bench_rows(const struct mote_bench_job *job, const int64_t *defaults, size_t n_default,
                            const int64_t **rows, size_t *n);
/* The formats to bench: the caller's one, or all that carry weights. */
mote_status mote_bench_formats(const struct mote_bench_job *job, enum mote_format *formats, int *n);
/* More memory than half the machine is refused: MOTE_MEMORY. */
mote_status mote_bench_fits(const char *what, size_t bytes);
/* x[n], the same whatever the threads. */
void mote_bench_normals(struct mote_pool *threads, uint64_t seed, double deviation, int64_t n, float *x);

mote_status mote_bench_kernel(const struct mote_bench_job *job);
mote_status mote_bench_moe(const struct mote_bench_job *job);
mote_status mote_bench_model(const struct mote_bench_job *job);

#endif
