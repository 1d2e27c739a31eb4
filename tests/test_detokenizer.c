/* test_detokenizer.c: streaming output: whole characters only, held back and replaced bytes, any cutting of the text
 * into tokens gives the same output.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "text/tokenizer.h"

#define R "\xEF\xBF\xBD"

static void ok(mote_status status)
{
    if (status != MOTE_OK) fail_msg("%s: %s", mote_status_text(status), mote_error());
}

/* A score-based vocabulary of 256 byte tokens, a control token, two words: token i is byte i. */
enum { CONTROL = 256, WORD, EURO, N_TOKEN };

static struct mote_tokenizer *bytes_tokenizer(int space_prefix)
{
    static char name[256][8];
    struct mote_piece token[N_TOKEN] = {
        [CONTROL] = {"<c>", 3}, [WORD] = {"\xE2\x96\x81word", 7}, [EURO] = {"x\xE2\x82\xAC", 4}};
    int32_t kind[N_TOKEN] = {
        [CONTROL] = MOTE_TOKEN_CONTROL, [WORD] = MOTE_TOKEN_NORMAL, [EURO] = MOTE_TOKEN_NORMAL};
    float score[N_TOKEN] = {0};
    for (int i = 0; i < 256; i++) {
        snprintf(name[i], sizeof name[i], "<0x%02X>", i);
        token[i] = (struct mote_piece){name[i], 6};
        kind[i] = MOTE_TOKEN_BYTE;
    }
    struct mote_vocab vocab = {.model = "llama",
                               .n_token = N_TOKEN,
                               .token = token,
                               .score = score,
                               .kind = kind,
                               .bos = -1,
                               .eos = -1,
                               .eot = -1,
                               .unk = -1,
                               .pad = -1,
                               .add_space_prefix = space_prefix};
    struct mote_tokenizer *t;
    ok(mote_tokenizer_from_vocab(&vocab, NULL, &t));
    return t;
}

static void test_held_back(void **state)
{
    (void)state;
    static const struct {
        const char *in;    /* bytes, one a token */
        const char *steps; /* what comes out after each, separated by '|', and at the end */
    } cases[] = {
        {"ab", "a|b|"},
        {"\xC3\xA9", "|\xC3\xA9|"},
        {"\xE2\x82\xAC!", "||\xE2\x82\xAC|!|"},
        {"\xF0\x9F\x98\x80", "|||\xF0\x9F\x98\x80|"},
        {"\xF0\x9F\x98", "|||" R},       /* ends inside a character: one replacement */
        {"\xF0\x9F\x98z", "|||" R "z|"}, /* cut off by another character */
        {"\xF0\x9F\xF0\x9F\x98\x80", "||" R "|||\xF0\x9F\x98\x80|"},
        {"\x80", R "|"},                               /* never the beginning of anything */
        {"\xC0\xAF", R "|" R "|"},                     /* overlong */
        {"\xE0\x80\x80", "|" R R "|" R "|"},           /* E0 is not followed by 80 */
        {"\xED\xA0\x80", "|" R R "|" R "|"},           /* surrogate */
        {"\xF4\x90\x80\x80", "|" R R "|" R "|" R "|"}, /* beyond U+10FFFF */
        {"\xF5", R "|"},
        {"\xC3\xC3\xA9", "|" R "|\xC3\xA9|"},
    };
    struct mote_tokenizer *t = bytes_tokenizer(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mote_detokenizer d;
        char out[64], all[256] = "";
        mote_detokenizer_init(&d, t, 0);
        for (const char *c = cases[i].in; *c; c++) {
            size_t n = mote_detokenizer_put(&d, (unsigned char)*c, out);
            snprintf(all + strlen(all), sizeof all - strlen(all), "%.*s|", (int)n, out);
        }
        size_t n = mote_detokenizer_end(&d, out);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%.*s", (int)n, out);
        assert_string_equal(all, cases[i].steps);
        assert_int_equal(mote_detokenizer_end(&d, out), 0);
    }
    mote_tokenizer_destroy(t);
}

static void test_tokens(void **state)
{
    (void)state;
    for (int prefix = 0; prefix < 2; prefix++) {
        struct mote_tokenizer *t = bytes_tokenizer(prefix);
        struct mote_detokenizer d;
        char out[64];
        assert_int_equal(mote_token_max_bytes(t), 5);
        mote_detokenizer_init(&d, t, 0);
        assert_int_equal(mote_detokenizer_put(&d, CONTROL, out), 0);
        size_t n = mote_detokenizer_put(&d, WORD, out); /* the first space is the encoder's, if it puts one */
        assert_int_equal(n, prefix ? 4 : 5);
        assert_memory_equal(out, prefix ? "word" : " word", n);
        assert_int_equal(mote_detokenizer_put(&d, WORD, out), 5);
        assert_memory_equal(out, " word", 5);
        assert_int_equal(mote_detokenizer_put(&d, 0xE2, out), 0);
        assert_int_equal(mote_detokenizer_put(&d, CONTROL, out), 0); /* prints nothing, ends nothing */
        assert_int_equal(mote_detokenizer_put(&d, EURO, out), 7);
        assert_memory_equal(out, R "x\xE2\x82\xAC", 7);
        assert_int_equal(mote_detokenizer_put(&d, -1, out) + mote_detokenizer_put(&d, 1 << 30, out), 0);
        mote_detokenizer_init(&d, t, 1);
        assert_int_equal(mote_detokenizer_put(&d, CONTROL, out), 3);
        assert_memory_equal(out, "<c>", 3);
        mote_tokenizer_destroy(t);
    }
}

/* Random bytes: what comes out is valid, and putting it through again changes nothing. */
static void test_random(void **state)
{
    (void)state;
    struct mote_tokenizer *t = bytes_tokenizer(0);
    struct mote_rng rng;
    mote_rng_seed(&rng, 5);
    for (int round = 0; round < 20000; round++) {
        struct mote_detokenizer d;
        unsigned char in[12];
        char out[80], again[200];
        size_t n_in = mote_rng_below(&rng, sizeof in + 1), n = 0, n_again = 0;
        mote_detokenizer_init(&d, t, 0);
        for (size_t i = 0; i < n_in; i++) {
            static const unsigned char likely[] = {0x41, 0xC3, 0xE2, 0xED, 0xF0,
                                                   0xF4, 0x80, 0x9F, 0xA0, 0xBF};
            in[i] = mote_rng_below(&rng, 4) ? likely[mote_rng_below(&rng, 10)]
                                            : (unsigned char)mote_rng_u64(&rng);
            n += mote_detokenizer_put(&d, in[i], out + n);
            assert_in_range(d.n_held, 0, 3);
        }
        n += mote_detokenizer_end(&d, out + n);
        assert_in_range(n, n_in ? 1 : 0, 3 * n_in);
        for (size_t i = 0; i < n; i++)
            n_again += mote_detokenizer_put(&d, (unsigned char)out[i], again + n_again);
        assert_int_equal(d.n_held, 0);
        assert_int_equal(n_again, n);
        assert_memory_equal(again, out, n);
    }
    mote_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_held_back), cmocka_unit_test(test_tokens),
                                       cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
