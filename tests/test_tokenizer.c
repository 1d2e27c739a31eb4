/* test_tokenizer.c: ids equal to Hugging Face's tokenizers (goldens of tests/golden/gen_tokenizer.py), round trips
 * through GGUF vocabularies and back to text, hard inputs, refusals, failing memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "text/regex.h"
#include "text/tokenizer.h"

/* ---- files ---- */

struct text {
    char *data;
    size_t length;
};

static struct text slurp(const char *path)
{
    struct text text = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return text;
    fseek(file, 0, SEEK_END);
    text.length = (size_t)ftell(file);
    rewind(file);
    text.data = malloc(text.length + 1);
    if (!text.data || fread(text.data, 1, text.length, file) != text.length) abort();
    text.data[text.length] = 0;
    fclose(file);
    return text;
}

static void ok(mote_status status)
{
    if (status != MOTE_OK) fail_msg("%s: %s", mote_status_text(status), mote_error());
}

static struct mote_tokenizer *from_json(const char *path, size_t n_vocab)
{
    struct text json = slurp(path);
    if (!json.data) fail_msg("%s: cannot read", path);
    struct mote_tokenizer *t;
    ok(mote_tokenizer_from_json(json.data, json.length, NULL, 0, NULL, 0, n_vocab, NULL, &t));
    free(json.data);
    return t;
}

static struct mote_tokenizer *from_text(const char *json)
{
    struct mote_tokenizer *t;
    ok(mote_tokenizer_from_json(json, strlen(json), NULL, 0, NULL, 0, 0, NULL, &t));
    return t;
}

/* ---- random strings: draw for draw what gen_tokenizer.py does ---- */

static size_t put_point(uint32_t c, char *out)
{
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) {
        out[0] = (char)c;
        return 1;
    }
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)((0xF00 >> n & 0xF0) | (int)c);
    return (size_t)n;
}

static uint32_t below(struct mote_rng *rng, uint32_t n)
{
    return (uint32_t)mote_rng_below(rng, n);
}

static uint32_t point(struct mote_rng *rng, uint32_t low, uint32_t high)
{
    uint32_t c = low + below(rng, high - low);
    return c >= 0xD800 && c <= 0xDFFF ? 0xFFFD : c;
}

static const uint32_t spaces[] = {0x20,   0x09,   0x0A,   0x0D,   0x0B,   0x0C,   0xA0,   0x85,
                                  0x180E, 0x1680, 0x2003, 0x2028, 0x202F, 0x205F, 0x3000, 0x200B};
static const uint32_t digits[] = {0x660,  0x966,  0xFF10,  0x1D7CE, 0xB2,   0xBD,
                                  0x2160, 0x3021, 0x1FBF0, 0x10D40, 0x11F50};
static const char *const words[] = {
    "'s",
    "'LL",
    "'\xC5\xBF",
    "'Re",
    " the",
    "The",
    " and",
    "\r\n",
    "<|im_start|>",
    "<|im_end|>",
    "<tool>",
    " [X] ",
    "<s>",
    "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
    "\xF0\x9F\x8F\xB3\xEF\xB8\x8F\xE2\x80\x8D\xF0\x9F\x8C\x88",
    "\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA",
    "don't",
    "HTTPServer",
    "camelCase",
    "\xC3\xA9t\xC3\xA9",
    "e\xCC\x81",
    "\xC4\xB0I\xCC\x87",
    "\xE2\x96\x81",
    "<|endoftext|>",
    "\xEA\xB0\x80\xE1\x84\x80\xE1\x85\xA1",
    "\xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\xB7",
    "\xEF\xB7\xBA",
    "\xE2\x84\xAB",
    "if (x) {\n\treturn 1;\n}",
    "<0x41>"};
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MAX_STRING = 10 * 4 * 3000 };

static size_t random_string(struct mote_rng *rng, char *out)
{
    size_t at = 0;
    for (uint32_t chunks = 1 + below(rng, 10); chunks; chunks--) {
        uint32_t kind = below(rng, 16), n = 1 + below(rng, 6), c;
        if (kind == 13) {
            c = point(rng, 0x20, 0x3100);
            n = below(rng, 40) == 0 ? 3000 : 20;
            for (; n; n--) at += put_point(c, out + at);
            continue;
        }
        if (kind == 8) at += put_point(0x61 + below(rng, 26), out + at);
        for (; n; n--) {
            switch (kind) {
            case 0: c = 0x20; break;
            case 1: c = spaces[below(rng, COUNT(spaces))]; break;
            case 2: c = 0x30 + below(rng, 10); break;
            case 3:
                c = 0x61 + below(rng, 26);
                c -= 32 * below(rng, 2);
                break;
            case 4: c = 0x21 + below(rng, 94); break;
            case 5: c = point(rng, 0x4E00, 0xA000); break;
            case 6: c = point(rng, 0, 0x110000); break;
            case 7: c = point(rng, 0x80, 0x10000); break;
            case 8: c = point(rng, 0x300, 0x370); break;
            case 9: c = 0x0A; break;
            case 10:
                c = digits[below(rng, COUNT(digits))];
                c += below(rng, 3);
                break;
            case 11: c = point(rng, 0x10000, 0x32400); break;
            case 12: c = point(rng, 0x80, 0x2000); break;
            default: {
                const char *word = words[below(rng, COUNT(words))];
                memcpy(out + at, word, strlen(word));
                at += strlen(word);
                continue;
            }
            }
            at += put_point(c, out + at);
        }
    }
    return at;
}

static uint64_t fnv(const int32_t *ids, size_t n)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        for (int byte = 0; byte < 4; byte++)
            hash = (hash ^ ((uint32_t)ids[i] >> 8 * byte & 255)) * 0x100000001B3u;
    return hash;
}

/* ---- encode and decode ---- */

struct ids {
    int32_t *id; /* [capacity] */
    size_t n, capacity;
};

static struct ids ids_make(size_t capacity)
{
    struct ids ids = {malloc((capacity + 8) * sizeof(int32_t)), 0, capacity + 8};
    if (!ids.id) abort();
    return ids;
}

static char *decode(const struct mote_tokenizer *t, const struct ids *ids, size_t *length)
{
    size_t room = 16;
    for (size_t i = 0; i < ids->n; i++) room += mote_token_bytes(t, ids->id[i], 1).length;
    char *out = malloc(room);
    if (!out) abort();
    *length = 0;
    for (size_t i = 0; i < ids->n; i++) {
        struct mote_piece piece = mote_token_bytes(t, ids->id[i], 1);
        memcpy(out + *length, piece.data, piece.length);
        *length += piece.length;
    }
    return out;
}

static void assert_round_trip(const struct mote_tokenizer *t, const struct ids *ids, const char *text,
                              size_t length)
{
    size_t n;
    char *back = decode(t, ids, &n);
    assert_int_equal(n, length);
    assert_memory_equal(back, text, length);
    free(back);
}

static int has_mark(const char *text, size_t length)
{
    for (size_t i = 0; i + 3 <= length; i++)
        if (!memcmp(text + i, "\xE2\x96\x81", 3)) return 1;
    return 0;
}

static void assert_streamed(const struct mote_tokenizer *t, const struct ids *ids, const char *text,
                            size_t length)
{
    struct mote_detokenizer d;
    char *out = malloc(ids->n * (3 * mote_token_max_bytes(t) + 16) + 16);
    size_t n = 0;
    if (!out) abort();
    mote_detokenizer_init(&d, t, 0);
    for (size_t i = 0; i < ids->n; i++) n += mote_detokenizer_put(&d, ids->id[i], out + n);
    n += mote_detokenizer_end(&d, out + n);
    assert_int_equal(n, length);
    assert_memory_equal(out, text, length);
    free(out);
}

/* ---- goldens ---- */

static const struct golden {
    const char *name;
    const char *pre; /* what mote_tokenizer_vocab calls it, NULL: it has no name */
    uint64_t seed;
    int n;
    int lossless;   /* decoding gives the text back; 2: through the detokenizer, but for U+2581 */
    int vocab_same; /* the tokenizer made from the vocabulary encodes everything alike */
} goldens[] = {
    {"qwen2", "qwen2", 1000, 500, 1, 1},
    {"qwen35", "qwen35", 1001, 500, 1, 1},
    {"llama3", "llama-bpe", 1002, 500, 0, 0},
    {"gpt4o", "gpt-4o", 1003, 500, 1, 1},
    {"tekken", "tekken", 1004, 500, 1, 1},
    {"kimi", "kimi-k2", 1005, 500, 1, 1},
    {"deepseek3", "deepseek-v3", 1006, 500, 1, 1},
    {"bailing", "bailingmoe", 1007, 500, 1, 1},
    {"gpt2", "gpt-2", 1008, 500, 1, 1},
    {"prefix", NULL, 1009, 500, 0, 0},
    {"smollm", "starcoder", 1010, 500, 1, 1},
    {"nfc", "qwen2", 1011, 500, 0, 0},
    {"behaviors", NULL, 1012, 500, 0, 0},
    {"llama", "default", 1013, 500, 2, 1},
    {"metaspace", NULL, 1014, 500, 0, 0},
    {"gemma", NULL, 1015, 500, 2, 0},
};

/* Compares with tok_<name>.bin; `other` (or NULL) must give the same ids. */
static void compare(const struct mote_tokenizer *t, const struct mote_tokenizer *other, const char *name,
                    uint64_t seed, int n, int lossless)
{
    char path[200], *text = malloc(MAX_STRING);
    snprintf(path, sizeof path, "tests/golden/tok_%s.bin", name);
    struct text golden = slurp(path);
    if (!golden.data || !text) fail_msg("%s: cannot read", path);
    assert_int_equal(golden.length, (size_t)n * 8);
    struct ids ids = ids_make(3 * MAX_STRING), again = ids_make(3 * MAX_STRING);
    struct mote_rng rng;
    mote_rng_seed(&rng, seed);
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        size_t length = random_string(&rng, text);
        for (int special = 0; special < 2; special++) {
            uint32_t expected;
            memcpy(&expected, golden.data + 8 * i + 4 * special, 4);
            int flags = special ? MOTE_ENCODE_SPECIAL : 0;
            ok(mote_tokenize(t, text, length, flags, ids.id, ids.capacity, &ids.n));
            uint64_t hash = fnv(ids.id, ids.n);
            if ((uint32_t)(hash ^ hash >> 32) != expected && wrong++ < 5)
                print_message("%s: string %d (special %d) differs: \"%.*s\"\n", name, i, special, (int)length,
                              text);
            if (lossless == 1) assert_round_trip(t, &ids, text, length);
            if (lossless == 2 && !special && !has_mark(text, length)) assert_streamed(t, &ids, text, length);
            if (!other) continue;
            ok(mote_tokenize(other, text, length, flags, again.id, again.capacity, &again.n));
            if (again.n != ids.n || memcmp(ids.id, again.id, ids.n * 4))
                fail_msg("%s: string %d differs after the way through a GGUF vocabulary", name, i);
        }
    }
    if (wrong) fail_msg("%s: %d of %d differ", name, wrong, 2 * n);
    free(ids.id);
    free(again.id);
    free(golden.data);
    free(text);
}

/* Written as Hugging Face's files and read again; NULL where that is refused, as it is unless byte-level. */
static struct mote_tokenizer *through_json(const struct mote_tokenizer *t, int byte_level)
{
    static const char chat[] = "{{ \"a\" }}";
    struct mote_tokenizer_json json;
    struct mote_tokenizer *out;
    mote_status status = mote_tokenizer_to_json(t, (struct mote_piece){chat, sizeof chat - 1}, &json);
    assert_int_equal(status, byte_level ? MOTE_OK : MOTE_UNSUPPORTED);
    if (status != MOTE_OK) return NULL;
    assert_non_null(strstr(json.config, "{{ \\\"a\\\" }}"));
    ok(mote_tokenizer_from_json(json.tokenizer, strlen(json.tokenizer), json.config, strlen(json.config),
                                json.generation, strlen(json.generation), mote_tokenizer_size(t), NULL,
                                &out));
    mote_tokenizer_json_free(&json);
    struct mote_vocab a, b;
    ok(mote_tokenizer_vocab(t, &a));
    ok(mote_tokenizer_vocab(out, &b));
    assert_int_equal(a.n_merge, b.n_merge);
    assert_memory_equal(a.kind, b.kind, a.n_token * sizeof *a.kind);
    assert_true(a.bos == b.bos && a.pad == b.pad && a.add_bos == b.add_bos);
    if (a.eos >= 0) assert_true(a.eos == b.eos && a.eot == b.eot); /* else the one end there is becomes eos */
    for (size_t id = 0; id < a.n_token; id++)
        assert_int_equal(mote_token_ends(t, (int32_t)id), mote_token_ends(out, (int32_t)id));
    return out;
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(goldens); i++) {
        const struct golden *g = &goldens[i];
        char path[200];
        snprintf(path, sizeof path, "tests/golden/tok_%s.json", g->name);
        struct mote_tokenizer *t = from_json(path, 0), *other = NULL, *third = NULL;
        struct mote_vocab vocab;
        mote_status status = mote_tokenizer_vocab(t, &vocab);
        if (g->pre) {
            ok(status);
            assert_string_equal(vocab.pre, g->pre);
            ok(mote_tokenizer_from_vocab(&vocab, NULL, &other));
            struct mote_vocab twice;
            ok(mote_tokenizer_vocab(other, &twice));
            assert_string_equal(twice.pre, vocab.pre);
            assert_int_equal(twice.n_token, vocab.n_token);
            assert_int_equal(twice.n_merge, vocab.n_merge);
            assert_memory_equal(twice.kind, vocab.kind, vocab.n_token * sizeof *vocab.kind);
            third = through_json(other, !strcmp(vocab.model, "gpt2"));
        } else {
            assert_int_equal(status, MOTE_UNSUPPORTED);
        }
        compare(t, g->vocab_same ? other : NULL, g->name, g->seed, g->n, g->lossless);
        if (third && g->vocab_same) compare(t, third, g->name, g->seed, g->n, g->lossless);
        mote_tokenizer_destroy(third);
        mote_tokenizer_destroy(other);
        mote_tokenizer_destroy(t);
    }
    assert_int_equal(mote_mem_global_total(), 0);
}

static void test_fable(void **state)
{
    (void)state;
    struct text json = slurp("../shared/models/fable/tokenizer.json");
    struct text config = slurp("../shared/models/fable/tokenizer_config.json");
    struct text generation = slurp("../shared/models/fable/generation_config.json");
    if (!json.data) {
        print_message("../shared/models/fable is not there\n");
        skip();
    }
    struct mote_tokenizer *t, *other;
    ok(mote_tokenizer_from_json(json.data, json.length, config.data, config.length, generation.data,
                                generation.length, 4100, NULL, &t));
    free(json.data);
    free(config.data);
    free(generation.data);
    assert_int_equal(mote_tokenizer_size(t), 4100);
    assert_int_equal(mote_token_kind_of(t, 4096), MOTE_TOKEN_UNUSED);
    assert_int_equal(mote_token_kind_of(t, 2), MOTE_TOKEN_CONTROL);
    assert_int_equal(mote_token_find(t, "<|im_end|>"), 2);
    assert_true(mote_token_ends(t, 0) && mote_token_ends(t, 2) && !mote_token_ends(t, 1) &&
                !mote_token_ends(t, -1));
    struct mote_vocab vocab;
    ok(mote_tokenizer_vocab(t, &vocab));
    assert_string_equal(vocab.model, "gpt2");
    assert_string_equal(vocab.pre, "qwen2");
    assert_int_equal(vocab.eos, 0);
    assert_int_equal(vocab.eot, 2);
    assert_int_equal(vocab.add_bos, 0);
    assert_int_equal(vocab.token[4099].length, strlen("[PAD4099]"));
    assert_memory_equal(vocab.token[4099].data, "[PAD4099]", vocab.token[4099].length);
    ok(mote_tokenizer_from_vocab(&vocab, NULL, &other));
    assert_true(mote_token_ends(other, 0) && mote_token_ends(other, 2));
    compare(t, other, "fable", 7, 10000, 1);
    mote_tokenizer_destroy(t);
    mote_tokenizer_destroy(other);
}

static void test_corpus(void **state)
{
    (void)state;
    FILE *file = fopen("tests/golden/tok_corpus.txt", "r");
    assert_non_null(file);
    struct text probe = slurp("../shared/models/fable/tokenizer.json");
    if (!probe.data) {
        fclose(file);
        print_message("../shared is not there\n");
        skip();
    }
    free(probe.data);
    struct mote_tokenizer *t = from_json("../shared/models/fable/tokenizer.json", 0);
    char name[64], path[128];
    unsigned long count;
    unsigned long long hash;
    int n_file = 0;
    while (fscanf(file, "%63s %lu %llx", name, &count, &hash) == 3) {
        snprintf(path, sizeof path, "../shared/corpus/%s", name);
        struct text text = slurp(path);
        assert_non_null(text.data);
        struct ids ids = ids_make(text.length);
        double start = mote_seconds();
        ok(mote_tokenize(t, text.data, text.length, 0, ids.id, ids.capacity, &ids.n));
        double seconds = mote_seconds() - start;
        print_message("%s: %zu ids, %.1f MB/s\n", name, ids.n, (double)text.length / seconds * 1e-6);
        assert_int_equal(ids.n, count);
        assert_true(fnv(ids.id, ids.n) == hash);
        assert_round_trip(t, &ids, text.data, text.length);
        free(ids.id);
        free(text.data);
        n_file++;
    }
    fclose(file);
    assert_int_equal(n_file, 2);
    mote_tokenizer_destroy(t);
}

/* ---- hard inputs ---- */

/* Bytes that are no UTF-8 come back as they were. */
static void test_invalid_utf8(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "deepseek3", "gpt2", "kimi"};
    struct mote_rng rng;
    mote_rng_seed(&rng, 99);
    for (size_t k = 0; k < COUNT(names); k++) {
        char path[200], text[400];
        snprintf(path, sizeof path, "tests/golden/tok_%s.json", names[k]);
        struct mote_tokenizer *t = from_json(path, 0);
        struct ids ids = ids_make(sizeof text);
        for (int i = 0; i < 3000; i++) {
            size_t length = below(&rng, sizeof text);
            for (size_t at = 0; at < length; at++)
                text[at] =
                    below(&rng, 2) ? (char)below(&rng, 256) : "ab \n\xE0\xED\xF4\x80\xBF"[below(&rng, 9)];
            ok(mote_tokenize(t, text, length, 0, ids.id, length + 2, &ids.n));
            assert_round_trip(t, &ids, text, length);
        }
        free(ids.id);
        mote_tokenizer_destroy(t);
    }
}

/* A run of one character must not cost the square of its length. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a",        " ", "\n", "0",    "\xE4\xB8\xAD",
                                        "\xCC\x81", "<", "ab", "\xFF", "\xF0\x96\xA4\x80"};
    static const char *const names[] = {"qwen2", "gpt4o", "kimi", "deepseek3", "llama", "gpt2"};
    enum { LENGTH = 1 << 20 };
    char *text = malloc(LENGTH + 8);
    struct ids ids = ids_make(3 * LENGTH + 8);
    assert_non_null(text);
    for (size_t k = 0; k < COUNT(names); k++) {
        char path[200];
        snprintf(path, sizeof path, "tests/golden/tok_%s.json", names[k]);
        struct mote_tokenizer *t = from_json(path, 0);
        for (size_t i = 0; i < COUNT(units); i++) {
            size_t n = strlen(units[i]), length = 0;
            for (; length + n <= LENGTH; length += n) memcpy(text + length, units[i], n);
            double start = mote_seconds();
            ok(mote_tokenize(t, text, length, 0, ids.id, ids.capacity, &ids.n));
            double seconds = mote_seconds() - start;
            if (seconds > 20) fail_msg("%s: 1 MB of \"%s\" took %.1f s", names[k], units[i], seconds);
            if (strcmp(names[k], "llama")) assert_round_trip(t, &ids, text, length);
        }
        mote_tokenizer_destroy(t);
    }
    free(ids.id);
    free(text);
}

static void test_small_inputs(void **state)
{
    (void)state;
    struct mote_tokenizer *t = from_json("tests/golden/tok_llama3.json", 0);
    int32_t id[8];
    size_t n;
    ok(mote_tokenize(t, "", 0, MOTE_ENCODE_SPECIAL, NULL, 0, &n));
    assert_int_equal(n, 0);
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        ok(mote_tokenize(t, &c, 1, 0, id, 3, &n));
        assert_int_equal(n, 1);
        struct mote_piece piece = mote_token_bytes(t, id[0], 0);
        assert_int_equal(piece.length, 1);
        assert_memory_equal(piece.data, &c, 1);
    }
    ok(mote_tokenize(t, "<|im_start|><|im_end|>", 22, MOTE_ENCODE_SPECIAL, id, 8, &n));
    assert_int_equal(n, 2);
    assert_int_equal(id[0], mote_token_find(t, "<|im_start|>"));
    assert_int_equal(mote_token_bytes(t, id[0], 0).length, 0);
    assert_int_equal(mote_token_bytes(t, id[0], 1).length, 12);
    assert_int_equal(mote_token_bytes(t, -1, 1).length, 0);
    assert_int_equal(mote_token_bytes(t, 1 << 30, 1).length, 0);
    assert_int_equal(mote_token_find(t, "no such token"), -1);
    /* An array that is too small: how many there are, and what fits is right. */
    int32_t whole[32], part[3];
    size_t n_part;
    const char *text = "one two three four five";
    ok(mote_tokenize(t, text, strlen(text), 0, whole, 32, &n));
    assert_true(n > 3);
    assert_int_equal(mote_tokenize(t, text, strlen(text), 0, part, 3, &n_part), MOTE_ARGUMENT);
    assert_int_equal(n_part, n);
    assert_memory_equal(part, whole, sizeof part);
    mote_tokenizer_destroy(t);
}

static void test_bos(void **state)
{
    (void)state;
    struct mote_tokenizer *t = from_json("tests/golden/tok_llama.json", 0);
    int32_t id[16];
    size_t n, without;
    ok(mote_tokenize(t, "the", 3, 0, id, 16, &without));
    ok(mote_tokenize(t, "the", 3, MOTE_ENCODE_BOS, id, 16, &n));
    assert_int_equal(n, without + 1); /* from the template of the post_processor */
    assert_int_equal(id[0], mote_token_bos(t));
    assert_int_equal(id[0], mote_token_find(t, "<s>"));
    mote_tokenizer_destroy(t);
    /* tokenizer_config.json decides. */
    struct text json = slurp("tests/golden/tok_llama.json");
    const char *config =
        "{\"add_bos_token\":false,\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\"}";
    const char *generation = "{\"eos_token_id\":[2,1]}";
    ok(mote_tokenizer_from_json(json.data, json.length, config, strlen(config), generation,
                                strlen(generation), 0, NULL, &t));
    ok(mote_tokenize(t, "the", 3, MOTE_ENCODE_BOS, id, 16, &n));
    assert_int_equal(n, without);
    assert_true(mote_token_ends(t, 2) && mote_token_ends(t, 1) && !mote_token_ends(t, 5));
    mote_tokenizer_destroy(t);
    free(json.data);
}

/* Leftmost, longest, and a control token that is not allowed is passed over as a whole. */
static void test_added_tokens(void **state)
{
    (void)state;
    struct mote_tokenizer *t = from_text(
        "{\"added_tokens\":[{\"id\":3,\"content\":\"aa\",\"special\":false},{\"id\":4,\"content\":\"aab\","
        "\"special\":true},"
        "{\"id\":7,\"content\":\"b\",\"special\":false},{\"id\":6,\"content\":\"\xE2\x82\xAC\",\"special\":"
        "false,\"lstrip\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"c\":1,\"\xC4\xA0\":2,\"b\":7},\"merges\":[]}}");
    int32_t id[16];
    size_t n;
    ok(mote_tokenize(t, "aaab", 4, MOTE_ENCODE_SPECIAL, id, 16, &n)); /* aa, a, b: leftmost first */
    assert_int_equal(n, 3);
    assert_true(id[0] == 3 && id[1] == 0 && id[2] == 7);
    ok(mote_tokenize(t, "aabaa", 5, MOTE_ENCODE_SPECIAL, id, 16, &n));
    assert_int_equal(n, 2);
    assert_true(id[0] == 4 && id[1] == 3);
    ok(mote_tokenize(t, "aabaa", 5, 0, id, 16, &n)); /* aab as text, then aa */
    assert_int_equal(n, 4);
    assert_true(id[0] == 0 && id[1] == 0 && id[2] == 7 && id[3] == 3);
    ok(mote_tokenize(t, "c  \xE2\x82\xAC", 6, 0, id, 16, &n)); /* lstrip takes the spaces */
    assert_int_equal(n, 2);
    assert_true(id[0] == 1 && id[1] == 6);
    mote_tokenizer_destroy(t);
}

/* ---- patterns ---- */

static void test_translation(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } good[] = {
        {"\\p{Han}+", "\\p{sc:Han}+"},
        {"[^\\p{L}\\p{^N}]", "[^\\p{L}\\P{N}]"},
        {"\\p{Letter}", "\\p{L}"},
        {"\\h[\\h_]", "[0-9a-fA-F][0-9a-fA-F_]"},
        {"\\u00e9", "\\x{00e9}"},
        {"(?m:.)(?i)a", "(?s:.)(?i)a"},
        {"[a-z&&[^aeiou]]", "(?:(?![aeiou])[a-z])"},
        {"a{2,3}b++", "a{2,3}b++"},
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        char *out;
        ok(mote_regex_translate(good[i].from, strlen(good[i].from), NULL, &out));
        assert_string_equal(out, good[i].to);
        mote_mem_free(out);
    }
    static const char *const bad[] = {"[a[b]]",    "[a&&b]", "[^a&&[^b]]", "a{2}+",  "\\p{L",
                                      "\\pL",      "[abc",   "[a\\W]",     "\\",     "(",
                                      "\\p{Nope}", "[]",     "[a&&[^b]c]", "\\x{12", "*"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct mote_regex *regex;
        if (mote_regex_create(bad[i], strlen(bad[i]), NULL, &regex) != MOTE_UNSUPPORTED)
            fail_msg("pattern %s was not refused", bad[i]);
        assert_null(regex);
    }
    assert_int_equal(mote_mem_global_total(), 0);
}

/* A pattern that backtracks without end fails with a message. */
static void test_match_limit(void **state)
{
    (void)state;
    struct mote_regex *regex;
    struct mote_regex_work *work;
    const char *pattern = "(a|aa)+$";
    ok(mote_regex_create(pattern, strlen(pattern), NULL, &regex));
    ok(mote_regex_work_create(NULL, &work));
    char text[200];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    size_t begin, end;
    assert_int_equal(mote_regex_match(regex, work, text, sizeof text, 0, &begin, &end), MOTE_UNSUPPORTED);
    assert_non_null(strstr(mote_error(), "(a|aa)+$"));
    mote_regex_work_destroy(work);
    mote_regex_destroy(regex);
}

/* ---- names of GGUF ---- */

static const char *name_of(const char *pattern, const char *behavior, const char *model)
{
    static char json[2000];
    snprintf(json, sizeof json,
             "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
             "\"Regex\":\"%s\"},%s},"
             "{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}]},\"model\":{\"type\":"
             "\"BPE\",%s}}",
             pattern, behavior, model);
    struct mote_tokenizer *t = from_text(json);
    struct mote_vocab vocab;
    static char name[40];
    mote_status status = mote_tokenizer_vocab(t, &vocab);
    snprintf(name, sizeof name, "%s", status == MOTE_OK ? vocab.pre : "(none)");
    mote_tokenizer_destroy(t);
    return name;
}

static void test_names(void **state)
{
    (void)state;
#define ISOLATED "\"behavior\":\"Isolated\",\"invert\":false"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"ba\":3}"
#define ALL VOCAB ",\"merges\":[\"a b\",\"b a\"]"
#define SOME VOCAB ",\"merges\":[\"a b\"]"
#define HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}"
#define TAIL "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define TAIL_RAW "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
    assert_string_equal(name_of(HEAD TAIL, ISOLATED, SOME), "qwen2");
    assert_string_equal(name_of(HEAD TAIL_RAW, ISOLATED, SOME), "qwen2"); /* control characters themselves */
    assert_string_equal(name_of(HEAD TAIL "x", ISOLATED, SOME), "(none)");
    assert_string_equal(name_of(HEAD TAIL, "\"behavior\":\"Removed\",\"invert\":true", SOME), "qwen2");
    assert_string_equal(name_of(HEAD TAIL, "\"behavior\":\"Removed\",\"invert\":false", SOME), "(none)");
    assert_string_equal(name_of(HEAD "{1,3}" TAIL, ISOLATED, SOME), "smaug-bpe");
    assert_string_equal(name_of(HEAD "{1,3}" TAIL, ISOLATED, SOME ",\"ignore_merges\":true"), "llama-bpe");
    /* "ba" is only there when merges are ignored, and qwen2 does not ignore them. */
    assert_string_equal(name_of(HEAD TAIL, ISOLATED, SOME ",\"ignore_merges\":true"), "(none)");
    assert_string_equal(name_of(HEAD TAIL, ISOLATED, ALL ",\"ignore_merges\":true"), "qwen2");
    /* Every name that a GGUF may carry makes a tokenizer. */
    static const char *const names[] = {
        "qwen2",   "qwen35",      "llama-bpe",    "glm4",           "smaug-bpe",  "gpt-4o", "tekken",
        "kimi-k2", "deepseek-v3", "deepseek-llm", "deepseek-coder", "bailingmoe", "smollm", "gpt-2",
        "olmo",    "default",     "llada-moe",    "chatglm-bpe",    "gigachat"};
    const struct mote_piece token[] = {{"a", 1}, {"\xC4\xA0", 2}, {"1", 1}};
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct mote_vocab vocab = {.model = "gpt2",
                                         .pre = names[i],
                                         .n_token = 3,
                                         .token = token,
                                         .bos = -1,
                                         .eos = -1,
                                         .eot = -1,
                                         .unk = -1,
                                         .pad = -1};
        struct mote_tokenizer *t;
        int32_t id[8];
        size_t n;
        ok(mote_tokenizer_from_vocab(&vocab, NULL, &t));
        ok(mote_tokenize(t, "a  a11", 6, 0, id, 8, &n));
        assert_int_equal(n, 6);
        mote_tokenizer_destroy(t);
    }
}

/* ---- refusals ---- */

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        mote_status status;
        const char *message;
    } cases[] = {
        {"", MOTE_FORMAT, "tokenizer.json"},
        {"[]", MOTE_FORMAT, "not an object"},
        {"{}", MOTE_UNSUPPORTED, "BPE"},
        {"{\"model\":{\"type\":\"Unigram\"}}", MOTE_UNSUPPORTED, "Unigram"},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", MOTE_FORMAT, "vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", MOTE_FORMAT, "0 tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", MOTE_FORMAT, "-1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000000}}}", MOTE_FORMAT, "2000000000"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"}}}", MOTE_FORMAT, "integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}}}", MOTE_FORMAT, "both"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", MOTE_FORMAT,
         "not a token"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", MOTE_FORMAT, "left right"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", MOTE_FORMAT, "pair"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":7}}", MOTE_FORMAT, "list"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"dropout\":0.1}}", MOTE_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"unk_token\":\"?\"}}", MOTE_FORMAT, "unk_token"},
        {"{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL "}", MOTE_UNSUPPORTED, "Lowercase"},
        {"{\"normalizer\":{\"type\":\"Sequence\"}," MODEL "}", MOTE_FORMAT, "normalizers"},
        {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL "}", MOTE_UNSUPPORTED,
         "BertPreTokenizer"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}," MODEL "}", MOTE_UNSUPPORTED,
         "pattern"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"X\"}," MODEL
         "}",
         MOTE_FORMAT, "behavior"},
        {"{\"added_tokens\":[{\"id\":0,\"content\":\"b\"}]," MODEL "}", MOTE_FORMAT, "both"},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"b\"}]," MODEL "}", MOTE_FORMAT, "also"},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"x\"},{\"id\":10,\"content\":\"x\"}]," MODEL "}",
         MOTE_FORMAT, "both"},
        {"{\"added_tokens\":[{\"id\":9}]," MODEL "}", MOTE_FORMAT, "content"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mote_tokenizer *t;
        mote_status status =
            mote_tokenizer_from_json(cases[i].json, strlen(cases[i].json), NULL, 0, NULL, 0, 0, NULL, &t);
        if (status != cases[i].status || !strstr(mote_error(), cases[i].message))
            fail_msg("%s: %s (%s)", cases[i].json, mote_status_text(status), mote_error());
        assert_null(t);
    }
    /* More ids than embedding rows. */
    struct text json = slurp("tests/golden/tok_qwen2.json");
    struct mote_tokenizer *t;
    assert_int_equal(mote_tokenizer_from_json(json.data, json.length, NULL, 0, NULL, 0, 100, NULL, &t),
                     MOTE_FORMAT);
    free(json.data);
    /* A pattern without a name: it runs, but has no form in a GGUF. */
    t = from_text(
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
        "\"Regex\":"
        "\"[xyz]+\"}},{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}]}," MODEL "}");
    struct mote_vocab vocab;
    assert_int_equal(mote_tokenizer_vocab(t, &vocab), MOTE_UNSUPPORTED);
    assert_non_null(strstr(mote_error(), "[xyz]+"));
    mote_tokenizer_destroy(t);
}

static void test_vocab_refusals(void **state)
{
    (void)state;
    const struct mote_piece token[] = {{"a", 1}, {"b", 1}, {"ab", 2}}, merge[] = {{"a b", 3}},
                            bad[] = {{"ab", 2}};
    const struct mote_vocab good = {.model = "gpt2",
                                    .pre = "qwen2",
                                    .n_token = 3,
                                    .token = token,
                                    .n_merge = 1,
                                    .merge = merge,
                                    .bos = -1,
                                    .eos = -1,
                                    .eot = -1,
                                    .unk = -1,
                                    .pad = -1};
    const int32_t kind[] = {1, 1, 77};
    struct mote_tokenizer *t;
    ok(mote_tokenizer_from_vocab(&good, NULL, &t));
    mote_tokenizer_destroy(t);
    struct {
        struct mote_vocab vocab;
        mote_status status;
        const char *message;
    } cases[] = {{good, MOTE_UNSUPPORTED, "bert"},  {good, MOTE_UNSUPPORTED, "nope"},
                 {good, MOTE_FORMAT, "left right"}, {good, MOTE_FORMAT, "special token"},
                 {good, MOTE_FORMAT, "type 77"},    {good, MOTE_FORMAT, "0 tokens"},
                 {good, MOTE_FORMAT, "scores"}};
    cases[0].vocab.model = "bert";
    cases[1].vocab.pre = "nope";
    cases[2].vocab.merge = bad;
    cases[3].vocab.eos = 3;
    cases[4].vocab.kind = kind;
    cases[5].vocab.n_token = 0;
    cases[6].vocab.model = "llama";
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(mote_tokenizer_from_vocab(&cases[i].vocab, NULL, &t), cases[i].status);
        if (!strstr(mote_error(), cases[i].message)) fail_msg("case %zu: %s", i, mote_error());
        assert_null(t);
    }
}

/* Every allocation fails once, in loading and in encoding; nothing leaks and nothing is half made. */
static void test_failing_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"nfc", "llama", "deepseek3"};
    for (size_t k = 0; k < COUNT(names); k++) {
        char path[200];
        snprintf(path, sizeof path, "tests/golden/tok_%s.json", names[k]);
        struct text json = slurp(path);
        struct mote_tokenizer *t = NULL;
        for (long at = 1;; at++) {
            mote_mem_fail_at(at);
            mote_status status =
                mote_tokenizer_from_json(json.data, json.length, NULL, 0, NULL, 0, 0, NULL, &t);
            mote_mem_fail_at(0);
            if (status == MOTE_OK) break;
            assert_int_equal(status, MOTE_MEMORY);
            assert_null(t);
            assert_int_equal(mote_mem_global_total(), 0);
        }
        size_t before = mote_mem_global_total();
        const char *text = "e\xCC\x81 strange words, 12345 \xF0\x96\xA4\x80 and <|im_end|>";
        struct ids ids = ids_make(3 * strlen(text));
        for (long at = 1;; at++) {
            mote_mem_fail_at(at);
            mote_status status = mote_tokenize(t, text, strlen(text), 0, ids.id, ids.capacity, &ids.n);
            mote_mem_fail_at(0);
            assert_int_equal(mote_mem_global_total(), before);
            if (status == MOTE_OK) break;
            assert_int_equal(status, MOTE_MEMORY);
        }
        free(ids.id);
        free(json.data);
        mote_tokenizer_destroy(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_fable),
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_small_inputs),
        cmocka_unit_test(test_bos),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_translation),
        cmocka_unit_test(test_match_limit),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_vocab_refusals),
        cmocka_unit_test(test_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
