/* quantize.c: mote_quantize: any model that the catalogue reads, written as a GGUF of other types.
 *
 * One idea: decide every tensor's type from its name first (so that a wrong request fails before a byte is written),
 * then stream: a batch of rows is decoded and encoded by all threads and written, tensor after tensor. Memory is one
 * batch, whatever the model's size.
 */
#include "mote.h"

#include <stdio.h>
#include <string.h>

#include "api/importance.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/vocab.h"
#include "file/gguf_write.h"
#include "quant/decode.h"
#include "quant/encode.h"

enum tensor_role { ROLE_KEEP, ROLE_EMBED, ROLE_ATTN, ROLE_EXPERT, ROLE_DOWN, ROLE_OTHER, ROLE_COUNT };

/* First match wins; a name ends with `tail`. KEEP: small, and every later choice hangs on it. */
static const struct {
    const char *tail;
    enum tensor_role role;
} role_rules[] = {
    {"norm.weight", ROLE_KEEP},
    {".bias", ROLE_KEEP},
    {"ffn_gate_inp.weight", ROLE_KEEP},
    {"ffn_gate_inp_shexp.weight", ROLE_KEEP},
    {"token_embd.weight", ROLE_EMBED},
    {"output.weight", ROLE_EMBED}, /* attn_output.weight has been taken by its .attn_ */
    {"ffn_down_exps.weight", ROLE_DOWN},
    {"_exps.weight", ROLE_EXPERT},
};

static int ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);
    return n >= t && !strcmp(name + n - t, tail);
}

static enum tensor_role role_of(const struct mote_tensor *tensor)
{
    if (tensor->n_dim == 1) return ROLE_KEEP;
    if (strstr(tensor->name, ".attn_") && !ends_with(tensor->name, "norm.weight")) return ROLE_ATTN;
    for (size_t i = 0; i < sizeof role_rules / sizeof *role_rules; i++)
        if (ends_with(tensor->name, role_rules[i].tail)) return role_rules[i].role;
    return ROLE_OTHER;
}

/* What to take when a row's length is no multiple of the block: the smallest encodable type of 32 weights a block
 * with at least the bits; f16 when 32 does not divide it either. */
static enum mote_format fit_format(enum mote_format format, int64_t n_col)
{
    const struct mote_format_traits *want = mote_format_traits(format);
    if (n_col % want->block_elems == 0) return format;
    if (n_col % 32) return MOTE_FORMAT_F16;
    double bits = 8.0 * want->block_bytes / want->block_elems;
    return bits <= 4.5 ? MOTE_FORMAT_IQ4_NL : bits <= 5.5 ? MOTE_FORMAT_Q5_0 : MOTE_FORMAT_Q8_0;
}

struct job {
    const struct mote_tensor *tensor;
    enum mote_format format;
};

/* One batch of rows, shared by the threads. Rows count through the experts: row = expert * dim[1] + row inside. */
struct batch {
    const struct mote_tensor *tensor;
    enum mote_format format;
    const struct mote_importance *importance; /* NULL: none */
    int64_t first;
    struct mote_chunks chunks;
    uint8_t *out;      /* [rows of the batch][row bytes] */
    float *row, *mass; /* [n_worker][n_col] */
    _Atomic int failed;
    mote_status status;
    char message[512];
};

static mote_status encode_row(struct batch *batch, int64_t at, float *row, float *mass)
{
    const struct mote_tensor *tensor = batch->tensor;
    int64_t n_col = tensor->dim[0], expert = at / tensor->dim[1], inside = at % tensor->dim[1];
    struct mote_matrix source = mote_tensor_matrix(tensor, expert);
    mote_decode(&source, inside, 0, n_col, row);
    int found = 0;
    if (batch->importance)
        TRY(mote_importance_row(batch->importance, tensor->name, expert, tensor->dim[2], n_col, mass,
                                &found));
    mote_status status =
        mote_encode(batch->format, row, 1, n_col, found ? mass : NULL,
                    batch->out + (size_t)(at - batch->first) * mote_format_row_bytes(batch->format, n_col));
    if (status == MOTE_OK) return MOTE_OK;
    return mote_context(status, "tensor %s, expert %lld, row %lld", tensor->name, (long long)expert,
                        (long long)inside);
}

static void encode_rows(void *context, int worker, int n_worker)
{
    struct batch *batch = context;
    (void)n_worker;
    float *row = batch->row + worker * batch->tensor->dim[0],
          *mass = batch->mass + worker * batch->tensor->dim[0];
    for (int64_t begin, end; !atomic_load(&batch->failed) && mote_next_chunk(&batch->chunks, &begin, &end);)
        for (int64_t i = begin; i < end; i++) {
            mote_status status = encode_row(batch, batch->first + i, row, mass);
            if (status == MOTE_OK) continue;
            /* The message is this thread's: carry it over. The first failure wins. */
            if (!atomic_exchange(&batch->failed, 1)) {
                batch->status = status;
                snprintf(batch->message, sizeof batch->message, "%s", mote_error());
            }
            break;
        }
}

/* Every row of one tensor, in batches of about 16 MB of output. */
static mote_status write_tensor(const struct job *job, const struct mote_importance *importance,
                                struct mote_pool *pool, struct mote_gguf_writer *writer,
                                const struct mote_quantize_options *options, uint64_t *done, uint64_t total)
{
    const struct mote_tensor *tensor = job->tensor;
    int64_t n_col = tensor->dim[0], n_row = 1;
    for (int k = 1; k < MOTE_MAX_DIMS; k++) n_row *= tensor->dim[k];
    size_t row_bytes = mote_format_row_bytes(job->format, n_col);
    size_t source_row = mote_format_row_bytes(tensor->format, n_col);
    int64_t step = (int64_t)((16u << 20) / (row_bytes ? row_bytes : 1)) + 1;
    if (step > n_row) step = n_row;
    struct batch batch = {.tensor = tensor, .format = job->format, .importance = importance};
    int n_worker = mote_pool_size(pool);
    mote_status status;
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)step, row_bytes, &batch.out), status, out);
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)n_worker * (size_t)n_col, 4, &batch.row), status,
             out);
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)n_worker * (size_t)n_col, 4, &batch.mass),
             status, out);
    for (int64_t first = 0; first < n_row; first += step) {
        int64_t n = n_row - first < step ? n_row - first : step;
        batch.first = first;
        mote_chunks_init(&batch.chunks, n, n / (8 * n_worker) + 1);
        mote_pool_run(pool, encode_rows, &batch);
        if (atomic_load(&batch.failed)) {
            status = mote_fail(batch.status, "%s", batch.message);
            goto out;
        }
        TRY_GOTO(mote_gguf_write(writer, batch.out, (size_t)n * row_bytes), status, out);
        *done += (uint64_t)n * source_row;
        if (options->progress &&
            options->progress(options->progress_context, "quantize", *done, total, "bytes")) {
            status = mote_fail(MOTE_CANCELLED, "quantize: cancelled at tensor %s", tensor->name);
            goto out;
        }
    }
out:
    mote_mem_free(batch.out);
    mote_mem_free(batch.row);
    mote_mem_free(batch.mass);
    return status;
}

static mote_status parse_type(const char *text, const char *option, int fallback, int *out)
{
    *out = fallback;
    if (!text) return MOTE_OK;
    int format = mote_format_from_name(text);
    if (format >= 0 && mote_can_encode((enum mote_format)format) &&
        mote_format_traits((enum mote_format)format)->gguf_id >= 0) {
        *out = format;
        return MOTE_OK;
    }
    char list[512] = "";
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++)
        if (mote_can_encode((enum mote_format)f) && mote_format_traits((enum mote_format)f)->gguf_id >= 0) {
            strcat(list, " ");
            strcat(list, mote_format_traits((enum mote_format)f)->name);
        }
    return mote_fail(MOTE_ARGUMENT, "%s '%s': %s; there are:%s", option, text,
                     format < 0 ? "no such type" : "cannot be written", list);
}

static mote_status parse_types(const struct mote_quantize_options *options, int type[ROLE_COUNT])
{
    FAIL_IF(!options->type, MOTE_ARGUMENT, "quantize: no type given");
    int base;
    TRY(parse_type(options->type, "type", -1, &base));
    type[ROLE_KEEP] = MOTE_FORMAT_F32;
    type[ROLE_OTHER] = base;
    TRY(parse_type(options->embed_type, "embed-type", base, &type[ROLE_EMBED]));
    TRY(parse_type(options->attn_type, "attn-type", base, &type[ROLE_ATTN]));
    TRY(parse_type(options->expert_type, "expert-type", base, &type[ROLE_EXPERT]));
    return parse_type(options->down_type, "down-type", type[ROLE_EXPERT], &type[ROLE_DOWN]);
}

/* Metadata: copied, but for what this file is not any more. */
static mote_status write_meta(const struct mote_catalogue *catalogue,
                              const struct mote_quantize_options *options, struct mote_gguf_writer *writer)
{
    int gguf = !strcmp(catalogue->source, "gguf");
    for (size_t i = 0; i < catalogue->n_meta; i++) {
        struct mote_text key = catalogue->meta[i].key;
        static const char *const drop[] = {"split.", "general.file_type", "general.quantization_version"};
        int dropped = 0;
        for (int k = 0; k < 3; k++)
            dropped |= key.length >= strlen(drop[k]) && !memcmp(key.data, drop[k], strlen(drop[k]));
        if (options->name && key.length == 12 && !memcmp(key.data, "general.name", 12)) dropped = 1;
        if (!dropped) TRY(mote_gguf_put_meta(writer, &catalogue->meta[i]));
    }
    TRY(mote_gguf_put_u32(writer, "general.quantization_version", 2));
    if (options->name) TRY(mote_gguf_put_text(writer, "general.name", options->name, strlen(options->name)));
    if (gguf) return MOTE_OK;
    const struct mote_tensor *embedding = mote_catalogue_tensor(catalogue, "token_embd.weight");
    size_t n_vocab = embedding ? (size_t)embedding->dim[1] : 0;
    struct mote_tokenizer *tokenizer;
    struct mote_text chat_template;
    char *owned;
    mote_status status = mote_vocab_open(catalogue, n_vocab, NULL, &tokenizer);
    if (status == MOTE_NOT_FOUND) {
        mote_log(MOTE_LOG_WARNING, "%s; the result will have no tokenizer", mote_error());
        return MOTE_OK;
    }
    TRY(status);
    status = mote_vocab_chat_template(catalogue, &chat_template, &owned);
    if (status == MOTE_OK) status = mote_vocab_write(tokenizer, n_vocab, chat_template, writer);
    mote_mem_free(owned);
    mote_tokenizer_destroy(tokenizer);
    return status;
}

/* Decide every tensor's type; jobs[n_tensor]. Nothing is written yet. */
static mote_status decide(const struct mote_catalogue *catalogue, const int type[ROLE_COUNT],
                          struct job *jobs, struct mote_gguf_writer *writer, uint64_t *total)
{
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        const struct mote_tensor *tensor = &catalogue->tensor[i];
        enum mote_format_family family = mote_format_traits(tensor->format)->family;
        enum mote_format format;
        if (family == MOTE_FAMILY_OTHER) {
            return mote_fail(MOTE_UNSUPPORTED,
                             "tensor %s of type %s carries no weights that could be quantised", tensor->name,
                             mote_format_traits(tensor->format)->name);
        } else {
            enum mote_format want = (enum mote_format)type[role_of(tensor)];
            format = fit_format(want, tensor->dim[0]);
            if (format != want)
                mote_log(MOTE_LOG_WARNING,
                         "tensor %s: rows of %lld are no multiple of %s's %d weights: written as %s",
                         tensor->name, (long long)tensor->dim[0], mote_format_traits(want)->name,
                         mote_format_traits(want)->block_elems, mote_format_traits(format)->name);
        }
        jobs[i] = (struct job){tensor, format};
        TRY(mote_gguf_declare(writer, tensor->name, format, tensor->n_dim, tensor->dim));
        int64_t n_row = 1;
        for (int k = 1; k < MOTE_MAX_DIMS; k++) n_row *= tensor->dim[k];
        *total += (uint64_t)n_row * mote_format_row_bytes(tensor->format, tensor->dim[0]);
    }
    return MOTE_OK;
}

mote_status mote_quantize(const char *in, const char *out, const struct mote_quantize_options *options)
{
    FAIL_IF(!in || !out || !options, MOTE_ARGUMENT, "quantize: in, out and options are needed");
    int type[ROLE_COUNT];
    TRY(parse_types(options, type));
    struct mote_catalogue *catalogue = NULL;
    struct mote_importance importance = {0};
    struct mote_pool *pool = NULL;
    struct mote_gguf_writer *writer = NULL;
    struct job *jobs = NULL;
    uint64_t done = 0, total = 0;
    mote_status status;
    TRY_GOTO(mote_catalogue_open(in, NULL, &catalogue), status, out);
    if (options->imatrix) TRY_GOTO(mote_importance_open(options->imatrix, &importance), status, out);
    TRY_GOTO(mote_pool_create(options->n_thread, &pool), status, out);
    TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_TABLES, catalogue->n_tensor + 1, sizeof *jobs, &jobs), status,
             out);
    TRY_GOTO(mote_gguf_create(out, &writer), status, out);
    TRY_GOTO(write_meta(catalogue, options, writer), status, out);
    TRY_GOTO(decide(catalogue, type, jobs, writer, &total), status, out);
    TRY_GOTO(mote_gguf_begin(writer), status, out);
    for (size_t i = 0; i < catalogue->n_tensor; i++)
        TRY_GOTO(write_tensor(&jobs[i], options->imatrix ? &importance : NULL, pool, writer, options, &done,
                              total),
                 status, out);
    status = mote_gguf_finish(writer);
    writer = NULL;
out:
    mote_gguf_abandon(writer);
    mote_mem_free(jobs);
    mote_pool_destroy(pool);
    mote_importance_close(&importance);
    if (catalogue) mote_catalogue_close(catalogue);
    return status;
}
