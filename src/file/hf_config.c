/* hf_config.c: see hf_config.h.
 *
 * What a table can say is in hf_names.c; here is what takes more: values that follow from others (head size),
 * the two ways that Hugging Face writes rotary settings, MLX's quantisation dictionary.
 */
#include "file/hf_config.h"

#include <math.h>
#include <string.h>

/* "a.b" goes into object a. NULL when absent or null. */
static const json_t *lookup(const json_t *object, const char *path)
{
    const char *dot = strchr(path, '.');
    if (!dot) {
        const json_t *value = json_object_get(object, path);
        return json_is_null(value) ? NULL : value;
    }
    char first[64];
    size_t length = (size_t)(dot - path);
    if (length >= sizeof first) return NULL;
    memcpy(first, path, length);
    first[length] = 0;
    return lookup(json_object_get(object, first), dot + 1);
}

static mote_status get_u32(const json_t *value, const char *key, uint32_t *out)
{
    uint64_t wide;
    FAIL_IF(!mote_json_u64(value, &wide) || wide > UINT32_MAX, MOTE_FORMAT,
            "'%s' is %s, expected an integer of 32 bits that is not negative", key,
            json_is_number(value) ? "another number" : mote_json_kind(value));
    *out = (uint32_t)wide;
    return MOTE_OK;
}

static mote_status get_f32(const json_t *value, const char *key, float *out)
{
    FAIL_IF(!json_is_number(value), MOTE_FORMAT, "'%s' is %s, expected a number", key, mote_json_kind(value));
    *out = (float)json_number_value(value);
    FAIL_IF(!isfinite(*out), MOTE_FORMAT, "'%s' does not fit 32 bits", key);
    return MOTE_OK;
}

/* ---- adding keys ---- */

struct keys {
    struct mote_catalogue *catalogue;
    const char *arch;
};

static mote_status add(const struct keys *keys, const char *prefix, const char *name, struct mote_meta meta)
{
    struct mote_arena *arena = &keys->catalogue->state->arena;
    size_t a = strlen(prefix), b = strlen(name);
    char *key;
    TRY(mote_arena_alloc(arena, a + b + 1, &key));
    memcpy(key, prefix, a);
    memcpy(key + a, name, b + 1);
    meta.key = (struct mote_text){key, a + b};
    return mote_catalogue_add_meta(keys->catalogue, &meta);
}

static mote_status add_arch(const struct keys *keys, const char *name, struct mote_meta meta)
{
    char prefix[64];
    size_t n = strlen(keys->arch);
    memcpy(prefix, keys->arch, n);
    memcpy(prefix + n, ".", 2);
    return add(keys, prefix, name, meta);
}

static mote_status add_u32(const struct keys *keys, const char *name, uint32_t value)
{
    return add_arch(keys, name, (struct mote_meta){.type = MOTE_META_U32, .value.u = value});
}

static mote_status add_f32(const struct keys *keys, const char *name, float value)
{
    return add_arch(keys, name, (struct mote_meta){.type = MOTE_META_F32, .value.f = (double)value});
}

static mote_status add_text(const struct keys *keys, const char *prefix, const char *name, const char *value)
{
    char *copy;
    TRY(mote_arena_strdup(&keys->catalogue->state->arena, value, strlen(value), &copy));
    struct mote_meta meta = {.type = MOTE_META_STRING, .value.text = {copy, strlen(copy)}};
    return prefix ? add(keys, prefix, name, meta) : add_arch(keys, name, meta);
}

static mote_status add_row(const struct keys *keys, const json_t *root, const struct mote_hf_key *row)
{
    const json_t *value = lookup(root, row->from);
    FAIL_IF(!value && row->required, MOTE_FORMAT, "'%s' is missing", row->from);
    if (!value && row->otherwise < 0) return MOTE_OK;
    if (row->type == MOTE_HF_U32) {
        uint32_t number;
        if (value) TRY(get_u32(value, row->from, &number));
        else number = (uint32_t)row->otherwise;
        return add_u32(keys, row->to, number);
    }
    if (row->type == MOTE_HF_F32) {
        float number = (float)row->otherwise;
        if (value) TRY(get_f32(value, row->from, &number));
        return add_f32(keys, row->to, number);
    }
    FAIL_IF(value && !json_is_boolean(value), MOTE_FORMAT, "'%s' is %s, expected true or false", row->from,
            mote_json_kind(value));
    int truth = value ? json_is_true(value) : row->otherwise != 0;
    return add_arch(keys, row->to, (struct mote_meta){.type = MOTE_META_BOOL, .value.u = (uint64_t)truth});
}

/* ---- attention and rotary settings ---- */

static mote_status add_heads(const struct keys *keys, const json_t *root)
{
    uint32_t n_head, n_kv, hidden, head_dim;
    TRY(get_u32(lookup(root, "num_attention_heads"), "num_attention_heads", &n_head));
    TRY(get_u32(lookup(root, "hidden_size"), "hidden_size", &hidden));
    FAIL_IF(n_head == 0, MOTE_FORMAT, "'num_attention_heads' is 0");
    const json_t *kv = lookup(root, "num_key_value_heads"), *dim = lookup(root, "head_dim");
    n_kv = n_head;
    head_dim = hidden / n_head;
    if (kv) TRY(get_u32(kv, "num_key_value_heads", &n_kv));
    if (dim) TRY(get_u32(dim, "head_dim", &head_dim));
    TRY(add_u32(keys, "attention.head_count_kv", n_kv));
    TRY(add_u32(keys, "attention.key_length", head_dim));
    TRY(add_u32(keys, "attention.value_length", head_dim));
    return add_u32(keys, "rope.dimension_count", head_dim);
}

static mote_status add_yarn(const struct keys *keys, const json_t *rope, const char *type)
{
    static const struct {
        const char *from, *to;
    } reals[] = {{"beta_fast", "rope.scaling.yarn_beta_fast"}, {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    float factor, real;
    TRY(get_f32(lookup(rope, "factor"), "rope_scaling.factor", &factor));
    FAIL_IF(factor < 1, MOTE_FORMAT, "'rope_scaling.factor' is %g, expected 1 or more", (double)factor);
    TRY(add_text(keys, NULL, "rope.scaling.type", type));
    TRY(add_f32(keys, "rope.scaling.factor", factor));
    const json_t *context = lookup(rope, "original_max_position_embeddings");
    uint32_t n_context;
    if (context) {
        TRY(get_u32(context, "rope_scaling.original_max_position_embeddings", &n_context));
        TRY(add_u32(keys, "rope.scaling.original_context_length", n_context));
    }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const json_t *value = lookup(rope, reals[i].from);
        if (!value) continue;
        TRY(get_f32(value, reals[i].from, &real));
        TRY(add_f32(keys, reals[i].to, real));
    }
    const json_t *attention = lookup(rope, "attention_factor");
    if (!attention) return MOTE_OK;
    /* Hugging Face gives the whole factor; GGUF's is on top of yarn's own 1 + 0.1 ln(factor). */
    TRY(get_f32(attention, "rope_scaling.attention_factor", &real));
    return add_f32(keys, "rope.scaling.attn_factor", (float)((double)real / (1 + 0.1 * log((double)factor))));
}

/* rope_theta and rope_scaling at the top, or both in rope_parameters (transformers 5). */
static mote_status add_rope(const struct keys *keys, const json_t *root)
{
    const json_t *parameters = lookup(root, "rope_parameters"), *theta = lookup(root, "rope_theta");
    const json_t *rope = parameters ? parameters : lookup(root, "rope_scaling");
    FAIL_IF(rope && !json_is_object(rope), MOTE_FORMAT, "'%s' is %s, expected an object",
            parameters ? "rope_parameters" : "rope_scaling", mote_json_kind(rope));
    if (parameters && lookup(parameters, "rope_theta")) theta = lookup(parameters, "rope_theta");
    float base = 10000;
    if (theta) TRY(get_f32(theta, "rope_theta", &base));
    FAIL_IF(base <= 0, MOTE_FORMAT, "'rope_theta' is %g, expected a positive number", (double)base);
    TRY(add_f32(keys, "rope.freq_base", base));

    const json_t *type = lookup(rope, "rope_type");
    if (!type) type = lookup(rope, "type");
    if (!type) return MOTE_OK;
    const char *word = json_string_value(type);
    FAIL_IF(!word, MOTE_FORMAT, "rope_type is %s, expected text", mote_json_kind(type));
    if (strcmp(word, "default") == 0) return MOTE_OK;
    FAIL_IF(strcmp(word, "yarn") != 0 && strcmp(word, "linear") != 0, MOTE_UNSUPPORTED,
            "rope_type '%s' is not supported, expected default, linear or yarn", mote_show_name(word).text);
    return add_yarn(keys, rope, word);
}

mote_status mote_hf_config_keys(const struct mote_hf_config *config, const char *name,
                                struct mote_catalogue *catalogue)
{
    const struct keys keys = {catalogue, config->family->arch};
    TRY(add_text(&keys, "general.", "architecture", keys.arch));
    TRY(add_text(&keys, "general.", "type", "model"));
    TRY(add_text(&keys, "general.", "name", name));
    for (size_t i = 0; i < sizeof config->family->keys / sizeof *config->family->keys; i++) {
        const struct mote_hf_key *row = config->family->keys[i];
        for (; row && row->from; row++) TRY(add_row(&keys, config->root, row));
    }
    TRY(add_heads(&keys, config->root));
    return add_rope(&keys, config->root);
}

/* ---- quantisation ---- */

static const struct mode {
    const char *name;
    int bits, group; /* 0: any of the affine ones */
    enum mote_format format;
} modes[] = {
    {"affine", 0, 0, MOTE_FORMAT_AFFINE4},
    {"mxfp4", 4, 32, MOTE_FORMAT_MLX_MXFP4},
    {"nvfp4", 4, 16, MOTE_FORMAT_MLX_NVFP4},
    {"mxfp8", 8, 32, MOTE_FORMAT_MLX_MXFP8},
};

static const int affine_formats[9] = {/* by bits; -1: none */
                                      -1,
                                      -1,
                                      MOTE_FORMAT_AFFINE2,
                                      MOTE_FORMAT_AFFINE3,
                                      MOTE_FORMAT_AFFINE4,
                                      MOTE_FORMAT_AFFINE5,
                                      MOTE_FORMAT_AFFINE6,
                                      -1,
                                      MOTE_FORMAT_AFFINE8};

static mote_status read_quant(const json_t *entry, struct mote_hf_quant *out)
{
    const json_t *mode = lookup(entry, "mode");
    const char *word = mode ? json_string_value(mode) : "affine"; /* also in an override of another default */
    FAIL_IF(!word, MOTE_FORMAT, "mode is %s, expected text", mote_json_kind(mode));
    const struct mode *found = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, word) == 0) found = &modes[i];
    FAIL_IF(!found, MOTE_UNSUPPORTED, "mode '%s' is not supported, expected affine, mxfp4, nvfp4 or mxfp8",
            mote_show_name(word).text);
    const json_t *bits_value = lookup(entry, "bits"), *group_value = lookup(entry, "group_size");
    uint32_t bits = found->bits ? (uint32_t)found->bits : 4,
             group = found->group ? (uint32_t)found->group : 64;
    if (bits_value) TRY(get_u32(bits_value, "bits", &bits));
    if (group_value) TRY(get_u32(group_value, "group_size", &group));
    *out = (struct mote_hf_quant){found->name, (int)bits, (int)group, found->format};
    if (found->bits) {
        FAIL_IF((int)bits != found->bits || (int)group != found->group, MOTE_UNSUPPORTED,
                "mode %s with %u bits in groups of %u, expected %d in groups of %d", word, bits, group,
                found->bits, found->group);
        return MOTE_OK;
    }
    FAIL_IF(bits > 8 || affine_formats[bits] < 0, MOTE_UNSUPPORTED,
            "affine with %u bits, expected 2, 3, 4, 5, 6 or 8", bits);
    FAIL_IF(group != 32 && group != 64 && group != 128, MOTE_UNSUPPORTED,
            "affine with groups of %u, expected 32, 64 or 128", group);
    out->format = (enum mote_format)affine_formats[bits];
    return MOTE_OK;
}

mote_status mote_hf_config_quant(const struct mote_hf_config *config, const char *module,
                                 struct mote_hf_quant *out)
{
    FAIL_IF(!config->quantization, MOTE_FORMAT,
            "module '%s' has scales, but config.json has no \"quantization\"", mote_show_name(module).text);
    const json_t *own = json_object_get(config->quantization, module);
    FAIL_IF(json_is_false(own), MOTE_FORMAT,
            "module '%s' has scales, but config.json says that it is not quantised",
            mote_show_name(module).text);
    mote_status status = read_quant(json_is_object(own) ? own : config->quantization, out);
    return status == MOTE_OK ? status
                             : mote_context(status, "quantization of '%s'", mote_show_name(module).text);
}

/* ---- parsing ---- */

static mote_status find_family(struct mote_hf_config *config)
{
    const json_t *type = lookup(config->root, "model_type");
    FAIL_IF(!json_is_string(type), MOTE_FORMAT, "'model_type' is %s, expected text", mote_json_kind(type));
    char known[512];
    mote_hf_family_list(known, sizeof known);
    config->family = mote_hf_family_find(json_string_value(type));
    FAIL_IF(!config->family, MOTE_UNSUPPORTED, "model_type '%s' is not supported; supported: %s",
            mote_show_name(json_string_value(type)).text, known);
    return MOTE_OK;
}

static mote_status check_fixed(const struct mote_hf_config *config)
{
    for (const struct mote_hf_fixed *row = config->family->fixed; row && row->from; row++) {
        const json_t *value = lookup(config->root, row->from);
        if (!value) continue;
        json_t *wanted = json_loads(row->value, JSON_DECODE_ANY, NULL);
        FAIL_IF(!wanted, MOTE_MEMORY, "no memory for a JSON value");
        int same = json_equal(value, wanted);
        json_decref(wanted);
        FAIL_IF(!same, MOTE_UNSUPPORTED, "'%s' is %s, only %s is supported", row->from,
                json_is_string(value) ? mote_show_name(json_string_value(value)).text : mote_json_kind(value),
                row->value);
    }
    return MOTE_OK;
}

static mote_status find_quantization(struct mote_hf_config *config)
{
    const json_t *own = lookup(config->root, "quantization"),
                 *other = lookup(config->root, "quantization_config");
    const char *method = json_string_value(lookup(other, "quant_method"));
    FAIL_IF(!own && method, MOTE_UNSUPPORTED,
            "quantised by '%s', which is not supported; supported are plain weights and MLX's own formats",
            mote_show_name(method).text);
    config->quantization = own ? own : other;
    if (!config->quantization) return MOTE_OK;
    FAIL_IF(!json_is_object(config->quantization), MOTE_FORMAT, "'quantization' is %s, expected an object",
            mote_json_kind(config->quantization));
    struct mote_hf_quant standard;
    mote_status status = read_quant(config->quantization, &standard);
    return status == MOTE_OK ? status : mote_context(status, "quantization");
}

static mote_status check(struct mote_hf_config *config)
{
    TRY(find_family(config));
    TRY(check_fixed(config));
    TRY(find_quantization(config));
    const json_t *tied = lookup(config->root, "tie_word_embeddings");
    FAIL_IF(tied && !json_is_boolean(tied), MOTE_FORMAT,
            "'tie_word_embeddings' is %s, expected true or false", mote_json_kind(tied));
    config->tied = json_is_true(tied);
    return MOTE_OK;
}

mote_status mote_hf_config_parse(const char *text, size_t length, struct mote_hf_config *out)
{
    *out = (struct mote_hf_config){0};
    TRY(mote_json_parse(text, length, &out->root));
    mote_status status = check(out);
    if (status != MOTE_OK) mote_hf_config_free(out);
    return status;
}

void mote_hf_config_free(struct mote_hf_config *config)
{
    json_decref(config->root);
    *config = (struct mote_hf_config){0};
}
