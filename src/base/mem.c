/* mem.c: see mem.h. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct mote_budget {
    size_t limit;
    _Atomic size_t used[MOTE_MEM_KIND_COUNT];
    _Atomic size_t total;
    _Atomic size_t peak;
};

/* In front of every block, so that free needs the pointer alone; 64 bytes keep the block aligned. */
struct block_head {
    struct mote_budget *budget;
    size_t size; /* what the caller asked for */
    enum mote_mem_kind kind;
    char pad[64 - sizeof(void *) - sizeof(size_t) - sizeof(enum mote_mem_kind)];
};
_Static_assert(sizeof(struct block_head) == 64, "the head keeps blocks 64-byte aligned");

static struct mote_budget global_budget;
static _Atomic long fail_countdown;

void mote_mem_fail_at(long n)
{
    atomic_store(&fail_countdown, n);
}

size_t mote_mem_global_total(void)
{
    return atomic_load(&global_budget.total);
}

const char *mote_mem_kind_name(enum mote_mem_kind kind)
{
    static const char *const names[] = {
#define X(id, name) name,
        MOTE_MEM_KINDS(X)
#undef X
    };
    return (unsigned)kind < MOTE_MEM_KIND_COUNT ? names[kind] : "?";
}

mote_status mote_budget_create(size_t limit, struct mote_budget **out)
{
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof **out, out));
    (*out)->limit = limit;
    return MOTE_OK;
}

void mote_budget_destroy(struct mote_budget *budget)
{
    mote_mem_free(budget);
}

size_t mote_budget_used(const struct mote_budget *budget, enum mote_mem_kind kind)
{
    return atomic_load(&budget->used[kind]);
}

size_t mote_budget_total(const struct mote_budget *budget)
{
    return atomic_load(&budget->total);
}

size_t mote_budget_peak(const struct mote_budget *budget)
{
    return atomic_load(&budget->peak);
}

mote_status mote_budget_take(struct mote_budget *budget, enum mote_mem_kind kind, size_t size)
{
    if (!budget) budget = &global_budget;
    size_t total = atomic_load(&budget->total);
    do {
        if (budget->limit && (size > budget->limit || total > budget->limit - size))
            return mote_fail(MOTE_BUDGET, "%s: %zu bytes more, %zu in use, the limit is %zu",
                             mote_mem_kind_name(kind), size, total, budget->limit);
    } while (!atomic_compare_exchange_weak(&budget->total, &total, total + size));
    atomic_fetch_add(&budget->used[kind], size);
    size_t now = total + size, peak = atomic_load(&budget->peak);
    while (now > peak && !atomic_compare_exchange_weak(&budget->peak, &peak, now)) {
    }
    return MOTE_OK;
}

void mote_budget_give(struct mote_budget *budget, enum mote_mem_kind kind, size_t size)
{
    if (!budget) budget = &global_budget;
    atomic_fetch_sub(&budget->used[kind], size);
    atomic_fetch_sub(&budget->total, size);
}

static mote_status allocate(struct mote_budget *budget, enum mote_mem_kind kind, size_t size,
                            struct block_head **out)
{
    *out = NULL;
    if (!budget) budget = &global_budget;
    long countdown = atomic_load(&fail_countdown);
    if (countdown > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1)
        return mote_fail(MOTE_MEMORY, "%s: %zu bytes (failure asked for by a test)", mote_mem_kind_name(kind),
                         size);
    size_t whole;
    if (!mote_add_size(size, sizeof(struct block_head) + 63, &whole))
        return mote_fail(MOTE_MEMORY, "%s: %zu bytes are more than an address space",
                         mote_mem_kind_name(kind), size);
    whole &= ~(size_t)63;
    TRY(mote_budget_take(budget, kind, size));
    struct block_head *head = aligned_alloc(64, whole);
    if (!head) {
        mote_budget_give(budget, kind, size);
        return mote_fail(MOTE_MEMORY, "%s: the system has no %zu bytes", mote_mem_kind_name(kind), size);
    }
    head->budget = budget;
    head->size = size;
    head->kind = kind;
    *out = head;
    return MOTE_OK;
}

mote_status mote_mem_alloc(struct mote_budget *budget, enum mote_mem_kind kind, size_t size, void *out)
{
    struct block_head *head;
    void *block = NULL;
    mote_status status = allocate(budget, kind, size, &head);
    if (status == MOTE_OK) block = head + 1;
    memcpy(out, &block, sizeof block);
    return status;
}

mote_status mote_mem_calloc(struct mote_budget *budget, enum mote_mem_kind kind, size_t count, size_t size,
                            void *out)
{
    size_t whole;
    void *block = NULL;
    memcpy(out, &block, sizeof block);
    FAIL_IF(!mote_mul_size(count, size, &whole), MOTE_MEMORY, "%s: %zu x %zu bytes overflow",
            mote_mem_kind_name(kind), count, size);
    TRY(mote_mem_alloc(budget, kind, whole, &block));
    memset(block, 0, whole);
    memcpy(out, &block, sizeof block);
    return MOTE_OK;
}

mote_status mote_mem_resize(struct mote_budget *budget, enum mote_mem_kind kind, size_t size, void *ptr)
{
    void *old, *block;
    memcpy(&old, ptr, sizeof old);
    size_t kept = 0;
    if (old) {
        struct block_head *head = (struct block_head *)old - 1;
        budget = head->budget;
        kind = head->kind;
        kept = head->size < size ? head->size : size;
    }
    TRY(mote_mem_alloc(budget, kind, size, &block));
    if (kept) memcpy(block, old, kept);
    mote_mem_free(old);
    memcpy(ptr, &block, sizeof block);
    return MOTE_OK;
}

mote_status mote_mem_strdup(struct mote_budget *budget, const char *text, size_t length, char **out)
{
    TRY(mote_mem_alloc(budget, MOTE_MEM_TABLES, length + 1, out));
    if (length) memcpy(*out, text, length);
    (*out)[length] = 0;
    return MOTE_OK;
}

void mote_mem_free(void *block)
{
    if (!block) return;
    struct block_head *head = (struct block_head *)block - 1;
    mote_budget_give(head->budget, head->kind, head->size);
    free(head);
}

/* ---- arena ---- */

enum { ARENA_CHUNK = 64 * 1024 };

struct mote_arena_chunk {
    struct mote_arena_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

void mote_arena_init(struct mote_arena *arena, struct mote_budget *budget, enum mote_mem_kind kind)
{
    *arena = (struct mote_arena){.budget = budget, .kind = kind};
}

void mote_arena_free(struct mote_arena *arena)
{
    for (struct mote_arena_chunk *chunk = arena->chunk, *next; chunk; chunk = next) {
        next = chunk->next;
        mote_mem_free(chunk);
    }
    arena->chunk = NULL;
}

mote_status mote_arena_alloc(struct mote_arena *arena, size_t size, void *out)
{
    void *block = NULL;
    memcpy(out, &block, sizeof block);
    size_t want;
    FAIL_IF(!mote_add_size(size, 15, &want), MOTE_MEMORY, "arena: %zu bytes are too many", size);
    want &= ~(size_t)15;
    struct mote_arena_chunk *chunk = arena->chunk;
    if (!chunk || chunk->size - chunk->used < want) {
        size_t bytes = want > ARENA_CHUNK ? want : ARENA_CHUNK;
        FAIL_IF(!mote_add_size(bytes, sizeof *chunk, &bytes), MOTE_MEMORY, "arena: %zu bytes are too many",
                size);
        TRY(mote_mem_calloc(arena->budget, arena->kind, 1, bytes, &chunk));
        chunk->size = bytes - sizeof *chunk;
        chunk->next = arena->chunk;
        arena->chunk = chunk;
    }
    block = chunk->bytes + chunk->used;
    chunk->used += want;
    memcpy(out, &block, sizeof block);
    return MOTE_OK;
}

mote_status mote_arena_strdup(struct mote_arena *arena, const char *text, size_t length, char **out)
{
    TRY(mote_arena_alloc(arena, length + 1, out));
    if (length) memcpy(*out, text, length);
    return MOTE_OK;
}
