/* cuda_linear.c: products of one input with up to four matrices, a norm before them. Matrices of the same kind share a
 * launch, so that q, k and v fill the device as one matrix would. */
#include "backend/cuda_backend.h"

enum { PLAIN_ROWS = 4 }; /* MAX_ROWS of plain.cu */

/* As linear.cu and plain.cu have them. */
struct linear_out {
    const uint8_t *data;
    const float *bias;
    float *y;
    const float *residual;
    int64_t y_stride;
    int32_t n_row, first_tile;
};
struct linear_outs {
    struct linear_out out[MOTE_LINEAR_OUTS];
    int32_t n_out, n_tile, n_block;
};
struct normed_row {
    const float *x, *norm;
    float *out;
    float eps;
};
struct plain_out {
    const uint8_t *data;
    size_t row_bytes;
    const float *bias;
    float *y;
    const float *residual;
    int64_t y_stride;
    int32_t n_row, n_col;
};

static mote_status run_plain(struct cuda_backend *cuda, const struct mote_linear_out *out, const float *x,
                             int64_t n_row)
{
    const struct cuda_weight *w = out->weight->placed;
    struct plain_out job = {.data = w->data,
                            .row_bytes = mote_tile_bytes(&w->kind, w->n_col) / MOTE_TILE_ROWS,
                            .bias = w->bias,
                            .y = out->y,
                            .residual = out->residual,
                            .y_stride = out->y_stride,
                            .n_row = (int32_t)w->n_row,
                            .n_col = (int32_t)w->n_col};
    int n_x = (int)n_row, split = w->n_row < 4096 ? 4 : 1;
    void *args[] = {&job, &x, &n_x, &split};
    if (n_row > cuda->decode_rows)
        return mote_cuda_run(cuda, w->decode, CUDA_PLAIN_GEMM, (unsigned)((w->n_row + 63) / 64),
                             (unsigned)((n_row + 31) / 32), 1, 256, 0, args);
    return mote_cuda_run(cuda, w->decode, CUDA_PLAIN_LINEAR,
                         (unsigned)(split == 4 ? w->n_row : (w->n_row + 3) / 4),
                         (unsigned)((n_row + PLAIN_ROWS - 1) / PLAIN_ROWS), 1, 128, 0, args);
}

/* Blocks that share the tiles, each as many as the others: what a block does once (a code book, a row normed) is worth a
 * few tiles. `resident`: blocks that the device runs at once, but for the next kernel's. */
static int32_t blocks_of(const struct cuda_backend *cuda, int32_t tile, unsigned block, int is_normed)
{
    int32_t resident = cuda->info->n_sm * (is_normed || block > 256 ? 1 : (int32_t)(768 / block));
    int32_t turns = (tile + resident - 1) / resident;
    return (tile + turns - 1) / turns;
}

/* All outs from `first` on that run the same program and read x rounded alike. is_normed: the kernel norms the one row by
 * itself. */
static mote_status run_tiles(struct cuda_backend *cuda, const struct mote_linear *job, int first,
                             int is_normed, unsigned *done)
{
    const struct cuda_weight *w = job->out[first].weight->placed;
    struct linear_outs outs = {0};
    int32_t tile = 0;
    for (int j = first; j < job->n_out; j++) {
        const struct cuda_weight *other = job->out[j].weight->placed;
        if (other->kind.code == MOTE_CODE_NONE || other->decode != w->decode ||
            cuda_rounding(other->act) != cuda_rounding(w->act))
            continue;
        outs.out[outs.n_out++] = (struct linear_out){.data = other->data,
                                                     .bias = other->bias,
                                                     .y = job->out[j].y,
                                                     .residual = job->out[j].residual,
                                                     .y_stride = job->out[j].y_stride,
                                                     .n_row = (int32_t)other->n_row,
                                                     .first_tile = tile};
        tile += (int32_t)((other->n_row + MOTE_TILE_ROWS - 1) / MOTE_TILE_ROWS);
        *done |= 1u << j;
    }
    unsigned block = w->warps * 32;
    int n_x = (int)job->n_row;
    outs.n_tile = tile;
    outs.n_block = blocks_of(cuda, tile, block, is_normed);
    if (is_normed) {
        struct normed_row row = {job->x, job->norm, job->norm_out, job->eps};
        void *args[] = {&outs, &cuda->act, &row};
        return mote_cuda_run(cuda, w->decode, CUDA_LINEAR_NORMED, (unsigned)outs.n_block + 1, 1, 1, block, 0,
                             args);
    }
    void *args[] = {&outs, &cuda->act, &n_x};
    unsigned passes = (unsigned)(n_x + 15) / 16;
    return mote_cuda_run(cuda, w->decode,
                         n_x == 1   ? CUDA_LINEAR_ONE
                         : n_x <= 4 ? CUDA_LINEAR_FOUR
                                    : CUDA_LINEAR_SIXTEEN,
                         (unsigned)outs.n_block, passes, 1, block, 0, args);
}

mote_status mote_cuda_linear(struct mote_backend *backend, const struct mote_linear *job)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const float *x = job->norm ? job->norm_out : job->x;
    int is_few = job->n_row <= cuda->decode_rows, fresh = 1;
    const struct cuda_weight *w0 = job->out[0].weight->placed;
    /* One row: the first product norms it on its way; it must not write where it still reads. */
    int is_normed = job->norm && job->n_row == 1 && w0->kind.code != MOTE_CODE_NONE &&
                    w0->warps == cuda_row_warps(w0->n_col) && job->norm_out != job->x;
    if (job->norm) { /* quantised even for plain weights: experts read the same rows next */
        if (is_few) cuda->act.rounding = cuda_rounding(w0->act);
        if (!is_normed)
            TRY(mote_cuda_input_rows(cuda, job->x, NULL, job->n_row, job->n_col, job->norm, job->eps,
                                     job->norm_out, is_few ? &cuda->act : NULL));
        cuda->act_of = is_few ? x : NULL;
    }
    unsigned done = 0;
    for (int j = 0; j < job->n_out; j++) {
        if (done >> j & 1) continue;
        const struct mote_linear_out *out = &job->out[j];
        const struct cuda_weight *w = out->weight->placed;
        if (w->kind.code == MOTE_CODE_NONE) {
            TRY(run_plain(cuda, out, x, job->n_row));
        } else if (is_few) {
            TRY(mote_cuda_want_act(cuda, x, job->n_row, job->n_col, w->act));
            TRY(run_tiles(cuda, job, j, is_normed && j == 0, &done));
        } else {
            TRY(mote_cuda_prefill_linear(cuda, job, j, x, fresh, &done));
            fresh = 0;
        }
    }
    for (int j = 0; j < job->n_out; j++)
        if (job->out[j].y == cuda->act_of) cuda->act_of = NULL;
    return MOTE_OK;
}
