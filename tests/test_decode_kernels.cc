/* test_decode_kernels.cc: the products of few rows and the embedding (linear.cu, rows.cu), whole, run on the host by
 * device_emulation.h: held to products of the decoded weights in float64, and bit for bit to themselves: a row alone and in
 * a batch, few blocks and many, normed by the way and ahead. The expert block: test_decode_moe.cc.
 */
#include "device_step.h"

#include "cuda/kernels/dot.cuh"

/* Columns: whole units shared unevenly by warps (768: 6 by 4), evenly (512, 256), and a last unit of which a quarter is
 * missing (352). */
#define KERNELS q4_k
#define W0 MOTE_CODE_C4, 0, 0, 32, MOTE_ITEM_U8, 1, 0, 0
#define COLS 768
#define WARPS 4
#include "decode_linear.h"

#define KERNELS iq2_xxs
#define W0 MOTE_CODE_IQ2XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -3, 0
#define COLS 512
#define WARPS 4
#include "decode_linear.h"

#define KERNELS tq1_0
#define W0 MOTE_CODE_T5, 1, 0, 256, MOTE_ITEM_F16, 0, 0, 0
#define COLS 256
#define WARPS 2
#include "decode_linear.h"

#define KERNELS q6_k
#define W0 MOTE_CODE_C6, 32, 0, 16, MOTE_ITEM_S8, 0, 0, 0
#define COLS 256
#define WARPS 2
#include "decode_linear.h"

#define KERNELS mxfp4
#define W0 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0
#define COLS 352
#define WARPS 2
#include "decode_linear.h"

/* As wide as blocks are: several tiles on their way at once. */
#define KERNELS wide
#define W0 MOTE_CODE_C4, 0, 0, 32, MOTE_ITEM_U8, 1, 0, 0
#define COLS 2048
#define WARPS 16
#include "decode_linear.h"

/* ---- products ---- */

enum { OUTS = 2, ROWS = 17, GAP = 3 };
static const int out_rows[OUTS] = {40, 21}, first_tile[OUTS] = {0, 3}, all_tiles = 5;

struct products {
    weights w[OUTS];
    array<float> bias, residual, x; /* bias of the first out, residual of the second [ROWS][21 + GAP] */
};

template <class K> static products make_products(enum mote_format format)
{
    return products{{make_weights(format, out_rows[0], K::n_col, K::bytes),
                     make_weights(format, out_rows[1], K::n_col, K::bytes)},
                    normals(out_rows[0]),
                    normals(ROWS * (out_rows[1] + GAP)),
                    normals(ROWS * K::n_col)};
}

/* What a launch wrote. */
struct written {
    array<float> y[OUTS]; /* [rows][out_rows + GAP] */
    const float *row(int out, int i) const { return y[out].at + (long)i * (out_rows[out] + GAP); }
};
static written unwritten(int rows)
{
    written y;
    for (int j = 0; j < OUTS; j++) y.y[j] = array<float>((size_t)(rows * (out_rows[j] + GAP)), -77);
    return y;
}
template <class K> static typename K::outs outs_of(products &p, written &y, int first_row, int n_block)
{
    typename K::outs outs = {};
    outs.n_out = OUTS, outs.n_tile = all_tiles, outs.n_block = n_block;
    for (int j = 0; j < OUTS; j++) {
        int stride = out_rows[j] + GAP;
        outs.out[j].data = p.w[j].tiles.at;
        outs.out[j].bias = j ? NULL : p.bias.at;
        outs.out[j].residual = j ? p.residual.at + first_row * stride : NULL;
        outs.out[j].y = y.y[j].at;
        outs.out[j].y_stride = stride;
        outs.out[j].n_row = out_rows[j];
        outs.out[j].first_tile = first_tile[j];
    }
    return outs;
}
template <class K> static act_rows rounded(products &p, int first_row, int rows, int rounding)
{
    return quantised(p.x.at + (long)first_row * K::n_col, rows, K::n_col, NULL, 0, NULL, rounding);
}
template <class K>
static written run(products &p, int first_row, int rows, int n_block, int rounding = MOTE_ROUND_I16)
{
    act_rows act = rounded<K>(p, first_row, rows, rounding);
    written y = unwritten(rows);
    typename K::outs outs = outs_of<K>(p, y, first_row, n_block);
    auto kernel = rows == 1 ? K::one : rows <= 4 ? K::four : K::sixteen;
    launch((unsigned)n_block, (unsigned)(rows + 15) / 16, K::warps * 32,
           [&] { kernel(outs, act.view(), rows); });
    return y;
}
static void check_same(const char *name, const written &a, int at, const written &b, int rows)
{
    for (int j = 0; j < OUTS; j++)
        for (int i = 0; i < rows; i++)
            if (!same_bytes(a.row(j, at + i), b.row(j, i), (size_t)(out_rows[j] + GAP) * sizeof(float)))
                fail_msg("%s: out %d row %d of %d: other bits", name, j, i, rows);
}

/* MXFP4: x is what its codes say, so that only sums are rounded. */
template <class K> static void check_products(enum mote_format format, int rounding = MOTE_ROUND_I16)
{
    const char *name = mote_format_traits(format)->name;
    products p = make_products<K>(format);
    double most = rounding == MOTE_ROUND_MXFP4 ? 1e-6 : 1e-4;
    act_rows codes = rounded<K>(p, 0, ROWS, rounding);
    array<float> read = p.x;
    for (long i = 0; rounding == MOTE_ROUND_MXFP4 && i < (long)read.n; i++)
        read[i] = (float)codes.value((int)(i / K::n_col), (int)(i % K::n_col));
    auto run_rows = [&](int first, int rows, int n_block) {
        return run<K>(p, first, rows, n_block, rounding);
    };
    written all = run_rows(0, ROWS, 2);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < OUTS; j++) {
            error_sum sum;
            const float *got = all.row(j, i), *residual = p.residual.at + (long)i * (out_rows[1] + GAP);
            for (int r = 0; r < out_rows[j]; r++)
                sum.add((double)got[r] - (double)(j ? residual[r] : p.bias[r]),
                        p.w[j].product(r, read.at + (long)i * K::n_col));
            sum.check(most, name, i);
            for (int g = 0; g < GAP; g++) assert_true(got[out_rows[j] + g] == -77);
        }
    check_same(name, all, 0, run_rows(0, ROWS, all_tiles), ROWS);
    check_same(name, all, 3, run_rows(3, 5, 3), 5);
    check_same(name, all, 6, run_rows(6, 2, 1), 2);
    check_same(name, all, 13, run_rows(13, 4, 2), 4);
    check_same(name, all, 0, run_rows(0, 1, 2), 1);
    check_same(name, all, 16, run_rows(16, 1, all_tiles), 1);
    check_same(name, all, 2, run_rows(2, 1, 1), 1);

    /* A row normed on its way is what it is normed ahead. */
    const float *x = p.x.at + (long)5 * K::n_col;
    array<float> norm = normals(K::n_col), want_row((size_t)K::n_col), row((size_t)K::n_col, -77);
    act_rows want_act = quantised(x, 1, K::n_col, norm.at, 1e-5f, want_row.at, rounding),
             act(1, K::n_col, rounding);
    written want = unwritten(1), got = unwritten(1);
    typename K::outs outs = outs_of<K>(p, want, 5, 2);
    launch(2, 1, K::warps * 32, [&] { K::one(outs, want_act.view(), 1); });
    outs = outs_of<K>(p, got, 5, 2);
    typename K::normed_row normed = {x, norm.at, row.at, 1e-5f};
    launch(3, 1, K::warps * 32, [&] { K::normed(outs, act.view(), normed); });
    check_same(name, want, 0, got, 1);
    assert_true(act == want_act && same_bytes(row.at, want_row.at, row.n * sizeof(float)));
}

static void test_products(void **state)
{
    (void)state;
    check_products<q4_k::kind>(MOTE_FORMAT_Q4_K);
    check_products<iq2_xxs::kind>(MOTE_FORMAT_IQ2_XXS);
    check_products<tq1_0::kind>(MOTE_FORMAT_TQ1_0);
    check_products<q6_k::kind>(MOTE_FORMAT_Q6_K);
    check_products<mxfp4::kind>(MOTE_FORMAT_MXFP4);
    check_products<mxfp4::kind>(MOTE_FORMAT_MXFP4, MOTE_ROUND_MXFP4);
    check_products<wide::kind>(MOTE_FORMAT_Q4_K);
}

/* ---- rows of the embedding ---- */

template <class K> static void check_embed(enum mote_format format)
{
    enum { VOCAB = 37, N = 6 };
    static const int token[N] = {0, 36, -1, 13, VOCAB, 24};
    const char *name = mote_format_traits(format)->name;
    weights w = make_weights(format, VOCAB, K::n_col, K::bytes);
    array<float> y((size_t)(N * K::n_col), -77);
    mote_step_fault fault = {};
    array<int> tokens(token, N);
    launch(N, 1, 128, [&] { K::rows(w.tiles.at, tokens.at, VOCAB, y.at, K::n_col, &fault); });
    assert_true(fault.code == MOTE_STEP_TOKEN && fault.row == 2 && fault.value == -1);
    for (int i = 0; i < N; i++) {
        bool is_token = token[i] >= 0 && token[i] < VOCAB;
        error_sum sum;
        for (int c = 0; c < K::n_col; c++) {
            if (is_token) sum.add((double)y[(long)i * K::n_col + c], (double)w.row(token[i])[c]);
            else assert_true(y[(long)i * K::n_col + c] == -77);
        }
        if (is_token) sum.check(1e-6, name, i);
    }
}

static void test_embed(void **state)
{
    (void)state;
    check_embed<q4_k::kind>(MOTE_FORMAT_Q4_K);
    check_embed<iq2_xxs::kind>(MOTE_FORMAT_IQ2_XXS);
    check_embed<tq1_0::kind>(MOTE_FORMAT_TQ1_0);
    check_embed<q6_k::kind>(MOTE_FORMAT_Q6_K);
    check_embed<mxfp4::kind>(MOTE_FORMAT_MXFP4);
}

/* ---- rows ---- */

static void test_input_rows(void **state)
{
    (void)state;
    enum { N = 5, COLS = 352, LIST = 3 };
    array<float> x = normals(N * COLS), norm = normals(COLS), out(N * COLS, -77), listed(LIST * COLS, -77);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < COLS; c++)
            x[i * COLS + c] = i == 2 && c < 64 ? 0 : ldexpf(x[i * COLS + c], 20 * i - 40);
    act_rows act = quantised(x.at, N, COLS, norm.at, 1e-30f, out.at);
    for (int i = 0; i < N; i++) {
        double square = 0;
        error_sum normed;
        for (int c = 0; c < COLS; c++) square += (double)x[i * COLS + c] * (double)x[i * COLS + c];
        for (int c = 0; c < COLS; c++)
            normed.add((double)out[i * COLS + c],
                       (double)x[i * COLS + c] / sqrt(square / COLS + (double)1e-30f) * (double)norm[c]);
        normed.check(1e-6, "norm", i);
        for (int b = 0; b < act.unit * 4; b++) {
            double most = 0;
            int sum[2] = {0, 0};
            for (int c = b * 32; c < b * 32 + 32; c++) {
                double v = c < COLS ? (double)out[i * COLS + c] : 0;
                most = fmax(most, fabs(v));
                long at = ((long)i * act.unit * 4 + b) * 64 + c % 32;
                sum[c % 32 / 16] += 256 * act.q[at] + act.q[at + 32];
                double scale = (double)*act.scale_of(i, c);
                assert_true(fabs(act.value(i, c) - v) <= 0.51 * scale);
            }
            assert_true(fabs((double)*act.scale_of(i, b * 32) * 32512 - most) <= 1e-6 * most);
            const float *got = act.scale_of(i, b * 32);
            assert_true(got[4] == (float)(sum[0] + sum[1]) && got[8] == (float)sum[0]);
        }
    }
    /* the same rows in MXFP4: the last unit ends in zeros */
    act_rows mxfp4 = quantised(x.at, N, COLS, norm.at, 1e-30f, out.at, MOTE_ROUND_MXFP4);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < mxfp4.unit * 128; c += 32) {
            float block[32] = {};
            for (int k = 0; k < 32 && c + k < COLS; k++) block[k] = out[i * COLS + c + k];
            assert_true(mxfp4.is_mxfp4(i, c, block));
        }
    /* rows by list, not quantised, not normed */
    RowList list = {{4, 0, 2}};
    mote_step_act none = {};
    launch(LIST, 1, row_warps(COLS) * 32,
           [&] { input_rows(x.at, list, 1, NULL, 0, COLS, 3, listed.at, none); });
    for (int i = 0; i < LIST; i++)
        assert_true(same_bytes(listed.at + i * COLS, x.at + list.row[i] * COLS, COLS * sizeof(float)));
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 5);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_input_rows), cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_embed)};
    return cmocka_run_group_tests(tests, NULL, end);
}
