// wgmma.cuh: asynchronous products of four warps' 64 rows of operands in registers and N tokens in shared memory (sm_90a): when they begin and
// end, those of halves, and lists of result registers for others (prefill_int8_wgmma.cuh, mx_wgmma.cuh).
//
// Operands must stay as they are until their product is done: products_wait<P> returns when all but the last P
// groups (products_begin, products.., products_end) are.
#ifndef WGMMA_CUH
#define WGMMA_CUH
#include "common.cuh"

#define D_4 "%0, %1, %2, %3"
#define D_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define D_12 D_8 ", %8, %9, %10, %11"
#define D_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D_24 D_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define D_32 D_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_40 D_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define D_48 D_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define D_56 D_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define D_64 D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D_72 D_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define D_80 D_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define D_88 D_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define D_96 D_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define D_104 D_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define D_112 D_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define D_120 D_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define D_128 D_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
// d[0 .. n) in registers of a kind: "+f" or "+r".
#define REGISTERS_4(kind, i) kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3])
#define REGISTERS_8(kind, i) REGISTERS_4(kind, i), REGISTERS_4(kind, i + 4)
#define REGISTERS_12(kind, i) REGISTERS_8(kind, i), REGISTERS_4(kind, i + 8)
#define REGISTERS_16(kind, i)                                                                                \
    REGISTERS_4(kind, i), REGISTERS_4(kind, i + 4), REGISTERS_4(kind, i + 8), REGISTERS_4(kind, i + 12)
#define REGISTERS_24(kind, i) REGISTERS_16(kind, i), REGISTERS_8(kind, i + 16)
#define REGISTERS_32(kind, i) REGISTERS_16(kind, i), REGISTERS_16(kind, i + 16)
#define REGISTERS_40(kind, i) REGISTERS_32(kind, i), REGISTERS_8(kind, i + 32)
#define REGISTERS_48(kind, i) REGISTERS_32(kind, i), REGISTERS_16(kind, i + 32)
#define REGISTERS_56(kind, i) REGISTERS_32(kind, i), REGISTERS_24(kind, i + 32)
#define REGISTERS_64(kind, i) REGISTERS_32(kind, i), REGISTERS_32(kind, i + 32)
#define REGISTERS_72(kind, i) REGISTERS_64(kind, i), REGISTERS_8(kind, i + 64)
#define REGISTERS_80(kind, i) REGISTERS_64(kind, i), REGISTERS_16(kind, i + 64)
#define REGISTERS_88(kind, i) REGISTERS_64(kind, i), REGISTERS_24(kind, i + 64)
#define REGISTERS_96(kind, i) REGISTERS_64(kind, i), REGISTERS_32(kind, i + 64)
#define REGISTERS_104(kind, i) REGISTERS_64(kind, i), REGISTERS_40(kind, i + 64)
#define REGISTERS_112(kind, i) REGISTERS_64(kind, i), REGISTERS_48(kind, i + 64)
#define REGISTERS_120(kind, i) REGISTERS_64(kind, i), REGISTERS_56(kind, i + 64)
#define REGISTERS_128(kind, i) REGISTERS_64(kind, i), REGISTERS_64(kind, i + 64)

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
                         : REGISTERS_##N_D("+f", 0)                                                            \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                                \
        }                                                                                                      \
    }
#define WGMMA_TYPES(N, N_D, A, B)      \
    WGMMA(N, N_D, A, B, 0, "f16");     \
    WGMMA(N, N_D, A, B, 1, "bf16")
WGMMA_TYPES(32, 16, "%16, %17, %18, %19", "%20");
WGMMA_TYPES(64, 32, "%32, %33, %34, %35", "%36");
WGMMA_TYPES(80, 40, "%40, %41, %42, %43", "%44");
WGMMA_TYPES(96, 48, "%48, %49, %50, %51", "%52");
WGMMA_TYPES(112, 56, "%56, %57, %58, %59", "%60");
WGMMA_TYPES(128, 64, "%64, %65, %66, %67", "%68");
WGMMA_TYPES(144, 72, "%72, %73, %74, %75", "%76");
WGMMA_TYPES(160, 80, "%80, %81, %82, %83", "%84");
WGMMA_TYPES(176, 88, "%88, %89, %90, %91", "%92");
WGMMA_TYPES(192, 96, "%96, %97, %98, %99", "%100");
WGMMA_TYPES(208, 104, "%104, %105, %106, %107", "%108");
WGMMA_TYPES(224, 112, "%112, %113, %114, %115", "%116");
WGMMA_TYPES(240, 120, "%120, %121, %122, %123", "%124");
WGMMA_TYPES(256, 128, "%128, %129, %130, %131", "%132");
#endif

#endif
