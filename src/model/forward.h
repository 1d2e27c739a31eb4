/* forward.h: one step of a model: rows of several sequences in, logits of the wanted rows out.
 *
 * Owns: the step's buffers, sized once for max_row rows. One caller at a time (it drives one backend).
 * Does not own: sequences; it writes keys and values of the rows it is given and moves nobody's position.
 */
#ifndef MOTE_MODEL_FORWARD_H
#define MOTE_MODEL_FORWARD_H

#include "model/kv.h"
#include "model/model.h"

/* A look at values inside a step, in host memory, valid during the call. In the order of a layer:
 *   "embed"          layer -1                  [n_row][d_model]
 *   "attn_norm"      input of q, k, v          [n_row][d_model]
 *   "attn"           input of o                [n_row][n_head * head_dim]
 *   "attn_out"       residual stream after it  [n_row][d_model]
 *   "ffn_norm"       input of router, gate, up [n_row][d_model], ids set in MoE layers
 *   "ffn_hidden"     input of experts' down    [n_row * n_used][n_ff_expert], ids set
 *   "shared_hidden"  input of the shared or dense down [n_row][n_ff]
 *   "layer_out"      residual stream           [n_row][d_model]
 *   "output_norm"    layer n_layer, input of output, wanted rows only */
struct mote_tap {
    int layer;
    const char *name;
    int64_t n_row, n_col;
    const float *data;
    const int32_t *ids; /* [rows of the step][n_used] chosen experts, or NULL */
    int32_t n_used;
};
typedef void mote_tap_fn(void *context, const struct mote_tap *tap);

struct mote_forward_options {
    int64_t max_row; /* rows of a step, e.g. 512 */
    int taps;        /* 1: mote_forward_tap may be used (takes memory for what taps show) */
};

struct mote_forward;

/* Bytes of MOTE_MEM_SCRATCH (backend memory) and MOTE_MEM_TABLES that create takes. */
mote_status mote_forward_bytes(const struct mote_network *model, const struct mote_forward_options *options,
                               size_t *scratch, size_t *tables);
/* model must be placed on `backend`, which was created with limits.max_row >= options.max_row. */
mote_status mote_forward_create(const struct mote_network *model, struct mote_backend *backend,
                                const struct mote_forward_options *options, struct mote_forward **out);
void mote_forward_destroy(struct mote_forward *forward);
const struct mote_network *mote_forward_network(const struct mote_forward *forward);
struct mote_backend *mote_forward_backend(const struct mote_forward *forward);
int64_t mote_forward_max_row(const struct mote_forward *forward);

/* A row of logits that stays where it was made until somebody asks for it (mote_forward_fetch) or a step needs the
 * place, which brings it over first. The forward keeps its address until then: drop what goes away or is of no more use. */
struct mote_row_kept {
    float *logits;              /* host [n_vocab]: the caller's, where they go */
    struct mote_shortlist best; /* there after the step; n 0 where the backend makes none */
    int32_t at; /* row of the forward's logits that they are still to be had from; -1: they are here */
};

/* Host arrays [max_row] for whoever puts batches together, so that a step allocates nothing. */
struct mote_row_lists {
    int32_t *token, *want;
    float **logits;
    struct mote_row_kept **kept;
};
struct mote_row_lists *mote_forward_lists(struct mote_forward *forward);

/* fn NULL: no taps. */
mote_status mote_forward_tap(struct mote_forward *forward, mote_tap_fn *fn, void *context);

/* Called for wanted rows without a place of their own: row of the step, its logits [n_vocab] (valid during
 * the call). */
typedef void mote_row_fn(void *context, int32_t row, const float *logits);
void mote_forward_each(struct mote_forward *forward, mote_row_fn *fn, void *context);

/* Run the batch. want[j] (host [n_want], rising rows of the step, n_want may be 0) names the rows whose
 * logits are wanted; row want[j]'s go to logits[j][n_vocab] (host pointers), are kept for kept[j] when that is NULL,
 * or go to mote_forward_each's function when both are. Fails with MOTE_ARGUMENT (token out of range, batch too
 * large), MOTE_NUMERIC (NaN in a router, row and layer named), MOTE_CANCELLED; caches may then hold rubbish at the
 * batch's own positions and nowhere else, and nothing is kept of its rows. */
mote_status mote_forward_step(struct mote_forward *forward, const struct mote_batch *batch,
                              const int32_t *want, int64_t n_want, float *const *logits,
                              struct mote_row_kept *const *kept);

/* Have row->logits here. Fails with what a download fails with. */
mote_status mote_forward_fetch(struct mote_forward *forward, struct mote_row_kept *row);
void mote_forward_drop(struct mote_forward *forward, struct mote_row_kept *row);

/* Checked between layers; nonzero ends the step with MOTE_CANCELLED. NULL: none. */
void mote_forward_cancel(struct mote_forward *forward, const volatile int *flag);

#endif
