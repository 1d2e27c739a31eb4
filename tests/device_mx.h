/* device_mx.h: mx_step.cu on the host, for tests of the MXFP4 kernels of sm_90: rows of activations in their layouts
 * (mx_act.cuh), drawn, quantised and read.
 */
#ifndef TESTS_DEVICE_MX_H
#define TESTS_DEVICE_MX_H

#include "device_ring.h"

#include "cuda/kernels/mx_step.cu"

enum { BEGIN_BLOCK = 1024 };

struct mx_rows {
    int n_row, n_unit, n_plane, share; /* share: units that have a scale together; 0: each has four */
    array<i8> q;
    array<float> scale;

    mx_rows(int rows, int n_col, int units, int planes = 1)
        : n_row(rows), n_unit((n_col + 127) / 128), n_plane(planes), share(units),
          q((size_t)(rows * n_unit * planes * 128), 0x55), scale((size_t)(rows * n_scale()), NAN)
    {
    }
    static mx_rows small(int rows, int n_col, int planes = 1) { return mx_rows(rows, n_col, 0, planes); }
    int columns() const { return share ? share * 128 : 32; } /* that have a scale together */
    int n_scale() const { return share ? (n_unit + share - 1) / share : 4 * n_unit; }
    /* That quantise them; is_whole: a row's units share a scale. */
    unsigned blocks(bool is_whole = false) const
    {
        int n_warp = (n_unit + WARP_UNITS - 1) / WARP_UNITS, each = WARPS / n_warp;
        return (unsigned)(is_whole ? (n_row + each - 1) / each : (n_row * n_warp + 31) / 32);
    }
    MxRows view() { return MxRows{q.at, scale.at}; }
    u8 code(int row, int c, int plane) const
    {
        int k = c % 32, position = k % 8 / 4 * 16 + k / 8 * 4 + k % 4;
        long at = ((long)row * n_unit + c / 128) * n_plane + plane;
        return (u8)q[at * 128 + c % 128 / 32 * 32 + position];
    }
    double value(int row, int c) const
    {
        double v = 0;
        for (int p = 0; p < n_plane; p++) v += (double)mote_e4m3_f32(code(row, c, p));
        return (double)scale[(long)row * n_scale() + c / columns()] * v;
    }
    array<double> values(int row, int n_col) const
    {
        array<double> x((size_t)n_col);
        for (int c = 0; c < n_col; c++) x[c] = value(row, c);
        return x;
    }
    bool operator==(const mx_rows &other) const
    {
        return same_bytes(q.at, other.q.at, q.n) &&
               same_bytes(scale.at, other.scale.at, scale.n * sizeof(float));
    }
};

/* Blocks of a row lie up to `spread` powers of two apart; some are zeros. */
static array<float> draw_rows(int n_row, int n_col, int spread)
{
    array<float> x = normals((long)n_row * n_col);
    for (long b = 0; b < (long)x.n / 32; b++) {
        int below = spread ? (int)mote_rng_below(&rng, (u64)spread + 1) : 0,
            is_zero = mote_rng_below(&rng, 20) == 0;
        for (int i = 0; i < 32; i++) x[b * 32 + i] = is_zero ? 0 : ldexpf(x[b * 32 + i], -below);
    }
    return x;
}

/* How far the sum of two planes may lie from x, where `top` is the largest magnitude of all that share a scale (mx_act.cuh). */
static inline double planes_bound(double x, double top)
{
    int e = top > 0x1p-119 ? ilogb(top) : -119;
    return x == 0 ? 0 : fmax(ldexp(1, ilogb(x) - 9), ldexp(1, e - 17));
}
/* The largest magnitude of those that share a scale with column c, which n do. */
template <class T> static double planes_top(const T *row, int n_col, int c, int n)
{
    double top = 0;
    for (int i = c / n * n, end = i + n; i < end && i < n_col; i++) top = fmax(top, fabs((double)row[i]));
    return top;
}

/* Rows of two planes are `large` and alone. */
static inline void quantise(const void *x, int is_bf16, int n_row, int n_col, mx_rows *small, mx_rows *large)
{
    MxRows none = {}, to = large ? large->view() : none;
    bool is_planes = large && large->n_plane == 2, is_whole = large && !is_planes && large->share != MX_SPAN;
    int count[2] = {7, 7};
    MxQuantise job = {x,
                      small ? small->view() : none,
                      is_planes ? none : to,
                      is_planes ? to : none,
                      NULL,
                      n_row,
                      n_col,
                      is_bf16,
                      is_whole                ? ROW_SCALE
                      : large && large->share ? SPAN_SCALE
                                              : OWN_SCALE,
                      count,
                      NULL,
                      NULL};
    Sort none_to_sort = {};
    launch((small ? small : large)->blocks(is_whole), 1, BEGIN_BLOCK, [&] { mx_begin(job, none_to_sort); });
    assert_true(count[0] == 0 && count[1] == 0);
}

#endif
