// prefill_int8_mma.cuh: a warp's 16 rows of bytes times N tokens in shared memory, one mma.m16n8k32 after the other: every
// device with tensor cores. The same function for sm_90a: prefill_int8_wgmma.cuh.
#ifndef PREFILL_INT8_MMA_CUH
#define PREFILL_INT8_MMA_CUH
#include "prefill_int8.cuh"

MOTE_FN void stage_written() {}

// sum (+)= the operands of a unit times the tokens of a stage.
template <int N> MOTE_FN void products(int (&sum)[N / 2], const u32 (&code)[4][4], u32 stage, bool fresh, int lane)
{
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b++) {
        if (fresh)
            MOTE_UNROLL
            for (int j = 0; j < 4; j++) sum[4 * b + j] = 0;
        MOTE_UNROLL
        for (int s = 0; s < 4; s += 2) {
            u32 x[4];
            stage_matrices(x, stage + b * 8 * 128 + int8_place(lane & 7, s * 2 + (lane >> 3)));
            mma_s8(sum + 4 * b, code[s], x[0], x[1]);
            mma_s8(sum + 4 * b, code[s + 1], x[2], x[3]);
        }
    }
}

#endif
