// mx_narrow.cu: the expert block of MXFP4 weights for experts with some tokens each, up to 64 in a piece, sm_90a: both operands are e4m3
// for the fp8 tensor cores, where activations are MXFP4 exactly, but for what lies far below others (mx_act.cuh); others are sums of two e4m3
// numbers (MxPlanes), each multiplied by the same weights.
//
//   mx_narrow_gate_up   h = activation(gate x, up x) of pairs (row, expert) in the order of experts, quantised as x is
//   mx_narrow_down      flat[pair] = down h in bf16, to be weighed and summed in the order of a row's experts (mx_step.cu)
//
// A block multiplies ROWS rows of weights (gate_up: half of gate, half of up) by up to WIDTH tokens. Four warps fill a ring of
// stages (128 columns); four groups of four warps multiply 64 rows each, whose weights become operands in registers. That takes as many
// instructions for 8 tokens as for 256: here experts have few, and what counts is how many bytes of weights are on their way (many tokens:
// mx_wide.cu). The fp8 accumulator keeps about 14 bits, so products are added up in f32 with the tokens' scale: those of the span of units
// that shares it.
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION (gated), LIMIT (expert.cuh); PLANES, e4m3 numbers of an
// activation, 1 or 2; MX_SHARED.
constexpr int WIDTH = 64, GROUPS = 4;
#include "expert.cuh"
#include "mx_large.cuh"
#include "mx_wgmma.cuh"

constexpr int SPAN_X = PLANES == 1 ? MX_SPAN : MX_PLANES_SPAN, SPAN_H = 1; // units that share a scale

// A piece's tokens are multiplied in parts of N.
template <int PARTS, int N> struct Tokens {
    static constexpr int parts = PARTS, n = N, all = PARTS * N, scales = (N + 15) / 16 * 16; // scales: places of a part's
};
// run(tokens): as few as hold `count` tokens, of what there are kernels for. Two parts where sums in registers leave no room for
// more products than half of them.
constexpr int next_fewer(int all) { return all <= 32 ? all - 8 : all - 16; }
template <int SPAN, int ALL = WIDTH, class Run> MOTE_FN void with_tokens(int count, Run run)
{
    constexpr int FEWER = next_fewer(ALL), PARTS = SPAN > 1 || ALL <= 32 ? 1 : 2;
    if constexpr (FEWER > 0) {
        if (count <= FEWER) return with_tokens<SPAN, FEWER>(count, run);
    }
    run(Tokens<PARTS, ALL / PARTS>());
}

// A stage: tokens [PLANES][WIDTH][128], swizzled; codes [TILES][1024]; scale items [TILES][64]; bases [ROWS], the first unit's alone; the
// tokens' scales, as lanes take them (scale_place).
struct Stage {
    static constexpr int PLANE = WIDTH * 128, CODE = PLANES * PLANE, ITEM = CODE + TILES * 1024, BASE = ITEM + TILES * 64, SCALE = BASE + ROWS,
                         BYTES = (SCALE + (WIDTH + 16) * 4 + 1023) / 1024 * 1024;
};
static_assert(Stage::CODE % 512 == 0, "lane 0 is told by it");
// Tokens on their way out of gate_up, so many at once: sums of all rows.
constexpr int UP_SLICE = 16, UP_ROW = ROWS + 8, OUT_UP = UP_SLICE * UP_ROW * 4;
constexpr int OUT_BYTES = OUT_UP > STORE_BYTES ? OUT_UP : STORE_BYTES;
constexpr int STAGES = (MX_SHARED - OUT_BYTES - 512) / Stage::BYTES; // the rest: barriers, what a kernel keeps of its own

typedef ItemRing<STAGES, Stage::BYTES, OUT_BYTES> Ring;
typedef Sent<STAGES, STAGES - 3> Filled; // one is multiplied, the next one begun

// ---- filling ----

// Of a piece's token j, in parts.
template <class Count> MOTE_FN int scale_place_of(int j) { return j / Count::n * Count::scales + scale_place(j % Count::n); }

// All units of an item's weights and tokens. row(j): where token j lies. Of so many (Count) those beyond `count` are
// the last one again: nobody reads what they become, and copies without conditions are half the instructions.
template <class T, int SPAN, class Count, class RowOf>
MOTE_FN void fill_item(Ring &ring, Filled &filled, const ItemWeights &weights, const MxRows &rows, int count, RowOf row)
{
    using S = Stage;
    constexpr int TOKENS = Count::all, EACH = (TOKENS + 15) / 16, SCALES = (TOKENS + FILLERS - 1) / FILLERS; // tokens of a thread
    constexpr int N_SPAN = (T::UNITS + SPAN - 1) / SPAN;
    int thread = opaque(threadIdx.x), chunk = thread % 8, first = thread / 8; // out of sight: it would be worked out again for every copy
    u32 token[EACH], scale[SCALES], at_scale[SCALES];
    MOTE_UNROLL
    for (int i = 0; i < EACH; i++) token[i] = opaque((u32)row(min(first + 16 * i, count - 1)) * (T::UNITS * PLANES * 128) + chunk * 16);
    MOTE_UNROLL
    for (int i = 0; i < SCALES; i++) {
        scale[i] = opaque((u32)row(min(thread + i * FILLERS, count - 1)) * (N_SPAN * 4));
        at_scale[i] = opaque(S::SCALE + scale_place_of<Count>(min(thread + i * FILLERS, TOKENS - 1)) * 4); // again the last, by all that are over
    }
    const u8 *q = (const u8 *)rows.q, *factor = (const u8 *)rows.scale;
    WeightsCopy<T, S> copy(weights, thread);
    u32 at_token = opaque(first * 128 + ((chunk ^ first) & 7) * 16);
    MOTE_ROLLED
    for (int unit = 0; unit < T::UNITS; unit++, ring.next()) {
        ring.wait_empty();
        u32 to = ring.stage();
        copy.copy(to, weights, thread, unit == 0);
        MOTE_UNROLL
        for (int i = 0; i < PLANES * EACH; i++) stage_copy(to + at_token + i / EACH * S::PLANE + i % EACH * 2048, q + token[i % EACH] + i / EACH * 128);
        if (SPAN == 1 || unit % SPAN == SPAN - 1 || unit == T::UNITS - 1) {
            MOTE_UNROLL
            for (int i = 0; i < SCALES; i++) stage_copy4(to + at_scale[i], factor + scale[i]);
            factor += 4;
        }
        q += PLANES * 128;
        filled.add();
    }
}

// ---- multiplying ----

// A warp's 16 rows of a unit on their way to operands.
struct Codes {
    u32 w[8], e[4]; // e: of a sub-block the E of row g in the low byte, of row g + 8 above it
    MOTE_FN void load(u32 code, u32 item)
    {
        uint4 a = shared16(code), b = shared16(code + 512);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) e[s] = shared2(item + 16 * s);
    }
    // bases: as e, eight times.
    MOTE_FN void unpack(u32 (&a)[4][4], u32 bases, const MxFactors &by) const
    {
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) {
            u32 steps = e[s] * by.eight - bases;
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) {
                MxTable table(prmt(steps, 0, r ? 0x1111 : 0x0000), by);
                table.look_up(w[4 * r + s], a[s][r], a[s][2 + r]);
            }
        }
    }
};

// The last plane first: its products are small, and sums keep more of them before the others are there.
template <int N> MOTE_FN void multiply(float (&part)[N / 2], const u32 (&a)[4][4], u32 b, bool fresh)
{
    products_begin();
    MOTE_UNROLL
    for (int s = 0; s < 4 * PLANES; s++) WgmmaE4M3<N>::add(part, a[s % 4], b + (PLANES - 1 - s / 4) * (Stage::PLANE / 16) + 2 * (s % 4), fresh && s == 0);
    products_end();
}

// The scales of a part's tokens 8 b + 2 t, + 1, for b from FIRST on to END - 1 (FIRST even).
template <int FIRST, int END> struct Scales {
    u32 v[END > FIRST ? (END - FIRST) * 2 : 1];
    MOTE_FN void load(u32 at) // of token 2 t
    {
        MOTE_UNROLL
        for (int b = FIRST; b + 1 < END; b += 2) {
            uint4 four = shared16(at + 32 * b);
            v[(b - FIRST) * 2] = four.x, v[(b - FIRST) * 2 + 1] = four.y, v[(b - FIRST) * 2 + 2] = four.z, v[(b - FIRST) * 2 + 3] = four.w;
        }
        if constexpr ((END - FIRST) % 2) {
            uint2 two = shared8(at + 32 * (END - 1));
            v[(END - FIRST) * 2 - 2] = two.x, v[(END - FIRST) * 2 - 1] = two.y;
        }
    }
    template <int N> MOTE_FN void add(float (&acc)[N], const float (&part)[N]) const
    {
        MOTE_UNROLL
        for (int i = FIRST * 4; i < END * 4; i++) acc[i] = __fmaf_rn(part[i], bits_float(v[i / 4 * 2 - FIRST * 2 + (i & 1)]), acc[i]);
    }
};

// What a warp has of a unit's 16 rows: operands, and what makes them.
struct Operands {
    u32 a[4][4];
    Codes codes;       // of the next unit
    u32 bases, eights; // of row g in the low byte, of row g + 8 above it: what rows are to be multiplied by (row_scale); eight times that
    MxFactors by;
    u32 at_code, at_item, at_scale; // of a stage: where this lane's lie

    MOTE_FN Operands(u32 one) : by(one)
    {
        int lane = threadIdx.x % 32, tile = (threadIdx.x - FILLERS) / 32;
        at_code = opaque(Stage::CODE + tile * 1024 + lane * 16), at_item = opaque(Stage::ITEM + tile * 64 + lane / 4 * 2);
        at_scale = opaque(Stage::SCALE + lane % 4 * 16);
    }
    // The ring's next unit: its codes on their way.
    MOTE_FN void enter(Ring &ring, bool is_first)
    {
        ring.wait_full();
        u32 stage = ring.stage();
        if (is_first) {
            u32 at = stage + Stage::BASE + (threadIdx.x - FILLERS) / 32 * 16 + threadIdx.x % 32 / 4;
            bases = shared1(at) | shared1(at + 8) << 8, eights = opaque(bases * 8);
        }
        codes.load(stage + at_code, stage + at_item);
    }
    MOTE_FN void make() { codes.unpack(a, eights, by); }
    MOTE_FN void release(u32 empty) const
    {
        __syncwarp();
        if (at_code % 512 == 0) barrier_arrive(empty); // lane 0
    }
};

// acc[part] += 16 rows of this warp's times tokens N part .., of the ring's next unit, whose operands are made. The unit after it is
// made ready meanwhile, if there is one (`more`), the first of another item or not. (Over a unit's end the compiler would let no
// product go on.)
//
// A product takes some 300 cycles from its start to its sum, most of them waiting: other groups' products are under way meanwhile.
template <int PARTS, int N> MOTE_FN void multiply_unit(float (&acc)[PARTS][N / 2], Ring &ring, Operands &operands, bool more, bool is_next_first)
{
    constexpr int SOON = N > 32 ? N / 32 * 2 : N / 8; // eights of tokens whose scales are there before the sums are
    float part[N / 2];
    u32 b = ring.stage() >> 4 | 1u << 16; // the lower half of the tokens' descriptor
    u32 at = ring.stage() + operands.at_scale, empty = ring.empty();
    ring.next();
    MOTE_UNROLL
    for (int p = 0; p < PARTS; p++) {
        Scales<0, SOON> soon;
        Scales<SOON, N / 8> late;
        multiply<N>(part, operands.a, b + p * N * 8, true);
        soon.load(at + p * (Tokens<PARTS, N>::scales * 4));
        if (p == 0 && more) operands.enter(ring, is_next_first);
        products_wait<0>();
        late.load(at + p * (Tokens<PARTS, N>::scales * 4));
        soon.add(acc[p], part);
        late.add(acc[p], part);
    }
    if (more) operands.make();
    operands.release(empty);
}
// The ring's next unit, one of a span's: part = (fresh) or += its products; where it is the span's last, their sums leave for acc. So a
// warp has fewer sums to add up, but waits for its own product before it makes the next operands.
template <bool FRESH, bool IS_LAST, int N> MOTE_FN void multiply_in_span(float (&acc)[N / 2], float (&part)[N / 2], Ring &ring, Operands &operands, bool more)
{
    u32 b = ring.stage() >> 4 | 1u << 16, at = ring.stage() + operands.at_scale, empty = ring.empty();
    ring.next();
    multiply<N>(part, operands.a, b, FRESH);
    if (more) operands.enter(ring, false);
    products_wait<0>();
    if (IS_LAST) {
        Scales<0, N / 8> scales;
        scales.load(at);
        scales.add(acc, part);
    }
    operands.release(empty);
    if (more) operands.make();
}
template <class T, int SPAN, int N> MOTE_FN void multiply_spans(float (&acc)[N / 2], Ring &ring, Operands &operands)
{
    float part[N / 2];
    MOTE_ROLLED
    for (int left = T::UNITS; left > 0; left -= SPAN) {
        if (T::UNITS % SPAN == 1 && left == 1) {
            multiply_in_span<true, true, N>(acc, part, ring, operands, false);
            break;
        }
        multiply_in_span<true, false, N>(acc, part, ring, operands, true);
        MOTE_ROLLED
        for (int i = min(left, SPAN); i > 2; i--) multiply_in_span<false, false, N>(acc, part, ring, operands, true);
        multiply_in_span<false, true, N>(acc, part, ring, operands, left > SPAN);
    }
}
// All units of an item. AHEAD: and the next item's first operands, if it goes on.
template <class T, int SPAN, bool AHEAD, int PARTS, int N>
MOTE_FN void multiply_units(float (&acc)[PARTS][N / 2], Ring &ring, Operands &operands, bool goes_on)
{
    MOTE_UNROLL
    for (int i = 0; i < PARTS * (N / 2); i++) acc[i / (N / 2)][i % (N / 2)] = 0;
    if constexpr (SPAN == 1) {
        MOTE_ROLLED
        for (int unit = 0; unit < T::UNITS - AHEAD; unit++) multiply_unit<PARTS, N>(acc, ring, operands, AHEAD || unit + 1 < T::UNITS, false);
        if (AHEAD) multiply_unit<PARTS, N>(acc, ring, operands, goes_on, true); // apart: the others' loop is shorter without its conditions
    } else multiply_spans<T, SPAN, N>(acc[0], ring, operands);
}
MOTE_FN float row_scale(u32 bases, int r) { return bits_float(((bases >> 8 * r & 255) + MX_BASE_SHIFT) << 23); }

// ---- items ----

// Registers of the roles; 64 K together, and no more than what the block began with.
MOTE_FN void set_registers(bool fills)
{
    if (fills) fewer_registers<32>();
    else more_registers<112>();
}

// run(tokens, operands, piece, block, goes_on). AHEAD: an item makes the next one's first operands, before it writes its results: where items
// are short.
template <int BLOCKS, int SPAN, bool AHEAD, class Run> MOTE_FN void multiply_items(const MxList &list, Ring &ring, int n_piece, Run run)
{
    Operands operands(list.one);
    int n_item = n_piece * BLOCKS;
    auto piece_at = [&](int item) { return item < n_item ? list.pieces.piece[item / BLOCKS] : make_int4(0, 0, 0, 1); };
    int4 next = piece_at(blockIdx.x), ahead = piece_at(blockIdx.x + gridDim.x);
    bool is_made = false; // the first unit's operands
    MOTE_ROLLED
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        int4 piece = next;
        int block = item % BLOCKS;
        next = ahead, ahead = piece_at(item + 2 * gridDim.x); // on its way meanwhile
        if (piece.w) continue;
        if (!is_made) operands.enter(ring, true), operands.make();
        is_made = AHEAD && !next.w;
        with_tokens<SPAN>(piece.z, [&](auto tokens) { run(tokens, operands, piece, block, is_made); });
    }
}

// ---- gate and up ----

constexpr int UP_BLOCKS = FF_PAD / HIDDEN; // a block makes a unit of h, four columns a lane

template <int PARTS, int N> MOTE_FN void gate_up_item(const MxGateUp &job, Ring &ring, Operands &operands, int4 piece, int first_column, bool goes_on)
{
    int thread = threadIdx.x - FILLERS, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    float acc[PARTS][N / 2], scale[2] = {row_scale(operands.bases, 0), row_scale(operands.bases, 1)};
    multiply_units<Tile<W0, D_MODEL>, SPAN_X, false, PARTS, N>(acc, ring, operands, goes_on);
    float *sums = (float *)Ring::out_buffer(); // [token][rows of gate, of up]
    MOTE_UNROLL
    for (int slice = 0; slice < (PARTS * N + UP_SLICE - 1) / UP_SLICE; slice++) {
        if (slice * UP_SLICE >= piece.z) break;
        meet(1, CONSUMERS);
        MOTE_UNROLL
        for (int i = 0; i < UP_SLICE / 2; i++) {
            int at = slice * (UP_SLICE / 2) + i;
            if (at >= PARTS * (N / 2)) break; // 8 tokens
            int token = i / 4 * 8 + 2 * t + (i & 1), r = i >> 1 & 1;
            sums[token * UP_ROW + warp * 16 + g + 8 * r] = acc[at / (N / 2)][at % (N / 2)] * scale[r];
        }
        meet(1, CONSUMERS);
        constexpr int FOURS = HIDDEN / 4; // of a token
        static_assert(UP_SLICE * FOURS == CONSUMERS, "four columns of a token for every thread");
        // (No loop: one whose bounds differ among threads would cost the main loop its uniform registers.)
        int token = thread / FOURS, c = thread % FOURS * 4;
        float4 gate = *(const float4 *)(sums + token * UP_ROW + c), up = *(const float4 *)(sums + token * UP_ROW + HIDDEN + c);
        float h[4] = {activation(ACTIVATION, LIMIT, gate.x, up.x), activation(ACTIVATION, LIMIT, gate.y, up.y),
                      activation(ACTIVATION, LIMIT, gate.z, up.z), activation(ACTIVATION, LIMIT, gate.w, up.w)};
        bool is_there = first_column + c < N_FF; // else its weights are another matrix's
        bool is_token = slice * UP_SLICE + token < piece.z;
        size_t pair = piece.y + slice * UP_SLICE + token;
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) h[i] = is_there ? h[i] : 0;
        size_t at = pair * (FF_PAD / 128) + first_column / 128;
        if constexpr (PLANES == 2) {
            MxPlanes<4, 128> planes(h);
            if (is_token) planes.put(job.h, at, c / 4, at, c == 0);
        } else {
            MxColumns<4> columns(h);
            int top = columns.top<1>();
            if (is_token) columns.put_large(job.h, at, c / 4, top, at, c == 0);
        }
    }
}

MOTE_FN void gate_up(const MxGateUp &job)
{
    using T = Tile<W0, D_MODEL>;
    Ring ring;
    int n_piece = ring.begin(job.list);
    if (threadIdx.x < FILLERS) {
        set_registers(true);
        fill_items<UP_BLOCKS, Filled>(job.list, ring.barriers, n_piece, 0, 1, [&](const Work &work, int block, Filled &filled) {
            const ItemWeights weights = up_weights(work, job.base, block);
            with_tokens<SPAN_X>(work.piece.z, [&](auto tokens) {
                fill_item<T, SPAN_X, decltype(tokens)>(ring, filled, weights, job.x, work.piece.z, [&](int j) { return job.list.pieces.row_of[work.piece.y + j]; });
            });
        });
    } else {
        set_registers(false);
        multiply_items<UP_BLOCKS, SPAN_X, false>(
            job.list, ring, n_piece,
            [&](auto tokens, Operands &operands, int4 piece, int block, bool goes_on) {
                gate_up_item<tokens.parts, tokens.n>(job, ring, operands, piece, block * HIDDEN, goes_on);
            });
    }
}

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_narrow_gate_up(const __grid_constant__ MxGateUp job) { gate_up(job); }

// ---- down ----

template <int PARTS, int N> MOTE_FN void down_item(const MxDown &job, Ring &ring, Operands &operands, int4 piece, int first_row, bool goes_on, u32 &turn)
{
    int group = (threadIdx.x - FILLERS) / GROUP;
    float acc[PARTS][N / 2], scale[2] = {row_scale(operands.bases, 0), row_scale(operands.bases, 1)};
    multiply_units<Tile<W0, N_FF>, SPAN_H, true, PARTS, N>(acc, ring, operands, goes_on);
    store_results<PARTS * N>(job.flat + (size_t)piece.y * D_MODEL, D_MODEL, first_row + group * 64, piece.z, Ring::out_buffer(), turn,
                             [&](int i) { return acc[i / (N / 2)][i % (N / 2)] * scale[i >> 1 & 1]; });
}

MOTE_FN void down(const MxDown &job)
{
    using T = Tile<W0, N_FF>;
    Ring ring;
    int n_piece = ring.begin(job.list);
    u32 turn = 0; // 0, or the bytes of a slice
    if (threadIdx.x < FILLERS) {
        set_registers(true);
        fill_items<DOWN_BLOCKS, Filled>(job.list, ring.barriers, n_piece, 2, 2, [&](const Work &work, int block, Filled &filled) {
            const ItemWeights weights = down_weights(work, job.base, block);
            with_tokens<SPAN_H>(work.piece.z, [&](auto tokens) {
                fill_item<T, SPAN_H, decltype(tokens)>(ring, filled, weights, job.h, work.piece.z, [&](int j) { return work.piece.y + j; });
            });
        });
    } else {
        set_registers(false);
        multiply_items<DOWN_BLOCKS, SPAN_H, true>(
            job.list, ring, n_piece,
            [&](auto tokens, Operands &operands, int4 piece, int block, bool goes_on) {
                down_item<tokens.parts, tokens.n>(job, ring, operands, piece, block * ROWS, goes_on, turn);
            });
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_narrow_down(const __grid_constant__ MxDown job) { down(job); }
