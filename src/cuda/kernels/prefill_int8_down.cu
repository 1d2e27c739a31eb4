// prefill_int8_down.cu: prefill_down.cu in 8-bit integers. Constants: W0, the template arguments of Tile<> before K; COLS, columns
// (n_ff); X_GROUP, of the scales of h.
#include "prefill_expert.cuh"
#include "prefill_int8_loop.cuh"
#include "prefill_store.cuh"

struct Int8Down {
    Pieces list;
    Int8Rows h;  // [n_pair]
    float *flat; // [n_pair][d_model]
    int d_model;
};

// Grid: (128 rows, pieces).
template <int N> MOTE_FN void down(const Int8Down &job, int4 piece, int most)
{
    using T = Tile<W0, COLS>;
    int tile = blockIdx.x * WARPS + threadIdx.x / 32, last = (job.d_model + 15) / 16 - 1;
    Ring<N> ring;
    ring.start(job.h, nullptr, piece.y, piece.z);
    float acc[N / 2];
    multiply_rows<T, T, N>(ring, (const u8 *)job.list.slot[piece.x * 3 + 2] + (size_t)min(tile, last) * T::BYTES, acc);
    piece = piece_of(job.list, blockIdx.y, most); // again: not a register through the loop
    each_product<N>(acc, tile, job.d_model, piece.z, [&](float v, int, int row, int token) {
        job.flat[(size_t)(piece.y + token) * job.d_model + row] = v;
    });
}

// Pieces of at most half the width take the narrower product.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) prefill_int8_down(const __grid_constant__ Int8Down job)
{
    chain_launch();
    chain_wait();
    int4 piece = piece_of(job.list, blockIdx.y, 64);
    if (piece.z == 0) return;
    if (piece.z <= 32) down<32>(job, piece, 64);
    else down<64>(job, piece, 64);
}
