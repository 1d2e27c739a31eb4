// mx_large.cu: the expert block of MXFP4 weights and MXFP4 activations for experts with many tokens, sm_90a: both operands are
// e4m3, exactly, for the fp8 tensor cores.
//
//   mx_large_gate_up   h = activation(gate x, up x), quantised, of pairs (row, expert) in the order of experts
//   mx_large_down      flat[pair] = down h in bf16, to be weighed and summed in the order of a row's experts (mx_step.cu)
//
// A block multiplies 256 rows of weights (gate_up: 128 of gate and the same of up) by up to WIDTH tokens. Four warps fill a ring
// of stages (128 columns), eight multiply: each group of four unpacks weights into registers, two operands ahead of its products.
// The fp8 accumulator keeps about 14 bits, so a unit's products are added up in f32 with the tokens' scale.
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION (gated), LIMIT (expert.cuh); MX_SHARED.
#include "expert.cuh"
#include "mx_act.cuh"
#include "mx_ring.cuh"
#include "mx_wgmma.cuh"
#include "prefill_expert.cuh"
#include "tile.cuh"

constexpr int FILLERS = 128, CONSUMERS = 256, BLOCK = FILLERS + CONSUMERS;
constexpr int TILES = 16, ROWS = TILES * 16; // of a stage
constexpr int FF_PAD = (N_FF + 127) / 128 * 128, BASE_DOWN = 2 * FF_PAD;
constexpr int BASE_BYTES = BASE_DOWN + (D_MODEL + ROWS - 1) / ROWS * ROWS; // of an expert: rows of gate, of up, of down

// A stage: tokens [WIDTH][128], swizzled; codes [TILES][1024]; scale items [TILES][64]; bases [ROWS], the first unit's alone; the
// tokens' scales [WIDTH].
template <int WIDTH> struct Stage {
    static constexpr int CODE = WIDTH * 128, ITEM = CODE + TILES * 1024, BASE = ITEM + TILES * 64, SCALE = BASE + ROWS,
                         BYTES = (SCALE + WIDTH * 4 + 1023) / 1024 * 1024;
};
constexpr int SLICE = 32, H_ROW = 128 + 4, FLAT_ROW = 128 + 8; // tokens of a slice on its way out; floats, halves of a row
constexpr int OUT_BYTES = 18 * 1024;
static_assert(SLICE * H_ROW * 4 <= OUT_BYTES && 2 * SLICE * FLAT_ROW * 2 <= OUT_BYTES, "");
template <int WIDTH> constexpr int STAGES = (MX_SHARED - OUT_BYTES - 1024) / Stage<WIDTH>::BYTES;

template <int WIDTH> struct Ring : Stages<STAGES<WIDTH>, Stage<WIDTH>::BYTES> {
    MOTE_FN void begin()
    {
        u32 at = shared_address(shared);
        this->start(at, at + STAGES<WIDTH> * Stage<WIDTH>::BYTES + OUT_BYTES);
        if (threadIdx.x == 0) this->init(FILLERS + 1, CONSUMERS / 32);
        __syncthreads();
    }
};
template <int WIDTH> MOTE_FN u8 *out_buffer() { return shared + STAGES<WIDTH> * Stage<WIDTH>::BYTES; }

struct MxLargeGateUp {
    Pieces list;
    const u8 *base; // [n_expert][BASE_BYTES]
    MxRows x;       // [rows]
    MxRows h;       // [n_pair]
};
struct MxLargeDown {
    Pieces list;
    const u8 *base;
    MxRows h;  // [n_pair]
    u16 *flat; // [n_pair][D_MODEL] bf16
};

// ---- filling ----

// All units of an item's weights and tokens. record: of lane % 16's tile, for the first warp; base: bytes of the first unit's
// bases of lane 0 and 1, `base_bytes` each, to base_to; row(j): where token j lies.
template <class T, int WIDTH, class RowOf>
MOTE_FN void fill_item(Ring<WIDTH> &ring, const u8 *record, const u8 *base, int n_base, const MxRows &rows, int count, RowOf row)
{
    using S = Stage<WIDTH>;
    int thread = threadIdx.x, lane = thread % 32, chunk = thread % 8, first = thread / 8;
    constexpr int EACH = WIDTH / 16; // tokens of a thread
    const u8 *from[EACH];
    MOTE_UNROLL
    for (int i = 0; i < EACH; i++) {
        int j = first + 16 * i;
        from[i] = (const u8 *)rows.q + (size_t)row(min(j, count - 1)) * (T::UNITS * 128) + chunk * 16;
    }
    const float *scale = rows.scale + (size_t)row(min(thread, count - 1)) * T::UNITS;
    MOTE_ROLLED
    for (int unit = 0; unit < T::UNITS; unit++, ring.next()) {
        ring.wait_empty();
        u32 to = ring.stage(), full = ring.full();
        if (thread < 32) {
            if (lane == 0) barrier_expect(full, TILES * (1024 + 64) + (unit == 0 ? ROWS : 0));
            __syncwarp();
            if (lane < TILES) bulk_copy(to + S::CODE + lane * 1024, record + unit * 1024, 1024, full);
            else bulk_copy(to + S::ITEM + (lane - TILES) * 64, record + T::AT_SCALE + unit * 64, 64, full);
            if (unit == 0 && lane < n_base) bulk_copy(to + S::BASE + lane * (ROWS / n_base), base, ROWS / n_base, full);
        }
        MOTE_UNROLL
        for (int i = 0; i < EACH; i++)
            if (first + 16 * i < count) {
                int j = first + 16 * i;
                stage_copy(to + j * 128 + ((chunk ^ j) & 7) * 16, from[i] + unit * 128);
            }
        if (thread < count)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + S::SCALE + thread * 4), "l"(scale + unit) : "memory");
        barrier_arrive_copied(full);
    }
}

// ---- multiplying ----

// A warp's weights of half a tile pair: `item`: E of its sub-blocks.
struct Codes {
    u32 w[8], step[2]; // step: of sub-block lane % 4, rows g and g + 8
    MOTE_FN void load(u32 code, u32 item, const int base[2])
    {
        uint4 a = shared16(code), b = shared16(code + 512);
        u32 both = shared2(item);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
        step[0] = max((int)(both & 255) - base[0], 0), step[1] = max((int)(both >> 8) - base[1], 0); // 0: a block of zeros
    }
    // Operands of sub-blocks 2 half, 2 half + 1.
    MOTE_FN void unpack(int half, u32 (&a)[2][4]) const
    {
        MOTE_UNROLL
        for (int k = 0; k < 2; k++)
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) {
                int s = 2 * half + k;
                MxTable table(__shfl_sync(~0u, step[r], (threadIdx.x & 28) | s));
                table.look_up(w[4 * r + s], a[k][r], a[k][2 + r]);
            }
    }
};

template <int N> MOTE_FN void multiply_half(float (&part)[N / 2], const u32 (&a)[2][4], u32 b, int half)
{
    products_begin();
    WgmmaE4M3<N>::add(part, a[0], b + 4 * half, half == 0);
    WgmmaE4M3<N>::add(part, a[1], b + 4 * half + 2, 0);
    products_end();
}

template <int N> MOTE_FN void add_unit(float (&acc)[N / 2], const float (&part)[N / 2], u32 scale)
{
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b++) {
        uint2 pair = shared8(scale + 32 * b); // tokens 8 b + 2 t, + 1
        MOTE_UNROLL
        for (int j = 0; j < 4; j++) acc[4 * b + j] = __fmaf_rn(part[4 * b + j], bits_float(j & 1 ? pair.y : pair.x), acc[4 * b + j]);
    }
}

// acc[m] = 16 rows from row[m] on (of a stage's, for this warp) times the tokens; up[m][r]: what they are to be multiplied by.
template <class T, int WIDTH, int N>
MOTE_FN void multiply_item(Ring<WIDTH> &ring, const int (&row)[2], float (&acc)[2][N / 2], float (&up)[2][2])
{
    using S = Stage<WIDTH>;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int base[2][2];
    float part[N / 2];
    u32 a[2][2][4];
    MOTE_UNROLL
    for (int i = 0; i < N; i++) acc[i / (N / 2)][i % (N / 2)] = 0;
    Codes codes;
    auto load = [&](int m) {
        u32 tile = (u32)row[m] / 16;
        codes.load(ring.stage() + S::CODE + tile * 1024 + lane * 16, ring.stage() + S::ITEM + tile * 64 + t * 16 + g * 2, base[m]);
    };
    auto enter = [&] {
        ring.wait_full();
        tokens_seen();
    };
    enter();
    MOTE_UNROLL
    for (int i = 0; i < 4; i++) {
        u32 v, at = ring.stage() + S::BASE + row[i / 2] + g + i % 2 * 8;
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
        base[i / 2][i % 2] = (int)v;
        int e = (int)v + MX_BASE_SHIFT; // 2^(e - 127)
        up[i / 2][i % 2] = bits_float((u32)e << 23);
    }
    load(0);
    codes.unpack(0, a[0]);
    MOTE_ROLLED
    for (int unit = 0; unit < T::UNITS; unit++) {
        u32 stage = ring.stage(), b = stage >> 4 | 1u << 16, scale = stage + S::SCALE + 8 * t, empty = ring.empty();
        multiply_half<N>(part, a[0], b, 0);
        codes.unpack(1, a[1]);
        multiply_half<N>(part, a[1], b, 1);
        load(1);
        products_wait<1>();
        codes.unpack(0, a[0]);
        products_wait<0>();
        add_unit<N>(acc[0], part, scale);
        multiply_half<N>(part, a[0], b, 0);
        codes.unpack(1, a[1]);
        multiply_half<N>(part, a[1], b, 1);
        ring.next();
        products_wait<1>();
        if (unit + 1 < T::UNITS) {
            enter();
            load(0);
            codes.unpack(0, a[0]);
        }
        products_wait<0>();
        add_unit<N>(acc[1], part, scale);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty);
    }
}

MOTE_FN void prefetch(const void *at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }

// ---- gate and up ----

constexpr int UP_BLOCKS = FF_PAD / 128;

// Group `of` (0, 1) of four warps has 64 columns of h.
template <int WIDTH, int N> MOTE_FN void gate_up_item(const MxLargeGateUp &job, Ring<WIDTH> &ring, int4 piece, int unit)
{
    using T = Tile<W0, D_MODEL>;
    int thread = threadIdx.x - FILLERS, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int row[2] = {warp * 16, 128 + warp * 16};
    float acc[2][N / 2], up[2][2];
    multiply_item<T, WIDTH, N>(ring, row, acc, up);
    float *h = (float *)out_buffer<WIDTH>();
    MOTE_UNROLL
    for (int slice = 0; slice < N / SLICE; slice++) {
        if (slice * SLICE >= piece.z) break;
        meet(1, CONSUMERS);
        MOTE_UNROLL
        for (int i = 0; i < SLICE / 2; i++) {
            int at = slice * (SLICE / 2) + i, token = i / 4 * 8 + 2 * t + (i & 1), r = i >> 1 & 1, column = warp * 16 + g + 8 * r;
            float v = activation(ACTIVATION, LIMIT, acc[0][at] * up[0][r], acc[1][at] * up[1][r]);
            h[token * H_ROW + column] = unit * 128 + column < N_FF ? v : 0;
        }
        meet(1, CONSUMERS);
        MOTE_ROLLED
        for (int token = warp; token < min(SLICE, piece.z - slice * SLICE); token += CONSUMERS / 32)
            mx_put_unit(*(const float4 *)(h + token * H_ROW + 4 * lane), job.h, piece.y + slice * SLICE + token, UP_BLOCKS, unit);
    }
}

template <int WIDTH> MOTE_FN void gate_up(const MxLargeGateUp &job)
{
    using T = Tile<W0, D_MODEL>;
    Ring<WIDTH> ring;
    ring.begin();
    chain_launch();
    chain_wait();
    int n_item = *job.list.n_piece * UP_BLOCKS;
    if (threadIdx.x < FILLERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        int lane = threadIdx.x % 32, of = lane % TILES, is_up = of >= TILES / 2;
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = job.list.piece[item / UP_BLOCKS];
            int unit = item % UP_BLOCKS, tile = min(unit * 8 + of % 8, (N_FF + 15) / 16 - 1);
            const u8 *record = (const u8 *)job.list.slot[piece.x * 3 + is_up] + (size_t)tile * T::BYTES;
            const u8 *base = job.base + (size_t)piece.x * BASE_BYTES + lane % 2 * FF_PAD + unit * 128;
            fill_item<T, WIDTH>(ring, record, base, 2, job.x, piece.z, [&](int j) { return job.list.row_of[piece.y + j]; });
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = job.list.piece[item / UP_BLOCKS];
            if (item + (int)gridDim.x < n_item) prefetch(job.list.piece + (item + gridDim.x) / UP_BLOCKS);
            if (WIDTH == 128 && piece.z > 64) gate_up_item<WIDTH, WIDTH>(job, ring, piece, item % UP_BLOCKS);
            else if (piece.z > 32) gate_up_item<WIDTH, 64>(job, ring, piece, item % UP_BLOCKS);
            else gate_up_item<WIDTH, 32>(job, ring, piece, item % UP_BLOCKS);
        }
    }
}

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_large_gate_up_64(const __grid_constant__ MxLargeGateUp job) { gate_up<64>(job); }
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_large_gate_up_128(const __grid_constant__ MxLargeGateUp job) { gate_up<128>(job); }

// ---- down ----

constexpr int DOWN_BLOCKS = (D_MODEL + ROWS - 1) / ROWS;

MOTE_FN void store_transposed(u32 at, const u32 v[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

// Each group of four warps has 128 rows, and goes its own way at the end: one's results leave under the other's products.
template <int WIDTH, int N> MOTE_FN void down_item(const MxLargeDown &job, Ring<WIDTH> &ring, int4 piece, int first_row)
{
    using T = Tile<W0, N_FF>;
    int thread = threadIdx.x - FILLERS, group = thread / 128, warp = thread / 32 % 4, lane = thread % 32;
    const int row[2] = {group * 128 + warp * 16, group * 128 + 64 + warp * 16};
    float acc[2][N / 2], up[2][2];
    multiply_item<T, WIDTH, N>(ring, row, acc, up);
    u8 *out = out_buffer<WIDTH>() + group * (SLICE * FLAT_ROW * 2);
    u32 to = shared_address(out) + (lane / 16 * 8 + lane % 8) * (FLAT_ROW * 2) + warp * 32 + lane / 8 % 2 * 16;
    MOTE_UNROLL
    for (int slice = 0; slice < N / SLICE; slice++) {
        if (slice * SLICE >= piece.z) break;
        meet(2 + group, 128);
        MOTE_UNROLL
        for (int m = 0; m < 2; m++)
            MOTE_UNROLL
            for (int pair = 0; pair < 2; pair++) { // 16 tokens
                u32 v[4];
                MOTE_UNROLL
                for (int i = 0; i < 4; i++) {
                    int r = i & 1, at = slice * (SLICE / 2) + (2 * pair + (i >> 1)) * 4 + 2 * r;
                    v[i] = pack_bf16x2(acc[m][at] * up[m][r], acc[m][at + 1] * up[m][r]);
                }
                store_transposed(to + pair * 16 * (FLAT_ROW * 2) + m * 128, v);
            }
        meet(2 + group, 128);
        int at = thread % 128, column = first_row + group * 128 + at % 16 * 8;
        MOTE_UNROLL
        for (int i = 0; i < SLICE / 8; i++) {
            int token = at / 16 + 8 * i;
            if (slice * SLICE + token < piece.z && column < D_MODEL)
                *(uint4 *)(job.flat + (size_t)(piece.y + slice * SLICE + token) * D_MODEL + column) =
                    *(const uint4 *)(out + token * (FLAT_ROW * 2) + at % 16 * 16);
        }
    }
}

template <int WIDTH> MOTE_FN void down(const MxLargeDown &job)
{
    using T = Tile<W0, N_FF>;
    Ring<WIDTH> ring;
    ring.begin();
    chain_launch();
    chain_wait();
    int n_item = *job.list.n_piece * DOWN_BLOCKS;
    if (threadIdx.x < FILLERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = job.list.piece[item / DOWN_BLOCKS];
            int block = item % DOWN_BLOCKS, tile = min(block * TILES + (int)threadIdx.x % TILES, (D_MODEL + 15) / 16 - 1);
            const u8 *record = (const u8 *)job.list.slot[piece.x * 3 + 2] + (size_t)tile * T::BYTES;
            fill_item<T, WIDTH>(ring, record, job.base + (size_t)piece.x * BASE_BYTES + BASE_DOWN + block * ROWS, 1, job.h, piece.z,
                                [&](int j) { return piece.y + j; });
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        MOTE_ROLLED
        for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
            int4 piece = job.list.piece[item / DOWN_BLOCKS];
            if (item + (int)gridDim.x < n_item) prefetch(job.list.piece + (item + gridDim.x) / DOWN_BLOCKS);
            int first_row = item % DOWN_BLOCKS * ROWS;
            if (WIDTH == 128 && piece.z > 64) down_item<WIDTH, WIDTH>(job, ring, piece, first_row);
            else if (piece.z > 32) down_item<WIDTH, 64>(job, ring, piece, first_row);
            else down_item<WIDTH, 32>(job, ring, piece, first_row);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_large_down_64(const __grid_constant__ MxLargeDown job) { down<64>(job); }
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_large_down_128(const __grid_constant__ MxLargeDown job) { down<128>(job); }
