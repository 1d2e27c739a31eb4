// mx_small.cu: the expert block of MXFP4 weights for experts with few tokens (up to 16 a piece), sm_90: bound by memory, so
// weights stream through a ring of shared memory at its speed.
//
//   mx_small_gate_up   h = activation(gate x, up x), quantised, of pairs (row, expert) in the order of experts
//   mx_small_down      flat[pair] = down h, f32, to be weighed and summed in the order of a row's experts (prefill_step.cu)
//
// Products are integers: e2m1 doubled is a whole number, so a sum over a block of 32 is exact, and both scales are met once a
// block: any scales are right, of weights and of activations. Activations are MXFP4 (PLANES 1: twice their value) or 16-bit
// integers with a scale for 32 columns (PLANES 2: high and low byte, two products).
//
// A stage is 64 rows of weights x 512 columns and the piece's tokens. One warp fills; sixteen multiply, in groups of four that
// take every fourth stage: of gate_up a part of the columns (sums meet at the piece's end), of down 64 rows of their own.
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION, LIMIT (expert.cuh); PLANES.
#include "expert.cuh"
#include "mx_act.cuh"
#include "mx_ring.cuh"
#include "prefill_expert.cuh"
#include "tile.cuh"

constexpr int GROUPS = 4, GROUP_THREADS = 128, CONSUMERS = GROUPS * GROUP_THREADS, BLOCK = CONSUMERS + 32;
constexpr int TILES = 4, STAGE_UNITS = 4, MOST = 16; // tiles and units of a stage, tokens of a piece
constexpr int CODE_BYTES = TILES * STAGE_UNITS * 1024, SCALE_BYTES = TILES * STAGE_UNITS * 64;
constexpr int ROW_UNIT = 128 * PLANES, ROW_BYTES = STAGE_UNITS * ROW_UNIT + 32; // + 32: eight rows' words in all banks
constexpr int ROW_SCALE = STAGE_UNITS * 16 + 16;
constexpr int AT_SCALE = CODE_BYTES, AT_ROW = AT_SCALE + SCALE_BYTES, AT_ROW_SCALE = AT_ROW + MOST * ROW_BYTES;
constexpr int STAGE_BYTES = AT_ROW_SCALE + MOST * ROW_SCALE;
constexpr int SUM_ROW = 64 + 4, SUM_BYTES = GROUPS * MOST * SUM_ROW * 4; // [group][token][rows]: of gate_up
constexpr int STAGES = (int)((MX_SHARED - SUM_BYTES - 1024) / STAGE_BYTES);
constexpr bool GATED = is_gated(ACTIVATION);
constexpr int HIDDEN = GATED ? 32 : 64; // columns of h that a block makes at once

struct MxGateUp {
    Pieces list;
    MxRows x; // [rows]
    MxRows h; // [n_pair]
};
struct MxDown {
    Pieces list;
    MxRows h;    // [n_pair]
    float *flat; // [n_pair][D_MODEL]
};

typedef Stages<STAGES, STAGE_BYTES> Ring;

MOTE_FN void ring_start(Ring &ring)
{
    u32 at = shared_address(shared);
    ring.start(at + SUM_BYTES, at + SUM_BYTES + STAGES * STAGE_BYTES);
    if (threadIdx.x == 0) ring.init(1, GROUP_THREADS / 32);
    __syncthreads();
}

// The filling warp: a stage of four tiles' columns of units unit .. and of the piece's tokens, lane by lane. `tile`: of lanes 0
// to 7 (codes, then scales) their record, the row of token lane % 16 in `q` and `scale`.
template <class T> MOTE_FN void fill(const Ring &ring, const u8 *record, const i8 *q, const float *scale, int unit, int count)
{
    int lane = threadIdx.x % 32, n = min(STAGE_UNITS, T::UNITS - unit);
    ring.wait_empty();
    if (lane == 0) barrier_expect(ring.full(), n * (TILES * (1024 + 64) + count * (ROW_UNIT + 16)));
    __syncwarp();
    u32 to = ring.stage(), full = ring.full();
    if (lane < TILES) bulk_copy(to + lane * (STAGE_UNITS * 1024), record + unit * 1024, n * 1024, full);
    else if (lane < 2 * TILES)
        bulk_copy(to + AT_SCALE + (lane - TILES) * (STAGE_UNITS * 64), record + T::AT_SCALE + unit * 64, n * 64, full);
    if (lane % 16 < count) {
        if (lane < 16) bulk_copy(to + AT_ROW + lane * ROW_BYTES, q + unit * ROW_UNIT, n * ROW_UNIT, full);
        else bulk_copy(to + AT_ROW_SCALE + (lane - 16) * ROW_SCALE, scale + unit * 4, n * 16, full);
    }
}

constexpr u32 MAGIC = 0x4B400000; // 1.5 * 2^23: below it integers of 22 bits are floats

// acc += a stage: 16 rows of the group's warp, N8 times eight tokens.
template <class T, int N8> MOTE_FN void multiply(u32 stage, int n_unit, float (&acc)[2][4])
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, tile = threadIdx.x / 32 % TILES;
    u32 code = stage + tile * (STAGE_UNITS * 1024) + lane * 16;
    u32 item = stage + AT_SCALE + tile * (STAGE_UNITS * 64) + t * 16 + g * 2;
    u32 row = stage + AT_ROW + g * ROW_BYTES + 8 * t, row_scale = stage + AT_ROW_SCALE + 2 * t * ROW_SCALE;
    MOTE_ROLLED
    for (int u = 0; u < n_unit; u++) {
        typename T::Raw raw;
        uint4 first = shared16(code + u * 1024), second = shared16(code + u * 1024 + 512);
        raw.code[0] = first.x, raw.code[1] = first.y, raw.code[2] = first.z, raw.code[3] = first.w;
        raw.code[4] = second.x, raw.code[5] = second.y, raw.code[6] = second.z, raw.code[7] = second.w;
        u32 both = shared2(item + u * 64); // of sub-block t, rows g and g + 8
        float own[2];
        MOTE_UNROLL
        for (int r = 0; r < 2; r++) {
            u32 bits = (both << (r ? 15 : 23)) & 0x7F800000;
            own[r] = bits_float(max(bits, 0x00400000)); // 0 is the subnormal 2^-127
        }
        u32 a[4][4];
        T::template codes<false>(raw, nullptr, lane, a);
        float x_scale[N8][2][4];
        MOTE_UNROLL
        for (int n = 0; n < N8; n++)
            MOTE_UNROLL
            for (int j = 0; j < 2; j++) {
                uint4 v = shared16(row_scale + (8 * n + j) * ROW_SCALE + u * 16);
                x_scale[n][j][0] = bits_float(v.x), x_scale[n][j][1] = bits_float(v.y);
                x_scale[n][j][2] = bits_float(v.z), x_scale[n][j][3] = bits_float(v.w);
            }
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) {
            float scale[2];
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) scale[r] = __shfl_sync(~0u, own[r], (lane & 28) | s);
            MOTE_UNROLL
            for (int n = 0; n < N8; n++) {
                float v[4];
                MOTE_UNROLL
                for (int p = 0; p < PLANES; p++) {
                    uint2 b = shared8(row + 8 * n * ROW_BYTES + u * ROW_UNIT + s * (32 * PLANES) + p * 32);
                    int c[4] = {(int)MAGIC, (int)MAGIC, (int)MAGIC, (int)MAGIC};
                    mma_s8(c, a[s], b.x, b.y);
                    MOTE_UNROLL
                    for (int j = 0; j < 4; j++) {
                        float sum = bits_float((u32)c[j]) - bits_float(MAGIC);
                        v[j] = p ? __fmaf_rn(256.0f, v[j], sum) : sum;
                    }
                }
                MOTE_UNROLL
                for (int j = 0; j < 4; j++) acc[n][j] = __fmaf_rn(scale[j >> 1], v[j] * x_scale[n][j & 1][s], acc[n][j]);
            }
        }
    }
}

template <class T> MOTE_FN void multiply_piece(u32 stage, int n_unit, int count, float (&acc)[2][4])
{
    if (count > 8) multiply<T, 2>(stage, n_unit, acc);
    else multiply<T, 1>(stage, n_unit, acc);
}

MOTE_FN void clear(float (&acc)[2][4])
{
    MOTE_UNROLL
    for (int i = 0; i < 8; i++) acc[i / 4][i % 4] = 0;
}

constexpr int STEPS_UP = (Tile<W0, D_MODEL>::UNITS + STAGE_UNITS - 1) / STAGE_UNITS;
constexpr int UP_BLOCKS = (N_FF + HIDDEN - 1) / HIDDEN, UNITS_H = (N_FF + 127) / 128;

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_small_gate_up(const __grid_constant__ MxGateUp job)
{
    using T = Tile<W0, D_MODEL>;
    Ring ring;
    ring_start(ring);
    chain_launch();
    chain_wait();
    int n_item = *job.list.n_piece * UP_BLOCKS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / TILES;
    if (warp == CONSUMERS / 32) {
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = job.list.piece[item / UP_BLOCKS];
            int of = lane % TILES, last = (N_FF + 15) / 16 - 1, is_up = !GATED || of >= TILES / 2;
            int tile = min(item % UP_BLOCKS * (HIDDEN / 16) + (GATED ? of % 2 : of), last);
            const u8 *record = (const u8 *)job.list.slot[piece.x * 3 + is_up] + (size_t)tile * T::BYTES;
            size_t row = job.list.row_of[piece.y + min(lane % 16, piece.z - 1)];
            const i8 *q = job.x.q + row * (T::UNITS * ROW_UNIT);
            const float *scale = job.x.scale + row * (T::UNITS * 4);
            MOTE_ROLLED
            for (int unit = 0; unit < T::UNITS; unit += STAGE_UNITS, ring.next()) fill<T>(ring, record, q, scale, unit, piece.z);
        }
        return;
    }
    float *sums = (float *)shared;
    int at = 0; // stages before this piece
    MOTE_ROLLED
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        int4 piece = job.list.piece[item / UP_BLOCKS];
        float acc[2][4];
        clear(acc);
        MOTE_ROLLED
        for (int step = 0; step < STEPS_UP; step++, ring.next()) {
            if ((at + step) % GROUPS != group) continue;
            ring.wait_full();
            multiply_piece<T>(ring.stage(), min(STAGE_UNITS, T::UNITS - step * STAGE_UNITS), piece.z, acc);
            __syncwarp();
            if (lane == 0) barrier_arrive(ring.empty());
        }
        at += STEPS_UP;
        int g = lane / 4, t = lane % 4;
        meet(1, CONSUMERS); // the sums before are read
        MOTE_UNROLL
        for (int i = 0; i < 8; i++) {
            int token = i / 4 * 8 + 2 * t + (i & 1), row = warp % TILES * 16 + g + (i >> 1 & 1) * 8;
            sums[(group * MOST + token) * SUM_ROW + row] = acc[i / 4][i % 4];
        }
        meet(1, CONSUMERS);
        if (warp < piece.z) { // a warp a token, a lane a column
            auto sum = [&](int row) {
                float v = 0;
                MOTE_UNROLL
                for (int i = 0; i < GROUPS; i++) v += sums[(i * MOST + warp) * SUM_ROW + row];
                return v * T::POWER;
            };
            int block = item % UP_BLOCKS, end = block == UP_BLOCKS - 1 ? UNITS_H * 128 - block * HIDDEN : HIDDEN;
            MOTE_ROLLED
            for (int c = lane; c < end; c += 32) {
                int column = block * HIDDEN + c;
                float v = 0;
                if (column < N_FF) {
                    float up = sum(GATED ? 32 + c : c);
                    v = activation(ACTIVATION, LIMIT, GATED ? sum(c) : up, up);
                }
                mx_put_block<PLANES>(v, job.h, piece.y + warp, UNITS_H, column / 32);
            }
        }
    }
}

constexpr int STEPS_DOWN = (Tile<W0, N_FF>::UNITS + STAGE_UNITS - 1) / STAGE_UNITS;
constexpr int DOWN_BLOCKS = (D_MODEL + GROUPS * 64 - 1) / (GROUPS * 64);

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_small_down(const __grid_constant__ MxDown job)
{
    using T = Tile<W0, N_FF>;
    Ring ring;
    ring_start(ring);
    chain_launch();
    chain_wait();
    int n_item = *job.list.n_piece * DOWN_BLOCKS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / TILES;
    constexpr int LAST = (D_MODEL + 15) / 16 - 1;
    if (warp == CONSUMERS / 32) {
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = job.list.piece[item / DOWN_BLOCKS];
            const u8 *matrix = (const u8 *)job.list.slot[piece.x * 3 + 2];
            size_t pair = piece.y + min(lane % 16, piece.z - 1);
            const i8 *q = job.h.q + pair * (T::UNITS * ROW_UNIT);
            const float *scale = job.h.scale + pair * (T::UNITS * 4);
            int first = item % DOWN_BLOCKS * (GROUPS * TILES) + lane % TILES;
            MOTE_ROLLED
            for (int unit = 0; unit < T::UNITS; unit += STAGE_UNITS)
                MOTE_ROLLED
                for (int i = 0; i < GROUPS; i++, ring.next())
                    fill<T>(ring, matrix + (size_t)min(first + i * TILES, LAST) * T::BYTES, q, scale, unit, piece.z);
        }
        return;
    }
    ring.next(group);
    MOTE_ROLLED
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        int4 piece = job.list.piece[item / DOWN_BLOCKS];
        float acc[2][4];
        clear(acc);
        MOTE_ROLLED
        for (int step = 0; step < STEPS_DOWN; step++, ring.next(GROUPS)) {
            ring.wait_full();
            multiply_piece<T>(ring.stage(), min(STAGE_UNITS, T::UNITS - step * STAGE_UNITS), piece.z, acc);
            __syncwarp();
            if (lane == 0) barrier_arrive(ring.empty());
        }
        int g = lane / 4, t = lane % 4, tile = item % DOWN_BLOCKS * (GROUPS * TILES) + warp;
        MOTE_UNROLL
        for (int i = 0; i < 8; i++) {
            int token = i / 4 * 8 + 2 * t + (i & 1), row = tile * 16 + g + (i >> 1 & 1) * 8;
            if (token < piece.z && row < D_MODEL) job.flat[(size_t)(piece.y + token) * D_MODEL + row] = acc[i / 4][i % 4] * T::POWER;
        }
    }
}
