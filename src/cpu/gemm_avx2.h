/* gemm_avx2.h: the prefill product that every format shares: unpack a tile once, multiply many activations.
 *
 * Owns: the loop over weight rows, column tiles and activation rows. Does not own: how a format unpacks (its
 * own file gives a mote_unpack). A format's gemm slot is three lines:
 *
 *     static const struct mote_unpack q4_k = {unpack_q4_k, 32, 15, 0, 1};
 *     static void gemm_q4_k(MOTE_MATMUL_ARGS) { mote_gemm_panel_avx2(&q4_k, MOTE_MATMUL_PASS); }
 */
#ifndef MOTE_CPU_GEMM_AVX2_H
#define MOTE_CPU_GEMM_AVX2_H

#include "cpu/kernel.h"
#include "cpu/panel.h"

#define MOTE_MATMUL_ARGS                                                                                     \
    const struct mote_matrix *w, int64_t row, int64_t n_row, const struct mote_act *x, const int32_t *x_row, \
        int64_t n_x, float *y, int64_t y_stride
#define MOTE_MATMUL_PASS w, row, n_row, x, x_row, n_x, y, y_stride

/* x->type I8_32 or I8_256. Codes: 0..max_code <= 255 unsigned, or signed -128..127 (is_signed; max_code is
 * then ignored). With I8_32, group is any of 16..256; with I8_256 as well. w's factor is not applied: unpack
 * puts it into scale and bias. */
void mote_gemm_panel_avx2(const struct mote_unpack *unpack, MOTE_MATMUL_ARGS);

#endif
