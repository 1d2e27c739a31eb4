/* bandwidth.c: how fast this machine reads memory: what every floor is made of.
 *
 * One idea: plain vector loads of a buffer larger than most caches, each thread its own part, the best of several
 * passes (whatever else runs only takes away): no stores, nothing that a kernel reading weights could not do as well.
 * A thread walks several streams and asks a KiB ahead: one stream alone stops at what the core's prefetcher keeps in
 * flight, which is far below what the memory gives.
 */
#include "mote.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

enum { MAX_PASS = 64, MIN_PASS = 5, BUFFER_MIN = 16 << 20, BUFFER_MAX = 256 << 20, STREAMS = 4 };
static const double seconds_enough = 0.25;

typedef uint64_t vector __attribute__((vector_size(32)));

struct reading {
    vector *data; /* [n_worker][n] */
    int64_t n;
    _Atomic uint64_t sum; /* so that the loads are needed */
};

static void touch(void *context, int worker, int n_worker)
{
    struct reading *reading = context;
    (void)n_worker;
    memset(reading->data + worker * reading->n, worker + 1, (size_t)reading->n * sizeof(vector));
}

static void read_pass(void *context, int worker, int n_worker)
{
    struct reading *reading = context;
    (void)n_worker;
    const vector *data = reading->data + worker * reading->n;
    int64_t n = reading->n / STREAMS;
    vector sum[STREAMS] = {0};
    for (int64_t i = 0; i < n; i += 2) /* a cache line of each stream */
        for (int j = 0; j < STREAMS; j++) {
            const vector *at = data + j * n + i;
            __builtin_prefetch((const char *)at + 1024);
            sum[j] ^= at[0] ^ at[1];
        }
    vector all = {0};
    for (int j = 0; j < STREAMS; j++) all ^= sum[j];
    atomic_fetch_xor(&reading->sum, all[0] ^ all[1] ^ all[2] ^ all[3]);
}

/* A quarter of the machine at most: a buffer that is swapped out measures the disk. */
static size_t buffer_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0) return BUFFER_MAX;
    size_t quarter = (size_t)pages / 4 * (size_t)page;
    return quarter < BUFFER_MIN ? BUFFER_MIN : quarter < BUFFER_MAX ? quarter : BUFFER_MAX;
}

mote_status mote_measure_bandwidth(int n_thread, double *out)
{
    FAIL_IF(!out || n_thread < 0, MOTE_ARGUMENT, "bandwidth: out is needed, and threads 0 (all) or more");
    *out = 0;
    struct mote_pool *pool;
    TRY(mote_pool_create(n_thread, &pool));
    int n_worker = mote_pool_size(pool);
    struct reading reading = {.n = (int64_t)(buffer_bytes() / sizeof(vector)) / n_worker / (2 * STREAMS) *
                                   (2 * STREAMS)};
    size_t bytes = (size_t)reading.n * (size_t)n_worker * sizeof(vector);
    mote_status status = mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, bytes, &reading.data);
    if (status == MOTE_OK) {
        double best = 0, begin = 0;
        int n_pass = 0;
        mote_pool_run(pool, touch,
                      &reading); /* pages of its own for every byte, near the thread that reads it */
        mote_pool_run(pool, read_pass, &reading);
        do {
            double start = mote_seconds();
            mote_pool_run(pool, read_pass, &reading);
            double took = mote_seconds() - start;
            if (n_pass == 0 || took < best) best = took;
            if (n_pass == 0) begin = start;
            n_pass++;
        } while (n_pass < MAX_PASS && (n_pass < MIN_PASS || mote_seconds() - begin < seconds_enough));
        *out = (double)bytes / best;
        mote_mem_free(reading.data);
    }
    mote_pool_destroy(pool);
    return status;
}
