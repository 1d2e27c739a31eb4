// rows.cu: what works on rows of f32 between the products: norm and quantisation of inputs, the unfused activation and
// weighted sum, rows gathered for the output, and rows of other types at the edges of the expert block. Sizes are arguments: these kernels cost nothing but their latency.
#include "common.cuh"
#include "act.cuh"
#include "expert.cuh"
#include "step.h"

// Sum over a block of at most 1024 threads, in a fixed order; everybody gets it.
__device__ __forceinline__ float block_sum(float v, float *shared)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    float all = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) all += shared[i];
    __syncthreads();
    return all;
}

struct RowList {
    int row[32];
};

// h = norm ? x / rms(x) * norm : x for row by_list ? list.row[i] : i; to `out` f32 when given, quantised to `act` when
// act.q is. A block a row; n_unit = ceil(n_col / 128).
extern "C" __global__ void input_rows(const float *x, const __grid_constant__ RowList list, int by_list, const float *norm, float eps, int n_col, int n_unit,
                                      float *out, const __grid_constant__ mote_step_act act)
{
    __shared__ float shared[32];
    chain_launch();
    chain_wait();
    int i = blockIdx.x;
    const float *from = x + (size_t)(by_list ? list.row[i] : i) * n_col;
    float factor = 1;
    if (norm) {
        float square = 0;
        for (int c = threadIdx.x; c < n_col; c += blockDim.x) square += from[c] * from[c];
        factor = rsqrtf(block_sum(square, shared) / (float)n_col + eps);
    }
    for (int c = threadIdx.x; c < n_unit * 128; c += blockDim.x) {
        float v = c < n_col ? from[c] * factor : 0;
        if (norm && c < n_col) v *= norm[c];
        if (out && c < n_col) out[(size_t)i * n_col + c] = v;
        if (act.q) quantise32(v, act, n_unit, i, c / 32);
    }
}

// h[p] = activation(gate[p], up[p]), without a gate (null) of up alone; to `hidden` in f32 when that is given, quantised to
// `act` when act.q is. A block a pair.
extern "C" __global__ void activate(int kind, float limit, const float *gate, const float *up, int n_ff, int n_unit, int pair_base,
                                    float *hidden, const __grid_constant__ mote_step_act act)
{
    chain_launch();
    chain_wait();
    size_t p = blockIdx.x;
    for (int c = threadIdx.x; c < n_unit * 128; c += blockDim.x) {
        float v = c < n_ff ? activation(kind, limit, gate ? gate[p * n_ff + c] : 0, up[p * n_ff + c]) : 0;
        if (hidden && c < n_ff) hidden[p * n_ff + c] = v;
        if (act.q) quantise32(v, act, n_unit, pair_base + (int)p, c / 32);
    }
}

// y[row] = residual[row] + sum over slots of weight * product[row * n_used + slot], slots rising.
extern "C" __global__ void combine(const float *product, const float *weights, int squash, int n_used, const float *residual,
                                   float *y, int n_col)
{
    chain_launch();
    chain_wait();
    size_t row = blockIdx.y;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= n_col) return;
    float sum = residual ? residual[row * n_col + c] : 0;
    for (int s = 0; s < n_used; s++) {
        size_t p = row * n_used + s;
        sum = __fmaf_rn(pair_weight(weights, squash, (int)p), product[p * n_col + c], sum);
    }
    y[row * n_col + c] = sum;
}

// ---- the edges of the expert block (cuda_edge.c) ----

enum { EDGE_BF16 = 1, EDGE_F16 = 2 }; // mote/float_type.h
constexpr int EDGE_EACH = 4;          // numbers of a thread, blockDim.x apart

// to[n] = from[n], of type `type`. Grid: n / (EDGE_EACH blockDim.x), rounded up.
extern "C" __global__ void widen(const u16 *from, int type, i64 n, float *to)
{
    chain_launch();
    chain_wait();
    i64 first = (i64)blockIdx.x * (EDGE_EACH * blockDim.x) + threadIdx.x;
    MOTE_UNROLL
    for (int j = 0; j < EDGE_EACH; j++) {
        i64 i = first + (i64)j * blockDim.x;
        if (i < n) to[i] = type == EDGE_BF16 ? bf16_to_float(from[i]) : half_to_float(from[i]);
    }
}

// The same back, rounded to nearest even.
extern "C" __global__ void narrow(const float *from, int type, i64 n, u16 *to)
{
    chain_launch();
    chain_wait();
    i64 first = (i64)blockIdx.x * (EDGE_EACH * blockDim.x) + threadIdx.x;
    MOTE_UNROLL
    for (int j = 0; j < EDGE_EACH; j++) {
        i64 i = first + (i64)j * blockDim.x;
        if (i < n) to[i] = (u16)(type == EDGE_BF16 ? pack_bf16x2(from[i], 0) : pack_half2(from[i], 0));
    }
}
