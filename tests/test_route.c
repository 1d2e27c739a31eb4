/* test_route.c: routing against a float64 reference written the slow way, and its edges: ties, NaN,
 * infinities, more than 256 experts, k = E, groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "backend/backend.h"
#include "base/rng.h"

static struct mote_backend *backend_with(int n_thread)
{
    struct mote_backend_options options = {.n_thread = n_thread};
    struct mote_backend_limits limits = {.max_row = 512, .n_expert = MOTE_MAX_EXPERTS, .n_used = 1};
    struct mote_backend *backend;
    assert_int_equal(mote_backend_cpu.create(&options, &limits, NULL, &backend), MOTE_OK);
    return backend;
}

/* Sort by (value falling, index rising), by selection: no code shared with the product. */
static void reference(const struct mote_routing *r, const float *logits, int32_t *ids, double *weights)
{
    int n = r->n_expert, k = r->n_used, size = n / r->n_group;
    double p[MOTE_MAX_EXPERTS], s[MOTE_MAX_EXPERTS], group[MOTE_MAX_EXPERTS];
    char allowed[MOTE_MAX_EXPERTS], taken[MOTE_MAX_EXPERTS] = {0};
    double top = -INFINITY, sum = 0;
    for (int e = 0; e < n; e++) top = fmax(top, logits[e]);
    for (int e = 0; e < n; e++) sum += exp(logits[e] - top);
    for (int e = 0; e < n; e++) {
        p[e] = r->score == MOTE_SCORE_SOFTMAX   ? exp(logits[e] - top) / sum
               : r->score == MOTE_SCORE_SIGMOID ? 1 / (1 + exp(-(double)logits[e]))
                                                : logits[e];
        s[e] = p[e] + (r->bias ? r->bias[e] : 0);
    }
    for (int g = 0; g < r->n_group; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; e++) {
            if (s[e] > first) {
                second = first;
                first = s[e];
            } else if (s[e] > second) second = s[e];
        }
        group[g] = size > 1 ? first + second : first;
    }
    memset(allowed, 0, sizeof allowed);
    for (int i = 0; i < r->n_group_used; i++) {
        int best = -1;
        for (int g = 0; g < r->n_group; g++)
            if (!allowed[g * size] && (best < 0 || group[g] > group[best])) best = g;
        memset(allowed + best * size, 1, (size_t)size);
    }
    double chosen_sum = 0, chosen_top = -INFINITY;
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (allowed[e] && !taken[e] && (best < 0 || s[e] > s[best])) best = e;
        taken[best] = 1;
        ids[i] = best;
        chosen_top = fmax(chosen_top, logits[best]);
    }
    for (int i = 0; i < k; i++) {
        weights[i] = r->score == MOTE_SCORE_SOFTMAX_TOPK ? exp(logits[ids[i]] - chosen_top) : p[ids[i]];
        chosen_sum += weights[i];
    }
    for (int i = 0; i < k; i++) {
        if (r->score == MOTE_SCORE_SOFTMAX_TOPK || r->renormalise) weights[i] /= chosen_sum;
        weights[i] *= (double)r->scale;
    }
}

static void check(struct mote_backend *backend, const struct mote_routing *r, const float *logits,
                  int64_t n_row)
{
    int32_t *ids = malloc((size_t)(n_row * r->n_used) * sizeof *ids), expected_ids[MOTE_MAX_EXPERTS];
    float *weights = malloc((size_t)(n_row * r->n_used) * sizeof *weights);
    double expected[MOTE_MAX_EXPERTS];
    memset(ids, 0x7f, (size_t)(n_row * r->n_used) * sizeof *ids);
    struct mote_route job = {.routing = r, .n_row = n_row, .logits = logits, .ids = ids, .weights = weights};
    if (backend->ops->route(backend, &job) != MOTE_OK) fail_msg("%s", mote_error());
    for (int64_t i = 0; i < n_row; i++) {
        reference(r, logits + i * r->n_expert, expected_ids, expected);
        for (int s = 0; s < r->n_used; s++) {
            int64_t at = i * r->n_used + s;
            if (ids[at] != expected_ids[s])
                fail_msg("E %d k %d row %lld slot %d: expert %d, expected %d", r->n_expert, r->n_used,
                         (long long)i, s, ids[at], expected_ids[s]);
            if (!(fabs(weights[at] - expected[s]) <= 1e-6 * fabs(expected[s]) + 1e-12))
                fail_msg("E %d k %d row %lld slot %d: weight %g, expected %g", r->n_expert, r->n_used,
                         (long long)i, s, (double)weights[at], expected[s]);
        }
    }
    free(ids);
    free(weights);
}

static void test_shapes(void **state)
{
    (void)state;
    static const int experts[] = {1, 2, 31, 33, 60, 128, 255, 257, 384, 512, 896, 1024};
    struct mote_backend *backend = backend_with(2);
    struct mote_rng rng;
    mote_rng_seed(&rng, 11);
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        int n = experts[i];
        int64_t n_row = 20;
        float *logits = malloc((size_t)(n_row * n) * sizeof *logits), bias[MOTE_MAX_EXPERTS];
        for (int64_t j = 0; j < n_row * n; j++) /* coarse values: many exact ties */
            logits[j] = (float)((double)mote_rng_below(&rng, 64) / 8 - 4);
        for (int e = 0; e < n; e++) bias[e] = (float)((double)mote_rng_below(&rng, 16) / 16);
        const int used[] = {1, n < 8 ? n : 8, n};
        for (int u = 0; u < 3; u++)
            for (int score = 0; score < 3; score++)
                for (int options = 0; options < 4; options++) {
                    struct mote_routing r = {
                        .score = (enum mote_route_score)score,
                        .n_expert = n,
                        .n_used = used[u],
                        .n_group = 1,
                        .n_group_used = 1,
                        .renormalise = options & 1,
                        .scale = options & 1 ? 2.5f : 1,
                        .bias = options & 2 ? bias : NULL,
                    };
                    check(backend, &r, logits, n_row);
                }
        free(logits);
    }
    backend->ops->destroy(backend);
}

static void test_groups(void **state)
{
    (void)state;
    struct mote_backend *backend = backend_with(1);
    struct mote_rng rng;
    mote_rng_seed(&rng, 12);
    float logits[12 * 256], bias[256];
    for (int j = 0; j < 12 * 256; j++) logits[j] = (float)(mote_rng_unit(&rng) * 6 - 3);
    for (int e = 0; e < 256; e++)
        bias[e] = (float)(mote_rng_unit(&rng) - 2); /* negative: masked must not win */
    static const int shape[][3] = {{8, 4, 8}, {8, 1, 32}, {256, 8, 8}, {128, 4, 8}, {1, 1, 8}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        struct mote_routing r = {
            .score = MOTE_SCORE_SIGMOID,
            .n_expert = 256,
            .n_used = shape[i][2],
            .n_group = shape[i][0],
            .n_group_used = shape[i][1],
            .renormalise = 1,
            .scale = 2.5f,
            .bias = bias,
        };
        check(backend, &r, logits, 12);
    }
    struct mote_routing bad = {.n_expert = 256, .n_used = 33, .n_group = 8, .n_group_used = 1, .scale = 1};
    struct mote_route job = {.routing = &bad, .n_row = 1, .logits = logits};
    assert_int_equal(backend->ops->route(backend, &job), MOTE_ARGUMENT);
    bad.n_group = 7;
    assert_int_equal(backend->ops->route(backend, &job), MOTE_ARGUMENT);
    backend->ops->destroy(backend);
}

static void test_ties_and_infinities(void **state)
{
    (void)state;
    struct mote_backend *backend = backend_with(1);
    float logits[300];
    int32_t ids[300];
    float weights[300];
    for (int score = 0; score < 3; score++) {
        struct mote_routing r = {.score = (enum mote_route_score)score,
                                 .n_expert = 300,
                                 .n_used = 300,
                                 .n_group = 1,
                                 .n_group_used = 1,
                                 .renormalise = 1,
                                 .scale = 1};
        struct mote_route job = {.routing = &r, .n_row = 1, .logits = logits, .ids = ids, .weights = weights};
        for (int e = 0; e < 300; e++) logits[e] = 0.5f; /* all equal: in order */
        assert_int_equal(backend->ops->route(backend, &job), MOTE_OK);
        for (int e = 0; e < 300; e++) assert_int_equal(ids[e], e);
        r.n_used = 3;
        logits[290] = logits[299] = INFINITY; /* two infinities: both, lower first, half each */
        assert_int_equal(backend->ops->route(backend, &job), MOTE_OK);
        assert_int_equal(ids[0], 290);
        assert_int_equal(ids[1], 299);
        assert_int_equal(ids[2], 0);
        if (score != MOTE_SCORE_SIGMOID) {
            assert_true(weights[0] == 0.5f && weights[1] == 0.5f && weights[2] == 0);
        } else assert_true(isfinite(weights[0]) && weights[0] == weights[1]);
        for (int e = 0; e < 300; e++) logits[e] = -INFINITY;
        assert_int_equal(backend->ops->route(backend, &job), MOTE_OK);
        for (int s = 0; s < 3; s++) {
            assert_int_equal(ids[s], s);
            assert_true(isfinite(weights[s]));
        }
    }
    backend->ops->destroy(backend);
}

static void test_nan(void **state)
{
    (void)state;
    struct mote_routing r = {.score = MOTE_SCORE_SOFTMAX,
                             .n_expert = 60,
                             .n_used = 4,
                             .n_group = 1,
                             .n_group_used = 1,
                             .scale = 1};
    float logits[100 * 60], weights[100 * 4];
    int32_t ids[100 * 4];
    for (int n_thread = 1; n_thread <= 2; n_thread++) {
        struct mote_backend *backend = backend_with(n_thread);
        for (int j = 0; j < 100 * 60; j++) logits[j] = (float)(j % 7);
        struct mote_route job = {
            .routing = &r, .n_row = 100, .logits = logits, .ids = ids, .weights = weights};
        assert_int_equal(backend->ops->route(backend, &job), MOTE_OK);
        logits[70 * 60 + 59] = logits[90 * 60] = NAN;
        assert_int_equal(backend->ops->route(backend, &job), MOTE_NUMERIC);
        assert_non_null(strstr(mote_error(), "row 70"));
        assert_non_null(strstr(mote_error(), "expert 59"));
        for (int j = 0; j < 100 * 60; j++) logits[j] = NAN;
        assert_int_equal(backend->ops->route(backend, &job), MOTE_NUMERIC);
        backend->ops->destroy(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_ties_and_infinities),
        cmocka_unit_test(test_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
