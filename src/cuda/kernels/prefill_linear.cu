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

// Grid: (256 rows, N tokens).
template <int TILES, int N> MOTE_FN void linear(const Linear &job)
{
    using T = Tile<W0, COLS>;
    chain_launch();
    chain_wait();
    int begin = blockIdx.y * N, count = min(N, job.n_token - begin);
    int tile = blockIdx.x * 16 + threadIdx.x / 32, last = (job.n_row + 15) / 16 - 1;
    const u8 *record[TILES];
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) record[i] = job.w + (size_t)min(tile + i * warps(TILES), last) * T::BYTES;
    Ring<N, TILES> ring;
    ring.start(job.x, nullptr, begin, count);
    for (int j = threadIdx.x; j < N; j += threads(TILES)) shared_scale<N>()[j] = j < count ? job.x_scale[begin + j] : 0;
    float acc[TILES][N / 2];
    multiply_rows<T, T, TILES, N>(ring, record, acc);
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) {
        int own = tile + i * warps(TILES);
        float bias[2] = {};
        if (job.bias) rows_of(own, job.n_row, job.bias, bias);
        each_product<N>(acc[i], own, job.n_row, count, [&](float v, int h, int row, int token) {
            i64 at = (begin + token) * job.y_stride + row;
            v = v * (X_BF16 ? 1 : 1 / WEIGHT_UP) * shared_scale<N>()[token] + bias[h];
            job.y[at] = job.residual ? job.residual[at] + v : v;
        });
    }
}

extern "C" __global__ void __launch_bounds__(threads(1), 1) prefill_linear_32(const __grid_constant__ Linear job)
{
    linear<1, 32>(job);
}
extern "C" __global__ void __launch_bounds__(threads(1), 1) prefill_linear_64(const __grid_constant__ Linear job)
{
    linear<1, 64>(job);
}
#if PREFILL_WGMMA
extern "C" __global__ void __launch_bounds__(threads(1), 1) prefill_linear_128(const __grid_constant__ Linear job)
{
    linear<1, 128>(job);
}
#endif
