/* decode_k.c: the K formats, super-blocks of 256 weights with 4- to 8-bit scales under an f16 scale.
 *
 * One idea: codes lie in bit planes of 32 weights: byte r of a run of 32 holds weight r of every plane.
 * Layouts: docs/formats.md.
 */
#include "base/float_bits.h"
#include "quant/decode_parts.h"

void mote_decode_Q2_K(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 84, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b + 80)), dmin = mote_f16_f32(mote_load_u16(b + 82));
        for (int k = 0; k < 16; k++) { /* 16 weights */
            const uint8_t *code = b + 16 + 32 * (k >> 3) + 16 * (k & 1);
            int shift = k & 6;
            float scale = d * (float)(b[k] & 15), offset = dmin * (float)(b[k] >> 4);
            for (int r = 0; r < 16; r++) out[16 * k + r] = scale * (float)(code[r] >> shift & 3) - offset;
        }
    }
}

void mote_decode_Q3_K(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 110, out += 256) {
        const uint8_t *packed = b + 96; /* 16 scales: 8 bytes of low nibbles, 4 bytes of high pairs of bits */
        float d = mote_f16_f32(mote_load_u16(b + 108));
        for (int k = 0; k < 16; k++) {
            const uint8_t *high = b + 16 * (k & 1), *code = b + 32 + 32 * (k >> 3) + 16 * (k & 1);
            int shift = k & 6, plane = k >> 1;
            int low4 = k < 8 ? packed[k] & 15 : packed[k - 8] >> 4,
                high2 = packed[8 + (k & 3)] >> 2 * (k >> 2) & 3;
            float scale = d * (float)((low4 | high2 << 4) - 32);
            for (int r = 0; r < 16; r++) {
                int q = (code[r] >> shift & 3) | (high[r] >> plane & 1) << 2;
                out[16 * k + r] = scale * (float)(q - 4);
            }
        }
    }
}

/* The 6-bit scale and offset of run k of Q4_K and Q5_K: 0..3 have a byte each, 4..7 live in nibbles and in
 * the top bits of those bytes. */
static void scale_offset(const uint8_t packed[12], int k, int *scale, int *offset)
{
    if (k < 4) {
        *scale = packed[k] & 63;
        *offset = packed[k + 4] & 63;
    } else {
        *scale = (packed[k + 4] & 15) | packed[k - 4] >> 6 << 4;
        *offset = packed[k + 4] >> 4 | packed[k] >> 6 << 4;
    }
}

void mote_decode_Q4_K(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 144, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b)), dmin = mote_f16_f32(mote_load_u16(b + 2));
        for (int k = 0; k < 8; k++) { /* 32 weights */
            const uint8_t *code = b + 16 + 32 * (k >> 1);
            int shift = 4 * (k & 1), sc, m;
            scale_offset(b + 4, k, &sc, &m);
            float scale = d * (float)sc, offset = dmin * (float)m;
            for (int r = 0; r < 32; r++) out[32 * k + r] = scale * (float)(code[r] >> shift & 15) - offset;
        }
    }
}

void mote_decode_Q5_K(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 176, out += 256) {
        const uint8_t *high = b + 16;
        float d = mote_f16_f32(mote_load_u16(b)), dmin = mote_f16_f32(mote_load_u16(b + 2));
        for (int k = 0; k < 8; k++) {
            const uint8_t *code = b + 48 + 32 * (k >> 1);
            int shift = 4 * (k & 1), sc, m;
            scale_offset(b + 4, k, &sc, &m);
            float scale = d * (float)sc, offset = dmin * (float)m;
            for (int r = 0; r < 32; r++) {
                int q = (code[r] >> shift & 15) | (high[r] >> k & 1) << 4;
                out[32 * k + r] = scale * (float)q - offset;
            }
        }
    }
}

void mote_decode_Q6_K(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 210, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b + 208));
        for (int k = 0; k < 16; k++) { /* 16 weights; a half is 4 planes of 2 runs */
            int half = k >> 3, plane = k >> 1 & 3, run = 16 * (k & 1);
            const uint8_t *low = b + 64 * half + 32 * (plane & 1) + run, *high = b + 128 + 32 * half + run;
            int low_shift = 4 * (plane >> 1), high_shift = 2 * plane;
            float scale = d * (float)(int8_t)b[192 + k];
            for (int r = 0; r < 16; r++) {
                int q = (low[r] >> low_shift & 15) | (high[r] >> high_shift & 3) << 4;
                out[16 * k + r] = scale * (float)(q - 32);
            }
        }
    }
}
