/* test_base.c: memory and its budget, threads, small floats, random numbers. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_tier.h"
#include "base/float_bits.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"

static void test_budget_is_a_hard_limit(void **state)
{
    (void)state;
    struct mote_budget *budget;
    assert_int_equal(mote_budget_create(1000, &budget), MOTE_OK);
    void *a, *b;
    assert_int_equal(mote_mem_alloc(budget, MOTE_MEM_KV, 600, &a), MOTE_OK);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(mote_mem_alloc(budget, MOTE_MEM_SCRATCH, 401, &b), MOTE_BUDGET);
    assert_null(b);
    assert_non_null(strstr(mote_error(), "401"));
    assert_non_null(strstr(mote_error(), "600"));
    assert_non_null(strstr(mote_error(), "1000"));
    assert_int_equal(mote_mem_alloc(budget, MOTE_MEM_SCRATCH, 400, &b), MOTE_OK);
    assert_int_equal(mote_budget_used(budget, MOTE_MEM_KV), 600);
    assert_int_equal(mote_budget_total(budget), 1000);
    mote_mem_free(a);
    assert_int_equal(mote_budget_total(budget), 400);
    assert_int_equal(mote_budget_peak(budget), 1000);
    assert_int_equal(mote_mem_resize(budget, MOTE_MEM_SCRATCH, 5000, &b), MOTE_BUDGET);
    assert_non_null(b); /* the old block stays */
    mote_mem_free(b);
    assert_int_equal(mote_budget_take(budget, MOTE_MEM_MAPPED, SIZE_MAX), MOTE_BUDGET);
    assert_int_equal(mote_budget_total(budget), 0);
    mote_budget_destroy(budget);
}

static void test_sizes_that_overflow(void **state)
{
    (void)state;
    void *p;
    assert_int_equal(mote_mem_alloc(NULL, MOTE_MEM_TABLES, SIZE_MAX - 10, &p), MOTE_MEMORY);
    assert_int_equal(mote_mem_calloc(NULL, MOTE_MEM_TABLES, SIZE_MAX / 2, 3, &p), MOTE_MEMORY);
    assert_null(p);
    struct mote_arena arena;
    mote_arena_init(&arena, NULL, MOTE_MEM_TABLES);
    assert_int_equal(mote_arena_alloc(&arena, SIZE_MAX - 3, &p), MOTE_MEMORY);
    mote_arena_free(&arena);
}

static void test_arena_keeps_what_it_gave(void **state)
{
    (void)state;
    size_t before = mote_mem_global_total();
    struct mote_arena arena;
    mote_arena_init(&arena, NULL, MOTE_MEM_TABLES);
    unsigned char *block[200];
    for (size_t i = 0; i < 200; i++) {
        size_t size = 1 + i * 37 % 5000;
        if (i == 50) size = 300000; /* larger than a chunk */
        assert_int_equal(mote_arena_alloc(&arena, size, &block[i]), MOTE_OK);
        assert_int_equal((uintptr_t)block[i] % 16, 0);
        for (size_t k = 0; k < size; k++) assert_int_equal(block[i][k], 0);
        memset(block[i], (int)i, size);
    }
    for (size_t i = 0; i < 200; i++) assert_int_equal(block[i][0], (unsigned char)i);
    mote_arena_free(&arena);
    assert_int_equal(mote_mem_global_total(), before);
}

static void test_errors_carry_context(void **state)
{
    (void)state;
    mote_fail(MOTE_FORMAT, "dimension %d is %d", 2, 0);
    assert_int_equal(mote_context(MOTE_FORMAT, "tensor %s", "blk.0"), MOTE_FORMAT);
    assert_string_equal(mote_error(), "tensor blk.0: dimension 2 is 0");
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    mote_fail(MOTE_IO, "%s", big); /* cut, not overrun */
    mote_context(MOTE_IO, "%s", big);
    assert_true(strlen(mote_error()) < 3000);
    assert_string_equal(mote_status_text((mote_status)999), "unknown status");
}

struct sum_job {
    struct mote_chunks chunks;
    struct mote_pool *pool;
    _Atomic int64_t sum;
    _Atomic int phase_one;
    _Atomic int early;
};

static void sum_work(void *context, int worker, int n_worker)
{
    struct sum_job *job = context;
    (void)worker;
    for (int64_t begin, end; mote_next_chunk(&job->chunks, &begin, &end);)
        for (int64_t i = begin; i < end; i++) atomic_fetch_add(&job->sum, i);
    atomic_fetch_add(&job->phase_one, 1);
    mote_pool_barrier(job->pool);
    if (atomic_load(&job->phase_one) != n_worker) atomic_store(&job->early, 1);
    mote_pool_barrier(job->pool);
}

static void test_pool_runs_everything_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) {
        struct mote_pool *pool;
        assert_int_equal(mote_pool_create(n, &pool), MOTE_OK);
        assert_int_equal(mote_pool_size(pool), n);
        for (int round = 0; round < 200; round++) {
            struct sum_job job = {.pool = pool};
            mote_chunks_init(&job.chunks, 1000 + round, 7);
            mote_pool_run(pool, sum_work, &job);
            int64_t want = (int64_t)(1000 + round) * (999 + round) / 2;
            assert_int_equal(atomic_load(&job.sum), want);
            assert_int_equal(atomic_load(&job.early), 0);
        }
        mote_pool_destroy(pool);
    }
    struct mote_pool *pool;
    assert_int_equal(mote_pool_create(5000, &pool), MOTE_ARGUMENT);
    assert_null(pool);
}

static void test_half_floats(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float value = mote_f16_f32((uint16_t)h);
        if (value != value) {
            assert_true((mote_f32_f16(value) & 0x7FFF) > 0x7C00);
            continue;
        }
        assert_int_equal(mote_f32_f16(value), h); /* every half survives */
        int exponent = (h >> 10) & 31, mantissa = h & 1023;
        double want = exponent == 31  ? INFINITY
                      : exponent == 0 ? ldexp(mantissa, -24)
                                      : ldexp(1024 + mantissa, exponent - 25);
        assert_true((h & 0x8000 ? -want : want) == (double)value);
        if (exponent < 30 &&
            h < 0x7C00) { /* half way to the next one rounds to even, a little past it rounds up */
            float next = mote_f16_f32((uint16_t)(h + 1)), mid = (value + next) / 2;
            assert_int_equal(mote_f32_f16(mid), h & 1 ? h + 1 : h);
            assert_int_equal(mote_f32_f16(nextafterf(mid, 1e9f)), h + 1);
            assert_int_equal(mote_f32_f16(nextafterf(mid, 0)), h);
        }
        value = mote_bf16_f32((uint16_t)h);
        if (value == value) assert_int_equal(mote_f32_bf16(value), h);
        else assert_true((mote_f32_bf16(value) & 0x7FFF) > 0x7F80);
    }
    assert_int_equal(mote_f32_f16(65519.99f), 0x7BFF);
    assert_int_equal(mote_f32_f16(65520.0f), 0x7C00);
    assert_int_equal(mote_f32_bf16(mote_bits_f32(0x3F808000)), 0x3F80); /* tie to even */
    assert_int_equal(mote_f32_bf16(mote_bits_f32(0x3F818000)), 0x3F82);
    assert_true(mote_e4m3_f32(0x7E) == 448 && mote_e4m3_f32(0x01) == 0x1p-9f && mote_e4m3_f32(0xB8) == -1);
    assert_true(isnan(mote_e4m3_f32(0x7F)) && isnan(mote_e4m3_f32(0xFF)));
    assert_true(mote_e8m0_f32(127) == 1 && mote_e8m0_f32(0) == 0x1p-127f && mote_e8m0_f32(254) == 0x1p127f);
    assert_true(mote_e2m1_f32(7) == 6 && mote_e2m1_f32(9) == -0.5f && signbit(mote_e2m1_f32(8)));
}

static void test_rng_is_the_published_one(void **state)
{
    (void)state;
    /* SplitMix64's first outputs for seed 0 are published with the algorithm. */
    struct mote_rng rng;
    mote_rng_seed(&rng, 0);
    assert_true(rng.s[0] == 0xE220A8397B1DCDAFu && rng.s[1] == 0x6E789E6AA1B965F4u);
    double sum = 0, square = 0, pair[2];
    for (int i = 0; i < 50000; i++) {
        mote_rng_normal2(&rng, pair);
        sum += pair[0] + pair[1];
        square += pair[0] * pair[0] + pair[1] * pair[1];
        assert_true(mote_rng_below(&rng, 7) < 7);
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(square / 1e5 - 1) < 0.02);
}

static void test_tier_mask(void **state)
{
    (void)state;
    const char *before = getenv("MOTE_CPU");
    char *kept = before ? strdup(before) : NULL;
    enum mote_cpu_tier tier;
    setenv("MOTE_CPU", "scalar", 1);
    assert_int_equal(mote_cpu_tier_choose(&tier), MOTE_OK);
    assert_int_equal(tier, MOTE_CPU_SCALAR);
    setenv("MOTE_CPU", "sse9", 1);
    assert_int_equal(mote_cpu_tier_choose(&tier), MOTE_ARGUMENT);
    assert_non_null(strstr(mote_error(), "sse9"));
    if (mote_cpu_tier_detect() < MOTE_CPU_AVX512) {
        setenv("MOTE_CPU", "avx512", 1);
        assert_int_equal(mote_cpu_tier_choose(&tier), MOTE_UNSUPPORTED);
    }
    if (kept) setenv("MOTE_CPU", kept, 1);
    else unsetenv("MOTE_CPU");
    free(kept);
}

static void test_mapfile(void **state)
{
    (void)state;
    struct mote_mapfile file;
    assert_int_equal(mote_mapfile_open("tests/none such", &file), MOTE_NOT_FOUND);
    assert_non_null(strstr(mote_error(), "none such"));
    assert_int_equal(mote_mapfile_open("tests", &file), MOTE_IO);
    assert_int_equal(mote_mapfile_open("LICENSE", &file), MOTE_OK);
    assert_memory_equal(file.data, "MIT License", 11);
    mote_mapfile_close(&file);
    mote_mapfile_close(&file);
    assert_null(file.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_is_a_hard_limit),
        cmocka_unit_test(test_sizes_that_overflow),
        cmocka_unit_test(test_arena_keeps_what_it_gave),
        cmocka_unit_test(test_errors_carry_context),
        cmocka_unit_test(test_pool_runs_everything_once),
        cmocka_unit_test(test_half_floats),
        cmocka_unit_test(test_rng_is_the_published_one),
        cmocka_unit_test(test_tier_mask),
        cmocka_unit_test(test_mapfile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
