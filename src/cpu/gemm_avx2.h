/* gemm_avx2.h: the prefill product that every format shares: unpack a tile once, multiply many activations.
 *
 * Owns: the loop over weight rows, column tiles and activation rows. Does not own: how a format unpacks (its own
 * file gives a mote_unpack; tile_avx2.h makes one from a format's tile function). A gemm slot is three lines:
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

/* x->type I8_32 or I8_256. Codes: 0..max_code <= 128 unsigned, or signed -128..127 (is_signed; max_code is then
 * ignored). Any group with either type. w's factor is not applied: unpack puts it into scale and bias. */
void mote_gemm_panel_avx2(const struct mote_unpack *unpack, MOTE_MATMUL_ARGS);

/* What an unpack function may fill row by row before it is turned into a panel. */
struct mote_panel_rows {
    _Alignas(64) uint8_t code[MOTE_PANEL_ROWS][MOTE_PANEL_COLS];
    _Alignas(64) float scale[MOTE_PANEL_ROWS][16]; /* [row][256 / group]; any group */
    _Alignas(64) float bias[MOTE_PANEL_ROWS][16];
};
/* Rows from n_row on are taken as zeros. n_scale: 256 / group. */
void mote_panel_from_rows_avx2(struct mote_panel_rows *rows, int n_row, int n_scale, int has_bias,
                               struct mote_panel *panel);

#endif
