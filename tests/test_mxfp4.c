/* test_mxfp4.c: activations to MXFP4, bit-exact to the rule of quant/mxfp4.h, which is computed here in float64 from its words: every
 * bf16 number as a block's largest, subnormals, ties, the largest float, and what is no number.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "base/rng.h"
#include "quant/mxfp4.h"

static struct mote_rng rng;

/* The smallest power of two not below a / 6 (the product with the float 1/6, rounded), from 2^-126 to 2^127; 0 for 0. */
static int exponent64(float amax)
{
    double sixth = (double)(float)((double)amax * (double)0.16666667163372039795f);
    if (sixth == 0) return 0;
    for (int e = 1; e < 254; e++)
        if (ldexp(1, e - 127) >= sixth) return e;
    return 254;
}

/* Twice the nearest e2m1 number: of two that are as near the one whose place in the list is even. */
static int twice64(float x, int exponent)
{
    static const int value[] = {0, 1, 2, 3, 4, 6, 8, 12};
    double v = 2 * fabs(ldexp((double)x, 127 - exponent));
    int best = 0;
    for (int i = 1; i < 8; i++) {
        double d = fabs(v - value[i]), least = fabs(v - value[best]);
        if (d < least || (d == least && i % 2 == 0)) best = i;
    }
    return x < 0 ? -value[best] : value[best];
}

static void check_block(const float *x)
{
    int8_t q[32];
    float amax = 0, unit = mote_mxfp4_block(x, q);
    for (int i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[i]));
    int e = exponent64(amax);
    assert_int_equal(mote_mxfp4_exponent(amax), e);
    assert_true((double)unit == ldexp(1, e - 128));
    for (int i = 0; i < 32; i++)
        if (q[i] != twice64(x[i], e) || mote_mxfp4_twice(x[i], e) != q[i])
            fail_msg("%a of a block up to %a (exponent %d): %d, expected %d", (double)x[i], (double)amax, e,
                     q[i], twice64(x[i], e));
}

/* A block whose largest is amax, somewhere, with a sign; the others are of all sizes below. */
static void block_up_to(float amax, float *x)
{
    for (int i = 0; i < 32; i++) {
        float share = (float)mote_rng_below(&rng, 1 << 20) / (1 << 20);
        x[i] = amax * share * (i % 3 ? 1 : 0x1p-3f) * (i & 1 ? -1 : 1);
    }
    x[mote_rng_below(&rng, 32)] = mote_rng_below(&rng, 2) ? -amax : amax;
}

static void test_all_maxima(void **state)
{
    (void)state;
    float x[32];
    for (uint32_t half = 0; half < 0x7F80; half++) { /* every finite bf16, subnormal ones too */
        block_up_to(mote_bits_f32(half << 16), x);
        check_block(x);
    }
    for (uint32_t i = 0; i < 1 << 15; i++) { /* and any float */
        block_up_to(mote_bits_f32((uint32_t)mote_rng_below(&rng, 0x7F800000)), x);
        check_block(x);
    }
    static const float special[] = {0, -0.0f, 0x1p-149f,  0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep127f,
                                    6, 12,    0x1.8p-125f};
    for (size_t k = 0; k < sizeof special / sizeof *special; k++)
        for (int up = -1; up <= 1; up++) { /* and its neighbours */
            float amax = up ? nextafterf(special[k], up < 0 ? 0 : INFINITY) : special[k];
            if (!isfinite(amax)) continue;
            block_up_to(amax, x);
            check_block(x);
        }
}

/* Every number between two of e2m1's, and both its neighbours, at exponents from end to end. */
static void test_ties(void **state)
{
    (void)state;
    static const float middle[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 7, 0.5f, 6};
    for (int e = 0; e <= 254; e++)
        for (size_t k = 0; k < sizeof middle / sizeof *middle; k++)
            for (int up = -1; up <= 1; up++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    float m = (float)ldexp((double)middle[k], e - 127);
                    if (!isfinite(m)) continue;
                    float v = (float)sign * (up ? nextafterf(m, up < 0 ? 0 : INFINITY) : m);
                    if (!isfinite(v)) continue;
                    if (mote_mxfp4_twice(v, e) != twice64(v, e))
                        fail_msg("%a, exponent %d: %d, expected %d", (double)v, e, mote_mxfp4_twice(v, e),
                                 twice64(v, e));
                }
}

static void test_no_number(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        float x[32];
        int8_t q[32], zero[32] = {0};
        block_up_to(3, x);
        x[k * 15] = bad[k];
        assert_true(isnan(mote_mxfp4_block(x, q)));
        assert_memory_equal(q, zero, 32);
    }
}

int main(void)
{
    mote_rng_seed(&rng, 4);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_maxima), cmocka_unit_test(test_ties),
                                       cmocka_unit_test(test_no_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
