/* detokenizer.c: tokens to text, one at a time.
 *
 * One idea: what goes out is always whole UTF-8. The start of a character waits in held[] for its rest; bytes that
 * cannot be completed come out as U+FFFD, one for each longest beginning of a character (as Unicode recommends).
 */
#include <string.h>

#include "text/tokenizer_internal.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* How many of the n bytes are the beginning of a character that more bytes could complete: 0 when none is. */
static size_t beginning(const unsigned char *s, size_t n)
{
    size_t need = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2, have = 1;
    if (s[0] < 0xC2 || s[0] > 0xF4) return 0;
    unsigned low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    for (; have < need && have < n; have++) {
        if (s[have] < low || s[have] > high) break;
        low = 0x80;
        high = 0xBF;
    }
    return have;
}

/* Takes what can be decided from bytes[n] to out; returns how many bytes at the end wait for more. */
static size_t drain(const unsigned char *bytes, size_t n, char *out, size_t *n_out)
{
    size_t at = 0;
    while (at < n) {
        uint32_t c;
        int whole = mote_utf8_next((const char *)bytes + at, n - at, &c);
        if (whole) {
            memcpy(out + *n_out, bytes + at, (size_t)whole);
            *n_out += (size_t)whole;
            at += (size_t)whole;
            continue;
        }
        size_t have = beginning(bytes + at, n - at);
        if (have && at + have == n) return have;
        memcpy(out + *n_out, REPLACEMENT, 3);
        *n_out += 3;
        at += have ? have : 1;
    }
    return 0;
}

void mote_detokenizer_init(struct mote_detokenizer *d, const struct mote_tokenizer *tokenizer, int special)
{
    *d = (struct mote_detokenizer){.tokenizer = tokenizer, .special = special};
}

size_t mote_detokenizer_put(struct mote_detokenizer *d, int32_t id, char *out)
{
    struct mote_piece piece = mote_token_bytes(d->tokenizer, id, d->special);
    size_t n_out = 0;
    if (!piece.length) return 0;
    if (!d->started && d->tokenizer->strip_space && piece.data[0] == ' ') {
        piece.data++;
        piece.length--;
    }
    d->started = 1;
    /* Held bytes and the token's first ones: enough to decide what is held. */
    while (d->n_held && piece.length) {
        d->held[d->n_held++] = (unsigned char)*piece.data++;
        piece.length--;
        size_t wait = drain(d->held, (size_t)d->n_held, out, &n_out);
        memmove(d->held, d->held + (size_t)d->n_held - wait, wait);
        d->n_held = (int)wait;
    }
    if (d->n_held || !piece.length) return n_out;
    size_t wait = drain((const unsigned char *)piece.data, piece.length, out, &n_out);
    memcpy(d->held, piece.data + piece.length - wait, wait);
    d->n_held = (int)wait;
    return n_out;
}

size_t mote_detokenizer_end(struct mote_detokenizer *d, char *out)
{
    size_t n = d->n_held ? 3 : 0; /* what is held is one beginning */
    memcpy(out, REPLACEMENT, n);
    d->n_held = 0;
    return n;
}
