/* tokenizer_internal.h: what the files of the tokenizer share. Nothing outside src/text includes it.
 *
 *   text --added.c--> text between added tokens --normalizer.c--> --pretokenizer.c--> words --bpe.c/spm.c--> ids
 *
 * One idea: both kinds of vocabulary end in the same table of merges (pair of ids -> rank, merged id) and the same
 * merge loop; they differ in how a word becomes its first symbols (bytes, or characters with byte fallback) and in
 * where ranks come from (position in the list, or score).
 */
#ifndef MOTE_TEXT_TOKENIZER_INTERNAL_H
#define MOTE_TEXT_TOKENIZER_INTERNAL_H

#include "text/regex.h"
#include "text/tokenizer.h"

enum { MOTE_MAX_TOKENS = 1 << 24, MOTE_MAX_STEPS = 16 };
#define MOTE_SPACE_MARK "\xE2\x96\x81" /* U+2581, a space in score-based vocabularies */

/* ---- vocabulary.c ---- */

/* Bytes -> id, open addressing; ids index an array of pieces that outlives the table. */
struct mote_table {
    uint32_t *slot; /* [mask + 1]: id + 1, 0 when empty */
    size_t mask;
};
mote_status mote_table_init(struct mote_table *table, struct mote_arena *arena, size_t n);
/* Returns the id already there under that key, or `id` after putting it in. */
int32_t mote_table_put(struct mote_table *table, const struct mote_piece *piece, int32_t id);
int32_t mote_table_find(const struct mote_table *table, const struct mote_piece *piece, const char *data,
                        size_t length, uint64_t hash);

static inline uint64_t mote_hash(const char *data, size_t length)
{
    uint64_t hash = length * 0x9E3779B97F4A7C15u, chunk;
    while (length >= 8) {
        __builtin_memcpy(&chunk, data, 8);
        hash = (hash ^ chunk) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
        data += 8;
        length -= 8;
    }
    chunk = 0;
    for (size_t i = 0; i < length; i++) chunk = chunk << 8 | (unsigned char)data[i];
    hash = (hash ^ chunk) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 29;
}

/* GPT-2's byte alphabet: a printable character for every byte. */
uint32_t mote_alphabet_char(unsigned char byte);
int mote_alphabet_byte(uint32_t character);                             /* -1: not in the alphabet */
size_t mote_alphabet_spell(const char *data, size_t length, char *out); /* out: 2 * length bytes */
/* 0 when a character is not in it; out may be NULL */
int mote_alphabet_bytes(const struct mote_piece *word, char *out, size_t *n);

/* ---- unicode.c ---- */

/* Length of the well-formed UTF-8 character at data (1-4), 0 when there is none. */
int mote_utf8_next(const char *data, size_t length, uint32_t *character);
int mote_utf8_put(uint32_t character, char *out); /* out: 4 bytes; returns the length */
/* A character of Unicode 14 with the same category and UTF-8 length, where c is newer or has changed; else 0. */
uint32_t mote_unicode_like(uint32_t c);
int mote_unicode_no_form(uint32_t c); /* normal forms leave it where it is */

/* ---- bpe.c ---- */

struct mote_merges { /* pair of ids -> rank and merged id, open addressing */
    struct mote_merge_slot {
        uint64_t pair; /* left << 32 | right; ~0 when empty */
        uint32_t rank;
        int32_t merged;
    } * slot; /* [mask + 1] */
    size_t mask;
};
mote_status mote_merges_init(struct mote_merges *merges, struct mote_arena *arena, size_t n);
void mote_merges_put(struct mote_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t merged);
const struct mote_merge_slot *mote_merges_find(const struct mote_merges *merges, int32_t left, int32_t right);

struct mote_symbol {        /* one node of the list of what a word is made of so far */
    int32_t id, prev, next; /* -1 at the ends */
    uint32_t rank;          /* of the pair (this, next); MOTE_NO_RANK when it does not merge */
    int32_t merged;         /* what that pair becomes */
};
#define MOTE_NO_RANK UINT32_MAX

/* ---- normalizer.c ---- */

enum mote_normal_kind { MOTE_NFC, MOTE_NFD, MOTE_NFKC, MOTE_NFKD, MOTE_PREPEND, MOTE_REPLACE };
struct mote_normal_step {
    enum mote_normal_kind kind;
    struct mote_piece from, to; /* replace: from -> to; prepend: to */
};

/* ---- added.c ---- */

struct mote_added { /* a token that is matched whole, before anything else */
    struct mote_piece text;
    int32_t id;
    char special, lstrip, rstrip, single_word;
};
struct mote_added_set {
    struct mote_added *item; /* [n], sorted by text */
    size_t n;
    uint32_t first[257]; /* items that start with byte b: [first[b], first[b + 1]) */
};
mote_status mote_added_sort(struct mote_added_set *set);

/* ---- pretokenizer.c ---- */

enum mote_split_behavior {
    MOTE_SPLIT_ISOLATED,
    MOTE_SPLIT_REMOVED,
    MOTE_SPLIT_MERGED_PREVIOUS,
    MOTE_SPLIT_MERGED_NEXT,
    MOTE_SPLIT_CONTIGUOUS
};
enum mote_step_kind { MOTE_STEP_SPLIT, MOTE_STEP_PREFIX, MOTE_STEP_MARK };
enum mote_prepend { MOTE_PREPEND_NEVER, MOTE_PREPEND_FIRST, MOTE_PREPEND_ALWAYS };
struct mote_step {
    enum mote_step_kind kind;
    enum mote_split_behavior behavior; /* split */
    int invert;                        /* split: what is between matches counts as the match */
    const char *pattern;               /* split: as written, in the arena */
    struct mote_regex *regex;          /* split */
    enum mote_prepend prepend;         /* mark: spaces become U+2581, and one is put in front */
};
extern const char mote_pattern_gpt2[];
mote_status mote_steps_add_split(struct mote_tokenizer *t, const char *pattern, size_t length,
                                 enum mote_split_behavior behavior, int invert);
mote_status mote_steps_add(struct mote_tokenizer *t, struct mote_step step);
mote_status mote_steps_by_name(struct mote_tokenizer *t, const char *name); /* and ignore_merges */
const char *mote_steps_name(const struct mote_tokenizer *t);                /* NULL: no name for them */

/* ---- the tokenizer ---- */

struct mote_tokenizer {
    struct mote_arena arena;
    struct mote_budget *budget;
    int byte_level; /* 1: symbols are bytes; 0: characters, with byte fallback */

    size_t n_token;
    struct mote_piece *spelling; /* [n_token] as the vocabulary file has it */
    struct mote_piece *bytes;    /* [n_token] as the token appears in text */
    int32_t *kind;               /* [n_token] enum mote_token_kind */
    float *score;                /* [n_token] or NULL */
    unsigned char *ends;         /* [n_token] 1: generation stops here */
    size_t max_bytes;

    struct mote_table by_spelling; /* every token */
    struct mote_table words;       /* bytes of a word that is exactly one token -> that token */
    struct mote_merges merges;
    int32_t byte_id[256]; /* byte-level: the byte's token; else <0xXX>; -1: none */
    int ignore_merges;    /* a word that is in the vocabulary is that token, whatever the merges say */
    int merges_make_all; /* the merges make every normal token from its bytes: ignore_merges changes nothing */
    int fuse_unknown;
    int words_at_mark; /* no token has U+2581 behind anything else: words can be cut in front of it */

    size_t n_merge;             /* as read, for mote_tokenizer_vocab */
    struct mote_piece *merge;   /* [n_merge] "left right" */
    const char *pre;            /* name given by a GGUF, NULL otherwise */
    const char *bad_score_note; /* why scores cannot say this vocabulary, NULL when they can */

    struct mote_added_set raw, normalized; /* matched before and after the normalizer */
    struct mote_normal_step *normal;       /* [n_normal] */
    size_t n_normal;
    struct mote_step step[MOTE_MAX_STEPS];
    size_t n_step;

    int32_t bos, eos, eot, unk, pad;
    int add_bos, add_eos, add_space_prefix;
    int strip_space; /* the first space of a decoded text was put there by the encoder */
};

mote_status mote_tokenizer_new(size_t n_token, struct mote_budget *budget, struct mote_tokenizer **out);
mote_status mote_tokenizer_set(struct mote_tokenizer *t, size_t id, const char *data, size_t length,
                               int32_t kind);
/* After all tokens are set: names for the unused, bytes, by_spelling. Merges can be put in afterwards. */
mote_status mote_tokenizer_index(struct mote_tokenizer *t);
/* "left right" at rank; both and their concatenation must be tokens. */
mote_status mote_tokenizer_merge(struct mote_tokenizer *t, const char *left, size_t n_left, const char *right,
                                 size_t n_right, uint32_t rank);
/* After merges: whole words, end tokens. */
mote_status mote_tokenizer_finish(struct mote_tokenizer *t);
mote_status mote_spm_merges_from_scores(struct mote_tokenizer *t);
mote_status mote_spm_scores_from_merges(struct mote_tokenizer *t);

/* ---- one call of mote_tokenize ---- */

struct mote_buffer { /* grows, never shrinks */
    char *data;
    size_t length, capacity;
};
mote_status mote_buffer_reserve(struct mote_buffer *buffer, struct mote_budget *budget, size_t more);
mote_status mote_buffer_append(struct mote_buffer *buffer, struct mote_budget *budget, const char *data,
                               size_t length);

struct mote_encoder {
    const struct mote_tokenizer *t;
    int special;  /* control tokens in the text count */
    int at_start; /* nothing of the text has been consumed */
    int32_t *ids; /* [capacity] */
    size_t capacity, n;
    struct mote_regex_work *regex;
    struct mote_symbol *symbol; /* [n_symbol] */
    uint64_t *heap;             /* [2 * n_symbol] */
    size_t n_symbol;
    struct mote_cached_word *cache;    /* [MOTE_CACHE_SIZE] or NULL: not worth it */
    struct mote_buffer normal, shadow; /* normalised text; stand-ins for the patterns */
    struct mote_buffer marked[2];      /* step MARK or PREFIX: text and shadow */
};
enum { MOTE_CACHE_SIZE = 8192 };
struct mote_cached_word { /* 64 bytes */
    uint8_t length, n;
    char key[22];
    int32_t id[10];
};

static inline void mote_encoder_put(struct mote_encoder *e, int32_t id)
{
    if (e->n < e->capacity) e->ids[e->n] = id;
    e->n++;
}

mote_status mote_encode_text(struct mote_encoder *e, const char *text,
                             size_t length); /* from the added tokens on */
/* Split `text` at the tokens of `set`: ids go out, the text between goes to `next`. */
mote_status mote_added_split(struct mote_encoder *e, const struct mote_added_set *set, const char *text,
                             size_t length, mote_status (*next)(struct mote_encoder *, const char *, size_t));
/* *out: e->normal's data, or `text` itself when nothing changes. */
mote_status mote_normalize(const struct mote_tokenizer *t, struct mote_buffer *buffer, const char *text,
                           size_t length, struct mote_piece *out);
mote_status mote_pretokenize(struct mote_encoder *e, const char *text, size_t length);
mote_status mote_encode_word(struct mote_encoder *e, const char *word, size_t length); /* bpe.c */
/* First symbols of a word into e->symbol (id only); returns their number. Room is there. */
size_t mote_spm_symbols(const struct mote_tokenizer *t, const char *word, size_t length,
                        struct mote_symbol *symbol);

/* Like mote_tokenize; at_start 0: the text continues something (no bos, no "first" prefix). */
mote_status mote_tokenize_part(const struct mote_tokenizer *t, const char *text, size_t length, int flags,
                               int at_start, int32_t *ids, size_t capacity, size_t *n);
#endif
