// mx_small.cu: the expert block of MXFP4 weights for experts with few tokens, sm_90a: bound by memory, so weights stream through a ring
// of shared memory at its speed, without a pause from the first of gate and up to the last of down.
//
//   mx_small   h = activation(gate x, up x), quantised, of pairs (row, expert) in the order of experts; then
//              flat[pair] = down h, f32 or bf16, to be weighed and summed in the order of a row's experts (mx_step.cu); or, in any
//              order, y += weight times it
//
// Both operands are e4m3 for the fp8 tensor cores, weights in registers, tokens in shared memory. Every block of 32 is summed by itself
// (exactly, where activations are MXFP4) and meets both its scales then: any scales are right, of weights and of activations, and
// codes become e4m3 by a table that is always the same. A product has eight columns and is made in two halves: the columns of the
// first are sub-blocks 0 and 1 of four columns of tokens, those of the second sub-blocks 2 and 3; the other sub-block's are zeros.
// Four columns are four tokens, or of two planes two tokens.
//
// An item is 64 rows of weights and a piece's tokens; a stage 512 columns of it. Blocks take items from a list, all of gate and up before
// the first of down: so whoever waits for h waits for blocks that run, and no block relies on all the others to have been
// started. Of a block two warps fill stages with weights, and run ahead of everything; one fills them with tokens, and waits until all h is
// there; sixteen multiply, in groups of four that take every fourth stage; one turns sums into h, and into results.
//
// Constants: W0, template arguments of Tile<> before K; D_MODEL, N_FF; ACTIVATION, LIMIT (expert.cuh); PLANES, e4m3 numbers of an
// activation, 1 (MXFP4) or 2 (MxPlanes); MX_SHARED, bytes of a block's shared memory.
#include "expert.cuh"
#include "mx_act.cuh"
#include "mx_ring.cuh"
#include "mx_wgmma.cuh"
#include "tile.cuh"

constexpr int GROUPS = 4, GROUP_THREADS = 128, CONSUMERS = GROUPS * GROUP_THREADS, FILLERS = 64, BLOCK = CONSUMERS + FILLERS + 64; // threads
constexpr int AT_FILLERS = CONSUMERS / 32, AT_TOKENS = AT_FILLERS + FILLERS / 32, AT_RESULTS = AT_TOKENS + 1;                     // warps
constexpr int TILES = 4, ROWS = TILES * 16, STAGE_UNITS = 4, COLUMNS = 4, MOST = COLUMNS / PLANES; // tiles, rows, units of a stage; most tokens
constexpr bool GATED = is_gated(ACTIVATION);
constexpr int HIDDEN = GATED ? ROWS / 2 : ROWS; // columns of h that an item makes

struct MxSmall {
    MxList list;
    MxRows x;               // [rows]
    MxRows h;               // [n_pair]
    void *flat;             // [n_pair][D_MODEL] f32, or bf16
    int is_bf16;
    float *y;               // [rows][D_MODEL]: results are added to it, times
    const float *weight_of; // [n_pair]; null: they go to flat
    int *taken, *made;      // zero: takes (Blocks) so far; items of gate and up whose h is there
};

// ---- shared memory ----

// A stage: codes [tile][unit][1024]; tokens [unit][8][128], swizzled: row 4 i + c has sub-blocks i and i + 2 of column c, else zeros; scale
// items [tile][unit][64]; the columns' scales [unit][COLUMNS][4]; what it is.
struct Stage {
    static constexpr int CODE_TILE = STAGE_UNITS * 1024, ITEM_TILE = STAGE_UNITS * 64, SCALE_UNIT = COLUMNS * 16;
    static constexpr int TOKEN = TILES * CODE_TILE, ITEM = TOKEN + STAGE_UNITS * 1024, SCALE = ITEM + TILES * ITEM_TILE,
                         KIND = SCALE + STAGE_UNITS * SCALE_UNIT, BYTES = (KIND + 16 + 1023) / 1024 * 1024;
};
// n_unit: units of it, 0: nothing follows. left: stages of its item from this one on, step: before it. turn: which item of the block's.
struct Kind {
    int n_unit, left, step, turn;
};
enum { GATE_UP, DOWN, END };
struct Item {
    int4 piece;
    const u8 *matrix[2]; // of its first two tiles, of the others
    int phase, block;    // block: of ROWS rows
};
// Items are told by who takes them, the first warp of fillers, which may be as many ahead of the last that reads of them as there are
// stages, sums and a few.
constexpr int QUEUE = 32, SUMS = 4, SUM_ROW = ROWS + 4, SUM_BYTES = GROUPS * MOST * SUM_ROW * 4; // sums of an item: [group][token][rows]
constexpr int BESIDE = QUEUE * ((int)sizeof(Item) + 8) + SUMS * (SUM_BYTES + 16);
constexpr int STAGES = (MX_SHARED - BESIDE) / (Stage::BYTES + 16);
static_assert(STAGES > GROUPS + 1 && STAGES + SUMS + 4 < QUEUE && sizeof(Item) % 8 == 0, "");
constexpr int AT_SUMS = STAGES * Stage::BYTES, AT_QUEUE = AT_SUMS + SUMS * SUM_BYTES, AT_BARRIERS = AT_QUEUE + QUEUE * (int)sizeof(Item);
constexpr int AT_TOLD = AT_BARRIERS + STAGES * 16, AT_SUMMED = AT_TOLD + QUEUE * 8; // barriers: of the ring, of the queue, of sums
static_assert(AT_SUMMED + SUMS * 16 <= MX_SHARED, "");

typedef Stages<STAGES, Stage::BYTES> Ring;
typedef Sent<STAGES, 3> Filled; // so many stages on their way and one that is asked for; the others are the groups'

MOTE_FN Item &item_at(int turn) { return *(Item *)(shared + AT_QUEUE + turn % QUEUE * (int)sizeof(Item)); }
MOTE_FN u32 told(int turn) { return shared_address(shared) + AT_TOLD + turn % QUEUE * 8; }
MOTE_FN Item next_item(int turn)
{
    barrier_wait(told(turn), turn / QUEUE & 1);
    return item_at(turn);
}
MOTE_FN float *sums_of(int turn) { return (float *)(shared + AT_SUMS + turn % SUMS * SUM_BYTES); }
MOTE_FN u32 summed(int turn) { return shared_address(shared) + AT_SUMMED + turn % SUMS * 8; } // an item's sums are there
MOTE_FN u32 read(int turn) { return summed(turn) + SUMS * 8; }                                 // and their place is free again
// Warps of an item's groups arrive as many times as makes this, whether one group has part in it or four.
constexpr int SHARES = 12, ARRIVALS = SHARES * GROUP_THREADS / 32;

// ---- what there is to do ----

template <class T> constexpr int steps_of() { return (T::UNITS + STAGE_UNITS - 1) / STAGE_UNITS; }
constexpr int UP_STEPS = steps_of<Tile<W0, D_MODEL>>(), DOWN_STEPS = steps_of<Tile<W0, N_FF>>(), UNITS_H = (N_FF + 127) / 128;

// Items of a phase: blocks of ROWS rows of a piece, of which one or some neighbours are taken at once: to take takes as long as a stage or
// two.
template <int ROWS_OF_IT, int HEIGHT, int STEPS> struct Blocks {
    static constexpr int all = (ROWS_OF_IT + HEIGHT - 1) / HEIGHT, at_once = STEPS < 4 ? 4 / STEPS : 1, takes = (all + at_once - 1) / at_once;
};
typedef Blocks<N_FF, HIDDEN, UP_STEPS> Up;
typedef Blocks<D_MODEL, ROWS, DOWN_STEPS> Down;

struct Plan {
    int n_up, n_all, n_made; // takes of gate and up, of all; items of gate and up
    bool is_rest;            // pieces are listed once more
    MOTE_FN Plan(const MxList &list)
    {
        is_rest = list.rest; // the others take all but some
        int n_part = (is_rest ? *list.n_rest : *list.pieces.n_piece) * list.n_part;
        n_up = n_part * Up::takes, n_all = n_up + n_part * Down::takes, n_made = n_part * Up::all;
    }
};

// Items on their way to who takes them: each needs an answer of memory for its number, its piece, its weights' addresses.
struct Source {
    int number;      // of the take after the next: lane 0 has it
    int next;        // of the next
    int4 next_piece; // z: of all its parts
    Item item;
    int n_left; // items from this one on that were taken with it

    MOTE_FN void take(const MxSmall &job)
    {
        if (threadIdx.x % 32 == 0) number = atomicAdd(job.taken, 1);
    }
    MOTE_FN static int part_of(const Plan &plan, int at) { return at < plan.n_up ? at / Up::takes : (at - plan.n_up) / Down::takes; }
    MOTE_FN void look_up(const MxSmall &job, const Plan &plan)
    {
        next = __shfl_sync(~0u, number, 0);
        if (next >= plan.n_all) return;
        int piece = part_of(plan, next) / job.list.n_part;
        next_piece = job.list.pieces.piece[plan.is_rest ? job.list.rest[piece] : piece];
    }
    MOTE_FN void find(const MxSmall &job, const Plan &plan)
    {
        item.phase = next >= plan.n_all ? END : next < plan.n_up ? GATE_UP : DOWN, n_left = 1;
        if (item.phase == END) return;
        bool is_up = item.phase == GATE_UP;
        int first = part_of(plan, next) % job.list.n_part * MOST;
        item.piece = next_piece, item.piece.y += first, item.piece.z = min(MOST, next_piece.z - first);
        item.block = is_up ? next % Up::takes * Up::at_once : (next - plan.n_up) % Down::takes * Down::at_once;
        n_left = min(is_up ? Up::at_once : Down::at_once, (is_up ? Up::all : Down::all) - item.block);
        const u64 *slot = job.list.pieces.slot + next_piece.x * 3;
        item.matrix[0] = (const u8 *)slot[is_up ? !GATED : 2], item.matrix[1] = (const u8 *)slot[is_up ? 1 : 2];
    }
    MOTE_FN void advance(const MxSmall &job, const Plan &plan) { find(job, plan), look_up(job, plan), take(job); }
    // first: taken before.
    MOTE_FN Source(const MxSmall &job, const Plan &plan, int first) : number(first) { look_up(job, plan), take(job), advance(job, plan); }
    // The next item that has tokens, or the end.
    MOTE_FN Item get(const MxSmall &job, const Plan &plan)
    {
        while (item.phase != END && item.piece.z <= 0) {
            if (item.phase == GATE_UP && threadIdx.x % 32 == 0) atomicAdd(job.made, n_left);
            advance(job, plan);
        }
        Item now = item;
        item.block++;
        if (--n_left == 0) advance(job, plan);
        return now;
    }
};

// ---- filling ----

// An item's weights: 16 bytes of every unit's codes a thread, and of its scales.
template <class T> MOTE_FN void fill_weights(Ring &ring, Filled &filled, const Item &item, int turn)
{
    constexpr bool WHOLE = T::UNITS % STAGE_UNITS == 0; // no stage has fewer units
    bool is_split = GATED && item.phase == GATE_UP;     // the first two tiles are gate's, the others up's
    size_t tile = (size_t)item.block * (is_split ? TILES / 2 : TILES);
    int thread = opaque(threadIdx.x % FILLERS), of = thread / 16; // out of sight: it would be worked out again for every copy
    const u8 *first = item.matrix[0] + tile * T::BYTES, *second = item.matrix[1] + (is_split ? tile : tile + 2) * T::BYTES;
    const u8 *code[2] = {first + thread * 16, second + thread * 16};
    const u8 *scale = (of < 2 ? first : second) + of % 2 * T::BYTES + T::AT_SCALE + thread % 16 * 16;
    u32 at_code = opaque(thread * 16), at_scale = opaque(Stage::ITEM + of * Stage::ITEM_TILE + thread % 16 * 16);
    MOTE_ROLLED
    for (int step = 0; step < steps_of<T>(); step++, ring.next()) {
        int n = min(STAGE_UNITS, T::UNITS - step * STAGE_UNITS);
        ring.wait_empty();
        u32 to = ring.stage();
        MOTE_UNROLL
        for (int i = 0; i < TILES; i++)
            MOTE_UNROLL
            for (int u = 0; u < STAGE_UNITS; u++)
                if (WHOLE || u < n) stage_copy(to + at_code + i * Stage::CODE_TILE + u * 1024, code[i / 2] + i % 2 * T::BYTES + u * 1024);
        if (WHOLE || thread % 16 / 4 < n) stage_copy(to + at_scale, scale);
        if (thread == 0) put_shared16(to + Stage::KIND, n, steps_of<T>() - step, step, turn);
        code[0] += STAGE_UNITS * 1024, code[1] += STAGE_UNITS * 1024, scale += STAGE_UNITS * 64;
        filled.add();
    }
}

MOTE_FN void fill_all_weights(const MxSmall &job, const Plan &plan, Ring ring, int first)
{
    bool tells = threadIdx.x / 32 == AT_FILLERS;
    Filled filled;
    filled.start(ring.barriers);
    auto fill = [&](const Item &item, int turn) {
        if (item.phase == GATE_UP) fill_weights<Tile<W0, D_MODEL>>(ring, filled, item, turn);
        else if (item.phase == DOWN) fill_weights<Tile<W0, N_FF>>(ring, filled, item, turn);
    };
    int phase = GATE_UP;
    if (tells) {
        Source source(job, plan, first);
        MOTE_ROLLED
        for (int turn = 0; phase != END; turn++) {
            Item item = source.get(job, plan);
            phase = item.phase;
            if (threadIdx.x % 32 == 0) item_at(turn) = item, barrier_arrive(told(turn));
            fill(item, turn);
        }
    } else
        MOTE_ROLLED
        for (int turn = 0; phase != END; turn++) {
            Item item = next_item(turn);
            phase = item.phase;
            fill(item, turn);
        }
    for (int i = 0; i < GROUPS; i++, ring.next()) { // every group is told
        ring.wait_empty();
        if (threadIdx.x % FILLERS == 0) put_shared16(ring.stage() + Stage::KIND, 0, 0, 0, 0);
        filled.add();
    }
    filled.finish();
}

// An item's tokens: 16 bytes of every unit of a column a lane; the columns' scales by half of the lanes.
template <class T, class RowOf> MOTE_FN void fill_tokens(Ring &ring, Filled &filled, const MxRows &rows, int count, RowOf row_of)
{
    constexpr bool WHOLE = T::UNITS % STAGE_UNITS == 0;
    int lane = opaque(threadIdx.x % 32), column = lane / 8, chunk = lane % 8, to_row = chunk / 2 % 2 * 4 + column, unit = lane / 4, of = lane % 4;
    bool has_token = column % MOST < count, has_scale = unit < STAGE_UNITS && of % MOST < count;
    const u8 *q = (const u8 *)rows.q + ((size_t)row_of(min(column % MOST, count - 1)) * (T::UNITS * PLANES) + column / MOST) * 128 + chunk * 16;
    const u8 *scale = (const u8 *)(rows.scale + ((size_t)row_of(min(of % MOST, count - 1)) * T::UNITS + unit) * 4);
    u32 at = opaque(Stage::TOKEN + to_row * 128 + ((chunk ^ to_row) & 7) * 16), at_scale = opaque(Stage::SCALE + unit * Stage::SCALE_UNIT + of * 16);
    MOTE_ROLLED
    for (int step = 0; step < steps_of<T>(); step++, ring.next()) {
        int n = min(STAGE_UNITS, T::UNITS - step * STAGE_UNITS);
        ring.wait_empty();
        u32 to = ring.stage();
        if (has_token)
            MOTE_UNROLL
            for (int u = 0; u < STAGE_UNITS; u++)
                if (WHOLE || u < n) stage_copy(to + at + u * 1024, q + u * (PLANES * 128));
        if (has_scale && (WHOLE || unit < n)) stage_copy(to + at_scale, scale);
        q += STAGE_UNITS * PLANES * 128, scale += STAGE_UNITS * 16;
        filled.add();
    }
}

MOTE_FN void fill_all_tokens(const MxSmall &job, const Plan &plan, Ring ring)
{
    Filled filled;
    filled.start(ring.barriers);
    bool waits = true;
    MOTE_ROLLED
    for (int turn = 0;; turn++) {
        Item item = next_item(turn);
        if (item.phase == END) break;
        if (item.phase == GATE_UP) {
            const int *row_of = job.list.pieces.row_of + item.piece.y;
            fill_tokens<Tile<W0, D_MODEL>>(ring, filled, job.x, item.piece.z, [&](int j) { return row_of[j]; });
            continue;
        }
        if (waits) {
            filled.finish(); // who makes h may need what is on its way
            wait_for(job.made, plan.n_made);
            waits = false;
        }
        fill_tokens<Tile<W0, N_FF>>(ring, filled, job.h, item.piece.z, [&](int j) { return item.piece.y + j; });
    }
    for (int i = 0; i < GROUPS; i++, ring.next()) ring.wait_empty(), filled.add();
    filled.finish();
}

// ---- multiplying ----

// A unit of a warp's tile on its way to operands.
struct Codes {
    u32 w[8];
    MOTE_FN void load(u32 at)
    {
        uint4 a = shared16(at), b = shared16(at + 512);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    }
    MOTE_FN void unpack(u32 (&a)[4][4], const MxTable &table) const
    {
        MOTE_UNROLL
        for (int s = 0; s < 4; s++)
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) table.look_up(w[4 * r + s], a[s][r], a[s][2 + r]);
    }
};
// 2^(e - 127) of an e8m0 that stands at bit 0 (r 0) or 8 (r 1).
MOTE_FN float item_scale(u32 both, int r)
{
    u32 bits = (both << (r ? 15 : 23)) & 0x7F800000;
    return bits_float(max(bits, 0x00400000)); // 0 is the subnormal 2^-127
}

// acc[2 r + i] += a stage: row g + 8 r of the warp's tile times column 2 (t % 2) + i, of sub-blocks t / 2 and t / 2 + 2.
MOTE_FN void multiply(u32 stage, int n_unit, const MxTable &table, float (&acc)[4])
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, tile = threadIdx.x / 32 % TILES;
    u32 code = stage + tile * Stage::CODE_TILE + lane * 16, item = stage + Stage::ITEM + tile * Stage::ITEM_TILE + t / 2 * 16 + g * 2;
    u32 scale = stage + Stage::SCALE + t % 2 * 32 + t / 2 * 4;
    u32 b = __shfl_sync(~0u, (stage + Stage::TOKEN) >> 4 | 1u << 16, 0); // the lower half of the tokens' descriptor, of all lanes
    Codes codes;
    codes.load(code);
    MOTE_UNROLL
    for (int u = 0; u < STAGE_UNITS; u++) {
        if (u >= n_unit) break;
        u32 a[4][4];
        float part[2][4];
        codes.unpack(a, table);
        products_begin();
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) WgmmaE4M3<8>::add(part[s / 2], a[s], b + u * 64 + 2 * s, s % 2 == 0);
        products_end();
        u32 items[2];
        float x_scale[2][2];
        MOTE_UNROLL
        for (int k = 0; k < 2; k++) {
            items[k] = shared2(item + u * 64 + k * 32);
            MOTE_UNROLL
            for (int i = 0; i < 2; i++) x_scale[k][i] = bits_float(shared4(scale + u * Stage::SCALE_UNIT + i * 16 + k * 8));
        }
        if (u + 1 < n_unit) codes.load(code + (u + 1) * 1024);
        products_wait<0>();
        MOTE_UNROLL // scale by scale: a block of zeros may have any, and 0 times their product could be no number
        for (int k = 0; k < 2; k++)
            MOTE_UNROLL
            for (int i = 0; i < 4; i++) acc[i] = __fmaf_rn(item_scale(items[k], i / 2), part[k][i] * x_scale[k][i % 2], acc[i]);
    }
}

MOTE_FN void multiply_all(const MxSmall &job, Ring ring)
{
    const MxTable table{MxFactors(job.list.one)};
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    float acc[4] = {0, 0, 0, 0};
    ring.next(warp / TILES);
    MOTE_ROLLED
    for (;; ring.next(GROUPS)) {
        ring.wait_full();
        uint4 v = shared16(ring.stage() + Stage::KIND);
        const Kind kind = {(int)v.x, (int)v.y, (int)v.z, (int)v.w};
        if (!kind.n_unit) break;
        multiply(ring.stage(), kind.n_unit, table, acc);
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.empty());
        if (kind.left > GROUPS) continue;
        // The group's last stage of the item: halves of columns, and planes, meet in lanes with the lowest t.
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) {
            if (PLANES == 2) acc[i] += __shfl_xor_sync(~0u, acc[i], 1);
            acc[i] += __shfl_xor_sync(~0u, acc[i], 2);
        }
        barrier_wait(read(kind.turn), (kind.turn / SUMS + 1) & 1);
        float *sums = sums_of(kind.turn) + kind.step % GROUPS * (MOST * SUM_ROW) + warp % TILES * 16 + g;
        if (t < MOST / 2)
            MOTE_UNROLL
            for (int i = 0; i < 4; i++) sums[(2 * t + (i & 1)) * SUM_ROW + (i >> 1) * 8] = acc[i];
        MOTE_UNROLL
        for (int i = 0; i < 4; i++) acc[i] = 0;
        __syncwarp();
        if (lane == 0) barrier_arrive(summed(kind.turn), SHARES / min(GROUPS, kind.left + kind.step));
    }
}

// ---- results ----

constexpr float POWER = 1 << MX_BASE_SHIFT; // what weights are short of

// Four neighbouring rows of a token.
template <int PARTS> MOTE_FN float4 sum_four(const float *sums, int token, int row)
{
    float4 v = make_float4(0, 0, 0, 0);
    MOTE_UNROLL
    for (int i = 0; i < PARTS; i++) {
        float4 part = *(const float4 *)(sums + (i * MOST + token) * SUM_ROW + row);
        v.x += part.x * POWER, v.y += part.y * POWER, v.z += part.z * POWER, v.w += part.w * POWER;
    }
    return v;
}

// Four columns of h a lane, of 32 at once.
MOTE_FN void put_hidden(const MxSmall &job, const Item &item, const float *sums)
{
    constexpr int PARTS = UP_STEPS < GROUPS ? UP_STEPS : GROUPS;
    int lane = threadIdx.x % 32, token = lane / 8, end = item.block == Up::all - 1 ? UNITS_H * 128 - item.block * HIDDEN : HIDDEN;
    MOTE_ROLLED
    for (int c = lane % 8 * 4; c < end; c += 32) {
        int column = item.block * HIDDEN + c;
        float h[4] = {0, 0, 0, 0};
        if (column < N_FF && token < MOST) {
            float4 up = sum_four<PARTS>(sums, token, GATED ? HIDDEN + c : c), gate = GATED ? sum_four<PARTS>(sums, token, c) : up;
            h[0] = activation(ACTIVATION, LIMIT, gate.x, up.x), h[1] = activation(ACTIVATION, LIMIT, gate.y, up.y);
            h[2] = activation(ACTIVATION, LIMIT, gate.z, up.z), h[3] = activation(ACTIVATION, LIMIT, gate.w, up.w);
        }
        size_t at = (size_t)(item.piece.y + token) * UNITS_H + column / 128;
        int part = column % 128 / 4;
        if constexpr (PLANES == 2) {
            MxPlanes<4, 32> planes(h);
            if (token < item.piece.z) planes.put(job.h, at, part, at * 4 + part / 8, part % 8 == 0);
        } else {
            MxColumns<4> columns(h);
            if (token < item.piece.z) columns.put_small(job.h, at, part);
        }
    }
}

// Eight rows of a token a lane.
MOTE_FN void put_results(const MxSmall &job, const Item &item, const float *sums)
{
    constexpr int PARTS = DOWN_STEPS < GROUPS ? DOWN_STEPS : GROUPS;
    int lane = threadIdx.x % 32, token = lane / 8, row = item.block * ROWS + lane % 8 * 8;
    if (token >= item.piece.z || row >= D_MODEL) return;
    int pair = item.piece.y + token;
    size_t to = (size_t)pair * D_MODEL + row;
    float4 a = sum_four<PARTS>(sums, token, lane % 8 * 8), b = sum_four<PARTS>(sums, token, lane % 8 * 8 + 4);
    if (job.weight_of) {
        float *y = job.y + (size_t)job.list.pieces.row_of[pair] * D_MODEL + row, by = job.weight_of[pair];
        add_to(y, make_float4(by * a.x, by * a.y, by * a.z, by * a.w));
        add_to(y + 4, make_float4(by * b.x, by * b.y, by * b.z, by * b.w));
        return;
    }
    if (job.is_bf16) *(uint4 *)((u16 *)job.flat + to) = make_uint4(pack_bf16x2(a.x, a.y), pack_bf16x2(a.z, a.w), pack_bf16x2(b.x, b.y), pack_bf16x2(b.z, b.w));
    else *(float4 *)((float *)job.flat + to) = a, *(float4 *)((float *)job.flat + to + 4) = b;
}

MOTE_FN void put_all(const MxSmall &job)
{
    MOTE_ROLLED
    for (int turn = 0;; turn++) {
        const Item item = next_item(turn);
        if (item.phase == END) break;
        barrier_wait(summed(turn), turn / SUMS & 1);
        if (item.phase == GATE_UP) put_hidden(job, item, sums_of(turn));
        else put_results(job, item, sums_of(turn));
        __syncwarp();
        if (threadIdx.x % 32) continue;
        barrier_arrive(read(turn));
        if (item.phase == GATE_UP) __threadfence(), atomicAdd(job.made, 1); // all lanes' h is there before it is counted
    }
}

// Grid: as many blocks as there are multiprocessors.
extern "C" __global__ void __launch_bounds__(BLOCK, 1) mx_small(const __grid_constant__ MxSmall job)
{
    for (int i = threadIdx.x; i < STAGES * STAGE_UNITS * 64; i += BLOCK) // zeros that stay, and no column is ever other than numbers
        *(uint4 *)(shared + i / (STAGE_UNITS * 64) * Stage::BYTES + Stage::TOKEN + i % (STAGE_UNITS * 64) * 16) = make_uint4(0, 0, 0, 0);
    stage_written();
    u32 base = shared_address(shared);
    Ring ring;
    ring.start(base, base + AT_BARRIERS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < QUEUE; i++) barrier_init(told(i), 1);
        for (int i = 0; i < SUMS; i++) barrier_init(summed(i), ARRIVALS), barrier_init(read(i), 1);
        ring.init(FILLERS / 32 + 1, GROUP_THREADS / 32);
    }
    chain_launch();
    chain_wait();
    __syncthreads();
    int warp = threadIdx.x / 32, first = 0;
    if (threadIdx.x == AT_FILLERS * 32) first = atomicAdd(job.taken, 1); // under way with what the plan needs
    const Plan plan(job.list);
    if (warp < AT_FILLERS) multiply_all(job, ring);
    else if (warp < AT_TOKENS) fill_all_weights(job, plan, ring, first);
    else if (warp < AT_RESULTS) fill_all_tokens(job, plan, ring);
    else put_all(job);
}
