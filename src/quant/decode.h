/* decode.h: exact decoding of every weight format: the oracle that every kernel is held to.
 *
 * One idea: scalar, portable, one function per format, the order of floating-point operations is that of the
 * format's definition, so that results are bit-equal to the reference implementations (PyPI gguf, mlx).
 */
#ifndef MOTE_QUANT_DECODE_H
#define MOTE_QUANT_DECODE_H

#include "quant/format.h"

/* Decode weights [col, col + n) of row `row`: out[n]. col and n must be multiples of the format's block_elems
 * (PLANAR: of 32 and of the group); for PLAIN formats anything goes. format must not be of family OTHER. */
void mote_decode(const struct mote_matrix *w, int64_t row, int64_t col, int64_t n, float *out);

/* Decode `n_block` consecutive blocks of a PLAIN or BLOCK format: out[n_block * block_elems]. */
void mote_decode_blocks(enum mote_format format, const void *blocks, int64_t n_block, float *out);

/* A view of rows of PLAIN or BLOCK data without planes. */
struct mote_matrix mote_matrix_view(enum mote_format format, const void *data, int64_t n_row, int64_t n_col);

#endif
