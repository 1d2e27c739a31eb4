/* step.h: what a step looks like in device memory: read by the host (backend/cuda_*.c) and by the kernels, so only what
 * C11 and CUDA C++ share.
 *
 * One idea: everything that changes from step to step (tokens, positions, caches, lengths) is read by the kernels
 * from this one block, so that a captured graph serves every later step of the same shape.
 */
#ifndef MOTE_CUDA_STEP_H
#define MOTE_CUDA_STEP_H

/* A sequence's rows of the step, as struct mote_span. Key of layer l, head h, position p of the cache lies at
 * k + ((l * n_head_kv + h) * n_ctx + p) * row_bytes. */
struct mote_step_span {
    unsigned char *k, *v;
    long long n_ctx;
    int row, n_row, n_past, pad;
};

/* The first error of a step, written by kernels with atomicCAS on `code` (0: none), read back with the results. */
enum { MOTE_STEP_FINE, MOTE_STEP_NAN, MOTE_STEP_TOKEN, MOTE_STEP_EXPERT };
struct mote_step_fault {
    int code, row, layer, value;
};

/* A row of activations in 16-bit integers, a scale for 32 columns: x = scale * (256 hi + lo). Columns are padded with
 * zeros to a multiple of 128 (a unit).
 *   q      [n_row][n_unit][4 sub-blocks][2: hi, lo][32 columns] s8
 *   scale  [n_row][n_unit][3][4 sub-blocks]: the scale, and behind it two sums of 256 hi + lo: of the sub-block and of its
 *          first 16 columns; below 2^24, so exact in a float
 * How x is rounded is said to whoever writes rows; products read both alike. */
enum {
    MOTE_ROUND_I16,  /* to 32512ths of the 32 columns' largest */
    MOTE_ROUND_MXFP4 /* as quant/mxfp4.h: 256 hi + lo is twice the 4-bit float, exactly, and hi 0 */
};
struct mote_step_act {
    signed char *q;
    float *scale;
    int rounding;
};

/* The best of a row of logits: what a draw usually needs of it. Larger logits first, ties to the lower id; entries from
 * n on have no meaning. n 0: it says nothing, look at the row (a logit is NaN or +inf, or none is finite, or nobody made
 * it). n < MOTE_SHORTLIST: these are all that are finite. */
enum { MOTE_SHORTLIST = 256 };
struct mote_shortlist {
    int n;
    float sum; /* of exp(logit - logit[0]) over the whole row, to MOTE_SHORTLIST_ERROR of it */
    float logit[MOTE_SHORTLIST];
    int id[MOTE_SHORTLIST];
};
#define MOTE_SHORTLIST_ERROR 4e-6

/* Scratch of shortlist.cu: a block's MOTE_SPAN_LOGITS logits become MOTE_SPAN_GROUPS of these. */
enum { MOTE_SPAN_LOGITS = 4096, MOTE_SPAN_GROUPS = 64, MOTE_SPAN_THREADS = 512 };
struct mote_step_group {
    unsigned long long key; /* of its best logit; 0: none is finite */
    float sum, pad;         /* of exp(logit - best) */
};

#endif
