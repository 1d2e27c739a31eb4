/* vocabulary.c: tokens and how they are found: hash tables, the byte alphabet.
 *
 * Owns: the arrays of a tokenizer and their lifetime. Does not know where tokens come from nor how text becomes
 * words. One idea: every token is kept twice, as the vocabulary spells it and as it appears in text.
 */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- bytes -> id ---- */

static size_t slots_for(size_t n)
{
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

mote_status mote_table_init(struct mote_table *table, struct mote_arena *arena, size_t n)
{
    size_t size = slots_for(n);
    table->mask = size - 1;
    return mote_arena_alloc(arena, size * sizeof *table->slot, &table->slot);
}

static int same(const struct mote_piece *piece, const char *data, size_t length)
{
    return piece->length == length && (!length || !memcmp(piece->data, data, length));
}

int32_t mote_table_put(struct mote_table *table, const struct mote_piece *piece, int32_t id)
{
    const struct mote_piece *key = &piece[id];
    size_t at = mote_hash(key->data, key->length) & table->mask;
    for (; table->slot[at]; at = (at + 1) & table->mask)
        if (same(&piece[table->slot[at] - 1], key->data, key->length)) return (int32_t)table->slot[at] - 1;
    table->slot[at] = (uint32_t)id + 1;
    return id;
}

int32_t mote_table_find(const struct mote_table *table, const struct mote_piece *piece, const char *data,
                        size_t length, uint64_t hash)
{
    for (size_t at = hash & table->mask; table->slot[at]; at = (at + 1) & table->mask)
        if (same(&piece[table->slot[at] - 1], data, length)) return (int32_t)table->slot[at] - 1;
    return -1;
}

static int32_t find_spelling(const struct mote_tokenizer *t, const char *data, size_t length)
{
    return mote_table_find(&t->by_spelling, t->spelling, data, length, mote_hash(data, length));
}

/* ---- the byte alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100 on ---- */

static int printable(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

uint32_t mote_alphabet_char(unsigned char byte)
{
    if (printable(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    return byte == 173 ? 256 + 67 : 256u + 33 + (byte - 127u);
}

int mote_alphabet_byte(uint32_t character)
{
    if (character < 256) return printable(character) ? (int)character : -1;
    if (character >= 256 + 68) return -1;
    int index = (int)character - 256;
    return index <= 32 ? index : index == 67 ? 173 : 127 + index - 33;
}

size_t mote_alphabet_spell(const char *data, size_t length, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += (size_t)mote_utf8_put(mote_alphabet_char((unsigned char)data[i]), out + n);
    return n;
}

int mote_alphabet_bytes(const struct mote_piece *word, char *out, size_t *n)
{
    size_t count = 0;
    for (size_t at = 0; at < word->length;) {
        uint32_t character;
        int step = mote_utf8_next(word->data + at, word->length - at, &character);
        int byte = step ? mote_alphabet_byte(character) : -1;
        if (byte < 0) return 0;
        if (out) out[count] = (char)byte;
        count++;
        at += (size_t)step;
    }
    *n = count;
    return 1;
}

/* ---- building ---- */

mote_status mote_tokenizer_new(size_t n_token, struct mote_budget *budget, struct mote_tokenizer **out)
{
    struct mote_tokenizer *t;
    *out = NULL;
    FAIL_IF(n_token == 0 || n_token > MOTE_MAX_TOKENS, MOTE_FORMAT, "tokenizer: %zu tokens, expected 1 to %d",
            n_token, MOTE_MAX_TOKENS);
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *t, &t));
    mote_arena_init(&t->arena, budget, MOTE_MEM_TABLES);
    t->budget = budget;
    t->n_token = n_token;
    t->bos = t->eos = t->eot = t->unk = t->pad = -1;
    for (int i = 0; i < 256; i++) t->byte_id[i] = -1;
    mote_status status;
    TRY_GOTO(mote_arena_alloc(&t->arena, n_token * sizeof *t->spelling, &t->spelling), status, fail);
    TRY_GOTO(mote_arena_alloc(&t->arena, n_token * sizeof *t->bytes, &t->bytes), status, fail);
    TRY_GOTO(mote_arena_alloc(&t->arena, n_token * sizeof *t->kind, &t->kind), status, fail);
    TRY_GOTO(mote_arena_alloc(&t->arena, n_token, &t->ends), status, fail);
    *out = t;
    return MOTE_OK;
fail:
    mote_tokenizer_destroy(t);
    return status;
}

void mote_tokenizer_destroy(struct mote_tokenizer *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->n_step; i++) mote_regex_destroy(t->step[i].regex);
    mote_arena_free(&t->arena);
    mote_mem_free(t);
}

mote_status mote_tokenizer_set(struct mote_tokenizer *t, size_t id, const char *data, size_t length,
                               int32_t kind)
{
    char *copy;
    FAIL_IF(id >= t->n_token, MOTE_FORMAT, "tokenizer: id %zu, there are %zu tokens", id, t->n_token);
    FAIL_IF(length > 1 << 20, MOTE_FORMAT, "tokenizer: token %zu has %zu bytes", id, length);
    FAIL_IF(kind < MOTE_TOKEN_NORMAL || kind > MOTE_TOKEN_BYTE, MOTE_FORMAT,
            "tokenizer: token %zu has type %d", id, (int)kind);
    TRY(mote_arena_strdup(&t->arena, data, length, &copy));
    t->spelling[id] = (struct mote_piece){copy, length};
    t->kind[id] = kind;
    return MOTE_OK;
}

/* <0xXX> of score-based vocabularies; -1 when it is none. */
static int byte_token(const struct mote_piece *piece)
{
    unsigned byte = 0;
    if (piece->length != 6 || memcmp(piece->data, "<0x", 3) || piece->data[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = piece->data[i];
        if (c >= '0' && c <= '9') byte = byte * 16 + (unsigned)(c - '0');
        else if (c >= 'A' && c <= 'F') byte = byte * 16 + (unsigned)(c - 'A' + 10);
        else return -1;
    }
    return (int)byte;
}

/* The bytes of token `id` in text, into `out` (as long as the spelling); returns their number. */
static size_t bytes_of(const struct mote_tokenizer *t, size_t id, char *out)
{
    const struct mote_piece *piece = &t->spelling[id];
    size_t n = 0;
    int raw = t->kind[id] != MOTE_TOKEN_NORMAL && t->kind[id] != MOTE_TOKEN_BYTE;
    if (t->byte_level) {
        if (!raw && mote_alphabet_bytes(piece, out, &n)) return n;
        memcpy(out, piece->data, piece->length);
        return piece->length;
    }
    if (t->kind[id] == MOTE_TOKEN_BYTE && byte_token(piece) >= 0) {
        out[0] = (char)byte_token(piece);
        return 1;
    }
    for (size_t at = 0; at < piece->length;) {
        if (!raw && piece->length - at >= 3 && !memcmp(piece->data + at, MOTE_SPACE_MARK, 3)) {
            out[n++] = ' ';
            at += 3;
        } else {
            out[n++] = piece->data[at++];
        }
    }
    return n;
}

mote_status mote_tokenizer_index(struct mote_tokenizer *t)
{
    TRY(mote_table_init(&t->by_spelling, &t->arena, t->n_token));
    for (size_t id = 0; id < t->n_token; id++) {
        char name[32], *bytes;
        if (!t->spelling[id].data) {
            int length = snprintf(name, sizeof name, "[PAD%zu]", id);
            TRY(mote_tokenizer_set(t, id, name, (size_t)length, MOTE_TOKEN_UNUSED));
        }
        TRY(mote_arena_alloc(&t->arena, t->spelling[id].length + 1, &bytes));
        t->bytes[id] = (struct mote_piece){bytes, bytes_of(t, id, bytes)};
        if (t->bytes[id].length > t->max_bytes) t->max_bytes = t->bytes[id].length;
        mote_table_put(&t->by_spelling, t->spelling,
                       (int32_t)id); /* the first of two with one spelling stays */
    }
    for (int byte = 0; byte < 256; byte++) {
        char name[8], c = (char)byte;
        size_t length = t->byte_level ? mote_alphabet_spell(&c, 1, name)
                                      : (size_t)snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        int32_t id = find_spelling(t, name, length);
        if (id >= 0 && t->kind[id] != MOTE_TOKEN_UNUSED) t->byte_id[byte] = id;
    }
    return MOTE_OK;
}

mote_status mote_tokenizer_merge(struct mote_tokenizer *t, const char *left, size_t n_left, const char *right,
                                 size_t n_right, uint32_t rank)
{
    char small[512], *joined = small;
    int32_t a = find_spelling(t, left, n_left), b = find_spelling(t, right, n_right), c;
    if (n_left + n_right > sizeof small)
        TRY(mote_mem_alloc(t->budget, MOTE_MEM_TABLES, n_left + n_right, &joined));
    memcpy(joined, left, n_left);
    memcpy(joined + n_left, right, n_right);
    c = find_spelling(t, joined, n_left + n_right);
    if (joined != small) mote_mem_free(joined);
    FAIL_IF(a < 0 || b < 0 || c < 0, MOTE_FORMAT,
            "tokenizer: merge %u, \"%.*s\" and \"%.*s\": %s is not a token", rank, (int)n_left, left,
            (int)n_right, right,
            a < 0   ? "the first"
            : b < 0 ? "the second"
                    : "the result");
    mote_merges_put(&t->merges, a, b, rank, c);
    return MOTE_OK;
}

/* ---- tokens that end a generation, by name: metadata name one or two, models use more ---- */

static const char *const end_names[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "<|eot|>",
    "<turn|>",
    "[e~[",
    "<|im_assistant_end|>",
    "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", /* DeepSeek: fullwidth bars, U+2581 */
};

static mote_status index_words(struct mote_tokenizer *t)
{
    struct mote_encoder e = {.t = t};
    int32_t ids[4];
    mote_status status = MOTE_OK;
    TRY(mote_table_init(&t->words, &t->arena, t->n_token));
    e.ids = ids;
    t->merges_make_all = 1;
    /* While the table is empty, encoding a word is what the merges make of it. */
    struct mote_table full = t->words;
    TRY(mote_table_init(&t->words, &t->arena, 1));
    const struct mote_piece *key = t->byte_level ? t->bytes : t->spelling;
    for (size_t id = 0; id < t->n_token && status == MOTE_OK; id++) {
        if (t->kind[id] != MOTE_TOKEN_NORMAL || !key[id].length) continue;
        if (t->byte_level) { /* spelled outside the alphabet: no word is */
            size_t n;
            if (!mote_alphabet_bytes(&t->spelling[id], NULL, &n)) continue;
        }
        e.n = 0;
        e.capacity = 4;
        status = mote_encode_word(&e, key[id].data, key[id].length);
        int made = e.n == 1 && ids[0] == (int32_t)id;
        t->merges_make_all &= made;
        if (status == MOTE_OK && (made || t->ignore_merges)) mote_table_put(&full, key, (int32_t)id);
    }
    t->words = full;
    mote_mem_free(e.symbol);
    mote_mem_free(e.heap);
    return status;
}

mote_status mote_tokenizer_finish(struct mote_tokenizer *t)
{
    t->words_at_mark = !t->byte_level;
    for (size_t id = 0; id < t->n_token && t->words_at_mark; id++) {
        const struct mote_piece *piece = &t->spelling[id];
        if (t->kind[id] != MOTE_TOKEN_NORMAL) continue;
        for (size_t at = 3; at + 3 <= piece->length; at++)
            if (!memcmp(piece->data + at, MOTE_SPACE_MARK, 3) &&
                memcmp(piece->data + at - 3, MOTE_SPACE_MARK, 3))
                t->words_at_mark = 0;
        /* One or two bytes in front of the mark: */
        for (size_t at = 1; at < 3 && at + 3 <= piece->length; at++)
            if (!memcmp(piece->data + at, MOTE_SPACE_MARK, 3)) t->words_at_mark = 0;
    }
    TRY(index_words(t));
    int32_t special[] = {t->bos, t->eos, t->eot, t->unk, t->pad};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        FAIL_IF(special[i] < -1 || special[i] >= (int64_t)t->n_token, MOTE_FORMAT,
                "tokenizer: special token id %d, there are %zu tokens", (int)special[i], t->n_token);
    if (t->eos >= 0) t->ends[t->eos] = 1;
    if (t->eot >= 0) t->ends[t->eot] = 1;
    /* Where <|return|> ends a turn, <|end|> only ends a message. */
    int has_return = find_spelling(t, "<|return|>", 10) >= 0;
    for (size_t i = 0; i < sizeof end_names / sizeof *end_names; i++) {
        int32_t id = find_spelling(t, end_names[i], strlen(end_names[i]));
        if (id < 0 || t->kind[id] == MOTE_TOKEN_NORMAL) continue;
        if (has_return && !strcmp(end_names[i], "<|end|>")) continue;
        t->ends[id] = 1;
        if (t->eot < 0 && id != t->eos && strcmp(end_names[i], "<|endoftext|>")) t->eot = id;
    }
    return MOTE_OK;
}
