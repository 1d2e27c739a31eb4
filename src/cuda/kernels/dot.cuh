// dot.cuh: a warp's product of a tile of weights with a few rows of activations: the core of every decode kernel.
//
// One idea: weights are the A operand of an integer product of 16 rows x 32 columns, activations the B operand with
// eight columns: (sub-block s of the unit) x (high byte, low byte) of ONE row; a column is zero outside its own
// sub-block. So four products over a unit leave, in every lane, the exact 16-bit dot products of two weight rows with
// one sub-block, and the scales are applied by the lane that loaded them, once per 32 columns, without a shuffle.
//
//
// Several rows: the eight columns are four rows x (high, low), one product a sub-block; a lane then has the products of
// one row and fetches the scales of the sub-block from its neighbours. A product over a unit costs as much for four rows
// as for one.
//
// Sums run in an order that depends on the number of columns alone: a row alone equals the row in a batch, fused equals
// unfused, bit for bit.
#ifndef DOT_CUH
#define DOT_CUH
#include "common.cuh"
#include "tile.cuh"
#include "step.h"


template <class A, class B> struct Same {
    static constexpr bool value = false;
};
template <class A> struct Same<A, A> {
    static constexpr bool value = true;
};

constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Warps that share the columns of a tile; about four units each.
constexpr int up_split(int units) { return units >= 16 ? 4 : units >= 8 ? 2 : 1; }
constexpr int down_split(int units) { return units >= 4 ? 2 : 1; }

// Of a lane: sums of weight rows g and g + 8 with one row of activations. One row: over the sub-blocks t of all units.
// More: [t-th row of four][sub-block].
template <int ROWS> struct Sums {
    static constexpr int FOURS = ROWS / 4, EACH = ROWS == 1 ? 1 : 4;
    float v[ROWS == 1 ? 1 : FOURS][EACH][2];
};

// Which rows of the activations a lane reads: for every four, row lane / 8 for its column of B, row lane % 4 for its place
// in the result. One row: that one.
template <int ROWS> struct LaneRows {
    static constexpr int FOURS = ROWS == 1 ? 1 : ROWS / 4;
    int b[FOURS], c[FOURS];

    // Row r is first + r; past n the last one again.
    __device__ __forceinline__ LaneRows(int first, int n, int lane)
    {
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            b[f] = first + (ROWS == 1 ? 0 : min(f * 4 + (lane >> 3), n - 1));
            c[f] = first + (ROWS == 1 ? 0 : min(f * 4 + (lane & 3), n - 1));
        }
    }
    __device__ __forceinline__ LaneRows() {}
};

// One warp: sums of a tile of weights with n rows of the activations, over units first, first + STEP, ..; to be
// put together by `reduce`. ROWS is 1 or a multiple of 4. The first DEPTH units are loaded by `start`, which may run
// before the activations are there. There is no branch on the unit: where the split is uneven a warp takes the last unit
// again, with activations of nothing, so that all loads of a turn can be under way.
template <class T, int ROWS, int STEP> struct Dot {
    static constexpr int COUNT = (T::UNITS + STEP - 1) / STEP;
    static constexpr bool EVEN = T::UNITS % STEP == 0;
    static constexpr int RAW = sizeof(typename T::Raw); // more rows leave fewer registers for weights on their way
    static constexpr int DEPTH = smaller(COUNT, RAW > 48 || ROWS > 1 ? 1 : RAW > 28 ? 2 : 4);
    static constexpr int TURNS = (COUNT + DEPTH - 1) / DEPTH;
    static constexpr int UNROLL = COUNT > 8 || ROWS > 1 ? 1 : T::SUBS > 1 ? smaller(TURNS, 2) : TURNS;
    static constexpr int FOURS = Sums<ROWS>::FOURS;
    // With a tile to come (`next`: its record) this one's last turn loads its first units, where turns are whole; else the
    // caller starts it.
    static constexpr bool CONTINUES = COUNT % DEPTH == 0;
    typename T::Raw ring[DEPTH];

    static __device__ __forceinline__ int unit_of(int first, int i)
    {
        int unit = first + i * STEP;
        return EVEN ? unit : min(unit, T::UNITS - 1);
    }

    __device__ __forceinline__ void start(const u8 *record, int first, int lane)
    {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) T::load(ring[i], record, unit_of(first, i), lane);
    }

    __device__ __forceinline__ void run(const u8 *record, int first, int lane, const u32 *lut, const mote_step_act &x,
                                        const LaneRows<ROWS> &row, int n, Sums<ROWS> &sums, const u8 *next = nullptr)
    {
        int b_at[LaneRows<ROWS>::FOURS], c_at[LaneRows<ROWS>::FOURS];
#pragma unroll
        for (int f = 0; f < LaneRows<ROWS>::FOURS; f++) b_at[f] = row.b[f] * T::UNITS, c_at[f] = row.c[f] * T::UNITS;
#pragma unroll
        for (int f = 0; f < (ROWS == 1 ? 1 : FOURS); f++)
#pragma unroll
            for (int s = 0; s < Sums<ROWS>::EACH; s++) sums.v[f][s][0] = sums.v[f][s][1] = 0;
#pragma unroll UNROLL
        for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                int at = turn * DEPTH + i;
                if (COUNT % DEPTH && at >= COUNT) break;
                int unit = unit_of(first, at);
                bool there = EVEN || first + at * STEP < T::UNITS;
                u32 a[4][4];
                float scale[2][T::SUBS], least[2][T::SUBS];
                T::codes(ring[i], lut, lane, a);
                T::scales(ring[i], lane, scale, least);
                if constexpr (ROWS == 1) one(a, scale, least, b_at[0] + unit, there, lane, x, sums.v[0][0]);
                else many(a, scale, least, b_at, c_at, unit, there, lane, x, n, sums);
                if (at + DEPTH < COUNT) T::load(ring[i], record, unit_of(first, at + DEPTH), lane);
                else if (CONTINUES && next) T::load(ring[i], next, unit_of(first, at + DEPTH - COUNT), lane);
            }
        }
    }

    static __device__ __forceinline__ void one(const u32 a[4][4], const float scale[2][T::SUBS], const float least[2][T::SUBS],
                                               int at, bool there, int lane, const mote_step_act &x, float acc[2])
    {
        int own = lane >> 3, t = lane & 3; // the sub-block of this lane's column, of its sums
        uint2 b = *(const uint2 *)(x.q + at * 256 + lane * 8);
        float xs = there ? x.scale[at * 4 + t] : 0;
        int2 sum = T::ZERO || T::HAS_MIN ? *(const int2 *)(x.sum + at * 8 + t * 2) : make_int2(0, 0);
        int c[4] = {0, 0, 0, 0};
        if constexpr (T::SUBS == 1) {
#pragma unroll
            for (int s = 0; s < 4; s++) mma_s8(c, a[s], own == s ? b.x : 0, own == s ? b.y : 0);
            add(acc, scale[0][0], scale[1][0], least[0][0], least[1][0], c, sum.x + sum.y, xs);
        } else { // columns 8 t .. of lanes 0, 1 are the first 16 of a sub-block
            int d[4] = {0, 0, 0, 0};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                bool mine = own == s;
                mma_s8(c, a[s], mine && t < 2 ? b.x : 0, mine && t < 2 ? b.y : 0);
                mma_s8(d, a[s], mine && t >= 2 ? b.x : 0, mine && t >= 2 ? b.y : 0);
            }
            add(acc, scale[0][0], scale[1][0], least[0][0], least[1][0], c, sum.x, xs);
            add(acc, scale[0][1], scale[1][1], least[0][1], least[1][1], d, sum.y, xs);
        }
    }

    static __device__ __forceinline__ void many(const u32 a[4][4], const float scale[2][T::SUBS], const float least[2][T::SUBS],
                                                const int *b_at, const int *c_at, int unit, bool there, int lane,
                                                const mote_step_act &x, int n, Sums<ROWS> &sums)
    {
        int t = lane & 3;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            float sc[2][T::SUBS], mn[2][T::SUBS];
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < T::SUBS; k++) { // lane s of a row has the scales of sub-block s
                    sc[h][k] = __shfl_sync(~0u, scale[h][k], (lane & 28) | s);
                    mn[h][k] = T::HAS_MIN ? __shfl_sync(~0u, least[h][k], (lane & 28) | s) : 0;
                }
#pragma unroll
            for (int f = 0; f < FOURS; f++) {
                if (FOURS > 1 && f * 4 >= n) break;
                uint2 b = *(const uint2 *)(x.q + (b_at[f] + unit) * 256 + s * 64 + (lane >> 2 & 1) * 32 + t * 8);
                float xs = there ? x.scale[(c_at[f] + unit) * 4 + s] : 0;
                int2 sum = T::ZERO || T::HAS_MIN ? *(const int2 *)(x.sum + (c_at[f] + unit) * 8 + s * 2) : make_int2(0, 0);
                int c[4] = {0, 0, 0, 0};
                if constexpr (T::SUBS == 1) {
                    mma_s8(c, a[s], b.x, b.y);
                    add(sums.v[f][s], sc[0][0], sc[1][0], mn[0][0], mn[1][0], c, sum.x + sum.y, xs);
                } else {
                    int d[4] = {0, 0, 0, 0};
                    mma_s8(c, a[s], t < 2 ? b.x : 0, t < 2 ? b.y : 0);
                    mma_s8(d, a[s], t >= 2 ? b.x : 0, t >= 2 ? b.y : 0);
                    add(sums.v[f][s], sc[0][0], sc[1][0], mn[0][0], mn[1][0], c, sum.x, xs);
                    add(sums.v[f][s], sc[0][1], sc[1][1], mn[0][1], mn[1][1], d, sum.y, xs);
                }
            }
        }
    }

    // c: high and low products of weight rows g (c[0], c[1]) and g + 8.
    static __device__ __forceinline__ void add(float acc[2], float s0, float s1, float m0, float m1, const int c[4], int sum,
                                               float xs)
    {
        float v0 = (float)(c[0] * 256 + c[1] - T::ZERO * sum), v1 = (float)(c[2] * 256 + c[3] - T::ZERO * sum);
        if constexpr (T::HAS_MIN) {
            acc[0] = __fmaf_rn(xs, __fmaf_rn(s0, v0, m0 * (float)sum), acc[0]);
            acc[1] = __fmaf_rn(xs, __fmaf_rn(s1, v1, m1 * (float)sum), acc[1]);
        } else {
            acc[0] = __fmaf_rn(xs * s0, v0, acc[0]);
            acc[1] = __fmaf_rn(xs * s1, v1, acc[1]);
        }
    }
};

// Sums over the sub-blocks, always (0 + 1) + (2 + 3), to out[r][row of the tile].
template <int ROWS> __device__ __forceinline__ void reduce(const Sums<ROWS> &sums, int lane, float *out)
{
#pragma unroll
    for (int f = 0; f < (ROWS == 1 ? 1 : ROWS / 4); f++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = 0;
            float v = sums.v[f][0][h];
            if constexpr (ROWS == 1) {
                v += __shfl_xor_sync(~0u, v, 1);
                v += __shfl_xor_sync(~0u, v, 2);
                if (lane & 3) continue;
            } else {
                v = (v + sums.v[f][1][h]) + (sums.v[f][2][h] + sums.v[f][3][h]);
                r = f * 4 + (lane & 3);
            }
            out[r * 16 + (lane >> 2) + 8 * h] = v;
        }
}

// Rows of activations in shared memory, for a block whose warps all read them.
template <int UNITS, int ROWS> struct SharedRows {
    uint4 q[ROWS][UNITS * 16], scale[ROWS][UNITS], sum[ROWS][UNITS * 2];

    // Piece i of UNITS * 19 of a row, and where it goes.
    static __device__ __forceinline__ uint4 piece(const mote_step_act &x, int row, int i)
    {
        if (i < UNITS * 16) return ((const uint4 *)(x.q + (size_t)row * UNITS * 256))[i];
        if (i < UNITS * 17) return ((const uint4 *)(x.scale + (size_t)row * UNITS * 4))[i - UNITS * 16];
        return ((const uint4 *)(x.sum + (size_t)row * UNITS * 8))[i - UNITS * 17];
    }
    __device__ __forceinline__ void put(int r, int i, uint4 v)
    {
        if (i < UNITS * 16) q[r][i] = v;
        else if (i < UNITS * 17) scale[r][i - UNITS * 16] = v;
        else sum[r][i - UNITS * 17] = v;
    }
    // Row `row` becomes row r. Block-wide, before a __syncthreads.
    __device__ __forceinline__ void take(int r, const mote_step_act &x, int row)
    {
#pragma unroll 1
        for (int i = threadIdx.x; i < UNITS * 19; i += blockDim.x) put(r, i, piece(x, row, i));
    }
    __device__ __forceinline__ mote_step_act view() { return {(signed char *)q, (float *)scale, (int *)sum}; }
};

#endif
