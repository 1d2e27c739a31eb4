/* fuzz_tokenizer.c: any bytes as tokenizer.json, and any bytes as text.
 *
 * Input that begins with '{' is a tokenizer.json; what loads must encode, decode and go through a GGUF vocabulary.
 * Anything else is text for small tokenizers of our own: byte-level must give the bytes back.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode_decode(const struct mote_tokenizer *t, const char *text, size_t length, int lossless)
{
    size_t n = 0, n_bytes = 0, room = length + 16;
    int32_t *ids = malloc(room * sizeof *ids);
    char *out = malloc(3 * mote_token_max_bytes(t) + 16);
    if (!ids || !out) abort();
    mote_status status = mote_tokenize(t, text, length, 0, ids, room, &n);
    if (status == MOTE_ARGUMENT && n > room) { /* a normalizer that lengthens: ask again with what it wants */
        room = n;
        ids = realloc(ids, room * sizeof *ids);
        if (!ids) abort();
        if (mote_tokenize(t, text, length, 0, ids, room, &n) != MOTE_OK || n != room) abort();
        status = MOTE_OK;
    }
    if (status == MOTE_OK) {
        struct mote_detokenizer d;
        mote_detokenizer_init(&d, t, 1);
        for (size_t i = 0; i < n; i++) {
            struct mote_piece piece = mote_token_bytes(t, ids[i], 1);
            if (lossless &&
                (piece.length > length - n_bytes || memcmp(piece.data, text + n_bytes, piece.length)))
                abort();
            n_bytes += piece.length;
            if (mote_detokenizer_put(&d, ids[i], out) > 3 * mote_token_max_bytes(t) + 16) abort();
        }
        mote_detokenizer_end(&d, out);
        if (lossless && n_bytes != length) abort();
    } else if (lossless) {
        abort();
    }
    free(ids);
    free(out);
}

static const char sample[] = "The 3 foxes' d\xC3\xA9"
                             "j\xC3\xA0 vu: \xE4\xB8\xAD\xE6\x96\x87 \xFF\n\n  x<|im_end|>";

static void fuzz_json(const char *json, size_t size)
{
    struct mote_tokenizer *t, *other;
    struct mote_vocab vocab;
    if (mote_tokenizer_from_json(json, size, json, size, json, size, 0, NULL, &t) != MOTE_OK) {
        if (t || !*mote_error()) abort();
        return;
    }
    encode_decode(t, sample, sizeof sample - 1, 0);
    if (mote_tokenizer_vocab(t, &vocab) == MOTE_OK &&
        mote_tokenizer_from_vocab(&vocab, NULL, &other) == MOTE_OK) {
        encode_decode(other, sample, sizeof sample - 1, 0);
        mote_tokenizer_destroy(other);
    }
    mote_tokenizer_destroy(t);
}

/* A byte-level vocabulary of the alphabet and a few merges. */
static struct mote_tokenizer *make(const char *pre)
{
    static const char *const merges[] = {
        "t h", "th e", "a a", "aa aa", "\xC4\xA0 t", "\xC4\xA0 \xC4\xA0", "\xC3\xA3 \xC4\xA4"};
    enum { N_MERGE = sizeof merges / sizeof *merges, N = 256 + N_MERGE };
    char name[N][16];
    struct mote_piece token[N], merge[N_MERGE];
    for (int byte = 0, extra = 256; byte < 256; byte++) {
        int own = (byte > 32 && byte < 127) || (byte > 160 && byte != 173), c = own ? byte : extra++;
        if (c < 128) snprintf(name[byte], 16, "%c", c);
        else snprintf(name[byte], 16, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 63));
        token[byte] = (struct mote_piece){name[byte], strlen(name[byte])};
    }
    for (int i = 0; i < N_MERGE; i++) {
        const char *space = strchr(merges[i], ' ');
        merge[i] = (struct mote_piece){merges[i], strlen(merges[i])};
        snprintf(name[256 + i], 16, "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        token[256 + i] = (struct mote_piece){name[256 + i], strlen(name[256 + i])};
    }
    struct mote_vocab vocab = {.model = "gpt2",
                               .pre = pre,
                               .n_token = N,
                               .token = token,
                               .n_merge = N_MERGE,
                               .merge = merge,
                               .bos = -1,
                               .eos = -1,
                               .eot = -1,
                               .unk = -1,
                               .pad = -1};
    struct mote_tokenizer *t;
    if (mote_tokenizer_from_vocab(&vocab, NULL, &t) != MOTE_OK) abort();
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == '{') {
        fuzz_json((const char *)data, size);
        return 0;
    }
    static const char *const names[] = {"qwen2", "gpt-4o", "deepseek-v3", "kimi-k2", "default", "bailingmoe"};
    static struct mote_tokenizer *made[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!made[i]) made[i] = make(names[i]);
        encode_decode(made[i], (const char *)data, size, 1);
    }
    return 0;
}
