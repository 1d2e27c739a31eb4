/* sampler.c: see sampler.h. Candidates are sorted once, largest first, ties by id; every cut keeps a prefix. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit;
    int32_t id;
    double p;
};

struct mote_chain {
    struct mote_chain_options options;
    int64_t n_vocab;
    struct mote_rng rng;
    struct candidate *candidate; /* [n_vocab] */
    float *logit;                /* [n_vocab] after the repeat penalty */
};

mote_status mote_chain_create(const struct mote_chain_options *o, int64_t n_vocab, struct mote_budget *budget,
                              struct mote_chain **out)
{
    *out = NULL;
    FAIL_IF(!(o->temperature >= 0 && isfinite(o->temperature)), MOTE_ARGUMENT,
            "temperature: %g, expected 0 or more", (double)o->temperature);
    FAIL_IF(o->top_k < 0, MOTE_ARGUMENT, "top-k: %d, expected 0 (all) or more", o->top_k);
    FAIL_IF(!(o->top_p > 0 && o->top_p <= 1), MOTE_ARGUMENT, "top-p: %g, expected more than 0, at most 1",
            (double)o->top_p);
    FAIL_IF(!(o->min_p >= 0 && o->min_p <= 1), MOTE_ARGUMENT, "min-p: %g, expected 0 to 1", (double)o->min_p);
    FAIL_IF(!(o->repeat_penalty > 0 && isfinite(o->repeat_penalty)), MOTE_ARGUMENT,
            "repeat penalty: %g, expected more than 0", (double)o->repeat_penalty);
    FAIL_IF(o->repeat_last < 0, MOTE_ARGUMENT, "repeat window: %d, expected 0 or more", o->repeat_last);
    FAIL_IF(n_vocab < 1 || n_vocab > INT32_MAX, MOTE_ARGUMENT, "sampler: a vocabulary of %lld",
            (long long)n_vocab);
    struct mote_chain *chain;
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *chain, &chain));
    chain->options = *o;
    chain->n_vocab = n_vocab;
    mote_rng_seed(&chain->rng, o->seed);
    mote_status status = mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)n_vocab, sizeof *chain->candidate,
                                         &chain->candidate);
    if (status == MOTE_OK)
        status =
            mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)n_vocab, sizeof *chain->logit, &chain->logit);
    if (status != MOTE_OK) {
        mote_chain_destroy(chain);
        return status;
    }
    *out = chain;
    return MOTE_OK;
}

void mote_chain_destroy(struct mote_chain *chain)
{
    if (!chain) return;
    mote_mem_free(chain->candidate);
    mote_mem_free(chain->logit);
    mote_mem_free(chain);
}

static int falling(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static int32_t largest(const float *logit, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logit[i] > logit[best]) best = (int32_t)i;
    return best;
}

/* A token counts once however often it occurs: it is penalised from the unchanged logits. */
static void penalise(struct mote_chain *chain, const float *logits, const int32_t *recent, int64_t n_recent)
{
    float penalty = chain->options.repeat_penalty;
    memcpy(chain->logit, logits, (size_t)chain->n_vocab * sizeof *logits);
    if (penalty == 1) return;
    int64_t first = n_recent > chain->options.repeat_last ? n_recent - chain->options.repeat_last : 0;
    for (int64_t i = first; i < n_recent; i++) {
        int32_t id = recent[i];
        if (id < 0 || id >= chain->n_vocab) continue;
        chain->logit[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
}

/* Candidates that can be among the top_k, sorted; returns how many. A heap is not needed: one pass keeps those not
 * below the smallest of a growing sample, qsort orders the rest. */
static int64_t collect(struct mote_chain *chain)
{
    int64_t n = 0, k = chain->options.top_k;
    struct candidate *c = chain->candidate;
    if (k == 0 || k > chain->n_vocab) k = chain->n_vocab;
    int64_t room = 2 * k < chain->n_vocab ? 2 * k : chain->n_vocab;
    float floor = -INFINITY;
    for (int64_t i = 0; i < chain->n_vocab; i++) {
        if (chain->logit[i] == -INFINITY || (chain->logit[i] <= floor && n >= k)) continue;
        if (n == room) { /* keep the best k; later ids must be larger to come in */
            qsort(c, (size_t)n, sizeof *c, falling);
            n = k;
            floor = c[k - 1].logit;
            if (chain->logit[i] <= floor) continue;
        }
        c[n++] = (struct candidate){chain->logit[i], (int32_t)i, 0};
    }
    qsort(c, (size_t)n, sizeof *c, falling);
    return n < k ? n : k;
}

/* Softmax at the temperature over the candidates; returns the sum of the first n after the cuts. */
static double cut(struct mote_chain *chain, int64_t *n)
{
    struct candidate *c = chain->candidate;
    const struct mote_chain_options *o = &chain->options;
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < *n; i++) {
        c[i].p = exp(((double)c[i].logit - (double)c[0].logit) / (double)o->temperature);
        sum += c[i].p;
    }
    int64_t i = 0;
    for (; i < *n; i++) {
        if (i && (kept >= (double)o->top_p * sum || c[i].p < (double)o->min_p * c[0].p)) break;
        kept += c[i].p;
    }
    *n = i;
    return kept;
}

mote_status mote_chain_pick(struct mote_chain *chain, const float *logits, const int32_t *recent,
                            int64_t n_recent, int32_t *token, float *logprob)
{
    for (int64_t i = 0; i < chain->n_vocab; i++)
        FAIL_IF(isnan(logits[i]) || logits[i] == INFINITY, MOTE_NUMERIC, "sampler: logit of token %lld is %s",
                (long long)i, isnan(logits[i]) ? "NaN" : "infinite");
    float top = logits[largest(logits, chain->n_vocab)];
    FAIL_IF(top == -INFINITY, MOTE_NUMERIC, "sampler: no logit is finite");
    penalise(chain, logits, recent, n_recent);
    if (chain->options.temperature == 0) {
        *token = largest(chain->logit, chain->n_vocab);
    } else {
        int64_t n = collect(chain), i = 0;
        double left = mote_rng_unit(&chain->rng) * cut(chain, &n);
        while (i < n - 1 && left >= chain->candidate[i].p) left -= chain->candidate[i++].p;
        *token = chain->candidate[i].id;
    }
    if (!logprob) return MOTE_OK;
    double sum = 0;
    for (int64_t i = 0; i < chain->n_vocab; i++) sum += exp((double)logits[i] - (double)top);
    *logprob = (float)((double)logits[*token] - (double)top - log(sum));
    return MOTE_OK;
}
