/* gguf_read.c: see gguf_read.h. GGUF v2 and v3, one file or split in parts.
 *
 * One idea: a cursor that cannot leave the file. Counts are held against the bytes that are left before anything
 * is allocated for them, so a header costs at most a small multiple of its own size.
 */
#include "file/gguf_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_bits.h"
#include "file/folder.h"

struct cursor {
    const uint8_t *data; /* [size] */
    size_t size, at;
};

static mote_status take(struct cursor *cursor, size_t n, const char *what, const uint8_t **out)
{
    *out = cursor->data;
    FAIL_IF(n > cursor->size - cursor->at, MOTE_FORMAT,
            "%s needs %zu bytes at byte %zu, the file ends at %zu (truncated?)", what, n, cursor->at,
            cursor->size);
    *out = cursor->data + cursor->at;
    cursor->at += n;
    return MOTE_OK;
}

static mote_status take_u32(struct cursor *cursor, const char *what, uint32_t *out)
{
    const uint8_t *bytes;
    TRY(take(cursor, 4, what, &bytes));
    *out = mote_load_u32(bytes);
    return MOTE_OK;
}

static mote_status take_u64(struct cursor *cursor, const char *what, uint64_t *out)
{
    const uint8_t *bytes;
    TRY(take(cursor, 8, what, &bytes));
    *out = mote_load_u64(bytes);
    return MOTE_OK;
}

static mote_status take_text(struct cursor *cursor, const char *what, struct mote_text *out)
{
    uint64_t length;
    const uint8_t *bytes;
    TRY(take_u64(cursor, what, &length));
    TRY(take(cursor, length, what, &bytes)); /* size_t is 64 bits wide: see the assertion below */
    *out = (struct mote_text){(const char *)bytes, (size_t)length};
    return MOTE_OK;
}
_Static_assert(sizeof(size_t) == 8, "file offsets are used as sizes");

/* `count` things of at least `least` bytes each must still fit in the file. */
static mote_status check_count(const struct cursor *cursor, const char *what, uint64_t count, size_t least)
{
    FAIL_IF(count > (cursor->size - cursor->at) / least, MOTE_FORMAT,
            "%llu %s at byte %zu, but only %zu bytes follow", (unsigned long long)count, what, cursor->at,
            cursor->size - cursor->at);
    return MOTE_OK;
}

/* ---- metadata ---- */

static mote_status take_array(struct cursor *cursor, struct mote_arena *arena, struct mote_meta *meta)
{
    uint32_t type;
    uint64_t count;
    TRY(take_u32(cursor, "array type", &type));
    TRY(take_u64(cursor, "array count", &count));
    FAIL_IF(type == MOTE_META_ARRAY, MOTE_UNSUPPORTED, "arrays of arrays are not supported");
    FAIL_IF(type >= MOTE_META_TYPE_COUNT, MOTE_FORMAT, "array items of unknown type %u", type);
    size_t item = mote_meta_type_size((enum mote_meta_type)type);
    TRY(check_count(cursor, "array items", count, item ? item : 8));
    meta->value.array.type = (enum mote_meta_type)type;
    meta->value.array.count = (size_t)count;
    if (item) return take(cursor, (size_t)count * item, "array", &meta->value.array.data);
    struct mote_text *text;
    TRY(mote_arena_alloc(arena, (size_t)count * sizeof *text, &text));
    for (size_t i = 0; i < count; i++) TRY(take_text(cursor, "array of text", &text[i]));
    meta->value.array.text = text;
    return MOTE_OK;
}

static mote_status take_value(struct cursor *cursor, struct mote_arena *arena, struct mote_meta *meta)
{
    const uint8_t *bytes;
    uint32_t type;
    TRY(take_u32(cursor, "value type", &type));
    FAIL_IF(type >= MOTE_META_TYPE_COUNT, MOTE_FORMAT, "unknown value type %u", type);
    meta->type = (enum mote_meta_type)type;
    if (type == MOTE_META_STRING) return take_text(cursor, "text", &meta->value.text);
    if (type == MOTE_META_ARRAY) return take_array(cursor, arena, meta);
    TRY(take(cursor, mote_meta_type_size(meta->type), "value", &bytes));
    switch (meta->type) {
    case MOTE_META_U8: meta->value.u = bytes[0]; break;
    case MOTE_META_I8: meta->value.i = (int8_t)bytes[0]; break;
    case MOTE_META_U16: meta->value.u = mote_load_u16(bytes); break;
    case MOTE_META_I16: meta->value.i = (int16_t)mote_load_u16(bytes); break;
    case MOTE_META_U32: meta->value.u = mote_load_u32(bytes); break;
    case MOTE_META_I32: meta->value.i = (int32_t)mote_load_u32(bytes); break;
    case MOTE_META_U64: meta->value.u = mote_load_u64(bytes); break;
    case MOTE_META_I64: meta->value.i = (int64_t)mote_load_u64(bytes); break;
    case MOTE_META_F32: meta->value.f = (double)mote_bits_f32(mote_load_u32(bytes)); break;
    case MOTE_META_F64: memcpy(&meta->value.f, bytes, 8); break;
    default: /* bool */
        FAIL_IF(bytes[0] > 1, MOTE_FORMAT, "a bool of value %u, expected 0 or 1", bytes[0]);
        meta->value.u = bytes[0];
    }
    return MOTE_OK;
}

static int text_is(struct mote_text text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.data, word, text.length) == 0;
}

/* The keys that say how to read the file itself. */
static mote_status note_meta(const struct mote_meta *meta, uint64_t *alignment, struct mote_gguf_part *part)
{
    const struct {
        const char *key;
        uint64_t *value;
    } wanted[] = {
        {"general.alignment", alignment},
        {"split.no", &part->split_no},
        {"split.count", &part->split_count},
        {"split.tensors.count", &part->split_tensors},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        FAIL_IF(text_is(meta->key, wanted[i].key) && !mote_meta_as_u64(meta, wanted[i].value), MOTE_FORMAT,
                "expected an integer that is not negative");
    FAIL_IF(*alignment < 8 || *alignment & (*alignment - 1) || *alignment > INT32_MAX, MOTE_FORMAT,
            "an alignment of %llu, expected a power of two, 8 or more", (unsigned long long)*alignment);
    return MOTE_OK;
}

static mote_status read_meta(struct cursor *cursor, struct mote_catalogue *catalogue, uint64_t n_meta,
                             int keep, uint64_t *alignment, struct mote_gguf_part *part)
{
    struct mote_arena *arena = &catalogue->state->arena;
    for (uint64_t i = 0; i < n_meta; i++) {
        struct mote_meta meta = {0};
        TRY(take_text(cursor, "metadata key", &meta.key));
        FAIL_IF(meta.key.length == 0, MOTE_FORMAT, "metadata key %llu is empty", (unsigned long long)i);
        mote_status status = take_value(cursor, arena, &meta);
        if (status == MOTE_OK) status = note_meta(&meta, alignment, part);
        if (status != MOTE_OK)
            return mote_context(status, "metadata key '%s'", mote_show(meta.key.data, meta.key.length).text);
        if (keep) TRY(mote_catalogue_add_meta(catalogue, &meta));
    }
    return MOTE_OK;
}

/* ---- tensors ---- */

struct span { /* where a tensor's bytes lie, from the start of the tensor data */
    uint64_t begin;
    size_t tensor; /* which */
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static mote_status read_tensor(struct cursor *cursor, struct mote_arena *arena, uint64_t alignment,
                               struct mote_tensor *tensor, struct span *span)
{
    struct mote_text name;
    char *copy;
    uint32_t n_dim, type;
    TRY(take_text(cursor, "tensor name", &name));
    FAIL_IF(name.length == 0 || memchr(name.data, 0, name.length), MOTE_FORMAT,
            "a tensor name is empty or contains a zero byte, at byte %zu", cursor->at);
    TRY(mote_arena_strdup(arena, name.data, name.length, &copy));
    const struct mote_shown shown = mote_show_name(copy);
    tensor->name = copy;
    TRY(take_u32(cursor, "tensor header", &n_dim));
    FAIL_IF(n_dim < 1 || n_dim > MOTE_MAX_DIMS, MOTE_FORMAT,
            "tensor '%s' has %u dimensions, expected 1 to %d", shown.text, n_dim, MOTE_MAX_DIMS);
    tensor->n_dim = (int)n_dim;
    for (uint32_t i = 0; i < n_dim; i++) {
        uint64_t dim;
        TRY(take_u64(cursor, "tensor header", &dim));
        FAIL_IF(dim > INT64_MAX, MOTE_FORMAT, "tensor '%s': dimension %u is %llu", shown.text, i,
                (unsigned long long)dim);
        tensor->dim[i] = (int64_t)dim;
    }
    TRY(take_u32(cursor, "tensor header", &type));
    TRY(take_u64(cursor, "tensor header", &span->begin));
    int format = mote_format_from_gguf(type);
    FAIL_IF(format < 0, MOTE_UNSUPPORTED, "tensor '%s' is of type id %u, which is not supported", shown.text,
            type);
    FAIL_IF(span->begin % alignment, MOTE_FORMAT, "tensor '%s' starts at %llu, not a multiple of %llu",
            shown.text, (unsigned long long)span->begin, (unsigned long long)alignment);
    tensor->format = (enum mote_format)format;
    tensor->factor = 1;
    return mote_tensor_measure(tensor);
}

/* Type id 42 stands for two layouts: 64 weights in 18 bytes, and in older Prism files 128 weights in 34 bytes.
 * Only the distance to the next tensor tells. One file has one meaning; files that leave it open are the former. */
static mote_status settle_id_42(struct mote_tensor *tensor, const struct span *span, size_t n,
                                size_t data_size, uint64_t alignment)
{
    size_t n_old = 0, n_new = 0;
    for (size_t i = 0; i < n; i++) {
        const struct mote_tensor *t = &tensor[span[i].tensor];
        if (t->format != MOTE_FORMAT_Q2_0 || span[i].begin > data_size) continue;
        struct mote_tensor old = *t;
        old.format = MOTE_FORMAT_PQ2_0;
        if (old.dim[0] % 128) continue;
        TRY(mote_tensor_measure(&old));
        int last = i + 1 == n; /* need not be padded */
        uint64_t gap = (last ? data_size : span[i + 1].begin) - span[i].begin, mask = alignment - 1;
        int fits_old = gap == ((old.n_byte + mask) & ~mask) || (last && gap == old.n_byte);
        int fits_new = gap == ((t->n_byte + mask) & ~mask) || (last && gap == t->n_byte);
        n_old += fits_old && !fits_new;
        n_new += fits_new && !fits_old;
    }
    FAIL_IF(n_old && n_new, MOTE_FORMAT,
            "tensors of type id 42 in two layouts: %zu in blocks of 128 weights, %zu of 64", n_old, n_new);
    for (size_t i = 0; n_old && i < n; i++) {
        if (tensor[i].format != MOTE_FORMAT_Q2_0) continue;
        tensor[i].format = MOTE_FORMAT_PQ2_0;
        TRY(mote_tensor_measure(&tensor[i]));
    }
    return MOTE_OK;
}

/* Every tensor inside the data and off every other; then its pointer. */
static mote_status place(struct mote_tensor *tensor, const struct span *span, size_t n, const uint8_t *data,
                         size_t data_size)
{
    for (size_t i = 0; i < n; i++) {
        struct mote_tensor *t = &tensor[span[i].tensor];
        FAIL_IF(span[i].begin > data_size || t->n_byte > data_size - span[i].begin, MOTE_FORMAT,
                "tensor '%s' needs %zu bytes at %llu, the file has %zu bytes of tensors (truncated?)",
                mote_show_name(t->name).text, t->n_byte, (unsigned long long)span[i].begin, data_size);
        FAIL_IF(i + 1 < n && span[i + 1].begin < span[i].begin + t->n_byte, MOTE_FORMAT,
                "tensors '%s' (%zu bytes at %llu) and '%s' (at %llu) overlap", mote_show_name(t->name).text,
                t->n_byte, (unsigned long long)span[i].begin,
                mote_show_name(tensor[span[i + 1].tensor].name).text, (unsigned long long)span[i + 1].begin);
        t->data = data + span[i].begin;
    }
    return MOTE_OK;
}

static mote_status read_tensors(struct cursor *cursor, struct mote_catalogue *catalogue, uint64_t alignment,
                                struct mote_tensor *tensor, struct span *span, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        TRY(read_tensor(cursor, &catalogue->state->arena, alignment, &tensor[i], &span[i]));
        span[i].tensor = i;
    }
    if (n == 0) return MOTE_OK;
    size_t mask = (size_t)alignment - 1, start;
    FAIL_IF(!mote_add_size(cursor->at, mask, &start) || (start &= ~mask) > cursor->size, MOTE_FORMAT,
            "the file ends before its tensors (truncated?)");
    qsort(span, n, sizeof *span, by_begin);
    TRY(settle_id_42(tensor, span, n, cursor->size - start, alignment));
    TRY(place(tensor, span, n, cursor->data + start, cursor->size - start));
    for (size_t i = 0; i < n; i++) TRY(mote_catalogue_add_tensor(catalogue, &tensor[i]));
    return MOTE_OK;
}

static mote_status parse(struct mote_catalogue *catalogue, const uint8_t *data, size_t size, int keep_meta,
                         struct mote_gguf_part *part)
{
    struct cursor cursor = {data, size, 0};
    const uint8_t *magic;
    uint32_t version;
    uint64_t n_tensor, n_meta, alignment = 32;
    TRY(take(&cursor, 4, "the magic", &magic));
    FAIL_IF(memcmp(magic, "GGUF", 4) != 0, MOTE_FORMAT, "does not start with \"GGUF\"");
    TRY(take_u32(&cursor, "the version", &version));
    FAIL_IF(version && !(version & 0xFFFF), MOTE_UNSUPPORTED, "big-endian GGUF is not supported");
    FAIL_IF(version != 2 && version != 3, MOTE_UNSUPPORTED, "GGUF version %u, expected 2 or 3", version);
    TRY(take_u64(&cursor, "the tensor count", &n_tensor));
    TRY(take_u64(&cursor, "the key count", &n_meta));
    TRY(check_count(&cursor, "metadata keys", n_meta, 8 + 1 + 4 + 1));
    TRY(check_count(&cursor, "tensors", n_tensor, 8 + 1 + 4 + 8 + 4 + 8));
    TRY(read_meta(&cursor, catalogue, n_meta, keep_meta, &alignment, part));
    TRY(check_count(&cursor, "tensors", n_tensor, 8 + 1 + 4 + 8 + 4 + 8));
    part->n_tensor = (size_t)n_tensor;

    struct mote_budget *budget = catalogue->state->budget;
    struct mote_tensor *tensor;
    struct span *span = NULL;
    mote_status status = mote_mem_calloc(budget, MOTE_MEM_TABLES, n_tensor, sizeof *tensor, &tensor);
    if (status == MOTE_OK) status = mote_mem_calloc(budget, MOTE_MEM_TABLES, n_tensor, sizeof *span, &span);
    if (status == MOTE_OK) status = read_tensors(&cursor, catalogue, alignment, tensor, span, n_tensor);
    mote_mem_free(span);
    mote_mem_free(tensor);
    return status;
}

mote_status mote_gguf_parse(struct mote_catalogue *catalogue, const char *name, const uint8_t *data,
                            size_t size, int keep_meta, struct mote_gguf_part *out)
{
    *out = (struct mote_gguf_part){0};
    mote_status status = parse(catalogue, data, size, keep_meta, out);
    return status == MOTE_OK ? status : mote_context(status, "%s", name);
}

/* ---- tensor scales ---- */

static mote_status apply_scale(struct mote_arena *arena, struct mote_tensor *tensor,
                               const struct mote_tensor *scale)
{
    const char *name = scale->name;
    int64_t n = scale->dim[0];
    FAIL_IF(scale->format != MOTE_FORMAT_F32 || scale->n_byte != (size_t)n * 4 ||
                (n != 1 && n != tensor->dim[2]),
            MOTE_FORMAT, "tensor '%s': expected f32[1] or f32[%lld], a scale per expert",
            mote_show_name(name).text, (long long)tensor->dim[2]);
    struct mote_tensor *part;
    TRY(mote_arena_alloc(arena, (size_t)n * sizeof *part, &part));
    for (int64_t e = 0; e < n; e++) {
        float factor = mote_bits_f32(mote_load_u32(scale->data + 4 * e));
        FAIL_IF(!isfinite(factor) || factor == 0, MOTE_FORMAT,
                "tensor '%s': scale %lld is %g, expected a finite number other than 0",
                mote_show_name(name).text, (long long)e, (double)factor);
        part[e] = mote_tensor_rows(tensor, e, 0, tensor->dim[1]);
        part[e].factor = factor;
    }
    if (n == 1) {
        tensor->factor = part[0].factor;
    } else {
        tensor->part = part;
        tensor->data = NULL;
    }
    return MOTE_OK;
}

mote_status mote_gguf_apply_scales(struct mote_catalogue *catalogue)
{
    struct mote_catalogue_state *state = catalogue->state;
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        struct mote_tensor *tensor = &state->tensor[i];
        size_t length = strlen(tensor->name), tail = strlen(".weight");
        if (tensor->format != MOTE_FORMAT_NVFP4 || length < tail) continue;
        if (strcmp(tensor->name + length - tail, ".weight") != 0) continue;
        char *name;
        TRY(mote_arena_strdup(&state->arena, tensor->name, length, &name));
        strcpy(name + length - tail, ".scale"); /* shorter than what it replaces */
        const struct mote_tensor *scale = mote_catalogue_tensor(catalogue, name);
        if (scale) TRY(apply_scale(&state->arena, tensor, scale));
    }
    return MOTE_OK;
}

/* ---- files ---- */

static mote_status read_part(struct mote_catalogue *catalogue, const char *path, int keep_meta,
                             struct mote_gguf_part *out)
{
    struct mote_mapfile file;
    TRY(mote_catalogue_add_file(catalogue, path, &file));
    return mote_gguf_parse(catalogue, path, file.data, file.size, keep_meta, out);
}

/* All parts from the first on, into an empty catalogue. */
static mote_status read_split(struct mote_catalogue *catalogue, const char *path,
                              const struct mote_part_name *name)
{
    struct mote_arena *arena = &catalogue->state->arena;
    struct mote_gguf_part part;
    uint64_t n_expected = 0;
    char *first, *file;
    TRY(mote_part_name_make(arena, path, ".gguf", name, 1, &first));
    /* All there, before any is read. */
    for (unsigned i = 1; i <= name->count; i++) {
        TRY(mote_part_name_make(arena, path, ".gguf", name, i, &file));
        FAIL_IF(!mote_is_file(file), MOTE_NOT_FOUND,
                "%s: part %u of %u is missing; all parts belong in one folder, beside the first, %s", file, i,
                name->count, first);
    }
    for (unsigned i = 1; i <= name->count; i++) {
        TRY(mote_part_name_make(arena, path, ".gguf", name, i, &file));
        TRY(read_part(catalogue, file, i == 1, &part));
        FAIL_IF(part.split_count != name->count, MOTE_FORMAT,
                "%s: split.count is %llu, expected %u as the file is named; the first part is %s", file,
                (unsigned long long)part.split_count, name->count, first);
        FAIL_IF(part.split_no != i - 1, MOTE_FORMAT,
                "%s: split.no is %llu, expected %u as the file is named; the first part is %s", file,
                (unsigned long long)part.split_no, i - 1, first);
        FAIL_IF(i > 1 && part.split_tensors && part.split_tensors != n_expected, MOTE_FORMAT,
                "%s: split.tensors.count is %llu, in %s it is %llu", file,
                (unsigned long long)part.split_tensors, first, (unsigned long long)n_expected);
        if (i == 1) n_expected = part.split_tensors;
    }
    FAIL_IF(n_expected && n_expected != catalogue->n_tensor, MOTE_FORMAT,
            "%s: split.tensors.count is %llu, the %u parts hold %zu tensors", first,
            (unsigned long long)n_expected, name->count, catalogue->n_tensor);
    return MOTE_OK;
}

static mote_status open_into(struct mote_catalogue **catalogue, const char *path, struct mote_budget *budget)
{
    struct mote_gguf_part part;
    TRY(mote_catalogue_create(path, "gguf", budget, catalogue));
    TRY(read_part(*catalogue, path, 1, &part));
    if (part.split_count > 1) {
        struct mote_part_name name;
        FAIL_IF(!mote_part_name_parse(path, ".gguf", &name), MOTE_FORMAT,
                "%s: part %llu of %llu of a split model, expected a name like MODEL-%05llu-of-%05llu.gguf",
                path, (unsigned long long)part.split_no + 1, (unsigned long long)part.split_count,
                (unsigned long long)part.split_no + 1, (unsigned long long)part.split_count);
        mote_catalogue_close(*catalogue);
        *catalogue = NULL;
        TRY(mote_catalogue_create(path, "gguf", budget, catalogue));
        TRY(read_split(*catalogue, path, &name));
    }
    mote_status status = mote_gguf_apply_scales(*catalogue);
    return status == MOTE_OK ? status : mote_context(status, "%s", path);
}

mote_status mote_gguf_open(const char *path, struct mote_budget *budget, struct mote_catalogue **out)
{
    *out = NULL;
    struct mote_catalogue *catalogue = NULL;
    mote_status status = open_into(&catalogue, path, budget);
    if (status != MOTE_OK) {
        mote_catalogue_close(catalogue);
        return status;
    }
    *out = catalogue;
    return MOTE_OK;
}
