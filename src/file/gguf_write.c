/* gguf_write.c: see gguf_write.h.
 *
 * One idea: keys and tensor headers are collected as the bytes they will be, so that begin() is three writes. Tensor
 * data are padded to the alignment as they pass, and finish() refuses a file that lacks any.
 */
#include "file/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/float_bits.h"
#include "file/catalogue_build.h"

struct bytes {
    uint8_t *data; /* [size] */
    size_t size, room;
};

struct mote_gguf_writer {
    char *path, *part_path;
    FILE *file;
    struct mote_arena arena; /* names */
    struct mote_name_index keys, names;
    struct bytes meta, header;  /* as in the file */
    uint64_t alignment, offset; /* of the next tensor to declare, from the start of tensor data */
    size_t n_tensor, tensor_room;
    size_t *n_byte; /* [n_tensor], of each tensor */
    int begun;
    size_t current, written; /* the tensor being written, and how much of it is */
};

static mote_status push(struct bytes *bytes, const void *data, size_t size)
{
    if (bytes->room - bytes->size < size) {
        size_t room = (bytes->size + size) * 2;
        TRY(mote_mem_resize(NULL, MOTE_MEM_TABLES, room, &bytes->data));
        bytes->room = room;
    }
    if (size) memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    return MOTE_OK;
}

static mote_status push_u32(struct bytes *bytes, uint32_t value)
{
    return push(bytes, &value, sizeof value);
}

static mote_status push_u64(struct bytes *bytes, uint64_t value)
{
    return push(bytes, &value, sizeof value);
}

static mote_status push_text(struct bytes *bytes, const char *text, size_t length)
{
    TRY(push_u64(bytes, length));
    return push(bytes, text, length);
}

static void destroy(struct mote_gguf_writer *writer)
{
    if (writer->file) fclose(writer->file);
    if (writer->part_path) remove(writer->part_path);
    mote_mem_free(writer->path);
    mote_mem_free(writer->part_path);
    mote_mem_free(writer->meta.data);
    mote_mem_free(writer->header.data);
    mote_mem_free(writer->n_byte);
    mote_name_index_free(&writer->keys);
    mote_name_index_free(&writer->names);
    mote_arena_free(&writer->arena);
    mote_mem_free(writer);
}

static mote_status open_part(struct mote_gguf_writer *writer, const char *path)
{
    size_t length = strlen(path);
    TRY(mote_mem_strdup(NULL, path, length, &writer->path));
    char *part;
    TRY(mote_mem_alloc(NULL, MOTE_MEM_TABLES, length + 6, &part));
    memcpy(part, path, length);
    memcpy(part + length, ".part", 6);
    writer->file = fopen(part, "wb");
    if (!writer->file) {
        mote_status status = mote_fail(MOTE_IO, "%s: cannot create: %s", part, strerror(errno));
        mote_mem_free(part);
        return status;
    }
    writer->part_path = part; /* from here on ours to remove */
    return MOTE_OK;
}

mote_status mote_gguf_create(const char *path, struct mote_gguf_writer **out)
{
    *out = NULL;
    struct mote_gguf_writer *writer;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *writer, &writer));
    mote_arena_init(&writer->arena, NULL, MOTE_MEM_TABLES);
    writer->alignment = 32;
    mote_status status = open_part(writer, path);
    if (status != MOTE_OK) {
        destroy(writer);
        return status;
    }
    *out = writer;
    return MOTE_OK;
}

void mote_gguf_abandon(struct mote_gguf_writer *writer)
{
    if (writer) destroy(writer);
}

/* ---- keys ---- */

static mote_status push_array(struct bytes *out, const struct mote_meta *meta)
{
    size_t count = meta->value.array.count, size = mote_meta_type_size(meta->value.array.type);
    TRY(push_u32(out, meta->value.array.type));
    TRY(push_u64(out, count));
    if (size) return push(out, meta->value.array.data, count * size);
    for (size_t i = 0; i < count; i++)
        TRY(push_text(out, meta->value.array.text[i].data, meta->value.array.text[i].length));
    return MOTE_OK;
}

static mote_status push_value(struct bytes *out, const struct mote_meta *meta)
{
    TRY(push_u32(out, meta->type));
    if (meta->type == MOTE_META_STRING) return push_text(out, meta->value.text.data, meta->value.text.length);
    if (meta->type == MOTE_META_ARRAY) return push_array(out, meta);
    if (meta->type == MOTE_META_F32) return push_u32(out, mote_f32_bits((float)meta->value.f));
    /* All other values are the low bytes of the union, on a little-endian host. */
    return push(out, &meta->value, mote_meta_type_size(meta->type));
}

mote_status mote_gguf_put_meta(struct mote_gguf_writer *writer, const struct mote_meta *meta)
{
    const struct mote_shown shown = mote_show(meta->key.data, meta->key.length);
    FAIL_IF(writer->begun, MOTE_ARGUMENT, "%s: key '%s' after begin", writer->path, shown.text);
    FAIL_IF(meta->key.length == 0, MOTE_ARGUMENT, "%s: an empty key", writer->path);
    FAIL_IF((unsigned)meta->type >= MOTE_META_TYPE_COUNT, MOTE_ARGUMENT, "%s: key '%s': no such type",
            writer->path, shown.text);
    FAIL_IF(meta->type == MOTE_META_ARRAY && ((unsigned)meta->value.array.type >= MOTE_META_TYPE_COUNT ||
                                              meta->value.array.type == MOTE_META_ARRAY),
            MOTE_ARGUMENT, "%s: key '%s': an array of arrays, or of no type", writer->path, shown.text);
    if (strcmp(shown.text, "general.alignment") == 0) {
        uint64_t value = 0;
        int fits = mote_meta_as_u64(meta, &value) && value >= 8 && value <= 1 << 20 && !(value & (value - 1));
        FAIL_IF(!fits || writer->n_tensor, MOTE_ARGUMENT,
                "%s: general.alignment must be a power of two, 8 or more, put before tensors are declared",
                writer->path);
        writer->alignment = value;
    }
    char *key;
    size_t number;
    int is_new;
    TRY(mote_arena_strdup(&writer->arena, meta->key.data, meta->key.length, &key));
    TRY(mote_name_index_add(&writer->keys, key, meta->key.length, &number, &is_new));
    FAIL_IF(!is_new, MOTE_ARGUMENT, "%s: key '%s' is put twice", writer->path, shown.text);
    TRY(push_text(&writer->meta, key, meta->key.length));
    return push_value(&writer->meta, meta);
}

static struct mote_meta named(const char *key, enum mote_meta_type type)
{
    return (struct mote_meta){.key = {key, strlen(key)}, .type = type};
}

mote_status mote_gguf_put_u32(struct mote_gguf_writer *writer, const char *key, uint32_t value)
{
    struct mote_meta meta = named(key, MOTE_META_U32);
    meta.value.u = value;
    return mote_gguf_put_meta(writer, &meta);
}

mote_status mote_gguf_put_f32(struct mote_gguf_writer *writer, const char *key, float value)
{
    struct mote_meta meta = named(key, MOTE_META_F32);
    meta.value.f = (double)value;
    return mote_gguf_put_meta(writer, &meta);
}

mote_status mote_gguf_put_bool(struct mote_gguf_writer *writer, const char *key, int value)
{
    struct mote_meta meta = named(key, MOTE_META_BOOL);
    meta.value.u = value != 0;
    return mote_gguf_put_meta(writer, &meta);
}

mote_status mote_gguf_put_text(struct mote_gguf_writer *writer, const char *key, const char *text,
                               size_t length)
{
    struct mote_meta meta = named(key, MOTE_META_STRING);
    meta.value.text = (struct mote_text){text, length};
    return mote_gguf_put_meta(writer, &meta);
}

mote_status mote_gguf_put_texts(struct mote_gguf_writer *writer, const char *key,
                                const struct mote_text *text, size_t count)
{
    struct mote_meta meta = named(key, MOTE_META_ARRAY);
    meta.value.array.type = MOTE_META_STRING;
    meta.value.array.count = count;
    meta.value.array.text = text;
    return mote_gguf_put_meta(writer, &meta);
}

static mote_status put_numbers(struct mote_gguf_writer *writer, const char *key, enum mote_meta_type type,
                               const void *value, size_t count)
{
    struct mote_meta meta = named(key, MOTE_META_ARRAY);
    meta.value.array.type = type;
    meta.value.array.count = count;
    meta.value.array.data = value;
    return mote_gguf_put_meta(writer, &meta);
}

mote_status mote_gguf_put_i32s(struct mote_gguf_writer *writer, const char *key, const int32_t *value,
                               size_t count)
{
    return put_numbers(writer, key, MOTE_META_I32, value, count);
}

mote_status mote_gguf_put_f32s(struct mote_gguf_writer *writer, const char *key, const float *value,
                               size_t count)
{
    return put_numbers(writer, key, MOTE_META_F32, value, count);
}

/* ---- tensors ---- */

mote_status mote_gguf_declare(struct mote_gguf_writer *writer, const char *name, enum mote_format format,
                              int n_dim, const int64_t *dim)
{
    FAIL_IF(writer->begun, MOTE_ARGUMENT, "%s: tensor '%s' after begin", writer->path, name);
    FAIL_IF(!*name, MOTE_ARGUMENT, "%s: a tensor without a name", writer->path);
    FAIL_IF((unsigned)format >= MOTE_FORMAT_COUNT || mote_format_traits(format)->gguf_id < 0, MOTE_ARGUMENT,
            "%s: tensor '%s': GGUF has no type for %s", writer->path, name,
            (unsigned)format < MOTE_FORMAT_COUNT ? mote_format_traits(format)->name : "this format");
    struct mote_tensor tensor = {.name = name, .format = format, .n_dim = n_dim};
    for (int i = 0; n_dim <= MOTE_MAX_DIMS && i < n_dim; i++) tensor.dim[i] = dim[i];
    if (mote_tensor_measure(&tensor) != MOTE_OK) return mote_context(MOTE_ARGUMENT, "%s", writer->path);

    char *copy;
    size_t number;
    int is_new;
    TRY(mote_arena_strdup(&writer->arena, name, strlen(name), &copy));
    TRY(mote_grow(NULL, writer->n_tensor, &writer->tensor_room, sizeof *writer->n_byte, &writer->n_byte));
    TRY(mote_name_index_add(&writer->names, copy, strlen(copy), &number, &is_new));
    FAIL_IF(!is_new, MOTE_ARGUMENT, "%s: tensor '%s' is declared twice", writer->path, name);
    struct bytes *out = &writer->header;
    TRY(push_text(out, name, strlen(name)));
    TRY(push_u32(out, (uint32_t)n_dim));
    for (int i = 0; i < n_dim; i++) TRY(push_u64(out, (uint64_t)dim[i]));
    TRY(push_u32(out, (uint32_t)mote_format_traits(format)->gguf_id));
    TRY(push_u64(out, writer->offset));
    writer->offset += (tensor.n_byte + writer->alignment - 1) & ~(writer->alignment - 1);
    writer->n_byte[writer->n_tensor++] = tensor.n_byte;
    return MOTE_OK;
}

static mote_status emit(struct mote_gguf_writer *writer, const void *data, size_t size)
{
    FAIL_IF(size && fwrite(data, 1, size, writer->file) != size, MOTE_IO, "%s: cannot write: %s",
            writer->part_path, strerror(errno));
    return MOTE_OK;
}

/* Zeros that bring `size` to the alignment. */
static mote_status pad(struct mote_gguf_writer *writer, uint64_t size)
{
    static const uint8_t zero[256];
    uint64_t n = -size & (writer->alignment - 1);
    for (; n > sizeof zero; n -= sizeof zero) TRY(emit(writer, zero, sizeof zero));
    return emit(writer, zero, (size_t)n);
}

mote_status mote_gguf_begin(struct mote_gguf_writer *writer)
{
    FAIL_IF(writer->begun, MOTE_ARGUMENT, "%s: begun twice", writer->path);
    writer->begun = 1;
    const uint32_t version = 3;
    const uint64_t count[2] = {writer->n_tensor, writer->keys.n_name};
    TRY(emit(writer, "GGUF", 4));
    TRY(emit(writer, &version, sizeof version));
    TRY(emit(writer, count, sizeof count));
    TRY(emit(writer, writer->meta.data, writer->meta.size));
    TRY(emit(writer, writer->header.data, writer->header.size));
    return pad(writer, 4 + 4 + 16 + writer->meta.size + writer->header.size);
}

mote_status mote_gguf_write(struct mote_gguf_writer *writer, const void *bytes, size_t n_byte)
{
    FAIL_IF(!writer->begun, MOTE_ARGUMENT, "%s: bytes before begin", writer->path);
    if (n_byte == 0) return MOTE_OK;
    FAIL_IF(writer->current == writer->n_tensor, MOTE_ARGUMENT, "%s: %zu bytes after the last tensor",
            writer->path, n_byte);
    size_t whole = writer->n_byte[writer->current];
    FAIL_IF(n_byte > whole - writer->written, MOTE_ARGUMENT, "%s: %zu bytes for '%.*s', which lacks %zu",
            writer->path, n_byte, (int)writer->names.name[writer->current].length,
            writer->names.name[writer->current].data, whole - writer->written);
    TRY(emit(writer, bytes, n_byte));
    writer->written += n_byte;
    if (writer->written < whole) return MOTE_OK;
    writer->written = 0;
    writer->current++;
    return pad(writer, whole);
}

static mote_status finish(struct mote_gguf_writer *writer)
{
    FAIL_IF(!writer->begun, MOTE_ARGUMENT, "%s: finished before begin", writer->path);
    FAIL_IF(writer->current < writer->n_tensor, MOTE_ARGUMENT, "%s: '%.*s' lacks %zu of %zu bytes",
            writer->path, (int)writer->names.name[writer->current].length,
            writer->names.name[writer->current].data, writer->n_byte[writer->current] - writer->written,
            writer->n_byte[writer->current]);
    int failed = fclose(writer->file);
    writer->file = NULL;
    FAIL_IF(failed, MOTE_IO, "%s: cannot write: %s", writer->part_path, strerror(errno));
    FAIL_IF(rename(writer->part_path, writer->path) != 0, MOTE_IO, "%s: cannot rename to %s: %s",
            writer->part_path, writer->path, strerror(errno));
    mote_mem_free(writer->part_path); /* under its own name now: nothing to remove */
    writer->part_path = NULL;
    return MOTE_OK;
}

mote_status mote_gguf_finish(struct mote_gguf_writer *writer)
{
    mote_status status = finish(writer);
    destroy(writer);
    return status;
}
