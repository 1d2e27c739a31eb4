/* parity.c: see parity.h. */
#include "engine/parity.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64, N_TOP = 10 };

struct compare {
    const struct mote_compare_options *options;
    struct mote_comparison *out;
    int64_t n_layer, d_model, n_vocab;
    int64_t n_row;        /* of the chunk */
    float *block;         /* [n_layer][CHUNK][d_model] a's block outputs of the chunk */
    float *logits;        /* [CHUNK][n_vocab] a's */
    double *norm;         /* [n_layer] sum of a^2; layer_error holds sum of (a - b)^2 until the end */
    const int32_t *ids;   /* of the chunk, one more where the window has it */
    int64_t position;     /* of ids[0] in the text */
    int64_t n_next;       /* rows of the chunk that have a next token */
    int64_t n_prediction; /* so far */
    double top1, kl;
    int is_bad; /* a NaN was seen */
};

static int is_block(const struct mote_tap *tap)
{
    return !strcmp(tap->name, "layer_out");
}

static void keep_block(void *context, const struct mote_tap *tap)
{
    struct compare *c = context;
    if (!is_block(tap)) return;
    memcpy(c->block + tap->layer * CHUNK * c->d_model, tap->data,
           (size_t)(tap->n_row * tap->n_col) * sizeof *tap->data);
}

static void compare_block(void *context, const struct mote_tap *tap)
{
    struct compare *c = context;
    if (!is_block(tap)) return;
    const float *a = c->block + tap->layer * CHUNK * c->d_model;
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < tap->n_row * tap->n_col; i++) {
        double d = (double)a[i] - (double)tap->data[i];
        difference += d * d;
        norm += (double)a[i] * (double)a[i];
    }
    c->out->layer_error[tap->layer] += difference;
    c->norm[tap->layer] += norm;
}

static void keep_logits(void *context, int64_t i, const float *logits)
{
    struct compare *c = context;
    memcpy(c->logits + i * c->n_vocab, logits, (size_t)c->n_vocab * sizeof *logits);
}

/* The n largest, falling, ties by id. */
static void top_ids(const float *x, int64_t n_vocab, int n, int32_t *id)
{
    int have = 0;
    for (int64_t i = 0; i < n_vocab; i++) {
        if (have == n && !(x[i] > x[id[n - 1]])) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && x[i] > x[id[at - 1]]; at--) id[at] = id[at - 1];
        id[at] = (int32_t)i;
    }
}

static void compare_logits(void *context, int64_t i, const float *b)
{
    struct compare *c = context;
    struct mote_comparison *out = c->out;
    const float *a = c->logits + i * c->n_vocab;
    double sum_a = mote_log_sum_exp(a, c->n_vocab), sum_b = mote_log_sum_exp(b, c->n_vocab), kl = 0;
    for (int64_t v = 0; v < c->n_vocab; v++) {
        double log_p = (double)a[v] - sum_a, p = exp(log_p);
        if (p > 0) kl += p * (log_p - ((double)b[v] - sum_b));
    }
    if (isnan(kl) || isnan(sum_a) || isnan(sum_b)) c->is_bad = 1;
    c->kl += kl;
    if (kl > out->kl_max) out->kl_max = kl;
    int n_top = c->n_vocab < N_TOP ? (int)c->n_vocab : N_TOP;
    int32_t top[N_TOP], top_b;
    top_ids(a, c->n_vocab, n_top, top);
    top_ids(b, c->n_vocab, 1, &top_b);
    for (int t = 0; t < n_top; t++) {
        double error = fabs((double)a[top[t]] - (double)b[top[t]]);
        if (error > out->logit_error) out->logit_error = error;
    }
    if (top[0] == top_b) {
        c->top1 += 1;
    } else {
        if (out->n_kept < c->options->max_change)
            out->change[out->n_kept++] = (struct mote_change){
                .position = c->position + i,
                .token_a = top[0],
                .token_b = top_b,
                .margin = n_top > 1 ? (double)a[top[0]] - (double)a[top[1]] : INFINITY,
            };
        out->n_change++;
    }
    out->n_token++;
    if (i >= c->n_next) return;
    out->nll_a += sum_a - (double)a[c->ids[i + 1]];
    out->nll_b += sum_b - (double)b[c->ids[i + 1]];
    c->n_prediction++;
}

static mote_status run_chunk(struct compare *c, struct mote_forward *a, struct mote_timeline *session_a,
                             struct mote_forward *b, struct mote_timeline *session_b)
{
    TRY(mote_forward_tap(a, keep_block, c));
    mote_status status = mote_timeline_eval_each(session_a, c->ids, c->n_row, keep_logits, c);
    TRY(mote_forward_tap(a, NULL, NULL));
    TRY(status);
    TRY(mote_forward_tap(b, compare_block, c));
    status = mote_timeline_eval_each(session_b, c->ids, c->n_row, compare_logits, c);
    TRY(mote_forward_tap(b, NULL, NULL));
    return status;
}

static mote_status run_windows(struct compare *c, struct mote_forward *a, struct mote_timeline *session_a,
                               struct mote_forward *b, struct mote_timeline *session_b, const int32_t *ids,
                               int64_t window, int64_t n_window)
{
    int64_t chunk = CHUNK;
    if (mote_forward_max_row(a) < chunk) chunk = mote_forward_max_row(a);
    if (mote_forward_max_row(b) < chunk) chunk = mote_forward_max_row(b);
    for (int64_t w = 0; w < n_window; w++) {
        TRY(mote_timeline_rewind(session_a, 0));
        TRY(mote_timeline_rewind(session_b, 0));
        for (int64_t at = 0; at < window; at += chunk) {
            c->n_row = window - at < chunk ? window - at : chunk;
            c->n_next = at + c->n_row < window ? c->n_row : c->n_row - 1;
            c->position = w * window + at;
            c->ids = ids + c->position;
            TRY(run_chunk(c, a, session_a, b, session_b));
            FAIL_IF(c->is_bad, MOTE_NUMERIC, "parity: logits near position %lld are not numbers",
                    (long long)c->position);
        }
        FAIL_IF(c->options->tick && c->options->tick(c->options->tick_context, w + 1, n_window),
                MOTE_CANCELLED, "parity: stopped after %lld windows of %lld", (long long)(w + 1),
                (long long)n_window);
    }
    return MOTE_OK;
}

static void finish(struct compare *c)
{
    struct mote_comparison *out = c->out;
    out->kl_mean = c->kl / (double)out->n_token;
    out->top1 = c->top1 / (double)out->n_token;
    if (c->n_prediction) {
        out->nll_a /= (double)c->n_prediction;
        out->nll_b /= (double)c->n_prediction;
    }
    out->first_layer = -1;
    for (int64_t l = 0; l < c->n_layer; l++) {
        if (c->norm[l] > 0) out->layer_error[l] /= c->norm[l];
        if (out->first_layer < 0 && out->layer_error[l] > c->options->layer_limit) out->first_layer = l;
    }
}

mote_status mote_compare(struct mote_forward *a, enum mote_kv_type kv_a, struct mote_forward *b,
                         enum mote_kv_type kv_b, const int32_t *ids, int64_t n,
                         const struct mote_compare_options *options, struct mote_comparison *out)
{
    *out = (struct mote_comparison){0};
    const struct mote_network *net_a = mote_forward_network(a), *net_b = mote_forward_network(b);
    const struct mote_hyper *ha = &net_a->hyper, *hb = &net_b->hyper;
    FAIL_IF(ha->n_layer != hb->n_layer || ha->d_model != hb->d_model || ha->n_vocab != hb->n_vocab,
            MOTE_ARGUMENT, "parity: %llu layers of %llu and %llu tokens against %llu of %llu and %llu",
            (unsigned long long)ha->n_layer, (unsigned long long)ha->d_model, (unsigned long long)ha->n_vocab,
            (unsigned long long)hb->n_layer, (unsigned long long)hb->d_model,
            (unsigned long long)hb->n_vocab);
    FAIL_IF(n < 2 || options->window < 2, MOTE_ARGUMENT,
            "parity: a text of %lld tokens in windows of %lld, expected at least 2", (long long)n,
            (long long)options->window);
    int64_t window = options->window < n ? options->window : n, n_window = n / window;
    if (options->n_window && n_window > options->n_window) n_window = options->n_window;
    struct compare c = {
        .options = options,
        .out = out,
        .n_layer = (int64_t)ha->n_layer,
        .d_model = (int64_t)ha->d_model,
        .n_vocab = (int64_t)ha->n_vocab,
    };
    struct mote_timeline_options session = {.n_ctx = window, .kv_type = kv_a};
    struct mote_timeline *session_a = NULL, *session_b = NULL;
    struct mote_budget *budget = net_a->budget;
    mote_status status;
    out->n_layer = c.n_layer;
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)c.n_layer, sizeof(double), &out->layer_error),
             status, done);
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_TABLES, options->max_change, sizeof *out->change, &out->change),
             status, done);
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)c.n_layer, sizeof(double), &c.norm), status,
             done);
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_SCRATCH, (size_t)(c.n_layer * CHUNK),
                             (size_t)c.d_model * sizeof(float), &c.block),
             status, done);
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_SCRATCH, CHUNK, (size_t)c.n_vocab * sizeof(float), &c.logits),
             status, done);
    TRY_GOTO(mote_timeline_create(a, &session, &session_a), status, done);
    session.kv_type = kv_b;
    TRY_GOTO(mote_timeline_create(b, &session, &session_b), status, done);
    TRY_GOTO(run_windows(&c, a, session_a, b, session_b, ids, window, n_window), status, done);
    finish(&c);
done:
    mote_timeline_destroy(session_a);
    mote_timeline_destroy(session_b);
    mote_mem_free(c.norm);
    mote_mem_free(c.block);
    mote_mem_free(c.logits);
    if (status != MOTE_OK) mote_comparison_free(out);
    return status;
}

void mote_comparison_free(struct mote_comparison *comparison)
{
    mote_mem_free(comparison->layer_error);
    mote_mem_free(comparison->change);
    *comparison = (struct mote_comparison){0};
}
