// prefill_gate_up.cu: the first half of an expert block for steps of many rows: h = activation(gate x, up x), as operands
// of the second half. Constants: W0, W1: template arguments of gate's and up's Tile<> before K (without a gate both are
// up's); COLS, columns; X_BF16, what x is copied as; H_TYPE, what h is (prefill_half.cuh); ACTIVATION, LIMIT (expert.cuh).
#include "expert.cuh"
#include "mxfp4.cuh"
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

// As down reads it, but for MXFP4's rounding.
MOTE_FN float hidden(float gate, float up)
{
    float v = activation(ACTIVATION, LIMIT, gate, up);
    return H_TYPE == AS_F16 ? clamp_to_half(v * HIDDEN_DOWN) : v;
}

// A block has 128 rows of gate and the same of up, or 256 of up: UP_ROWS of h. A warp of two tiles has both of the same
// rows. Grid: (UP_ROWS, pieces).
constexpr int UP_ROWS = is_gated(ACTIVATION) ? 128 : 256;

// Columns g, g + 8 of a tile of h for tokens 8 b .., v, from sums of gate and up; 0 from n_ff on.
template <int N> MOTE_FN void make_hidden(const GateUp &job, int tile, int b, const float gate[4], const float up[4], float v[4])
{
    int g = threadIdx.x % 32 / 4, token = 8 * b + 2 * (threadIdx.x % 4);
    MOTE_UNROLL
    for (int j = 0; j < 4; j++) {
        float scale = shared_scale<N>()[token + (j & 1)];
        v[j] = hidden(gate[j] * scale, up[j] * scale);
        if (tile * 16 + g + 8 * (j >> 1) >= job.n_ff) v[j] = 0;
    }
}
MOTE_FN void put_hidden(const GateUp &job, int4 piece, int tile, int b, const float v[4])
{
    int token = 8 * b + 2 * (threadIdx.x % 4);
    if (tile * 16 >= job.h_stride) return;
    u16 *to = job.h + (size_t)(piece.y + token) * job.h_stride;
    store_halves<H_TYPE>(v, tile, token < piece.z ? to : nullptr, token + 1 < piece.z ? to + job.h_stride : nullptr);
}

// MXFP4: a block of 32 columns is two tiles, of warps that stand next to each other: they show each other the largest
// magnitude (its bits) of each token. [warps x tiles][N], behind what meet_parts hands over.
template <int N> MOTE_FN u32 *shared_most(int tile) { return (u32 *)(shared + N * 512) + tile * N; }

// Those of one tile of the block, tokens 8 b ..; when all have met, rounded by what both show.
template <int N> MOTE_FN void show_most(int tile, int b, const float v[4])
{
    int lane = threadIdx.x % 32;
    u32 most[2];
    MOTE_UNROLL
    for (int j = 0; j < 2; j++) {
        most[j] = max(float_bits(v[j]) & 0x7FFFFFFFu, float_bits(v[2 + j]) & 0x7FFFFFFFu);
        MOTE_UNROLL
        for (int i = 4; i < 32; i *= 2) most[j] = max(most[j], __shfl_xor_sync(~0u, most[j], i)); // the lanes of t
    }
    if (lane < 4) *(uint2 *)(shared_most<N>(tile) + 8 * b + 2 * lane) = make_uint2(most[0], most[1]);
}
template <int N> MOTE_FN void round_hidden(int tile, int b, float v[4])
{
    int token = 8 * b + 2 * (threadIdx.x % 4);
    MOTE_UNROLL
    for (int j = 0; j < 2; j++) {
        int exponent = mxfp4_exponent(max(shared_most<N>(tile)[token + j], shared_most<N>(tile ^ 1)[token + j]));
        float scale = mxfp4_scale(exponent), inverse = mxfp4_inverse(exponent);
        v[j] = mxfp4_value(v[j], inverse) * scale;
        v[2 + j] = mxfp4_value(v[2 + j], inverse) * scale;
    }
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
    auto each = [&](auto take) { // take(i, b, gate, up): of the warp's tile i of h and tokens 8 b ..
        if constexpr (APART) {
            meet_parts<N, THREADS / 2>(acc[0], (float *)shared, piece.z,
                                       [&](int b, const float *gate, const float *up) { take(0, b, gate, up); });
        } else {
            MOTE_UNROLL
            for (int i = 0; i < UP_ROWS / 16 / WARPS; i++)
                MOTE_UNROLL
                for (int b = 0; b < N / 8; b++) {
                    if (8 * b >= piece.z) break;
                    take(i, b, acc[i] + 4 * b, acc[UP_ROWS == 128 ? 1 : i] + 4 * b);
                }
        }
    };
    if constexpr (H_TYPE != AS_MXFP4) {
        each([&](int i, int b, const float *gate, const float *up) {
            float v[4];
            make_hidden<N>(job, tile + i * WARPS, b, gate, up, v);
            put_hidden(job, piece, tile + i * WARPS, b, v);
        });
    } else {
        constexpr int OWN = APART ? 1 : UP_ROWS / 16 / WARPS, EACH = APART ? N / 16 : N / 8;
        int first = APART ? warp / 8 * EACH : 0;
        float h[OWN][EACH][4];
        if (!APART) __syncthreads(); // nobody reads tokens in shared memory any more
        each([&](int i, int b, const float *gate, const float *up) {
            make_hidden<N>(job, tile + i * WARPS, b, gate, up, h[i][b % EACH]);
            show_most<N>(warp + i * WARPS, b, h[i][b % EACH]);
        });
        __syncthreads();
        MOTE_UNROLL
        for (int i = 0; i < OWN; i++)
            MOTE_UNROLL
            for (int k = 0; k < EACH; k++) {
                if (8 * (first + k) >= piece.z) break;
                round_hidden<N>(warp + i * WARPS, first + k, h[i][k]);
                put_hidden(job, piece, tile + i * WARPS, first + k, h[i][k]);
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
