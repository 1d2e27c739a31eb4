/* cuda_moe.c: the router's choice and the expert block: which kernels make it up for few rows, for many, and one product at
 * a time (`--moe unfused`, plain weights, calibration). */
#include <stdio.h>

#include "backend/cuda_backend.h"

static const struct cuda_text router_text = {.name = "router.cu", .kernel = {"router"}};
static const struct cuda_text route_text = {.name = "route.cu", .kernel = {"route"}};
enum { GATE_UP_ONE, GATE_UP_MANY, DOWN_ONE, DOWN_MANY };

/* ---- router ---- */

/* Norms of a row are summed by as many warps everywhere; two share an expert. */
static int router_warps(int64_t d_model)
{
    int warps = (int)cuda_row_warps(d_model);
    return warps < 2 ? 2 : warps;
}

/* Do their texts know them by the same constants? Scale and bias are arguments. */
static int is_same_choice(const struct mote_routing *a, const struct mote_routing *b)
{
    return a->n_expert == b->n_expert && a->n_used == b->n_used && a->score == b->score &&
           a->n_group == b->n_group && a->n_group_used == b->n_group_used &&
           !a->renormalise == !b->renormalise;
}

void mote_cuda_routing_text(const struct mote_routing *routing, char text[CUDA_ROUTING_TEXT])
{
    static const struct mote_routing none = {.n_group = 1, .n_group_used = 1};
    const struct mote_routing *r = routing ? routing : &none;
    snprintf(text, CUDA_ROUTING_TEXT,
             "N_EXPERT=%d N_USED=%d SCORE=%d N_GROUP=%d N_GROUP_USED=%d RENORMALISE=%d", r->n_expert,
             r->n_used, (int)r->score, r->n_group, r->n_group_used, r->renormalise != 0);
}

/* The router placed with these constants; w: its plain weights, NULL: whatever they are. NULL: there is none. */
static const struct cuda_router *find_router(const struct cuda_backend *cuda, const struct mote_routing *r,
                                             const struct cuda_weight *w)
{
    for (size_t i = 0; i < cuda->n_router; i++) {
        const struct cuda_router *at = &cuda->router[i];
        if (is_same_choice(&at->routing, r) && (!w || (at->n_col == w->n_col && at->item == w->kind.item)))
            return at;
    }
    return NULL;
}

static mote_status router_programs(struct cuda_backend *cuda, struct cuda_router *router)
{
    char text[CUDA_ROUTING_TEXT];
    mote_cuda_routing_text(&router->routing, text);
    TRY(mote_cuda_program(cuda, &route_text, &router->route, "%s", text));
    if (!router->n_col) return MOTE_OK;
    return mote_cuda_program(cuda, &router_text, &router->router, "%s ITEM=%d D_MODEL=%lld WARPS=%d", text,
                             (int)router->item, (long long)router->n_col, router_warps(router->n_col));
}

mote_status mote_cuda_place_routing(struct mote_backend *backend, const struct mote_routing *r,
                                    const struct mote_weight *router)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct cuda_weight *w = router ? router->placed : NULL;
    struct cuda_router made = {.routing = *r};
    FAIL_IF(r->n_expert < 1 || r->n_expert > MOTE_MAX_EXPERTS || r->n_used < 1 || r->n_used > r->n_expert,
            MOTE_ARGUMENT, "router: %d of %d experts, expected 1 <= used <= experts <= %d", r->n_used,
            r->n_expert, MOTE_MAX_EXPERTS);
    FAIL_IF(r->n_group < 1 || r->n_group > 32 || r->n_expert % r->n_group || r->n_group_used < 1 ||
                r->n_group_used > r->n_group || r->n_group_used * (r->n_expert / r->n_group) < r->n_used,
            MOTE_ARGUMENT, "router: %d of %d groups do not hold %d of %d experts", r->n_group_used,
            r->n_group, r->n_used, r->n_expert);
    if (w && w->kind.code != MOTE_CODE_NONE) w = NULL;
    if (find_router(cuda, r, w)) return MOTE_OK;
    if (w) made.item = w->kind.item, made.n_col = w->n_col;
    TRY(router_programs(cuda, &made));
    TRY(mote_mem_resize(cuda->budget, MOTE_MEM_TABLES, (cuda->n_router + 1) * sizeof *cuda->router,
                        &cuda->router));
    cuda->router[cuda->n_router++] = made;
    return MOTE_OK;
}

/* As router.cu has it. */
struct router_job {
    const float *x, *norm;
    float *out;
    const uint8_t *weights, *gate;
    const float *bias, *choice_bias;
    float *logits, *gate_logit;
    int32_t *ids;
    float *mix;
    int32_t *ticket;
    struct mote_step_fault *fault;
    struct mote_step_act act;
    size_t row_bytes;
    float eps, scale;
    int32_t layer, n_block;
};

/* Few rows, plain weights: norm, products and choice in one launch. */
static int fits_router(const struct cuda_backend *cuda, const struct mote_route *job)
{
    const struct mote_linear *linear = job->router;
    if (!linear || job->n_row > cuda->decode_rows || linear->n_out > 2) return 0;
    const struct cuda_weight *w = linear->out[0].weight->placed,
                             *gate = linear->out[linear->n_out - 1].weight->placed;
    return w->kind.code == MOTE_CODE_NONE && gate->kind.code == MOTE_CODE_NONE &&
           gate->kind.item == w->kind.item && (linear->n_out == 1 || (gate->n_row == 1 && !gate->bias)) &&
           linear->norm_out != linear->x && !linear->out[0].residual && linear->out[0].y == job->logits &&
           linear->out[0].y_stride == w->n_row;
}

/* chooses: ids and weights too; otherwise logits alone. wish: of who reads the normed rows next. */
static mote_status run_router(struct cuda_backend *cuda, const struct mote_route *job, int chooses,
                              enum mote_act_wish wish)
{
    const struct mote_linear *linear = job->router;
    const struct cuda_weight *w = linear->out[0].weight->placed;
    const struct cuda_router *found = find_router(cuda, job->routing, w);
    int per_block = router_warps(w->n_col) / 2;
    cuda->act.rounding = cuda_rounding(wish);
    FAIL_IF(!found, MOTE_INTERNAL, "router of layer %d: not placed with its routing", job->layer);
    struct router_job router = {.x = linear->x,
                                .norm = linear->norm,
                                .out = linear->norm ? linear->norm_out : NULL,
                                .weights = w->data,
                                .bias = w->bias,
                                .choice_bias = job->routing->bias,
                                .logits = linear->out[0].y,
                                .ids = job->ids,
                                .mix = job->weights,
                                .ticket = chooses ? cuda->ticket : NULL,
                                .fault = cuda->fault,
                                .act = cuda->act,
                                .row_bytes = mote_tile_bytes(&w->kind, w->n_col) / MOTE_TILE_ROWS,
                                .eps = linear->eps,
                                .scale = job->routing->scale,
                                .layer = job->layer};
    int n_expert = (int)w->n_row;
    if (linear->n_out == 2) {
        router.gate = ((const struct cuda_weight *)linear->out[1].weight->placed)->data;
        router.gate_logit = linear->out[1].y;
        n_expert++;
    }
    router.n_block = (n_expert + per_block - 1) / per_block;
    cuda->act_of = linear->norm ? linear->norm_out : linear->x;
    void *args[] = {&router};
    return mote_cuda_run(cuda, found->router, 0, (unsigned)router.n_block + 1, (unsigned)job->n_row, 1,
                         (unsigned)router_warps(w->n_col) * 32, 0, args);
}

static mote_status route(struct mote_backend *backend, const struct mote_route *job, enum mote_act_wish wish)
{
    struct cuda_backend *cuda = cuda_of(backend);
    if (fits_router(cuda, job)) return run_router(cuda, job, 1, wish);
    if (job->router) TRY(mote_cuda_linear(backend, job->router));
    const struct cuda_router *found = find_router(cuda, job->routing, NULL);
    int layer = job->layer;
    float scale = job->routing->scale;
    FAIL_IF(!found, MOTE_INTERNAL, "routing of layer %d: not placed", job->layer);
    void *args[] = {(void *)(uintptr_t)&job->logits,
                    (void *)(uintptr_t)&job->routing->bias,
                    &scale,
                    (void *)(uintptr_t)&job->ids,
                    (void *)(uintptr_t)&job->weights,
                    &layer,
                    &cuda->fault};
    return mote_cuda_run(cuda, found->route, 0, (unsigned)job->n_row, 1, 1, 32, 0, args);
}

mote_status mote_cuda_route(struct mote_backend *backend, const struct mote_route *job)
{
    return route(backend, job, MOTE_WISH_DEFAULT);
}

/* ---- experts ---- */

/* As choose.cuh has it. */
struct choice_job {
    const float *logits, *bias;
    int32_t *ids;
    float *weights;
    float scale;
    int32_t layer;
};

/* One set of experts over the rows: routed ones, or the shared one (n_used 1, no ids). */
struct block {
    const struct cuda_experts *experts;
    struct choice_job choice; /* with logits: one row, whose kernels choose; no ids, no weights */
    const int32_t *ids;       /* [n_row][n_used], or NULL: expert 0 */
    const float *weights;     /* [n_row][n_used], or NULL: 1 */
    int squash;               /* weights are gate logits */
    int n_used, pair_base;    /* where its pairs lie in cuda->down */
    const float *x, *residual;
    float *y, *hidden;
    int first_row, n_row; /* first_row: of the step's rows in cuda->act; everything else starts at it */
};

/* Bound by instructions, not by memory, and with few registers for weights on their way. */
static int is_narrow(const struct mote_tile_kind *kind)
{
    return kind->code == MOTE_CODE_C1 || kind->code == MOTE_CODE_C2 || kind->code == MOTE_CODE_C3 ||
           kind->code == MOTE_CODE_T5 || kind->code == MOTE_CODE_IQ2XXS || kind->code == MOTE_CODE_IQ3XXS;
}

/* DOWN_WARPS and DOWN_WARPS_MANY of moe_decode.cu. */
static unsigned down_warps(const struct mote_tile_kind *kind, int n_row)
{
    return n_row > 1 && is_narrow(kind) && kind->sub != 16 ? 24 : 16;
}

/* Blocks that share an expert's hidden columns: one row takes all there are; more rows about four blocks a multiprocessor
 * of the experts that routing without favourites would choose (two, all at once: 7 to 13 % slower at 16 rows). Where
 * memory is not what they wait for, they had better all run at once: 7 % at 4 rows. */
static unsigned up_blocks(const struct cuda_backend *cuda, const struct block *b, int64_t all)
{
    if (b->n_row == 1) return (unsigned)all;
    double share = (double)b->n_used / b->experts->n_expert, none = 1;
    for (int i = 0; i < b->n_row; i++) none *= 1 - share;
    int each = b->experts->first == CUDA_GATE ? 4 : 8; /* blocks without a gate are half as large */
    double n = (double)(each * cuda->info->n_sm) / ((1 - none) * b->experts->n_expert);
    double round_up = is_narrow(&b->experts->kind[CUDA_UP]) ? 0.95 : 0.5;
    int64_t turns = n >= (double)all ? 1 : (int64_t)((double)all / n + round_up);
    return (unsigned)((all + turns - 1) / turns);
}

static mote_status run_fused(struct cuda_backend *cuda, const struct block *b)
{
    const struct cuda_experts *e = b->experts;
    int n_pair = b->n_row * b->n_used, n_expert = e->n_expert, n_used = b->n_used, base = b->pair_base,
        squash = b->squash, n_row = b->n_row, d_model = (int)e->d_model;
    int64_t ff_unit = (e->n_ff + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS;
    cuda->down.rounding = cuda_rounding(e->h_act);
    void *up[] = {(void *)(uintptr_t)&e->slot,
                  &n_expert,
                  (void *)(uintptr_t)&b->ids,
                  &cuda->act,
                  &n_pair,
                  &n_used,
                  &cuda->down,
                  &base,
                  &cuda->fault,
                  (void *)(uintptr_t)&b->choice};
    TRY(mote_cuda_run(cuda, e->decode, n_row == 1 ? GATE_UP_ONE : GATE_UP_MANY,
                      up_blocks(cuda, b, ff_unit * 4), (unsigned)n_pair, 1,
                      (unsigned)(2 * (CUDA_DOWN - e->first) * e->split[CUDA_UP] * 32), 0, up));
    void *down[] = {(void *)(uintptr_t)&e->slot,
                    &n_expert,
                    (void *)(uintptr_t)&b->ids,
                    (void *)(uintptr_t)&b->weights,
                    &squash,
                    &cuda->down,
                    &n_row,
                    &n_used,
                    &base,
                    (void *)(uintptr_t)&b->residual,
                    (void *)(uintptr_t)&b->y,
                    &d_model,
                    &cuda->fault,
                    (void *)(uintptr_t)&b->choice};
    return mote_cuda_run(cuda, e->decode, n_row == 1 ? DOWN_ONE : DOWN_MANY,
                         (unsigned)((e->d_model + 15) / 16), 1, 1,
                         32 * down_warps(&e->kind[CUDA_DOWN], n_row),
                         ((size_t)e->split[CUDA_DOWN] * 16 + 1) * (size_t)n_pair * sizeof(float), down);
}

/* out[p] = W_expert(p) of x rows (gate, up) or of pairs (down). */
static mote_status project(struct cuda_backend *cuda, const struct block *b, int which, const float *x,
                           float *out)
{
    const struct cuda_experts *e = b->experts;
    int n_pair = b->n_row * b->n_used, n_expert = e->n_expert, n_used = b->n_used,
        of_rows = which != CUDA_DOWN, base = of_rows ? b->first_row : b->pair_base,
        n_out = (int)(of_rows ? e->n_ff : e->d_model);
    int64_t n_col = of_rows ? e->d_model : e->n_ff;
    unsigned grid_y = n_pair < 65535 ? (unsigned)n_pair : 65535;
    if (e->kind[which].code == MOTE_CODE_NONE) {
        size_t row_bytes = mote_tile_bytes(&e->kind[which], n_col) / MOTE_TILE_ROWS;
        int columns = (int)n_col;
        void *args[] = {(void *)(uintptr_t)&e->slot,
                        &n_expert,
                        &which,
                        (void *)(uintptr_t)&b->ids,
                        &x,
                        &n_pair,
                        &n_used,
                        &of_rows,
                        &row_bytes,
                        &columns,
                        &out,
                        &n_out,
                        &cuda->fault};
        return mote_cuda_run(cuda, e->project[which], CUDA_PLAIN_PROJECT, (unsigned)(n_out + 3) / 4, grid_y,
                             1, 128, 0, args);
    }
    struct mote_step_act *act = of_rows ? &cuda->act : &cuda->down;
    void *args[] = {(void *)(uintptr_t)&e->slot,
                    &n_expert,
                    &which,
                    (void *)(uintptr_t)&b->ids,
                    act,
                    &n_pair,
                    &n_used,
                    &of_rows,
                    &base,
                    &out,
                    &n_out,
                    &cuda->fault};
    return mote_cuda_run(cuda, e->project[which], 0, (unsigned)(n_out + 15) / 16, grid_y, 1,
                         (unsigned)e->split[which] * 32, 0, args);
}

static mote_status run_piece(struct cuda_backend *cuda, const struct block *b)
{
    const struct cuda_experts *e = b->experts;
    int n_ff = (int)e->n_ff, n_unit = (n_ff + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS, base = b->pair_base,
        squash = b->squash, n_used = b->n_used, d_model = (int)e->d_model;
    unsigned n_pair = (unsigned)(b->n_row * b->n_used);
    float *hidden =
        b->hidden ? b->hidden : cuda->up; /* in place: each value is read once, by whoever writes it */
    struct mote_step_act none = {0};
    float *gate = e->first == CUDA_GATE ? cuda->gate : NULL;
    if (gate) TRY(project(cuda, b, CUDA_GATE, b->x, gate));
    TRY(project(cuda, b, CUDA_UP, b->x, cuda->up));
    cuda->down.rounding = cuda_rounding(e->h_act);
    int kind = e->activation.kind;
    float limit = e->activation.limit;
    void *activate[] = {&kind,     &limit,  &gate,
                        &cuda->up, &n_ff,   &n_unit,
                        &base,     &hidden, e->kind[CUDA_DOWN].code == MOTE_CODE_NONE ? &none : &cuda->down};
    TRY(mote_cuda_run(cuda, cuda->rows_program, CUDA_ROWS_ACTIVATE, n_pair, 1, 1, 256, 0, activate));
    TRY(project(cuda, b, CUDA_DOWN, hidden, cuda->product));
    void *combine[] = {&cuda->product, (void *)(uintptr_t)&b->weights,  &squash,
                       &n_used,        (void *)(uintptr_t)&b->residual, (void *)(uintptr_t)&b->y,
                       &d_model};
    return mote_cuda_run(cuda, cuda->rows_program, CUDA_ROWS_COMBINE, (unsigned)(d_model + 255) / 256,
                         (unsigned)b->n_row, 1, 256, 0, combine);
}

/* A piece of the rows at a time: rows between products are four bytes a value, of every pair and projection, and would be
 * the largest part of the scratch of a long step; every pair reads its own expert anyhow, so that pieces cost launches
 * alone. Calibration may ask for this of any model, at any time: the room for a piece is always there. */
static mote_status run_unfused(struct cuda_backend *cuda, const struct block *b)
{
    const struct cuda_experts *e = b->experts;
    for (int row = 0; row < b->n_row; row += CUDA_PIECE_ROWS) {
        struct block piece = *b;
        int64_t pair = (int64_t)row * b->n_used;
        piece.first_row = row;
        piece.n_row = b->n_row - row < CUDA_PIECE_ROWS ? b->n_row - row : CUDA_PIECE_ROWS;
        if (b->ids) piece.ids += pair;
        if (b->weights) piece.weights += pair;
        if (b->hidden) piece.hidden += pair * e->n_ff;
        if (b->residual) piece.residual += row * e->d_model;
        piece.x += row * e->d_model;
        piece.y += row * e->d_model;
        TRY(run_piece(cuda, &piece));
    }
    return MOTE_OK;
}

/* Is the choice that of the experts' kernels? Of one row: its logits are few, and a choice of every block's own is sooner
 * there than one that is handed on. Not where registers leave a multiprocessor one block at a time (scales of 16 columns):
 * there every round of blocks pays for it (Q2_K: 15.4 us, 14.3 with the router's). */
static int is_chosen_inside(const struct cuda_backend *cuda, const struct mote_moe *job, int is_fused)
{
    const struct mote_route *route = job->route;
    if (!route || !job->n_used || job->n_row != 1 || !is_fused) return 0;
    const struct cuda_experts *e = job->experts->placed;
    return e->is_tiled && !mote_cuda_mx_takes(job) && e->kind[e->first].sub != 16 &&
           e->kind[CUDA_UP].sub != 16 && is_same_choice(&e->routing, route->routing) &&
           fits_router(cuda, route);
}

mote_status mote_cuda_moe(struct mote_backend *backend, const struct mote_moe *job)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct mote_moe rest; /* what the kernels of cuda_mx.c leave */
    struct block block[2];
    int n = 0, is_fused = cuda->moe_kernels != MOTE_MOE_UNFUSED && !job->hidden && !job->shared_hidden,
        all_tiled = 1, is_inside = is_chosen_inside(cuda, job, is_fused);
    enum mote_act_wish wish =
        job->n_used ? ((const struct cuda_experts *)job->experts->placed)->x_act : MOTE_WISH_DEFAULT;
    if (is_inside) TRY(run_router(cuda, job->route, 0, wish));
    else if (job->route) TRY(route(backend, job->route, wish));
    if (mote_cuda_mx_takes(job)) {
        TRY(mote_cuda_mx_moe(cuda, job));
        if (!job->shared) return MOTE_OK;
        rest = *job, rest.n_used = 0, rest.experts = NULL, rest.residual = job->y;
        job = &rest;
    }
    if (job->n_used)
        block[n++] = (struct block){.experts = job->experts->placed,
                                    .ids = job->ids,
                                    .weights = job->weights,
                                    .n_used = job->n_used,
                                    .hidden = job->hidden};
    if (is_inside) {
        block[0].ids = NULL, block[0].weights = NULL;
        block[0].choice = (struct choice_job){.logits = job->route->logits,
                                              .bias = job->route->routing->bias,
                                              .ids = job->route->ids,
                                              .weights = job->route->weights,
                                              .scale = job->route->routing->scale,
                                              .layer = job->route->layer};
    }
    if (job->shared)
        block[n++] = (struct block){.experts = job->shared->placed,
                                    .weights = job->shared_gate,
                                    .squash = 1,
                                    .n_used = 1,
                                    .pair_base = (int)cuda->piece_pair,
                                    .hidden = job->shared_hidden};
    for (int i = 0; i < n; i++) all_tiled &= block[i].experts->is_tiled;
    if (is_fused && all_tiled && job->n_row > cuda->decode_rows) return mote_cuda_prefill_moe(cuda, job);
    for (int i = 0; i < n; i++) {
        struct block *b = &block[i];
        b->n_row = (int)job->n_row;
        b->x = job->x;
        b->residual = i ? job->y : job->residual;
        b->y = job->y;
        TRY(mote_cuda_want_act(cuda, job->x, job->n_row, job->d_model, b->experts->x_act));
        if (is_fused && b->experts->is_tiled && job->n_row <= cuda->decode_rows) TRY(run_fused(cuda, b));
        else TRY(run_unfused(cuda, b));
    }
    FAIL_IF(n == 0, MOTE_INTERNAL, "expert block without experts");
    return MOTE_OK;
}
