/* device_ring.h: for tests that run kernels with a ring of stages on the host: barriers in shared memory, threads of a block
 * that meet by name, loads by address, e4m3: what mx_ring.cuh and mx_act.cuh have under __CUDACC__.
 *
 * One idea: who waits lets the block's other threads run; a copy is done at once, so that a stage is there when it is handed over.
 */
#ifndef TESTS_DEVICE_RING_H
#define TESTS_DEVICE_RING_H

#include "device_step.h"

/* 8 bytes of shared memory. */
struct device_mbarrier {
    u16 count, pending;
    i16 expected; /* 16 bytes each */
    u16 phase;
};
static inline device_mbarrier *mbarrier_at(u32 at)
{
    return (device_mbarrier *)(void *)(shared + at);
}
static inline void barrier_init(u32 at, int count)
{
    *mbarrier_at(at) = device_mbarrier{(u16)count, (u16)count, 0, 0};
}
static inline void barrier_init_seen() {}
static inline void barrier_arrive(u32 at, int times = 1)
{
    device_mbarrier *b = mbarrier_at(at);
    if (times > b->pending)
        fail_msg("a barrier of %d is arrived at %d times too often", b->count, times - b->pending);
    b->pending = (u16)(b->pending - times);
    if (b->pending == 0 && !b->expected) b->pending = b->count, b->phase++;
}
static inline void barrier_expect(u32 at, u32 bytes)
{
    device_mbarrier *b = mbarrier_at(at);
    b->expected = (i16)(b->expected + (int)(bytes / 16));
    b->pending--; /* whoever copies is still to come */
}
static inline void bulk_copy(u32 to, const void *from, u32 bytes, u32 barrier)
{
    device_mbarrier *b = mbarrier_at(barrier);
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16 || (int)(bytes / 16) > b->expected)
        fail_msg("a bulk copy of %u bytes that is not aligned or not expected", bytes);
    memcpy(shared + to, from, bytes);
    b->expected = (i16)(b->expected - (int)(bytes / 16));
    barrier_arrive(barrier, 0);
}
static inline void barrier_wait(u32 at, u32 parity)
{
    while ((mbarrier_at(at)->phase & 1) == parity) device_yield(0, device.n);
}
static inline void wait_for(const int *count, int n)
{
    while (*count < n) device_yield(0, device.n);
}
static inline void meet(int name, int n)
{
    static struct {
        int arrived, generation;
    } place[16];
    int mine = place[name].generation;
    if (++place[name].arrived == n) place[name].arrived = 0, place[name].generation++;
    while (place[name].generation == mine) device_yield(0, device.n);
}
static inline void stage_written() {}

static inline uint4 shared16(u32 at)
{
    return load_as<uint4>(shared + at);
}
static inline uint2 shared8(u32 at)
{
    return load_as<uint2>(shared + at);
}
static inline u32 shared4(u32 at)
{
    return load_as<u32>(shared + at);
}
static inline u32 shared2(u32 at)
{
    return load_as<u16>(shared + at);
}
static inline u32 shared1(u32 at)
{
    return shared[at];
}
static inline void stage_copy4(u32 to, const void *from)
{
    memcpy(shared + to, from, 4);
}
static inline void add_to(float *at, float4 v)
{
    at[0] += v.x, at[1] += v.y, at[2] += v.z, at[3] += v.w;
}
static inline void put_shared16(u32 at, int x, int y, int z, int w)
{
    const int v[4] = {x, y, z, w};
    memcpy(shared + at, v, sizeof v);
}
template <int N> static inline void fewer_registers() {}
template <int N> static inline void more_registers() {}

/* Lane 8 m + i has the address of row i of matrix m; lane 4 g + t brings rows 2 t, 2 t + 1 of column g. */
static inline void store_transposed(u32 at, const u32 v[4])
{
    device_exchange(&at, sizeof at, [&](u64(*slot)[16]) {
        int g = device_lane() / 4, t = device_lane() % 4;
        for (int i = 0; i < 8; i++) {
            u32 row;
            u16 half = (u16)(v[i / 2] >> 16 * (i % 2));
            memcpy(&row, slot[i / 2 * 8 + 2 * t + i % 2], sizeof row);
            memcpy(shared + row + 2 * g, &half, sizeof half);
        }
    });
}

/* The nearest, of two as near the one whose last bit is 0; beyond 448: 448. */
static inline u32 device_e4m3(float v)
{
    u32 best = 0;
    for (u32 code = 1; code < 0x7F; code++) {
        float far = fabsf(fabsf(v) - mote_e4m3_f32((u8)code)),
              least = fabsf(fabsf(v) - mote_e4m3_f32((u8)best));
        if (far < least || (far == least && code % 2 == 0)) best = code;
    }
    return best | (v < 0 ? 0x80 : 0);
}
static inline u32 pack_e4m3x4(float a, float b, float c, float d)
{
    return device_e4m3(a) | device_e4m3(b) << 8 | device_e4m3(c) << 16 | device_e4m3(d) << 24;
}
static inline float4 unpack_e4m3x4(u32 v)
{
    return float4{mote_e4m3_f32((u8)v), mote_e4m3_f32((u8)(v >> 8)), mote_e4m3_f32((u8)(v >> 16)),
                  mote_e4m3_f32((u8)(v >> 24))};
}

#endif
