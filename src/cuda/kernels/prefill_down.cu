// prefill_down.cu: the second half of an expert block for steps of many rows: flat[pair] = down h, in f32, to be weighed
// and summed in the order of a row's experts (prefill_step.cu). Constants: W0, the template arguments of Tile<> before
// K; K, columns (n_ff); X_BF16, what h is made of.
#include "prefill_expert.cuh"
#include "prefill_loop.cuh"
#include "prefill_store.cuh"

struct Down {
    Pieces list;
    const u16 *h; // [n_pair][KP]
    float *flat;  // [n_pair][d_model]
    int d_model;
};

// Grid: (256 rows, pieces).
template <int N> MOTE_FN void down(const Down &job)
{
    chain_launch();
    chain_wait();
    int4 piece = piece_of(job.list, blockIdx.y, N);
    if (piece.z == 0) return;
    using T = Tile<W0, COLS>;
    int tile = blockIdx.x * 16 + threadIdx.x / 32, last = (job.d_model + 15) / 16 - 1;
    const u8 *w = (const u8 *)job.list.slot[piece.x * 3 + 2];
    Ring<N> ring;
    ring.start(job.h, nullptr, piece.y, piece.z);
    float acc[2][N / 2];
    multiply_rows<T, T, 2, N>(ring, w + (size_t)min(tile, last) * T::BYTES,
                                          w + (size_t)min(tile + 8, last) * T::BYTES, acc);
    piece = piece_of(job.list, blockIdx.y, N); // again: not a register through the loop
    MOTE_UNROLL
    for (int i = 0; i < 2; i++)
        each_product<N>(acc[i], tile + 8 * i, job.d_model, piece.z, [&](float v, int, int row, int token) {
            job.flat[(size_t)(piece.y + token) * job.d_model + row] = X_BF16 ? v : v * (1 / (WEIGHT_UP * HIDDEN_DOWN));
        });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS<Tile<W0, COLS>>) prefill_down_64(const __grid_constant__ Down job)
{
    down<64>(job);
}
#if PREFILL_WGMMA
extern "C" __global__ void __launch_bounds__(THREADS) prefill_down_128(const __grid_constant__ Down job)
{
    down<128>(job);
}
#endif
