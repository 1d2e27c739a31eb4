/* compile_all.c: many units at once, on all CPUs. See compile.h.
 *
 * One idea: units are handed out one by one, since they take between milliseconds (cached) and many seconds; the calling
 * thread compiles nothing but tells how far the others are, so that progress is heard where the call was made.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "cuda/compile.h"

enum { MAX_WORKER = 128 };

struct job {
    const char *arch;
    const struct mote_cuda_unit *unit; /* [n] */
    struct mote_cubin *cubin;          /* [n] */
    struct mote_chunks chunks;
    mote_cuda_progress_fn *progress;
    void *progress_context;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t change;
    size_t n, done, cached;
    int working; /* workers that are not through */
    mote_status status;
    char message[2048]; /* of the first failure */
};

/* Worker 0, the caller. */
static void tell(struct job *job)
{
    size_t told = 0;
    pthread_mutex_lock(&job->lock);
    while (job->working) {
        pthread_cond_wait(&job->change, &job->lock);
        if (!job->progress || job->done == told) continue;
        size_t cached = job->cached;
        told = job->done;
        pthread_mutex_unlock(&job->lock);
        job->progress(job->progress_context, told, job->n, cached);
        pthread_mutex_lock(&job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    if (job->progress && job->done != told)
        job->progress(job->progress_context, job->done, job->n, job->cached);
}

static void build_some(void *context, int worker, int n_worker)
{
    struct job *job = context;
    (void)n_worker;
    if (worker == 0) {
        tell(job);
        return;
    }
    int64_t begin, end;
    while (mote_next_chunk(&job->chunks, &begin, &end)) {
        mote_status status = mote_cubin_make(job->arch, &job->unit[begin], &job->cubin[begin]);
        pthread_mutex_lock(&job->lock);
        if (status != MOTE_OK && job->status == MOTE_OK) {
            job->status = status;
            snprintf(job->message, sizeof job->message, "%s", mote_error());
        }
        job->done++;
        job->cached += job->cubin[begin].cached != 0;
        int stop = job->status != MOTE_OK;
        pthread_cond_signal(&job->change);
        pthread_mutex_unlock(&job->lock);
        if (stop) break;
    }
    pthread_mutex_lock(&job->lock);
    job->working--;
    pthread_cond_signal(&job->change);
    pthread_mutex_unlock(&job->lock);
}

mote_status mote_cubin_make_all(const char *arch, const struct mote_cuda_unit *unit, size_t n,
                                struct mote_cubin *out, mote_cuda_progress_fn *progress, void *context)
{
    memset(out, 0, n * sizeof *out);
    if (!n) return MOTE_OK;
    struct job job = {
        .arch = arch, .unit = unit, .cubin = out, .n = n, .progress = progress, .progress_context = context};
    job.working = mote_cpu_count() < MAX_WORKER ? mote_cpu_count() : MAX_WORKER;
    if (n < (size_t)job.working) job.working = (int)n;
    struct mote_pool *pool;
    TRY(mote_pool_create(job.working + 1, &pool));
    pthread_mutex_init(&job.lock, NULL);
    pthread_cond_init(&job.change, NULL);
    mote_chunks_init(&job.chunks, (int64_t)n, 1);
    mote_pool_run(pool, build_some, &job);
    mote_pool_destroy(pool);
    pthread_cond_destroy(&job.change);
    pthread_mutex_destroy(&job.lock);
    if (job.status == MOTE_OK) return MOTE_OK;
    for (size_t i = 0; i < n; i++) mote_cubin_free(&out[i]);
    return mote_fail(job.status, "%s", job.message);
}
