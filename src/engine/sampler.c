/* sampler.c: see sampler.h.
 *
 * One idea: candidates are a heap. Popping gives them largest first, ties by id, and every cut only says
 * when to stop, so that a vocabulary of 150 000 is never sorted for the few hundred that matter.
 */
#include "engine/sampler.h"

#include <math.h>
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

static int before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Move c[at] down to where both children come after it. */
static void sift(struct candidate *c, int64_t n, int64_t at)
{
    struct candidate item = c[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&c[child + 1], &c[child])) child++;
        if (!before(&c[child], &item)) break;
        c[at] = c[child];
    }
    c[at] = item;
}

/* The first of the heap c[n] goes to c[n - 1]; c[n - 1] elements are left. */
static void pop(struct candidate *c, int64_t n)
{
    struct candidate first = c[0];
    c[0] = c[n - 1];
    sift(c, n - 1, 0);
    c[n - 1] = first;
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

/* Finite logits as candidates, in order of id, with their weight at the temperature; returns how many. */
static int64_t collect(struct mote_chain *chain)
{
    struct candidate *c = chain->candidate;
    double top = (double)chain->logit[largest(chain->logit, chain->n_vocab)];
    int64_t n = 0;
    for (int64_t i = 0; i < chain->n_vocab; i++) {
        float logit = chain->logit[i];
        if (logit == -INFINITY) continue;
        c[n++] = (struct candidate){logit, (int32_t)i,
                                    exp(((double)logit - top) / (double)chain->options.temperature)};
    }
    return n;
}

static int32_t draw(struct mote_chain *chain)
{
    const struct mote_chain_options *o = &chain->options;
    struct candidate *c = chain->candidate;
    int64_t n = collect(chain), k = o->top_k && o->top_k < n ? o->top_k : n;
    double sum = 0, kept = 0;
    if (k == n && o->top_p == 1 && o->min_p == 0) { /* nothing is cut: any order will do */
        for (int64_t i = 0; i < n; i++) sum += c[i].p;
        double left = mote_rng_unit(&chain->rng) * sum;
        int64_t i = 0;
        while (i < n - 1 && left >= c[i].p) left -= c[i++].p;
        return c[i].id;
    }
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(c, n, i);
    double best = c[0].p;
    int64_t popped = 0, used = 0;
    if (k < n)
        for (; popped < k; popped++) pop(c, n - popped);
    for (int64_t i = k < n ? n - k : 0; i < n; i++) sum += c[i].p; /* of the k best */
    for (; used < k; used++) {
        if (used == popped) pop(c, n - popped++);
        double p = c[n - 1 - used].p;
        if (used && (kept >= (double)o->top_p * sum || p < (double)o->min_p * best)) break;
        kept += p;
    }
    double left = mote_rng_unit(&chain->rng) * kept;
    int64_t i = 0;
    while (i < used - 1 && left >= c[n - 1 - i].p) left -= c[n - 1 - i++].p;
    return c[n - 1 - i].id;
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
    *token = chain->options.temperature == 0 ? largest(chain->logit, chain->n_vocab) : draw(chain);
    if (!logprob) return MOTE_OK;
    double sum = 0;
    for (int64_t i = 0; i < chain->n_vocab; i++) sum += exp((double)logits[i] - (double)top);
    *logprob = (float)((double)logits[*token] - (double)top - log(sum));
    return MOTE_OK;
}
