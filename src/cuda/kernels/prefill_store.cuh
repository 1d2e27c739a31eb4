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
