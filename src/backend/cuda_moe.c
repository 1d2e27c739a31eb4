/* cuda_moe.c: the router's choice and the expert block: which kernels make it up for few rows, for many, and one product at
 * a time (`--moe unfused`, plain weights, calibration). */
#include "backend/cuda_backend.h"

static const struct cuda_text route_text = {.name = "route.cu", .kernel = {"route"}, .is_hot = 1};
enum { GATE_UP_ONE, GATE_UP_MANY, DOWN_ONE, DOWN_MANY };
enum { ROWS_INPUT, ROWS_ACTIVATE, ROWS_COMBINE };

/* ---- router ---- */

mote_status mote_cuda_place_routing(struct mote_backend *backend, const struct mote_routing *r)
{
    struct cuda_backend *cuda = cuda_of(backend);
    int program;
    FAIL_IF(r->n_expert < 1 || r->n_expert > MOTE_MAX_EXPERTS || r->n_used < 1 || r->n_used > r->n_expert, MOTE_ARGUMENT,
            "router: %d of %d experts, expected 1 <= used <= experts <= %d", r->n_used, r->n_expert, MOTE_MAX_EXPERTS);
    FAIL_IF(r->n_group < 1 || r->n_group > 32 || r->n_expert % r->n_group || r->n_group_used < 1 ||
                r->n_group_used > r->n_group || r->n_group_used * (r->n_expert / r->n_group) < r->n_used,
            MOTE_ARGUMENT, "router: %d of %d groups do not hold %d of %d experts", r->n_group_used, r->n_group, r->n_used,
            r->n_expert);
    return mote_cuda_program(cuda, &route_text, &program,
                             "N_EXPERT=%d N_USED=%d SCORE=%d N_GROUP=%d N_GROUP_USED=%d RENORMALISE=%d", r->n_expert, r->n_used,
                             (int)r->score, r->n_group, r->n_group_used, r->renormalise != 0);
}

mote_status mote_cuda_route(struct mote_backend *backend, const struct mote_route *job)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct mote_routing *r = job->routing;
    int program;
    TRY(mote_cuda_program(cuda, &route_text, &program,
                          "N_EXPERT=%d N_USED=%d SCORE=%d N_GROUP=%d N_GROUP_USED=%d RENORMALISE=%d", r->n_expert, r->n_used,
                          (int)r->score, r->n_group, r->n_group_used, r->renormalise != 0));
    if (!cuda->program[program].module) TRY(backend->ops->ready(backend));
    int layer = job->layer;
    float scale = r->scale;
    void *args[] = {(void *)(uintptr_t)&job->logits, (void *)(uintptr_t)&r->bias, &scale, (void *)(uintptr_t)&job->ids,
                    (void *)(uintptr_t)&job->weights, &layer, &cuda->fault};
    return mote_cuda_run(cuda, program, 0, (unsigned)job->n_row, 1, 1, 32, 0, args);
}

/* ---- experts ---- */

/* One set of experts over the rows: routed ones, or the shared one (n_used 1, no ids). */
struct block {
    const struct cuda_experts *experts;
    const int32_t *ids;     /* [n_row][n_used], or NULL: expert 0 */
    const float *weights;   /* [n_row][n_used], or NULL: 1 */
    int squash;             /* weights are gate logits */
    int n_used, pair_base;  /* where its pairs lie in cuda->down */
    const float *x, *residual;
    float *y, *hidden;
    int n_row;
};

static mote_status run_fused(struct cuda_backend *cuda, const struct block *b)
{
    const struct cuda_experts *e = b->experts;
    int n_pair = b->n_row * b->n_used, n_expert = e->n_expert, n_used = b->n_used, base = b->pair_base, squash = b->squash,
        n_row = b->n_row, d_model = (int)e->d_model;
    int64_t ff_unit = (e->n_ff + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS;
    void *up[] = {(void *)(uintptr_t)&e->slot, &n_expert, (void *)(uintptr_t)&b->ids, &cuda->act, &n_pair, &n_used, &cuda->down,
                  &base, &cuda->fault};
    TRY(mote_cuda_run(cuda, e->decode, n_row == 1 ? GATE_UP_ONE : GATE_UP_MANY, (unsigned)ff_unit * 4, (unsigned)n_pair, 1,
                      (unsigned)(4 * e->split[CUDA_GATE] * 32), 0, up));
    void *down[] = {(void *)(uintptr_t)&e->slot, &n_expert, (void *)(uintptr_t)&b->ids, (void *)(uintptr_t)&b->weights, &squash,
                    &cuda->down, &n_row, &n_used, &base, (void *)(uintptr_t)&b->residual, (void *)(uintptr_t)&b->y, &d_model,
                    &cuda->fault};
    return mote_cuda_run(cuda, e->decode, n_row == 1 ? DOWN_ONE : DOWN_MANY, (unsigned)((e->d_model + 15) / 16), 1, 1, 512,
                         (size_t)e->split[CUDA_DOWN] * (size_t)n_pair * 16 * sizeof(float), down);
}

/* out[p] = W_expert(p) of x rows (gate, up) or of pairs (down). */
static mote_status project(struct cuda_backend *cuda, const struct block *b, int which, const float *x, float *out)
{
    const struct cuda_experts *e = b->experts;
    int n_pair = b->n_row * b->n_used, n_expert = e->n_expert, n_used = b->n_used, of_rows = which != CUDA_DOWN,
        base = of_rows ? 0 : b->pair_base, n_out = (int)(of_rows ? e->n_ff : e->d_model);
    int64_t n_col = of_rows ? e->d_model : e->n_ff;
    unsigned grid_y = n_pair < 65535 ? (unsigned)n_pair : 65535;
    if (e->kind[which].code == MOTE_CODE_NONE) {
        size_t row_bytes = mote_tile_bytes(&e->kind[which], n_col) / MOTE_TILE_ROWS;
        int columns = (int)n_col;
        void *args[] = {(void *)(uintptr_t)&e->slot, &n_expert, &which, (void *)(uintptr_t)&b->ids, &x, &n_pair, &n_used,
                        &of_rows, &row_bytes, &columns, &out, &n_out, &cuda->fault};
        return mote_cuda_run(cuda, e->project[which], CUDA_PLAIN_PROJECT, (unsigned)(n_out + 3) / 4, grid_y, 1, 128, 0, args);
    }
    struct mote_step_act *act = of_rows ? &cuda->act : &cuda->down;
    void *args[] = {(void *)(uintptr_t)&e->slot, &n_expert, &which, (void *)(uintptr_t)&b->ids, act, &n_pair, &n_used, &of_rows,
                    &base, &out, &n_out, &cuda->fault};
    return mote_cuda_run(cuda, e->project[which], 0, (unsigned)(n_out + 15) / 16, grid_y, 1, (unsigned)e->split[which] * 32, 0,
                         args);
}

static mote_status run_unfused(struct cuda_backend *cuda, const struct block *b)
{
    const struct cuda_experts *e = b->experts;
    int n_ff = (int)e->n_ff, n_unit = (n_ff + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS, base = b->pair_base, squash = b->squash,
        n_used = b->n_used, d_model = (int)e->d_model;
    unsigned n_pair = (unsigned)(b->n_row * b->n_used);
    float *hidden = b->hidden ? b->hidden : cuda->hidden;
    struct mote_step_act none = {0};
    TRY(project(cuda, b, CUDA_GATE, b->x, cuda->gate));
    TRY(project(cuda, b, CUDA_UP, b->x, cuda->up));
    void *activate[] = {&cuda->gate, &cuda->up, &n_ff, &n_unit, &base, &hidden,
                        e->kind[CUDA_DOWN].code == MOTE_CODE_NONE ? &none : &cuda->down};
    TRY(mote_cuda_run(cuda, cuda->rows_program, ROWS_ACTIVATE, n_pair, 1, 1, 256, 0, activate));
    TRY(project(cuda, b, CUDA_DOWN, hidden, cuda->product));
    void *combine[] = {&cuda->product, (void *)(uintptr_t)&b->weights, &squash, &n_used, (void *)(uintptr_t)&b->residual,
                       (void *)(uintptr_t)&b->y, &d_model};
    return mote_cuda_run(cuda, cuda->rows_program, ROWS_COMBINE, (unsigned)(d_model + 255) / 256, (unsigned)b->n_row, 1, 256, 0,
                         combine);
}

mote_status mote_cuda_moe(struct mote_backend *backend, const struct mote_moe *job)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct block block[2];
    int n = 0, is_fused = !cuda->moe_unfused && !job->hidden && !job->shared_hidden, all_tiled = 1;
    const float *residual = job->residual;
    if (job->n_used)
        block[n++] = (struct block){.experts = job->experts->placed,
                                    .ids = job->ids,
                                    .weights = job->weights,
                                    .n_used = job->n_used,
                                    .hidden = job->hidden};
    if (job->shared)
        block[n++] = (struct block){.experts = job->shared->placed,
                                    .weights = job->shared_gate,
                                    .squash = 1,
                                    .n_used = 1,
                                    .pair_base = (int)cuda->max_pair,
                                    .hidden = job->shared_hidden};
    for (int i = 0; i < n; i++) all_tiled &= block[i].experts->is_tiled;
    if (is_fused && all_tiled && job->n_row > CUDA_DECODE_ROWS) return mote_cuda_prefill_moe(cuda, job);
    if (cuda->act_of != job->x) {
        TRY(mote_cuda_input_rows(cuda, job->x, NULL, job->n_row, job->d_model, NULL, 0, NULL, &cuda->act));
        cuda->act_of = job->x;
    }
    for (int i = 0; i < n; i++) {
        struct block *b = &block[i];
        b->n_row = (int)job->n_row;
        b->x = job->x;
        b->residual = i ? job->y : residual;
        b->y = job->y;
        if (is_fused && b->experts->is_tiled && job->n_row <= CUDA_DECODE_ROWS) TRY(run_fused(cuda, b));
        else TRY(run_unfused(cuda, b));
    }
    FAIL_IF(n == 0, MOTE_INTERNAL, "expert block without experts");
    return MOTE_OK;
}
