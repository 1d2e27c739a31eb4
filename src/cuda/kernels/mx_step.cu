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

enum { OWN_SCALE, SPAN_SCALE, ROW_SCALE }; // 32 columns have one; a span, MX_SPAN or MX_PLANES_SPAN units; a row, of up to MOST_UNITS

struct MxQuantise {
    const void *x;               // [n_row][n_col] f32, or bf16
    MxRows small, large, planes; // q null: not wanted; planes: no other is
    u16 *halves;                 // null: not wanted; no other is
    int n_row, n_col;            // n_col a multiple of 4
    int is_bf16;
    int share;             // of large ones SPAN_SCALE or ROW_SCALE, of planes OWN_SCALE or SPAN_SCALE
    int *count;            // [2]: to be zero (mx_small.cu)
    float *y;              // [n_row][n_col], or null: what results are to be added to
    const float *residual; // likewise, where y begins; null: at zero
};

// Four units of a row by a warp, a span or two; of the last not all may be there.
constexpr int WARP_UNITS = 4, MOST_UNITS = WARPS * WARP_UNITS;

// Where a lane's 16 columns stand. Rows whose units share a scale lie in a block each.
struct Place {
    int n_unit, n_warp; // of a row
    int part, row, unit;
    bool is_there;
    MOTE_FN Place(int n_row, int n_col, int block, bool is_whole) : n_unit((n_col + 127) / 128), n_warp((n_unit + WARP_UNITS - 1) / WARP_UNITS)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_whole = is_whole ? WARPS / n_warp : 0, at = block * WARPS + warp;
        row = is_whole ? block * n_whole + warp / n_warp : at / n_warp;
        unit = (is_whole ? warp : at) % n_warp * WARP_UNITS + lane / 8, part = lane % 8;
        is_there = row < n_row && unit < n_unit && (!is_whole || warp < n_whole * n_warp);
    }
    MOTE_FN size_t at() const { return (size_t)row * n_unit + unit; }
    // The largest of a row's, of which every warp has one. All threads of the block.
    MOTE_FN int top(int of_warp) const
    {
        __shared__ int tops[WARPS];
        int warp = threadIdx.x / 32, first = warp / n_warp * n_warp;
        if (threadIdx.x % 32 == 0) tops[warp] = of_warp;
        __syncthreads();
        for (int i = first; i < min(first + n_warp, (int)WARPS); i++) of_warp = max(of_warp, tops[i]);
        return of_warp;
    }
};

MOTE_FN void quantise_units(const MxQuantise &job, int block)
{
    bool is_whole = job.share == ROW_SCALE;
    Place place(job.n_row, job.n_col, block, is_whole);
    int column = place.unit * 128 + place.part * 16, share = is_whole ? place.n_unit : job.planes.q ? MX_PLANES_SPAN : MX_SPAN;
    bool writes_scale = place.part == 0 && place.unit % share == 0;
    size_t at = place.at(), first = (size_t)place.row * job.n_col + column, scale_at = (size_t)place.row * ((place.n_unit + share - 1) / share) + place.unit / share;
    float x[16];
    MOTE_UNROLL
    for (int i = 0; i < 4; i++) {
        float4 v = make_float4(0, 0, 0, 0);
        if (place.is_there && column + 4 * i < job.n_col) v = four_of(job.x, first + 4 * i, job.is_bf16);
        x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
    if (job.y && place.is_there)
        MOTE_UNROLL
        for (int i = 0; i < 16 && column + i < job.n_col; i += 4)
            *(float4 *)(job.y + first + i) = job.residual ? *(const float4 *)(job.residual + first + i) : make_float4(0, 0, 0, 0);
    if (job.halves) {
        u16 *to = job.halves + at * 128 + mx_half_position(place.part * 16); // of every eight columns two stand side by side
        MOTE_UNROLL
        for (int i = 0; i < 8 && place.is_there; i += 2) *(uint2 *)(to + 4 * i) = make_uint2(pack_bf16x2(x[i], x[i + 1]), pack_bf16x2(x[8 + i], x[9 + i]));
        return;
    }
    if (job.planes.q) {
        if (job.share == SPAN_SCALE) {
            MxPlanes<16, MX_PLANES_SPAN * 128> planes(x);
            if (place.is_there) planes.put(job.planes, at, place.part, scale_at, writes_scale);
        } else {
            MxPlanes<16, 32> planes(x);
            if (place.is_there) planes.put(job.planes, at, place.part, at * 4 + place.part / 2, place.part % 2 == 0);
        }
        return;
    }
    MxColumns<16> columns(x);
    int top = columns.top<MX_SPAN>();
    if (is_whole) top = place.top(top);
    if (!place.is_there) return;
    if (job.small.q) columns.put_small(job.small, at, place.part);
    if (job.large.q) columns.put_large(job.large, at, place.part, top, scale_at, writes_scale);
}

// The first blocks sort, the others quantise. Grid: n_part + four units of all rows / 32; where a row's units share a scale, rows, as many to
// a block as have all their warps there.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mx_begin(const __grid_constant__ MxQuantise quantise, const __grid_constant__ Sort sort)
{
    chain_launch();
    chain_wait();
    if (blockIdx.x == 0 && threadIdx.x < 2) quantise.count[threadIdx.x] = 0;
    if ((int)blockIdx.x < sort.n_part) sort_pairs(sort, blockIdx.x);
    else quantise_units(quantise, blockIdx.x - sort.n_part);
}

// Small rows become large ones whose units share a scale, where they lie.
struct MxShare {
    MxRows rows;  // q is rewritten, scale read
    float *scale; // [n_row]
    int n_row, n_col;
};
// Grid: rows, as mx_begin's.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mx_share(const __grid_constant__ MxShare job)
{
    chain_launch();
    chain_wait();
    Place place(job.n_row, job.n_col, blockIdx.x, true);
    uint4 *at = (uint4 *)job.rows.q + place.at() * 8 + place.part, q = make_uint4(0, 0, 0, 0);
    int e = 0;
    if (place.is_there) q = *at, e = mx_scale_exponent(job.rows.scale[place.at() * 4 + place.part / 2]);
    int top = place.top(__reduce_max_sync(~0u, e));
    if (!place.is_there) return;
    float up = mx_up(top, e);
    *at = make_uint4(mx_times(q.x, up), mx_times(q.y, up), mx_times(q.z, up), mx_times(q.w, up));
    if (place.part == 0 && place.unit == 0) job.scale[place.row] = mx_large_scale(top);
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
