/* test_edge_kernels.cc: what stands at the edges of the expert block (rows.cu: widen, narrow), run on the host by
 * device_emulation.h: every half there is, bit for bit what base/float_bits.h says, and not a number further. */
#include <initializer_list>

#include "device_step.h"

extern "C" {
#include "base/float_rows.h"
}

enum { BLOCK = 256, EACH = 4 }; /* as backend/cuda_edge.c launches them */

static unsigned blocks(long n, long each) { return (unsigned)((n + each - 1) / each); }

static void test_widen(void **)
{
    for (enum mote_float_type type : {MOTE_BF16, MOTE_F16})
        for (long n : {65536L, 1L, 1025L}) {
            array<u16> half((size_t)n);
            array<float> got((size_t)n), want((size_t)n);
            for (long i = 0; i < n; i++) half[i] = (u16)(n == 65536 ? i : 77 * i);
            launch(blocks(n, BLOCK * EACH), 1, BLOCK, [&] { widen(half.at, type, n, got.at); });
            mote_floats_widen(type, half.at, n, want.at);
            assert_memory_equal(got.at, want.at, (size_t)n * sizeof(float));
        }
}

static void test_narrow(void **)
{
    const long n = 3 * BLOCK * EACH + 5;
    array<float> wide(n);
    array<u16> got(n), want(n);
    for (enum mote_float_type type : {MOTE_BF16, MOTE_F16}) {
        for (long i = 0; i < n; i++) {
            u32 bits = (u32)mote_rng_u64(&rng);
            if (i & 1) bits &= ~0x1FFFu; /* ties and numbers that a half has */
            if ((bits & 0x7F800000) == 0x7F800000) bits &= 0xFF800000; /* infinity; payloads of NaN differ by maker */
            wide[i] = mote_bits_f32(bits);
        }
        launch(blocks(n, BLOCK * EACH), 1, BLOCK, [&] { narrow(wide.at, type, n, got.at); });
        mote_floats_narrow(type, wide.at, n, want.at);
        assert_memory_equal(got.at, want.at, (size_t)n * sizeof(u16));
    }
}

int main(void)
{
    mote_rng_seed(&rng, 31);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_widen), cmocka_unit_test(test_narrow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
