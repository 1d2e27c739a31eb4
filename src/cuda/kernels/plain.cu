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

// ---- many rows ----

// 64 rows of W x 32 rows of x a block. Its eight warps take every eighth 32 columns each; their sums meet in order. The
// tensor cores multiply TF32 numbers: an f32 is two of them, the second what the first has no room for, and only the
// product of two seconds (2^-22) is left out. Operands come from memory as lanes hold them: lane (g, t) columns
// 8 t .. 8 t + 7 of row g, two columns a product (sums have no order).
constexpr int GEMM_WARPS = 8, GEMM_COLS = 32, W_TILES = 4, X_TILES = 4, W_ROWS = 16 * W_TILES, X_ROWS = 8 * X_TILES;

struct Parts {
    u32 first, second;
    __device__ __forceinline__ Parts() {}
    __device__ __forceinline__ explicit Parts(float v)
    {
        first = float_bits(v) & 0xFFFFE000u;
        second = float_bits(v - bits_float(first));
    }
};

// Columns c .. c + 7 of a row of weights; past the end 0.
__device__ __forceinline__ void weights8(const u8 *row, int c, int n_col, float v[8])
{
#pragma unroll
    for (int i = 0; i < 8; i += EACH) {
        uint4 w = {0, 0, 0, 0};
        if (c + i < n_col) w = keep16(row + (size_t)(c + i) * ITEM_BYTES); // rows are padded to 16 bytes, with anything
        plain_unpack(w, v + i);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (c + i >= n_col) v[i] = 0;
}
__device__ __forceinline__ void inputs8(const float *row, int c, int n_col, float v[8])
{
    if (n_col % 4 == 0) { // rows lie on 16 bytes
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            float4 u = c + i < n_col ? *(const float4 *)(row + c + i) : make_float4(0, 0, 0, 0);
            v[i] = u.x, v[i + 1] = u.y, v[i + 2] = u.z, v[i + 3] = u.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = c + i < n_col ? row[c + i] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(GEMM_WARPS * 32)
    plain_gemm(const __grid_constant__ PlainOut out, const float *x, int n_x)
{
    constexpr int HALF = GEMM_WARPS / 2, ACC = W_TILES * X_TILES * 4;
    __shared__ float part[HALF][ACC][32]; // of four warps: [accumulator][lane]
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    int w0 = blockIdx.x * W_ROWS, i0 = blockIdx.y * X_ROWS;
    float acc[W_TILES][X_TILES][4] = {};
    chain_launch();
    chain_wait();
    auto row_of = [&](int w) { return out.data + (size_t)min(w, out.n_row - 1) * out.row_bytes; };
#pragma unroll 1
    for (int c = warp * GEMM_COLS + 8 * t; c - 8 * t < out.n_col; c += GEMM_WARPS * GEMM_COLS) {
        Parts b[X_TILES][8];
        float a[2][8];
#pragma unroll
        for (int n = 0; n < X_TILES; n++) {
            float v[8];
            inputs8(x + (size_t)min(i0 + 8 * n + g, n_x - 1) * out.n_col, c, out.n_col, v);
#pragma unroll
            for (int k = 0; k < 8; k++) b[n][k] = Parts(v[k]);
        }
#pragma unroll
        for (int m = 0; m < W_TILES; m++) {
            weights8(row_of(w0 + 16 * m + g), c, out.n_col, a[0]);
            weights8(row_of(w0 + 16 * m + 8 + g), c, out.n_col, a[1]);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                Parts p[4] = {Parts(a[0][k]), Parts(a[1][k]), Parts(a[0][k + 4]), Parts(a[1][k + 4])};
                u32 first[4] = {p[0].first, p[1].first, p[2].first, p[3].first};
                u32 second[4] = {p[0].second, p[1].second, p[2].second, p[3].second};
#pragma unroll
                for (int n = 0; n < X_TILES; n++) {
                    mma_tf32(acc[m][n], first, b[n][k].second, b[n][k + 4].second);
                    if (ITEM == 2) mma_tf32(acc[m][n], second, b[n][k].first, b[n][k + 4].first); // others: 0
                    mma_tf32(acc[m][n], first, b[n][k].first, b[n][k + 4].first);
                }
            }
        }
    }
    float *own = &acc[0][0][0];
    for (int half = HALF; half; half /= 2) { // 4 + 0, 5 + 1, ..; then 2 + 0, 3 + 1; then 1 + 0
        if (warp >= half && warp < 2 * half)
#pragma unroll
            for (int i = 0; i < ACC; i++) part[warp - half][i][lane] = own[i];
        __syncthreads();
        if (warp < half)
#pragma unroll
            for (int i = 0; i < ACC; i++) own[i] += part[warp][i][lane];
        __syncthreads();
    }
    if (warp) return;
#pragma unroll
    for (int m = 0; m < W_TILES; m++)
#pragma unroll
        for (int n = 0; n < X_TILES; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = i0 + 8 * n + 2 * t + (j & 1), w = w0 + 16 * m + g + 8 * (j >> 1);
                if (row >= n_x || w >= out.n_row) continue;
                long at = row * out.y_stride + w;
                float sum = acc[m][n][j] + (out.bias ? out.bias[w] : 0);
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
