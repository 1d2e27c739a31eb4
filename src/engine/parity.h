/* parity.h: two ways of running a model side by side on the same tokens: where they differ and by how much.
 *
 * One idea: both are fed the same ids chunk by chunk; a's block outputs are kept for the chunk and b's are
 * compared as they appear, so that the first layer that leaves the budget has a name.
 */
#ifndef MOTE_ENGINE_PARITY_H
#define MOTE_ENGINE_PARITY_H

#include "engine/perplexity.h"

struct mote_change {  /* a greedy choice that differs */
    int64_t position; /* in ids */
    int32_t token_a, token_b;
    double margin; /* a's logit of its choice minus that of its runner-up */
};

struct mote_compare_options {
    int64_t window;     /* tokens, >= 2 */
    int64_t n_window;   /* at most; 0: all there are */
    double layer_limit; /* a layer's error that counts as leaving */
    size_t max_change;  /* changes kept (all are counted) */
    mote_tick_fn *tick;
    void *tick_context;
};

struct mote_comparison {
    int64_t n_token;
    double kl_mean, kl_max; /* KL(a || b) per position, nats */
    double top1;            /* share of positions with the same best token */
    double logit_error;     /* largest |a - b| over a's ten best logits */
    double nll_a, nll_b;    /* means over the positions that have a next token in their window */
    int64_t first_layer;    /* first whose error passes layer_limit; -1: none */
    int64_t n_layer;
    double *layer_error; /* [n_layer] sum ||a - b||^2 / sum ||a||^2 of the block's output */
    int64_t n_change;    /* all of them */
    size_t n_kept;
    struct mote_change *change; /* [n_kept] */
};

/* a and b: forwards of two networks of the same depth, width and vocabulary, made with taps. Caches of kv_a
 * and kv_b are made and given back. On failure *out holds nothing. */
mote_status mote_compare(struct mote_forward *a, enum mote_kv_type kv_a, struct mote_forward *b,
                         enum mote_kv_type kv_b, const int32_t *ids, int64_t n,
                         const struct mote_compare_options *options, struct mote_comparison *out);
void mote_comparison_free(struct mote_comparison *comparison);

#endif
