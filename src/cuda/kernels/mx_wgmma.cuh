// mx_wgmma.cuh: e2m1 weights as e4m3 operands in registers, and their asynchronous products with e4m3 tokens in shared memory
// (sm_90a).
//
// A weight is v * 2^(E - 127); of a row it is held as the e4m3 number v * 2^(E - base - 5), exact when its E lies in [base, base +
// 11], and the row's sum is multiplied by 2^(base + 5 - 127) at the end. A scale costs no product: it moves the exponents of the
// table that codes are looked up in.
#ifndef MX_WGMMA_CUH
#define MX_WGMMA_CUH
#include "wgmma.cuh"

constexpr int MX_BASE_SHIFT = 5;

#ifdef __CUDACC__
// One product of 32 columns; `fresh`: d starts at zero. B as in wgmma.cuh.
template <int N> struct WgmmaE4M3;
#define WGMMA_E4M3(N, N_D, A, B, P)                                                                            \
    template <> struct WgmmaE4M3<N> {                                                                          \
        static MOTE_FN void add(float (&d)[N_D], const u32 (&a)[4], u32 b, int fresh)                          \
        {                                                                                                      \
            asm volatile("{ .reg .pred p; .reg .b64 b; setp.eq.s32 p, " P ", 0; mov.b64 b, {" B                \
                         ", 0x40000040}; wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" D_##N_D    \
                         "}, {" A "}, b, p, 1, 1; }"                                                           \
                         : REGISTERS_##N_D("+f", 0)                                                            \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(fresh));                    \
        }                                                                                                      \
    }
WGMMA_E4M3(8, 4, "%4, %5, %6, %7", "%8", "%9");
WGMMA_E4M3(16, 8, "%8, %9, %10, %11", "%12", "%13");
WGMMA_E4M3(24, 12, "%12, %13, %14, %15", "%16", "%17");
WGMMA_E4M3(32, 16, "%16, %17, %18, %19", "%20", "%21");
WGMMA_E4M3(48, 24, "%24, %25, %26, %27", "%28", "%29");
WGMMA_E4M3(64, 32, "%32, %33, %34, %35", "%36", "%37");
WGMMA_E4M3(80, 40, "%40, %41, %42, %43", "%44", "%45");
WGMMA_E4M3(96, 48, "%48, %49, %50, %51", "%52", "%53");
WGMMA_E4M3(112, 56, "%56, %57, %58, %59", "%60", "%61");
WGMMA_E4M3(128, 64, "%64, %65, %66, %67", "%68", "%69");
WGMMA_E4M3(144, 72, "%72, %73, %74, %75", "%76", "%77");
WGMMA_E4M3(160, 80, "%80, %81, %82, %83", "%84", "%85");
WGMMA_E4M3(176, 88, "%88, %89, %90, %91", "%92", "%93");
WGMMA_E4M3(192, 96, "%96, %97, %98, %99", "%100", "%101");
WGMMA_E4M3(208, 104, "%104, %105, %106, %107", "%108", "%109");
WGMMA_E4M3(224, 112, "%112, %113, %114, %115", "%116", "%117");
WGMMA_E4M3(240, 120, "%120, %121, %122, %123", "%124", "%125");
WGMMA_E4M3(256, 128, "%128, %129, %130, %131", "%132", "%133");

// Two products of bf16 numbers; subnormal ones count.
MOTE_FN u32 mul_bf16x2(u32 a, u32 b)
{
    u32 v;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
#endif

// E4M3 of v * 2^-5 for magnitudes first .. first + 3 of e2m1: 0, then 0.5 to 6 in exponents 1 to 4.
constexpr u32 mx_e4m3(int first)
{
    constexpr u32 bits[8] = {0, 0x08, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24};
    return bits[first] | bits[first + 1] << 8 | bits[first + 2] << 16 | bits[first + 3] << 24;
}
// Factors that the compiler does not know (one: MxList's): it would shift and add, on the busier of two pipes, where this multiplies.
struct MxFactors {
    u32 one, eight, eights, byte;
    MOTE_FN MxFactors(u32 list_one)
    {
        one = __shfl_sync(~0u, list_one, 0); // or they were uniform registers, to be moved before every use
        eight = one << 3, eights = one * 0x08080808u, byte = one << 8;
    }
};
struct MxTable {
    u32 low, high; // of magnitudes 0 .. 3, 4 .. 7
    MOTE_FN MxTable(const MxFactors &by) : low(mx_e4m3(0) * by.one), high(mx_e4m3(4) * by.one) {} // (constants would be moved to registers for every use)
    // step: eight times E - base, 0 .. 88, in every byte: what it adds to exponents. 0 has none, and is byte 0.
    MOTE_FN MxTable(u32 step, const MxFactors &by) : low(step * by.byte + mx_e4m3(0)), high(step * by.one + mx_e4m3(4)) {}
    // Eight codes as they lie (layout.h, E2M1): the first four values, and the others.
    MOTE_FN void look_up(u32 w, u32 &first, u32 &second) const
    {
        u32 magnitudes = w & 0x77777777u;
        first = merge(w, prmt(low, high, magnitudes), 0x80808080u);
        second = merge(w << 4, prmt(low, high, magnitudes >> 16), 0x80808080u);
    }
};

// The same as bf16: v * 2^(E - base - MX_HALVES_SHIFT). With its exponent and mantissa in bits 8 .. 6 a magnitude is v * 2^-126 (0.5 a
// subnormal number), and a product with another power of two, exact, makes it what it should be.
constexpr int MX_HALVES_SHIFT = 10, MX_HALVES_FACTOR = 127 + 126 - MX_HALVES_SHIFT; // the factor's exponent where E is base
struct MxHalves {
    u32 low, high, two; // low bytes by their last two bits; high ones of magnitudes 4 .. 7; what brings an exponent to both halves
    MOTE_FN MxHalves(u32 list_one)
    {
        u32 one = __shfl_sync(~0u, list_one, 0);
        low = one * 0xC0804000u, high = one * 0x01010101u, two = one * 0x00800080u;
    }
    // What E is to be multiplied by `two` and added to.
    MOTE_FN u32 start(u32 base) const { return (MX_HALVES_FACTOR - base) * two; }
    // Eight codes as they lie, in pairs.
    MOTE_FN void unpack(u32 w, u32 factor, u32 &a, u32 &b, u32 &c, u32 &d) const
    {
        u32 first = w & 0x77777777u, second = first >> 16;
        u32 low_first = prmt(low, low, first), low_second = prmt(low, low, second);
        u32 high_first = merge(w, prmt(0, high, first), 0x80808080u), high_second = merge(w << 4, prmt(0, high, second), 0x80808080u);
        a = mul_bf16x2(prmt(low_first, high_first, 0x5140), factor), b = mul_bf16x2(prmt(low_first, high_first, 0x7362), factor);
        c = mul_bf16x2(prmt(low_second, high_second, 0x5140), factor), d = mul_bf16x2(prmt(low_second, high_second, 0x7362), factor);
    }
};

#endif
