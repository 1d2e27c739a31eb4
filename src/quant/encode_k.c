/* encode_k.c: Q2_K .. Q6_K and IQ4_XS: 256 weights, sub-blocks whose integer scales share one or two halves.
 *
 * Two searches cover all six: fit_scales (x ~ d * sc * q) and fit_scales_min (x ~ d * sc * q - dmin * mc).
 * Both first fit every sub-block on its own, then take turns: for given halves, each sub-block tries the
 * integer scales around its own fit (n_near batches of 8) with the codes they lead to; for given codes, the halves have a closed
 * form. The error that is minimised is sum w (x - x')^2 with the rounded halves, that is, what decoding will
 * give.
 */
#include <math.h>

#include "quant/encode_fit.h"

#define K_ROUND 3

/* x ~ d * sc[k] * q for n_sub sub-blocks. */
struct scaled {
    uint16_t d_bits;
    float d; /* normalised; 0: the whole block is zero */
    int8_t scale[16];
};

MOTE_INLINE void fit_scales(const struct block *b, enum levels levels, int n_sub, float lo, float hi,
                            float scale_lo, float scale_hi, float from, float to, int n_batch, int both_signs,
                            int n_near, struct scaled *out)
{
    const int size = 256 / n_sub;
    float ideal[16], extreme = 0;
    for (int k = 0; k < n_sub; k++) {
        ideal[k] =
            fit_scale(levels, b->x + k * size, b->w + k * size, size, lo, hi, from, to, n_batch, both_signs);
        if (fabsf(ideal[k]) > fabsf(extreme)) extreme = ideal[k];
    }
    *out = (struct scaled){0};
    const f32x8 ramp = {-3, -2, -1, 0, 1, 2, 3, 4};
    float next = extreme / scale_lo, best_error = 0;
    for (int round = 0; round < K_ROUND; round++) {
        struct scaled now = {0};
        now.d_bits = block_scale(b, next, &now.d);
        if (now.d == 0) break;
        float error = 0, cross = 0, square = 0;
        for (int k = 0; k < n_sub; k++) {
            float middle = round_even(clampf(ideal[k] / now.d, scale_lo, scale_hi));
            float best_price = 0, best_scale = 0, best_cross = 0, best_square = 0;
            for (int near = 0; near < n_near; near++) {
                f32x8 scale = middle + ramp + (float)(8 * near - 4 * (n_near - 1));
                scale = vec_min(vec_max(scale, vec_splat(scale_lo)), vec_splat(scale_hi));
                f32x8 step = scale * now.d, zero = vec_splat(0);
                i32x8 is_zero = step == zero;
                f32x8 inverse = vec_select(is_zero, zero, 1.0f / vec_select(is_zero, vec_splat(1), step));
                struct fit_sums sums =
                    fit_sums(levels, b->x + k * size, b->w + k * size, size, inverse, lo, hi);
                f32x8 price = step * (step * sums.square - 2 * sums.cross);
                for (int j = 0; j < 8; j++) {
                    if ((near || j) && price[j] >= best_price) continue;
                    best_price = price[j];
                    best_scale = scale[j];
                    best_cross = sums.cross[j];
                    best_square = sums.square[j];
                }
            }
            now.scale[k] = (int8_t)best_scale;
            error += best_price;
            cross += best_scale * best_cross;
            square += best_scale * best_scale * best_square;
        }
        if (out->d == 0 || error < best_error) {
            *out = now;
            best_error = error;
        }
        if (!(square > 0)) break;
        next = cross / square;
    }
}

/* x ~ d * scale[k] * q - dmin * minimum[k] */
struct scaled_min {
    uint16_t d_bits, dmin_bits;
    float d, dmin;
    uint8_t scale[16], minimum[16];
};

MOTE_INLINE void fit_scales_min(const struct block *b, int n_sub, float hi, float scale_hi, float narrow,
                                float wide, int n_batch, struct scaled_min *out)
{
    const int size = 256 / n_sub;
    struct fit_min ideal[16];
    struct fit_moments moments[16];
    float largest = 0, largest_min = 0;
    for (int k = 0; k < n_sub; k++) {
        const float *x = b->x + k * size, *w = b->w + k * size;
        moments[k] = fit_moments(x, w, size);
        ideal[k] = fit_min(x, w, size, hi, narrow, wide, n_batch, 0);
        largest = ideal[k].scale > largest ? ideal[k].scale : largest;
        largest_min = ideal[k].minimum > largest_min ? ideal[k].minimum : largest_min;
    }
    *out = (struct scaled_min){0};
    /* Pairs around the fit. A wider step goes with a deeper minimum, so the diagonal gets the far ones. */
    static const f32x8 by_scale[2] = {{0, 1, -1, 0, 0, 1, -1, 2}, {1, -1, 2, -2, 2, -2, 3, 0}};
    static const f32x8 by_min[2] = {{0, 0, 0, 1, -1, 1, -1, 1}, {-1, 1, 0, 0, 2, -1, 1, 2}};
    float next = largest / scale_hi, next_min = largest_min / scale_hi, best_error = 0;
    int have = 0;
    for (int round = 0; round < K_ROUND; round++) {
        struct scaled_min now = {0};
        now.d_bits = block_scale(b, next, &now.d);
        now.dmin_bits = block_scale(b, next_min, &now.dmin);
        float error = 0;
        /* normal equations of (d, dmin) over the whole block */
        float dd = 0, dm = 0, mm = 0, xd = 0, xm = 0;
        for (int k = 0; k < n_sub; k++) {
            float middle = now.d > 0 ? round_even(clampf(ideal[k].scale / now.d, 0, scale_hi)) : 0;
            float middle_min =
                now.dmin > 0 ? round_even(clampf(ideal[k].minimum / now.dmin, 0, scale_hi)) : 0;
            float best_price = 0, best_scale = 0, best_min = 0, q = 0, qq = 0, xq = 0;
            for (int batch = 0; batch < 2; batch++) {
                f32x8 scale = vec_min(vec_max(middle + by_scale[batch], vec_splat(0)), vec_splat(scale_hi));
                f32x8 minimum =
                    vec_min(vec_max(middle_min + by_min[batch], vec_splat(0)), vec_splat(scale_hi));
                f32x8 step = scale * now.d, offset = minimum * now.dmin, zero = vec_splat(0);
                i32x8 is_zero = step == zero;
                f32x8 inverse = vec_select(is_zero, zero, 1.0f / vec_select(is_zero, vec_splat(1), step));
                struct fit_min_sums sums =
                    fit_min_sums(b->x + k * size, b->w + k * size, size, inverse, offset, hi);
                f32x8 price = fit_min_error(&sums, &moments[k], step, offset);
                for (int j = 0; j < 8; j++) {
                    if ((batch || j) && price[j] >= best_price) continue;
                    best_price = price[j];
                    best_scale = scale[j];
                    best_min = minimum[j];
                    q = sums.q[j];
                    qq = sums.qq[j];
                    xq = sums.xq[j];
                }
            }
            now.scale[k] = (uint8_t)best_scale;
            now.minimum[k] = (uint8_t)best_min;
            error += best_price;
            dd += best_scale * best_scale * qq;
            dm += best_scale * best_min * q;
            mm += best_min * best_min * moments[k].w;
            xd += best_scale * xq;
            xm += best_min * moments[k].x;
        }
        if (!have || error < best_error) {
            *out = now;
            best_error = error;
            have = 1;
        }
        /* minimise d^2 dd - 2 d dmin dm + dmin^2 mm - 2 d xd + 2 dmin xm */
        float determinant = dd * mm - dm * dm;
        if (determinant > 1e-6f * dd * mm) {
            next = (xd * mm - xm * dm) / determinant;
            next_min = (xd * dm - xm * dd) / determinant;
        } else if (dd > 0) {
            next = xd / dd;
        }
        if (!(next > 0) || !(next_min >= 0)) break;
    }
}

MOTE_INLINE void codes_min(const struct block *b, const struct scaled_min *fit, int n_sub, float hi,
                           uint8_t *q)
{
    const int size = 256 / n_sub;
    for (int k = 0; k < n_sub; k++) {
        float inverse = inverse_or_zero(fit->d * fit->scale[k]), offset = fit->dmin * fit->minimum[k];
        for (int i = k * size; i < (k + 1) * size; i++)
            q[i] = (uint8_t)clampf(round_even(clampf((b->x[i] + offset) * inverse, -1, 256)), 0, hi);
    }
}

/* Planes of 2 bits: byte r of each half holds elements r, r + 32, r + 64, r + 96 of that half. */
MOTE_INLINE void pack_2bit(const uint8_t *q, uint8_t *out)
{
    for (int h = 0; h < 2; h++)
        for (int r = 0; r < 32; r++) {
            const uint8_t *p = q + 128 * h + r;
            out[32 * h + r] = (uint8_t)((p[0] & 3) | (p[32] & 3) << 2 | (p[64] & 3) << 4 | (p[96] & 3) << 6);
        }
}

void MOTE_TIER(mote_encode_row_q2_k)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 84) {
        struct block b;
        struct scaled_min fit;
        uint8_t q[256];
        memset(out, 0, 84);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        fit_scales_min(&b, 16, 3, 15, 0.5f, 1.1f, 2, &fit);
        codes_min(&b, &fit, 16, 3, q);
        for (int k = 0; k < 16; k++) out[k] = (uint8_t)(fit.scale[k] | fit.minimum[k] << 4);
        pack_2bit(q, out + 16);
        store_u16(out + 80, fit.d_bits);
        store_u16(out + 82, fit.dmin_bits);
    }
}

/* Six-bit scales and minima of Q4_K and Q5_K: s[12]. */
MOTE_INLINE void pack_scales(const struct scaled_min *fit, uint8_t *s)
{
    for (int k = 0; k < 4; k++) {
        unsigned late_scale = fit->scale[k + 4], late_min = fit->minimum[k + 4];
        s[k] = (uint8_t)(fit->scale[k] | (late_scale >> 4) << 6);
        s[k + 4] = (uint8_t)(fit->minimum[k] | (late_min >> 4) << 6);
        s[k + 8] = (uint8_t)((late_scale & 15) | (late_min & 15) << 4);
    }
}

/* Sub-blocks 2j and 2j + 1 are the low and the high nibbles of 32 bytes. */
MOTE_INLINE void pack_4bit(const uint8_t *q, uint8_t *out)
{
    for (int j = 0; j < 4; j++)
        for (int r = 0; r < 32; r++)
            out[32 * j + r] = (uint8_t)((q[64 * j + r] & 15) | (q[64 * j + 32 + r] & 15) << 4);
}

void MOTE_TIER(mote_encode_row_q4_k)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 144) {
        struct block b;
        struct scaled_min fit;
        uint8_t q[256];
        memset(out, 0, 144);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        fit_scales_min(&b, 8, 15, 63, 0.75f, 1.05f, 2, &fit);
        codes_min(&b, &fit, 8, 15, q);
        store_u16(out, fit.d_bits);
        store_u16(out + 2, fit.dmin_bits);
        pack_scales(&fit, out + 4);
        pack_4bit(q, out + 16);
    }
}

void MOTE_TIER(mote_encode_row_q5_k)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 176) {
        struct block b;
        struct scaled_min fit;
        uint8_t q[256];
        memset(out, 0, 176);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        fit_scales_min(&b, 8, 31, 63, 0.85f, 1.03f, 2, &fit);
        codes_min(&b, &fit, 8, 31, q);
        store_u16(out, fit.d_bits);
        store_u16(out + 2, fit.dmin_bits);
        pack_scales(&fit, out + 4);
        for (int k = 0; k < 8; k++)
            for (int r = 0; r < 32; r++) out[16 + r] = (uint8_t)(out[16 + r] | (q[32 * k + r] >> 4) << k);
        pack_4bit(q, out + 48);
    }
}

MOTE_INLINE void codes_scaled(const struct block *b, enum levels levels, const struct scaled *fit, int n_sub,
                              float lo, float hi, uint8_t *q)
{
    const int size = 256 / n_sub;
    for (int k = 0; k < n_sub; k++)
        encode_levels(levels, b->x + k * size, size, fit->d * fit->scale[k], lo, hi, q + k * size);
}

void MOTE_TIER(mote_encode_row_q3_k)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 110) {
        struct block b;
        struct scaled fit;
        uint8_t q[256]; /* 0..7 */
        memset(out, 0, 110);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        fit_scales(&b, LEVELS_INTEGER, 16, -4, 3, -32, 31, 2.6f, 5.2f, 2, 1, 1, &fit);
        codes_scaled(&b, LEVELS_INTEGER, &fit, 16, -4, 3, q);
        for (int k = 0; k < 8; k++)
            for (int r = 0; r < 32; r++) out[r] = (uint8_t)(out[r] | (q[32 * k + r] >> 2) << k);
        pack_2bit(q, out + 32);
        for (int k = 0; k < 16; k++) {
            unsigned scale = (unsigned)(fit.scale[k] + 32);
            out[96 + (k & 7)] = (uint8_t)(out[96 + (k & 7)] | (scale & 15) << (k < 8 ? 0 : 4));
            out[104 + (k & 3)] = (uint8_t)(out[104 + (k & 3)] | (scale >> 4) << 2 * (k >> 2));
        }
        store_u16(out + 108, fit.d_bits);
    }
}

void MOTE_TIER(mote_encode_row_q6_k)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 210) {
        struct block b;
        struct scaled fit;
        uint8_t q[256]; /* 0..63 */
        memset(out, 0, 210);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        fit_scales(&b, LEVELS_INTEGER, 16, -32, 31, -128, 127, 30.5f, 33.5f, 1, 0, 2, &fit);
        codes_scaled(&b, LEVELS_INTEGER, &fit, 16, -32, 31, q);
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < 64; r++) {
                const uint8_t *p = q + 128 * h + r;
                out[64 * h + r] = (uint8_t)((p[0] & 15) | (p[64] & 15) << 4);
            }
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < 32; r++) {
                const uint8_t *p = q + 128 * h + r;
                out[128 + 32 * h + r] =
                    (uint8_t)(p[0] >> 4 | (p[32] >> 4) << 2 | (p[64] >> 4) << 4 | (p[96] >> 4) << 6);
            }
        memcpy(out + 192, fit.scale, 16);
        store_u16(out + 208, fit.d_bits);
    }
}

void MOTE_TIER(mote_encode_row_iq4_xs)(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch)
{
    (void)scratch;
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 136) {
        struct block b;
        struct scaled fit;
        uint8_t q[256];
        memset(out, 0, 136);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        fit_scales(&b, LEVELS_IQ4, 8, 0, 0, -32, 31, 100, 160, 1, 1, 1, &fit);
        codes_scaled(&b, LEVELS_IQ4, &fit, 8, 0, 0, q);
        store_u16(out, fit.d_bits);
        unsigned high = 0;
        for (int k = 0; k < 8; k++) {
            unsigned scale = (unsigned)(fit.scale[k] + 32);
            high |= (scale >> 4) << 2 * k;
            out[4 + k / 2] = (uint8_t)(out[4 + k / 2] | (scale & 15) << 4 * (k & 1));
            for (int r = 0; r < 16; r++)
                out[8 + 16 * k + r] = (uint8_t)(q[32 * k + r] | q[32 * k + 16 + r] << 4);
        }
        store_u16(out + 2, (uint16_t)high);
    }
}
