/* test_attend.c: attention of every tier against softmax in float64 written here, with bounds from the arithmetic;
 * a row alone against the row in a batch, bit for bit; what must not be read or written.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "base/rng.h"
#include "cpu/kernel.h"

enum { GUARD = 64 };

/* A case in memory of its own, every buffer as long as the contract says and no longer. */
struct job {
    struct mote_attend a;
    int64_t n_key, row; /* row: floats of a query's heads in q and out */
    float *q, *out;
    uint8_t *k, *v, *scratch;
    size_t k_bytes, scratch_bytes;
};

static void *exact(size_t bytes, int fill) /* 64-byte aligned, GUARD bytes of 0xC3 behind */
{
    uint8_t *block = aligned_alloc(64, (bytes + GUARD + 63) & ~(size_t)63);
    assert_non_null(block);
    memset(block, fill, bytes);
    memset(block + bytes, 0xC3, GUARD);
    return block;
}

static void expect_guard(const void *block, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(((const uint8_t *)block)[bytes + i], 0xC3);
}

static float normal(struct mote_rng *rng)
{
    double pair[2];
    mote_rng_normal2(rng, pair);
    return (float)pair[0];
}

static struct job make(struct mote_rng *rng, enum mote_kv_type type, int64_t n_query, int64_t n_group,
                       int64_t head_dim, int64_t n_past, int64_t window, double spread)
{
    struct job job = {.n_key = n_past + n_query, .row = n_group * head_dim + 5};
    size_t row_bytes = mote_kv_row_bytes(type, head_dim), stride = row_bytes + 6;
    job.k_bytes = (size_t)(job.n_key - 1) * stride + row_bytes;
    job.k = exact(job.k_bytes, 0xFF); /* gaps between rows: NaN in every type */
    job.v = exact(job.k_bytes, 0xFF);
    job.q = exact((size_t)(n_query * job.row) * sizeof(float), 0xFF);
    job.out = exact((size_t)(n_query * job.row) * sizeof(float), 0xFF);
    job.scratch_bytes = mote_attend_scratch(n_query, n_group, head_dim);
    job.scratch = exact(job.scratch_bytes, 0xFF);
    float *x = malloc((size_t)head_dim * sizeof *x);
    const struct mote_cpu_kernels *scalar = mote_cpu_kernels(MOTE_CPU_SCALAR);
    for (int64_t key = 0; key < job.n_key; key++) {
        for (int64_t d = 0; d < head_dim; d++) x[d] = normal(rng) * (float)spread;
        scalar->kv_store(type, x, head_dim, job.k + (size_t)key * stride);
        for (int64_t d = 0; d < head_dim; d++) x[d] = normal(rng);
        scalar->kv_store(type, x, head_dim, job.v + (size_t)key * stride);
    }
    free(x);
    for (int64_t i = 0; i < n_query; i++)
        for (int64_t c = 0; c < n_group * head_dim; c++) job.q[i * job.row + c] = normal(rng);
    job.a = (struct mote_attend){
        n_query, n_group, head_dim, n_past,     window, (float)(1 / sqrt((double)head_dim)),
        job.q,   job.row, type,     job.k,      job.v,  stride,
        stride,  job.out, job.row,  job.scratch};
    return job;
}

static void done(struct job *job)
{
    expect_guard(job->k, job->k_bytes), expect_guard(job->v, job->k_bytes);
    expect_guard(job->scratch, job->scratch_bytes);
    expect_guard(job->out, (size_t)(job->a.n_query * job->row) * sizeof(float));
    for (int64_t i = 0; i < job->a.n_query; i++) /* floats between rows of out stay */
        for (int64_t c = job->a.n_group * job->a.head_dim; c < job->row; c++)
            assert_int_equal(mote_f32_bits(job->out[i * job->row + c]), 0xFFFFFFFFu);
    free(job->k), free(job->v), free(job->q), free(job->out), free(job->scratch);
}

static double element(enum mote_kv_type type, const void *data, size_t stride, int64_t key, int64_t d)
{
    const uint8_t *row = (const uint8_t *)data + (size_t)key * stride;
    if (type == MOTE_KV_F32) return mote_bits_f32(mote_load_u32(row + 4 * d));
    if (type == MOTE_KV_F16) return mote_f16_f32(mote_load_u16(row + 2 * d));
    row += d / 32 * 34;
    return (double)mote_f16_f32(mote_load_u16(row)) * (int8_t)row[2 + d % 32];
}

/* Row i, head g: softmax in float64 into want[head_dim] and a bound for each element.
 * With eps = 2^-24: a logit is off by at most (head_dim / 8 + 6) eps * sum |q k| scale, which moves a weight by that
 * factor twice (its own and the normalisation's); subtracting the maximum, 2^x and n_key / 8 + tiles of summation
 * add to it. */
static void reference(const struct mote_attend *a, int64_t i, int64_t g, double *want, double *bound)
{
    int64_t end = a->n_past + i + 1, first = a->window && end > a->window ? end - a->window : 0,
            n = end - first;
    double *logit = malloc((size_t)n * sizeof *logit), max = -INFINITY, wobble = 0, eps = 0x1p-24;
    const float *q = a->q + i * a->q_stride + g * a->head_dim;
    for (int64_t key = first; key < end; key++) {
        double sum = 0, size = 0;
        for (int64_t d = 0; d < a->head_dim; d++) {
            double product = q[d] * element(a->type, a->k, a->k_stride, key, d) * a->scale;
            sum += product, size += fabs(product);
        }
        logit[key - first] = sum;
        max = fmax(max, sum);
        wobble = fmax(wobble, ((double)a->head_dim / 8 + 6) * eps * size + 2 * eps * fabs(sum));
    }
    double total = 0, error = 2 * wobble + ((double)n / 8 + (double)n / 16 + 80) * eps;
    for (int64_t j = 0; j < n; j++) total += exp(logit[j] - max);
    for (int64_t d = 0; d < a->head_dim; d++) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < n; j++) {
            double part = exp(logit[j] - max) / total * element(a->type, a->v, a->v_stride, first + j, d);
            sum += part, size += fabs(part);
        }
        want[d] = sum;
        bound[d] = error * size + (double)n * 0x1p-126;
    }
    free(logit);
}

static void expect_reference(const struct job *job, const char *what)
{
    const struct mote_attend *a = &job->a;
    double *want = malloc((size_t)a->head_dim * sizeof *want),
           *bound = malloc((size_t)a->head_dim * sizeof *bound);
    for (int64_t i = 0; i < a->n_query; i++) {
        if (a->n_query > 70 && i % 17 && i != a->n_query - 1) continue;
        for (int64_t g = 0; g < a->n_group; g++) {
            reference(a, i, g, want, bound);
            for (int64_t d = 0; d < a->head_dim; d++) {
                double got = job->out[i * job->row + g * a->head_dim + d];
                if (!(fabs(got - want[d]) <= bound[d]))
                    fail_msg(
                        "%s %s: query %d of %d, head %d, column %d, past %d, window %d: %.9g, expected %.9g "
                        "within %.3g",
                        what, mote_kv_type_name(a->type), (int)i, (int)a->n_query, (int)g, (int)d,
                        (int)a->n_past, (int)a->window, got, want[d], bound[d]);
            }
        }
    }
    free(want), free(bound);
}

/* Every row again, alone, with the keys that it may see and nothing behind them. */
static void expect_rows_alone(const struct job *job, const struct mote_cpu_kernels *kernels)
{
    for (int64_t i = 0; i < job->a.n_query; i++) {
        if (job->a.n_query > 70 && i % 13) continue;
        struct mote_attend one = job->a;
        float *out = exact((size_t)job->row * sizeof *out, 0xFF);
        one.n_query = 1, one.n_past += i, one.q += i * job->row, one.out = out;
        one.scratch = exact(mote_attend_scratch(1, one.n_group, one.head_dim), 0x7F);
        kernels->attend(&one);
        assert_memory_equal(out, job->out + i * job->row, (size_t)(one.n_group * one.head_dim) * sizeof *out);
        free(out), free(one.scratch);
    }
}

static void sweep(const struct mote_cpu_kernels *kernels, struct mote_rng *rng, int64_t n_query,
                  int64_t n_group, int64_t head_dim, int64_t n_past, int64_t window)
{
    for (int type = 0; type < MOTE_KV_TYPE_COUNT; type++) {
        if (type == MOTE_KV_Q8_0 && head_dim % 32) continue;
        struct job job = make(rng, (enum mote_kv_type)type, n_query, n_group, head_dim, n_past, window, 1);
        kernels->attend(&job.a);
        expect_reference(&job, mote_cpu_tier_name(kernels->tier));
        expect_rows_alone(&job, kernels);
        done(&job);
    }
}

static void test_shapes(void **state)
{
    (void)state;
    struct mote_rng rng;
    mote_rng_seed(&rng, 11);
    static const int64_t shapes[][5] = {
        /* n_query, n_group, head_dim, n_past, window */
        {1, 1, 64, 0, 0},     {1, 1, 64, 63, 0},    {1, 2, 128, 64, 0},    {1, 3, 96, 65, 0},
        {1, 4, 128, 200, 0},  {1, 5, 64, 127, 0},   {1, 6, 80, 128, 0},    {1, 7, 128, 301, 0},
        {1, 8, 128, 777, 0},  {1, 11, 32, 99, 0},   {1, 13, 64, 70, 0},    {1, 16, 256, 130, 0},
        {1, 17, 64, 130, 0},  {1, 70, 32, 90, 0},   {2, 1, 64, 0, 0},      {3, 1, 128, 62, 0},
        {7, 2, 64, 60, 0},    {64, 1, 64, 0, 0},    {65, 1, 32, 0, 0},     {130, 1, 64, 5, 0},
        {33, 4, 128, 31, 0},  {20, 8, 96, 100, 0},  {9, 16, 64, 3, 0},     {5, 7, 256, 77, 0},
        {67, 3, 64, 0, 0},    {1, 1, 8, 20, 0},     {3, 2, 40, 70, 0},     {2, 2, 1, 9, 0},
        {5, 3, 20, 66, 0},    {4, 1, 33, 64, 0},    {1, 4, 64, 300, 1},    {1, 4, 64, 300, 64},
        {1, 4, 64, 300, 100}, {1, 4, 64, 3, 100},   {40, 2, 64, 0, 1},     {40, 2, 64, 30, 17},
        {130, 1, 64, 0, 64},  {70, 3, 32, 200, 65}, {5, 16, 64, 130, 128}, {150, 1, 32, 64, 200},
    };
    for (int tier = 0; tier <= (int)mote_cpu_tier_detect(); tier++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            sweep(mote_cpu_kernels((enum mote_cpu_tier)tier), &rng, shapes[s][0], shapes[s][1], shapes[s][2],
                  shapes[s][3], shapes[s][4]);
}

static void test_long_context(void **state)
{
    (void)state;
    struct mote_rng rng;
    mote_rng_seed(&rng, 12);
    const struct mote_cpu_kernels *kernels = mote_cpu_kernels(mote_cpu_tier_detect());
    sweep(kernels, &rng, 1, 4, 64, 32767, 0);
    sweep(kernels, &rng, 37, 2, 64, 4000, 0);
    assert_int_equal(mote_attend_scratch(512, 8, 128), mote_attend_scratch(4096, 8, 128));
    assert_true(mote_attend_scratch(512, 8, 128) <= 256 * 1024);
}

/* Logits in the tens of thousands: the largest takes all. */
static void test_large_logits(void **state)
{
    (void)state;
    struct mote_rng rng;
    mote_rng_seed(&rng, 13);
    for (int tier = 0; tier <= (int)mote_cpu_tier_detect(); tier++) {
        for (int64_t n_query = 1; n_query <= 34; n_query += 33) {
            struct job job = make(&rng, MOTE_KV_F16, n_query, 4, 64, 150, 0, 10000);
            mote_cpu_kernels((enum mote_cpu_tier)tier)->attend(&job.a);
            expect_reference(&job, "large logits");
            for (int64_t i = 0; i < n_query; i++)
                for (int64_t c = 0; c < 4 * 64; c++) assert_true(isfinite(job.out[i * job.row + c]));
            done(&job);
        }
    }
}

static int row_has_nan(const struct job *job, int64_t i)
{
    int count = 0;
    for (int64_t c = 0; c < job->a.n_group * job->a.head_dim; c++)
        count += isnan(job->out[i * job->row + c]) != 0;
    return count;
}

/* NaN reaches exactly the queries that see it. */
static void test_nan(void **state)
{
    (void)state;
    struct mote_rng rng;
    mote_rng_seed(&rng, 14);
    for (int tier = 0; tier <= (int)mote_cpu_tier_detect(); tier++) {
        const struct mote_cpu_kernels *kernels = mote_cpu_kernels((enum mote_cpu_tier)tier);
        for (int where = 0; where < 3; where++) {
            for (int64_t n_query = 5; n_query <= 40; n_query += 35) {
                enum { PAST = 100, WINDOW = 30, GROUP = 2, DIM = 64 };
                struct job job = make(&rng, MOTE_KV_F32, n_query, GROUP, DIM, PAST, WINDOW, 1);
                const float nan = NAN;
                int64_t bad = 97; /* seen by queries whose window [PAST + i + 1 - WINDOW, PAST + i] has it */
                if (where == 0) memcpy(job.k + (size_t)bad * job.a.k_stride + 4 * 7, &nan, 4);
                if (where == 1) memcpy(job.v + (size_t)bad * job.a.v_stride + 4 * 7, &nan, 4);
                if (where == 2) job.q[3 * job.row + 9] = NAN;
                kernels->attend(&job.a);
                for (int64_t i = 0; i < n_query; i++) {
                    int sees = PAST + i + 1 - WINDOW <= bad, want = where == 0   ? sees * GROUP * DIM
                                                                    : where == 1 ? sees * GROUP
                                                                                 : (i == 3) * DIM;
                    assert_int_equal(row_has_nan(&job, i), want);
                }
                done(&job);
            }
        }
        /* A key in the future of a query is not looked at, infinite or not. */
        struct job job = make(&rng, MOTE_KV_F32, 12, 1, 64, 3, 0, 1);
        const float huge = INFINITY;
        for (int d = 0; d < 64; d++) memcpy(job.v + 14 * job.a.v_stride + 4 * d, &huge, 4);
        kernels->attend(&job.a);
        for (int64_t i = 0; i < 11; i++) assert_true(isfinite(job.out[i * job.row]));
        assert_false(isfinite(job.out[11 * job.row]));
        done(&job);
    }
}

/* A key whose logit is -infinity weighs nothing, first or not; nothing but such keys gives NaN. */
static void test_minus_infinity(void **state)
{
    (void)state;
    struct mote_rng rng;
    mote_rng_seed(&rng, 15);
    for (int tier = 0; tier <= (int)mote_cpu_tier_detect(); tier++) {
        const struct mote_cpu_kernels *kernels = mote_cpu_kernels((enum mote_cpu_tier)tier);
        for (int n_bad = 1; n_bad <= 101; n_bad += 25) {
            struct job job = make(&rng, MOTE_KV_F32, 1, 2, 64, 100, 0, 1);
            for (int64_t g = 0; g < 2; g++) job.q[g * 64] = 1;
            const float low = -INFINITY;
            for (int key = 0; key < n_bad; key++) memcpy(job.k + (size_t)key * job.a.k_stride, &low, 4);
            kernels->attend(&job.a);
            if (n_bad == 101) {
                assert_int_equal(row_has_nan(&job, 0), 2 * 64);
            } else { /* the same as if those keys were not there */
                struct mote_attend rest = job.a;
                float *out = exact((size_t)job.row * sizeof *out, 0);
                rest.window = 101 - n_bad, rest.out = out;
                kernels->attend(&rest);
                for (int c = 0; c < 2 * 64; c++) assert_true(fabsf(out[c] - job.out[c]) <= 0x1p-20f);
                free(out);
            }
            done(&job);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_large_logits),   cmocka_unit_test(test_nan),
        cmocka_unit_test(test_minus_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
