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

// A warp has the same 16 rows of gate and of up, or two times 16 rows of up: UP_TILES of h. Grid: (128 UP_TILES rows,
// pieces).
constexpr int UP_TILES = is_gated(ACTIVATION) ? 1 : 2;
template <int N> MOTE_FN void gate_up(const GateUp &job)
{
    chain_launch();
    chain_wait();
    int4 piece = piece_of(job.list, blockIdx.y, N);
    if (piece.z == 0) return;
    using T0 = Tile<W0, COLS>;
    using T1 = Tile<W1, COLS>;
    int warp = threadIdx.x / 32, tile = blockIdx.x * (8 * UP_TILES) + warp, last = (job.n_ff + 15) / 16 - 1;
    const u64 *slot = job.list.slot + piece.x * 3;
    const u8 *one = (const u8 *)slot[UP_TILES - 1] + (size_t)min(tile, last) * T0::BYTES;
    const u8 *other = (const u8 *)slot[1] + (size_t)min(tile + 8 * (UP_TILES - 1), last) * T1::BYTES;
    int first = piece.y, count = piece.z;
    Ring<N> ring;
    ring.start(job.x, job.list.row_of, first, count);
    for (int j = threadIdx.x; j < N; j += THREADS) {
        int at = first + min(j, count - 1);
        shared_scale<N>()[j] = job.x_scale[job.list.row_of ? job.list.row_of[at] : at] * (X_BF16 ? 1 : 1 / WEIGHT_UP);
    }
    float acc[2][N / 2];
    multiply_rows<T0, T1, 2, N>(ring, one, other, acc);
    piece = piece_of(job.list, blockIdx.y, N); // again: not a register through the loop
    first = piece.y, count = piece.z;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    MOTE_UNROLL
    for (int i = 0; i < UP_TILES; i++, tile += 8) {
        if (i && tile * 16 >= job.h_stride) break;
        MOTE_UNROLL
        for (int b = 0; b < N / 8; b++) {
            if (8 * b >= count) break;
            float v[4];
            MOTE_UNROLL
            for (int j = 0; j < 4; j++) {
                float scale = shared_scale<N>()[8 * b + 2 * t + (j & 1)];
                v[j] = hidden(acc[i][4 * b + j] * scale, acc[UP_TILES == 1 ? 1 : i][4 * b + j] * scale);
                if (tile * 16 + g + 8 * (j >> 1) >= job.n_ff) v[j] = 0;
            }
            int token = 8 * b + 2 * t;
            u16 *to = job.h + (size_t)(first + token) * job.h_stride;
            store_halves<H_BF16>(v, tile, token < count ? to : nullptr, token + 1 < count ? to + job.h_stride : nullptr);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, smaller(BLOCKS<Tile<W0, COLS>>, BLOCKS<Tile<W1, COLS>>))
    prefill_gate_up_64(const __grid_constant__ GateUp job)
{
    gate_up<64>(job);
}
#if PREFILL_WGMMA
extern "C" __global__ void __launch_bounds__(THREADS) prefill_gate_up_128(const __grid_constant__ GateUp job)
{
    gate_up<128>(job);
}
#endif
