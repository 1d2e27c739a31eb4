/* bpe.c: a word to ids by merging neighbours, lowest rank first, leftmost among equals.
 *
 * Owns: the merge table and the merge loop, for both kinds of vocabulary.
 * One idea: symbols are a linked list, candidate pairs a binary heap of (rank, position) in one integer; an entry
 * whose pair has changed since is recognised by its rank and dropped. n symbols cost O(n log n) at most.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- merge table ---- */

static size_t pair_slot(uint64_t pair)
{
    pair *= 0x9E3779B97F4A7C15u;
    return (size_t)(pair ^ pair >> 32);
}

mote_status mote_merges_init(struct mote_merges *merges, struct mote_arena *arena, size_t n)
{
    size_t size = 16;
    FAIL_IF(n > MOTE_MAX_TOKENS * (size_t)4, MOTE_FORMAT, "tokenizer: %zu merges", n);
    while (size < 2 * n) size *= 2;
    TRY(mote_arena_alloc(arena, size * sizeof *merges->slot, &merges->slot));
    for (size_t i = 0; i < size; i++) merges->slot[i].pair = UINT64_MAX;
    merges->mask = size - 1;
    return MOTE_OK;
}

/* A pair that comes twice keeps the later rank, as `tokenizers` has it. */
void mote_merges_put(struct mote_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = pair_slot(pair) & merges->mask;
    while (merges->slot[at].pair != UINT64_MAX && merges->slot[at].pair != pair) at = (at + 1) & merges->mask;
    merges->slot[at] = (struct mote_merge_slot){pair, rank, merged};
}

const struct mote_merge_slot *mote_merges_find(const struct mote_merges *merges, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t at = pair_slot(pair) & merges->mask; merges->slot[at].pair != UINT64_MAX;
         at = (at + 1) & merges->mask)
        if (merges->slot[at].pair == pair) return &merges->slot[at];
    return NULL;
}

/* ---- heap of rank << 32 | position, smallest on top ---- */

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (value <= heap[child]) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void push(uint64_t *heap, size_t *n, uint64_t value)
{
    size_t at = (*n)++;
    for (; at && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

/* Rank the pair that starts at position `at`. */
static void rank_pair(const struct mote_merges *merges, struct mote_symbol *symbol, int32_t at)
{
    const struct mote_merge_slot *slot = NULL;
    if (symbol[at].next >= 0) slot = mote_merges_find(merges, symbol[at].id, symbol[symbol[at].next].id);
    symbol[at].rank = slot ? slot->rank : MOTE_NO_RANK;
    if (slot) symbol[at].merged = slot->merged;
}

/* symbol[n] with ids set; heap has room for 2 * n. Afterwards the list from symbol[0] on is the result. */
static void merge_all(const struct mote_merges *merges, struct mote_symbol *symbol, size_t n, uint64_t *heap)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        symbol[i].prev = (int32_t)i - 1;
        symbol[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < n; i++) {
        rank_pair(merges, symbol, (int32_t)i);
        if (symbol[i].rank != MOTE_NO_RANK) heap[n_heap++] = (uint64_t)symbol[i].rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    while (n_heap) {
        int32_t at = (int32_t)(heap[0] & UINT32_MAX);
        uint32_t rank = (uint32_t)(heap[0] >> 32);
        heap[0] = heap[--n_heap];
        if (n_heap) sift_down(heap, n_heap, 0);
        struct mote_symbol *s = &symbol[at];
        if (s->rank != rank) continue; /* merged away, or another pair by now */
        struct mote_symbol *right = &symbol[s->next];
        right->rank = MOTE_NO_RANK;
        s->id = s->merged;
        s->next = right->next;
        if (s->next >= 0) symbol[s->next].prev = at;
        /* One entry out, at most two in: the heap never holds more than 2 * n. */
        rank_pair(merges, symbol, at);
        if (s->rank != MOTE_NO_RANK) push(heap, &n_heap, (uint64_t)s->rank << 32 | (uint32_t)at);
        if (s->prev < 0) continue;
        struct mote_symbol *left = &symbol[s->prev];
        rank_pair(merges, symbol, s->prev);
        if (left->rank != MOTE_NO_RANK) push(heap, &n_heap, (uint64_t)left->rank << 32 | (uint32_t)s->prev);
    }
}

/* ---- words ---- */

static mote_status reserve_symbols(struct mote_encoder *e, size_t n)
{
    if (n <= e->n_symbol) return MOTE_OK;
    FAIL_IF(n > INT32_MAX / 2, MOTE_ARGUMENT, "tokenizer: a word of %zu bytes, at most %d", n, INT32_MAX / 2);
    size_t room = n + n / 2 + 64;
    e->n_symbol = 0;
    mote_mem_free(e->symbol);
    mote_mem_free(e->heap);
    e->heap = NULL;
    TRY(mote_mem_alloc(e->t->budget, MOTE_MEM_SCRATCH, room * sizeof *e->symbol, &e->symbol));
    TRY(mote_mem_alloc(e->t->budget, MOTE_MEM_SCRATCH, 2 * room * sizeof *e->heap, &e->heap));
    e->n_symbol = room;
    return MOTE_OK;
}

static size_t byte_symbols(const struct mote_tokenizer *t, const char *word, size_t length,
                           struct mote_symbol *symbol)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t id = t->byte_id[(unsigned char)word[i]];
        if (id < 0) id = t->unk;
        /* A vocabulary without this byte and without an unknown token has no way to say it. */
        if (id < 0 || (id == t->unk && t->fuse_unknown && n && symbol[n - 1].id == id)) continue;
        symbol[n++].id = id;
    }
    return n;
}

mote_status mote_encode_word(struct mote_encoder *e, const char *word, size_t length)
{
    const struct mote_tokenizer *t = e->t;
    uint64_t hash = mote_hash(word, length);
    int32_t whole = mote_table_find(&t->words, t->byte_level ? t->bytes : t->spelling, word, length, hash);
    if (whole >= 0) {
        mote_encoder_put(e, whole);
        return MOTE_OK;
    }
    struct mote_cached_word *cached = NULL;
    if (e->cache && length <= sizeof cached->key) {
        cached = &e->cache[hash % MOTE_CACHE_SIZE];
        if (cached->length == length && !memcmp(cached->key, word, length)) {
            for (int i = 0; i < cached->n; i++) mote_encoder_put(e, cached->id[i]);
            return MOTE_OK;
        }
    }
    TRY(reserve_symbols(e, length));
    size_t n = t->byte_level ? byte_symbols(t, word, length, e->symbol)
                             : mote_spm_symbols(t, word, length, e->symbol);
    if (!n) return MOTE_OK;
    merge_all(&t->merges, e->symbol, n, e->heap);
    size_t count = 0;
    for (int32_t at = 0; at >= 0; at = e->symbol[at].next) {
        mote_encoder_put(e, e->symbol[at].id);
        if (cached && count < sizeof cached->id / sizeof *cached->id) cached->id[count] = e->symbol[at].id;
        count++;
    }
    if (!cached) return MOTE_OK;
    cached->length = 0; /* more ids than an entry holds: it is not one */
    if (count <= sizeof cached->id / sizeof *cached->id) {
        cached->length = (uint8_t)length;
        cached->n = (uint8_t)count;
        memcpy(cached->key, word, length);
    }
    return MOTE_OK;
}
