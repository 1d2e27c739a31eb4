/* device_step.h: for tests that run the kernels of a step of few rows on the host: what those need of a device beyond
 * device_emulation.h, launches, weights in tiles, rows of activations, and how far a result may be off.
 *
 * Owns: no expectation of any kernel. One idea: everything lies in blocks of exactly its size, so that the sanitizer
 * sees a kernel read or write beside it.
 */
#ifndef TESTS_DEVICE_STEP_H
#define TESTS_DEVICE_STEP_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>

#include "base/error.h"
#include "base/float_bits.h"
#include "base/rng.h"
#include "cuda/pack.h"
#include "quant/decode.h"
#include "quant/mxfp4.h"
#include "random_matrix.h"
}

#include "device_emulation.h"

/* ---- the device, continued ---- */

struct int2 {
    int x, y;
};
static inline int2 make_int2(int x, int y)
{
    return int2{x, y};
}
static inline u32 __float_as_uint(float v)
{
    return same_bits<u32>(v);
}
static inline float __uint_as_float(u32 v)
{
    return same_bits<float>(v);
}
static inline float rsqrtf(float v)
{
    return 1 / sqrtf(v);
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
static inline void copy16(void *to, const void *from)
{
    memcpy(to, from, 16);
}
static inline int count_up(int *count)
{
    return atomicAdd(count, 1);
}

/* A warp's 32 lanes meet once: the last to come turns what all brought into what each takes away. A decode kernel does
 * little else, so it is worth leaving out the second barrier of device_exchange. A lane that has ended never comes: that
 * is a fault of the kernel, whose masks name all lanes. */
static struct {
    unsigned arrived, generation;
    u64 in[32][4], out[32][4];
} device_warp[DEVICE_THREADS / 32];

template <class Out, class In, class All> static inline Out device_meet(const In &own, All all)
{
    static_assert(sizeof(In) <= 32 && sizeof(Out) <= 32, "");
    auto &warp = device_warp[device.now / 32];
    unsigned lane = device.now % 32, base = device.now - lane, mine = warp.generation;
    Out got;
    memcpy(warp.in[lane], &own, sizeof own);
    if (++warp.arrived == 32) {
        In in[32];
        Out out[32];
        for (int i = 0; i < 32; i++) memcpy(&in[i], warp.in[i], sizeof(In));
        all(in, out);
        for (int i = 0; i < 32; i++) memcpy(warp.out[i], &out[i], sizeof(Out));
        warp.arrived = 0;
        warp.generation++;
    }
    while (warp.generation == mine) {
        unsigned next = base + (lane + 1) % 32;
        if (device.thread[next].is_done) fail_msg("lane %u has ended, its warp waits for it", next % 32);
        device_switch(next);
    }
    memcpy(&got, warp.out[lane], sizeof got);
    return got;
}

/* Blocks are large and barriers many: as device_barrier, but a thread asks for all others once and not for each. */
static struct {
    unsigned arrived, generation;
} device_block;

static inline void device_block_barrier()
{
    unsigned mine = device_block.generation, ended = 0;
    device_block.arrived++;
    while (device_block.generation == mine) {
        if (device_block.arrived + ended == device.n) {
            device_block.arrived = 0;
            device_block.generation++;
            return;
        }
        device_yield(0, device.n);
        ended = 0; /* back, and still waiting: some may have ended */
        if (device_block.generation == mine)
            for (unsigned i = 0; i < device.n; i++) ended += (unsigned)device.thread[i].is_done;
    }
}
#define __syncthreads device_block_barrier

template <class T, class From> static inline T device_shuffle(T v, From from)
{
    return device_meet<T>(v, [&](const T *in, T *out) {
        for (int i = 0; i < 32; i++) out[i] = in[from(i)];
    });
}
/* Lanes name the one of their `width` that they read; it need not be the same in all. */
template <class T> static inline T device_read(T v, int lane, int width = 32)
{
    struct wish {
        T v;
        int lane, width;
    };
    return device_meet<T>(wish{v, lane, width}, [](const wish *in, T *out) {
        for (int i = 0; i < 32; i++) out[i] = in[(i & -in[i].width) + (in[i].lane & (in[i].width - 1))].v;
    });
}
#define __shfl_sync(mask, ...) device_read(__VA_ARGS__)
#define __shfl_xor_sync(mask, v, bits) device_shuffle(v, [&](int lane_) { return lane_ ^ (bits); })

template <class T, class Join> static inline T device_reduce(T v, Join join)
{
    return device_meet<T>(v, [&](const T *in, T *out) {
        T sum = in[0];
        for (int i = 1; i < 32; i++) sum = join(sum, in[i]);
        for (int i = 0; i < 32; i++) out[i] = sum;
    });
}
static inline u32 __reduce_max_sync(u32, u32 v)
{
    return device_reduce(v, [](u32 a, u32 b) { return a > b ? a : b; });
}
static inline u32 __reduce_min_sync(u32, u32 v)
{
    return device_reduce(v, [](u32 a, u32 b) { return a < b ? a : b; });
}
static inline int device_add(int v)
{
    return device_reduce(v, [](int a, int b) { return a + b; });
}
#define __reduce_add_sync(mask, v) device_add(v)
static inline u32 device_ballot(bool v)
{
    return device_reduce((u32)v << device_lane(), [](u32 a, u32 b) { return a | b; });
}
#define __ballot_sync(mask, v) device_ballot(v)
static inline bool __any_sync(u32, bool v)
{
    return device_ballot(v) != 0;
}
static inline float warp_sum(float v) /* the exchanges of common.cuh at once, in their order */
{
    return device_meet<float>(v, [](const float *in, float *out) {
        float next[32];
        memcpy(out, in, sizeof next);
        for (int bit = 16; bit; bit >>= 1) {
            for (int i = 0; i < 32; i++) next[i] = out[i] + out[i ^ bit];
            memcpy(out, next, sizeof next);
        }
    });
}
static inline int atomicExch(int *at, int v)
{
    int old = *at;
    *at = v;
    return old;
}

/* c += a b of 16 x 8 x 32 integers, as PTX lays them out (common.cuh). */
static inline void mma_s8(int c[4], const u32 a[4], u32 b0, u32 b1)
{
    typedef int columns __attribute__((vector_size(32)));
    struct operands {
        u32 a[4], b[2];
    };
    struct sums {
        int c[4];
    };
    sums got =
        device_meet<sums>(operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [](const operands *in, sums *out) {
            columns right[32], sum[16]; /* [k][column], [row][column] */
            for (int k = 0; k < 32; k++)
                for (int n = 0; n < 8; n++)
                    right[k][n] = (i8)(in[4 * n + k % 16 / 4].b[k / 16] >> 8 * (k % 4));
            for (int m = 0; m < 16; m++) {
                columns all = {};
                for (int k = 0; k < 32; k++)
                    all += (i8)(in[m % 8 * 4 + k % 16 / 4].a[k / 16 * 2 + m / 8] >> 8 * (k % 4)) * right[k];
                sum[m] = all;
            }
            for (int i = 0; i < 32; i++)
                for (int j = 0; j < 4; j++) out[i].c[j] = sum[i / 4 + j / 2 * 8][i % 4 * 2 + j % 2];
        });
    for (int j = 0; j < 4; j++) c[j] += got.c[j];
}

/* c += a b of 16 x 8 x 8 TF32 numbers: f32 whose last 13 bits are not read. */
static inline void mma_tf32(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    struct operands {
        u32 a[4], b[2];
    };
    struct sums {
        float c[4];
    };
    sums got =
        device_meet<sums>(operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [](const operands *in, sums *out) {
            for (int i = 0; i < 32; i++)
                for (int j = 0; j < 4; j++) {
                    double sum = 0;
                    for (int k = 0; k < 8; k++)
                        sum += (double)bits_float(in[i / 4 * 4 + k % 4].a[k / 4 * 2 + j / 2] & 0xFFFFE000u) *
                               (double)bits_float(in[(i % 4 * 2 + j % 2) * 4 + k % 4].b[k / 4] & 0xFFFFE000u);
                    out[i].c[j] = (float)sum;
                }
        });
    for (int j = 0; j < 4; j++) c[j] += got.c[j];
}

/* Not every kernel uses all that its launch gives it. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "cuda/kernels/rows.cu"

/* ---- memory ---- */

/* n of T, filled; the test links no C++ library. */
template <class T> struct array {
    T *at;
    size_t n;
    explicit array(size_t count = 0, T value = T())
        : at((T *)malloc((count ? count : 1) * sizeof(T))), n(count)
    {
        for (size_t i = 0; i < n; i++) at[i] = value;
    }
    array(const T *from, size_t count) : array(count) { memcpy((void *)at, from, n * sizeof(T)); }
    array(const array &other) : array(other.at, other.n) {}
    array &operator=(const array &other)
    {
        if (this == &other) return *this;
        free(at);
        n = other.n;
        at = (T *)malloc((n ? n : 1) * sizeof(T));
        memcpy((void *)at, other.at, n * sizeof(T));
        return *this;
    }
    ~array() { free(at); }
    T &operator[](long i) { return at[i]; }
    const T &operator[](long i) const { return at[i]; }
    T *begin() { return at; }
    T *end() { return at + n; }
};
static inline bool same_bytes(const void *a, const void *b, size_t size)
{
    return !memcmp(a, b, size);
}

static struct mote_rng rng;

static inline float normal()
{
    double pair[2];
    mote_rng_normal2(&rng, pair);
    return (float)pair[0];
}
static inline array<float> normals(long n)
{
    array<float> v((size_t)n);
    for (float &x : v) x = normal();
    return v;
}

/* ---- launches ---- */

template <class Body> static void launch(unsigned x, unsigned y, unsigned block, Body body)
{
    device_run(
        dim3{x, y, 1}, block, [](void *p) { (*(Body *)p)(); }, &body);
}

/* ---- weights ---- */

struct weights {
    int n_row, n_col;
    array<float> w;       /* decoded [n_row][n_col] */
    array<uint8_t> tiles; /* or plain rows */
    size_t row_bytes;     /* of plain rows */

    const float *row(int r) const { return w.at + (long)r * n_col; }
    double product(int r, const float *x) const
    {
        double sum = 0;
        for (int c = 0; c < n_col; c++) sum += (double)row(r)[c] * (double)x[c];
        return sum;
    }
};

/* Random blocks. `bytes`: of a record, as the kernels have it; 0: plain rows. Compact: TQ1_0 has a code of its own only
 * so; otherwise it is TQ2_0. */
static inline weights make_weights(enum mote_format format, int n_row, int n_col, size_t bytes)
{
    weights m = {n_row, n_col, array<float>((size_t)n_row * (size_t)n_col), array<uint8_t>(), 0};
    array<uint8_t> file(mote_format_row_bytes(format, n_col) * (size_t)n_row);
    struct mote_matrix w = mote_matrix_view(format, file.at, n_row, n_col);
    struct mote_tile_kind kind;
    random_fill(&rng, &w, RANDOM, file.at, NULL, NULL);
    assert_int_equal(mote_tile_kind_of(&w, 1, &kind), MOTE_OK);
    if (bytes) assert_int_equal(mote_tile_bytes(&kind, n_col), bytes);
    m.row_bytes = mote_tile_bytes(&kind, n_col) / MOTE_TILE_ROWS;
    m.tiles = array<uint8_t>(mote_tile_matrix_bytes(&kind, n_row, n_col));
    mote_tile_pack(&kind, &w, 0, (n_row + 15) / 16, m.tiles.at);
    for (int r = 0; r < n_row; r++) mote_decode(&w, r, 0, n_col, m.w.at + (long)r * n_col);
    return m;
}

/* ---- rows of activations ---- */

struct act_rows {
    int n_row, unit, rounding;
    array<signed char> q;
    array<float> scale;

    act_rows(int rows, int n_col, int how = MOTE_ROUND_I16)
        : n_row(rows), unit((n_col + 127) / 128), rounding(how), q((size_t)(rows * unit * 256), 0x55),
          scale((size_t)(rows * unit * 12), NAN)
    {
    }
    mote_step_act view() { return mote_step_act{q.at, scale.at, rounding}; }
    const float *scale_of(int row, int c) const /* and, 4 and 8 on, the sums */
    {
        return scale.at + ((long)row * unit + c / 128) * 12 + c / 32 % 4;
    }
    double value(int row, int c) const
    {
        long block = (long)row * unit * 4 + c / 32;
        return (double)*scale_of(row, c) * (256 * q[block * 64 + c % 32] + q[block * 64 + 32 + c % 32]);
    }
    /* Columns c .. c + 31 are x as quant/mxfp4.c rounds it: codes, scale and sums. */
    bool is_mxfp4(int row, int c, const float *x) const
    {
        int8_t want[32];
        float unit_of = mote_mxfp4_block(x, want);
        const signed char *got = q.at + ((long)row * unit * 4 + c / 32) * 64;
        const float *at = scale_of(row, c);
        int sum[2] = {0, 0};
        for (int i = 0; i < 32; i++) {
            if (got[i] != 0 || got[32 + i] != want[i]) return false;
            sum[i / 16] += want[i];
        }
        return at[0] == unit_of && at[4] == (float)(sum[0] + sum[1]) && at[8] == (float)sum[0];
    }
    bool operator==(const act_rows &other) const
    {
        return n_row == other.n_row && unit == other.unit && same_bytes(q.at, other.q.at, q.n) &&
               same_bytes(scale.at, other.scale.at, scale.n * sizeof(float));
    }
};

/* As cuda_row_warps. */
static inline unsigned row_warps(int n_col)
{
    int unit = (n_col + 127) / 128;
    return unit >= 16 ? 16 : unit >= 8 ? 8 : unit >= 4 ? 4 : unit >= 2 ? 2 : 1;
}

/* x [rows][n_col] normed when there is a norm; to `out` when given. */
static inline act_rows quantised(const float *x, int rows, int n_col, const float *norm = NULL, float eps = 0,
                                 float *out = NULL, int rounding = MOTE_ROUND_I16)
{
    act_rows act(rows, n_col, rounding);
    RowList none = {};
    launch((unsigned)rows, 1, row_warps(n_col) * 32,
           [&] { input_rows(x, none, 0, norm, eps, n_col, act.unit, out, act.view()); });
    return act;
}

/* ---- how far off ---- */

struct error_sum {
    double error = 0, size = 0;
    void add(double got, double want)
    {
        error += (got - want) * (got - want);
        size += want * want;
    }
    void check(double most, const char *what, int row) const
    {
        double relative = sqrt(error / size);
        if (!(relative <= most)) fail_msg("%s: row %d: error %.3g, at most %.3g", what, row, relative, most);
    }
};

#endif
