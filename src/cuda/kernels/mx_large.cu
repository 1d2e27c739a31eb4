// mx_large.cu: the expert block of MXFP4 weights and MXFP4 activations for experts with many tokens, sm_90a: both operands are
// e4m3, exactly, for the fp8 tensor cores.
//
//   mx_large_gate_up   h = activation(gate x, up x), quantised, of pairs (row, expert) in the order of experts
//   mx_large_down      flat[pair] = down h in bf16, to be weighed and summed in the order of a row's experts (mx_step.cu)
//
// A block multiplies 256 rows of weights (gate_up: 128 of gate and the same of up) by up to WIDTH tokens. Four warps fill a ring
// of stages (128 columns), eight multiply: each group of four unpacks weights into registers, two operands ahead of its products.
// The fp8 accumulator keeps about 14 bits, so a unit's products are added up in f32 with the tokens' scale.
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION (gated), LIMIT (expert.cuh); WIDTH, most tokens
// of a piece, 64 or 128; MX_SHARED.
#include "expert.cuh"
#include "mx_act.cuh"
#include "mx_ring.cuh"
#include "mx_wgmma.cuh"
#include "tile.cuh"

constexpr int FILLERS = 128, GROUP = 128;  // threads
constexpr int TILES = 16, ROWS = TILES * 16; // of a stage
constexpr int FF_PAD = (N_FF + 127) / 128 * 128, BASE_DOWN = 2 * FF_PAD;
constexpr int BASE_BYTES = BASE_DOWN + (D_MODEL + ROWS - 1) / ROWS * ROWS; // of an expert: rows of gate, of up, of down

// By WIDTH: groups of four warps that multiply, and how often 64 rows each has. Registers for 128 tokens are
// had by two groups alone; where there are fewer, four hide each other's latencies.
constexpr int GROUPS = WIDTH == 64 ? 4 : 2, TURNS = 4 / GROUPS, PARTS = TURNS, CONSUMERS = GROUPS * GROUP, BLOCK = FILLERS + CONSUMERS;

// A stage: tokens [WIDTH][128], swizzled; codes [TILES][1024]; scale items [TILES][64]; bases [ROWS], the first unit's alone; the
// tokens' scales [WIDTH].
struct Stage {
    static constexpr int CODE = WIDTH * 128, ITEM = CODE + TILES * 1024, BASE = ITEM + TILES * 64, SCALE = BASE + ROWS,
                         BYTES = (SCALE + WIDTH * 4 + 1023) / 1024 * 1024;
};
// Tokens on their way out, so many at once: of gate_up, sums of all rows; of down, halves of a group's rows.
constexpr int UP_SLICE = 16, UP_ROW = ROWS + 8, DOWN_SLICE = 16;
constexpr int DOWN_ROW = TURNS * 64 + 8;
constexpr int OUT_BYTES = UP_SLICE * UP_ROW * 4;
static_assert(GROUPS * DOWN_SLICE * DOWN_ROW * 2 <= OUT_BYTES, "");
constexpr int STAGES = (MX_SHARED - OUT_BYTES - 512) / Stage::BYTES; // the rest: barriers, what a kernel keeps of its own

struct Ring : Stages<STAGES, Stage::BYTES> {
    // The kernels' beginning: returns how many pieces there are, 0 if none is theirs. All threads must be told the same, while other
    // blocks may be about to say otherwise.
    MOTE_FN int begin(const MxList &list)
    {
        u32 at = shared_address(shared);
        int *n_piece = (int *)(shared + STAGES * (Stage::BYTES + 16) + OUT_BYTES); // behind the barriers
        start(at, at + STAGES * Stage::BYTES + OUT_BYTES);
        if (threadIdx.x == 0) init(FILLERS, CONSUMERS / 32);
        chain_launch();
        chain_wait();
        if (threadIdx.x == 0) *n_piece = *(volatile int *)list.wide ? 0 : *list.pieces.n_piece;
        __syncthreads();
        return *n_piece;
    }
};
MOTE_FN u8 *out_buffer() { return shared + STAGES * Stage::BYTES; }

struct MxLargeGateUp {
    MxList list;
    const u8 *base; // [n_expert][BASE_BYTES]
    MxRows x;       // [rows]
    MxRows h;       // [n_pair]
};
struct MxLargeDown {
    MxList list;
    const u8 *base;
    MxRows h;  // [n_pair]
    u16 *flat; // [n_pair][D_MODEL] bf16
};

// ---- filling ----

// All units of an item's weights and tokens. record[]: of the stage's first and its ninth tile, each with seven behind it; base[]:
// the first unit's bases of as many rows; row(j): where token j lies.
template <class T, class RowOf>
MOTE_FN void fill_item(Ring &ring, const u8 *const (&record)[2], const u8 *const (&base)[2], const MxRows &rows, int count, RowOf row)
{
    using S = Stage;
    int thread = threadIdx.x, chunk = thread % 8, first = thread / 8;
    constexpr int EACH = WIDTH / 16; // tokens of a thread
    u32 from[EACH];
    MOTE_UNROLL
    for (int i = 0; i < EACH; i++) from[i] = (u32)row(min(first + 16 * i, count - 1)) * (T::UNITS * 8) + chunk;
    const float *scale = rows.scale + (size_t)row(min(thread, count - 1)) * T::UNITS;
    const u8 *code[2], *item = (thread & 32 ? record[1] : record[0]) + thread / 4 % 8 * T::BYTES + T::AT_SCALE + thread % 4 * 16;
    MOTE_UNROLL
    for (int i = 0; i < 2; i++) code[i] = record[i] + thread / 64 * T::BYTES + thread % 64 * 16;
    MOTE_ROLLED
    for (int unit = 0; unit < T::UNITS; unit++, ring.next()) {
        ring.wait_empty();
        u32 to = ring.stage(), full = ring.full();
        MOTE_UNROLL
        for (int i = 0; i < 8; i++) stage_copy(to + S::CODE + i * 2048 + thread * 16, code[i / 4] + i % 4 * 2 * T::BYTES + unit * 1024);
        if (thread < 64) stage_copy(to + S::ITEM + thread * 16, item + unit * 64);
        else if (unit == 0 && thread < 80) stage_copy(to + S::BASE + (thread - 64) * 16, (thread & 8 ? base[1] : base[0]) + thread % 8 * 16);
        MOTE_UNROLL
        for (int i = 0; i < EACH; i++)
            if (first + 16 * i < count) {
                int j = first + 16 * i;
                stage_copy(to + j * 128 + ((chunk ^ j) & 7) * 16, rows.q + ((u64)from[i] + unit * 8) * 16);
            }
        if (thread < count)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + S::SCALE + thread * 4), "l"(scale + unit) : "memory");
        barrier_arrive_copied(full);
    }
}

// ---- multiplying ----

// A warp's 16 rows of a unit on their way to operands.
struct Codes {
    u32 w[8], step[2]; // step: of sub-block lane % 4, rows g and g + 8
    // bases: of row g in the low byte, of row g + 8 above it
    MOTE_FN void load(u32 code, u32 item, u32 bases)
    {
        uint4 a = shared16(code), b = shared16(code + 512);
        int both = (int)shared2(item);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
        // a block of zeros may have any scale
        step[0] = (u32)min(max((both & 255) - (int)(bases & 255), 0), MX_WEIGHT_WINDOW);
        step[1] = (u32)min(max((both >> 8) - (int)(bases >> 8 & 255), 0), MX_WEIGHT_WINDOW);
    }
    // Operands of sub-blocks 2 half, 2 half + 1.
    MOTE_FN void unpack(int half, u32 (&a)[4][4], u32 again) const
    {
        MOTE_UNROLL
        for (int s = 2 * half; s < 2 * half + 2; s++)
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) {
                MxTable table(__shfl_sync(~0u, step[r], (threadIdx.x & 28) | s), again);
                table.look_up(w[4 * r + s], a[s][r], a[s][2 + r]);
            }
    }
};

template <int N> MOTE_FN void multiply(float (&part)[N / 2], const u32 (&a)[4][4], u32 b)
{
    products_begin();
    MOTE_UNROLL
    for (int s = 0; s < 4; s++) WgmmaE4M3<N>::add(part, a[s], b + 2 * s, s == 0);
    products_end();
}

template <int N> MOTE_FN void add_unit(float (&acc)[N / 2], const float (&part)[N / 2], u32 scale)
{
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b++) {
        uint2 pair = shared8(scale + 32 * b); // tokens 8 b + 2 t, + 1
        MOTE_UNROLL
        for (int j = 0; j < 4; j++) acc[4 * b + j] = __fmaf_rn(part[4 * b + j], bits_float(j & 1 ? pair.y : pair.x), acc[4 * b + j]);
    }
}

// acc[turn][part] = rows 64 turn .. of this group's times tokens N part ..; bases: two bytes a turn, what rows are to be
// multiplied by (row_scale). Many tokens in two parts: with all at once there would be no registers for the next operands, which
// are made while products are under way.
template <class T, int N>
MOTE_FN void multiply_item(Ring &ring, float (&acc)[TURNS][PARTS][N / 2], u32 &bases)
{
    using S = Stage;
    constexpr int TURN = TURNS, AHEAD = TURN > 1; // with one turn the other groups' products are enough
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first_tile = (threadIdx.x - FILLERS) / GROUP * (TURN * 4) + threadIdx.x / 32 % 4;
    float part[N / 2];
    u32 a[1 + AHEAD][4][4];
    MOTE_UNROLL
    for (int i = 0; i < TURN * PARTS * (N / 2); i++) acc[i / (PARTS * (N / 2))][i / (N / 2) % PARTS][i % (N / 2)] = 0;
    u32 again = opaque(mx_table(12, true));
    Codes codes;
    auto enter = [&] {
        ring.wait_full();
        tokens_seen();
    };
    auto load = [&](int turn) {
        u32 tile = first_tile + 4 * turn;
        codes.load(ring.stage() + S::CODE + tile * 1024 + lane * 16, ring.stage() + S::ITEM + tile * 64 + t * 16 + g * 2, bases >> 16 * turn);
    };
    enter();
    MOTE_UNROLL
    for (int i = 0; i < 2 * TURN; i++) {
        u32 v, at = ring.stage() + S::BASE + (first_tile + i / 2 * 4) * 16 + g + i % 2 * 8;
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
        bases |= v << 8 * i;
    }
    bool always = bases != ~0u; // a base is at most 243, which the compiler does not know
    load(0);
    codes.unpack(0, a[0], again);
    codes.unpack(1, a[0], again);
    MOTE_ROLLED
    for (int unit = 0; unit < T::UNITS; unit++) {
        u32 stage = ring.stage(), b = stage >> 4 | 1u << 16, scale = stage + S::SCALE + 8 * t, empty = ring.empty();
        bool more = unit + 1 < T::UNITS;
        MOTE_UNROLL
        for (int turn = 0; turn < TURN; turn++) {
            u32(&own)[4][4] = a[AHEAD ? turn % 2 : 0], (&next)[4][4] = a[AHEAD ? 1 - turn % 2 : 0];
            bool is_last = turn == TURN - 1, loads = !is_last || more;
            if (is_last) ring.next();
            if (AHEAD && loads) {
                if (is_last) enter();
                load(is_last ? 0 : turn + 1);
            }
            MOTE_UNROLL
            for (int p = 0; p < PARTS; p++) {
                multiply<N>(part, own, b + p * N * 8);
                if (AHEAD && loads && always) codes.unpack(p, next, again); // under the products: no code moves out of a branch
                products_wait<0>();
                add_unit<N>(acc[turn][p], part, scale + p * N * 4);
            }
            if (!AHEAD && loads) {
                enter();
                load(0);
                codes.unpack(0, next, again);
                codes.unpack(1, next, again);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty);
    }
}
MOTE_FN float row_scale(u32 bases, int turn, int r) { return bits_float(((bases >> (16 * turn + 8 * r) & 255) + MX_BASE_SHIFT) << 23); }

// run(part): with part.n, the tokens of a part of a piece of so many.
template <int N> struct Part {
    static constexpr int n = N;
};
template <class Run> MOTE_FN void with_tokens(int count, Run run)
{
    if constexpr (WIDTH == 128) {
        if (count > 96) return run(Part<64>());
        if (count > 64) return run(Part<48>());
        if (count > 32) run(Part<32>());
        else run(Part<16>());
    } else {
        if (count > 32) run(Part<64>());
        else if (count > 16) run(Part<32>());
        else run(Part<16>());
    }
}

MOTE_FN void prefetch(const void *at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }

// ---- gate and up ----

constexpr int UP_BLOCKS = FF_PAD / 128;

template <int N> MOTE_FN void gate_up_item(const MxLargeGateUp &job, Ring &ring, int4 piece, int unit)
{
    using T = Tile<W0, D_MODEL>;
    int thread = threadIdx.x - FILLERS, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    float acc[TURNS][PARTS][N / 2];
    u32 bases = 0;
    multiply_item<T, N>(ring, acc, bases);
    float *sums = (float *)out_buffer(); // [token][128 rows of gate, of up]
    int first_row = warp / 4 * (TURNS * 64) + warp % 4 * 16 + g;
    MOTE_UNROLL
    for (int slice = 0; slice < PARTS * N / UP_SLICE; slice++) {
        if (slice * UP_SLICE >= piece.z) break;
        meet(1, CONSUMERS);
        MOTE_UNROLL
        for (int turn = 0; turn < TURNS; turn++)
            MOTE_UNROLL
            for (int i = 0; i < UP_SLICE / 2; i++) {
                int at = slice * (UP_SLICE / 2) + i, token = i / 4 * 8 + 2 * t + (i & 1), r = i >> 1 & 1;
                sums[token * UP_ROW + first_row + turn * 64 + 8 * r] = acc[turn][at / (N / 2)][at % (N / 2)] * row_scale(bases, turn, r);
            }
        meet(1, CONSUMERS);
        MOTE_ROLLED
        for (int token = warp; token < min(UP_SLICE, piece.z - slice * UP_SLICE); token += CONSUMERS / 32) {
            float4 gate = *(const float4 *)(sums + token * UP_ROW + 4 * lane), up = *(const float4 *)(sums + token * UP_ROW + 128 + 4 * lane), h;
            h.x = activation(ACTIVATION, LIMIT, gate.x, up.x), h.y = activation(ACTIVATION, LIMIT, gate.y, up.y);
            h.z = activation(ACTIVATION, LIMIT, gate.z, up.z), h.w = activation(ACTIVATION, LIMIT, gate.w, up.w);
            if (unit * 128 + 4 * lane >= N_FF) h = make_float4(0, 0, 0, 0);
            if (mx_put_unit(h, job.h, piece.y + slice * UP_SLICE + token, UP_BLOCKS, unit) && lane == 0) *job.list.wide = 1;
        }
    }
}

// Registers of the roles; a multiple of 8, 64 K together.
MOTE_FN void set_registers(bool fills)
{
    if (fills) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else if (WIDTH == 64) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
}

MOTE_FN void gate_up(const MxLargeGateUp &job)
{
    using T = Tile<W0, D_MODEL>;
    Ring ring;
    int n_piece = ring.begin(job.list), n_item = n_piece * UP_BLOCKS;
    if (threadIdx.x < FILLERS) {
        set_registers(true);
        auto work_of = [&](int item) { return Work(job.list, part_of<false>(job.list, max(min(item / UP_BLOCKS, n_piece - 1), 0), false), 0, 1); };
        Work next = work_of(blockIdx.x);
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            Work work = next;
            next = work_of(item + gridDim.x);
            if (!work.piece.z) continue;
            int unit = item % UP_BLOCKS;
            const u8 *record[2], *base[2];
            MOTE_UNROLL
            for (int i = 0; i < 2; i++) {
                record[i] = work.matrix[i] + (size_t)unit * 8 * T::BYTES;
                base[i] = job.base + (size_t)work.piece.x * BASE_BYTES + i * FF_PAD + unit * 128;
            }
            fill_item<T>(ring, record, base, job.x, work.piece.z, [&](int j) { return job.list.pieces.row_of[work.piece.y + j]; });
        }
    } else {
        set_registers(false);
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = part_of<false>(job.list, item / UP_BLOCKS, false);
            if (item + (int)gridDim.x < n_item) prefetch(job.list.pieces.piece + (item + gridDim.x) / UP_BLOCKS);
            if (!piece.z) continue;
            with_tokens(piece.z, [&](auto part) { gate_up_item<part.n>(job, ring, piece, item % UP_BLOCKS); });
        }
    }
}

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_large_gate_up(const __grid_constant__ MxLargeGateUp job) { gate_up(job); }

// ---- down ----

constexpr int DOWN_BLOCKS = (D_MODEL + ROWS - 1) / ROWS;

MOTE_FN void store_transposed(u32 at, const u32 v[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

// Each group has rows of its own, and goes its own way at the end: one's results leave under the others' products.
template <int N> MOTE_FN void down_item(const MxLargeDown &job, Ring &ring, int4 piece, int first_row)
{
    using T = Tile<W0, N_FF>;
    constexpr int ROW = DOWN_ROW * 2, GROUP_ROWS = TURNS * 64, CHUNKS = GROUP_ROWS / 8; // bytes; rows; 16 bytes each
    int thread = threadIdx.x - FILLERS, group = thread / GROUP, warp = thread / 32 % 4, lane = thread % 32;
    float acc[TURNS][PARTS][N / 2];
    u32 bases = 0;
    multiply_item<T, N>(ring, acc, bases);
    u8 *out = out_buffer() + group * (DOWN_SLICE * ROW);
    u32 to = shared_address(out) + (lane / 16 * 8 + lane % 8) * ROW + warp * 32 + lane / 8 % 2 * 16;
    int at = thread % GROUP, column = first_row + group * GROUP_ROWS + at % CHUNKS * 8;
    MOTE_UNROLL
    for (int slice = 0; slice < PARTS * N / DOWN_SLICE; slice++) {
        if (slice * DOWN_SLICE >= piece.z) break;
        meet(2 + group, GROUP);
        MOTE_UNROLL
        for (int turn = 0; turn < TURNS; turn++) {
            u32 v[4]; // 8 x 8: tokens 0 .. 7 and rows g, rows g + 8; tokens 8 .. 15
            MOTE_UNROLL
            for (int i = 0; i < 4; i++) {
                int r = i & 1, from = slice * (DOWN_SLICE / 2) + (i >> 1) * 4 + 2 * r;
                const float *sum = &acc[turn][from / (N / 2)][from % (N / 2)];
                v[i] = pack_bf16x2(sum[0] * row_scale(bases, turn, r), sum[1] * row_scale(bases, turn, r));
            }
            store_transposed(to + turn * 128, v);
        }
        meet(2 + group, GROUP);
        MOTE_UNROLL
        for (int i = 0; i < DOWN_SLICE * CHUNKS / GROUP; i++) {
            int token = at / CHUNKS + i * (GROUP / CHUNKS);
            if (slice * DOWN_SLICE + token < piece.z && column < D_MODEL)
                *(uint4 *)(job.flat + (size_t)(piece.y + slice * DOWN_SLICE + token) * D_MODEL + column) =
                    *(const uint4 *)(out + token * ROW + at % CHUNKS * 16);
        }
    }
}

MOTE_FN void down(const MxLargeDown &job)
{
    using T = Tile<W0, N_FF>;
    Ring ring;
    int n_piece = ring.begin(job.list), n_item = n_piece * DOWN_BLOCKS;
    if (threadIdx.x < FILLERS) {
        set_registers(true);
        auto work_of = [&](int item) { return Work(job.list, part_of<false>(job.list, max(min(item / DOWN_BLOCKS, n_piece - 1), 0), false), 2, 2); };
        Work next = work_of(blockIdx.x);
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            Work work = next;
            next = work_of(item + gridDim.x);
            if (!work.piece.z) continue;
            int block = item % DOWN_BLOCKS;
            const u8 *record[2], *base[2];
            MOTE_UNROLL
            for (int i = 0; i < 2; i++) {
                record[i] = work.matrix[i] + (size_t)(block * TILES + i * 8) * T::BYTES;
                base[i] = job.base + (size_t)work.piece.x * BASE_BYTES + BASE_DOWN + block * ROWS + i * 128;
            }
            fill_item<T>(ring, record, base, job.h, work.piece.z, [&](int j) { return work.piece.y + j; });
        }
    } else {
        set_registers(false);
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = part_of<false>(job.list, item / DOWN_BLOCKS, false);
            if (item + (int)gridDim.x < n_item) prefetch(job.list.pieces.piece + (item + gridDim.x) / DOWN_BLOCKS);
            if (!piece.z) continue;
            with_tokens(piece.z, [&](auto part) { down_item<part.n>(job, ring, piece, item % DOWN_BLOCKS * ROWS); });
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_large_down(const __grid_constant__ MxLargeDown job) { down(job); }
