/* synth.c: mote_synth: a valid model of true shapes with random weights, for timing what has not been downloaded.
 *
 * Owns: the list of tensors and keys, and the rows. What a GGUF or an MLX folder makes of them is synth_gguf.c and
 * synth_mlx.c.
 * One idea: weights are Gaussian and really encoded, but only a pool of rows per type and width is: every row of
 * the file is one of them, drawn at random. So the kernels see the codes, signs and table indexes of real encoded
 * weights, the file is written at the disk's speed, and 30 GB take minutes, not hours.
 */
#include "api/synth.h"

#include <stdio.h>
#include <string.h>

#include "quant/encode.h"

/* Weights in a pool: enough that a draw of rows never repeats inside a cache, few enough to encode in seconds. */
enum { POOL_WEIGHTS = 1 << 20, BUFFER = 8 << 20, BUFFER_HALF = BUFFER / 2 };

const char *mote_synth_shape(size_t index)
{
    const struct mote_shape *shape = mote_shape_at(index);
    return shape && shape->n_layer ? shape->name : NULL;
}

/* ---- what there is ---- */

typedef mote_status tensor_fn(struct mote_synth *synth, const struct mote_synth_tensor *tensor);

/* Every tensor in file order, once to declare and once to write: one list, no second truth. */
static mote_status walk(struct mote_synth *synth, tensor_fn *fn)
{
    const struct mote_shape *s = synth->shape;
    enum mote_format plain = synth->sink->plain;
    int64_t q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim, d = s->d_model;
#define TENSOR(...) TRY(fn(synth, &(struct mote_synth_tensor){__VA_ARGS__}))
    TENSOR("token_embd.weight", synth->embed, {d, s->n_vocab, 1}, 2, MOTE_SYNTH_ROWS);
    for (int64_t i = 0; i < synth->n_layer; i++) {
        char name[64];
#define LAYER(tail, ...)                                             \
    do {                                                             \
        snprintf(name, sizeof name, "blk.%lld." tail, (long long)i); \
        TENSOR(name, __VA_ARGS__);                                   \
    } while (0)
        LAYER("attn_norm.weight", plain, {d, 1, 1}, 1, MOTE_SYNTH_ONES);
        LAYER("attn_q.weight", synth->attn, {d, q, 1}, 2, MOTE_SYNTH_ROWS);
        LAYER("attn_k.weight", synth->attn, {d, kv, 1}, 2, MOTE_SYNTH_ROWS);
        LAYER("attn_v.weight", synth->attn, {d, kv, 1}, 2, MOTE_SYNTH_ROWS);
        if (s->qkv_bias) {
            LAYER("attn_q.bias", plain, {q, 1, 1}, 1, MOTE_SYNTH_SMALL);
            LAYER("attn_k.bias", plain, {kv, 1, 1}, 1, MOTE_SYNTH_SMALL);
            LAYER("attn_v.bias", plain, {kv, 1, 1}, 1, MOTE_SYNTH_SMALL);
        }
        if (s->qk_norm) {
            LAYER("attn_q_norm.weight", plain, {s->head_dim, 1, 1}, 1, MOTE_SYNTH_ONES);
            LAYER("attn_k_norm.weight", plain, {s->head_dim, 1, 1}, 1, MOTE_SYNTH_ONES);
        }
        LAYER("attn_output.weight", synth->attn, {q, d, 1}, 2, MOTE_SYNTH_ROWS);
        LAYER("ffn_norm.weight", plain, {d, 1, 1}, 1, MOTE_SYNTH_ONES);
        LAYER("ffn_gate_inp.weight", plain, {d, s->n_expert, 1}, 2, MOTE_SYNTH_ROWS);
        LAYER("ffn_gate_exps.weight", synth->expert, {d, s->n_ff_expert, s->n_expert}, 3, MOTE_SYNTH_ROWS);
        LAYER("ffn_up_exps.weight", synth->expert, {d, s->n_ff_expert, s->n_expert}, 3, MOTE_SYNTH_ROWS);
        LAYER("ffn_down_exps.weight", synth->expert, {s->n_ff_expert, d, s->n_expert}, 3, MOTE_SYNTH_ROWS);
        if (s->n_ff_shared) {
            LAYER("ffn_gate_inp_shexp.weight", plain, {d, 1, 1}, 1, MOTE_SYNTH_SMALL);
            LAYER("ffn_gate_shexp.weight", synth->rest, {d, s->n_ff_shared, 1}, 2, MOTE_SYNTH_ROWS);
            LAYER("ffn_up_shexp.weight", synth->rest, {d, s->n_ff_shared, 1}, 2, MOTE_SYNTH_ROWS);
            LAYER("ffn_down_shexp.weight", synth->rest, {s->n_ff_shared, d, 1}, 2, MOTE_SYNTH_ROWS);
        }
#undef LAYER
    }
    TENSOR("output_norm.weight", plain, {d, 1, 1}, 1, MOTE_SYNTH_ONES);
    if (!s->tied) TENSOR("output.weight", synth->embed, {d, s->n_vocab, 1}, 2, MOTE_SYNTH_ROWS);
#undef TENSOR
    return MOTE_OK;
}

/* Hyperparameters; what is zero has no key. */
static mote_status put_keys(struct mote_synth *synth)
{
    const struct mote_shape *s = synth->shape;
    const struct {
        const char *key; /* behind "ARCH." */
        enum mote_meta_type type;
        double value;
    } keys[] = {
        {"block_count", MOTE_META_U32, (double)synth->n_layer},
        {"context_length", MOTE_META_U32, (double)s->n_ctx},
        {"embedding_length", MOTE_META_U32, (double)s->d_model},
        {"feed_forward_length", MOTE_META_U32,
         (double)(s->n_ff_shared ? s->n_ff_shared : s->n_ff_expert * s->n_used)},
        {"attention.head_count", MOTE_META_U32, (double)s->n_head},
        {"attention.head_count_kv", MOTE_META_U32, (double)s->n_head_kv},
        {"attention.key_length", MOTE_META_U32, (double)s->head_dim},
        {"attention.value_length", MOTE_META_U32, (double)s->head_dim},
        {"expert_count", MOTE_META_U32, (double)s->n_expert},
        {"expert_used_count", MOTE_META_U32, (double)s->n_used},
        {"expert_feed_forward_length", MOTE_META_U32, (double)s->n_ff_expert},
        {"expert_shared_feed_forward_length", MOTE_META_U32, (double)s->n_ff_shared},
        {"vocab_size", MOTE_META_U32, (double)s->n_vocab},
        {"attention.layer_norm_rms_epsilon", MOTE_META_F32, s->eps},
        {"rope.freq_base", MOTE_META_F32, s->rope_base},
        {"expert_weights_norm", MOTE_META_BOOL, s->renormalise},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value != 0 || keys[i].type != MOTE_META_U32)
            TRY(synth->sink->put(synth, keys[i].key, keys[i].type, keys[i].value));
    return MOTE_OK;
}

/* ---- the tokenizer ---- */

/* One that knows single bytes and the ChatML markers: valid, and needs no file. */
static mote_status make_tokenizer(struct mote_tokenizer **out)
{
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
    return mote_tokenizer_from_vocab(&vocab, NULL, out);
}

static mote_status put_tokenizer(struct mote_synth *synth)
{
    struct mote_tokenizer *tokenizer = NULL;
    struct mote_catalogue *other = NULL; /* the model that it is taken from */
    struct mote_text chat_template = {0};
    char *owned = NULL;
    const char *path = synth->options->tokenizer;
    size_t n_vocab = (size_t)synth->shape->n_vocab;
    mote_status status;
    if (!path) {
        TRY(make_tokenizer(&tokenizer));
        status = synth->sink->put_tokenizer(synth, tokenizer, chat_template, NULL);
    } else {
        TRY(mote_catalogue_open(path, NULL, &other));
        status = mote_vocab_open(other, 0, NULL, &tokenizer);
        if (status == MOTE_OK && mote_tokenizer_size(tokenizer) > n_vocab)
            status = mote_fail(MOTE_ARGUMENT, "%s: %zu tokens do not fit the shape's %zu", path,
                               mote_tokenizer_size(tokenizer), n_vocab);
        if (status == MOTE_OK) status = mote_vocab_chat_template(other, &chat_template, &owned);
        if (status == MOTE_OK) status = synth->sink->put_tokenizer(synth, tokenizer, chat_template, other);
        mote_catalogue_close(other);
    }
    mote_mem_free(owned);
    mote_tokenizer_destroy(tokenizer);
    return status;
}

/* ---- the file ---- */

static mote_status declare(struct mote_synth *synth, const struct mote_synth_tensor *tensor)
{
    uint64_t n_byte;
    TRY(synth->sink->declare(synth, tensor, &n_byte));
    synth->total += n_byte;
    return MOTE_OK;
}

static mote_status find_pool(struct mote_synth *synth, enum mote_format format, int64_t n_col,
                             struct mote_row_pool **out)
{
    for (int i = 0; i < synth->n_pool; i++)
        if (synth->pool[i].format == format && synth->pool[i].n_col == n_col) {
            *out = &synth->pool[i];
            return MOTE_OK;
        }
    FAIL_IF(synth->n_pool == MOTE_SYNTH_POOLS, MOTE_INTERNAL, "synth: more than %d kinds of rows",
            MOTE_SYNTH_POOLS);
    struct mote_row_pool *pool = &synth->pool[synth->n_pool];
    TRY(mote_row_pool_create(format, synth->sink->plain, n_col, POOL_WEIGHTS, mote_rng_u64(&synth->rng),
                             synth->threads, pool));
    synth->n_pool++;
    *out = pool;
    return MOTE_OK;
}

static mote_status write_bytes(struct mote_synth *synth, const struct mote_synth_tensor *tensor,
                               const void *bytes, size_t n_byte)
{
    TRY(synth->sink->write(synth, bytes, n_byte));
    synth->done += n_byte;
    FAIL_IF(synth->options->progress && synth->options->progress(synth->options->progress_context, "synth",
                                                                 synth->done, synth->total, "bytes"),
            MOTE_CANCELLED, "synth: cancelled at tensor %s", tensor->name);
    return MOTE_OK;
}

static mote_status write_vector(struct mote_synth *synth, const struct mote_synth_tensor *tensor)
{
    float *values = (float *)(void *)synth->buffer;
    uint8_t *encoded = synth->buffer + BUFFER_HALF;
    FAIL_IF(tensor->dim[0] > BUFFER_HALF / 4, MOTE_INTERNAL, "synth: vector of %lld",
            (long long)tensor->dim[0]);
    for (int64_t c = 0; c < tensor->dim[0]; c++)
        values[c] =
            tensor->values == MOTE_SYNTH_ONES ? 1 : (float)(0.02 * (mote_rng_unit(&synth->rng) - 0.5));
    TRY(mote_encode(tensor->format, values, 1, tensor->dim[0], NULL, encoded));
    return write_bytes(synth, tensor, encoded, mote_format_row_bytes(tensor->format, tensor->dim[0]));
}

/* A plane at a time, as an MLX file has them: the same draws again for each. */
static mote_status write_rows(struct mote_synth *synth, const struct mote_synth_tensor *tensor)
{
    if (tensor->values != MOTE_SYNTH_ROWS) return write_vector(synth, tensor);
    struct mote_row_pool *pool = NULL;
    int64_t n_row = tensor->dim[1] * tensor->dim[2];
    TRY(find_pool(synth, mote_synth_format(tensor), tensor->dim[0], &pool));
    const struct mote_rng start = synth->rng;
    for (int plane = 0; plane < MOTE_ROW_PLANES; plane++) {
        size_t row_bytes = mote_row_plane_bytes(pool, (enum mote_row_plane)plane);
        if (!row_bytes) continue;
        int64_t fit = (int64_t)(BUFFER / row_bytes);
        FAIL_IF(fit == 0, MOTE_INTERNAL, "synth: row of %zu bytes", row_bytes);
        synth->rng = start;
        for (int64_t first = 0; first < n_row; first += fit) {
            int64_t n = n_row - first < fit ? n_row - first : fit;
            mote_row_pool_draw(pool, (enum mote_row_plane)plane, &synth->rng, n, synth->buffer);
            TRY(write_bytes(synth, tensor, synth->buffer, (size_t)n * row_bytes));
        }
    }
    return MOTE_OK;
}

/* Blocks of 256 do not divide every width (1408 is 5.5 of them): those matrices become q8_0, as other tools do. */
enum mote_format mote_synth_format(const struct mote_synth_tensor *tensor)
{
    return tensor->dim[0] % mote_format_traits(tensor->format)->block_elems ? MOTE_FORMAT_Q8_0
                                                                            : tensor->format;
}

/* ---- options ---- */

enum { LIST = 512 };

static void list_types(const struct mote_synth_sink *sink, char out[LIST])
{
    size_t at = (size_t)snprintf(out, LIST, "%s takes", sink->name);
    for (int i = 0; i < MOTE_FORMAT_COUNT && at < LIST; i++)
        if (sink->takes((enum mote_format)i) && mote_can_encode((enum mote_format)i))
            at += (size_t)snprintf(out + at, LIST - at, " %s", mote_format_traits((enum mote_format)i)->name);
}

static mote_status find_type(const struct mote_synth *synth, const char *option, const char *text,
                             enum mote_format fallback, enum mote_format *out)
{
    const char *type = synth->options->type;
    char gguf[LIST], mlx[LIST];
    int format = text ? mote_format_from_name(text) : (int)fallback;
    *out = (enum mote_format)format;
    if (format >= 0 && synth->sink->takes(*out) && mote_can_encode(*out)) return MOTE_OK;
    list_types(&mote_synth_gguf, gguf);
    list_types(&mote_synth_mlx, mlx);
    FAIL_IF(format < 0, MOTE_ARGUMENT, "synth: --%s '%s' does not exist; %s; %s", option, text, gguf, mlx);
    FAIL_IF(text == type, MOTE_ARGUMENT, "synth: --%s '%s' cannot be written; %s; %s", option, text, gguf,
            mlx);
    return mote_fail(MOTE_ARGUMENT, "synth: --%s '%s' does not go with --type %s: %s", option, text, type,
                     synth->sink == &mote_synth_mlx ? mlx : gguf);
}

static mote_status read_options(struct mote_synth *synth)
{
    const struct mote_synth_options *options = synth->options;
    synth->shape = mote_shape_find(options->shape);
    if (!synth->shape || !synth->shape->n_layer) {
        char list[512] = "";
        for (size_t i = 0; mote_synth_shape(i); i++) {
            strcat(list, " ");
            strcat(list, mote_synth_shape(i));
        }
        return mote_fail(MOTE_ARGUMENT, "synth: shape '%s' is %s; there are:%s", options->shape,
                         synth->shape ? "an expert block, no model" : "not known", list);
    }
    FAIL_IF(options->n_layer < 0 || options->n_layer > synth->shape->n_layer, MOTE_ARGUMENT,
            "synth: %lld layers, %s has %lld", (long long)options->n_layer, options->shape,
            (long long)synth->shape->n_layer);
    synth->n_layer = options->n_layer ? options->n_layer : synth->shape->n_layer;
    int type = mote_format_from_name(options->type);
    int affine = type >= 0 && mote_format_traits((enum mote_format)type)->family == MOTE_FAMILY_PLANAR;
    synth->sink = affine ? &mote_synth_mlx : &mote_synth_gguf;
    TRY(find_type(synth, "type", options->type, MOTE_FORMAT_COUNT, &synth->expert));
    synth->rest = synth->expert;
    TRY(find_type(synth, "attn-type", options->attn_type, synth->expert, &synth->attn));
    return find_type(synth, "embed-type", options->embed_type, synth->expert, &synth->embed);
}

mote_status mote_synth(const char *out, const struct mote_synth_options *options)
{
    FAIL_IF(!out || !options || !options->shape || !options->type, MOTE_ARGUMENT,
            "synth: out, shape and type are needed");
    struct mote_synth synth = {.options = options};
    TRY(read_options(&synth));
    mote_rng_seed(&synth.rng, options->seed);
    mote_status status;
    TRY_GOTO(mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, BUFFER, &synth.buffer), status, out);
    TRY_GOTO(mote_pool_create(options->n_thread, &synth.threads), status, out);
    TRY_GOTO(synth.sink->create(&synth, out), status, out);
    TRY_GOTO(put_keys(&synth), status, out);
    TRY_GOTO(put_tokenizer(&synth), status, out);
    TRY_GOTO(walk(&synth, declare), status, out);
    TRY_GOTO(synth.sink->begin(&synth), status, out);
    TRY_GOTO(walk(&synth, write_rows), status, out);
    status = synth.sink->finish(&synth);
    synth.writer = NULL;
out:
    if (synth.writer) synth.sink->abandon(&synth);
    for (int i = 0; i < synth.n_pool; i++) mote_row_pool_free(&synth.pool[i]);
    mote_pool_destroy(synth.threads);
    mote_mem_free(synth.buffer);
    return status;
}
