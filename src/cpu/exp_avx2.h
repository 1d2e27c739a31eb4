/* exp_avx2.h: exponentials of eight floats that are not positive, for softmax and sigmoid.
 *
 * One idea: split off the nearest power of two, a polynomial of degree 6 for the rest (minimax in relative
 * error, fitted by iterated least squares), add the exponent. Below the smallest normal float the result is
 * 0. NaN gives NaN, -infinity gives 0. Error: below 2 units in the last place.
 */
#ifndef MOTE_CPU_EXP_AVX2_H
#define MOTE_CPU_EXP_AVX2_H

#include <immintrin.h>

/* value * 2^power for value in [0.7, 1.42]; 0 in the lanes where `input` (an exponent to base 2) is too
 * small. */
static inline __m256 scale_by_power(__m256 value, __m256 power, __m256 input)
{
    __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23);
    __m256 result = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), shift));
    return _mm256_andnot_ps(_mm256_cmp_ps(input, _mm256_set1_ps(-126), _CMP_LT_OQ), result);
}

/* 2^x, x <= 0. */
static inline __m256 exp2_nonpositive(__m256 x)
{
    /* max returns its second operand when one is NaN */
    __m256 clamped = _mm256_max_ps(_mm256_set1_ps(-127), x);
    __m256 power = _mm256_round_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_sub_ps(clamped, power); /* exact */
    __m256 y = _mm256_fmadd_ps(_mm256_set1_ps(0x1.41fb2cp-13f), r, _mm256_set1_ps(0x1.5f3f32p-10f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.3b2d50p-7f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.c6aee6p-5f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.ebfbdcp-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.62e430p-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1));
    return scale_by_power(y, power, x);
}

/* e^x, x <= 0. */
static inline __m256 exp_nonpositive(__m256 x)
{
    __m256 clamped = _mm256_max_ps(_mm256_set1_ps(-88), x);
    __m256 base2 = _mm256_mul_ps(clamped, _mm256_set1_ps(0x1.715476p+0f));
    __m256 power = _mm256_round_ps(base2, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(power, _mm256_set1_ps(0x1.62e400p-1f), clamped); /* ln 2 in two parts */
    r = _mm256_fnmadd_ps(power, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 y = _mm256_fmadd_ps(_mm256_set1_ps(0x1.6ae6c4p-10f), r, _mm256_set1_ps(0x1.1267f4p-7f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.555824p-5f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.555418p-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0x1.fffffcp-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1));
    return scale_by_power(y, power, _mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)));
}

#endif
