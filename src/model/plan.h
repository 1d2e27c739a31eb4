/* plan.h: how much memory a run will take, by kind, before anything is taken.
 *
 * One idea: the numbers come from the same functions that size the allocations, so that plan and run agree to
 * the byte for mapped weights, KV and scratch; tables (catalogue, names, tokenizer) are what is in use plus
 * an estimate.
 */
#ifndef MOTE_MODEL_PLAN_H
#define MOTE_MODEL_PLAN_H

#include "model/forward.h"

struct mote_memory_plan_options {
    const struct mote_backend_kind *backend;
    struct mote_backend_options backend_options;
    struct mote_forward_options forward;
    enum mote_kv_type kv_type;
    int64_t n_ctx;
    int64_t n_sequence; /* caches of n_ctx each */
};

struct mote_memory_plan {
    size_t bytes[MOTE_MEM_KIND_COUNT];
    size_t total;
};

/* Fails with MOTE_ARGUMENT on options that no run accepts. Does not fail for being over a budget: compare
 * total. */
mote_status mote_memory_plan_make(const struct mote_network *model,
                                  const struct mote_memory_plan_options *options,
                                  struct mote_memory_plan *out);

/* MOTE_BUDGET, with the parts and the limit in the message, when the plan does not fit. limit 0: fits. */
mote_status mote_memory_plan_check(const struct mote_memory_plan *plan, size_t limit);

#endif
