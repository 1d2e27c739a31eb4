// prefill_linear.cu: y = W x (+ bias) (+ residual) for steps of many rows. Constants: W0, the template arguments of
// Tile<> before K; COLS, columns; X_BF16, what x is copied as.
#include "prefill_loop.cuh"
#include "prefill_store.cuh"

struct Linear {
    const u8 *w;           // tiles
    const u16 *x;          // [n_token][KP], columns in the order of prefill_half.cuh
    const float *x_scale;  // [n_token]
    const float *bias;     // [n_row] or null
    const float *residual; // like y, or null; may be y
    float *y;              // [n_token][y_stride]
    i64 y_stride;
    int n_token, n_row;
};

// Grid: (128 TILES rows, N tokens).
template <int TILES, int N> MOTE_FN void linear(const Linear &job)
{
    using T = Tile<W0, COLS>;
    chain_launch();
    chain_wait();
    int warp = threadIdx.x / 32, begin = blockIdx.y * N, count = min(N, job.n_token - begin);
    int n_tile = (job.n_row + 15) / 16, tile[TILES];
    const u8 *record[TILES];
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) {
        tile[i] = blockIdx.x * 8 * TILES + 8 * i + warp;
        record[i] = job.w + (size_t)min(tile[i], n_tile - 1) * T::BYTES;
    }
    Ring<N> ring;
    ring.start(job.x, nullptr, begin, count);
    for (int j = threadIdx.x; j < N; j += THREADS) shared_scale<N>()[j] = j < count ? job.x_scale[begin + j] : 0;
    float acc[TILES][N / 2];
    multiply_rows<T, T, TILES, N>(ring, record[0], record[TILES - 1], acc);
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) {
        float bias[2] = {};
        if (job.bias) rows_of(tile[i], job.n_row, job.bias, bias);
        each_product<N>(acc[i], tile[i], job.n_row, count, [&](float v, int h, int row, int token) {
            i64 at = (begin + token) * job.y_stride + row;
            v = v * (X_BF16 ? 1 : 1 / WEIGHT_UP) * shared_scale<N>()[token] + bias[h];
            job.y[at] = job.residual ? job.residual[at] + v : v;
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS<Tile<W0, COLS>>) prefill_linear_256x64(const __grid_constant__ Linear job)
{
    linear<2, 64>(job);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2) prefill_linear_128x64(const __grid_constant__ Linear job)
{
    linear<1, 64>(job);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2) prefill_linear_128x32(const __grid_constant__ Linear job)
{
    linear<1, 32>(job);
}
#if PREFILL_WGMMA
extern "C" __global__ void __launch_bounds__(THREADS) prefill_linear_256x128(const __grid_constant__ Linear job)
{
    linear<2, 128>(job);
}
#endif
