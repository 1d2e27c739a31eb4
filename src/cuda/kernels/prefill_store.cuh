// prefill_store.cuh: from a warp's accumulators (prefill_loop.cuh) to rows of results.
#ifndef PREFILL_STORE_CUH
#define PREFILL_STORE_CUH
#include "prefill_half.cuh"

// from[row] of the lane's rows g, g + 8 of a tile.
MOTE_FN void rows_of(int tile, int n_row, const float *from, float to[2])
{
    int row = tile * 16 + threadIdx.x % 32 / 4;
    if (row < n_row) to[0] = from[row];
    if (row + 8 < n_row) to[1] = from[row + 8];
}

// store(value, h, row, token) for what exists: h 0: row g of the tile, 1: row g + 8.
template <int N, class Store>
MOTE_FN void each_product(const float (&acc)[N / 2], int tile, int n_row, int count, Store store)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b++) {
        if (8 * b >= count) break;
        MOTE_UNROLL
        for (int j = 0; j < 4; j++) {
            int token = 8 * b + 2 * t + (j & 1), row = tile * 16 + g + 8 * (j >> 1);
            if (row < n_row && token < count) store(acc[4 * b + j], j >> 1, row, token);
        }
    }
}

// Where gate and up of a row are another warp's each (`part` 0: gate, 1: up; the same thread of the block's other half): they
// give each other half of their sums, through `given`, shared memory of 2 N floats a thread of a part, and each has both of
// half the tokens: each(b, gate, up), tokens 8 b ..
template <int N, int PART_THREADS, class Each>
MOTE_FN void meet_parts(const float (&acc)[N / 2], float *given, int count, Each each)
{
    constexpr int EACH = N / 16;
    int part = threadIdx.x / PART_THREADS;
    given += threadIdx.x % PART_THREADS;
    __syncthreads(); // nobody reads what lay there any more
    MOTE_UNROLL
    for (int j = 0; j < 4 * EACH; j++) given[(2 * j + part) * PART_THREADS] = part ? acc[j] : acc[4 * EACH + j];
    __syncthreads();
    MOTE_UNROLL
    for (int i = 0; i < EACH; i++) {
        if (8 * (part * EACH + i) >= count) break;
        float own[4], other[4];
        MOTE_UNROLL
        for (int j = 0; j < 4; j++) {
            own[j] = part ? acc[4 * (EACH + i) + j] : acc[4 * i + j];
            other[j] = given[(2 * (4 * i + j) + 1 - part) * PART_THREADS];
        }
        if (part) each(EACH + i, other, own);
        else each(i, own, other);
    }
}

// Columns g and g + 8 of tokens 2 t, 2 t + 1 (v as an accumulator has them) to rows of halves; null: no such token.
template <int IS_BF16> MOTE_FN void store_halves(const float v[4], int tile, u16 *row_of_even, u16 *row_of_odd)
{
    int lane = threadIdx.x % 32, odd = hidden_keeps(lane);
    u32 pair[2];
    pair[0] = IS_BF16 ? pack_bf16x2(v[0], v[2]) : pack_half2(v[0], v[2]);
    pair[1] = IS_BF16 ? pack_bf16x2(v[1], v[3]) : pack_half2(v[1], v[3]);
    uint2 words = hidden_words(pair, __shfl_xor_sync(~0u, odd ? pair[0] : pair[1], HIDDEN_OTHER), lane);
    u16 *to = odd ? row_of_odd : row_of_even;
    if (to) *(uint2 *)(to + hidden_place(tile, lane)) = words;
}

#endif
