/* mx_block.h: the kernels of narrow or of wide pieces (mx_narrow.cu, mx_wide.cu), whole, on the host (device_mx_wgmma.h), from quantised rows
 * to bf16 results of pairs, held to decoded weights in float64 on the operands that the kernels themselves read.
 *
 * What includes it says D_MODEL, N_FF, ACTIVATION, LIMIT; PLANES, of narrow pieces, or FP8 and WIDTH, of wide ones; PAIRS of the
 * experts, and fewer for MOTE_TEST_SHORT.
 */
#ifndef TESTS_MX_BLOCK_H
#define TESTS_MX_BLOCK_H

#include "device_mx_wgmma.h"

extern "C" {
#include "activation64.h"
#include "mxfp4_excess.h"
}

#include "device_mx.h"

#define W0 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0
#define MX_SHARED DEVICE_SHARED
#ifdef PLANES
#include "cuda/kernels/mx_narrow.cu"
#define gate_up_kernel mx_narrow_gate_up
#define down_kernel mx_narrow_down
constexpr bool IS_WIDE = false, IS_MXFP4 = PLANES == 1;
enum { ROW_PLANES = PLANES, X_SHARE = SPAN_X, H_SHARE = SPAN_H };
#else
#include "cuda/kernels/mx_wide.cu"
#define gate_up_kernel mx_wide_gate_up
#define down_kernel mx_wide_down
constexpr bool IS_WIDE = true, IS_MXFP4 = FP8;
enum { ROW_PLANES = FP8 ? 1 : 2, X_SHARE = (D_MODEL + 127) / 128, H_SHARE = 0 };
#endif

/* Expert WIDE has rows whose scales lie too far apart; the others have no more than the window. Pieces of it are left to others where
 * activations are MXFP4, of two planes there is none; as bf16 weights may have any scale. */
enum { EXPERTS = 10, WIDE = IS_MXFP4 || IS_WIDE ? 8 : EXPERTS, USED = 2 };

/* As the backend places them: gate, up and down of one after the other, behind the last 16 tiles of down; bases. */
struct experts {
    array<float> w[EXPERTS][3]; /* decoded */
    array<u8> memory, base;
    array<u64> slot;
    array<int> wide;

    experts() : base(EXPERTS * BASE_BYTES, 0), slot(EXPERTS * 3), wide(EXPERTS)
    {
        size_t up = Tile<W0, D_MODEL>::BYTES * N_FF / 16, down = Tile<W0, N_FF>::BYTES * D_MODEL / 16;
        memory = array<u8>(EXPERTS * (2 * up + down) + 16 * Tile<W0, N_FF>::BYTES, 0xA5);
        for (int e = 0; e < EXPERTS; e++)
            for (int p = 0; p < 3; p++) {
                u8 *to = memory.at + (size_t)e * (2 * up + down) + (size_t)p * up;
                slot[e * 3 + p] = (u64)(uintptr_t)to;
                draw(e, p, to);
            }
        for (int e = 0; e < EXPERTS; e++) assert_int_equal(wide[e], e == WIDE);
    }
    static int n_row(int p) { return p == 2 ? D_MODEL : N_FF; }
    static int n_col(int p) { return p == 2 ? N_FF : D_MODEL; }
    void draw(int e, int p, u8 *to)
    {
        int n_block = n_col(p) / 32, least = 0;
        array<u8> file((size_t)(n_row(p) * n_block * 17));
        for (long b = 0; b < (long)file.n / 17; b++) {
            bool is_zero = mote_rng_below(&rng, 20) == 0; /* under any scale */
            if (b % n_block == 0) least = 105 + (int)mote_rng_below(&rng, 8);
            for (int i = 1; i < 17; i++) file[b * 17 + i] = (u8)(is_zero ? 0 : mote_rng_u64(&rng));
            file[b * 17] =
                (u8)(is_zero ? (int)mote_rng_below(&rng, 255)
                             : least + (int)mote_rng_below(&rng, e == WIDE ? 30 : MOTE_MX_WINDOW + 1));
        }
        struct mote_matrix m = mote_matrix_view(MOTE_FORMAT_MXFP4, file.at, n_row(p), n_col(p));
        struct mote_tile_kind kind;
        assert_int_equal(mote_tile_kind_of(&m, 0, &kind), MOTE_OK);
        mote_tile_pack(&kind, &m, 0, n_row(p) / 16, to);
        for (int tile = 0; tile < n_row(p) / 16; tile++)
            wide[e] |= mote_tile_mx_base(to + (size_t)tile * mote_tile_bytes(&kind, n_col(p)), n_col(p),
                                         base.at + e * BASE_BYTES + p * FF_PAD + tile * 16);
        w[e][p] = array<float>((size_t)(n_row(p) * n_col(p)));
        for (int r = 0; r < n_row(p); r++) mote_decode(&m, r, 0, n_col(p), w[e][p].at + (long)r * n_col(p));
    }
    /* size: the root of what the terms' squares add up to. */
    double product(int e, int p, int row, const array<double> &x, double *size = NULL) const
    {
        const float *at = w[e][p].at + (long)row * n_col(p);
        double sum = 0, squares = 0;
        for (int c = 0; c < n_col(p); c++) {
            double term = (double)at[c] * x.at[c];
            sum += term, squares += term * term;
        }
        if (size) *size = sqrt(squares);
        return sum;
    }
};

/* What a block makes of its rows. Halves: rows of bf16 lie where those of two planes would. */
struct result {
    array<int> row_of, place;
    array<int4> piece;
    int n_piece;
    mx_rows x, h;
    array<double> made; /* h before its units share a scale; [n_pair][N_FF] */
    array<float> scale; /* of rows of h, whose units share it */
    array<u16> flat;
};
enum { UNTOUCHED_BF16 = 0xC29A };

static float half_at(const mx_rows &rows, int row, int c)
{
    u16 v;
    memcpy(&v, rows.q.at + ((long)row * rows.n_unit * 128 + c / 128 * 128 + mx_half_position(c % 128)) * 2,
           sizeof v);
    return mote_bf16_f32(v);
}
/* What the kernels read. */
static array<double> x_of(const result &got, int row)
{
    array<double> v((size_t)D_MODEL);
    for (int c = 0; c < D_MODEL; c++)
        v[c] = IS_WIDE && !IS_MXFP4 ? (double)half_at(got.x, row, c) : got.x.value(row, c);
    return v;
}
static array<double> h_of(const result &got, int pair)
{
    array<double> v((size_t)N_FF);
    for (int c = 0; c < N_FF; c++)
        v[c] = !IS_WIDE   ? got.h.value(pair, c)
               : IS_MXFP4 ? (double)got.scale[pair] * (double)mote_e4m3_f32(got.h.code(pair, c, 0))
                          : (double)half_at(got.h, pair, c);
    return v;
}

static result run_block(const experts &set, const array<float> &x, const array<int> &ids, unsigned blocks)
{
    int n_pair = (int)ids.n, rows = n_pair / USED;
    result to = {array<int>(ids.n),
                 array<int>(ids.n),
                 array<int4>(ids.n / WIDTH + EXPERTS),
                 -1,
                 mx_rows(rows, D_MODEL, X_SHARE, ROW_PLANES),
                 mx_rows(n_pair, N_FF, H_SHARE, ROW_PLANES),
                 array<double>(ids.n * N_FF),
                 array<float>(ids.n, NAN),
                 array<u16>(ids.n * D_MODEL, UNTOUCHED_BF16)};
    mote_step_fault fault = {};
    bool is_halves = IS_WIDE && !IS_MXFP4, shares_row = IS_WIDE && IS_MXFP4;
    MxRows none = {}, view = to.x.view();
    int count[2];
    MxQuantise input = {x.at,
                        none,
                        IS_MXFP4 ? view : none,
                        IS_MXFP4 || is_halves ? none : view,
                        is_halves ? (u16 *)(void *)to.x.q.at : NULL,
                        rows,
                        D_MODEL,
                        0,
                        shares_row ? ROW_SCALE : SPAN_SCALE,
                        count,
                        NULL,
                        NULL};
    Sort sort = {ids.at,
                 to.row_of.at,
                 to.place.at,
                 to.piece.at,
                 &to.n_piece,
                 IS_MXFP4 ? set.wide.at : NULL,
                 NULL,
                 NULL,
                 NULL,
                 NULL,
                 &fault,
                 n_pair,
                 USED,
                 EXPERTS,
                 WIDTH,
                 32,
                 1};
    launch(1 + to.x.blocks(shares_row), 1, BEGIN_BLOCK, [&] { mx_begin(input, sort); });
    MxList list = {{set.slot.at, to.piece.at, &to.n_piece, to.row_of.at, n_pair}, NULL, NULL, 1, 1};
    MxGateUp up = {list, set.base.at, view, to.h.view()};
    MxRows h = to.h.view();
    launch(blocks, 1, BLOCK, [&] { gate_up_kernel(up); });
    if (shares_row) {
        for (int p = 0; p < n_pair; p++)
            for (int c = 0; c < N_FF; c++) to.made[(long)p * N_FF + c] = to.h.value(p, c);
        MxShare share = {to.h.view(), to.scale.at, n_pair, N_FF};
        launch(to.h.blocks(true), 1, BEGIN_BLOCK, [&] { mx_share(share); });
        h.scale = to.scale.at;
    }
    MxDown down = {list, set.base.at, h, to.flat.at};
    launch(blocks, 1, BLOCK, [&] { down_kernel(down); });
    return to;
}

/* What h of every pair should be: of experts that are not left. */
static array<double> hidden_of(const experts &set, const result &got)
{
    array<double> want(got.row_of.n * N_FF, 0);
    const struct mote_activation swiglu = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    for (int p = 0; p < got.n_piece; p++)
        for (int at = got.piece[p].y, i = 0; i < got.piece[p].z && !got.piece[p].w; at++, i++) {
            array<double> x = x_of(got, got.row_of[at]);
            for (int f = 0, e = got.piece[p].x; f < N_FF; f++)
                want[(long)at * N_FF + f] =
                    activation64(&swiglu, set.product(e, 0, f, x), set.product(e, 1, f, x));
        }
    return want;
}

/* 1 - 2 <x, y> / (<x, x> + <y, y>), all but. */
struct difference {
    double wrong = 0, size = 0;
    void add(double got, double want) { wrong += (got - want) * (got - want), size += want * want; }
    double value() const { return wrong / (2 * size); }
};
struct differences {
    difference hidden, down;
};

/* By how much seen [N_FF] lies outside of what `right` may have become as two planes, or as bf16. */
static void add_excess(difference *to, const double *seen, const double *right)
{
    for (int f = 0; f < N_FF; f++) {
        double allowed =
            IS_WIDE ? fabs(right[f]) * 0x1.01p-8
                    : planes_bound(right[f], planes_top(right, N_FF, f, H_SHARE * 128) * 1.001) * 1.001;
        to->add(right[f] + fmax(fabs(seen[f] - right[f]) - allowed, 0), right[f]);
    }
}

/* What the kernels read of x. */
static void check_rows(const result &got, const array<float> &x)
{
    for (int row = 0; row < got.x.n_row; row++) {
        const float *of = x.at + (long)row * D_MODEL;
        array<double> seen = x_of(got, row);
        for (int c = 0; c < D_MODEL; c++) {
            double v = (double)of[c];
            if (IS_WIDE) assert_true(seen[c] == (double)mote_bf16_f32(mote_f32_bf16(of[c])));
            else assert_true(fabs(seen[c] - v) <= planes_bound(v, planes_top(of, D_MODEL, c, X_SHARE * 128)));
        }
    }
}

/* What became of h when its units got a scale in common: exact, but for what lies far below the largest. */
static void check_shared(const double *made, const array<double> &h)
{
    double top = 0;
    for (int f = 0; f < N_FF; f++) top = fmax(top, fabs(made[f]));
    for (int f = 0; f < N_FF; f++)
        assert_true(h[f] == made[f] ||
                    (fabs(made[f]) < top * 0x1p-10 && fabs(h[f] - made[f]) <= top * 0x1p-17));
}

/* A pair's h, and its results of the h that was quantised. Each result by itself may be off by what one of bf16 is rounded, and by
 * what a sum of terms of their size is off. */
static void check_pair(const experts &set, const result &got, const array<double> &want_hidden, int expert,
                       int at, differences *all)
{
    array<double> h = h_of(got, at);
    const double *right = want_hidden.at + (long)at * N_FF;
    if (IS_MXFP4) {
        array<float> seen((size_t)N_FF);
        double sum = 0;
        const double *made = IS_WIDE ? got.made.at + (long)at * N_FF : h.at;
        for (int f = 0; f < N_FF; f++) seen[f] = (float)made[f], sum += right[f] * right[f];
        all->hidden.wrong += mxfp4_excess(seen.at, right, N_FF) * 2 * sum, all->hidden.size += sum;
        if (IS_WIDE) check_shared(made, h);
    } else add_excess(&all->hidden, h.at, right);
    for (int r = 0; r < D_MODEL; r++) {
        double y = (double)mote_bf16_f32(got.flat[(long)at * D_MODEL + r]), size,
               want = set.product(expert, 2, r, h, &size);
        all->down.add(y, want);
        if (!(fabs(y - want) <= 0x1p-8 * fabs(want) + (IS_MXFP4 ? 5e-4 : 2e-3) * fmax(size, fabs(want))))
            fail_msg("down: pair %d, row %d: %g, expected %g, of terms of %g", at, r, y, want, size);
    }
}

/* Experts of these many pairs, in turn: full pieces, numbers of tokens that a kernel has and others, pieces that are left. */
static array<int> draw_ids()
{
    static const int many[EXPERTS] = {PAIRS}, few[EXPERTS] = {PAIRS_SHORT};
    const int *left = getenv("MOTE_TEST_SHORT") ? few : many;
    int n_pair = 0, given[EXPERTS] = {};
    for (int e = 0; e < EXPERTS; e++) n_pair += left[e];
    array<int> ids((size_t)n_pair);
    for (int i = 0, e = 0; i < n_pair; e = (e + 1) % EXPERTS)
        if (given[e] < left[e]) ids[i++] = e, given[e]++;
    return ids;
}

static void test_block(void **)
{
    experts set;
    array<int> ids = draw_ids();
    assert_int_equal(ids.n % USED, 0);
    array<float> x = draw_rows((int)ids.n / USED, D_MODEL, 4);
    const result got = run_block(set, x, ids, 3);
    if (!IS_MXFP4) check_rows(got, x);
    const array<double> want_hidden = hidden_of(set, got);
    differences all;
    int next = 0, n_left = 0;
    for (int p = 0; p < got.n_piece; p++) {
        int4 piece = got.piece[p];
        assert_true(piece.y == next && piece.z > 0 && piece.z <= WIDTH &&
                    piece.w == (IS_MXFP4 && piece.x == WIDE));
        next += piece.z;
        n_left += piece.w ? piece.z : 0;
        for (int at = piece.y; at < next; at++) {
            if (!piece.w) {
                check_pair(set, got, want_hidden, piece.x, at, &all);
                continue;
            }
            for (int r = 0; r < D_MODEL; r++)
                assert_int_equal(got.flat[(long)at * D_MODEL + r], UNTOUCHED_BF16);
        }
    }
    print_message("hidden %.1e beyond rounding, down %.1e\n", all.hidden.value(), all.down.value());
    assert_true(all.hidden.value() <= (!IS_MXFP4 ? IS_WIDE ? 1e-15 : 1e-7 : 1e-8) &&
                all.down.value() <= 3e-6);
    assert_int_equal(next, ids.n);
    assert_int_equal(n_left, IS_MXFP4 ? 20 : 0);
    result again = run_block(set, x, ids, 1); /* whoever takes a piece */
    assert_true(same_bytes(again.flat.at, got.flat.at, got.flat.n * sizeof(u16)));
}

static int end(void **)
{
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 59);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block)};
    return cmocka_run_group_tests(tests, NULL, end);
}

#endif
