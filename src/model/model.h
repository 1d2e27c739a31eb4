/* model.h: a model's numbers and weights, ready to be run.
 *
 * Owns: hyper-parameters, the layers' weights (views into the catalogue's mapped files, small vectors as
 * floats of our own), where they are placed. Immutable once placed: any number of forwards may read it. Does
 * not own: the catalogue (it must stay open), the step (forward.h), keys and values (kv.h). One idea: an
 * architecture is a table (arch.h); everything here is filled by walking it.
 */
#ifndef MOTE_MODEL_MODEL_H
#define MOTE_MODEL_MODEL_H

#include "backend/backend.h"
#include "file/catalogue.h"

struct mote_hyper {
    uint64_t n_vocab, n_ctx_train, d_model, n_layer;
    uint64_t n_head, n_head_kv, head_dim;
    uint64_t n_rot;
    uint64_t n_ff; /* of dense layers; 0: there are none */
    uint64_t n_expert, n_used, n_ff_expert, n_ff_shared;
    uint64_t n_group, n_group_used;
    double eps, rope_base, rope_factor /* positions are divided by it */, expert_scale;
    int renormalise;
};

/* One layer; what an architecture lacks stays zero (weight.w.n_row 0, vector NULL, set.n_expert 0). */
struct mote_layer {
    const float *attn_norm, *ffn_norm;      /* [d_model] backend memory */
    const float *q_norm, *k_norm;           /* [head_dim] */
    struct mote_weight q, k, v, o;          /* biases inside */
    struct mote_weight router, shared_gate; /* [n_expert][d_model], [1][d_model] */
    const float *router_bias;               /* [n_expert], selection only */
    struct mote_routing routing;
    struct mote_expert_set experts; /* n_expert 0: a dense layer */
    struct mote_expert_set shared;  /* the shared expert, or the dense feed-forward */
};

struct mote_network {
    const struct mote_arch *arch;
    const struct mote_catalogue *catalogue;
    struct mote_hyper hyper;
    struct mote_weight embedding; /* [n_vocab][d_model] */
    struct mote_weight output;    /* [n_vocab][d_model]; the embedding's bytes when tied */
    int tied;
    const float *output_norm; /* [d_model] */
    struct mote_rope rope;
    struct mote_layer *layer;          /* [n_layer] */
    struct mote_backend_limits limits; /* max_row left at 0 */
    size_t mapped_bytes;               /* tensor bytes read in place, counted as MOTE_MEM_MAPPED */
    struct mote_budget *budget;
    struct mote_network_state *state;
};

struct mote_network_options {
    enum mote_act_wish act; /* of every product but a router's, which is f32 */
    /* While weights are copied to a device: bytes of the file done and in all. NULL: nobody asks. */
    void (*progress)(void *context, const char *what, size_t done, size_t total, const char *unit);
    void *progress_context;
};

/* Read hyper-parameters and find every tensor of the architecture's plan, checking shapes; no weight is read,
 * no backend needed. Fails with MOTE_UNSUPPORTED (architecture or format, with the list of what is
 * supported), MOTE_FORMAT (missing or misshapen tensor or key; both shapes named), MOTE_MEMORY, MOTE_BUDGET;
 * *out is NULL then. Missing optional keys get the architecture's default and a warning. */
mote_status mote_network_open(const struct mote_catalogue *catalogue,
                              const struct mote_network_options *options, struct mote_budget *budget,
                              struct mote_network **out);

/* Put the weights where `backend` reads them: charges mapped bytes to the budget, decodes the small vectors,
 * places matrices. On failure the model is as before. The backend must live until mote_network_close. */
mote_status mote_network_place(struct mote_network *model, struct mote_backend *backend);

/* Bytes of the decoded vectors: what place takes as MOTE_MEM_WEIGHTS on a backend that reads matrices in
 * place. */
size_t mote_network_vector_bytes(const struct mote_network *model);

/* Add to *bytes what placing the matrices takes on a backend with memory of its own. */
mote_status mote_network_placed_bytes(const struct mote_network *model, const struct mote_backend_kind *kind,
                                      const struct mote_backend_options *options, size_t *bytes);

void mote_network_close(struct mote_network *model); /* NULL is fine */

#endif
