/* synth_gguf.c: mote synth's model as a GGUF. */
#include <stdio.h>
#include <string.h>

#include "api/synth.h"
#include "file/gguf_write.h"

static int takes(enum mote_format format)
{
    return mote_format_traits(format)->gguf_id >= 0;
}

static mote_status create(struct mote_synth *synth, const char *out)
{
    const struct mote_shape *s = synth->shape;
    struct mote_gguf_writer *writer;
    char name[128];
    TRY(mote_gguf_create(out, &writer));
    synth->writer = writer;
    snprintf(name, sizeof name, "%s, random weights", s->name);
    TRY(mote_gguf_put_text(writer, "general.architecture", s->arch, strlen(s->arch)));
    TRY(mote_gguf_put_text(writer, "general.name", name, strlen(name)));
    return mote_gguf_put_u32(writer, "general.quantization_version", 2);
}

static mote_status put(struct mote_synth *synth, const char *tail, enum mote_meta_type type, double value)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", synth->shape->arch, tail);
    struct mote_meta meta = {.key = {key, strlen(key)}, .type = type};
    if (type == MOTE_META_F32) meta.value.f = value;
    else meta.value.u = (uint64_t)value;
    return mote_gguf_put_meta(synth->writer, &meta);
}

static mote_status put_tokenizer(struct mote_synth *synth, const struct mote_tokenizer *tokenizer,
                                 struct mote_text chat_template, const struct mote_catalogue *from)
{
    (void)from;
    return mote_vocab_write(tokenizer, (size_t)synth->shape->n_vocab, chat_template, synth->writer);
}

static mote_status declare(struct mote_synth *synth, const struct mote_synth_tensor *tensor, uint64_t *n_byte)
{
    enum mote_format format = mote_synth_format(tensor);
    *n_byte = (uint64_t)(tensor->dim[1] * tensor->dim[2]) * mote_format_row_bytes(format, tensor->dim[0]);
    return mote_gguf_declare(synth->writer, tensor->name, format, tensor->n_dim, tensor->dim);
}

static mote_status begin(struct mote_synth *synth)
{
    return mote_gguf_begin(synth->writer);
}

static mote_status write_bytes(struct mote_synth *synth, const void *bytes, size_t n_byte)
{
    return mote_gguf_write(synth->writer, bytes, n_byte);
}

static mote_status finish(struct mote_synth *synth)
{
    return mote_gguf_finish(synth->writer);
}

static void abandon(struct mote_synth *synth)
{
    mote_gguf_abandon(synth->writer);
}

const struct mote_synth_sink mote_synth_gguf = {"a GGUF",    MOTE_FORMAT_F32, takes,   create,
                                                put,         put_tokenizer,   declare, begin,
                                                write_bytes, finish,          abandon};
