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

// Rows of activations that share one pass over the weights.
constexpr int MANY_ROWS = 4;

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
// loaded by `start`, which may run before the activations are there.
template <class T, int ROWS, int STEP> struct Dot {
    static constexpr int COUNT = (T::UNITS + STEP - 1) / STEP;
    static constexpr int DEPTH = smaller(COUNT, sizeof(typename T::Raw) > 48 ? 2 : 4);
    typename T::Raw ring[DEPTH];

    __device__ __forceinline__ void start(const u8 *record, int first, int lane)
    {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (first + i * STEP < T::UNITS) T::load(ring[i], record, first + i * STEP, lane);
    }

    __device__ __forceinline__ void run(const u8 *record, int first, int lane, const u32 *lut, const mote_step_act &x,
                                        const int *x_row, int n, float acc[ROWS][2])
    {
#pragma unroll 1
        for (int base = 0; base < COUNT; base += DEPTH) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                int unit = first + (base + i) * STEP;
                if (unit < T::UNITS) {
                    one(ring[i], unit, lane, lut, x, x_row, n, acc);
                    if (unit + DEPTH * STEP < T::UNITS) T::load(ring[i], record, unit + DEPTH * STEP, lane);
                }
            }
        }
    }

    static __device__ __forceinline__ void one(const typename T::Raw &raw, int unit, int lane, const u32 *lut,
                                               const mote_step_act &x, const int *x_row, int n, float acc[ROWS][2])
    {
        u32 a[4][4];
        float scale[2][T::SUBS], min[2][T::SUBS];
        T::codes(raw, lut, lane, a);
        T::scales(raw, lane, scale, min);
        int own = lane >> 3, t = lane & 3; // the sub-block of this lane's column, of its sums
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r < n) {
                long at = (long)x_row[r] * T::UNITS + unit;
                uint2 b = *(const uint2 *)(x.q + at * 256 + lane * 8);
                float xs = x.scale[at * 4 + t];
                int2 sum = *(const int2 *)(x.sum + at * 8 + t * 2);
                if constexpr (T::SUBS == 1) {
                    int c[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int s = 0; s < 4; s++) mma_s8(c, a[s], own == s ? b.x : 0, own == s ? b.y : 0);
                    int all = sum.x + sum.y;
                    add(acc[r], scale[0][0], scale[1][0], min[0][0], min[1][0], c, all, xs);
                } else { // columns 8t.. of lanes 0, 1 are the first 16 of a sub-block
                    int c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int s = 0; s < 4; s++) {
                        mma_s8(c, a[s], own == s && t < 2 ? b.x : 0, own == s && t < 2 ? b.y : 0);
                        mma_s8(d, a[s], own == s && t >= 2 ? b.x : 0, own == s && t >= 2 ? b.y : 0);
                    }
                    add(acc[r], scale[0][0], scale[1][0], min[0][0], min[1][0], c, sum.x, xs);
                    add(acc[r], scale[0][1], scale[1][1], min[0][1], min[1][1], d, sum.y, xs);
                }
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

// Sum over the four lanes of a row, into out[row of the tile][r]; out rows have stride ROWS.
template <int ROWS> __device__ __forceinline__ void reduce_lanes(float acc[ROWS][2], int lane, float *out)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = acc[r][h];
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            if ((lane & 3) == 0) out[((lane >> 2) + 8 * h) * ROWS + r] = v;
        }
}

#endif
