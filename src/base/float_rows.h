/* float_rows.h: runs of small floats to f32 and back, by type.
 *
 * Owns: the loops. Does not own: what a type's bits mean (float_bits.h).
 */
#ifndef MOTE_BASE_FLOAT_ROWS_H
#define MOTE_BASE_FLOAT_ROWS_H

#include "base/float_bits.h"
#include "mote/float_type.h"

#include <stddef.h>

static inline size_t mote_float_bytes(enum mote_float_type type)
{
    return type == MOTE_F32 ? 4 : 2;
}

/* to[n] = from[n]; both aligned to their elements, no overlap. */
static inline void mote_floats_widen(enum mote_float_type type, const void *from, int64_t n, float *to)
{
    const uint16_t *half = (const uint16_t *)from;
    switch (type) {
    case MOTE_BF16:
        for (int64_t i = 0; i < n; i++) to[i] = mote_bf16_f32(half[i]);
        break;
    case MOTE_F16:
        for (int64_t i = 0; i < n; i++) to[i] = mote_f16_f32(half[i]);
        break;
    default: memcpy(to, from, (size_t)n * sizeof *to);
    }
}

/* The same the other way: rounded to nearest even. */
static inline void mote_floats_narrow(enum mote_float_type type, const float *from, int64_t n, void *to)
{
    uint16_t *half = (uint16_t *)to;
    switch (type) {
    case MOTE_BF16:
        for (int64_t i = 0; i < n; i++) half[i] = mote_f32_bf16(from[i]);
        break;
    case MOTE_F16:
        for (int64_t i = 0; i < n; i++) half[i] = mote_f32_f16(from[i]);
        break;
    default: memcpy(to, from, (size_t)n * sizeof *from);
    }
}

#endif
