/* test_session.c: sessions on a real model: chunks, batches, rewinds, overflow, cancelling, memory to the
 * byte. */
#include "run_model.h"

#include <math.h>
#include <stdlib.h>

#include "engine/parity.h"
#include "engine/sampler.h"
#include "host_shortlist.h"
#include "model/plan.h"

enum { N = 150 };

static int32_t ids[N];

static void make_ids(void)
{
    for (int i = 0; i < N; i++) ids[i] = 100 + (i * 7919 + i * i * 31) % 3900;
}

static double worst_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

/* Prefill in chunks of 7 and 64 and one by one against one chunk, with float and with default activations. */
static void test_chunks(void **state)
{
    (void)state;
    need_shared();
    static const int64_t chunks[] = {1, 7, 64};
    int64_t n_vocab = 4096;
    float *whole = malloc((size_t)(N * n_vocab) * sizeof *whole),
          *parts = malloc((size_t)(N * n_vocab) * sizeof *parts);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        struct run run, chunked;
        run_open(FABLE, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 2}, &run);
        run_open(FABLE, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 2, .max_row = chunks[c]},
                 &chunked);
        struct mote_timeline *a = run_session(&run, N, MOTE_KV_F32),
                             *b = run_session(&chunked, N, MOTE_KV_F32);
        if (c == 0) must(mote_timeline_eval_all(a, ids, N, whole));
        must(mote_timeline_eval_all(b, ids, N, parts));
        double worst = worst_difference(whole, parts, N * n_vocab);
        print_message("chunks of %lld: largest difference %.1e\n", (long long)chunks[c], worst);
        assert_true(worst <= 2e-4);
        assert_memory_equal(mote_timeline_logits(b), parts + (N - 1) * n_vocab,
                            (size_t)n_vocab * sizeof(float));
        assert_int_equal(mote_timeline_n_token(b), N);
        assert_memory_equal(mote_timeline_tokens(b), ids, sizeof ids);
        mote_timeline_destroy(a);
        mote_timeline_destroy(b);
        run_close(&run);
        run_close(&chunked);
    }
    free(whole);
    free(parts);
}

/* Five sequences in the same steps give each what it gives alone: bit for bit in decode steps. */
static void test_batch(void **state)
{
    (void)state;
    need_shared();
    enum { SEQUENCES = 5, STEPS = 12 };
    struct run run;
    run_open(FABLE, &(struct run_options){.n_thread = 2, .max_row = 64}, &run);
    struct mote_timeline *alone[SEQUENCES], *together[SEQUENCES];
    struct mote_turn turn[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++) {
        alone[s] = run_session(&run, 100, MOTE_KV_F32);
        together[s] = run_session(&run, 100, MOTE_KV_F32);
        must(mote_timeline_eval(alone[s], ids + s, 20 + 11 * s));
        turn[s] = (struct mote_turn){.session = together[s], .ids = ids + s, .n = 20 + 11 * s};
    }
    must(mote_timeline_eval_many(turn, SEQUENCES)); /* 210 rows in steps of 64 */
    for (int s = 0; s < SEQUENCES; s++) {
        assert_int_equal(mote_timeline_n_token(together[s]), 20 + 11 * s);
        double worst =
            worst_difference(mote_timeline_logits(alone[s]), mote_timeline_logits(together[s]), 4096);
        if (!(worst <= 2e-4)) fail_msg("sequence %d: prefill differs by %g", s, worst);
        must(mote_timeline_rewind(together[s], 0)); /* the same cache for both from here on */
        must(mote_timeline_eval(together[s], ids + s, 20 + 11 * s));
    }
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < SEQUENCES; s++) {
            must(mote_timeline_eval(alone[s], ids + step, 1));
            turn[s] = (struct mote_turn){.session = together[s], .ids = ids + step, .n = 1};
        }
        must(mote_timeline_eval_many(turn, SEQUENCES));
        for (int s = 0; s < SEQUENCES; s++)
            if (memcmp(mote_timeline_logits(alone[s]), mote_timeline_logits(together[s]),
                       4096 * sizeof(float)))
                fail_msg("sequence %d, step %d: differs from itself alone by %g", s, step,
                         worst_difference(mote_timeline_logits(alone[s]), mote_timeline_logits(together[s]),
                                          4096));
    }
    turn[1].session = together[0];
    must_fail(mote_timeline_eval_many(turn, 2), MOTE_ARGUMENT, "same session");
    for (int s = 0; s < SEQUENCES; s++) {
        mote_timeline_destroy(alone[s]);
        mote_timeline_destroy(together[s]);
    }
    run_close(&run);
}

/* The same bits whatever the number of threads, fused or not, in prefill and decode. */
static void test_same_bits(void **state)
{
    (void)state;
    need_shared();
    static const struct run_options options[] = {
        {.n_thread = 1}, {.n_thread = 2}, {.n_thread = 3}, {.n_thread = 2, .moe_kernels = MOTE_MOE_UNFUSED}};
    static float first[3 * 4096];
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        struct run run;
        run_open(FABLE_TERNARY, &options[o], &run);
        struct mote_timeline *session = run_session(&run, N, MOTE_KV_F16);
        static float logits[3 * 4096];
        must(mote_timeline_eval(session, ids, 100));
        memcpy(logits, mote_timeline_logits(session), 4096 * sizeof(float));
        must(mote_timeline_eval_all(session, ids + 100, 2, logits + 4096));
        if (o == 0) memcpy(first, logits, sizeof first);
        assert_memory_equal(first, logits, sizeof first);
        mote_timeline_destroy(session);
        run_close(&run);
    }
}

static void test_rewind(void **state)
{
    (void)state;
    need_shared();
    struct run run;
    run_open(FABLE, &(struct run_options){.n_thread = 2, .max_row = 128}, &run);
    struct mote_timeline *session = run_session(&run, 64, MOTE_KV_F32);
    static float logits[4096];
    assert_null(mote_timeline_logits(session));
    must(mote_timeline_eval(session, ids, 30));
    memcpy(logits, mote_timeline_logits(session), sizeof logits);
    must(mote_timeline_eval(session, ids + 60, 20)); /* another branch */
    assert_int_equal(mote_timeline_match(session, ids, 40), 30);
    must(mote_timeline_rewind(session, 29));
    assert_null(mote_timeline_logits(session));
    must(mote_timeline_eval(session, ids + 29, 1));
    assert_true(worst_difference(logits, mote_timeline_logits(session), 4096) <= 2e-4);
    must_fail(mote_timeline_rewind(session, 31), MOTE_ARGUMENT, "31");

    /* Overflow and bad ids leave everything as it was. */
    memcpy(logits, mote_timeline_logits(session), sizeof logits);
    must_fail(mote_timeline_eval(session, ids, 35), MOTE_CONTEXT,
              "30 tokens there and 35 more do not fit 64");
    int32_t bad[3] = {5, 4096, 6};
    must_fail(mote_timeline_eval(session, bad, 3), MOTE_ARGUMENT, "4096");
    bad[1] = -1;
    must_fail(mote_timeline_eval(session, bad, 3), MOTE_ARGUMENT, "-1");
    must_fail(mote_timeline_eval(session, ids, 0), MOTE_ARGUMENT, "at least 1");
    assert_int_equal(mote_timeline_n_token(session), 30);
    assert_memory_equal(mote_timeline_logits(session), logits, sizeof logits);
    must(mote_timeline_eval(session, ids + 30, 34)); /* full to the last position */
    must_fail(mote_timeline_eval(session, ids, 1), MOTE_CONTEXT, "64 tokens there and 1 more do not fit 64");
    mote_timeline_destroy(session);
    run_close(&run);
}

/* ---- rows that stay with the backend ---- */

/* The CPU, with what a device has: shortlists, and bytes that cross a bus. */
static const struct mote_backend_ops *plain_ops;
static size_t fetched;

static mote_status count_fetch(struct mote_backend *backend, void *host_to, const void *from, size_t size)
{
    fetched += size;
    return plain_ops->fetch(backend, host_to, from, size);
}
static mote_status count_download(struct mote_backend *backend, void *host_to, const void *from, size_t size)
{
    fetched += size;
    return plain_ops->download(backend, host_to, from, size);
}
static mote_status make_lists(struct mote_backend *backend, const float *logits, int64_t n_row,
                              struct mote_shortlist *list)
{
    (void)backend;
    assert_in_range(n_row, 1, MOTE_SHORTLIST_ROWS);
    for (int64_t i = 0; i < n_row; i++) host_shortlist(logits + i * 4096, 4096, 0, &list[i]);
    return MOTE_OK;
}

static void test_kept_rows(void **state)
{
    (void)state;
    need_shared();
    enum { SESSIONS = 37, STEPS = 4, ROW = 4096 * sizeof(float), LIST = sizeof(struct mote_shortlist) };
    struct run run, plain;
    run_open(FABLE, &(struct run_options){.n_thread = 2, .max_row = 64}, &run);
    run_open(FABLE, &(struct run_options){.n_thread = 2, .max_row = 64}, &plain);
    plain_ops = run.backend->ops;
    struct mote_backend_ops ops = *plain_ops;
    ops.fetch = count_fetch;
    ops.download = count_download;
    ops.shortlist = make_lists;
    run.backend->ops = &ops;
    struct mote_timeline *kept[SESSIONS], *want[SESSIONS];
    struct mote_turn turn[2][SESSIONS];
    for (int s = 0; s < SESSIONS; s++) {
        kept[s] = run_session(&run, 40, MOTE_KV_F32);
        want[s] = run_session(&plain, 40, MOTE_KV_F32);
    }
    struct mote_chain_options usual = {
        .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 64};
    struct mote_chain_options uncut = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    struct mote_chain *chain[2][2];
    for (int i = 0; i < 2; i++) {
        must(mote_chain_create(&usual, 4096, NULL, &chain[0][i]));
        must(mote_chain_create(&uncut, 4096, NULL, &chain[1][i]));
    }
    int32_t token[2], id[SESSIONS];

    /* A prompt in three chunks and a decode step: a list each, and the row when it must be. */
    fetched = 0;
    must(mote_timeline_eval(want[0], ids, 20));
    must(mote_timeline_eval(kept[0], ids, 20));
    assert_int_equal(fetched, LIST);
    for (int c = 0; c < 2; c++) {
        must(mote_chain_next(chain[c][0], kept[0], &token[0], NULL));
        must(mote_chain_next(chain[c][1], want[0], &token[1], NULL));
        assert_int_equal(token[0], token[1]);
        assert_int_equal(fetched, c ? LIST + ROW : LIST);
    }
    assert_memory_equal(mote_timeline_logits(kept[0]), mote_timeline_logits(want[0]), ROW);
    assert_int_equal(fetched, LIST + ROW); /* once */

    /* A row outlives a step of another session, and one of many in two groups of rows. */
    must(mote_timeline_eval(kept[0], ids + 20, 1));
    must(mote_timeline_eval(want[0], ids + 20, 1));
    for (int step = 0; step < STEPS; step++) {
        for (int s = 1; s < SESSIONS; s++) {
            id[s] = ids[s + step];
            turn[0][s] = (struct mote_turn){.session = kept[s], .ids = &id[s], .n = 1};
            turn[1][s] = (struct mote_turn){.session = want[s], .ids = &id[s], .n = 1};
        }
        must(mote_timeline_eval_many(&turn[0][1], SESSIONS - 1));
        must(mote_timeline_eval_many(&turn[1][1], SESSIONS - 1));
        for (int s = step % 2; s < SESSIONS; s += 2) {
            must(mote_chain_next(chain[0][0], kept[s], &token[0], NULL));
            must(mote_chain_next(chain[0][1], want[s], &token[1], NULL));
            assert_int_equal(token[0], token[1]);
            if (s % 3 == 0) continue; /* its row is still with the backend */
            assert_memory_equal(mote_timeline_logits(kept[s]), mote_timeline_logits(want[s]), ROW);
        }
    }
    for (int s = 0; s < SESSIONS; s++)
        assert_memory_equal(mote_timeline_logits(kept[s]), mote_timeline_logits(want[s]), ROW);

    /* What is forgotten is not fetched, nor written after its session has gone. */
    for (int s = 1; s < 4; s++) must(mote_timeline_eval(kept[s], ids, 1));
    fetched = 0;
    must(mote_timeline_rewind(kept[3], 2)); /* two others were fetched by the steps after theirs */
    must(mote_timeline_eval(kept[4], ids, 1));
    mote_timeline_destroy(kept[4]);
    must(mote_timeline_eval(kept[5], ids, 1));
    assert_int_equal(fetched, 2 * LIST);
    assert_null(mote_timeline_shortlist(kept[3]));
    must_fail(mote_chain_next(chain[0][0], kept[3], &token[0], NULL), MOTE_ARGUMENT, "no logits");

    /* Rows looked at one by one, or kept by the caller, leave no list behind. */
    float *all = malloc(2 * ROW);
    must(mote_timeline_eval_all(kept[6], ids, 2, all));
    assert_int_equal(mote_timeline_shortlist(kept[6])->n, 0);
    assert_memory_equal(mote_timeline_logits(kept[6]), all + 4096, ROW);
    must(mote_chain_next(chain[0][0], kept[6], &token[0], NULL));
    free(all);

    for (int s = 0; s < SESSIONS; s++) {
        if (s != 4) mote_timeline_destroy(kept[s]);
        mote_timeline_destroy(want[s]);
    }
    for (int i = 0; i < 4; i++) mote_chain_destroy(chain[i / 2][i % 2]);
    run.backend->ops = plain_ops;
    run_close(&run);
    run_close(&plain);
}

static volatile int flag;
static int cancel_at;
static void cancel_later(void *context, const struct mote_tap *tap)
{
    int *n = context;
    if (!strcmp(tap->name, "embed") && ++*n == cancel_at) flag = 1;
}

static void test_cancel(void **state)
{
    (void)state;
    need_shared();
    struct run run;
    run_open(FABLE, &(struct run_options){.n_thread = 2, .max_row = 32, .taps = 1}, &run);
    struct mote_timeline *session = run_session(&run, N, MOTE_KV_F32);
    int steps = 0;
    flag = 0;
    cancel_at = 3; /* in the third chunk */
    must(mote_forward_tap(run.forward, cancel_later, &steps));
    mote_forward_cancel(run.forward, &flag);
    must_fail(mote_timeline_eval(session, ids, N), MOTE_CANCELLED, "layer 0");
    assert_int_equal(mote_timeline_n_token(session), 64);
    assert_null(mote_timeline_logits(session));
    flag = 0;
    must(mote_timeline_eval(session, ids + 64, N - 64));
    assert_int_equal(mote_timeline_n_token(session), N);
    mote_timeline_destroy(session);
    run_close(&run);
}

/* The plan is what is taken; a limit of exactly that much is enough, one byte less is refused before
 * loading. */
static void test_plan(void **state)
{
    (void)state;
    need_shared();
    struct run run;
    struct run_options options = {.n_thread = 2, .max_row = 64};
    run_open(FABLE, &options, &run);
    struct mote_memory_plan_options plan_options = {
        .backend = &mote_backend_cpu,
        .backend_options = {.n_thread = 2},
        .forward = {.max_row = 64},
        .kv_type = MOTE_KV_F16,
        .n_ctx = 200,
        .n_sequence = 2,
    };
    struct mote_memory_plan plan;
    struct mote_timeline *a = run_session(&run, 200, MOTE_KV_F16), *b = run_session(&run, 200, MOTE_KV_F16);
    must(mote_memory_plan_make(run.network, &plan_options, &plan));
    for (int kind = 0; kind < MOTE_MEM_TABLES; kind++)
        if (mote_budget_used(run.budget, (enum mote_mem_kind)kind) != plan.bytes[kind])
            fail_msg("%s: %zu bytes in use, %zu planned", mote_mem_kind_name((enum mote_mem_kind)kind),
                     mote_budget_used(run.budget, (enum mote_mem_kind)kind), plan.bytes[kind]);
    size_t total = mote_budget_total(run.budget), used = mote_budget_peak(run.budget);
    must(mote_timeline_eval(a, ids, N));
    must(mote_timeline_eval(b, ids, N));
    assert_int_equal(mote_budget_total(run.budget), total); /* a step takes nothing */
    assert_int_equal(mote_budget_peak(run.budget), used);
    must(mote_memory_plan_check(&plan, plan.total));
    must_fail(mote_memory_plan_check(&plan, plan.total - 1), MOTE_BUDGET, "KV cache");
    mote_timeline_destroy(a);
    mote_timeline_destroy(b);
    run_close(&run);

    options.budget = used;
    run_open(FABLE, &options, &run);
    a = run_session(&run, 200, MOTE_KV_F16);
    b = run_session(&run, 200, MOTE_KV_F16);
    mote_timeline_destroy(a);
    mote_timeline_destroy(b);
    run_close(&run);
    options.budget = 60 << 20; /* more than the weights, less than weights and scratch */
    options.max_row = 4096;
    must_fail(run_try_open(FABLE, &options, &run), MOTE_BUDGET, "62914560");
    run_close(&run);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* Every allocation of opening and of a session may fail; nothing is left behind. */
static void test_allocation_failures(void **state)
{
    (void)state;
    need_shared();
    struct run_options options = {.n_thread = 1, .max_row = 8, .taps = 1};
    int failures = 0;
    for (long n = 1;; n++) {
        struct run run;
        struct mote_timeline *session = NULL;
        mote_mem_fail_at(n);
        mote_status status = run_try_open(FABLE, &options, &run);
        if (status == MOTE_OK) {
            struct mote_timeline_options timeline = {.n_ctx = 16, .kv_type = MOTE_KV_F16};
            status = mote_timeline_create(run.forward, &timeline, &session);
        }
        mote_mem_fail_at(0);
        mote_timeline_destroy(session);
        run_close(&run);
        assert_int_equal(mote_mem_global_total(), 0);
        if (status == MOTE_OK) break;
        assert_int_equal(status, MOTE_MEMORY);
        failures++;
        if (n > 40) n += n / 8; /* hundreds of vectors are alike */
    }
    assert_true(failures > 20);
}

static void test_parity(void **state)
{
    (void)state;
    need_shared();
    struct run a, b, c;
    run_open(FABLE, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 2, .taps = 1}, &a);
    run_open(FABLE, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 1, .taps = 1, .max_row = 33}, &b);
    run_open(FABLE_TERNARY, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 2, .taps = 1}, &c);
    struct mote_compare_options options = {.window = 50, .layer_limit = 1e-6, .max_change = 4};
    struct mote_comparison same, other;
    must(mote_compare(a.forward, MOTE_KV_F32, b.forward, MOTE_KV_F32, ids, N, &options, &same));
    assert_int_equal(same.n_token, 150);
    assert_int_equal(same.n_layer, 8);
    assert_int_equal(same.first_layer, -1);
    assert_int_equal(same.n_change, 0);
    assert_true(same.top1 == 1 && same.kl_max < 1e-6 && fabs(same.nll_a - same.nll_b) < 1e-5);
    assert_true(same.layer_error[7] < 1e-8);
    mote_comparison_free(&same);
    must(mote_compare(a.forward, MOTE_KV_F32, a.forward, MOTE_KV_Q8_0, ids, N, &options, &same));
    assert_true(same.kl_mean > 0 && same.kl_mean < 0.05 && same.first_layer == 0);
    mote_comparison_free(&same);
    must(mote_compare(a.forward, MOTE_KV_F32, c.forward, MOTE_KV_F32, ids, N, &options, &other));
    assert_int_equal(other.first_layer, 0); /* another model: from the first layer on */
    assert_true(other.kl_mean > 0.05 && other.n_change > 4 && other.n_kept == 4 &&
                other.change[0].margin >= 0);
    assert_true(other.change[0].token_a != other.change[0].token_b);
    mote_comparison_free(&other);
    options.window = 1;
    must_fail(mote_compare(a.forward, MOTE_KV_F32, b.forward, MOTE_KV_F32, ids, N, &options, &other),
              MOTE_ARGUMENT, "at least 2");
    run_close(&a);
    run_close(&b);
    run_close(&c);
    assert_int_equal(mote_mem_global_total(), 0);
}

int main(void)
{
    make_ids();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),    cmocka_unit_test(test_batch),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_kept_rows), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_plan),      cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_parity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
