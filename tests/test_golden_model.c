/* test_golden_model.c: whole models against transformers in float32: logits at every position, greedy text,
 * likelihood of the validation text; float weights, float cache, float activations. */
#include "run_model.h"

#include <jansson.h>
#include <math.h>

#include "base/clock.h"
#include "base/mapfile.h"
#include "engine/perplexity.h"
#include "engine/vocab.h"

enum { N_TOP = 10, MAX_IDS = 256 };

struct model {
    const char *path, *golden;
};
static struct model fable = {FABLE, "../shared/models/fable-golden.json"};
static struct model ternary = {FABLE_TERNARY, "../shared/models/fable-ternary-golden.json"};

static int64_t read_ids(const json_t *array, int32_t *out)
{
    size_t i;
    const json_t *item;
    assert_true(json_array_size(array) <= MAX_IDS);
    json_array_foreach(array, i, item) out[i] = (int32_t)json_integer_value(item);
    return (int64_t)json_array_size(array);
}

static int32_t largest(const float *x, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = (int32_t)i;
    return best;
}

static void check_prompt(struct run *run, const json_t *golden, double *worst)
{
    int32_t ids[MAX_IDS], greedy[MAX_IDS];
    int64_t n = read_ids(json_object_get(golden, "ids"), ids), n_vocab = (int64_t)run->network->hyper.n_vocab;
    int64_t n_greedy = read_ids(json_object_get(golden, "greedy_ids"), greedy);
    const char *prompt = json_string_value(json_object_get(golden, "prompt"));
    struct mote_timeline *session = run_session(run, 512, MOTE_KV_F32);
    float *logits;
    must(mote_mem_alloc(NULL, MOTE_MEM_TABLES, (size_t)(n * n_vocab) * sizeof *logits, &logits));
    must(mote_timeline_eval_all(session, ids, n, logits));
    for (int64_t i = 0; i < n; i++) {
        const json_t *top = json_array_get(json_object_get(golden, "top10_ids"), (size_t)i);
        const json_t *value = json_array_get(json_object_get(golden, "top10_logits"), (size_t)i);
        const float *row = logits + i * n_vocab;
        assert_int_equal(json_array_size(top), N_TOP);
        for (size_t t = 0; t < N_TOP; t++) {
            int32_t id = (int32_t)json_integer_value(json_array_get(top, t));
            double expected = json_number_value(json_array_get(value, t)), error = fabs(row[id] - expected);
            if (error > *worst) *worst = error;
            if (!(error <= 2e-3))
                fail_msg("\"%s\" position %lld token %d: %f, expected %f", prompt, (long long)i, id,
                         (double)row[id], expected);
        }
        double lse = json_number_value(json_array_get(json_object_get(golden, "logsumexp"), (size_t)i));
        assert_true(fabs(mote_log_sum_exp(row, n_vocab) - lse) <= 2e-3);
    }
    for (int64_t i = 0; i < n_greedy; i++) {
        int32_t id = largest(mote_timeline_logits(session), n_vocab);
        if (id != greedy[i])
            fail_msg("\"%s\" greedy token %lld: %d, expected %d", prompt, (long long)i, id, greedy[i]);
        must(mote_timeline_eval(session, &id, 1));
    }
    mote_mem_free(logits);
    mote_timeline_destroy(session);
}

static void test_prompts(void **state)
{
    const struct model *model = *state;
    need_shared();
    json_t *golden = json_load_file(model->golden, 0, NULL);
    assert_non_null(golden);
    struct run run;
    run_open(model->path, &(struct run_options){.act_f32 = 1}, &run);
    size_t i;
    const json_t *prompt;
    double worst = 0;
    json_array_foreach(json_object_get(golden, "prompts"), i, prompt) check_prompt(&run, prompt, &worst);
    assert_int_equal(i, 6);
    print_message("%s: %zu prompts, largest logit error %.1e\n", model->path, i, worst);
    run_close(&run);
    json_decref(golden);
}

static void test_likelihood(void **state)
{
    const struct model *model = *state;
    need_shared();
    json_t *golden = json_load_file(model->golden, 0, NULL);
    assert_non_null(golden);
    struct mote_mapfile text;
    must(mote_mapfile_open("../shared/corpus/valid.txt", &text));
    struct run run;
    run_open(model->path, &(struct run_options){.act_f32 = 1}, &run);
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
