// plain.cu: products with weights that are plain numbers (f32, f16, bf16) in rows: routers, and models that were never
// quantised. Activations are the f32 rows themselves, sums are f32. Constants: ITEM (enum mote_tile_item: 0 f16, 1 bf16,
// 2 f32).
#include "common.cuh"
#include "plain.cuh"
#include "step.h"

constexpr int EACH = PLAIN_EACH, ITEM_BYTES = PLAIN_BYTES;
constexpr int MAX_ROWS = 4;

struct PlainOut {
    const u8 *data; // [n_row][row_bytes]
    size_t row_bytes;
    const float *bias;
    float *y;
    const float *residual;
    long y_stride;
    int n_row, n_col;
};

// y[i][w] for MAX_ROWS rows i a block: grid (rows of W, rows / MAX_ROWS). A block of four warps: `split` 4 share a row of
// W, 1: a row each. A lane's first AHEAD pieces of weights are asked for before the activations are there.
extern "C" __global__ void __launch_bounds__(128)
    plain_linear(const __grid_constant__ PlainOut out, const float *x, int n_x, int split)
{
    constexpr int AHEAD = 4;
    __shared__ float part[4][MAX_ROWS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int w = split == 4 ? (int)blockIdx.x : (int)blockIdx.x * 4 + warp, first = split == 4 ? warp : 0;
    const u8 *row = out.data + (size_t)min(w, out.n_row - 1) * out.row_bytes; // rows are padded to 16 bytes
    int start = (first * 32 + lane) * EACH, step = split * 32 * EACH, base = blockIdx.y * MAX_ROWS, n = min(n_x - base, MAX_ROWS);
    uint4 ahead[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (start + i * step < out.n_col) ahead[i] = ldg16(row + (size_t)(start + i * step) * ITEM_BYTES);
    chain_launch();
    chain_wait();
    float acc[MAX_ROWS] = {};
    bool whole = out.n_col % 4 == 0; // rows of x lie on 16 bytes
    for (int c0 = start; c0 < out.n_col; c0 += AHEAD * step) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int c = c0 + i * step;
            if (c >= out.n_col) break;
            float v[EACH];
            plain_unpack(ahead[i], v);
            if (c + AHEAD * step < out.n_col) ahead[i] = ldg16(row + (size_t)(c + AHEAD * step) * ITEM_BYTES);
#pragma unroll
            for (int r = 0; r < MAX_ROWS; r++) {
                if (r >= n) break;
                const float *from = x + (size_t)(base + r) * out.n_col + c;
                if (whole && c + EACH <= out.n_col) {
#pragma unroll
                    for (int k = 0; k < EACH; k += 4) {
                        float4 u = *(const float4 *)(from + k);
                        acc[r] += v[k] * u.x + v[k + 1] * u.y + v[k + 2] * u.z + v[k + 3] * u.w;
                    }
                } else {
#pragma unroll
                    for (int k = 0; k < EACH; k++)
                        if (c + k < out.n_col) acc[r] += v[k] * from[k];
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < MAX_ROWS; r++) {
        if (r >= n) break;
        float v = warp_sum(acc[r]);
        if (lane == 0) part[warp][r] = v;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n * (split == 4 ? 1 : 4); i += blockDim.x) {
        int r = i % n, k = i / n, at_w = split == 4 ? w : (int)blockIdx.x * 4 + k;
        if (at_w >= out.n_row) continue;
        float sum = split == 4 ? ((part[0][r] + part[1][r]) + part[2][r]) + part[3][r] : part[k][r];
        if (out.bias) sum += out.bias[at_w];
        long at = (base + r) * out.y_stride + at_w;
        out.y[at] = out.residual ? out.residual[at] + sum : sum;
    }
}

// Many rows: 64 rows of W x 64 rows of x per block of 256 threads, 4 x 4 each.
extern "C" __global__ void __launch_bounds__(256) plain_gemm(const __grid_constant__ PlainOut out, const float *x, int n_x)
{
    constexpr int DEPTH = 16;
    __shared__ float a[DEPTH][64 + 4], b[DEPTH][64 + 4];
    int w0 = blockIdx.x * 64, i0 = blockIdx.y * 64, tw = threadIdx.x % 16, ti = threadIdx.x / 16;
    float acc[4][4] = {};
    chain_launch();
    chain_wait();
    for (int c0 = 0; c0 < out.n_col; c0 += DEPTH) {
        for (int k = threadIdx.x; k < 64 * DEPTH; k += 256) {
            int row = k / DEPTH, c = k % DEPTH;
            float v = 0;
            if (w0 + row < out.n_row && c0 + c < out.n_col) {
                const u8 *at = out.data + (size_t)(w0 + row) * out.row_bytes + (size_t)(c0 + c) * ITEM_BYTES;
                if constexpr (ITEM == 2) v = *(const float *)at;
                else if constexpr (ITEM == 1) v = __uint_as_float((u32) * (const unsigned short *)at << 16);
                else v = half_to_float(*(const unsigned short *)at);
            }
            a[c][row] = v;
            b[c][row] = i0 + row < n_x && c0 + c < out.n_col ? x[(size_t)(i0 + row) * out.n_col + c0 + c] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < DEPTH; c++) {
            float4 u = *(const float4 *)&a[c][tw * 4], v = *(const float4 *)&b[c][ti * 4];
            float us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += us[j] * vs[i];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = i0 + ti * 4 + i, w = w0 + tw * 4 + j;
            if (row >= n_x || w >= out.n_row) continue;
            long at = row * out.y_stride + w;
            float sum = acc[i][j] + (out.bias ? out.bias[w] : 0);
            out.y[at] = out.residual ? out.residual[at] + sum : sum;
        }
}

// Experts: out[p][n] = W_expert(p) x[of_rows ? p / n_used : p]; a warp a row of W, grid (n_out / 4, pairs or fewer).
extern "C" __global__ void __launch_bounds__(128)
    plain_project(const u64 *slot, int n_expert, int which, const int *ids, const float *x, int n_pair, int n_used, int of_rows,
                  size_t row_bytes, int n_col, float *out, int n_out, mote_step_fault *fault)
{
    int n = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    chain_launch();
    chain_wait();
    for (int p = blockIdx.y; p < n_pair; p += gridDim.y) {
        int expert = ids ? ids[p] : 0;
        if (expert < 0 || expert >= n_expert) {
            if (atomicCAS(&fault->code, 0, MOTE_STEP_EXPERT) == 0) fault->row = p, fault->value = expert;
            expert = 0;
        }
        if (n >= n_out) continue;
        const u8 *row = (const u8 *)slot[expert * 3 + which] + (size_t)n * row_bytes;
        const float *from = x + (size_t)(of_rows ? p / n_used : p) * n_col;
        float acc = 0;
        for (int c = lane * EACH; c < n_col; c += 32 * EACH) {
            float v[EACH];
            plain_unpack(ldg16(row + (size_t)c * ITEM_BYTES), v);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (c + i < n_col) acc += v[i] * from[c + i];
        }
        acc = warp_sum(acc);
        if (lane == 0) out[(size_t)p * n_out + n] = acc;
    }
}

// y[i] = row token[i] of the embedding, a block a row.
extern "C" __global__ void plain_embed(const u8 *data, size_t row_bytes, const int *token, int n_vocab, float *y, int n_col,
                                       mote_step_fault *fault)
{
    chain_launch();
    chain_wait();
    int id = token[blockIdx.x];
    if (id < 0 || id >= n_vocab) {
        if (threadIdx.x == 0 && atomicCAS(&fault->code, 0, MOTE_STEP_TOKEN) == 0) fault->row = blockIdx.x, fault->value = id;
        return;
    }
    for (int c = threadIdx.x * EACH; c < n_col; c += blockDim.x * EACH) {
        float v[EACH];
        plain_unpack(ldg16(data + id * row_bytes + (size_t)c * ITEM_BYTES), v);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (c + i < n_col) y[(size_t)blockIdx.x * n_col + c + i] = v[i];
    }
}
