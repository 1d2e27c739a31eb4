/* mxfp4.c: see mxfp4.h. */
#include "quant/mxfp4.h"

#include <string.h>

#include "base/float_bits.h"

int mote_mxfp4_exponent(float amax)
{
    uint32_t up = (mote_f32_bits(amax * (1.0f / 6)) + 0x7FFFFF) >> 23;
    return up < 254 ? (int)up : 254;
}

/* 2^(127 - exponent), exponent 0..254: the last one is a subnormal float. */
static float inverse_of(int exponent)
{
    return exponent == 254 ? 0x1p-127f : mote_bits_f32((uint32_t)(254 - exponent) << 23);
}

static int twice(float scaled)
{
    /* Midpoints between neighbours; one that belongs to the neighbour above is not passed by >, but by >=. */
    float m = scaled < 0 ? -scaled : scaled;
    int v = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + 2 * (m > 2.5f) + 2 * (m >= 3.5f) +
            4 * (m > 5);
    return scaled < 0 ? -v : v;
}

int mote_mxfp4_twice(float x, int exponent)
{
    return twice(x * inverse_of(exponent));
}

float mote_mxfp4_block(const float *x, int8_t *q)
{
    uint32_t most = 0; /* bits order like magnitudes, NaN above infinity */
    for (int i = 0; i < 32; i++) {
        uint32_t bits = mote_f32_bits(x[i]) & 0x7FFFFFFFu;
        most = bits > most ? bits : most;
    }
    if (most >= 0x7F800000u) {
        memset(q, 0, 32);
        return mote_bits_f32(0x7FC00000u);
    }
    int exponent = mote_mxfp4_exponent(mote_bits_f32(most));
    float inverse = inverse_of(exponent);
    for (int i = 0; i < 32; i++) q[i] = (int8_t)twice(x[i] * inverse);
    /* 2^(exponent - 128): below 2^-126 a subnormal */
    return exponent < 2 ? mote_bits_f32(0x00200000u << exponent)
                        : mote_bits_f32((uint32_t)(exponent - 1) << 23);
}
