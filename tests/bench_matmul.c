/* bench_matmul.c: how fast the products of this machine's tier are, next to what its memory and clock allow.
 *
 *   build/bench_matmul [format ...]
 *
 * Decode: GB/s of weights read for one activation row, walking 256 MiB of weights, next to a plain read of the same
 * memory in the same run. Prefill: multiply-adds per clock of one core. Time is that of the threads' processors
 * (clock_gettime, CPU time), so that other programs on the machine cost accuracy only; medians.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "base/thread.h"
#include "cpu/kernel.h"
#include "quant/decode.h"

enum { COLS = 2048, REPEATS = 7, MAX_X = 128 };
static const size_t COLD = (size_t)256 << 20;

static struct mote_rng rng;
static uint8_t *memory; /* [COLD] */
static float *y;        /* [MAX_X][n_row] */

static double median(double *v, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double swap = v[j];
            v[j] = v[j - 1], v[j - 1] = swap;
        }
    return v[n / 2];
}

/* Seconds that this thread has run. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Clock of the core, from additions that wait for each other. */
static double clock_hz(void)
{
    double best = 0;
    for (int k = 0; k < 5; k++) {
        uint64_t a = 1;
        double start = cpu_seconds();
        for (int i = 0; i < 20000000; i++) { /* two steps, each waits for the one before */
            a += 3;
            __asm__ volatile("" : "+r"(a));
            a ^= 5;
            __asm__ volatile("" : "+r"(a));
        }
        double hz = 4e7 / (cpu_seconds() - start);
        if (hz > best) best = hz;
    }
    return best;
}

/* Random bytes, with scales that stay finite: no byte of a block has its exponent bits all set. */
static void fill(void)
{
    size_t unit = (size_t)1 << 20;
    for (size_t i = 0; i < unit; i++) memory[i] = (uint8_t)(mote_rng_u64(&rng) & 0xB7);
    for (size_t at = unit; at < COLD; at += unit) memcpy(memory + at, memory, unit);
}

struct walk {
    struct mote_matrix m;
    struct mote_act act;
    mote_matmul_fn *fn; /* NULL: read only */
    int n_thread;
    double seconds[64]; /* [worker] */
    uint64_t sink[64];
};

static void walk_job(void *context, int worker, int n_worker)
{
    struct walk *w = context;
    (void)n_worker;
    if (worker >= w->n_thread) return;
    double start = cpu_seconds();
    int64_t from = w->m.n_row * worker / w->n_thread, to = w->m.n_row * (worker + 1) / w->n_thread;
    if (w->fn) {
        for (int64_t r = from; r < to; r += 64)
            w->fn(&w->m, r, to - r < 64 ? to - r : 64, &w->act, NULL, 1, y + r, w->m.n_row);
        w->seconds[worker] = cpu_seconds() - start;
        return;
    }
    /* four streams, a line of each in turn: more than one stream gets, and what a core can reach at most here */
    const uint64_t *p = (const uint64_t *)(const void *)memory;
    uint64_t sum[8] = {0};
    size_t begin = (size_t)from * w->m.row_bytes / 64 * 8, end = (size_t)to * w->m.row_bytes / 64 * 8;
    size_t part = (end - begin) / 32 * 8;
    for (size_t i = begin; i < begin + part; i += 8)
        for (size_t k = 0; k < 4; k++)
            for (size_t j = 0; j < 8; j++) sum[j] += p[i + k * part + j];
    for (int k = 0; k < 8; k++) w->sink[worker] += sum[k];
    w->seconds[worker] = cpu_seconds() - start;
}

static double walk_rate(struct mote_pool *pool, struct walk *w, mote_matmul_fn *fn, int n_thread)
{
    w->fn = fn;
    w->n_thread = n_thread;
    mote_pool_run(pool, walk_job, w);
    double longest = 0;
    for (int i = 0; i < n_thread; i++)
        if (w->seconds[i] > longest) longest = w->seconds[i];
    return (double)w->m.n_row * (double)w->m.row_bytes / longest * 1e-9;
}

/* Multiply-adds a second of one thread: `n_row` rows, again and again for about 20 ms. */
static double product_rate(struct walk *w, mote_matmul_fn *fn, int64_t n_row, int64_t n_x)
{
    double rate[REPEATS];
    for (int k = 0; k < REPEATS; k++) {
        int64_t n = 0;
        double start = cpu_seconds(), now = start;
        for (; now < start + 0.02; n++, now = cpu_seconds())
            fn(&w->m, 0, n_row, &w->act, NULL, n_x, y, n_row);
        rate[k] = (double)(n * n_row * n_x * w->m.n_col) / (now - start);
    }
    return median(rate, REPEATS);
}

static void bench(struct mote_pool *pool, const struct mote_cpu_kernels *table, enum mote_format format,
                  enum mote_act_type type, double hz, const float *x, void *act_memory)
{
    const struct mote_format_traits *traits = mote_format_traits(format);
    int64_t n_row = (int64_t)(COLD / mote_format_row_bytes(format, COLS));
    struct walk w = {.m = mote_matrix_view(format, memory, n_row, COLS)};
    w.act = mote_act_place(type, MAX_X, COLS, x, act_memory);
    table->quantise(x, 0, MAX_X, &w.act);
    double read[2][REPEATS], dot[2][REPEATS];
    int n_max = mote_pool_size(pool) < 64 ? mote_pool_size(pool) : 64;
    for (int k = 0; k < REPEATS; k++) /* interleaved: whatever else runs hurts both */
        for (int t = 0; t < 2; t++) {
            read[t][k] = walk_rate(pool, &w, NULL, t ? n_max : 1);
            dot[t][k] = walk_rate(pool, &w, table->dot[type][format], t ? n_max : 1);
        }
    double r1 = median(read[0], REPEATS), r2 = median(read[1], REPEATS), d1 = median(dot[0], REPEATS),
           d2 = median(dot[1], REPEATS);
    printf("%-9s %-7s | %5.1f %5.1f %3.0f%% | %5.1f %5.1f %3.0f%% |", traits->name, mote_act_type_name(type),
           d1, r1, 100 * d1 / r1, d2, r2, 100 * d2 / r2);
    for (int n_x = 1; n_x <= 8; n_x *= 2)
        printf(" %5.1f", product_rate(&w, table->dot[type][format], 64, n_x) / hz);
    printf(" |");
    for (int n_x = 16; n_x <= MAX_X; n_x *= 2)
        printf(" %5.1f", product_rate(&w, table->gemm[type][format], 768, n_x) / hz);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    enum mote_cpu_tier tier;
    struct mote_pool *pool = NULL;
    float *x = NULL;
    void *act_memory = NULL;
    size_t act_bytes = mote_act_bytes(MOTE_ACT_I8_32, MAX_X, COLS);
    int status = 1;
    mote_rng_seed(&rng, 1);
    if (mote_cpu_tier_choose(&tier) || mote_pool_create(0, &pool) ||
        mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, COLD, &memory) ||
        mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, COLD / 64, &y) || /* a row is 288 bytes at least (q1_0) */
        mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, MAX_X * COLS * sizeof *x, &x) ||
        mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, act_bytes, &act_memory)) {
        fprintf(stderr, "%s\n", mote_error());
        goto done;
    }
    fill();
    for (int i = 0; i < MAX_X * COLS; i++) x[i] = (float)mote_rng_unit(&rng) - 0.5f;
    const struct mote_cpu_kernels *table = mote_cpu_kernels(tier);
    double hz = clock_hz();
    printf("%s, %.2f GHz, %d threads; %d columns\n", mote_cpu_tier_name(tier), hz * 1e-9,
           mote_pool_size(pool), COLS);
    printf("                  | GB/s cold, 1 thr. | all threads       | MAC/clock, dot 1 2 4 8  | gemm 16 32 "
           "64 128\n");
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        enum mote_format_family family = mote_format_traits((enum mote_format)f)->family;
        if (family != MOTE_FAMILY_BLOCK && family != MOTE_FAMILY_PLAIN) continue;
        int wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted |= mote_format_from_name(argv[i]) == f;
        if (wanted)
            bench(pool, table, (enum mote_format)f, mote_act_default((enum mote_format)f), hz, x, act_memory);
    }
    status = 0;
done:
    mote_pool_destroy(pool);
    mote_mem_free(memory);
    mote_mem_free(y);
    mote_mem_free(x);
    mote_mem_free(act_memory);
    return status;
}
