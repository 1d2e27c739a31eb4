/* act.h: activations as the matrix kernels read them.
 *
 * A row of activations is quantised once and used by every weight row of every matrix that reads it.
 * The type is part of a product's contract (the same for every instruction set):
 *   F32     the floats themselves
 *   I8_32   int8 codes, one f32 scale for 32: x ~ scale * q, scale = amax / 127, q rounded to nearest even
 *   I8_256  the same with one scale for 256: integer sub-scales of K, IQ and TQ blocks multiply in integers
 *   MXFP4   4-bit floats under a power of two for 32 (quant/mxfp4.h), laid out as I8_32: q is twice the value
 * Rows are padded with zeros to a multiple of 256 columns.
 */
#ifndef MOTE_CPU_ACT_H
#define MOTE_CPU_ACT_H

#include <stddef.h>
#include <stdint.h>

#include "quant/format.h"

enum mote_act_type { MOTE_ACT_F32, MOTE_ACT_I8_32, MOTE_ACT_I8_256, MOTE_ACT_MXFP4, MOTE_ACT_TYPE_COUNT };
/* What the user says of all products. */
enum mote_act_wish {
    MOTE_WISH_DEFAULT, /* mote_act_default */
    MOTE_WISH_F32,     /* floats */
    MOTE_WISH_MXFP4    /* MXFP4 where weights are MXFP4 too, the default elsewhere */
};

struct mote_act {
    enum mote_act_type type;
    int64_t n_row, n_col;
    int64_t stride; /* n_col rounded up to 256 */
    const float *x; /* [n_row][n_col]: F32 */
    int8_t *q;      /* [n_row][stride], 64-byte aligned */
    float *scale;   /* [n_row][stride / mote_act_group] */
    int16_t *sum;   /* [n_row][stride / 16]: sums of 16 consecutive q */
    float *sum32;   /* [n_row][stride / 32]: with groups of 32: scale * sum of the 32 q */
};

static inline int mote_act_group(enum mote_act_type type) /* columns of a scale */
{
    return type == MOTE_ACT_I8_256 ? 256 : 32;
}
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
enum mote_act_type mote_act_chosen(enum mote_format format, enum mote_act_wish wish);
const char *mote_act_type_name(enum mote_act_type type); /* "f32", "i8x32", "i8x256", "mxfp4" */
/* "default" (also NULL), "f32", "mxfp4"; MOTE_ARGUMENT for others. */
mote_status mote_act_wish_parse(const char *text, enum mote_act_wish *out);

/* Rows [row, row + n_row) of x [n_row][n_col] to an act of type MXFP4; for the kernels' `quantise`. NaN or infinity in
 * a block makes its scale NaN. */
void mote_act_to_mxfp4(const float *x, int64_t row, int64_t n_row, struct mote_act *act);

#endif
