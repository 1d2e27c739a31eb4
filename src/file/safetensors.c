/* safetensors.c: see safetensors.h.
 *
 * A file is: u64 length of the header, the header (JSON: name -> dtype, shape, data_offsets), the bytes. The
 * offsets must cover the bytes exactly, without a gap and without two tensors sharing one.
 */
#include "file/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/float_bits.h"
#include "file/catalogue_build.h"
#include "file/json.h"

/* dtypes whose size is known. Those without a format of ours are -1: bytes that only a rule can give a meaning. */
static const struct dtype {
    const char *name;
    int size, format;
} dtypes[] = {
    {"F32", 4, MOTE_FORMAT_F32},
    {"F16", 2, MOTE_FORMAT_F16},
    {"BF16", 2, MOTE_FORMAT_BF16},
    {"F64", 8, MOTE_FORMAT_F64},
    {"I8", 1, MOTE_FORMAT_I8},
    {"I16", 2, MOTE_FORMAT_I16},
    {"I32", 4, MOTE_FORMAT_I32},
    {"I64", 8, MOTE_FORMAT_I64},
    {"U8", 1, -1},
    {"U16", 2, -1},
    {"U32", 4, -1},
    {"U64", 8, -1},
    {"BOOL", 1, -1},
    {"F8_E4M3", 1, -1},
    {"F8_E5M2", 1, -1},
    {"F8_E8M0", 1, -1},
};

const char *mote_safetensors_dtype(enum mote_format format)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].format == (int)format) return dtypes[i].name;
    return NULL;
}

void mote_safetensors_init(struct mote_safetensors *set, struct mote_budget *budget, struct mote_arena *arena)
{
    *set = (struct mote_safetensors){.budget = budget, .arena = arena, .index.budget = budget};
}

void mote_safetensors_free(struct mote_safetensors *set)
{
    mote_mem_free(set->tensor);
    set->tensor = NULL;
    mote_name_index_free(&set->index);
}

struct mote_safetensor *mote_safetensors_find(const struct mote_safetensors *set, const char *name)
{
    int64_t at = mote_name_index_find(&set->index, name, strlen(name));
    return at < 0 ? NULL : &set->tensor[at];
}

/* Shape and offsets of one entry; `size` is that of the data behind the header. */
static mote_status read_entry(const json_t *entry, struct mote_safetensor *tensor, size_t size, size_t *begin)
{
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    FAIL_IF(!json_is_string(dtype), MOTE_FORMAT, "dtype is %s, expected text", mote_json_kind(dtype));
    FAIL_IF(!json_is_array(shape), MOTE_FORMAT, "shape is %s, expected an array", mote_json_kind(shape));
    uint64_t first, end;
    FAIL_IF(json_array_size(offsets) != 2 || !mote_json_u64(json_array_get(offsets, 0), &first) ||
                !mote_json_u64(json_array_get(offsets, 1), &end),
            MOTE_FORMAT, "data_offsets are not two integers");
    FAIL_IF(first > end || end > size, MOTE_FORMAT,
            "data_offsets %llu to %llu, but the file has %zu bytes of tensors (truncated?)",
            (unsigned long long)first, (unsigned long long)end, size);
    tensor->n_byte = (size_t)(end - first);
    *begin = (size_t)first;

    const struct dtype *known = NULL;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, json_string_value(dtype)) == 0) known = &dtypes[i];
    tensor->format = known ? known->format : -1;
    FAIL_IF(json_array_size(shape) > 64, MOTE_FORMAT, "%zu dimensions", json_array_size(shape));
    tensor->n_dim = (int)json_array_size(shape);
    size_t bytes = known ? (size_t)known->size : 0;
    for (int i = 0; i < tensor->n_dim; i++) {
        uint64_t dim;
        FAIL_IF(!mote_json_u64(json_array_get(shape, (size_t)i), &dim), MOTE_FORMAT,
                "shape item %d is %s, expected an integer that is not negative", i,
                mote_json_kind(json_array_get(shape, (size_t)i)));
        FAIL_IF(dim > INT64_MAX || !mote_mul_size(bytes, (size_t)dim, &bytes), MOTE_FORMAT,
                "shape: dimension %d of %llu overflows", i, (unsigned long long)dim);
        if (i < MOTE_MAX_DIMS) tensor->dim[i] = (int64_t)dim;
    }
    FAIL_IF(known && bytes != tensor->n_byte, MOTE_FORMAT,
            "shape and dtype %s need %zu bytes, data_offsets give %zu", known->name, bytes, tensor->n_byte);
    return MOTE_OK;
}

struct span {
    size_t begin, end;
    const char *name;
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static mote_status check_cover(struct span *span, size_t n, size_t size)
{
    qsort(span, n, sizeof *span, by_begin);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        FAIL_IF(span[i].begin < at, MOTE_FORMAT, "tensors '%s' and '%s' overlap at byte %zu of the data",
                mote_show_name(span[i - 1].name).text, mote_show_name(span[i].name).text, span[i].begin);
        FAIL_IF(span[i].begin > at, MOTE_FORMAT,
                "bytes %zu to %zu of the data, before '%s', belong to no tensor", at, span[i].begin,
                mote_show_name(span[i].name).text);
        at = span[i].end;
    }
    FAIL_IF(at != size, MOTE_FORMAT, "bytes %zu to %zu of the data, at the end, belong to no tensor", at,
            size);
    return MOTE_OK;
}

static mote_status add_tensors(struct mote_safetensors *set, const char *file, json_t *header,
                               const uint8_t *data, size_t size, struct span *span)
{
    const char *name;
    json_t *entry;
    size_t n_span = 0;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            const char *origin = json_string_value(json_object_get(entry, "format"));
            if (origin && strcmp(origin, "mlx") == 0) set->is_mlx = 1;
            continue;
        }
        struct mote_safetensor tensor = {.file = file};
        size_t begin = 0, number;
        int is_new;
        char *text;
        mote_status status = read_entry(entry, &tensor, size, &begin);
        if (status != MOTE_OK) return mote_context(status, "tensor '%s'", mote_show_name(name).text);
        tensor.data = data + begin;
        TRY(mote_arena_strdup(set->arena, name, strlen(name), &text));
        tensor.name = text;
        const char *dtype = json_string_value(json_object_get(entry, "dtype"));
        TRY(mote_arena_strdup(set->arena, dtype, strlen(dtype), &text));
        tensor.dtype = text;
        span[n_span++] = (struct span){begin, begin + tensor.n_byte, tensor.name};
        TRY(mote_grow(set->budget, set->n_tensor, &set->room, sizeof tensor, &set->tensor));
        TRY(mote_name_index_add(&set->index, tensor.name, strlen(tensor.name), &number, &is_new));
        FAIL_IF(!is_new, MOTE_FORMAT, "tensor '%s' is also in %s", mote_show_name(name).text,
                set->tensor[number].file);
        set->tensor[number] = tensor;
        set->n_tensor = number + 1;
    }
    return check_cover(span, n_span, size);
}

static mote_status parse(struct mote_safetensors *set, const char *file, const uint8_t *data, size_t size)
{
    enum { MAX_HEADER = 100000000 }; /* the format's own limit */
    FAIL_IF(size < 8, MOTE_FORMAT, "%zu bytes, expected at least 8", size);
    uint64_t n_header = mote_load_u64(data);
    FAIL_IF(n_header > MAX_HEADER || n_header > size - 8, MOTE_FORMAT,
            "a header of %llu bytes in a file of %zu (truncated, or not a safetensors file)",
            (unsigned long long)n_header, size);
    json_t *header;
    mote_status status = mote_json_parse((const char *)data + 8, (size_t)n_header, &header);
    if (status != MOTE_OK) return mote_context(status, "header");
    struct span *span;
    status = mote_mem_calloc(set->budget, MOTE_MEM_TABLES, json_object_size(header), sizeof *span, &span);
    if (status == MOTE_OK)
        status = add_tensors(set, file, header, data + 8 + n_header, size - 8 - (size_t)n_header, span);
    mote_mem_free(span);
    json_decref(header);
    return status;
}

mote_status mote_safetensors_parse(struct mote_safetensors *set, const char *file, const uint8_t *data,
                                   size_t size)
{
    mote_status status = parse(set, file, data, size);
    return status == MOTE_OK ? status : mote_context(status, "%s", file);
}
