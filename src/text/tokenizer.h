/* tokenizer.h: text to token ids and back.
 *
 * Owns: vocabulary, merges, pre-tokenizer pattern, special tokens. Knows nothing of files: it is made from the
 * text of a tokenizer.json or from the arrays that a GGUF carries.
 * Kinds: byte-level BPE (GPT-2 style merges over a byte alphabet) and score-based BPE (SentencePiece style, with
 * byte fallback). Ids are equal to those of Hugging Face `tokenizers`.
 */
#ifndef MOTE_TEXT_TOKENIZER_H
#define MOTE_TEXT_TOKENIZER_H

#include "base/mem.h"

struct mote_tokenizer; /* immutable after creation: any number of threads may use it */

enum mote_token_kind { /* numbers are GGUF's tokenizer.ggml.token_type */
                       MOTE_TOKEN_NORMAL = 1,
                       MOTE_TOKEN_UNKNOWN = 2,
                       MOTE_TOKEN_CONTROL =
                           3, /* special: matched only where special tokens are allowed, printed as nothing */
                       MOTE_TOKEN_USER = 4, /* added: always matched whole, printed */
                       MOTE_TOKEN_UNUSED = 5,
                       MOTE_TOKEN_BYTE = 6
};

struct mote_piece { /* bytes, not terminated */
    const char *data;
    size_t length;
};

/* What a GGUF's metadata say ("tokenizer.ggml.*"), all memory the caller's and copied. */
struct mote_vocab {
    const char *model; /* "gpt2" (byte-level BPE) or "llama" (score-based) */
    const char
        *pre; /* pre-tokenizer by name: qwen2, llama-bpe, gpt-4o, deepseek-v3, kimi-k2, glm4, default ... */
    size_t n_token;
    const struct mote_piece *token; /* [n_token], byte alphabet for gpt2 */
    const float *score;             /* [n_token] or NULL */
    const int32_t *kind;            /* [n_token] or NULL: all normal */
    size_t n_merge;
    const struct mote_piece *merge;  /* "left right" */
    int32_t bos, eos, eot, unk, pad; /* -1: none */
    int add_bos, add_eos, add_space_prefix;
};

mote_status mote_tokenizer_from_vocab(const struct mote_vocab *vocab, struct mote_budget *budget,
                                      struct mote_tokenizer **out);
/* tokenizer.json of Hugging Face, plus tokenizer_config.json and generation_config.json (NULL, 0 if absent: they
 * name bos, eos (one or several) and add_bos_token). n_vocab: the model's embedding rows, 0 if not known: ids past
 * the tokenizer's own become unused tokens. */
mote_status mote_tokenizer_from_json(const char *json, size_t length, const char *config,
                                     size_t config_length, const char *generation, size_t generation_length,
                                     size_t n_vocab, struct mote_budget *budget, struct mote_tokenizer **out);
void mote_tokenizer_destroy(struct mote_tokenizer *tokenizer);

/* The same tokenizer as GGUF metadata would say it (for `mote quantize`); pointers live as long as the tokenizer. */
mote_status mote_tokenizer_vocab(const struct mote_tokenizer *tokenizer, struct mote_vocab *out);
/* The same tokenizer as Hugging Face's files: byte-level ones. Texts are JSON. */
struct mote_tokenizer_json {
    char *tokenizer, *config, *generation; /* tokenizer.json, tokenizer_config.json, generation_config.json */
};
mote_status mote_tokenizer_to_json(const struct mote_tokenizer *tokenizer, struct mote_piece chat_template,
                                   struct mote_tokenizer_json *out);
void mote_tokenizer_json_free(struct mote_tokenizer_json *json); /* zeroed is fine */

size_t mote_tokenizer_size(const struct mote_tokenizer *tokenizer);
int32_t mote_token_bos(const struct mote_tokenizer *tokenizer);          /* -1: none */
int mote_token_ends(const struct mote_tokenizer *tokenizer, int32_t id); /* eos, eot, any end-of-turn token */
enum mote_token_kind mote_token_kind_of(const struct mote_tokenizer *tokenizer, int32_t id);
int32_t mote_token_find(const struct mote_tokenizer *tokenizer, const char *text); /* whole token, -1: none */

enum mote_encode_flags {
    MOTE_ENCODE_SPECIAL =
        1, /* control tokens spelled out in the text become those tokens; without it they stay text */
    MOTE_ENCODE_BOS = 2 /* put bos (eos) where the model wants it */
};

/* Encode text[length] (any bytes). A byte that is no part of well-formed UTF-8 is a word of its own, and patterns
 * see the text before and after it as separate: byte-level BPE so keeps every byte. Writes at most `capacity` ids and
 * sets *n to the number of ids there are; MOTE_ARGUMENT when they do not fit (nothing is lost: call again with *n).
 * length + 2 is enough unless a normalizer lengthens the text. */
mote_status mote_tokenize(const struct mote_tokenizer *tokenizer, const char *text, size_t length, int flags,
                          int32_t *ids, size_t capacity, size_t *n);

/* Bytes of one token as they appear in text; control tokens give "" unless `special`. The pointer lives as long as
 * the tokenizer. An id out of range gives "". */
struct mote_piece mote_token_bytes(const struct mote_tokenizer *tokenizer, int32_t id, int special);

/* Streaming: feed tokens, get the bytes that are complete UTF-8; an incomplete character is held back, bytes that
 * can never become valid come out as U+FFFD. */
struct mote_detokenizer {
    const struct mote_tokenizer *tokenizer;
    int special; /* print control tokens */
    int started; /* score-based: the first token's leading space is dropped */
    int n_held;
    unsigned char held[8];
};
void mote_detokenizer_init(struct mote_detokenizer *d, const struct mote_tokenizer *tokenizer, int special);
/* Returns bytes written to out (capacity at least 3 * token length + 16; see mote_token_max_bytes). */
size_t mote_detokenizer_put(struct mote_detokenizer *d, int32_t id, char *out);
size_t mote_detokenizer_end(struct mote_detokenizer *d, char *out); /* what was held back, as U+FFFD */
size_t mote_token_max_bytes(const struct mote_tokenizer *tokenizer);

#endif
