/* thread.c: see thread.h. */
#define _GNU_SOURCE
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Waits are short inside a decode step: spin for some 20 to 50 us, then sleep. A thread that spins on uses up its share
 * of a busy machine's time and is not running when it is needed: one that sleeps is let in at once. */
enum { SPINS = 1000 };

/* A number that others wait for a change of (futex). */
struct event {
    _Atomic unsigned value;
    _Atomic int sleepers;
};
_Static_assert(sizeof(_Atomic unsigned) == 4, "a futex is 4 bytes");

struct worker {
    struct mote_pool *pool;
    int index;
};

struct mote_pool {
    int n_thread;
    pthread_t *thread;     /* [n_thread - 1] */
    struct worker *worker; /* [n_thread] */
    mote_job_fn *fn;
    void *context;
    struct event job;    /* a new job is there */
    struct event done;   /* the last worker has finished it */
    struct event turn;   /* barrier: all have come */
    _Atomic int running; /* workers that have not finished the job */
    _Atomic int arrived; /* barrier */
    _Atomic int stop;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void event_wait(struct event *event, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&event->value, memory_order_acquire) != seen) return;
        relax();
    }
    while (atomic_load(&event->value) == seen) {
        /* Counted before the kernel compares: who raises after that comparison sees the count and wakes. */
        atomic_fetch_add(&event->sleepers, 1);
        syscall(SYS_futex, &event->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_sub(&event->sleepers, 1);
    }
}

static void event_raise(struct event *event)
{
    atomic_fetch_add(&event->value, 1);
    if (atomic_load(&event->sleepers))
        syscall(SYS_futex, &event->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
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
    for (unsigned seen = 0;; seen++) { /* a job starts only after the one before it is done: none is missed */
        event_wait(&pool->job, seen);
        if (atomic_load(&pool->stop)) return NULL;
        pool->fn(pool->context, self->index, pool->n_thread);
        if (atomic_fetch_sub(&pool->running, 1) == 1) event_raise(&pool->done);
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
    event_raise(&pool->job);
    for (int i = 1; i < pool->n_thread; i++) pthread_join(pool->thread[i - 1], NULL);
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
    if (pool->n_thread == 1) {
        fn(context, 0, 1);
        return;
    }
    unsigned seen = atomic_load(&pool->done.value);
    atomic_store(&pool->running, pool->n_thread - 1);
    event_raise(&pool->job);
    fn(context, 0, pool->n_thread);
    event_wait(&pool->done, seen);
}

void mote_pool_barrier(struct mote_pool *pool)
{
    unsigned seen = atomic_load(&pool->turn.value);
    if (atomic_fetch_add(&pool->arrived, 1) == pool->n_thread - 1) {
        atomic_store(&pool->arrived, 0);
        event_raise(&pool->turn);
    } else {
        event_wait(&pool->turn, seen);
    }
}
