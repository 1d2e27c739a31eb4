/* model.c: the public handle of a model: open, plan, describe, tokens, chat, detokenise. See mote.h. */
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/arch.h"
#include "text/chat.h"

const char *mote_version(void)
{
    return MOTE_VERSION;
}

void mote_log_handler(void (*handler)(void *context, int level, const char *message), void *context)
{
    mote_log_set(handler, context);
}

/* ---- options ---- */

static mote_status choose(const char *text, const char *option, const char *const *names, int n, int *out)
{
    if (!text) return MOTE_OK;
    char list[128] = "";
    for (int i = 0; i < n; i++) {
        if (!strcmp(text, names[i])) {
            *out = i;
            return MOTE_OK;
        }
        strcat(list, i ? ", " : "");
        strcat(list, names[i]);
    }
    return mote_fail(MOTE_ARGUMENT, "%s '%s': expected one of %s", option, text, list);
}

mote_status mote_moe_kernels_parse(const char *text, enum mote_moe_kernels *out)
{
    static const char *const names[] = {"fused", "unfused", "portable"}; /* as the enum has them */
    int kernels = MOTE_MOE_FUSED;
    TRY(choose(text, "expert block", names, 3, &kernels));
    *out = (enum mote_moe_kernels)kernels;
    return MOTE_OK;
}

mote_status mote_device_choose(const char *text, const struct mote_backend_kind **kind, int *index)
{
    static const struct mote_backend_kind *const kinds[] = {&mote_backend_cpu, &mote_backend_cuda};
    *index = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i]->name);
        *kind = kinds[i];
        if (!text || !strcmp(text, kinds[i]->name)) return MOTE_OK;
        int end = 0;
        if (i > 0 && !strncmp(text, kinds[i]->name, n) && sscanf(text + n, ":%3d%n", index, &end) == 1 &&
            !text[n + (size_t)end] && *index >= 0)
            return MOTE_OK;
    }
    return mote_fail(MOTE_ARGUMENT, "device '%s': expected cpu, cuda or cuda:N", text);
}

/* Backends report in size_t and cannot be cancelled. */
static void show_backend(void *context, const char *what, size_t done, size_t total, const char *unit)
{
    const struct mote_model *model = context;
    if (model->progress) model->progress(model->progress_context, what, done, total, unit);
}

/* Measured: resident memory of `mote run` with the smallest model, less what its budget counted. */
enum { PROGRAM_BYTES = 17 << 18 };

/* What no plan sees of a device: allocations rounded up to 2 MiB, kernels, recorded steps. Not measured. */
static const size_t device_spare = (size_t)512 << 20;

/* The plan, compact or not. */
static mote_status plan_as(struct mote_model *model, int compact, int64_t n_session,
                           struct mote_memory_plan *plan)
{
    model->backend_options.compact = compact;
    struct mote_memory_plan_options need = {
        .backend = model->kind,
        .backend_options = model->backend_options,
        .forward = {.max_row = model->n_batch},
        .kv_type = model->kv_type,
        .n_ctx = model->n_ctx,
        .n_sequence = n_session,
    };
    TRY(mote_memory_plan_make(model->network, &need, plan));
    /* What no budget sees (the program, its libraries, stacks), and what handles and samplers take. */
    size_t program = PROGRAM_BYTES + 24 * (size_t)model->network->hyper.n_vocab;
    plan->bytes[MOTE_MEM_TABLES] += program;
    plan->total += program;
    return MOTE_OK;
}

/* Weights lie as kernels read them fastest where they have room: below the limit, or without one in what the device has
 * free now. The options stay as the plan has them. */
static mote_status plan_memory(struct mote_model *model, size_t limit, int64_t n_session,
                               struct mote_memory_plan *plan)
{
    struct mote_memory_plan compact;
    TRY(plan_as(model, 1, n_session, &compact));
    TRY(plan_as(model, 0, n_session, plan));
    if (compact.total == plan->total) return MOTE_OK;
    size_t need = plan->total, room = limit;
    if (!limit) {
        need += device_spare;
        room = mote_device_room(model->backend_options.device);
    }
    if (room && need > room) {
        mote_log(MOTE_LOG_WARNING, "weights lie compact for want of memory: %zu bytes, not %zu, and slower",
                 compact.bytes[MOTE_MEM_WEIGHTS], plan->bytes[MOTE_MEM_WEIGHTS]);
        *plan = compact;
        model->backend_options.compact = 1;
    } else {
        mote_log(MOTE_LOG_INFO, "weights have room: %zu bytes; compact they would be %zu, and slower",
                 plan->bytes[MOTE_MEM_WEIGHTS], compact.bytes[MOTE_MEM_WEIGHTS]);
    }
    return MOTE_OK;
}

/* Everything of a model but its memory: what `plan` needs and `open` goes on from. Over the limit only `open` fails. */
static mote_status prepare(const char *path, const struct mote_model_options *given, int is_hard,
                           struct mote_model *model, struct mote_memory_plan *plan)
{
    FAIL_IF(!path, MOTE_ARGUMENT, "model: no path");
    struct mote_model_options options = {0};
    if (given) {
        FAIL_IF(given->struct_size < sizeof(size_t), MOTE_ARGUMENT, "model options: struct_size is not set");
        MOTE_TAKE_OPTIONS(options, given);
    }
    static const char *const kvs[] = {"f32", "f16", "q8_0"};
    enum mote_act_wish act;
    enum mote_moe_kernels moe;
    int kv = MOTE_KV_F16;
    TRY(mote_act_wish_parse(options.act, &act));
    TRY(mote_moe_kernels_parse(options.moe, &moe));
    TRY(choose(options.kv, "KV type", kvs, 3, &kv));
    FAIL_IF(options.n_ctx < 0 || options.n_batch < 0 || options.n_session < 0 || options.n_thread < 0,
            MOTE_ARGUMENT,
            "model options: context %lld, batch %lld, sessions %lld, threads %d: none may be negative",
            (long long)options.n_ctx, (long long)options.n_batch, (long long)options.n_session,
            options.n_thread);
    FAIL_IF(options.n_batch > 65536, MOTE_ARGUMENT, "batch of %lld rows: at most 65536",
            (long long)options.n_batch);

    TRY(mote_budget_create(is_hard ? (size_t)options.memory : 0, &model->budget));
    TRY(mote_catalogue_open(path, model->budget, &model->catalogue));
    struct mote_network_options network = {.act = act, .progress = show_backend, .progress_context = model};
    model->progress = options.progress;
    model->progress_context = options.progress_context;
    TRY(mote_network_open(model->catalogue, &network, model->budget, &model->network));
    const struct mote_hyper *hyper = &model->network->hyper;
    mote_status status =
        mote_vocab_open(model->catalogue, (size_t)hyper->n_vocab, model->budget, &model->tokenizer);
    if (status == MOTE_NOT_FOUND) {
        TRY(mote_mem_strdup(model->budget, mote_error(), strlen(mote_error()), &model->no_tokenizer));
        mote_log(MOTE_LOG_WARNING, "%s", model->no_tokenizer);
    } else {
        TRY(status);
    }
    model->n_ctx = options.n_ctx               ? options.n_ctx
                   : hyper->n_ctx_train < 4096 ? (int64_t)hyper->n_ctx_train
                                               : 4096;
    model->n_batch = options.n_batch ? options.n_batch : 512;
    if (model->n_batch > model->n_ctx) model->n_batch = model->n_ctx;
    model->kv_type = (enum mote_kv_type)kv;
    model->backend_options = (struct mote_backend_options){.n_thread = options.n_thread,
                                                           .moe_kernels = moe,
                                                           .progress = show_backend,
                                                           .progress_context = model};
    TRY(mote_device_choose(options.device, &model->kind, &model->backend_options.device));
    int64_t n_session = options.n_session ? options.n_session : 1;
    TRY(plan_memory(model, (size_t)options.memory, n_session, plan));
    return is_hard ? mote_memory_plan_check(plan, (size_t)options.memory) : MOTE_OK;
}

static mote_status name_kernels(struct mote_model *model)
{
    enum mote_cpu_tier tier;
    struct mote_device_info device = MOTE_OPTIONS(mote_device_info);
    if (!model->kind->weight_bytes) {
        TRY(mote_cpu_tier_choose(&tier));
        snprintf(model->kernels, sizeof model->kernels, "%s", mote_cpu_tier_name(tier));
    } else {
        TRY(mote_device_describe(1 + model->backend_options.device, 0, &device));
        snprintf(model->kernels, sizeof model->kernels, "%s", device.arch);
    }
    return MOTE_OK;
}

mote_status mote_model_open(const char *path, const struct mote_model_options *options, mote_model **out)
{
    *out = NULL;
    struct mote_model *model;
    struct mote_memory_plan plan;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *model, &model));
    mote_status status;
    TRY_GOTO(prepare(path, options, 1, model, &plan), status, fail);
    struct mote_backend_limits limits = model->network->limits;
    limits.max_row = model->n_batch;
    TRY_GOTO(model->kind->create(&model->backend_options, &limits, model->budget, &model->backend), status,
             fail);
    TRY_GOTO(mote_network_place(model->network, model->backend), status, fail);
    struct mote_forward_options forward = {.max_row = model->n_batch};
    TRY_GOTO(mote_forward_create(model->network, model->backend, &forward, &model->forward), status, fail);
    TRY_GOTO(name_kernels(model), status, fail);
    const char *arch = model->network->arch->name;
    struct mote_text name = {"", 0};
    status = mote_meta_text(model->catalogue, "general.name", &name);
    if (status != MOTE_NOT_FOUND && status != MOTE_OK) goto fail;
    TRY_GOTO(mote_mem_strdup(model->budget, name.data, name.length, &model->name), status, fail);
    TRY_GOTO(mote_mem_strdup(model->budget, arch, strlen(arch), &model->arch), status, fail);
    *out = model;
    return MOTE_OK;
fail:
    mote_model_close(model);
    return status;
}

void mote_model_close(mote_model *model)
{
    if (!model) return;
    mote_forward_destroy(model->forward);
    mote_network_close(model->network);
    if (model->backend) model->backend->ops->destroy(model->backend);
    mote_tokenizer_destroy(model->tokenizer);
    if (model->catalogue) mote_catalogue_close(model->catalogue);
    mote_mem_free(model->name);
    mote_mem_free(model->arch);
    mote_mem_free(model->no_tokenizer);
    mote_budget_destroy(model->budget);
    mote_mem_free(model);
}

mote_status mote_model_plan(const char *path, const struct mote_model_options *options, struct mote_plan *out)
{
    struct mote_model *model;
    struct mote_memory_plan plan;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *model, &model));
    mote_status status = prepare(path, options, 0, model, &plan);
    if (status == MOTE_OK) {
        struct mote_plan need = {
            .struct_size = out->struct_size,
            .mapped = plan.bytes[MOTE_MEM_MAPPED],
            .weights = plan.bytes[MOTE_MEM_WEIGHTS],
            .kv = plan.bytes[MOTE_MEM_KV],
            .scratch = plan.bytes[MOTE_MEM_SCRATCH],
            .tables = plan.bytes[MOTE_MEM_TABLES],
            .total = plan.total,
        };
        struct mote_model_options own = {0};
        if (options) MOTE_TAKE_OPTIONS(own, options);
        int64_t n_session = own.n_session ? own.n_session : 1;
        need.kv_per_token = need.kv / (uint64_t)(model->n_ctx * n_session);
        memcpy(out, &need, out->struct_size < sizeof need ? out->struct_size : sizeof need);
    }
    mote_model_close(model);
    return status;
}

/* ---- what it is ---- */

static int ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);
    return n >= t && !strcmp(name + n - t, tail);
}

mote_status mote_model_describe(const mote_model *model, struct mote_model_info *out)
{
    const struct mote_hyper *hyper = &model->network->hyper;
    struct mote_model_info info = {
        .struct_size = out->struct_size,
        .arch = model->arch,
        .name = model->name,
        .kernels = model->kernels,
        .n_layer = (int64_t)hyper->n_layer,
        .n_vocab = (int64_t)hyper->n_vocab,
        .d_model = (int64_t)hyper->d_model,
        .n_expert = (int64_t)hyper->n_expert,
        .n_expert_used = (int64_t)hyper->n_used,
        .n_ctx_train = (int64_t)hyper->n_ctx_train,
        .n_byte = model->catalogue->n_byte,
        .n_thread = model->backend_options.n_thread ? model->backend_options.n_thread : mote_cpu_count(),
    };
    double active = 0, bytes = 0;
    for (size_t i = 0; i < model->catalogue->n_tensor; i++) {
        const struct mote_tensor *tensor = &model->catalogue->tensor[i];
        double weights = 1, share = 1;
        for (int k = 0; k < tensor->n_dim; k++) weights *= (double)tensor->dim[k];
        if (ends_with(tensor->name, "_exps.weight")) share = (double)hyper->n_used / (double)tensor->dim[2];
        /* A token reads one row of the embedding, unless it is the output matrix too. */
        if (!strcmp(tensor->name, "token_embd.weight") && !model->network->tied)
            share = 1 / (double)tensor->dim[1];
        struct mote_matrix w = mote_tensor_matrix(tensor, 0);
        double row = (double)mote_format_row_bytes(w.format, w.n_col);
        if (w.group) /* the planes of an MLX tensor */
            row += (double)(w.n_col / w.group) *
                   (w.bias ? 2.0 * mote_format_traits(w.scale_format)->block_bytes : 1.0);
        info.n_param += (uint64_t)weights;
        active += share * weights;
        bytes += share * row * weights / (double)tensor->dim[0];
    }
    info.n_param_active = (uint64_t)active;
    info.n_byte_per_token = (uint64_t)bytes;
    memcpy(out, &info, out->struct_size < sizeof info ? out->struct_size : sizeof info);
    return MOTE_OK;
}

/* ---- text ---- */

mote_status mote_model_need_tokenizer(const struct mote_model *model)
{
    FAIL_IF(!model->tokenizer, MOTE_NOT_FOUND, "%s", model->no_tokenizer);
    return MOTE_OK;
}

mote_status mote_model_tokenize(const mote_model *model, const char *text, size_t length, int flags,
                                int32_t *ids, size_t capacity, size_t *n)
{
    *n = 0;
    TRY(mote_model_need_tokenizer(model));
    int own = (flags & MOTE_TOKENIZE_SPECIAL ? MOTE_ENCODE_SPECIAL : 0) |
              (flags & MOTE_TOKENIZE_BOS ? MOTE_ENCODE_BOS : 0);
    return mote_tokenize(model->tokenizer, text, length, own, ids, capacity, n);
}

int mote_model_token_ends(const mote_model *model, int32_t id)
{
    return model->tokenizer && mote_token_ends(model->tokenizer, id);
}

mote_status mote_model_chat(const mote_model *model, const struct mote_chat_message *message,
                            size_t n_message, int32_t *ids, size_t capacity, size_t *n)
{
    *n = 0;
    TRY(mote_model_need_tokenizer(model));
    struct mote_message *turn;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n_message + 1, sizeof *turn, &turn));
    for (size_t i = 0; i < n_message; i++)
        turn[i] = (struct mote_message){message[i].role, message[i].content};
    mote_status status = mote_chat_encode(model->tokenizer, turn, n_message, 1, ids, capacity, n);
    mote_mem_free(turn);
    return status;
}

struct mote_decoder {
    struct mote_detokenizer detokenizer;
};

mote_status mote_decoder_create(const mote_model *model, int show_control, mote_decoder **out)
{
    *out = NULL;
    TRY(mote_model_need_tokenizer(model));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof **out, out));
    mote_detokenizer_init(&(*out)->detokenizer, model->tokenizer, show_control);
    return MOTE_OK;
}

void mote_decoder_destroy(mote_decoder *decoder)
{
    mote_mem_free(decoder);
}

size_t mote_model_text_capacity(const mote_model *model)
{
    return model->tokenizer ? 3 * mote_token_max_bytes(model->tokenizer) + 16 : 16;
}

void mote_decoder_put(mote_decoder *decoder, int32_t id, char *out, size_t *n)
{
    *n = mote_detokenizer_put(&decoder->detokenizer, id, out);
}

void mote_decoder_end(mote_decoder *decoder, char *out, size_t *n)
{
    *n = mote_detokenizer_end(&decoder->detokenizer, out);
}
