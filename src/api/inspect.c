/* inspect.c: mote_file_*: what a model's headers say, for people and as JSON (jansson). */
#include "mote.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/catalogue.h"

struct mote_file {
    struct mote_catalogue *catalogue;
};

static const char *const type_names[MOTE_META_TYPE_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

mote_status mote_file_open(const char *path, mote_file **out)
{
    *out = NULL;
    FAIL_IF(!path, MOTE_ARGUMENT, "file: no path");
    struct mote_file *file;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *file, &file));
    mote_status status = mote_catalogue_open(path, NULL, &file->catalogue);
    if (status != MOTE_OK) {
        mote_mem_free(file);
        return status;
    }
    *out = file;
    return MOTE_OK;
}

void mote_file_close(mote_file *file)
{
    if (!file) return;
    mote_catalogue_close(file->catalogue);
    mote_mem_free(file);
}

const char *mote_file_source(const mote_file *file)
{
    return file->catalogue->source;
}

size_t mote_file_tensors(const mote_file *file)
{
    return file->catalogue->n_tensor;
}

void mote_file_tensor(const mote_file *file, size_t index, struct mote_tensor_info *out)
{
    const struct mote_tensor *tensor = &file->catalogue->tensor[index];
    *out = (struct mote_tensor_info){
        .name = tensor->name,
        .type = mote_format_traits(tensor->format)->name,
        .n_dim = tensor->n_dim,
        .n_byte = tensor->n_byte,
    };
    double weights = 1;
    for (int k = 0; k < MOTE_MAX_DIMS; k++) {
        out->dim[k] = tensor->dim[k];
        if (k < tensor->n_dim) weights *= (double)tensor->dim[k];
    }
    struct mote_matrix w = mote_tensor_matrix(tensor, 0);
    if (w.group) { /* planes count too */
        double each = w.bias ? 2.0 * mote_format_traits(w.scale_format)->block_bytes : 1.0;
        out->n_byte += (uint64_t)(weights / w.group * each);
    }
    out->bits = weights > 0 ? 8.0 * (double)out->n_byte / weights : 0;
}

size_t mote_file_metas(const mote_file *file)
{
    return file->catalogue->n_meta;
}

static double number_at(enum mote_meta_type type, const uint8_t *data, size_t index)
{
#define READ(t)                                                    \
    {                                                              \
        t value;                                                   \
        memcpy(&value, data + index * sizeof value, sizeof value); \
        return (double)value;                                      \
    }
    switch (type) {
    case MOTE_META_U8:
    case MOTE_META_BOOL: READ(uint8_t)
    case MOTE_META_I8: READ(int8_t)
    case MOTE_META_U16: READ(uint16_t)
    case MOTE_META_I16: READ(int16_t)
    case MOTE_META_U32: READ(uint32_t)
    case MOTE_META_I32: READ(int32_t)
    case MOTE_META_F32: READ(float)
    case MOTE_META_U64: READ(uint64_t)
    case MOTE_META_I64: READ(int64_t)
    case MOTE_META_F64: READ(double)
    default: return NAN;
    }
#undef READ
}

/* Bytes that are not UTF-8 are shown as Latin-1 would: a name that cannot be printed must not hide the file. */
static json_t *text_json(struct mote_text text)
{
    json_t *value = json_stringn(text.data, text.length);
    if (value) return value;
    char *wide = malloc(2 * text.length + 1);
    if (!wide) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c < 0x80) wide[n++] = (char)c;
        else wide[n++] = (char)(0xC0 | c >> 6), wide[n++] = (char)(0x80 | (c & 63));
    }
    value = json_stringn(wide, n);
    free(wide);
    return value;
}

static json_t *number_json(enum mote_meta_type type, double value)
{
    if (type == MOTE_META_BOOL) return json_boolean(value != 0);
    if (type == MOTE_META_F32 || type == MOTE_META_F64)
        return isfinite(value) ? json_real(value)
                               : json_string(isnan(value) ? "nan"
                                             : value > 0  ? "inf"
                                                          : "-inf");
    return json_integer((json_int_t)value);
}

static json_t *meta_json(const struct mote_meta *meta)
{
    switch (meta->type) {
    case MOTE_META_STRING: return text_json(meta->value.text);
    case MOTE_META_F32:
    case MOTE_META_F64: return number_json(meta->type, meta->value.f);
    case MOTE_META_BOOL: return json_boolean(meta->value.u != 0);
    case MOTE_META_I8:
    case MOTE_META_I16:
    case MOTE_META_I32:
    case MOTE_META_I64: return json_integer((json_int_t)meta->value.i);
    case MOTE_META_ARRAY: {
        json_t *list = json_array();
        for (size_t i = 0; i < meta->value.array.count; i++) {
            enum mote_meta_type type = meta->value.array.type;
            json_t *item = type == MOTE_META_STRING
                               ? text_json(meta->value.array.text[i])
                               : number_json(type, number_at(type, meta->value.array.data, i));
            json_array_append_new(list, item);
        }
        return list;
    }
    default: return json_integer((json_int_t)meta->value.u);
    }
}

void mote_file_meta(const mote_file *file, size_t index, const char **key, size_t *key_length,
                    const char **type, char *value, size_t capacity)
{
    const struct mote_meta *meta = &file->catalogue->meta[index];
    *key = meta->key.data;
    *key_length = meta->key.length;
    *type = type_names[meta->type];
    if (!capacity) return;
    switch (meta->type) {
    case MOTE_META_STRING:
        snprintf(value, capacity, "%.*s",
                 (int)(meta->value.text.length < capacity ? meta->value.text.length : capacity),
                 meta->value.text.data);
        break;
    case MOTE_META_F32:
    case MOTE_META_F64: snprintf(value, capacity, "%g", meta->value.f); break;
    case MOTE_META_BOOL: snprintf(value, capacity, "%s", meta->value.u ? "true" : "false"); break;
    case MOTE_META_I8:
    case MOTE_META_I16:
    case MOTE_META_I32:
    case MOTE_META_I64: snprintf(value, capacity, "%lld", (long long)meta->value.i); break;
    case MOTE_META_ARRAY: {
        size_t at = 0, count = meta->value.array.count;
        int n = snprintf(value, capacity, "%s[%zu]", type_names[meta->value.array.type], count);
        for (size_t i = 0; i < count && i < 4 && n > 0 && (at += (size_t)n) < capacity; i++) {
            if (meta->value.array.type == MOTE_META_STRING) {
                struct mote_text text = meta->value.array.text[i];
                n = snprintf(value + at, capacity - at, " \"%.*s\"",
                             (int)(text.length < 40 ? text.length : 40), text.data);
            } else {
                n = snprintf(value + at, capacity - at, " %g",
                             number_at(meta->value.array.type, meta->value.array.data, i));
            }
        }
        if (count > 4 && n > 0 && (at += (size_t)n) < capacity) snprintf(value + at, capacity - at, " ...");
        break;
    }
    default: snprintf(value, capacity, "%llu", (unsigned long long)meta->value.u); break;
    }
}

mote_status mote_file_json(const mote_file *file, char **out)
{
    *out = NULL;
    const struct mote_catalogue *catalogue = file->catalogue;
    json_t *root = json_object(), *metas = json_object(), *tensors = json_array();
    json_object_set_new(root, "path", json_string(catalogue->path));
    json_object_set_new(root, "source", json_string(catalogue->source));
    json_object_set_new(root, "bytes", json_integer((json_int_t)catalogue->n_byte));
    for (size_t i = 0; i < catalogue->n_meta; i++) {
        char key[1024];
        snprintf(key, sizeof key, "%.*s", (int)catalogue->meta[i].key.length, catalogue->meta[i].key.data);
        json_object_set_new(metas, key, meta_json(&catalogue->meta[i]));
    }
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        struct mote_tensor_info info;
        mote_file_tensor(file, i, &info);
        json_t *dims = json_array();
        for (int k = 0; k < info.n_dim; k++)
            json_array_append_new(dims, json_integer((json_int_t)info.dim[k]));
        json_t *tensor = json_object();
        json_object_set_new(tensor, "name", json_string(info.name));
        json_object_set_new(tensor, "type", json_string(info.type));
        json_object_set_new(tensor, "shape", dims);
        json_object_set_new(tensor, "bytes", json_integer((json_int_t)info.n_byte));
        json_object_set_new(tensor, "bits", json_real(info.bits));
        json_array_append_new(tensors, tensor);
    }
    json_object_set_new(root, "metadata", metas);
    json_object_set_new(root, "tensors", tensors);
    *out = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    FAIL_IF(!*out, MOTE_MEMORY, "%s: its description cannot be written as JSON", catalogue->path);
    return MOTE_OK;
}

void mote_text_free(char *text)
{
    free(text);
}
