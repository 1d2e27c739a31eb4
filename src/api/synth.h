/* synth.h: what the files of mote synth share: one list of tensors and keys, under GGUF's names, and the two forms that
 * it is written in. */
#ifndef MOTE_API_SYNTH_H
#define MOTE_API_SYNTH_H

#include "mote.h"

#include "api/row_pool.h"
#include "api/shape.h"
#include "engine/vocab.h"

enum { MOTE_SYNTH_POOLS = 32 };

enum mote_synth_values { /* of a tensor */
                         MOTE_SYNTH_ROWS,
                         MOTE_SYNTH_ONES, /* norms */
                         MOTE_SYNTH_SMALL /* biases: small random values */
};

struct mote_synth_tensor {
    const char *name; /* GGUF's */
    enum mote_format format;
    int64_t dim[3];
    int n_dim;
    enum mote_synth_values values;
};

struct mote_synth {
    const struct mote_synth_options *options;
    const struct mote_shape *shape;
    const struct mote_synth_sink *sink;
    void *writer; /* the sink's */
    int64_t n_layer;
    enum mote_format expert, attn, embed, rest;
    struct mote_pool *threads;
    struct mote_row_pool pool[MOTE_SYNTH_POOLS];
    int n_pool;
    uint64_t done, total; /* bytes of tensors */
    struct mote_rng rng;
    uint8_t *buffer;
};

/* The format that a tensor gets in the end. */
enum mote_format mote_synth_format(const struct mote_synth_tensor *tensor);

/* A form of model, called in this order: create, put.., put_tokenizer, declare.., begin, write.., finish (or abandon). */
struct mote_synth_sink {
    const char *name;       /* for messages: "a GGUF" */
    enum mote_format plain; /* norms, biases, routers, gates of shared experts; scales of affine formats */
    int (*takes)(enum mote_format format);
    mote_status (*create)(struct mote_synth *synth, const char *out);
    mote_status (*put)(struct mote_synth *synth, const char *key, enum mote_meta_type type, double value);
    /* from: the model that the tokenizer was taken from, or NULL. */
    mote_status (*put_tokenizer)(struct mote_synth *synth, const struct mote_tokenizer *tokenizer,
                                 struct mote_text chat_template, const struct mote_catalogue *from);
    mote_status (*declare)(struct mote_synth *synth, const struct mote_synth_tensor *tensor,
                           uint64_t *n_byte);
    mote_status (*begin)(struct mote_synth *synth);
    mote_status (*write)(struct mote_synth *synth, const void *bytes, size_t n_byte);
    mote_status (*finish)(struct mote_synth *synth); /* frees the writer, also on failure */
    void (*abandon)(struct mote_synth *synth);
};
extern const struct mote_synth_sink mote_synth_gguf, mote_synth_mlx;

#endif
