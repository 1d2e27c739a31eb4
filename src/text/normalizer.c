/* normalizer.c: what is done to text before it is split: Unicode normal forms (utf8proc), prepend, replace.
 *
 * One idea: steps run over a whole stretch of text and leave bytes that are not UTF-8 alone.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer_internal.h"

mote_status mote_buffer_reserve(struct mote_buffer *buffer, struct mote_budget *budget, size_t more)
{
    size_t need;
    FAIL_IF(!mote_add_size(buffer->length, more, &need) || need > SIZE_MAX / 4, MOTE_MEMORY,
            "tokenizer: text is too long");
    if (need <= buffer->capacity) return MOTE_OK;
    size_t capacity = need + need / 2 + 64;
    TRY(mote_mem_resize(budget, MOTE_MEM_SCRATCH, capacity, &buffer->data));
    buffer->capacity = capacity;
    return MOTE_OK;
}

mote_status mote_buffer_append(struct mote_buffer *buffer, struct mote_budget *budget, const char *data,
                               size_t length)
{
    TRY(mote_buffer_reserve(buffer, budget, length));
    if (length) memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
    return MOTE_OK;
}

/* Below U+0300 everything is NFC already and combines with nothing before it. */
static int plain_nfc(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= 0xCC) return 0;
    return 1;
}

static int plain_ascii(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= 0x80) return 0;
    return 1;
}

static const utf8proc_option_t form_options[] = {
    [MOTE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [MOTE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [MOTE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [MOTE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

static mote_status append_form(struct mote_buffer *out, struct mote_budget *budget,
                               enum mote_normal_kind kind, const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        size_t end = at, skip = 1; /* what is not UTF-8 is kept byte for byte */
        uint32_t c;
        for (int step; end < length && (step = mote_utf8_next(text + end, length - end, &c)) > 0;
             end += (size_t)step)
            if (mote_unicode_no_form(c)) {
                skip = (size_t)step;
                break;
            }
        if (end > at) {
            utf8proc_uint8_t *form = NULL;
            utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text + at,
                                              (utf8proc_ssize_t)(end - at), &form, form_options[kind]);
            FAIL_IF(n < 0, MOTE_MEMORY, "tokenizer: normal form of %zu bytes: %s", end - at,
                    utf8proc_errmsg(n));
            mote_status status = mote_buffer_append(out, budget, (const char *)form, (size_t)n);
            free(form);
            TRY(status);
        }
        if (end < length) TRY(mote_buffer_append(out, budget, text + end, skip));
        at = end + skip;
    }
    return MOTE_OK;
}

static mote_status append_replaced(struct mote_buffer *out, struct mote_budget *budget,
                                   const struct mote_normal_step *step, const char *text, size_t length)
{
    const struct mote_piece *from = &step->from;
    size_t done = 0;
    for (size_t at = 0; at + from->length <= length;) {
        const char *hit = memchr(text + at, from->data[0], length - from->length + 1 - at);
        if (!hit) break;
        at = (size_t)(hit - text);
        if (memcmp(hit, from->data, from->length)) {
            at++;
            continue;
        }
        TRY(mote_buffer_append(out, budget, text + done, at - done));
        TRY(mote_buffer_append(out, budget, step->to.data, step->to.length));
        done = at += from->length;
    }
    return mote_buffer_append(out, budget, text + done, length - done);
}

mote_status mote_normalize(const struct mote_tokenizer *t, struct mote_buffer *buffer, const char *text,
                           size_t length, struct mote_piece *out)
{
    struct mote_buffer next = {0};
    mote_status status = MOTE_OK;
    *out = (struct mote_piece){text, length};
    for (size_t i = 0; i < t->n_normal && status == MOTE_OK && out->length; i++) {
        const struct mote_normal_step *step = &t->normal[i];
        next.length = 0;
        switch (step->kind) {
        case MOTE_PREPEND:
            status = mote_buffer_append(&next, t->budget, step->to.data, step->to.length);
            if (status == MOTE_OK) status = mote_buffer_append(&next, t->budget, out->data, out->length);
            break;
        case MOTE_REPLACE: status = append_replaced(&next, t->budget, step, out->data, out->length); break;
        default:
            if (step->kind == MOTE_NFC ? plain_nfc(out->data, out->length)
                                       : plain_ascii(out->data, out->length))
                continue;
            status = append_form(&next, t->budget, step->kind, out->data, out->length);
        }
        struct mote_buffer swap = *buffer;
        *buffer = next;
        next = swap;
        *out = (struct mote_piece){buffer->data, buffer->length};
    }
    mote_mem_free(next.data);
    return status;
}
