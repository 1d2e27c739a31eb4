// prefill_gate_up.cu: the first half of an expert block for steps of many rows: h = activation(gate x, up x), as operands
// of the second half. Constants: W0, W1: template arguments of gate's and up's Tile<> before K (without a gate both are
// up's); COLS, columns; X_BF16, what x is copied as; H_BF16, what down reads; ACTIVATION, LIMIT (expert.cuh).
#include "expert.cuh"
#include "prefill_expert.cuh"
#include "prefill_loop.cuh"
#include "prefill_store.cuh"

struct GateUp {
    Pieces list;
    const u16 *x;         // [rows][KP]
    const float *x_scale; // [rows]
    u16 *h;               // [n_pair][h_stride], columns in the order of prefill_half.cuh, zeros from n_ff on
    int n_ff, h_stride;
};

// As down reads it.
MOTE_FN float hidden(float gate, float up)
{
    float v = activation(ACTIVATION, LIMIT, gate, up);
    return H_BF16 ? v : clamp_to_half(v * HIDDEN_DOWN);
}

// A block has 128 rows of gate and the same of up, or 256 of up: UP_ROWS of h. A warp of two tiles has both of the same
// rows. Grid: (UP_ROWS, pieces).
constexpr int UP_ROWS = is_gated(ACTIVATION) ? 128 : 256;

// Columns g, g + 8 of a tile of h for tokens 8 b .., from sums of gate and up.
template <int N> MOTE_FN void put_hidden(const GateUp &job, int4 piece, int tile, int b, const float gate[4], const float up[4])
{
    int g = threadIdx.x % 32 / 4, token = 8 * b + 2 * (threadIdx.x % 4);
    if (tile * 16 >= job.h_stride) return;
    float v[4];
    MOTE_UNROLL
    for (int j = 0; j < 4; j++) {
        float scale = shared_scale<N>()[token + (j & 1)];
        v[j] = hidden(gate[j] * scale, up[j] * scale);
        if (tile * 16 + g + 8 * (j >> 1) >= job.n_ff) v[j] = 0;
    }
    u16 *to = job.h + (size_t)(piece.y + token) * job.h_stride;
    store_halves<H_BF16>(v, tile, token < piece.z ? to : nullptr, token + 1 < piece.z ? to + job.h_stride : nullptr);
}

template <int TILES, int N> MOTE_FN void gate_up(const GateUp &job, int4 piece, int most)
{
    using T0 = Tile<W0, COLS>;
    using T1 = Tile<W1, COLS>;
    constexpr int WARPS = warps(TILES), THREADS = threads(TILES);
    constexpr bool APART = TILES == 1 && UP_ROWS == 128; // gate and up of a row are another warp's each
    int warp = threadIdx.x / 32, last = (job.n_ff + 15) / 16 - 1;
    int tile = blockIdx.x * (UP_ROWS / 16) + (APART ? warp % 8 : warp);
    const u64 *slot = job.list.slot + piece.x * 3;
    const u8 *record[TILES];
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++) {
        int is_up = UP_ROWS == 256 || (TILES == 2 ? i == 1 : warp >= 8), own = tile + (UP_ROWS == 256 ? i * WARPS : 0);
        record[i] = (const u8 *)slot[is_up] + (size_t)min(own, last) * (is_up ? T1::BYTES : T0::BYTES);
    }
    Ring<N, TILES> ring;
    ring.start(job.x, job.list.row_of, piece.y, piece.z);
    for (int j = threadIdx.x; j < N; j += THREADS) {
        int at = piece.y + min(j, piece.z - 1);
        shared_scale<N>()[j] = job.x_scale[job.list.row_of ? job.list.row_of[at] : at] * (X_BF16 ? 1 : 1 / WEIGHT_UP);
    }
    float acc[TILES][N / 2];
    multiply_rows<T0, T1, TILES, N>(ring, record, acc);
    piece = piece_of(job.list, blockIdx.y, most); // again: not a register through the loop
    if constexpr (APART) {
        meet_parts<N, THREADS / 2>(acc[0], (float *)shared, piece.z, [&](int b, const float *gate, const float *up) {
            put_hidden<N>(job, piece, tile, b, gate, up);
        });
    } else {
        MOTE_UNROLL
        for (int i = 0; i < UP_ROWS / 16 / WARPS; i++)
            MOTE_UNROLL
            for (int b = 0; b < N / 8; b++) {
                if (8 * b >= piece.z) break;
                put_hidden<N>(job, piece, tile + i * WARPS, b, acc[i] + 4 * b, acc[UP_ROWS == 128 ? 1 : i] + 4 * b);
            }
    }
}

// Pieces of at most half the width take the narrower product.
template <int TILES, int N> MOTE_FN void gate_up_piece(const GateUp &job)
{
    chain_launch();
    chain_wait();
    int4 piece = piece_of(job.list, blockIdx.y, N);
    if (piece.z == 0) return;
    if (piece.z <= N / 2) gate_up<TILES, N / 2>(job, piece, N);
    else gate_up<TILES, N>(job, piece, N);
}

extern "C" __global__ void __launch_bounds__(threads(2), smaller(BLOCKS<Tile<W0, COLS>>, BLOCKS<Tile<W1, COLS>>))
    prefill_gate_up_64(const __grid_constant__ GateUp job)
{
    gate_up_piece<2, 64>(job);
}
#if PREFILL_WGMMA
extern "C" __global__ void __launch_bounds__(threads(1), 1) prefill_gate_up_128(const __grid_constant__ GateUp job)
{
    gate_up_piece<1, 128>(job);
}
#endif
