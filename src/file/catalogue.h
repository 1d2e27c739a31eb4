/* catalogue.h: what a model on disk holds, in one vocabulary, whatever its file format.
 *
 * Owns: the mapped files, the tensors (name, shape, format, where the bytes are) and the metadata.
 * Does not own: what a tensor means (model/), the tokenizer (text/).
 * One idea: GGUF's names are the neutral vocabulary. Readers of Hugging Face and MLX folders translate names
 * and config keys once, here at the edge; everything is bounds-checked once, here, and trusted afterwards.
 */
#ifndef MOTE_FILE_CATALOGUE_H
#define MOTE_FILE_CATALOGUE_H

#include "base/mapfile.h"
#include "base/mem.h"
#include "quant/format.h"

/* ---- metadata: GGUF's value types ---- */
enum mote_meta_type { /* numbers are GGUF's */
                      MOTE_META_U8,
                      MOTE_META_I8,
                      MOTE_META_U16,
                      MOTE_META_I16,
                      MOTE_META_U32,
                      MOTE_META_I32,
                      MOTE_META_F32,
                      MOTE_META_BOOL,
                      MOTE_META_STRING,
                      MOTE_META_ARRAY,
                      MOTE_META_U64,
                      MOTE_META_I64,
                      MOTE_META_F64,
                      MOTE_META_TYPE_COUNT
};

struct mote_text { /* not terminated: may hold any byte */
    const char *data;
    size_t length;
};

struct mote_meta {
    struct mote_text key;
    enum mote_meta_type type;
    union {
        uint64_t u; /* U8..U64, BOOL */
        int64_t i;  /* I8..I64 */
        double f;   /* F32, F64 */
        struct mote_text text;
        struct {
            enum mote_meta_type type; /* of the items; never ARRAY */
            size_t count;
            const uint8_t *data;          /* numbers: packed little-endian, unaligned; NULL for strings */
            const struct mote_text *text; /* strings: [count] */
        } array;
    } value;
};

/* ---- tensors ---- */
enum { MOTE_MAX_DIMS = 4 };

struct mote_tensor {
    const char *name; /* GGUF name, e.g. "blk.3.ffn_down_exps.weight" */
    enum mote_format format;
    int n_dim; /* 1..MOTE_MAX_DIMS */
    int64_t dim
        [MOTE_MAX_DIMS]; /* dim[0] is contiguous (columns), dim[1] rows, dim[2] experts; unused ones are 1 */
    size_t n_byte;       /* of codes, all experts; planes not counted */
    const uint8_t *data; /* [dim[2]][dim[1]][row bytes] in a mapped file; NULL when `part` is set */
    /* PLANAR formats: see mote_matrix */
    enum mote_format scale_format;
    const uint8_t *scale, *bias;
    int32_t group;
    float factor; /* 1 unless the file says otherwise */
    /* Experts stored as tensors of their own: [dim[2]] views of one expert each; NULL otherwise. */
    const struct mote_tensor *part;
};

struct mote_catalogue {
    const char *path;   /* as given */
    const char *source; /* "gguf", "huggingface", "mlx" */
    size_t n_tensor;
    const struct mote_tensor *tensor; /* [n_tensor], in file order */
    size_t n_meta;
    const struct mote_meta *meta; /* [n_meta] */
    size_t n_file;
    const struct mote_mapfile *file; /* [n_file] */
    const char *const *file_path;    /* [n_file] */
    size_t n_byte;                   /* tensor bytes, planes included */
    /* Hugging Face and MLX folders: contents of these files, or {NULL, 0}; GGUF carries its tokenizer in meta. */
    struct mote_text tokenizer_json, tokenizer_config_json, generation_config_json;
    struct mote_catalogue_state *state; /* memory, index */
};

/* Open whatever `path` is: a GGUF file (v2, v3, any shard of a split one), or a folder with config.json and
 * *.safetensors (Hugging Face or MLX). Only headers are read; tensor bytes stay in the mapped files.
 * Fails with MOTE_NOT_FOUND, MOTE_IO, MOTE_FORMAT or MOTE_UNSUPPORTED; *out is NULL then. */
mote_status mote_catalogue_open(const char *path, struct mote_budget *budget, struct mote_catalogue **out);
void mote_catalogue_close(struct mote_catalogue *catalogue);

/* NULL when there is none. */
const struct mote_tensor *mote_catalogue_tensor(const struct mote_catalogue *catalogue, const char *name);
const struct mote_meta *mote_catalogue_meta(const struct mote_catalogue *catalogue, const char *key);

/* Typed reads. A missing key leaves *out alone and returns MOTE_NOT_FOUND; a key of another kind is MOTE_FORMAT
 * (any integer type is accepted for u64 if it fits; any number for f64). Key and expected type in the message. */
mote_status mote_meta_u64(const struct mote_catalogue *catalogue, const char *key, uint64_t *out);
mote_status mote_meta_f64(const struct mote_catalogue *catalogue, const char *key, double *out);
mote_status mote_meta_bool(const struct mote_catalogue *catalogue, const char *key, int *out);
mote_status mote_meta_text(const struct mote_catalogue *catalogue, const char *key, struct mote_text *out);
/* Item of an integer array, or the scalar itself for any index (per-layer values may be either). */
mote_status mote_meta_u64_at(const struct mote_catalogue *catalogue, const char *key, size_t index,
                             uint64_t *out);

/* The matrix of expert `expert` (0 for a dense tensor): a view, valid while the catalogue is open. */
struct mote_matrix mote_tensor_matrix(const struct mote_tensor *tensor, int64_t expert);

#endif
