/* test_golden_model.c: whole models against transformers in float32: logits at every position, greedy text,
 * likelihood of the validation text; float weights, float cache, float activations. */
#include "golden.h"

#include "base/clock.h"
#include "base/mapfile.h"
#include "engine/vocab.h"

struct model {
    const char *path, *golden;
};
static struct model fable = {FABLE, "../shared/models/fable-golden.json"};
static struct model ternary = {FABLE_TERNARY, "../shared/models/fable-ternary-golden.json"};

static void test_prompts(void **state)
{
    const struct model *model = *state;
    need_shared();
    golden_check(model->path, model->golden, &(struct run_options){.act = MOTE_WISH_F32},
                 &(struct golden_limits){.logit = 2e-3});
}

static void test_likelihood(void **state)
{
    const struct model *model = *state;
    need_shared();
    if (getenv("MOTE_TEST_SHORT")) skip(); /* the prompts go the same ways */
    json_t *golden = json_load_file(model->golden, 0, NULL);
    assert_non_null(golden);
    struct mote_mapfile text;
    must(mote_mapfile_open("../shared/corpus/valid.txt", &text));
    struct run run;
    run_open(model->path, &(struct run_options){.act = MOTE_WISH_F32}, &run);
    struct mote_tokenizer *tokenizer;
    must(mote_vocab_open(run.catalogue, (size_t)run.network->hyper.n_vocab, run.budget, &tokenizer));
    int64_t window = json_integer_value(json_object_get(golden, "valid_window")), n;
    int64_t n_window = json_integer_value(json_object_get(golden, "valid_windows"));
    int32_t *ids;
    must(mote_corpus_encode(tokenizer, (const char *)text.data, text.size, window * n_window, run.budget,
                            &ids, &n));
    assert_int_equal(n, window * n_window);
    struct mote_timeline *session = run_session(&run, window, MOTE_KV_F32);
    struct mote_nll_options options = {.window = window, .n_window = n_window};
    struct mote_nll nll;
    double seconds = mote_seconds();
    must(mote_nll_measure(session, ids, n, &options, &nll));
    seconds = mote_seconds() - seconds;
    double expected = json_number_value(json_object_get(golden, "valid_nll"));
    print_message("%s: nll %.6f +- %.4f over %lld predictions, expected %.6f (%.1f s, %.0f tokens/s)\n",
                  model->path, nll.mean, nll.error, (long long)nll.n_token, expected, seconds,
                  (double)n / seconds);
    assert_int_equal(nll.n_token, n_window * (window - 1));
    assert_true(fabs(nll.mean - expected) <= 1e-3);
    mote_timeline_destroy(session);
    mote_mem_free(ids);
    mote_tokenizer_destroy(tokenizer);
    run_close(&run);
    mote_mapfile_close(&text);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_prompts, &fable),
        cmocka_unit_test_prestate(test_prompts, &ternary),
        cmocka_unit_test_prestate(test_likelihood, &fable),
        cmocka_unit_test_prestate(test_likelihood, &ternary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
