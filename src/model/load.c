/* load.c: from a catalogue to a model: walk the architecture's tables, check everything once.
 *
 * Owns: opening (views and checks, nothing read) and placing (vectors decoded, matrices handed to the
 * backend). One idea: a tensor is fetched in one place (fetch), which compares its shape with the
 * hyper-parameters and counts its bytes; a layer's tensor that no rule asked for is an error, because
 * ignoring it would change the answer.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/arch.h"
#include "quant/decode.h"

enum { NAME_SIZE = 128, VECTOR_ALIGN = 16, MAX_LAYER = 4096 };

struct vector {
    const struct mote_tensor *tensor;
    int64_t n;
    const float **to; /* where the placed address goes */
};

struct mote_network_state {
    struct mote_arena arena;
    unsigned char *used; /* [catalogue->n_tensor] */
    struct vector *vector;
    size_t n_vector, capacity;
    size_t n_float; /* all vectors, each padded to VECTOR_ALIGN floats */
    float *floats;  /* backend memory */
    struct mote_backend *backend;
    int charged; /* mapped bytes are in the budget */
    struct mote_network_options options;
};

/* ---- metadata ---- */

static mote_status read_key(struct mote_network *model, const struct mote_key_rule *rule)
{
    char key[NAME_SIZE];
    snprintf(key, sizeof key, "%s.%s", model->arch->name, rule->suffix);
    void *field = (char *)&model->hyper + rule->offset;
    mote_status status = MOTE_OK;
    if (rule->type == MOTE_KEY_U64) {
        uint64_t value = rule->fallback == MOTE_KEY_INFERRED ? 0 : (uint64_t)rule->fallback;
        status = mote_meta_u64(model->catalogue, key, &value);
        FAIL_IF(value > INT32_MAX, MOTE_FORMAT, "%s: %llu is out of range (at most %d)", key,
                (unsigned long long)value, INT32_MAX);
        memcpy(field, &value, sizeof value);
    } else if (rule->type == MOTE_KEY_F64) {
        double value = rule->fallback;
        status = mote_meta_f64(model->catalogue, key, &value);
        FAIL_IF(!isfinite(value), MOTE_FORMAT, "%s: not a finite number", key);
        memcpy(field, &value, sizeof value);
    } else {
        int value = (int)rule->fallback;
        status = mote_meta_bool(model->catalogue, key, &value);
        memcpy(field, &value, sizeof value);
    }
    if (status != MOTE_NOT_FOUND) return status;
    if (rule->need == MOTE_KEY_REQUIRED)
        return mote_fail(MOTE_FORMAT, "metadata key %s is missing: %s needs it", key, model->arch->name);
    enum mote_log_level level = rule->need == MOTE_KEY_EXPECTED ? MOTE_LOG_WARNING : MOTE_LOG_INFO;
    if (rule->fallback == MOTE_KEY_INFERRED) mote_log(level, "%s is missing: inferred", key);
    else mote_log(level, "%s is missing: using %g", key, rule->fallback);
    return MOTE_OK;
}

static mote_status read_rope_scaling(struct mote_network *model)
{
    char key[NAME_SIZE];
    struct mote_text type = {"none", 4};
    snprintf(key, sizeof key, "%s.rope.scaling.type", model->arch->name);
    mote_status status = mote_meta_text(model->catalogue, key, &type);
    if (status != MOTE_OK && status != MOTE_NOT_FOUND) return status;
    int linear = type.length == 6 && !memcmp(type.data, "linear", 6);
    int none = (type.length == 4 && !memcmp(type.data, "none", 4)) ||
               (type.length == 7 && !memcmp(type.data, "default", 7)) || type.length == 0;
    FAIL_IF(!linear && !none, MOTE_UNSUPPORTED, "%s: RoPE scaling \"%.*s\" is not supported (none, linear)",
            key, (int)(type.length < 64 ? type.length : 64), type.data);
    model->hyper.rope_factor = 1;
    if (none) return MOTE_OK;
    snprintf(key, sizeof key, "%s.rope.scaling.factor", model->arch->name);
    status = mote_meta_f64(model->catalogue, key, &model->hyper.rope_factor);
    if (status == MOTE_NOT_FOUND) {
        mote_log(MOTE_LOG_WARNING, "%s is missing: using 1", key);
        status = MOTE_OK;
    }
    FAIL_IF(!(model->hyper.rope_factor > 0), MOTE_FORMAT, "%s: %g, expected more than 0", key,
            model->hyper.rope_factor);
    return status;
}

/* Rows of the first layer's tensor of that name: what an absent width key would have said. */
static uint64_t infer_rows(const struct mote_network *model, const char *name)
{
    char full[NAME_SIZE];
    for (uint64_t layer = 0; layer < model->hyper.n_layer; layer++) {
        snprintf(full, sizeof full, "blk.%llu.%s", (unsigned long long)layer, name);
        const struct mote_tensor *tensor = mote_catalogue_tensor(model->catalogue, full);
        if (tensor && tensor->dim[1] <= INT32_MAX) return (uint64_t)tensor->dim[1];
    }
    return 0;
}

static mote_status read_hyper(struct mote_network *model)
{
    struct mote_hyper *h = &model->hyper;
    const char *arch = model->arch->name;
    h->n_group = h->n_group_used = 1;
    for (size_t i = 0; i < model->arch->n_key; i++) TRY(read_key(model, &model->arch->key[i]));
    TRY(read_rope_scaling(model));
    FAIL_IF(h->n_layer < 1 || h->n_layer > MAX_LAYER, MOTE_FORMAT, "%s.block_count: %llu, expected 1..%d",
            arch, (unsigned long long)h->n_layer, MAX_LAYER);
    FAIL_IF(h->d_model < 1 || h->n_head < 1, MOTE_FORMAT,
            "%s: embedding_length %llu and attention.head_count %llu must be at least 1", arch,
            (unsigned long long)h->d_model, (unsigned long long)h->n_head);
    if (!h->n_head_kv) h->n_head_kv = h->n_head;
    if (!h->head_dim) h->head_dim = h->d_model / h->n_head;
    if (!h->n_rot) h->n_rot = h->head_dim;
    if (!h->n_ff) h->n_ff = infer_rows(model, "ffn_up.weight");
    if (!h->n_ff_expert && h->n_expert) h->n_ff_expert = infer_rows(model, "ffn_up_exps.weight");
    if (!h->n_ff_shared) h->n_ff_shared = infer_rows(model, "ffn_up_shexp.weight");
    FAIL_IF(h->n_head % h->n_head_kv, MOTE_FORMAT,
            "%s: attention.head_count %llu is not a multiple of head_count_kv %llu", arch,
            (unsigned long long)h->n_head, (unsigned long long)h->n_head_kv);
    FAIL_IF(h->head_dim < 1 || h->head_dim > 65536 || h->n_head > 65536, MOTE_FORMAT,
            "%s: %llu heads of %llu are out of range (65536 at most)", arch, (unsigned long long)h->n_head,
            (unsigned long long)h->head_dim);
    FAIL_IF(h->n_rot > h->head_dim || h->n_rot % 2, MOTE_FORMAT,
            "%s.rope.dimension_count: %llu, expected an even number up to the head size %llu", arch,
            (unsigned long long)h->n_rot, (unsigned long long)h->head_dim);
    FAIL_IF(h->n_expert > MOTE_MAX_EXPERTS, MOTE_UNSUPPORTED, "%s.expert_count: %llu, at most %d", arch,
            (unsigned long long)h->n_expert, MOTE_MAX_EXPERTS);
    FAIL_IF(h->n_expert && (h->n_used < 1 || h->n_used > h->n_expert), MOTE_FORMAT,
            "%s.expert_used_count: %llu, expected 1..%llu (expert_count)", arch,
            (unsigned long long)h->n_used, (unsigned long long)h->n_expert);
    FAIL_IF(!(h->eps > 0 && h->rope_base > 0), MOTE_FORMAT,
            "%s: norm epsilon %g and RoPE base %g must be positive", arch, h->eps, h->rope_base);
    if (h->n_ctx_train < 1) h->n_ctx_train = 2048;
    char key[NAME_SIZE];
    uint64_t value_dim = h->head_dim;
    snprintf(key, sizeof key, "%s.attention.value_length", arch);
    mote_status status = mote_meta_u64(model->catalogue, key, &value_dim);
    if (status != MOTE_OK && status != MOTE_NOT_FOUND) return status;
    FAIL_IF(value_dim != h->head_dim, MOTE_UNSUPPORTED, "%s: %llu differs from the key length %llu", key,
            (unsigned long long)value_dim, (unsigned long long)h->head_dim);
    return MOTE_OK;
}

/* ---- tensors ---- */

static size_t scale_bytes(const struct mote_tensor *tensor)
{
    static const size_t size[] = {[MOTE_FORMAT_F32] = 4, [MOTE_FORMAT_F16] = 2, [MOTE_FORMAT_BF16] = 2};
    if (!tensor->group) return 0;
    if (!tensor->bias) return 1; /* e8m0, e4m3 */
    return 2 * size[tensor->scale_format];
}

static size_t tensor_bytes(const struct mote_tensor *tensor)
{
    size_t bytes = 0;
    if (tensor->part) {
        for (int64_t e = 0; e < tensor->dim[2]; e++) bytes += tensor_bytes(&tensor->part[e]);
        return bytes;
    }
    bytes = tensor->n_byte;
    if (tensor->group)
        bytes += (size_t)(tensor->dim[0] / tensor->group) * (size_t)(tensor->dim[1] * tensor->dim[2]) *
                 scale_bytes(tensor);
    return bytes;
}

static int is_weight_format(enum mote_format format)
{
    return mote_format_traits(format)->family != MOTE_FAMILY_OTHER;
}

/* The tensor `name` with that shape, counted and marked; *out NULL when it is absent and optional. */
static mote_status fetch(struct mote_network *model, const char *name, int optional, int64_t cols,
                         int64_t rows, int64_t experts, const struct mote_tensor **out)
{
    const struct mote_tensor *t = *out = mote_catalogue_tensor(model->catalogue, name);
    if (!t && optional) return MOTE_OK;
    FAIL_IF(!t, MOTE_FORMAT, "tensor %s is missing (%s wants it as [%lld, %lld, %lld])", name,
            model->arch->name, (long long)cols, (long long)rows, (long long)experts);
    FAIL_IF(t->dim[0] != cols || t->dim[1] != rows || t->dim[2] != experts || t->dim[3] != 1, MOTE_FORMAT,
            "tensor %s is [%lld, %lld, %lld, %lld], expected [%lld, %lld, %lld]", name, (long long)t->dim[0],
            (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3], (long long)cols,
            (long long)rows, (long long)experts);
    for (int64_t e = 0; e < (t->part ? experts : 1); e++) {
        const struct mote_tensor *part = t->part ? &t->part[e] : t;
        FAIL_IF(!is_weight_format(part->format), MOTE_UNSUPPORTED, "tensor %s: type %s is not one of weights",
                part->name, mote_format_traits(part->format)->name);
    }
    model->state->used[t - model->catalogue->tensor] = 1;
    return MOTE_OK;
}

static mote_status copy_name(struct mote_network *model, const char *text, const char **out)
{
    char *copy;
    TRY(mote_arena_strdup(&model->state->arena, text, strlen(text), &copy));
    *out = copy;
    return MOTE_OK;
}

static mote_status load_matrix(struct mote_network *model, const char *name, int optional, int is_router,
                               int64_t rows, int64_t cols, struct mote_weight *out)
{
    const struct mote_tensor *tensor;
    TRY(fetch(model, name, optional, cols, rows, 1, &tensor));
    if (!tensor) return MOTE_OK;
    out->w = mote_tensor_matrix(tensor, 0);
    out->act = is_router ? MOTE_WISH_F32 : model->state->options.act;
    model->mapped_bytes += tensor_bytes(tensor);
    model->limits.act_linear |= 1u << mote_act_chosen(tensor->format, out->act);
    if (cols > model->limits.max_col) model->limits.max_col = cols;
    return copy_name(model, name, &out->name);
}

static mote_status load_vector(struct mote_network *model, const char *name, int optional, int64_t n,
                               const float **out)
{
    const struct mote_tensor *tensor;
    TRY(fetch(model, name, optional, n, 1, 1, &tensor));
    if (!tensor) return MOTE_OK;
    FAIL_IF(mote_format_traits(tensor->format)->family != MOTE_FAMILY_PLAIN, MOTE_UNSUPPORTED,
            "tensor %s: type %s, expected f32, f16 or bf16 for a vector", name,
            mote_format_traits(tensor->format)->name);
    struct mote_network_state *state = model->state;
    if (state->n_vector == state->capacity) {
        size_t capacity = state->capacity ? 2 * state->capacity : 64;
        TRY(mote_mem_resize(model->budget, MOTE_MEM_TABLES, capacity * sizeof *state->vector,
                            &state->vector));
        state->capacity = capacity;
    }
    state->vector[state->n_vector++] = (struct vector){tensor, n, out};
    state->n_float += (size_t)(n + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN;
    return MOTE_OK;
}

/* [n_expert] views of a projection of a layer's experts, from row `first_row` on. */
static mote_status expert_views(struct mote_network *model, const struct mote_tensor *tensor,
                                int64_t n_expert, int64_t first_row, int64_t n_row,
                                const struct mote_matrix **out, unsigned *act)
{
    struct mote_matrix *view;
    TRY(mote_arena_alloc(&model->state->arena, (size_t)n_expert * sizeof *view, &view));
    for (int64_t e = 0; e < n_expert; e++) {
        view[e] = mote_tensor_matrix(tensor, e);
        if (first_row) {
            size_t planes = view[e].group ? (size_t)(view[e].n_col / view[e].group) * (size_t)first_row : 0;
            size_t item = view[e].bias ? scale_bytes(tensor->part ? &tensor->part[e] : tensor) / 2 : 1;
            view[e].data += view[e].row_bytes * (size_t)first_row;
            if (view[e].scale) view[e].scale += planes * item;
            if (view[e].bias) view[e].bias += planes * item;
        }
        view[e].n_row = n_row;
        *act |= 1u << mote_act_chosen(view[e].format, model->state->options.act);
    }
    *out = view;
    return MOTE_OK;
}

/* "blk.<layer>.<rule's name with part in it>" */
static void expert_name(char name[NAME_SIZE], uint64_t layer, const struct mote_tensor_rule *rule,
                        const char *part)
{
    char own[NAME_SIZE / 2];
    snprintf(own, sizeof own, rule->name, part);
    snprintf(name, NAME_SIZE, "blk.%llu.%s", (unsigned long long)layer, own);
}

static mote_status load_experts(struct mote_network *model, uint64_t layer,
                                const struct mote_tensor_rule *rule, int64_t n_ff, int64_t n_expert,
                                struct mote_expert_set *set)
{
    int64_t d_model = (int64_t)model->hyper.d_model;
    const struct mote_tensor *gate, *up, *down;
    char name[NAME_SIZE];
    struct mote_backend_limits *limits = &model->limits;

    expert_name(name, layer, rule, "gate_up");
    if (mote_catalogue_tensor(model->catalogue, name)) { /* gate's rows, then up's */
        TRY(fetch(model, name, 0, d_model, 2 * n_ff, n_expert, &gate));
        TRY(expert_views(model, gate, n_expert, 0, n_ff, &set->gate, &limits->act_moe));
        TRY(expert_views(model, gate, n_expert, n_ff, n_ff, &set->up, &limits->act_moe));
    } else {
        expert_name(name, layer, rule, "gate");
        TRY(fetch(model, name, 0, d_model, n_ff, n_expert, &gate));
        expert_name(name, layer, rule, "up");
        TRY(fetch(model, name, 0, d_model, n_ff, n_expert, &up));
        TRY(expert_views(model, gate, n_expert, 0, n_ff, &set->gate, &limits->act_moe));
        TRY(expert_views(model, up, n_expert, 0, n_ff, &set->up, &limits->act_moe));
        model->mapped_bytes += tensor_bytes(up);
    }
    model->mapped_bytes += tensor_bytes(gate);
    expert_name(name, layer, rule, "down");
    TRY(fetch(model, name, 0, n_ff, d_model, n_expert, &down));
    TRY(expert_views(model, down, n_expert, 0, d_model, &set->down, &limits->act_down));
    model->mapped_bytes += tensor_bytes(down);

    set->n_expert = (int32_t)n_expert;
    set->n_ff = n_ff;
    set->d_model = d_model;
    set->activation = model->arch->activation;
    set->act = model->state->options.act;
    int64_t *widest =
        rule->offset == offsetof(struct mote_layer, experts) ? &limits->n_ff : &limits->n_ff_shared;
    if (n_ff > *widest) *widest = n_ff;
    expert_name(name, layer, rule, "*");
    return copy_name(model, name, &set->name);
}

static mote_status load_layer(struct mote_network *model, uint64_t index)
{
    const struct mote_hyper *h = &model->hyper;
    const int64_t dim[MOTE_DIM_COUNT] = {
        [MOTE_DIM_ONE] = 1,
        [MOTE_DIM_MODEL] = (int64_t)h->d_model,
        [MOTE_DIM_Q] = (int64_t)(h->n_head * h->head_dim),
        [MOTE_DIM_KV] = (int64_t)(h->n_head_kv * h->head_dim),
        [MOTE_DIM_HEAD] = (int64_t)h->head_dim,
        [MOTE_DIM_EXPERTS] = (int64_t)h->n_expert,
        [MOTE_DIM_FF] = (int64_t)h->n_ff,
        [MOTE_DIM_FF_EXPERT] = (int64_t)h->n_ff_expert,
        [MOTE_DIM_FF_SHARED] = (int64_t)h->n_ff_shared,
    };
    struct mote_layer *layer = &model->layer[index];
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "blk.%llu.ffn_gate_inp.weight", (unsigned long long)index);
    int is_moe = mote_catalogue_tensor(model->catalogue, name) != NULL;
    for (size_t i = 0; i < model->arch->n_tensor; i++) {
        const struct mote_tensor_rule *rule = &model->arch->tensor[i];
        if (rule->where != MOTE_IN_ALL && is_moe != (rule->where == MOTE_IN_MOE)) continue;
        void *field = (char *)layer + rule->offset;
        snprintf(name, sizeof name, "blk.%llu.%s", (unsigned long long)index, rule->name);
        switch (rule->kind) {
        case MOTE_RULE_MATRIX:
        case MOTE_RULE_ROUTER:
            TRY(load_matrix(model, name, rule->optional, rule->kind == MOTE_RULE_ROUTER, dim[rule->rows],
                            dim[rule->cols], field));
            break;
        case MOTE_RULE_VECTOR: TRY(load_vector(model, name, rule->optional, dim[rule->rows], field)); break;
        case MOTE_RULE_EXPERTS:
            TRY(load_experts(model, index, rule, dim[rule->rows], dim[rule->cols], field));
        }
    }
    if (!is_moe) return MOTE_OK;
    layer->routing = (struct mote_routing){
        .score = model->arch->score,
        .n_expert = (int32_t)h->n_expert,
        .n_used = (int32_t)h->n_used,
        .n_group = (int32_t)h->n_group,
        .n_group_used = (int32_t)h->n_group_used,
        .renormalise = h->renormalise,
        .scale = (float)h->expert_scale,
    };
    layer->experts.routing = &layer->routing;
    return MOTE_OK;
}

/* A tensor nobody asked for: in a layer it would change the answer, elsewhere it is worth a word. */
static mote_status check_leftovers(const struct mote_network *model)
{
    const struct mote_catalogue *catalogue = model->catalogue;
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        if (model->state->used[i]) continue;
        const char *name = catalogue->tensor[i].name;
        FAIL_IF(!strncmp(name, "blk.", 4), MOTE_UNSUPPORTED,
                "tensor %s is not part of architecture %s as mote knows it", name, model->arch->name);
        mote_log(MOTE_LOG_WARNING, "tensor %s is not used", name);
    }
    return MOTE_OK;
}

static mote_status make_rope(struct mote_network *model)
{
    const struct mote_hyper *h = &model->hyper;
    float *inv_freq;
    TRY(mote_arena_alloc(&model->state->arena, (size_t)(h->n_rot / 2 + 1) * sizeof *inv_freq, &inv_freq));
    for (uint64_t i = 0; i < h->n_rot / 2; i++)
        inv_freq[i] = (float)(pow(h->rope_base, -2.0 * (double)i / (double)h->n_rot) / h->rope_factor);
    model->rope = (struct mote_rope){.n_rot = (int64_t)h->n_rot, .inv_freq = inv_freq, .magnitude = 1};
    return MOTE_OK;
}

static mote_status load(struct mote_network *model)
{
    struct mote_network_state *state = model->state;
    struct mote_hyper *h = &model->hyper;
    struct mote_text arch_name = {NULL, 0};
    mote_status status = mote_meta_text(model->catalogue, "general.architecture", &arch_name);
    FAIL_IF(status == MOTE_NOT_FOUND, MOTE_FORMAT, "metadata key general.architecture is missing");
    TRY(status);
    model->arch = mote_arch_find(arch_name.data, arch_name.length);
    FAIL_IF(!model->arch, MOTE_UNSUPPORTED, "architecture \"%.*s\" is not supported (supported: %s)",
            (int)(arch_name.length < 64 ? arch_name.length : 64), arch_name.data, mote_arch_names());
    TRY(read_hyper(model));
    TRY(mote_mem_calloc(model->budget, MOTE_MEM_TABLES, model->catalogue->n_tensor + 1, 1, &state->used));
    TRY(mote_arena_alloc(&state->arena, (size_t)h->n_layer * sizeof *model->layer, &model->layer));

    const struct mote_tensor *embedding = mote_catalogue_tensor(model->catalogue, "token_embd.weight");
    FAIL_IF(!embedding, MOTE_FORMAT, "tensor token_embd.weight is missing");
    FAIL_IF(embedding->dim[1] < 1 || embedding->dim[1] > INT32_MAX, MOTE_FORMAT,
            "tensor token_embd.weight: %lld rows are out of range", (long long)embedding->dim[1]);
    h->n_vocab = (uint64_t)embedding->dim[1];
    int64_t n_vocab = embedding->dim[1], d_model = (int64_t)h->d_model;
    TRY(load_matrix(model, "token_embd.weight", 0, 0, n_vocab, d_model, &model->embedding));
    TRY(load_matrix(model, "output.weight", 1, 0, n_vocab, d_model, &model->output));
    model->tied = model->output.w.n_row == 0;
    if (model->tied) model->output = model->embedding;
    TRY(load_vector(model, "output_norm.weight", 0, d_model, &model->output_norm));
    for (uint64_t i = 0; i < h->n_layer; i++) TRY(load_layer(model, i));
    TRY(check_leftovers(model));
    TRY(make_rope(model));
    model->limits.d_model = d_model;
    model->limits.n_expert = (int32_t)h->n_expert;
    model->limits.n_used = (int32_t)h->n_used;
    model->limits.n_head = (int64_t)h->n_head;
    model->limits.n_head_kv = (int64_t)h->n_head_kv;
    model->limits.head_dim = (int64_t)h->head_dim;
    model->limits.n_rot = (int64_t)h->n_rot;
    model->limits.n_vocab = (int64_t)h->n_vocab;
    return MOTE_OK;
}

mote_status mote_network_open(const struct mote_catalogue *catalogue,
                              const struct mote_network_options *options, struct mote_budget *budget,
                              struct mote_network **out)
{
    *out = NULL;
    struct mote_network *model;
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *model, &model));
    model->catalogue = catalogue;
    model->budget = budget;
    mote_status status = mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *model->state, &model->state);
    if (status == MOTE_OK) {
        mote_arena_init(&model->state->arena, budget, MOTE_MEM_TABLES);
        if (options) model->state->options = *options;
        status = load(model);
    }
    if (status != MOTE_OK) {
        mote_network_close(model);
        return mote_context(status, "%s", catalogue->path);
    }
    *out = model;
    return MOTE_OK;
}

/* ---- placing ---- */

static void unplace(struct mote_network *model)
{
    struct mote_network_state *state = model->state;
    struct mote_backend *backend = state->backend;
    if (!backend) return;
    for (uint64_t i = 0; i < model->hyper.n_layer; i++) {
        struct mote_layer *layer = &model->layer[i];
        struct mote_weight *weight[] = {&layer->q, &layer->k,      &layer->v,
                                        &layer->o, &layer->router, &layer->shared_gate};
        for (size_t j = 0; j < sizeof weight / sizeof *weight; j++) {
            backend->ops->unplace(backend, weight[j]->placed);
            weight[j]->placed = NULL;
        }
        backend->ops->unplace(backend, layer->experts.placed);
        backend->ops->unplace(backend, layer->shared.placed);
        layer->experts.placed = layer->shared.placed = NULL;
    }
    if (!model->tied) backend->ops->unplace(backend, model->output.placed);
    backend->ops->unplace(backend, model->embedding.placed);
    model->output.placed = model->embedding.placed = NULL;
    backend->ops->free(backend, state->floats);
    state->floats = NULL;
    for (size_t i = 0; i < state->n_vector; i++) *state->vector[i].to = NULL;
    if (state->charged) mote_budget_give(model->budget, MOTE_MEM_MAPPED, model->mapped_bytes);
    state->charged = 0;
    state->backend = NULL;
}

static mote_status place_weight(struct mote_backend *backend, struct mote_weight *weight)
{
    return weight->w.n_row ? backend->ops->place(backend, weight) : MOTE_OK;
}

static mote_status place_set(struct mote_backend *backend, struct mote_expert_set *set)
{
    return set->n_expert ? backend->ops->place_experts(backend, set) : MOTE_OK;
}

static mote_status place_vectors(struct mote_network *model, struct mote_backend *backend)
{
    struct mote_network_state *state = model->state;
    float *host;
    TRY(backend->ops->alloc(backend, MOTE_MEM_WEIGHTS, state->n_float * sizeof *host, &state->floats));
    size_t at = 0;
    for (size_t i = 0; i < state->n_vector; i++) {
        const struct vector *vector = &state->vector[i];
        struct mote_matrix view = mote_tensor_matrix(vector->tensor, 0);
        TRY(mote_mem_alloc(model->budget, MOTE_MEM_TABLES, (size_t)vector->n * sizeof *host, &host));
        mote_decode(&view, 0, 0, vector->n, host);
        mote_status status =
            backend->ops->upload(backend, state->floats + at, host, (size_t)vector->n * sizeof *host);
        mote_mem_free(host);
        TRY(status);
        *vector->to = state->floats + at;
        at += (size_t)(vector->n + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN;
    }
    return MOTE_OK;
}

static mote_status place(struct mote_network *model, struct mote_backend *backend)
{
    if (backend->ops->reads_in_place) {
        TRY(mote_budget_take(model->budget, MOTE_MEM_MAPPED, model->mapped_bytes));
        model->state->charged = 1;
    }
    struct mote_network_state *state = model->state;
    TRY(place_vectors(model, backend));
    TRY(place_weight(backend, &model->embedding));
    if (model->tied) model->output.placed = model->embedding.placed;
    else TRY(place_weight(backend, &model->output));
    for (uint64_t i = 0; i < model->hyper.n_layer; i++) {
        struct mote_layer *layer = &model->layer[i];
        TRY(place_weight(backend, &layer->q));
        TRY(place_weight(backend, &layer->k));
        TRY(place_weight(backend, &layer->v));
        TRY(place_weight(backend, &layer->o));
        TRY(place_weight(backend, &layer->router));
        TRY(place_weight(backend, &layer->shared_gate));
        TRY(place_set(backend, &layer->experts));
        TRY(place_set(backend, &layer->shared));
        if (state->options.progress && !backend->ops->reads_in_place)
            state->options.progress(
                state->options.progress_context, "loading",
                (size_t)((double)model->mapped_bytes * (double)(i + 1) / (double)model->hyper.n_layer),
                model->mapped_bytes, "bytes");
        if (layer->experts.n_expert && backend->ops->place_routing)
            TRY(backend->ops->place_routing(backend, &layer->routing, &layer->router));
    }
    if (backend->ops->ready) TRY(backend->ops->ready(backend));
    return MOTE_OK;
}

mote_status mote_network_place(struct mote_network *model, struct mote_backend *backend)
{
    FAIL_IF(model->state->backend, MOTE_ARGUMENT, "model: already placed");
    model->state->backend = backend;
    mote_status status = place(model, backend);
    if (status != MOTE_OK) unplace(model);
    return status;
}

size_t mote_network_vector_bytes(const struct mote_network *model)
{
    return model->state->n_float * sizeof(float);
}

static mote_status add_weight(const struct mote_backend_kind *kind,
                              const struct mote_backend_options *options, const struct mote_weight *weight,
                              size_t *total)
{
    size_t bytes = 0;
    if (weight->w.n_row) TRY(kind->weight_bytes(options, weight, &bytes));
    FAIL_IF(!mote_add_size(*total, bytes, total), MOTE_ARGUMENT, "plan: more than an address space");
    return MOTE_OK;
}

static mote_status add_experts(const struct mote_backend_kind *kind,
                               const struct mote_backend_options *options, const struct mote_expert_set *set,
                               size_t *total)
{
    size_t bytes = 0;
    if (set->n_expert) TRY(kind->expert_bytes(options, set, &bytes));
    FAIL_IF(!mote_add_size(*total, bytes, total), MOTE_ARGUMENT, "plan: more than an address space");
    return MOTE_OK;
}

mote_status mote_network_placed_bytes(const struct mote_network *model, const struct mote_backend_kind *kind,
                                      const struct mote_backend_options *options, size_t *bytes)
{
    TRY(add_weight(kind, options, &model->embedding, bytes));
    if (!model->tied) TRY(add_weight(kind, options, &model->output, bytes));
    for (uint64_t i = 0; i < model->hyper.n_layer; i++) {
        const struct mote_layer *layer = &model->layer[i];
        const struct mote_weight *weight[] = {&layer->q, &layer->k,      &layer->v,
                                              &layer->o, &layer->router, &layer->shared_gate};
        for (size_t j = 0; j < sizeof weight / sizeof *weight; j++)
            TRY(add_weight(kind, options, weight[j], bytes));
        TRY(add_experts(kind, options, &layer->experts, bytes));
        TRY(add_experts(kind, options, &layer->shared, bytes));
    }
    return MOTE_OK;
}

void mote_network_close(struct mote_network *model)
{
    if (!model) return;
    if (model->state) {
        unplace(model);
        mote_mem_free(model->state->used);
        mote_mem_free(model->state->vector);
        mote_arena_free(&model->state->arena);
    }
    mote_mem_free(model->state);
    mote_mem_free(model);
}
