// dot.cuh: a warp's product of a tile of weights with a few rows of activations: the core of every decode kernel.
//
// One idea: weights are the A operand of an integer product of 16 rows x 32 columns, activations the B operand with
// eight columns: (sub-block s of the unit) x (high byte, low byte) of ONE row; a column is zero outside its own
// sub-block. So four products over a unit leave, in every lane, the exact 16-bit dot products of two weight rows with
// one sub-block, and the scales are applied by the lane that loaded them, once per 32 columns, without a shuffle.
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

// One warp: acc[r][0] and [1] += rows g and g + 8 of the tile times rows x_row[0..n) of the activations, over units
// first, first + STEP, ..; acc must be reduced over the four lanes of equal g (reduce_lanes). The first DEPTH units are
// loaded by `start`, which may run before the activations are there. There is no branch on the unit: where the split is
// uneven a warp takes the last unit again, with activations of nothing, so that all loads of a turn can be under way.
template <class T, int ROWS, int STEP> struct Dot {
    static constexpr int COUNT = (T::UNITS + STEP - 1) / STEP;
    static constexpr bool EVEN = T::UNITS % STEP == 0;
    static constexpr int RAW = sizeof(typename T::Raw); // more rows leave fewer registers for weights on their way
    static constexpr int DEPTH = smaller(COUNT, (RAW > 48 ? 1 : RAW > 28 ? 2 : 4) / (ROWS > 1 && RAW <= 48 ? 2 : 1));
    static constexpr int TURNS = (COUNT + DEPTH - 1) / DEPTH;
    static constexpr int UNROLL = COUNT > 8 || ROWS > 1 ? 1 : T::SUBS > 1 ? smaller(TURNS, 2) : TURNS;
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

    // With a tile to come (`next`: its record) this one's last turn loads its first units, where turns are whole; else
    // the caller starts it.
    static constexpr bool CONTINUES = COUNT % DEPTH == 0;

    __device__ __forceinline__ void run(const u8 *record, int first, int lane, const u32 *lut, const mote_step_act &x,
                                        const int *x_row, int n, float acc[ROWS][2], const u8 *next = nullptr)
    {
        int row_at[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) row_at[r] = r < n ? x_row[r] * T::UNITS : 0;
#if 0
#pragma unroll 1
        for (int at = 0; at < COUNT; at++) {
            bool there = EVEN || first + at * STEP < T::UNITS;
            one(ring[0], unit_of(first, at), there, lane, lut, x, row_at, n, acc);
#pragma unroll
            for (int i = 0; i + 1 < DEPTH; i++) ring[i] = ring[i + 1];
            if (at + DEPTH < COUNT) T::load(ring[DEPTH - 1], record, unit_of(first, at + DEPTH), lane);
            else if (CONTINUES && next) T::load(ring[DEPTH - 1], next, unit_of(first, at + DEPTH - COUNT), lane);
        }
#else
#pragma unroll UNROLL
        for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                int at = turn * DEPTH + i;
                if (COUNT % DEPTH && at >= COUNT) break;
                bool there = EVEN || first + at * STEP < T::UNITS;
                one(ring[i], unit_of(first, at), there, lane, lut, x, row_at, n, acc);
                if (at + DEPTH < COUNT) T::load(ring[i], record, unit_of(first, at + DEPTH), lane);
                else if (CONTINUES && next) T::load(ring[i], next, unit_of(first, at + DEPTH - COUNT), lane);
            }
        }
#endif
    }

    static __device__ __forceinline__ void one(const typename T::Raw &raw, int unit, bool there, int lane, const u32 *lut,
                                               const mote_step_act &x, const int *row_at, int n, float acc[ROWS][2])
    {
        u32 a[4][4];
        float scale[2][T::SUBS], min[2][T::SUBS];
        int own = lane >> 3, t = lane & 3; // the sub-block of this lane's column, of its sums
        T::codes(raw, lut, lane, a);
        T::scales(raw, lane, scale, min);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (ROWS > 1 && r >= n) break;
            int at = row_at[r] + unit;
            uint2 b = *(const uint2 *)(x.q + at * 256 + lane * 8);
            float xs = there ? x.scale[at * 4 + t] : 0;
            int2 sum = T::ZERO || T::HAS_MIN ? *(const int2 *)(x.sum + at * 8 + t * 2) : make_int2(0, 0);
            int c[4] = {0, 0, 0, 0};
            if constexpr (T::SUBS == 1) {
#pragma unroll
                for (int s = 0; s < 4; s++) mma_s8(c, a[s], own == s ? b.x : 0, own == s ? b.y : 0);
                add(acc[r], scale[0][0], scale[1][0], min[0][0], min[1][0], c, sum.x + sum.y, xs);
            } else { // columns 8 t .. of lanes 0, 1 are the first 16 of a sub-block
                int d[4] = {0, 0, 0, 0};
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    bool mine = own == s;
                    mma_s8(c, a[s], mine && t < 2 ? b.x : 0, mine && t < 2 ? b.y : 0);
                    mma_s8(d, a[s], mine && t >= 2 ? b.x : 0, mine && t >= 2 ? b.y : 0);
                }
                add(acc[r], scale[0][0], scale[1][0], min[0][0], min[1][0], c, sum.x, xs);
                add(acc[r], scale[0][1], scale[1][1], min[0][1], min[1][1], d, sum.y, xs);
            }
        }
    }

    static __device__ __forceinline__ void add(float acc[2], float s0, float s1, float m0, float m1, const int c[4],
                                               int sum, float xs)
    {
        float v0 = (float)(c[0] * 256 + c[1] - T::ZERO * sum), v1 = (float)(c[2] * 256 + c[3] - T::ZERO * sum);
        if constexpr (T::HAS_MIN) {
            acc[0] += xs * (s0 * v0 + m0 * (float)sum);
            acc[1] += xs * (s1 * v1 + m1 * (float)sum);
        } else {
            acc[0] += xs * s0 * v0;
            acc[1] += xs * s1 * v1;
        }
    }
};

// Rows of activations in shared memory, for a block whose warps all read them.
template <int UNITS, int ROWS> struct SharedRows {
    uint4 q[ROWS][UNITS * 16], scale[ROWS][UNITS], sum[ROWS][UNITS * 2];

    // Row `row` becomes row r. Block-wide, before a __syncthreads.
    __device__ __forceinline__ void take(int r, const mote_step_act &x, int row)
    {
        const uint4 *from_q = (const uint4 *)(x.q + (size_t)row * UNITS * 256);
        const uint4 *from_scale = (const uint4 *)(x.scale + (size_t)row * UNITS * 4);
        const uint4 *from_sum = (const uint4 *)(x.sum + (size_t)row * UNITS * 8);
#pragma unroll 1
        for (int i = threadIdx.x; i < UNITS * 19; i += blockDim.x) {
            if (i < UNITS * 16) q[r][i] = from_q[i];
            else if (i < UNITS * 17) scale[r][i - UNITS * 16] = from_scale[i - UNITS * 16];
            else sum[r][i - UNITS * 17] = from_sum[i - UNITS * 17];
        }
    }
    __device__ __forceinline__ mote_step_act view() { return {(signed char *)q, (float *)scale, (int *)sum}; }
};

// Sum over the four lanes of a row, into out[r][row of the tile].
template <int ROWS> __device__ __forceinline__ void reduce_lanes(float acc[ROWS][2], int lane, float *out)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = acc[r][h];
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            if ((lane & 3) == 0) out[r * 16 + (lane >> 2) + 8 * h] = v;
        }
}

#endif
