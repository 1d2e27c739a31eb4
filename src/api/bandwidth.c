/* bandwidth.c: how fast this machine reads memory: what every floor is made of.
 *
 * One idea: plain vector loads of a buffer much larger than any cache, each thread its own part, the median of
 * several passes: no stores, no non-temporal hints, nothing that a kernel reading weights could not do as well.
 */
#include "mote.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

enum { MAX_PASS = 64, MIN_PASS = 5, BUFFER_MIN = 16 << 20, BUFFER_MAX = 256 << 20 };
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
    vector sum[4] = {0};
    for (int64_t i = 0; i < reading->n; i += 4)
        for (int j = 0; j < 4; j++) sum[j] ^= data[i + j];
    vector all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
    atomic_fetch_xor(&reading->sum, all[0] ^ all[1] ^ all[2] ^ all[3]);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    struct reading reading = {.n = (int64_t)(buffer_bytes() / sizeof(vector)) / n_worker / 4 * 4};
    size_t bytes = (size_t)reading.n * (size_t)n_worker * sizeof(vector);
    mote_status status = mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, bytes, &reading.data);
    if (status == MOTE_OK) {
        double pass[MAX_PASS], begin = 0;
        int n_pass = 0;
        mote_pool_run(pool, touch,
                      &reading); /* pages of its own for every byte, near the thread that reads it */
        mote_pool_run(pool, read_pass, &reading);
        do {
            double start = mote_seconds();
            mote_pool_run(pool, read_pass, &reading);
            pass[n_pass] = mote_seconds() - start;
            if (n_pass == 0) begin = start;
            n_pass++;
        } while (n_pass < MAX_PASS && (n_pass < MIN_PASS || mote_seconds() - begin < seconds_enough));
        qsort(pass, (size_t)n_pass, sizeof *pass, by_size);
        *out = (double)bytes / pass[n_pass / 2];
        mote_mem_free(reading.data);
    }
    mote_pool_destroy(pool);
    return status;
}
