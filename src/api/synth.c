/* synth.c: mote_synth: a valid GGUF of a model's true shapes with random weights, for timing what has not been
 * downloaded.
 *
 * One idea: weights are Gaussian and really encoded, but only a pool of rows per type and width is: every row of
 * the file is one of them, drawn at random. So the kernels see the codes, signs and table indexes of real encoded
 * weights, the file is written at the disk's speed, and 30 GB take minutes, not hours.
 */
#include "mote.h"

#include <stdio.h>
#include <string.h>

#include "api/row_pool.h"
#include "api/shape.h"
#include "engine/vocab.h"
#include "file/gguf_write.h"
#include "quant/encode.h"

/* Weights in a pool: enough that a draw of rows never repeats inside a cache, few enough to encode in seconds. */
enum { POOL_WEIGHTS = 1 << 20 };

const char *mote_synth_shape(size_t index)
{
    const struct mote_shape *shape = mote_shape_at(index);
    return shape ? shape->name : NULL;
}

/* ---- the file ---- */

enum { MAX_POOLS = 32 };

struct synth {
    const struct mote_synth_options *options;
    const struct mote_shape *shape;
    struct mote_gguf_writer *writer;
    struct mote_pool *threads;
    enum mote_format expert, attn, embed, rest;
    struct mote_row_pool pool[MAX_POOLS];
    int n_pool;
    uint64_t done, total;
    struct mote_rng rng;
    uint8_t *buffer; /* [BUFFER] */
};

enum { BUFFER = 8 << 20 };

/* A tensor of the model. vector: 1 for a row of ones (norms), 2 for small random values (biases). */
struct tensor {
    const char *name;
    enum mote_format format;
    int64_t dim[3];
    int n_dim, vector;
};

typedef mote_status tensor_fn(struct synth *synth, const struct tensor *tensor);

/* Every tensor in file order, once to declare and once to write: one list, no second truth. */
static mote_status walk(struct synth *synth, tensor_fn *fn)
{
    const struct mote_shape *s = synth->shape;
    int64_t n_layer = synth->options->n_layer ? synth->options->n_layer : s->n_layer;
    int64_t q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim, d = s->d_model;
#define TENSOR(...) TRY(fn(synth, &(struct tensor){__VA_ARGS__}))
    TENSOR("token_embd.weight", synth->embed, {d, s->n_vocab, 1}, 2, 0);
    for (int64_t i = 0; i < n_layer; i++) {
        char name[64];
#define LAYER(tail, ...)                                             \
    do {                                                             \
        snprintf(name, sizeof name, "blk.%lld." tail, (long long)i); \
        TENSOR(name, __VA_ARGS__);                                   \
    } while (0)
        LAYER("attn_norm.weight", MOTE_FORMAT_F32, {d, 1, 1}, 1, 1);
        LAYER("attn_q.weight", synth->attn, {d, q, 1}, 2, 0);
        LAYER("attn_k.weight", synth->attn, {d, kv, 1}, 2, 0);
        LAYER("attn_v.weight", synth->attn, {d, kv, 1}, 2, 0);
        if (s->qkv_bias) {
            LAYER("attn_q.bias", MOTE_FORMAT_F32, {q, 1, 1}, 1, 2);
            LAYER("attn_k.bias", MOTE_FORMAT_F32, {kv, 1, 1}, 1, 2);
            LAYER("attn_v.bias", MOTE_FORMAT_F32, {kv, 1, 1}, 1, 2);
        }
        if (s->qk_norm) {
            LAYER("attn_q_norm.weight", MOTE_FORMAT_F32, {s->head_dim, 1, 1}, 1, 1);
            LAYER("attn_k_norm.weight", MOTE_FORMAT_F32, {s->head_dim, 1, 1}, 1, 1);
        }
        LAYER("attn_output.weight", synth->attn, {q, d, 1}, 2, 0);
        LAYER("ffn_norm.weight", MOTE_FORMAT_F32, {d, 1, 1}, 1, 1);
        LAYER("ffn_gate_inp.weight", MOTE_FORMAT_F32, {d, s->n_expert, 1}, 2, 0);
        LAYER("ffn_gate_exps.weight", synth->expert, {d, s->n_ff_expert, s->n_expert}, 3, 0);
        LAYER("ffn_up_exps.weight", synth->expert, {d, s->n_ff_expert, s->n_expert}, 3, 0);
        LAYER("ffn_down_exps.weight", synth->expert, {s->n_ff_expert, d, s->n_expert}, 3, 0);
        if (s->n_ff_shared) {
            LAYER("ffn_gate_inp_shexp.weight", MOTE_FORMAT_F32, {d, 1, 1}, 1, 2);
            LAYER("ffn_gate_shexp.weight", synth->rest, {d, s->n_ff_shared, 1}, 2, 0);
            LAYER("ffn_up_shexp.weight", synth->rest, {d, s->n_ff_shared, 1}, 2, 0);
            LAYER("ffn_down_shexp.weight", synth->rest, {s->n_ff_shared, d, 1}, 2, 0);
        }
#undef LAYER
    }
    TENSOR("output_norm.weight", MOTE_FORMAT_F32, {d, 1, 1}, 1, 1);
    if (!s->tied) TENSOR("output.weight", synth->embed, {d, s->n_vocab, 1}, 2, 0);
#undef TENSOR
    return MOTE_OK;
}

/* Blocks of 256 do not divide every width (1408 is 5.5 of them): those matrices become q8_0, as other tools do. */
static enum mote_format format_of(const struct tensor *tensor)
{
    return tensor->dim[0] % mote_format_traits(tensor->format)->block_elems ? MOTE_FORMAT_Q8_0
                                                                            : tensor->format;
}

static mote_status declare(struct synth *synth, const struct tensor *tensor)
{
    enum mote_format format = format_of(tensor);
    synth->total +=
        (uint64_t)tensor->dim[1] * (uint64_t)tensor->dim[2] * mote_format_row_bytes(format, tensor->dim[0]);
    return mote_gguf_declare(synth->writer, tensor->name, format, tensor->n_dim, tensor->dim);
}

static mote_status find_pool(struct synth *synth, enum mote_format format, int64_t n_col,
                             struct mote_row_pool **out)
{
    for (int i = 0; i < synth->n_pool; i++)
        if (synth->pool[i].format == format && synth->pool[i].n_col == n_col) {
            *out = &synth->pool[i];
            return MOTE_OK;
        }
    FAIL_IF(synth->n_pool == MAX_POOLS, MOTE_INTERNAL, "synth: more than %d kinds of rows", MAX_POOLS);
    struct mote_row_pool *pool = &synth->pool[synth->n_pool];
    TRY(mote_row_pool_create(format, n_col, POOL_WEIGHTS, mote_rng_u64(&synth->rng), synth->threads, pool));
    synth->n_pool++;
    *out = pool;
    return MOTE_OK;
}

static mote_status write_rows(struct synth *synth, const struct tensor *tensor)
{
    enum mote_format format = format_of(tensor);
    int64_t n_row = tensor->dim[1] * tensor->dim[2];
    struct mote_row_pool *pool = NULL;
    size_t row_bytes = mote_format_row_bytes(format, tensor->dim[0]);
    if (tensor->vector) {
        float *values = (float *)(void *)synth->buffer;
        FAIL_IF(row_bytes > BUFFER, MOTE_INTERNAL, "synth: vector of %zu bytes", row_bytes);
        for (int64_t c = 0; c < tensor->dim[0]; c++)
            values[c] = tensor->vector == 1 ? 1 : (float)(0.02 * (mote_rng_unit(&synth->rng) - 0.5));
        TRY(mote_gguf_write(synth->writer, values, row_bytes));
    } else {
        TRY(find_pool(synth, format, tensor->dim[0], &pool));
        size_t fit = BUFFER / row_bytes;
        FAIL_IF(fit == 0, MOTE_INTERNAL, "synth: row of %zu bytes", row_bytes);
        for (int64_t first = 0; first < n_row; first += (int64_t)fit) {
            size_t n = n_row - first < (int64_t)fit ? (size_t)(n_row - first) : fit;
            mote_row_pool_draw(pool, &synth->rng, (int64_t)n, synth->buffer);
            TRY(mote_gguf_write(synth->writer, synth->buffer, n * row_bytes));
            if (synth->options->progress &&
                synth->options->progress(synth->options->progress_context, "synth",
                                         synth->done + (uint64_t)(first + (int64_t)n) * row_bytes,
                                         synth->total, "bytes"))
                return mote_fail(MOTE_CANCELLED, "synth: cancelled at tensor %s", tensor->name);
        }
    }
    synth->done += (uint64_t)n_row * row_bytes;
    return MOTE_OK;
}

static mote_status put_keys(struct synth *synth)
{
    const struct mote_shape *s = synth->shape;
    struct mote_gguf_writer *writer = synth->writer;
    int64_t n_layer = synth->options->n_layer ? synth->options->n_layer : s->n_layer;
    char name[128];
    snprintf(name, sizeof name, "%s, random weights", s->name);
    TRY(mote_gguf_put_text(writer, "general.architecture", s->arch, strlen(s->arch)));
    TRY(mote_gguf_put_text(writer, "general.name", name, strlen(name)));
    TRY(mote_gguf_put_u32(writer, "general.quantization_version", 2));
    const struct {
        const char *tail;
        int64_t value;
    } numbers[] = {
        {"block_count", n_layer},
        {"context_length", s->n_ctx},
        {"embedding_length", s->d_model},
        {"feed_forward_length", s->n_ff_shared ? s->n_ff_shared : s->n_ff_expert * s->n_used},
        {"attention.head_count", s->n_head},
        {"attention.head_count_kv", s->n_head_kv},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"expert_count", s->n_expert},
        {"expert_used_count", s->n_used},
        {"expert_feed_forward_length", s->n_ff_expert},
        {"expert_shared_feed_forward_length", s->n_ff_shared},
        {"vocab_size", s->n_vocab},
    };
    char key[128];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!numbers[i].value) continue;
        snprintf(key, sizeof key, "%s.%s", s->arch, numbers[i].tail);
        TRY(mote_gguf_put_u32(writer, key, (uint32_t)numbers[i].value));
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    TRY(mote_gguf_put_f32(writer, key, (float)s->eps));
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    TRY(mote_gguf_put_f32(writer, key, (float)s->rope_base));
    snprintf(key, sizeof key, "%s.expert_weights_norm", s->arch);
    return mote_gguf_put_bool(writer, key, s->renormalise);
}

/* The tokenizer of another model, or one that knows single bytes and the ChatML markers: valid, and needs no file. */
static mote_status put_tokenizer(struct synth *synth)
{
    struct mote_tokenizer *tokenizer = NULL;
    struct mote_text chat_template = {0};
    char *owned = NULL;
    mote_status status;
    size_t n_vocab = (size_t)synth->shape->n_vocab;
    if (synth->options->tokenizer) {
        struct mote_catalogue *other;
        TRY(mote_catalogue_open(synth->options->tokenizer, NULL, &other));
        status = mote_vocab_open(other, 0, NULL, &tokenizer);
        if (status == MOTE_OK && mote_tokenizer_size(tokenizer) > n_vocab)
            status = mote_fail(MOTE_ARGUMENT, "%s: %zu tokens do not fit the shape's %zu",
                               synth->options->tokenizer, mote_tokenizer_size(tokenizer), n_vocab);
        if (status == MOTE_OK) status = mote_vocab_chat_template(other, &chat_template, &owned);
        if (status == MOTE_OK) status = mote_vocab_write(tokenizer, n_vocab, chat_template, synth->writer);
        mote_catalogue_close(other);
    } else {
        /* GPT-2's byte alphabet: printable Latin-1 bytes are themselves, the others follow from U+0100 on. */
        char bytes[256][3];
        struct mote_piece token[259];
        int32_t kind[259];
        unsigned next = 0x100;
        for (int b = 0; b < 256; b++) {
            int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            unsigned code = printable ? (unsigned)b : next++;
            size_t length = code < 0x80 ? 1 : 2;
            if (length == 1) bytes[b][0] = (char)code;
            else bytes[b][0] = (char)(0xC0 | code >> 6), bytes[b][1] = (char)(0x80 | (code & 63));
            token[b] = (struct mote_piece){bytes[b], length};
            kind[b] = MOTE_TOKEN_NORMAL;
        }
        static const char *const control[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
        for (int i = 0; i < 3; i++) {
            token[256 + i] = (struct mote_piece){control[i], strlen(control[i])};
            kind[256 + i] = MOTE_TOKEN_CONTROL;
        }
        struct mote_vocab vocab = {.model = "gpt2",
                                   .pre = "qwen2",
                                   .n_token = 259,
                                   .token = token,
                                   .kind = kind,
                                   .bos = -1,
                                   .eos = 256,
                                   .eot = 258,
                                   .unk = -1,
                                   .pad = -1};
        status = mote_tokenizer_from_vocab(&vocab, NULL, &tokenizer);
        if (status == MOTE_OK) status = mote_vocab_write(tokenizer, n_vocab, chat_template, synth->writer);
    }
    mote_mem_free(owned);
    mote_tokenizer_destroy(tokenizer);
    return status;
}

static mote_status find_type(const char *text, enum mote_format fallback, enum mote_format *out)
{
    *out = fallback;
    if (!text) return MOTE_OK;
    int format = mote_format_from_name(text);
    FAIL_IF(format < 0 || !mote_can_encode((enum mote_format)format) ||
                mote_format_traits((enum mote_format)format)->gguf_id < 0,
            MOTE_ARGUMENT, "synth: type '%s' %s", text,
            format < 0 ? "does not exist" : "cannot be written to a GGUF");
    *out = (enum mote_format)format;
    return MOTE_OK;
}

mote_status mote_synth(const char *out, const struct mote_synth_options *options)
{
    FAIL_IF(!out || !options || !options->shape || !options->type, MOTE_ARGUMENT,
            "synth: out, shape and type are needed");
    struct synth synth = {.options = options, .shape = mote_shape_find(options->shape)};
    if (!synth.shape) {
        char list[512] = "";
        for (size_t i = 0; mote_synth_shape(i); i++) {
            strcat(list, " ");
            strcat(list, mote_synth_shape(i));
        }
        return mote_fail(MOTE_ARGUMENT, "synth: shape '%s' is not known; there are:%s", options->shape, list);
    }
    FAIL_IF(options->n_layer < 0 || options->n_layer > synth.shape->n_layer, MOTE_ARGUMENT,
            "synth: %lld layers, %s has %lld", (long long)options->n_layer, options->shape,
            (long long)synth.shape->n_layer);
    TRY(find_type(options->type, MOTE_FORMAT_F32, &synth.expert));
    synth.rest = synth.expert;
    TRY(find_type(options->attn_type, synth.expert, &synth.attn));
    TRY(find_type(options->embed_type, synth.expert, &synth.embed));
    mote_rng_seed(&synth.rng, options->seed);
    mote_status status;
    TRY_GOTO(mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, BUFFER, &synth.buffer), status, out);
    TRY_GOTO(mote_pool_create(options->n_thread, &synth.threads), status, out);
    TRY_GOTO(mote_gguf_create(out, &synth.writer), status, out);
    TRY_GOTO(put_keys(&synth), status, out);
    TRY_GOTO(put_tokenizer(&synth), status, out);
    TRY_GOTO(walk(&synth, declare), status, out);
    TRY_GOTO(mote_gguf_begin(synth.writer), status, out);
    TRY_GOTO(walk(&synth, write_rows), status, out);
    status = mote_gguf_finish(synth.writer);
    synth.writer = NULL;
out:
    mote_gguf_abandon(synth.writer);
    for (int i = 0; i < synth.n_pool; i++) mote_row_pool_free(&synth.pool[i]);
    mote_pool_destroy(synth.threads);
    mote_mem_free(synth.buffer);
    return status;
}
