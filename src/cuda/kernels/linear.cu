// linear.cu: one matrix, or several of one kind that read the same input, times few rows (1 to 64); and rows of the
// embedding. Constants: W0, the template arguments of Tile<> before the columns; COLS, columns; WARPS, 1 to 16.
#include "common.cuh"
#include "act.cuh"
#include "dot.cuh"

using T = Tile<W0, COLS>;

// Warps that share the columns of a tile, and blocks of them that a multiprocessor runs. (With registers for two of the
// widest, so that the next kernel's blocks find room beside this one's, a product takes a third longer.)
constexpr int LINEAR_WARPS = WARPS, ONE_BLOCKS = WARPS > 8 ? 1 : 24 / WARPS, MANY_BLOCKS = 16 / WARPS;

// ---- one matrix ----

// Matrices of the same kind and width that read the same input.
struct LinearOut {
    const u8 *data;
    const float *bias;     // [n_row] or null
    float *y;              // [rows][y_stride]
    const float *residual; // like y, or null
    long y_stride;
    int n_row, first_tile; // where it starts among all tiles
};
struct LinearOuts {
    LinearOut out[4];
    int n_out, n_tile, n_block; // all tiles; blocks that share them
};

// One row, normed and quantised by every block for itself while its weights are on the way: cheaper than a kernel of its
// own ahead of this one. The grid's last block does nothing else and leaves the row for others: out f32, quantised to
// `act`.
struct NormedRow {
    const float *x;    // [COLS]
    const float *norm; // [COLS]
    float *out;        // [COLS]
    float eps;
};

template <int UNITS> struct NormRow {
    static constexpr int THREADS = LINEAR_WARPS * 32, EACH = (UNITS * 128 + THREADS - 1) / THREADS;
    float v[EACH];

    __device__ __forceinline__ void take(const NormedRow &row, float *square)
    {
        float w[EACH], part = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = threadIdx.x + i * THREADS;
            w[i] = c < COLS ? row.norm[c] : 0;
        }
        chain_wait();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = threadIdx.x + i * THREADS;
            v[i] = c < COLS ? row.x[c] : 0;
            part += v[i] * v[i];
        }
        part = warp_sum(part);
        if (threadIdx.x % 32 == 0) square[threadIdx.x / 32] = part;
        __syncthreads();
        float all = 0;
#pragma unroll
        for (int i = 0; i < LINEAR_WARPS; i++) all += square[i];
        float factor = rsqrtf(all / (float)COLS + row.eps);
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = v[i] * factor * w[i];
    }
    template <bool SUMS> __device__ __forceinline__ void quantise(const mote_step_act &act) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = threadIdx.x + i * THREADS;
            if (c < UNITS * 128) quantise32<SUMS>(v[i], act, UNITS, 0, c / 32); // whole warps
        }
    }
    __device__ __forceinline__ void leave(const NormedRow &row, const mote_step_act &act) const
    {
        quantise<true>(act);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (threadIdx.x + i * THREADS < COLS) row.out[threadIdx.x + i * THREADS] = v[i];
    }
};

__device__ __forceinline__ const LinearOut &out_of(const LinearOuts &job, int tile)
{
    int which = 0;
    while (which + 1 < job.n_out && tile >= job.out[which + 1].first_tile) which++;
    return job.out[which];
}
__device__ __forceinline__ const u8 *record_of(const LinearOuts &job, int tile)
{
    if (tile >= job.n_tile) return nullptr;
    const LinearOut &out = out_of(job, tile);
    return out.data + (size_t)(tile - out.first_tile) * T::BYTES;
}

// Tiles blockIdx.x, + n_block, .. of all outs; rows blockIdx.y * ROWS and the next. The weights of a block's next tile are
// asked for before this one's sums are put together, and warps meet once in several tiles.
template <int ROWS, bool NORM = false>
__device__ __forceinline__ void linear(const LinearOuts &job, const mote_step_act &act, int n_x, const NormedRow &normed = {})
{
    constexpr int TURNS = ROWS == 1 ? 4 : ROWS == 4 ? 2 : 1; // tiles between two barriers
    constexpr int BUFFERS = ROWS > 4 ? 1 : 2;                // of their sums: two save a barrier where there is room
    __shared__ float part[BUFFERS][TURNS][LINEAR_WARPS][16 * ROWS], square[LINEAR_WARPS];
    __shared__ __align__(16) u32 lut[T::LUT_WORDS ? T::LUT_WORDS : 1];
    __shared__ SharedRows<ROWS == 1 ? T::UNITS : 1, 1> shared_row;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x, base = blockIdx.y * ROWS, buffer = 0;
    if (NORM && tile == job.n_block) { // the block that leaves the row
        NormRow<T::UNITS> row;
        chain_launch();
        row.take(normed, square);
        row.leave(normed, act);
        return;
    }
    // Weights of a block's first tiles (in 48 registers) are all on their way before the row is there; else those of the next.
    using One = Dot<T, ROWS, LINEAR_WARPS>;
    constexpr int ROOM = 192 / (One::DEPTH * One::RAW), AHEAD = ROWS > 1 || LINEAR_WARPS <= 8 || ROOM < 2 ? 1 : smaller(ROOM, TURNS);
    const Share<T, LINEAR_WARPS> share(warp, lane);
    const u8 *record[AHEAD];
    One dot[AHEAD];
    auto expect = [&](int i) {
        record[i] = record_of(job, tile + i * job.n_block);
        if (record[i]) dot[i].start(record[i], share);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) expect(i);
    if (T::LUT_WORDS) T::fill(lut, threadIdx.x, blockDim.x);
    chain_launch();
    mote_step_act x = act;
    if constexpr (NORM) {
        NormRow<T::UNITS> row;
        row.take(normed, square);
        x = shared_row.view(act.rounding);
        row.template quantise<T::ZERO != 0 || T::HAS_MIN>(x);
    } else {
        chain_wait();
        if constexpr (ROWS == 1) { // the one row there is
            shared_row.take(0, act, 0);
            x = shared_row.view();
        }
    }
    if constexpr (ROWS == 1 && !NORM) copy_wait<0>();
    if (T::LUT_WORDS || ROWS == 1) __syncthreads();
    int n = min(n_x - base, ROWS);
    LaneRows<ROWS> row(ROWS == 1 ? 0 : base, n, lane);
    while (record[0]) {
        int first = tile, turn = 0;
        if constexpr (AHEAD > 1) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (!record[i]) break;
                Sums<ROWS> sums;
                dot[i].run(record[i], share, lut, x, row, n, sums);
                reduce(sums, lane, part[buffer][turn++][warp]);
            }
            tile += AHEAD * job.n_block;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) expect(i);
        } else {
#pragma unroll 1
            do {
                Sums<ROWS> sums;
                tile += job.n_block;
                const u8 *next = record_of(job, tile);
                dot[0].run(record[0], share, lut, x, row, n, sums, next);
                record[0] = next;
                if (!One::CONTINUES && next) dot[0].start(next, share);
                reduce(sums, lane, part[buffer][turn][warp]);
            } while (++turn < TURNS && record[0]);
        }
        __syncthreads(); // the other buffer is free again when all have come here
        for (int i = threadIdx.x; i < turn * 16 * ROWS; i += blockDim.x) {
            int at_turn = TURNS == 1 ? 0 : i / (16 * ROWS), r = i / 16 % ROWS, done = first + at_turn * job.n_block;
            const LinearOut &out = out_of(job, done);
            int w = (done - out.first_tile) * 16 + i % 16;
            if (base + r >= n_x || w >= out.n_row) continue;
            float sum = 0;
#pragma unroll
            for (int k = 0; k < LINEAR_WARPS; k++) sum += part[buffer][at_turn][k][i % (16 * ROWS)];
            if (out.bias) sum += out.bias[w];
            long at = (base + r) * out.y_stride + w;
            out.y[at] = out.residual ? out.residual[at] + sum : sum;
        }
        if (BUFFERS == 1) __syncthreads();
        else buffer ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32, ONE_BLOCKS)
    linear_one(const __grid_constant__ LinearOuts job, const __grid_constant__ mote_step_act x, int n_x)
{
    linear<1>(job, x, n_x);
}

extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32, MANY_BLOCKS)
    linear_four(const __grid_constant__ LinearOuts job, const __grid_constant__ mote_step_act x, int n_x)
{
    linear<4>(job, x, n_x);
}

extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32, MANY_BLOCKS)
    linear_sixteen(const __grid_constant__ LinearOuts job, const __grid_constant__ mote_step_act x, int n_x)
{
    linear<16>(job, x, n_x);
}

extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32, MANY_BLOCKS)
    linear_normed(const __grid_constant__ LinearOuts job, const __grid_constant__ mote_step_act act,
                  const __grid_constant__ NormedRow row)
{
    linear<1, true>(job, act, 1, row);
}

// ---- rows of the embedding ----

// y[i] = row token[i] of a matrix in tiles. One block a row of the step; warps take units.
extern "C" __global__ void embed(const u8 *data, const int *token, int n_vocab, float *y, int n_col,
                                 mote_step_fault *fault)
{
    __shared__ __align__(16) u32 lut[T::LUT_WORDS ? T::LUT_WORDS : 1];
    if (T::LUT_WORDS) T::fill(lut, threadIdx.x, blockDim.x);
    chain_launch();
    chain_wait();
    __syncthreads();
    int id = token[blockIdx.x], lane = threadIdx.x % 32, t = lane & 3;
    if (id < 0 || id >= n_vocab) {
        if (threadIdx.x == 0 && atomicCAS(&fault->code, 0, MOTE_STEP_TOKEN) == 0) fault->row = blockIdx.x, fault->value = id;
        return;
    }
    for (int unit = threadIdx.x / 32; unit < T::UNITS; unit += blockDim.x / 32) {
        typename T::Raw raw;
        u32 a[4][4];
        float scale[2][T::SUBS], min[2][T::SUBS];
        T::load(raw, data + (size_t)(id / 16) * T::BYTES, unit, lane);
        T::codes(raw, lut, lane, a);
        T::scales(raw, lane, scale, min);
        int high = id >> 3 & 1;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            float sc[T::SUBS], mn[T::SUBS];
#pragma unroll
            for (int k = 0; k < T::SUBS; k++) { // lane s of the row has the scales of sub-block s
                sc[k] = __shfl_sync(~0u, high ? scale[1][k] : scale[0][k], (lane & ~3) + s);
                mn[k] = T::HAS_MIN ? __shfl_sync(~0u, high ? min[1][k] : min[0][k], (lane & ~3) + s) : 0;
            }
            if (lane >> 2 != (id & 7)) continue;
            float my_scale = T::SUBS == 2 && t >= 2 ? sc[T::SUBS - 1] : sc[0];
            float my_min = T::SUBS == 2 && t >= 2 ? mn[T::SUBS - 1] : mn[0];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int col = unit * 128 + s * 32 + t * 8 + j;
                u32 word = high ? a[s][1 + 2 * (j / 4)] : a[s][2 * (j / 4)];
                int code = (int)(signed char)(word >> 8 * (j & 3)) - T::ZERO;
                if (col < n_col) y[(size_t)blockIdx.x * n_col + col] = my_scale * (float)code + my_min;
            }
        }
    }
}
