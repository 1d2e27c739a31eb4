// prefill_int8_gate_up.cu: prefill_gate_up.cu in 8-bit integers. Constants: W0, W1: template arguments of gate's and up's Tile<>
// before K (without a gate both are up's); COLS, columns; X_GROUP (prefill_int8_loop.cuh); ACTIVATION, LIMIT (expert.cuh).
#include "expert.cuh"
#include "prefill_expert.cuh"
#include "prefill_int8_loop.cuh"
#include "prefill_store.cuh"

struct Int8GateUp {
    Pieces list;
    Int8Rows x;         // [rows]
    Int8Rows h;         // [n_pair], n_ff columns in groups of 128, zeros from there on
    int n_ff, h_stride; // n_ff to 128
};

// A block makes 128 columns of h: of 128 rows of up, or twice of 64 rows of gate and the same of up. Grid: (128 rows, pieces).
constexpr int UP_ROWS = 128, PASSES = is_gated(ACTIVATION) ? 2 : 1, PASS_TILES = WARPS / PASSES;
constexpr int H_ROW = UP_ROWS + 4; // floats of a token of h on its way: no bank is met twice by 2 t, 2 t + 1 of eight rows

// Columns g, g + 8 of a tile of the block's h for tokens 8 b .., from sums of gate and up.
MOTE_FN void keep_hidden(float *h, int tile, int b, const float *gate, const float *up)
{
    float *to = h + (8 * b + threadIdx.x % 4 * 2) * H_ROW + tile * 16 + threadIdx.x % 32 / 4;
    MOTE_UNROLL
    for (int j = 0; j < 4; j++) to[(j & 1) * H_ROW + (j >> 1) * 8] = activation(ACTIVATION, LIMIT, gate[j], up[j]);
}

template <int N> MOTE_FN void gate_up(const Int8GateUp &job, int4 piece, int most)
{
    using T0 = Tile<W0, COLS>;
    using T1 = Tile<W1, COLS>;
    constexpr bool APART = PASSES == 2; // gate and up of a row are another warp's each
    int warp = threadIdx.x / 32, is_up = !APART || warp >= PASS_TILES, last = (job.n_ff + 15) / 16 - 1;
    const u8 *matrix = (const u8 *)job.list.slot[piece.x * 3 + is_up];
    float *given = (float *)shared, *h = (float *)shared_end<N>(); // [N][H_ROW]
    Ring<N> ring;
    ring.start(job.x, job.list.row_of, piece.y, piece.z);
    MOTE_ROLLED
    for (int pass = 0; pass < PASSES; pass++) {
        int own = pass * PASS_TILES + warp % PASS_TILES, tile = min((int)blockIdx.x * (UP_ROWS / 16) + own, last);
        float acc[N / 2];
        multiply_rows<T0, T1, N>(ring, matrix + (size_t)tile * (is_up ? T1::BYTES : T0::BYTES), acc);
        piece = piece_of(job.list, blockIdx.y, most); // again: not a register through the loop
        if constexpr (APART) {
            meet_parts<N, THREADS / 2>(acc, given, piece.z, [&](int b, const float *gate, const float *up) {
                keep_hidden(h, own, b, gate, up);
            });
        } else {
            MOTE_UNROLL
            for (int b = 0; b < N / 8; b++)
                if (8 * b < piece.z) keep_hidden(h, own, b, acc + 4 * b, acc + 4 * b);
        }
        __syncthreads(); // h is there; what lay in the stages is no longer read
    }
    int unit = blockIdx.x;
    for (int token = warp; token < piece.z; token += WARPS) {
        const float *from = h + token * H_ROW - unit * 128;
        size_t pair = piece.y + token;
        int8_unit([&](int c) { return *(const float4 *)(from + c); }, unit, job.n_ff, job.h.q + pair * job.h_stride,
                  job.h.group + pair * (job.h_stride / 128));
    }
}

// Pieces of at most half the width take the narrower product.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) prefill_int8_gate_up(const __grid_constant__ Int8GateUp job)
{
    chain_launch();
    chain_wait();
    int4 piece = piece_of(job.list, blockIdx.y, 64);
    if (piece.z == 0) return;
    if (piece.z <= 32) gate_up<32>(job, piece, 64);
    else gate_up<64>(job, piece, 64);
}
