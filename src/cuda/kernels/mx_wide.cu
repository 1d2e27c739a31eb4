// mx_wide.cu: the expert block of MXFP4 weights for experts with many tokens, sm_90a. Weights become operands in registers, once for up to
// 256 tokens; activations lie in shared memory.
//
//   mx_wide_gate_up   h = activation(gate x, up x) of pairs (row, expert) in the order of experts
//   mx_wide_down      flat[pair] = down h in bf16, to be weighed and summed in the order of a row's experts (mx_step.cu)
//
// Rows (mx_act.cuh) are halves, or, FP8, of x large ones with a scale a row, of h small ones, which become such (mx_share) before down.
//
//   FP8   MXFP4 activations: both operands are e4m3, exactly, but for what lies far below a row's largest (mx_act.cuh). h is quantised as it
//         is made; a row's blocks get a scale in common later (mx_step.cu).
//   bf16  others, rounded once; weights are bf16 too, exactly, whatever powers of two their scales are.
//
// A block multiplies 128 rows of weights (gate_up: 64 of gate, 64 of up) by a piece's tokens. Four warps fill a ring of stages; two
// groups of four multiply 64 rows each, and make operands of one half of a unit while the other's products are under way: a group's
// tensor cores need not wait for its arithmetic. Of gate and up a lane has rows that belong together: h is made where the sums are.
//
// Sums of fp8 products are good for about 14 bits, the worse the longer they grow. Every SPAN units their leading 8 bits leave for a sum
// of bf16, of which two fit in a register; what is left goes on. (A second sum of f32 would leave registers for 176 tokens.)
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION (gated), LIMIT (expert.cuh); FP8, 0 or 1; WIDTH, most
// tokens of a piece, a multiple of 16 up to 256; MX_SHARED.
constexpr int GROUPS = 2;
#include "expert.cuh"
#include "mx_large.cuh"
#include "mx_wgmma.cuh"

constexpr int SPAN = 16; // units

// run(tokens): as few as hold `count`, of what there are kernels for.
template <int N> struct Tokens {
    static constexpr int n = N;
};
template <int N = WIDTH, class Run> MOTE_FN void with_tokens(int count, Run run)
{
    if constexpr (N > 64) {
        if (count <= N - 16) return with_tokens<N - 16>(count, run);
    }
    run(Tokens<N>());
}

// A stage: tokens [WIDTH][128 bytes], swizzled: COLUMNS, of bf16 half a unit. A unit's first also: codes [TILES][1024]; scale items
// [TILES][64]. An item's first also: bases [ROWS]; its last, FP8: the tokens' scales, as lanes take them (scale_place).
struct Stage {
    static constexpr int COLUMNS = FP8 ? 128 : 64, CODE = WIDTH * 128, ITEM = CODE + TILES * 1024, BASE = ITEM + TILES * 64, SCALE = BASE + ROWS,
                         BYTES = (SCALE + FP8 * WIDTH * 4 + 1023) / 1024 * 1024;
};
// Tokens on their way out of gate_up, so many at once: a group's 32 columns of h, f32 or bf16.
constexpr int UP_SLICE = FP8 ? 16 : 32, UP_ROW = FP8 ? (32 + 4) * 4 : (32 + 8) * 2, UP_SLICE_BYTES = UP_SLICE * UP_ROW;
constexpr int OUT_UP = GROUPS * 2 * UP_SLICE_BYTES, OUT_BYTES = OUT_UP > STORE_BYTES ? OUT_UP : STORE_BYTES;
constexpr int STAGES = (MX_SHARED - OUT_BYTES - 512) / Stage::BYTES;
typedef ItemRing<STAGES, Stage::BYTES, OUT_BYTES> Ring;
typedef Sent<STAGES, STAGES - 3> Filled; // one is multiplied, the next one begun

// ---- filling ----

// All stages of an item's weights and tokens (K columns). row(j): where token j lies. Tokens beyond `count` are the last
// one again: nobody reads what they become, and copies without conditions are half the instructions.
template <class T, int K, int TOKENS, class RowOf>
MOTE_FN void fill_item(Ring &ring, Filled &filled, const ItemWeights &weights, const MxRows &rows, int count, RowOf row)
{
    constexpr int EACH = TOKENS / 16, SCALES = FP8 * ((TOKENS + FILLERS - 1) / FILLERS), N_STAGE = (K + Stage::COLUMNS - 1) / Stage::COLUMNS;
    int thread = opaque(threadIdx.x), chunk = thread % 8, first = thread / 8; // out of sight: it would be worked out again for every copy
    u32 token[EACH];
    MOTE_UNROLL
    for (int i = 0; i < EACH; i++) token[i] = opaque((u32)row(min(first + 16 * i, count - 1)) * (T::UNITS * (FP8 ? 128 : 256)) + chunk * 16);
    const u8 *q = (const u8 *)rows.q;
    WeightsCopy<T, Stage> copy(weights, thread);
    u32 at_token = opaque(first * 128 + ((chunk ^ first) & 7) * 16);
    MOTE_ROLLED
    for (int stage = 0; stage < N_STAGE; stage++, ring.next()) {
        ring.wait_empty();
        u32 to = ring.stage();
        if (FP8 || stage % 2 == 0) copy.copy(to, weights, thread, stage == 0);
        MOTE_UNROLL
        for (int i = 0; i < EACH; i++) stage_copy(to + at_token + i * 2048, q + token[i]);
        q += 128;
        if (FP8 && stage == N_STAGE - 1)
            MOTE_UNROLL
            for (int i = 0; i < SCALES; i++) {
                int j = min(thread + i * FILLERS, TOKENS - 1); // again the last, by all that are over
                stage_copy4(to + Stage::SCALE + scale_place(j) * 4, rows.scale + row(min(j, count - 1)));
            }
        filled.add();
    }
}

// ---- multiplying ----

// What a warp has of a unit's 16 rows: the operands of either half of its columns, and what makes them. (Codes are read when they are needed:
// registers are scarce.)
struct Operands {
    static constexpr int PRODUCTS = FP8 ? 2 : 4; // of a half: 32 columns each, or 16
    u32 a[2][PRODUCTS][4];
    u32 start[2], scale[2]; // of the first and the second eight rows: what E is added to; what a row's sums are to be multiplied by, as bits
    MxFactors by;
    MxHalves halves;
    u32 at_code[2], at_item[2], at_base[2]; // of a stage: where this lane's lie

    // Of 16 rows the first eight are half `part` of a tile, or its first, and so are the others of another.
    MOTE_FN Operands(u32 one, int first_tile, int first_part, int second_tile, int second_part) : by(one), halves(one)
    {
        int lane = threadIdx.x % 32, tile[2] = {first_tile, second_tile}, part[2] = {first_part, second_part};
        MOTE_UNROLL
        for (int r = 0; r < 2; r++) {
            at_code[r] = opaque(Stage::CODE + tile[r] * 1024 + part[r] * 512 + lane * 16);
            at_item[r] = opaque(Stage::ITEM + tile[r] * 64 + lane / 4 * 2 + part[r]);
            at_base[r] = opaque(Stage::BASE + tile[r] * 16 + part[r] * 8 + lane / 4);
        }
    }
    // An item's first stage.
    MOTE_FN void enter(u32 stage)
    {
        MOTE_UNROLL
        for (int r = 0; r < 2; r++) {
            u32 base = shared1(stage + at_base[r]);
            start[r] = opaque(FP8 ? base * -0x08080808u : halves.start(base));
            scale[r] = (base + (FP8 ? MX_BASE_SHIFT : MX_HALVES_SHIFT)) << 23;
        }
    }
    // stage: the unit's first.
    template <int HALF> MOTE_FN void make(u32 stage)
    {
        MOTE_UNROLL
        for (int r = 0; r < 2; r++) {
            uint2 code = shared8(stage + at_code[r] + 8 * HALF);
            MOTE_UNROLL
            for (int s = 0; s < 2; s++) {
                u32 w = s ? code.y : code.x, e = shared1(stage + at_item[r] + 16 * (2 * HALF + s));
                if constexpr (FP8) {
                    MxTable table(e * by.eights + start[r], by);
                    table.look_up(w, a[HALF][s][r], a[HALF][s][2 + r]);
                } else halves.unpack(w, e * halves.two + start[r], a[HALF][2 * s][r], a[HALF][2 * s][2 + r], a[HALF][2 * s + 1][r], a[HALF][2 * s + 1][2 + r]);
            }
        }
    }
};

// Half a unit's products, 64 columns, from `tokens` on.
template <int N> MOTE_FN void multiply(float (&acc)[N / 2], const u32 (&a)[Operands::PRODUCTS][4], u32 tokens)
{
    u32 b = tokens >> 4 | 1u << 16; // the lower half of their descriptor
    products_begin();
    MOTE_UNROLL
    for (int k = 0; k < Operands::PRODUCTS; k++) {
        if constexpr (FP8) WgmmaE4M3<N>::add(acc, a[k], b + 2 * k, 0);
        else Wgmma<N, 1>::add(acc, a[k], b + 2 * k);
    }
    products_end();
}
MOTE_FN void release(u32 empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// acc += the ring's next unit's products; its first operands are made, and the next unit's will be, if there is one (`more`).
// is_half: the unit's second half is not there. The last stage is left to its caller (last, empty).
template <int N> MOTE_FN void multiply_unit(float (&acc)[N / 2], Ring &ring, Operands &operands, bool is_half, bool more, u32 &last, u32 &empty)
{
    empty = ring.empty(), last = ring.stage();
    multiply<N>(acc, operands.a[0], last);
    if (!FP8) ring.next();
    if (is_half) {
        products_wait<0>();
        return;
    }
    operands.make<1>(last);
    if (FP8) {
        multiply<N>(acc, operands.a[1], last + 64);
        products_wait<1>();
    } else {
        ring.wait_full();
        multiply<N>(acc, operands.a[1], ring.stage());
        products_wait<1>();
        release(empty);
        empty = ring.empty();
    }
    ring.next();
    if (more) ring.wait_full(), operands.make<0>(ring.stage());
    products_wait<0>();
}

// run(i, the scale of sum i's token), of a stage that has them.
template <int N, class Run> MOTE_FN void times_scales(u32 stage, Run run)
{
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b += 2) {
        uint4 four = shared16(stage + Stage::SCALE + threadIdx.x % 4 * 16 + 32 * b);
        float scale[4] = {bits_float(four.x), bits_float(four.y), bits_float(four.z), bits_float(four.w)};
        MOTE_UNROLL
        for (int i = 0; i < 8; i++) run(4 * b + i, scale[i / 4 * 2 + i % 2]);
    }
}

// acc = all K columns of 16 rows of this warp's times N tokens, but for the rows' scales.
template <int K, int N> MOTE_FN void multiply_item(float (&acc)[N / 2], Ring &ring, Operands &operands, u32 &last, u32 &empty)
{
    constexpr int UNITS = (K + 127) / 128;
    constexpr bool ENDS_HALF = !FP8 && K % 128 > 0 && K % 128 <= 64, IN_SPANS = FP8 && UNITS > SPAN;
    MOTE_UNROLL
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    ring.wait_full();
    operands.enter(ring.stage());
    operands.make<0>(ring.stage());
    if constexpr (!IN_SPANS) {
        MOTE_ROLLED
        for (int left = UNITS; left > 0; left--) {
            multiply_unit<N>(acc, ring, operands, ENDS_HALF && left == 1, left > 1, last, empty);
            if (!FP8 || left > 1) release(empty);
        }
        if (FP8) times_scales<N>(last, [&](int i, float scale) { acc[i] *= scale; }), release(empty);
    } else {
        u32 sum[N / 4]; // two bf16 each; the high one counts with what stands below it, which is as good as zeros
        MOTE_UNROLL
        for (int i = 0; i < N / 4; i++) sum[i] = 0;
        int left = UNITS;
        MOTE_ROLLED
        for (; left > SPAN; left -= SPAN) {
            MOTE_ROLLED
            for (int unit = 0; unit < SPAN; unit++) multiply_unit<N>(acc, ring, operands, false, true, last, empty), release(empty);
            MOTE_UNROLL
            for (int i = 0; i < N / 4; i++) {
                float low = acc[2 * i] + bits_float(sum[i] << 16), high = acc[2 * i + 1] + bits_float(sum[i]);
                sum[i] = pack_bf16x2(low, high);
                acc[2 * i] = low - bits_float(sum[i] << 16), acc[2 * i + 1] = high - bits_float(sum[i]);
            }
        }
        MOTE_ROLLED
        for (; left > 1; left--) multiply_unit<N>(acc, ring, operands, false, true, last, empty), release(empty);
        multiply_unit<N>(acc, ring, operands, false, false, last, empty);
        times_scales<N>(last, [&](int i, float scale) { acc[i] = (acc[i] + bits_float(i % 2 ? sum[i / 2] : sum[i / 2] << 16)) * scale; });
        release(empty);
    }
}

// ---- items ----

MOTE_FN void set_registers(bool fills)
{
    if (fills) fewer_registers<40>();
    else more_registers<232>();
}

// An item is one of BLOCKS blocks of rows, and a piece; a block of the grid takes every gridDim.x th. Pieces with w are the small kernel's.
// run(tokens, piece, block)
template <int BLOCKS, class Run> MOTE_FN void multiply_items(const MxList &list, int n_piece, Run run)
{
    auto piece_at = [&](int item) { return list.pieces.piece[max(min(item / BLOCKS, n_piece - 1), 0)]; };
    int4 next = piece_at(blockIdx.x);
    MOTE_ROLLED
    for (int item = blockIdx.x; item < n_piece * BLOCKS; item += gridDim.x) {
        int4 piece = next;
        next = piece_at(item + gridDim.x); // on its way meanwhile
        if (!piece.w) with_tokens(piece.z, [&](auto tokens) { run(tokens, piece, item % BLOCKS); });
    }
}

// ---- gate and up ----

constexpr int UP_BLOCKS = (FP8 ? FF_PAD : N_FF + HIDDEN - 1) / HIDDEN; // fp8: h has whole units

// A group's 32 columns of h, 8 of a warp's: its sums of row g and of row g + 8 are gate and up of one of them.
template <int N> MOTE_FN void gate_up_item(const MxGateUp &job, Ring &ring, Operands &operands, int4 piece, int block, u32 &turn)
{
    int thread = threadIdx.x - FILLERS, group = thread / GROUP, warp = thread / 32 % 4, lane = thread % 32, g = lane / 4, t = lane % 4;
    float acc[N / 2];
    u32 last, empty;
    multiply_item<D_MODEL, N>(acc, ring, operands, last, empty);
    float gate = bits_float(operands.scale[0]), up = bits_float(operands.scale[1]);
    int first = block * HIDDEN + group * 32, in = thread % GROUP;
    bool is_there = first + warp * 8 + g < N_FF; // else its weights are another matrix's
    MOTE_UNROLL
    for (int slice = 0; slice < (N + UP_SLICE - 1) / UP_SLICE; slice++) {
        if (slice * UP_SLICE >= piece.z) break;
        u8 *out = Ring::out_buffer() + group * (2 * UP_SLICE_BYTES) + turn; // in turn: who is behind still reads the other
        turn = UP_SLICE_BYTES - turn;
        u32 v[4]; // of bf16: 8 x 8, tokens 0 .. 7, .., 24 .. 31
        MOTE_UNROLL
        for (int i = 0; i < UP_SLICE / 8; i++) {
            int from = slice * (UP_SLICE / 2) + i * 4;
            if (from >= N / 2) from = i * 4; // 16 tokens: the others are nobody's
            float low = activation(ACTIVATION, LIMIT, acc[from] * gate, acc[from + 2] * up), high = activation(ACTIVATION, LIMIT, acc[from + 1] * gate, acc[from + 3] * up);
            if constexpr (FP8) {
                float *to = (float *)(out + (i * 8 + 2 * t) * UP_ROW) + warp * 8 + g;
                to[0] = is_there ? low : 0, to[UP_ROW / 4] = is_there ? high : 0;
            } else v[i] = is_there ? pack_bf16x2(low, high) : 0;
        }
        if constexpr (!FP8) store_transposed(shared_address(out) + lane * UP_ROW + warp * 16, v);
        meet(2 + group, GROUP);
        constexpr int LANES = GROUP / UP_SLICE; // of a token
        int token = in / LANES, part = in % LANES;
        bool is_token = slice * UP_SLICE + token < piece.z;
        size_t pair = piece.y + slice * UP_SLICE + token;
        if constexpr (FP8) {
            float4 h = *(const float4 *)(out + token * UP_ROW + part * 16);
            MxColumns<4> columns({h.x, h.y, h.z, h.w});
            if (is_token) columns.put_small(job.h, pair * (FF_PAD / 128) + first / 128, first % 128 / 4 + part);
        } else {
            const u32 *from = (const u32 *)(out + token * UP_ROW) + part; // the pair `part` of every eight columns: mx_half_position
            if (is_token) *(uint4 *)((u16 *)job.h.q + pair * FF_PAD + first + part * 8) = make_uint4(from[0], from[4], from[8], from[12]);
        }
    }
}

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_wide_gate_up(const __grid_constant__ MxGateUp job)
{
    using T = Tile<W0, D_MODEL>;
    Ring ring;
    int n_piece = ring.begin(job.list);
    if (threadIdx.x < FILLERS) {
        set_registers(true);
        fill_items<UP_BLOCKS, Filled>(job.list, ring.barriers, n_piece, 0, 1, [&](const Work &work, int block, Filled &filled) {
            const ItemWeights weights = up_weights(work, job.base, block);
            with_tokens(work.piece.z, [&](auto tokens) {
                fill_item<T, D_MODEL, decltype(tokens)::n>(ring, filled, weights, job.x, work.piece.z, [&](int j) { return job.list.pieces.row_of[work.piece.y + j]; });
            });
        });
        return;
    }
    set_registers(false);
    int warp = (threadIdx.x - FILLERS) / 32;
    Operands operands(job.list.one, warp / 2, warp % 2, TILES / 2 + warp / 2, warp % 2);
    u32 turn = 0;
    multiply_items<UP_BLOCKS>(job.list, n_piece, [&](auto tokens, int4 piece, int block) { gate_up_item<tokens.n>(job, ring, operands, piece, block, turn); });
}

// ---- down ----

template <int N> MOTE_FN void down_item(const MxDown &job, Ring &ring, Operands &operands, int4 piece, int block, u32 &turn)
{
    int group = (threadIdx.x - FILLERS) / GROUP;
    float acc[N / 2];
    u32 last, empty;
    multiply_item<N_FF, N>(acc, ring, operands, last, empty);
    float scale[2] = {bits_float(operands.scale[0]), bits_float(operands.scale[1])};
    store_results<N>(job.flat + (size_t)piece.y * D_MODEL, D_MODEL, block * ROWS + group * 64, piece.z, Ring::out_buffer(), turn, [&](int i) { return acc[i] * scale[i >> 1 & 1]; });
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_wide_down(const __grid_constant__ MxDown job)
{
    using T = Tile<W0, N_FF>;
    Ring ring;
    int n_piece = ring.begin(job.list);
    if (threadIdx.x < FILLERS) {
        set_registers(true);
        fill_items<DOWN_BLOCKS, Filled>(job.list, ring.barriers, n_piece, 2, 2, [&](const Work &work, int block, Filled &filled) {
            const ItemWeights weights = down_weights(work, job.base, block);
            with_tokens(work.piece.z, [&](auto tokens) {
                fill_item<T, N_FF, decltype(tokens)::n>(ring, filled, weights, job.h, work.piece.z, [&](int j) { return work.piece.y + j; });
            });
        });
        return;
    }
    set_registers(false);
    int warp = (threadIdx.x - FILLERS) / 32;
    Operands operands(job.list.one, warp, 0, warp, 1);
    u32 turn = 0;
    multiply_items<DOWN_BLOCKS>(job.list, n_piece, [&](auto tokens, int4 piece, int block) { down_item<tokens.n>(job, ring, operands, piece, block, turn); });
}
