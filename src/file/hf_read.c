/* hf_read.c: see hf_read.h.
 *
 * Owns: finding the shards, and turning modules (weight, and MLX's scales and biases) into tensors under GGUF's
 * names. Names and keys are tables in hf_names.c.
 * One idea: describe() makes a checked tensor of one module; what is left is where to put it: alone, as one expert
 * of a stack, or cut in two.
 */
#include "file/hf_read.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "file/folder.h"

struct assembly {
    struct mote_catalogue *catalogue;
    const struct mote_hf_config *config;
    struct mote_safetensors *set;
    uint64_t n_expert; /* as config.json has it */
    const char *first_skipped, *first_dtype;
    size_t n_skipped;
};

/* A tensor's name is a module and one of these. */
static const char *const planes[] = {".weight", ".bias", ".scales", ".biases", ""};
enum plane { PLANE_WEIGHT, PLANE_BIAS, PLANE_SCALES, PLANE_BIASES, PLANE_BARE, PLANE_COUNT };

static struct mote_safetensor *find_plane(const struct assembly *a, const char *module, size_t length,
                                          enum plane plane)
{
    char name[512];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)length, module, planes[plane]);
    return n > 0 && (size_t)n < sizeof name ? mote_safetensors_find(a->set, name) : NULL;
}

/* ---- one module to one tensor ---- */

/* Shape in GGUF's order, and the data. */
static mote_status take_shape(const struct mote_safetensor *from, struct mote_tensor *tensor)
{
    FAIL_IF(from->n_dim < 1 || from->n_dim > MOTE_MAX_DIMS, MOTE_FORMAT,
            "%s: tensor '%s' has %d dimensions, expected 1 to %d", from->file,
            mote_show_name(from->name).text, from->n_dim, MOTE_MAX_DIMS);
    tensor->n_dim = from->n_dim;
    for (int i = 0; i < from->n_dim; i++) tensor->dim[i] = from->dim[from->n_dim - 1 - i];
    tensor->data = from->data;
    return MOTE_OK;
}

static mote_status describe_plain(const struct mote_safetensor *from, struct mote_tensor *tensor)
{
    FAIL_IF(from->format != MOTE_FORMAT_F32 && from->format != MOTE_FORMAT_F16 &&
                from->format != MOTE_FORMAT_BF16,
            MOTE_UNSUPPORTED,
            "%s: tensor '%s' is of dtype %s, expected F32, F16 or BF16 (or U32 with scales)", from->file,
            mote_show_name(from->name).text, mote_show_name(from->dtype).text);
    tensor->format = (enum mote_format)from->format;
    TRY(take_shape(from, tensor));
    mote_status status = mote_tensor_measure(tensor);
    return status == MOTE_OK ? status : mote_context(status, "%s", from->file);
}

/* Scales or biases: the weight's shape with one value per group. */
static mote_status check_plane(const struct mote_safetensor *plane, const struct mote_safetensor *weight,
                               int64_t n_group)
{
    int same = plane->n_dim == weight->n_dim && plane->dim[plane->n_dim - 1] == n_group;
    for (int i = 0; same && i < weight->n_dim - 1; i++) same = plane->dim[i] == weight->dim[i];
    FAIL_IF(!same, MOTE_FORMAT,
            "%s: shape of '%s' does not go with '%s': expected the same rows, %lld values each", plane->file,
            mote_show_name(plane->name).text, mote_show_name(weight->name).text, (long long)n_group);
    return MOTE_OK;
}

static mote_status describe_mlx(const struct assembly *a, const char *module, size_t length,
                                const struct mote_safetensor *weight, struct mote_safetensor *scales,
                                struct mote_tensor *tensor)
{
    struct mote_hf_quant quant;
    char path[512];
    snprintf(path, sizeof path, "%.*s", (int)length, module);
    TRY(mote_hf_config_quant(a->config, path, &quant));
    const char *name = weight->name;
    FAIL_IF(strcmp(weight->dtype, "U32") != 0, MOTE_FORMAT,
            "%s: tensor '%s' has scales and dtype %s, expected U32", weight->file, mote_show_name(name).text,
            mote_show_name(weight->dtype).text);
    TRY(take_shape(weight, tensor));
    /* words * 32 == bits * group * groups: a config that disagrees with the file shows here. */
    int64_t words = tensor->dim[0], n_group = scales->n_dim ? scales->dim[(scales->n_dim - 1) & 3] : 0;
    FAIL_IF(
        words < 1 || words > INT32_MAX || n_group < 1 || n_group > INT32_MAX ||
            scales->n_dim > MOTE_MAX_DIMS || words * 32 != n_group * quant.group * quant.bits,
        MOTE_FORMAT,
        "%s: tensor '%s' has %lld words and %lld scales a row, which do not fit the %d bits in groups of %d "
        "(%s) of config.json",
        weight->file, mote_show_name(name).text, (long long)words, (long long)n_group, quant.bits,
        quant.group, quant.mode);
    tensor->dim[0] = n_group * quant.group;
    tensor->format = quant.format;
    tensor->group = quant.group;
    TRY(check_plane(scales, weight, n_group));
    tensor->scale = scales->data;
    scales->used = 1;

    struct mote_safetensor *biases = find_plane(a, module, length, PLANE_BIASES);
    int affine = strcmp(quant.mode, "affine") == 0;
    FAIL_IF(affine != (biases != NULL), MOTE_FORMAT, "%s: '%s' is of mode %s %s biases", weight->file,
            mote_show_name(name).text, quant.mode, biases ? "but has" : "but has no");
    if (affine) {
        TRY(check_plane(biases, weight, n_group));
        FAIL_IF(scales->format != MOTE_FORMAT_F32 && scales->format != MOTE_FORMAT_F16 &&
                    scales->format != MOTE_FORMAT_BF16,
                MOTE_UNSUPPORTED, "%s: tensor '%s' is of dtype %s, expected F32, F16 or BF16", scales->file,
                mote_show_name(scales->name).text, mote_show_name(scales->dtype).text);
        FAIL_IF(biases->format != scales->format, MOTE_FORMAT,
                "%s: tensor '%s' is of dtype %s, its scales are %s", biases->file,
                mote_show_name(biases->name).text, mote_show_name(biases->dtype).text, scales->dtype);
        tensor->scale_format = (enum mote_format)scales->format;
        tensor->bias = biases->data;
        biases->used = 1;
    } else {
        FAIL_IF(strcmp(scales->dtype, "U8") != 0, MOTE_UNSUPPORTED,
                "%s: tensor '%s' is of dtype %s, expected U8 (mode %s)", scales->file,
                mote_show_name(scales->name).text, mote_show_name(scales->dtype).text, quant.mode);
    }
    return mote_tensor_measure(tensor);
}

static mote_status describe(const struct assembly *a, const char *module, size_t length,
                            struct mote_safetensor *weight, struct mote_tensor *tensor)
{
    struct mote_safetensor *scales = find_plane(a, module, length, PLANE_SCALES);
    *tensor = (struct mote_tensor){.name = weight->name, .factor = 1};
    weight->used = 1;
    return scales ? describe_mlx(a, module, length, weight, scales, tensor) : describe_plain(weight, tensor);
}

/* ---- where it goes ---- */

static mote_status add_named(const struct assembly *a, struct mote_tensor *tensor, const char *to,
                             int64_t layer, const char *suffix)
{
    char name[128], *copy;
    mote_hf_name_make(to, layer, suffix, name, sizeof name);
    TRY(mote_arena_strdup(&a->catalogue->state->arena, name, strlen(name), &copy));
    tensor->name = copy;
    return mote_catalogue_add_tensor(a->catalogue, tensor);
}

/* One expert into its stack; the stack is made by the expert that comes first. */
static mote_status add_expert(const struct assembly *a, const struct mote_hf_place *place,
                              struct mote_tensor *tensor)
{
    struct mote_catalogue *catalogue = a->catalogue;
    int64_t expert = place->number[1];
    char name[128];
    FAIL_IF(tensor->n_dim != 2, MOTE_FORMAT, "tensor '%s' has %d dimensions, expected 2",
            mote_show_name(tensor->name).text, tensor->n_dim);
    FAIL_IF((uint64_t)expert >= a->n_expert, MOTE_FORMAT, "tensor '%s': config.json has %llu experts",
            mote_show_name(tensor->name).text, (unsigned long long)a->n_expert);
    mote_hf_name_make(place->rule->to, place->number[0], ".weight", name, sizeof name);
    const struct mote_tensor *stack = mote_catalogue_tensor(catalogue, name);
    if (!stack) {
        struct mote_tensor *part, whole = {.n_dim = 3, .dim = {tensor->dim[0], tensor->dim[1], 1, 1}};
        FAIL_IF(a->n_expert > a->set->n_tensor, MOTE_FORMAT,
                "config.json has %llu experts, the files have %zu tensors", (unsigned long long)a->n_expert,
                a->set->n_tensor);
        TRY(mote_arena_alloc(&catalogue->state->arena, (size_t)a->n_expert * sizeof *part, &part));
        whole.format = tensor->format;
        whole.factor = 1;
        TRY(add_named(a, &whole, place->rule->to, place->number[0], ".weight"));
        struct mote_tensor *made = &catalogue->state->tensor[catalogue->n_tensor - 1];
        made->dim[2] = (int64_t)a->n_expert;
        made->part = part;
        stack = made;
    }
    FAIL_IF(!stack->part, MOTE_FORMAT, "tensor '%s': '%s' is there as a whole, too",
            mote_show_name(tensor->name).text, name);
    FAIL_IF(tensor->dim[0] != stack->dim[0] || tensor->dim[1] != stack->dim[1], MOTE_FORMAT,
            "tensor '%s' is [%lld][%lld], the other experts of its layer are [%lld][%lld]",
            mote_show_name(tensor->name).text, (long long)tensor->dim[1], (long long)tensor->dim[0],
            (long long)stack->dim[1], (long long)stack->dim[0]);
    struct mote_tensor *slot = (struct mote_tensor *)(uintptr_t)&stack->part[expert];
    *slot = *tensor;
    slot->name = stack->name;
    return MOTE_OK;
}

/* Rows [from, from + n) of every expert. */
static mote_status add_half(const struct assembly *a, const struct mote_tensor *whole, int64_t from,
                            int64_t n, const char *to, int64_t layer)
{
    struct mote_tensor *part, half = *whole;
    TRY(mote_arena_alloc(&a->catalogue->state->arena, (size_t)whole->dim[2] * sizeof *part, &part));
    half.dim[1] = n;
    half.n_byte = whole->n_byte / 2;
    half.data = half.scale = half.bias = NULL;
    half.part = part;
    for (int64_t e = 0; e < whole->dim[2]; e++) part[e] = mote_tensor_rows(whole, e, from, n);
    TRY(add_named(a, &half, to, layer, ".weight"));
    const char *name = a->catalogue->tensor[a->catalogue->n_tensor - 1].name;
    for (int64_t e = 0; e < whole->dim[2]; e++) part[e].name = name;
    return MOTE_OK;
}

static mote_status add_gate_up(const struct assembly *a, const struct mote_hf_place *place,
                               const struct mote_tensor *tensor)
{
    FAIL_IF(tensor->n_dim != 3 || tensor->dim[1] % 2, MOTE_FORMAT,
            "tensor '%s' is to hold gate and up of all experts, expected 3 dimensions, the second one even",
            mote_show_name(tensor->name).text);
    int64_t n = tensor->dim[1] / 2, layer = place->number[0];
    TRY(add_half(a, tensor, 0, n, place->rule->to, layer));
    return add_half(a, tensor, n, n, place->rule->to_up, layer);
}

static mote_status add_weight(const struct assembly *a, const struct mote_hf_place *place, const char *module,
                              size_t length, struct mote_safetensor *weight)
{
    struct mote_tensor tensor;
    TRY(describe(a, module, length, weight, &tensor));
    const struct mote_hf_name *rule = place->rule;
    switch (rule->role) {
    case MOTE_HF_EXPERT: return add_expert(a, place, &tensor);
    case MOTE_HF_GATE_UP: return add_gate_up(a, place, &tensor);
    case MOTE_HF_STACKED:
        FAIL_IF(tensor.n_dim != 3, MOTE_FORMAT,
                "tensor '%s' has %d dimensions, expected 3 (experts, rows, columns)",
                mote_show_name(tensor.name).text, tensor.n_dim);
        break;
    case MOTE_HF_VECTOR:
        FAIL_IF(tensor.n_dim > 2 || tensor.dim[1] != 1, MOTE_FORMAT,
                "tensor '%s' has %lld rows, expected one", mote_show_name(tensor.name).text,
                (long long)tensor.dim[1]);
        tensor.n_dim = 1;
        break;
    case MOTE_HF_DENSE: break;
    }
    return add_named(a, &tensor, rule->to, place->number[0], ".weight");
}

static mote_status add_bias(const struct assembly *a, const struct mote_hf_place *place,
                            struct mote_safetensor *bias)
{
    struct mote_tensor tensor = {.name = bias->name, .factor = 1};
    FAIL_IF(place->rule->role != MOTE_HF_DENSE && place->rule->role != MOTE_HF_STACKED, MOTE_UNSUPPORTED,
            "%s: tensor '%s': a bias here is not supported", bias->file, mote_show_name(bias->name).text);
    TRY(describe_plain(bias, &tensor));
    bias->used = 1;
    return add_named(a, &tensor, place->rule->to, place->number[0], ".bias");
}

/* ---- all of them ---- */

static int ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && memcmp(text + a - b, end, b) == 0;
}

static void skip(struct assembly *a, const struct mote_safetensor *tensor)
{
    if (ends_with(tensor->name, "rotary_emb.inv_freq")) return; /* follows from the configuration */
    if (a->n_skipped++ == 0) {
        a->first_skipped = tensor->name;
        a->first_dtype = tensor->dtype;
    }
}

static mote_status add_entry(struct assembly *a, struct mote_safetensor *entry)
{
    struct mote_hf_place place;
    for (int plane = 0; plane < PLANE_COUNT; plane++) {
        if (!ends_with(entry->name, planes[plane])) continue;
        size_t length = strlen(entry->name) - strlen(planes[plane]);
        if (!mote_hf_place_find(a->config->family, entry->name, length, &place)) continue;
        /* A tied model's output matrix, if stored at all, is not what Hugging Face runs. */
        if (a->config->tied && strcmp(place.rule->to, "output") == 0) {
            skip(a, entry);
            entry->used = 1;
            return MOTE_OK;
        }
        if (plane == PLANE_WEIGHT || plane == PLANE_BARE)
            return add_weight(a, &place, entry->name, length, entry);
        if (plane == PLANE_BIAS) return add_bias(a, &place, entry);
        return MOTE_OK; /* scales and biases come with their weight; check_left sees those that did not */
    }
    skip(a, entry);
    entry->used = 1;
    return MOTE_OK;
}

static mote_status check_left(const struct assembly *a)
{
    for (size_t i = 0; i < a->set->n_tensor; i++) {
        const struct mote_safetensor *entry = &a->set->tensor[i];
        FAIL_IF(!entry->used, MOTE_FORMAT,
                "%s: tensor '%s' belongs to a weight that is not there, or not quantised", entry->file,
                mote_show_name(entry->name).text);
    }
    return MOTE_OK;
}

/* Every stack complete; then its size. */
static mote_status check_stacks(const struct assembly *a)
{
    struct mote_catalogue *catalogue = a->catalogue;
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        struct mote_tensor *tensor = &catalogue->state->tensor[i];
        char list[96];
        size_t n_missing = 0, at = 0;
        if (!tensor->part || tensor->n_byte) continue;
        for (int64_t e = 0; e < tensor->dim[2]; e++) {
            tensor->n_byte += tensor->part[e].n_byte;
            if (!tensor->part[e].data && n_missing++ < 8)
                at += (size_t)snprintf(list + at, sizeof list - at, "%s%lld", at ? ", " : "", (long long)e);
        }
        FAIL_IF(n_missing, MOTE_FORMAT, "%s: %zu of %lld experts are missing: %s%s", tensor->name, n_missing,
                (long long)tensor->dim[2], list, n_missing > 8 ? ", ..." : "");
    }
    return MOTE_OK;
}

mote_status mote_hf_assemble(struct mote_catalogue *catalogue, const struct mote_hf_config *config,
                             struct mote_safetensors *set)
{
    struct assembly a = {.catalogue = catalogue, .config = config, .set = set};
    char key[64];
    snprintf(key, sizeof key, "%s.expert_count", config->family->arch);
    TRY(mote_meta_u64(catalogue, key, &a.n_expert));
    for (size_t i = 0; i < set->n_tensor; i++) TRY(add_entry(&a, &set->tensor[i]));
    TRY(check_left(&a));
    TRY(check_stacks(&a));
    catalogue->n_byte = 0;
    for (size_t i = 0; i < catalogue->n_tensor; i++)
        catalogue->n_byte += mote_tensor_bytes(&catalogue->tensor[i]);
    FAIL_IF(!config->tied && !mote_catalogue_tensor(catalogue, "output.weight"), MOTE_FORMAT,
            "no lm_head.weight, and config.json does not say tie_word_embeddings");
    if (a.n_skipped)
        mote_log(MOTE_LOG_WARNING, "%s: skipped %zu tensors that %s does not use; the first is %s (%s)",
                 catalogue->path, a.n_skipped, config->family->model_type,
                 mote_show_name(a.first_skipped).text, mote_show_name(a.first_dtype).text);
    return MOTE_OK;
}

/* ---- the folder ---- */

static const char index_name[] = "model.safetensors.index.json";

struct shards {
    char **name; /* without the folder */
    size_t n;
};

static int shard_find(const struct shards *shards, const char *name)
{
    for (size_t i = 0; i < shards->n; i++)
        if (strcmp(shards->name[i], name) == 0) return (int)i;
    return -1;
}

/* model.safetensors.index.json: which file holds which tensor. */
static mote_status read_index(const json_t *index, const char *folder, struct mote_arena *arena,
                              struct shards *shards)
{
    const char *tensor, *last = "";
    json_t *map = json_object_get(index, "weight_map"), *value;
    FAIL_IF(!json_is_object(map), MOTE_FORMAT, "weight_map is %s, expected an object", mote_json_kind(map));
    size_t room = 0;
    char **name = NULL;
    json_object_foreach(map, tensor, value)
    {
        const char *file = json_string_value(value);
        FAIL_IF(!file || !*file || strchr(file, '/'), MOTE_FORMAT,
                "the file of '%s' is not a name in this folder", mote_show_name(tensor).text);
        if (strcmp(file, last) == 0 || shard_find(shards, file) >= 0) continue;
        if (shards->n == room) { /* the arena frees nothing: double */
            room = room ? room * 2 : 16;
            TRY(mote_arena_alloc(arena, room * sizeof *name, &name));
            if (shards->n) memcpy(name, shards->name, shards->n * sizeof *name);
            shards->name = name;
        }
        TRY(mote_arena_strdup(arena, file, strlen(file), &shards->name[shards->n]));
        last = shards->name[shards->n++];
        char *path;
        TRY(mote_path_join(arena, folder, last, &path));
        FAIL_IF(!mote_is_file(path), MOTE_NOT_FOUND, "%s is missing ('%s' is to be in it)", last,
                mote_show_name(tensor).text);
    }
    FAIL_IF(shards->n == 0, MOTE_FORMAT, "weight_map is empty");
    return MOTE_OK;
}

/* Every tensor of the index must be where it says. */
static mote_status check_index(const json_t *index, const struct mote_safetensors *set)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, value)
    {
        const struct mote_safetensor *found = mote_safetensors_find(set, tensor);
        FAIL_IF(!found || strcmp(found->file, json_string_value(value)) != 0, MOTE_FORMAT,
                "tensor '%s' is not in %s", mote_show_name(tensor).text,
                mote_show_name(json_string_value(value)).text);
    }
    return MOTE_OK;
}

/* Without an index: model*.safetensors, and if none is called that, all there are. */
static mote_status list_shards(const char *folder, struct mote_arena *arena, struct shards *shards)
{
    TRY(mote_folder_list(arena, folder, ".safetensors", &shards->name, &shards->n));
    size_t kept = 0;
    for (size_t i = 0; i < shards->n; i++)
        if (strncmp(shards->name[i], "model", 5) == 0) {
            char *swap = shards->name[kept];
            shards->name[kept++] = shards->name[i];
            shards->name[i] = swap;
        }
    if (kept) shards->n = kept;
    FAIL_IF(shards->n == 0, MOTE_NOT_FOUND, "no .safetensors files");
    for (size_t i = 0; i < shards->n; i++) {
        struct mote_part_name part;
        char *name;
        if (!mote_part_name_parse(shards->name[i], ".safetensors", &part)) continue;
        for (unsigned k = 1; k <= part.count; k++) {
            TRY(mote_part_name_make(arena, shards->name[i], ".safetensors", &part, k, &name));
            FAIL_IF(shard_find(shards, name) < 0, MOTE_NOT_FOUND, "%s is missing (part %u of %u)", name, k,
                    part.count);
        }
        break; /* one set is enough: the others are its own parts, or collide by their tensors' names */
    }
    return MOTE_OK;
}

static mote_status read_shards(struct mote_catalogue *catalogue, const json_t *index,
                               const struct mote_hf_config *config, struct mote_safetensors *set)
{
    struct mote_arena *arena = &catalogue->state->arena;
    const char *folder = catalogue->path;
    struct shards shards = {0};
    if (index) {
        mote_status status = read_index(index, folder, arena, &shards);
        if (status != MOTE_OK) return mote_context(status, "%s", index_name);
    } else {
        TRY(list_shards(folder, arena, &shards));
    }
    for (size_t i = 0; i < shards.n; i++) {
        struct mote_mapfile file;
        char *path;
        TRY(mote_path_join(arena, folder, shards.name[i], &path));
        TRY(mote_catalogue_add_file(catalogue, path, &file));
        TRY(mote_safetensors_parse(set, shards.name[i], file.data, file.size));
    }
    if (index) {
        mote_status status = check_index(index, set);
        if (status != MOTE_OK) return mote_context(status, "%s", index_name);
    }
    if (set->is_mlx || config->quantization) catalogue->source = "mlx";
    return mote_hf_assemble(catalogue, config, set);
}

/* The text of a file of the folder, kept mapped; {NULL, 0} when there is none. */
static mote_status map_text(struct mote_catalogue *catalogue, const char *name, struct mote_text *out)
{
    struct mote_mapfile file;
    char *path;
    *out = (struct mote_text){0};
    TRY(mote_path_join(&catalogue->state->arena, catalogue->path, name, &path));
    if (!mote_is_file(path)) return MOTE_OK;
    TRY(mote_catalogue_add_file(catalogue, path, &file));
    *out = (struct mote_text){(const char *)file.data, file.size};
    return MOTE_OK;
}

/* The model's name: that of its folder. */
static mote_status add_keys(struct mote_catalogue *catalogue, const struct mote_hf_config *config)
{
    const char *path = catalogue->path, *end = path + strlen(path);
    while (end > path + 1 && end[-1] == '/') end--;
    const char *start = end;
    while (start > path && start[-1] != '/') start--;
    char *name;
    TRY(mote_arena_strdup(&catalogue->state->arena, start, (size_t)(end - start), &name));
    return mote_hf_config_keys(config, name, catalogue);
}

static mote_status read_folder(struct mote_catalogue *catalogue, struct mote_hf_config *config,
                               json_t **index, struct mote_safetensors *set)
{
    struct mote_text text, index_text;
    TRY(map_text(catalogue, "config.json", &text));
    FAIL_IF(!text.data, MOTE_NOT_FOUND, "config.json is missing or empty");
    mote_status status = mote_hf_config_parse(text.data, text.length, config);
    if (status == MOTE_OK) status = add_keys(catalogue, config);
    if (status != MOTE_OK) return mote_context(status, "config.json");
    TRY(map_text(catalogue, index_name, &index_text));
    if (index_text.data) {
        status = mote_json_parse(index_text.data, index_text.length, index);
        if (status != MOTE_OK) return mote_context(status, "%s", index_name);
    }
    TRY(read_shards(catalogue, *index, config, set));
    TRY(map_text(catalogue, "tokenizer.json", &catalogue->tokenizer_json));
    TRY(map_text(catalogue, "tokenizer_config.json", &catalogue->tokenizer_config_json));
    return map_text(catalogue, "generation_config.json", &catalogue->generation_config_json);
}

mote_status mote_hf_open(const char *folder, struct mote_budget *budget, struct mote_catalogue **out)
{
    *out = NULL;
    struct mote_catalogue *catalogue;
    TRY(mote_catalogue_create(folder, "huggingface", budget, &catalogue));
    struct mote_hf_config config = {0};
    json_t *index = NULL;
    struct mote_safetensors set;
    mote_safetensors_init(&set, budget, &catalogue->state->arena);
    mote_status status = read_folder(catalogue, &config, &index, &set);
    mote_safetensors_free(&set);
    json_decref(index);
    mote_hf_config_free(&config);
    if (status != MOTE_OK) {
        mote_catalogue_close(catalogue);
        return mote_context(status, "%s", folder);
    }
    *out = catalogue;
    return MOTE_OK;
}
