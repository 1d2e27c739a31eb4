/* cuda_pairs.h: what cuda_prefill.c and cuda_mx.c share: cutting scratch, and the pairs of a step (a row and an expert
 * it chose) sorted by expert into pieces of at most `width` pairs (kernels/pair_sort.cuh).
 */
#ifndef MOTE_BACKEND_CUDA_PAIRS_H
#define MOTE_BACKEND_CUDA_PAIRS_H

#include "backend/cuda_backend.h"

/* ---- sizes ---- */

/* Columns, padded to whole units. */
static inline size_t cuda_padded(int64_t n_col)
{
    return ((size_t)n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS * MOTE_UNIT_COLS;
}

static inline unsigned cuda_ceil_div(int64_t a, int64_t b)
{
    return (unsigned)((a + b - 1) / b);
}

/* The next n * size bytes of the block at `base`, its offset in *total; *total is SIZE_MAX from an overflow on. */
static inline void *cuda_cut(uint8_t *base, size_t *total, size_t n, size_t size)
{
    size_t at = *total, bytes;
    if (at == SIZE_MAX || !mote_mul_size(n, size, &bytes) || !mote_add_size(bytes, 255, &bytes) ||
        !mote_add_size(at, bytes / 256 * 256, total))
        *total = SIZE_MAX;
    return base ? base + at : NULL;
}

/* ---- sorted pairs ---- */

struct cuda_pairs {
    int32_t *row_of, *place;  /* [n_pair] */
    int32_t *piece, *n_piece; /* [most pieces][4], [1] */
    int32_t *rest, *n_rest;   /* [most pieces], [1]; NULL: not wanted */
    float *weight_of;         /* [n_pair] likewise */
};

/* Room for n_pair pairs in pieces of at least `width`. */
static inline struct cuda_pairs cuda_cut_pairs(uint8_t *base, size_t *total, size_t n_pair, int32_t n_expert,
                                               int width)
{
    struct cuda_pairs pairs = {0};
    pairs.row_of = cuda_cut(base, total, n_pair, sizeof *pairs.row_of);
    pairs.place = cuda_cut(base, total, n_pair, sizeof *pairs.place);
    pairs.piece = cuda_cut(base, total, n_pair / (size_t)width + (size_t)n_expert, 4 * sizeof *pairs.piece);
    pairs.n_piece = cuda_cut(base, total, 1, sizeof *pairs.n_piece);
    return pairs;
}

/* As the kernels declare it. */
struct cuda_sort_job {
    const int32_t *ids;
    int32_t *row_of, *place, *piece, *n_piece;
    const int32_t *wide; /* [n_expert] of cuda_experts, or NULL */
    int32_t *rest, *n_rest;
    const float *weights;
    float *weight_of;
    struct mote_step_fault *fault;
    int n_pair, n_used, n_expert, width, n_warp, n_part;
};

/* By n_part blocks, one for every thousand pairs, up to sixteen; of each, as many warps as their counts of every expert
 * leave room for in 48 KiB. */
static inline struct cuda_sort_job cuda_sort_job(const struct cuda_backend *cuda, const struct cuda_pairs *to,
                                                 const struct mote_moe *job, int n_expert, int width,
                                                 const int32_t *wide)
{
    int n_pair = (int)(job->n_row * job->n_used), n_part = n_pair / 1024,
        n_warp = (47 * 1024 / (int)sizeof(int32_t) - 98) / n_expert - 3;
    return (struct cuda_sort_job){.ids = job->ids,
                                  .row_of = to->row_of,
                                  .place = to->place,
                                  .piece = to->piece,
                                  .n_piece = to->n_piece,
                                  .wide = wide,
                                  .rest = to->rest,
                                  .n_rest = to->n_rest,
                                  .weights = job->weights,
                                  .weight_of = to->weight_of,
                                  .fault = cuda->fault,
                                  .n_pair = n_pair,
                                  .n_used = job->n_used,
                                  .n_expert = n_expert,
                                  .width = width,
                                  .n_warp = n_warp > 32 ? 32 : n_warp,
                                  .n_part = n_part < 1    ? 1
                                            : n_part > 16 ? 16
                                                          : n_part};
}

/* Its dynamic shared memory: the counts, or what few pairs take. */
static inline size_t cuda_sort_shared(const struct cuda_sort_job *sort)
{
    size_t counts = ((size_t)(sort->n_warp + 3) * (size_t)sort->n_expert + 98) * sizeof(int32_t),
           few = 3 * 128 * sizeof(int32_t);
    return counts > few ? counts : few;
}

#endif
