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
template <int TILES, int N> MOTE_FN void down(const Down &job, int4 piece, int most)
{
    using T = Tile<W0, COLS>;
    int tile = blockIdx.x * 16 + threadIdx.x / 32, last = (job.d_model + 15) / 16 - 1;
    const u8 *w = (const u8 *)job.list.slot[piece.x * 3 + 2], *record[TILES];
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) record[i] = w + (size_t)min(tile + i * warps(TILES), last) * T::BYTES;
    Ring<N, TILES> ring;
    ring.start(job.h, nullptr, piece.y, piece.z);
    float acc[TILES][N / 2];
    multiply_rows<T, T, TILES, N>(ring, record, acc);
    piece = piece_of(job.list, blockIdx.y, most); // again: not a register through the loop
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++)
        each_product<N>(acc[i], tile + i * warps(TILES), job.d_model, piece.z, [&](float v, int, int row, int token) {
            job.flat[(size_t)(piece.y + token) * job.d_model + row] = X_BF16 ? v : v * (1 / (WEIGHT_UP * HIDDEN_DOWN));
        });
}

// Pieces of at most half the width take the narrower product.
template <int TILES, int N> MOTE_FN void down_piece(const Down &job)
{
    chain_launch();
    chain_wait();
    int4 piece = piece_of(job.list, blockIdx.y, N);
    if (piece.z == 0) return;
    if (piece.z <= N / 2) down<TILES, N / 2>(job, piece, N);
    else down<TILES, N>(job, piece, N);
}

extern "C" __global__ void __launch_bounds__(threads(2), BLOCKS<Tile<W0, COLS>>) prefill_down_64(const __grid_constant__ Down job)
{
    down_piece<2, 64>(job);
}
#if PREFILL_WGMMA
extern "C" __global__ void __launch_bounds__(threads(1), 1) prefill_down_128(const __grid_constant__ Down job)
{
    down_piece<1, 128>(job);
}
#endif
