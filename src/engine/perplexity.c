/* perplexity.c: see perplexity.h. */
#include "engine/perplexity.h"

#include <math.h>
#include <string.h>

double mote_log_sum_exp(const float *x, int64_t n)
{
    float top = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > top) top = x[i];
    if (isinf(top)) return (double)top;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)top);
    return (double)top + log(sum);
}

/* ---- text to ids ---- */

static const char separator[] = "\n\x1e\n";

static const char *find_separator(const char *text, const char *end)
{
    const size_t n = sizeof separator - 1;
    for (const char *at = text; (size_t)(end - at) >= n; at++) {
        at = memchr(at, '\n', (size_t)(end - at) - n + 1);
        if (!at) return end;
        if (!memcmp(at, separator, n)) return at;
    }
    return end;
}

mote_status mote_corpus_encode(const struct mote_tokenizer *tokenizer, const char *text, size_t length,
                               int64_t max, struct mote_budget *budget, int32_t **ids, int64_t *n)
{
    *ids = NULL;
    *n = 0;
    struct mote_vocab vocab;
    TRY(mote_tokenizer_vocab(tokenizer, &vocab));
    FAIL_IF(vocab.eos < 0, MOTE_UNSUPPORTED, "corpus: the vocabulary has no end-of-text token");
    int32_t *all = NULL;
    size_t used = 0, capacity = 0;
    const char *end = text + length, *at = text;
    mote_status status = MOTE_OK;
    while (status == MOTE_OK && (max == 0 || used < (size_t)max)) {
        const char *stop = find_separator(at, end);
        size_t want = (size_t)(stop - at) + 3, got;
        if (capacity - used < want) {
            capacity = used + want + capacity / 2;
            status = mote_mem_resize(budget, MOTE_MEM_TABLES, capacity * sizeof *all, &all);
            if (status != MOTE_OK) break;
        }
        status = mote_tokenize(tokenizer, at, (size_t)(stop - at), 0, all + used, capacity - used - 1, &got);
        if (status != MOTE_OK) break;
        used += got;
        all[used++] = vocab.eos;
        if (stop == end) break;
        at = stop + sizeof separator - 1;
    }
    if (status != MOTE_OK) {
        mote_mem_free(all);
        return status;
    }
    *ids = all;
    *n = max && used > (size_t)max ? max : (int64_t)used;
    return MOTE_OK;
}

/* ---- likelihood ---- */

struct sums {
    const int32_t *ids; /* of the window */
    int64_t n, n_vocab;
    double sum, square; /* over all windows */
};

static void add_position(void *context, int64_t i, const float *logits)
{
    struct sums *s = context;
    if (i + 1 >= s->n) return;
    double nll = mote_log_sum_exp(logits, s->n_vocab) - (double)logits[s->ids[i + 1]];
    s->sum += nll;
    s->square += nll * nll;
}

mote_status mote_nll_measure(struct mote_timeline *session, const int32_t *ids, int64_t n,
                             const struct mote_nll_options *options, struct mote_nll *out)
{
    *out = (struct mote_nll){0};
    int64_t window = options->window;
    FAIL_IF(n < 2, MOTE_ARGUMENT, "perplexity: %lld tokens of text, expected at least 2", (long long)n);
    FAIL_IF(window < 2 || window > mote_timeline_n_ctx(session), MOTE_ARGUMENT,
            "perplexity: a window of %lld tokens, expected 2..%lld (the context)", (long long)window,
            (long long)mote_timeline_n_ctx(session));
    if (window > n) window = n;
    int64_t n_window = n / window;
    if (options->n_window && n_window > options->n_window) n_window = options->n_window;
    struct sums sums = {.n = window, .n_vocab = mote_timeline_n_vocab(session)};
    for (int64_t w = 0; w < n_window; w++) {
        sums.ids = ids + w * window;
        TRY(mote_timeline_rewind(session, 0));
        TRY(mote_timeline_eval_each(session, sums.ids, window, add_position, &sums));
        FAIL_IF(isnan(sums.sum), MOTE_NUMERIC, "perplexity: the logits of window %lld are not numbers",
                (long long)w);
        FAIL_IF(options->tick && options->tick(options->tick_context, w + 1, n_window), MOTE_CANCELLED,
                "perplexity: stopped after %lld windows of %lld", (long long)(w + 1), (long long)n_window);
    }
    double count = (double)(n_window * (window - 1)), mean = sums.sum / count;
    out->n_window = n_window;
    out->n_token = n_window * (window - 1);
    out->mean = mean;
    double variance = sums.square / count - mean * mean;
    out->error = variance > 0 ? sqrt(variance / count) : 0;
    return MOTE_OK;
}
