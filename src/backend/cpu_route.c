/* cpu_route.c: from router logits to experts and weights, in float64, by the contract of struct
 * mote_routing. */
#include <float.h>
#include <math.h>
#include <stdatomic.h>

#include "backend/cpu_backend.h"

/* exp(x - max) of n values, not divided; returns their sum. An infinite maximum takes all, shared equally. */
static double exponentials(const float *x, int n, double *p)
{
    float max = -INFINITY;
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > max) max = x[i];
    for (int i = 0; i < n; i++) {
        p[i] = isinf(max) ? (double)(x[i] == max) : exp((double)x[i] - (double)max);
        sum += p[i];
    }
    return sum;
}

static void softmax(const float *x, int n, double *p)
{
    double sum = exponentials(x, n, p);
    for (int i = 0; i < n; i++) p[i] /= sum;
}

/* The n largest of s, falling; a later value must be larger to come before an earlier one. */
static int largest(const double *s, int n_item, int n, int32_t *id)
{
    int have = 0;
    for (int i = 0; i < n_item; i++) {
        if (have == n && !(s[i] > s[id[n - 1]])) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && s[i] > s[id[at - 1]]; at--) id[at] = id[at - 1];
        id[at] = i;
    }
    return have;
}

/* Experts outside the best groups get -infinity; those inside are moved off it, so that they win. */
static void mask_groups(const struct mote_routing *routing, double *s)
{
    double score[MOTE_MAX_EXPERTS];
    int32_t chosen[MOTE_MAX_EXPERTS];
    char is_chosen[MOTE_MAX_EXPERTS] = {0};
    int size = routing->n_expert / routing->n_group;
    for (int g = 0; g < routing->n_group; g++) {
        int32_t top[2];
        int n = largest(s + g * size, size, size < 2 ? 1 : 2, top);
        score[g] = s[g * size + top[0]] + (n > 1 ? s[g * size + top[1]] : 0);
    }
    largest(score, routing->n_group, routing->n_group_used, chosen);
    for (int i = 0; i < routing->n_group_used; i++) is_chosen[chosen[i]] = 1;
    for (int e = 0; e < routing->n_expert; e++) {
        if (!is_chosen[e / size]) s[e] = -INFINITY;
        else if (s[e] == -INFINITY) s[e] = -DBL_MAX;
    }
}

/* Returns the index of a NaN, or -1. */
static int route_row(const struct mote_routing *routing, const float *logits, int32_t *ids, float *weights)
{
    double p[MOTE_MAX_EXPERTS], s[MOTE_MAX_EXPERTS], w[MOTE_MAX_EXPERTS], sum = 0;
    float chosen[MOTE_MAX_EXPERTS] = {0};
    int n = routing->n_expert, k = routing->n_used;
    for (int e = 0; e < n; e++)
        if (isnan(logits[e])) return e;
    if (routing->score == MOTE_SCORE_SOFTMAX) softmax(logits, n, p);
    for (int e = 0; e < n; e++) {
        if (routing->score == MOTE_SCORE_SIGMOID) p[e] = 1 / (1 + exp(-(double)logits[e]));
        else if (routing->score == MOTE_SCORE_SOFTMAX_TOPK) p[e] = logits[e];
        s[e] = routing->bias ? p[e] + (double)routing->bias[e] : p[e];
        if (isnan(s[e])) return e;
    }
    if (routing->n_group > 1) mask_groups(routing, s);
    largest(s, n, k, ids);
    for (int i = 0; i < k; i++) {
        w[i] = p[ids[i]];
        chosen[i] = logits[ids[i]];
    }
    if (routing->score == MOTE_SCORE_SOFTMAX_TOPK) softmax(chosen, k, w);
    for (int i = 0; i < k; i++) sum += w[i];
    double factor = (routing->renormalise ? 1 / fmax(sum, 1e-20) : 1) * (double)routing->scale;
    for (int i = 0; i < k; i++) weights[i] = (float)(w[i] * factor);
    return -1;
}

struct route_step {
    const struct mote_route *job;
    struct mote_chunks rows;
    _Atomic int64_t bad; /* lowest row * MOTE_MAX_EXPERTS + expert with a NaN */
};

static void route_rows(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct route_step *step = context;
    const struct mote_routing *routing = step->job->routing;
    for (int64_t i, end; mote_next_chunk(&step->rows, &i, &end);) {
        for (; i < end; i++) {
            int bad =
                route_row(routing, step->job->logits + i * routing->n_expert,
                          step->job->ids + i * routing->n_used, step->job->weights + i * routing->n_used);
            if (bad < 0) continue;
            int64_t at = i * MOTE_MAX_EXPERTS + bad, lowest = atomic_load(&step->bad);
            while (at < lowest && !atomic_compare_exchange_weak(&step->bad, &lowest, at)) {
            }
        }
    }
}

mote_status mote_cpu_route(struct mote_backend *backend, const struct mote_route *job)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    const struct mote_routing *r = job->routing;
    FAIL_IF(r->n_expert < 1 || r->n_expert > MOTE_MAX_EXPERTS || r->n_used < 1 || r->n_used > r->n_expert,
            MOTE_ARGUMENT, "router: %d of %d experts, expected 1 <= used <= experts <= %d", r->n_used,
            r->n_expert, MOTE_MAX_EXPERTS);
    FAIL_IF(r->n_group < 1 || r->n_expert % r->n_group || r->n_group_used < 1 ||
                r->n_group_used > r->n_group || r->n_group_used * (r->n_expert / r->n_group) < r->n_used,
            MOTE_ARGUMENT, "router: %d of %d groups do not hold %d of %d experts", r->n_group_used,
            r->n_group, r->n_used, r->n_expert);
    if (job->router) TRY(mote_cpu_linear(backend, job->router));
    struct route_step step = {.job = job, .bad = INT64_MAX};
    mote_chunks_init(&step.rows, job->n_row, 8);
    if (job->n_row <= 8) route_rows(&step, 0, 1);
    else mote_pool_run(cpu->pool, route_rows, &step);
    int64_t bad = atomic_load(&step.bad);
    FAIL_IF(bad != INT64_MAX, MOTE_NUMERIC, "router: row %lld of the step has a NaN for expert %lld",
            (long long)(bad / MOTE_MAX_EXPERTS), (long long)(bad % MOTE_MAX_EXPERTS));
    return MOTE_OK;
}
