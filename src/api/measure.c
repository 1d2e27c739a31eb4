/* measure.c: mote_measure_perplexity and mote_measure_parity: the public side of engine/perplexity and engine/parity. */
#include <string.h>

#include "api/handle.h"
#include "engine/parity.h"

/* Progress as the public header knows it, behind the engine's tick. */
struct ticker {
    const struct mote_measure_options *options;
    const char *what;
};

static int tick(void *context, int64_t done, int64_t total)
{
    const struct ticker *ticker = context;
    if (!ticker->options->progress) return 0;
    return ticker->options->progress(ticker->options->progress_context, ticker->what, (uint64_t)done,
                                     (uint64_t)total, "windows");
}

/* Options with their defaults, and the text as ids (mote_mem_free them). */
static mote_status begin(mote_model *model, const char *text, size_t length,
                         const struct mote_measure_options *given, struct mote_measure_options *options,
                         int32_t **ids, int64_t *n)
{
    *ids = NULL;
    *options = (struct mote_measure_options){0};
    if (given) MOTE_TAKE_OPTIONS(*options, given);
    if (options->window <= 0) options->window = 512;
    TRY(mote_model_need_tokenizer(model));
    FAIL_IF(options->window > model->n_ctx, MOTE_CONTEXT, "windows of %lld tokens in a context of %lld",
            (long long)options->window, (long long)model->n_ctx);
    int64_t most = options->n_window > 0 ? options->n_window * options->window : 0;
    return mote_corpus_encode(model->tokenizer, text, length, most, model->budget, ids, n);
}

mote_status mote_measure_perplexity(mote_model *model, const char *text, size_t length,
                                    const struct mote_measure_options *given,
                                    struct mote_perplexity_result *out)
{
    struct mote_measure_options options;
    struct mote_timeline *timeline = NULL;
    int32_t *ids;
    int64_t n;
    TRY(begin(model, text, length, given, &options, &ids, &n));
    struct ticker ticker = {&options, "perplexity"};
    struct mote_nll_options nll_options = {
        .window = options.window, .n_window = options.n_window, .tick = tick, .tick_context = &ticker};
    struct mote_timeline_options timeline_options = {.n_ctx = options.window, .kv_type = model->kv_type};
    struct mote_nll nll;
    mote_status status = mote_timeline_create(model->forward, &timeline_options, &timeline);
    if (status == MOTE_OK) status = mote_nll_measure(timeline, ids, n, &nll_options, &nll);
    if (status == MOTE_OK) {
        struct mote_perplexity_result result = {.struct_size = out->struct_size,
                                                .n_window = nll.n_window,
                                                .n_token = nll.n_token,
                                                .nll = nll.mean,
                                                .nll_error = nll.error};
        memcpy(out, &result, out->struct_size < sizeof result ? out->struct_size : sizeof result);
    }
    mote_timeline_destroy(timeline);
    mote_mem_free(ids);
    return status;
}

mote_status mote_measure_parity(mote_model *a, mote_model *b, const char *text, size_t length,
                                double layer_limit, const struct mote_measure_options *given,
                                struct mote_parity_result *out)
{
    struct mote_measure_options options;
    struct mote_forward *forward[2] = {NULL, NULL};
    struct mote_comparison comparison;
    struct mote_parity_layer *layer = NULL;
    int32_t *ids;
    int64_t n;
    TRY(begin(a, text, length, given, &options, &ids, &n));
    struct ticker ticker = {&options, "parity"};
    struct mote_compare_options compare = {.window = options.window,
                                           .n_window = options.n_window,
                                           .layer_limit = layer_limit,
                                           .max_change = 1000,
                                           .tick = tick,
                                           .tick_context = &ticker};
    /* Forwards with taps of their own: the models' stay as fast as they are. */
    struct mote_forward_options forward_options = {
        .max_row = a->n_batch < b->n_batch ? a->n_batch : b->n_batch, .taps = 1};
    mote_status status;
    TRY_GOTO(mote_forward_create(a->network, a->backend, &forward_options, &forward[0]), status, out);
    TRY_GOTO(mote_forward_create(b->network, b->backend, &forward_options, &forward[1]), status, out);
    TRY_GOTO(mote_compare(forward[0], a->kv_type, forward[1], b->kv_type, ids, n, &compare, &comparison),
             status, out);
    /* One block: layers, then changes. */
    size_t layers = (size_t)comparison.n_layer * sizeof *layer;
    status = mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1,
                             layers + comparison.n_kept * sizeof(struct mote_parity_change) + 1, &layer);
    if (status == MOTE_OK) {
        struct mote_parity_change *change = (struct mote_parity_change *)(layer + comparison.n_layer);
        for (int64_t i = 0; i < comparison.n_layer; i++)
            layer[i] = (struct mote_parity_layer){.layer = i, .error = comparison.layer_error[i]};
        for (size_t i = 0; i < comparison.n_kept; i++)
            change[i] = (struct mote_parity_change){.position = comparison.change[i].position,
                                                    .token_a = comparison.change[i].token_a,
                                                    .token_b = comparison.change[i].token_b,
                                                    .margin = comparison.change[i].margin};
        struct mote_parity_result result = {
            .struct_size = out->struct_size,
            .n_token = comparison.n_token,
            .kl_mean = comparison.kl_mean,
            .kl_max = comparison.kl_max,
            .top1 = comparison.top1,
            .logit_error = comparison.logit_error,
            .first_layer = comparison.first_layer,
            .nll_a = comparison.nll_a,
            .nll_b = comparison.nll_b,
            .n_layer = (size_t)comparison.n_layer,
            .n_change = comparison.n_kept,
            .layer = layer,
            .change = change,
            .memory = layer,
        };
        memcpy(out, &result, out->struct_size < sizeof result ? out->struct_size : sizeof result);
    }
    mote_comparison_free(&comparison);
out:
    mote_forward_destroy(forward[0]);
    mote_forward_destroy(forward[1]);
    mote_mem_free(ids);
    return status;
}

void mote_parity_result_free(struct mote_parity_result *parity)
{
    mote_mem_free(parity->memory);
    parity->memory = NULL;
}
