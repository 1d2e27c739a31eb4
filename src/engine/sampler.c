/* sampler.c: see sampler.h.
 *
 * One idea: candidates are a heap. Popping gives them largest first, ties by id, and every cut only says
 * when to stop, so that a vocabulary of 150 000 is never sorted for the few hundred that matter. The best of a row are a
 * heap too, whose order is certain as far as none that is not listed can come between; sums that reach beyond it are
 * known within bounds, and what lies between the bounds is not decided.
 */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

struct candidate {
    float logit; /* after the repeat penalty */
    int32_t id;
    double p; /* weight at the temperature, the first's is 1; of those that were popped, or all weighed */
};

struct mote_chain {
    struct mote_chain_options options;
    int64_t n_vocab;
    struct mote_rng rng;
    struct candidate *candidate; /* [n_vocab] */
    uint8_t *is_recent;          /* [n_vocab], zero between picks */
};

/* What a pick knows of a row: its finite logits, or the best of them. */
struct field {
    const struct mote_shortlist *best; /* where candidates are from; NULL: from the row */
    struct candidate *c;               /* [n] */
    int64_t n, popped;      /* c[n - 1 - i] is the i-th best for i < popped, before them lies a heap */
    int64_t n_all;          /* finite logits of the row; INT64_MAX: more than n */
    struct candidate first; /* the best */
    struct candidate last;  /* what all that are not listed come after, whatever the penalty */
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
        status = mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)n_vocab, sizeof *chain->is_recent,
                                 &chain->is_recent);
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
    mote_mem_free(chain->is_recent);
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

/* ---- candidates ---- */

static void mark(struct mote_chain *chain, const int32_t *recent, int64_t n_recent, uint8_t is_recent)
{
    int64_t first = n_recent > chain->options.repeat_last ? n_recent - chain->options.repeat_last : 0;
    if (chain->options.repeat_penalty == 1) return;
    for (int64_t i = first; i < n_recent; i++)
        if (recent[i] >= 0 && recent[i] < chain->n_vocab) chain->is_recent[recent[i]] = is_recent;
}

static void admit(const struct mote_chain *chain, struct field *f, float logit, int32_t id)
{
    if (logit == -INFINITY) return;
    float penalty = chain->options.repeat_penalty;
    if (chain->is_recent[id]) logit = logit > 0 ? logit / penalty : logit * penalty;
    f->c[f->n] = (struct candidate){.logit = logit, .id = id};
    if (!f->n || before(&f->c[f->n], &f->first)) f->first = f->c[f->n];
    f->n++;
}

static double weight(const struct mote_chain *chain, const struct field *f, float logit)
{
    return exp(((double)logit - (double)f->first.logit) / (double)chain->options.temperature);
}

/* The i-th best, of a heap; NULL: the list does not tell. Ask in rising order. */
static const struct candidate *ranked(const struct mote_chain *chain, struct field *f, int64_t i)
{
    if (i == f->n) return NULL;
    struct candidate *c = &f->c[f->n - 1 - i];
    if (i == f->popped) {
        pop(f->c, f->n - f->popped++);
        c->p = weight(chain, f, c->logit);
    }
    return before(&f->last, c) ? NULL : c;
}

/* ---- sums ---- */

static const double ROOM = 1e-9; /* a sum may differ by so much in another order */

struct bounds {
    double low, high;
};

/* What those that are not listed weigh together. Let y = exp(logit - best) of each: at most y_most, their sum known as t.
 * At the temperature they weigh y^a, a = 1 / temperature, and the sum of that lies between t y_most^(a - 1), where all
 * are as large as the largest, and n (t / n)^a, where all of the n there can be are alike. */
static struct bounds weigh_others(const struct mote_chain *chain, const struct field *f)
{
    const struct mote_shortlist *best = f->best;
    if (f->n_all == f->n) return (struct bounds){0, 0};
    double top = (double)best->logit[0], listed = 0, all = (double)best->sum,
           error = MOTE_SHORTLIST_ERROR * all, a = 1 / (double)chain->options.temperature;
    for (int i = 0; i < best->n; i++) listed += exp((double)best->logit[i] - top);
    double y_most = fmax(exp((double)f->last.logit - top), 1e-300), n = (double)(chain->n_vocab - f->n),
           scale = exp((top - (double)f->first.logit) * a); /* a penalty may have taken from the best */
    double least = fmax(all - error - listed, 0), most = fmax(all + error - listed, 0);
    struct bounds sum = {
        scale * fmin(least * pow(y_most, a - 1), n * pow(least / n, a)),
        scale * fmax(most * pow(y_most, a - 1), n * pow(most / n, a)),
    };
    if (chain->options.repeat_penalty != 1) sum.low = 0; /* it may have taken from any */
    return isfinite(sum.high) ? sum : (struct bounds){0, INFINITY};
}

/* Of all candidates, in the order they lie in; of a list, with what is not listed and room for another order. */
static struct bounds weigh_all(const struct mote_chain *chain, struct field *f)
{
    double sum = 0;
    for (int64_t i = 0; i < f->n; i++) sum += f->c[i].p = weight(chain, f, f->c[i].logit);
    if (!f->best) return (struct bounds){sum, sum};
    struct bounds others = weigh_others(chain, f);
    return (struct bounds){(sum + others.low) * (1 - ROOM), (sum + others.high) * (1 + ROOM)};
}

/* Of the k best. */
static struct bounds weigh_best(const struct mote_chain *chain, struct field *f, int64_t k)
{
    double sum = 0;
    int64_t known = 0;
    while (known < k && ranked(chain, f, known)) known++;
    for (int64_t i = f->n - known; i < f->n; i++) sum += f->c[i].p;
    if (known == k) return (struct bounds){sum, sum};
    return (struct bounds){sum * (1 - ROOM), weigh_all(chain, f).high};
}

/* ---- the choice ---- */

/* 0: candidates do not decide; no random number was taken then. */
static int draw(struct mote_chain *chain, struct field *f, int32_t *token)
{
    const struct mote_chain_options *o = &chain->options;
    struct candidate *c = f->c;
    int64_t n = f->n, k = o->top_k && o->top_k < f->n_all ? o->top_k : f->n_all;
    struct bounds sum = {0, 0};
    if (k == f->n_all) sum = weigh_all(chain, f);
    if (k == f->n_all && o->top_p == 1 && o->min_p == 0) { /* nothing is cut: in order of id */
        if (f->best) return 0;
        double left = mote_rng_unit(&chain->rng) * sum.low;
        int64_t i = 0;
        while (i < n - 1 && left >= c[i].p) left -= c[i++].p;
        *token = c[i].id;
        return 1;
    }
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(c, n, i);
    if (k < f->n_all) sum = weigh_best(chain, f, k);
    double kept = 0;
    int64_t used = 0;
    for (; used < k; used++) {
        if (used && o->top_p < 1) {
            if (kept >= (double)o->top_p * sum.high) break;
            if (kept >= (double)o->top_p * sum.low) return 0;
        }
        const struct candidate *next = ranked(chain, f, used);
        if (!next) return 0;
        if (used && next->p < (double)o->min_p) break; /* the best's is 1 */
        kept += next->p;
    }
    double left = mote_rng_unit(&chain->rng) * kept;
    int64_t i = 0;
    while (i < used - 1 && left >= c[n - 1 - i].p) left -= c[n - 1 - i++].p;
    *token = c[n - 1 - i].id;
    return 1;
}

static int choose(struct mote_chain *chain, struct field *f, int32_t *token)
{
    if (chain->options.temperature > 0) return draw(chain, f, token);
    *token = f->first.id;
    return !before(&f->last, &f->first);
}

mote_status mote_chain_pick(struct mote_chain *chain, const float *logits, const int32_t *recent,
                            int64_t n_recent, int32_t *token, float *logprob)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < chain->n_vocab; i++) {
        FAIL_IF(isnan(logits[i]) || logits[i] == INFINITY, MOTE_NUMERIC, "sampler: logit of token %lld is %s",
                (long long)i, isnan(logits[i]) ? "NaN" : "infinite");
        if ((double)logits[i] > top) top = (double)logits[i];
    }
    FAIL_IF(top == -INFINITY, MOTE_NUMERIC, "sampler: no logit is finite");
    struct field f = {.c = chain->candidate, .last = {.logit = -INFINITY, .id = INT32_MAX}};
    mark(chain, recent, n_recent, 1);
    for (int64_t i = 0; i < chain->n_vocab; i++) admit(chain, &f, logits[i], (int32_t)i);
    mark(chain, recent, n_recent, 0);
    f.n_all = f.n;
    (void)choose(chain, &f, token); /* a whole row always decides */
    if (!logprob) return MOTE_OK;
    for (int64_t i = 0; i < chain->n_vocab; i++) sum += exp((double)logits[i] - top);
    *logprob = (float)((double)logits[*token] - top - log(sum));
    return MOTE_OK;
}

int mote_chain_pick_best(struct mote_chain *chain, const struct mote_shortlist *best, const int32_t *recent,
                         int64_t n_recent, int32_t *token, float *logprob)
{
    if (!best->n || chain->options.repeat_penalty < 1) return 0;
    struct field f = {.best = best, .c = chain->candidate, .last = {.logit = -INFINITY, .id = INT32_MAX}};
    mark(chain, recent, n_recent, 1);
    for (int i = 0; i < best->n; i++) admit(chain, &f, best->logit[i], best->id[i]);
    mark(chain, recent, n_recent, 0);
    f.n_all = f.n;
    if (f.n == MOTE_SHORTLIST && f.n < chain->n_vocab) {
        f.n_all = INT64_MAX;
        f.last = (struct candidate){.logit = best->logit[f.n - 1], .id = best->id[f.n - 1]};
    }
    if (!choose(chain, &f, token)) return 0;
    for (int i = 0; logprob && i < best->n; i++)
        if (best->id[i] == *token)
            *logprob = (float)((double)best->logit[i] - (double)best->logit[0] - log((double)best->sum));
    return 1;
}

mote_status mote_chain_next(struct mote_chain *chain, struct mote_timeline *session, int32_t *token,
                            float *logprob)
{
    const struct mote_shortlist *best = mote_timeline_shortlist(session);
    FAIL_IF(!best, MOTE_ARGUMENT, "sampler: the session has no logits: evaluate a token first");
    FAIL_IF(mote_timeline_n_vocab(session) != chain->n_vocab, MOTE_ARGUMENT,
            "sampler: made for a vocabulary of %lld, the session's is %lld", (long long)chain->n_vocab,
            (long long)mote_timeline_n_vocab(session));
    const int32_t *recent = mote_timeline_tokens(session);
    int64_t n_recent = mote_timeline_n_token(session);
    if (mote_chain_pick_best(chain, best, recent, n_recent, token, logprob)) return MOTE_OK;
    const float *logits = mote_timeline_logits(session);
    if (!logits) return mote_context(MOTE_DEVICE, "sampler: fetching the logits");
    return mote_chain_pick(chain, logits, recent, n_recent, token, logprob);
}
