/* encode_ternary.c: TQ1_0, TQ2_0, PTQ1_0 (w = d * {-1, 0, 1}), Q2_0, PQ2_0 ({-1, 0, 1, 2}) and Q1_0 ({-1,
 * 1}).
 *
 * Without importance the reference rule: d is the largest magnitude and a code is round(x / d), which keeps
 * rows that are already ternary exactly (Q1_0: d is the mean magnitude). With importance the weighted
 * least-squares optimum, which is exact on ternary rows too.
 */
#include "quant/encode_block.h"

/* The scale d > 0 and codes {-1, 0, 1} that minimise sum w (x - d t)^2 do the following: t is the sign of x
 * where |x| > d/2, d the weighted mean of |x| there. That is a fixed point; from several starts the best one
 * is kept. */
MOTE_INLINE float ternary_scale(const float *x, const float *w, int n)
{
    float best = 0, best_gain = -1, largest = abs_max(x, n);
    for (int start = 1; start <= 8; start++) {
        float threshold = largest * (float)start * (0.5f / 8), gain = 0, scale = 0;
        for (int turn = 0; turn < 6; turn++) {
            f32x8 cross = vec_splat(0), square = vec_splat(0);
            for (int i = 0; i < n; i += 8) {
                f32x8 magnitude = vec_abs(vec_load(x + i)), weight = vec_load(w + i);
                i32x8 used = magnitude > vec_splat(threshold) * 0.9999999f;
                cross += (f32x8)((i32x8)(magnitude * weight) & used);
                square += (f32x8)((i32x8)weight & used);
            }
            float along = sum8(cross), norm = sum8(square);
            if (!(norm > 0)) break;
            scale = along / norm;
            gain = along * scale;
            if (threshold == 0.5f * scale) break;
            threshold = 0.5f * scale;
        }
        if (gain <= best_gain) continue;
        best_gain = gain;
        best = scale;
    }
    return best;
}

/* Codes t + 1 of x[n] (n a multiple of 8, at most 256) in 0..top, and the half that scales them. */
MOTE_INLINE uint16_t ternary(const float *x, const float *v, int n, int top, uint8_t *q)
{
    float d = abs_max(x, n);
    if (v && d >= 0x1p-60f) {
        struct block b;
        block_load(&b, x, v, n);
        d = clampf(ternary_scale(b.x, b.w, n) * b.unit, 0, 3e38f);
    }
    if (d > 65504) d = 65504;
    float inverse = inverse_or_zero(d);
    for (int i = 0; i < n; i += 8) {
        f32x8 y = vec_min(vec_max(vec_load(x + i) * inverse, vec_splat(-1)), vec_splat(2));
        f32x8 code = vec_min(vec_round_away(y) + 1, vec_splat((float)top));
        i32x8 whole = __builtin_convertvector(code, i32x8);
        for (int j = 0; j < 8; j++) q[i + j] = (uint8_t)whole[j];
    }
    return f16_clamped(d);
}

/* Five base-3 digits, the first one most significant, as the byte whose multiples by 3 bring them to the top:
 * ceil(value * 256 / 243). */
MOTE_INLINE uint8_t pack_digits(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e)
{
    unsigned value = (((a * 3 + b) * 3 + c) * 3 + d) * 3 + e;
    return (uint8_t)((value * 256 + 242) / 243);
}

/* out[width]: byte m holds elements m, m + width, .. m + 4 * width. */
MOTE_INLINE void pack_fives(const uint8_t *q, int width, uint8_t *out)
{
    for (int m = 0; m < width; m++)
        out[m] = pack_digits(q[m], q[m + width], q[m + 2 * width], q[m + 3 * width], q[m + 4 * width]);
}

/* The same with four elements and a last digit of zero. */
MOTE_INLINE void pack_fours(const uint8_t *q, int width, uint8_t *out)
{
    for (int m = 0; m < width; m++)
        out[m] = pack_digits(q[m], q[m + width], q[m + 2 * width], q[m + 3 * width], 0);
}

void MOTE_TIER(mote_encode_row_tq1_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 54) {
        uint8_t q[256];
        store_u16(out + 52, ternary(x, v, 256, 2, q));
        pack_fives(q, 32, out);
        pack_fives(q + 160, 16, out + 32);
        pack_fours(q + 240, 4, out + 48);
    }
}

void MOTE_TIER(mote_encode_row_ptq1_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 128, x += 128, v = v ? v + 128 : v, out += 28) {
        uint8_t q[128];
        store_u16(out + 26, ternary(x, v, 128, 2, q));
        pack_fives(q, 16, out);
        pack_fives(q + 80, 8, out + 16);
        pack_fours(q + 120, 2, out + 24);
    }
}

void MOTE_TIER(mote_encode_row_tq2_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 66) {
        uint8_t q[256];
        store_u16(out + 64, ternary(x, v, 256, 2, q));
        for (int h = 0; h < 2; h++)
            for (int m = 0; m < 32; m++) {
                const uint8_t *p = q + 128 * h + m;
                out[32 * h + m] = (uint8_t)(p[0] | p[32] << 2 | p[64] << 4 | p[96] << 6);
            }
    }
}

/* Four neighbours to a byte, scale first. */
MOTE_INLINE void encode_quads(const float *x, const float *v, int64_t n, int size, uint8_t *out)
{
    for (; n > 0; n -= size, x += size, v = v ? v + size : v, out += 2 + size / 4) {
        uint8_t q[128];
        store_u16(out, ternary(x, v, size, 3, q));
        for (int m = 0; m < size / 4; m++)
            out[2 + m] = (uint8_t)(q[4 * m] | q[4 * m + 1] << 2 | q[4 * m + 2] << 4 | q[4 * m + 3] << 6);
    }
}

void MOTE_TIER(mote_encode_row_q2_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    encode_quads(x, v, n, 64, out);
}

void MOTE_TIER(mote_encode_row_pq2_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    encode_quads(x, v, n, 128, out);
}

void MOTE_TIER(mote_encode_row_q1_0)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 128, x += 128, v = v ? v + 128 : v, out += 18) {
        float d = 0;
        if (v && abs_max(x, 128) >= 0x1p-60f) {
            struct block b;
            block_load(&b, x, v, 128);
            double cross = 0, weight = 0;
            for (int i = 0; i < 128; i++) {
                cross += (double)(b.w[i] * (b.x[i] < 0 ? -b.x[i] : b.x[i]));
                weight += (double)b.w[i];
            }
            d = (float)(cross / weight) * b.unit;
        } else { /* in this order: the reference's sum, to the bit */
            for (int i = 0; i < 128; i++) d += x[i] < 0 ? -x[i] : x[i];
            d /= 128;
        }
        store_u16(out, f16_clamped(d));
        for (int byte = 0; byte < 16; byte++) {
            unsigned bits = 0;
            for (int j = 0; j < 8; j++) bits |= (unsigned)(x[8 * byte + j] >= 0) << j;
            out[2 + byte] = (uint8_t)bits;
        }
    }
}
