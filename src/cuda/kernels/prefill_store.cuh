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
#pragma unroll
    for (int b = 0; b < N / 8; b++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int token = 8 * b + 2 * t + (j & 1), row = tile * 16 + g + 8 * (j >> 1);
            if (row < n_row && token < count) store(acc[4 * b + j], j >> 1, row, token);
        }
}

// The 16 columns of a tile of eight tokens, in the order that a product reads (prefill_half.cuh): v[0], v[1]: columns
// g of tokens 2 t, 2 t + 1, v[2], v[3]: columns g + 8. Lanes g and g ^ 1 swap a token, so that each writes two
// neighbours of both column pairs of one token, which are neighbours too: 8 bytes at to + position.
template <int BF16> MOTE_FN void store_halves(const float v[4], int tile, u16 *row_of_even, u16 *row_of_odd)
{
    int lane = threadIdx.x % 32, g = lane / 4, odd = g & 1;
    u32 even_token = BF16 ? pack_bf16x2(v[0], v[2]) : pack_half2(v[0], v[2]);
    u32 odd_token = BF16 ? pack_bf16x2(v[1], v[3]) : pack_half2(v[1], v[3]);
    u32 got = __shfl_xor_sync(~0u, odd ? even_token : odd_token, 4), own = odd ? odd_token : even_token;
    u32 low = odd ? got : own, high = odd ? own : got; // columns g & ~1 (and + 8), the next ones
    u16 *to = (odd ? row_of_odd : row_of_even);
    int at = tile / 2 * 32 + prefill_position(tile % 2 * 16 + (g & 6));
    if (to) *(uint2 *)(to + at) = make_uint2(prmt(low, high, 0x5410), prmt(low, high, 0x7632));
}

#endif
