/* sampler.h: from logits to a token: a fixed chain (mote_chain; mote_sampler is the public handle) with its
 * own random numbers.
 *
 * Order: repeat penalty, then (temperature 0: the largest, ties to the lower id), temperature, top-k, top-p,
 * min-p, draw. The same options, seed and logits give the same token on every machine, whether it is picked from the
 * row of logits or from its shortlist: one text draws from both, and a shortlist that leaves any doubt is refused.
 */
#ifndef MOTE_ENGINE_SAMPLER_H
#define MOTE_ENGINE_SAMPLER_H

#include "base/mem.h"
#include "base/rng.h"
#include "engine/session.h"

struct mote_chain_options {
    float temperature;    /* >= 0; 0: greedy */
    int32_t top_k;        /* 0: all */
    float top_p;          /* (0, 1]; 1: all. Keeps the smallest set whose probabilities reach top_p */
    float min_p;          /* [0, 1]; keeps tokens with at least min_p times the largest probability */
    float repeat_penalty; /* > 0; 1: none. Logits of recent tokens: positive ones divided, negative ones
                             multiplied */
    int32_t repeat_last;  /* how many tokens count as recent */
    uint64_t seed;
};
#define MOTE_CHAIN_DEFAULTS                                                                      \
    {                                                                                            \
        .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.0f, .repeat_penalty = 1.0f, \
        .repeat_last = 64                                                                        \
    }

struct mote_chain;

/* Fails with MOTE_ARGUMENT, the option and its range named. */
mote_status mote_chain_create(const struct mote_chain_options *options, int64_t n_vocab,
                              struct mote_budget *budget, struct mote_chain **out);
void mote_chain_destroy(struct mote_chain *sampler); /* NULL is fine */

/* logits [n_vocab] stay; recent [n_recent]: the timeline so far, oldest first (its last repeat_last count).
 * logprob (may be NULL): natural log of the token's probability under softmax of the unchanged logits.
 * Fails with MOTE_NUMERIC when a logit is NaN or +inf, or none is finite. */
mote_status mote_chain_pick(struct mote_chain *sampler, const float *logits, const int32_t *recent,
                            int64_t n_recent, int32_t *token, float *logprob);

/* The same from the best of the row: 1, or 0 when they do not decide it: nothing has been drawn then, and the row has to
 * be looked at. They do not when tokens beyond them may be drawn (no cut at all, top_k above what is listed and top_p not
 * reached), when a sum over the vocabulary is needed more exactly than the list says it, when a penalty below 1 raises
 * others, and for logits that are refused. logprob is then within 1e-5 of the row's. */
int mote_chain_pick_best(struct mote_chain *sampler, const struct mote_shortlist *best, const int32_t *recent,
                         int64_t n_recent, int32_t *token, float *logprob);

/* The token after what the session holds, from its shortlist where that decides, otherwise from its logits (fetched from
 * the device then). Fails like mote_chain_pick, and with MOTE_ARGUMENT when the session has no logits. */
mote_status mote_chain_next(struct mote_chain *sampler, struct mote_timeline *session, int32_t *token,
                            float *logprob);

#endif
