/* imatrix.c: mote_measure_imatrix: run a text through the model and sum the squares of what flows into the columns of
 * every matrix, expert by expert.
 *
 * One idea: the taps of a step show the inputs of each group of matrices once; a table says which matrices read which
 * tap. The file's layout is in importance.h.
 */
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "base/log.h"
#include "engine/perplexity.h"
#include "file/gguf_write.h"

/* Which matrices of a layer read what a tap shows. by_expert: rows belong to the experts chosen for them. */
static const struct {
    const char *tap, *matrix;
    int by_expert;
} readers[] = {
    {"attn_norm", "attn_q", 0},
    {"attn_norm", "attn_k", 0},
    {"attn_norm", "attn_v", 0},
    {"attn", "attn_output", 0},
    {"ffn_norm", "ffn_gate_inp", 0},
    {"ffn_norm", "ffn_gate_exps", 1},
    {"ffn_norm", "ffn_up_exps", 1},
    {"ffn_norm", "ffn_gate_shexp", 0},
    {"ffn_norm", "ffn_up_shexp", 0},
    {"ffn_norm", "ffn_gate", 0},
    {"ffn_norm", "ffn_up", 0},
    {"ffn_hidden", "ffn_down_exps", 1},
    {"shared_hidden", "ffn_down_shexp", 0},
    {"shared_hidden", "ffn_down", 0},
    {"output_norm", "output", 0},
};
enum { READER_COUNT = sizeof readers / sizeof *readers };

struct sums {
    const struct mote_tensor *tensor; /* NULL: the model has no such matrix */
    double *square;                   /* [n_expert][n_col] */
    double *count;                    /* [n_expert] */
};

struct collector {
    const struct mote_catalogue *catalogue;
    int n_layer;
    struct sums *sums; /* [n_layer + 1][READER_COUNT]; the last row: matrices outside the layers */
};

static mote_status collector_make(struct collector *collector, struct mote_model *model)
{
    collector->catalogue = model->catalogue;
    collector->n_layer = (int)model->network->hyper.n_layer;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, ((size_t)collector->n_layer + 1) * READER_COUNT,
                        sizeof(struct sums), &collector->sums));
    for (int layer = 0; layer <= collector->n_layer; layer++)
        for (int r = 0; r < READER_COUNT; r++) {
            struct sums *sums = &collector->sums[layer * READER_COUNT + r];
            int outside = !strcmp(readers[r].tap, "output_norm");
            if (outside != (layer == collector->n_layer)) continue;
            char name[96];
            if (outside) snprintf(name, sizeof name, "%s.weight", readers[r].matrix);
            else snprintf(name, sizeof name, "blk.%d.%s.weight", layer, readers[r].matrix);
            sums->tensor = mote_catalogue_tensor(model->catalogue, name);
            if (!sums->tensor) continue;
            size_t n_expert = (size_t)sums->tensor->dim[2], n_col = (size_t)sums->tensor->dim[0];
            TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, n_expert * n_col, sizeof(double), &sums->square));
            TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, n_expert, sizeof(double), &sums->count));
        }
    return MOTE_OK;
}

static void collector_free(struct collector *collector)
{
    for (int i = 0; collector->sums && i < (collector->n_layer + 1) * READER_COUNT; i++) {
        mote_mem_free(collector->sums[i].square);
        mote_mem_free(collector->sums[i].count);
    }
    mote_mem_free(collector->sums);
}

static void add_row(struct sums *sums, int64_t expert, const float *row)
{
    int64_t n_col = sums->tensor->dim[0];
    double *square = sums->square + expert * n_col;
    for (int64_t c = 0; c < n_col; c++) square[c] += (double)row[c] * row[c];
    sums->count[expert] += 1;
}

static void collect(void *context, const struct mote_tap *tap)
{
    struct collector *collector = context;
    if (tap->layer < 0) return;
    for (int r = 0; r < READER_COUNT; r++) {
        if (strcmp(readers[r].tap, tap->name)) continue;
        struct sums *sums = &collector->sums[tap->layer * READER_COUNT + r];
        if (!sums->tensor || sums->tensor->dim[0] != tap->n_col) continue;
        if (!readers[r].by_expert) {
            for (int64_t i = 0; i < tap->n_row; i++) add_row(sums, 0, tap->data + i * tap->n_col);
        } else if (!strcmp(tap->name, "ffn_hidden")) { /* a row per chosen expert */
            for (int64_t i = 0; i < tap->n_row; i++) add_row(sums, tap->ids[i], tap->data + i * tap->n_col);
        } else { /* a row for all its experts */
            for (int64_t i = 0; i < tap->n_row; i++)
                for (int k = 0; k < tap->n_used; k++)
                    add_row(sums, tap->ids[i * tap->n_used + k], tap->data + i * tap->n_col);
        }
    }
}

static mote_status write_sums(const struct collector *collector, const char *path, int64_t n_window,
                              int64_t window)
{
    struct mote_gguf_writer *writer;
    TRY(mote_gguf_create(path, &writer));
    float *row = NULL;
    mote_status status;
    TRY_GOTO(mote_gguf_put_text(writer, "general.type", "imatrix", 7), status, out);
    TRY_GOTO(mote_gguf_put_u32(writer, "imatrix.chunk_count", (uint32_t)n_window), status, out);
    TRY_GOTO(mote_gguf_put_u32(writer, "imatrix.chunk_size", (uint32_t)window), status, out);
    int64_t n = (collector->n_layer + 1) * READER_COUNT, idle = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) TRY_GOTO(mote_gguf_begin(writer), status, out);
        for (int64_t i = 0; i < n; i++) {
            const struct sums *sums = &collector->sums[i];
            if (!sums->tensor) continue;
            int64_t n_col = sums->tensor->dim[0], n_expert = sums->tensor->dim[2];
            char name[160];
            if (pass == 0) {
                snprintf(name, sizeof name, "%s.in_sum2", sums->tensor->name);
                TRY_GOTO(mote_gguf_declare(writer, name, MOTE_FORMAT_F32, 2, (int64_t[]){n_col, n_expert}),
                         status, out);
                snprintf(name, sizeof name, "%s.counts", sums->tensor->name);
                TRY_GOTO(mote_gguf_declare(writer, name, MOTE_FORMAT_F32, 2, (int64_t[]){1, n_expert}),
                         status, out);
                continue;
            }
            TRY_GOTO(mote_mem_resize(NULL, MOTE_MEM_SCRATCH, (size_t)(n_col * n_expert) * 4, &row), status,
                     out);
            for (int64_t c = 0; c < n_col * n_expert; c++) row[c] = (float)sums->square[c];
            TRY_GOTO(mote_gguf_write(writer, row, (size_t)(n_col * n_expert) * 4), status, out);
            for (int64_t e = 0; e < n_expert; e++) {
                row[e] = (float)sums->count[e];
                idle += sums->count[e] == 0;
            }
            TRY_GOTO(mote_gguf_write(writer, row, (size_t)n_expert * 4), status, out);
        }
    }
    if (idle)
        mote_log(MOTE_LOG_WARNING,
                 "%lld expert matrices saw no token: they will be quantised without importance",
                 (long long)idle);
    mote_mem_free(row);
    return mote_gguf_finish(writer);
out:
    mote_mem_free(row);
    mote_gguf_abandon(writer);
    return status;
}

mote_status mote_measure_imatrix(mote_model *model, const char *text, size_t length, const char *out,
                                 const struct mote_measure_options *given)
{
    struct mote_measure_options options = {0};
    if (given) MOTE_TAKE_OPTIONS(options, given);
    FAIL_IF(!out, MOTE_ARGUMENT, "imatrix: no file to write");
    TRY(mote_model_need_tokenizer(model));
    int64_t window = options.window > 0 ? options.window : 512;
    FAIL_IF(window > model->n_ctx, MOTE_CONTEXT, "imatrix: windows of %lld tokens in a context of %lld",
            (long long)window, (long long)model->n_ctx);
    struct collector collector = {0};
    struct mote_forward *forward = NULL;
    struct mote_timeline *timeline = NULL;
    int32_t *ids = NULL;
    float *logits = NULL;
    int64_t n = 0, most = options.n_window > 0 ? options.n_window * window : 0;
    mote_status status;
    TRY_GOTO(mote_corpus_encode(model->tokenizer, text, length, most, model->budget, &ids, &n), status, out);
    int64_t n_window = n / window;
    if (options.n_window > 0 && options.n_window < n_window) n_window = options.n_window;
    if (n_window == 0) {
        status = mote_fail(MOTE_ARGUMENT, "imatrix: the text has %lld tokens, a window needs %lld",
                           (long long)n, (long long)window);
        goto out;
    }
    struct mote_forward_options forward_options = {.max_row = model->n_batch, .taps = 1};
    struct mote_timeline_options timeline_options = {.n_ctx = window, .kv_type = model->kv_type};
    TRY_GOTO(collector_make(&collector, model), status, out);
    TRY_GOTO(mote_forward_create(model->network, model->backend, &forward_options, &forward), status, out);
    TRY_GOTO(mote_forward_tap(forward, collect, &collector), status, out);
    TRY_GOTO(mote_timeline_create(forward, &timeline_options, &timeline), status, out);
    /* Every position's logits are asked for, so that the output matrix sees every row. */
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)window * (size_t)model->network->hyper.n_vocab,
                             4, &logits),
             status, out);
    for (int64_t w = 0; w < n_window; w++) {
        TRY_GOTO(mote_timeline_rewind(timeline, 0), status, out);
        TRY_GOTO(mote_timeline_eval_all(timeline, ids + w * window, window, logits), status, out);
        if (options.progress && options.progress(options.progress_context, "imatrix", (uint64_t)(w + 1),
                                                 (uint64_t)n_window, "windows")) {
            status = mote_fail(MOTE_CANCELLED, "imatrix: cancelled after %lld windows", (long long)(w + 1));
            goto out;
        }
    }
    status = write_sums(&collector, out, n_window, window);
out:
    mote_timeline_destroy(timeline);
    mote_forward_destroy(forward);
    collector_free(&collector);
    mote_mem_free(logits);
    mote_mem_free(ids);
    return status;
}
