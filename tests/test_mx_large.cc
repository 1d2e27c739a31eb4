/* test_mx_large.cc: mx_large.cu, whole, on the host (device_wgmma_e4m3.h), from quantised rows to bf16 results of pairs, held to
 * decoded weights in float64 on the operands that the kernels themselves read. WIDTH: of a piece, 176 here; test_mx_large64.cc
 * has the other, and test_mx_planes.cc activations of two planes.
 */
#include "device_wgmma_e4m3.h"

extern "C" {
#include "activation64.h"
#include "mxfp4_excess.h"
}

#include "device_mx.h"

#ifndef WIDTH
#define WIDTH 176
#endif
#define W0 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0
#define MX_SHARED DEVICE_SHARED
#define N_FF 160 /* ends inside a unit */
#ifndef PLANES
#define PLANES 1
#define D_MODEL 704 /* a span and a half, its last unit half a one; a last block whose rows are not all there */
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#endif
#include "cuda/kernels/mx_large.cu"

/* Expert WIDE has rows whose scales lie too far apart; the others have no more than the window. Of two planes there is none. */
enum { EXPERTS = 10, WIDE = PLANES == 1 ? 8 : EXPERTS, USED = 2 };

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
            file[b * 17] = (u8)(is_zero ? (int)mote_rng_below(&rng, 255)
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

/* What a block makes of its rows. */
struct result {
    array<int> row_of, place;
    array<int4> piece;
    int n_piece, all_wide;
    mx_rows x, h;
    array<float> hidden;
    array<u16> flat;
};
static const float UNTOUCHED = -77;
enum { UNTOUCHED_BF16 = 0xC29A };

static result run_block(const experts &set, const array<float> &x, const array<int> &ids, int all_wide, unsigned blocks)
{
    int n_pair = (int)ids.n, rows = n_pair / USED;
    result to = {array<int>(ids.n), array<int>(ids.n), array<int4>(ids.n / WIDTH + EXPERTS), -1, 0, mx_rows(rows, D_MODEL, SPAN_X, PLANES),
                 mx_rows(n_pair, N_FF, SPAN_H, PLANES), array<float>(ids.n * N_FF, UNTOUCHED), array<u16>(ids.n * D_MODEL, UNTOUCHED_BF16)};
    mote_step_fault fault = {};
    MxRows none = {}, view = to.x.view();
    int count[2];
    MxQuantise input = {x.at, none, PLANES == 1 ? view : none, PLANES == 1 ? none : view, &to.all_wide, rows, D_MODEL, D_MODEL, 0, 1, count, NULL, NULL};
    Sort sort = {ids.at, to.row_of.at, to.place.at, to.piece.at, &to.n_piece, set.wide.at, NULL, NULL, NULL, NULL, &fault, n_pair, USED, EXPERTS, WIDTH, 32, 1};
    launch(1 + to.x.blocks(), 1, BEGIN_BLOCK, [&] { mx_begin(input, sort); });
    assert_int_equal(to.all_wide, 0);
    to.all_wide = all_wide;
    MxList list = {{set.slot.at, to.piece.at, &to.n_piece, to.row_of.at, n_pair}, &to.all_wide, NULL, NULL, 1, 1, 1};
    void *hidden = PLANES == 2 ? (void *)to.h.q.at : to.hidden.at;
    MxLargeGateUp up = {list, set.base.at, to.x.view(), to.h.view(), hidden};
    MxLargeDown down = {list, set.base.at, to.h.view(), to.flat.at};
    launch(blocks, 1, BLOCK, [&] { mx_large_gate_up(up); });
    if (!all_wide && !QUANTISES) quantise(hidden, PLANES == 2, n_pair, N_FF, NULL, &to.h, &to.all_wide, PLANES == 2 ? FF_PAD : N_FF);
    assert_int_equal(to.all_wide, all_wide);
    launch(blocks, 1, BLOCK, [&] { mx_large_down(down); });
    return to;
}

/* What h of every pair should be: of experts that are not WIDE. */
static array<double> hidden_of(const experts &set, const result &got)
{
    array<double> want(got.hidden.n, 0);
    const struct mote_activation swiglu = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    for (int p = 0; p < got.n_piece; p++)
        for (int at = got.piece[p].y, i = 0; i < got.piece[p].z && !got.piece[p].w; at++, i++) {
            array<double> x = got.x.values(got.row_of[at], D_MODEL);
            for (int f = 0, e = got.piece[p].x; f < N_FF; f++)
                want[(long)at * N_FF + f] = activation64(&swiglu, set.product(e, 0, f, x), set.product(e, 1, f, x));
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

/* By how much seen [N_FF] lies outside of what `right` may have become as two planes. */
static void add_planes_excess(difference *to, const double *seen, const double *right)
{
    for (int f = 0; f < N_FF; f++) {
        double allowed = planes_bound(right[f], planes_top(right, N_FF, f, SPAN_H * 128) * 1.001) * 1.001;
        if (!QUANTISES) allowed += fabs(right[f]) * 0x1.01p-8; /* bf16 on its way */
        to->add(right[f] + fmax(fabs(seen[f] - right[f]) - allowed, 0), right[f]);
    }
}

/* What the kernels read of x. */
static void check_rows(const result &got, const array<float> &x)
{
    for (int row = 0; row < got.x.n_row; row++)
        for (int c = 0; c < D_MODEL; c++) {
            const float *of = x.at + (long)row * D_MODEL;
            double v = (double)of[c];
            assert_true(fabs(got.x.value(row, c) - v) <= planes_bound(v, planes_top(of, D_MODEL, c, SPAN_X * 128)));
        }
}

/* A pair's h, and its results of the h that was quantised. Each result by itself may be off by what one of bf16 is rounded, and by
 * what a sum of terms of their size is off. */
static void check_pair(const experts &set, const result &got, const array<double> &want_hidden, int expert, int at, differences *all)
{
    array<double> h = got.h.values(at, N_FF);
    const double *right = want_hidden.at + (long)at * N_FF;
    if (PLANES == 2) add_planes_excess(&all->hidden, h.at, right);
    else if (QUANTISES) {
        array<float> seen((size_t)N_FF);
        double sum = 0;
        for (int f = 0; f < N_FF; f++) seen[f] = (float)h[f], sum += right[f] * right[f];
        all->hidden.wrong += mxfp4_excess(seen.at, right, N_FF) * 2 * sum, all->hidden.size += sum;
    } else
        for (int f = 0; f < N_FF; f++) all->hidden.add((double)got.hidden[(long)at * N_FF + f], right[f]);
    for (int r = 0; r < D_MODEL; r++) {
        double y = (double)mote_bf16_f32(got.flat[(long)at * D_MODEL + r]), size, want = set.product(expert, 2, r, h, &size);
        all->down.add(y, want);
        if (!(fabs(y - want) <= 0x1p-8 * fabs(want) + (PLANES == 2 ? 2e-3 * SPAN_H : 5e-4) * fmax(size, fabs(want))))
            fail_msg("down: pair %d, row %d: %g, expected %g, of terms of %g", at, r, y, want, size);
    }
}

/* Experts of these many pairs, in turn: a full piece, each number of a part's tokens, what ends inside one, one that is left. */
static array<int> draw_ids()
{
    static const int many[EXPERTS] = {2, 40, 60, 80, 100, 150, 176, 290, 20, 0}, few[EXPERTS] = {1, 17, 0, 65, 0, 129, 0, 0, 20, 0};
    static const int planes[EXPERTS] = {2, 40, 0, 0, 0, 144, 0, 0, 20, 0};
    const int *left = getenv("MOTE_TEST_SHORT") ? few : PLANES == 2 ? planes : many;
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
    const result got = run_block(set, x, ids, 0, 3);
    if (PLANES == 2) check_rows(got, x);
    const array<double> want_hidden = hidden_of(set, got);
    differences all;
    int next = 0, n_left = 0;
    for (int p = 0; p < got.n_piece; p++) {
        int4 piece = got.piece[p];
        assert_true(piece.y == next && piece.z > 0 && piece.z <= WIDTH && piece.w == (piece.x == WIDE));
        next += piece.z;
        n_left += piece.w ? piece.z : 0;
        for (int at = piece.y; at < next; at++) {
            if (!piece.w) {
                check_pair(set, got, want_hidden, piece.x, at, &all);
                continue;
            }
            for (int f = 0; f < N_FF; f++) assert_true(got.hidden[(long)at * N_FF + f] == (QUANTISES ? UNTOUCHED : 0));
            for (int r = 0; r < D_MODEL; r++) assert_int_equal(got.flat[(long)at * D_MODEL + r], UNTOUCHED_BF16);
        }
    }
    print_message("hidden %.1e%s, down %.1e\n", all.hidden.value(), QUANTISES ? " beyond rounding" : "", all.down.value());
    assert_true(all.hidden.value() <= (PLANES == 2 ? (QUANTISES ? 3e-8 : 3e-9) : QUANTISES ? 1e-9 : 1e-6) && all.down.value() <= 3e-6);
    assert_int_equal(next, ids.n);
    assert_int_equal(n_left, WIDE < EXPERTS ? 20 : 0);
    result again = run_block(set, x, ids, 0, 1); /* whoever takes a piece */
    assert_true(again.h == got.h);
    assert_true(same_bytes(again.hidden.at, got.hidden.at, got.hidden.n * sizeof(float)));
    assert_true(same_bytes(again.flat.at, got.flat.at, got.flat.n * sizeof(u16)));
    if (PLANES == 2) return;
    const result none = run_block(set, x, ids, 1, 3); /* all is the small kernel's */
    for (long i = 0; i < (long)none.hidden.n; i++) assert_true(none.hidden[i] == UNTOUCHED);
    assert_true(none.h == mx_rows((int)ids.n, N_FF, SPAN_H));
    for (long i = 0; i < (long)none.flat.n; i++) assert_int_equal(none.flat[i], UNTOUCHED_BF16);
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
