/* chat.c: ChatML: <|im_start|>role\ncontent<|im_end|>\n for each message.
 *
 * One idea: markers are put as ids and everything else is encoded as plain text, so nothing that a user writes can
 * become a marker. An assistant's "role\n" is encoded apart from what follows, because that is what was in the
 * context when the text was generated; other turns are encoded whole, as the models were trained.
 */
#include "text/chat.h"

#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"

struct prompt {
    const struct mote_tokenizer *t;
    int32_t *ids; /* [capacity] */
    size_t capacity, n;
};

static void put_id(struct prompt *p, int32_t id)
{
    if (p->n < p->capacity) p->ids[p->n] = id;
    p->n++;
}

static mote_status put_text(struct prompt *p, const char *text, size_t length)
{
    size_t room = p->n < p->capacity ? p->capacity - p->n : 0, n;
    mote_status status = mote_tokenize_part(p->t, text, length, 0, 0, room ? p->ids + p->n : NULL, room, &n);
    if (status == MOTE_ARGUMENT && n > room) status = MOTE_OK; /* only counted from here on */
    if (status == MOTE_OK) p->n += n;
    return status;
}

static mote_status put_message(struct prompt *p, const struct mote_message *m, int32_t start, int32_t end)
{
    size_t n_role = strlen(m->role), n_content = strlen(m->content);
    char *text;
    TRY(mote_mem_alloc(p->t->budget, MOTE_MEM_SCRATCH, n_role + n_content + 2, &text));
    memcpy(text, m->role, n_role);
    text[n_role] = '\n';
    memcpy(text + n_role + 1, m->content, n_content);
    put_id(p, start);
    mote_status status;
    if (strcmp(m->role, "assistant")) {
        status = put_text(p, text, n_role + 1 + n_content);
    } else {
        status = put_text(p, text, n_role + 1);
        if (status == MOTE_OK) status = put_text(p, m->content, n_content);
    }
    mote_mem_free(text);
    put_id(p, end);
    return status == MOTE_OK ? put_text(p, "\n", 1) : status;
}

mote_status mote_chat_encode(const struct mote_tokenizer *tokenizer, const struct mote_message *message,
                             size_t n_message, int continue_turn, int32_t *ids, size_t capacity, size_t *n)
{
    struct prompt p = {.t = tokenizer, .ids = ids, .capacity = capacity};
    int32_t start = mote_token_find(tokenizer, "<|im_start|>"),
            end = mote_token_find(tokenizer, "<|im_end|>");
    *n = 0;
    FAIL_IF(start < 0 || end < 0, MOTE_UNSUPPORTED,
            "chat: this vocabulary lacks %s%s%s; only ChatML conversations are supported",
            start < 0 ? "<|im_start|>" : "", start < 0 && end < 0 ? " and " : "",
            end < 0 ? "<|im_end|>" : "");
    for (size_t i = 0; i < n_message; i++) {
        FAIL_IF(!message[i].role || !*message[i].role || !message[i].content, MOTE_ARGUMENT,
                "chat: message %zu has no role or no content", i);
        TRY(put_message(&p, &message[i], start, end));
    }
    if (continue_turn) {
        put_id(&p, start);
        TRY(put_text(&p, "assistant\n", 10));
    }
    *n = p.n;
    FAIL_IF(p.n > capacity, MOTE_ARGUMENT, "chat: %zu ids, there is room for %zu", p.n, capacity);
    return MOTE_OK;
}
