/* test_mx_kernels.cc: the MXFP4 kernels of sm_90 for few tokens and what is around all of them (mx_small.cu, mx_step.cu), whole, run on the
 * host by device_mx_wgmma.h: rows quantised as quant/mxfp4.h says, rows of two planes, an expert block with pieces of every size, scales of every
 * spread, what the large kernels leave; held to decoded weights in float64 on the operands that the kernels themselves read.
 */
#include <initializer_list>

#include "device_mx_wgmma.h"

extern "C" {
#include "activation64.h"
}

#include "device_mx.h"

#include "cuda/kernels/mx_ring.cuh"
#include "cuda/kernels/mx_wgmma.cuh"
#include "cuda/kernels/tile.cuh"

#define W0 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0
#define MX_SHARED DEVICE_SHARED

/* columns end inside a stage, rows inside a block, hidden columns inside a unit */
#define KERNELS swiglu
#define PLANES 1
#define D_MODEL 640
#define N_FF 160
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#include "mx_small_kernels.h"

#define KERNELS oai
#define PLANES 1
#define D_MODEL 512
#define N_FF 1056
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#include "mx_small_kernels.h"

/* activations of two planes */
#define KERNELS planes
#define PLANES 2
#define D_MODEL 640
#define N_FF 160
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#include "mx_small_kernels.h"

/* no gate; half of the last block's tiles are not there */
#define KERNELS relu2
#define PLANES 1
#define D_MODEL 288
#define N_FF 96
#define ACTIVATION RELU2
#define LIMIT 0.0f
#include "mx_small_kernels.h"

enum { EXPERTS = 7, USED = 2, TOKENS = 17, N_PAIR = TOKENS * USED };

/* ---- rows ---- */

/* Small: bit for bit the rule's, zeros behind the last column. Large: the same numbers, but for what a block loses that lies far below the
 * largest of the units that share a scale. Small ones that get a scale in common become those. */
static void check_rows(bool is_whole)
{
    enum { ROWS = 9 };
    for (int n_col : {32, 160, 640})
        for (int spread : {0, 13, 30})
            for (int is_bf16 : {0, 1}) {
                array<float> x = draw_rows(ROWS, n_col, spread);
                array<u16> half(x.n);
                for (long i = 0; i < (long)x.n; i++)
                    if (is_bf16) half[i] = mote_f32_bf16(x[i]), x[i] = mote_bf16_f32(half[i]);
                mx_rows small = mx_rows::small(ROWS, n_col), large(ROWS, n_col, is_whole ? small.n_unit : MX_SPAN);
                const int share = large.share;
                int n_lossy = 0;
                quantise(is_bf16 ? (void *)half.at : x.at, is_bf16, ROWS, n_col, &small, &large);
                for (int r = 0; r < ROWS; r++)
                    for (int b = 0, top = 0; b < small.n_unit * 4; b++) {
                        float zeros[32] = {}, *from = b * 32 < n_col ? x.at + (long)r * n_col + b * 32 : zeros, most = 0;
                        i8 q[32];
                        float unit = mote_mxfp4_block(from, q); /* of twice the e2m1 values */
                        assert_true(small.scale[(long)r * small.n_unit * 4 + b] == 2 * unit);
                        for (int i = 0; i < 32; i++) assert_true(mote_e4m3_f32(small.code(r, b * 32 + i, 0)) == (float)q[i] / 2);
                        for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(from[i]));
                        for (int k = b; b % (4 * share) == 0 && k < b + 4 * share; k++) {
                            float end = 0;
                            for (int i = 0; i < 32 && k * 32 < n_col; i++) end = fmaxf(end, fabsf(x[(long)r * n_col + k * 32 + i]));
                            int e = mote_mxfp4_exponent(end);
                            top = k == b || e > top ? e : top;
                        }
                        bool is_lossy = most > 0 && top - mote_mxfp4_exponent(most) > 14;
                        double lost = is_lossy ? ldexp((double)large.scale[(long)r * large.n_scale() + b / (4 * share)], -10) : 0;
                        n_lossy += is_lossy;
                        for (int i = 0; i < 32; i++)
                            assert_true(fabs(large.value(r, b * 32 + i) - (double)unit * q[i]) <= lost);
                    }
                assert_true(spread == 30 ? n_lossy || n_col == 32 : !n_lossy);
                if (!is_whole) continue;
                array<float> scale(ROWS, NAN);
                MxShare job = {small.view(), scale.at, ROWS, n_col};
                launch(small.blocks(true), 1, BEGIN_BLOCK, [&] { mx_share(job); });
                assert_true(same_bytes(small.q.at, large.q.at, large.q.n) && same_bytes(scale.at, large.scale.at, ROWS * sizeof(float)));
            }
}
static void test_rows(void **)
{
    check_rows(false);
    check_rows(true);
}

/* Two planes of rows against the rows, bf16 numbers to the bit down to 2^-9 of the largest that they share a scale with. */
static void check_planes(const float *x, int n_row, int n_col, bool is_bf16, int share)
{
    mx_rows planes(n_row, n_col, share, 2); // share 0: blocks
    array<u16> half((size_t)(n_row * n_col));
    for (long i = 0; i < (long)half.n; i++) half[i] = mote_f32_bf16(x[i]);
    quantise(is_bf16 ? (const void *)half.at : x, is_bf16, n_row, n_col, NULL, &planes);
    for (int r = 0; r < n_row; r++)
        for (int c = 0; c < planes.n_unit * 128; c++) {
            const float *row = x + (long)r * n_col;
            double v = c < n_col ? (double)row[c] : 0, top = planes_top(row, n_col, c, planes.columns()), got = planes.value(r, c),
                   bound = planes_bound(v, top);
            bool is_exact = is_bf16 && top >= 0x1p-119 && fabs(v) >= ldexp(1, ilogb(top) - 9);
            if (!(fabs(got - v) <= (is_exact ? 0 : bound)))
                fail_msg("row %d, column %d: %a, expected %a, largest %a", r, c, got, v, top);
        }
}

/* Units whose largest is anything, with numbers of every size below it, zeros, and what lies in the middle between two of either
 * plane. */
static array<float> draw_units(int n_row, int n_col)
{
    static const float largest[] = {0, 0x1p-149f, 0x1p-130f, 0x1p-126f, 0x1.fffffep-120f, 0x1p-119f, 0x1.8p-100f, 1, 0x1.fffffep0f,
                                    0x1.fcp20f, 0x1p127f, 0x1.fffffep127f};
    array<float> x((size_t)(n_row * n_col));
    for (int r = 0; r < n_row; r++)
        for (int c = 0; c < n_col; c++) {
            float top = largest[(r * 5 + c / 32) % (int)(sizeof largest / sizeof *largest)];
            int below = (int)mote_rng_below(&rng, 24), bits = (int)mote_rng_below(&rng, 3) * 5 + 4; /* 4, 9, 14 bits behind the first */
            double size = 1 + (double)mote_rng_below(&rng, (u64)1 << bits) * ldexp(1, -bits);
            double v = top > 0 && mote_rng_below(&rng, 20) ? ldexp(size, ilogb((double)top) - 1 - below) : 0;
            if (c % 32 == 13) v = (double)top;
            x[(long)r * n_col + c] = (float)(c & 1 ? -v : v);
        }
    return x;
}

static void test_planes(void **)
{
    enum { ROWS = 12 };
    for (int n_col : {32, 160, 640}) {
        for (int spread : {0, 13, 60})
            for (bool is_bf16 : {false, true}) {
                array<float> x = draw_rows(ROWS, n_col, spread);
                for (long i = 0; is_bf16 && i < (long)x.n; i++) x[i] = mote_bf16_f32(mote_f32_bf16(x[i]));
                for (int share : {0, (int)MX_PLANES_SPAN}) check_planes(x.at, ROWS, n_col, is_bf16, share);
            }
        for (int share : {0, (int)MX_PLANES_SPAN}) check_planes(draw_units(ROWS, n_col).at, ROWS, n_col, false, share);
    }
}

/* A NaN or an infinity: its block's scale, its row's, no other's. */
static void test_no_number(void **)
{
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        array<float> x = draw_rows(2, 256, 3);
        x[256 + 70] = bad;
        mx_rows small = mx_rows::small(2, 256), large(2, 256, 2), planes = mx_rows::small(2, 256, 2);
        quantise(x.at, 0, 2, 256, &small, &large);
        quantise(x.at, 0, 2, 256, NULL, &planes);
        for (long b = 0; b < 16; b++) {
            assert_int_equal(small.scale[b] != small.scale[b], b == 8 + 2);
            assert_int_equal(planes.scale[b] != planes.scale[b], b == 8 + 2);
        }
        for (long row = 0; row < 2; row++) assert_int_equal(large.scale[row] != large.scale[row], row == 1);
    }
}

/* ---- an expert block ---- */

/* Experts as the backend places them: gate, up and down of one after the other, and behind the last 16 tiles of down. */
template <class K> struct experts {
    array<float> w[EXPERTS][3]; /* decoded */
    array<u8> memory;
    u64 slot[EXPERTS * 3];

    experts()
    {
        size_t at = 0, offset[3] = {};
        for (int p = K::first; p < 3; p++) {
            offset[p] = at;
            at += tile_bytes(p) * (size_t)((n_row(p) + 15) / 16);
        }
        memory = array<u8>(EXPERTS * at + 16 * tile_bytes(2), 0xA5);
        for (int e = 0; e < EXPERTS; e++)
            for (int p = K::first; p < 3; p++) {
                u8 *to = memory.at + (size_t)e * at + offset[p];
                slot[e * 3 + p] = (u64)(uintptr_t)to;
                draw(p, w[e][p], to);
            }
    }
    static int n_row(int p) { return p == 2 ? K::d_model : K::n_ff; }
    static int n_col(int p) { return p == 2 ? K::n_ff : K::d_model; }
    static size_t tile_bytes(int p) { return p == 2 ? K::bytes_down : K::bytes_up; }
    static void draw(int p, array<float> &decoded, u8 *to)
    {
        array<u8> file((size_t)(n_row(p) * n_col(p) / 32 * 17));
        for (long b = 0; b < (long)file.n / 17; b++) {
            bool is_zero = mote_rng_below(&rng, 20) == 0; /* under any scale */
            for (int i = 1; i < 17; i++) file[b * 17 + i] = (u8)(is_zero ? 0 : mote_rng_u64(&rng));
            file[b * 17] = (u8)(is_zero ? mote_rng_below(&rng, 255) : 121 - mote_rng_below(&rng, b % 3 ? 3 : 40));
        }
        struct mote_matrix m = mote_matrix_view(MOTE_FORMAT_MXFP4, file.at, n_row(p), n_col(p));
        struct mote_tile_kind kind;
        assert_int_equal(mote_tile_kind_of(&m, 0, &kind), MOTE_OK);
        assert_int_equal(mote_tile_bytes(&kind, n_col(p)), tile_bytes(p));
        mote_tile_pack(&kind, &m, 0, (n_row(p) + 15) / 16, to);
        decoded = array<float>((size_t)(n_row(p) * n_col(p)));
        for (int r = 0; r < n_row(p); r++) mote_decode(&m, r, 0, n_col(p), decoded.at + (long)r * n_col(p));
    }
    double product(int e, int p, int row, const array<double> &x) const
    {
        double sum = 0;
        for (int c = 0; c < n_col(p); c++) sum += (double)w[e][p][(long)row * n_col(p) + c] * x[c];
        return sum;
    }
};

/* What a block makes of its rows. */
struct result {
    array<int> row_of, place;
    array<int4> piece;
    int n_piece;
    mx_rows x, h;
    array<float> flat; /* bf16 of the rest */
};

enum { LARGE_WIDTH = 64 };

/* Results are added to y, of which it is known where it begins, instead of being left in flat. */
struct added {
    array<float> weights, residual, y;
};

/* is_rest: pieces as the narrow kernels have them, of which the small one takes those with `wide`. */
template <class K>
static result run_block(const experts<K> &set, const array<float> &x, const array<int> &ids, int is_rest, unsigned blocks, added *to_y = NULL)
{
    const int width = is_rest ? LARGE_WIDTH : K::width;
    static const int wide[EXPERTS] = {1, 0, 1, 0, 0, 1, 0};
    result to = {array<int>(N_PAIR), array<int>(N_PAIR), array<int4>(N_PAIR / K::width + EXPERTS), -1,
                 mx_rows::small(TOKENS, K::d_model, K::planes), mx_rows::small(N_PAIR, K::n_ff, K::planes), array<float>((size_t)(N_PAIR * K::d_model), -77)};
    mote_step_fault fault = {};
    int count[2] = {77, 77}, n_rest = 77;
    array<int> rest(to.piece.n);
    array<float> weight_of(N_PAIR, NAN);
    float *y = to_y ? to_y->y.at : NULL;
    const MxRows none = {};
    MxQuantise quantise = {x.at, K::planes == 1 ? to.x.view() : none, {}, K::planes == 2 ? to.x.view() : none, NULL,
                           TOKENS, K::d_model, 0, 0, count, y, to_y && to_y->residual.n ? to_y->residual.at : NULL};
    Sort sort = {ids.at, to.row_of.at, to.place.at, to.piece.at, &to.n_piece, wide, is_rest ? rest.at : NULL, &n_rest,
                 to_y ? to_y->weights.at : NULL, y ? weight_of.at : NULL, &fault, N_PAIR, USED, EXPERTS, width, 32, 1};
    launch(1 + to.x.blocks(), 1, BEGIN_BLOCK, [&] { mx_begin(quantise, sort); });
    assert_true(count[0] == 0 && count[1] == 0);
    MxList list = {{set.slot, to.piece.at, &to.n_piece, to.row_of.at, N_PAIR}, is_rest ? rest.at : NULL, &n_rest, width / K::width, 1};
    typename K::job job = {list, to.x.view(), to.h.view(), to.flat.at, is_rest, y, y ? weight_of.at : NULL, &count[0], &count[1]};
    launch(blocks, 1, K::block, [&] { K::kernel(job); });
    return to;
}

/* h of a pair: of every block the rule's scale and the nearest of its numbers, or two planes', as near as products tell. */
template <class K> static void check_hidden(const mx_rows &h, int at, const array<double> &want)
{
    for (int c = 0; c < h.n_unit * 128 && K::planes == 2; c++) {
        double v = c < K::n_ff ? want[c] : 0, top = planes_top(want.at, K::n_ff, c, 32);
        if (!(fabs(h.value(at, c) - v) <= 1.001 * planes_bound(v, top) + 3e-4 * top))
            fail_msg("pair %d, hidden column %d: %g, expected %g, largest %g", at, c, h.value(at, c), v, top);
    }
    if (K::planes == 2) return;
    for (int c = 0; c < h.n_unit * 128; c += 32) {
        double most = 0, scale = (double)h.scale[(long)at * h.n_unit * 4 + c / 32];
        for (int i = c; i < c + 32 && i < K::n_ff; i++) most = fmax(most, fabs(want[i]));
        if (c >= K::n_ff) assert_true(scale > 0 && scale < 1e-30);
        else assert_true(most <= 6 * scale * (1 + 1e-5) && most >= 3 * scale * (1 - 1e-5));
        for (int i = c; i < c + 32; i++) {
            double v = i < K::n_ff ? want[i] : 0, size = fabs(v) / scale, half = size < 2 ? 0.25 : size < 4 ? 0.5 : 1;
            if (!(fabs(h.value(at, i) - v) <= scale * (half + 1e-4)))
                fail_msg("pair %d, hidden column %d: %g, expected %g, scale %g", at, i, h.value(at, i), v, scale);
        }
    }
}

template <class K> static void check_block(int is_rest)
{
    experts<K> set;
    array<float> x = draw_rows(TOKENS, K::d_model, 4);
    array<int> ids(N_PAIR);
    for (int i = 0; i < N_PAIR; i++) /* expert 0: 17 pairs, 1: 5, 2: 6, 3: 1, 4: 2, 5: 3, 6: none */
        ids[i] = i % USED == 0 ? 0 : i == 1 ? 3 : i < 6 ? 4 : i < 12 ? 5 : i < 22 ? 1 : 2;
    const result got = run_block<K>(set, x, ids, is_rest, 1);
    int pieces[3] = {0, 0, 0}; /* of 1, of 2, of more */
    for (int p = 0; p < got.n_piece; p++) {
        int4 piece = got.piece[p];
        bool is_theirs = !is_rest || piece.w;
        pieces[piece.z < 3 ? piece.z - 1 : 2]++;
        for (int at = piece.y; at < piece.y + piece.z; at++) {
            const u16 *half = (const u16 *)got.flat.at + (long)at * K::d_model;
            if (!is_theirs) {
                assert_true(got.h.q[(long)at * got.h.n_unit * 128 * K::planes] == 0x55);
                for (int r = 0; is_rest && r < K::d_model; r++) assert_int_equal(half[r], ((const u16 *)array<float>(1, -77).at)[r % 2]);
                continue;
            }
            array<double> read = got.x.values(got.row_of[at], K::d_model), want((size_t)K::n_ff);
            for (int f = 0; f < K::n_ff; f++)
                want[f] = activation64(&K::activation, K::first ? 0 : set.product(piece.x, 0, f, read),
                                       set.product(piece.x, 1, f, read));
            check_hidden<K>(got.h, at, want);
            array<double> hidden = got.h.values(at, K::n_ff);
            error_sum sum;
            for (int r = 0; r < K::d_model; r++)
                sum.add(is_rest ? (double)mote_bf16_f32(half[r]) : (double)got.flat[(long)at * K::d_model + r],
                        set.product(piece.x, 2, r, hidden));
            sum.check(is_rest ? 3e-3 : K::planes == 2 ? 1e-4 : 1e-6, "down", at); // bf16; fp8's accumulator
        }
    }
    if (is_rest) return;
    assert_true(pieces[0] && pieces[1] && (pieces[2] || K::width == 2));
    if (is_rest) return; /* which is always summed in order */
    added to = {normals(N_PAIR), K::first ? array<float>() : normals(TOKENS * K::d_model), array<float>((size_t)(TOKENS * K::d_model), NAN)};
    assert_true(run_block<K>(set, x, ids, is_rest, 3, &to).h == got.h); /* whoever takes a piece */
    for (int row = 0; row < TOKENS; row++)
        for (int c = 0; c < K::d_model; c++) {
            double want = to.residual.n ? (double)to.residual[(long)row * K::d_model + c] : 0, size = fabs(want);
            for (int s = 0; s < USED; s++) {
                double v = (double)to.weights[row * USED + s] * (double)got.flat[(long)got.place[row * USED + s] * K::d_model + c];
                want += v, size += fabs(v);
            }
            assert_true(fabs((double)to.y[(long)row * K::d_model + c] - want) <= 1e-6 * size);
        }
}

template <class K> static void test_block(void **)
{
    check_block<K>(0);
    if (getenv("MOTE_TEST_SHORT") || K::planes == 2) return; // the same text again; narrow pieces of planes are left to nobody
    check_block<K>(1);
}

/* ---- the sum ---- */

static void test_sum(void **)
{
    enum { ROWS = 3, COLS = 1104 };
    array<float> flat = normals(ROWS * USED * COLS), weights = normals(ROWS * USED), residual = normals(ROWS * COLS);
    array<u16> half(flat.n), half_residual(residual.n), half_y(residual.n);
    static const int place[ROWS * USED] = {5, 0, 3, 2, 1, 4};
    for (int is_bf16 : {0, 1})
        for (int has_residual : {0, 1}) {
            array<float> y((size_t)(ROWS * COLS), NAN);
            for (long i = 0; is_bf16 && i < (long)flat.n; i++) half[i] = mote_f32_bf16(flat[i]), flat[i] = mote_bf16_f32(half[i]);
            for (long i = 0; is_bf16 && i < (long)residual.n; i++)
                half_residual[i] = mote_f32_bf16(residual[i]), residual[i] = mote_bf16_f32(half_residual[i]);
            MxSum job = {is_bf16 ? (void *)half.at : flat.at, place, weights.at,
                         !has_residual ? NULL : is_bf16 ? (void *)half_residual.at : residual.at,
                         is_bf16 ? (void *)half_y.at : y.at, USED, COLS, is_bf16, is_bf16};
            launch((COLS + 511) / 512, ROWS, 128, [&] { mx_sum(job); });
            for (int i = 0; i < ROWS * COLS; i++) {
                double want = has_residual ? (double)residual[i] : 0, size = fabs(want);
                for (int s = 0; s < USED; s++) {
                    double v = (double)weights[i / COLS * USED + s] * (double)flat[(long)place[i / COLS * USED + s] * COLS + i % COLS];
                    want += v, size += fabs(v);
                }
                double got = is_bf16 ? (double)mote_bf16_f32(half_y[i]) : (double)y[i];
                assert_true(fabs(got - want) <= 1e-6 * size + (is_bf16 ? 0x1p-8 * fabs(want) : 0));
            }
        }
}

static int end(void **)
{
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 53);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_planes),
                                       cmocka_unit_test(test_no_number),
                                       cmocka_unit_test(test_block<swiglu::kind>),
                                       cmocka_unit_test(test_block<oai::kind>),
                                       cmocka_unit_test(test_block<relu2::kind>),
                                       cmocka_unit_test(test_block<planes::kind>),
                                       cmocka_unit_test(test_sum)};
    return cmocka_run_group_tests(tests, NULL, end);
}
