/* test_cuda_route.c: the CUDA backend's router against the CPU's: the same experts, weights to a millionth; ties, infinities,
 * NaN, groups, up to 1024 experts. Without a device: need_device.h. */
#include "cuda_pair.h"

enum { MAX_ROW = 40 };

static struct mote_rng rng;

static const struct mote_backend_limits limits = {
    .max_row = MAX_ROW, .max_col = 64, .d_model = 64, .n_expert = MOTE_MAX_EXPERTS, .n_used = 10};

/* What logits look like. */
enum look { NORMAL, COARSE, EQUAL, ZEROS_OF_BOTH_SIGNS, INFINITE, MINUS_INFINITE, LOOKS };
static const char *const look_name[] = {"normal", "coarse", "equal", "signed zeros", "+inf", "-inf"};

static void fill_logits(float *x, int64_t n_row, int n, int k, enum look look)
{
    for (int64_t i = 0; i < n_row * n; i++) {
        double two[2];
        mote_rng_normal2(&rng, two);
        int64_t e = i % n, row = i / n;
        switch (look) {
        case NORMAL: x[i] = (float)two[0]; break;
        case COARSE: x[i] = (float)(rint(two[0] * 4) / 8); break; /* many exact ties */
        case EQUAL: x[i] = 0.5f; break;
        case ZEROS_OF_BOTH_SIGNS: x[i] = (e + row) % 3 ? 0.0f : -0.0f; break;
        /* fewer than k of them in odd rows, the rest equal; more than k in even ones where there are as many */
        case INFINITE:
            x[i] = row % 2              ? (e == n - 1 || e == n / 2 ? INFINITY : 0.25f)
                   : e % 2 || k > n / 2 ? INFINITY
                                        : 0.5f;
            break;
        case MINUS_INFINITE: x[i] = e == (row * 7) % n ? (float)two[0] : -INFINITY; break;
        default: assert_true(0);
        }
    }
}

struct result {
    int32_t ids[MAX_ROW * 10];
    float weights[MAX_ROW * 10];
};

/* Route on a backend; `host` logits and bias are what the CPU's memory is too. */
static mote_status route_on(struct mote_backend *backend, const struct mote_routing *r, const float *bias,
                            const float *logits, int64_t n_row, struct result *out)
{
    const struct mote_backend_ops *ops = backend->ops;
    struct mote_routing routing = *r;
    memset(out, 0x7F, sizeof *out);
    float *dbias = bias ? put_floats(backend, bias, r->n_expert) : NULL,
          *dlogits = put_floats(backend, logits, n_row * r->n_expert),
          *dweights = put_floats(backend, out->weights, n_row * r->n_used);
    int32_t *dids = put(backend, out->ids, (size_t)(n_row * r->n_used) * sizeof *dids);
    routing.bias = dbias;
    struct mote_route job = {
        .routing = &routing, .layer = 3, .n_row = n_row, .logits = dlogits, .ids = dids, .weights = dweights};
    begin_rows(backend, n_row);
    mote_status status = ops->route(backend, &job);
    if (status == MOTE_OK)
        status = ops->download(backend, out->ids, dids, (size_t)(n_row * r->n_used) * sizeof *dids);
    if (status == MOTE_OK)
        status =
            ops->download(backend, out->weights, dweights, (size_t)(n_row * r->n_used) * sizeof *dweights);
    take_back(backend, dbias), take_back(backend, dlogits), take_back(backend, dweights),
        take_back(backend, dids);
    return status;
}

/* What selection looks at, in float64. */
static double selection_score(const struct mote_routing *r, const float *bias, const float *logits, int e)
{
    double top = -INFINITY, sum = 0, p = logits[e];
    if (r->score == MOTE_SCORE_SIGMOID) p = 1 / (1 + exp(-p));
    if (r->score == MOTE_SCORE_SOFTMAX) {
        for (int i = 0; i < r->n_expert; i++) top = fmax(top, logits[i]);
        for (int i = 0; i < r->n_expert; i++) sum += exp(logits[i] - top);
        p = exp(p - top) / sum;
    }
    return p + bias[e];
}

static const struct mote_routing routings[] = {
#define PLAIN(e, k, s, renormalised, factor)                                     \
    {                                                                            \
        .score = s, .n_expert = e, .n_used = k, .n_group = 1, .n_group_used = 1, \
        .renormalise = renormalised, .scale = factor                             \
    }
#define GROUPS(e, k, groups, used)                                                                        \
    {                                                                                                     \
        .score = MOTE_SCORE_SIGMOID, .n_expert = e, .n_used = k, .n_group = groups, .n_group_used = used, \
        .renormalise = 1, .scale = 2.5f                                                                   \
    }
    PLAIN(4, 1, MOTE_SCORE_SOFTMAX, 0, 1),
    PLAIN(4, 2, MOTE_SCORE_SOFTMAX_TOPK, 0, 1),
    PLAIN(4, 4, MOTE_SCORE_SIGMOID, 1, 2.5f),
    PLAIN(60, 4, MOTE_SCORE_SOFTMAX, 0, 1),
    PLAIN(60, 3, MOTE_SCORE_SIGMOID, 0, 1),
    PLAIN(60, 10, MOTE_SCORE_SOFTMAX_TOPK, 0, 1),
    PLAIN(128, 8, MOTE_SCORE_SOFTMAX, 1, 1),
    PLAIN(128, 5, MOTE_SCORE_SOFTMAX_TOPK, 1, 1.5f),
    PLAIN(128, 6, MOTE_SCORE_SIGMOID, 1, 1),
    PLAIN(257, 9, MOTE_SCORE_SOFTMAX, 1, 1),
    PLAIN(257, 7, MOTE_SCORE_SIGMOID, 1, 1),
    PLAIN(512, 10, MOTE_SCORE_SOFTMAX, 1, 1),
    PLAIN(512, 10, MOTE_SCORE_SOFTMAX_TOPK, 0, 1),
    PLAIN(1024, 10, MOTE_SCORE_SOFTMAX, 0, 1),
    PLAIN(1024, 1, MOTE_SCORE_SOFTMAX_TOPK, 0, 1),
    PLAIN(1024, 8, MOTE_SCORE_SIGMOID, 1, 1),
    GROUPS(256, 8, 8, 4),
    GROUPS(256, 8, 8, 1),
    GROUPS(60, 4, 4, 2),
    GROUPS(512, 10, 32, 4),
    GROUPS(32, 4, 32, 8), /* groups of one */
};
enum { N_ROUTING = sizeof routings / sizeof *routings };

static void check_routing(const struct pair *pair, const struct mote_routing *r, enum look look,
                          const float *bias, struct report *report)
{
    static struct result want, got, again;
    float *logits = new_floats(MAX_ROW * (int64_t)r->n_expert);
    report->n_case++;
    report_subject(report);
    fill_logits(logits, MAX_ROW, r->n_expert, r->n_used, look);
    must(route_on(pair->cpu, r, bias, logits, MAX_ROW, &want));
    must(route_on(pair->cuda, r, bias, logits, MAX_ROW, &got));
    must(route_on(pair->cuda, r, bias, logits, MAX_ROW, &again));
    if (memcmp(&got, &again, sizeof got))
        report_failure(report, "E %d k %d score %d %s: another run differs", r->n_expert, r->n_used,
                       (int)r->score, look_name[look]);
    for (int i = 0; i < MAX_ROW * r->n_used; i++) {
        int row = i / r->n_used, a = got.ids[i], b = want.ids[i];
        const float *x = logits + (int64_t)row * r->n_expert;
        int is_same = a == b;
        if (!is_same && bias && look == NORMAL && a >= 0 &&
            a < r->n_expert) { /* sums in f32 may tie where float64 does not */
            double s = selection_score(r, bias, x, a), t = selection_score(r, bias, x, b);
            is_same = fabs(s - t) <= 3e-7 * fabs(t);
            if (is_same) break;
        }
        float error = fabsf(got.weights[i] - want.weights[i]);
        if (!is_same || !(error <= 1e-6f * fabsf(want.weights[i]) + 1e-12f)) {
            report_failure(report,
                           "route E %d k %d score %d groups %d/%d %s%s row %d slot %d: expert %d weight "
                           "%.9g, expected %d, %.9g",
                           r->n_expert, r->n_used, (int)r->score, r->n_group_used, r->n_group,
                           look_name[look], bias ? " bias" : "", row, i % r->n_used, a,
                           (double)got.weights[i], b, (double)want.weights[i]);
            break;
        }
    }
    free(logits);
}

static void test_choice(void **state)
{
    (void)state;
    need_device();
    struct report report;
    mote_rng_seed(&rng, 51);
    report_begin(&report);
    struct pair pair = pair_open(&limits);
    float bias[MOTE_MAX_EXPERTS];
    for (int e = 0; e < MOTE_MAX_EXPERTS; e++)
        bias[e] = (float)((double)mote_rng_below(&rng, 16) / 16 - 1); /* never above 0 */
    int n = quick() ? 4 : N_ROUTING;
    for (int i = 0; i < n && pair.cuda->ops->place_routing; i++)
        must(pair.cuda->ops->place_routing(pair.cuda, &routings[i], NULL));
    make_ready(pair.cuda);
    for (int i = 0; i < n; i++)
        for (int look = 0; look < LOOKS; look++)
            for (int biased = 0; biased < 2; biased++) {
                const struct mote_routing *r = &routings[i];
                /* the limit of an infinite logit is said for p alone */
                if (biased && (look == INFINITE || look == MINUS_INFINITE)) continue;
                /* a group of infinite scores has no order of its own */
                if (r->n_group > 1 && (look == INFINITE || look == MINUS_INFINITE)) continue;
                check_routing(&pair, r, (enum look)look, biased ? bias : NULL, &report);
            }
    pair_close(&pair);
    report_end(&report, "route");
}

static void test_nan(void **state)
{
    (void)state;
    need_device();
    static const struct {
        int row, expert;
    } places[] = {{0, 0}, {13, 59}, {39, 31}, {5, 32}};
    struct pair pair = pair_open(&limits);
    const struct mote_routing *r = &routings[3]; /* 4 of 60 */
    static float logits[MAX_ROW * 60];
    static struct result out, want;
    mote_rng_seed(&rng, 52);
    if (pair.cuda->ops->place_routing) must(pair.cuda->ops->place_routing(pair.cuda, r, NULL));
    make_ready(pair.cuda);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char text[32];
        fill_logits(logits, MAX_ROW, 60, 4, NORMAL);
        must(route_on(pair.cuda, r, NULL, logits, MAX_ROW, &want));
        float kept = logits[places[i].row * 60 + places[i].expert];
        logits[places[i].row * 60 + places[i].expert] = NAN;
        snprintf(text, sizeof text, "row %d", places[i].row);
        must_fail(route_on(pair.cuda, r, NULL, logits, MAX_ROW, &out), MOTE_NUMERIC, text);
        logits[places[i].row * 60 + places[i].expert] = kept; /* said once, forgotten by the next step */
        must(route_on(pair.cuda, r, NULL, logits, MAX_ROW, &out));
        assert_memory_equal(&out, &want, sizeof out);
    }
    for (int i = 0; i < MAX_ROW * 60; i++) logits[i] = NAN;
    must_fail(route_on(pair.cuda, r, NULL, logits, MAX_ROW, &out), MOTE_NUMERIC, "NaN");
    pair_close(&pair);
}

static void test_refusals(void **state)
{
    (void)state;
    need_device();
    struct mote_backend *cuda = open_backend(&mote_backend_cuda, &limits, NULL, 0);
    struct mote_routing bad = {.n_expert = 256, .n_used = 33, .n_group = 8, .n_group_used = 1, .scale = 1};
    must_fail(cuda->ops->place_routing(cuda, &bad, NULL), MOTE_ARGUMENT, "33");
    bad.n_used = 8, bad.n_group = 7;
    must_fail(cuda->ops->place_routing(cuda, &bad, NULL), MOTE_ARGUMENT, "256");
    bad.n_group = 1, bad.n_expert = MOTE_MAX_EXPERTS + 1;
    must_fail(cuda->ops->place_routing(cuda, &bad, NULL), MOTE_ARGUMENT, "1025");
    cuda->ops->destroy(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
