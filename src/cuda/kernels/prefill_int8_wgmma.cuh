// prefill_int8_wgmma.cuh: four warps' 64 rows of bytes in registers times N tokens in shared memory, as asynchronous products
// (sm_90a). The same function for other devices: prefill_int8_mma.cuh.
#ifndef PREFILL_INT8_WGMMA_CUH
#define PREFILL_INT8_WGMMA_CUH
#include "wgmma.cuh"

#ifdef __CUDACC__
// One product of 32 columns; `fresh`: d starts at zero. B as in wgmma.cuh.
template <int N> struct WgmmaS8;
// N_D: registers of the result, N / 2; A, B and P: the numbers of the operands that follow them.
#define WGMMA_S8(N, N_D, A, B, P)                                                                              \
    template <> struct WgmmaS8<N> {                                                                            \
        static MOTE_FN void add(int (&d)[N_D], const u32 (&a)[4], u32 b, int fresh)                            \
        {                                                                                                      \
            asm volatile("{ .reg .pred p; .reg .b64 b; setp.eq.s32 p, " P ", 0; mov.b64 b, {" B                \
                         ", 0x40000040}; wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" D_##N_D       \
                         "}, {" A "}, b, p; }"                                                                 \
                         : REGISTERS_##N_D("+r", 0)                                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(fresh));                    \
        }                                                                                                      \
    }
WGMMA_S8(32, 16, "%16, %17, %18, %19", "%20", "%21");
WGMMA_S8(64, 32, "%32, %33, %34, %35", "%36", "%37");
#endif

// sum (+)= the operands of a unit times the tokens of a stage; done on return.
template <int N> MOTE_FN void products(int (&sum)[N / 2], const u32 (&code)[4][4], u32 stage, bool fresh, int lane)
{
    (void)lane;
    u32 b = stage >> 4 | 1u << 16;
    products_begin();
    MOTE_UNROLL
    for (int s = 0; s < 4; s++) {
        WgmmaS8<N>::add(sum, code[s], b + 2 * s, fresh && s == 0);
    }
    products_end();
    products_wait<0>();
}

#endif
