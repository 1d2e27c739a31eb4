/* test_cuda_model.c: whole models on a device against the CPU with float activations: logits, greedy text, prompts in one
 * chunk and in several, sessions together, fused and not, recorded steps and launches one by one; tokens from shortlists
 * against tokens from rows; a model in many formats.
 *
 * MOTE_CUDA_MODELS    models, colon between them (models/fable-tq1_0.gguf)
 * MOTE_CUDA_GOLDEN    model:golden.json, colon between all (fable and fable-ternary of ../shared where they are); the first
 *                     model is the one that many formats are made from */
#define _GNU_SOURCE
#include "base/clock.h"
#include "cuda/compile.h"
#include "engine/sampler.h"
#include "engine/vocab.h"
#include "golden.h"
#include "host_shortlist.h"
#include "model/plan.h"
#include "need_device.h"
#include "recipe.h"

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
static int next_word(const char **list, char out[512])
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

static void each_model(void (*check)(const char *path))
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
static void make_prompts(struct run *run, struct prompt prompt[N_PROMPT])
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

static void top_of(const float *row, int64_t n_vocab, int32_t top[GOLDEN_TOP])
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
static double top_error(const float *got, const float *want, int64_t n_vocab)
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

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_errors(const char *path, const char *what, struct errors *errors,
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

static double margin_of(const float *row, int64_t n_vocab)
{
    int32_t top[GOLDEN_TOP];
    top_of(row, n_vocab, top);
    return (double)row[top[0]] - (double)row[top[1]];
}

static float *new_logits(int64_t n)
{
    float *x;
    must(mote_mem_alloc(NULL, MOTE_MEM_TABLES, (size_t)n * sizeof *x, &x));
    return x;
}

/* Greedy text after what the session holds. margin: how far the first was ahead, or NULL. */
static void greedy(struct mote_timeline *session, int32_t ids[N_GREEDY], double *margin)
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
static void expect_text(const char *path, const char *what, int prompt, const int32_t *got,
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

/* ---- against the CPU ---- */

static void check_against_cpu(const char *path)
{
    static const int64_t chunks[] = {512, 64, 7};
    enum { N_CHUNK = sizeof chunks / sizeof *chunks };
    static struct prompt prompt[N_PROMPT];
    struct run cpu, cuda[N_CHUNK];
    run_open(path, &(struct run_options){.act_f32 = 1}, &cpu);
    for (int c = 0; c < N_CHUNK; c++)
        run_open(path, &(struct run_options){.device = &mote_backend_cuda, .max_row = chunks[c]}, &cuda[c]);
    make_prompts(&cpu, prompt);
    int64_t n_vocab = (int64_t)cpu.network->hyper.n_vocab;
    double worst[N_CHUNK] = {0};
    for (int p = 0; p < N_PROMPT; p++) {
        int32_t want_text[N_GREEDY], text[N_GREEDY];
        double margin[N_GREEDY];
        float *want = new_logits(prompt[p].n * n_vocab), *got = new_logits(prompt[p].n * n_vocab);
        struct mote_timeline *session = run_session(&cpu, N_CTX, MOTE_KV_F32);
        must(mote_timeline_eval_all(session, prompt[p].ids, prompt[p].n, want));
        greedy(session, want_text, margin);
        mote_timeline_destroy(session);
        for (int c = 0; c < N_CHUNK; c++) {
            char what[64];
            snprintf(what, sizeof what, "chunks of %lld", (long long)chunks[c]);
            session = run_session(&cuda[c], N_CTX, MOTE_KV_F32);
            must(mote_timeline_eval_all(session, prompt[p].ids, prompt[p].n, got));
            for (int64_t i = 0; i < prompt[p].n; i++) {
                double error = top_error(got + i * n_vocab, want + i * n_vocab, n_vocab);
                if (error > worst[c]) worst[c] = error;
                if (!(error <= LOGIT_LIMIT))
                    fail_msg("%s, %s, prompt %d position %lld: a top-10 logit is off by %g", path, what, p,
                             (long long)i, error);
            }
            greedy(session, text, NULL);
            expect_text(path, what, p, text, want_text, margin);
            mote_timeline_destroy(session);
        }
        mote_mem_free(want);
        mote_mem_free(got);
    }
    print_message("%s: largest top-10 logit error in chunks of 512, 64, 7: %.1e, %.1e, %.1e\n", path,
                  worst[0], worst[1], worst[2]);
    for (int c = 0; c < N_CHUNK; c++) run_close(&cuda[c]);
    run_close(&cpu);
}

static void test_against_cpu(void **state)
{
    (void)state;
    each_model(check_against_cpu);
}

/* Other caches than f32 come close to the CPU with the same. */
static void check_caches(const char *path)
{
    static const enum mote_kv_type types[] = {MOTE_KV_F16, MOTE_KV_Q8_0};
    static const char *const name[] = {"cache f16", "cache q8_0"};
    /* A code of a key or value may round the other way: as much as the cache's type itself changes on the CPU, twice. */
    static const struct error_limits limits[] = {{4e-3, 1e-2, 2e-2}, {7e-2, 2.2e-1, 2.5e-1}};
    static struct prompt prompt[N_PROMPT];
    struct run cpu, cuda;
    run_open(path, &(struct run_options){.act_f32 = 1}, &cpu);
    run_open(path, &(struct run_options){.device = &mote_backend_cuda}, &cuda);
    make_prompts(&cpu, prompt);
    int64_t n_vocab = (int64_t)cpu.network->hyper.n_vocab;
    for (int t = 0; t < 2; t++) {
        if (types[t] == MOTE_KV_Q8_0 && cpu.network->hyper.head_dim % 32) continue;
        struct errors errors = {.n = 0};
        for (int p = 3; p < N_PROMPT; p++) {
            struct mote_timeline *a = run_session(&cpu, N_CTX, types[t]),
                                 *b = run_session(&cuda, N_CTX, types[t]);
            must(mote_timeline_eval(a, prompt[p].ids, prompt[p].n - 5));
            must(mote_timeline_eval(b, prompt[p].ids, prompt[p].n - 5));
            for (int64_t i = prompt[p].n - 5; i < prompt[p].n; i++) {
                must(mote_timeline_eval(a, prompt[p].ids + i, 1));
                must(mote_timeline_eval(b, prompt[p].ids + i, 1));
                errors.error[errors.n++] =
                    top_error(mote_timeline_logits(b), mote_timeline_logits(a), n_vocab);
            }
            mote_timeline_destroy(a);
            mote_timeline_destroy(b);
        }
        check_errors(path, name[t], &errors, &limits[t]);
    }
    run_close(&cuda);
    run_close(&cpu);
}

static void test_caches(void **state)
{
    (void)state;
    each_model(check_caches);
}

/* ---- sessions together ---- */

static void check_batch(const char *path)
{
    enum { SESSIONS = 5, STEPS = 24 };
    /* Attention cuts its keys by the number of rows, which moves sums by 1e-7; a router near a tie then chooses another
     * expert. Against golden logits a batch is held to the limit of single rows (golden.h). */
    static const struct error_limits limits = {5e-3, 3e-2, 1e-1};
    struct errors errors = {.n = 0};
    static struct prompt prompt[N_PROMPT];
    struct run run;
    run_open(path, &(struct run_options){.device = &mote_backend_cuda}, &run);
    make_prompts(&run, prompt);
    int64_t n_vocab = (int64_t)run.network->hyper.n_vocab;
    struct mote_timeline *alone[SESSIONS], *together[SESSIONS];
    struct mote_turn turn[SESSIONS];
    for (int s = 0; s < SESSIONS; s++) { /* caches of different lengths */
        alone[s] = run_session(&run, N_CTX - 8 * s, MOTE_KV_F16);
        together[s] = run_session(&run, N_CTX - 8 * s, MOTE_KV_F16);
        must(mote_timeline_eval(alone[s], prompt[s].ids, prompt[s].n));
        turn[s] = (struct mote_turn){.session = together[s], .ids = prompt[s].ids, .n = prompt[s].n};
    }
    must(mote_timeline_eval_many(turn, SESSIONS));
    for (int step = 0; step <= STEPS; step++) {
        int32_t id[SESSIONS];
        for (int s = 0; s < SESSIONS; s++) {
            errors.error[errors.n++] =
                top_error(mote_timeline_logits(together[s]), mote_timeline_logits(alone[s]), n_vocab);
            id[s] = largest(mote_timeline_logits(alone[s]), n_vocab);
            turn[s] = (struct mote_turn){.session = together[s], .ids = &id[s], .n = 1};
        }
        if (step == STEPS) break;
        for (int s = 0; s < SESSIONS; s++) must(mote_timeline_eval(alone[s], &id[s], 1));
        must(mote_timeline_eval_many(turn, SESSIONS));
    }
    check_errors(path, "sessions together against alone", &errors, &limits);
    for (int s = 0; s < SESSIONS; s++) {
        mote_timeline_destroy(alone[s]);
        mote_timeline_destroy(together[s]);
    }
    run_close(&run);
}

static void test_batch(void **state)
{
    (void)state;
    each_model(check_batch);
}

/* ---- tokens ---- */

static void check_list(const char *path, const struct mote_shortlist *list, const float *row, int64_t n_vocab)
{
    static struct mote_shortlist want;
    host_shortlist(row, (int)n_vocab, 0, &want);
    double error = fabs((double)list->sum - (double)want.sum);
    if (list->n != want.n || memcmp(list->id, want.id, (size_t)want.n * sizeof *want.id) ||
        !(error <= MOTE_SHORTLIST_ERROR * (double)want.sum))
        fail_msg("%s: the shortlist is not the row's: %d, sum %.9g; %d, %.9g", path, list->n,
                 (double)list->sum, want.n, (double)want.sum);
}

/* Five sessions: each token from the shortlist where that decides, against the whole row's. */
static void check_tokens(const char *path)
{
    enum { SESSIONS = 5, STEPS = 24 };
    static const struct mote_chain_options options[] = {
        {.top_p = 1, .repeat_penalty = 1, .seed = 1},
        {.top_p = 1, .repeat_penalty = 1.2f, .repeat_last = 64, .seed = 2},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 3},
        {.temperature = 0.8f, .top_k = 40, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 64, .seed = 4},
        {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1, .seed = 5},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f, .repeat_penalty = 1, .seed = 6},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 7},               /* rows alone */
        {.temperature = 2, .top_k = 2000, .top_p = 1, .repeat_penalty = 1, .seed = 8} /* likewise */
    };
    enum { N_OPTIONS = sizeof options / sizeof *options };
    static struct prompt prompt[N_PROMPT];
    struct run run;
    run_open(path, &(struct run_options){.device = &mote_backend_cuda}, &run);
    make_prompts(&run, prompt);
    int64_t n_vocab = (int64_t)run.network->hyper.n_vocab;
    int decided[N_OPTIONS] = {0};
    for (int o = 0; o < N_OPTIONS; o++) {
        struct mote_timeline *session[SESSIONS];
        struct mote_chain *by_list[SESSIONS], *by_row[SESSIONS];
        struct mote_turn turn[SESSIONS];
        int32_t id[SESSIONS], want;
        for (int s = 0; s < SESSIONS; s++) {
            session[s] = run_session(&run, N_CTX, MOTE_KV_F16);
            must(mote_chain_create(&options[o], n_vocab, NULL, &by_list[s]));
            must(mote_chain_create(&options[o], n_vocab, NULL, &by_row[s]));
            turn[s] = (struct mote_turn){.session = session[s], .ids = prompt[s].ids, .n = prompt[s].n};
        }
        must(mote_timeline_eval_many(turn, SESSIONS));
        for (int step = 0; step < STEPS; step++) {
            for (int s = 0; s < SESSIONS; s++) {
                const int32_t *recent = mote_timeline_tokens(session[s]);
                int64_t n_recent = mote_timeline_n_token(session[s]);
                struct mote_shortlist list = *mote_timeline_shortlist(session[s]);
                int is_decided = mote_chain_pick_best(by_list[s], &list, recent, n_recent, &id[s], NULL);
                const float *row = mote_timeline_logits(session[s]);
                if (!row) fail_msg("%s", mote_error());
                if (!is_decided) must(mote_chain_pick(by_list[s], row, recent, n_recent, &id[s], NULL));
                must(mote_chain_pick(by_row[s], row, recent, n_recent, &want, NULL));
                decided[o] += is_decided;
                if (id[s] != want)
                    fail_msg(
                        "%s, options %d, session %d, step %d: token %d from the shortlist, %d from the row",
                        path, o, s, step, id[s], want);
                if (o == 0) check_list(path, &list, row, n_vocab);
                turn[s] = (struct mote_turn){.session = session[s], .ids = &id[s], .n = 1};
            }
            if (step % 2) must(mote_timeline_eval_many(turn, SESSIONS));
            else
                for (int s = 0; s < SESSIONS;
                     s++) /* each in the others' place, which bring their rows over */
                    must(mote_timeline_eval(session[s], &id[s], 1));
        }
        for (int s = 0; s < SESSIONS; s++) {
            mote_timeline_destroy(session[s]);
            mote_chain_destroy(by_list[s]);
            mote_chain_destroy(by_row[s]);
        }
    }
    for (int o = 0; o < 4; o++) /* the usual ones never need a row */
        if (decided[o] != SESSIONS * STEPS)
            fail_msg("%s, options %d: shortlists decided %d of %d", path, o, decided[o], SESSIONS * STEPS);
    print_message("%s: shortlists decided of %d tokens:", path, SESSIONS * STEPS);
    for (int o = 0; o < N_OPTIONS; o++) print_message(" %d", decided[o]);
    print_message("\n");
    run_close(&run);
}

static void test_tokens(void **state)
{
    (void)state;
    each_model(check_tokens);
}

/* ---- the same bits ---- */

/* Prompts in steps of few rows, greedy text, two sessions in turn and together, a rewind: logits of every step. */
static int64_t life(struct run *run, const struct prompt prompt[N_PROMPT], float *logits, int64_t capacity)
{
    int64_t n_vocab = (int64_t)run->network->hyper.n_vocab, n = 0;
    struct mote_timeline *a = run_session(run, 300, MOTE_KV_F16), *b = run_session(run, 200, MOTE_KV_F16);
#define KEEP(session)                                                                                    \
    do {                                                                                                 \
        assert_true(n < capacity);                                                                       \
        memcpy(logits + n++ * n_vocab, mote_timeline_logits(session), (size_t)n_vocab * sizeof *logits); \
    } while (0)
    for (int p = 0; p < 3; p++) {
        must(mote_timeline_rewind(a, 0));
        must(mote_timeline_eval(a, prompt[p].ids, prompt[p].n));
        for (int i = 0; i < N_GREEDY; i++) {
            KEEP(a);
            int32_t id = largest(mote_timeline_logits(a), n_vocab);
            must(mote_timeline_eval(a, &id, 1));
        }
    }
    must(mote_timeline_eval(b, prompt[1].ids, prompt[1].n));
    for (int i = 0; i < 12; i++) {
        int32_t id[2] = {largest(mote_timeline_logits(a), n_vocab),
                         largest(mote_timeline_logits(b), n_vocab)};
        struct mote_turn turn[2] = {{.session = a, .ids = &id[0], .n = 1},
                                    {.session = b, .ids = &id[1], .n = 1}};
        if (i % 2) {
            must(mote_timeline_eval_many(turn, 2));
        } else {
            must(mote_timeline_eval(a, &id[0], 1));
            must(mote_timeline_eval(b, &id[1], 1));
        }
        KEEP(a);
        KEEP(b);
    }
    must(mote_timeline_rewind(b, 5));
    must(mote_timeline_eval(b, prompt[2].ids, 3));
    KEEP(b);
#undef KEEP
    mote_timeline_destroy(a);
    mote_timeline_destroy(b);
    return n;
}

static void expect_same_life(const char *path, const char *what, const struct run_options *a,
                             const struct run_options *b)
{
    enum { CAPACITY = 3 * N_GREEDY + 30 };
    static struct prompt prompt[N_PROMPT];
    const struct run_options *options[2] = {a, b};
    float *logits[2];
    int64_t n[2], n_vocab = 0;
    for (int v = 0; v < 2; v++) {
        struct run run;
        run_open(path, options[v], &run);
        make_prompts(&run, prompt);
        n_vocab = (int64_t)run.network->hyper.n_vocab;
        logits[v] = new_logits(CAPACITY * n_vocab);
        n[v] = life(&run, prompt, logits[v], CAPACITY);
        run_close(&run);
    }
    assert_int_equal(n[0], n[1]);
    for (int64_t i = 0; i < n[0]; i++)
        if (memcmp(logits[0] + i * n_vocab, logits[1] + i * n_vocab, (size_t)n_vocab * sizeof(float)))
            fail_msg("%s, %s: logits of step %lld differ in bits (top-10 by %g)", path, what, (long long)i,
                     top_error(logits[1] + i * n_vocab, logits[0] + i * n_vocab, n_vocab));
    print_message("%s, %s: %lld steps, the same bits\n", path, what, (long long)n[0]);
    mote_mem_free(logits[0]);
    mote_mem_free(logits[1]);
}

static void check_fused(const char *path)
{
    expect_same_life(path, "fused and unfused",
                     &(struct run_options){.device = &mote_backend_cuda, .max_row = 16},
                     &(struct run_options){.device = &mote_backend_cuda, .max_row = 16, .moe_unfused = 1});
}

static void check_graph(const char *path)
{
    expect_same_life(path, "replayed and launched one by one",
                     &(struct run_options){.device = &mote_backend_cuda},
                     &(struct run_options){.device = &mote_backend_cuda, .no_graph = 1});
}

static void check_rerun(const char *path)
{
    expect_same_life(path, "run twice", &(struct run_options){.device = &mote_backend_cuda},
                     &(struct run_options){.device = &mote_backend_cuda});
}

static void test_fused(void **state)
{
    (void)state;
    each_model(check_fused);
}

static void test_graph(void **state)
{
    (void)state;
    each_model(check_graph);
}

/* What the plan says a run takes on the device is what it takes, to the byte. */
static void check_plan(const char *path)
{
    struct run run;
    struct mote_memory_plan plan;
    run_open(path, &(struct run_options){.device = &mote_backend_cuda, .max_row = 100}, &run);
    struct mote_memory_plan_options options = {.backend = &mote_backend_cuda,
                                               .forward = {.max_row = 100},
                                               .kv_type = MOTE_KV_F16,
                                               .n_ctx = N_CTX,
                                               .n_sequence = 1};
    must(mote_memory_plan_make(run.network, &options, &plan));
    struct mote_timeline *session = run_session(&run, N_CTX, MOTE_KV_F16);
    static const enum mote_mem_kind kinds[] = {MOTE_MEM_MAPPED, MOTE_MEM_WEIGHTS, MOTE_MEM_KV,
                                               MOTE_MEM_SCRATCH};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (plan.bytes[kinds[i]] != mote_budget_used(run.budget, kinds[i]))
            fail_msg("%s: %s planned %zu, taken %zu", path, mote_mem_kind_name(kinds[i]),
                     plan.bytes[kinds[i]], mote_budget_used(run.budget, kinds[i]));
    mote_timeline_destroy(session);
    run_close(&run);
}

/* A forward that goes leaves no recorded step behind that its successor could be taken for. */
static void check_successor(const char *path)
{
    static struct prompt prompt[N_PROMPT];
    struct run run;
    run_open(path, &(struct run_options){.device = &mote_backend_cuda}, &run);
    make_prompts(&run, prompt);
    size_t size = (size_t)run.network->hyper.n_vocab * sizeof(float);
    float *first;
    must(mote_mem_alloc(NULL, MOTE_MEM_TABLES, size, &first));
    for (int turn = 0; turn < 3; turn++) {
        struct mote_timeline *session = run_session(&run, N_CTX, MOTE_KV_F16);
        for (int64_t i = 0; i < prompt[0].n; i++) must(mote_timeline_eval(session, prompt[0].ids + i, 1));
        if (turn == 0) memcpy(first, mote_timeline_logits(session), size);
        else if (memcmp(first, mote_timeline_logits(session), size))
            fail_msg("%s: forward %d computes something else than the first", path, turn);
        mote_timeline_destroy(session);
        mote_forward_destroy(run.forward);
        run.forward = NULL;
        void *between; /* so that the next one's buffers lie elsewhere */
        must(run.backend->ops->alloc(run.backend, MOTE_MEM_SCRATCH, 1 << 20, &between));
        struct mote_forward_options options = {.max_row = 512};
        must(mote_forward_create(run.network, run.backend, &options, &run.forward));
        run.backend->ops->free(run.backend, between);
    }
    mote_mem_free(first);
    run_close(&run);
}

static void test_successor(void **state)
{
    (void)state;
    each_model(check_successor);
}

static void test_plan(void **state)
{
    (void)state;
    each_model(check_plan);
}

static void test_rerun(void **state)
{
    (void)state;
    each_model(check_rerun);
}

/* With tensor cores in the prompt, fused and not are two ways of rounding, whose router may choose otherwise near a tie: the
 * text says little then (the same position had a margin of 0.02 in one build and 0.26 in the next). The unfused run's
 * tokens are fed to both. */
static void check_fused_prompts(const char *path)
{
    enum { STEPS = 24 };
    static const struct error_limits limits = {1e-2, 1e-1, 1};
    static struct prompt prompt[N_PROMPT];
    struct errors errors = {.n = 0};
    struct run fused, unfused;
    run_open(path, &(struct run_options){.device = &mote_backend_cuda}, &fused);
    run_open(path, &(struct run_options){.device = &mote_backend_cuda, .moe_unfused = 1}, &unfused);
    make_prompts(&fused, prompt);
    int64_t n_vocab = (int64_t)fused.network->hyper.n_vocab;
    for (int p = 0; p < N_PROMPT; p++) {
        struct mote_timeline *a = run_session(&unfused, N_CTX, MOTE_KV_F16),
                             *b = run_session(&fused, N_CTX, MOTE_KV_F16);
        must(mote_timeline_eval(a, prompt[p].ids, prompt[p].n));
        must(mote_timeline_eval(b, prompt[p].ids, prompt[p].n));
        for (int step = 0; step < STEPS; step++) {
            const float *want = mote_timeline_logits(a);
            errors.error[errors.n++] = top_error(mote_timeline_logits(b), want, n_vocab);
            int32_t id = largest(want, n_vocab);
            must(mote_timeline_eval(a, &id, 1));
            must(mote_timeline_eval(b, &id, 1));
        }
        mote_timeline_destroy(a);
        mote_timeline_destroy(b);
    }
    run_close(&fused);
    run_close(&unfused);
    check_errors(path, "prompts fused against unfused", &errors, &limits);
}

static void test_fused_prompts(void **state)
{
    (void)state;
    each_model(check_fused_prompts);
}

/* ---- formats ---- */

enum { FORMAT_PROMPTS = 3, FORMAT_TOKENS = 48, FORMAT_ROWS = 32, MAX_UNITS = 512 };

static const struct recipe recipes[] = {
    {"affine 4-bit", NULL, 4, 4},
    {"affine 8-bit", NULL, 8, 8},
    {"mixed 4/6-bit", NULL, 4, 6},
    {"iq2_xxs", "iq2_xxs"},
    {"iq3_xxs", "iq3_xxs"},
    {"tq1_0", "tq1_0"},
    {"q4_k", "q4_k"},
    {"q6_k", "q6_k"},
    {"iq4_xs", "iq4_xs"},
    {"mxfp4", "mxfp4"},
    {"q2_0", "q2_0"},
    {"tq2_0", "tq2_0"},
    {"q8_0", "q8_0"},
};
enum { N_RECIPE = sizeof recipes / sizeof *recipes };

/* What all recipes are made from: a float model where there is one. */
static const char *recipe_source(char path[512])
{
    const char *golden = getenv("MOTE_CUDA_GOLDEN");
    if (golden && next_word(&golden, path)) return path;
    if (!access(FABLE "/config.json", R_OK)) return FABLE;
    static const char fallback[] = "models/fable-tq1_0.gguf";
    return access(fallback, R_OK) ? NULL : fallback;
}

/* Every recipe's kernels to the cache, all at once: one model after the other, most CPUs would wait for its slowest. */
static void compile_recipes(const struct recipe_model *model)
{
    static struct mote_cuda_unit unit[MAX_UNITS];
    static struct mote_cubin cubin[MAX_UNITS];
    struct mote_network *network[N_RECIPE];
    struct mote_backend *ahead[N_RECIPE];
    struct mote_cuda_info info;
    size_t n = 0;
    must(mote_cuda_describe(0, &info));
    for (int r = 0; r < N_RECIPE; r++) {
        must(mote_network_open(model[r].catalogue, NULL, NULL, &network[r]));
        struct mote_backend_limits limits = network[r]->limits;
        limits.max_row = FORMAT_ROWS;
        must(mote_cuda_ahead_create(info.arch, &limits, NULL, &ahead[r]));
        must(mote_network_place(network[r], ahead[r]));
        size_t first = n, n_own = mote_cuda_ahead_units(ahead[r], unit + n, MAX_UNITS - n);
        assert_true(n + n_own <= MAX_UNITS);
        for (size_t i = 0; i < n_own; i++) { /* those that no recipe before it has */
            struct mote_cuda_unit own = unit[first + i];
            size_t k = 0;
            while (k < first && (strcmp(unit[k].text, own.text) || strcmp(unit[k].define, own.define))) k++;
            if (k == first) unit[n++] = own;
        }
    }
    must(mote_cubin_make_all(info.arch, unit, n, cubin, NULL, NULL));
    for (size_t i = 0; i < n; i++) mote_cubin_free(&cubin[i]);
    for (int r = 0; r < N_RECIPE; r++) {
        mote_network_close(network[r]);
        ahead[r]->ops->destroy(ahead[r]);
    }
}

/* A prompt and the greedy text after it: tokens, the row of logits behind each. */
struct said {
    int32_t ids[FORMAT_TOKENS];
    float *logits; /* [FORMAT_TOKENS][n_vocab] */
};

static void say(struct run *run, const struct prompt *prompt, struct said *said)
{
    size_t n_vocab = (size_t)run->network->hyper.n_vocab;
    struct mote_timeline *session = run_session(run, N_CTX, MOTE_KV_F32);
    must(mote_timeline_eval(session, prompt->ids, prompt->n));
    for (int i = 0; i < FORMAT_TOKENS; i++) {
        const float *row = mote_timeline_logits(session);
        if (!row) fail_msg("%s", mote_error());
        memcpy(said->logits + (size_t)i * n_vocab, row, n_vocab * sizeof *row);
        said->ids[i] = largest(row, (int64_t)n_vocab);
        must(mote_timeline_eval(session, &said->ids[i], 1));
    }
    mote_timeline_destroy(session);
}

/* Of steps that all take the kernels for few rows: not the text alone, every logit is the same. */
static void expect_same_bytes(const char *recipe, int prompt, const struct said *fused,
                              const struct said *unfused, int64_t n_vocab)
{
    for (int i = 0; i < FORMAT_TOKENS; i++) {
        const float *a = fused->logits + i * n_vocab, *b = unfused->logits + i * n_vocab;
        if (fused->ids[i] != unfused->ids[i] || memcmp(a, b, (size_t)n_vocab * sizeof *a))
            fail_msg("%s, prompt %d, token %d: fused %d, unfused %d, a top-10 logit differs by %g", recipe,
                     prompt, i, fused->ids[i], unfused->ids[i], top_error(a, b, n_vocab));
    }
}

/* Returns 1 for the same text; 0 for another where the CPU was undecided. */
static int expect_cpu_text(const char *recipe, int prompt, const struct said *got, const struct said *want,
                           int64_t n_vocab)
{
    for (int i = 0; i < FORMAT_TOKENS; i++) {
        if (got->ids[i] == want->ids[i]) continue;
        double margin = margin_of(want->logits + i * n_vocab, n_vocab);
        print_message("%s, prompt %d: token %d is another than on the CPU, whose margin was %.4f\n", recipe,
                      prompt, i, margin);
        if (!(margin < MARGIN_LIMIT))
            fail_msg("%s, prompt %d: another text than on the CPU where the margin is %.4f", recipe, prompt,
                     margin);
        return 0;
    }
    return 1;
}

/* Greedy text of a model in each format: fused and unfused to the byte, the device's and the CPU's. */
static void test_formats(void **state)
{
    (void)state;
    need_device();
    char path[512];
    const char *source = recipe_source(path);
    if (!source) {
        print_message("no MOTE_CUDA_GOLDEN, no ../shared/models, no models/: nothing to quantise, skipped\n");
        skip();
    }
    static struct recipe_model model[N_RECIPE];
    static struct prompt prompt[N_PROMPT];
    double start = mote_seconds(), made, compiled;
    for (int r = 0; r < N_RECIPE; r++) recipe_open(source, &recipes[r], &model[r]);
    made = mote_seconds();
    compile_recipes(model);
    compiled = mote_seconds();
    for (int r = 0; r < N_RECIPE; r++) {
        struct run fused, unfused, cpu;
        struct run_options options = {
            .catalogue = model[r].catalogue, .device = &mote_backend_cuda, .max_row = FORMAT_ROWS};
        const char *name = recipes[r].name;
        run_open(name, &options, &fused);
        options.moe_unfused = 1;
        run_open(name, &options, &unfused);
        /* Codes of 8 bits for activations are the CPU's own: they alone change texts where the margin is 0.3. */
        options = (struct run_options){.catalogue = model[r].catalogue, .act_f32 = 1, .max_row = FORMAT_ROWS};
        run_open(name, &options, &cpu);
        make_prompts(&cpu, prompt);
        int64_t n_vocab = (int64_t)cpu.network->hyper.n_vocab;
        struct said a = {.logits = new_logits(FORMAT_TOKENS * n_vocab)},
                    b = {.logits = new_logits(FORMAT_TOKENS * n_vocab)};
        int n_same = 0;
        for (int p = 0; p < FORMAT_PROMPTS; p++) {
            say(&fused, &prompt[p], &a);
            say(&unfused, &prompt[p], &b);
            expect_same_bytes(name, p, &a, &b, n_vocab);
            say(&cpu, &prompt[p], &b);
            n_same += expect_cpu_text(name, p, &a, &b, n_vocab);
        }
        print_message("%s of %s: fused and unfused the same bytes, %d of %d texts the CPU's\n", name, source,
                      n_same, FORMAT_PROMPTS);
        mote_mem_free(a.logits);
        mote_mem_free(b.logits);
        run_close(&cpu);
        run_close(&unfused);
        run_close(&fused);
        recipe_close(&model[r]);
    }
    print_message("%d recipes: %.1f s to quantise, %.1f s to compile, %.1f s to run\n", N_RECIPE,
                  made - start, compiled - made, mote_seconds() - compiled);
}

/* ---- against transformers ---- */

static void test_golden(void **state)
{
    (void)state;
    need_device();
    static const struct golden_limits limits = {.logit = 2e-2, .margin = 0.05};
    static const int64_t chunks[] = {512, 64, 7};
    const char *list = getenv("MOTE_CUDA_GOLDEN");
    if (!list || !*list) {
        need_shared();
        list = FABLE ":" FABLE "-golden.json:" FABLE_TERNARY ":" FABLE_TERNARY "-golden.json";
    }
    char path[512], golden[512];
    while (next_word(&list, path)) {
        assert_true(next_word(&list, golden));
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            print_message("chunks of %lld: ", (long long)chunks[c]);
            golden_check(path, golden,
                         &(struct run_options){.device = &mote_backend_cuda, .max_row = chunks[c]}, &limits);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_cpu), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_caches),      cmocka_unit_test(test_batch),
        cmocka_unit_test(test_rerun),       cmocka_unit_test(test_graph),
        cmocka_unit_test(test_fused),       cmocka_unit_test(test_fused_prompts),
        cmocka_unit_test(test_formats),     cmocka_unit_test(test_plan),
        cmocka_unit_test(test_successor),   cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
