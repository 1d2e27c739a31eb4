/* catalogue.c: see catalogue.h. The index, typed reads, views of matrices, and which reader opens what. */
#include "file/catalogue.h"

#include <string.h>

#include "file/catalogue_build.h"
#include "file/folder.h"
#include "file/gguf_read.h"
#include "file/hf_read.h"

/* ---- building ---- */

mote_status mote_grow(struct mote_budget *budget, size_t count, size_t *room, size_t item, void *array)
{
    if (count < *room) return MOTE_OK;
    size_t more = *room ? *room * 2 : 16, bytes;
    FAIL_IF(!mote_mul_size(more, item, &bytes), MOTE_MEMORY, "%zu items are too many", more);
    TRY(mote_mem_resize(budget, MOTE_MEM_TABLES, bytes, array));
    *room = more;
    return MOTE_OK;
}

mote_status mote_catalogue_create(const char *path, const char *source, struct mote_budget *budget,
                                  struct mote_catalogue **out)
{
    *out = NULL;
    struct mote_catalogue *catalogue;
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *catalogue, &catalogue));
    struct mote_catalogue_state *state;
    mote_status status = mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *state, &state);
    if (status != MOTE_OK) {
        mote_mem_free(catalogue);
        return status;
    }
    state->budget = state->tensor_index.budget = state->meta_index.budget = budget;
    mote_arena_init(&state->arena, budget, MOTE_MEM_TABLES);
    catalogue->state = state;
    catalogue->source = source;
    char *copy;
    status = mote_arena_strdup(&state->arena, path, strlen(path), &copy);
    if (status != MOTE_OK) {
        mote_catalogue_close(catalogue);
        return status;
    }
    catalogue->path = copy;
    *out = catalogue;
    return MOTE_OK;
}

void mote_catalogue_close(struct mote_catalogue *catalogue)
{
    if (!catalogue) return;
    struct mote_catalogue_state *state = catalogue->state;
    for (size_t i = 0; i < catalogue->n_file; i++) mote_mapfile_close(&state->file[i]);
    mote_mem_free(state->file);
    mote_mem_free(state->file_path);
    mote_mem_free(state->tensor);
    mote_mem_free(state->meta);
    mote_name_index_free(&state->tensor_index);
    mote_name_index_free(&state->meta_index);
    mote_arena_free(&state->arena);
    mote_mem_free(state);
    mote_mem_free(catalogue);
}

mote_status mote_catalogue_add_file(struct mote_catalogue *catalogue, const char *path,
                                    struct mote_mapfile *out)
{
    struct mote_catalogue_state *state = catalogue->state;
    size_t n = catalogue->n_file;
    char *copy;
    TRY(mote_grow(state->budget, n, &state->file_room, sizeof *state->file, &state->file));
    TRY(mote_grow(state->budget, n, &state->path_room, sizeof *state->file_path, &state->file_path));
    TRY(mote_arena_strdup(&state->arena, path, strlen(path), &copy));
    catalogue->file = state->file;
    catalogue->file_path = state->file_path;
    TRY(mote_mapfile_open(path, &state->file[n]));
    state->file_path[n] = copy;
    catalogue->n_file = n + 1;
    *out = state->file[n];
    return MOTE_OK;
}

size_t mote_tensor_bytes(const struct mote_tensor *tensor)
{
    size_t bytes = 0, rows = (size_t)tensor->dim[1] * (size_t)tensor->dim[2] * (size_t)tensor->dim[3];
    if (!tensor->part) return tensor->n_byte + rows * mote_tensor_scale_row(tensor) * (tensor->bias ? 2 : 1);
    for (int64_t e = 0; e < tensor->dim[2]; e++) bytes += mote_tensor_bytes(&tensor->part[e]);
    return bytes;
}

mote_status mote_catalogue_add_tensor(struct mote_catalogue *catalogue, const struct mote_tensor *tensor)
{
    struct mote_catalogue_state *state = catalogue->state;
    size_t number;
    int is_new;
    TRY(mote_grow(state->budget, catalogue->n_tensor, &state->tensor_room, sizeof *tensor, &state->tensor));
    catalogue->tensor = state->tensor;
    TRY(mote_name_index_add(&state->tensor_index, tensor->name, strlen(tensor->name), &number, &is_new));
    FAIL_IF(!is_new, MOTE_FORMAT, "two tensors are named '%s'", mote_show_name(tensor->name).text);
    state->tensor[number] = *tensor;
    catalogue->n_tensor = number + 1;
    catalogue->n_byte += mote_tensor_bytes(tensor);
    return MOTE_OK;
}

mote_status mote_catalogue_add_meta(struct mote_catalogue *catalogue, const struct mote_meta *meta)
{
    struct mote_catalogue_state *state = catalogue->state;
    size_t number;
    int is_new;
    TRY(mote_grow(state->budget, catalogue->n_meta, &state->meta_room, sizeof *meta, &state->meta));
    catalogue->meta = state->meta;
    TRY(mote_name_index_add(&state->meta_index, meta->key.data, meta->key.length, &number, &is_new));
    FAIL_IF(!is_new, MOTE_FORMAT, "two metadata keys are named '%s'",
            mote_show(meta->key.data, meta->key.length).text);
    state->meta[number] = *meta;
    catalogue->n_meta = number + 1;
    return MOTE_OK;
}

struct mote_shown mote_show(const char *data, size_t length)
{
    struct mote_shown shown;
    size_t n = length < sizeof shown.text - 4 ? length : sizeof shown.text - 4;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)data[i];
        shown.text[i] = (char)(c < 32 || c == 127 ? '?' : c);
    }
    memcpy(shown.text + n, n < length ? "..." : "", n < length ? 4 : 1);
    return shown;
}

struct mote_shown mote_show_name(const char *name)
{
    return mote_show(name, strlen(name));
}

/* ---- reading ---- */

const struct mote_tensor *mote_catalogue_tensor(const struct mote_catalogue *catalogue, const char *name)
{
    int64_t at = mote_name_index_find(&catalogue->state->tensor_index, name, strlen(name));
    return at < 0 ? NULL : &catalogue->tensor[at];
}

const struct mote_meta *mote_catalogue_meta(const struct mote_catalogue *catalogue, const char *key)
{
    int64_t at = mote_name_index_find(&catalogue->state->meta_index, key, strlen(key));
    return at < 0 ? NULL : &catalogue->meta[at];
}

/* Indexed by mote_meta_type. */
static const struct meta_traits {
    const char *name;
    uint8_t size; /* bytes in a file, 0: variable */
    char kind;    /* u i f, or 0 */
} meta_traits[MOTE_META_TYPE_COUNT] = {
    {"u8", 1, 'u'},  {"i8", 1, 'i'},  {"u16", 2, 'u'}, {"i16", 2, 'i'}, {"u32", 4, 'u'},
    {"i32", 4, 'i'}, {"f32", 4, 'f'}, {"bool", 1, 0},  {"text", 0, 0},  {"array", 0, 0},
    {"u64", 8, 'u'}, {"i64", 8, 'i'}, {"f64", 8, 'f'},
};

size_t mote_meta_type_size(enum mote_meta_type type)
{
    return meta_traits[type].size;
}

static mote_status find_meta(const struct mote_catalogue *catalogue, const char *key,
                             const struct mote_meta **out)
{
    *out = mote_catalogue_meta(catalogue, key);
    FAIL_IF(!*out, MOTE_NOT_FOUND, "%s: no metadata key '%s'", catalogue->path, key);
    return MOTE_OK;
}

static mote_status wrong_kind(const struct mote_catalogue *catalogue, const struct mote_meta *meta,
                              const char *key, const char *expected)
{
    return mote_fail(MOTE_FORMAT, "%s: metadata key '%s' is of type %s, expected %s", catalogue->path, key,
                     meta_traits[meta->type].name, expected);
}

int mote_meta_as_u64(const struct mote_meta *meta, uint64_t *out)
{
    char kind = meta_traits[meta->type].kind;
    if (kind == 'u') *out = meta->value.u;
    else if (kind == 'i' && meta->value.i >= 0) *out = (uint64_t)meta->value.i;
    else return 0;
    return 1;
}

mote_status mote_meta_u64(const struct mote_catalogue *catalogue, const char *key, uint64_t *out)
{
    const struct mote_meta *meta;
    TRY(find_meta(catalogue, key, &meta));
    if (!mote_meta_as_u64(meta, out))
        return wrong_kind(catalogue, meta, key, "an integer that is not negative");
    return MOTE_OK;
}

mote_status mote_meta_f64(const struct mote_catalogue *catalogue, const char *key, double *out)
{
    const struct mote_meta *meta;
    TRY(find_meta(catalogue, key, &meta));
    switch (meta_traits[meta->type].kind) {
    case 'u': *out = (double)meta->value.u; return MOTE_OK;
    case 'i': *out = (double)meta->value.i; return MOTE_OK;
    case 'f': *out = meta->value.f; return MOTE_OK;
    }
    return wrong_kind(catalogue, meta, key, "a number");
}

mote_status mote_meta_bool(const struct mote_catalogue *catalogue, const char *key, int *out)
{
    const struct mote_meta *meta;
    TRY(find_meta(catalogue, key, &meta));
    if (meta->type != MOTE_META_BOOL) return wrong_kind(catalogue, meta, key, "bool");
    *out = meta->value.u != 0;
    return MOTE_OK;
}

mote_status mote_meta_text(const struct mote_catalogue *catalogue, const char *key, struct mote_text *out)
{
    const struct mote_meta *meta;
    TRY(find_meta(catalogue, key, &meta));
    if (meta->type != MOTE_META_STRING) return wrong_kind(catalogue, meta, key, "text");
    *out = meta->value.text;
    return MOTE_OK;
}

mote_status mote_meta_u64_at(const struct mote_catalogue *catalogue, const char *key, size_t index,
                             uint64_t *out)
{
    const struct mote_meta *meta;
    TRY(find_meta(catalogue, key, &meta));
    if (meta->type != MOTE_META_ARRAY) return mote_meta_u64(catalogue, key, out);
    enum mote_meta_type type = meta->value.array.type;
    const struct meta_traits *traits = &meta_traits[type];
    if (traits->kind != 'u' && traits->kind != 'i')
        return wrong_kind(catalogue, meta, key, "an integer or an array of integers");
    FAIL_IF(index >= meta->value.array.count, MOTE_FORMAT,
            "%s: metadata key '%s' has %zu items, item %zu wanted", catalogue->path, key,
            meta->value.array.count, index);
    uint64_t value = 0;
    memcpy(&value, meta->value.array.data + index * traits->size, traits->size); /* little-endian host */
    int negative = traits->kind == 'i' && value >> (traits->size * 8 - 1);
    FAIL_IF(negative, MOTE_FORMAT, "%s: metadata key '%s': item %zu is negative", catalogue->path, key,
            index);
    *out = value;
    return MOTE_OK;
}

/* ---- tensors ---- */

mote_status mote_tensor_measure(struct mote_tensor *tensor)
{
    const struct mote_format_traits *traits = mote_format_traits(tensor->format);
    FAIL_IF(tensor->n_dim < 1 || tensor->n_dim > MOTE_MAX_DIMS, MOTE_FORMAT,
            "tensor '%s' has %d dimensions, expected 1 to %d", mote_show_name(tensor->name).text,
            tensor->n_dim, MOTE_MAX_DIMS);
    for (int i = 0; i < MOTE_MAX_DIMS; i++) {
        if (i >= tensor->n_dim) tensor->dim[i] = 1;
        FAIL_IF(tensor->dim[i] < 1, MOTE_FORMAT, "tensor '%s': dimension %d is %lld, expected at least 1",
                mote_show_name(tensor->name).text, i, (long long)tensor->dim[i]);
    }
    FAIL_IF(tensor->dim[0] % traits->block_elems, MOTE_FORMAT,
            "tensor '%s': rows of %lld weights are not whole %s blocks of %d",
            mote_show_name(tensor->name).text, (long long)tensor->dim[0], traits->name, traits->block_elems);
    size_t bytes = (size_t)(tensor->dim[0] / traits->block_elems), elems = (size_t)tensor->dim[0];
    int fits = mote_mul_size(bytes, (size_t)traits->block_bytes, &bytes);
    for (int i = 1; i < MOTE_MAX_DIMS; i++) {
        fits = fits && mote_mul_size(bytes, (size_t)tensor->dim[i], &bytes);
        fits = fits && mote_mul_size(elems, (size_t)tensor->dim[i], &elems);
    }
    FAIL_IF(!fits || elems > INT64_MAX || bytes > INT64_MAX, MOTE_FORMAT,
            "tensor '%s': %lld x %lld x %lld x %lld weights overflow", mote_show_name(tensor->name).text,
            (long long)tensor->dim[0], (long long)tensor->dim[1], (long long)tensor->dim[2],
            (long long)tensor->dim[3]);
    tensor->n_byte = bytes;
    return MOTE_OK;
}

size_t mote_tensor_scale_row(const struct mote_tensor *tensor)
{
    if (!tensor->scale) return 0;
    /* Affine scales are floats of the file's choice; the others are one byte. */
    size_t size = tensor->bias ? (size_t)mote_format_traits(tensor->scale_format)->block_bytes : 1;
    return (size_t)(tensor->dim[0] / tensor->group) * size;
}

struct mote_tensor mote_tensor_rows(const struct mote_tensor *tensor, int64_t expert, int64_t row,
                                    int64_t n_row)
{
    if (tensor->part) return mote_tensor_rows(&tensor->part[expert], 0, row, n_row);
    struct mote_tensor view = *tensor;
    size_t first = (size_t)expert * (size_t)tensor->dim[1] + (size_t)row;
    size_t row_bytes = mote_format_row_bytes(tensor->format, tensor->dim[0]);
    view.n_dim = 2;
    view.dim[1] = n_row;
    view.dim[2] = view.dim[3] = 1;
    view.n_byte = (size_t)n_row * row_bytes;
    view.data += first * row_bytes;
    if (view.scale) view.scale += first * mote_tensor_scale_row(tensor);
    if (view.bias) view.bias += first * mote_tensor_scale_row(tensor);
    return view;
}

struct mote_matrix mote_tensor_matrix(const struct mote_tensor *tensor, int64_t expert)
{
    struct mote_tensor view = mote_tensor_rows(tensor, expert, 0, tensor->dim[1]);
    return (struct mote_matrix){
        .format = view.format,
        .scale_format = view.scale_format,
        .n_row = view.dim[1],
        .n_col = view.dim[0],
        .row_bytes = mote_format_row_bytes(view.format, view.dim[0]),
        .data = view.data,
        .scale = view.scale,
        .bias = view.bias,
        .group = view.group,
        .factor = view.factor,
    };
}

/* ---- opening ---- */

/* GGUF models in a folder: single files, and the first parts of split ones. */
static size_t whole_models(char **name, size_t n)
{
    size_t kept = 0;
    struct mote_part_name part;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(name[i], "mmproj", 6) == 0) continue; /* an image encoder that goes with a model */
        if (mote_part_name_parse(name[i], ".gguf", &part) && part.part != 1) continue;
        name[kept++] = name[i];
    }
    return kept;
}

static mote_status open_folder(const char *path, struct mote_arena *arena, struct mote_budget *budget,
                               struct mote_catalogue **out)
{
    char **gguf, **safetensors, *config, *file;
    size_t n_gguf, n_safetensors;
    TRY(mote_path_join(arena, path, "config.json", &config));
    TRY(mote_folder_list(arena, path, ".safetensors", &safetensors, &n_safetensors));
    TRY(mote_folder_list(arena, path, ".gguf", &gguf, &n_gguf));
    int has_config = mote_is_file(config);
    if (has_config && n_safetensors) return mote_hf_open(path, budget, out);
    size_t n_whole = whole_models(gguf, n_gguf);
    if (n_whole == 1) {
        TRY(mote_path_join(arena, path, gguf[0], &file));
        return mote_gguf_open(file, budget, out);
    }
    FAIL_IF(n_whole > 1, MOTE_ARGUMENT, "%s: holds %zu GGUF models (%s, %s%s), name one of them", path,
            n_whole, gguf[0], gguf[1], n_whole > 2 ? ", ..." : "");
    FAIL_IF(n_gguf, MOTE_NOT_FOUND, "%s: holds %zu .gguf files (%s%s) but no whole model", path, n_gguf,
            gguf[0], n_gguf > 1 ? ", ..." : "");
    return mote_fail(MOTE_NOT_FOUND,
                     "%s: found %s and %zu .safetensors files, expected a .gguf file, or config.json with "
                     "*.safetensors",
                     path, has_config ? "config.json" : "no config.json", n_safetensors);
}

static mote_status open_file(const char *path, struct mote_budget *budget, struct mote_catalogue **out)
{
    struct mote_mapfile file;
    TRY(mote_mapfile_open(path, &file));
    int is_gguf = file.size >= 4 && (memcmp(file.data, "GGUF", 4) == 0 || memcmp(file.data, "FUGG", 4) == 0);
    size_t size = file.size;
    mote_mapfile_close(&file);
    if (is_gguf) return mote_gguf_open(path, budget, out);
    const char *dot = strrchr(path, '.');
    FAIL_IF(dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".json") == 0), MOTE_ARGUMENT,
            "%s: one file of a Hugging Face or MLX model; give the folder that holds config.json", path);
    return mote_fail(MOTE_FORMAT, "%s: %zu bytes that do not start with \"GGUF\"", path, size);
}

/* Nothing at `path`: someone who asks for model.gguf may have it in parts. */
static mote_status offer_parts(const char *path, struct mote_arena *arena)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t stem = strlen(base);
    struct mote_part_name part;
    if (mote_part_name_parse(base, ".gguf", &part)) stem = part.stem_length;
    else if (stem > 5 && strcmp(base + stem - 5, ".gguf") == 0) stem -= 5;
    char *folder, **name;
    size_t n;
    TRY(mote_arena_strdup(arena, slash ? path : ".", slash ? (size_t)(slash - path) + 1 : 1, &folder));
    if (mote_is_folder(folder)) {
        TRY(mote_folder_list(arena, folder, ".gguf", &name, &n));
        n = whole_models(name, n);
        for (size_t i = 0; i < n; i++)
            FAIL_IF(mote_part_name_parse(name[i], ".gguf", &part) && part.stem_length == stem &&
                        memcmp(name[i], base, stem) == 0,
                    MOTE_NOT_FOUND, "%s: no such file; the model is split, its first part is %.*s%s", path,
                    (int)(base - path), path, name[i]);
    }
    return mote_fail(MOTE_NOT_FOUND, "%s: no such file or folder", path);
}

mote_status mote_catalogue_open(const char *path, struct mote_budget *budget, struct mote_catalogue **out)
{
    *out = NULL;
    struct mote_arena arena; /* of names, only while opening */
    mote_arena_init(&arena, budget, MOTE_MEM_TABLES);
    mote_status status;
    if (mote_is_folder(path)) status = open_folder(path, &arena, budget, out);
    else if (mote_is_file(path)) status = open_file(path, budget, out);
    else status = offer_parts(path, &arena);
    mote_arena_free(&arena);
    return status;
}
