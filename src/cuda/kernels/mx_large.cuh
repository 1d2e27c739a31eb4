// mx_large.cuh: what the kernels of narrow and of wide pieces (mx_narrow.cu, mx_wide.cu) share: their jobs, the fillers' way through the
// work list, where an item's weights lie, results of down on their way out.
//
// Needs GROUPS, of four warps each, that multiply 64 rows of a stage each; D_MODEL, N_FF, W0.
#ifndef MX_LARGE_CUH
#define MX_LARGE_CUH
#include "mx_act.cuh"
#include "mx_ring.cuh"
#include "tile.cuh"

constexpr int FILLERS = 128, GROUP = 128, CONSUMERS = GROUPS * GROUP, BLOCK = FILLERS + CONSUMERS; // threads
constexpr int TILES = GROUPS * 4, ROWS = TILES * 16, HIDDEN = ROWS / 2;                            // of a stage; columns of h that a block makes
constexpr int FF_PAD = (N_FF + 127) / 128 * 128, DOWN_BLOCKS = (D_MODEL + ROWS - 1) / ROWS, BASE_DOWN = 2 * FF_PAD;
constexpr int BASE_BYTES = BASE_DOWN + (D_MODEL + 255) / 256 * 256; // of an expert: rows of gate, of up, of down

struct MxGateUp {
    MxList list;
    const u8 *base; // [n_expert][BASE_BYTES]
    MxRows x;       // [rows][D_MODEL]
    MxRows h;       // [n_pair][N_FF]
};
struct MxDown {
    MxList list;
    const u8 *base;
    MxRows h;  // [n_pair][N_FF]
    u16 *flat; // [n_pair][D_MODEL] bf16
};

// STAGES stages, so many bytes for results on their way out, barriers.
template <int STAGES, int BYTES, int OUT_BYTES> struct ItemRing : Stages<STAGES, BYTES> {
    // The kernels' beginning: returns how many pieces there are.
    MOTE_FN int begin(const MxList &list)
    {
        u32 at = shared_address(shared);
        this->start(at, at + STAGES * BYTES + OUT_BYTES);
        if (threadIdx.x == 0) this->init(FILLERS / 32, CONSUMERS / 32);
        __syncthreads();
        chain_launch();
        chain_wait();
        return *list.pieces.n_piece;
    }
    MOTE_FN static u8 *out_buffer() { return shared + STAGES * BYTES; }
};

// ---- items ----

// An item's piece, which has been asked for two items before, and its weights' address, asked for one before: either takes as long
// as a stage.
struct Work {
    int4 piece;
    const u8 *matrix[2];
    MOTE_FN Work(const MxList &list, int4 p, int first, int second) : piece(p)
    {
        matrix[0] = (const u8 *)list.pieces.slot[piece.x * 3 + first], matrix[1] = (const u8 *)list.pieces.slot[piece.x * 3 + second];
    }
};

// Of the two halves of a stage's rows: the first tile's record, with the others behind it; the first unit's bases.
struct ItemWeights {
    const u8 *record[2], *base[2];
};
MOTE_FN ItemWeights up_weights(const Work &work, const u8 *base, int block) // half of gate, half of up
{
    ItemWeights weights;
    MOTE_UNROLL
    for (int i = 0; i < 2; i++) {
        weights.record[i] = work.matrix[i] + (size_t)(block * (HIDDEN / 16)) * Tile<W0, D_MODEL>::BYTES;
        weights.base[i] = base + (size_t)work.piece.x * BASE_BYTES + i * FF_PAD + block * HIDDEN;
    }
    return weights;
}
MOTE_FN ItemWeights down_weights(const Work &work, const u8 *base, int block)
{
    ItemWeights weights;
    MOTE_UNROLL
    for (int i = 0; i < 2; i++) {
        weights.record[i] = work.matrix[i] + (size_t)(block * TILES + i * (TILES / 2)) * Tile<W0, N_FF>::BYTES;
        weights.base[i] = base + (size_t)work.piece.x * BASE_BYTES + BASE_DOWN + block * ROWS + i * (ROWS / 2);
    }
    return weights;
}

// A filler's share of the copies of an item's weights into a stage: codes [TILES][1024] at S::CODE, scale items [TILES][64] at S::ITEM; in the
// first stage also bases [ROWS] at S::BASE.
template <class T, class S> struct WeightsCopy {
    static constexpr int HALF = TILES / 2;
    const u8 *code[2], *item;
    u32 at_code;
    MOTE_FN WeightsCopy(const ItemWeights &weights, int thread)
    {
        item = (thread / 4 < HALF ? weights.record[0] : weights.record[1]) + thread / 4 % HALF * T::BYTES + T::AT_SCALE + thread % 4 * 16;
        MOTE_UNROLL
        for (int i = 0; i < 2; i++) code[i] = weights.record[i] + thread / 64 * T::BYTES + thread % 64 * 16;
        at_code = opaque(S::CODE + thread * 16);
    }
    // The next unit's.
    MOTE_FN void copy(u32 to, const ItemWeights &weights, int thread, bool is_first)
    {
        MOTE_UNROLL
        for (int i = 0; i < HALF; i++) // two tiles at once
            stage_copy(to + at_code + i * 2048, code[i / (HALF / 2)] + i % (HALF / 2) * 2 * T::BYTES);
        if (thread < TILES * 4) stage_copy(to + S::ITEM + thread * 16, item);
        else if (is_first && thread < TILES * 5) {
            int at = thread - TILES * 4;
            stage_copy(to + S::BASE + at * 16, (at < HALF ? weights.base[0] : weights.base[1]) + at % HALF * 16);
        }
        code[0] += 1024, code[1] += 1024, item += 64;
    }
};

// The fillers' way. An item is one of BLOCKS blocks of rows, and a piece; a block of the grid takes every gridDim.x th. Pieces with w are the
// small kernel's.
//
// fill(work, block, filled); first, second: the matrices of an item's halves.
template <int BLOCKS, class Filled, class Fill> MOTE_FN void fill_items(const MxList &list, u32 barriers, int n_piece, int first, int second, Fill fill)
{
    auto piece_at = [&](int item) { return list.pieces.piece[max(min(item / BLOCKS, n_piece - 1), 0)]; };
    Work next(list, piece_at(blockIdx.x), first, second);
    int4 ahead = piece_at(blockIdx.x + gridDim.x);
    Filled filled;
    filled.start(barriers);
    MOTE_ROLLED
    for (int item = blockIdx.x; item < n_piece * BLOCKS; item += gridDim.x) {
        Work work = next;
        next = Work(list, ahead, first, second), ahead = piece_at(item + 2 * gridDim.x);
        if (!work.piece.w) fill(work, item % BLOCKS, filled);
    }
    filled.finish();
}

// Where the scale of token j of a product stands, so that lane t finds those of two neighbouring 8, 2 t and 2 t + 1 of each, side by side.
MOTE_FN int scale_place(int j) { return j / 16 * 16 + j % 8 / 2 * 4 + j / 8 % 2 * 2 + j % 2; }

// ---- results of down ----

constexpr int STORE_SLICE = 16, STORE_ROW = (64 + 8) * 2, STORE_BYTES = GROUPS * 2 * STORE_SLICE * STORE_ROW; // tokens at once; bytes of one; of shared memory

// flat[token][column ..] = 64 columns of a group's, of `count` tokens of N. Each group goes its own way: one's results leave
// under the others' products. sum(i): of N / 2 a lane's, as wgmma has them; turn: 0 at first.
template <int N, class Sum> MOTE_FN void store_results(u16 *flat, int n_column, int column, int count, u8 *buffer, u32 &turn, Sum sum)
{
    int thread = threadIdx.x - FILLERS, group = thread / GROUP, warp = thread / 32 % 4, lane = thread % 32;
    int token = thread % GROUP / 8, chunk = thread % 8; // 16 bytes a thread
    column += chunk * 8;
    MOTE_UNROLL
    for (int slice = 0; slice < (N + STORE_SLICE - 1) / STORE_SLICE; slice++) {
        if (slice * STORE_SLICE >= count) break;
        u32 v[4]; // 8 x 8: tokens 0 .. 7 and rows g, rows g + 8; tokens 8 .. 15
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) {
            int r = i & 1, from = slice * (STORE_SLICE / 2) + (i >> 1) * 4 + 2 * r;
            if (from >= N / 2) from = 2 * r; // 8 tokens: the others are nobody's
            v[i] = pack_bf16x2(sum(from), sum(from + 1));
        }
        u8 *out = buffer + group * (2 * STORE_SLICE * STORE_ROW) + turn; // in turn: who is behind still reads the other
        turn = STORE_SLICE * STORE_ROW - turn;
        store_transposed(shared_address(out) + (lane / 16 * 8 + lane % 8) * STORE_ROW + warp * 32 + lane / 8 % 2 * 16, v);
        meet(2 + group, GROUP);
        if (slice * STORE_SLICE + token < count && column < n_column)
            *(uint4 *)(flat + (size_t)(slice * STORE_SLICE + token) * n_column + column) = *(const uint4 *)(out + token * STORE_ROW + chunk * 16);
    }
}

#endif
