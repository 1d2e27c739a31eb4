/* cuda_mx.c: expert blocks whose weights are MXFP4, on sm_90: which kernels of mx_*.cu run, and the scratch between them.
 *
 *   quantise x, sort pairs by expert | gate and up, activated, quantised | down | ordered sum
 *
 * Few pairs an expert: one kernel for gate, up and down, at memory's speed, any scales (mx_small.cu). Some: a weight is taken apart once for
 * up to 64 (mx_narrow.cu). Both by fp8 tensor cores; activations that are not MXFP4 are two planes of fp8 numbers (mx_act.cuh), from
 * steps of some pairs an expert or some bytes of weights on; others are the portable kernels'. Many: once for up to 256, of fp8, or where
 * activations are not MXFP4 of bf16 (mx_wide.cu).
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
    uint16_t *halves;
    int n_row, n_col, is_bf16, share;
    int32_t *count;
    float *y;
    const float *residual;
};
struct share_job {
    struct mx_rows rows;
    float *scale;
    int n_row, n_col;
};
struct mx_list {
    struct {
        const uint64_t *slot;
        const int32_t *piece, *n_piece, *row_of;
        int n_pair;
    } pieces;
    const int32_t *rest, *n_rest;
    int n_part, one;
};
struct small_job {
    struct mx_list list;
    struct mx_rows x, h;
    void *flat;
    int is_bf16;
    float *y;
    const float *weight_of;
    int32_t *taken, *made;
};
struct gate_up_job {
    struct mx_list list;
    const uint8_t *base;
    struct mx_rows x, h;
};
struct down_job {
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

enum { BEGIN, SHARE, SUM };
static const struct cuda_text step_text = {.name = "mx_step.cu",
                                           .kernel = {"mx_begin", "mx_share", "mx_sum"}};
enum { GATE_UP, DOWN };
static const struct cuda_text small_text = {.name = "mx_small.cu", .kernel = {"mx_small"}, .shared = 1};
static const struct cuda_text narrow_text = {
    .name = "mx_narrow.cu", .kernel = {"mx_narrow_gate_up", "mx_narrow_down"}, .shared = 1};
static const struct cuda_text wide_text = {
    .name = "mx_wide.cu", .kernel = {"mx_wide_gate_up", "mx_wide_down"}, .shared = 1};

/* Most pairs of a narrow piece, of a wide one by planes (of fp8 more would not leave registers enough); threads of their kernels. */
enum { NARROW_WIDTH = 64, NARROW_BLOCK = 640, WIDE_BLOCK = 384 };
static const int wide_width[2] = {208, 256};
/* What of a row has a scale together (mx_step.cu); most units of a row that has one. */
enum { OWN_SCALE, SPAN_SCALE, ROW_SCALE };
enum { MOST_UNITS = 128 };

/* Pairs of an expert, on average, from which on narrow pieces are faster than the small kernel, by planes, and wide ones, on an H200.
 * 385/7168/512/9, MXFP4 activations: at 1.5 pairs 477 us by the small kernel, 512 by narrow pieces, at 2.2 573 and 582; 32/7168/2048/8
 * at 2: 184 and 213, at 4: 254 and 221. Two planes, 128/2880/2880/4: at 1 pair 316 and 340, at 1.5 422 and 417; 128/2048/768/8 at 1: 83
 * and 86, at 2: 128 and 107. Wide (the narrow ones of other leases): 385/7168/512/9 at 48 pairs 1045 us by narrow pieces, 1083 by wide ones
 * as they were before mx_wide.cu; 128/2880/2880/4 at 64: 1315, and 1278 to 1291 by bf16. */
static const double narrow_from[2] = {2.25, 1.25}, wide_from[2] = {56, 64};
/* Two planes are faster than the portable kernels from so many pairs on, or from so many bytes of weights on that a step reads (of as many
 * experts as routing without favourites would choose): 128/2048/768/8 at 4 rows, 73 MB: 37 us by portable kernels, 39; at 8, 130 MB: 54.5
 * and 55; 128/2880/2880/4 at 1 row, 53 MB: 28.0 and 30.8; at 2, 104 MB: 50.8 and 43.5. */
static const double planes_from = 1, planes_from_bytes = 90e6;
/* Results of so many pairs stay f32 until they are summed, if they are the small kernel's. */
enum { FEW_PAIRS = 512 };
/* Most pairs of a piece of the small kernel, by planes. */
static const int small_width[2] = {4, 2};
enum { UNIT = MOTE_UNIT_COLS, SMALL_BLOCK = 640 };
/* Threads of mx_step.cu's, and how often they quantise four units of a row. */
enum { FOUR_UNITS = 4 * UNIT, BEGIN_BLOCK = 1024, BEGIN_FOURS = 32 };

/* ---- scratch ---- */

struct scratch {
    /* [max_row][d_model to 128]: for the small kernel, for the others (mx_act.cuh); [pairs][n_ff to 128] likewise */
    struct mx_rows x, large_x, h, large_h;
    void *flat; /* [pairs][d_model] bf16, of up to FEW_PAIRS f32 */
    struct cuda_pairs pairs;
    int32_t *count; /* [2]: taken, made */
};

/* Two planes, or bf16: the small kernel's rows lie where the others' do, since a step has either. */
static size_t cut(const struct mote_backend_limits *l, int planes, void *base, struct scratch *s)
{
    size_t total = 0, row = (size_t)l->max_row, pair = row * (size_t)l->n_used, d = cuda_padded(l->d_model),
           ff = cuda_padded(l->n_ff), large_row = planes == 1 ? row : 0, large_pair = planes == 1 ? pair : 0;
    s->x.q = cuda_cut(base, &total, row, d * (size_t)planes);
    s->x.scale = cuda_cut(base, &total, row, d / 32 * sizeof(float));
    s->large_x.q = cuda_cut(base, &total, large_row, d);
    s->large_x.scale = cuda_cut(base, &total, large_row, d / UNIT * sizeof(float));
    s->h.q = cuda_cut(base, &total, pair, ff * (size_t)planes);
    s->h.scale = cuda_cut(base, &total, pair, ff / 32 * sizeof(float));
    s->large_h.q = cuda_cut(base, &total, large_pair, ff);
    s->large_h.scale = cuda_cut(base, &total, large_pair, ff / UNIT * sizeof(float));
    if (planes == 2) s->large_x = s->x, s->large_h = s->h;
    size_t few = pair < FEW_PAIRS ? pair : FEW_PAIRS, halves = pair > 2 * few ? pair : 2 * few;
    s->flat = cuda_cut(base, &total, halves, (size_t)l->d_model * sizeof(uint16_t));
    int width = small_width[planes - 1];
    s->pairs = cuda_cut_pairs(base, &total, pair, l->n_expert, width);
    s->pairs.rest = cuda_cut(base, &total, planes == 1 ? pair / (size_t)width + (size_t)l->n_expert : 0,
                             sizeof *s->pairs.rest);
    s->pairs.n_rest = cuda_cut(base, &total, planes == 1, sizeof *s->pairs.n_rest);
    s->pairs.weight_of = cuda_cut(base, &total, pair, sizeof *s->pairs.weight_of);
    s->count = cuda_cut(base, &total, 2, sizeof *s->count);
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
    int is_nobodys = planes == 2 && e->has_no_number; /* the kernel for bf16 makes a number of it */
    if (cuda->info->cc != 90 || !planes || is_nobodys || e->h_act != e->x_act) return MOTE_OK;
    mote_tile_kind_text(&e->kind[CUDA_UP], text);
    mote_cuda_activation_text(&e->activation, activation);
    TRY(mote_cuda_program(cuda, &step_text, &cuda->mx_program, "%s", ""));
    TRY(mote_cuda_program(
        cuda, &small_text, &e->mx_small, "W0=%s D_MODEL=%lld N_FF=%lld PLANES=%d MX_SHARED=%zu %s", text,
        (long long)e->d_model, (long long)e->n_ff, planes, cuda->info->shared_bytes, activation));
    if (e->first == CUDA_GATE) {
        TRY(mote_cuda_program(
            cuda, &narrow_text, &e->mx_narrow, "W0=%s D_MODEL=%lld N_FF=%lld PLANES=%d MX_SHARED=%zu %s",
            text, (long long)e->d_model, (long long)e->n_ff, planes, cuda->info->shared_bytes, activation));
        TRY(mote_cuda_program(cuda, &wide_text, &e->mx_wide,
                              "W0=%s D_MODEL=%lld N_FF=%lld FP8=%d WIDTH=%d MX_SHARED=%zu %s", text,
                              (long long)e->d_model, (long long)e->n_ff, planes == 1, wide_width[planes - 1],
                              cuda->info->shared_bytes, activation));
    }
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

/* Which kernels a step takes. */
enum mx_way { SMALL, NARROW, WIDE };
static enum mx_way way_of(const struct cuda_experts *e, const struct mote_moe *job)
{
    double mean = mean_pairs(e, job);
    int planes = e->mx_planes - 1, fits = e->d_model <= MOST_UNITS * UNIT && e->n_ff <= MOST_UNITS * UNIT;
    if (e->first != CUDA_GATE || mean < narrow_from[planes]) return SMALL;
    return mean >= wide_from[planes] && fits ? WIDE : NARROW;
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
    int is_chosen_by_kernels = job->route && job->n_row == 1; /* cuda_moe.c */
    if (is_chosen_by_kernels || !takes_rows(e, job->n_row, job->n_used, job->x_type, job->y_type)) return 0;
    /* Two planes' small kernel takes any scales, and so does bf16. */
    if (e->mx_planes == 2 && e->n_wide && way_of(e, job) == NARROW) return 0;
    return e->mx_planes == 1 || mean_pairs(e, job) >= planes_from || read_bytes(e, job) >= planes_from_bytes;
}

int mote_cuda_mx_takes_all(const struct mote_backend_limits *l)
{
    const struct cuda_experts *e = l->only ? l->only->placed : NULL;
    return e && e->mx_planes == 1 && takes_rows(e, l->max_row, l->n_used, l->x_type, l->y_type);
}

/* ---- launches ---- */

/* Blocks of mx_step.cu that quantise rows. */
static unsigned row_blocks(int64_t n_row, int64_t n_col, int is_whole)
{
    unsigned fours = cuda_ceil_div(n_col, FOUR_UNITS);
    return is_whole ? cuda_ceil_div(n_row, BEGIN_FOURS / fours) : cuda_ceil_div(n_row * fours, BEGIN_FOURS);
}

mote_status mote_cuda_mx_moe(struct cuda_backend *cuda, const struct mote_moe *job)
{
    const struct cuda_experts *e = job->experts->placed;
    int is_mxfp4 = e->mx_planes == 1;
    FAIL_IF(is_mxfp4 && !(cuda->limits.act_moe >> MOTE_ACT_MXFP4 & 1), MOTE_INTERNAL,
            "moe: MXFP4 activations, but the backend's limits leave no scratch for them");
    struct scratch s;
    cut(&cuda->limits, e->mx_planes, cuda->prefill_scratch, &s);
    cuda->prefill_x_type = -1;
    int n_pair = (int)(job->n_row * job->n_used);
    unsigned n_sm = (unsigned)cuda->info->n_sm;
    enum mx_way way = way_of(e, job);
    int has_rest = is_mxfp4 && way != SMALL && e->n_wide, has_small = way == SMALL || has_rest,
        small = small_width[e->mx_planes - 1],
        width = way == SMALL    ? small
                : way == NARROW ? NARROW_WIDTH
                                : wide_width[e->mx_planes - 1],
        shares_row = is_mxfp4 && way == WIDE, is_flat_bf16 = way != SMALL || n_pair > FEW_PAIRS;
    int adds =
        job->unordered && way == SMALL && job->y_type == MOTE_F32; /* results to y, where they are made */
    struct mx_rows none = {0};
    struct quantise_job quantise = {.x = job->x,
                                    .small = is_mxfp4 && has_small ? s.x : none,
                                    .large = is_mxfp4 && way != SMALL ? s.large_x : none,
                                    .planes = is_mxfp4 || way == WIDE ? none : s.x,
                                    .halves = !is_mxfp4 && way == WIDE ? s.x.q : NULL,
                                    .n_row = (int)job->n_row,
                                    .n_col = (int)job->d_model,
                                    .is_bf16 = job->x_type == MOTE_BF16,
                                    .share = shares_row      ? ROW_SCALE
                                             : way == NARROW ? SPAN_SCALE
                                                             : OWN_SCALE,
                                    .count = s.count,
                                    .y = adds && job->residual != job->y ? job->y : NULL,
                                    .residual = job->residual};
    if (!has_rest) s.pairs.rest = NULL;
    if (!adds) s.pairs.weight_of = NULL;
    struct cuda_sort_job sort =
        cuda_sort_job(cuda, &s.pairs, job, e->n_expert, width, has_rest ? e->wide : NULL);
    void *begin_args[] = {&quantise, &sort};
    TRY(mote_cuda_run(cuda, cuda->mx_program, BEGIN,
                      (unsigned)sort.n_part + row_blocks(job->n_row, job->d_model, shares_row), 1, 1,
                      BEGIN_BLOCK, cuda_sort_shared(&sort), begin_args));
    struct mx_list list = {.pieces = {e->slot, s.pairs.piece, s.pairs.n_piece, s.pairs.row_of, n_pair},
                           .rest = s.pairs.rest,
                           .n_rest = s.pairs.n_rest,
                           .n_part = (width + small - 1) / small,
                           .one = 1};
    size_t shared = cuda->info->shared_bytes;
    if (way != SMALL) {
        int program = way == WIDE ? e->mx_wide : e->mx_narrow;
        unsigned block = way == WIDE ? WIDE_BLOCK : NARROW_BLOCK;
        struct mx_rows h = shares_row ? s.h : s.large_h, shared_h = {s.h.q, s.large_h.scale};
        struct gate_up_job up = {list, e->base, s.large_x, h};
        struct share_job share = {s.h, s.large_h.scale, n_pair, (int)e->n_ff};
        struct down_job down = {list, e->base, shares_row ? shared_h : h, s.flat};
        void *up_args[] = {&up}, *share_args[] = {&share}, *down_args[] = {&down};
        TRY(mote_cuda_run(cuda, program, GATE_UP, n_sm, 1, 1, block, shared, up_args));
        if (shares_row)
            TRY(mote_cuda_run(cuda, cuda->mx_program, SHARE, row_blocks(n_pair, e->n_ff, 1), 1, 1,
                              BEGIN_BLOCK, 0, share_args));
        TRY(mote_cuda_run(cuda, program, DOWN, n_sm, 1, 1, block, shared, down_args));
    }
    if (has_small) {
        struct small_job small_job = {.list = list,
                                      .x = s.x,
                                      .h = s.h,
                                      .flat = s.flat,
                                      .is_bf16 = is_flat_bf16,
                                      .y = job->y,
                                      .weight_of = s.pairs.weight_of,
                                      .taken = &s.count[0],
                                      .made = &s.count[1]};
        void *small_args[] = {&small_job};
        TRY(mote_cuda_run(cuda, e->mx_small, 0, n_sm, 1, 1, SMALL_BLOCK, shared, small_args));
    }
    if (adds) return MOTE_OK;
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
    return mote_cuda_run(cuda, cuda->mx_program, SUM, cuda_ceil_div(job->d_model, is_flat_bf16 ? 1024 : 512),
                         (unsigned)job->n_row, 1, 128, 0, sum_args);
}
