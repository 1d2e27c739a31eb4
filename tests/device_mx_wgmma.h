/* device_mx_wgmma.h: the asynchronous products of mx_wgmma.cuh on the host.
 *
 * One idea: a product is made when it is waited for, and reads its operands then: whoever changes them before, in registers or
 * in shared memory, gets wrong numbers here as there. Sums are as narrow as the device's.
 */
#ifndef TESTS_DEVICE_MX_WGMMA_H
#define TESTS_DEVICE_MX_WGMMA_H

#include "device_ring.h"

/* A thread's products under way: those before end[0] are the oldest group's. */
struct device_products {
    struct one {
        float *d;
        const u32 *a;
        u32 b; /* the lower half of B's descriptor: rows of 128 bytes, swizzled */
        int n, fresh, is_bf16;
    } product[16];
    int n, end[4], n_group;
};
static device_products device_products_of[DEVICE_THREADS];

/* Of a product's terms and the sum before, so many bits below the first of the largest are kept. */
enum { DEVICE_FP8_BITS = 13 };

static inline const float *e4m3_values()
{
    static float value[256];
    if (value[1] == 0)
        for (int code = 0; code < 256; code++) value[code] = mote_e4m3_f32((u8)code);
    return value;
}

/* Two bf16 in a word. */
static inline float device_half_of(u32 w, int i)
{
    return mote_bf16_f32((u16)(w >> 16 * i));
}
static inline u32 mul_bf16x2(u32 a, u32 b)
{
    u32 low = mote_f32_bf16(device_half_of(a, 0) * device_half_of(b, 0)),
        high = mote_f32_bf16(device_half_of(a, 1) * device_half_of(b, 1));
    return low | high << 16;
}

/* As below, of 16 columns of bf16; sums of f32. */
static inline void device_multiply_bf16(const device_products::one *const warp[32])
{
    float left[16][16];
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            left[row][k] = device_half_of(warp[row % 8 * 4 + k % 8 / 2]->a[k / 8 * 2 + row / 8], k % 2);
    for (int token = 0; token < warp[0]->n; token++) {
        float right[16];
        for (int k = 0; k < 16; k++) {
            u32 at = (warp[0]->b & 0x3FFF) * 16 + (u32)(token * 128 + k * 2);
            u16 half;
            memcpy(&half, shared + (at ^ (at >> 7 & 7) << 4), sizeof half);
            right[k] = mote_bf16_f32(half);
        }
        for (int row = 0; row < 16; row++) {
            float *to = &warp[row % 8 * 4 + token % 8 / 2]->d[token / 8 * 4 + row / 8 * 2 + token % 2],
                  sum = *to;
            for (int k = 0; k < 16; k++) sum += left[row][k] * right[k];
            *to = sum;
        }
    }
}

/* A warp's 16 rows times n tokens; warp[lane]: the same product as its lanes have it. */
static inline void device_multiply(const device_products::one *const warp[32])
{
    typedef float rows __attribute__((vector_size(64)));
    typedef int whole __attribute__((vector_size(64)));
    const float *value = e4m3_values();
    const device_products::one &first = *warp[0];
    if (first.is_bf16) return device_multiply_bf16(warp);
    rows left[32];
    for (int k = 0; k < 32; k++)
        for (int row = 0; row < 16; row++)
            left[k][row] =
                value[warp[row % 8 * 4 + k % 16 / 4]->a[k / 16 * 2 + row / 8] >> 8 * (k % 4) & 255];
    for (int token = 0; token < first.n; token++) {
        rows product[32], most, unit, units; /* what the last bit kept is worth; how many make one */
        float *to[16];
        for (int row = 0; row < 16; row++) {
            to[row] = &warp[row % 8 * 4 + token % 8 / 2]->d[token / 8 * 4 + row / 8 * 2 + token % 2];
            most[row] = first.fresh ? 0 : *to[row];
        }
        /* What is no number stays none: rows of weights that are not there may be anything. */
        rows before = most, none = most - most;
        for (int k = 0; k < 32; k++) {
            u32 at = (first.b & 0x3FFF) * 16 + (u32)(token * 128 + k);
            product[k] = left[k] * value[shared[at ^ (at >> 7 & 7) << 4]];
            none += product[k] - product[k];
            product[k] = product[k] == product[k] ? product[k] : rows{};
        }
        before = before == before ? before : rows{};
        most = before < 0 ? -before : before;
        for (int k = 0; k < 32; k++) {
            rows size = product[k] < 0 ? -product[k] : product[k];
            most = size > most ? size : most;
        }
        for (int row = 0; row < 16; row++) {
            unit[row] = most[row] > 0 ? ldexpf(1, ilogbf(most[row]) - DEVICE_FP8_BITS) : 1;
            units[row] = 1 / unit[row];
        }
        whole sum = __builtin_convertvector(before * units, whole);
        for (int k = 0; k < 32; k++) sum += __builtin_convertvector(product[k] * units, whole);
        const rows after = __builtin_convertvector(sum, rows) * unit + none;
        for (int row = 0; row < 16; row++) *to[row] = after[row];
    }
}

static inline void products_begin() {}
static inline void products_end()
{
    device_products &mine = device_products_of[device.now];
    if (mine.n_group == 4) fail_msg("more groups of products under way than are kept");
    mine.end[mine.n_group++] = mine.n;
}
template <int PENDING> static inline void products_wait()
{
    device_products &mine = device_products_of[device.now];
    while (mine.n_group > PENDING) {
        const device_products *warp = device_products_of + device.now / 32 * 32;
        device_meet<int>(0, [&](const int *, int *) {
            for (int p = 0; p < warp->end[0]; p++) {
                const device_products::one *same[32];
                for (int lane = 0; lane < 32; lane++) {
                    same[lane] = &warp[lane].product[p];
                    if (warp[lane].end[0] != warp->end[0] || same[lane]->b != same[0]->b)
                        fail_msg("lanes of a warp wait for different products");
                }
                device_multiply(same);
            }
        });
        int done = mine.end[0];
        mine.n -= done, mine.n_group--;
        memmove(mine.product, mine.product + done, (size_t)mine.n * sizeof mine.product[0]);
        for (int i = 0; i < mine.n_group; i++) mine.end[i] = mine.end[i + 1] - done;
    }
}
template <int N> struct WgmmaE4M3 {
    static void add(float (&d)[N / 2], const u32 (&a)[4], u32 b, int fresh)
    {
        device_products &mine = device_products_of[device.now];
        if (mine.n == 16) fail_msg("more products under way than are kept");
        mine.product[mine.n++] = {d, a, b, N, fresh, 0};
    }
};
template <int N, int BF16> struct Wgmma {
    static_assert(BF16, "no kernel has others");
    static void add(float (&d)[N / 2], const u32 (&a)[4], u32 b)
    {
        device_products &mine = device_products_of[device.now];
        if (mine.n == 16) fail_msg("more products under way than are kept");
        mine.product[mine.n++] = {d, a, b, N, 0, 1};
    }
};

#endif
