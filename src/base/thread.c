/* thread.c: see thread.h. */
#define _GNU_SOURCE
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

enum {
    SPINS = 20000
}; /* about 50 us: longer than the gaps inside a decode step, shorter than a time slice */

struct mote_pool {
    int n_thread;
    pthread_t *thread; /* [n_thread - 1] */
    struct worker {
        struct mote_pool *pool;
        int index;
    } * worker;
    mote_job_fn *fn;
    void *context;
    _Atomic unsigned job;  /* number of the current job; workers wait for it to change */
    _Atomic int running;   /* workers that have not finished it */
    _Atomic int sleepers;  /* workers on the condition variable */
    _Atomic int arrived;   /* barrier */
    _Atomic unsigned turn; /* barrier */
    _Atomic int stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int mote_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);
        if (n > 0) return n;
    }
    return 1;
}

static void *worker_main(void *argument)
{
    struct worker *self = argument;
    struct mote_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&pool->job, memory_order_acquire) == seen) {
            if (++spins < SPINS) {
                relax();
                continue;
            }
            pthread_mutex_lock(&pool->lock);
            atomic_fetch_add(&pool->sleepers, 1);
            while (atomic_load(&pool->job) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
            atomic_fetch_sub(&pool->sleepers, 1);
            pthread_mutex_unlock(&pool->lock);
        }
        seen = atomic_load(&pool->job);
        if (atomic_load(&pool->stop)) return NULL;
        pool->fn(pool->context, self->index, pool->n_thread);
        atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release);
    }
}

static void start_job(struct mote_pool *pool)
{
    atomic_fetch_add(&pool->job, 1);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

mote_status mote_pool_create(int n_thread, struct mote_pool **out)
{
    *out = NULL;
    if (n_thread <= 0) n_thread = mote_cpu_count();
    FAIL_IF(n_thread > 1024, MOTE_ARGUMENT, "threads: %d asked for, at most 1024", n_thread);
    struct mote_pool *pool;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *pool, &pool));
    pool->n_thread = n_thread;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    int started = 0;
    mote_status status;
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_TABLES, (size_t)n_thread, sizeof *pool->thread, &pool->thread),
             status, fail);
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_TABLES, (size_t)n_thread, sizeof *pool->worker, &pool->worker),
             status, fail);
    for (int i = 1; i < n_thread; i++, started++) {
        pool->worker[i] = (struct worker){pool, i};
        int code = pthread_create(&pool->thread[i - 1], NULL, worker_main, &pool->worker[i]);
        if (code) {
            status = mote_fail(MOTE_MEMORY, "threads: cannot start thread %d of %d: %s", i + 1, n_thread,
                               strerror(code));
            goto fail;
        }
    }
    *out = pool;
    return MOTE_OK;
fail:
    pool->n_thread = started + 1;
    mote_pool_destroy(pool);
    return status;
}

void mote_pool_destroy(struct mote_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    start_job(pool);
    for (int i = 1; i < pool->n_thread; i++) pthread_join(pool->thread[i - 1], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    mote_mem_free(pool->thread);
    mote_mem_free(pool->worker);
    mote_mem_free(pool);
}

int mote_pool_size(const struct mote_pool *pool)
{
    return pool->n_thread;
}

void mote_pool_run(struct mote_pool *pool, mote_job_fn *fn, void *context)
{
    pool->fn = fn;
    pool->context = context;
    if (pool->n_thread > 1) {
        atomic_store(&pool->running, pool->n_thread - 1);
        start_job(pool);
    }
    fn(context, 0, pool->n_thread);
    for (int spins = 0; atomic_load_explicit(&pool->running, memory_order_acquire) > 0; spins++) {
        if (spins < SPINS) relax();
        else sched_yield();
    }
}

void mote_pool_barrier(struct mote_pool *pool)
{
    unsigned turn = atomic_load(&pool->turn);
    if (atomic_fetch_add(&pool->arrived, 1) == pool->n_thread - 1) {
        atomic_store(&pool->arrived, 0);
        atomic_fetch_add(&pool->turn, 1);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&pool->turn, memory_order_acquire) == turn; spins++) {
        if (spins < SPINS) relax();
        else sched_yield();
    }
}
