/* cuda_model.h: for tests of whole models on a device: which models, prompts for them, and how far logits are from each other.
 *
 * MOTE_CUDA_MODELS    models, colon between them (models/fable-tq1_0.gguf)
 */
#ifndef MOTE_TESTS_CUDA_MODEL_H
#define MOTE_TESTS_CUDA_MODEL_H

#include <stdlib.h>

#include "engine/vocab.h"
#include "golden.h"
#include "need_device.h"

enum { N_PROMPT = 6, MAX_IDS = 512, N_GREEDY = 64, N_CTX = 640 };
static const double LOGIT_LIMIT = 2e-2, MARGIN_LIMIT = 0.05;

static const char *const prompt_text[N_PROMPT] = {
    "Once upon a time",
    "<|im_start|>user\nTell me the story of the clever fox.<|im_end|>\n<|im_start|>assistant\n",
    "\"I don't know,\" said the old woman; \"but",
    "There was once a king who had three daughters, and the youngest was so beautiful that the sun himself, "
    "who had "
    "seen so much, wondered each time he shone upon her. Near the castle lay a great dark forest, and in it, "
    "under an "
    "old lime tree, was a well; and when the day was very hot the king's child went out into the forest and "
    "sat down by "
    "the side of the cool fountain. When she was weary of sitting she took a golden ball, threw it up on "
    "high and "
    "caught it, and this ball was her favourite plaything.",
    "Alice and the 3 bears went to \303\234nderwald\342\200\224na\303\257ve caf\303\251 \342\230\203",
    "THE GOLDEN BIRD\n\nIn the olden time there was a king, who had behind his palace a beautiful pleasure "
    "garden in which "
    "there was a tree that bore golden apples. When the apples were getting ripe they were counted, but on "
    "the very next "
    "morning one was missing. This was told to the king, and he ordered that a watch should be kept every "
    "night beneath "
    "the tree. The king had three sons, the eldest of whom he sent, as soon as night came on, into the "
    "garden; but when "
    "it was midnight he could not keep himself from sleeping, and next morning again an apple was gone. The "
    "following "
    "night the second son had to keep watch, but it fared no better with him; as soon as twelve o'clock had "
    "struck he fell "
    "asleep, and in the morning an apple was gone. Now it came to the turn of the third son to watch; and he "
    "was quite "
    "ready, but the king had not much trust in him, and thought that he would be of less use even than his "
    "brothers; but "
    "at last he let him go. The youth lay down beneath the tree, but kept awake, and did not let sleep "
    "master him.",
};

/* The next of a colon-separated list, in `out`; 0 at the end. */
static inline int next_word(const char **list, char out[512])
{
    while (**list == ':') ++*list;
    size_t n = strcspn(*list, ":");
    if (!n) return 0;
    assert_true(n < 512);
    memcpy(out, *list, n);
    out[n] = 0;
    *list += n;
    return 1;
}

static const char *models(void)
{
    const char *list = getenv("MOTE_CUDA_MODELS");
    return list && *list ? list : "models/fable-tq1_0.gguf";
}

static inline void each_model(void (*check)(const char *path))
{
    need_device();
    char path[512];
    for (const char *list = models(); next_word(&list, path);) check(path);
}

struct prompt {
    int32_t ids[MAX_IDS];
    int64_t n;
};

/* The texts in the model's tokens; a model without a tokenizer gets tokens from all over its vocabulary. */
static inline void make_prompts(struct run *run, struct prompt prompt[N_PROMPT])
{
    struct mote_tokenizer *tokenizer = NULL;
    int64_t n_vocab = (int64_t)run->network->hyper.n_vocab;
    mote_status status = mote_vocab_open(run->catalogue, (size_t)n_vocab, run->budget, &tokenizer);
    assert_true(status == MOTE_OK || status == MOTE_NOT_FOUND);
    for (int p = 0; p < N_PROMPT; p++) {
        size_t length = strlen(prompt_text[p]), n = length / 4 + 3;
        if (tokenizer)
            must(mote_tokenize(tokenizer, prompt_text[p], length, MOTE_ENCODE_SPECIAL, prompt[p].ids, MAX_IDS,
                               &n));
        for (size_t i = 0; !tokenizer && i < n; i++)
            prompt[p].ids[i] = (int32_t)(((i + 1) * 7919 + i * i * 31) % (size_t)n_vocab);
        prompt[p].n = (int64_t)n;
    }
    mote_tokenizer_destroy(tokenizer);
}

static inline void top_of(const float *row, int64_t n_vocab, int32_t top[GOLDEN_TOP])
{
    int n = 0;
    for (int64_t v = 0; v < n_vocab; v++) {
        if (n == GOLDEN_TOP && !(row[v] > row[top[n - 1]])) continue;
        int at = n < GOLDEN_TOP ? n++ : n - 1;
        for (; at > 0 && row[v] > row[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = (int32_t)v;
    }
}

/* Largest difference over the ten largest of `want`; infinite when there is a NaN. */
static inline double top_error(const float *got, const float *want, int64_t n_vocab)
{
    int32_t top[GOLDEN_TOP];
    double worst = 0;
    top_of(want, n_vocab, top);
    for (int t = 0; t < GOLDEN_TOP; t++) {
        double error = fabs((double)got[top[t]] - (double)want[top[t]]);
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

/* Errors of many positions. One position near a router's tie chooses another expert and differs by far, so the largest
 * says little: a fault shows in the median and the 90th percentile. */
enum { MAX_ERRORS = 256 };
struct errors {
    double error[MAX_ERRORS]; /* sorted by check_errors */
    int n;
};
struct error_limits {
    double median, p90, largest;
};

static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void check_errors(const char *path, const char *what, struct errors *errors,
                                const struct error_limits *limits)
{
    int n = errors->n;
    assert_true(n > 0);
    qsort(errors->error, (size_t)n, sizeof errors->error[0], by_size);
    double median = errors->error[n / 2], p90 = errors->error[n * 9 / 10],
           largest_error = errors->error[n - 1];
    print_message("%s, %s: top-10 logit errors of %d positions: median %.1e, 90 %% %.1e, largest %.1e\n",
                  path, what, n, median, p90, largest_error);
    if (!(median <= limits->median && p90 <= limits->p90 && largest_error <= limits->largest))
        fail_msg("%s, %s: expected at most %.1e, %.1e, %.1e", path, what, limits->median, limits->p90,
                 limits->largest);
}

static inline float *new_logits(int64_t n)
{
    float *x;
    must(mote_mem_alloc(NULL, MOTE_MEM_TABLES, (size_t)n * sizeof *x, &x));
    return x;
}

/* Every third position's error of a run against another's logits. */
static inline void prompt_errors(struct run *run, struct run *exact, const struct prompt *prompt,
                                 struct errors *errors)
{
    int64_t n_vocab = (int64_t)exact->network->hyper.n_vocab;
    float *want = new_logits(prompt->n * n_vocab), *got = new_logits(prompt->n * n_vocab);
    struct mote_timeline *a = run_session(exact, N_CTX, MOTE_KV_F32),
                         *b = run_session(run, N_CTX, MOTE_KV_F32);
    must(mote_timeline_eval_all(a, prompt->ids, prompt->n, want));
    must(mote_timeline_eval_all(b, prompt->ids, prompt->n, got));
    for (int64_t i = 0; i < prompt->n && errors->n < MAX_ERRORS; i += 3)
        errors->error[errors->n++] = top_error(got + i * n_vocab, want + i * n_vocab, n_vocab);
    mote_timeline_destroy(a);
    mote_timeline_destroy(b);
    mote_mem_free(want);
    mote_mem_free(got);
}

/* Prompts on the device with activations that lose something are no further from f32 activations than the CPU's. (Not
 * close to the CPU's: what one rounding decides otherwise is as large as all roundings a few layers on.) catalogue: of
 * `path`, or NULL. */
static inline void check_rounding(const char *path, const char *what, struct mote_catalogue *catalogue,
                                  enum mote_act_wish act)
{
    static struct prompt prompt[N_PROMPT];
    static const char *const where[] = {"CPU", "CUDA"};
    struct run exact, run;
    struct errors errors[2] = {0};
    struct error_limits limits = {INFINITY, INFINITY, INFINITY};
    char name[128];
    run_open(path, &(struct run_options){.catalogue = catalogue, .act = MOTE_WISH_F32}, &exact);
    make_prompts(&exact, prompt);
    for (int v = 0; v < 2; v++) {
        const struct mote_backend_kind *device = v ? &mote_backend_cuda : NULL;
        run_open(path, &(struct run_options){.catalogue = catalogue, .act = act, .device = device}, &run);
        for (int p = 0; p < N_PROMPT; p++) prompt_errors(&run, &exact, &prompt[p], &errors[v]);
        snprintf(name, sizeof name, "%s, %s", what, where[v]);
        check_errors(path, name, &errors[v], &limits); /* sorts them */
        limits = (struct error_limits){1.5 * errors[0].error[errors[0].n / 2] + 1e-3,
                                       1.5 * errors[0].error[errors[0].n * 9 / 10] + 1e-2, INFINITY};
        run_close(&run);
    }
    run_close(&exact);
}

static inline double margin_of(const float *row, int64_t n_vocab)
{
    int32_t top[GOLDEN_TOP];
    top_of(row, n_vocab, top);
    return (double)row[top[0]] - (double)row[top[1]];
}

/* Greedy text after what the session holds. margin: how far the first was ahead, or NULL. */
static inline void greedy(struct mote_timeline *session, int32_t ids[N_GREEDY], double *margin)
{
    int64_t n_vocab = mote_timeline_n_vocab(session);
    for (int i = 0; i < N_GREEDY; i++) {
        const float *row = mote_timeline_logits(session);
        ids[i] = largest(row, n_vocab);
        if (margin) margin[i] = margin_of(row, n_vocab);
        must(mote_timeline_eval(session, &ids[i], 1));
    }
}

/* The same text, or another only where the reference was undecided. */
static inline void expect_text(const char *path, const char *what, int prompt, const int32_t *got,
                               const int32_t *want, const double *margin)
{
    for (int i = 0; i < N_GREEDY; i++) {
        if (got[i] == want[i]) continue;
        print_message("%s, %s, prompt %d: token %d is %d, expected %d, whose margin was %.4f\n", path, what,
                      prompt, i, got[i], want[i], margin[i]);
        if (!(margin[i] < MARGIN_LIMIT))
            fail_msg("%s, %s: another text where the margin is %.4f", path, what, margin[i]);
        return;
    }
}

#endif
