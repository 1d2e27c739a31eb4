/* perplexity.h: how well a model predicts a text: mean negative log-likelihood over windows.
 *
 * One idea: the text is cut the same way everywhere (also by the reference that made the golden values):
 * documents at "\n\x1e\n", each encoded without special tokens and followed by the end-of-text token, all
 * of them one after the other, cut into windows of n tokens; a window starts from an empty context and
 * gives n - 1 predictions.
 */
#ifndef MOTE_ENGINE_PERPLEXITY_H
#define MOTE_ENGINE_PERPLEXITY_H

#include "engine/session.h"
#include "text/tokenizer.h"

/* Nonzero: stop with MOTE_CANCELLED. */
typedef int mote_tick_fn(void *context, int64_t done, int64_t total);

/* *ids [*n], to be freed with mote_mem_free. max: stop after that many (0: all). Fails with
 * MOTE_UNSUPPORTED when the vocabulary has no end-of-text token. */
mote_status mote_corpus_encode(const struct mote_tokenizer *tokenizer, const char *text, size_t length,
                               int64_t max, struct mote_budget *budget, int32_t **ids, int64_t *n);

struct mote_nll_options {
    int64_t window;   /* tokens, >= 2; at most the session's context */
    int64_t n_window; /* at most; 0: as many whole ones as there are (one shorter one when there is none) */
    mote_tick_fn *tick;
    void *tick_context;
};
struct mote_nll {
    int64_t n_window, n_token; /* n_token: predictions */
    double mean, error;        /* nats; standard error of the mean */
};
/* session is rewound before every window and left at the last one. Fails with MOTE_ARGUMENT, MOTE_NUMERIC. */
mote_status mote_nll_measure(struct mote_timeline *session, const int32_t *ids, int64_t n,
                             const struct mote_nll_options *options, struct mote_nll *out);

/* log(sum(exp(x))) of n values, in float64; NaN when one is. */
double mote_log_sum_exp(const float *x, int64_t n);

#endif
