// mx_small.cu: the expert block of MXFP4 weights for experts with few tokens (up to 8 a piece), sm_90: bound by memory, so
// weights stream through a ring of shared memory at its speed.
//
//   mx_small_gate_up   h = activation(gate x, up x), quantised, of pairs (row, expert) in the order of experts
//   mx_small_down      flat[pair] = down h, f32 or bf16, to be weighed and summed in the order of a row's experts (prefill_step.cu)
//
// Products are integers: e2m1 doubled is a whole number, so a sum over a block of 32 is exact, and both scales are met once a
// block: any scales are right, of weights and of activations.
//
// A stage is 64 rows of weights x 512 columns and the piece's tokens. Four warps fill; sixteen multiply, in groups of four that
// take every fourth stage: of gate_up a part of the columns (sums meet at the piece's end), of down 64 rows of their own.
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION, LIMIT (expert.cuh); MX_SHARED, bytes of a block's
// shared memory.
#include "expert.cuh"
#include "mx_act.cuh"
#include "mx_ring.cuh"
#include "tile.cuh"

constexpr int GROUPS = 4, GROUP_THREADS = 128, CONSUMERS = GROUPS * GROUP_THREADS, FILLERS = 128, BLOCK = CONSUMERS + FILLERS;
constexpr int TILES = 4, STAGE_UNITS = 4, MOST = SMALL_PIECE; // tiles and units of a stage, tokens of a piece
constexpr int CODE_BYTES = TILES * STAGE_UNITS * 1024, SCALE_BYTES = TILES * STAGE_UNITS * 64;
constexpr int ROW_UNIT = 128, ROW_BYTES = STAGE_UNITS * ROW_UNIT + 32; // + 32: eight rows' words in all banks
constexpr int ROW_SCALE = STAGE_UNITS * 16 + 16;
constexpr int AT_SCALE = CODE_BYTES, AT_ROW = AT_SCALE + SCALE_BYTES, AT_ROW_SCALE = AT_ROW + MOST * ROW_BYTES;
constexpr int STAGE_BYTES = AT_ROW_SCALE + MOST * ROW_SCALE;
constexpr int SUM_ROW = 64 + 4, SUM_BYTES = 2 * GROUPS * MOST * SUM_ROW * 4; // [2][group][token][rows]: of gate_up
constexpr int STAGES = (int)((MX_SHARED - SUM_BYTES - 1024) / STAGE_BYTES);
constexpr bool GATED = is_gated(ACTIVATION);
constexpr int HIDDEN = GATED ? 32 : 64; // columns of h that a block makes at once

struct MxGateUp {
    MxList list;
    MxRows x;       // [rows]
    MxRows h;       // [n_pair]
    float *partial; // [grid][MOST][64], of blocks that share an item; null: none is shared
    int *done;      // [grid], zero: how many of an item's parts are there
};
struct MxDown {
    MxList list;
    MxRows h;   // [n_pair]
    void *flat; // [n_pair][D_MODEL] f32, or bf16
    int is_bf16;
};

typedef Stages<STAGES, STAGE_BYTES> Ring;
typedef Sent<STAGES, STAGES - GROUPS - 1> Filled; // a stage for each group, the others on their way

// The kernels' beginning: returns how many parts of pieces there are to look at.
MOTE_FN int ring_start(Ring &ring, const MxList &list, bool &all_wide)
{
    u32 at = shared_address(shared);
    ring.start(at + SUM_BYTES, at + SUM_BYTES + STAGES * STAGE_BYTES);
    if (threadIdx.x == 0) ring.init(FILLERS / 32, GROUP_THREADS / 32);
    chain_launch();
    chain_wait();
    all_wide = list.is_rest && *list.wide; // written before this kernel alone
    __syncthreads();
    return list.is_rest && !all_wide && !list.has_wide ? 0 : *list.pieces.n_piece * list.n_part;
}

// The fillers: what a thread copies of every stage of a piece: 16 bytes of each half of a tile's codes, of every AT_ONCEth of the
// tokens, and of scales: of a tile, or of a token. Worked out once for a piece.
template <class T> struct Fill {
    static constexpr int CHUNKS = STAGE_UNITS * ROW_UNIT / 16, AT_ONCE = FILLERS / CHUNKS, EACH = MOST / AT_ONCE;
    static constexpr int ITEM_THREADS = TILES * STAGE_UNITS * 4, HALVES = STAGE_UNITS * 64 / FILLERS;
    static_assert(FILLERS % CHUNKS == 0 && ITEM_THREADS + MOST * STAGE_UNITS <= FILLERS && STAGE_UNITS * 64 % FILLERS == 0, "");
    static constexpr bool WHOLE = T::UNITS % STAGE_UNITS == 0; // no stage has fewer units
    const u8 *code[2], *scale, *row; // code: of the first two tiles, of the others
    u32 token[EACH], at_code, at_scale, at_row, of_unit, of_part; // of_*: bytes to the scales of the next
    bool has_scale, has_token[EACH];
    int thread, scale_unit;

    // `first` and `second`: two neighbouring tiles each.
    template <class RowOf> MOTE_FN Fill(const u8 *first, const u8 *second, const MxRows &rows, int count, RowOf row_of)
    {
        thread = opaque(threadIdx.x % FILLERS); // out of sight: it would be worked out again for every copy
        at_code = opaque(thread * 16), code[0] = first + thread * 16, code[1] = second + thread * 16;
        if (thread < ITEM_THREADS) {
            int tile = thread / (STAGE_UNITS * 4), at = thread % (STAGE_UNITS * 4);
            scale = (tile < 2 ? first : second) + tile % 2 * T::BYTES + T::AT_SCALE + at * 16, of_unit = 64, of_part = TILES * T::BYTES;
            at_scale = AT_SCALE + tile * (STAGE_UNITS * 64) + at * 16, scale_unit = at / 4, has_scale = true;
        } else {
            int j = (thread - ITEM_THREADS) / STAGE_UNITS, at = thread % STAGE_UNITS;
            scale = (const u8 *)(rows.scale + ((size_t)row_of(min(j, count - 1)) * T::UNITS + at) * 4), of_unit = 16, of_part = 0;
            at_scale = AT_ROW_SCALE + j * ROW_SCALE + at * 16, scale_unit = at, has_scale = j < count;
        }
        row = (const u8 *)rows.q, at_row = opaque(AT_ROW + thread / CHUNKS * ROW_BYTES + thread % CHUNKS * 16);
        MOTE_UNROLL
        for (int i = 0; i < EACH; i++) {
            int j = thread / CHUNKS + i * AT_ONCE;
            has_token[i] = j < count;
            token[i] = opaque((u32)row_of(min(j, count - 1)) * (T::UNITS * ROW_UNIT) + thread % CHUNKS * 16);
        }
    }

    // The stage of units unit ..; part: which four tiles from the first on.
    MOTE_FN void stage(const Ring &ring, Filled &filled, int unit, int part)
    {
        int n = min(STAGE_UNITS, T::UNITS - unit);
        u32 to = ring.stage(), code_at = unit * 1024 + part * (u32)(TILES * T::BYTES);
        const u8 *units = row + unit * ROW_UNIT;
        ring.wait_empty();
        MOTE_UNROLL
        for (int i = 0; i < TILES; i++)
            MOTE_UNROLL
            for (int j = 0; j < HALVES; j++)
                if (WHOLE || thread + j * FILLERS < n * 64)
                    stage_copy(to + at_code + i * (STAGE_UNITS * 1024) + j * (FILLERS * 16), code[i / 2] + code_at + i % 2 * T::BYTES + j * (FILLERS * 16));
        if (has_scale && (WHOLE || scale_unit < n)) stage_copy(to + at_scale, scale + (unit * of_unit + part * of_part));
        MOTE_UNROLL
        for (int i = 0; i < EACH; i++)
            if (has_token[i] && (WHOLE || thread % CHUNKS < n * (ROW_UNIT / 16))) stage_copy(to + at_row + i * (AT_ONCE * ROW_BYTES), units + token[i]);
        filled.add();
    }
};

constexpr u32 MAGIC = 0x4B400000; // 1.5 * 2^23: below it integers of 22 bits are floats
MOTE_FN float whole(int v) { return bits_float((u32)v) - bits_float(MAGIC); } // v: MAGIC and an integer

// A unit of a warp's tile: codes as operands, and the scales of sub-block lane % 4, rows g and g + 8.
template <class T> MOTE_FN void unpack(u32 code, u32 item, u32 (&a)[4][4], float (&scale)[2])
{
    typename T::Raw raw;
    uint4 first = shared16(code), second = shared16(code + 512);
    raw.code[0] = first.x, raw.code[1] = first.y, raw.code[2] = first.z, raw.code[3] = first.w;
    raw.code[4] = second.x, raw.code[5] = second.y, raw.code[6] = second.z, raw.code[7] = second.w;
    u32 both = shared2(item);
    MOTE_UNROLL
    for (int r = 0; r < 2; r++) {
        u32 bits = (both << (r ? 15 : 23)) & 0x7F800000;
        scale[r] = bits_float(max(bits, 0x00400000)); // 0 is the subnormal 2^-127
    }
    T::template codes<false>(raw, nullptr, threadIdx.x % 32, a);
}

// acc[2 r + j] += a stage: row g + 8 r of the warp's tile, token 2 t + j.
template <class T> MOTE_FN void multiply_tokens(u32 code, u32 item, u32 row, u32 row_scale, int n_unit, float (&acc)[4])
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    row += g * ROW_BYTES + 8 * t, row_scale += 2 * t * ROW_SCALE;
    MOTE_ROLLED
    for (int u = 0; u < n_unit; u++) {
        u32 a[4][4];
        float own[2], x_scale[2][4];
        unpack<T>(code + u * 1024, item + u * 64, a, own);
        MOTE_UNROLL
        for (int j = 0; j < 2; j++) {
            uint4 v = shared16(row_scale + j * ROW_SCALE + u * 16);
            x_scale[j][0] = bits_float(v.x), x_scale[j][1] = bits_float(v.y), x_scale[j][2] = bits_float(v.z), x_scale[j][3] = bits_float(v.w);
        }
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) {
            float scale[2];
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) scale[r] = __shfl_sync(~0u, own[r], (lane & 28) | s);
            uint2 b = shared8(row + u * ROW_UNIT + s * 32);
            int c[4] = {(int)MAGIC, (int)MAGIC, (int)MAGIC, (int)MAGIC};
            mma_s8(c, a[s], b.x, b.y);
            MOTE_UNROLL
            for (int j = 0; j < 4; j++) acc[j] = __fmaf_rn(scale[j >> 1], whole(c[j]) * x_scale[j & 1][s], acc[j]);
        }
    }
}

// The same for a piece of FEW tokens: the eight columns of a product are then the four sub-blocks of each of them, one not 0 at a
// time, so that scales are met once a unit, each by the lane that has them. What is added to acc is sub-block t's share.
constexpr int FEW = 2;
template <class T> MOTE_FN void multiply_few(u32 code, u32 item, u32 row, u32 row_scale, int n_unit, float (&acc)[4])
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4; // column g: sub-block g / 2, token g % 2
    row += g % 2 * ROW_BYTES + g / 2 * 32 + 8 * t, row_scale += 4 * t;
    u32 is[4];
    MOTE_UNROLL
    for (int s = 0; s < 4; s++) is[s] = opaque(g / 2 == s);
#pragma unroll 2
    for (int u = 0; u < n_unit; u++) {
        u32 a[4][4];
        float own[2];
        unpack<T>(code + u * 1024, item + u * 64, a, own);
        uint2 x = shared8(row + u * ROW_UNIT);
        int c[4] = {(int)MAGIC, (int)MAGIC, (int)MAGIC, (int)MAGIC};
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) mma_s8(c, a[s], x.x * is[s], x.y * is[s]);
        float x_scale[2];
        MOTE_UNROLL
        for (int j = 0; j < FEW; j++) x_scale[j] = bits_float(shared4(row_scale + j * ROW_SCALE + u * 16));
        MOTE_UNROLL // scale by scale: a block of zeros may have any, and 0 times their product could be no number
        for (int r = 0; r < 2; r++)
            MOTE_UNROLL
            for (int j = 0; j < FEW; j++) acc[2 * r + j] = __fmaf_rn(own[r], x_scale[j] * whole(c[2 * r + j]), acc[2 * r + j]);
    }
}

// A stage of `count` tokens.
template <class T> MOTE_FN void multiply(u32 stage, int n_unit, int count, float (&acc)[4])
{
    int lane = threadIdx.x % 32, tile = threadIdx.x / 32 % TILES;
    u32 code = stage + tile * (STAGE_UNITS * 1024) + lane * 16;
    u32 item = stage + AT_SCALE + tile * (STAGE_UNITS * 64) + lane % 4 * 16 + lane / 4 * 2;
    if (count <= FEW) multiply_few<T>(code, item, stage + AT_ROW, stage + AT_ROW_SCALE, n_unit, acc);
    else multiply_tokens<T>(code, item, stage + AT_ROW, stage + AT_ROW_SCALE, n_unit, acc);
}
// After the last: sums as multiply_tokens leaves them, of tokens 0 and 1 in lanes with t 0.
MOTE_FN void add_sub_blocks(int count, float (&acc)[4])
{
    if (count > FEW) return;
    MOTE_UNROLL
    for (int i = 0; i < 4; i++) {
        acc[i] += __shfl_xor_sync(~0u, acc[i], 1);
        acc[i] += __shfl_xor_sync(~0u, acc[i], 2);
    }
}

constexpr int STEPS_UP = (Tile<W0, D_MODEL>::UNITS + STAGE_UNITS - 1) / STAGE_UNITS;
constexpr int UP_BLOCKS = (N_FF + HIDDEN - 1) / HIDDEN, UNITS_H = (N_FF + 127) / 128;

// Who takes what of gate and up. Few pairs make few items, and where some blocks would take one more than the others, all of them share
// these last ones: each some of an item's columns, whose sums the last to be done adds up.
struct Turns {
    int n_item, n_whole, n_share; // n_share: blocks of an item that is shared, else 0
    MOTE_FN Turns(const MxGateUp &job, int items) : n_item(items), n_whole(items), n_share(0)
    {
        int grid = gridDim.x, rest = n_item % grid, share = rest ? min(grid / rest, STEPS_UP) : 0;
        if (job.partial && n_item > grid && n_item < 8 * grid && share > 1) n_whole -= rest, n_share = share;
    }
    // This block's turn number `turn`: an item and its steps; none from n_item on.
    struct Turn {
        int item, begin, end;
        MOTE_FN bool is_shared() const { return end - begin < STEPS_UP; }
    };
    MOTE_FN Turn at(int turn) const
    {
        int item = blockIdx.x + turn * gridDim.x, part = item - n_whole;
        if (part < 0) return {item, 0, STEPS_UP};
        if (!n_share || part >= (n_item - n_whole) * n_share) return {n_item, 0, STEPS_UP};
        item = n_whole + part / n_share, part %= n_share;
        return {item, part * STEPS_UP / n_share, (part + 1) * STEPS_UP / n_share};
    }
};

// What the consumers have written is there for other blocks: is this the last of so many that were waited for?
MOTE_FN bool is_last_part(int *done, int n)
{
    int *is_last = (int *)(shared + SUM_BYTES - 16); // behind the last row's sums
    __threadfence();
    meet(1, CONSUMERS);
    if (threadIdx.x == 0) *is_last = atomicAdd(done, 1) == n - 1;
    meet(1, CONSUMERS);
    __threadfence();
    return *is_last;
}

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_small_gate_up(const __grid_constant__ MxGateUp job)
{
    using T = Tile<W0, D_MODEL>;
    Ring ring;
    bool all_wide;
    int n_part = ring_start(ring, job.list, all_wide), n_item = n_part * UP_BLOCKS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / TILES;
    const Turns turns(job, n_item);
    if (threadIdx.x >= CONSUMERS) {
        auto piece_at = [&](int turn) { return small_part(job.list, max(min(turns.at(turn).item / UP_BLOCKS, n_part - 1), 0), all_wide); };
        Work next(job.list, piece_at(0), !GATED, 1);
        int4 ahead = piece_at(1);
        Filled filled;
        filled.start(ring.barriers);
        MOTE_ROLLED
        for (int turn = 0;; turn++) {
            const Turns::Turn mine = turns.at(turn);
            if (mine.item >= n_item) break;
            Work work = next;
            next = Work(job.list, ahead, !GATED, 1), ahead = piece_at(turn + 2);
            if (work.piece.z <= 0) continue;
            size_t tile = mine.item % UP_BLOCKS * (HIDDEN / 16);
            const u8 *first = work.matrix[0] + tile * T::BYTES, *second = work.matrix[1] + (tile + (GATED ? 0 : 2)) * T::BYTES;
            Fill<T> fill(first, second, job.x, work.piece.z, [&](int j) { return job.list.pieces.row_of[work.piece.y + j]; });
            MOTE_ROLLED
            for (int step = mine.begin; step < mine.end; step++, ring.next()) fill.stage(ring, filled, step * STAGE_UNITS, 0);
        }
        filled.finish();
        return;
    }
    int at = 0, other = 0; // stages before this piece; which sums
    auto piece_at = [&](int turn) {
        int item = turns.at(turn).item;
        return item < n_item ? small_part(job.list, item / UP_BLOCKS, all_wide) : make_int4(0, 0, 0, 0);
    };
    int4 next = piece_at(0);
    MOTE_ROLLED
    for (int turn = 0;; turn++) {
        const Turns::Turn mine = turns.at(turn);
        if (mine.item >= n_item) break;
        int4 piece = next;
        next = piece_at(turn + 1); // on its way meanwhile
        if (piece.z <= 0) continue;
        float acc[4] = {0, 0, 0, 0};
        MOTE_ROLLED
        for (int step = 0; step < STEPS_UP; step++) { // (with bounds of its own every address would be each thread's, in 35 instructions)
            if (step < mine.begin || step >= mine.end) continue;
            if (at++ % GROUPS == group) {
                ring.wait_full();
                multiply<T>(ring.stage(), min(STAGE_UNITS, T::UNITS - step * STAGE_UNITS), piece.z, acc);
                __syncwarp();
                if (lane == 0) barrier_arrive(ring.empty());
            }
            ring.next();
        }
        add_sub_blocks(piece.z, acc);
        int g = lane / 4, t = lane % 4;
        float *sums = (float *)shared + other * (GROUPS * MOST * SUM_ROW); // in turn: those of the item before may still be read
        other ^= 1;
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) sums[(group * MOST + 2 * t + (i & 1)) * SUM_ROW + warp % TILES * 16 + g + (i >> 1) * 8] = acc[i];
        meet(1, CONSUMERS);
        auto sum_here = [&](int row) {
            float v = 0;
            MOTE_UNROLL
            for (int i = 0; i < GROUPS; i++) v += sums[(i * MOST + warp) * SUM_ROW + row];
            return v;
        };
        bool writes = warp < piece.z; // a warp a token
        if (mine.is_shared()) {
            const float *all = job.partial + (size_t)((blockIdx.x - blockIdx.x % turns.n_share) * MOST + warp) * 64; // the first part's
            if (writes) {
                MOTE_UNROLL
                for (int row = lane; row < 64; row += 32) job.partial[(size_t)(blockIdx.x * MOST + warp) * 64 + row] = sum_here(row);
            }
            writes &= is_last_part(job.done + mine.item - turns.n_whole, turns.n_share);
            if (writes) {
                float v[2] = {0, 0};
                MOTE_ROLLED
                for (int i = 0; i < turns.n_share; i++)
                    MOTE_UNROLL
                    for (int r = 0; r < 2; r++) v[r] += __ldcg(all + i * (MOST * 64) + lane + 32 * r);
                MOTE_UNROLL
                for (int r = 0; r < 2; r++)
                    MOTE_UNROLL
                    for (int i = 0; i < GROUPS; i++) sums[(i * MOST + warp) * SUM_ROW + lane + 32 * r] = i ? 0 : v[r];
            }
            __syncwarp();
        }
        if (writes) { // a lane a column
            auto sum = [&](int row) { return sum_here(row) * T::POWER; };
            int block = mine.item % UP_BLOCKS, end = block == UP_BLOCKS - 1 ? UNITS_H * 128 - block * HIDDEN : HIDDEN;
            MOTE_ROLLED
            for (int c = lane; c < end; c += 32) {
                int column = block * HIDDEN + c;
                float v = 0;
                if (column < N_FF) {
                    float up = sum(GATED ? 32 + c : c);
                    v = activation(ACTIVATION, LIMIT, GATED ? sum(c) : up, up);
                }
                mx_put_block(v, job.h, piece.y + warp, UNITS_H, column / 32);
            }
        }
    }
}

constexpr int STEPS_DOWN = (Tile<W0, N_FF>::UNITS + STAGE_UNITS - 1) / STAGE_UNITS;
constexpr int DOWN_BLOCKS = (D_MODEL + GROUPS * 64 - 1) / (GROUPS * 64);

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_small_down(const __grid_constant__ MxDown job)
{
    using T = Tile<W0, N_FF>;
    Ring ring;
    bool all_wide;
    int n_part = ring_start(ring, job.list, all_wide), n_item = n_part * DOWN_BLOCKS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / TILES;
    if (threadIdx.x >= CONSUMERS) {
        auto piece_at = [&](int item) { return small_part(job.list, max(min(item / DOWN_BLOCKS, n_part - 1), 0), all_wide); };
        Work next(job.list, piece_at(blockIdx.x), 2, 2);
        int4 ahead = piece_at(blockIdx.x + gridDim.x);
        Filled filled;
        filled.start(ring.barriers);
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            Work work = next;
            next = Work(job.list, ahead, 2, 2), ahead = piece_at(item + 2 * gridDim.x);
            if (work.piece.z <= 0) continue;
            const u8 *record = work.matrix[0] + (size_t)(item % DOWN_BLOCKS * GROUPS * TILES) * T::BYTES;
            Fill<T> fill(record, record + 2 * T::BYTES, job.h, work.piece.z, [&](int j) { return work.piece.y + j; });
            MOTE_ROLLED
            for (int unit = 0; unit < T::UNITS; unit += STAGE_UNITS)
                MOTE_ROLLED
                for (int part = 0; part < GROUPS; part++, ring.next())
                    fill.stage(ring, filled, unit, part);
        }
        filled.finish();
        return;
    }
    ring.next(group);
    auto piece_at = [&](int item) { return item < n_item ? small_part(job.list, item / DOWN_BLOCKS, all_wide) : make_int4(0, 0, 0, 0); };
    int4 next = piece_at(blockIdx.x);
    MOTE_ROLLED
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        int4 piece = next;
        next = piece_at(item + gridDim.x); // on its way meanwhile
        if (piece.z <= 0) continue;
        float acc[4] = {0, 0, 0, 0};
        MOTE_ROLLED
        for (int step = 0; step < STEPS_DOWN; step++, ring.next(GROUPS)) {
            ring.wait_full();
            multiply<T>(ring.stage(), min(STAGE_UNITS, T::UNITS - step * STAGE_UNITS), piece.z, acc);
            __syncwarp();
            if (lane == 0) barrier_arrive(ring.empty());
        }
        add_sub_blocks(piece.z, acc);
        int g = lane / 4, t = lane % 4, tile = item % DOWN_BLOCKS * (GROUPS * TILES) + warp;
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) {
            int token = 2 * t + (i & 1), row = tile * 16 + g + (i >> 1) * 8;
            if (token >= piece.z || row >= D_MODEL) continue;
            size_t to = (size_t)(piece.y + token) * D_MODEL + row;
            if (job.is_bf16) ((u16 *)job.flat)[to] = (u16)pack_bf16x2(acc[i] * T::POWER, 0);
            else ((float *)job.flat)[to] = acc[i] * T::POWER;
        }
    }
}
