/* vocab.h: the tokenizer of a model on disk, and the way back into a GGUF.
 *
 * Owns nothing: it carries what file/ found (GGUF's arrays, or tokenizer.json) over to text/, which knows no files.
 */
#ifndef MOTE_ENGINE_VOCAB_H
#define MOTE_ENGINE_VOCAB_H

#include "file/catalogue.h"
#include "file/gguf_write.h"
#include "text/tokenizer.h"

/* n_vocab: rows of the embedding (0: not known). Fails with MOTE_NOT_FOUND when the model carries no tokenizer. */
mote_status mote_vocab_open(const struct mote_catalogue *catalogue, size_t n_vocab,
                            struct mote_budget *budget, struct mote_tokenizer **out);

/* Put tokenizer.ggml.* keys; n_token may be larger than the tokenizer: the rest become unused tokens.
 * chat_template may be NULL. */
mote_status mote_vocab_write(const struct mote_tokenizer *tokenizer, size_t n_token,
                             struct mote_text chat_template, struct mote_gguf_writer *writer);

/* The chat template's text, in the catalogue's memory or newly allocated into *owned (mote_mem_free it). */
mote_status mote_vocab_chat_template(const struct mote_catalogue *catalogue, struct mote_text *out,
                                     char **owned);

#endif
