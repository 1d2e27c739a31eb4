/* test_cuda_formats.c: a model in many formats on a device: greedy text fused and unfused to the byte, and the CPU's; with
 * activations that lose something (MXFP4) as near to f32 ones as the CPU's.
 *
 * MOTE_CUDA_GOLDEN    model:golden.json, ..: the first model is what all are made from (fable of ../shared, or
 *                     models/fable-tq1_0.gguf) */
#define _GNU_SOURCE
#include "base/clock.h"
#include "cuda/compile.h"
#include "cuda_model.h"
#include "recipe.h"

enum { FORMAT_PROMPTS = 3, FORMAT_TOKENS = 48, FORMAT_ROWS = 32, MAX_UNITS = 512 };

static const struct recipe recipes[] = {
    {"affine 4-bit", NULL, 4, 4},
    {"affine 8-bit", NULL, 8, 8},
    {"mixed 4/6-bit", NULL, 4, 6},
    {.name = "iq2_xxs", .expert = "iq2_xxs"},
    {.name = "iq3_xxs", .expert = "iq3_xxs"},
    {.name = "tq1_0", .expert = "tq1_0"},
    {.name = "tq1_0, compact", .expert = "tq1_0", .compact = 1}, /* its kernels are not compiled ahead */
    {.name = "q4_k", .expert = "q4_k"},
    {.name = "q6_k", .expert = "q6_k"},
    {.name = "iq4_xs", .expert = "iq4_xs"},
    {.name = "mxfp4", .expert = "mxfp4"},
    {.name = "q2_0", .expert = "q2_0"},
    {.name = "tq2_0", .expert = "tq2_0"},
    {.name = "q8_0", .expert = "q8_0"},
    {.name = "mxfp4, MXFP4 activations of experts", .expert = "mxfp4", .act = MOTE_WISH_MXFP4},
    {.name = "mxfp4, MXFP4 activations", .expert = "mxfp4", .dense = "mxfp4", .act = MOTE_WISH_MXFP4},
};
enum { N_RECIPE = sizeof recipes / sizeof *recipes };

/* Activations that lose little, unless the recipe has its own. */
static enum mote_act_wish act_of(const struct recipe *recipe)
{
    return recipe->act ? recipe->act : MOTE_WISH_F32;
}

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
        struct mote_network_options options = {.act = act_of(&recipes[r])};
        must(mote_network_open(model[r].catalogue, &options, NULL, &network[r]));
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
        struct run_options options = {.catalogue = model[r].catalogue,
                                      .device = &mote_backend_cuda,
                                      .act = act_of(&recipes[r]),
                                      .max_row = FORMAT_ROWS,
                                      .moe_kernels = MOTE_MOE_PORTABLE,
                                      .compact = recipes[r].compact};
        const char *name = recipes[r].name;
        run_open(name, &options, &fused);
        options.moe_kernels = MOTE_MOE_UNFUSED;
        run_open(name, &options, &unfused);
        /* Codes of 8 bits for activations are the CPU's own: they alone change texts where the margin is 0.3. */
        options = (struct run_options){
            .catalogue = model[r].catalogue, .act = MOTE_WISH_F32, .max_row = FORMAT_ROWS};
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
            if (recipes[r].act) continue; /* texts part soon: see check_rounding */
            say(&cpu, &prompt[p], &b);
            n_same += expect_cpu_text(name, p, &a, &b, n_vocab);
        }
        if (recipes[r].act) check_rounding(name, "prompts", model[r].catalogue, recipes[r].act);
        else
            print_message("%s of %s: fused and unfused the same bytes, %d of %d texts the CPU's\n", name,
                          source, n_same, FORMAT_PROMPTS);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
