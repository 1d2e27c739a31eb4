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

struct MxQuantise {
    const void *x; // [n_row][n_col] f32, or bf16; rows `stride` apart
    MxRows small, large, planes; // q null: not wanted; planes: no other is, and x may lie there, units of bf16 where they become planes
    int *wide;           // large: set when a block is too far below the largest that it shares a scale with
    int n_row, n_col, stride; // multiples of 4 but n_row
    int is_bf16, spans;  // spans: scales are a span's, not a unit's
    int *done;           // [n_done]: to be zero (mx_small.cu)
    int n_done;
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
    if (job.planes.q) {
        auto put = [&](const auto &planes) {
            if (is_there) planes.put(job.planes, at, part, scale_at, writes_scale);
        };
        return job.spans ? put(MxPlanes<16, MX_PLANES_SPAN>(x)) : put(MxPlanes<16, 1>(x));
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
    for (int i = threadIdx.x; blockIdx.x == 0 && i < quantise.n_done; i += THREADS) quantise.done[i] = 0;
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
    int n_used, d_model;      // d_model a multiple of 4
    int is_flat_bf16, is_bf16;
};

// Grid: (d_model / 1024, rows).
extern "C" __global__ void __launch_bounds__(256) mx_sum(const __grid_constant__ MxSum job)
{
    chain_launch();
    chain_wait();
    int c = (blockIdx.x * 256 + threadIdx.x) * 4, row = blockIdx.y;
    if (c >= job.d_model) return;
    size_t at = (size_t)row * job.d_model + c;
    float4 sum = job.residual ? four_of(job.residual, at, job.is_bf16) : make_float4(0, 0, 0, 0);
    MOTE_UNROLL
    for (int s = 0; s < job.n_used; s++) {
        int pair = row * job.n_used + s;
        float weight = job.weights[pair];
        float4 v = four_of(job.flat, (size_t)job.place[pair] * job.d_model + c, job.is_flat_bf16);
        sum.x += weight * v.x, sum.y += weight * v.y, sum.z += weight * v.z, sum.w += weight * v.w;
    }
    if (job.is_bf16) {
        uint2 half;
        half.x = pack_bf16x2(sum.x, sum.y), half.y = pack_bf16x2(sum.z, sum.w);
        *(uint2 *)((u16 *)job.y + at) = half;
    } else *(float4 *)((float *)job.y + at) = sum;
}
