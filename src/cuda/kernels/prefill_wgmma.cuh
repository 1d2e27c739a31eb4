// prefill_wgmma.cuh: four warps' 64 rows of operands in registers times N tokens in shared memory, as asynchronous
// products (sm_90a). The same functions for other devices, and where tokens lie: prefill_mma.cuh.
#ifndef PREFILL_WGMMA_CUH
#define PREFILL_WGMMA_CUH
#include "prefill_half.cuh"
#include "wgmma.cuh"

constexpr int UNDER_WAY = 1; // groups that may be while the next operands are made

template <int N, int BF16> MOTE_FN void products(float (&acc)[N / 2], const u32 (&a)[2][4], u32 stage, int s, int lane)
{
    (void)lane;
    u32 b = (stage >> 4 | 1u << 16) + ((s >> 1) * N * 128 + (s & 1) * 64) / 16;
    Wgmma<N, BF16>::add(acc, a[0], b);
    Wgmma<N, BF16>::add(acc, a[1], b + 2);
}

#endif
