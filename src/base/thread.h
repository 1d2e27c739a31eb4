/* thread.h: the pool that every parallel loop runs on.
 *
 * One idea: a fixed team of threads runs the same function; between two short jobs the team spins briefly, so
 * that a decode step of many small jobs does not pay a wake-up each, then sleeps.
 * The calling thread is worker 0: a pool of n threads starts n - 1.
 */
#ifndef MOTE_BASE_THREAD_H
#define MOTE_BASE_THREAD_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/mem.h"

struct mote_pool; /* one caller at a time */

typedef void mote_job_fn(void *context, int worker, int n_worker);

/* n_thread: 0 for the number of CPUs this process may use. */
mote_status mote_pool_create(int n_thread, struct mote_pool **out);
void mote_pool_destroy(struct mote_pool *pool);
int mote_pool_size(const struct mote_pool *pool);
int mote_cpu_count(void);

/* Run fn on every worker and return when all are done. */
void mote_pool_run(struct mote_pool *pool, mote_job_fn *fn, void *context);

/* Wait inside a job until every worker has come here (a job's own phases). */
void mote_pool_barrier(struct mote_pool *pool);

/* Split [0, n) in chunks handed out on demand: loop while mote_next_chunk returns true. */
struct mote_chunks {
    _Atomic int64_t next;
    int64_t n, step;
};
static inline void mote_chunks_init(struct mote_chunks *chunks, int64_t n, int64_t step)
{
    atomic_store(&chunks->next, 0);
    chunks->n = n;
    chunks->step = step > 0 ? step : 1;
}
static inline int mote_next_chunk(struct mote_chunks *chunks, int64_t *begin, int64_t *end)
{
    int64_t at = atomic_fetch_add(&chunks->next, chunks->step);
    if (at >= chunks->n) return 0;
    *begin = at;
    *end = at + chunks->step < chunks->n ? at + chunks->step : chunks->n;
    return 1;
}

#endif
