/* cuda_mx.c: expert blocks whose weights are MXFP4, on sm_90: which kernels of mx_*.cu run, and the scratch between them.
 *
 *   quantise x, sort pairs by expert | gate and up, activated, quantised | down | ordered sum
 *
 * Few pairs an expert: integer products at memory's speed (mx_small.cu), any scales. Many: fp8 tensor cores (mx_large.cu).
 * Activations that are not MXFP4 are two planes of fp8 numbers (mx_act.cuh), from steps of some pairs an expert or some bytes of
 * weights on; others are the portable kernels'.
 *
 * Owns no memory of its own: scratch is cut from cuda->prefill_scratch, which never serves two at once.
 * One idea: a block of the grid goes from piece to piece of a list made on the device, so that its ring of weights never
 * runs dry; the grid depends on the device alone.
 */
#include "backend/cuda_pairs.h"

#include <math.h>

/* ---- what the kernels are called with, as they declare it ---- */

struct mx_rows {
    void *q;
    float *scale;
};
struct quantise_job {
    const void *x;
    struct mx_rows small, large, planes;
    int32_t *wide;
    int n_row, n_col, stride, is_bf16, spans;
    int32_t *done;
    int n_done;
};
struct mx_list {
    struct {
        const uint64_t *slot;
        const int32_t *piece, *n_piece, *row_of;
        int n_pair;
    } pieces;
    int32_t *wide;
    int n_part, is_rest, has_wide, one;
};
struct gate_up_job {
    struct mx_list list;
    struct mx_rows x, h;
    float *partial;
    int32_t *done;
};
struct down_job {
    struct mx_list list;
    struct mx_rows h;
    void *flat;
    int is_bf16;
};
struct large_gate_up_job {
    struct mx_list list;
    const uint8_t *base;
    struct mx_rows x, h;
    void *hidden;
};
struct large_down_job {
    struct mx_list list;
    const uint8_t *base;
    struct mx_rows h;
    uint16_t *flat;
};
struct sum_job {
    const void *flat;
    const int32_t *place;
    const float *weights;
    const void *residual;
    void *y;
    int n_used, d_model, is_flat_bf16, is_bf16;
};

enum { BEGIN, QUANTISE, SUM };
static const struct cuda_text step_text = {.name = "mx_step.cu",
                                           .kernel = {"mx_begin", "mx_quantise", "mx_sum"}};
enum { GATE_UP, DOWN };
static const struct cuda_text small_text = {
    .name = "mx_small.cu", .kernel = {"mx_small_gate_up", "mx_small_down"}, .shared = 1};
static const struct cuda_text large_text = {
    .name = "mx_large.cu", .kernel = {"mx_large_gate_up", "mx_large_down"}, .shared = 1};

/* Most pairs of a piece of the large kernels, by planes, narrow and wide; their threads. */
static const int large_width[2][2] = {{64, 176}, {64, 144}}, large_block[2] = {640, 384};

/* Pairs of an expert, on average, from which on the large kernels are faster, and their wide pieces, on an H200. 385/7168/512/9, MXFP4
 * activations: at 0.75 pairs 375 us by small ones, 361 by large ones; at 48 pairs 1045 us by narrow pieces, 1083 by (other) wide
 * ones, at 96 2223 (an older build) and 1601. Two planes: at 48 pairs 1360 and 1496, at 64 (128/2880/2880/4) 1392 and 1247. */
static const double large_from = 0.5, wide_from = 56;
/* Two planes are faster than the portable kernels from so many pairs on, or from so many bytes of weights on that a step reads (of as many
 * experts as routing without favourites would choose): 128/2048/768/8 at 1 pair, 210 MB: 81.8 us by portable kernels, 83.2;
 * 385/7168/512/9 at 0.09, 205 MB: 98.5, 100; at 0.37, 709 MB: 276, 223; 128/2880/2880/4 at 0.12, 200 MB: 86.3, 85.1. */
static const double planes_from = 1, planes_from_bytes = 210e6;
/* Results of so many pairs stay f32 until they are summed, if they are the small kernels'. */
enum { FEW_PAIRS = 512 };
enum { SMALL_WIDTH = 8, UNIT = MOTE_UNIT_COLS, SMALL_BLOCK = 640 };
/* Of a grid of the small kernels, if its blocks may share items; what they then leave for one another (mx_small.cu). */
enum { MOST_BLOCKS = 256, PARTIAL_BYTES = MOST_BLOCKS * SMALL_WIDTH * 64 * 4 };
/* Threads of mx_step.cu's, and how often they quantise four units of a row. */
enum { FOUR_UNITS = 4 * UNIT, BEGIN_BLOCK = 1024, BEGIN_FOURS = 32 };

/* ---- scratch ---- */

struct scratch {
    /* [max_row][d_model to 128]: for the small kernels, for the large ones (mx_act.cuh); [pairs][n_ff to 128] likewise */
    struct mx_rows x, large_x, h, large_h;
    /* large_h of wide pieces before it is quantised: [pairs][n_ff] f32, where flat will lie; of two planes [pairs][n_ff to 128] bf16,
     * where large_h will */
    void *hidden;
    void *
        flat; /* [pairs][d_model] bf16, of up to FEW_PAIRS f32; before that PARTIAL_BYTES of items that are shared */
    struct cuda_pairs pairs;
    int32_t *wide; /* is any row? */
    int32_t *done; /* [MOST_BLOCKS] */
};

/* Two planes are the large kernels' alone. */
static size_t cut(const struct mote_backend_limits *l, int planes, void *base, struct scratch *s)
{
    size_t total = 0, row = (size_t)l->max_row, pair = row * (size_t)l->n_used, d = cuda_padded(l->d_model),
           ff = cuda_padded(l->n_ff), small_row = planes == 1 ? row : 0, small_pair = planes == 1 ? pair : 0;
    s->x.q = cuda_cut(base, &total, small_row, d);
    s->x.scale = cuda_cut(base, &total, small_row, d / 32 * sizeof(float));
    s->large_x.q = cuda_cut(base, &total, row, d * (size_t)planes);
    s->large_x.scale = cuda_cut(base, &total, row, d / UNIT * sizeof(float));
    s->h.q = cuda_cut(base, &total, small_pair, ff);
    s->h.scale = cuda_cut(base, &total, small_pair, ff / 32 * sizeof(float));
    s->large_h.q = cuda_cut(base, &total, pair, ff * (size_t)planes);
    s->large_h.scale = cuda_cut(base, &total, pair, ff / UNIT * sizeof(float));
    size_t few = pair < FEW_PAIRS ? pair : FEW_PAIRS, halves = pair > 2 * few ? pair : 2 * few;
    size_t flat_row = (size_t)l->d_model * sizeof(uint16_t), hidden_row = (size_t)l->n_ff * sizeof(float);
    size_t each = planes == 1 && hidden_row > flat_row ? hidden_row : flat_row;
    size_t least = planes == 1 ? PARTIAL_BYTES / (each + 1) + 1 : 0;
    s->flat = cuda_cut(base, &total, halves > least ? halves : least, each);
    s->hidden = planes == 1 ? s->flat : s->large_h.q;
    s->pairs = cuda_cut_pairs(base, &total, pair, l->n_expert, planes == 1 ? SMALL_WIDTH : large_width[1][0]);
    s->wide = cuda_cut(base, &total, planes == 1, sizeof *s->wide);
    s->done = cuda_cut(base, &total, planes == 1 ? MOST_BLOCKS : 0, sizeof *s->done);
    return total;
}

/* Two planes take no more than one with all that is beside it, nor than the portable kernels of the same limits
 * (cuda_prefill.c): room that is never the reason for more. */
size_t mote_cuda_mx_scratch(const struct mote_backend_limits *limits)
{
    struct scratch ignored;
    return cut(limits, limits->act_moe >> MOTE_ACT_MXFP4 & 1 ? 1 : 2, NULL, &ignored);
}

/* ---- programs ---- */

static int is_mxfp4(const struct mote_tile_kind *kind)
{
    return kind->code == MOTE_CODE_E2M1 && kind->item == MOTE_ITEM_E8M0 && !kind->has_factor;
}

int mote_cuda_mx_fits(enum mote_moe_kernels kernels, enum mote_act_wish wish,
                      const struct mote_tile_kind kind[CUDA_PROJECTIONS], int first)
{
    int fits = kernels == MOTE_MOE_FUSED;
    for (int p = first; p < CUDA_PROJECTIONS; p++) fits &= is_mxfp4(&kind[p]);
    if (!fits) return 0;
    if (wish == MOTE_WISH_MXFP4) return 1;
    return wish == MOTE_WISH_DEFAULT && first == CUDA_GATE ? 2 : 0;
}

mote_status mote_cuda_mx_experts(struct cuda_backend *cuda, struct cuda_experts *e)
{
    char text[MOTE_TILE_TEXT], activation[CUDA_ACTIVATION_TEXT];
    int planes = mote_cuda_mx_fits(cuda->moe_kernels, e->x_act, e->kind, e->first);
    int is_too_wide = planes == 2 && e->n_wide; /* they would be the small kernels' */
    if (cuda->info->cc != 90 || !planes || is_too_wide || e->h_act != e->x_act) return MOTE_OK;
    mote_tile_kind_text(&e->kind[CUDA_UP], text);
    mote_cuda_activation_text(&e->activation, activation);
    TRY(mote_cuda_program(cuda, &step_text, &cuda->mx_program, "%s", ""));
    if (planes == 1)
        TRY(mote_cuda_program(cuda, &small_text, &e->mx_small,
                              "W0=%s D_MODEL=%lld N_FF=%lld MX_SHARED=%zu %s", text, (long long)e->d_model,
                              (long long)e->n_ff, cuda->info->shared_bytes, activation));
    for (int wide = 0; wide < 2 && e->first == CUDA_GATE; wide++)
        TRY(mote_cuda_program(cuda, &large_text, &e->mx_large[wide],
                              "W0=%s D_MODEL=%lld N_FF=%lld WIDTH=%d PLANES=%d MX_SHARED=%zu %s", text,
                              (long long)e->d_model, (long long)e->n_ff, large_width[planes - 1][wide],
                              planes, cuda->info->shared_bytes, activation));
    e->mx_planes = planes;
    return MOTE_OK;
}

/* Where a row lies is 32 bits in the kernels, rows of f16 nobody reads there. */
static int takes_rows(const struct cuda_experts *e, int64_t n_row, int64_t n_used, enum mote_float_type x,
                      enum mote_float_type y)
{
    int64_t row_bytes = (int64_t)cuda_padded(e->d_model) * e->mx_planes,
            pair_bytes = (int64_t)cuda_padded(e->n_ff) * e->mx_planes;
    return e->mx_planes && n_row * row_bytes <= UINT32_MAX && n_row * n_used * pair_bytes <= UINT32_MAX &&
           x != MOTE_F16 && y != MOTE_F16;
}

/* Pairs of an expert, if routing has no favourites. */
static double mean_pairs(const struct cuda_experts *e, const struct mote_moe *job)
{
    return (double)(job->n_row * job->n_used) / e->n_expert;
}

/* Bytes of weights that a step reads, likewise. */
static double read_bytes(const struct cuda_experts *e, const struct mote_moe *job)
{
    double chosen = 1 - pow(1 - (double)job->n_used / e->n_expert, (double)job->n_row), each = 0;
    for (int p = e->first; p < CUDA_PROJECTIONS; p++) {
        int is_down = p == CUDA_DOWN;
        each += (double)mote_tile_bytes(&e->kind[p], is_down ? e->n_ff : e->d_model) / MOTE_TILE_ROWS *
                (double)(is_down ? e->d_model : e->n_ff);
    }
    return chosen * e->n_expert * each;
}

int mote_cuda_mx_takes(const struct mote_moe *job)
{
    int reads_later = job->shared && (job->x == job->y || job->x_type != MOTE_F32 || job->y_type != MOTE_F32);
    if (!job->n_used || job->hidden || reads_later) return 0;
    const struct cuda_experts *e = job->experts->placed;
    if (!takes_rows(e, job->n_row, job->n_used, job->x_type, job->y_type)) return 0;
    if (e->mx_planes == 1)
        return !job->route || job->n_row > 1; /* or kernels choose its experts (cuda_moe.c) */
    return job->n_row > 1 && (mean_pairs(e, job) >= planes_from || read_bytes(e, job) >= planes_from_bytes);
}

int mote_cuda_mx_takes_all(const struct mote_backend_limits *l)
{
    const struct cuda_experts *e = l->only ? l->only->placed : NULL;
    return e && e->mx_planes == 1 && takes_rows(e, l->max_row, l->n_used, l->x_type, l->y_type);
}

/* ---- launches ---- */

mote_status mote_cuda_mx_moe(struct cuda_backend *cuda, const struct mote_moe *job)
{
    const struct cuda_experts *e = job->experts->placed;
    int has_small = e->mx_planes == 1;
    FAIL_IF(has_small && !(cuda->limits.act_moe >> MOTE_ACT_MXFP4 & 1), MOTE_INTERNAL,
            "moe: MXFP4 activations, but the backend's limits leave no scratch for them");
    struct scratch s;
    cut(&cuda->limits, e->mx_planes, cuda->prefill_scratch, &s);
    cuda->prefill_x_type = -1;
    int n_pair = (int)(job->n_row * job->n_used);
    unsigned n_sm = (unsigned)cuda->info->n_sm;
    double mean = mean_pairs(e, job);
    int is_large = !has_small || (e->first == CUDA_GATE && mean >= large_from),
        wide = is_large && mean >= wide_from,
        width = is_large ? large_width[e->mx_planes - 1][wide] : SMALL_WIDTH,
        is_flat_bf16 = is_large || n_pair > FEW_PAIRS;
    struct mx_rows none = {0};
    struct quantise_job quantise = {.x = job->x,
                                    .small = has_small ? s.x : none,
                                    .large = has_small && is_large ? s.large_x : none,
                                    .planes = has_small ? none : s.large_x,
                                    .wide = s.wide,
                                    .n_row = (int)job->n_row,
                                    .n_col = (int)job->d_model,
                                    .stride = (int)job->d_model,
                                    .is_bf16 = job->x_type == MOTE_BF16,
                                    .spans = is_large,
                                    .done = s.done,
                                    .n_done = is_large ? 0 : MOST_BLOCKS};
    if (has_small && is_large) TRY(mote_cuda_fill(cuda->cuda, s.wide, 0, sizeof *s.wide));
    struct cuda_sort_job sort = cuda_sort_job(cuda, &s.pairs, job, e->n_expert, width, e->wide);
    void *begin_args[] = {&quantise, &sort};
    int64_t fours = job->n_row * (int64_t)cuda_ceil_div(job->d_model, FOUR_UNITS);
    TRY(mote_cuda_run(cuda, cuda->mx_program, BEGIN,
                      (unsigned)sort.n_part + cuda_ceil_div(fours, BEGIN_FOURS), 1, 1, BEGIN_BLOCK,
                      cuda_sort_shared(&sort), begin_args));
    struct mx_list list = {.pieces = {e->slot, s.pairs.piece, s.pairs.n_piece, s.pairs.row_of, n_pair},
                           .wide = s.wide,
                           .n_part = (width + SMALL_WIDTH - 1) / SMALL_WIDTH,
                           .is_rest = is_large,
                           .has_wide = e->n_wide > 0,
                           .one = 1};
    size_t shared = cuda->info->shared_bytes;
    if (is_large) {
        unsigned block = (unsigned)large_block[wide];
        struct large_gate_up_job up = {list, e->base, s.large_x, s.large_h, s.hidden};
        struct quantise_job hidden = {.x = s.hidden,
                                      .large = has_small ? s.large_h : none,
                                      .planes = has_small ? none : s.large_h,
                                      .wide = s.wide,
                                      .n_row = n_pair,
                                      .n_col = (int)e->n_ff,
                                      .stride = (int)(has_small ? (size_t)e->n_ff : cuda_padded(e->n_ff)),
                                      .is_bf16 = !has_small,
                                      .spans = 1};
        struct large_down_job down = {list, e->base, s.large_h, s.flat};
        void *up_args[] = {&up}, *hidden_args[] = {&hidden}, *down_args[] = {&down};
        TRY(mote_cuda_run(cuda, e->mx_large[wide], GATE_UP, n_sm, 1, 1, block, shared, up_args));
        if (wide) /* narrow pieces are quantised where they are made */
            TRY(mote_cuda_run(
                cuda, cuda->mx_program, QUANTISE,
                cuda_ceil_div(n_pair * (int64_t)cuda_ceil_div(e->n_ff, FOUR_UNITS), BEGIN_FOURS), 1, 1,
                BEGIN_BLOCK, 0, hidden_args));
        TRY(mote_cuda_run(cuda, e->mx_large[wide], DOWN, n_sm, 1, 1, block, shared, down_args));
    }
    if (has_small) {
        int may_share = !is_large && n_sm <= MOST_BLOCKS;
        struct gate_up_job up = {list, s.x, s.h, may_share ? s.flat : NULL, s.done};
        struct down_job down = {list, s.h, s.flat, is_flat_bf16};
        void *up_args[] = {&up}, *down_args[] = {&down};
        TRY(mote_cuda_run(cuda, e->mx_small, GATE_UP, n_sm, 1, 1, SMALL_BLOCK, shared, up_args));
        TRY(mote_cuda_run(cuda, e->mx_small, DOWN, n_sm, 1, 1, SMALL_BLOCK, shared, down_args));
    }
    struct sum_job sum = {.flat = s.flat,
                          .place = s.pairs.place,
                          .weights = job->weights,
                          .residual = job->residual,
                          .y = job->y,
                          .n_used = job->n_used,
                          .d_model = (int)job->d_model,
                          .is_flat_bf16 = is_flat_bf16,
                          .is_bf16 = job->y_type == MOTE_BF16};
    void *sum_args[] = {&sum};
    return mote_cuda_run(cuda, cuda->mx_program, SUM, cuda_ceil_div(job->d_model, 1024), (unsigned)job->n_row,
                         1, 256, 0, sum_args);
}
