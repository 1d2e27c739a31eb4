/* shape.h: the true shapes of published models: what mote synth writes and mote bench times.
 *
 * One idea: an expert block is a shape without layers: one rank's part of a model that several share ("-tp4": every
 * expert's width split by four; "-ep8": an eighth of the experts), which can be timed but not written as a model. */
#ifndef MOTE_API_SHAPE_H
#define MOTE_API_SHAPE_H

#include <stddef.h>
#include <stdint.h>

struct mote_shape {
    const char *name, *arch; /* arch: GGUF's general.architecture; NULL without layers */
    int64_t n_layer;         /* 0: only d_model and what is of experts is known */
    int64_t d_model, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    int64_t n_expert, n_used, n_ff_expert, n_ff_shared; /* n_ff_shared 0: no shared expert */
    double rope_base, eps;
    int renormalise, qk_norm, qkv_bias, tied;
};

const struct mote_shape *mote_shape_at(size_t index);       /* whole models first; NULL past the end */
const struct mote_shape *mote_shape_find(const char *name); /* NULL if unknown */

#endif
