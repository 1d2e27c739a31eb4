/* plan.c: see plan.h. */
#include "model/plan.h"

#include <string.h>

mote_status mote_memory_plan_make(const struct mote_network *network,
                                  const struct mote_memory_plan_options *options,
                                  struct mote_memory_plan *out)
{
    memset(out, 0, sizeof *out);
    struct mote_backend_limits limits = network->limits;
    limits.max_row = options->forward.max_row;
    size_t backend, forward, tables, cache, caches;
    FAIL_IF(options->n_sequence < 0, MOTE_ARGUMENT, "plan: %lld sequences", (long long)options->n_sequence);
    TRY(options->backend->scratch(&options->backend_options, &limits, &backend));
    TRY(mote_forward_bytes(network, &options->forward, &forward, &tables));
    TRY(mote_kv_bytes(&network->hyper, options->kv_type, options->n_ctx, &cache));
    FAIL_IF(!mote_mul_size(cache, (size_t)options->n_sequence, &caches), MOTE_ARGUMENT,
            "plan: %lld sequences of %lld tokens are more than an address space",
            (long long)options->n_sequence, (long long)options->n_ctx);
    /* A session's own tables: its tokens, one row of logits and its shortlist. */
    size_t session = (size_t)options->n_ctx * sizeof(int32_t) +
                     (size_t)network->hyper.n_vocab * sizeof(float) + sizeof(struct mote_row_kept) + 256;
    size_t in_use = network->budget ? mote_budget_used(network->budget, MOTE_MEM_TABLES) : 0;
    out->bytes[MOTE_MEM_WEIGHTS] = mote_network_vector_bytes(network);
    if (options->backend->weight_bytes)
        TRY(mote_network_placed_bytes(network, options->backend, &options->backend_options,
                                      &out->bytes[MOTE_MEM_WEIGHTS]));
    else out->bytes[MOTE_MEM_MAPPED] = network->mapped_bytes;
    out->bytes[MOTE_MEM_KV] = caches;
    out->bytes[MOTE_MEM_SCRATCH] = backend + forward;
    out->bytes[MOTE_MEM_TABLES] = in_use + tables + session * (size_t)options->n_sequence + 4096;
    for (int kind = 0; kind < MOTE_MEM_KIND_COUNT; kind++)
        FAIL_IF(!mote_add_size(out->total, out->bytes[kind], &out->total), MOTE_ARGUMENT,
                "plan: more than an address space");
    return MOTE_OK;
}

mote_status mote_memory_plan_check(const struct mote_memory_plan *plan, size_t limit)
{
    FAIL_IF(limit && plan->total > limit, MOTE_BUDGET,
            "the run needs %zu bytes (mapped weights %zu, weights %zu, KV cache %zu, scratch %zu, tables "
            "%zu), the "
            "limit is %zu",
            plan->total, plan->bytes[MOTE_MEM_MAPPED], plan->bytes[MOTE_MEM_WEIGHTS],
            plan->bytes[MOTE_MEM_KV], plan->bytes[MOTE_MEM_SCRATCH], plan->bytes[MOTE_MEM_TABLES], limit);
    return MOTE_OK;
}
