/* encode_fit.h: least-squares fits of a scale (and a minimum) to a block. Private to src/quant/encode*.c.
 *
 * One idea: 8 candidates are tried at once, one per lane; a lane runs over the elements, so that no sum
 * across lanes is needed. For fixed codes the best scale has a closed form, so candidates only have to find
 * the codes.
 */
#ifndef MOTE_QUANT_ENCODE_FIT_H
#define MOTE_QUANT_ENCODE_FIT_H

#include "quant/encode_block.h"
#include "quant/iq_grid.h"

/* What a code stands for: an integer of [lo, hi], or an entry of the IQ4 code book. */
enum levels { LEVELS_INTEGER, LEVELS_IQ4 };

/* The nearest level to y, as its value. */
MOTE_INLINE f32x8 nearest_level(enum levels levels, f32x8 y, float lo, float hi)
{
    if (levels == LEVELS_INTEGER) return vec_min(vec_max(vec_round(y), vec_splat(lo)), vec_splat(hi));
    f32x8 value = vec_splat(mote_iq4nl_value[0]);
    for (int k = 0; k < 15; k++) {
        float low = mote_iq4nl_value[k], high = mote_iq4nl_value[k + 1];
        value += (f32x8)((i32x8)vec_splat(high - low) & (y > vec_splat(0.5f * (low + high))));
    }
    return value;
}

/* Codes of x[n] under `scale`: integers minus `lo`, or code book indices. out[n]. */
MOTE_INLINE void encode_levels(enum levels levels, const float *x, int n, float scale, float lo, float hi,
                               uint8_t *out)
{
    float inverse = inverse_or_zero(scale);
    for (int i = 0; i < n; i += 8) {
        f32x8 y = vec_load(x + i) * inverse;
        y = vec_min(vec_max(y, vec_splat(-256)), vec_splat(256));
        i32x8 code = {0};
        if (levels == LEVELS_INTEGER)
            code = __builtin_convertvector(nearest_level(levels, y, lo, hi) - lo, i32x8);
        else
            for (int k = 0; k < 15; k++)
                code -= y > vec_splat(0.5f * (float)(mote_iq4nl_value[k] + mote_iq4nl_value[k + 1]));
        for (int j = 0; j < 8; j++) out[i + j] = (uint8_t)code[j];
    }
}

/* Sums that price 8 scales at once: the error of scale s is s (s * square - 2 * cross) + sum w x^2. */
struct fit_sums {
    f32x8 cross;  /* sum w x q */
    f32x8 square; /* sum w q^2 */
};

MOTE_INLINE struct fit_sums fit_sums(enum levels levels, const float *x, const float *w, int n, f32x8 inverse,
                                     float lo, float hi)
{
    struct fit_sums sums = {vec_splat(0), vec_splat(0)};
    for (int i = 0; i < n; i++) {
        f32x8 q = nearest_level(levels, inverse * x[i], lo, hi), wq = q * w[i];
        sums.cross += wq * x[i];
        sums.square += wq * q;
    }
    return sums;
}

/* The best unconstrained scale for x[n] (largest magnitude in (0, 2)), 0 if x is all zero. Tries the inverse
 * scales t / signed maximum for 8 * n_batch values of t in [from, to], and their negatives when `both_signs`,
 * then 8 more around the best. */
MOTE_INLINE float fit_scale(enum levels levels, const float *x, const float *w, int n, float lo, float hi,
                            float from, float to, int n_batch, int both_signs)
{
    float extreme = signed_max(x, n);
    if (extreme < 0x1p-60f && extreme > -0x1p-60f) return 0;
    float step = (to - from) / (float)(8 * n_batch - 1) / extreme, best_inverse = 0, best_gain = -1,
          scale = 0;
    const f32x8 ramp = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int batch = 0; batch < n_batch * (1 + both_signs) + 1; batch++) {
        f32x8 inverse;
        if (batch == n_batch * (1 + both_signs)) inverse = best_inverse + (ramp - 3.5f) * (step * 0.25f);
        else if (batch < n_batch) inverse = from / extreme + (ramp + (float)(8 * batch)) * step;
        else inverse = -(from / extreme + (ramp + (float)(8 * (batch - n_batch))) * step);
        struct fit_sums sums = fit_sums(levels, x, w, n, inverse, lo, hi);
        f32x8 gain = sums.cross * sums.cross / vec_max(sums.square, vec_splat(1e-30f));
        for (int k = 0; k < 8; k++) {
            if (gain[k] <= best_gain || sums.square[k] <= 0) continue;
            best_gain = gain[k];
            best_inverse = inverse[k];
            scale = sums.cross[k] / sums.square[k];
        }
    }
    return scale;
}

/* Sums that price 8 pairs (scale s, minimum m) of x ~ s q - m at once. */
struct fit_min_sums {
    f32x8 q, qq, xq; /* sum w q, sum w q^2, sum w x q */
};

/* q = nearest integer of [0, hi] to (x + minimum) * inverse. */
MOTE_INLINE struct fit_min_sums fit_min_sums(const float *x, const float *w, int n, f32x8 inverse,
                                             f32x8 minimum, float hi)
{
    struct fit_min_sums sums = {vec_splat(0), vec_splat(0), vec_splat(0)};
    for (int i = 0; i < n; i++) {
        f32x8 q = nearest_level(LEVELS_INTEGER, (minimum + x[i]) * inverse, 0, hi), wq = q * w[i];
        sums.q += wq;
        sums.qq += wq * q;
        sums.xq += wq * x[i];
    }
    return sums;
}

/* Weighted moments of a block. */
struct fit_moments {
    float w, x, xx;
};

MOTE_INLINE struct fit_moments fit_moments(const float *x, const float *w, int n)
{
    f32x8 sum_w = vec_splat(0), sum_x = vec_splat(0), sum_xx = vec_splat(0);
    for (int i = 0; i < n; i += 8) {
        f32x8 value = vec_load(x + i), weight = vec_load(w + i);
        sum_w += weight;
        sum_x += weight * value;
        sum_xx += weight * value * value;
    }
    return (struct fit_moments){sum8(sum_w), sum8(sum_x), sum8(sum_xx)};
}

/* sum w (s q - m - x)^2 */
MOTE_INLINE f32x8 fit_min_error(const struct fit_min_sums *sums, const struct fit_moments *moments, f32x8 s,
                                f32x8 m)
{
    return s * (s * sums->qq - 2 * sums->xq) + m * (m * moments->w + 2 * moments->x - 2 * s * sums->q) +
           moments->xx;
}

struct fit_min {
    float scale, minimum;
};

/* The best scale >= 0 and minimum of x[n] ~ scale * q - minimum, q in [0, hi]; the minimum is >= 0 unless
 * `any_minimum`. Tries 8 * n_batch ranges, from `narrow` times the range of x to `wide` times it, then moves
 * codes and fit in turns. */
MOTE_INLINE struct fit_min fit_min(const float *x, const float *w, int n, float hi, float narrow, float wide,
                                   int n_batch, int any_minimum)
{
    struct fit_moments moments = fit_moments(x, w, n);
    f32x8 low8 = vec_load(x), high8 = low8;
    for (int i = 8; i < n; i += 8) {
        low8 = vec_min(vec_load(x + i), low8);
        high8 = vec_max(vec_load(x + i), high8);
    }
    float low = min8(low8), high = max8(high8);
    if (!any_minimum && low > 0) low = 0;
    if (high - low < 0x1p-60f) return (struct fit_min){0, -low};
    const f32x8 ramp = {0, 1, 2, 3, 4, 5, 6, 7};
    float best_error = 0, step = (wide - narrow) / (float)(8 * n_batch - 1);
    struct fit_min best = {(high - low) / hi, -low};
    int have = 0;
    for (int batch = 0; batch < n_batch + 2; batch++) {
        f32x8 scale, minimum;
        if (batch < n_batch) { /* ranges that shrink towards their middle */
            f32x8 part = narrow + (ramp + (float)(8 * batch)) * step;
            scale = part * ((high - low) / hi);
            minimum = -(low + (1 - part) * (0.5f * (high - low)));
            if (!any_minimum) minimum = vec_max(minimum, vec_splat(0));
        } else { /* around the best so far */
            const f32x8 delta_scale = {0, 1, -1, 0, 0, 1, -1, 2}, delta_min = {0, 0, 0, 1, -1, 1, -1, 1};
            float by = batch == n_batch ? 0.5f : 0.2f;
            scale = best.scale * (1 + delta_scale * (by * step));
            minimum = best.minimum + delta_min * (by * 0.4f * best.scale);
            scale = vec_max(scale, vec_splat(1e-30f));
        }
        struct fit_min_sums sums = fit_min_sums(x, w, n, 1.0f / scale, minimum, hi);
        /* least squares for s and m with these codes */
        f32x8 determinant = moments.w * sums.qq - sums.q * sums.q;
        i32x8 solvable = determinant > 1e-6f * moments.w * sums.qq;
        f32x8 divisor = vec_select(solvable, determinant, vec_splat(1));
        f32x8 s = (moments.w * sums.xq - moments.x * sums.q) / divisor;
        f32x8 m = (sums.q * sums.xq - sums.qq * moments.x) / divisor;
        if (!any_minimum) {
            i32x8 negative = m < 0;
            m = vec_max(m, vec_splat(0));
            s = vec_select(negative, sums.xq / vec_max(sums.qq, vec_splat(1e-30f)), s);
        }
        f32x8 error = fit_min_error(&sums, &moments, s, m);
        for (int k = 0; k < 8; k++) {
            if (!solvable[k] || !(s[k] > 0) || (have && error[k] >= best_error)) continue;
            have = 1;
            best_error = error[k];
            best = (struct fit_min){s[k], m[k]};
        }
    }
    return best;
}

#endif
