/* decode_simple.c: plain numbers, blocks with one scale (and offset), FP4 blocks, binary and ternary blocks.
 *
 * Layouts: docs/formats.md. Every product is one f32 multiplication of the stored scale and an integer.
 */
#include "base/float_bits.h"
#include "quant/decode_parts.h"
#include "quant/iq_grid.h"

void mote_decode_F32(const uint8_t *restrict blocks, int64_t n_block, float *restrict out)
{
    memcpy(out, blocks, (size_t)n_block * sizeof *out);
}

void mote_decode_F16(const uint8_t *restrict blocks, int64_t n_block, float *restrict out)
{
    for (int64_t i = 0; i < n_block; i++) out[i] = mote_f16_f32(mote_load_u16(blocks + 2 * i));
}

void mote_decode_BF16(const uint8_t *restrict blocks, int64_t n_block, float *restrict out)
{
    for (int64_t i = 0; i < n_block; i++) out[i] = mote_bf16_f32(mote_load_u16(blocks + 2 * i));
}

void mote_decode_Q4_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 18, out += 32) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((b[2 + j] & 15) - 8);
            out[16 + j] = d * (float)((b[2 + j] >> 4) - 8);
        }
    }
}

void mote_decode_Q4_1(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 20, out += 32) {
        float d = mote_f16_f32(mote_load_u16(b)), m = mote_f16_f32(mote_load_u16(b + 2));
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(b[4 + j] & 15) + m;
            out[16 + j] = d * (float)(b[4 + j] >> 4) + m;
        }
    }
}

void mote_decode_Q5_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 22, out += 32) {
        float d = mote_f16_f32(mote_load_u16(b));
        uint32_t high = mote_load_u32(b + 2);
        for (int j = 0; j < 16; j++) {
            int lo = (b[6 + j] & 15) | (int)(high >> j & 1) << 4,
                hi = b[6 + j] >> 4 | (int)(high >> (16 + j) & 1) << 4;
            out[j] = d * (float)(lo - 16);
            out[16 + j] = d * (float)(hi - 16);
        }
    }
}

void mote_decode_Q5_1(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 24, out += 32) {
        float d = mote_f16_f32(mote_load_u16(b)), m = mote_f16_f32(mote_load_u16(b + 2));
        uint32_t high = mote_load_u32(b + 4);
        for (int j = 0; j < 16; j++) {
            int lo = (b[8 + j] & 15) | (int)(high >> j & 1) << 4,
                hi = b[8 + j] >> 4 | (int)(high >> (16 + j) & 1) << 4;
            out[j] = d * (float)lo + m;
            out[16 + j] = d * (float)hi + m;
        }
    }
}

void mote_decode_Q8_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 34, out += 32) {
        float d = mote_f16_f32(mote_load_u16(b));
        for (int j = 0; j < 32; j++) out[j] = d * (float)(int8_t)b[2 + j];
    }
}

/* 16-value code books: nibble j of the low halves is element j, of the high halves element n_byte + j. */
static void code_book(const uint8_t *restrict nibbles, int n_byte, const int8_t value[16], float scale,
                      float *restrict out)
{
    float weight[16]; /* of every code */
    for (int v = 0; v < 16; v++) weight[v] = scale * (float)value[v];
    for (int j = 0; j < n_byte; j++) {
        out[j] = weight[nibbles[j] & 15];
        out[n_byte + j] = weight[nibbles[j] >> 4];
    }
}

void mote_decode_IQ4_NL(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 18, out += 32)
        code_book(b + 2, 16, mote_iq4nl_value, mote_f16_f32(mote_load_u16(b)), out);
}

/* Half of 2^(e-127), as mote_mxfp4_value is doubled; e = 255 is a number here, not NaN. */
static float e8m0_half(uint8_t e)
{
    return mote_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

void mote_decode_MXFP4(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 17, out += 32)
        code_book(b + 1, 16, mote_mxfp4_value, e8m0_half(b[0]), out);
}

/* Half of an unsigned e4m3. 0x7F counts as 0, and the top bit is ignored: 0xFF is 480 / 2. */
static float ue4m3_half(uint8_t byte)
{
    uint32_t exponent = (byte >> 3) & 15u, mantissa = byte & 7u;
    if (byte == 0x7F) return 0;
    return exponent ? mote_bits_f32((exponent + 119u) << 23 | mantissa << 20) : (float)mantissa * 0x1p-10f;
}

void mote_decode_NVFP4(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 36, out += 64)
        for (int s = 0; s < 4; s++)
            code_book(b + 4 + 8 * s, 8, mote_mxfp4_value, ue4m3_half(b[s]), out + 16 * s);
}

void mote_decode_Q1_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 18, out += 128) {
        float d = mote_f16_f32(mote_load_u16(b));
        const float weight[2] = {-d, d};
        for (int j = 0; j < 16; j++)
            for (int k = 0; k < 8; k++) out[8 * j + k] = weight[b[2 + j] >> k & 1];
    }
}

/* Codes 0..3 mean -1, 0, 1, 2; four to a byte, in order. */
static void two_bit_sequence(const uint8_t *restrict codes, int n_byte, float d, float *restrict out)
{
    const float weight[4] = {-d, d * 0, d, d * 2};
    for (int j = 0; j < n_byte; j++)
        for (int k = 0; k < 4; k++) out[4 * j + k] = weight[codes[j] >> 2 * k & 3];
}

void mote_decode_Q2_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 18, out += 64)
        two_bit_sequence(b + 2, 16, mote_f16_f32(mote_load_u16(b)), out);
}

void mote_decode_PQ2_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 34, out += 128)
        two_bit_sequence(b + 2, 32, mote_f16_f32(mote_load_u16(b)), out);
}

/* A byte is the fraction 0.t0 t1 t2 t3 t4 in base 3, rounded up to a 256th: multiplying by 3^n modulo 256
 * brings digit n in front, and one more multiplication by 3 carries it out. Digit n of byte m is element n *
 * n_byte + m. */
static void trits(const uint8_t *restrict bytes, int n_byte, int n_digit, float d, float *restrict out)
{
    for (unsigned n = 0, power = 1; n < (unsigned)n_digit; n++, power *= 3, out += n_byte)
        for (int m = 0; m < n_byte; m++) {
            unsigned fraction = bytes[m] * power & 255u;
            out[m] = d * (float)((int)(fraction * 3u >> 8) - 1);
        }
}

void mote_decode_TQ1_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 54, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b + 52));
        trits(b, 32, 5, d, out);
        trits(b + 32, 16, 5, d, out + 160);
        trits(b + 48, 4, 4, d, out + 240);
    }
}

void mote_decode_PTQ1_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 28, out += 128) {
        float d = mote_f16_f32(mote_load_u16(b + 26));
        trits(b, 16, 5, d, out);
        trits(b + 16, 8, 5, d, out + 80);
        trits(b + 24, 2, 4, d, out + 120);
    }
}

void mote_decode_TQ2_0(const uint8_t *restrict b, int64_t n_block, float *restrict out)
{
    for (; n_block > 0; n_block--, b += 66, out += 256) {
        float d = mote_f16_f32(mote_load_u16(b + 64));
        for (int half = 0; half < 2; half++)
            for (int plane = 0; plane < 4; plane++)
                for (int m = 0; m < 32; m++)
                    out[128 * half + 32 * plane + m] = d * (float)((b[32 * half + m] >> 2 * plane & 3) - 1);
    }
}
