// mxfp4.cuh: the rule by which activations become MXFP4 (quant/mxfp4.h), as kernels compute it: 32 e2m1 numbers v under one
// power of two, x ~ v * 2^(E - 127).
//
// Owns arithmetic alone, bit-equal to quant/mxfp4.c (tests/test_mxfp4_device.cc); compiles on the host too. Does not own: who
// holds which column, and where codes lie. Needs subnormals as IEEE has them (no -ftz).
// One idea: below 2, 4 and 8 the steps of e2m1 are 0.5, 1 and 2; a float to which so much is added that its last bit is one
// step is rounded by the addition, to nearest even.
#ifndef MXFP4_CUH
#define MXFP4_CUH
#include "common.cuh"

constexpr int MXFP4_NO_NUMBER = 255; // E of a block with a NaN or an infinity, as e8m0 has it

// E of a block. most: the bits of its largest magnitude (as integers magnitudes keep their order, and NaN is above all).
MOTE_FN int mxfp4_exponent(u32 most)
{
    u32 up = (float_bits(bits_float(most) * (1.0f / 6)) + 0x7FFFFFu) >> 23;
    return most >= 0x7F800000u ? MXFP4_NO_NUMBER : up < 254 ? (int)up : 254;
}
// 2^(E - 127), what a v of 1 stands for; NaN where there is no number.
MOTE_FN float mxfp4_scale(int exponent)
{
    return bits_float(exponent == MXFP4_NO_NUMBER ? 0x7FC00000u : exponent ? (u32)exponent << 23 : 0x00400000u);
}
// 2^(127 - E): x times it is what the functions below round. Where there is no number they give one that means nothing.
MOTE_FN float mxfp4_inverse(int exponent)
{
    return mxfp4_scale(exponent < 254 ? 254 - exponent : 0);
}

// |x| * inverse, at most 6, and the addend that rounds it: 2^22 times its power of two, that of 1 at least.
struct Mxfp4Rounding {
    float magnitude, lift;
    MOTE_FN Mxfp4Rounding(float x, float inverse)
    {
        float m = bits_float(float_bits(x) & 0x7FFFFFFFu) * inverse;
        magnitude = m < 6 ? m : 6; // of a NaN too: no code is none
        u32 power = float_bits(magnitude) & 0x7F800000u;
        lift = bits_float((power > 0x3F800000u ? power : 0x3F800000u) + (22u << 23));
    }
};

// v, with the sign of x.
MOTE_FN float mxfp4_value(float x, float inverse)
{
    const Mxfp4Rounding r(x, inverse);
    return bits_float(float_bits((r.magnitude + r.lift) - r.lift) | (float_bits(x) & 0x80000000u));
}
// Twice v, a whole number of -12 .. 12.
MOTE_FN int mxfp4_twice(float x, float inverse)
{
    return (int)(2 * mxfp4_value(x, inverse));
}
// v as e2m1 has it: the sign in bit 3; 0 .. 7 for 0, 0.5, 1, 1.5, 2, 3, 4, 6. (Two for each power of two above the first.)
MOTE_FN u32 mxfp4_code(float x, float inverse)
{
    const Mxfp4Rounding r(x, inverse);
    u32 lift = float_bits(r.lift), steps = float_bits(r.magnitude + r.lift) - lift;
    return steps + (lift >> 22) - (149u << 1) + (float_bits(x) >> 28 & 8);
}

#endif
