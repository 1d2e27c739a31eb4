// common.cuh: the few instructions that CUDA C++ has no plain words for: byte permutes, read-once loads, conversions
// of small floats, tensor-core products, asynchronous copies, and the hand-over between kernels of a chain.
//
// Owns nothing but one line of PTX a function. One idea: what tile.cuh needs of it also compiles as plain C++17 on
// the host, so that the layout is tested without a device.
#ifndef MOTE_COMMON_CUH
#define MOTE_COMMON_CUH

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef __CUDACC__

#define MOTE_FN __device__ __forceinline__
#define MOTE_UNROLL _Pragma("unroll")
#define MOTE_ROLLED _Pragma("unroll 1")
#define MOTE_CONSTANT static __device__ const
#ifndef INFINITY // of math.h, which the run-time compiler has not
#define INFINITY __int_as_float(0x7F800000)
#endif

// ---- bits ----

// Byte i of the result is byte (s >> 4 i) & 7 of b:a; with bit 3 of the nibble its sign, eight times.
MOTE_FN u32 prmt(u32 a, u32 b, u32 s)
{
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
    return d;
}
// Bits of a where the mask has ones, of b elsewhere: in one instruction, where plain words take two.
MOTE_FN u32 merge(u32 a, u32 b, u32 mask)
{
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}
// v, of which the compiler knows nothing.
MOTE_FN u32 opaque(u32 v)
{
    asm("mov.u32 %0, %0;" : "+r"(v));
    return v;
}
MOTE_FN float bits_float(u32 bits)
{
    return __uint_as_float(bits);
}
MOTE_FN u32 float_bits(float v)
{
    return __float_as_uint(v);
}

// ---- loads of what no kernel writes while it is read (weights): ldg* pass L1 by, keep* stay in it ----

MOTE_FN uint4 ldg16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
MOTE_FN uint2 ldg8(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
MOTE_FN u32 ldg4(const void *p)
{
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
MOTE_FN u32 ldg1(const void *p)
{
    u16 v;
    asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
MOTE_FN uint4 keep16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
MOTE_FN uint2 keep8(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
MOTE_FN u32 keep4(const void *p)
{
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
MOTE_FN u32 keep2(const void *p)
{
    u16 v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}

// ---- tables in shared memory, their address in one product and not in the three instructions of plain words ----

typedef u32 shared_words;
MOTE_FN shared_words words_at(const u32 *shared)
{
    return (u32)__cvta_generic_to_shared(shared);
}
// The word at byte i of w, times STRIDE bytes.
template <int STRIDE> MOTE_FN u32 word_of_byte(shared_words base, u32 w, int i)
{
    u32 v;
    asm volatile("{\n\t.reg .u32 at;\n\tmad.lo.u32 at, %1, %2, %3;\n\tld.shared.u32 %0, [at];\n\t}"
                 : "=r"(v)
                 : "r"(prmt(w, 0, 0x4440 + i)), "n"(STRIDE), "r"(base));
    return v;
}

// ---- small floats ----

MOTE_FN float half_to_float(u32 half) // of the low 16 bits
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)half));
    return v;
}
MOTE_FN float bf16_to_float(u32 half)
{
    return bits_float(half << 16);
}

// Two floats in a word, rounded to nearest even: `low` in the low half.
MOTE_FN u32 pack_half2(float low, float high)
{
    u32 v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
MOTE_FN u32 pack_bf16x2(float low, float high)
{
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
MOTE_FN u16 float_to_half(float v)
{
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(v));
    return half;
}

// ---- a warp ----

MOTE_FN float warp_sum(float v) // in every lane, the same order in all
{
    MOTE_UNROLL
    for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
    return v;
}
MOTE_FN float warp_max(float v)
{
    MOTE_UNROLL
    for (int i = 16; i; i >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
    return v;
}

// ---- tensor cores: c += a b. A is 16 rows, B eight columns; lane 4 g + t holds rows g, g + 8 of A, column g of B ----

// K = 32: a[0], a[1]: rows g, g + 8, k 4 t .. + 3; a[2], a[3]: k 16 + 4 t .. + 3; b0, b1 likewise.
// c[0], c[1]: row g, columns 2 t, 2 t + 1; c[2], c[3]: row g + 8.
MOTE_FN void mma_s8(int c[4], const u32 a[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// K = 16, two numbers a word: a[0], a[1]: k 2 t, 2 t + 1; a[2], a[3]: k 8 + 2 t, + 1.
MOTE_FN void mma_half(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
MOTE_FN void mma_bf16(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// K = 8, TF32 (f32 whose last 13 bits are not read): a[0], a[1]: k t; a[2], a[3]: k t + 4; b0, b1 likewise.
MOTE_FN void mma_tf32(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- asynchronous copies to shared memory ----

MOTE_FN u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
// 16 bytes; `bytes` of them (0..16) are read, the rest become zero.
MOTE_FN void copy16(void *shared, const void *global, int bytes = 16)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
}
MOTE_FN void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> MOTE_FN void copy_wait() // until at most PENDING groups are under way
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// 16 bytes to an address in shared memory.
MOTE_FN void stage_copy(u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Four 8 x 8 matrices of halves; lane 8 m + i gives the address of row i of matrix m and gets 2 t, 2 t + 1 of row g of each.
MOTE_FN void stage_matrices(u32 x[4], u32 at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

// ---- to L2, before anybody asks (nothing where there is no such instruction) ----

// One lane of the warp: true; no register remembers which.
MOTE_FN bool elected()
{
#if __CUDA_ARCH__ >= 900
    u32 one;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p;}" : "=r"(one));
    return one;
#else
    return false; // nothing to do there (to_l2)
#endif
}
// From memory to L2: multiples of 16 bytes, by one thread.
MOTE_FN void to_l2(const void *from, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// ---- blocks of one kernel ----

// *count + 1, once what this thread and those it met at a barrier wrote can be seen: who gets the last count, and those
// that it meets, see it (past L1). Returns the count before.
MOTE_FN int count_up(int *count)
{
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}

// ---- a chain of kernels (programmatic dependent launch) ----

// Before the first read of what an earlier kernel wrote, and before the first write that one might still read.
MOTE_FN void chain_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start to run (it waits by itself).
MOTE_FN void chain_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#else // the host: what tile.cuh and mxfp4.cuh use, by definition

#include <string.h>

#define MOTE_FN inline
#define MOTE_UNROLL
#define MOTE_ROLLED
#define MOTE_CONSTANT static const

struct uint2 {
    u32 x, y;
};
struct uint4 {
    u32 x, y, z, w;
};

MOTE_FN u32 prmt(u32 a, u32 b, u32 s)
{
    u64 all = (u64)b << 32 | a;
    u32 d = 0;
    for (int i = 0; i < 4; i++) {
        u32 byte = (u32)(all >> 8 * (s >> 4 * i & 7)) & 255;
        if (s >> 4 * i & 8) byte = byte & 128 ? 255 : 0;
        d |= byte << 8 * i;
    }
    return d;
}
MOTE_FN u32 merge(u32 a, u32 b, u32 mask)
{
    return (a & mask) | (b & ~mask);
}
MOTE_FN u32 opaque(u32 v)
{
    return v;
}
typedef const u32 *shared_words;
MOTE_FN shared_words words_at(const u32 *shared)
{
    return shared;
}
template <int STRIDE> MOTE_FN u32 word_of_byte(shared_words base, u32 w, int i)
{
    return base[(w >> 8 * i & 255) * (STRIDE / 4)];
}
template <class To, class From> inline To same_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
MOTE_FN float bits_float(u32 bits)
{
    return same_bits<float>(bits);
}
MOTE_FN u32 float_bits(float v)
{
    return same_bits<u32>(v);
}
template <class T> inline T load_as(const void *p)
{
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}
MOTE_FN uint4 ldg16(const void *p)
{
    return load_as<uint4>(p);
}
MOTE_FN uint2 ldg8(const void *p)
{
    return load_as<uint2>(p);
}
MOTE_FN u32 ldg4(const void *p)
{
    return load_as<u32>(p);
}
MOTE_FN u32 ldg1(const void *p)
{
    return load_as<u8>(p);
}
MOTE_FN uint4 keep16(const void *p)
{
    return load_as<uint4>(p);
}
MOTE_FN uint2 keep8(const void *p)
{
    return load_as<uint2>(p);
}
MOTE_FN u32 keep4(const void *p)
{
    return load_as<u32>(p);
}
MOTE_FN u32 keep2(const void *p)
{
    return load_as<u16>(p);
}
MOTE_FN float half_to_float(u32 half)
{
    u32 sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3FF;
    if (exponent == 31) return bits_float(sign | 0x7F800000 | mantissa << 13);
    if (exponent) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
}
MOTE_FN float bf16_to_float(u32 half)
{
    return bits_float(half << 16);
}

#endif
#endif
