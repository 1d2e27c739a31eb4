/* test_decode_moe.cc: the expert block of few rows (moe_decode.cu) and one product at a time (moe_reference.cu, rows.cu), whole,
 * run on the host by device_emulation.h: held to the decoded weights in float64, and bit for bit to each other: a row alone
 * and in a batch, fused and not, few blocks and many; ids of every kind of crowding, and such as are none; every activation.
 * Kernels that choose for themselves: test_decode_choice.cc.
 */
extern "C" {
#include "activation64.h"
}
#include "device_step.h"

#include "cuda/kernels/choose.cuh"
#include "cuda/kernels/dot.cuh"

enum { MOST_PARTS = 2 * 64 * 16 };

/* gate and up alike; their columns shared by one warp, down's by two */
#define KERNELS k_quants
#define GATE MOTE_CODE_C4, 0, 0, 32, MOTE_ITEM_U8, 1, 0, 0
#define UP GATE
#define DOWN MOTE_CODE_C6, 32, 0, 16, MOTE_ITEM_S8, 0, 0, 0
#define D_MODEL 256
#define N_FF 512
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

/* gate and up differ, one of them with a book; 96 columns are no whole unit */
#define KERNELS mixed
#define GATE MOTE_CODE_IQ2XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -3, 0
#define UP MOTE_CODE_T5, 1, 0, 256, MOTE_ITEM_F16, 0, 0, 0
#define DOWN MOTE_CODE_LUT4, 0, MOTE_TABLE_IQ4NL, 32, MOTE_ITEM_F16, 0, 0, 0
#define D_MODEL 256
#define N_FF 96
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

/* a book in both stages */
#define KERNELS iq2_xxs
#define GATE MOTE_CODE_IQ2XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -3, 0
#define UP GATE
#define DOWN GATE
#define D_MODEL 256
#define N_FF 256
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

/* rows that do not fit into shared memory, unevenly shared by four warps; half of gate_up's tiles are not there */
#define KERNELS wide
#define GATE MOTE_CODE_C4, 8, 0, 32, MOTE_ITEM_F16, 0, 0, 0
#define UP GATE
#define DOWN GATE
#define D_MODEL 2592
#define N_FF 32
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "decode_moe.h"

/* ---- other activations ---- */

#define Q8_0 MOTE_CODE_C8, 0, 0, 32, MOTE_ITEM_F16, 0, 0, 0
#define MXFP4 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0

#define KERNELS clamped
#define GATE Q8_0
#define UP GATE
#define DOWN GATE
#define D_MODEL 256
#define N_FF 96
#define ACTIVATION SWIGLU_CLAMPED
#define LIMIT 0.75f
#include "decode_moe.h"

#define KERNELS step
#define GATE MOTE_CODE_C4, 8, 0, 32, MOTE_ITEM_F16, 0, 0, 0
#define UP Q8_0
#define DOWN UP
#define D_MODEL 256
#define N_FF 96
#define ACTIVATION SWIGLU_STEP
#define LIMIT 0.5f
#include "decode_moe.h"

#define KERNELS oai
#define GATE Q8_0
#define UP GATE
#define DOWN MXFP4
#define D_MODEL 256
#define N_FF 96
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#include "decode_moe.h"

/* no gate: a block of two warps, fewer than rows that share a pass */
#define KERNELS relu2
#define GATE Q8_0
#define UP GATE
#define DOWN MXFP4
#define D_MODEL 256
#define N_FF 96
#define ACTIVATION RELU2
#define LIMIT 0.0f
#include "decode_moe.h"

/* activations in MXFP4; 96 columns are no whole unit */
#define KERNELS mxfp4
#define GATE MXFP4
#define UP GATE
#define DOWN GATE
#define D_MODEL 256
#define N_FF 96
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#define ROUNDING MOTE_ROUND_MXFP4
#include "decode_moe.h"

/* no gate, a book, columns shared by two warps; half of gate_up's tiles are not there */
#define KERNELS relu2_iq2_xxs
#define GATE MOTE_CODE_IQ2XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -3, 0
#define UP GATE
#define DOWN Q8_0
#define D_MODEL 1024
#define N_FF 32
#define ACTIVATION RELU2
#define LIMIT 0.0f
#include "decode_moe.h"

enum { EXPERTS = 5, USED = 2, BASE = 3 };

struct experts {
    weights of[EXPERTS][3];
    u64 slot[EXPERTS * 3];
};
template <class K> static void make_experts(experts *set, const enum mote_format format[3])
{
    for (int e = 0; e < EXPERTS; e++)
        for (int p = 0; p < 3; p++) {
            set->slot[e * 3 + p] = 0; /* of a gate that nobody may look at */
            if (p == 0 && !is_gated64(&K::activation)) continue;
            set->of[e][p] = p == 2 ? make_weights(format[p], K::d_model, K::n_ff, K::bytes[p])
                                   : make_weights(format[p], K::n_ff, K::d_model, K::bytes[p]);
            set->slot[e * 3 + p] = (u64)(uintptr_t)set->of[e][p].tiles.at;
        }
}

/* An expert block over rows of x. */
struct block {
    const u64 *slot;
    array<float> x;        /* [n_row][d_model] */
    array<int> ids;        /* [n_row][n_used]; none: expert 0 */
    array<float> mix;      /* [n_row][n_used]; none: 1 */
    array<float> residual; /* [n_row][d_model]; none: 0 */
    int n_row, n_used, squash, base;
    mote_step_fault fault;

    int *the_ids() { return ids.n ? ids.at : NULL; }
    float *the_mix() { return mix.n ? mix.at : NULL; }
    float *the_residual() { return residual.n ? residual.at : NULL; }
};
struct result {
    array<float> y;
    act_rows h;
    mote_step_fault fault;
};

template <class K> static result fused(block b, unsigned up_blocks)
{
    int n_pair = b.n_row * b.n_used;
    act_rows x = quantised(b.x.at, b.n_row, K::d_model, NULL, 0, NULL, K::rounding);
    result to = {array<float>(b.x.n, -77), act_rows(b.base + n_pair, K::n_ff, K::rounding), {}};
    assert_true((K::down_split * 16 + 1) * n_pair <= MOST_PARTS);
    if (b.n_row == 1) {
        K::one(b.slot, EXPERTS, b.the_ids(), b.the_mix(), b.squash, ChoiceJob(), x.view(), b.n_used, to.h.view(),
               b.base, b.the_residual(), to.y.at, &to.fault);
        return to;
    }
    launch(up_blocks, (unsigned)n_pair, K::up_threads, [&] {
        K::up_many(b.slot, EXPERTS, b.the_ids(), x.view(), n_pair, b.n_used, to.h.view(), b.base, &to.fault);
    });
    K::forget_parts();
    launch((K::d_model + 15) / 16, 1, K::many_threads, [&] {
        K::down_rows_many(b.slot, EXPERTS, b.the_ids(), b.the_mix(), b.squash, to.h.view(), b.n_row, b.n_used,
                          b.base, b.the_residual(), to.y.at, K::d_model, &to.fault);
    });
    return to;
}
template <class K> static result unfused(block b, unsigned pair_blocks)
{
    int n_pair = b.n_row * b.n_used;
    act_rows x = quantised(b.x.at, b.n_row, K::d_model, NULL, 0, NULL, K::rounding);
    result to = {array<float>(b.x.n, -77), act_rows(b.base + n_pair, K::n_ff, K::rounding), {}};
    array<float> gate((size_t)(n_pair * K::n_ff), -77), up = gate, hidden = gate,
                                                        product((size_t)(n_pair * K::d_model), -77);
    bool has_gate = is_gated64(&K::activation);
    if (has_gate) launch((K::n_ff + 15) / 16, pair_blocks, K::up_split * 32, [&] {
        K::gate(b.slot, EXPERTS, 0, b.the_ids(), x.view(), n_pair, b.n_used, 1, 0, gate.at, K::n_ff,
                &to.fault);
    });
    launch((K::n_ff + 15) / 16, pair_blocks, K::up_split * 32, [&] {
        K::up(b.slot, EXPERTS, 1, b.the_ids(), x.view(), n_pair, b.n_used, 1, 0, up.at, K::n_ff, &to.fault);
    });
    launch((unsigned)n_pair, 1, 256,
           [&] { activate(K::activation.kind, K::activation.limit, has_gate ? gate.at : NULL, up.at, K::n_ff, to.h.unit, b.base, hidden.at, to.h.view()); });
    launch((K::d_model + 15) / 16, pair_blocks, K::down_split * 32, [&] {
        K::down(b.slot, EXPERTS, 2, b.the_ids(), to.h.view(), n_pair, b.n_used, 0, b.base, product.at,
                K::d_model, &to.fault);
    });
    launch((K::d_model + 255) / 256, (unsigned)b.n_row, 256, [&] {
        combine(product.at, b.the_mix(), b.squash, b.n_used, b.the_residual(), to.y.at, K::d_model);
    });
    /* what is quantised is what is handed out */
    for (long i = 0; K::rounding == MOTE_ROUND_MXFP4 && i < (long)hidden.n; i += 32) {
        int pair = b.base + (int)(i / K::n_ff), c = (int)(i % K::n_ff);
        assert_true(isnan(*to.h.scale_of(pair, c)) || to.h.is_mxfp4(pair, c, hidden.at + i));
    }
    for (long i = 0; K::rounding == MOTE_ROUND_I16 && i < (long)hidden.n; i++) {
        int pair = (int)(i / K::n_ff), c = (int)(i % K::n_ff);
        double scale = (double)*to.h.scale_of(b.base + pair, c);
        double value = to.h.value(b.base + pair, c), given = (double)hidden[i];
        assert_true(isnan(given) ? isnan(value) : fabs(value - given) <= 0.51 * scale);
    }
    return to;
}

static block row_of(const block &b, int row, int d_model)
{
    block one = b;
    one.n_row = 1;
    one.x = array<float>(b.x.at + (long)row * d_model, (size_t)d_model);
    if (b.ids.n) one.ids = array<int>(b.ids.at + row * b.n_used, (size_t)b.n_used);
    if (b.mix.n) one.mix = array<float>(b.mix.at + row * b.n_used, (size_t)b.n_used);
    if (b.residual.n) one.residual = array<float>(b.residual.at + (long)row * d_model, (size_t)d_model);
    return one;
}

/* y and, unless its pairs are other ones, h. */
static void check_same(const char *what, const result &a, int row, const result &b)
{
    if (!same_bytes(a.y.at + row * (long)b.y.n, b.y.at, b.y.n * sizeof(float)))
        fail_msg("%s: row %d: other bits", what, row);
    if (a.y.n == b.y.n && !(a.h == b.h)) fail_msg("%s: other hidden bits", what);
}

/* From x as its codes have it: where a gate cancels, what quantising x costs (test_input_rows) outgrows everything else. */
template <class K>
static void check_value(const char *what, const experts &set, const block &b, const result &got)
{
    act_rows act = quantised(b.x.at, b.n_row, K::d_model, NULL, 0, NULL, K::rounding);
    for (int i = 0; i < b.n_row; i += 4) {
        array<double> want((size_t)K::d_model);
        array<float> x((size_t)K::d_model);
        for (int c = 0; c < K::d_model; c++) x[c] = (float)act.value(i, c);
        error_sum sum;
        for (int s = 0; s < b.n_used; s++) {
            int p = i * b.n_used + s;
            const weights *w = set.of[b.ids.n ? b.ids[p] : 0];
            double mix = !b.mix.n ? 1 : b.squash ? 1 / (1 + exp(-(double)b.mix[p])) : (double)b.mix[p];
            array<float> hidden((size_t)K::n_ff);
            for (int f = 0; f < K::n_ff; f++) {
                double gate = is_gated64(&K::activation) ? w[0].product(f, x.at) : 0;
                hidden[f] = (float)activation64(&K::activation, gate, w[1].product(f, x.at));
            }
            for (int f = 0; K::rounding == MOTE_ROUND_MXFP4 && f < K::n_ff; f += 32) {
                int8_t q[32];
                float unit = mote_mxfp4_block(hidden.at + f, q);
                for (int k = 0; k < 32; k++) hidden[f + k] = unit * (float)q[k];
            }
            for (int r = 0; r < K::d_model; r++) want[r] += mix * w[2].product(r, hidden.at);
        }
        for (int r = 0; r < K::d_model; r++) {
            long at = (long)i * K::d_model + r;
            sum.add((double)got.y[at] - (b.residual.n ? (double)b.residual[at] : 0), want[r]);
        }
        sum.check(1e-4, what, i);
    }
}

/* Rows of routed experts by `ids_of`. */
template <class K, class Ids>
static block routed(const experts &set, int n_row, bool has_residual, Ids ids_of)
{
    block b = {set.slot,
               normals(n_row * K::d_model),
               array<int>((size_t)(n_row * USED)),
               normals(n_row * USED),
               has_residual ? normals(n_row * K::d_model) : array<float>(),
               n_row,
               USED,
               0,
               BASE,
               {}};
    for (int p = 0; p < n_row * USED; p++) b.ids[p] = ids_of(p / USED, p % USED);
    /* a hundredth, so that what residual and sum round by is not what is measured */
    for (float &v : b.residual) v *= 0.01f;
    return b;
}

/* `rows` of the largest block; the others where they are not dear. */
template <class K>
static void check_block(const enum mote_format format[3], const char *name, int rows, bool is_dear)
{
    constexpr unsigned all = K::ff_pad / 32;
    experts set;
    make_experts<K>(&set, format);

    /* expert 4 chosen by none, 1 by many, a row that chooses one twice */
    block b = routed<K>(set, rows, true, [](int row, int s) {
        return row == 5 ? 2 : s ? (row % 3 ? 1 : 3) : row % 2 ? 0 : 2;
    });
    result got = fused<K>(b, all);
    assert_int_equal(got.fault.code, MOTE_STEP_FINE);
    check_value<K>(name, set, b, got);
    check_same(name, got, 0, fused<K>(b, 1 + all / 3));
    check_same(name, got, 0, unfused<K>(b, (unsigned)(rows * USED)));
    for (int row = is_dear ? rows - 1 : 0; row < rows; row += 1 + rows / 2)
        check_same(name, got, row, fused<K>(row_of(b, row, K::d_model), all));
    if (is_dear) return;

    /* five rows that all choose the same expert twice; without a residual */
    b = routed<K>(set, 5, false, [](int, int) { return EXPERTS - 1; });
    got = fused<K>(b, all);
    check_value<K>(name, set, b, got);
    check_same(name, got, 0, unfused<K>(b, 3));
    for (int row = 0; row < 5; row += 2)
        check_same(name, got, row, fused<K>(row_of(b, row, K::d_model), all));

    /* two rows; weights of one */
    b = routed<K>(set, 2, true, [](int row, int s) { return row + s; });
    b.mix = array<float>();
    got = fused<K>(b, all);
    check_same(name, got, 0, unfused<K>(b, 4));
    for (int row = 0; row < 2; row++)
        check_same(name, got, row, unfused<K>(row_of(b, row, K::d_model), USED));

    /* a shared expert: no ids, weights squashed */
    b = routed<K>(set, 6, true, [](int, int) { return 0; });
    b.ids = array<int>(), b.n_used = 1, b.squash = 1, b.mix = normals(6);
    got = fused<K>(b, all);
    check_value<K>(name, set, b, got);
    check_same(name, got, 0, unfused<K>(b, 6));
    check_same(name, got, 5, fused<K>(row_of(b, 5, K::d_model), all));

    /* ids that are none are told, and stand for expert 0 */
    for (int row = 2; row <= 4; row += 2) {
        b = routed<K>(set, row, true, [](int r, int s) { return r == 1 && s ? EXPERTS : 1; });
        if (row == 4) b.ids[3] = -1;
        int bad = b.ids[3];
        for (int is_fused = 0; is_fused < 2; is_fused++) {
            got = is_fused ? fused<K>(b, all) : unfused<K>(b, 4);
            assert_true(got.fault.code == MOTE_STEP_EXPERT && got.fault.row == 3 && got.fault.value == bad);
        }
        block alone_bad = row_of(b, 1, K::d_model), fine = b;
        result one = fused<K>(alone_bad, all);
        assert_true(one.fault.code == MOTE_STEP_EXPERT && one.fault.row == 1 && one.fault.value == bad);
        check_same(name, got, 1, one);
        fine.ids[3] = 0;
        check_same(name, got, 0, fused<K>(fine, all));
    }
}

static int short_or(int rows) /* six: expert 2 has five pairs, more than share a pass */
{
    return getenv("MOTE_TEST_SHORT") ? 6 : rows;
}

static void test_k_quants(void **state)
{
    (void)state;
    static const enum mote_format format[] = {MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q4_K, MOTE_FORMAT_Q6_K};
    check_block<k_quants::kind>(format, "Q4_K, Q6_K", short_or(9), true);
}
static void test_mixed(void **state)
{
    (void)state;
    static const enum mote_format format[] = {MOTE_FORMAT_IQ2_XXS, MOTE_FORMAT_TQ1_0, MOTE_FORMAT_IQ4_NL};
    check_block<mixed::kind>(format, "IQ2_XXS, TQ1_0, IQ4_NL", short_or(17), false);
}
static void test_iq2_xxs(void **state)
{
    (void)state;
    static const enum mote_format format[] = {MOTE_FORMAT_IQ2_XXS, MOTE_FORMAT_IQ2_XXS, MOTE_FORMAT_IQ2_XXS};
    check_block<iq2_xxs::kind>(format, "IQ2_XXS", short_or(10), true);
}
static void test_wide(void **state)
{
    (void)state;
    static const enum mote_format format[] = {MOTE_FORMAT_Q4_0, MOTE_FORMAT_Q4_0, MOTE_FORMAT_Q4_0};
    check_block<wide::kind>(format, "Q4_0, wide", 3, true);
}

/* A NaN in a row of x is in all of its results and in no other row's, whatever limits there are. */
template <class K> static void check_nan(const experts &set)
{
    block b = routed<K>(set, 3, false, [](int row, int s) { return row + s; });
    b.x[K::d_model + 3] = NAN;
    for (int is_fused = 0; is_fused < 2; is_fused++) {
        result got = is_fused ? fused<K>(b, K::ff_pad / 32) : unfused<K>(b, 3);
        for (int i = 0; i < 3 * K::d_model; i++)
            assert_int_equal(got.y[i] != got.y[i], i / K::d_model == 1);
    }
}

template <class K> static void check_activation(const enum mote_format format[3])
{
    const char *name = mote_activation_traits(K::activation.kind)->name;
    experts set;
    check_block<K>(format, name, 6, true);
    make_experts<K>(&set, format);
    check_nan<K>(set);
}

static void test_activations(void **state)
{
    (void)state;
    static const enum mote_format q8_0[] = {MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0},
                                  mixed[] = {MOTE_FORMAT_Q4_0, MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0},
                                  to_mxfp4[] = {MOTE_FORMAT_Q8_0, MOTE_FORMAT_Q8_0, MOTE_FORMAT_MXFP4},
                                  iq2_xxs[] = {MOTE_FORMAT_IQ2_XXS, MOTE_FORMAT_IQ2_XXS, MOTE_FORMAT_Q8_0};
    check_activation<clamped::kind>(q8_0);
    check_activation<step::kind>(mixed);
    check_activation<oai::kind>(to_mxfp4);
    check_activation<relu2::kind>(to_mxfp4);
    check_activation<relu2_iq2_xxs::kind>(iq2_xxs);
}

static void test_mxfp4(void **state)
{
    (void)state;
    static const enum mote_format format[] = {MOTE_FORMAT_MXFP4, MOTE_FORMAT_MXFP4, MOTE_FORMAT_MXFP4};
    check_block<mxfp4::kind>(format, "MXFP4 activations", short_or(9), false);
    experts set;
    make_experts<mxfp4::kind>(&set, format);
    check_nan<mxfp4::kind>(set);
}

/* The device's list is activation.h's; its arithmetic, on and off every limit, and what a NaN does. */
static void test_arithmetic(void **state)
{
    (void)state;
    static_assert((int)SWIGLU == MOTE_ACTIVATION_SWIGLU && (int)SWIGLU_CLAMPED == MOTE_ACTIVATION_SWIGLU_CLAMPED &&
                      (int)SWIGLU_STEP == MOTE_ACTIVATION_SWIGLU_STEP &&
                      (int)SWIGLU_OAI == MOTE_ACTIVATION_SWIGLU_OAI && (int)RELU2 == MOTE_ACTIVATION_RELU2 &&
                      MOTE_ACTIVATION_COUNT == 5,
                  "expert.cuh and activation.h have other orders");
    for (const struct mote_activation &a : each_activation) {
        assert_int_equal(is_gated(a.kind), mote_activation_traits(a.kind)->is_gated);
        for (int i = -40; i <= 40; i++)
            for (int j = -40; j <= 40; j++) {
                float g = (float)i / 8, u = (float)j / 8;
                double want = activation64(&a, (double)g, (double)u);
                assert_true(fabs((double)activation(a.kind, a.limit, g, u) - want) <= 1e-6 * fabs(want));
            }
        assert_true(isnan(activation(a.kind, a.limit, 1, NAN)));
        assert_int_equal(isnan(activation(a.kind, a.limit, NAN, 1)), is_gated(a.kind));
    }
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 7);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_k_quants), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_iq2_xxs), cmocka_unit_test(test_wide),
                                       cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_activations),
                                       cmocka_unit_test(test_mxfp4)};
    return cmocka_run_group_tests(tests, NULL, end);
}
