/* cmd_measure.c: mote perplexity, mote imatrix and mote parity: what a model says about a text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* What all three take. */
struct measure_rows {
    struct model_rows m;
    const char *file;
    struct mote_measure_options options;
    int json;
};
#define MEASURE_ROWS(r)                                                               \
    MODEL_ROWS((r).m), {'f', "file", OPTION_TEXT, &(r).file, "the text (or a pipe)"}, \
        {'w', "window", OPTION_INT, &(r).options.window, "tokens per window (512)"},  \
        {'n', "windows", OPTION_INT, &(r).options.n_window, "windows at most (all)"}, \
    {                                                                                 \
        0, "json", OPTION_FLAG, &(r).json, "as JSON"                                  \
    }

/* Parse, open the model, read the text. EXIT_DONE or the exit code; the caller closes and frees. */
static int measure_begin(const struct command *self, const struct option_row *table,
                         struct measure_rows *rows, int argc, char **argv, mote_model **model, char **text,
                         size_t *length)
{
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (left > 0) return usage_error(self, "unexpected argument '%s'", argv[0]);
    if (!rows->m.model) return usage_error(self, "-m MODEL is missing");
    *text = read_text(self, rows->file, length);
    if (!*text) return EXIT_WORK;
    interrupt_watch(NULL);
    rows->options.struct_size = sizeof rows->options;
    rows->options.progress = show_progress;
    /* A window is all the context that is needed. */
    if (!rows->m.n_ctx) rows->m.n_ctx = rows->options.window > 0 ? rows->options.window : 512;
    struct mote_model_options options = model_options(&rows->m);
    return report(self, mote_model_open(rows->m.model, &options, model));
}

static int perplexity(const struct command *self, int argc, char **argv)
{
    struct measure_rows rows = {0};
    const struct option_row table[] = {MEASURE_ROWS(rows), {0}};
    mote_model *model = NULL;
    char *text = NULL;
    size_t length = 0;
    int code = measure_begin(self, table, &rows, argc, argv, &model, &text, &length);
    struct mote_perplexity_result result = MOTE_OPTIONS(mote_perplexity_result);
    double start = now_seconds();
    if (code == EXIT_DONE)
        code = report(self, mote_measure_perplexity(model, text, length, &rows.options, &result));
    if (code == EXIT_DONE && rows.json)
        printf("{\"windows\": %lld, \"tokens\": %lld, \"nll\": %.6f, \"nll_error\": %.6f, \"perplexity\": "
               "%.4f}\n",
               (long long)result.n_window, (long long)result.n_token, result.nll, result.nll_error,
               exp(result.nll));
    else if (code == EXIT_DONE)
        printf("perplexity %.4f +- %.4f (mean negative log-likelihood %.6f, %lld predictions in %lld "
               "windows, %.1f s)\n",
               exp(result.nll), exp(result.nll) * result.nll_error, result.nll, (long long)result.n_token,
               (long long)result.n_window, now_seconds() - start);
    mote_model_close(model);
    free(text);
    return code;
}

static int imatrix(const struct command *self, int argc, char **argv)
{
    struct measure_rows rows = {0};
    const char *out = NULL;
    const struct option_row table[] = {
        MEASURE_ROWS(rows),
        {'o', "out", OPTION_TEXT, &out, "file to write (GGUF)"},
        {0},
    };
    mote_model *model = NULL;
    char *text = NULL;
    size_t length = 0;
    int code = measure_begin(self, table, &rows, argc, argv, &model, &text, &length);
    if (code == EXIT_DONE && !out) code = usage_error(self, "-o FILE is missing");
    if (code == EXIT_DONE) code = report(self, mote_measure_imatrix(model, text, length, out, &rows.options));
    mote_model_close(model);
    free(text);
    return code;
}

static void show_parity(const struct mote_parity_result *p, int json)
{
    if (json) {
        printf(
            "{\"tokens\": %lld, \"kl_mean\": %.9g, \"kl_max\": %.9g, \"top1\": %.6f, \"logit_error\": %.9g, "
            "\"nll_a\": %.6f, \"nll_b\": %.6f, \"first_layer\": %lld, \"layers\": [",
            (long long)p->n_token, p->kl_mean, p->kl_max, p->top1, p->logit_error, p->nll_a, p->nll_b,
            (long long)p->first_layer);
        for (size_t i = 0; i < p->n_layer; i++)
            printf("%s{\"layer\": %lld, \"error\": %.9g}", i ? ", " : "", (long long)p->layer[i].layer,
                   p->layer[i].error);
        printf("], \"changes\": [");
        for (size_t i = 0; i < p->n_change; i++)
            printf("%s{\"position\": %lld, \"a\": %d, \"b\": %d, \"margin\": %.9g}", i ? ", " : "",
                   (long long)p->change[i].position, p->change[i].token_a, p->change[i].token_b,
                   p->change[i].margin);
        printf("]}\n");
        return;
    }
    printf("%-6s %12s\n", "layer", "error");
    for (size_t i = 0; i < p->n_layer; i++)
        printf("%-6lld %12.3e%s\n", (long long)p->layer[i].layer, p->layer[i].error,
               p->layer[i].layer == p->first_layer ? "  <- first past the limit" : "");
    printf("\n%lld tokens: KL mean %.3e max %.3e, same best token %.3f %%, largest logit difference %.4f\n",
           (long long)p->n_token, p->kl_mean, p->kl_max, 100 * p->top1, p->logit_error);
    printf("mean negative log-likelihood: %.6f and %.6f (perplexity %.4f and %.4f, %+.3f %%)\n", p->nll_a,
           p->nll_b, exp(p->nll_a), exp(p->nll_b), 100 * expm1(p->nll_b - p->nll_a));
    if (p->n_change) printf("\nchanged best tokens (position: a -> b, a's margin):\n");
    for (size_t i = 0; i < p->n_change && i < 20; i++)
        printf("  %6lld: %d -> %d, %.4f\n", (long long)p->change[i].position, p->change[i].token_a,
               p->change[i].token_b, p->change[i].margin);
    if (p->n_change > 20) printf("  ... %zu in all (--json lists them)\n", p->n_change);
}

static int parity(const struct command *self, int argc, char **argv)
{
    struct measure_rows rows = {0};
    const char *other = NULL, *act = NULL, *moe = NULL, *kv = NULL, *device = NULL;
    double limit = 1e-2;
    const struct option_row table[] = {
        MEASURE_ROWS(rows),
        {0, "against", OPTION_TEXT, &other, "the other model (the same one, with other options)"},
        {0, "act-b", OPTION_TEXT, &act, "activation type of the other (--act)"},
        {0, "moe-b", OPTION_TEXT, &moe, "expert block of the other (--moe)"},
        {0, "device-b", OPTION_TEXT, &device, "where to run the other (--device)"},
        {0, "kv-b", OPTION_TEXT, &kv, "KV cache type of the other (--kv)"},
        {0, "layer-limit", OPTION_FLOAT, &limit, "error at which a layer diverges (0.01)"},
        {0},
    };
    mote_model *model = NULL, *second = NULL;
    char *text = NULL;
    size_t length = 0;
    int code = measure_begin(self, table, &rows, argc, argv, &model, &text, &length);
    if (code == EXIT_DONE) {
        struct model_rows b = rows.m;
        if (act) b.act = act;
        if (moe) b.moe = moe;
        if (device) b.device = device;
        if (kv) b.kv = kv;
        struct mote_model_options options = model_options(&b);
        code = report(self, mote_model_open(other ? other : b.model, &options, &second));
    }
    struct mote_parity_result result = MOTE_OPTIONS(mote_parity_result);
    if (code == EXIT_DONE)
        code = report(self, mote_measure_parity(model, second, text, length, limit, &rows.options, &result));
    if (code == EXIT_DONE) {
        show_parity(&result, rows.json);
        mote_parity_result_free(&result);
    }
    mote_model_close(second);
    mote_model_close(model);
    free(text);
    return code;
}

const struct command command_perplexity = {"perplexity", "how well a model predicts a text",
                                           "-m MODEL -f TEXT", perplexity};
const struct command command_imatrix = {"imatrix", "column importance of every matrix, for quantize",
                                        "-m MODEL -f TEXT -o FILE", imatrix};
const struct command command_parity = {"parity", "two models, formats or options against each other",
                                       "-m MODEL --against MODEL -f TEXT", parity};
