// dot.cuh: a warp's product of a tile of weights with a few rows of activations: the core of every decode kernel.
//
// One idea: weights are the A operand of an integer product of 16 rows x 32 columns, activations the B operand with
// eight columns: (sub-block s of the unit) x (high byte, low byte) of ONE row; a column is zero outside its own
// sub-block. So four products over a unit leave, in every lane, the exact 16-bit dot products of two weight rows with
// one sub-block, and the scales are applied by the lane that loaded them, once per 32 columns, without a shuffle.
//
// Several rows: the eight columns are four rows x (high, low), one product a sub-block; a lane then has the products of
// one row and fetches scales that differ between sub-blocks from its neighbours.
//
// The kernels on it are bound by instructions issued and by the half-rate pipe of byte permutes, logic and shifts. A tile of
// four units in gate_up_many, with what becomes of its sums, takes (sm_90a; of them on that pipe) one row / four rows:
//   IQ2_XXS  507 (247)  701 (299)     Q4_K   350 (181)  630 (221)     MXFP4           488 (341)  775 (412)
//   IQ3_XXS  666 (342)  872 (399)     T5     517 (187)  692 (252)     AFFINE4 by 64   305 (170)  536 (198)
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

// Turns to unroll: a divisor of them, or all of a few.
constexpr int whole_turns(int turns, int most)
{
    for (int n = most; n > 1; n--)
        if (turns % n == 0) return n;
    return turns < 8 ? turns : most;
}

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

// A warp's share of the columns of T: units first, first + STEP, ..; and what its lanes know of them whatever the tile.
template <class T, int STEP> struct Share {
    typename T::template Walk<STEP> walk;
    int first, lane;
    // Whether the column of B that a lane holds, of one row, belongs to sub-block s and scale item k.
    static constexpr bool BY_PRODUCT = T::BITS == 0 || T::SUBS > 1;
    u32 factor[T::SUBS][4];

    __device__ __forceinline__ Share(int first, int lane) : walk(first, lane), first(first), lane(lane)
    {
#pragma unroll
        for (int k = 0; k < T::SUBS; k++)
#pragma unroll
            for (int s = 0; s < 4; s++) factor[k][s] = BY_PRODUCT ? opaque(is_own(k, s)) : 0;
    }
    __device__ __forceinline__ bool is_own(int k, int s) const // columns 8 t .. of lanes 0, 1 are the first 16 of a sub-block
    {
        return lane >> 3 == s && (T::SUBS == 1 || (lane & 3) >> 1 == k);
    }
    // b, or 0 in other columns: a product where codes keep the pipe of selections busy; it takes registers.
    __device__ __forceinline__ u32 own(u32 b, int k, int s) const
    {
        return BY_PRODUCT ? b * factor[k][s] : is_own(k, s) ? b : 0;
    }
    __device__ __forceinline__ int unit(int i) const
    {
        int unit = first + i * STEP;
        return T::UNITS % STEP == 0 ? unit : min(unit, T::UNITS - 1);
    }
    __device__ __forceinline__ void load(typename T::Raw &raw, const u8 *record, int i) const
    {
        if (walk.IS_EVEN && (T::UNITS % STEP == 0 || i < T::UNITS / STEP)) walk.load(raw, record, i);
        else T::load(raw, record, unit(i), lane);
    }
};

// One warp: sums of a tile of weights with n rows of the activations, over units first, first + STEP, ..; to be
// put together by `reduce`. ROWS is 1 or a multiple of 4. The first DEPTH units are loaded by `start`, which may run
// before the activations are there. There is no branch on the unit: where the split is uneven a warp takes the last unit
// again, with activations of nothing, so that all loads of a turn can be under way.
template <class T, int ROWS, int STEP, int MOST = 4> struct Dot {
    static constexpr int COUNT = (T::UNITS + STEP - 1) / STEP;
    static constexpr bool EVEN = T::UNITS % STEP == 0;
    static constexpr int RAW = sizeof(typename T::Raw); // more rows leave fewer registers for weights on their way
    static constexpr int DEPTH = smaller(smaller(COUNT, MOST), RAW > 48 || ROWS > 1 ? 1 : RAW > 28 ? 2 : 4);
    static constexpr int TURNS = (COUNT + DEPTH - 1) / DEPTH;
    // Addresses of an unrolled turn are constants: rolled, four rows take 185 instructions a unit and not 150.
    static constexpr int UNROLL = ROWS > 4 || (ROWS == 1 && COUNT > 8) ? 1
                                  : ROWS == 4                         ? whole_turns(TURNS, T::SUBS > 1 || !EVEN ? 2 : 4)
                                  : T::SUBS > 1                       ? smaller(TURNS, 2)
                                                                      : TURNS;
    static constexpr int FOURS = Sums<ROWS>::FOURS;
    static constexpr bool NEEDS_SUM = T::ZERO || T::HAS_MIN;
    // With a tile to come (`next`: its record) this one's last turn loads its first units, where turns are whole; else the
    // caller starts it.
    static constexpr bool CONTINUES = COUNT % DEPTH == 0;
    typename T::Raw ring[DEPTH];

    __device__ __forceinline__ void start(const u8 *record, const Share<T, STEP> &share)
    {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) share.load(ring[i], record, i);
    }

    __device__ __forceinline__ void run(const u8 *record, const Share<T, STEP> &share, const u32 *lut, const mote_step_act &x,
                                        const LaneRows<ROWS> &row, int n, Sums<ROWS> &sums, const u8 *next = nullptr)
    {
        int lane = share.lane;
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
                int unit = share.unit(at);
                bool there = EVEN || share.first + at * STEP < T::UNITS;
                u32 a[4][4];
                float scale[2][T::SUBS], least[2][T::SUBS];
                T::codes(ring[i], lut, lane, a);
                T::scales(ring[i], lane, scale, least);
                if constexpr (ROWS == 1) one(a, scale, least, b_at[0] + unit, there, share, x, sums.v[0][0]);
                else many(a, scale, least, b_at, c_at, unit, there, lane, x, n, sums);
                if (at + DEPTH < COUNT) share.load(ring[i], record, at + DEPTH);
                else if (CONTINUES && next) share.load(ring[i], next, at + DEPTH - COUNT);
            }
        }
    }

    static __device__ __forceinline__ void one(const u32 a[4][4], const float scale[2][T::SUBS], const float least[2][T::SUBS],
                                               int at, bool there, const Share<T, STEP> &share,
                                               const mote_step_act &x, float acc[2])
    {
        int lane = share.lane, t = lane & 3; // the sub-block of this lane's sums; lane / 8, of its column
        uint2 b = *(const uint2 *)(x.q + at * 256 + lane * 8);
        const float *of = x.scale + at * 12 + t;
        float xs = there ? of[0] : 0, all = NEEDS_SUM ? of[4] : 0, half = NEEDS_SUM && T::SUBS > 1 ? of[8] : 0;
#pragma unroll
        for (int k = 0; k < T::SUBS; k++) {
            int c[4] = {0, 0, 0, 0};
#pragma unroll
            for (int s = 0; s < 4; s++) mma_s8(c, a[s], share.own(b.x, k, s), share.own(b.y, k, s));
            add(acc, scale[0][k], scale[1][k], least[0][k], least[1][k], c,
                T::SUBS == 1 ? all
                : k          ? all - half
                             : half,
                xs);
        }
    }

    static __device__ __forceinline__ void many(const u32 a[4][4], const float scale[2][T::SUBS], const float least[2][T::SUBS],
                                                const int *b_at, const int *c_at, int unit, bool there, int lane,
                                                const mote_step_act &x, int n, Sums<ROWS> &sums)
    {
        int t = lane & 3;
        float sc[4][2][T::SUBS], mn[4][2][T::SUBS];
#pragma unroll
        for (int i = 0; i < 4 * 2 * T::SUBS; i++) {
            int s = i / (2 * T::SUBS), h = i / T::SUBS % 2, k = i % T::SUBS;
            if (T::SPAN == 4) { // every lane has them
                sc[s][h][k] = scale[h][k], mn[s][h][k] = least[h][k];
            } else if (s % T::SPAN) {
                sc[s][h][k] = sc[s - s % T::SPAN][h][k], mn[s][h][k] = mn[s - s % T::SPAN][h][k];
            } else { // lane s of a row has those of sub-block s
                sc[s][h][k] = __shfl_sync(~0u, scale[h][k], s, 4);
                mn[s][h][k] = T::HAS_MIN ? __shfl_sync(~0u, least[h][k], s, 4) : 0;
            }
        }
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            if (FOURS > 1 && f * 4 >= n) break;
            const signed char *q = x.q + (b_at[f] + unit) * 256 + (lane >> 2 & 1) * 32 + t * 8;
            const float *of = x.scale + (c_at[f] + unit) * 12;
            Quad xs = there ? quad(of) : Quad{}, all = NEEDS_SUM ? quad(of + 4) : Quad{},
                 half = NEEDS_SUM && T::SUBS > 1 ? quad(of + 8) : Quad{};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint2 b = *(const uint2 *)(q + s * 64);
                int c[4] = {0, 0, 0, 0};
                float *acc = sums.v[f][s];
                if constexpr (T::SUBS == 1) {
                    mma_s8(c, a[s], b.x, b.y);
                    add(acc, sc[s][0][0], sc[s][1][0], mn[s][0][0], mn[s][1][0], c, all.v[s], xs.v[s]);
                } else {
                    int d[4] = {0, 0, 0, 0};
                    mma_s8(c, a[s], t < 2 ? b.x : 0, t < 2 ? b.y : 0);
                    mma_s8(d, a[s], t >= 2 ? b.x : 0, t >= 2 ? b.y : 0);
                    add(acc, sc[s][0][0], sc[s][1][0], mn[s][0][0], mn[s][1][0], c, half.v[s], xs.v[s]);
                    add(acc, sc[s][0][1], sc[s][1][1], mn[s][0][1], mn[s][1][1], d, all.v[s] - half.v[s], xs.v[s]);
                }
            }
        }
    }

    // Numbers of a unit's four sub-blocks, in one load.
    struct Quad {
        float v[4];
    };
    static __device__ __forceinline__ Quad quad(const float *p)
    {
        uint4 w = *(const uint4 *)p;
        return {{bits_float(w.x), bits_float(w.y), bits_float(w.z), bits_float(w.w)}};
    }

    // c: high and low products of weight rows g (c[0], c[1]) and g + 8; sum: of the same columns of x.
    static __device__ __forceinline__ void add(float acc[2], float s0, float s1, float m0, float m1, const int c[4], float sum,
                                               float xs)
    {
        float v0 = (float)(c[0] * 256 + c[1]), v1 = (float)(c[2] * 256 + c[3]);
        if constexpr (T::ZERO) v0 = __fmaf_rn((float)-T::ZERO, sum, v0), v1 = __fmaf_rn((float)-T::ZERO, sum, v1);
        if constexpr (T::HAS_MIN) {
            acc[0] = __fmaf_rn(xs, __fmaf_rn(s0, v0, m0 * sum), acc[0]);
            acc[1] = __fmaf_rn(xs, __fmaf_rn(s1, v1, m1 * sum), acc[1]);
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
    uint4 q[ROWS][UNITS * 16], scale[ROWS][UNITS * 3];

    // Row `row` on its way to become row r. Block-wide; copy_wait before the __syncthreads.
    __device__ __forceinline__ void take(int r, const mote_step_act &x, int row)
    {
        const uint4 *from_q = (const uint4 *)(x.q + (size_t)row * UNITS * 256);
        const uint4 *from_scale = (const uint4 *)(x.scale + (size_t)row * UNITS * 12);
#pragma unroll 1
        for (int i = threadIdx.x; i < UNITS * 19; i += blockDim.x) {
            if (i < UNITS * 16) copy16(&q[r][i], from_q + i);
            else copy16(&scale[r][i - UNITS * 16], from_scale + (i - UNITS * 16));
        }
        copy_commit();
    }
    __device__ __forceinline__ mote_step_act view(int rounding = MOTE_ROUND_I16)
    {
        return {(signed char *)q, (float *)scale, rounding};
    }
};

#endif
