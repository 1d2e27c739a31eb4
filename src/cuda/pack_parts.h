/* pack_parts.h: what pack.c, pack_read.c and pack_code.c share: a row's 128 columns between format and layout.
 *
 * One idea: a reader (one per format) turns 128 columns of a row into codes of a byte each and scale items; a writer
 * (one per kind of code) turns 16 such rows into the words of 32 lanes. Neither knows of the other.
 */
#ifndef MOTE_CUDA_PACK_PARTS_H
#define MOTE_CUDA_PACK_PARTS_H

#include "cuda/layout.h"
#include "quant/format.h"

/* One row of a unit. Codes are as layout.h has them (signed where zero is the middle, rotated nibbles ..). */
struct mote_pack_row {
    union {
        uint8_t code[MOTE_UNIT_COLS];
        uint32_t word[4][3]; /* IQ2XXS: indexes, signs of lane t; IQ3XXS: indexes, indexes, signs */
    };
    uint8_t item[32];  /* [item's columns in rising order][scale, min], the items' own bytes */
    uint16_t super[2]; /* d, dmin of the super-block */
};

/* Columns [128 unit, + n) of a row, n a multiple of 32; the rest of *out keeps what it had. */
typedef void mote_pack_reader(const struct mote_matrix *w, int64_t row, int64_t unit, int n,
                              struct mote_pack_row *out);
extern mote_pack_reader *const mote_pack_reader_of[MOTE_FORMAT_COUNT];

/* The unit's words: plane[i] is where those of code plane i start. */
typedef void mote_pack_writer(const struct mote_pack_row row[MOTE_TILE_ROWS], uint8_t *const plane[3]);
struct mote_pack_code {
    int plane_bytes[3]; /* of a lane and unit */
    mote_pack_writer *write;
};
extern const struct mote_pack_code mote_pack_code_of[]; /* by enum mote_tile_code */

#endif
