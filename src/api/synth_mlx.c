/* synth_mlx.c: mote synth's model as an MLX folder: affine weights with f16 scales and biases; norms, routers, gates of
 * shared experts and biases are f16. */
#include <string.h>

#include "api/synth.h"
#include "file/mlx_write.h"

static int takes(enum mote_format format)
{
    return mote_format_is_affine(format) || mote_format_traits(format)->family == MOTE_FAMILY_PLAIN;
}

static mote_status create(struct mote_synth *synth, const char *out)
{
    struct mote_mlx_writer *writer;
    TRY(mote_mlx_create(out, synth->shape->arch, synth->expert, MOTE_ROW_GROUP, &writer));
    synth->writer = writer;
    /* Every layer has experts. */
    TRY(mote_mlx_put_json(writer, "decoder_sparse_step", "1"));
    return mote_mlx_put_json(writer, "mlp_only_layers", "[]");
}

static mote_status put(struct mote_synth *synth, const char *key, enum mote_meta_type type, double value)
{
    (void)type; /* the entry of config.json has its own */
    return mote_mlx_put(synth->writer, key, value);
}

static mote_status put_texts(struct mote_synth *synth, const struct mote_text text[3])
{
    static const char *const name[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};
    for (int i = 0; i < 3; i++)
        if (text[i].data) TRY(mote_mlx_put_file(synth->writer, name[i], text[i]));
    return MOTE_OK;
}

/* The files of a folder as they are; of a GGUF, or of our own, written anew. */
static mote_status put_tokenizer(struct mote_synth *synth, const struct mote_tokenizer *tokenizer,
                                 struct mote_text chat_template, const struct mote_catalogue *from)
{
    if (from && from->tokenizer_json.data)
        return put_texts(synth, (struct mote_text[3]){from->tokenizer_json, from->tokenizer_config_json,
                                                      from->generation_config_json});
    struct mote_tokenizer_json json;
    TRY(mote_tokenizer_to_json(tokenizer, (struct mote_piece){chat_template.data, chat_template.length},
                               &json));
    mote_status status = put_texts(synth, (struct mote_text[3]){{json.tokenizer, strlen(json.tokenizer)},
                                                                {json.config, strlen(json.config)},
                                                                {json.generation, strlen(json.generation)}});
    mote_tokenizer_json_free(&json);
    return status;
}

static mote_status declare(struct mote_synth *synth, const struct mote_synth_tensor *from, uint64_t *n_byte)
{
    struct mote_tensor tensor = {.name = from->name,
                                 .format = from->format,
                                 .n_dim = from->n_dim,
                                 .scale_format = synth->sink->plain,
                                 .group = mote_format_is_affine(from->format) ? MOTE_ROW_GROUP : 0,
                                 .factor = 1};
    memcpy(tensor.dim, from->dim, sizeof from->dim);
    return mote_mlx_declare(synth->writer, &tensor, n_byte);
}

static mote_status begin(struct mote_synth *synth)
{
    return mote_mlx_begin(synth->writer);
}

static mote_status write_bytes(struct mote_synth *synth, const void *bytes, size_t n_byte)
{
    return mote_mlx_write(synth->writer, bytes, n_byte);
}

static mote_status finish(struct mote_synth *synth)
{
    return mote_mlx_finish(synth->writer);
}

static void abandon(struct mote_synth *synth)
{
    mote_mlx_abandon(synth->writer);
}

const struct mote_synth_sink mote_synth_mlx = {"an MLX folder", MOTE_FORMAT_F16, takes, create,      put,
                                               put_tokenizer,   declare,         begin, write_bytes, finish,
                                               abandon};
