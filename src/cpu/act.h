/* act.h: activations as the matrix kernels read them.
 *
 * A row of activations is quantised once and used by every weight row of every matrix that reads it.
 * The type is part of a product's contract (the same for every instruction set):
 *   F32     the floats themselves
 *   I8_32   int8 codes, one f32 scale for 32: x ~ scale * q, scale = amax / 127, q rounded to nearest even
 *   I8_256  the same with one scale for 256: integer sub-scales of K, IQ and TQ blocks multiply in integers
 * Rows are padded with zeros to a multiple of 256 columns.
 */
#ifndef MOTE_CPU_ACT_H
#define MOTE_CPU_ACT_H

#include <stddef.h>
#include <stdint.h>

#include "quant/format.h"

enum mote_act_type { MOTE_ACT_F32, MOTE_ACT_I8_32, MOTE_ACT_I8_256, MOTE_ACT_TYPE_COUNT };

struct mote_act {
    enum mote_act_type type;
    int64_t n_row, n_col;
    int64_t stride; /* n_col rounded up to 256 */
    const float *x; /* [n_row][n_col]: F32 */
    int8_t *q;      /* [n_row][stride], 64-byte aligned */
    float *scale;   /* [n_row][stride / 32 or / 256] */
    int16_t *sum;   /* [n_row][stride / 16]: sums of 16 consecutive q */
    float *sum32;   /* [n_row][stride / 32]: I8_32 only: scale * sum of the 32 q */
};

static inline int64_t mote_act_stride(int64_t n_col)
{
    return (n_col + 255) & ~(int64_t)255;
}

/* Bytes of memory that mote_act_place needs for n_row rows of n_col columns. */
size_t mote_act_bytes(enum mote_act_type type, int64_t n_row, int64_t n_col);
/* Lay an act out in `memory` (64-byte aligned, mote_act_bytes long; NULL for F32). Row contents come from
 * mote_cpu_kernels.quantise; x is the caller's and only read for F32 products. */
struct mote_act mote_act_place(enum mote_act_type type, int64_t n_row, int64_t n_col, const float *x,
                               void *memory);

/* The type that a product with this format uses unless told otherwise: the fastest one inside its error
 * budget. */
enum mote_act_type mote_act_default(enum mote_format format);
const char *mote_act_type_name(enum mote_act_type type); /* "f32", "i8x32", "i8x256" */

#endif
