/* device_emulation.h: enough of a CUDA device for kernel texts to run on the host: blocks one after the other, a block's
 * threads as coroutines that change places at barriers, a warp's exchanges and matrix products by their definitions.
 *
 * Owns: the built-in names of CUDA C++ and the functions that common.cuh and prefill_half.cuh have under __CUDACC__.
 * Does not own: time, memory models, anything asynchronous: a copy is done at once.
 * One idea: a thread runs until it needs the others. So what needs a barrier and has none is likely to go wrong here too.
 *
 * Include before any kernel text, after base/float_bits.h; then define nothing and include the texts.
 */
#ifndef TESTS_DEVICE_EMULATION_H
#define TESTS_DEVICE_EMULATION_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ thread_local /* of the one thread that all coroutines are: every one sees it */
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#include "cuda/kernels/common.cuh"

struct int4 {
    int x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
};
static inline int4 make_int4(int x, int y, int z, int w)
{
    return int4{x, y, z, w};
}
static inline uint2 make_uint2(u32 x, u32 y)
{
    return uint2{x, y};
}
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w)
{
    return uint4{x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline u32 min(u32 a, u32 b)
{
    return a < b ? a : b;
}
static inline u32 max(u32 a, u32 b)
{
    return a > b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline u32 max(u32 a, int b)
{
    return max(a, (u32)b);
}
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
static inline int __float2int_rn(float v)
{
    return v != v ? 0 : v >= 0x1p31f ? INT32_MAX : v <= -0x1p31f ? INT32_MIN : (int)lrintf(v);
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline int __popc(u32 v)
{
    return __builtin_popcount(v);
}

/* ---- a block's threads ---- */

enum { DEVICE_THREADS = 1024, DEVICE_STACK = 128 << 10, DEVICE_SHARED = 227 << 10 };

static thread_local __attribute__((aligned(1024)))
u8 shared[DEVICE_SHARED]; /* the dynamic part, as the texts call it */
static dim3 blockIdx, blockDim, gridDim, threadIdx;

struct device_thread {
    ucontext_t context;
    char *stack;
    int is_done;
    unsigned waits; /* barriers passed, of the block; warp_waits, of the warp */
    unsigned warp_waits;
};
static struct {
    ucontext_t host;
    struct device_thread thread[DEVICE_THREADS];
    unsigned n, now;
    void (*body)(void *);
    void *argument;
    u64 slot[DEVICE_THREADS][16]; /* what lanes show each other */
} device;

static inline void device_switch(unsigned to) /* to a thread that is not done, or to the host */
{
    unsigned from = device.now;
    device.now = to;
    threadIdx.x = to;
    swapcontext(&device.thread[from].context, &device.thread[to].context);
}
static inline void device_yield(unsigned first,
                                unsigned n) /* to the next of threads first .. first + n that is not done */
{
    for (unsigned i = 1; i <= n; i++) {
        unsigned to = first + (device.now - first + i) % n;
        if (device.thread[to].is_done) continue;
        if (to != device.now) device_switch(to);
        return;
    }
}
static inline void device_thread_main(void)
{
    device.body(device.argument);
    device.thread[device.now].is_done = 1;
    for (unsigned i = 1; i < device.n; i++) {
        unsigned to = (device.now + i) % device.n;
        if (!device.thread[to].is_done) device_switch(to);
    }
    swapcontext(&device.thread[device.now].context, &device.host);
}

/* Threads that have ended count as waiting. */
static inline void device_barrier(unsigned first, unsigned n, unsigned device_thread::*waits)
{
    unsigned mine = ++(device.thread[device.now].*waits);
    for (;;) {
        unsigned i = 0;
        while (i < n && (device.thread[first + i].is_done || device.thread[first + i].*waits >= mine)) i++;
        if (i == n) return;
        unsigned to = first + i; /* one that others wait for */
        device_switch(to);
    }
}
static inline void __syncthreads()
{
    device_barrier(0, device.n, &device_thread::waits);
}
static inline void __syncwarp()
{
    device_barrier(device.now / 32 * 32, 32, &device_thread::warp_waits);
}

/* Every lane's words, seen by `read` when all are there. */
template <class Read> static inline void device_exchange(const void *own, size_t size, Read read)
{
    unsigned base = device.now / 32 * 32;
    memcpy(device.slot[device.now], own, size);
    __syncwarp();
    read(device.slot + base);
    __syncwarp();
}
template <class T> static inline T device_from(T v, int lane)
{
    T got;
    device_exchange(&v, sizeof v, [&](u64(*slot)[16]) { memcpy(&got, slot[lane & 31], sizeof got); });
    return got;
}
static inline int device_lane()
{
    return (int)(device.now % 32);
}
template <class T> static inline T __shfl_sync(u32, T v, int lane)
{
    return device_from(v, lane);
}
template <class T> static inline T __shfl_xor_sync(u32, T v, int mask)
{
    return device_from(v, device_lane() ^ mask);
}
template <class T> static inline T __shfl_up_sync(u32, T v, int by)
{
    return device_from(v, device_lane() >= by ? device_lane() - by : device_lane());
}
/* What all lanes' numbers come to: join(what the lanes before have made, a lane's number, the lane). */
template <class Join> static inline int device_joined(int v, Join join)
{
    int all = 0;
    device_exchange(&v, sizeof v, [&](u64(*slot)[16]) {
        for (int i = 0; i < 32; i++) {
            int one;
            memcpy(&one, slot[i], sizeof one);
            all = join(all, one, i);
        }
    });
    return all;
}
static inline u32 __ballot_sync(u32, int is)
{
    return (u32)device_joined(
        is, [](int all, int one, int lane) { return (int)((u32)all | (u32)(one != 0) << lane); });
}
static inline int __reduce_add_sync(u32, int v)
{
    return device_joined(v, [](int all, int one, int) { return all + one; });
}
static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}
static inline void __threadfence() {} /* blocks run one after the other */
static inline int atomicAdd(int *at, int v)
{
    int old = *at;
    *at += v;
    return old;
}
static inline int atomicCAS(int *at, int from, int to)
{
    int old = *at;
    if (old == from) *at = to;
    return old;
}

/* body(argument) by every thread of every block. */
static inline void device_run(dim3 grid, unsigned block, void (*body)(void *), void *argument)
{
    device.n = block;
    device.body = body;
    device.argument = argument;
    blockDim = dim3{block, 1, 1};
    gridDim = grid;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                memset(shared, 0xFF, sizeof shared);
                for (unsigned i = 0; i < block; i++) {
                    struct device_thread *t = &device.thread[i];
                    if (!t->stack) t->stack = (char *)malloc(DEVICE_STACK);
                    t->is_done = 0;
                    t->waits = t->warp_waits = 0;
                    getcontext(&t->context);
                    t->context.uc_stack.ss_sp = t->stack;
                    t->context.uc_stack.ss_size = DEVICE_STACK;
                    makecontext(&t->context, device_thread_main, 0);
                }
                device.now = 0;
                threadIdx = dim3{0, 0, 0};
                swapcontext(&device.host, &device.thread[0].context);
            }
}
static inline void device_end()
{
    for (struct device_thread &t : device.thread) free(t.stack), t.stack = NULL;
}

/* ---- common.cuh and prefill_half.cuh under __CUDACC__ ---- */

static inline u32 device_pair(u16 low, u16 high)
{
    return (u32)high << 16 | low;
}
static inline u32 pack_half2(float low, float high)
{
    return device_pair(mote_f32_f16(low), mote_f32_f16(high));
}
static inline u32 pack_bf16x2(float low, float high)
{
    return device_pair(mote_f32_bf16(low), mote_f32_bf16(high));
}
template <class Function> static inline u32 device_halves(u32 a, u32 b, u32 c, Function f)
{
    u16 half[2];
    for (int i = 0; i < 2; i++)
        half[i] = mote_f32_f16(f(mote_f16_f32((u16)(a >> 16 * i)), mote_f16_f32((u16)(b >> 16 * i)),
                                 mote_f16_f32((u16)(c >> 16 * i))));
    return device_pair(half[0], half[1]);
}
static inline u32 add_half2(u32 a, u32 b)
{
    return device_halves(a, b, 0, [](float x, float y, float) { return x + y; });
}
static inline u32 mul_half2(u32 a, u32 b)
{
    return device_halves(a, b, 0, [](float x, float y, float) { return x * y; });
}
static inline u32 fma_half2(u32 a, u32 b, u32 c)
{
    return device_halves(a, b, c, [](float x, float y, float z) { return x * y + z; });
}
static inline u32 fma_bf16x2(u32 a, u32 b, u32 c)
{
    u16 half[2];
    for (int i = 0; i < 2; i++)
        half[i] = mote_f32_bf16(fmaf(mote_bf16_f32((u16)(a >> 16 * i)), mote_bf16_f32((u16)(b >> 16 * i)),
                                     mote_bf16_f32((u16)(c >> 16 * i))));
    return device_pair(half[0], half[1]);
}
template <int WHICH> static inline u32 both_halves(u32 pair)
{
    u16 half = (u16)(pair >> 16 * WHICH);
    return device_pair(half, half);
}
static inline float clamp_to_half(float v)
{
    return v > 65504 ? 65504 : v < -65504 ? -65504 : v;
}

static inline float warp_max(float v)
{
    for (int i = 16; i; i >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
    return v;
}
static inline void chain_wait() {}
static inline void chain_launch() {}
static inline u32 shared_address(const void *p)
{
    return (u32)((const u8 *)p - shared);
}
static inline void stage_copy(u32 to, const void *from)
{
    memcpy(shared + to, from, 16);
}
static inline bool elected()
{
    return device_lane() == 0;
}
static inline void to_l2(const void *, int) {}
static inline void copy_commit() {}
template <int PENDING> static inline void copy_wait() {}

/* Four matrices of 8 x 8 halves; lane 8 m + i has the address of row i of matrix m. */
static inline void stage_matrices(u32 x[4], u32 at)
{
    device_exchange(&at, sizeof at, [&](u64(*slot)[16]) {
        for (int m = 0; m < 4; m++) {
            u32 row;
            memcpy(&row, slot[8 * m + device_lane() / 4], sizeof row);
            memcpy(&x[m], shared + row + device_lane() % 4 * 4, 4);
        }
    });
}

/* c += a b of 16 x 8 x 16: the words of lane 4 g + t, as PTX lays them out. */
static inline void device_product(float c[4], const u32 a[4], u32 b0, u32 b1, float (*value)(u16))
{
    u32 own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    device_exchange(own, sizeof own, [&](u64(*slot)[16]) {
        int g = device_lane() / 4, t = device_lane() % 4;
        for (int j = 0; j < 4; j++) {
            int row = g + 8 * (j >> 1), column = 2 * t + (j & 1);
            double sum = (double)c[j];
            for (int k = 0; k < 16; k++) {
                u32 left[6], right[6];
                memcpy(left, slot[row % 8 * 4 + k % 8 / 2], sizeof left);
                memcpy(right, slot[column * 4 + k % 8 / 2], sizeof right);
                u16 l = (u16)(left[(row >> 3) + 2 * (k >> 3)] >> 16 * (k & 1)),
                    r = (u16)(right[4 + (k >> 3)] >> 16 * (k & 1));
                sum += (double)value(l) * (double)value(r);
            }
            c[j] = (float)sum;
        }
    });
}
static inline void mma_half(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    device_product(c, a, b0, b1, mote_f16_f32);
}
static inline void mma_bf16(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    device_product(c, a, b0, b1, mote_bf16_f32);
}

#ifdef EMULATE_WGMMA
/* A warpgroup's product: a warp's 16 rows from registers, N tokens from shared memory by the lower half of a descriptor
 * (its address; the upper half is the same for all: eight rows 1024 bytes apart, a swizzle of 128 bytes). */
static inline void products_begin() {}
static inline void products_end() {}
template <int PENDING> static inline void products_wait() {}
static inline void stage_written() {}
template <int N, int BF16> struct Wgmma {
    static void add(float (&d)[N / 2], const u32 (&a)[4], u32 b)
    {
        float (*value)(u16) = BF16 ? mote_bf16_f32 : mote_f16_f32;
        device_exchange(a, sizeof a, [&](u64(*slot)[16]) {
            int g = device_lane() / 4, t = device_lane() % 4;
            for (int i = 0; i < N / 2; i++) {
                int row = g + 8 * (i >> 1 & 1), token = i / 4 * 8 + 2 * t + (i & 1);
                double sum = (double)d[i];
                for (int k = 0; k < 16; k++) {
                    u32 left[4], at = (b & 0x3FFF) * 16 + (u32)(token / 8 * 1024 + token % 8 * 128 + k * 2);
                    u16 right;
                    memcpy(left, slot[row % 8 * 4 + k % 8 / 2], sizeof left);
                    memcpy(&right, shared + (at ^ (at >> 7 & 7) << 4), sizeof right);
                    sum += (double)value((u16)(left[(row >> 3) + 2 * (k >> 3)] >> 16 * (k & 1))) *
                           (double)value(right);
                }
                d[i] = (float)sum;
            }
        });
    }
};

/* The same of bytes; `fresh`: d starts at zero. */
template <int N> struct WgmmaS8 {
    static void add(int (&d)[N / 2], const u32 (&a)[4], u32 b, int fresh)
    {
        device_exchange(a, sizeof a, [&](u64(*slot)[16]) {
            int g = device_lane() / 4, t = device_lane() % 4;
            for (int i = 0; i < N / 2; i++) {
                int row = g + 8 * (i >> 1 & 1), token = i / 4 * 8 + 2 * t + (i & 1), sum = fresh ? 0 : d[i];
                for (int k = 0; k < 32; k++) {
                    u32 left[4], at = (b & 0x3FFF) * 16 + (u32)(token / 8 * 1024 + token % 8 * 128 + k);
                    memcpy(left, slot[row % 8 * 4 + k % 16 / 4], sizeof left);
                    sum += (i8)(left[(row >> 3) + 2 * (k >> 4)] >> 8 * (k % 4)) *
                           (i8)shared[at ^ (at >> 7 & 7) << 4];
                }
                d[i] = sum;
            }
        });
    }
};
#endif

#endif
