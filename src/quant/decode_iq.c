/* decode_iq.c: the IQ formats: groups of 8 (or 4) weights taken from a code book, with signs beside it.
 *
 * Owns nothing but the bit fields; the books are in iq_grid.c. IQ4_NL and IQ4_XS use a book of single values.
 * Layouts: docs/formats.md.
 */
#include "base/float_bits.h"
#include "quant/decode_parts.h"
#include "quant/iq_grid.h"

/* Bytes of `entry` times scale; bit j of `negative`: element j has a minus. n is 8 or 4. */
static inline void signed_entry(uint64_t entry, unsigned negative, float scale, int n, float *restrict out)
{
    for (int j = 0; j < n; j++) {
        float magnitude = scale * (float)(uint8_t)(entry >> 8 * j);
        out[j] = mote_bits_f32(mote_f32_bits(magnitude) ^ (negative << (31 - j) & 0x80000000u));
    }
}

static inline unsigned nibble(const uint8_t *bytes, int index)
{
    return bytes[index >> 1] >> 4 * (index & 1) & 15u;
}

void mote_decode_IQ2_XXS(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 66, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int k = 0; k < 8; k++) { /* 32 weights: 4 indices, then 4 sign codes and the scale in one word */
            const uint8_t *index = b + 2 + 8 * k;
            uint32_t word = mote_load_u32(index + 4);
            float scale = d * (0.5f + (float)(word >> 28)) * 0.25f;
            for (int g = 0; g < 4; g++)
                signed_entry(mote_iq2xxs_grid[index[g]], mote_sign_mask[word >> 7 * g & 127], scale, 8,
                             out + 32 * k + 8 * g);
        }
    }
}

void mote_decode_IQ2_XS(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 74, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int g = 0; g < 32; g++) { /* groups of 8; two share a scale */
            unsigned word = mote_load_u16(b + 2 + 2 * g);
            float scale = d * (0.5f + (float)nibble(b + 66, g >> 1)) * 0.25f;
            signed_entry(mote_iq2xs_grid[word & 511], mote_sign_mask[word >> 9], scale, 8, out + 8 * g);
        }
    }
}

void mote_decode_IQ2_S(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 82, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int g = 0; g < 32; g++) {
            unsigned high = b[66 + (g >> 2)] >> 2 * (g & 3) & 3u, index = b[2 + g] | high << 8;
            float scale = d * (0.5f + (float)nibble(b + 74, g >> 1)) * 0.25f;
            signed_entry(mote_iq2s_grid[index], b[34 + g], scale, 8, out + 8 * g);
        }
    }
}

void mote_decode_IQ3_XXS(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 98, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int g = 0; g < 32; g++) { /* groups of 8: two entries of 4; four groups share a word */
            uint32_t word = mote_load_u32(b + 66 + 4 * (g >> 2));
            float scale = d * (0.5f + (float)(word >> 28)) * 0.5f;
            unsigned negative = mote_sign_mask[word >> 7 * (g & 3) & 127];
            signed_entry(mote_iq3xxs_grid[b[2 + 2 * g]], negative, scale, 4, out + 8 * g);
            signed_entry(mote_iq3xxs_grid[b[3 + 2 * g]], negative >> 4, scale, 4, out + 8 * g + 4);
        }
    }
}

void mote_decode_IQ3_S(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 110, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int i = 0; i < 64; i++) { /* entries of 4; eight share a scale and a byte of high index bits */
            unsigned index = b[2 + i] | (b[66 + (i >> 3)] >> (i & 7) & 1u) << 8;
            float scale = d * (float)(1 + 2 * nibble(b + 106, i >> 3));
            signed_entry(mote_iq3s_grid[index], nibble(b + 74, i), scale, 4, out + 4 * i);
        }
    }
}

/* 8 weights of IQ1: ternary digits plus a shift of an eighth. */
static void ternary_entry(unsigned index, float scale, float delta, float *restrict out)
{
    uint64_t entry = mote_iq1s_grid[index];
    for (int j = 0; j < 8; j++) out[j] = scale * ((float)(int8_t)(entry >> 8 * j) + delta);
}

void mote_decode_IQ1_S(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 50, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int k = 0; k < 8; k++) { /* 32 weights: 4 x 3 high index bits, scale, sign of the shift */
            unsigned word = mote_load_u16(b + 34 + 2 * k);
            float scale = d * (float)(2 * (word >> 12 & 7) + 1), delta = word & 0x8000 ? -0.125f : 0.125f;
            for (int g = 0; g < 4; g++)
                ternary_entry(b[2 + 4 * k + g] | (word >> 3 * g & 7) << 8, scale, delta,
                              out + 32 * k + 8 * g);
        }
    }
}

void mote_decode_IQ1_M(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 56, out += 256) {
        unsigned half = 0; /* the block's scale lies in the top nibbles of the four words of scales */
        for (int i = 0; i < 4; i++) half |= (unsigned)(mote_load_u16(b + 48 + 2 * i) >> 12) << 4 * i;
        float d = mote_f16_f32((uint16_t)half);
        for (int g = 0; g < 32; g++) { /* groups of 8; two share a scale */
            unsigned bits = nibble(b + 32, g), run = (unsigned)g >> 1;
            unsigned sc = mote_load_u16(b + 48 + 2 * (run >> 2)) >> 3 * (run & 3) & 7u;
            ternary_entry(b[g] | (bits & 7) << 8, d * (float)(2 * sc + 1), bits & 8 ? -0.125f : 0.125f,
                          out + 8 * g);
        }
    }
}

void mote_decode_IQ4_XS(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 136, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b));
        unsigned high = mote_load_u16(b + 2);
        for (int k = 0; k < 8; k++) { /* 32 weights */
            const uint8_t *code = b + 8 + 16 * k;
            float scale = d * (float)((int)(nibble(b + 4, k) | (high >> 2 * k & 3) << 4) - 32);
            for (int j = 0; j < 16; j++) {
                out[32 * k + j] = scale * (float)mote_iq4nl_value[code[j] & 15];
                out[32 * k + 16 + j] = scale * (float)mote_iq4nl_value[code[j] >> 4];
            }
        }
    }
}
