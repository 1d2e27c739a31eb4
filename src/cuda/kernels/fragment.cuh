// fragment.cuh: what attention needs of the machine beyond common.cuh: 8 x 8 matrices of halves into registers, two
// halves at a time, powers of two.
//
// Owns nothing but a line of PTX a function.
#ifndef FRAGMENT_CUH
#define FRAGMENT_CUH
#include "common.cuh"

// Four 8 x 8 matrices of halves; lane 8 m + i gives the address of row i of matrix m. r[m]: row lane / 4, columns
// 2 (lane % 4), + 1; turned: rows 2 (lane % 4), + 1 of column lane / 4.
MOTE_FN void load_matrices(u32 r[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
MOTE_FN void load_matrices_turned(u32 r[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
// An 8 x 8 matrix that the warp holds (row lane / 4, columns 2 (lane % 4), + 1), turned.
MOTE_FN u32 turn_matrix(u32 v)
{
    u32 d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
    return d;
}

MOTE_FN u32 sub_half2(u32 a, u32 b)
{
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
MOTE_FN u32 mul_half2(u32 a, u32 b)
{
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
MOTE_FN float low_half(u32 v)
{
    return half_to_float(v & 0xffff);
}
MOTE_FN float high_half(u32 v)
{
    return half_to_float(v >> 16);
}

MOTE_FN float power2(float v) // 2^v, error 2^-22; 0 for -infinity
{
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(v));
    return d;
}

MOTE_FN void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// A load that passes L1 by: what other blocks of this launch wrote.
MOTE_FN float4 load_shared16(const float *p)
{
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
MOTE_FN float load_shared4(const float *p)
{
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

#endif
