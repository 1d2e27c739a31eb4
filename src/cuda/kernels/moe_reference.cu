// moe_reference.cu: the expert block one product at a time (`--moe unfused`, calibration): products of one projection,
// pair by pair; then the activation; then the weighted sum. The same core, splits and order of sums as moe_decode.cu,
// so the same bits. Constants: W0, COLS; SPLIT warps share the columns (as the fused stage does).
#include "common.cuh"
#include "act.cuh"
#include "expert.cuh"
#include "dot.cuh"

// out[p][n] = W_expert(p) x[pair_base + (of_rows ? p / n_used : p)]; grid (tiles, pairs or fewer), block SPLIT warps.
extern "C" __global__ void __launch_bounds__(SPLIT * 32)
    project(const u64 *slot, int n_expert, int which, const int *ids, const __grid_constant__ mote_step_act x, int n_pair,
            int n_used, int of_rows, int pair_base, float *out, int n_out, mote_step_fault *fault)
{
    using T = Tile<W0, COLS>;
    __shared__ float part[SPLIT][16];
    __shared__ __align__(16) u32 lut[T::LUT_WORDS ? T::LUT_WORDS : 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Share<T, SPLIT> share(warp, lane);
    if (T::LUT_WORDS) T::fill(lut, threadIdx.x, blockDim.x);
    chain_launch();
    chain_wait();
    __syncthreads();
    for (int p = blockIdx.y; p < n_pair; p += gridDim.y) {
        int expert = ids ? ids[p] : 0;
        if (expert < 0 || expert >= n_expert) {
            if (atomicCAS(&fault->code, 0, MOTE_STEP_EXPERT) == 0) fault->row = p, fault->value = expert;
            expert = 0;
        }
        const u8 *record = (const u8 *)slot[expert * 3 + which] + (size_t)blockIdx.x * T::BYTES;
        LaneRows<1> row(pair_base + (of_rows ? p / n_used : p), 1, lane);
        Sums<1> sums;
        Dot<T, 1, SPLIT> dot;
        dot.start(record, share);
        dot.run(record, share, lut, x, row, 1, sums);
        reduce(sums, lane, part[warp]);
        __syncthreads();
        int n = blockIdx.x * 16 + threadIdx.x;
        if (threadIdx.x < 16 && n < n_out) {
            float sum = 0;
#pragma unroll
            for (int k = 0; k < SPLIT; k++) sum += part[k][threadIdx.x];
            out[(size_t)p * n_out + n] = sum;
        }
        __syncthreads();
    }
}
