// prefill_wgmma.cuh: four warps' 64 rows of operands in registers times N tokens in shared memory, as asynchronous
// products (sm_90a). The same functions for other devices, and where tokens lie: prefill_mma.cuh.
//
// Operands must stay as they are until their product is done: products_wait<P> returns when all but the last P
// groups (products_begin, products.., products_end) are.
#ifndef PREFILL_WGMMA_CUH
#define PREFILL_WGMMA_CUH
#include "prefill_half.cuh"
#include "wgmma_operands.cuh"

constexpr int UNDER_WAY = 1; // groups that may be while the next operands are made

#ifdef __CUDACC__
MOTE_FN void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MOTE_FN void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> MOTE_FN void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// What this thread copied to shared memory is there for the tensor cores too (before the barrier).
MOTE_FN void stage_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One product of 16 columns. B: rows of 128 bytes, swizzled by 128 bytes, eight rows 1024 bytes apart (the upper half of
// its descriptor); b is the lower half.
template <int N, int BF16> struct Wgmma;
// N_D: registers of the result, N / 2; A and B: the numbers of the operands that follow them.
#define WGMMA(N, N_D, A, B, BF16, TYPE)                                                                        \
    template <> struct Wgmma<N, BF16> {                                                                        \
        static MOTE_FN void add(float (&d)[N_D], const u32 (&a)[4], u32 b)                                     \
        {                                                                                                      \
            asm volatile("{ .reg .pred p; .reg .b64 b; setp.ne.b32 p, 1, 0; mov.b64 b, {" B ", 0x40000040}; "  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                       \
                         " {" D_##N_D "}, {" A "}, b, p, 1, 1, 0; }"                                           \
                         : REGISTERS_##N_D("+f", 0)                                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                                \
        }                                                                                                      \
    }
#define WGMMA_TYPES(N, N_D, A, B)      \
    WGMMA(N, N_D, A, B, 0, "f16");     \
    WGMMA(N, N_D, A, B, 1, "bf16")
WGMMA_TYPES(32, 16, "%16, %17, %18, %19", "%20");
WGMMA_TYPES(64, 32, "%32, %33, %34, %35", "%36");
WGMMA_TYPES(128, 64, "%64, %65, %66, %67", "%68");
#endif

template <int N, int BF16> MOTE_FN void products(float (&acc)[N / 2], const u32 (&a)[2][4], u32 stage, int s, int lane)
{
    (void)lane;
    u32 b = (stage >> 4 | 1u << 16) + ((s >> 1) * N * 128 + (s & 1) * 64) / 16;
    Wgmma<N, BF16>::add(acc, a[0], b);
    Wgmma<N, BF16>::add(acc, a[1], b + 2);
}

#endif
