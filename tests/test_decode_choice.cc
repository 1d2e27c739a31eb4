/* test_decode_choice.cc: one row whose experts' kernels choose for themselves (moe_decode.cu with a routing), on the host by
 * device_emulation.h: the bits of a choice that was made before (route.cu), of y, of what lies between the stages, and of
 * ids and weights left in memory; every kind of score, biases, groups, ties, infinities, what is not a number.
 */
extern "C" {
#include "cpu/activation.h"
}
#include "device_step.h"

#include "cuda/kernels/choose.cuh"
#include "cuda/kernels/dot.cuh"

enum { MOST_PARTS = 2 * 16 * 17 };

#define Q8_0 MOTE_CODE_C8, 0, 0, 32, MOTE_ITEM_F16, 0, 0, 0

#define KERNELS renormalised
#define N_EXPERT 40 /* a lane has two, some lanes one */
#define N_USED 3
#define SCORE 0
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 1
#define GATE Q8_0
#define UP GATE
#define DOWN GATE
#define D_MODEL 128
#define N_FF 64 /* two blocks, of which one leaves the choice */
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

/* a book, so that down has barriers of its own; columns of down shared by two warps */
#define KERNELS softmax
#define N_EXPERT 33
#define N_USED 9 /* more jobs of down than warps */
#define SCORE 0
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 0
#define GATE Q8_0
#define UP GATE
#define DOWN MOTE_CODE_IQ2XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -3, 0
#define D_MODEL 128
#define N_FF 512
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

#define KERNELS of_chosen
#define N_EXPERT 6
#define N_USED 6
#define SCORE 1
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 0
#define GATE Q8_0
#define UP GATE
#define DOWN GATE
#define D_MODEL 64
#define N_FF 32
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

/* no gate: a block of two warps */
#define KERNELS in_groups
#define N_EXPERT 64
#define N_USED 4
#define SCORE 2
#define N_GROUP 8
#define N_GROUP_USED 3
#define RENORMALISE 1
#define GATE Q8_0
#define UP GATE
#define DOWN GATE
#define D_MODEL 64
#define N_FF 32
#define ACTIVATION RELU2
#define LIMIT 0.0f
#include "decode_moe.h"

#define KERNELS many
#define N_EXPERT 512
#define N_USED 10
#define SCORE 0
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 1
#define GATE Q8_0
#define UP GATE
#define DOWN GATE
#define D_MODEL 64
#define N_FF 32
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

enum { LAYER = 7, BASE = 2 };

enum look { NORMAL, TIES, EQUAL, SIGNED_ZEROS, FAR_APART, ONE_INFINITE, MANY_INFINITE, NEARLY_ALL_MINUS, NOT_A_NUMBER, LOOKS };

static array<float> logits_of(int n, enum look look)
{
    array<float> v = normals(n);
    for (int e = 0; e < n; e++) switch (look) {
        case TIES: v[e] = rintf(v[e] * 2) / 2; break;
        case EQUAL: v[e] = 0.5f; break;
        case SIGNED_ZEROS: v[e] = e % 3 ? 0.0f : -0.0f; break;
        case FAR_APART: v[e] *= e % 3 ? 1 : 20; break;
        case ONE_INFINITE: v[e] = e == n - 2 ? INFINITY : v[e]; break;
        case MANY_INFINITE: v[e] = e % 2 ? INFINITY : v[e]; break;
        case NEARLY_ALL_MINUS: v[e] = e == n / 2 ? v[e] : -INFINITY; break;
        case NOT_A_NUMBER: v[e] = e == n / 2 ? NAN : v[e]; break;
        default: break;
        }
    return v;
}

struct result {
    array<int> ids;
    array<float> weights, y;
    act_rows h;
    mote_step_fault fault;
};

template <class K> struct layer {
    weights of[K::n_expert][3];
    array<u64> slot;
    layer(enum mote_format down) : slot((size_t)K::n_expert * 3, 0)
    {
        for (int e = 0; e < K::n_expert; e++)
            for (int p = is_gated(K::activation.kind) ? 0 : 1; p < 3; p++) {
                of[e][p] = p == 2 ? make_weights(down, K::d_model, K::n_ff, K::bytes[p])
                                  : make_weights(MOTE_FORMAT_Q8_0, K::n_ff, K::d_model, K::bytes[p]);
                slot[e * 3 + p] = (u64)(uintptr_t)of[e][p].tiles.at;
            }
    }
};

template <class K>
static result run(const layer<K> &l, array<float> x, const array<float> &logits, const float *bias,
                  const array<float> &residual, bool is_inside)
{
    constexpr float scale = 1.5f;
    act_rows act = quantised(x.at, 1, K::d_model);
    result to = {array<int>(K::n_used, -77), array<float>(K::n_used, NAN), array<float>(K::d_model, -77),
                 act_rows(BASE + K::n_used, K::n_ff), {}};
    ChoiceJob choice = {};
    if (is_inside) choice = ChoiceJob{logits.at, bias, to.ids.at, to.weights.at, scale, LAYER};
    else K::routed(logits.at, bias, scale, to.ids.at, to.weights.at, LAYER, &to.fault);
    K::one(l.slot.at, K::n_expert, is_inside ? NULL : to.ids.at, is_inside ? NULL : to.weights.at, 0, choice,
           act.view(), K::n_used, to.h.view(), BASE, residual.n ? residual.at : NULL, to.y.at, &to.fault);
    return to;
}

template <class K> static void check(enum mote_format down)
{
    static_assert((K::down_split * 16 + 1) * K::n_used <= MOST_PARTS, "");
    layer<K> l(down);
    array<float> bias = normals(K::n_expert);
    for (int look = 0; look < LOOKS; look++)
        for (int is_biased = 0; is_biased < 2; is_biased++) {
            if (getenv("MOTE_TEST_SHORT") && is_biased != (look & 1)) continue;
            array<float> x = normals(K::d_model), residual = is_biased ? normals(K::d_model) : array<float>(),
                         logits = logits_of(K::n_expert, (enum look)look);
            const float *by = is_biased ? bias.at : NULL;
            result want = run<K>(l, x, logits, by, residual, false), got = run<K>(l, x, logits, by, residual, true);
            bool is_nan = look == NOT_A_NUMBER;
            assert_int_equal(want.fault.code, is_nan ? MOTE_STEP_NAN : MOTE_STEP_FINE);
            if (!same_bytes(&want.fault, &got.fault, sizeof got.fault)) fail_msg("look %d: another fault", look);
            if (is_nan) assert_true(got.fault.row == 0 && got.fault.layer == LAYER);
            for (int s = 0; s < K::n_used; s++) {
                if (got.ids[s] != want.ids[s] || !same_bytes(&got.weights[s], &want.weights[s], sizeof(float)))
                    fail_msg("look %d slot %d: expert %d by %.9g, expected %d by %.9g", look, s, got.ids[s],
                             (double)got.weights[s], want.ids[s], (double)want.weights[s]);
                for (int t = 0; t < s; t++) assert_int_not_equal(got.ids[t], got.ids[s]);
            }
            if (!(got.h == want.h)) fail_msg("look %d: other hidden bits", look);
            if (!same_bytes(got.y.at, want.y.at, want.y.n * sizeof(float))) fail_msg("look %d: other bits", look);
            if (is_nan) continue;
            for (float v : got.y) assert_true(v == v);
        }
}

template <class K, enum mote_format DOWN> static void test(void **state)
{
    (void)state;
    check<K>(DOWN);
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 23);
    const struct CMUnitTest tests[] = {
        {"renormalised", test<renormalised::kind, MOTE_FORMAT_Q8_0>, NULL, NULL, NULL},
        {"softmax", test<softmax::kind, MOTE_FORMAT_IQ2_XXS>, NULL, NULL, NULL},
        {"of the chosen", test<of_chosen::kind, MOTE_FORMAT_Q8_0>, NULL, NULL, NULL},
        {"in groups", test<in_groups::kind, MOTE_FORMAT_Q8_0>, NULL, NULL, NULL},
        {"512 experts", test<many::kind, MOTE_FORMAT_Q8_0>, NULL, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
