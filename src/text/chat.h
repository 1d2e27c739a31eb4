/* chat.h: turns of a conversation to text with control tokens.
 *
 * ChatML is built in. The interface is that of a template engine (messages in, prompt out), so that one can be put
 * behind it.
 */
#ifndef MOTE_TEXT_CHAT_H
#define MOTE_TEXT_CHAT_H

#include "text/tokenizer.h"

struct mote_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
};

/* Encode messages as token ids: role and content are plain text (control tokens spelled out in them stay text),
 * only the template's own markers become control tokens. `continue_turn`: end with an open assistant turn.
 * Two calls on a growing conversation give ids of which the shorter is a prefix (assistant text re-encoded aside).
 * Fails with MOTE_UNSUPPORTED, naming the tokens, when the vocabulary lacks <|im_start|> or <|im_end|>. */
mote_status mote_chat_encode(const struct mote_tokenizer *tokenizer, const struct mote_message *message,
                             size_t n_message, int continue_turn, int32_t *ids, size_t capacity, size_t *n);
#endif
