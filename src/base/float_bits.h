/* float_bits.h: the small floating-point types, exactly: f16, bf16, e4m3, e8m0, e2m1.
 *
 * Portable C, inline, correct for every bit pattern; conversions to a narrower type round to nearest even.
 */
#ifndef MOTE_BASE_FLOAT_BITS_H
#define MOTE_BASE_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline float mote_bits_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t mote_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* IEEE half. Subnormals, infinities and NaN payloads kept. */
static inline float mote_f16_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, mantissa = half & 0x3FFu;
    if (exponent == 31) return mote_bits_f32(sign | 0x7F800000u | mantissa << 13);
    if (exponent) return mote_bits_f32(sign | (exponent + 112u) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f; /* exact */
    return sign ? -value : value;
}

static inline uint16_t mote_f32_f16(float value)
{
    uint32_t bits = mote_f32_bits(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);  /* NaN */
    if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* rounds to infinity */
    if (magnitude < 0x38800000u) {                                   /* subnormal half: add 0.5's ulp trick */
        float shifted = mote_bits_f32(magnitude) + 0.5f;             /* ulp of [0.5,1) is 2^-24 */
        return (uint16_t)(sign | (mote_f32_bits(shifted) - 0x3F000000u));
    }
    uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static inline float mote_bf16_f32(uint16_t half)
{
    return mote_bits_f32((uint32_t)half << 16);
}

static inline uint16_t mote_f32_bf16(float value)
{
    uint32_t bits = mote_f32_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* OCP e4m3 (no infinity, 0x7F and 0xFF are NaN). */
static inline float mote_e4m3_f32(uint8_t byte)
{
    uint32_t exponent = (byte >> 3) & 15u, mantissa = byte & 7u;
    float value;
    if ((byte & 0x7Fu) == 0x7Fu) value = mote_bits_f32(0x7FC00000u);
    else if (exponent) value = mote_bits_f32((exponent + 120u) << 23 | mantissa << 20);
    else value = (float)mantissa * 0x1p-9f;
    return byte & 0x80u ? -value : value;
}

/* OCP e8m0: 2^(byte-127); 0 is the subnormal 2^-127, 255 is given as infinity (MLX) and left to the reader. */
static inline float mote_e8m0_f32(uint8_t byte)
{
    return mote_bits_f32(byte ? (uint32_t)byte << 23 : 0x00400000u);
}

/* e2m1: 0 .5 1 1.5 2 3 4 6 and their negatives. */
static inline float mote_e2m1_f32(uint8_t nibble)
{
    static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float value = magnitude[nibble & 7];
    return nibble & 8 ? -value : value;
}

/* Loads from addresses without alignment, little-endian hosts. */
static inline uint16_t mote_load_u16(const void *address)
{
    uint16_t value;
    memcpy(&value, address, sizeof value);
    return value;
}
static inline uint32_t mote_load_u32(const void *address)
{
    uint32_t value;
    memcpy(&value, address, sizeof value);
    return value;
}
static inline uint64_t mote_load_u64(const void *address)
{
    uint64_t value;
    memcpy(&value, address, sizeof value);
    return value;
}

#endif
