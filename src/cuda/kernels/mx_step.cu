// mx_step.cu: what the MXFP4 kernels of sm_90 need around their products: rows of activations quantised (mx_act.cuh), pairs in the
// order of experts (pair_sort.cuh), and the sum over a row's experts. No constants.
#include "expert.cuh"
#include "mx_act.cuh"
#include "pair_sort.cuh"

enum { THREADS = 1024, WARPS = THREADS / 32 };

// Four numbers of f32 or bf16.
MOTE_FN float4 four_of(const void *from, size_t at, bool is_bf16)
{
    if (!is_bf16) return *(const float4 *)((const float *)from + at);
    uint2 half = *(const uint2 *)((const u16 *)from + at);
    return make_float4(bf16_to_float(half.x), bits_float(half.x & 0xFFFF0000), bf16_to_float(half.y), bits_float(half.y & 0xFFFF0000));
}
// N, four or eight.
template <int N> MOTE_FN void columns_of(const void *from, size_t at, bool is_bf16, float (&v)[N])
{
    if (N == 8 && is_bf16) { // at once
        uint4 half = *(const uint4 *)((const u16 *)from + at);
        u32 two[4] = {half.x, half.y, half.z, half.w};
        MOTE_UNROLL
        for (int i = 0; i < N; i++) v[i] = i % 2 ? bits_float(two[i / 2 % 4] & 0xFFFF0000) : bf16_to_float(two[i / 2 % 4]);
        return;
    }
    MOTE_UNROLL
    for (int i = 0; i < N; i += 4) {
        float4 four = four_of(from, at + i, is_bf16);
        v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
}

struct MxQuantise {
    const void *x; // [n_row][n_col] f32, or bf16; rows `stride` apart
    MxRows small, large, planes; // q null: not wanted; planes: no other is, and x may lie there, units of bf16 where they become planes
    int *wide;           // large: set when a block is too far below the largest that it shares a scale with
    int n_row, n_col, stride; // multiples of 4 but n_row
    int is_bf16, spans;  // spans: scales are a span's, not a unit's
    int *count;          // [2]: to be zero (mx_small.cu)
    float *y;              // [n_row][n_col], or null: what results are to be added to
    const float *residual; // likewise, where y begins; null: at zero
};

// Four units of a row by a warp, a span or two; of the last not all may be there.
constexpr int WARP_UNITS = 4;
MOTE_FN void quantise_units(const MxQuantise &job, int warp)
{
    int n_unit = (job.n_col + 127) / 128, n_warp = (n_unit + WARP_UNITS - 1) / WARP_UNITS; // a row
    int lane = threadIdx.x % 32, part = lane % 8, row = warp / n_warp, unit = warp % n_warp * WARP_UNITS + lane / 8, column = unit * 128 + part * 16;
    int share = !job.spans ? 1 : job.planes.q ? MX_PLANES_SPAN : MX_SPAN;
    bool is_there = row < job.n_row && unit < n_unit, writes_scale = part == 0 && unit % share == 0;
    size_t at = (size_t)row * n_unit + unit, scale_at = (size_t)row * ((n_unit + share - 1) / share) + unit / share;
    float x[16];
    MOTE_UNROLL
    for (int i = 0; i < 4; i++) {
        float4 v = make_float4(0, 0, 0, 0);
        if (row < job.n_row && column + 4 * i < job.n_col) v = four_of(job.x, (size_t)row * job.stride + column + 4 * i, job.is_bf16);
        x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
    if (job.y && row < job.n_row)
        MOTE_UNROLL
        for (int i = 0; i < 16 && column + i < job.n_col; i += 4) {
            size_t to = (size_t)row * job.n_col + column + i;
            *(float4 *)(job.y + to) = job.residual ? *(const float4 *)(job.residual + to) : make_float4(0, 0, 0, 0);
        }
    if (job.planes.q) {
        if (job.spans) {
            MxPlanes<16, MX_PLANES_SPAN * 128> planes(x);
            if (is_there) planes.put(job.planes, at, part, scale_at, writes_scale);
        } else {
            MxPlanes<16, 32> planes(x);
            if (is_there) planes.put(job.planes, at, part, at * 4 + part / 2, part % 2 == 0);
        }
        return;
    }
    MxColumns<16> columns(x);
    int top = job.spans ? columns.top<MX_SPAN>() : columns.top<1>();
    if (!is_there) return;
    if (job.small.q) columns.put_small(job.small, at, part);
    if (!job.large.q) return;
    columns.put_large(job.large, at, part, top, scale_at, writes_scale);
    if (columns.is_wide(top)) *job.wide = 1;
}

// The first blocks sort, the others quantise. Grid: n_part + four units of all rows / 32.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mx_begin(const __grid_constant__ MxQuantise quantise, const __grid_constant__ Sort sort)
{
    chain_launch();
    chain_wait();
    if (blockIdx.x == 0 && threadIdx.x < 2) quantise.count[threadIdx.x] = 0;
    if ((int)blockIdx.x < sort.n_part) sort_pairs(sort, blockIdx.x);
    else quantise_units(quantise, (blockIdx.x - sort.n_part) * WARPS + threadIdx.x / 32);
}

// Grid: four units of all rows / 32.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mx_quantise(const __grid_constant__ MxQuantise job)
{
    chain_launch();
    chain_wait();
    quantise_units(job, blockIdx.x * WARPS + threadIdx.x / 32);
}

struct MxSum {
    const void *flat;         // [pairs in the order of experts][d_model] f32, or bf16
    const int *place;         // [rows][n_used]
    const float *weights;     // [rows][n_used]
    const void *residual;     // [rows][d_model] as y, or null; may be y
    void *y;                  // [rows][d_model] f32, or bf16
    int n_used, d_model;      // d_model a multiple of 8
    int is_flat_bf16, is_bf16;
};

// 16 bytes of every pair's a thread: eight columns, of f32 four. What stands where is asked for by a lane each, and what stands there at once.
template <int N> MOTE_FN void sum_columns(const MxSum &job)
{
    int c = (blockIdx.x * 128 + threadIdx.x) * N, row = blockIdx.y, lane = threadIdx.x % 32;
    size_t at = (size_t)row * job.d_model + c;
    bool is_there = c < job.d_model;
    float sum[N];
    MOTE_UNROLL
    for (int i = 0; i < N; i++) sum[i] = 0;
    if (job.residual && is_there) columns_of<N>(job.residual, at, job.is_bf16, sum);
    for (int first = 0; first < job.n_used; first += 32) {
        int n = min(32, job.n_used - first), pair = row * job.n_used + first + min(lane, n - 1), place = job.place[pair];
        float weight = job.weights[pair];
#pragma unroll 8
        for (int s = 0; s < n; s++) {
            size_t from = (size_t)__shfl_sync(~0u, place, s) * job.d_model + c;
            float v[N], by = __shfl_sync(~0u, weight, s);
            if (!is_there) continue;
            columns_of<N>(job.flat, from, N == 8, v);
            MOTE_UNROLL
            for (int i = 0; i < N; i++) sum[i] += by * v[i];
        }
    }
    if (!is_there) return;
    MOTE_UNROLL
    for (int i = 0; i < N; i += 4) {
        if (job.is_bf16) *(uint2 *)((u16 *)job.y + at + i) = make_uint2(pack_bf16x2(sum[i], sum[i + 1]), pack_bf16x2(sum[i + 2], sum[i + 3]));
        else *(float4 *)((float *)job.y + at + i) = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    }
}

// Grid: (d_model / 1024 where flat is bf16, else / 512; rows).
extern "C" __global__ void __launch_bounds__(128) mx_sum(const __grid_constant__ MxSum job)
{
    chain_launch();
    chain_wait();
    if (job.is_flat_bf16) sum_columns<8>(job);
    else sum_columns<4>(job);
}
