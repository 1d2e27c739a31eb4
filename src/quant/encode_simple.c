/* encode_simple.c: plain numbers, and blocks with one scale: Q4_0 .. Q8_0, IQ4_NL, MXFP4, NVFP4.
 *
 * Without importance Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4 follow the formats' reference rule to the bit (largest
 * magnitude or range, no search); so does NVFP4, but its scales below 2^-6 round to nearest, where the reference
 * stops at the largest subnormal. With importance they search (Q8_0 never does). IQ4_NL always searches.
 */
#include <math.h>

#include "quant/encode_fit.h"

void MOTE_TIER(mote_encode_row_f32)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)v, (void)scratch;
    memcpy(out, x, (size_t)n * sizeof *x);
}

/* Values beyond the type's largest finite one are clamped to it. */
void MOTE_TIER(mote_encode_row_f16)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)v, (void)scratch;
    for (int64_t i = 0; i < n; i++) store_u16(out + 2 * i, f16_clamped(x[i]));
}

void MOTE_TIER(mote_encode_row_bf16)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)v, (void)scratch;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = mote_f32_bits(x[i]), magnitude = bits & 0x7FFFFFFFu;
        if (magnitude > 0x7F7F0000u) bits = (bits & 0x80000000u) | 0x7F7F0000u;
        store_u16(out + 2 * i, (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16));
    }
}

/* 32 codes: element r in the low nibble of byte r, element r + 16 in its high nibble. */
MOTE_INLINE void pack_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int r = 0; r < 16; r++) out[r] = (uint8_t)((q[r] & 15) | (q[r + 16] & 15) << 4);
}

MOTE_INLINE void pack_fifth_bit(const uint8_t *q, uint8_t *out)
{
    for (int byte = 0; byte < 4; byte++) {
        unsigned bits = 0;
        for (int j = 0; j < 8; j++) bits |= (unsigned)(q[8 * byte + j] >> 4) << j;
        out[byte] = (uint8_t)bits;
    }
}

/* Codes and scale of Q4_0 (half = 8) and Q5_0 (half = 16): w = d * (q - half). */
MOTE_INLINE uint16_t symmetric(const float *x, const float *v, float half, uint8_t *q)
{
    if (v) {
        struct block b;
        block_load(&b, x, v, 32);
        if (b.unit == 0) {
            memset(q, (int)half, 32);
            return 0;
        }
        float d;
        float from = half == 8 ? 6.5f : 14, to = half == 8 ? 10 : 18;
        uint16_t bits =
            block_scale(&b, fit_scale(LEVELS_INTEGER, b.x, b.w, 32, -half, half - 1, from, to, 2, 1), &d);
        encode_levels(LEVELS_INTEGER, b.x, 32, d, -half, half - 1, q);
        return bits;
    }
    float d = signed_max(x, 32) / -half;
    float inverse = inverse_or_zero(clampf(d, -65504, 65504));
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(int)clampf(x[i] * inverse + (half + 0.5f), 0, 2 * half - 1);
    return f16_clamped(d);
}

void MOTE_TIER(mote_encode_row_q4_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 32, x += 32, v = v ? v + 32 : v, out += 18) {
        uint8_t q[32];
        store_u16(out, symmetric(x, v, 8, q));
        pack_nibbles(q, out + 2);
    }
}

void MOTE_TIER(mote_encode_row_q5_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 32, x += 32, v = v ? v + 32 : v, out += 22) {
        uint8_t q[32];
        store_u16(out, symmetric(x, v, 16, q));
        pack_fifth_bit(q, out + 2);
        pack_nibbles(q, out + 6);
    }
}

/* Codes 0..hi, scale and minimum of Q4_1 and Q5_1: w = d * q + m. scales: the two halves. */
MOTE_INLINE void with_minimum(const float *x, const float *v, float hi, uint8_t *scales, uint8_t *q)
{
    if (v) {
        struct block b;
        block_load(&b, x, v, 32);
        memset(q, 0, 32);
        memset(scales, 0, 4);
        if (b.unit == 0) return;
        struct fit_min fit = fit_min(b.x, b.w, 32, hi, hi < 16 ? 0.75f : 0.85f, 1.05f, 2, 1);
        float d, m;
        store_u16(scales, block_scale(&b, fit.scale, &d));
        store_u16(scales + 2, block_scale(&b, -fit.minimum, &m));
        float inverse = inverse_or_zero(d);
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)clampf(round_even(clampf((b.x[i] - m) * inverse, -1, 256)), 0, hi);
        return;
    }
    f32x8 low8 = vec_load(x), high8 = low8;
    for (int i = 8; i < 32; i += 8) {
        low8 = vec_min(vec_load(x + i), low8);
        high8 = vec_max(vec_load(x + i), high8);
    }
    float low = clampf(min8(low8), -65504, 65504), high = max8(high8);
    float d = clampf((high - low) / hi, 0, 65504), inverse = inverse_or_zero(d);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(int)clampf((x[i] - low) * inverse + 0.5f, 0, hi);
    store_u16(scales, f16_clamped(d));
    store_u16(scales + 2, f16_clamped(low));
}

void MOTE_TIER(mote_encode_row_q4_1)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 32, x += 32, v = v ? v + 32 : v, out += 20) {
        uint8_t q[32];
        with_minimum(x, v, 15, out, q);
        pack_nibbles(q, out + 4);
    }
}

void MOTE_TIER(mote_encode_row_q5_1)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 32, x += 32, v = v ? v + 32 : v, out += 24) {
        uint8_t q[32];
        with_minimum(x, v, 31, out, q);
        pack_fifth_bit(q, out + 4);
        pack_nibbles(q, out + 8);
    }
}

void MOTE_TIER(mote_encode_row_q8_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)v, (void)scratch;
    for (; n > 0; n -= 32, x += 32, out += 34) {
        float d = clampf(abs_max(x, 32) / 127, 0, 65504), inverse = inverse_or_zero(d);
        store_u16(out, f16_clamped(d));
        for (int i = 0; i < 32; i += 8) {
            f32x8 y = vec_min(vec_max(vec_load(x + i) * inverse, vec_splat(-127)), vec_splat(127));
            i32x8 code = __builtin_convertvector(vec_round_away(y), i32x8);
            for (int j = 0; j < 8; j++) out[2 + i + j] = (uint8_t)code[j];
        }
    }
}

void MOTE_TIER(mote_encode_row_iq4_nl)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 32, x += 32, v = v ? v + 32 : v, out += 18) {
        struct block b;
        uint8_t q[32];
        float d;
        memset(out, 0, 18);
        block_load(&b, x, v, 32);
        if (b.unit == 0) continue;
        store_u16(out, block_scale(&b, fit_scale(LEVELS_IQ4, b.x, b.w, 32, 0, 0, 100, 160, 1, 1), &d));
        encode_levels(LEVELS_IQ4, b.x, 32, d, 0, 0, q);
        pack_nibbles(q, out + 2);
    }
}

/* ---- FP4: levels 0 1 2 3 4 6 8 12 (twice e2m1) and their negatives ---- */

static const float fp4_middle[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};

/* Codes of x[n] in units of `scale`; ties go to the smaller magnitude, and what rounds to zero is +0. */
MOTE_INLINE void fp4_codes(const float *x, int n, float scale, uint8_t *q)
{
    for (int i = 0; i < n; i += 8) {
        f32x8 value = vec_load(x + i), magnitude = vec_abs(value);
        i32x8 code = {0};
        for (int k = 0; k < 7; k++) code -= magnitude > vec_splat(fp4_middle[k] * scale);
        code += (value < 0) & (code > 0) & 8;
        for (int j = 0; j < 8; j++) q[i + j] = (uint8_t)code[j];
    }
}

/* sum w (x - x')^2 of x[n] under `scale`, in double: these scales span more than a float's square can hold.
 */
MOTE_INLINE double fp4_error(const float *x, const float *w, int n, float scale)
{
    uint8_t q[32];
    fp4_codes(x, n, scale, q);
    double error = 0;
    for (int i = 0; i < n; i++) {
        double delta = (double)x[i] - (double)scale * mote_mxfp4_value[q[i]];
        error += (double)w[i] * delta * delta;
    }
    return error;
}

/* 2^(byte - 128): e8m0 against levels that are twice e2m1. */
MOTE_INLINE float mxfp4_scale(int byte)
{
    return mote_bits_f32(byte < 2 ? 0x00200000u << byte : (uint32_t)(byte - 1) << 23);
}

void MOTE_TIER(mote_encode_row_mxfp4)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 32, x += 32, v = v ? v + 32 : v, out += 17) {
        /* floor(log2(largest)) - 2 by its bits; below 2^-125 the smallest scale */
        int exponent = (int)(mote_f32_bits(abs_max(x, 32)) >> 23) - 2, best = exponent < 0 ? 0 : exponent;
        if (v) { /* one binade up saves the values that would be clipped at 6, one down refines the rest */
            double best_error = fp4_error(x, v, 32, mxfp4_scale(best));
            for (int e = exponent - 1; e <= exponent + 1; e++) {
                if (e < 0 || e > 252 || e == exponent) continue; /* at 253 the top level is infinity */
                double error = fp4_error(x, v, 32, mxfp4_scale(e));
                if (error >= best_error) continue;
                best_error = error;
                best = e;
            }
        }
        uint8_t q[32];
        fp4_codes(x, 32, mxfp4_scale(best), q);
        out[0] = (uint8_t)best;
        pack_nibbles(q, out + 1);
    }
}

/* Nearest unsigned e4m3 (halves up); 448 is the largest. */
MOTE_INLINE uint8_t e4m3_from(float x)
{
    if (!(x > 0)) return 0;
    if (x >= 448) return 0x7E;
    if (x < 0x1p-6f) return (uint8_t)(x * 512 + 0.5f); /* 8 is the smallest normal one */
    uint32_t bits = (mote_f32_bits(x) + (1u << 19)) >> 20;
    return (uint8_t)(bits - (120u << 3) > 0x7E ? 0x7E : bits - (120u << 3));
}

void MOTE_TIER(mote_encode_row_nvfp4)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 64, x += 64, v = v ? v + 64 : v, out += 36)
        for (int k = 0; k < 4; k++) {
            const float *part = x + 16 * k;
            uint8_t q[16];
            int largest = e4m3_from(abs_max(part, 16) / 6), best = largest;
            if (v) {
                double best_error = fp4_error(part, v + 16 * k, 16, 0.5f * mote_e4m3_f32((uint8_t)best));
                for (int e = largest - 2; e <= largest + 8; e++) { /* 8 steps up: twice the scale */
                    if (e < 0 || e > 0x7E) continue;
                    double error = fp4_error(part, v + 16 * k, 16, 0.5f * mote_e4m3_f32((uint8_t)e));
                    if (error >= best_error) continue;
                    best_error = error;
                    best = e;
                }
            }
            fp4_codes(part, 16, 0.5f * mote_e4m3_f32((uint8_t)best), q);
            out[k] = (uint8_t)best;
            for (int r = 0; r < 8; r++) out[4 + 8 * k + r] = (uint8_t)(q[r] | q[r + 8] << 4);
        }
}
