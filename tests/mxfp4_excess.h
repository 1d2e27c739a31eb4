/* mxfp4_excess.h: how wrong a product was, of which only the sums rounded to MXFP4 can be seen.
 *
 * One idea: a number that lies within rounding of the right one tells nothing of the sum it came from; one that lies outside
 * was wrong by what is left to the nearest that would have been rounded so. A block's scale too may be the neighbour of the
 * right one where the block's largest is near the edge between them.
 */
#ifndef TESTS_MXFP4_EXCESS_H
#define TESTS_MXFP4_EXCESS_H

#include <math.h>
#include <stdint.h>

/* One number: `seen` under `scale`; INFINITY when there is no such number. */
static inline double mxfp4_excess_of(double right, double seen, double scale)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double at = fabs(seen) / scale, from = (seen < 0 ? -right : right) / scale;
    int i = 0;
    while (i < 8 && value[i] != at) i++;
    if (i == 8) return INFINITY;
    if (i == 0) from = fabs(from);
    double low = i ? (value[i - 1] + value[i]) / 2 : 0,
           high = i < 7 ? (value[i] + value[i + 1]) / 2 : INFINITY;
    return (from < low ? low - from : from > high ? from - high : 0) * scale;
}

/* Of rows of blocks of 32 (n numbers in all): sum of squares of what lies outside rounding, over twice the sum of squares of
 * the right ones: as 1 - 2 <x, y> / (<x, x> + <y, y>) of the sums themselves would be, at least. */
static inline double mxfp4_excess(const float *seen, const double *right, int64_t n)
{
    double wrong = 0, size = 0;
    for (int64_t b = 0; b < n; b += 32) {
        double most = 0, least = INFINITY;
        for (int64_t i = b; i < b + 32 && i < n; i++)
            most = fmax(most, fabs(right[i])), size += right[i] * right[i];
        int exponent =
            most > 0 ? (int)ceil(log2(most / 6)) : -127; /* 6 times its power of two holds the largest */
        if (exponent < -127) exponent = -127;
        for (int e = exponent - 1; e <= exponent + 1; e++) {
            double edge = ldexp(6, e < exponent ? e : exponent),
                   sum = 0; /* up to which the smaller of two scales serves */
            if (e != exponent && fabs(most / edge - 1) > 0.02) continue;
            for (int64_t i = b; i < b + 32 && i < n; i++) {
                double one = mxfp4_excess_of(right[i], (double)seen[i], ldexp(1, e));
                sum += one * one;
            }
            least = sum < least ? sum : least;
        }
        wrong += least;
    }
    return size > 0 ? wrong / (2 * size) : wrong;
}

#endif
