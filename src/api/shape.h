/* shape.h: the true shapes of published models: what mote synth writes and mote bench times. */
#ifndef MOTE_API_SHAPE_H
#define MOTE_API_SHAPE_H

#include <stddef.h>
#include <stdint.h>

struct mote_shape {
    const char *name, *arch; /* arch: GGUF's general.architecture */
    int64_t n_layer, d_model, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    int64_t n_expert, n_used, n_ff_expert, n_ff_shared; /* n_ff_shared 0: no shared expert */
    double rope_base, eps;
    int renormalise, qk_norm, qkv_bias, tied;
};

const struct mote_shape *mote_shape_at(size_t index);       /* NULL past the end */
const struct mote_shape *mote_shape_find(const char *name); /* NULL if unknown */

#endif
