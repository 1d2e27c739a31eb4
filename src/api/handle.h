/* handle.h: what stands behind the public handles mote_model and mote_session.
 *
 * Owns: nothing but the order of things: budget, catalogue, tokenizer, network, backend, forward; each needs those
 * before it and is taken down after those behind it.
 */
#ifndef MOTE_API_HANDLE_H
#define MOTE_API_HANDLE_H

#include "mote.h"

#include "engine/sampler.h"
#include "engine/session.h"
#include "engine/vocab.h"
#include "model/plan.h"

struct mote_model {
    struct mote_budget *budget;
    struct mote_catalogue *catalogue;
    struct mote_network *network;
    struct mote_tokenizer *tokenizer; /* NULL: the model carries none; text calls say so */
    struct mote_backend *backend;
    struct mote_forward *forward;
    const struct mote_backend_kind *kind;
    struct mote_backend_options backend_options;
    mote_progress_fn *progress;
    void *progress_context;
    int64_t n_ctx, n_batch;
    enum mote_kv_type kv_type;
    char kernels[24];   /* "avx2", "sm_90a": for describe */
    char *name, *arch;  /* likewise */
    char *no_tokenizer; /* why there is none */
};

struct mote_session {
    struct mote_model *model;
    struct mote_timeline *timeline;
    volatile int cancel;
};

/* "cpu", "cuda", "cuda:N" (NULL: cpu) to a kind of backend and which device of it. */
mote_status mote_device_choose(const char *text, const struct mote_backend_kind **kind, int *index);

/* "fused" (also NULL), "unfused", "portable"; MOTE_ARGUMENT for others. */
mote_status mote_moe_kernels_parse(const char *text, enum mote_moe_kernels *out);

/* Bytes that are free now on NVIDIA device `index`, which is opened for it; 0: not known. device_info.c */
size_t mote_device_room(int index);

/* MOTE_NOT_FOUND with the reason when the model carries no tokenizer. */
mote_status mote_model_need_tokenizer(const struct mote_model *model);

/* Copy `size` bytes of caller's options over defaults: an older caller's struct is shorter, a newer one's longer. */
#define MOTE_TAKE_OPTIONS(own, given) \
    memcpy(&(own), (given), (given)->struct_size < sizeof(own) ? (given)->struct_size : sizeof(own))

#endif
