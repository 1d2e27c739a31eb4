// prefill_int8_linear.cu: prefill_linear.cu in 8-bit integers. Constants: W0, the template arguments of Tile<> before K; COLS,
// columns; X_GROUP (prefill_int8_loop.cuh).
#include "prefill_linear.cuh"
#include "prefill_int8_loop.cuh"
#include "prefill_store.cuh"

struct Int8Linear {
    Int8Rows x; // [n_token]
    LinearOuts to;
};

// Grid: (128 rows of an out, one out after the other, N tokens).
template <int N> MOTE_FN void linear(const Int8Linear &job)
{
    using T = Tile<W0, COLS>;
    chain_launch();
    chain_wait();
    const LinearOut &out = job.to.of_block();
    int begin = blockIdx.y * N, count = min(N, job.to.n_token - begin);
    int tile = (blockIdx.x - out.first_block) * WARPS + threadIdx.x / 32, last = (out.n_row + 15) / 16 - 1;
    Ring<N> ring;
    ring.start(job.x, nullptr, begin, count);
    float acc[N / 2];
    multiply_rows<T, T, N>(ring, out.w + (size_t)min(tile, last) * T::BYTES, acc);
    float bias[2] = {};
    if (out.bias) rows_of(tile, out.n_row, out.bias, bias);
    each_product<N>(acc, tile, out.n_row, count,
                    [&](float v, int h, int row, int token) { out.put(v + bias[h], begin + token, row); });
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) prefill_int8_linear_32(const __grid_constant__ Int8Linear job)
{
    linear<32>(job);
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) prefill_int8_linear_64(const __grid_constant__ Int8Linear job)
{
    linear<64>(job);
}
