/* tokenizer.c: the public functions: encode, look up, end.
 *
 * One idea: encoding is a pipeline of functions that push text on to the next and ids out at the end; a counter
 * goes on when the caller's array is full, so that one call tells how much room is needed.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

static mote_status encode_normalized(struct mote_encoder *e, const char *text, size_t length)
{
    struct mote_piece normal;
    TRY(mote_normalize(e->t, &e->normal, text, length, &normal));
    return mote_added_split(e, &e->t->normalized, normal.data, normal.length, mote_pretokenize);
}

mote_status mote_encode_text(struct mote_encoder *e, const char *text, size_t length)
{
    return mote_added_split(e, &e->t->raw, text, length, encode_normalized);
}

mote_status mote_tokenize_part(const struct mote_tokenizer *t, const char *text, size_t length, int flags,
                               int at_start, int32_t *ids, size_t capacity, size_t *n)
{
    struct mote_encoder e = {.t = t,
                             .special = flags & MOTE_ENCODE_SPECIAL,
                             .at_start = at_start,
                             .ids = ids,
                             .capacity = capacity};
    *n = 0;
    FAIL_IF(length > INT32_MAX, MOTE_ARGUMENT, "tokenizer: a text of %zu bytes, at most %d at once", length,
            INT32_MAX);
    mote_status status = MOTE_OK;
    if (length) status = mote_regex_work_create(t->budget, &e.regex);
    if (status == MOTE_OK && length >= 32 * 1024)
        status = mote_mem_calloc(t->budget, MOTE_MEM_SCRATCH, MOTE_CACHE_SIZE, sizeof *e.cache, &e.cache);
    if ((flags & MOTE_ENCODE_BOS) && t->add_bos && t->bos >= 0) mote_encoder_put(&e, t->bos);
    if (status == MOTE_OK && length) status = mote_encode_text(&e, text, length);
    if ((flags & MOTE_ENCODE_BOS) && t->add_eos && t->eos >= 0) mote_encoder_put(&e, t->eos);
    mote_regex_work_destroy(e.regex);
    mote_mem_free(e.symbol);
    mote_mem_free(e.heap);
    mote_mem_free(e.cache);
    mote_mem_free(e.normal.data);
    mote_mem_free(e.shadow.data);
    mote_mem_free(e.marked[0].data);
    mote_mem_free(e.marked[1].data);
    TRY(status);
    *n = e.n;
    FAIL_IF(e.n > capacity, MOTE_ARGUMENT, "tokenizer: %zu ids, there is room for %zu", e.n, capacity);
    return MOTE_OK;
}

mote_status mote_tokenize(const struct mote_tokenizer *t, const char *text, size_t length, int flags,
                          int32_t *ids, size_t capacity, size_t *n)
{
    return mote_tokenize_part(t, text, length, flags, 1, ids, capacity, n);
}

size_t mote_tokenizer_size(const struct mote_tokenizer *t)
{
    return t->n_token;
}

int32_t mote_token_bos(const struct mote_tokenizer *t)
{
    return t->bos;
}

static int known(const struct mote_tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_token;
}

int mote_token_ends(const struct mote_tokenizer *t, int32_t id)
{
    return known(t, id) && t->ends[id];
}

enum mote_token_kind mote_token_kind_of(const struct mote_tokenizer *t, int32_t id)
{
    return known(t, id) ? (enum mote_token_kind)t->kind[id] : MOTE_TOKEN_UNUSED;
}

int32_t mote_token_find(const struct mote_tokenizer *t, const char *text)
{
    size_t length = strlen(text);
    uint64_t hash = mote_hash(text, length);
    int32_t id = mote_table_find(&t->by_spelling, t->spelling, text, length, hash);
    if (id >= 0 && t->kind[id] != MOTE_TOKEN_NORMAL) return id;
    int32_t word = mote_table_find(&t->words, t->byte_level ? t->bytes : t->spelling, text, length, hash);
    return word >= 0 ? word : id;
}

struct mote_piece mote_token_bytes(const struct mote_tokenizer *t, int32_t id, int special)
{
    if (!known(t, id)) return (struct mote_piece){"", 0};
    int silent = t->kind[id] == MOTE_TOKEN_CONTROL || t->kind[id] == MOTE_TOKEN_UNUSED;
    return silent && !special ? (struct mote_piece){"", 0} : t->bytes[id];
}

size_t mote_token_max_bytes(const struct mote_tokenizer *t)
{
    return t->max_bytes;
}
