/* mxfp4.h: activations to MXFP4: 32 4-bit floats (e2m1) under one power of two (e8m0), as the a4w4 MoE kernels of AMD's aiter
 * make them. (Weights are encoded by quant/encode.h, which looks for better scales.)
 *
 *   E    = min(254, (bits(amax / 6) + 0x7FFFFF) >> 23): the smallest power of two 2^(E - 127), from 2^-126 on, not below
 *          amax / 6, which is amax times the float 1/6, rounded; 0 where that is 0
 *   v    = x / 2^(E - 127) to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, ties to the even mantissa,
 *          beyond 6: 6
 */
#ifndef MOTE_QUANT_MXFP4_H
#define MOTE_QUANT_MXFP4_H

#include <stdint.h>

/* E of a block whose largest magnitude is amax: finite, not negative. */
int mote_mxfp4_exponent(float amax);
/* Twice v, a whole number of -12 .. 12. x is finite. */
int mote_mxfp4_twice(float x, int exponent);
/* x[32] to twice its values, q[32]. Returns what one of q stands for, 2^(E - 128); NaN, and q zero, when the block has a NaN or
 * an infinity. */
float mote_mxfp4_block(const float *x, int8_t *q);

#endif
