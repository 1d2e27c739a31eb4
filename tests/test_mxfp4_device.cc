/* test_mxfp4_device.cc: the device's rule for MXFP4 activations (mxfp4.cuh), bit for bit the CPU's (quant/mxfp4.c, which
 * test_mxfp4.c holds to the words of the rule): every bf16 number as a block's largest, subnormals, ties at every exponent, the
 * largest floats, and what is no number.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>

#include "base/float_bits.h"
#include "base/rng.h"
#include "quant/mxfp4.h"
}

#include "cuda/kernels/mxfp4.cuh"

static struct mote_rng rng;

static void check_number(float x, int exponent, int twice)
{
    static const int value[] = {0, 1, 2, 3, 4, 6, 8, 12};
    float inverse = mxfp4_inverse(exponent), v = mxfp4_value(x, inverse);
    u32 code = mxfp4_code(x, inverse);
    int of_code = code < 16 ? value[code & 7] * (code & 8 ? -1 : 1) : 99;
    if (mxfp4_twice(x, inverse) != twice || of_code != twice || 2 * v != (float)twice ||
        (code >> 3 != 0) != (signbit(x) != 0) || (signbit(v) != 0) != (signbit(x) != 0))
        fail_msg("%a, exponent %d: twice %d, code %u, value %a; expected twice %d", (double)x, exponent,
                 mxfp4_twice(x, inverse), code, (double)v, twice);
}

static void check_block(const float *x)
{
    int8_t q[32];
    float unit = mote_mxfp4_block(x, q);
    u32 most = 0;
    for (int i = 0; i < 32; i++) {
        u32 bits = mote_f32_bits(x[i]) & 0x7FFFFFFF;
        most = bits > most ? bits : most;
    }
    int exponent = mxfp4_exponent(most);
    assert_int_equal(exponent, mote_mxfp4_exponent(mote_bits_f32(most)));
    assert_true(mote_f32_bits(0.5f * mxfp4_scale(exponent)) == mote_f32_bits(unit));
    for (int i = 0; i < 32; i++) check_number(x[i], exponent, q[i]);
}

/* A block whose largest is amax, somewhere, with a sign; the others are of all sizes below. */
static void check_block_up_to(float amax)
{
    float x[32];
    for (int i = 0; i < 32; i++) {
        float share = (float)mote_rng_below(&rng, 1 << 20) / (1 << 20);
        x[i] = amax * share * (i % 3 ? 1 : 0x1p-3f) * (i & 1 ? -1.0f : 1.0f);
    }
    x[mote_rng_below(&rng, 32)] = mote_rng_below(&rng, 2) ? -amax : amax;
    check_block(x);
}

static void test_all_maxima(void **state)
{
    (void)state;
    for (u32 half = 0; half < 0x7F80; half++) check_block_up_to(mote_bits_f32(half << 16));
    for (u32 i = 0; i < 1 << 15; i++)
        check_block_up_to(mote_bits_f32((u32)mote_rng_below(&rng, 0x7F800000)));
    for (u32 i = 0; i < 64; i++) { /* the smallest and the largest floats */
        check_block_up_to(mote_bits_f32(i));
        check_block_up_to(mote_bits_f32(0x7F7FFFFF - i));
        check_block_up_to(mote_bits_f32(0x00800000 - 32 + i));
    }
}

static void test_ties(void **state)
{
    (void)state;
    static const float middle[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 7, 0.5f, 6, 1, 2, 4, 1000};
    for (int e = 0; e <= 254; e++)
        for (float at : middle)
            for (int up = -1; up <= 1; up++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    float m = (float)ldexp((double)at, e - 127);
                    float v = (float)sign * (up ? nextafterf(m, up < 0 ? 0.0f : INFINITY) : m);
                    if (isfinite(v)) check_number(v, e, mote_mxfp4_twice(v, e));
                }
}

static void test_no_number(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    for (float v : bad) assert_int_equal(mxfp4_exponent(mote_f32_bits(v) & 0x7FFFFFFF), MXFP4_NO_NUMBER);
    assert_int_equal(mxfp4_exponent(0x7FFFFFFF), MXFP4_NO_NUMBER);
    assert_true(isnan(mxfp4_scale(MXFP4_NO_NUMBER)));
    float inverse = mxfp4_inverse(MXFP4_NO_NUMBER); /* codes are codes all the same */
    static const float any[] = {-1, NAN, INFINITY};
    for (float v : any)
        assert_true(abs(mxfp4_twice(v, inverse)) <= 12 && mxfp4_code(v, inverse) < 16);
}

int main(void)
{
    mote_rng_seed(&rng, 4);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_maxima), cmocka_unit_test(test_ties),
                                       cmocka_unit_test(test_no_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
