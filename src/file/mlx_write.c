/* mlx_write.c: see mlx_write.h.
 *
 * One idea: the headers are collected as the JSON they will be, tensors through hf_names.h's tables read backwards, so
 * that what is written is what hf_read.c reads. A safetensors file knows no padding: planes follow each other.
 */
#define _GNU_SOURCE
#include "file/mlx_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/catalogue_build.h"
#include "file/folder.h"
#include "file/hf_names.h"
#include "file/json.h"
#include "file/safetensors.h"

enum { MAX_FILES = 8 };

struct mote_mlx_writer {
    struct mote_arena arena;     /* paths */
    char *folder, *part;         /* without a slash at the end; part: NULL when there is none to remove */
    const char *path[MAX_FILES]; /* of files in part, to remove */
    int n_file;
    FILE *file; /* model.safetensors */
    const struct mote_hf_family *family;
    enum mote_format format;
    int group;
    json_t *config, *quantization, *header;
    uint64_t offset, written; /* bytes of tensors declared, and written */
    int begun, untied;
};

static void destroy(struct mote_mlx_writer *writer)
{
    if (writer->file) fclose(writer->file);
    if (writer->part) {
        for (int i = 0; i < writer->n_file; i++) unlink(writer->path[i]);
        rmdir(writer->part);
    }
    json_decref(writer->config);
    json_decref(writer->quantization);
    json_decref(writer->header);
    mote_arena_free(&writer->arena);
    mote_mem_free(writer);
}

void mote_mlx_abandon(struct mote_mlx_writer *writer)
{
    if (writer) destroy(writer);
}

/* ---- the folder ---- */

static mote_status open_file(struct mote_mlx_writer *writer, const char *name, FILE **out)
{
    char *path;
    TRY(mote_path_join(&writer->arena, writer->part, name, &path));
    FAIL_IF(writer->n_file == MAX_FILES, MOTE_INTERNAL, "%s: more than %d files", writer->folder, MAX_FILES);
    *out = fopen(path, "wb");
    FAIL_IF(!*out, MOTE_IO, "%s: cannot create: %s", path, strerror(errno));
    writer->path[writer->n_file++] = path;
    return MOTE_OK;
}

/* Old shards or an old index beside the new file would be read with it. */
static mote_status check_free(struct mote_mlx_writer *writer)
{
    char **name;
    size_t n;
    struct stat info;
    if (stat(writer->folder, &info) != 0) return MOTE_OK;
    FAIL_IF(!S_ISDIR(info.st_mode), MOTE_ARGUMENT,
            "%s: is a file; an MLX model is a folder, expected a new or an empty one", writer->folder);
    TRY(mote_folder_list(&writer->arena, writer->folder, "", &name, &n));
    FAIL_IF(n, MOTE_ARGUMENT, "%s: holds %zu files (%s, ...), expected a new or an empty folder",
            writer->folder, n, name[0]);
    return MOTE_OK;
}

static mote_status open_part(struct mote_mlx_writer *writer, const char *folder)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    TRY(mote_arena_strdup(&writer->arena, folder, length, &writer->folder));
    TRY(check_free(writer));
    char *part;
    TRY(mote_arena_alloc(&writer->arena, length + 6, &part));
    memcpy(part, folder, length);
    memcpy(part + length, ".part", 6);
    FAIL_IF(mkdir(part, 0777) != 0 && !(errno == EEXIST && mote_is_folder(part)), MOTE_IO,
            "%s: cannot create: %s", part, strerror(errno));
    writer->part = part; /* from here on ours to remove */
    return open_file(writer, "model.safetensors", &writer->file);
}

/* ---- config.json ---- */

static mote_status set(json_t *object, const char *name, json_t *value)
{
    FAIL_IF(json_object_set_new(object, name, value) != 0, MOTE_MEMORY, "no memory for JSON");
    return MOTE_OK;
}

mote_status mote_mlx_put(struct mote_mlx_writer *writer, const char *key, double value)
{
    const struct mote_hf_key *row = mote_hf_key_of(writer->family, key);
    FAIL_IF(!row, MOTE_UNSUPPORTED, "%s: config.json of %s has no entry for %s.%s", writer->folder,
            writer->family->model_type, writer->family->arch, key);
    json_t *json = row->type == MOTE_HF_U32   ? json_integer((json_int_t)value)
                   : row->type == MOTE_HF_F32 ? json_real(value)
                                              : json_boolean(value != 0);
    const json_t *old = json_object_get(writer->config, row->from);
    if (old && !json_equal(old, json)) {
        json_decref(json);
        return mote_fail(MOTE_ARGUMENT, "%s: %s.%s is %g, config.json's one entry '%s' has another value",
                         writer->folder, writer->family->arch, key, value, row->from);
    }
    return set(writer->config, row->from, json);
}

mote_status mote_mlx_put_json(struct mote_mlx_writer *writer, const char *entry, const char *json)
{
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    FAIL_IF(!value, MOTE_INTERNAL, "%s: '%s' for %s is not JSON", writer->folder, json, entry);
    return set(writer->config, entry, value);
}

static mote_status put_quantization(struct mote_mlx_writer *writer, json_t *object, enum mote_format format)
{
    TRY(set(object, "group_size", json_integer(writer->group)));
    return set(object, "bits", json_integer(mote_format_code_bits(format)));
}

/* ---- beginning ---- */

static mote_status open_writer(struct mote_mlx_writer *writer, const char *folder, const char *arch)
{
    char known[512];
    mote_hf_family_list(known, sizeof known);
    writer->family = mote_hf_family_of(arch);
    FAIL_IF(!writer->family, MOTE_UNSUPPORTED,
            "%s: architecture %s has no MLX form here; there are those of model_type %s", folder, arch,
            known);
    writer->config = json_object();
    writer->quantization = json_object();
    writer->header = json_object();
    FAIL_IF(!writer->config || !writer->quantization || !writer->header, MOTE_MEMORY, "no memory for JSON");
    TRY(set(writer->config, "model_type", json_string(writer->family->model_type)));
    for (const struct mote_hf_fixed *row = writer->family->fixed; row && row->from; row++)
        TRY(mote_mlx_put_json(writer, row->from, row->value));
    TRY(put_quantization(writer, writer->quantization, writer->format));
    TRY(set(writer->header, "__metadata__", json_pack("{ss}", "format", "mlx")));
    return open_part(writer, folder);
}

mote_status mote_mlx_create(const char *folder, const char *arch, enum mote_format format, int group,
                            struct mote_mlx_writer **out)
{
    *out = NULL;
    struct mote_mlx_writer *writer;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *writer, &writer));
    mote_arena_init(&writer->arena, NULL, MOTE_MEM_TABLES);
    writer->format = format;
    writer->group = group;
    mote_status status = open_writer(writer, folder, arch);
    if (status != MOTE_OK) {
        destroy(writer);
        return status;
    }
    *out = writer;
    return MOTE_OK;
}

/* ---- tensors ---- */

/* One entry of the header: `row` items of dtype per row, rows and experts as in the tensor. */
static mote_status add_plane(struct mote_mlx_writer *writer, const char *module, const char *suffix,
                             const char *dtype, const struct mote_tensor *tensor, int n_dim, int64_t row,
                             uint64_t n_byte)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    FAIL_IF(json_object_get(writer->header, name), MOTE_ARGUMENT, "%s: tensor '%s' is declared twice",
            writer->folder, name);
    json_t *shape = json_array(), *entry = NULL;
    for (int i = n_dim - 1; i >= 0; i--)
        json_array_append_new(shape, json_integer((json_int_t)(i ? tensor->dim[i] : row)));
    entry = json_pack("{sssos[II]}", "dtype", dtype, "shape", shape, "data_offsets",
                      (json_int_t)writer->offset, (json_int_t)(writer->offset + n_byte));
    writer->offset += n_byte;
    return set(writer->header, name, entry);
}

static mote_status add_affine(struct mote_mlx_writer *writer, const char *module,
                              const struct mote_tensor *tensor)
{
    const char *scales = mote_safetensors_dtype(tensor->scale_format);
    FAIL_IF(tensor->group != writer->group || tensor->dim[0] % tensor->group || !scales, MOTE_ARGUMENT,
            "%s: tensor '%s': rows of %lld weights in groups of %d, expected whole groups of %d",
            writer->folder, tensor->name, (long long)tensor->dim[0], (int)tensor->group, writer->group);
    int64_t n_group = tensor->dim[0] / tensor->group;
    uint64_t n_plane = tensor->n_byte / mote_format_row_bytes(tensor->format, tensor->dim[0]) *
                       mote_format_row_bytes(tensor->scale_format, n_group);
    if (tensor->format != writer->format) {
        json_t *own = json_object();
        TRY(set(writer->quantization, module, own));
        TRY(put_quantization(writer, own, tensor->format));
    }
    TRY(add_plane(writer, module, ".weight", "U32", tensor, tensor->n_dim,
                  tensor->dim[0] * mote_format_code_bits(tensor->format) / 32, tensor->n_byte));
    TRY(add_plane(writer, module, ".scales", scales, tensor, tensor->n_dim, n_group, n_plane));
    return add_plane(writer, module, ".biases", scales, tensor, tensor->n_dim, n_group, n_plane);
}

mote_status mote_mlx_declare(struct mote_mlx_writer *writer, const struct mote_tensor *declared,
                             uint64_t *n_byte)
{
    struct mote_tensor tensor = *declared;
    char module[192];
    const char *suffix = strrchr(tensor.name, '.');
    uint64_t first = writer->offset;
    FAIL_IF(writer->begun, MOTE_ARGUMENT, "%s: tensor '%s' after begin", writer->folder, tensor.name);
    mote_status status = mote_tensor_measure(&tensor);
    if (status != MOTE_OK) return mote_context(status, "%s", writer->folder);
    const struct mote_hf_name *rule =
        suffix ? mote_hf_module_make(writer->family, tensor.name, (size_t)(suffix - tensor.name), module,
                                     sizeof module)
               : NULL;
    FAIL_IF(!rule, MOTE_UNSUPPORTED, "%s: tensor '%s' has no name in a model of type %s", writer->folder,
            tensor.name, writer->family->model_type);
    const char *dtype = mote_safetensors_dtype(tensor.format);
    int affine = mote_format_traits(tensor.format)->family == MOTE_FAMILY_PLANAR;
    FAIL_IF(!affine && !dtype, MOTE_ARGUMENT,
            "%s: tensor '%s' is %s, expected affine weights or plain numbers", writer->folder, tensor.name,
            mote_format_traits(tensor.format)->name);
    if (strcmp(rule->to, "output") == 0) writer->untied = 1;
    if (affine) TRY(add_affine(writer, module, &tensor));
    else
        TRY(add_plane(writer, module, suffix, dtype, &tensor, rule->role == MOTE_HF_VECTOR ? 2 : tensor.n_dim,
                      tensor.dim[0], tensor.n_byte));
    *n_byte = writer->offset - first;
    return MOTE_OK;
}

/* ---- writing ---- */

static mote_status emit(const struct mote_mlx_writer *writer, FILE *file, const void *data, size_t size)
{
    FAIL_IF(size && fwrite(data, 1, size, file) != size, MOTE_IO, "%s: cannot write: %s", writer->part,
            strerror(errno));
    return MOTE_OK;
}

mote_status mote_mlx_put_file(struct mote_mlx_writer *writer, const char *name, struct mote_text text)
{
    FILE *file;
    TRY(open_file(writer, name, &file));
    mote_status status = emit(writer, file, text.data, text.length);
    int failed = fclose(file);
    TRY(status);
    FAIL_IF(failed, MOTE_IO, "%s: cannot write %s: %s", writer->part, name, strerror(errno));
    return MOTE_OK;
}

mote_status mote_mlx_begin(struct mote_mlx_writer *writer)
{
    static const char space[] = "       ";
    FAIL_IF(writer->begun, MOTE_ARGUMENT, "%s: begun twice", writer->folder);
    writer->begun = 1;
    char *text = json_dumps(writer->header, JSON_COMPACT);
    FAIL_IF(!text, MOTE_MEMORY, "%s: no memory for the header", writer->folder);
    size_t length = strlen(text), n_pad = -length & 7; /* tensors begin at a multiple of 8 */
    uint64_t n_header = length + n_pad;
    mote_status status = emit(writer, writer->file, &n_header, sizeof n_header);
    if (status == MOTE_OK) status = emit(writer, writer->file, text, length);
    if (status == MOTE_OK) status = emit(writer, writer->file, space, n_pad);
    free(text);
    return status;
}

mote_status mote_mlx_write(struct mote_mlx_writer *writer, const void *bytes, size_t n_byte)
{
    FAIL_IF(!writer->begun || n_byte > writer->offset - writer->written, MOTE_ARGUMENT, "%s: %zu bytes %s",
            writer->folder, n_byte, writer->begun ? "behind the last tensor" : "before begin");
    TRY(emit(writer, writer->file, bytes, n_byte));
    writer->written += n_byte;
    return MOTE_OK;
}

static mote_status put_config(struct mote_mlx_writer *writer)
{
    TRY(set(writer->config, "tie_word_embeddings", json_boolean(!writer->untied)));
    TRY(set(writer->config, "quantization", json_incref(writer->quantization)));
    TRY(set(writer->config, "quantization_config", json_incref(writer->quantization)));
    char *text = json_dumps(writer->config, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    FAIL_IF(!text, MOTE_MEMORY, "%s: no memory for config.json", writer->folder);
    mote_status status = mote_mlx_put_file(writer, "config.json", (struct mote_text){text, strlen(text)});
    free(text);
    return status;
}

static mote_status finish(struct mote_mlx_writer *writer)
{
    FAIL_IF(!writer->begun || writer->written != writer->offset, MOTE_ARGUMENT,
            "%s: %llu of %llu bytes of tensors written", writer->folder, (unsigned long long)writer->written,
            (unsigned long long)writer->offset);
    int failed = fclose(writer->file);
    writer->file = NULL;
    FAIL_IF(failed, MOTE_IO, "%s: cannot write: %s", writer->part, strerror(errno));
    TRY(put_config(writer));
    FAIL_IF(rename(writer->part, writer->folder) != 0, MOTE_IO, "%s: cannot rename to %s: %s", writer->part,
            writer->folder, strerror(errno));
    writer->part = NULL; /* under its own name now: nothing to remove */
    return MOTE_OK;
}

mote_status mote_mlx_finish(struct mote_mlx_writer *writer)
{
    mote_status status = finish(writer);
    destroy(writer);
    return status;
}
