/* encode.h: floats to blocks.
 *
 * Importance: optional weights v[n_col] >= 0, one per column; the encoder minimises sum v[c] (w - w')^2 instead
 * of the plain square. NULL or an all-zero row of v (an expert that was never activated) means plain.
 *
 * Every finite input gives blocks that decode to finite numbers: a half-precision scale (or F16 value) beyond
 * +-65504 is clamped to it, and codes saturate. Every instruction set writes the same bytes.
 */
#ifndef MOTE_QUANT_ENCODE_H
#define MOTE_QUANT_ENCODE_H

#include "quant/format.h"

/* Whether encode can write this format (all PLAIN ones, and the BLOCK and AFFINE ones with an encoder). */
int mote_can_encode(enum mote_format format);
/* Whether importance changes the result. */
int mote_encode_uses_importance(enum mote_format format);

/* Encode x[n_row][n_col] into out[n_row][mote_format_row_bytes]. PLAIN and BLOCK formats.
 * Fails with MOTE_ARGUMENT when n_col is not a multiple of the block, MOTE_NUMERIC on a NaN or infinity (row and
 * column named), MOTE_UNSUPPORTED when there is no encoder. Single-threaded and pure: callers split rows. */
mote_status mote_encode(enum mote_format format, const float *x, int64_t n_row, int64_t n_col,
                        const float *importance, void *out);

/* MLX affine: codes[n_row][n_col*bits/8] (bit stream), scale and bias [n_row][n_col/group] as scale_format. */
mote_status mote_encode_affine(int bits, int group, enum mote_format scale_format, const float *x,
                               int64_t n_row, int64_t n_col, void *codes, void *scale, void *bias);

#endif
