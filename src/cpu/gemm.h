/* gemm.h: the prefill product that every format shares: unpack a tile once, multiply many rows of activations.
 *
 * Owns: the contract between a format's file and the products of the instruction sets. Does not own: how a format
 * unpacks (tile_x86.h makes that from a format's tile function), nor how a panel lies (gemm_avx2.c, gemm_avx512.c).
 * One idea: whatever the format, 256 columns of a row become byte codes and, per group of columns, scale and bias, so
 * that one integer product serves all; bias and offset meet the activation sums computed at quantisation. A gemm slot
 * is three lines:
 *
 *     static const struct mote_unpack q4_k = {unpack_q4_k, 32, 15, 0, 1, 0};
 *     static void gemm_q4_k(MOTE_MATMUL_ARGS) { MOTE_GEMM(&q4_k, MOTE_MATMUL_PASS); }
 */
#ifndef MOTE_CPU_GEMM_H
#define MOTE_CPU_GEMM_H

#include "cpu/kernel.h"

#define MOTE_MATMUL_ARGS                                                                                     \
    const struct mote_matrix *w, int64_t row, int64_t n_row, const struct mote_act *x, const int32_t *x_row, \
        int64_t n_x, float *y, int64_t y_stride
#define MOTE_MATMUL_PASS w, row, n_row, x, x_row, n_x, y, y_stride

/* Columns [col, col + 256) of a row, col a multiple of 256: code[256], scale[256 / group], bias[256 / group] (written
 * only if the format has it), all 64-byte aligned. Past n_col: code anything, scale 0, bias 0. w's factor is in scale
 * and bias. */
typedef void mote_unpack_fn(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code,
                            float *scale, float *bias);

/* w[r][c] = scale[r][c / group] * (code[r][c] - offset) + bias[r][c / group] */
struct mote_unpack {
    mote_unpack_fn *unpack;
    int group;     /* 16, 32, 64, 128 or 256 columns per scale */
    int max_code;  /* codes are 0..max_code <= 128: how often products can be added in 16 bits */
    int is_signed; /* codes are -128..127; max_code is ignored, offset 0 */
    int has_bias;
    int offset; /* 0 with bias */
};

/* x->type is I8_32 or I8_256; any group with either. */
void mote_gemm_avx2(const struct mote_unpack *unpack, MOTE_MATMUL_ARGS);
void mote_gemm_avx512(const struct mote_unpack *unpack, MOTE_MATMUL_ARGS);

#if defined(__AVX512VNNI__)
#define MOTE_GEMM mote_gemm_avx512
#else
#define MOTE_GEMM mote_gemm_avx2
#endif

#endif
