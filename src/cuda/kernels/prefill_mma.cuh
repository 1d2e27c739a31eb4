// prefill_mma.cuh: a warp's 16 rows of operands times N tokens in shared memory, one mma.m16n8k16 after the other: every
// device with tensor cores. The same functions for sm_90a: prefill_wgmma.cuh.
#ifndef PREFILL_MMA_CUH
#define PREFILL_MMA_CUH
#include "prefill_half.cuh"

constexpr int UNDER_WAY = 0;

MOTE_FN void products_begin() {}
MOTE_FN void products_end() {}
template <int PENDING> MOTE_FN void products_wait() {}
MOTE_FN void stage_written() {}

// acc[4 b + ..] += the operands of 32 columns (sub-block s of the unit) times tokens 8 b ..
template <int N, int BF16> MOTE_FN void products(float (&acc)[N / 2], const u32 (&a)[2][4], u32 stage, int s, int lane)
{
    u32 at = stage + stage_place<N>(lane & 7, s * 4 + (lane >> 3));
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b++) {
        u32 x[4];
        stage_matrices(x, at + b * 8 * 128);
        if constexpr (BF16) {
            mma_bf16(acc + 4 * b, a[0], x[0], x[1]);
            mma_bf16(acc + 4 * b, a[1], x[2], x[3]);
        } else {
            mma_half(acc + 4 * b, a[0], x[0], x[1]);
            mma_half(acc + 4 * b, a[1], x[2], x[3]);
        }
    }
}

#endif
