/* test_decode_router.cc: the choice of experts and products of plain numbers (router.cu, route.cu, plain.cu), whole, run on the host
 * by device_emulation.h: logits and products held to float64, the choice to one by the definition (backend/backend.h), the
 * router bit for bit to norm and choice of their own. The other constants: test_decode_groups.cc, test_decode_topk.cc.
 */
#include "device_step.h"

#ifndef N_EXPERT
#define N_EXPERT 40 /* a lane has two, some lanes one */
#define N_USED 3
#define SCORE 0 /* softmax */
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 1
#define ITEM MOTE_ITEM_BF16
#define PLAIN_FORMAT MOTE_FORMAT_BF16
#define D_MODEL 352
#define WARPS 2
#endif

#include "cuda/kernels/router.cu"

#include "cuda/kernels/route.cu"

namespace plain
{
#include "cuda/kernels/plain.cu"
}

/* ---- the choice ---- */

struct choice {
    array<int> ids;   /* [rows][N_USED] */
    array<float> mix; /* likewise */
    explicit choice(int rows) : ids((size_t)(rows * N_USED), -77), mix((size_t)(rows * N_USED), NAN) {}
    bool operator==(const choice &other) const
    {
        return same_bytes(ids.at, other.ids.at, ids.n * sizeof(int)) &&
               same_bytes(mix.at, other.mix.at, mix.n * sizeof(float));
    }
};

/* The largest of n that is not taken, the first of equals. */
static int largest(const double *v, const bool *taken, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || v[i] > v[best])) best = i;
    return best;
}

/* One row by the definition; infinities are not among its logits. */
static void check_choice(const float *logits, const float *bias, float scale, const int *ids,
                         const float *mix, int row)
{
    constexpr int size = N_EXPERT / N_GROUP;
    double p[N_EXPERT], s[N_EXPERT], group[N_GROUP], top = -INFINITY, sum = 0, chosen_sum = 0;
    bool taken[N_EXPERT] = {}, open[N_GROUP] = {};
    for (int e = 0; e < N_EXPERT; e++) top = fmax(top, (double)logits[e]);
    for (int e = 0; e < N_EXPERT; e++) sum += exp((double)logits[e] - top);
    for (int e = 0; e < N_EXPERT; e++) {
        double v = (double)logits[e];
        p[e] = SCORE == SCORE_SOFTMAX ? exp(v - top) / sum : SCORE == SCORE_SIGMOID ? 1 / (1 + exp(-v)) : v;
        s[e] = bias ? p[e] + (double)bias[e] : v; /* without a bias, logits have the order of scores */
        if (N_GROUP > 1) s[e] = p[e] + (bias ? (double)bias[e] : 0);
    }
    for (int g = 0; g < N_GROUP; g++) {
        bool used[N_EXPERT] = {};
        int first = largest(s + g * size, used, size);
        group[g] = s[g * size + first];
        used[first] = true;
        if (size > 1) group[g] += s[g * size + largest(s + g * size, used, size)];
    }
    for (int i = 0; i < N_GROUP_USED; i++) open[largest(group, open, N_GROUP)] = true;
    for (int e = 0; e < N_EXPERT; e++) taken[e] = !open[e / size];
    double want[N_USED];
    for (int i = 0; i < N_USED; i++) {
        int e = largest(s, taken, N_EXPERT);
        taken[e] = true;
        if (ids[i] != e) fail_msg("row %d slot %d: expert %d, expected %d", row, i, ids[i], e);
        want[i] = SCORE == SCORE_SOFTMAX_TOPK ? exp((double)logits[e] - (double)logits[ids[0]]) : p[e];
        chosen_sum += want[i];
    }
    for (int i = 0; i < N_USED; i++) {
        if (SCORE == SCORE_SOFTMAX_TOPK || RENORMALISE) want[i] /= chosen_sum;
        want[i] *= (double)scale;
        if (!(fabs((double)mix[i] - want[i]) <= 2e-6 * want[i]))
            fail_msg("row %d slot %d: weight %.9g, expected %.9g", row, i, (double)mix[i], want[i]);
    }
}

static choice routed(const array<float> &logits, const float *bias, float scale, mote_step_fault *fault)
{
    int rows = (int)logits.n / N_EXPERT;
    choice to(rows);
    launch((unsigned)rows, 1, 32, [&] { route(logits.at, bias, scale, to.ids.at, to.mix.at, 9, fault); });
    return to;
}

static void test_route(void **state)
{
    (void)state;
    enum { N = 24 };
    array<float> logits = normals(N * N_EXPERT), bias(N_EXPERT);
    for (int i = 0; i < N * N_EXPERT; i++) switch (i / N_EXPERT % 4) {
        case 0: break;
        case 1: logits[i] = 0.5f; break;                                /* all equal */
        case 2: logits[i] = rintf(logits[i] * 2) / 2; break;            /* many ties, zeros of both signs */
        default: logits[i] = i % 3 ? logits[i] : 20 * logits[i]; break; /* far apart */
        }
    for (int e = 0; e < N_EXPERT; e++) bias[e] = (float)(e * 7 % N_EXPERT) / 64;
    for (int is_biased = 0; is_biased < 2; is_biased++) {
        mote_step_fault fault = {};
        const float *by = is_biased ? bias.at : NULL;
        choice got = routed(logits, by, 1.5f, &fault);
        assert_int_equal(fault.code, MOTE_STEP_FINE);
        for (int i = 0; i < N; i++)
            if (!is_biased ||
                i % 4 != 3) /* there sums of score and bias in f32 may tie where float64 does not */
                check_choice(logits.at + i * N_EXPERT, by, 1.5f, got.ids.at + i * N_USED,
                             got.mix.at + i * N_USED, i);
        assert_true(got == routed(logits, by, 1.5f, &fault));
    }

    /* not a number: told; experts are there all the same */
    mote_step_fault fault = {};
    logits[5 * N_EXPERT + 3] = NAN;
    choice got = routed(logits, NULL, 1, &fault);
    assert_true(fault.code == MOTE_STEP_NAN && fault.row == 5 && fault.layer == 9);
    for (int i = 0; i < N_USED; i++) assert_in_range(got.ids[5 * N_USED + i], 0, N_EXPERT - 1);

    /* an infinite logit has all of the probability, or what another score gives the largest */
    logits[5 * N_EXPERT + 3] = INFINITY;
    fault = {};
    got = routed(logits, NULL, 1, &fault);
    assert_int_equal(fault.code, MOTE_STEP_FINE);
    assert_int_equal(got.ids[5 * N_USED], 3);
    for (int i = 1; i < N_USED; i++)
        assert_true(SCORE == SCORE_SIGMOID ? got.mix[5 * N_USED + i] < got.mix[5 * N_USED]
                                           : got.mix[5 * N_USED + i] == 0 && got.mix[5 * N_USED] == 1);
}

/* ---- norm, products and choice at once ---- */

struct router_result {
    choice to;
    array<float> logits, gate, out;
    act_rows act;
    bool operator==(const router_result &other) const
    {
        return to == other.to && act == other.act &&
               same_bytes(logits.at, other.logits.at, logits.n * sizeof(float)) &&
               same_bytes(gate.at, other.gate.at, gate.n * sizeof(float)) &&
               same_bytes(out.at, other.out.at, out.n * sizeof(float));
    }
};
struct router_input {
    weights w, gate;
    array<float> x, norm, bias, choice_bias;
};
enum { MOST_ROWS = 17 };
static array<int> ticket(MOST_ROWS); /* stays zero */

/* What is not asked for is not written: without a norm the row, as the backend has it; without a ticket the choice. */
static router_result run_router(router_input &in, int first_row, int rows, bool is_normed, bool has_gate,
                                bool has_bias, int rounding, bool chooses = true)
{
    router_result to = {choice(rows), array<float>((size_t)(rows * N_EXPERT), -77),
                        array<float>((size_t)rows, -77), array<float>((size_t)(rows * D_MODEL), -77),
                        act_rows(rows, D_MODEL, rounding)};
    mote_step_fault fault = {};
    Router job = {};
    job.x = in.x.at + (long)first_row * D_MODEL;
    job.norm = is_normed ? in.norm.at : NULL;
    job.out = is_normed ? to.out.at : NULL;
    job.weights = in.w.tiles.at;
    job.row_bytes = in.w.row_bytes;
    job.gate = has_gate ? in.gate.tiles.at : NULL;
    job.bias = has_bias ? in.bias.at : NULL;
    job.choice_bias = has_bias ? in.choice_bias.at : NULL;
    job.logits = to.logits.at, job.gate_logit = to.gate.at;
    job.ids = to.to.ids.at, job.mix = to.to.mix.at;
    job.ticket = chooses ? ticket.at : NULL, job.fault = &fault;
    job.act = to.act.view();
    job.eps = 1e-5f, job.scale = 2.5f, job.layer = 3;
    job.n_block = (N_EXPERT + has_gate + WARPS / 2 - 1) / (WARPS / 2);
    launch((unsigned)job.n_block + 1, (unsigned)rows, WARPS * 32, [&] { router(job); });
    assert_int_equal(fault.code, MOTE_STEP_FINE);
    for (int i = 0; i < MOST_ROWS; i++) assert_int_equal(ticket[i], 0);
    return to;
}

static void test_router(void **state)
{
    (void)state;
    router_input in = {make_weights(PLAIN_FORMAT, N_EXPERT, D_MODEL, 0),
                       make_weights(PLAIN_FORMAT, 1, D_MODEL, 0),
                       normals(MOST_ROWS * D_MODEL),
                       normals(D_MODEL),
                       normals(N_EXPERT),
                       normals(N_EXPERT)};
    for (int look = 0; look < 3; look++) {
        bool is_normed = look != 1, has_gate = look != 2, has_bias = look == 1;
        int rows = look ? 2 : MOST_ROWS, rounding = look == 2 ? MOTE_ROUND_MXFP4 : MOTE_ROUND_I16;
        router_result got = run_router(in, 0, rows, is_normed, has_gate, has_bias, rounding);

        /* the row as norm and quantising of their own leave it */
        array<float> row((size_t)(rows * D_MODEL), -77);
        act_rows act = quantised(in.x.at, rows, D_MODEL, is_normed ? in.norm.at : NULL, 1e-5f,
                                 is_normed ? row.at : NULL, rounding);
        assert_true(act == got.act && same_bytes(row.at, got.out.at, row.n * sizeof(float)));

        const float *x = is_normed ? row.at : in.x.at;
        for (int i = 0; i < rows; i++) {
            error_sum sum, gate;
            for (int e = 0; e < N_EXPERT; e++)
                sum.add((double)got.logits[i * N_EXPERT + e] - (has_bias ? (double)in.bias[e] : 0),
                        in.w.product(e, x + (long)i * D_MODEL));
            sum.check(1e-6, "logits", i);
            gate.add((double)got.gate[i], has_gate ? in.gate.product(0, x + (long)i * D_MODEL) : -77);
            gate.check(1e-5, "gate", i);
        }
        mote_step_fault fault = {};
        assert_true(got.to == routed(got.logits, has_bias ? in.choice_bias.at : NULL, 2.5f, &fault));
        assert_true(got == run_router(in, 0, rows, is_normed, has_gate, has_bias, rounding));
        /* somebody else chooses: everything but the choice */
        router_result open = run_router(in, 0, rows, is_normed, has_gate, has_bias, rounding, false);
        assert_true(open.to == choice(rows));
        open.to = got.to;
        assert_true(open == got);
        for (int i = 0; i < rows; i += 1 + rows / 2) {
            router_result one = run_router(in, i, 1, is_normed, has_gate, has_bias, rounding);
            assert_true(same_bytes(one.logits.at, got.logits.at + i * N_EXPERT, sizeof(float) * N_EXPERT));
            assert_true(same_bytes(one.to.ids.at, got.to.ids.at + i * N_USED, sizeof(int) * N_USED));
            assert_true(same_bytes(one.to.mix.at, got.to.mix.at + i * N_USED, sizeof(float) * N_USED));
            assert_true(one.gate[0] == got.gate[i]);
        }
    }
}

/* ---- plain numbers ---- */

/* Widths: whole pieces; no whole number of them, rows of x on any address; more than are asked for ahead. */
static void check_plain(int n_col, int n_row)
{
    enum { N = 5, GAP = 3 };
    int stride = n_row + GAP;
    weights w = make_weights(PLAIN_FORMAT, n_row, n_col, 0);
    array<float> x = normals(N * n_col), bias = normals(n_row), residual = normals(N * stride);
    array<float> first;                 /* of one split */
    for (int way = 0; way < 3; way++) { /* a row of W by four warps, by one, and many rows */
        array<float> y((size_t)(N * stride), -77), one((size_t)stride, -77);
        plain::PlainOut out = {
            w.tiles.at, w.row_bytes, way == 1 ? NULL : bias.at, y.at, way == 0 ? NULL : residual.at, stride,
            n_row,      n_col};
        int split = way ? 1 : 4;
        unsigned tiles = way ? (unsigned)(n_row + 3) / 4 : (unsigned)n_row;
        if (way == 2) launch((unsigned)(n_row + 63) / 64, 1, 256, [&] { plain::plain_gemm(out, x.at, N); });
        else launch(tiles, (N + 3) / 4, 128, [&] { plain::plain_linear(out, x.at, N, split); });
        for (int i = 0; i < N; i++) {
            error_sum sum;
            for (int r = 0; r < n_row; r++)
                sum.add((double)y[i * stride + r] - (way == 1 ? 0 : (double)bias[r]) -
                            (way == 0 ? 0 : (double)residual[i * stride + r]),
                        w.product(r, x.at + (long)i * n_col));
            sum.check(1e-5, "plain product", i);
            for (int g = 0; g < GAP; g++) assert_true(y[i * stride + n_row + g] == -77);
        }
        if (way == 2) continue;
        array<float> last(x.at + (long)(N - 1) * n_col, (size_t)n_col); /* alone, and elsewhere in memory */
        out.y = one.at;
        if (out.residual) out.residual += (N - 1) * stride;
        launch(tiles, 1, 128, [&] { plain::plain_linear(out, last.at, 1, split); });
        assert_true(same_bytes(one.at, y.at + (N - 1) * stride, (size_t)stride * sizeof(float)));
    }
}

/* More rows of both than a block takes, and not a whole number of blocks. */
static void check_many(int n_col)
{
    enum { ROWS = 37, N_ROW = 70 };
    weights w = make_weights(PLAIN_FORMAT, N_ROW, n_col, 0);
    array<float> x = normals(ROWS * n_col), y((size_t)(ROWS * N_ROW), -77);
    plain::PlainOut out = {w.tiles.at, w.row_bytes, NULL, y.at, NULL, N_ROW, N_ROW, n_col};
    launch(2, 2, 256, [&] { plain::plain_gemm(out, x.at, ROWS); });
    for (int i = 0; i < ROWS; i++) {
        error_sum sum;
        for (int r = 0; r < N_ROW; r++)
            sum.add((double)y[i * N_ROW + r], w.product(r, x.at + (long)i * n_col));
        sum.check(1e-6, "plain product of many rows", i);
    }
}

static void test_plain(void **state)
{
    (void)state;
    check_many(302);
    check_plain(256, 9);
    check_plain(33, 6);
    check_plain(2184, 5); /* seventeen pieces of a lane and a part */
}

static void test_plain_experts(void **state)
{
    (void)state;
    enum { EXPERTS = 4, ROWS = 5, USED = 2, PAIRS = ROWS * USED, COLS = 100, OUT = 7 };
    weights w[EXPERTS];
    u64 slot[EXPERTS * 3] = {};
    for (int e = 0; e < EXPERTS; e++) {
        w[e] = make_weights(PLAIN_FORMAT, OUT, COLS, 0);
        slot[e * 3 + 1] = (u64)(uintptr_t)w[e].tiles.at;
    }
    array<float> x = normals(PAIRS * COLS);
    array<int> ids(PAIRS);
    for (int p = 0; p < PAIRS; p++) ids[p] = p == 6 ? EXPERTS : p % 3;
    for (int of_rows = 0; of_rows < 2; of_rows++) {
        array<float> out(PAIRS * OUT, -77), again = out;
        mote_step_fault fault = {};
        for (unsigned blocks = 3; blocks <= PAIRS; blocks += PAIRS - 3)
            launch((OUT + 3) / 4, blocks, 128, [&] {
                plain::plain_project(slot, EXPERTS, 1, ids.at, x.at, PAIRS, USED, of_rows, w[0].row_bytes,
                                     COLS, blocks == 3 ? out.at : again.at, OUT, &fault);
            });
        assert_true(same_bytes(out.at, again.at, out.n * sizeof(float)));
        assert_true(fault.code == MOTE_STEP_EXPERT && fault.row == 6 && fault.value == EXPERTS);
        for (int p = 0; p < PAIRS; p++) {
            error_sum sum;
            for (int r = 0; r < OUT; r++)
                sum.add((double)out[p * OUT + r],
                        w[p == 6 ? 0 : ids[p]].product(r, x.at + (of_rows ? p / USED : p) * COLS));
            sum.check(1e-5, "plain expert", p);
        }
    }
}

static void test_plain_embed(void **state)
{
    (void)state;
    enum { VOCAB = 5, N = 3, COLS = 1035 };
    weights w = make_weights(PLAIN_FORMAT, VOCAB, COLS, 0);
    array<int> token(N);
    token[0] = 4, token[1] = VOCAB, token[2] = 0;
    array<float> y(N * COLS, -77);
    mote_step_fault fault = {};
    launch(N, 1, 128,
           [&] { plain::plain_embed(w.tiles.at, w.row_bytes, token.at, VOCAB, y.at, COLS, &fault); });
    assert_true(fault.code == MOTE_STEP_TOKEN && fault.row == 1 && fault.value == VOCAB);
    assert_true(same_bytes(y.at, w.row(4), COLS * sizeof(float)));
    assert_true(same_bytes(y.at + 2 * COLS, w.row(0), COLS * sizeof(float)));
    for (int c = 0; c < COLS; c++) assert_true(y[COLS + c] == -77);
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 11);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_route), cmocka_unit_test(test_router),
                                       cmocka_unit_test(test_plain), cmocka_unit_test(test_plain_experts),
                                       cmocka_unit_test(test_plain_embed)};
    return cmocka_run_group_tests(tests, NULL, end);
}
