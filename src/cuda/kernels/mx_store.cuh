// mx_store.cuh: how groups of four warps of the MXFP4 kernels of sm_90 write bf16 results of down, from sums in registers.
#ifndef MX_STORE_CUH
#define MX_STORE_CUH
#include "mx_ring.cuh"

constexpr int STORE_SLICE = 16, STORE_ROW = (64 + 8) * 2;                          // tokens at once; bytes of one
template <int GROUPS> constexpr int STORE_BYTES = GROUPS * 2 * STORE_SLICE * STORE_ROW; // of shared memory

// flat[token][column ..] = 64 columns of a group's, of `count` tokens of N. Each group goes its own way: one's results leave
// under the others' products. sum(i): of N / 2 a lane's, as wgmma has them; threads before first_thread have no part; turn: 0 at first.
template <int N, class Sum> MOTE_FN void store_results(u16 *flat, int n_column, int column, int count, u8 *buffer, int first_thread, u32 &turn, Sum sum)
{
    int thread = threadIdx.x - first_thread, group = thread / 128, warp = thread / 32 % 4, lane = thread % 32;
    int token = thread % 128 / 8, chunk = thread % 8; // 16 bytes a thread
    column += chunk * 8;
    MOTE_UNROLL
    for (int slice = 0; slice < (N + STORE_SLICE - 1) / STORE_SLICE; slice++) {
        if (slice * STORE_SLICE >= count) break;
        u32 v[4]; // 8 x 8: tokens 0 .. 7 and rows g, rows g + 8; tokens 8 .. 15
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) {
            int r = i & 1, from = slice * (STORE_SLICE / 2) + (i >> 1) * 4 + 2 * r;
            if (from >= N / 2) from = 2 * r; // 8 tokens: the others are nobody's
            v[i] = pack_bf16x2(sum(from), sum(from + 1));
        }
        u8 *out = buffer + group * (2 * STORE_SLICE * STORE_ROW) + turn; // in turn: who is behind still reads the other
        turn = STORE_SLICE * STORE_ROW - turn;
        store_transposed(shared_address(out) + (lane / 16 * 8 + lane % 8) * STORE_ROW + warp * 32 + lane / 8 % 2 * 16, v);
        meet(2 + group, 128);
        if (slice * STORE_SLICE + token < count && column < n_column)
            *(uint4 *)(flat + (size_t)(slice * STORE_SLICE + token) * n_column + column) = *(const uint4 *)(out + token * STORE_ROW + chunk * 16);
    }
}

#endif
