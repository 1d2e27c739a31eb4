/* bench_model.c: a whole model through sessions: prompts ("pp512"), then generation at several depths ("tg64 @ 2048"), by
 * several sessions together ("tg64 x 4 @ 2048"). Every token that is generated is picked too, greedily: what of the logits
 * a loop needs is fetched and looked at. (The next step evaluates another, so that what is read does not depend on it.)
 *
 * Bytes are the weights that the steps read, each once per step: everything but the embedding's rows, and of the
 * experts as many as so many rows choose on average when the router favours none, n (1 - (1 - k/n)^rows). Generation
 * adds the keys and values that attention reads: at long contexts they are most of it. Operations are those of the
 * weights alone.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/bench.h"
#include "api/handle.h"

enum { MAX_TOKENS = 1 << 20, MAX_SESSIONS = 64 };

struct model_bench {
    const struct mote_bench_job *job;
    mote_model *model;
    mote_session *session[MAX_SESSIONS]; /* made as they are needed */
    struct mote_chain *chain;            /* greedy */
    int64_t n_session;                   /* of the row being timed */
    struct mote_model_info info;
    double dense_bytes, output_bytes, expert_bytes; /* all layers; all experts */
    double kv_bytes;                                /* of one token */
    int32_t *tokens;                                /* random ids, as many as the longest eval */
    int64_t n_token;                                /* of tokens */
    int64_t n, depth;                               /* of the row being timed */
};

/* ---- what a step reads ---- */

static double matrix_bytes(const struct mote_matrix *w)
{
    if (!w->n_row) return 0;
    double bytes = (double)mote_format_row_bytes(w->format, w->n_col);
    if (w->group) {
        double one = w->bias ? 2.0 * mote_format_traits(w->scale_format)->block_bytes : 1.0;
        bytes += (double)(w->n_col / w->group) * one;
    }
    return bytes * (double)w->n_row;
}

static double set_bytes(const struct mote_expert_set *set)
{
    double bytes = 0;
    for (int32_t e = 0; e < set->n_expert; e++)
        bytes += matrix_bytes(&set->gate[e]) + matrix_bytes(&set->up[e]) + matrix_bytes(&set->down[e]);
    return bytes;
}

static mote_status count_bytes(struct model_bench *bench)
{
    const struct mote_network *network = bench->model->network;
    for (uint64_t i = 0; i < network->hyper.n_layer; i++) {
        const struct mote_layer *layer = &network->layer[i];
        const struct mote_weight *const dense[] = {&layer->q, &layer->k,      &layer->v,
                                                   &layer->o, &layer->router, &layer->shared_gate};
        for (size_t j = 0; j < sizeof dense / sizeof *dense; j++)
            bench->dense_bytes += matrix_bytes(&dense[j]->w);
        bench->dense_bytes += set_bytes(&layer->shared);
        bench->expert_bytes += set_bytes(&layer->experts);
    }
    bench->output_bytes = matrix_bytes(&network->output.w);
    size_t kv;
    TRY(mote_kv_bytes(&network->hyper, bench->model->kv_type, 1, &kv));
    bench->kv_bytes = (double)kv;
    return MOTE_OK;
}

static double step_bytes(const struct model_bench *bench, int64_t n_row)
{
    double share = 0;
    if (bench->info.n_expert)
        share = 1 - pow(1 - (double)bench->info.n_expert_used / (double)bench->info.n_expert, (double)n_row);
    return bench->dense_bytes + share * bench->expert_bytes;
}

static double prompt_bytes(const struct model_bench *bench)
{
    int64_t batch = bench->model->n_batch, full = bench->n / batch, rest = bench->n % batch;
    double bytes =
        bench->output_bytes + (double)full * step_bytes(bench, batch); /* logits of the last row alone */
    return rest ? bytes + step_bytes(bench, rest) : bytes;
}

static double generate_bytes(const struct model_bench *bench)
{
    double n = (double)bench->n, seen = n * (double)bench->depth + n * (n + 1) / 2;
    return n * (step_bytes(bench, bench->n_session) + bench->output_bytes) +
           (double)bench->n_session * seen * bench->kv_bytes;
}

/* ---- runs ---- */

static mote_status to_depth(void *context, int64_t run)
{
    struct model_bench *bench = context;
    (void)run;
    for (int64_t i = 0; i < bench->n_session; i++) {
        if (!bench->session[i]) TRY(mote_session_create(bench->model, &bench->session[i]));
        int64_t length = mote_session_length(bench->session[i]);
        if (length > bench->depth) TRY(mote_session_truncate(bench->session[i], bench->depth));
        else if (length < bench->depth)
            TRY(mote_session_eval(bench->session[i], bench->tokens + length,
                                  (size_t)(bench->depth - length)));
    }
    return MOTE_OK;
}

static mote_status run_prompt(void *context, int64_t run)
{
    struct model_bench *bench = context;
    (void)run;
    return mote_session_eval(bench->session[0], bench->tokens, (size_t)bench->n);
}

static mote_status run_generate(void *context, int64_t run)
{
    struct model_bench *bench = context;
    struct mote_turn turn[MAX_SESSIONS];
    (void)run;
    for (int64_t i = 0; i < bench->n; i++) {
        for (int64_t j = 0; j < bench->n_session; j++) /* tokens of their own, so that routing differs */
            turn[j] = (struct mote_turn){.session = bench->session[j]->timeline,
                                         .ids = bench->tokens + (bench->depth + i + 131 * j) % bench->n_token,
                                         .n = 1};
        TRY(mote_timeline_eval_many(turn, bench->n_session));
        int32_t token;
        for (int64_t j = 0; j < bench->n_session; j++)
            TRY(mote_chain_next(bench->chain, turn[j].session, &token, NULL));
    }
    return MOTE_OK;
}

static mote_status bench_row(struct model_bench *bench, int64_t n, int64_t depth, int64_t n_session,
                             int is_prompt)
{
    const struct mote_network *network = bench->model->network;
    const struct mote_layer *layer = &network->layer[0];
    const struct mote_matrix *of = layer->experts.n_expert ? &layer->experts.gate[0] : &layer->q.w;
    char name[64];
    bench->n = n;
    bench->depth = depth;
    bench->n_session = n_session;
    if (is_prompt) snprintf(name, sizeof name, "pp%lld", (long long)n);
    else if (n_session == 1) snprintf(name, sizeof name, "tg%lld @ %lld", (long long)n, (long long)depth);
    else
        snprintf(name, sizeof name, "tg%lld x %lld @ %lld", (long long)n, (long long)n_session,
                 (long long)depth);
    double output = (double)network->output.w.n_row * (double)network->output.w.n_col;
    double each = (double)bench->info.n_param_active - output, n_row = (double)n * (double)n_session,
           n_logits = is_prompt ? 1 : n_row;
    struct mote_bench_row row = {.what = "model",
                                 .name = name,
                                 .type = mote_format_traits(of->format)->name,
                                 .rows = n * n_session,
                                 .bytes = is_prompt ? prompt_bytes(bench) : generate_bytes(bench),
                                 .operations = 2 * (each * n_row + output * n_logits)};
    TRY(mote_bench_time_long(bench->job, to_depth, is_prompt ? run_prompt : run_generate, bench, &row));
    return mote_bench_report(bench->job, &row);
}

/* ---- the whole ---- */

static mote_status open_model(struct model_bench *bench, int64_t n_token)
{
    struct mote_model_options options = *bench->job->model;
    options.struct_size = sizeof options;
    options.n_thread = bench->job->n_thread;
    if (!options.n_ctx) options.n_ctx = n_token;
    TRY(mote_model_open(bench->job->options->model, &options, &bench->model));
    bench->info.struct_size = sizeof bench->info;
    TRY(mote_model_describe(bench->model, &bench->info));
    TRY(count_bytes(bench));
    struct mote_chain_options greedy = {.top_p = 1, .repeat_penalty = 1};
    TRY(mote_chain_create(&greedy, bench->info.n_vocab, NULL, &bench->chain));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)n_token, sizeof *bench->tokens, &bench->tokens));
    struct mote_rng rng;
    mote_rng_seed(&rng, 17);
    for (int64_t i = 0; i < n_token; i++)
        bench->tokens[i] = (int32_t)mote_rng_below(&rng, (uint64_t)bench->info.n_vocab);
    bench->n_token = n_token;
    return MOTE_OK;
}

mote_status mote_bench_model(const struct mote_bench_job *job)
{
    static const int64_t default_rows[] = {512}, default_depth[] = {0}, default_batch[] = {1};
    const struct mote_bench_options *options = job->options;
    FAIL_IF(!options->model, MOTE_ARGUMENT, "bench: the path of a model is needed");
    const int64_t *rows, *depth = options->n_depth ? options->depth : default_depth;
    const int64_t *batch = options->n_batch ? options->batch : default_batch;
    size_t n_rows, n_depth = options->n_depth ? options->n_depth : 1,
                   n_batch = options->n_batch ? options->n_batch : 1;
    for (size_t i = 0; i < n_batch; i++)
        FAIL_IF(batch[i] < 1 || batch[i] > MAX_SESSIONS, MOTE_ARGUMENT,
                "%lld sessions together, expected 1..%d", (long long)batch[i], MAX_SESSIONS);
    TRY(mote_bench_rows(job, default_rows, 1, &rows, &n_rows));
    int64_t n_generate = options->n_generate ? options->n_generate : 64, most = 1;
    FAIL_IF(n_generate > MAX_TOKENS, MOTE_ARGUMENT, "%lld tokens to generate, expected 1..%d",
            (long long)n_generate, MAX_TOKENS);
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i] > most) most = rows[i];
    for (size_t i = 0; i < n_depth; i++) {
        FAIL_IF(depth[i] < 0 || depth[i] > MAX_TOKENS, MOTE_ARGUMENT, "depth %lld, expected 0..%d",
                (long long)depth[i], MAX_TOKENS);
        if (depth[i] + n_generate > most) most = depth[i] + n_generate;
    }
    struct model_bench bench = {.job = job};
    mote_status status = open_model(&bench, most);
    if (status == MOTE_OK) status = mote_bench_start(job);
    for (size_t i = 0; status == MOTE_OK && i < n_rows; i++) status = bench_row(&bench, rows[i], 0, 1, 1);
    for (size_t j = 0; j < n_batch; j++)
        for (size_t i = 0; status == MOTE_OK && i < n_depth; i++)
            status = bench_row(&bench, n_generate, depth[i], batch[j], 0);
    for (int i = 0; i < MAX_SESSIONS; i++) mote_session_destroy(bench.session[i]);
    mote_chain_destroy(bench.chain);
    mote_model_close(bench.model);
    mote_mem_free(bench.tokens);
    return status;
}
