/* cpu_backend.c: the CPU backend: creation, memory, weights, and the operations that need no job of their
 * own. */
#include "backend/cpu_backend.h"

#include <math.h>
#include <string.h>

#include "quant/decode.h"

/* ---- layout ---- */

/* Add count items of `size` bytes, on a 64-byte line; *offset is where they start. */
static int take(size_t *total, size_t *offset, int64_t count, size_t size)
{
    size_t bytes;
    *offset = *total;
    return count >= 0 && mote_mul_size((size_t)count, size, &bytes) && mote_add_size(bytes, 63, &bytes) &&
           mote_add_size(*total, bytes & ~(size_t)63, total);
}

static int take_acts(size_t *total, size_t offset[MOTE_ACT_TYPE_COUNT], unsigned types, int64_t n_row,
                     int64_t n_col)
{
    for (int type = 0; type < MOTE_ACT_TYPE_COUNT; type++) {
        offset[type] = *total;
        if (!(types >> type & 1) || type == MOTE_ACT_F32 || n_row == 0 || n_col == 0) continue;
        if (!take(total, &offset[type], 1, mote_act_bytes((enum mote_act_type)type, n_row, n_col))) return 0;
    }
    return 1;
}

static int larger(size_t *value, int64_t count, size_t size)
{
    size_t bytes;
    if (count < 0 || !mote_mul_size((size_t)count, size, &bytes) || bytes > SIZE_MAX / 2) return 0;
    if (bytes > *value) *value = bytes;
    return 1;
}

static mote_status lay_out(const struct mote_backend_limits *l, int n_thread, int moe_unfused,
                           struct cpu_layout *at)
{
    const int64_t many = (int64_t)1 << 40;
    FAIL_IF(l->max_row < 1 || l->max_row > INT32_MAX / MOTE_MAX_EXPERTS, MOTE_ARGUMENT,
            "backend: %lld rows a step, expected 1..%d", (long long)l->max_row, INT32_MAX / MOTE_MAX_EXPERTS);
    FAIL_IF(l->max_col < 0 || l->d_model < 0 || l->n_ff < 0 || l->n_ff_shared < 0 || l->n_expert < 0 ||
                l->n_expert > MOTE_MAX_EXPERTS || l->n_used < 0 || l->n_used > l->n_expert ||
                l->max_col > many || l->d_model > many || l->n_ff > many || l->n_ff_shared > many ||
                l->n_head < 0 || l->head_dim < 0 || l->n_rot < 0 || l->n_rot > l->head_dim ||
                l->head_dim > 65536 || l->n_head > 65536,
            MOTE_ARGUMENT, "backend: limits out of range");
    int64_t max_pair = l->max_row * l->n_used, all = max_pair + (l->n_ff_shared ? l->max_row : 0);
    memset(at, 0, sizeof *at);
    size_t total = 0;
    int ok = take_acts(&total, at->act_linear, l->act_linear, l->max_row, l->max_col) &&
             take_acts(&total, at->act_moe, l->act_moe, l->max_row, l->d_model) &&
             take_acts(&total, at->act_down, l->act_down, max_pair, l->n_ff) &&
             take_acts(&total, at->act_shared, l->act_down, l->max_row, l->n_ff_shared) &&
             take(&total, &at->edge_x, mote_limits_have_edges(l) ? l->max_row : 0,
                  (size_t)l->d_model * sizeof(float)) &&
             take(&total, &at->edge_y, mote_limits_have_edges(l) ? l->max_row : 0,
                  (size_t)l->d_model * sizeof(float)) &&
             take(&total, &at->gate, max_pair, (size_t)l->n_ff * sizeof(float)) &&
             take(&total, &at->up, max_pair, (size_t)l->n_ff * sizeof(float)) &&
             take(&total, &at->shared_gate, l->max_row, (size_t)l->n_ff_shared * sizeof(float)) &&
             take(&total, &at->shared_up, l->max_row, (size_t)l->n_ff_shared * sizeof(float)) &&
             take(&total, &at->product, moe_unfused ? all : 0, (size_t)l->d_model * sizeof(float)) &&
             take(&total, &at->pair_id, max_pair, sizeof(int32_t)) &&
             take(&total, &at->pair_row, max_pair, sizeof(int32_t)) &&
             take(&total, &at->place, max_pair, sizeof(int32_t)) &&
             take(&total, &at->group, l->n_expert + 1, sizeof(struct cpu_group)) &&
             take(&total, &at->cosine, l->max_row, (size_t)(l->n_rot / 2) * sizeof(float)) &&
             take(&total, &at->sine, l->max_row, (size_t)(l->n_rot / 2) * sizeof(float)) &&
             take(&total, &at->span_of_row, l->max_row, sizeof(int32_t)) &&
             take(&total, &at->block_span, l->max_row, sizeof(int32_t));
    size_t worker = 0;
    if (l->n_head_kv > 0)
        worker = mote_attend_scratch(l->max_row < CPU_QUERY_BLOCK ? l->max_row : CPU_QUERY_BLOCK,
                                     l->n_head / l->n_head_kv, l->head_dim);
    ok = ok && larger(&worker, (int64_t)MOTE_DOT_ROWS * CPU_TILE_DOT, sizeof(float)) &&
         larger(&worker, l->max_row * CPU_TILE_GEMM, sizeof(float)) &&
         larger(&worker, all * CPU_TILE_MIN, sizeof(float)) && /* what cpu_moe's narrowest tile needs */
         larger(&worker, (all < 1024 ? all : 1024) * CPU_TILE_DOWN, sizeof(float));
    at->worker_bytes = (worker + 63) & ~(size_t)63;
    ok = ok && take(&total, &at->worker, n_thread, at->worker_bytes);
    FAIL_IF(!ok, MOTE_ARGUMENT, "backend: scratch for %lld rows a step is more than an address space",
            (long long)l->max_row);
    at->bytes = total;
    return MOTE_OK;
}

static int threads_of(const struct mote_backend_options *options)
{
    return options && options->n_thread > 0 ? options->n_thread : mote_cpu_count();
}

static mote_status cpu_scratch_bytes(const struct mote_backend_options *options,
                                     const struct mote_backend_limits *limits, size_t *bytes)
{
    struct cpu_layout at;
    TRY(lay_out(limits, threads_of(options), options && options->moe_kernels == MOTE_MOE_UNFUSED, &at));
    *bytes = at.bytes;
    return MOTE_OK;
}

/* ---- memory ---- */

static mote_status cpu_alloc(struct mote_backend *backend, enum mote_mem_kind kind, size_t size, void *out)
{
    return mote_mem_calloc(((struct cpu_backend *)backend)->budget, kind, 1, size, out);
}

static void cpu_free(struct mote_backend *backend, void *memory)
{
    (void)backend;
    mote_mem_free(memory);
}

static mote_status cpu_copy(struct mote_backend *backend, void *to, const void *from, size_t size)
{
    (void)backend;
    if (size) memcpy(to, from, size);
    return MOTE_OK;
}

static mote_status cpu_sync(struct mote_backend *backend)
{
    (void)backend;
    return MOTE_OK;
}

/* ---- weights ---- */

static mote_status check_matrix(const struct cpu_backend *cpu, const char *name, const struct mote_matrix *w,
                                enum mote_act_wish act)
{
    enum mote_act_type type = mote_act_chosen(w->format, act);
    FAIL_IF(!cpu->kernel->dot[type][w->format] || !cpu->kernel->gemm[type][w->format], MOTE_UNSUPPORTED,
            "tensor %s: no %s kernel for type %s with %s activations", name,
            mote_cpu_tier_name(cpu->kernel->tier), mote_format_traits(w->format)->name,
            mote_act_type_name(type));
    return MOTE_OK;
}

static mote_status cpu_place(struct mote_backend *backend, struct mote_weight *weight)
{
    return check_matrix((struct cpu_backend *)backend, weight->name, &weight->w, weight->act);
}

static mote_status cpu_place_experts(struct mote_backend *backend, struct mote_expert_set *set)
{
    const struct mote_matrix *const part[] = {set->gate, set->up, set->down};
    mote_status status = mote_activation_check(&set->activation, set->gate != NULL);
    if (status != MOTE_OK) return mote_context(status, "%s", set->name);
    for (int p = 0; p < 3; p++)
        for (int32_t e = 0; part[p] && e < set->n_expert; e++)
            TRY(check_matrix((struct cpu_backend *)backend, set->name, &part[p][e], set->act));
    return MOTE_OK;
}

static void cpu_unplace(struct mote_backend *backend, void *placed)
{
    (void)backend;
    (void)placed;
}

/* ---- steps ---- */

static mote_status cpu_begin(struct mote_backend *backend, const struct mote_batch *batch)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    FAIL_IF(batch->n_row < 1 || batch->n_row > cpu->limits.max_row, MOTE_ARGUMENT,
            "step: %d rows, expected 1..%lld", batch->n_row, (long long)cpu->limits.max_row);
    int32_t *span_of_row = cpu_scratch(cpu, cpu->at.span_of_row);
    int32_t row = 0;
    for (int32_t s = 0; s < batch->n_span; s++) {
        const struct mote_span *span = &batch->span[s];
        FAIL_IF(span->row != row || span->n_row < 1 || span->n_row > batch->n_row - row, MOTE_ARGUMENT,
                "step: span %d has rows [%d, %d), expected to begin at %d and end by %d", s, span->row,
                span->row + span->n_row, row, batch->n_row);
        FAIL_IF(span->n_past < 0 || span->n_past > span->kv.n_ctx - span->n_row, MOTE_CONTEXT,
                "step: %lld tokens and %d more do not fit a context of %lld", (long long)span->n_past,
                span->n_row, (long long)span->kv.n_ctx);
        for (int32_t i = 0; i < span->n_row; i++) span_of_row[row++] = s;
    }
    FAIL_IF(row != batch->n_row, MOTE_ARGUMENT, "step: spans cover %d rows of %d", row, batch->n_row);
    cpu->batch = batch;
    cpu->rope = NULL;
    return MOTE_OK;
}

struct embed_job {
    const struct mote_matrix *w;
    const int32_t *token;
    float *y;
    struct mote_chunks chunks;
};

static void embed_rows(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct embed_job *job = context;
    for (int64_t i, end; mote_next_chunk(&job->chunks, &i, &end);)
        for (; i < end; i++) mote_decode(job->w, job->token[i], 0, job->w->n_col, job->y + i * job->w->n_col);
}

static mote_status cpu_embed(struct mote_backend *backend, const struct mote_weight *embedding, float *y)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    const struct mote_batch *batch = cpu->batch;
    for (int32_t i = 0; i < batch->n_row; i++)
        FAIL_IF(batch->token[i] < 0 || batch->token[i] >= embedding->w.n_row, MOTE_ARGUMENT,
                "token %d (row %d of the step) is not in the vocabulary of %lld", batch->token[i], i,
                (long long)embedding->w.n_row);
    struct embed_job job = {.w = &embedding->w, .token = batch->token, .y = y};
    mote_chunks_init(&job.chunks, batch->n_row, 4);
    if (batch->n_row <= 4) embed_rows(&job, 0, 1);
    else mote_pool_run(cpu->pool, embed_rows, &job);
    return MOTE_OK;
}

static mote_status cpu_rms_norm(struct mote_backend *backend, const float *x, const int32_t *row,
                                int64_t n_row, int64_t n_col, const float *norm, float eps, float *y)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    for (int64_t i = 0; i < n_row; i++)
        cpu->kernel->rms_norm(x + row[i] * n_col, norm, n_col, eps, y + i * n_col);
    return MOTE_OK;
}

/* ---- whose scratch ---- */

static void use_scratch(struct cpu_backend *cpu, const struct mote_backend_limits *limits,
                        const struct cpu_layout *at, uint8_t *scratch)
{
    cpu->limits = *limits;
    cpu->max_pair = limits->max_row * limits->n_used;
    cpu->at = *at;
    cpu->scratch = scratch;
}

static mote_status cpu_lend(struct mote_backend *backend, const struct mote_loan *loan)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    const struct mote_backend_limits *limits = loan ? loan->limits : &cpu->own_limits;
    struct cpu_layout at;
    TRY(lay_out(limits, cpu->n_thread, cpu->moe_unfused, &at));
    FAIL_IF(loan && loan->scratch && loan->scratch_bytes < at.bytes, MOTE_ARGUMENT,
            "a workspace of %zu bytes, %lld rows need %zu", loan->scratch_bytes, (long long)limits->max_row,
            at.bytes);
    use_scratch(cpu, limits, &at, loan ? loan->scratch : cpu->own_scratch);
    return MOTE_OK;
}

/* ---- creation ---- */

static void cpu_destroy(struct mote_backend *backend)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    if (!cpu) return;
    mote_pool_destroy(cpu->pool);
    mote_mem_free(cpu->own_scratch);
    mote_mem_free(cpu);
}

static const struct mote_backend_ops cpu_ops = {
    .name = "cpu",
    .reads_in_place = 1,
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_host = cpu_alloc,
    .upload = cpu_copy,
    .download = cpu_copy,
    .fetch = cpu_copy,
    .sync = cpu_sync,
    .place = cpu_place,
    .place_experts = cpu_place_experts,
    .unplace = cpu_unplace,
    .lend = cpu_lend,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .linear = mote_cpu_linear,
    .attend = mote_cpu_attend,
    .route = mote_cpu_route,
    .moe = mote_cpu_edge_moe,
};

static mote_status fill(struct cpu_backend *cpu, const struct mote_backend_options *options,
                        const struct mote_backend_limits *limits)
{
    enum mote_cpu_tier tier;
    TRY(mote_cpu_tier_choose(&tier));
    cpu->kernel = mote_cpu_kernels(tier);
    cpu->n_thread = threads_of(options);
    cpu->moe_unfused = options && options->moe_kernels == MOTE_MOE_UNFUSED;
    cpu->own_limits = *limits;
    struct cpu_layout at;
    TRY(lay_out(limits, cpu->n_thread, cpu->moe_unfused, &at));
    TRY(mote_mem_alloc(cpu->budget, MOTE_MEM_SCRATCH, at.bytes, &cpu->own_scratch));
    use_scratch(cpu, limits, &at, cpu->own_scratch);
    return mote_pool_create(cpu->n_thread, &cpu->pool);
}

static mote_status cpu_create(const struct mote_backend_options *options,
                              const struct mote_backend_limits *limits, struct mote_budget *budget,
                              struct mote_backend **out)
{
    *out = NULL;
    struct cpu_backend *cpu;
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *cpu, &cpu));
    cpu->base.ops = &cpu_ops;
    cpu->budget = budget;
    mote_status status = fill(cpu, options, limits);
    if (status != MOTE_OK) {
        cpu_destroy(&cpu->base);
        return status;
    }
    *out = &cpu->base;
    return MOTE_OK;
}

const struct mote_backend_kind mote_backend_cpu = {
    .name = "cpu", .scratch = cpu_scratch_bytes, .create = cpu_create};
