/* cuda_prefill.c: steps of more rows than decoding takes: which kernels of prefill_*.cu run, on what grids, and the
 * scratch between them.
 *
 *   linear:  convert x | rows of weights x tokens
 *   moe:     convert x, sort pairs by expert | gate and up, activated | down | ordered sum
 *
 * Activations become halves (of numbers rounded to MXFP4 where that is wished: bf16 holds them exactly), or 8-bit
 * integers where all weights that read them are small integers under scales of 128 columns and more
 * (prefill_int8_*.cu). A wish for f32 leaves integers out.
 *
 * Owns no memory of its own: everything between the launches lies in cuda->prefill_scratch, cut by `cut`.
 * One idea: a grid depends on the step's shape alone. Which experts were chosen is read on the device; the grid has
 * room for the worst case and blocks without work end at once.
 */
#include "backend/cuda_pairs.h"

/* ---- what the kernels are called with, as they declare it ---- */

struct convert_job {
    const float *x;
    void *out;
    float *scale, *group;
    int n_row, n_col, type;
};
struct linear_out {
    const uint8_t *w;
    const float *bias, *residual;
    float *y;
    long long y_stride;
    int n_row, first_block;
};
struct linear_outs {
    struct linear_out out[MOTE_LINEAR_OUTS];
    int n_out, n_token;
};
struct linear_job {
    const uint16_t *x;
    const float *x_scale;
    struct linear_outs to;
};
struct int8_rows {
    void *q;
    float *group;
};
struct int8_linear_job {
    struct int8_rows x;
    struct linear_outs to;
};
struct pieces {
    const uint64_t *slot;
    const int32_t *piece, *n_piece, *row_of;
    int n_pair;
};
struct gate_up_job {
    struct pieces list;
    const uint16_t *x;
    const float *x_scale;
    uint16_t *h;
    int n_ff, h_stride;
};
struct int8_gate_up_job {
    struct pieces list;
    struct int8_rows x, h;
    int n_ff, h_stride;
};
struct down_job {
    struct pieces list;
    const uint16_t *h;
    float *flat;
    int d_model;
};
struct int8_down_job {
    struct pieces list;
    struct int8_rows h;
    float *flat;
    int d_model;
};
struct sum_job {
    const float *flat;
    const int32_t *place;
    const float *weights, *shared, *shared_gate, *residual;
    float *y;
    int n_used, d_model;
};

enum { CONVERT, BEGIN, SUM };
static const struct cuda_text step_text = {.name = "prefill_step.cu",
                                           .kernel = {"prefill_convert", "prefill_begin", "prefill_sum"}};
#define TEXT(file, ...)                                    \
    {                                                      \
        .name = file, .kernel = {__VA_ARGS__}, .shared = 1 \
    }
enum { LINEAR_32, LINEAR_64, LINEAR_128 }; /* tokens of a block; 128 with wgmma alone: [1] */
static const struct cuda_text linear_text[2] = {
    TEXT("prefill_linear.cu", "prefill_linear_32", "prefill_linear_64"),
    TEXT("prefill_linear.cu", "prefill_linear_32", "prefill_linear_64", "prefill_linear_128")};
enum { NARROW, WIDE }; /* pieces of up to 64, 128 pairs */
static const struct cuda_text gate_up_text[2] = {
    TEXT("prefill_gate_up.cu", "prefill_gate_up_64"),
    TEXT("prefill_gate_up.cu", "prefill_gate_up_64", "prefill_gate_up_128")};
static const struct cuda_text down_text[2] = {TEXT("prefill_down.cu", "prefill_down_64"),
                                              TEXT("prefill_down.cu", "prefill_down_64", "prefill_down_128")};
static const struct cuda_text int8_linear_text = TEXT("prefill_int8_linear.cu", "prefill_int8_linear_32",
                                                      "prefill_int8_linear_64"),
                              int8_gate_up_text = TEXT("prefill_int8_gate_up.cu", "prefill_int8_gate_up"),
                              int8_down_text = TEXT("prefill_int8_down.cu", "prefill_int8_down");
#undef TEXT

static int has_wgmma(const struct cuda_backend *cuda)
{
    return cuda->info->cc == 90;
}

/* Rows of weights of a block that multiplies; threads of one with one tile a warp, with two, and of one that adds up
 * (prefill_loop.cuh). */
enum { BLOCK_ROWS = 256, BLOCK_ONE = 512, BLOCK_TWO = 256, SUM_BLOCK = 256 };
enum { INT8_ROWS = 128, INT8_BLOCK = 256 }; /* the same of prefill_int8_loop.cuh */
enum { UNIT = MOTE_UNIT_COLS, LEAST_WIDTH = 64 };

/* What activations become for a product: halves (prefill_half.cuh), or bytes with a scale for so many columns (from
 * LEAST_GROUP on). */
enum { AS_F16, AS_BF16, AS_MXFP4, LEAST_GROUP = 128, MOST_GROUP = 256, MOST_HIDDEN_GROUP = 128 };

/* Scales of E8M0 need bf16's exponent (prefill_half.cuh). */
static int is_bf16(const struct mote_tile_kind *kind)
{
    return kind->item == MOTE_ITEM_E8M0;
}

static int half_type(enum mote_act_wish wish, int bf16)
{
    return wish == MOTE_WISH_MXFP4 ? AS_MXFP4 : bf16 ? AS_BF16 : AS_F16;
}

/* As prefill_int8_loop.cuh: six stages of `width` tokens, their groups and rows; behind them rows of h (gate_up). */
static size_t int8_shared_bytes(int width, int64_t n_col, int group, int has_hidden)
{
    enum { STAGES = 6, HIDDEN_ROW = UNIT + 4 };
    size_t n_group = (cuda_padded(n_col) + (size_t)group - 1) / (size_t)group;
    return (size_t)width * (STAGES * UNIT + n_group * 2 * sizeof(float) + sizeof(uint32_t) +
                            (has_hidden ? HIDDEN_ROW * sizeof(float) : 0));
}

/* Columns of a scale when rows of bytes, n_col wide, are read by weights of this kind, `most` at most; 0: it wants halves.
 * (Groups of 64, Q2_0's, are met too often: 2 to 30 % slower than halves.) */
static int int8_group(const struct cuda_backend *cuda, enum mote_act_wish wish,
                      const struct mote_tile_kind *kind, int64_t n_col, int most)
{
    int is_small = kind->code == MOTE_CODE_C1 || kind->code == MOTE_CODE_C2 || kind->code == MOTE_CODE_T5;
    if (wish == MOTE_WISH_F32 || !is_small || kind->has_min || kind->sub < LEAST_GROUP) return 0;
    int group = kind->sub < most ? kind->sub : most;
    return int8_shared_bytes(LEAST_WIDTH, n_col, group, 1) <= cuda->info->shared_bytes ? group : 0;
}

/* What the inputs of gate and up, and of down, become. */
static void set_types(const struct cuda_backend *cuda, struct cuda_experts *e)
{
    const struct mote_tile_kind *first = &e->kind[e->first], *up = &e->kind[CUDA_UP],
                                *down = &e->kind[CUDA_DOWN];
    int x = int8_group(cuda, e->x_act, first, e->d_model, MOST_GROUP),
        h = int8_group(cuda, e->h_act, down, e->n_ff, MOST_HIDDEN_GROUP);
    if (x && h && x == int8_group(cuda, e->x_act, up, e->d_model, MOST_GROUP)) {
        e->x_type = x, e->h_type = h;
    } else {
        e->x_type = half_type(e->x_act, is_bf16(first) || is_bf16(up));
        e->h_type = half_type(e->h_act, is_bf16(down));
    }
}

/* ---- scratch ---- */

struct scratch {
    uint16_t *x;    /* [max_row][widest input, padded]; or bytes */
    float *x_scale; /* [max_row] */
    float *x_group; /* bytes: [max_row][groups][2] */
    uint16_t *h;    /* [pairs][n_ff, padded], or [max_row][n_ff_shared, padded]; or bytes */
    float *h_group; /* bytes: as h, [groups][2] */
    float *flat;    /* [max_pair][d_model] */
    float *shared;  /* [max_row][d_model] */
    struct cuda_pairs pairs;
};

static size_t cut(const struct mote_backend_limits *l, void *base, struct scratch *s)
{
    size_t total = 0, row = (size_t)l->max_row, pair = row * (size_t)l->n_used, d_model = (size_t)l->d_model;
    size_t col = cuda_padded(l->max_col > l->d_model ? l->max_col : l->d_model);
    size_t routed = pair * cuda_padded(l->n_ff), shared = row * cuda_padded(l->n_ff_shared);
    s->x = cuda_cut(base, &total, row, col * sizeof *s->x);
    s->x_scale = cuda_cut(base, &total, row, sizeof *s->x_scale);
    s->x_group = cuda_cut(base, &total, row, col / LEAST_GROUP * 2 * sizeof *s->x_group);
    s->h = cuda_cut(base, &total, routed > shared ? routed : shared, sizeof *s->h);
    s->h_group =
        cuda_cut(base, &total, (routed > shared ? routed : shared) / LEAST_GROUP, 2 * sizeof *s->h_group);
    s->flat = cuda_cut(base, &total, pair, d_model * sizeof *s->flat);
    s->shared = cuda_cut(base, &total, l->n_ff_shared ? row : 0, d_model * sizeof *s->shared);
    s->pairs = cuda_cut_pairs(base, &total, pair, l->n_expert, LEAST_WIDTH);
    return total;
}

size_t mote_cuda_prefill_scratch(const struct mote_backend_limits *limits)
{
    struct scratch ignored;
    return cut(limits, NULL, &ignored);
}

/* ---- programs ---- */

mote_status mote_cuda_prefill_weight(struct cuda_backend *cuda, struct cuda_weight *weight)
{
    char text[MOTE_TILE_TEXT];
    mote_tile_kind_text(&weight->kind, text);
    TRY(mote_cuda_program(cuda, &step_text, &cuda->prefill_program, "%s", ""));
    int group = int8_group(cuda, weight->act, &weight->kind, weight->n_col, MOST_GROUP);
    weight->x_type = group ? group : half_type(weight->act, is_bf16(&weight->kind));
    if (group)
        return mote_cuda_program(cuda, &int8_linear_text, &weight->prefill, "W0=%s COLS=%lld X_GROUP=%d",
                                 text, (long long)weight->n_col, group);
    return mote_cuda_program(cuda, &linear_text[has_wgmma(cuda)], &weight->prefill,
                             "W0=%s COLS=%lld X_BF16=%d", text, (long long)weight->n_col,
                             weight->x_type != AS_F16);
}

mote_status mote_cuda_prefill_experts(struct cuda_backend *cuda, struct cuda_experts *experts)
{
    char text[CUDA_PROJECTIONS][MOTE_TILE_TEXT], activation[CUDA_ACTIVATION_TEXT];
    for (int p = experts->first; p < CUDA_PROJECTIONS; p++) mote_tile_kind_text(&experts->kind[p], text[p]);
    mote_cuda_activation_text(&experts->activation, activation);
    set_types(cuda, experts);
    TRY(mote_cuda_program(cuda, &step_text, &cuda->prefill_program, "%s", ""));
    if (experts->x_type >= LEAST_GROUP) {
        TRY(mote_cuda_program(cuda, &int8_gate_up_text, &experts->prefill_gate_up,
                              "W0=%s W1=%s COLS=%lld X_GROUP=%d %s", text[experts->first], text[CUDA_UP],
                              (long long)experts->d_model, experts->x_type, activation));
        return mote_cuda_program(cuda, &int8_down_text, &experts->prefill_down, "W0=%s COLS=%lld X_GROUP=%d",
                                 text[CUDA_DOWN], (long long)experts->n_ff, experts->h_type);
    }
    TRY(mote_cuda_program(cuda, &gate_up_text[has_wgmma(cuda)], &experts->prefill_gate_up,
                          "W0=%s W1=%s COLS=%lld X_BF16=%d H_TYPE=%d %s", text[experts->first], text[CUDA_UP],
                          (long long)experts->d_model, experts->x_type != AS_F16, experts->h_type,
                          activation));
    return mote_cuda_program(cuda, &down_text[has_wgmma(cuda)], &experts->prefill_down,
                             "W0=%s COLS=%lld X_BF16=%d", text[CUDA_DOWN], (long long)experts->n_ff,
                             experts->h_type != AS_F16);
}

/* ---- launches ---- */

/* As prefill_loop.cuh cuts it: four stages of `width` tokens, their scales and starts, tables of the kinds. */
static size_t shared_bytes(int width, const struct mote_tile_kind *a, const struct mote_tile_kind *b)
{
    enum { STAGES = 4, TABLE = (256 * 16 + 4) * 4 }; /* LUT_WORDS of tile.cuh */
    size_t bytes = (size_t)width * (STAGES * UNIT * sizeof(uint16_t) + sizeof(float) + sizeof(uint32_t));
    const struct mote_tile_kind *kind[] = {a, b && !mote_tile_kind_same(a, b) ? b : NULL};
    for (int i = 0; i < 2; i++)
        if (kind[i] && (kind[i]->code == MOTE_CODE_IQ2XXS || kind[i]->code == MOTE_CODE_IQ3XXS))
            bytes += TABLE;
    return bytes;
}

enum { CONVERT_ROWS = 4, CONVERT_BLOCK = 256 * CONVERT_ROWS };

static struct convert_job convert_job(struct cuda_backend *cuda, const struct scratch *s, const float *x,
                                      int64_t n_row, int64_t n_col, int type)
{
    cuda->prefill_x_type = type;
    return (struct convert_job){.x = x,
                                .out = s->x,
                                .scale = s->x_scale,
                                .group = s->x_group,
                                .n_row = (int)n_row,
                                .n_col = (int)n_col,
                                .type = type};
}

static mote_status convert(struct cuda_backend *cuda, const struct scratch *s, const float *x, int64_t n_row,
                           int64_t n_col, int type)
{
    struct convert_job job = convert_job(cuda, s, x, n_row, n_col, type);
    void *args[] = {&job};
    return mote_cuda_run(cuda, cuda->prefill_program, CONVERT, cuda_ceil_div(n_row, CONVERT_ROWS), 1, 1,
                         CONVERT_BLOCK, 0, args);
}

/* The tokens of a block that end first: rounds of blocks, each as long as its products or its unpacking takes (in cycles a
 * unit: a product of 256 rows x 1 token takes 16 at the tensor cores' full rate, half of that in bytes; unpacking about 1940;
 * bytes, unpacked and summed up, 300 and 5 a token). */
static int linear_kernel(const struct cuda_backend *cuda, int is_int8, int64_t row_blocks, int64_t n_token)
{
    int best = LINEAR_32, most = !is_int8 && has_wgmma(cuda) ? LINEAR_128 : LINEAR_64;
    int64_t least = INT64_MAX;
    for (int kernel = LINEAR_32; kernel <= most; kernel++) {
        int64_t width = 32 << kernel, products = is_int8 ? width * 9 : width * 17,
                unpacking = is_int8 ? 300 + width * 5 : 1940;
        int64_t blocks = row_blocks * cuda_ceil_div(n_token, width);
        int64_t time =
            cuda_ceil_div(blocks, cuda->info->n_sm) * (200 + (products > unpacking ? products : unpacking));
        if (time >= least) continue;
        least = time;
        best = kernel;
    }
    return best;
}

mote_status mote_cuda_prefill_linear(struct cuda_backend *cuda, const struct mote_linear *job, int first,
                                     const float *x, int fresh, unsigned *done)
{
    const struct cuda_weight *weight = job->out[first].weight->placed;
    struct scratch s;
    cut(&cuda->limits, cuda->prefill_scratch, &s);
    if (fresh || cuda->prefill_x_type != weight->x_type)
        TRY(convert(cuda, &s, x, job->n_row, weight->n_col, weight->x_type));
    struct linear_outs outs = {.n_token = (int)job->n_row};
    int row_blocks = 0, is_int8 = weight->x_type >= LEAST_GROUP;
    for (int j = first; j < job->n_out; j++) {
        const struct mote_linear_out *out = &job->out[j];
        const struct cuda_weight *w = out->weight->placed;
        if (w->kind.code == MOTE_CODE_NONE || w->prefill != weight->prefill || w->x_type != weight->x_type)
            continue;
        outs.out[outs.n_out++] = (struct linear_out){.w = w->data,
                                                     .bias = w->bias,
                                                     .residual = out->residual,
                                                     .y = out->y,
                                                     .y_stride = out->y_stride,
                                                     .n_row = (int)w->n_row,
                                                     .first_block = row_blocks};
        row_blocks += (int)cuda_ceil_div(w->n_row, is_int8 ? INT8_ROWS : BLOCK_ROWS);
        *done |= 1u << j;
    }
    int kernel = linear_kernel(cuda, is_int8, row_blocks, job->n_row), width = 32 << kernel;
    struct linear_job halves = {s.x, s.x_scale, outs};
    struct int8_linear_job bytes = {{s.x, s.x_group}, outs};
    void *args[] = {is_int8 ? (void *)&bytes : &halves};
    return mote_cuda_run(cuda, weight->prefill, kernel, (unsigned)row_blocks,
                         cuda_ceil_div(job->n_row, width), 1, is_int8 ? INT8_BLOCK : BLOCK_ONE,
                         is_int8 ? int8_shared_bytes(width, weight->n_col, weight->x_type, 0)
                                 : shared_bytes(width, &weight->kind, NULL),
                         args);
}

/* ---- the expert block ---- */

/* Convert x and sort the pairs. */
static mote_status begin(struct cuda_backend *cuda, const struct scratch *s, const struct mote_moe *job,
                         int n_expert, int width, int type)
{
    struct convert_job x = convert_job(cuda, s, job->x, job->n_row, job->d_model, type);
    struct cuda_sort_job sort = cuda_sort_job(cuda, &s->pairs, job, n_expert, width, NULL);
    void *args[] = {&x, &sort};
    return mote_cuda_run(cuda, cuda->prefill_program, BEGIN,
                         (unsigned)sort.n_part + cuda_ceil_div(job->n_row, CONVERT_ROWS), 1, 1, CONVERT_BLOCK,
                         cuda_sort_shared(&sort), args);
}

/* gate, up and down of the pairs of a list, to `flat`. */
static mote_status products(struct cuda_backend *cuda, const struct scratch *s, const struct cuda_experts *e,
                            const struct pieces *list, int kernel, unsigned most_pieces, float *flat)
{
    int width = 64 << kernel, h_stride = (int)cuda_padded(e->n_ff), is_int8 = e->x_type >= LEAST_GROUP,
        up_rows = is_int8                 ? INT8_ROWS
                  : e->first == CUDA_GATE ? BLOCK_ROWS / 2
                                          : BLOCK_ROWS; /* of h that a block makes */
    unsigned block = is_int8 ? INT8_BLOCK : kernel == WIDE ? BLOCK_ONE : BLOCK_TWO;
    struct gate_up_job up = {.list = *list,
                             .x = s->x,
                             .x_scale = s->x_scale,
                             .h = s->h,
                             .n_ff = (int)e->n_ff,
                             .h_stride = h_stride};
    struct int8_rows h = {s->h, s->h_group};
    struct int8_gate_up_job up_int8 = {
        .list = *list, .x = {s->x, s->x_group}, .h = h, .n_ff = (int)e->n_ff, .h_stride = h_stride};
    void *up_args[] = {is_int8 ? (void *)&up_int8 : &up};
    TRY(mote_cuda_run(cuda, e->prefill_gate_up, kernel, cuda_ceil_div(h_stride, up_rows), most_pieces, 1,
                      block,
                      is_int8 ? int8_shared_bytes(width, e->d_model, e->x_type, 1)
                              : shared_bytes(width, &e->kind[e->first], &e->kind[CUDA_UP]),
                      up_args));
    struct down_job down = {.list = *list, .h = s->h, .flat = flat, .d_model = (int)e->d_model};
    struct int8_down_job down_int8 = {.list = *list, .h = h, .flat = flat, .d_model = (int)e->d_model};
    void *down_args[] = {is_int8 ? (void *)&down_int8 : &down};
    return mote_cuda_run(cuda, e->prefill_down, kernel,
                         cuda_ceil_div(e->d_model, is_int8 ? INT8_ROWS : BLOCK_ROWS), most_pieces, 1, block,
                         is_int8 ? int8_shared_bytes(width, e->n_ff, e->h_type, 0)
                                 : shared_bytes(width, &e->kind[CUDA_DOWN], NULL),
                         down_args);
}

/* Wide pieces unpack weights half as often; narrow ones fill more of the device. In bytes there are narrow ones alone. */
static int piece_kernel(const struct cuda_backend *cuda, const struct cuda_experts *e, int64_t n_pair,
                        int64_t n_expert)
{
    return e->x_type < LEAST_GROUP && has_wgmma(cuda) && n_pair >= 48 * n_expert ? WIDE : NARROW;
}

mote_status mote_cuda_prefill_moe(struct cuda_backend *cuda, const struct mote_moe *job)
{
    struct scratch s;
    cut(&cuda->limits, cuda->prefill_scratch, &s);
    const struct cuda_experts *experts = job->n_used ? job->experts->placed : NULL;
    const struct cuda_experts *shared = job->shared ? job->shared->placed : NULL;
    if (experts) {
        int64_t n_pair = job->n_row * job->n_used;
        int kernel = piece_kernel(cuda, experts, n_pair, experts->n_expert), width = 64 << kernel;
        struct pieces list = {.slot = experts->slot,
                              .piece = s.pairs.piece,
                              .n_piece = s.pairs.n_piece,
                              .row_of = s.pairs.row_of,
                              .n_pair = (int)n_pair};
        int64_t most = n_pair / width + (n_pair < experts->n_expert ? n_pair : experts->n_expert);
        TRY(begin(cuda, &s, job, experts->n_expert, width, experts->x_type));
        TRY(products(cuda, &s, experts, &list, kernel, (unsigned)most, s.flat));
    }
    if (shared) {
        int kernel = piece_kernel(cuda, shared, job->n_row, 2);
        struct pieces list = {.slot = shared->slot, .n_pair = (int)job->n_row};
        if (!experts || shared->x_type != cuda->prefill_x_type)
            TRY(convert(cuda, &s, job->x, job->n_row, job->d_model, shared->x_type));
        TRY(products(cuda, &s, shared, &list, kernel, cuda_ceil_div(job->n_row, 64 << kernel), s.shared));
    }
    struct sum_job sum = {.flat = s.flat,
                          .place = s.pairs.place,
                          .weights = job->weights,
                          .shared = shared ? s.shared : NULL,
                          .shared_gate = job->shared_gate,
                          .residual = job->residual,
                          .y = job->y,
                          .n_used = job->n_used,
                          .d_model = (int)job->d_model};
    void *args[] = {&sum};
    return mote_cuda_run(cuda, cuda->prefill_program, SUM, cuda_ceil_div(job->d_model, 1024),
                         (unsigned)job->n_row, 1, SUM_BLOCK, 0, args);
}
