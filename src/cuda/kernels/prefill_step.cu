// prefill_step.cu: what steps of many rows need around their products: activations in half precision, pairs of (row,
// expert) in the order of experts with a list of pieces, and the sum over a row's experts. No constants.
#include "expert.cuh"
#include "mxfp4.cuh"
#include "pair_sort.cuh"
#include "prefill_half.cuh"
#include "prefill_int8.cuh"

// ---- activations ----

struct Convert {
    const float *x;            // [n_row][n_col], n_col a multiple of 32
    void *out;    // [n_row][n_col to 128]: halves in the order of prefill_half.cuh, or bytes in that of prefill_int8.cuh
    float *scale; // halves: [n_row]: the way back
    float2 *group; // bytes: [n_row][groups]
    int n_row, n_col;
    int type; // of prefill_half.cuh (f16: a row's largest value is brought to 512 .. 1024); or the columns of a group of bytes
};
enum { CONVERT_ROWS = 4, ROW_THREADS = 256, CONVERT_THREADS = CONVERT_ROWS * ROW_THREADS };

// Rows first .. of a block, a warp a group.
MOTE_FN void convert_bytes(const Convert &job, int first)
{
    int row = first + threadIdx.x / ROW_THREADS, n_unit = (job.n_col + 127) / 128, n_group = int8_groups(job.n_col, job.type);
    if (row >= job.n_row) return;
    const float *x = job.x + (size_t)row * job.n_col;
    i8 *q = (i8 *)job.out + (size_t)row * n_unit * 128;
    float2 *group = job.group + (size_t)row * n_group;
    auto four = [&](int c) { return *(const float4 *)(x + c); };
    int step = job.type == 256 ? 2 : 1;
    MOTE_ROLLED
    for (int unit = threadIdx.x % ROW_THREADS / 32 * step; unit < n_unit; unit += ROW_THREADS / 32 * step)
        if (step == 2) int8_pair(four, unit, n_unit, job.n_col, q, group);
        else int8_unit(four, unit, job.n_col, q, group);
}

// Four columns of each eight, v [4], of a block of 32 to MXFP4; the thread of lane ^ 2 has the others.
MOTE_FN void round_block(float4 v[4])
{
    u32 most = 0;
    MOTE_UNROLL
    for (int t = 0; t < 4; t++) {
        u32 x = float_bits(v[t].x) & 0x7FFFFFFFu, y = float_bits(v[t].y) & 0x7FFFFFFFu;
        u32 z = float_bits(v[t].z) & 0x7FFFFFFFu, w = float_bits(v[t].w) & 0x7FFFFFFFu;
        most = max(most, max(max(x, y), max(z, w)));
    }
    most = max(most, __shfl_xor_sync(~0u, most, 2));
    int exponent = mxfp4_exponent(most);
    float scale = mxfp4_scale(exponent), inverse = mxfp4_inverse(exponent);
    MOTE_UNROLL
    for (int t = 0; t < 4; t++) {
        v[t].x = mxfp4_value(v[t].x, inverse) * scale, v[t].y = mxfp4_value(v[t].y, inverse) * scale;
        v[t].z = mxfp4_value(v[t].z, inverse) * scale, v[t].w = mxfp4_value(v[t].w, inverse) * scale;
    }
}

// The same to halves. A thread turns out 16 bytes: every other of four columns of each eight.
MOTE_FN void convert_halves(const Convert &job, int first)
{
    __shared__ float most[CONVERT_THREADS / 32];
    int thread = threadIdx.x % ROW_THREADS, row = first + threadIdx.x / ROW_THREADS;
    int padded = (job.n_col + 127) / 128 * 128, there = row < job.n_row;
    const float *x = job.x + (size_t)row * job.n_col;
    u16 *out = (u16 *)job.out + (size_t)row * padded;
    float up = 1, down = 1;
    if (job.type == AS_F16) {
        float m = 0;
        for (int c = thread * 4; there && c < job.n_col; c += ROW_THREADS * 4) {
            float4 v = *(const float4 *)(x + c);
            m = fmaxf(m, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
        m = warp_max(m);
        if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = m;
        __syncthreads();
        for (int i = 0; i < ROW_THREADS / 32; i++) m = fmaxf(m, most[threadIdx.x / ROW_THREADS * (ROW_THREADS / 32) + i]);
        int exponent = max((int)(float_bits(m) >> 23), 17); // of m, biased; 0 and the smallest values: as 2^-110
        up = bits_float((u32)(254 + 9 - exponent) << 23);
        down = bits_float((u32)(exponent - 9) << 23);
    }
    if (!there) return;
    if (thread == 0) job.scale[row] = down;
    for (int i = thread; i / 32 * 32 < padded / 8; i += ROW_THREADS) { // whole warps
        int base = i / 4 * 32 + i % 4 / 2 * 4;
        float4 v[4];
        u32 w[4];
        MOTE_UNROLL
        for (int t = 0; t < 4; t++)
            v[t] = base < job.n_col ? *(const float4 *)(x + base + 8 * t) : make_float4(0, 0, 0, 0);
        if (job.type == AS_MXFP4) round_block(v);
        MOTE_UNROLL
        for (int t = 0; t < 4; t++) {
            float low = i & 1 ? v[t].y : v[t].x, high = i & 1 ? v[t].w : v[t].z;
            w[t] = job.type == AS_F16 ? pack_half2(low * up, high * up) : pack_bf16x2(low, high);
        }
        if (i < padded / 8) *(uint4 *)(out + 8 * i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

MOTE_FN void convert_rows(const Convert &job, int first)
{
    if (job.type > AS_MXFP4) convert_bytes(job, first);
    else convert_halves(job, first);
}

// Grid: rows / 4.
extern "C" __global__ void __launch_bounds__(CONVERT_THREADS, 1) prefill_convert(const __grid_constant__ Convert job)
{
    chain_launch();
    chain_wait();
    convert_rows(job, blockIdx.x * CONVERT_ROWS);
}

// An expert block's beginning: the first blocks sort, the others convert. Grid: n_part + rows / 4.
extern "C" __global__ void __launch_bounds__(CONVERT_THREADS, 1)
    prefill_begin(const __grid_constant__ Convert convert, const __grid_constant__ Sort sort)
{
    chain_launch();
    chain_wait();
    if ((int)blockIdx.x < sort.n_part) sort_pairs(sort, blockIdx.x);
    else convert_rows(convert, (blockIdx.x - sort.n_part) * CONVERT_ROWS);
}

// ---- the sum over a row's experts ----

struct Sum {
    const float *flat;        // [pairs in the order of experts][d_model], or null
    const int *place;         // [rows][n_used]
    const float *weights;     // [rows][n_used]
    const float *shared;      // [rows][d_model], or null
    const float *shared_gate; // [rows], or null: 1
    const float *residual;    // [rows][d_model], or null; may be y
    float *y;                 // [rows][d_model]
    int n_used, d_model;      // d_model a multiple of 4
};

MOTE_FN void add_scaled(float4 &sum, float scale, const float *from)
{
    float4 v = *(const float4 *)from;
    sum.x += scale * v.x, sum.y += scale * v.y, sum.z += scale * v.z, sum.w += scale * v.w;
}

// Grid: (d_model / 1024, rows).
extern "C" __global__ void __launch_bounds__(256) prefill_sum(const __grid_constant__ Sum job)
{
    chain_launch();
    chain_wait();
    int c = (blockIdx.x * 256 + threadIdx.x) * 4, row = blockIdx.y;
    if (c >= job.d_model) return;
    size_t at = (size_t)row * job.d_model + c;
    float4 sum = job.residual ? *(const float4 *)(job.residual + at) : make_float4(0, 0, 0, 0);
    MOTE_UNROLL
    for (int s = 0; s < job.n_used; s++) {
        int pair = row * job.n_used + s;
        add_scaled(sum, job.weights[pair], job.flat + (size_t)job.place[pair] * job.d_model + c);
    }
    if (job.shared) add_scaled(sum, pair_weight(job.shared_gate, 1, row), job.shared + at);
    *(float4 *)(job.y + at) = sum;
}
