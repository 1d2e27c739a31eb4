// prefill_linear.cu: y = W x (+ bias) (+ residual) for steps of many rows, of up to four matrices of one kind. Constants: W0, the template arguments of
// Tile<> before K; COLS, columns; X_BF16, what x is copied as.
#include "prefill_linear.cuh"
#include "prefill_loop.cuh"
#include "prefill_store.cuh"

struct Linear {
    const u16 *x;         // [n_token][KP], columns in the order of prefill_half.cuh
    const float *x_scale; // [n_token]
    LinearOuts to;
};

// Grid: (256 rows of an out, one out after the other, N tokens).
template <int TILES, int N> MOTE_FN void linear(const Linear &job)
{
    using T = Tile<W0, COLS>;
    chain_launch();
    chain_wait();
    const LinearOut &out = job.to.of_block();
    int begin = blockIdx.y * N, count = min(N, job.to.n_token - begin);
    int tile = (blockIdx.x - out.first_block) * 16 + threadIdx.x / 32, last = (out.n_row + 15) / 16 - 1;
    const u8 *record[TILES];
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) record[i] = out.w + (size_t)min(tile + i * warps(TILES), last) * T::BYTES;
    Ring<N, TILES> ring;
    ring.start(job.x, nullptr, begin, count);
    for (int j = threadIdx.x; j < N; j += threads(TILES)) shared_scale<N>()[j] = j < count ? job.x_scale[begin + j] : 0;
    float acc[TILES][N / 2];
    multiply_rows<T, T, TILES, N>(ring, record, acc);
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) {
        int own = tile + i * warps(TILES);
        float bias[2] = {};
        if (out.bias) rows_of(own, out.n_row, out.bias, bias);
        each_product<N>(acc[i], own, out.n_row, count, [&](float v, int h, int row, int token) {
            out.put(v * (X_BF16 ? 1 : 1 / WEIGHT_UP) * shared_scale<N>()[token] + bias[h], begin + token, row);
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
