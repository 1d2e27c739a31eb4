/* mem.h: memory, counted.
 *
 * Owns: the budget (a hard limit in bytes, counted by kind) and the only allocator the library uses.
 * Does not own: mapped files (mapfile.h reports those as MOTE_MEM_MAPPED to the same budget).
 * One idea: an allocation that would pass the limit fails with both numbers before anything is taken.
 */
#ifndef MOTE_BASE_MEM_H
#define MOTE_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* X(id, name): what memory is for. */
#define MOTE_MEM_KINDS(X)                                               \
    X(MAPPED, "mapped weights") /* file pages the run reads in place */ \
    X(WEIGHTS, "weights")       /* weights in memory of our own */      \
    X(CACHE, "expert cache")                                            \
    X(KV, "KV cache")                                                   \
    X(SCRATCH, "scratch")                                               \
    X(TABLES, "tables") /* catalogue, vocabulary, program state */

enum mote_mem_kind {
#define X(id, name) MOTE_MEM_##id,
    MOTE_MEM_KINDS(X)
#undef X
        MOTE_MEM_KIND_COUNT
};

struct mote_budget; /* opaque, thread-safe */

/* limit: bytes, 0 for none. */
mote_status mote_budget_create(size_t limit, struct mote_budget **out);
void mote_budget_destroy(struct mote_budget *budget); /* NULL is fine; everything taken must be freed first */
size_t mote_budget_used(const struct mote_budget *budget, enum mote_mem_kind kind);
size_t mote_budget_total(const struct mote_budget *budget); /* live bytes of all kinds */
size_t mote_budget_peak(const struct mote_budget *budget);  /* highest total so far */
const char *mote_mem_kind_name(enum mote_mem_kind kind);

/* Count bytes that are not allocated here (mapped files). Fails with MOTE_BUDGET, both numbers named. */
mote_status mote_budget_take(struct mote_budget *budget, enum mote_mem_kind kind, size_t size);
void mote_budget_give(struct mote_budget *budget, enum mote_mem_kind kind, size_t size);

/* Allocate `size` bytes, 64-byte aligned, not zeroed (mem_calloc: zeroed, count * size checked for overflow).
 * budget may be NULL: counted against the process-wide budget that has no limit. size 0 gives a unique pointer.
 * Fails with MOTE_MEMORY or MOTE_BUDGET; *out is NULL then. The block remembers its budget: free with
 * mote_mem_free alone. */
mote_status mote_mem_alloc(struct mote_budget *budget, enum mote_mem_kind kind, size_t size, void *out);
mote_status mote_mem_calloc(struct mote_budget *budget, enum mote_mem_kind kind, size_t count, size_t size,
                            void *out);
/* Grow or shrink, contents kept; *ptr may be NULL (then kind and budget are those given). On failure *ptr stays. */
mote_status mote_mem_resize(struct mote_budget *budget, enum mote_mem_kind kind, size_t size, void *ptr);
mote_status mote_mem_strdup(struct mote_budget *budget, const char *text, size_t length, char **out);
void mote_mem_free(void *block); /* NULL is fine */

/* Live bytes of the process-wide budget (tests: nothing may be left). */
size_t mote_mem_global_total(void);

/* Test hook: the n-th allocation from now fails with MOTE_MEMORY (n >= 1; 0 switches it off). */
void mote_mem_fail_at(long n);

/* ---- arena: many small allocations freed at once ---- */
struct mote_arena {
    struct mote_budget *budget;
    enum mote_mem_kind kind;
    struct mote_arena_chunk *chunk; /* newest first */
};
void mote_arena_init(struct mote_arena *arena, struct mote_budget *budget, enum mote_mem_kind kind);
void mote_arena_free(struct mote_arena *arena);
mote_status mote_arena_alloc(struct mote_arena *arena, size_t size, void *out); /* 16-byte aligned, zeroed */
mote_status mote_arena_strdup(struct mote_arena *arena, const char *text, size_t length, char **out);

/* out parameters above are `void *` so that any pointer's address can be passed without a cast. */

/* a * b with overflow check: false on overflow. */
static inline int mote_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline int mote_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
