/* random_matrix.h: for tests: random valid matrices of every weight format.
 *
 * Owns: which bytes of a format may be anything and which must be sane scales. Does not own memory: the caller
 * places the planes (behind a page that faults, or on the heap) and hands the view in.
 */
#ifndef MOTE_TESTS_RANDOM_MATRIX_H
#define MOTE_TESTS_RANDOM_MATRIX_H

#include <math.h>
#include <string.h>

#include "base/float_bits.h"
#include "base/rng.h"
#include "quant/decode.h"

/* What the bytes of codes are: random, or all alike (0x00, 0xFF, 0x80, 0x7F). */
enum pattern { RANDOM, ZEROS, ONES, TOP_BIT, LOW_BITS, PATTERN_COUNT };

static inline double random_uniform(struct mote_rng *rng, double low, double high)
{
    return low + (high - low) * mote_rng_unit(rng);
}
static inline float random_scale(struct mote_rng *rng)
{
    float magnitude = (float)exp2(random_uniform(rng, -9, -3));
    return mote_rng_below(rng, 4) ? magnitude : -magnitude;
}

/* Bytes of a number of a PLAIN format, or of an AFFINE scale. */
static inline size_t random_number_bytes(enum mote_format format)
{
    return format == MOTE_FORMAT_F32 ? 4 : 2;
}
static inline void random_put(enum mote_format format, uint8_t *at, float value)
{
    uint16_t half = format == MOTE_FORMAT_F16 ? mote_f32_f16(value) : mote_f32_bf16(value);
    if (format == MOTE_FORMAT_F32) memcpy(at, &value, 4);
    else memcpy(at, &half, 2);
}

static inline int random_is_affine(enum mote_format format)
{
    return format >= MOTE_FORMAT_AFFINE2 && format <= MOTE_FORMAT_AFFINE8;
}

/* The group that a PLANAR format takes: its only one, or `wanted`; 0 for the others. */
static inline int random_group(enum mote_format format, int wanted)
{
    if (mote_format_traits(format)->family != MOTE_FAMILY_PLANAR) return 0;
    if (format == MOTE_FORMAT_MLX_NVFP4) return 16;
    return random_is_affine(format) ? wanted : 32;
}

/* Bytes of the scale plane, and of the bias plane where there is one; 0: the format has no planes. */
static inline size_t random_scale_bytes(const struct mote_matrix *m)
{
    if (!m->group) return 0;
    return (size_t)(m->n_row * (m->n_col / m->group)) *
           (random_is_affine(m->format) ? random_number_bytes(m->scale_format) : 1);
}

/* Fields of a block that are f16 numbers. */
static inline void random_block_scales(struct mote_rng *rng, enum mote_format format, uint8_t *block)
{
    static const struct {
        enum mote_format format;
        int at[2];
    } half_fields[] = {
        {MOTE_FORMAT_Q4_0, {0, -1}},   {MOTE_FORMAT_Q4_1, {0, 2}},    {MOTE_FORMAT_Q5_0, {0, -1}},
        {MOTE_FORMAT_Q5_1, {0, 2}},    {MOTE_FORMAT_Q8_0, {0, -1}},   {MOTE_FORMAT_Q2_K, {80, 82}},
        {MOTE_FORMAT_Q3_K, {108, -1}}, {MOTE_FORMAT_Q4_K, {0, 2}},    {MOTE_FORMAT_Q5_K, {0, 2}},
        {MOTE_FORMAT_Q6_K, {208, -1}}, {MOTE_FORMAT_IQ1_S, {0, -1}},  {MOTE_FORMAT_IQ2_XXS, {0, -1}},
        {MOTE_FORMAT_IQ2_XS, {0, -1}}, {MOTE_FORMAT_IQ2_S, {0, -1}},  {MOTE_FORMAT_IQ3_XXS, {0, -1}},
        {MOTE_FORMAT_IQ3_S, {0, -1}},  {MOTE_FORMAT_IQ4_NL, {0, -1}}, {MOTE_FORMAT_IQ4_XS, {0, -1}},
        {MOTE_FORMAT_TQ1_0, {52, -1}}, {MOTE_FORMAT_TQ2_0, {64, -1}}, {MOTE_FORMAT_Q1_0, {0, -1}},
        {MOTE_FORMAT_Q2_0, {0, -1}},   {MOTE_FORMAT_PQ2_0, {0, -1}},  {MOTE_FORMAT_PTQ1_0, {26, -1}},
    };
    for (size_t i = 0; i < sizeof half_fields / sizeof half_fields[0]; i++)
        if (half_fields[i].format == format)
            for (int j = 0; j < 2; j++)
                if (half_fields[i].at[j] >= 0)
                    random_put(MOTE_FORMAT_F16, block + half_fields[i].at[j], random_scale(rng));
    if (format == MOTE_FORMAT_MXFP4) block[0] = (uint8_t)(118 + mote_rng_below(rng, 12));
    if (format == MOTE_FORMAT_NVFP4)
        for (int i = 0; i < 4; i++)
            block[i] = (uint8_t)(mote_rng_below(
                rng, 0x40));           /* below 2: hidden values of two such matrices stay within halves */
    if (format == MOTE_FORMAT_IQ1_M) { /* d's nibbles are the top nibbles of four 16-bit words */
        uint16_t half = mote_f32_f16(random_scale(rng));
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | ((half >> (4 * i)) & 15) << 4);
    }
}

/* Write everything that m's planes hold: data [n_row][row_bytes], scale and bias [random_scale_bytes]. The planes
 * are the caller's own memory behind m's read-only view; the view must be complete (format, sizes, group,
 * scale_format). */
static inline void random_fill(struct mote_rng *rng, const struct mote_matrix *m, enum pattern pattern,
                               uint8_t *data, uint8_t *scale, uint8_t *bias)
{
    static const uint8_t value[PATTERN_COUNT] = {0, 0x00, 0xFF, 0x80, 0x7F};
    const struct mote_format_traits *traits = mote_format_traits(m->format);
    size_t size = m->row_bytes * (size_t)m->n_row, each = (size_t)traits->block_bytes;
    if (traits->family == MOTE_FAMILY_PLAIN) {
        for (size_t i = 0; i < size; i += each)
            random_put(m->format, data + i, (float)random_uniform(rng, -1, 1));
        return;
    }
    for (size_t i = 0; i < size; i++)
        data[i] = pattern == RANDOM ? (uint8_t)mote_rng_u64(rng) : value[pattern];
    if (traits->family == MOTE_FAMILY_BLOCK) {
        for (size_t at = 0; at < size; at += each) random_block_scales(rng, m->format, data + at);
        return;
    }
    size_t n_scale = (size_t)(m->n_row * (m->n_col / m->group));
    if (m->format == MOTE_FORMAT_MLX_MXFP8) /* no NaN codes */
        for (size_t i = 0; i < size; i++) data[i] &= 0x77;
    for (size_t i = 0; i < n_scale; i++)
        if (random_is_affine(m->format)) {
            size_t number = random_number_bytes(m->scale_format);
            random_put(m->scale_format, scale + i * number, random_scale(rng));
            random_put(m->scale_format, bias + i * number, 4 * random_scale(rng));
        } else {
            scale[i] = (uint8_t)(m->format == MOTE_FORMAT_MLX_NVFP4 ? mote_rng_below(rng, 0x40)
                                                                    : 118 + mote_rng_below(rng, 12));
        }
}

#endif
