/* golden.h: for tests: a model's logits and greedy text against those of transformers in float32
 * (../shared/models/<name>-golden.json). */
#ifndef MOTE_TESTS_GOLDEN_H
#define MOTE_TESTS_GOLDEN_H

#include "run_model.h"

#include <jansson.h>
#include <math.h>

#include "engine/perplexity.h"

enum { GOLDEN_TOP = 10, GOLDEN_IDS = 256 };

/* How close is close: of the ten largest logits of a position (and their log-sum-exp); and the distance from the
 * largest logit below which another token may come first (0: never). */
struct golden_limits {
    double logit, margin;
};

static inline int64_t golden_read_ids(const json_t *array, int32_t *out)
{
    size_t i;
    const json_t *item;
    assert_true(json_array_size(array) <= GOLDEN_IDS);
    json_array_foreach(array, i, item) out[i] = (int32_t)json_integer_value(item);
    return (int64_t)json_array_size(array);
}

static inline int32_t largest(const float *x, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = (int32_t)i;
    return best;
}

/* logits [n][n_vocab] after each of a prompt's n tokens against golden's; *worst is raised to the largest error. */
static inline void golden_compare(const float *logits, int64_t n, int64_t n_vocab, const json_t *golden,
                                  const struct golden_limits *limits, double *worst)
{
    const char *prompt = json_string_value(json_object_get(golden, "prompt"));
    for (int64_t i = 0; i < n; i++) {
        const json_t *top = json_array_get(json_object_get(golden, "top10_ids"), (size_t)i);
        const json_t *value = json_array_get(json_object_get(golden, "top10_logits"), (size_t)i);
        const float *row = logits + i * n_vocab;
        assert_int_equal(json_array_size(top), GOLDEN_TOP);
        for (size_t t = 0; t < GOLDEN_TOP; t++) {
            int32_t id = (int32_t)json_integer_value(json_array_get(top, t));
            double expected = json_number_value(json_array_get(value, t)), error = fabs(row[id] - expected);
            if (error > *worst) *worst = error;
            if (!(error <= limits->logit))
                fail_msg("\"%s\" position %lld token %d: %f, expected %f", prompt, (long long)i, id,
                         (double)row[id], expected);
        }
        double lse = json_number_value(json_array_get(json_object_get(golden, "logsumexp"), (size_t)i));
        assert_true(fabs(mote_log_sum_exp(row, n_vocab) - lse) <= limits->logit);
    }
}

/* Five of golden's prompts in the same steps. */
static inline void golden_check_batch(struct run *run, const json_t *prompts,
                                      const struct golden_limits *limits, double *worst)
{
    enum { BATCH = 5 };
    struct mote_turn turn[BATCH];
    int32_t ids[BATCH][GOLDEN_IDS];
    int64_t n_vocab = (int64_t)run->network->hyper.n_vocab;
    for (size_t p = 0; p < BATCH; p++) {
        int64_t n = golden_read_ids(json_object_get(json_array_get(prompts, p), "ids"), ids[p]);
        turn[p] = (struct mote_turn){.session = run_session(run, 512, MOTE_KV_F32), .ids = ids[p], .n = n};
        must(mote_mem_alloc(NULL, MOTE_MEM_TABLES, (size_t)(n * n_vocab) * sizeof(float),
                            &turn[p].all_logits));
    }
    must(mote_timeline_eval_many(turn, BATCH));
    for (size_t p = 0; p < BATCH; p++) {
        golden_compare(turn[p].all_logits, turn[p].n, n_vocab, json_array_get(prompts, p), limits, worst);
        mote_mem_free(turn[p].all_logits);
        mote_timeline_destroy(turn[p].session);
    }
}

/* One of golden's prompts, float cache; *worst is raised to the largest logit error. */
static inline void golden_check_prompt(struct run *run, const json_t *golden,
                                       const struct golden_limits *limits, double *worst)
{
    int32_t ids[GOLDEN_IDS], greedy[GOLDEN_IDS];
    int64_t n = golden_read_ids(json_object_get(golden, "ids"), ids),
            n_vocab = (int64_t)run->network->hyper.n_vocab;
    int64_t n_greedy = golden_read_ids(json_object_get(golden, "greedy_ids"), greedy);
    const char *prompt = json_string_value(json_object_get(golden, "prompt"));
    struct mote_timeline *session = run_session(run, 512, MOTE_KV_F32);
    float *logits;
    must(mote_mem_alloc(NULL, MOTE_MEM_TABLES, (size_t)(n * n_vocab) * sizeof *logits, &logits));
    must(mote_timeline_eval_all(session, ids, n, logits));
    golden_compare(logits, n, n_vocab, golden, limits, worst);
    for (int64_t i = 0; i < n_greedy; i++) {
        const float *row = mote_timeline_logits(session);
        int32_t id = largest(row, n_vocab);
        if (id != greedy[i]) {
            double margin = (double)row[id] - (double)row[greedy[i]];
            if (!(margin < limits->margin))
                fail_msg("\"%s\" greedy token %lld: %d, expected %d (%f below)", prompt, (long long)i, id,
                         greedy[i], margin);
            print_message("\"%s\": another greedy token at %lld, %.4f ahead\n", prompt, (long long)i, margin);
            break;
        }
        must(mote_timeline_eval(session, &id, 1));
    }
    mote_mem_free(logits);
    mote_timeline_destroy(session);
}

static inline void golden_check(const char *path, const char *golden_path, const struct run_options *options,
                                const struct golden_limits *limits)
{
    json_t *golden = json_load_file(golden_path, 0, NULL);
    assert_non_null(golden);
    struct run run;
    run_open(path, options, &run);
    size_t i;
    const json_t *prompt;
    double worst = 0;
    json_array_foreach(json_object_get(golden, "prompts"), i, prompt)
        golden_check_prompt(&run, prompt, limits, &worst);
    assert_int_equal(i, 6);
    golden_check_batch(&run, json_object_get(golden, "prompts"), limits, &worst);
    print_message("%s: %zu prompts, largest logit error %.1e\n", path, i, worst);
    run_close(&run);
    json_decref(golden);
}

#endif
