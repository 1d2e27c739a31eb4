/* test_prefill_kernels.cc: the prefill kernels of the device (those without wgmma; with it: test_prefill_wgmma.cc), whole, run on the host by
 * device_emulation.h: a matrix with bias and residual, an expert block with experts of one and of several pieces and one
 * that nobody chose, every activation; held to products of the decoded weights in float64.
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

#include "activation64.h"
#include "base/error.h"
#include "base/float_bits.h"
#include "base/rng.h"
#include "cuda/pack.h"
#include "quant/decode.h"
#include "quant/encode.h"
#include "quant/mxfp4.h"
}

#include "device_emulation.h"

/* gate and down are Q4_0, up is Q5_1; 288 columns are no whole number of units, 288 rows no whole number of blocks. X_TYPE,
 * H_TYPE: what activations become (prefill_half.cuh; of MXFP4: test_prefill_mxfp4.cc) */
#ifndef W0
#define W0 MOTE_CODE_C4, 8, 0, 32, MOTE_ITEM_F16, 0, 0, 0
#define W1 MOTE_CODE_C5, 0, 0, 32, MOTE_ITEM_F16, 1, 0, 0
#define FORMAT0 MOTE_FORMAT_Q4_0
#define FORMAT1 MOTE_FORMAT_Q5_1
#define COLS 288
#define X_TYPE AS_F16
#define H_TYPE AS_F16
#endif
#define X_BF16 (X_TYPE != AS_F16)

#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "cuda/kernels/prefill_down.cu"
#include "cuda/kernels/prefill_gate_up.cu"
#include "cuda/kernels/prefill_linear.cu"
#include "cuda/kernels/prefill_step.cu"

/* the first half with the other activations */
#undef ACTIVATION
#undef LIMIT
#define KERNELS clamped
#define ACTIVATION SWIGLU_CLAMPED
#define LIMIT 0.75f
#include "prefill_activation.h"

#define KERNELS step
#define ACTIVATION SWIGLU_STEP
#define LIMIT 0.5f
#include "prefill_activation.h"

#define KERNELS oai
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#include "prefill_activation.h"

#define KERNELS relu2
#define ACTIVATION RELU2
#define LIMIT 0.0f
#define WITHOUT_GATE
#include "prefill_activation.h"

static struct mote_rng rng;

/* n of T, filled; the test links no C++ library. */
template <class T> struct array {
    T *at;
    size_t n;
    explicit array(size_t count = 0, T value = T()) : at((T *)malloc((count + 1) * sizeof(T))), n(count)
    {
        for (size_t i = 0; i < n; i++) at[i] = value;
    }
    array(const array &other) : array(other.n) { memcpy(at, other.at, n * sizeof(T)); }
    array &operator=(const array &other)
    {
        if (this == &other) return *this;
        free(at);
        n = other.n;
        at = (T *)malloc((n + 1) * sizeof(T));
        memcpy(at, other.at, n * sizeof(T));
        return *this;
    }
    ~array() { free(at); }
    T &operator[](size_t i) { return at[i]; }
    const T &operator[](size_t i) const { return at[i]; }
    T *data() { return at; }
    T *begin() { return at; }
    T *end() { return at + n; }
    size_t size() const { return n; }
};

static float normal()
{
    double pair[2];
    mote_rng_normal2(&rng, pair);
    return (float)pair[0];
}

/* ---- launches ---- */

template <class Job> struct launch {
    void (*kernel)(Job);
    Job job;
};
template <class Job> static void run(unsigned x, unsigned y, unsigned block, void (*kernel)(Job), Job job)
{
    launch<Job> what = {kernel, job};
    device_run(
        dim3{x, y, 1}, block, [](void *p) { ((launch<Job> *)p)->kernel(((launch<Job> *)p)->job); }, &what);
}

/* ---- weights ---- */

struct matrix {
    array<float> w; /* decoded [n_row][COLS] */
    array<uint8_t> tiles;
};

static matrix make_matrix(enum mote_format format, int n_row, size_t bytes)
{
    matrix m;
    array<float> plain((size_t)n_row * COLS);
    for (float &v : plain) v = 0.05f * normal();
    array<uint8_t> file(mote_format_row_bytes(format, COLS) * (size_t)n_row);
    assert_int_equal(mote_encode(format, plain.data(), n_row, COLS, NULL, file.data()), MOTE_OK);
    struct mote_matrix w = mote_matrix_view(format, file.data(), n_row, COLS);
    struct mote_tile_kind kind;
    assert_int_equal(mote_tile_kind_of(&w, 0, &kind), MOTE_OK);
    assert_int_equal(mote_tile_bytes(&kind, COLS), bytes);
    m.tiles = array<uint8_t>(mote_tile_matrix_bytes(&kind, n_row, COLS));
    mote_tile_pack(&kind, &w, 0, (n_row + 15) / 16, m.tiles.data());
    m.w = array<float>(plain.size());
    for (int r = 0; r < n_row; r++) mote_decode(&w, r, 0, COLS, m.w.data() + (size_t)r * COLS);
    return m;
}

static double product(const matrix &m, int row, const float *x)
{
    double sum = 0;
    for (int c = 0; c < COLS; c++) sum += (double)m.w[(size_t)row * COLS + (size_t)c] * (double)x[c];
    return sum;
}

struct error_sum {
    double error, size;
    void add(double got, double want)
    {
        error += (got - want) * (got - want);
        size += want * want;
    }
    void check(const char *what, double most) const
    {
        double relative = sqrt(error / size);
        print_message("%s: error %.2g\n", what, relative);
        if (!(relative < most)) fail_msg("%s: error %g, at most %g", what, relative, most);
    }
};

/* A row as products read it, but for halves' rounding. */
static array<float> as_read(int type, const float *x)
{
    array<float> row(COLS);
    for (int c = 0; c < COLS; c++) row[(size_t)c] = x[c];
    for (int c = 0; type == AS_MXFP4 && c < COLS; c += 32) {
        int8_t q[32];
        float unit = mote_mxfp4_block(x + c, q);
        for (int i = 0; i < 32; i++) row[(size_t)(c + i)] = unit * (float)q[i];
    }
    return row;
}

/* Of a product: as test_prefill_half.cc; MXFP4's numbers are exact in bf16, so only sums are rounded. Of what has an
 * activation and h between (there a number that is as near to two of MXFP4's may become the other one). */
constexpr double MOST = X_TYPE == AS_MXFP4 ? 1e-6 : X_BF16 ? 8e-3 : 1.2e-3,
                 MOST_EXPERT = H_TYPE == AS_MXFP4 ? 2e-3 : 2 * MOST;

/* ---- a matrix ---- */

/* Two matrices beside each other. `plain`: neither bias nor residual, rows of x of very different size; each must be right
 * by its own measure. */
template <int WIDTH> static void check_linear(void (*kernel)(Linear), int plain)
{
    enum { OUTS = 2 };
    static const int n_row[OUTS] = {150, 40}, stride[OUTS] = {153, 40};
    const int n_token = plain ? WIDTH + 5 : WIDTH - 7;
    matrix m[OUTS];
    array<float> x((size_t)n_token * COLS), scale((size_t)n_token), bias((size_t)n_row[0]), y[OUTS];
    array<u16> halves((size_t)n_token * KP + 8);
    for (size_t i = 0; i < x.size(); i++) x[i] = ldexpf(normal(), plain ? (int)(i / COLS) * 3 - 100 : 0);
    for (float &v : bias) v = normal();
    run((unsigned)(n_token + 3) / 4, 1, 1024, prefill_convert,
        Convert{x.data(), halves.data(), scale.data(), NULL, n_token, COLS, X_TYPE});
    Linear job = {halves.data(), scale.data(), {{}, OUTS, n_token}};
    for (int j = 0; j < OUTS; j++) {
        m[j] = make_matrix(FORMAT0, n_row[j], Tile<W0, COLS>::BYTES);
        y[j] = array<float>((size_t)(n_token * stride[j]), 7.0f);
        job.to.out[j] = LinearOut{m[j].tiles.data(),
                                  plain || j ? NULL : bias.data(),
                                  plain || j ? NULL : y[j].data(),
                                  y[j].data(),
                                  stride[j],
                                  n_row[j],
                                  j};
    }
    run(OUTS, (unsigned)(n_token + WIDTH - 1) / WIDTH, threads(1), kernel, job);
    for (int i = 0; i < n_token; i++) {
        array<float> read = as_read(X_TYPE, &x[(size_t)i * COLS]);
        for (int j = 0; j < OUTS; j++) {
            error_sum sum = {};
            const float *got = &y[j][(size_t)(i * stride[j])];
            for (int r = 0; r < n_row[j]; r++)
                sum.add((double)got[r] - (plain || j ? 0 : 7 + (double)bias[(size_t)r]),
                        product(m[j], r, read.data()));
            if (!(sqrt(sum.error / sum.size) < MOST))
                fail_msg("%d tokens: token %d: error %g", WIDTH, i, sqrt(sum.error / sum.size));
            for (int r = n_row[j]; r < stride[j]; r++) assert_true(got[r] == 7);
        }
    }
}

static void test_linear(void **state)
{
    (void)state;
    check_linear<32>(prefill_linear_32, 1);
    if (getenv("MOTE_TEST_SHORT")) return; // the same text at other sizes
    check_linear<64>(prefill_linear_64, 0);
#ifdef EMULATE_WGMMA
    check_linear<128>(prefill_linear_128, 0);
#endif
}

/* A NaN in a row of x is in all of its results and in no other row's; an infinity that is rounded to MXFP4 too. */
static void test_no_number(void **state)
{
    (void)state;
    enum { TOKENS = 9, ROWS = 40, BAD = 4 };
    for (int is_infinite = 0; is_infinite <= (X_TYPE == AS_MXFP4); is_infinite++) {
        matrix m = make_matrix(FORMAT0, ROWS, Tile<W0, COLS>::BYTES);
        array<float> x((size_t)TOKENS * COLS), scale(TOKENS), y((size_t)TOKENS * ROWS);
        array<u16> halves((size_t)TOKENS * KP + 8);
        for (float &v : x) v = normal();
        x[BAD * COLS + 70] = is_infinite ? INFINITY : NAN;
        run((TOKENS + 3) / 4, 1, 1024, prefill_convert,
            Convert{x.data(), halves.data(), scale.data(), NULL, TOKENS, COLS, X_TYPE});
        Linear job = {halves.data(), scale.data(), {{}, 1, TOKENS}};
        job.to.out[0] = LinearOut{m.tiles.data(), NULL, NULL, y.data(), ROWS, ROWS, 0};
        run(1, 1, threads(1), prefill_linear_32, job);
        for (int i = 0; i < TOKENS * ROWS; i++)
            assert_int_equal(y[(size_t)i] != y[(size_t)i], i / ROWS == BAD);
    }
}

/* ---- an expert block ---- */

enum { EXPERTS = 6, USED = 3, FF = COLS };
#ifdef EMULATE_WGMMA
enum { TOKENS = 140, WIDTH = 128, PAIR_THREADS = threads(1) };
#define GATE_UP prefill_gate_up_128
#define DOWN prefill_down_128
#else
enum { TOKENS = 70, WIDTH = 64, PAIR_THREADS = threads(2) };
#define GATE_UP prefill_gate_up_64
#define DOWN prefill_down_64
#endif

struct begin_job {
    Convert convert;
    Sort sort;
};

static void test_moe(void **state)
{
    (void)state;
    matrix expert[3][EXPERTS], one[3];
    u64 slot[EXPERTS][3], shared_slot[1][3];
    for (int p = 0; p < 3; p++)
        for (int e = 0; e <= EXPERTS; e++) {
            int is_up = p == 1;
            (e < EXPERTS ? expert[p][e] : one[p]) = make_matrix(
                is_up ? FORMAT1 : FORMAT0, FF, is_up ? Tile<W1, COLS>::BYTES : Tile<W0, COLS>::BYTES);
        }
    for (int p = 0; p < 3; p++) {
        for (int e = 0; e < EXPERTS; e++) slot[e][p] = (u64)(uintptr_t)expert[p][e].tiles.data();
        shared_slot[0][p] = (u64)(uintptr_t)one[p].tiles.data();
    }
    array<float> x((size_t)TOKENS * COLS), scale(TOKENS), weights((size_t)TOKENS * USED), gate(TOKENS),
        y((size_t)TOKENS * COLS);
    array<int> ids((size_t)TOKENS * USED), row_of(ids.size()), place(ids.size());
    for (float &v : x) v = 3 * normal();
    for (float &v : weights) v = fabsf(normal());
    for (float &v : gate) v = normal();
    for (float &v : y) v = normal();
    array<float> residual = y;
    for (int i = 0, n_zero = 0; i < TOKENS; i++) /* expert 2: everybody's; 4: nobody's; 0: a full piece; repeats in a row */
        for (int s = 0; s < USED; s++) {
            bool is_zero = s && i != 9 && (i * 7 + s) % 11 < 6 && n_zero < WIDTH;
            n_zero += is_zero;
            ids[(size_t)(i * USED + s)] = s == 0 ? 2 : i == 9 ? 5 : is_zero ? 0 : i % 2 ? 1 : 3;
        }
    int n_pair = (int)ids.size(), n_piece = -1;
    array<int4> piece((size_t)(n_pair / WIDTH + EXPERTS));
    array<u16> halves((size_t)TOKENS * KP + 8), h((size_t)n_pair * KP + 8, 0xFFFF);
    array<float> flat((size_t)n_pair * COLS, NAN), shared_flat((size_t)TOKENS * COLS, NAN);

    mote_step_fault fault = {};
    begin_job begin = {Convert{x.data(), halves.data(), scale.data(), NULL, TOKENS, COLS, X_TYPE},
                       Sort{ids.data(), row_of.data(), place.data(), piece.data(), &n_piece, NULL, NULL, NULL, NULL, NULL, &fault,
                            n_pair, USED, EXPERTS, WIDTH, 5, 3}};
    run(
        3 + (TOKENS + 3) / 4, 1, 1024, +[](begin_job job) { prefill_begin(job.convert, job.sort); }, begin);

    /* the list: experts rising, pairs of one rising, pieces without gaps */
    array<int> pair_at((size_t)n_pair, -1);
    for (int p = 0; p < n_pair; p++) {
        assert_int_equal(pair_at[(size_t)place[(size_t)p]], -1);
        pair_at[(size_t)place[(size_t)p]] = p;
        assert_int_equal(row_of[(size_t)place[(size_t)p]], p / USED);
    }
    for (int i = 1; i < n_pair; i++) {
        int a = pair_at[(size_t)i - 1], b = pair_at[(size_t)i];
        assert_true(ids[(size_t)a] < ids[(size_t)b] || (ids[(size_t)a] == ids[(size_t)b] && a < b));
    }
    int next = 0, has_full = 0, has_more = 0, has_few = 0;
    for (int p = 0; p < n_piece; p++) {
        int4 at = piece[(size_t)p];
        assert_int_equal(at.y, next);
        assert_in_range(at.z, 1, WIDTH);
        for (int i = 0; i < at.z; i++) assert_int_equal(ids[(size_t)pair_at[(size_t)(at.y + i)]], at.x);
        bool goes_on = p > 0 && piece[(size_t)p - 1].x == at.x; /* after as many pairs, or the last with fewer */
        if (goes_on) assert_true(piece[(size_t)p - 1].z >= at.z && piece[(size_t)p - 1].z + at.z > WIDTH);
        has_full |= at.z == WIDTH, has_more |= goes_on, has_few |= at.z <= WIDTH / 2;
        next += at.z;
    }
    assert_int_equal(next, n_pair);
    assert_true(has_full && has_more && has_few);

    unsigned most = (unsigned)piece.size();
    Pieces list = {slot[0], piece.data(), &n_piece, row_of.data(), n_pair};
    run((FF + 127) / 128, most, PAIR_THREADS, GATE_UP,
        GateUp{list, halves.data(), scale.data(), h.data(), FF, KP});
    run((COLS + 255) / 256, most, PAIR_THREADS, DOWN, Down{list, h.data(), flat.data(), COLS});
    Pieces all = {shared_slot[0], NULL, NULL, NULL, TOKENS};
    unsigned pieces = (TOKENS + WIDTH - 1) / WIDTH;
    run((FF + 127) / 128, pieces, PAIR_THREADS, GATE_UP,
        GateUp{all, halves.data(), scale.data(), h.data(), FF, KP});
    run((COLS + 255) / 256, pieces, PAIR_THREADS, DOWN, Down{all, h.data(), shared_flat.data(), COLS});
    run((COLS + 1023) / 1024, TOKENS, 256, prefill_sum,
        Sum{flat.data(), place.data(), weights.data(), shared_flat.data(), gate.data(), y.data(), y.data(),
            USED, COLS});

    error_sum sum = {};
    for (int i = 0; i < TOKENS; i += 5) {
        array<double> want(COLS);
        array<float> read = as_read(X_TYPE, &x[(size_t)i * COLS]);
        for (int s = 0; s <= USED; s++) {
            int e = s < USED ? ids[(size_t)(i * USED + s)] : 0;
            double weight =
                s < USED ? (double)weights[(size_t)(i * USED + s)] : 1 / (1 + exp(-(double)gate[(size_t)i]));
            array<float> hidden(FF);
            for (int f = 0; f < FF; f++) {
                double g = product((s < USED ? expert[0][e] : one[0]), f, read.data()),
                       u = product((s < USED ? expert[1][e] : one[1]), f, read.data());
                hidden[(size_t)f] = (float)(g / (1 + exp(-g)) * u);
            }
            hidden = as_read(H_TYPE, hidden.data());
            for (int r = 0; r < COLS; r++)
                want[(size_t)r] += weight * product((s < USED ? expert[2][e] : one[2]), r, hidden.data());
        }
        for (int r = 0; r < COLS; r++)
            sum.add((double)y[(size_t)(i * COLS + r)] - (double)residual[(size_t)(i * COLS + r)],
                    want[(size_t)r]);
    }
    sum.check("expert block", MOST_EXPERT);
}

/* ---- activations ---- */

/* h of every row by a shared expert, as the half-precision numbers that down reads: in their order, zeros behind the last
 * column, nothing behind the last row. */
template <class K> static void check_hidden(const matrix &gate, const matrix &up)
{
    const struct mote_activation &a = K::activation;
    int has_gate = is_gated64(&a);
    u64 slot[3] = {has_gate ? (u64)(uintptr_t)gate.tiles.at : 0, (u64)(uintptr_t)up.tiles.at, 0};
    array<float> x((size_t)TOKENS * COLS), scale(TOKENS);
    array<u16> halves((size_t)TOKENS * KP + 8), h((size_t)(TOKENS + 1) * KP, 0x5555);
    for (float &v : x) v = normal();
    run((TOKENS + 3) / 4, 1, 1024, prefill_convert,
        Convert{x.data(), halves.data(), scale.data(), NULL, TOKENS, COLS, X_TYPE});
    typename K::job job = {{slot, NULL, NULL, NULL, TOKENS}, halves.data(), scale.data(), h.data(), FF, KP};
    unsigned rows = has_gate ? 128 : 256;
    run((KP + rows - 1) / rows, (TOKENS + WIDTH - 1) / WIDTH, PAIR_THREADS, +K::kernel, job);
    error_sum sum = {};
    int at_limit = 0;
    for (int i = 0; i < TOKENS; i++) {
        array<float> read = as_read(X_TYPE, &x[(size_t)i * COLS]), want(FF);
        for (int c = 0; c < FF; c++) {
            double g = has_gate ? product(gate, c, read.data()) : 0, u = product(up, c, read.data());
            at_limit += fabs(u) > (double)a.limit;
            want[(size_t)c] = (float)activation64(&a, g, u);
        }
        want = as_read(H_TYPE, want.data());
        for (int p = 0; p < KP; p++) {
            int c = p / 32 * 32 + prefill_column(p % 32);
            u16 half = h[(size_t)(i * KP + p)];
            if (c >= FF) {
                assert_int_equal(half, 0);
                continue;
            }
            sum.add(H_TYPE == AS_F16 ? (double)mote_f16_f32(half) / (double)HIDDEN_DOWN
                                     : (double)mote_bf16_f32(half),
                    (double)want[(size_t)c]);
        }
    }
    for (int p = 0; p < KP; p++) assert_int_equal(h[(size_t)(TOKENS * KP + p)], 0x5555);
    assert_true(!has_gate || (at_limit > TOKENS * FF / 10 && at_limit < TOKENS * FF * 9 / 10));
    sum.check(mote_activation_traits(a.kind)->name, MOST_EXPERT);
}

static void test_activations(void **state)
{
    (void)state;
    matrix gate = make_matrix(FORMAT0, FF, Tile<W0, COLS>::BYTES),
           up = make_matrix(FORMAT1, FF, Tile<W1, COLS>::BYTES);
    check_hidden<relu2::kind>(gate, up);
    check_hidden<step::kind>(gate, up);
    if (getenv("MOTE_TEST_SHORT")) return;
    check_hidden<clamped::kind>(gate, up);
    check_hidden<oai::kind>(gate, up);
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 3);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_linear), cmocka_unit_test(test_no_number),
                                       cmocka_unit_test(test_moe),
                                       cmocka_unit_test(test_activations)};
    return cmocka_run_group_tests(tests, NULL, end);
}
