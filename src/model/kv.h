/* kv.h: keys and values of one sequence.
 *
 * Owns: the cache's memory (kind KV) and how many positions of it are valid. One allocation per sequence.
 */
#ifndef MOTE_MODEL_KV_H
#define MOTE_MODEL_KV_H

#include "model/model.h"

struct mote_kv {
    struct mote_kv_view view;
    int64_t n_past; /* positions [0, n_past) hold keys and values */
    struct mote_backend *backend;
};

/* Bytes that create takes. Fails with MOTE_ARGUMENT: n_ctx < 1, sizes that overflow, q8_0 with a head_dim
 * that is not a multiple of 32. */
mote_status mote_kv_bytes(const struct mote_hyper *hyper, enum mote_kv_type type, int64_t n_ctx,
                          size_t *bytes);
mote_status mote_kv_create(const struct mote_hyper *hyper, enum mote_kv_type type, int64_t n_ctx,
                           struct mote_backend *backend, struct mote_kv *out);
void mote_kv_destroy(struct mote_kv *kv); /* zeroed or destroyed is fine */
/* Forget positions from n_past on. Fails with MOTE_ARGUMENT when there are not that many. */
mote_status mote_kv_truncate(struct mote_kv *kv, int64_t n_past);

#endif
