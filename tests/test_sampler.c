/* test_sampler.c: the chain: greedy and its ties, cuts against a slow reference, frequencies, seeds, bad
 * logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "engine/sampler.h"
#include "host_shortlist.h"

static struct mote_chain *chain_with(struct mote_chain_options options, int64_t n_vocab)
{
    struct mote_chain *chain;
    if (mote_chain_create(&options, n_vocab, NULL, &chain) != MOTE_OK) fail_msg("%s", mote_error());
    return chain;
}

static int32_t pick(struct mote_chain *chain, const float *logits, const int32_t *recent, int64_t n)
{
    int32_t id = -1;
    if (mote_chain_pick(chain, logits, recent, n, &id, NULL) != MOTE_OK) fail_msg("%s", mote_error());
    return id;
}

static void test_greedy(void **state)
{
    (void)state;
    struct mote_chain *chain =
        chain_with((struct mote_chain_options){.top_p = 1, .repeat_penalty = 1.5f, .repeat_last = 2}, 6);
    float logits[6] = {-1, 3, 2.5f, 3, -5, 0};
    assert_int_equal(pick(chain, logits, NULL, 0), 1); /* the lower of two equals */
    int32_t recent[] = {3, 1, 2};                      /* only 1 and 2 are recent: 3 keeps its logit */
    assert_int_equal(pick(chain, logits, recent, 3), 3);
    int32_t twice[] = {1, 1}; /* once is as good as twice: 3 / 1.5 = 2 < 2.5 */
    logits[3] = 1.9f;
    assert_int_equal(pick(chain, logits, twice, 2), 2);
    logits[1] = logits[2] = logits[3] = -2;
    int32_t negative[] = {0, 5}; /* -1 becomes -1.5, still the largest but for 0 */
    assert_int_equal(pick(chain, logits, negative, 2), 5);
    mote_chain_destroy(chain);
}

/* What the contract says, by sorting everything. */
struct item {
    double p;
    int32_t id;
};
static int falling(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id - y->id;
}
static int survivors(const struct mote_chain_options *o, const float *logits, int n, struct item *out)
{
    double top = -INFINITY, sum = 0, kept = 0;
    for (int i = 0; i < n; i++) top = fmax(top, logits[i]);
    for (int i = 0; i < n; i++) out[i] = (struct item){exp((logits[i] - top) / o->temperature), i};
    qsort(out, (size_t)n, sizeof *out, falling);
    if (o->top_k && o->top_k < n) n = o->top_k;
    for (int i = 0; i < n; i++) sum += out[i].p;
    int i = 0;
    for (; i < n; i++) {
        if (i && kept >= o->top_p * sum) break;
        if (i && out[i].p < o->min_p * out[0].p) break;
        kept += out[i].p;
    }
    for (int j = 0; j < i; j++) out[j].p /= kept;
    return i;
}

static void test_frequencies(void **state)
{
    (void)state;
    static const struct mote_chain_options options[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 0.7f, .top_k = 5, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1.5f, .top_p = 0.6f, .repeat_penalty = 1},
        {.temperature = 0.8f, .top_p = 1, .min_p = 0.2f, .repeat_penalty = 1},
        {.temperature = 1.2f, .top_k = 12, .top_p = 0.9f, .min_p = 0.05f, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 1, .top_p = 0.1f, .repeat_penalty = 1},
    };
    enum { N = 60, DRAWS = 40000 };
    float logits[N];
    struct mote_rng rng;
    mote_rng_seed(&rng, 31);
    for (int i = 0; i < N; i++)
        logits[i] = (float)((double)mote_rng_below(&rng, 12) / 2 - 3); /* ties abound */
    logits[7] = -INFINITY;
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        struct item kept[N];
        int n = survivors(&options[o], logits, N, kept), count[N] = {0};
        struct mote_chain *chain = chain_with(options[o], N);
        for (int d = 0; d < DRAWS; d++) count[pick(chain, logits, NULL, 0)]++;
        int seen = 0;
        for (int i = 0; i < n; i++) {
            double expected = kept[i].p * DRAWS;
            seen += count[kept[i].id];
            if (fabs(count[kept[i].id] - expected) > 6 * sqrt(expected + 1))
                fail_msg("options %zu token %d: %d draws, expected %g", o, kept[i].id, count[kept[i].id],
                         expected);
        }
        assert_int_equal(seen, DRAWS); /* nothing that was cut */
        mote_chain_destroy(chain);
    }
}

/* A vocabulary larger than twice top_k goes through the pruning pass. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 5000, DRAWS = 3000 };
    static float logits[N];
    static struct item kept[N];
    struct mote_rng rng;
    mote_rng_seed(&rng, 32);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            logits[i] = round == 0   ? (float)i * 0.001f
                        : round == 1 ? 1
                                     : (float)((double)mote_rng_below(&rng, 100) / 20);
        struct mote_chain_options options = {
            .temperature = 3, .top_k = 40, .top_p = 1, .repeat_penalty = 1, .seed = 5};
        int n = survivors(&options, logits, N, kept);
        assert_int_equal(n, 40);
        struct mote_chain *chain = chain_with(options, N);
        for (int d = 0; d < DRAWS; d++) {
            int32_t id = pick(chain, logits, NULL, 0);
            int found = 0;
            for (int i = 0; i < n; i++) found |= kept[i].id == id;
            if (!found) fail_msg("round %d: token %d is not among the 40 best", round, id);
        }
        mote_chain_destroy(chain);
    }
}

static void test_seed(void **state)
{
    (void)state;
    float logits[50] = {0};
    int same = 1, differs = 0;
    struct mote_chain_options options = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 9};
    struct mote_chain *a = chain_with(options, 50), *b = chain_with(options, 50);
    options.seed = 10;
    struct mote_chain *c = chain_with(options, 50);
    for (int i = 0; i < 100; i++) {
        int32_t id = pick(a, logits, NULL, 0);
        same &= id == pick(b, logits, NULL, 0);
        differs |= id != pick(c, logits, NULL, 0);
    }
    assert_true(same && differs);
    mote_chain_destroy(a);
    mote_chain_destroy(b);
    mote_chain_destroy(c);
}

static void test_logprob(void **state)
{
    (void)state;
    float logits[3] = {1, 2, 3}, logprob = 0;
    int32_t id;
    struct mote_chain *chain =
        chain_with((struct mote_chain_options){.top_p = 1, .repeat_penalty = 2, .repeat_last = 8}, 3);
    int32_t recent[] = {2};
    assert_int_equal(mote_chain_pick(chain, logits, recent, 1, &id, &logprob), MOTE_OK);
    assert_int_equal(id, 1); /* 3 / 2 < 2; the probability is that of the unchanged logits */
    assert_true(fabs(logprob - log(exp(2) / (exp(1) + exp(2) + exp(3)))) < 1e-6);
    mote_chain_destroy(chain);
}

/* ---- from a shortlist ---- */

static void normal_row(struct mote_rng *rng, double spread, float *logits, int n)
{
    for (int i = 0; i < n; i += 2) {
        double pair[2];
        mote_rng_normal2(rng, pair);
        logits[i] = (float)(spread * pair[0]);
        if (i + 1 < n) logits[i + 1] = (float)(spread * pair[1]);
    }
}

/* Draws from the list where it decides, else from the row, against draws from rows alone; how many the list decided. */
static int draw_both(struct mote_chain_options options, const float *logits, int n, double error,
                     const int32_t *recent, int n_recent, int draws)
{
    static struct mote_shortlist list;
    int decided = 0;
    host_shortlist(logits, n, error, &list);
    struct mote_chain *by_row = chain_with(options, n), *by_list = chain_with(options, n);
    for (int d = 0; d < draws; d++) {
        int32_t want, got = -1;
        float want_log, got_log = 1;
        assert_int_equal(mote_chain_pick(by_row, logits, recent, n_recent, &want, &want_log), MOTE_OK);
        if (mote_chain_pick_best(by_list, &list, recent, n_recent, &got, &got_log)) decided++;
        else assert_int_equal(mote_chain_pick(by_list, logits, recent, n_recent, &got, &got_log), MOTE_OK);
        if (got != want) fail_msg("draw %d: %d from the shortlist, %d from the row", d, got, want);
        assert_true(fabs((double)got_log - (double)want_log) <= 1e-5);
    }
    mote_chain_destroy(by_row);
    mote_chain_destroy(by_list);
    return decided;
}

/* Rows of every kind, all kinds of options: the same tokens. */
static void test_shortlist(void **state)
{
    (void)state;
    enum { N = 6000, ROWS = 8, DRAWS = 6, RECENT = 90 };
    static float logits[N];
    static const struct mote_chain_options options[] = {
        {.top_p = 1, .repeat_penalty = 1},
        {.top_p = 1, .repeat_penalty = 1.3f, .repeat_last = 64},
        {.top_p = 1, .repeat_penalty = 0.7f, .repeat_last = 64},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 64},
        {.temperature = 1.5f, .top_k = 250, .top_p = 1, .repeat_penalty = 2, .repeat_last = 64},
        {.temperature = 1, .top_k = 300, .top_p = 0.9f, .repeat_penalty = 1},
        {.temperature = 0.5f, .top_k = 1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1},
        {.temperature = 0.6f, .top_p = 0.8f, .repeat_penalty = 1.2f, .repeat_last = 64},
        {.temperature = 1.4f, .top_p = 0.5f, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1e-3f, .top_p = 0.9f, .repeat_penalty = 1.5f, .repeat_last = 64},
        {.temperature = 40, .top_p = 0.02f, .repeat_penalty = 1},
    };
    enum { N_OPTIONS = sizeof options / sizeof *options };
    struct mote_rng rng;
    mote_rng_seed(&rng, 33);
    int decided[N_OPTIONS] = {0};
    for (int row = 0; row < ROWS; row++) {
        int n = row == 5 ? 100 : row == 6 ? MOTE_SHORTLIST : N;
        normal_row(&rng, row == 3 ? 0.01 : 3, logits, n);
        for (int i = 0; i < n; i++) {
            if (row == 1) logits[i] = rintf(logits[i]); /* ties */
            if (row == 2 && i % 3) logits[i] = -INFINITY;
            if (row == 4) logits[i] = 1;
            if (row == 7) logits[i] = i < 300 ? 8 - (float)i * 0.02f : -90;
        }
        int32_t recent[RECENT];
        static struct mote_shortlist list;
        host_shortlist(logits, n, 0, &list);
        for (int i = 0; i < RECENT; i++) /* many of the best, some of all, some that are none */
            recent[i] = i % 7 == 6 ? n + i : i % 3 ? list.id[i] : (int32_t)mote_rng_below(&rng, (uint64_t)n);
        for (size_t o = 0; o < N_OPTIONS; o++) {
            struct mote_chain_options seeded = options[o];
            seeded.seed = (uint64_t)row;
            int got = 0;
            for (int error = -1; error <= 1; error++)
                got += draw_both(seeded, logits, n, error, recent, RECENT, DRAWS);
            assert_true(got == 0 || got == 3 * DRAWS || options[o].top_p < 1);
            if (row == 0) decided[o] = got;
        }
    }
    /* On a row like a model's: what needs all of the vocabulary, or tokens beyond the list, is refused, the rest is not. */
    static const int expected[N_OPTIONS] = {1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0};
    for (size_t o = 0; o < N_OPTIONS; o++)
        if (decided[o] != expected[o] * 3 * DRAWS)
            fail_msg("options %zu: the list decided %d of %d", o, decided[o], 3 * DRAWS);
}

/* top_p at the very sum of the first tokens, and beside it: never another token, and decided when it is not too near. */
static void test_shortlist_brink(void **state)
{
    (void)state;
    enum { N = 4000 };
    static float logits[N];
    static struct item kept[N];
    struct mote_rng rng;
    mote_rng_seed(&rng, 34);
    normal_row(&rng, 1, logits, N);
    for (int i = 0; i < 40; i++) logits[i * 100] = 14 - (float)i * 0.1f;
    static const float temperature[] = {1, 0.7f, 1.1f};
    int clear = 0, doubtful = 0;
    for (int t = 0; t < 3; t++) {
        struct mote_chain_options options = {.temperature = temperature[t], .top_p = 1, .repeat_penalty = 1};
        double sum = 0, upto = 0;
        int n = survivors(&options, logits, N, kept);
        for (int i = 0; i < n; i++) sum += kept[i].p;
        for (int i = 0; i < 20; i++) {
            upto += kept[i].p;
            for (int step = -2; step <= 2; step++) {
                options.top_p = (float)(upto / sum * (1 + 1e-3 * step));
                options.seed = (uint64_t)(i * 5 + step);
                for (int error = -1; error <= 1; error += 2) {
                    int got = draw_both(options, logits, N, error, NULL, 0, 3);
                    if (t == 0 && step) clear += got;
                    else if (t == 0) doubtful += got;
                }
            }
        }
    }
    assert_int_equal(clear, 20 * 4 * 2 * 3);
    assert_true(doubtful < 20 * 2 * 3);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct mote_chain_options options;
        const char *name;
    } bad[] = {
        {{.temperature = -1, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.temperature = NAN, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.top_k = -1, .top_p = 1, .repeat_penalty = 1}, "top-k"},
        {{.top_p = 0, .repeat_penalty = 1}, "top-p"},
        {{.top_p = 1.5f, .repeat_penalty = 1}, "top-p"},
        {{.top_p = 1, .min_p = 2, .repeat_penalty = 1}, "min-p"},
        {{.top_p = 1, .repeat_penalty = 0}, "penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .repeat_last = -1}, "window"},
    };
    struct mote_chain *chain;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mote_chain_create(&bad[i].options, 10, NULL, &chain), MOTE_ARGUMENT);
        assert_non_null(strstr(mote_error(), bad[i].name));
        assert_null(chain);
    }
    static const float poison[] = {NAN, INFINITY};
    for (int t = 0; t < 2; t++) {
        chain = chain_with(
            (struct mote_chain_options){.temperature = (float)t, .top_p = 1, .repeat_penalty = 1}, 4);
        int32_t id;
        for (int p = 0; p < 2; p++) {
            float logits[4] = {0, 1, poison[p], 2};
            assert_int_equal(mote_chain_pick(chain, logits, NULL, 0, &id, NULL), MOTE_NUMERIC);
            assert_non_null(strstr(mote_error(), "token 2"));
        }
        float nothing[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        assert_int_equal(mote_chain_pick(chain, nothing, NULL, 0, &id, NULL), MOTE_NUMERIC);
        nothing[3] = -3;
        assert_int_equal(pick(chain, nothing, NULL, 0), 3);
        mote_chain_destroy(chain);
    }
    for (long n = 1; n <= 3; n++) { /* every allocation may fail */
        struct mote_chain_options options = {.top_p = 1, .repeat_penalty = 1};
        mote_mem_fail_at(n);
        assert_int_equal(mote_chain_create(&options, 10, NULL, &chain), MOTE_MEMORY);
        mote_mem_fail_at(0);
    }
    assert_int_equal(mote_mem_global_total(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),           cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_large_vocabulary), cmocka_unit_test(test_seed),
        cmocka_unit_test(test_logprob),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shortlist),        cmocka_unit_test(test_shortlist_brink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
