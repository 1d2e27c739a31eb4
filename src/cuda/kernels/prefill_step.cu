// prefill_step.cu: what steps of many rows need around their products: activations in half precision, pairs of (row,
// expert) in the order of experts with a list of pieces, and the sum over a row's experts. No constants.
//
// One idea: nothing here depends on the order in which threads run: a pair's place is counted, not raced for.
#include "expert.cuh"
#include "prefill_half.cuh"

// ---- activations ----

// What a thread turns out: 16 bytes, a quarter of 32 columns: pairs 2 q, 8 + 2 q, 16 + 2 q, 24 + 2 q (prefill_half.cuh).
// x [rows][n_col] (n_col a multiple of 32); out [rows][n_col to 128], f16 with the row's largest value brought to
// 512 .. 1024 and `scale` its way back, or bf16 and 1. Grid: rows.
extern "C" __global__ void __launch_bounds__(256)
    prefill_convert(const float *__restrict__ x, int n_col, int is_bf16, u16 *__restrict__ out, float *__restrict__ scale)
{
    __shared__ float most[8];
    chain_launch();
    chain_wait();
    int padded = (n_col + 127) / 128 * 128;
    x += (size_t)blockIdx.x * n_col;
    out += (size_t)blockIdx.x * padded;
    float up = 1, down = 1;
    if (!is_bf16) {
        float m = 0;
        for (int c = threadIdx.x * 4; c < n_col; c += 1024) {
            float4 v = *(const float4 *)(x + c);
            m = fmaxf(m, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
        m = warp_max(m);
        if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = m;
        __syncthreads();
        for (int i = 0; i < 8; i++) m = fmaxf(m, most[i]);
        int exponent = max((int)(float_bits(m) >> 23), 17); // of m, biased; 0 and the smallest values: as 2^-110
        up = bits_float((u32)(254 + 9 - exponent) << 23);
        down = bits_float((u32)(exponent - 9) << 23);
    }
    if (threadIdx.x == 0) scale[blockIdx.x] = down;
    for (int i = threadIdx.x; i < padded / 8; i += 256) {
        int base = i / 4 * 32, q = i % 4;
        u32 w[4] = {0, 0, 0, 0};
        if (base < n_col)
#pragma unroll
            for (int t = 0; t < 4; t++) {
                float2 v = *(const float2 *)(x + base + 8 * t + 2 * q);
                w[t] = is_bf16 ? pack_bf16x2(v.x, v.y) : pack_half2(v.x * up, v.y * up);
            }
        *(uint4 *)(out + 8 * i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// ---- pairs by expert ----

MOTE_FN int expert_of(const int *ids, int pair, int n_expert)
{
    return min((u32)ids[pair], (u32)n_expert - 1); // routing checked them; no memory but our own all the same
}

// place[pair]: where pair (row * n_used + s) stands in the order of experts, equals in the order of pairs;
// row_of[place]: its row; piece[0 .. n_piece): up to `width` neighbours of one expert. One block; every warp owns a run
// of pairs. Shared memory: [warps][n_expert] counts, [2][n_expert + 1] starts.
extern "C" __global__ void __launch_bounds__(1024)
    prefill_sort(const int *__restrict__ ids, int n_pair, int n_used, int n_expert, int width, int *__restrict__ row_of,
                 int *__restrict__ place, int4 *__restrict__ piece, int *__restrict__ n_piece)
{
    extern __shared__ int counts[];
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int *count = counts + warp * n_expert, *start = counts + n_warp * n_expert, *first_piece = start + n_expert + 1;
    int run = ((n_pair + n_warp - 1) / n_warp + 31) / 32 * 32, begin = warp * run, end = min(begin + run, n_pair);
    for (int i = threadIdx.x; i < n_warp * n_expert; i += blockDim.x) counts[i] = 0;
    chain_launch();
    chain_wait();
    __syncthreads();
    for (int i = begin + lane; i < end; i += 32) atomicAdd(count + expert_of(ids, i, n_expert), 1);
    __syncthreads();
    for (int e = threadIdx.x; e < n_expert; e += blockDim.x) { // counts become where a warp's pairs start
        int sum = 0;
        for (int w = 0; w < n_warp; w++) {
            int n = counts[w * n_expert + e];
            counts[w * n_expert + e] = sum;
            sum += n;
        }
        start[e] = sum;
    }
    __syncthreads();
    if (warp == 0) { // totals become starts, of pairs and of pieces
        int pairs = 0, pieces = 0;
        for (int base = 0; base < n_expert; base += 32) {
            int e = base + lane, n = e < n_expert ? start[e] : 0, p = (n + width - 1) / width;
            int n_sum = n, p_sum = p;
#pragma unroll
            for (int i = 1; i < 32; i *= 2) {
                int n_up = __shfl_up_sync(~0u, n_sum, i), p_up = __shfl_up_sync(~0u, p_sum, i);
                if (lane >= i) n_sum += n_up, p_sum += p_up;
            }
            if (e < n_expert) start[e] = pairs + n_sum - n, first_piece[e] = pieces + p_sum - p;
            pairs += __shfl_sync(~0u, n_sum, 31), pieces += __shfl_sync(~0u, p_sum, 31);
        }
        if (lane == 0) start[n_expert] = pairs, first_piece[n_expert] = pieces, *n_piece = pieces;
    }
    __syncthreads();
    for (int base = begin; base < end; base += 32) {
        int i = base + lane, e = i < end ? expert_of(ids, i, n_expert) : n_expert;
        u32 equals = __match_any_sync(~0u, e), before = equals & ((1u << lane) - 1);
        int to = e < n_expert ? start[e] + count[e] + __popc(before) : 0;
        __syncwarp();
        if (e < n_expert) {
            place[i] = to;
            row_of[to] = i / n_used;
            if (!before) count[e] += __popc(equals);
        }
        __syncwarp();
    }
    for (int p = threadIdx.x; p < first_piece[n_expert]; p += blockDim.x) {
        int low = 0, high = n_expert - 1; // the last expert whose pieces start at p or before
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (first_piece[middle] <= p) low = middle;
            else high = middle - 1;
        }
        int first = start[low] + (p - first_piece[low]) * width;
        piece[p] = make_int4(low, first, min(width, start[low + 1] - first), 0);
    }
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
#pragma unroll 4
    for (int s = 0; s < job.n_used; s++) {
        int pair = row * job.n_used + s;
        add_scaled(sum, job.weights[pair], job.flat + (size_t)job.place[pair] * job.d_model + c);
    }
    if (job.shared) add_scaled(sum, pair_weight(job.shared_gate, 1, row), job.shared + at);
    *(float4 *)(job.y + at) = sum;
}
