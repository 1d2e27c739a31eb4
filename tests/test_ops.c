/* test_ops.c: the small operations of every tier against float64 loops written here.
 *
 * Bounds come from the arithmetic: eps = 2^-24 is half a unit in the last place of a float.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "activation64.h"
#include "base/float_bits.h"
#include "base/rng.h"
#include "cpu/kernel.h"

static const double eps = 0x1p-24;
static const int64_t sizes[] = {1,  2,  3,  5,  7,   8,   9,   15,  16,   17,  31,
                                32, 33, 63, 64, 100, 255, 256, 257, 2048, 2880};
enum { N_SIZE = sizeof sizes / sizeof *sizes, GUARD = 16 };

/* n floats between guards; a fresh one is NaN throughout. */
static float *guarded(int64_t n)
{
    float *block = malloc((size_t)(n + 2 * GUARD) * sizeof *block);
    assert_non_null(block);
    for (int64_t i = 0; i < n + 2 * GUARD; i++) block[i] = mote_bits_f32(0x7FC0DEADu);
    return block + GUARD;
}

static void release(float *x, int64_t n)
{
    for (int64_t i = 0; i < GUARD; i++) {
        assert_int_equal(mote_f32_bits(x[-1 - i]), 0x7FC0DEADu);
        assert_int_equal(mote_f32_bits(x[n + i]), 0x7FC0DEADu);
    }
    free(x - GUARD);
}

static float *normals(struct mote_rng *rng, int64_t n, double scale)
{
    float *x = guarded(n);
    for (int64_t i = 0; i < n; i++) {
        double pair[2];
        mote_rng_normal2(rng, pair);
        x[i] = (float)(pair[0] * scale);
    }
    return x;
}

static void check(float got, double want, double bound)
{
    if (!(fabs((double)got - want) <= bound))
        fail_msg("got %.9g, expected %.17g within %.3g", (double)got, want, bound);
}

/* ---- one function per operation; `k` is the table under test ---- */

static void rms_norm(const struct mote_cpu_kernels *k)
{
    struct mote_rng rng;
    mote_rng_seed(&rng, 1);
    static const double scales[] = {1, 1e-3, 1e15, 1e25, 1e-25};
    for (int s = 0; s < N_SIZE; s++) {
        for (int e = 0; e < 5; e++) {
            int64_t n = sizes[s];
            float *x = normals(&rng, n, scales[e]), *weight = normals(&rng, n, 1), *y = guarded(n),
                  epsilon = 1e-6f;
            double sum = 0;
            for (int64_t c = 0; c < n; c++) sum += (double)x[c] * x[c];
            double factor = 1 / sqrt(sum / (double)n + epsilon);
            k->rms_norm(x, weight, n, epsilon, y);
            for (int64_t c = 0; c < n; c++) {
                double want = x[c] * factor * weight[c];
                check(y[c], want, 1.001 * eps * fabs(want) + 0x1p-149);
            }
            float *z = guarded(n);
            memcpy(z, x, (size_t)n * sizeof *x);
            k->rms_norm(z, weight, n, epsilon, z); /* in place */
            assert_memory_equal(z, y, (size_t)n * sizeof *y);
            z[n - 1] = NAN;
            k->rms_norm(z, weight, n, epsilon, z);
            for (int64_t c = 0; c < n; c++) assert_true(isnan(z[c]));
            release(x, n), release(weight, n), release(y, n), release(z, n);
        }
    }
}

static void rope(const struct mote_cpu_kernels *k)
{
    struct mote_rng rng;
    mote_rng_seed(&rng, 2);
    static const int64_t shapes[][3] = {{1, 2, 2},   {3, 6, 4},    {4, 64, 64},    {2, 64, 32},  {5, 80, 20},
                                        {8, 96, 96}, {3, 100, 50}, {16, 128, 128}, {2, 256, 64}, {1, 34, 34}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t n_head = shapes[s][0], dim = shapes[s][1], n_rot = shapes[s][2], half = n_rot / 2;
        float *x = normals(&rng, n_head * dim, 1), *y = guarded(n_head * dim), *c = guarded(half),
              *sn = guarded(half);
        for (int64_t i = 0; i < half; i++) {
            double angle = 100 * mote_rng_unit(&rng);
            c[i] = (float)cos(angle), sn[i] = (float)sin(angle);
        }
        memcpy(y, x, (size_t)(n_head * dim) * sizeof *x);
        k->rope(y, n_head, dim, n_rot, c, sn);
        for (int64_t h = 0; h < n_head; h++) {
            const float *in = x + h * dim, *out = y + h * dim;
            for (int64_t i = 0; i < half; i++) {
                double a = in[i], b = in[i + half], bound = 2.001 * eps * (fabs(a) + fabs(b));
                check(out[i], a * c[i] - b * sn[i], bound);
                check(out[i + half], a * sn[i] + b * c[i], bound);
            }
            assert_memory_equal(in + n_rot, out + n_rot, (size_t)(dim - n_rot) * sizeof *in);
        }
        /* A head alone equals the head among others. */
        float *z = guarded(dim);
        memcpy(z, x + (n_head - 1) * dim, (size_t)dim * sizeof *z);
        k->rope(z, 1, dim, n_rot, c, sn);
        assert_memory_equal(z, y + (n_head - 1) * dim, (size_t)dim * sizeof *z);
        release(z, dim), release(x, n_head * dim), release(y, n_head * dim), release(c, half),
            release(sn, half);
    }
}

/* exp: 2 ulp; 1 + e, quotient, three products, u + 1: half an ulp each, and what rounding of 1.702 g does to exp.
 * Below 2^-126 exp may be 0. */
static double activation_bound(double g, double u, double want)
{
    return (9 + 2 * fabs(g)) * eps * fabs(want) + 0x1p-126 * fabs(g) * (fabs(u) + 1) + 0x1p-149;
}

static void activate_kind(const struct mote_cpu_kernels *k, const struct mote_activation *a)
{
    struct mote_rng rng;
    mote_rng_seed(&rng, 3);
    float limit = a->limit;
    void (*activate)(const float *, const float *, float, int64_t, float *) = k->activate[a->kind];
    for (int s = 0; s < N_SIZE; s++) {
        int64_t n = sizes[s];
        float *gate = normals(&rng, n, s % 2 ? 1 : 40), *up = normals(&rng, n, 1), *out = guarded(n);
        const float *given = is_gated64(a) ? gate : NULL;
        activate(given, up, limit, n, out);
        for (int64_t i = 0; i < n; i++) {
            double want = activation64(a, gate[i], up[i]);
            check(out[i], want, activation_bound(is_gated64(a) ? gate[i] : 0, up[i], want));
        }
        float *in_place = s % 3 ? gate : up;
        activate(given, up, limit, n, in_place);
        assert_memory_equal(in_place, out, (size_t)n * sizeof *out);
        release(gate, n), release(up, n), release(out, n);
    }
    /* The sigmoid's tails, finely: gate from -104 to 104. */
    int64_t n = 1 << 16;
    float *gate = guarded(n), *up = guarded(n), *out = guarded(n);
    for (int64_t i = 0; i < n; i++) gate[i] = (float)(-104 + 208.0 * (double)i / (double)n), up[i] = 1;
    activate(gate, up, limit, n, out);
    for (int64_t i = 0; i < n; i++) {
        double want = activation64(a, gate[i], up[i]);
        check(out[i], want, activation_bound(gate[i], up[i], want));
    }
    /* A NaN among numbers stays one, and stays alone. */
    for (int side = !is_gated64(a); side < 2; side++)
        for (int at = 0; at < 9; at++) {
            for (int i = 0; i < 9; i++) gate[i] = up[i] = 2;
            (side ? up : gate)[at] = NAN;
            activate(gate, up, limit, 9, out);
            for (int i = 0; i < 9; i++) assert_true(isnan(out[i]) == (i == at));
        }
    release(gate, n), release(up, n), release(out, n);
}

static void activate(const struct mote_cpu_kernels *k)
{
    for (int kind = 0; kind < MOTE_ACTIVATION_COUNT; kind++) activate_kind(k, &each_activation[kind]);

    float out[9], up[9] = {1, 1, 1, 1, 1, 1, 1, 0.5f, 1};
    static const float gate[9] = {0, -0.0f, 1e30f, -1e30f, INFINITY, NAN, -3e38f, 3e38f, -1000};
    k->activate[MOTE_ACTIVATION_SWIGLU](gate, up, 0, 9, out);
    assert_true(out[0] == 0 && out[1] == 0 && out[3] == 0 && out[6] == 0 && out[8] == 0);
    assert_true(out[2] == 1e30f && out[4] == INFINITY && out[7] == 1.5e38f && isnan(out[5]));
    /* Limits hold what would overflow: silu(7), a sigmoid of 1, whatever is clipped. */
    static const float large[4] = {INFINITY, 3e38f, 7, -INFINITY};
    float one[4] = {INFINITY, 3e38f, INFINITY, 3e38f};
    k->activate[MOTE_ACTIVATION_SWIGLU_STEP](large, one, 7, 3, out);
    assert_true(out[0] == 49 && out[1] == 49 && out[2] > 48.9f && out[2] < 49);
    k->activate[MOTE_ACTIVATION_SWIGLU_CLAMPED](large, one, 7, 3, out);
    assert_true(out[0] == out[2] && out[1] == out[2] && out[2] > 48.9f && out[2] < 49);
    k->activate[MOTE_ACTIVATION_SWIGLU_OAI](large, one, 7, 3, out);
    assert_true(out[0] == out[2] && out[1] == out[2] && out[2] > 55.9f && out[2] <= 56);
    k->activate[MOTE_ACTIVATION_RELU2](NULL, large, 0, 4, out);
    assert_true(out[0] == INFINITY && out[1] == INFINITY && out[2] == 49 && out[3] == 0);
}

static void axpy(const struct mote_cpu_kernels *k)
{
    struct mote_rng rng;
    mote_rng_seed(&rng, 4);
    for (int s = 0; s < N_SIZE; s++) {
        int64_t n = sizes[s];
        float *x = normals(&rng, n, 1), *y = normals(&rng, n, 1), *z = guarded(n), a = 0.37f;
        memcpy(z, y, (size_t)n * sizeof *y);
        k->axpy(a, x, n, z);
        for (int64_t i = 0; i < n; i++) {
            double want = (double)a * x[i] + y[i];
            check(z[i], want, 1.001 * eps * fabs(want));
        }
        x[n - 1] = NAN;
        k->axpy(a, x, n, z);
        assert_true(isnan(z[n - 1]));
        release(x, n), release(y, n), release(z, n);
    }
    k->axpy(1, NULL, 0, NULL);
}

static void kv_store(const struct mote_cpu_kernels *k)
{
    const struct mote_cpu_kernels *scalar = mote_cpu_kernels(MOTE_CPU_SCALAR);
    struct mote_rng rng;
    mote_rng_seed(&rng, 5);
    static const double scales[] = {1, 1e-5, 1e-9, 3e4, 1e7};
    for (int type = 0; type < MOTE_KV_TYPE_COUNT; type++) {
        for (int e = 0; e < 5; e++) {
            for (int64_t n = 1; n <= 256; n = type == MOTE_KV_Q8_0 ? (n + 32) & ~31 : n + 7) {
                if (type == MOTE_KV_Q8_0 && n == 1) n = 32;
                size_t bytes = mote_kv_row_bytes((enum mote_kv_type)type, n);
                float *x = normals(&rng, n, scales[e]);
                uint8_t *out = malloc(bytes + 16), *want = malloc(bytes + 16);
                memset(out, 0xA5, bytes + 16), memset(want, 0xA5, bytes + 16);
                k->kv_store((enum mote_kv_type)type, x, n, out);
                scalar->kv_store((enum mote_kv_type)type, x, n, want);
                assert_memory_equal(out, want, bytes + 16);
                for (int64_t i = 0; i < n; i++) {
                    double value;
                    if (type == MOTE_KV_F32) {
                        assert_memory_equal(out + 4 * i, x + i, 4);
                        continue;
                    }
                    if (type == MOTE_KV_F16) {
                        value = mote_f16_f32(mote_load_u16(out + 2 * i));
                        if (fabsf(x[i]) < 65504) check((float)value, x[i], 0x1p-11 * fabs(x[i]) + 0x1p-25);
                        continue;
                    }
                    const float *block = x + i / 32 * 32;
                    double amax = 0;
                    for (int j = 0; j < 32; j++) amax = fmax(amax, fabs(block[j]));
                    double scale = mote_f16_f32(mote_load_u16(out + i / 32 * 34));
                    if (isinf(scale)) continue;
                    value = scale * (int8_t)out[i / 32 * 34 + 2 + i % 32];
                    /* half a step, and what the clamp at 127 steps takes from the largest */
                    check((float)value, x[i], scale * 0.5001 + fmax(0, amax - 127 * scale));
                    check((float)scale, amax / 127, 0x1.01p-11 * amax / 127 + 0x1p-25);
                }
                release(x, n);
                free(out), free(want);
            }
        }
    }
    /* What is not finite must come out as not finite. */
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++) {
        for (int at = 0; at < 32; at += 5) {
            float x[32];
            uint8_t out[128];
            for (int i = 0; i < 32; i++) x[i] = (float)i;
            x[at] = bad[b];
            k->kv_store(MOTE_KV_Q8_0, x, 32, out);
            float scale = mote_f16_f32(mote_load_u16(out));
            assert_false(isfinite(scale * (float)(int8_t)out[2 + at]));
            k->kv_store(MOTE_KV_F16, x, 32, out);
            assert_false(isfinite(mote_f16_f32(mote_load_u16(out + 2 * at))));
        }
    }
}

#define OP(name)                                                        \
    static void test_##name(void **state)                               \
    {                                                                   \
        (void)state;                                                    \
        for (int tier = 0; tier <= (int)mote_cpu_tier_detect(); tier++) \
            name(mote_cpu_kernels((enum mote_cpu_tier)tier));           \
    }
OP(rms_norm)
OP(rope)
OP(activate)
OP(axpy)
OP(kv_store)

static void test_activation_names(void **state)
{
    (void)state;
    struct mote_activation a;
    for (int kind = 0; kind < MOTE_ACTIVATION_COUNT; kind++) {
        const struct mote_activation_traits *t = mote_activation_traits((enum mote_activation_kind)kind);
        assert_int_equal(each_activation[kind].kind, kind);
        assert_int_equal(mote_activation_find(t->name, &a), MOTE_OK);
        assert_int_equal(a.kind, kind);
        assert_true(a.limit == t->limit);
        assert_int_equal(t->is_gated, is_gated64(&a));
        assert_int_equal(mote_activation_check(&a, t->is_gated), MOTE_OK);
        assert_int_equal(mote_activation_check(&a, !t->is_gated), MOTE_ARGUMENT);
        assert_non_null(strstr(mote_error(), t->is_gated ? "without a gate" : "with a gate"));
        static const float none[] = {0, -7, NAN, INFINITY};
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
            a.limit = none[i];
            assert_int_equal(mote_activation_check(&a, t->is_gated), t->limit > 0 ? MOTE_ARGUMENT : MOTE_OK);
        }
    }
    assert_int_equal(mote_activation_find("swiglu_", &a), MOTE_ARGUMENT);
    assert_non_null(strstr(mote_error(), "there are: swiglu swiglu_clamped"));
    a.kind = MOTE_ACTIVATION_COUNT;
    assert_int_equal(mote_activation_check(&a, 1), MOTE_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_activate), cmocka_unit_test(test_axpy),
        cmocka_unit_test(test_kv_store), cmocka_unit_test(test_activation_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
