/* panel.h: a tile of weights unpacked once for many rows of activations (prefill).
 *
 * One idea: whatever the format, a tile becomes unsigned byte codes and, per group of columns, scale and
 * bias: w[r][c] = scale[g][r] * code[r][c] + bias[g][r],   g = c / group so that one integer product serves
 * all formats; bias meets the activation sums computed at quantisation. Formats with 8-bit signed codes
 * (Q8_0, IQ4_NL, AFFINE8) keep them signed (is_signed) and have their own product.
 */
#ifndef MOTE_CPU_PANEL_H
#define MOTE_CPU_PANEL_H

#include "quant/format.h"

enum { MOTE_PANEL_ROWS = 8, MOTE_PANEL_COLS = 256 };

struct mote_panel {
    _Alignas(64)
        uint8_t code[MOTE_PANEL_COLS / 4][MOTE_PANEL_ROWS][4]; /* 4 consecutive columns of a row together */
    _Alignas(64) float scale[16][MOTE_PANEL_ROWS];             /* [256 / group][row] */
    _Alignas(64) float bias[16][MOTE_PANEL_ROWS];
};

/* Unpack rows [row, row + n_row) (n_row <= 8; missing rows become zeros) x columns [col, col + 256) (col a
 * multiple of 256; columns past n_col become code 0, scale 0, bias 0). */
typedef void mote_unpack_fn(const struct mote_matrix *w, int64_t row, int n_row, int64_t col,
                            struct mote_panel *panel);

struct mote_unpack {
    mote_unpack_fn *unpack;
    int group;    /* 16, 32, 64, 128 or 256 columns per scale */
    int max_code; /* largest code: how often products can be added in 16 bits */
    int is_signed;
    int has_bias; /* 0: bias is zero throughout and not written */
    float offset; /* w = scale * (code - offset); a multiple of 0.5; not 0 only without bias */
};

#endif
