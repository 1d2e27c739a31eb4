// mx_wgmma.cuh: e2m1 weights as e4m3 operands in registers, and their asynchronous products with e4m3 tokens in shared memory
// (sm_90a).
//
// A weight is v * 2^(E - 127); of a row it is held as the e4m3 number v * 2^(E - base - 5), exact when its E lies in [base, base +
// 11], and the row's sum is multiplied by 2^(base + 5 - 127) at the end. A scale costs no product: it moves the exponents of the
// table that codes are looked up in.
#ifndef MX_WGMMA_CUH
#define MX_WGMMA_CUH
#include "common.cuh"
#include "wgmma_operands.cuh"

constexpr int MX_WEIGHT_WINDOW = 11; // E of a row's blocks: base .. base + 11
constexpr int MX_BASE_SHIFT = 5;

#ifdef __CUDACC__
MOTE_FN void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MOTE_FN void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> MOTE_FN void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// One product of 32 columns; `fresh`: d starts at zero. b: the lower half of B's descriptor (rows of 128 bytes, swizzled).
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
WGMMA_E4M3(16, 8, "%8, %9, %10, %11", "%12", "%13");
WGMMA_E4M3(32, 16, "%16, %17, %18, %19", "%20", "%21");
WGMMA_E4M3(48, 24, "%24, %25, %26, %27", "%28", "%29");
WGMMA_E4M3(64, 32, "%32, %33, %34, %35", "%36", "%37");
#endif

// E4M3 of v * 2^-5 for the nibbles of the layout (magnitude above the sign; layout.h, E2M1), and how a step of the exponent moves
// it. As tile.cuh has it, A[n] ^ sign(B[n]) and B[n] ^ sign(A[n]): negatives of the lower half lie inverted.
constexpr int mx_e4m3(int magnitude) // of v * 2^-5: 0, then 0.5 .. 6; exponents 1 to 4
{
    constexpr int bits[8] = {0, 0x08, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24};
    return bits[magnitude];
}
constexpr u32 mx_table(int first, bool is_step)
{
    u32 word = 0; // modulo 2^32: what a byte lends its neighbour it gets back when steps are added up
    for (int i = 0; i < 4; i++) {
        int n = first + i, m = n >> 1, negative = n & 1;
        int v = is_step ? (m ? 8 : 0) : (negative ? 0x80 | mx_e4m3(m) : mx_e4m3(m));
        if (negative && n < 8) v = is_step ? -v : v ^ 255;
        if (n == 1) v = is_step ? 0 : 127; // -0, never written
        word += (u32)v << 8 * i;
    }
    return word;
}
struct MxTable {
    u32 t[4];
    // step: E - base, 0 .. 11
    // again: the step of exponents, out of the compiler's sight, which would share a product and add on the busier pipe
    MOTE_FN MxTable(u32 step, u32 again)
    {
        t[0] = step * mx_table(0, true) + mx_table(0, false), t[1] = step * mx_table(4, true) + mx_table(4, false);
        t[2] = step * mx_table(8, true) + mx_table(8, false), t[3] = step * again + mx_table(12, false);
    }
    // Eight codes: the first four values, and the others.
    MOTE_FN void look_up(u32 w, u32 &first, u32 &second) const
    {
        u32 other = w ^ 0x88888888u;
        first = prmt(t[0], t[1], w) ^ prmt(t[2], t[3], other);
        second = prmt(t[0], t[1], w >> 16) ^ prmt(t[2], t[3], other >> 16);
    }
};

#endif
