/* cuda_place.c: weights to the device: packed into the tile layout by all threads, a staging buffer at a time, while the
 * buffer before is being copied. Extra memory: the staging buffers, nothing else.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "backend/cuda_backend.h"
#include "base/log.h"

static const struct cuda_text linear_text = {
    .name = "linear.cu", .kernel = {"linear_one", "linear_four", "linear_sixteen", "linear_normed", "embed"}};
static const struct cuda_text plain_text = {
    .name = "plain.cu", .kernel = {"plain_linear", "plain_gemm", "plain_project", "plain_embed"}};
static const struct cuda_text moe_text = {
    .name = "moe_decode.cu", .kernel = {"gate_up_one", "gate_up_many", "down_one", "down_many"}, .shared = 1};
static const struct cuda_text reference_text = {.name = "moe_reference.cu", .kernel = {"project"}};

/* The table of slot addresses of a set. */
#define SLOT_BYTES(n_expert) (((size_t)(n_expert)*CUDA_PROJECTIONS * sizeof(uint64_t) + 15) / 16 * 16)

/* Bases of an expert's rows (BASE_BYTES of mx_narrow.cu): of gate, of up, of down. */
static size_t base_at(int projection, int64_t n_ff)
{
    return (size_t)(projection - CUDA_GATE) * (size_t)((n_ff + 127) / 128 * 128);
}
static size_t base_bytes(int64_t n_ff, int64_t d_model)
{
    return base_at(CUDA_DOWN, n_ff) + (size_t)((d_model + 255) / 256 * 256);
}

/* The table's allocation: slot addresses; for the MXFP4 kernels, which experts are wide and the bases behind them. */
static size_t wide_count(size_t n_expert)
{
    return (n_expert + 3) / 4 * 4;
}
static size_t table_bytes(int is_mx, size_t n_expert, int64_t n_ff, int64_t d_model)
{
    size_t bases = wide_count(n_expert) * sizeof(int32_t) + n_expert * base_bytes(n_ff, d_model);
    return SLOT_BYTES(n_expert) + (is_mx ? bases : 0);
}

/* MXFP4 kernels take tiles sixteen at a time, and look at what lies behind an expert's last one. */
static size_t slack_bytes(int is_mx, const struct mote_tile_kind *down, int64_t n_ff)
{
    return is_mx ? 16 * mote_tile_bytes(down, n_ff) : 0;
}

/* ---- packing and copying ---- */

/* A run of tiles of one matrix, to a place in the staging buffer. */
struct pack_job {
    const struct mote_tile_kind *kind;
    const struct mote_matrix *w;
    int64_t tile, n_tile;
    uint8_t *out;
    uint8_t *base;    /* [rows] of the tiles' rows, or NULL (MXFP4: mote_tile_mx_base) */
    atomic_int *wide; /* what it says of them, together */
    struct mote_chunks chunks;
};

static void pack_tiles(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct pack_job *job = context;
    size_t bytes = mote_tile_bytes(job->kind, job->w->n_col);
    for (int64_t at, end; mote_next_chunk(&job->chunks, &at, &end);) {
        mote_tile_pack(job->kind, job->w, job->tile + at, end - at, job->out + (size_t)at * bytes);
        for (int64_t tile = at; job->base && tile < end; tile++) {
            int wide = mote_tile_mx_base(job->out + (size_t)tile * bytes, job->w->n_col,
                                         job->base + tile * MOTE_TILE_ROWS);
            atomic_fetch_or_explicit(job->wide, wide, memory_order_relaxed);
        }
    }
}

static mote_status stage_open(struct cuda_backend *cuda, struct cuda_stage *stage)
{
    if (!stage->data) TRY(mote_cuda_alloc_pinned(cuda->cuda, CUDA_STAGE_BYTES, &stage->data));
    if (!stage->event) TRY(mote_cuda_event_create(cuda->cuda, &stage->event));
    if (stage->is_busy) TRY(mote_cuda_event_wait(cuda->cuda, stage->event));
    stage->is_busy = 0;
    return MOTE_OK;
}

/* The whole matrix to `to` (device, mote_tile_matrix_bytes); its rows' bases to `base` (host, MXFP4), or NULL. */
static mote_status put_matrix(struct cuda_backend *cuda, const struct mote_tile_kind *kind,
                              const struct mote_matrix *w, uint8_t *to, uint8_t *base, atomic_int *wide)
{
    size_t bytes = mote_tile_bytes(kind, w->n_col);
    int64_t n_tile = (w->n_row + MOTE_TILE_ROWS - 1) / MOTE_TILE_ROWS,
            most = (int64_t)(CUDA_STAGE_BYTES / bytes);
    FAIL_IF(most < 1, MOTE_UNSUPPORTED, "rows of %lld weights are too wide", (long long)w->n_col);
    for (int64_t tile = 0; tile < n_tile; tile += most) {
        struct cuda_stage *stage = &cuda->stage[cuda->next_stage];
        cuda->next_stage = (cuda->next_stage + 1) % CUDA_STAGES;
        TRY(stage_open(cuda, stage));
        int64_t n = n_tile - tile < most ? n_tile - tile : most;
        struct pack_job job = {.kind = kind,
                               .w = w,
                               .tile = tile,
                               .n_tile = n,
                               .out = stage->data,
                               .base = base ? base + tile * MOTE_TILE_ROWS : NULL,
                               .wide = wide};
        mote_chunks_init(&job.chunks, n, n / (8 * mote_pool_size(cuda->pool)) + 1);
        mote_pool_run(cuda->pool, pack_tiles, &job);
        TRY(mote_cuda_upload(cuda->cuda, to + (size_t)tile * bytes, stage->data, (size_t)n * bytes));
        TRY(mote_cuda_event_record(cuda->cuda, stage->event));
        stage->is_busy = 1;
    }
    return MOTE_OK;
}

/* ---- what it will take ---- */

static mote_status matrix_bytes(const struct mote_backend_options *options, const struct mote_matrix *w,
                                struct mote_tile_kind *kind, size_t *bytes)
{
    TRY(mote_tile_kind_of(w, options->compact, kind));
    *bytes = mote_tile_matrix_bytes(kind, w->n_row, w->n_col);
    return MOTE_OK;
}

mote_status mote_cuda_weight_bytes(const struct mote_backend_options *options,
                                   const struct mote_weight *weight, size_t *bytes)
{
    struct mote_tile_kind kind;
    mote_status status = matrix_bytes(options, &weight->w, &kind, bytes);
    return status == MOTE_OK ? status : mote_context(status, "%s", weight->name);
}

mote_status mote_cuda_expert_bytes(const struct mote_backend_options *options,
                                   const struct mote_expert_set *set, size_t *bytes)
{
    const struct mote_matrix *matrix[CUDA_PROJECTIONS] = {set->gate, set->up, set->down};
    struct mote_tile_kind kind[CUDA_PROJECTIONS];
    int first = set->gate ? CUDA_GATE : CUDA_UP;
    size_t each = 0, n_expert = (size_t)set->n_expert;
    mote_status status = MOTE_OK;
    for (int p = first; p < CUDA_PROJECTIONS && status == MOTE_OK; p++) {
        size_t of_matrix;
        status = matrix_bytes(options, matrix[p], &kind[p], &of_matrix);
        each += status == MOTE_OK ? of_matrix : 0;
    }
    if (status != MOTE_OK) return mote_context(status, "%s", set->name);
    int is_mx = mote_cuda_mx_fits(options->moe_kernels, set->act, kind, first);
    *bytes = each * n_expert + table_bytes(is_mx, n_expert, set->n_ff, set->d_model) +
             slack_bytes(is_mx, &kind[CUDA_DOWN], set->n_ff);
    return MOTE_OK;
}

/* What a wish comes to with weights of this format. */
static enum mote_act_wish wish_of(enum mote_format format, enum mote_act_wish wish)
{
    int is_not = wish == MOTE_WISH_MXFP4 && mote_act_chosen(format, wish) != MOTE_ACT_MXFP4;
    return is_not ? MOTE_WISH_DEFAULT : wish;
}

/* ---- one matrix ---- */

/* Many warps end a tile sooner; where every multiprocessor has many tiles to go through, fewer waste less. */
static unsigned tile_warps(const struct cuda_backend *cuda, const struct mote_matrix *w)
{
    unsigned warps = cuda_row_warps(w->n_col);
    return w->n_row > (int64_t)cuda->info->n_sm * MOTE_TILE_ROWS * 4 && warps > 8 ? 8 : warps;
}

static mote_status place(struct cuda_backend *cuda, struct mote_weight *weight, struct cuda_weight *placed)
{
    const struct mote_matrix *w = &weight->w;
    char text[MOTE_TILE_TEXT];
    TRY(mote_tile_kind_of(w, cuda->compact, &placed->kind));
    if (cuda->cuda) {
        size_t bytes = mote_tile_matrix_bytes(&placed->kind, w->n_row, w->n_col);
        TRY(mote_cuda_device_alloc(cuda, MOTE_MEM_WEIGHTS, bytes, &placed->data));
        TRY(put_matrix(cuda, &placed->kind, w, placed->data, NULL, NULL));
    }
    if (placed->kind.code == MOTE_CODE_NONE)
        return mote_cuda_program(cuda, &plain_text, &placed->decode, "ITEM=%d", (int)placed->kind.item);
    mote_tile_kind_text(&placed->kind, text);
    placed->warps = tile_warps(cuda, w);
    TRY(mote_cuda_program(cuda, &linear_text, &placed->decode, "W0=%s COLS=%lld WARPS=%u", text,
                          (long long)w->n_col, placed->warps));
    return mote_cuda_prefill_weight(cuda, placed);
}

mote_status mote_cuda_place(struct mote_backend *backend, struct mote_weight *weight)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_weight *placed;
    TRY(mote_mem_calloc(cuda->budget, MOTE_MEM_TABLES, 1, sizeof *placed, &placed));
    placed->n_row = weight->w.n_row;
    placed->n_col = weight->w.n_col;
    placed->bias = weight->bias;
    placed->act = wish_of(weight->w.format, weight->act);
    mote_status status = place(cuda, weight, placed);
    if (status != MOTE_OK) {
        mote_cuda_unplace(backend, placed);
        return mote_context(status, "%s", weight->name);
    }
    weight->placed = placed;
    return MOTE_OK;
}

/* ---- experts ---- */

/* Every expert's matrices to the device, one after the other, and their addresses to the table; 0 for a gate that is not
 * there. */
static mote_status put_experts(struct cuda_backend *cuda,
                               const struct mote_matrix *const matrix[CUDA_PROJECTIONS],
                               struct cuda_experts *placed)
{
    int is_mx = mote_cuda_mx_fits(cuda->moe_kernels, placed->x_act, placed->kind, placed->first);
    size_t offset[CUDA_PROJECTIONS], each = 0, n_expert = (size_t)placed->n_expert,
                                     table = table_bytes(is_mx, n_expert, placed->n_ff, placed->d_model),
                                     bases = base_bytes(placed->n_ff, placed->d_model);
    for (int p = placed->first; p < CUDA_PROJECTIONS; p++) {
        offset[p] = each;
        each += mote_tile_matrix_bytes(&placed->kind[p], matrix[p]->n_row, matrix[p]->n_col);
    }
    TRY(mote_cuda_device_alloc(cuda, MOTE_MEM_WEIGHTS,
                               each * n_expert + slack_bytes(is_mx, &placed->kind[CUDA_DOWN], placed->n_ff),
                               &placed->data));
    TRY(mote_cuda_device_alloc(cuda, MOTE_MEM_WEIGHTS, table, &placed->slot));
    uint64_t *host;
    TRY(mote_mem_calloc(cuda->budget, MOTE_MEM_TABLES, 1, table, &host));
    int32_t *wide = (int32_t *)(void *)((uint8_t *)host + SLOT_BYTES(n_expert));
    uint8_t *base = (uint8_t *)(wide + wide_count(n_expert));
    mote_status status = MOTE_OK;
    for (int32_t e = 0; e < placed->n_expert && status == MOTE_OK; e++) {
        atomic_int is_wide = 0;
        for (int p = placed->first; p < CUDA_PROJECTIONS && status == MOTE_OK; p++) {
            uint8_t *to = placed->data + (size_t)e * each + offset[p];
            host[e * CUDA_PROJECTIONS + p] = (uint64_t)(uintptr_t)to;
            status = put_matrix(cuda, &placed->kind[p], &matrix[p][e], to,
                                is_mx ? base + (size_t)e * bases + base_at(p, placed->n_ff) : NULL, &is_wide);
        }
        if (!is_mx) continue;
        wide[e] = is_wide != 0, placed->n_wide += wide[e];
        placed->has_no_number |= is_wide & MOTE_MX_NO_NUMBER;
    }
    if (status == MOTE_OK) status = mote_cuda_upload(cuda->cuda, placed->slot, host, table);
    if (is_mx) {
        placed->wide = (const int32_t *)(const void *)((const uint8_t *)placed->slot + SLOT_BYTES(n_expert));
        placed->base = (const uint8_t *)(placed->wide + wide_count(n_expert));
    }
    mote_mem_free(host);
    return status;
}

/* Warps that share a projection's columns: up_split and down_split of dot.cuh. */
static int split_of(int projection, int64_t n_col)
{
    int64_t unit = (n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS;
    if (projection == CUDA_DOWN) return unit >= 4 ? 2 : 1;
    return unit >= 16 ? 4 : unit >= 8 ? 2 : 1;
}

void mote_cuda_activation_text(const struct mote_activation *a, char text[CUDA_ACTIVATION_TEXT])
{
    snprintf(text, CUDA_ACTIVATION_TEXT, "ACTIVATION=%d LIMIT=%#.9gf", (int)a->kind, (double)a->limit);
}

static mote_status place_experts(struct cuda_backend *cuda, struct mote_expert_set *set,
                                 struct cuda_experts *placed)
{
    const struct mote_matrix *matrix[CUDA_PROJECTIONS] = {set->gate, set->up, set->down};
    static const char *const name[CUDA_PROJECTIONS] = {"gate", "up", "down"};
    char text[CUDA_PROJECTIONS][MOTE_TILE_TEXT], activation[CUDA_ACTIVATION_TEXT], routing[CUDA_ROUTING_TEXT];
    TRY(mote_activation_check(&set->activation, set->gate != NULL));
    FAIL_IF(set->routing && set->routing->n_expert != set->n_expert, MOTE_ARGUMENT,
            "%d experts, but its router chooses among %d", set->n_expert, set->routing->n_expert);
    if (set->routing) placed->routing = *set->routing;
    placed->activation = set->activation;
    placed->first = set->gate ? CUDA_GATE : CUDA_UP;
    enum mote_act_wish gate = wish_of(matrix[placed->first]->format, set->act),
                       up = wish_of(set->up->format, set->act);
    placed->x_act = gate == up ? up : MOTE_WISH_DEFAULT;
    placed->h_act = wish_of(set->down->format, set->act);
    placed->is_tiled = 1;
    for (int p = placed->first; p < CUDA_PROJECTIONS; p++) {
        const struct mote_matrix *w = &matrix[p][0];
        TRY(mote_tile_kind_of(w, cuda->compact, &placed->kind[p]));
        for (int32_t e = 1; e < set->n_expert; e++) {
            struct mote_tile_kind kind;
            TRY(mote_tile_kind_of(&matrix[p][e], cuda->compact, &kind));
            FAIL_IF(!mote_tile_kind_same(&kind, &placed->kind[p]), MOTE_UNSUPPORTED,
                    "%s of expert %d is %s, of expert 0 %s: on the GPU all experts of a layer have one "
                    "format per projection",
                    name[p], e, mote_format_traits(matrix[p][e].format)->name,
                    mote_format_traits(w->format)->name);
        }
        placed->is_tiled &= placed->kind[p].code != MOTE_CODE_NONE;
        mote_tile_kind_text(&placed->kind[p], text[p]);
    }
    if (cuda->cuda) TRY(put_experts(cuda, matrix, placed));
    for (int p = placed->first; p < CUDA_PROJECTIONS; p++) {
        placed->split[p] = split_of(p, matrix[p]->n_col);
        if (placed->kind[p].code == MOTE_CODE_NONE)
            TRY(mote_cuda_program(cuda, &plain_text, &placed->project[p], "ITEM=%d",
                                  (int)placed->kind[p].item));
        else
            TRY(mote_cuda_program(cuda, &reference_text, &placed->project[p], "W0=%s COLS=%lld SPLIT=%d",
                                  text[p], (long long)matrix[p]->n_col, placed->split[p]));
    }
    if (!placed->is_tiled) return MOTE_OK;
    mote_cuda_activation_text(&set->activation, activation);
    mote_cuda_routing_text(set->routing, routing);
    TRY(mote_cuda_program(cuda, &moe_text, &placed->decode,
                          "GATE=%s UP=%s DOWN=%s D_MODEL=%lld N_FF=%lld %s %s", text[placed->first],
                          text[CUDA_UP], text[CUDA_DOWN], (long long)set->d_model, (long long)set->n_ff,
                          activation, routing));
    TRY(mote_cuda_prefill_experts(cuda, placed));
    return mote_cuda_mx_experts(cuda, placed);
}

mote_status mote_cuda_place_experts(struct mote_backend *backend, struct mote_expert_set *set)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_experts *placed;
    TRY(mote_mem_calloc(cuda->budget, MOTE_MEM_TABLES, 1, sizeof *placed, &placed));
    placed->n_expert = set->n_expert;
    placed->n_ff = set->n_ff;
    placed->d_model = set->d_model;
    mote_status status = place_experts(cuda, set, placed);
    if (status != MOTE_OK) {
        mote_cuda_device_free(cuda, placed->data);
        mote_cuda_device_free(cuda, placed->slot);
        mote_mem_free(placed);
        return mote_context(status, "%s", set->name);
    }
    if (placed->n_wide && cuda->info->cc == 90)
        mote_log(MOTE_LOG_INFO, "%s: scales of %d of %d experts lie too far apart for fp8, %s", set->name,
                 placed->n_wide, placed->n_expert,
                 placed->mx_planes == 1   ? "each of their blocks is summed by itself"
                 : placed->mx_planes == 2 ? "steps of some pairs an expert take the portable kernels"
                                          : "all take the portable kernels");
    set->placed = placed;
    return MOTE_OK;
}

/* Both placed structs start with what unplace must free. */
void mote_cuda_unplace(struct mote_backend *backend, void *placed)
{
    if (!placed) return;
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_placed *head = placed;
    mote_cuda_device_free(cuda, head->data);
    mote_cuda_device_free(cuda, head->slot);
    mote_mem_free(placed);
}
