// moe_decode.cu: the expert block for few rows (1 to 64), in two dependent stages, experts found on the device.
//
//   gate_up   h[pair] = activation(gate_e(x), up_e(x)), quantised where it is made    (W0 gate, W1 up; K = d_model)
//   down      y[row] = residual + sum over slots of weight * down_e(h[pair])    (W2; K2 = n_ff)
//
// A pair is (row, slot), numbered row * n_used + slot. One row (`_one`): every pair is computed for itself. More rows
// (`_many`): pairs of one expert are found by looking at the ids, by every block for itself, and share its weights; at
// most MAX_PAIRS lie in one shared array. Expert weights are reached through the slot table alone:
// [n_expert][gate, up, down] addresses. Experts without a gate have half the warps in gate_up, and no kernel reads their
// first address.
// moe_reference.cu is the same one product at a time: the same bits.
// The experts of one row need not be chosen before: a block of either kernel makes the choice for itself, from the logits
// (choose.cuh). A block of gate_up goes as far as its own pair; one that goes to the end leaves ids and weights in memory.
// Constants: GATE, UP, DOWN (template arguments of Tile<> before the columns; without a gate GATE is UP), D_MODEL, N_FF,
// ACTIVATION, LIMIT (expert.cuh); those of route.cu, N_EXPERT 0: ids are always there.
#include "common.cuh"
#include "act.cuh"
#include "expert.cuh"
#include "dot.cuh"
#include "choose.cuh"

constexpr int MANY_ROWS = 4; // rows of an expert that share a pass over its weights
constexpr int MAX_PAIRS = 1024; // CUDA_DECODE_PAIRS of cuda_backend.h
constexpr int FF_PAD = (N_FF + 127) / 128 * 128;
using Gate = Tile<GATE, D_MODEL>;
using Up = Tile<UP, D_MODEL>;
using Down = Tile<DOWN, N_FF>;
constexpr bool CHOOSES = N_EXPERT > 0;
using Chosen = Choice<CHOOSES ? N_EXPERT : 1, CHOOSES ? N_USED : 1, SCORE, N_GROUP, N_GROUP_USED, RENORMALISE>;

__device__ __forceinline__ int valid_expert(const int *ids, int pair, int n_expert)
{
    int id = ids ? ids[pair] : 0;
    return id < 0 || id >= n_expert ? 0 : id;
}

__device__ __forceinline__ void check_expert(const int *ids, int pair, int n_expert, mote_step_fault *fault)
{
    if (ids && (ids[pair] < 0 || ids[pair] >= n_expert) && atomicCAS(&fault->code, 0, MOTE_STEP_EXPERT) == 0)
        fault->row = pair, fault->value = ids[pair];
}

// Where an expert's gate, up, down (0, 1, 2) is; the table passes through L1.
__device__ __forceinline__ const u8 *matrix_of(const u64 *slot, int expert, int which)
{
    uint2 v = keep8(slot + expert * 3 + which);
    return (const u8 *)((u64)v.y << 32 | v.x);
}

// The slot table to L1, before the ids are known: it is older than any step.
__device__ __forceinline__ void expect_slots(const u64 *slot, int n_expert)
{
    for (int i = threadIdx.x * 16; i < n_expert * 3; i += blockDim.x * 16) keep4(slot + i);
}

// ---- stage one ----

// A block makes 32 values of h: two tiles x SIDES (gate and up, or up) x SPLIT warps.
constexpr int SIDES = is_gated(ACTIVATION) ? 2 : 1;
constexpr int SPLIT = up_split(Gate::UNITS);
constexpr int UP_WARPS = 2 * SIDES * SPLIT, UP_THREADS = UP_WARPS * 32;
constexpr int UP_BLOCKS = (Gate::SUBS * Up::SUBS > 1 ? 512 : 1024) / UP_THREADS;
constexpr bool SAME = Same<Gate, Up>::value;

template <int ROWS> struct UpParts {
    float part[2][SIDES][SPLIT][ROWS * 16]; // [tile][side][split][r][row of the tile]

    // h of row `lane` of the block's 32, for row r: the same order of sums wherever it is made.
    __device__ __forceinline__ float hidden(int lane, int r) const
    {
        float g = 0, u = 0;
#pragma unroll
        for (int k = 0; k < SPLIT; k++) {
            if (SIDES == 2) g += part[lane / 16][0][k][r * 16 + lane % 16];
            u += part[lane / 16][SIDES - 1][k][r * 16 + lane % 16];
        }
        return activation(ACTIVATION, LIMIT, g, u);
    }
};

// Where the weights of a block's side are.
__device__ __forceinline__ const u8 *side_of(const u64 *slot, int expert, int side)
{
    return matrix_of(slot, expert, 2 - SIDES + side);
}

// Grid: (FF_PAD / 32, n_used). With logits in `choice` ids is null.
extern "C" __global__ void __launch_bounds__(UP_THREADS, UP_BLOCKS)
    gate_up_one(const u64 *slot, int n_expert, const int *ids, const __grid_constant__ mote_step_act x, int n_pair, int n_used,
                const __grid_constant__ mote_step_act h, int pair_base, mote_step_fault *fault,
                const __grid_constant__ ChoiceJob choice)
{
    __shared__ Chosen chosen;
    __shared__ UpParts<1> parts;
    __shared__ SharedRows<Gate::UNITS, 1> row;
    __shared__ __align__(16) u32 lut_gate[Gate::LUT_WORDS ? Gate::LUT_WORDS : 1];
    __shared__ __align__(16) u32 lut_up[!SAME && Up::LUT_WORDS ? Up::LUT_WORDS : 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.y;
    int side = warp / SPLIT % SIDES, tile = warp / SPLIT / SIDES, first = warp % SPLIT, ff_tile = blockIdx.x * 2 + tile;
    if (Gate::LUT_WORDS) Gate::fill(lut_gate, threadIdx.x, blockDim.x);
    if (!SAME && Up::LUT_WORDS) Up::fill(lut_up, threadIdx.x, blockDim.x);
    expect_slots(slot, n_expert);
    chain_wait();
    chain_launch(); // only now: `down` reads the ids, or the logits, before it waits for this kernel
    row.take(0, x, 0); // on its way while the slot is looked up
    bool chooses = CHOOSES && choice.logits;
    if (chooses) { // in order: those of the last pair are all
        if (warp == 0) chosen.choose(choice.logits, choice.bias, pair + 1, 0, choice.layer, fault);
        __syncthreads();
    }
    const u8 *matrix = side_of(slot, chooses ? chosen.ids[pair] : valid_expert(ids, pair, n_expert), side);
    auto row_is_there = [] {
        copy_wait<0>();
        __syncthreads();
    };
    bool there = ff_tile < (N_FF + 15) / 16;
    Sums<1> sums = {};
    LaneRows<1> zero(0, 1, lane);
    if (!there) {
        row_is_there();
    } else if (SAME || side == 0) {
        const Share<Gate, SPLIT> share(first, lane);
        Dot<Gate, 1, SPLIT> dot;
        const u8 *record = matrix + (size_t)ff_tile * Gate::BYTES;
        dot.start(record, share);
        row_is_there();
        dot.run(record, share, lut_gate, row.view(), zero, 1, sums);
    } else {
        const Share<Up, SPLIT> share(first, lane);
        Dot<Up, 1, SPLIT> dot;
        const u8 *record = matrix + (size_t)ff_tile * Up::BYTES;
        dot.start(record, share);
        row_is_there();
        dot.run(record, share, lut_up, row.view(), zero, 1, sums);
    }
    reduce(sums, lane, parts.part[tile][side][first]);
    if (threadIdx.x == 0) check_expert(ids, pair, n_expert, fault);
    __syncthreads();
    if (warp == 0) quantise32(parts.hidden(lane, 0), h, FF_PAD / 128, pair_base + pair, blockIdx.x);
    else if (chooses && warp == 1 && blockIdx.x == 0 && pair == n_used - 1)
        chosen.leave(choice.scale, 0, choice.ids, choice.weights);
}

// Tiles f = blockIdx.x, + gridDim.x, .. of h for the pairs member[0 .. n): one kind's side of the block. The weights of
// the next tile are asked for before this one's sums are put together.
template <class T, int ROWS>
__device__ __forceinline__ void up_tiles(const u8 *matrix, int tile, int side, int first, const u32 *lut, const mote_step_act &x,
                                         bool is_staged, int n, UpParts<MANY_ROWS> *parts, const mote_step_act &h,
                                         const int *member, int n_used, int pair_base)
{
    constexpr int TURNS = ROWS == 1 ? MANY_ROWS : 1; // tiles between two barriers: of one row, in the places of several
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
    const int last = (N_FF + 15) / 16 - 1; // tiles past the end: the last one again, and 0 to the sums
    LaneRows<ROWS> row(0, n, lane);
    if (!is_staged) row.b[0] = member[row.b[0]] / n_used, row.c[0] = member[row.c[0]] / n_used;
    const Share<T, SPLIT> share(first, lane);
    // With 32 warps on a multiprocessor a unit of 40 bytes a lane is enough on its way; more costs registers.
    Dot<T, ROWS, SPLIT, (sizeof(typename T::Raw) > 28 ? 1 : 2)> dot;
    const u8 *record = matrix + (size_t)min((int)blockIdx.x * 2 + tile, last) * T::BYTES;
    dot.start(record, share);
    for (int f = blockIdx.x; f < FF_PAD / 32; buffer ^= 1) {
        int turn = 0;
#pragma unroll 1
        do {
            Sums<ROWS> sums;
            const u8 *next = nullptr;
            int at = f * 2 + tile, to = at + (int)gridDim.x * 2;
            f += gridDim.x;
            if (f < FF_PAD / 32) next = record + (long long)(min(to, last) - min(at, last)) * (int)T::BYTES;
            dot.run(record, share, lut, x, row, n, sums, next);
            record = next;
            if (at > last) sums = {};
            if (!dot.CONTINUES && next) dot.start(next, share);
            reduce(sums, lane, parts[buffer].part[tile][side][first] + turn * 16);
        } while (++turn < TURNS && f < FF_PAD / 32);
        __syncthreads(); // the other buffer is free again when all have come here
#pragma unroll
        for (int i = warp; i < MANY_ROWS; i += UP_WARPS) // once, where there are as many warps as rows
            if (i < (ROWS == 1 ? turn : n))
                quantise32(parts[buffer].hidden(lane, i), h, FF_PAD / 128, pair_base + member[ROWS == 1 ? 0 : i],
                           f - (ROWS == 1 ? turn - i : 1) * (int)gridDim.x);
    }
}

// Grid: (at most FF_PAD / 32, n_pair). Block (., p) works when p is the first pair of its expert, for all of that
// expert's rows.
extern "C" __global__ void __launch_bounds__(UP_THREADS, UP_BLOCKS)
    gate_up_many(const u64 *slot, int n_expert, const int *ids, const __grid_constant__ mote_step_act x_in, int n_pair,
                 int n_used, const __grid_constant__ mote_step_act h, int pair_base, mote_step_fault *fault)
{
    constexpr bool STAGED = Gate::UNITS * 304 * MANY_ROWS <= 24576;
    __shared__ int member[MAX_PAIRS], n_member;
    __shared__ UpParts<MANY_ROWS> parts[2];
    __shared__ SharedRows<STAGED ? Gate::UNITS : 1, STAGED ? MANY_ROWS : 1> rows;
    __shared__ __align__(16) u32 lut_gate[Gate::LUT_WORDS ? Gate::LUT_WORDS : 1];
    __shared__ __align__(16) u32 lut_up[!SAME && Up::LUT_WORDS ? Up::LUT_WORDS : 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, me = blockIdx.y;
    int side = warp / SPLIT % SIDES, tile = warp / SPLIT / SIDES, first = warp % SPLIT;
    chain_wait();
    chain_launch(); // only now: `down` reads the ids before it waits for this kernel
    int expert = valid_expert(ids, me, n_expert);
    keep4(slot + expert * 3 + 2 - SIDES + side); // to L1 while pairs are looked at
    if (warp == 0) { // the pairs of this expert; the first of them works
        int n = 0;
        for (int base = 0; base < n_pair; base += 32) {
            bool same = base + lane < n_pair && valid_expert(ids, base + lane, n_expert) == expert;
            u32 mask = __ballot_sync(~0u, same);
            if (same) member[n + __popc(mask & ((1u << lane) - 1))] = base + lane;
            n += __popc(mask);
        }
        if (lane == 0) {
            n_member = n;
            check_expert(ids, me, n_expert, fault);
        }
    }
    __syncthreads();
    if (member[0] != me) return;
    if (Gate::LUT_WORDS) Gate::fill(lut_gate, threadIdx.x, blockDim.x);
    if (!SAME && Up::LUT_WORDS) Up::fill(lut_up, threadIdx.x, blockDim.x);
    for (int from = 0; from < n_member; from += MANY_ROWS) {
        const u8 *matrix = side_of(slot, valid_expert(ids, me, n_expert), side); // again: a pass keeps few registers
        int n = min(n_member - from, MANY_ROWS);
        mote_step_act x = x_in;
        if (from) __syncthreads(); // rows are still read
        if constexpr (STAGED) {
            for (int r = 0; r < n; r++) rows.take(r, x_in, member[from + r] / n_used);
            x = rows.view();
        }
        copy_wait<0>();
        __syncthreads();
        if (SAME || side == 0) {
            if (n == 1) up_tiles<Gate, 1>(matrix, tile, side, first, lut_gate, x, STAGED, 1, parts, h, member + from, n_used, pair_base);
            else up_tiles<Gate, MANY_ROWS>(matrix, tile, side, first, lut_gate, x, STAGED, n, parts, h, member + from, n_used, pair_base);
        } else {
            if (n == 1) up_tiles<Up, 1>(matrix, tile, side, first, lut_up, x, STAGED, 1, parts, h, member + from, n_used, pair_base);
            else up_tiles<Up, MANY_ROWS>(matrix, tile, side, first, lut_up, x, STAGED, n, parts, h, member + from, n_used, pair_base);
        }
    }
}

// ---- stage two ----

// A block makes 16 columns of y for all rows. Dynamic shared memory: float part[DOWN_SPLIT][n_pair][16], mix[n_pair].
constexpr int DOWN_SPLIT = down_split(Down::UNITS);
constexpr int DOWN_WARPS = 16; // a multiple of DOWN_SPLIT: a warp has the same share in all its jobs
constexpr int DOWN_WARPS_MANY = Down::SUBS == 1 && Down::WORDS0 + Down::WORDS1 < 8 ? 24 : 16; // what registers allow

// Weights of all pairs, for sum_pairs: to shared memory, before a __syncthreads.
__device__ __forceinline__ void take_weights(float *mix, const float *weights, int squash, int n_pair)
{
    for (int p = threadIdx.x; p < n_pair; p += blockDim.x) mix[p] = pair_weight(weights, squash, p);
}

// y[row][d] = residual + sum over slots, rising, of weight * product. residual_of(i): residual of item i of [row][16].
template <class Residual>
__device__ __forceinline__ void sum_pairs(const float *part, const float *mix, int n_row, int n_used, Residual residual_of,
                                          float *y, int d_model)
{
    int n_pair = n_row * n_used;
    for (int i = threadIdx.x; i < n_row * 16; i += blockDim.x) {
        int row = i / 16, d = blockIdx.x * 16 + i % 16;
        if (d >= d_model) continue;
        float sum = residual_of(i);
#pragma unroll 4
        for (int s = 0; s < n_used; s++) {
            int p = row * n_used + s;
            float v = 0;
#pragma unroll
            for (int k = 0; k < DOWN_SPLIT; k++) v += part[(k * n_pair + p) * 16 + i % 16];
            sum = __fmaf_rn(mix[p], v, sum);
        }
        y[(size_t)row * d_model + d] = sum;
    }
}

// Grid: d_model / 16. A warp takes a pair and a share of its columns. With logits in `choice` ids and weights are null.
extern "C" __global__ void __launch_bounds__(DOWN_WARPS * 32, Down::SUBS > 1 ? 1 : 2)
    down_one(const u64 *slot, int n_expert, const int *ids, const float *weights, int squash,
             const __grid_constant__ mote_step_act h, int n_row, int n_used, int pair_base, const float *residual, float *y,
             int d_model, mote_step_fault *fault, const __grid_constant__ ChoiceJob choice)
{
    extern __shared__ float part[];
    __shared__ Chosen chosen;
    __shared__ float before[16]; // the residual
    __shared__ __align__(16) u32 lut[Down::LUT_WORDS ? Down::LUT_WORDS : 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_job = n_used * DOWN_SPLIT, first = warp % DOWN_SPLIT;
    const Share<Down, DOWN_SPLIT> share(first, lane);
    Dot<Down, 1, DOWN_SPLIT> dot;
    // The ids, or the logits, are older than the kernel ahead (gate_up), so the first weights can be asked for while that
    // one runs.
    bool chooses = CHOOSES && choice.logits;
    if (chooses) {
        expect_slots(slot, n_expert);
        if (warp == 0) chosen.choose(choice.logits, choice.bias, n_used, 0, choice.layer, fault);
        __syncthreads();
    }
    auto record_of = [&](int pair) {
        int expert = chooses ? chosen.ids[pair] : valid_expert(ids, pair, n_expert);
        return matrix_of(slot, expert, 2) + (size_t)blockIdx.x * Down::BYTES;
    };
    const u8 *record = 0;
    if (warp < n_job) {
        record = record_of(warp / DOWN_SPLIT);
        dot.start(record, share);
    }
    // So are their weights and the residual.
    float *mix = part + DOWN_SPLIT * n_used * 16;
    if (!chooses) take_weights(mix, weights, squash, n_used);
    else if (warp == 0) chosen.weigh(choice.scale, mix);
    if (threadIdx.x < 16)
        before[threadIdx.x] = residual && (int)(blockIdx.x * 16 + threadIdx.x) < d_model ? residual[blockIdx.x * 16 + threadIdx.x] : 0;
    if (Down::LUT_WORDS) {
        Down::fill(lut, threadIdx.x, blockDim.x);
        __syncthreads();
    }
    chain_wait();
    chain_launch();
    for (int job = warp; job < n_job; job += DOWN_WARPS) {
        int pair = job / DOWN_SPLIT;
        if (job != warp) {
            record = record_of(pair);
            dot.start(record, share);
        }
        LaneRows<1> row(pair_base + pair, 1, lane);
        Sums<1> sums;
        dot.run(record, share, lut, h, row, 1, sums);
        reduce(sums, lane, part + (first * n_used + pair) * 16);
    }
    __syncthreads();
    sum_pairs(part, mix, 1, n_used, [&](int i) { return before[i]; }, y, d_model);
}

template <int ROWS> __device__ __forceinline__ int pick(const int *of, int i)
{
    if (ROWS == 1) return of[0];
    return i < 2 ? (i ? of[1] : of[0]) : (i == 2 ? of[2] : of[3]);
}

// A tile times n <= ROWS rows of h, to part[pair][16]; past n, pairs are the first again.
template <int ROWS>
__device__ __forceinline__ void down_rows(const u8 *record, const Share<Down, DOWN_SPLIT> &share, const u32 *lut,
                                          const mote_step_act &h, const int *pair, int n, int pair_base, float *part)
{
    int lane = share.lane;
    Dot<Down, ROWS, DOWN_SPLIT> dot;
    Sums<ROWS> sums;
    LaneRows<ROWS> row;
    int mine = pick<ROWS>(pair, lane & 3); // the pair of this lane's sums
    row.b[0] = pair_base + pick<ROWS>(pair, lane >> 3), row.c[0] = pair_base + mine;
    dot.start(record, share);
    dot.run(record, share, lut, h, row, n, sums);
    if constexpr (ROWS == 1) {
        reduce(sums, lane, part + mine * 16);
    } else {
        float *to = part + mine * 16 + (lane >> 2);
        const float(*v)[2] = sums.v[0];
        if ((lane & 3) < n) {
            to[0] = (v[0][0] + v[1][0]) + (v[2][0] + v[3][0]);
            to[8] = (v[0][1] + v[1][1]) + (v[2][1] + v[3][1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(DOWN_WARPS_MANY * 32, 1)
    down_many(const u64 *slot, int n_expert, const int *ids_in, const float *weights, int squash,
              const __grid_constant__ mote_step_act h, int n_row, int n_used, int pair_base, const float *residual, float *y,
              int d_model, mote_step_fault *fault)
{
    extern __shared__ float part[];
    // Pairs of an expert hang on a list in any order: what a pair gives does not depend on its neighbours.
    __shared__ int expert_of[MAX_PAIRS], next[MAX_PAIRS], head[1024], leader[MAX_PAIRS];
    __shared__ int n_leader;
    __shared__ __align__(16) u32 lut[Down::LUT_WORDS ? Down::LUT_WORDS : 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_pair = n_row * n_used, first = warp % DOWN_SPLIT;
    const Share<Down, DOWN_SPLIT> share(first, lane);
    if (Down::LUT_WORDS) Down::fill(lut, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) n_leader = 0;
    float *mix = part + DOWN_SPLIT * n_pair * 16;
    take_weights(mix, weights, squash, n_pair);
    for (int i = threadIdx.x; i < n_pair; i += blockDim.x) { // the ids are older than the kernel ahead
        expert_of[i] = valid_expert(ids_in, i, n_expert);
        head[expert_of[i]] = -1;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_pair; i += blockDim.x) next[i] = atomicExch(&head[expert_of[i]], i);
    __syncthreads();
    for (int i = threadIdx.x; i < n_pair; i += blockDim.x)
        if (head[expert_of[i]] == i) leader[atomicAdd(&n_leader, 1)] = i;
    __syncthreads();
    chain_wait();
    chain_launch();
    for (int job = warp; job < n_leader * DOWN_SPLIT; job += DOWN_WARPS_MANY) {
        int at = leader[job / DOWN_SPLIT];
        const u8 *record = (const u8 *)slot[expert_of[at] * 3 + 2] + (size_t)blockIdx.x * Down::BYTES;
        float *to = part + (size_t)first * n_pair * 16;
        while (at >= 0) {
            int pair[MANY_ROWS], n = 0;
#pragma unroll
            for (int r = 0; r < MANY_ROWS; r++) {
                pair[r] = at >= 0 ? at : pair[0];
                n += at >= 0;
                if (at >= 0) at = next[at];
            }
            if (n == 1) down_rows<1>(record, share, lut, h, pair, 1, pair_base, to);
            else down_rows<MANY_ROWS>(record, share, lut, h, pair, n, pair_base, to);
        }
    }
    __syncthreads();
    sum_pairs(part, mix, n_row, n_used, [&](int i) {
        return residual ? residual[(size_t)(i / 16) * d_model + blockIdx.x * 16 + i % 16] : 0;
    }, y, d_model);
}
