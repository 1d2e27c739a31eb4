/* test_prefill_int8.cc: the prefill kernels of 8-bit activations, whole, run on the host by device_emulation.h (with wgmma; without:
 * test_prefill_int8_mma.cc): rows, a matrix with bias and residual, an expert block; held to float64 on the same rounded
 * activations, so that nothing but the order of sums may differ.
 */
#ifndef W0 /* gate and down are TQ2_0, up is TQ1_0 in base 3; three pairs of units */
#define EMULATE_WGMMA 1
#define W0 MOTE_CODE_C2, 1, 0, 256, MOTE_ITEM_F16, 0, 0, 0
#define W1 MOTE_CODE_T5, 1, 0, 256, MOTE_ITEM_F16, 0, 0, 0
#define FORMAT0 MOTE_FORMAT_TQ2_0
#define FORMAT1 MOTE_FORMAT_TQ1_0
#define COLS 768
#define X_GROUP 256
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#endif
#define FF COLS
constexpr int GROUP = X_GROUP; // of x

#include "device_step.h"

extern "C" {
#include "activation64.h"
}

#include "cuda/kernels/prefill_int8_gate_up.cu"
#include "cuda/kernels/prefill_int8_linear.cu"
#include "cuda/kernels/prefill_step.cu"
/* down reads h, whose groups are its own */
#undef X_GROUP
#define X_GROUP 128
namespace second
{
#undef PREFILL_INT8_LOOP_CUH
#include "cuda/kernels/prefill_int8_down.cu"
} // namespace second
#undef X_GROUP

constexpr double MOST = 2e-6;

/* Rows of bytes, as kernels have them. */
struct int8_rows {
    int n_col, group, stride, n_group;
    array<i8> q;
    array<float2> of;

    int8_rows(int n_row, int n_col, int group)
        : n_col(n_col), group(group), stride((n_col + 127) / 128 * 128), n_group(int8_groups(n_col, group)),
          q((size_t)(n_row * stride), 0x55), of((size_t)(n_row * n_group), float2{NAN, NAN})
    {
    }
    Int8Rows view() { return Int8Rows{q.at, of.at}; }
    int code(int row, int c) const { return q[(long)row * stride + int8_position(c)]; }
    float value(int row, int c) const { return of[(long)row * n_group + c / group].x * (float)code(row, c); }
    array<float> values(int row) const
    {
        array<float> x((size_t)n_col);
        for (int c = 0; c < n_col; c++) x[c] = value(row, c);
        return x;
    }
    /* x rounded to the nearest of 127 steps of a group's largest, zeros behind the last column, sums of codes. */
    void check(int row, const float *x) const
    {
        for (int first = 0; first < stride; first += group) {
            float most = 0;
            int sum = 0, end = first + group < stride ? first + group : stride;
            float2 both = of[(long)row * n_group + first / group];
            for (int c = first; c < end; c++) most = fmaxf(most, c < n_col ? fabsf(x[c]) : 0);
            assert_true(fabsf(both.x * 127 - most) <= 1e-6f * most);
            for (int c = first; c < end; c++) {
                float want = c < n_col ? x[c] : 0;
                sum += code(row, c);
                if (!(fabsf(both.x * (float)code(row, c) - want) <= 0.5001f * both.x))
                    fail_msg("row %d column %d: %d of %g, for %g", row, c, code(row, c), (double)both.x,
                             (double)want);
            }
            assert_true(both.y == both.x * (float)sum);
        }
    }
};

static int8_rows converted(const array<float> &x, int n_row, int n_col, int group)
{
    int8_rows rows(n_row, n_col, group);
    launch((unsigned)(n_row + 3) / 4, 1, 1024, [&] {
        prefill_convert(Convert{x.at, rows.q.at, NULL, rows.of.at, n_row, n_col, group});
    });
    return rows;
}

static void test_rows(void **state)
{
    (void)state;
    static const int shape[][2] = {{384, 128}, {640, 256}, {128, 128}, {256, 256}};
    for (auto &s : shape) {
        enum { ROWS = 7 };
        array<float> x = normals(ROWS * s[0]);
        for (int c = 0; c < s[0]; c++)
            x[s[0] + c] *= 1e-20f, x[2 * s[0] + c] = c < 128 ? 0 : 1e20f, x[3 * s[0] + c] *= 1e-33f;
        x[5 * s[0] + 3] = NAN, x[6 * s[0] + 100] = INFINITY;
        int8_rows rows = converted(x, ROWS, s[0], s[1]);
        for (int r = 0; r < 3; r++) rows.check(r, x.at + r * s[0]);
        for (int c = 0; c < s[0]; c++) assert_true(rows.value(3, c) == 0); /* too small for an inverse */
        rows.check(4, x.at + 4 * s[0]);
        for (int r = 5; r < 7; r++) { /* the group is no number, the others are untouched */
            float2 first = rows.of[(long)r * rows.n_group];
            assert_false(isfinite(first.x) && isfinite(first.y));
            for (int g = 1; g < rows.n_group; g++)
                assert_true(isfinite(rows.of[(long)r * rows.n_group + g].x));
        }
    }
}

template <int WIDTH> static void check_linear(void (*kernel)(Int8Linear), int plain)
{
    enum { OUTS = 2 };
    static const int n_row[OUTS] = {150, 40}, stride[OUTS] = {153, 40};
    const int n_token = plain ? WIDTH + 5 : WIDTH - 7;
    array<float> x = normals((long)n_token * COLS), bias = normals(n_row[0]), y[OUTS];
    for (long i = 0; plain && i < (long)x.n; i++) x[i] = ldexpf(x[i], (int)(i / COLS) * 3 - 90);
    int8_rows rows = converted(x, n_token, COLS, GROUP);
    weights m[OUTS] = {make_weights(FORMAT0, n_row[0], COLS, Tile<W0, COLS>::BYTES),
                       make_weights(FORMAT0, n_row[1], COLS, Tile<W0, COLS>::BYTES)};
    Int8Linear job = {rows.view(), {{}, OUTS, n_token}};
    for (int j = 0; j < OUTS; j++) {
        int has_more = !plain && j == 0;
        y[j] = array<float>((size_t)(n_token * stride[j]), 7.0f);
        job.to.out[j] = LinearOut{
            m[j].tiles.at, has_more ? bias.at : NULL, has_more ? y[j].at : NULL, y[j].at, stride[j], n_row[j],
            j * 2};
    }
    launch(3, (unsigned)(n_token + WIDTH - 1) / WIDTH, THREADS, [&] { kernel(job); });
    for (int i = 0; i < n_token; i++)
        for (int j = 0; j < OUTS; j++) {
            error_sum sum;
            array<float> own = rows.values(i);
            for (int r = 0; r < n_row[j]; r++)
                sum.add((double)y[j][(long)i * stride[j] + r] - (plain || j ? 0 : 7 + (double)bias[r]),
                        m[j].product(r, own.at));
            sum.check(plain ? MOST : 3 * MOST, "linear", i);
            for (int r = n_row[j]; r < stride[j]; r++) assert_true(y[j][(long)i * stride[j] + r] == 7);
        }
}

static void test_linear(void **state)
{
    (void)state;
    check_linear<32>(prefill_int8_linear_32, 1);
    check_linear<64>(prefill_int8_linear_64, 0);
}

enum { EXPERTS = 3, TOKENS = 75 };

static void test_moe(void **state)
{
    (void)state;
    constexpr struct mote_activation activation = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    weights expert[3][EXPERTS] = {{make_weights(FORMAT0, FF, COLS, 0), make_weights(FORMAT0, FF, COLS, 0),
                                   make_weights(FORMAT0, FF, COLS, 0)},
                                  {make_weights(FORMAT1, FF, COLS, 0), make_weights(FORMAT1, FF, COLS, 0),
                                   make_weights(FORMAT1, FF, COLS, 0)},
                                  {make_weights(FORMAT0, COLS, FF, 0), make_weights(FORMAT0, COLS, FF, 0),
                                   make_weights(FORMAT0, COLS, FF, 0)}};
    u64 slot[EXPERTS][3];
    for (int e = 0; e < EXPERTS; e++)
        for (int p = 0; p < 3; p++) slot[e][p] = (u64)(uintptr_t)expert[p][e].tiles.at;
    /* a full piece and one of a few of expert 0, none of 1, one of more than half of 2 */
    enum { PAIRS = 64 + 5 + 40, PIECES = 4 };
    int4 piece[PIECES] = {{0, 0, 64, 0}, {0, 64, 5, 0}, {2, 69, 40, 0}, {0, 0, 0, 0}};
    int n_piece = 3;
    array<int> row_of(PAIRS);
    for (int p = 0; p < PAIRS; p++) row_of[p] = (p * 7 + 3) % TOKENS;
    array<float> x = normals((long)TOKENS * COLS), flat((size_t)(PAIRS * COLS), NAN);
    int8_rows rows = converted(x, TOKENS, COLS, GROUP), h(PAIRS + 1, FF, 128);
    Pieces list = {slot[0], piece, &n_piece, row_of.at, PAIRS};
    launch((FF + 127) / 128, PIECES, THREADS, [&] {
        prefill_int8_gate_up(Int8GateUp{list, rows.view(), h.view(), FF, h.stride});
    });
    launch((COLS + 127) / 128, PIECES, THREADS, [&] {
        second::prefill_int8_down(
            second::Int8Down{{slot[0], piece, &n_piece, row_of.at, PAIRS}, h.view(), flat.at, COLS});
    });
    for (int p = 0; p < PAIRS; p += 3) {
        int e = p < 69 ? 0 : 2;
        array<float> own = rows.values(row_of[p]), want(FF);
        for (int f = 0; f < FF; f++)
            want[f] =
                (float)activation64(&activation, is_gated(ACTIVATION) ? expert[0][e].product(f, own.at) : 0,
                                    expert[1][e].product(f, own.at));
        for (int f = 0; f < FF; f++) {
            float step = h.of[(long)p * h.n_group + f / 128].x;
            if (!(fabsf(h.value(p, f) - want[f]) <= 0.501f * step + 1e-5f * fabsf(want[f])))
                fail_msg("pair %d column %d of h: %g, expected %g", p, f, (double)h.value(p, f),
                         (double)want[f]);
        }
        error_sum sum;
        array<float> hidden = h.values(p);
        for (int r = 0; r < COLS; r++)
            sum.add((double)flat[(long)p * COLS + r], expert[2][e].product(r, hidden.at));
        sum.check(MOST, "down", p);
    }
    for (int i = 0; i < h.stride; i++) assert_int_equal(h.q[(long)PAIRS * h.stride + i], 0x55); /* nobody's */
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 8);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_linear),
                                       cmocka_unit_test(test_moe)};
    return cmocka_run_group_tests(tests, NULL, end);
}
