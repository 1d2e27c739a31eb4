// attend.cu: norm and rotation of a step's queries and keys, keys and values into the caches, and attention of single
// rows (decode).
//
//   rope_store_*    a warp a head of a row: queries in place, keys and values into the caches
//   attend_*        a block a row, a head of keys (all query heads of its group) and a share of the keys it sees
//   rope_attend_*   both, where no sequence has two rows
//
// Does not own: many rows of one sequence (attend_prefill.cu).
// One idea of attend_*: a warp takes 16 keys at a time as the 16 rows of a tensor-core product and the group's query
// heads as its eight columns, so that keys and values go from memory to registers as operands, 16 bytes a lane, read
// once, nothing padded for a group of eight. Queries and weights are two halves each: only f16 accuracy of what the
// cache holds is lost (nothing for an f16 cache).
// Shares of keys end in scratch, the last block of a row and head adds them up in order: bitwise repeatable.
// Constants: HEAD_DIM (a multiple of 16), N_HEAD, N_HEAD_KV, N_ROT.
#include "act.cuh"
#include "attend.cuh"

// ---- norm, rotation, store ----

constexpr int ROPE_WARPS = 4;

struct Frequencies {
    float inverse[N_ROT > 0 ? N_ROT / 2 : 1];
};

// row[HEAD_DIM] floats of shared memory, a warp's own, to a row of a cache.
template <int TYPE> MOTE_FN void store_row(const float *row, u8 *to, int lane)
{
    MOTE_UNROLL
    for (int d = lane; d < HEAD_DIM; d += 32) {
        float x = row[d];
        if constexpr (TYPE == KV_F32) {
            ((float *)to)[d] = x;
        } else if constexpr (TYPE == KV_F16) {
            ((u16 *)to)[d] = float_to_half(x);
        } else { // HEAD_DIM is a multiple of 32
            float amax =
                bits_float(__reduce_max_sync(~0u, float_bits(x) & 0x7fffffff)); // a NaN is the largest
            u16 stored = float_to_half(amax / 127);
            float scale = half_to_float(stored);
            float code = scale > 0 && scale < bits_float(0x7f800000) ? rintf(x / scale) : 0;
            u8 *block = to + d / 32 * 34;
            if (lane == 0) *(u16 *)block = stored;
            block[2 + lane] = (u8)(int)fminf(fmaxf(code, -127), 127);
        }
    }
}

// Cosines and sines of a position, of pairs 32 j + lane. Angles are the f32 products of position and frequency, as the
// models were trained with, reduced in f64.
struct Turn {
    static constexpr int PAIRS = (N_ROT / 2 + 31) / 32;
    float cosine[PAIRS + 1], sine[PAIRS + 1];

    MOTE_FN Turn(const Frequencies &frequencies, int position, float magnitude)
    {
        MOTE_UNROLL
        for (int j = 0; j < PAIRS; j++) {
            int i = 32 * j + (int)threadIdx.x % 32;
            float angle = (float)position * frequencies.inverse[i < N_ROT / 2 ? i : 0];
            double turns = (double)angle * 0.31830988618379067154; // half turns
            sincospif((float)(turns - 2 * rint(turns * 0.5)), &sine[j], &cosine[j]);
            cosine[j] *= magnitude;
            sine[j] *= magnitude;
        }
    }

    // Columns i and i + half of row[HEAD_DIM], a warp's own in shared memory.
    MOTE_FN void apply(float *row, int half) const
    {
        __syncwarp();
        MOTE_UNROLL
        for (int j = 0; j < PAIRS; j++) {
            int i = 32 * j + (int)threadIdx.x % 32;
            if (i < half) {
                float a = row[i], b = row[i + half];
                row[i] = a * cosine[j] - b * sine[j];
                row[i + half] = a * sine[j] + b * cosine[j];
            }
        }
        __syncwarp();
    }
};

// A head's floats, in flight until `put` needs them: to a warp's row of shared memory, normed when there are weights.
struct Taken {
    static constexpr int COLUMNS = (HEAD_DIM + 31) / 32;
    float x[COLUMNS], weight[COLUMNS];

    MOTE_FN void load(const float *from, const float *norm)
    {
        MOTE_UNROLL
        for (int j = 0; j < COLUMNS; j++) {
            int i = 32 * j + (int)threadIdx.x % 32;
            x[j] = i < HEAD_DIM ? from[i] : 0;
            weight[j] = norm && i < HEAD_DIM ? norm[i] : 1;
        }
    }

    MOTE_FN void put(bool is_normed, float eps, float *row) const
    {
        float square = 0;
        MOTE_UNROLL
        for (int j = 0; j < COLUMNS; j++) square += x[j] * x[j];
        float factor = is_normed ? 1 / sqrtf(warp_sum(square) / HEAD_DIM + eps) : 1;
        MOTE_UNROLL
        for (int j = 0; j < COLUMNS; j++) {
            int i = 32 * j + (int)threadIdx.x % 32;
            if (i < HEAD_DIM) row[i] = x[j] * factor * weight[j];
        }
        __syncwarp();
    }
};

// q [n_row][N_HEAD][HEAD_DIM], k and v [n_row][N_HEAD_KV][HEAD_DIM]; struct heads of cuda_attend.c.
struct Heads {
    float *q, *k;
    const float *v, *q_norm, *k_norm; // norms [HEAD_DIM] or null
    float eps, magnitude;
    int n_rot, layer;
};

// Key or value head of a row into the cache, by a warp.
MOTE_FN void load_kv(Taken &taken, const Heads &heads, int row, int kv_head, bool is_value)
{
    u64 from = ((u64)row * N_HEAD_KV + kv_head) * HEAD_DIM;
    taken.load(is_value ? heads.v + from : heads.k + from, is_value ? nullptr : heads.k_norm);
}
template <int TYPE>
MOTE_FN void store_kv(const Taken &taken, const Heads &heads, const Turn &turn, const mote_step_span &span,
                      int position, int kv_head, bool is_value, float *mine)
{
    taken.put(!is_value && heads.k_norm, heads.eps, mine);
    if (!is_value) turn.apply(mine, heads.n_rot / 2);
    u8 *cache = cache_head<TYPE>(is_value ? span.v : span.k, span, heads.layer, kv_head);
    store_row<TYPE>(mine, cache + (u64)position * ROW_BYTES<TYPE>, threadIdx.x % 32);
}

// Heads of a row in order q, k, v. k itself stays as it is: who reads keys reads the cache.
template <int TYPE>
MOTE_FN void rope_store(const Heads &heads, const Frequencies &frequencies, const int *position,
                        const int *span_of_row, const mote_step_span *spans)
{
    extern __shared__ float rows[]; // [ROPE_WARPS][HEAD_DIM]
    int lane = threadIdx.x % 32, head = blockIdx.x * ROPE_WARPS + threadIdx.x / 32, row = blockIdx.y;
    if (head >= N_HEAD + 2 * N_HEAD_KV) return;
    float *mine = rows + threadIdx.x / 32 * HEAD_DIM;
    chain_launch();
    int at = position[row]; // the step block is older than the kernels ahead
    mote_step_span span = spans[span_of_row[row]];
    Turn turn(frequencies, at, heads.magnitude);
    Taken taken;
    chain_wait();
    if (head < N_HEAD) {
        float *q = heads.q + ((u64)row * N_HEAD + head) * HEAD_DIM;
        taken.load(q, heads.q_norm);
        taken.put(heads.q_norm, heads.eps, mine);
        turn.apply(mine, heads.n_rot / 2);
        for (int i = lane; i < HEAD_DIM; i += 32) q[i] = mine[i];
    } else {
        bool is_value = head >= N_HEAD + N_HEAD_KV;
        int kv_head = head - N_HEAD - (is_value ? N_HEAD_KV : 0);
        load_kv(taken, heads, row, kv_head, is_value);
        store_kv<TYPE>(taken, heads, turn, span, at, kv_head, is_value, mine);
    }
}

#define ROPE_STORE(NAME, TYPE)                                                                     \
    extern "C" __global__ void __launch_bounds__(ROPE_WARPS * 32)                                  \
        NAME(const __grid_constant__ Heads heads, const __grid_constant__ Frequencies frequencies, \
             const int *position, const int *span_of_row, const mote_step_span *spans)             \
    {                                                                                              \
        rope_store<TYPE>(heads, frequencies, position, span_of_row, spans);                        \
    }
ROPE_STORE(rope_store_f32, KV_F32)
ROPE_STORE(rope_store_f16, KV_F16)
#if HEAD_DIM % 32 == 0
ROPE_STORE(rope_store_q8_0, KV_Q8_0)
#endif

// ---- decode ----

constexpr int WARPS = 8, KEYS = 16; // keys of a product
constexpr int MIN_SHARE = 256;      // keys of a block; SHARE_KEYS of cuda_attend.c
constexpr int HEAD_PARTS = 4;       // blocks that share the heads of a context of one share; HEAD_PARTS of cuda_attend.c
constexpr int HEAD_TILES = GROUP > 8 && HEAD_DIM <= 128 ? 2 : 1; // products of eight query heads a block
constexpr int HEADS = 8 * HEAD_TILES;                            // query heads of a block
constexpr int BLOCKS_PER_KV = (GROUP + HEADS - 1) / HEADS;
constexpr int ROW_TILES = HEAD_DIM / 16;                       // products of 16 columns of values
constexpr int SUMS = HEAD_TILES * ROW_TILES * 128;             // HEADS * HEAD_DIM
constexpr int Q_STRIDE = ((HEAD_DIM / 8 + 3) / 8 * 8 + 4) * 8; // halves: a row is 4 mod 8 words of 16 bytes
constexpr int OUT_STRIDE = HEAD_DIM + 1;                       // floats
constexpr int Q_BYTES = 2 * HEADS * Q_STRIDE * 2, OUT_BYTES = HEADS * OUT_STRIDE * 4;
constexpr int HEAD_BYTES = ((Q_BYTES > OUT_BYTES ? Q_BYTES : OUT_BYTES) + 15) / 16 * 16;

// Shared memory of a block, in order; cuda_attend.c counts it too.
struct Decode {
    u16 *q;      // [2: whole, left over][HEADS][Q_STRIDE] halves, scaled for powers of two
    float *out;  // [HEADS][OUT_STRIDE], in the place of q
    float *sums; // [WARPS][SUMS] in the order of the accumulators; then factors of shares [share][HEADS]
    float *max, *total; // [WARPS][HEADS]
    float *whole;       // [HEADS]: sum of all weights
    int *ticket;
};

MOTE_FN Decode decode_memory(u8 *shared)
{
    Decode d;
    d.q = (u16 *)shared;
    d.out = (float *)shared;
    d.sums = (float *)(shared + HEAD_BYTES);
    d.max = d.sums + WARPS * SUMS;
    d.total = d.max + WARPS * HEADS;
    d.whole = d.total + WARPS * HEADS;
    d.ticket = (int *)(d.whole + HEADS);
    return d;
}

// Columns of values: sets of 64, then 32, then 16, of which a lane's row g holds 8, 4 or 2 side by side; two of them
// are rows g and g + 8 of a product. The set that product m is in, and the column of its row g.
MOTE_FN constexpr int set_of(int m)
{
    return m < HEAD_DIM / 64 * 4 ? m & ~3 : m < HEAD_DIM / 32 * 2 ? m & ~1 : m;
}
MOTE_FN constexpr int width_of(int m)
{
    return m < HEAD_DIM / 64 * 4 ? 8 : m < HEAD_DIM / 32 * 2 ? 4 : 2;
}
MOTE_FN int column_of(int m, int g)
{
    return set_of(m) * 16 + width_of(m) * g + 2 * (m - set_of(m));
}

// The keys of a product: a lane's pieces of rows g and g + 8, 32 columns at a time, then 16.
template <int TYPE> struct Keys {
    static constexpr int WIDE = HEAD_DIM / 32, TAIL = HEAD_DIM % 32 / 16;
    Piece<TYPE, 8> wide[WIDE ? WIDE : 1][2];
    Piece<TYPE, 4> tail[2];

    // Rows past the last are the last again: their weights become 0.
    MOTE_FN void load(const u8 *head, int key, int last, int g, int t)
    {
        const u8 *row[2];
        MOTE_UNROLL
        for (int r = 0; r < 2; r++) {
            int i = key + g + 8 * r;
            row[r] = head + (u64)(i < last ? i : last) * ROW_BYTES<TYPE>;
        }
        MOTE_UNROLL
        for (int j = 0; j < WIDE; j++) MOTE_UNROLL
        for (int r = 0; r < 2; r++) wide[j][r].load(row[r], 32 * j + 8 * t);
        if constexpr (TAIL) MOTE_UNROLL
        for (int r = 0; r < 2; r++) tail[r].load(row[r], 32 * WIDE + 4 * t);
    }

    // s[n] = K q: c[0], c[1]: key g, heads 8 n + 2 t, + 1; c[2], c[3]: key g + 8. Four sums side by side: a product
    // takes as long as it takes the next to start that adds to it.
    MOTE_FN void multiply(const u16 *q, int g, int t, float s[HEAD_TILES][4]) const
    {
        MOTE_UNROLL
        for (int n = 0; n < HEAD_TILES; n++) {
            const u16 *mine = q + (8 * n + g) * Q_STRIDE;
            float sum[2][2][4] = {}; // even and odd steps, whole and left over
            MOTE_UNROLL
            for (int j = 0; j < WIDE; j++) {
                uint4 whole = *(const uint4 *)(mine + 32 * j + 8 * t),
                      rest = *(const uint4 *)(mine + HEADS * Q_STRIDE + 32 * j + 8 * t);
                step(sum[0], wide[j][0], wide[j][1], 0, whole.x, whole.y, rest.x, rest.y);
                step(sum[1], wide[j][0], wide[j][1], 2, whole.z, whole.w, rest.z, rest.w);
            }
            if constexpr (TAIL) {
                const u16 *from = mine + 32 * WIDE + 4 * t;
                uint2 whole = *(const uint2 *)from, rest = *(const uint2 *)(from + HEADS * Q_STRIDE);
                step(sum[0], tail[0], tail[1], 0, whole.x, whole.y, rest.x, rest.y);
            }
            MOTE_UNROLL
            for (int i = 0; i < 4; i++)
                s[n][i] = (sum[0][0][i] + sum[1][0][i]) + (sum[0][1][i] + sum[1][1][i]);
        }
    }

    template <class P>
    static MOTE_FN void step(float sum[2][4], const P &low, const P &high, int i, u32 b0, u32 b1, u32 r0,
                             u32 r1)
    {
        MOTE_UNROLL
        for (int part = 0; part < P::PARTS; part++) {
            u32 a[4] = {low.pair(i, part), high.pair(i, part), low.pair(i + 1, part), high.pair(i + 1, part)};
            mma_half(sum[part], a, b0, b1); // what keys and queries both leave over is too small to matter
            if (part == 0) mma_half(sum[1], a, r0, r1);
        }
    }
};

// Weights of 16 keys as the second operand: [0], [1] keys 2 t, + 1 and 8 + 2 t, + 1 of head g; whole and left over.
struct Weights {
    u32 whole[HEAD_TILES][2], rest[HEAD_TILES][2];
};

// acc[n][m] += V^T p for the products of one set: values of keys 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t in pieces of W.
template <int TYPE, int W> struct Values {
    Piece<TYPE, W> piece[4];

    MOTE_FN void load(const u8 *const row[4], int set, int g)
    {
        MOTE_UNROLL
        for (int r = 0; r < 4; r++) piece[r].load(row[r], set * 16 + W * g);
    }

    MOTE_FN void multiply(const Weights &p, int set, float acc[HEAD_TILES][ROW_TILES][4]) const
    {
        MOTE_UNROLL
        for (int i = 0; i < W / 2; i++) MOTE_UNROLL
        for (int part = 0; part < Piece<TYPE, W>::PARTS; part++) {
            u32 v[4];
            MOTE_UNROLL
            for (int r = 0; r < 4; r++) v[r] = piece[r].pair(i, part);
            u32 a[4] = {prmt(v[0], v[1], 0x5410), prmt(v[0], v[1], 0x7632), prmt(v[2], v[3], 0x5410),
                        prmt(v[2], v[3], 0x7632)};
            MOTE_UNROLL
            for (int n = 0; n < HEAD_TILES; n++) {
                mma_half(acc[n][set + i], a, p.whole[n][0], p.whole[n][1]);
                if (part == 0) mma_half(acc[n][set + i], a, p.rest[n][0], p.rest[n][1]);
            }
        }
    }
};

// A head's values: all loaded early when they are small enough to wait in registers beside the keys.
template <int TYPE> struct AllValues {
    static constexpr int SETS = HEAD_DIM / 64, HALF = HEAD_DIM % 64 / 32, TAIL = HEAD_DIM % 32 / 16;
    static constexpr bool EARLY = ROW_BYTES<TYPE> <= 256;
    const u8 *row[4];
    Values<TYPE, 8> wide[EARLY && SETS ? SETS : 1];
    Values<TYPE, 4> half;
    Values<TYPE, 2> tail;

    MOTE_FN void load(const u8 *head, int key, int last, int g, int t)
    {
        MOTE_UNROLL
        for (int r = 0; r < 4; r++) {
            int i = key + 2 * t + (r & 1) + 8 * (r >> 1);
            row[r] = head + (u64)(i < last ? i : last) * ROW_BYTES<TYPE>;
        }
        if constexpr (EARLY) {
            MOTE_UNROLL
            for (int s = 0; s < SETS; s++) wide[s].load(row, 4 * s, g);
            if constexpr (HALF) half.load(row, 4 * SETS, g);
            if constexpr (TAIL) tail.load(row, HEAD_DIM / 32 * 2, g);
        }
    }

    MOTE_FN void multiply(const Weights &p, int g, float acc[HEAD_TILES][ROW_TILES][4])
    {
        MOTE_UNROLL
        for (int s = 0; s < SETS; s++) {
            if constexpr (!EARLY) wide[0].load(row, 4 * s, g);
            wide[EARLY ? s : 0].multiply(p, 4 * s, acc);
        }
        if constexpr (HALF) {
            if constexpr (!EARLY) half.load(row, 4 * SETS, g);
            half.multiply(p, 4 * SETS, acc);
        }
        if constexpr (TAIL) {
            if constexpr (!EARLY) tail.load(row, HEAD_DIM / 32 * 2, g);
            tail.multiply(p, HEAD_DIM / 32 * 2, acc);
        }
    }
};

// The state of a warp: heads 8 n + 2 t, + 1 of a lane.
struct Softmax {
    float max[HEAD_TILES][2], total[HEAD_TILES][2]; // total: of the lane's own keys
    float acc[HEAD_TILES][ROW_TILES]
             [4]; // [0], [1]: row g of the product, heads 2 t, + 1; [2], [3]: row g + 8

    // Logits (as powers of two) of keys g and g + 8 to weights; n_key of the 16 are there.
    MOTE_FN Weights weigh(float s[HEAD_TILES][4], int n_key, int g)
    {
        Weights p;
        MOTE_UNROLL
        for (int n = 0; n < HEAD_TILES; n++) {
            MOTE_UNROLL
            for (int i = 0; i < 4; i++)
                if (g + 8 * (i / 2) >= n_key) s[n][i] = never();
            float shrink[2];
            MOTE_UNROLL
            for (int h = 0; h < 2; h++) {
                float top = fmaxf(s[n][h], s[n][h + 2]);
                MOTE_UNROLL
                for (int i = 4; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
                top = fmaxf(top, max[n][h]);
                float base = top == never() ? 0 : top;
                shrink[h] = power2(max[n][h] - base);
                max[n][h] = top;
                s[n][h] = power2(s[n][h] - base);
                s[n][h + 2] = power2(s[n][h + 2] - base);
                total[n][h] = total[n][h] * shrink[h] + (s[n][h] + s[n][h + 2]);
            }
            if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) MOTE_UNROLL
            for (int m = 0; m < ROW_TILES; m++) MOTE_UNROLL
            for (int i = 0; i < 4; i++) acc[n][m][i] *= shrink[i & 1];
            MOTE_UNROLL
            for (int r = 0; r < 2; r++) {
                u32 whole = pack_half2(s[n][2 * r], s[n][2 * r + 1]);
                p.whole[n][r] = turn_matrix(whole);
                p.rest[n][r] = turn_matrix(
                    pack_half2(s[n][2 * r] - low_half(whole), s[n][2 * r + 1] - high_half(whole)));
            }
        }
        return p;
    }
};

MOTE_FN float factor_of(float max, float top)
{
    return power2(max - (top == never() ? 0 : top));
}

// Float i of a block's sums: head and column.
MOTE_FN void place_of(int i, int &head, int &column)
{
    int lane = i / 4 % 32, m = i / 128 % ROW_TILES;
    head = i / 128 / ROW_TILES * 8 + 2 * (lane & 3) + (i & 1);
    column = column_of(m, lane >> 2) + (i >> 1 & 1);
}

// Four sums from float i on to d.out.
MOTE_FN void put_sums(const Decode &d, int i, const float sum[4])
{
    MOTE_UNROLL
    for (int c = 0; c < 4; c++) {
        int head, column;
        place_of(i + c, head, column);
        d.out[head * OUT_STRIDE + column] = sum[c];
    }
}

// d.out / d.whole to the row of the output, and quantised.
MOTE_FN void put_row(const Decode &d, int row, int first_head, int n_head, float *out,
                     const mote_step_act &act)
{
    float *to = out + ((u64)row * N_HEAD + first_head) * HEAD_DIM;
#if HEAD_DIM % 32 == 0
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int BLOCKS = HEAD_DIM / 32, UNITS = (N_HEAD * HEAD_DIM + 127) / 128;
    constexpr int EACH = (HEADS * BLOCKS + WARPS - 1) / WARPS;
    float x[EACH]; // side by side: one after the other they wait for each other's reductions
    MOTE_UNROLL
    for (int j = 0; j < EACH; j++) {
        int i = warp + j * WARPS, head = i / BLOCKS;
        if (i < n_head * BLOCKS) x[j] = d.out[head * OUT_STRIDE + 32 * (i % BLOCKS) + lane] / d.whole[head];
    }
    MOTE_UNROLL
    for (int j = 0; j < EACH; j++) {
        int i = warp + j * WARPS;
        if (i >= n_head * BLOCKS) break;
        to[32 * i + lane] = x[j];
        if (act.q) quantise32(x[j], act, UNITS, row, first_head * BLOCKS + i);
    }
    if (act.q && first_head + n_head == N_HEAD)
        for (int i = N_HEAD * BLOCKS + warp; i < UNITS * 4; i += WARPS) quantise32(0, act, UNITS, row, i);
#else
    for (int i = threadIdx.x; i < n_head * HEAD_DIM; i += WARPS * 32)
        to[i] = d.out[i / HEAD_DIM * OUT_STRIDE + i % HEAD_DIM] / d.whole[i / HEAD_DIM];
#endif
}

// Queries of a block to d.q, scaled for powers of two: [HEADS][HEAD_DIM], zeros past the group.
MOTE_FN void put_queries(const Decode &d, int head, int column, float x, float y, float to_power)
{
    x *= to_power, y *= to_power;
    u32 whole = pack_half2(x, y), *to = (u32 *)(d.q + head * Q_STRIDE + column);
    to[0] = whole;
    to[HEADS * Q_STRIDE / 2] = pack_half2(x - low_half(whole), y - high_half(whole));
}

// Grid (share, kv head x BLOCKS_PER_KV, row). partial [row x grid.y][share][SUMS + 2 HEADS]; ticket [row x grid.y],
// zero before and after. FUSED: every sequence has one row, whose key nobody else reads in this step: queries are
// turned here, and the block that sees the row's own key stores it first. The same bits as rope_store before it.
template <int TYPE, bool FUSED>
MOTE_FN void attend(const Heads &heads, const Frequencies &frequencies, float scale, int window,
                    const int *position, const int *span_of_row, const mote_step_span *spans, float *out,
                    const mote_step_act &act, float *partial, u32 *ticket)
{
    extern __shared__ __align__(16) u8 shared[];
    Decode d = decode_memory(shared);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    int row = blockIdx.z, kv_head = blockIdx.y / BLOCKS_PER_KV, inner = blockIdx.y % BLOCKS_PER_KV * HEADS;
    int first_head = kv_head * GROUP + inner, n_head = GROUP - inner < HEADS ? GROUP - inner : HEADS;
    chain_launch();

    // The share: all blocks of a row find the same count.
    mote_step_span span = spans[span_of_row[row]]; // the step block is older than the kernels ahead
    int at = position[row], begin = first_key(at, window), n_key = at + 1 - begin;
    int share = (n_key + (int)gridDim.x - 1) / (int)gridDim.x;
    share = (share + WARPS * KEYS - 1) / (WARPS * KEYS) * (WARPS * KEYS);
    if (share < MIN_SHARE) share = MIN_SHARE;
    int n_share = (n_key + share - 1) / share, part = blockIdx.x;
    if (n_share == 1) { // one block's, and short: the blocks of other shares take some of its heads
        int parts = (int)gridDim.x < HEAD_PARTS ? (int)gridDim.x : HEAD_PARTS, each = (n_head + parts - 1) / parts;
        first_head += part * each, n_head -= part * each;
        if (n_head <= 0 || part >= parts) return;
        if (n_head > each) n_head = each;
        part = 0;
    }
    begin += part * share;
    if (begin > at) return;
    int end = at + 1 - begin < share ? at + 1 : begin + share, last = end - 1;

    const u8 *k = cache_head<TYPE>(span.k, span, heads.layer, kv_head),
             *v = cache_head<TYPE>(span.v, span, heads.layer, kv_head);
    Keys<TYPE> keys;
    AllValues<TYPE> values;
    int key = begin + warp * KEYS;
    // Keys of earlier steps need not wait for the kernels ahead.
    bool is_old = key < end && (key + KEYS < end ? key + KEYS : end) <= span.n_past;
    if (is_old) {
        keys.load(k, key, last, g, t);
        const u8 *ahead = v + (u64)(key + lane / 2 < last ? key + lane / 2 : last) * ROW_BYTES<TYPE>;
        for (int i = lane % 2 * 128; i < ROW_BYTES<TYPE>; i += 256) prefetch(ahead + i);
    }
    float to_power = scale * 1.4426950408889634f;
    const float *from = heads.q + ((u64)row * N_HEAD + first_head) * HEAD_DIM;
    if constexpr (FUSED) {
        Turn turn(frequencies, at, heads.magnitude);
        float *mine = d.sums + warp * HEAD_DIM;
        // The block that sees the row's own key stores it, with the last two warps: others may have less to do.
        Taken own, query;
        bool is_value = warp == WARPS - 1, is_own = end > at && warp >= WARPS - 2;
        chain_wait();
        if (is_own) load_kv(own, heads, row, kv_head, is_value);
        if (warp < n_head) query.load(from + warp * HEAD_DIM, heads.q_norm);
        if (is_own) store_kv<TYPE>(own, heads, turn, span, at, kv_head, is_value, mine);
        __syncwarp();
        for (int i = warp; i < HEADS; i += WARPS) {
            if (i < n_head) {
                if (i != warp) query.load(from + i * HEAD_DIM, heads.q_norm);
                query.put(heads.q_norm, heads.eps, mine);
                turn.apply(mine, heads.n_rot / 2);
            }
            for (int c = lane * 2; c < HEAD_DIM; c += 64)
                put_queries(d, i, c, i < n_head ? mine[c] : 0, i < n_head ? mine[c + 1] : 0, to_power);
            __syncwarp();
        }
        __syncthreads();
        if (key < end && !is_old) keys.load(k, key, last, g, t);
    } else {
        chain_wait();
        if (key < end && !is_old) keys.load(k, key, last, g, t);
        for (int i = threadIdx.x * 2; i < HEADS * HEAD_DIM; i += WARPS * 64) {
            float2 x = i < n_head * HEAD_DIM ? *(const float2 *)(from + i) : make_float2(0, 0);
            put_queries(d, i / HEAD_DIM, i % HEAD_DIM, x.x, x.y, to_power);
        }
        __syncthreads();
    }

    Softmax state;
    MOTE_UNROLL
    for (int n = 0; n < HEAD_TILES; n++) {
        MOTE_UNROLL
        for (int h = 0; h < 2; h++) state.max[n][h] = never(), state.total[n][h] = 0;
        MOTE_UNROLL
        for (int m = 0; m < ROW_TILES; m++) MOTE_UNROLL
        for (int i = 0; i < 4; i++) state.acc[n][m][i] = 0;
    }
#pragma unroll 1
    for (; key < end; key += WARPS * KEYS) {
        values.load(v, key, last, g, t);
        float s[HEAD_TILES][4];
        keys.multiply(d.q, g, t, s);
        if (key + WARPS * KEYS < end) keys.load(k, key + WARPS * KEYS, last, g, t);
        Weights p = state.weigh(s, end - key, g);
        values.multiply(p, g, state.acc);
    }

    // Warps to one: everything relative to the largest logit of all.
    MOTE_UNROLL
    for (int n = 0; n < HEAD_TILES; n++) MOTE_UNROLL
    for (int h = 0; h < 2; h++) {
        float total = state.total[n][h];
        MOTE_UNROLL
        for (int i = 4; i < 32; i *= 2) total += __shfl_xor_sync(~0u, total, i);
        if (g == 0) {
            d.max[warp * HEADS + 8 * n + 2 * t + h] = state.max[n][h];
            d.total[warp * HEADS + 8 * n + 2 * t + h] = total;
        }
    }
    __syncthreads();
    MOTE_UNROLL
    for (int n = 0; n < HEAD_TILES; n++) {
        float factor[2];
        MOTE_UNROLL
        for (int h = 0; h < 2; h++) {
            float top = never();
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, d.max[w * HEADS + 8 * n + 2 * t + h]);
            factor[h] = factor_of(state.max[n][h], top);
        }
        MOTE_UNROLL
        for (int m = 0; m < ROW_TILES; m++) {
            float *a = state.acc[n][m];
            *(float4 *)(d.sums + warp * SUMS + (n * ROW_TILES + m) * 128 + lane * 4) =
                make_float4(a[0] * factor[0], a[1] * factor[1], a[2] * factor[0], a[3] * factor[1]);
        }
    }
    u64 place = (u64)row * gridDim.y + blockIdx.y;
    float *shares = partial + place * gridDim.x * (SUMS + 2 * HEADS),
          *mine = shares + part * (SUMS + 2 * HEADS);
    if (threadIdx.x < HEADS) {
        float top = never(), total = 0;
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, d.max[w * HEADS + threadIdx.x]);
        for (int w = 0; w < WARPS; w++)
            total += d.total[w * HEADS + threadIdx.x] * factor_of(d.max[w * HEADS + threadIdx.x], top);
        d.whole[threadIdx.x] = total;
        if (n_share > 1) mine[SUMS + threadIdx.x] = top, mine[SUMS + HEADS + threadIdx.x] = total;
    }
    __syncthreads();
    for (int i = threadIdx.x * 4; i < SUMS; i += WARPS * 128) {
        float sum[4] = {0, 0, 0, 0};
        MOTE_UNROLL
        for (int w = 0; w < WARPS; w++) {
            float4 x = *(const float4 *)(d.sums + w * SUMS + i);
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        }
        if (n_share > 1) *(float4 *)(mine + i) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        else put_sums(d, i, sum);
    }
    if (n_share > 1) { // the last block of the row and head adds the shares up
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) *d.ticket = (int)atomicInc(ticket + place, n_share - 1); // back to 0 by itself
        __syncthreads();
        if (*d.ticket != n_share - 1) return;
        __threadfence();
        for (int head = warp; head < HEADS; head += WARPS) {
            float top = never(), total = 0;
            for (int i = lane; i < n_share; i += 32)
                top = fmaxf(top, load_shared4(shares + i * (SUMS + 2 * HEADS) + SUMS + head));
            top = warp_max(top);
            for (int i = lane; i < n_share; i += 32) {
                const float *stats = shares + i * (SUMS + 2 * HEADS) + SUMS + head;
                float factor = factor_of(load_shared4(stats), top);
                d.sums[i * HEADS + head] = factor;
                total += load_shared4(stats + HEADS) * factor;
            }
            total = warp_sum(total);
            if (lane == 0) d.whole[head] = total;
        }
        __syncthreads();
        for (int i = threadIdx.x * 4; i < SUMS; i += WARPS * 128) {
            float sum[4] = {0, 0, 0, 0};
            int head, column;
            place_of(i, head, column);
#pragma unroll 8
            for (int s = 0; s < n_share; s++) {
                float4 x = load_shared16(shares + s * (SUMS + 2 * HEADS) + i);
                float2 factor = make_float2(d.sums[s * HEADS + head], d.sums[s * HEADS + head + 1]);
                sum[0] += x.x * factor.x, sum[1] += x.y * factor.y, sum[2] += x.z * factor.x,
                    sum[3] += x.w * factor.y;
            }
            put_sums(d, i, sum);
        }
    }
    __syncthreads();
    put_row(d, row, first_head, n_head, out, act);
}

#define ATTEND(NAME, TYPE, FUSED)                                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) NAME(                                      \
        const __grid_constant__ Heads heads, const __grid_constant__ Frequencies frequencies, float scale, \
        int window, const int *position, const int *span_of_row, const mote_step_span *spans, float *out,  \
        const __grid_constant__ mote_step_act act, float *partial, u32 *ticket)                            \
    {                                                                                                      \
        attend<TYPE, FUSED>(heads, frequencies, scale, window, position, span_of_row, spans, out, act,     \
                            partial, ticket);                                                              \
    }
ATTEND(attend_f32, KV_F32, false)
ATTEND(attend_f16, KV_F16, false)
ATTEND(rope_attend_f32, KV_F32, true)
ATTEND(rope_attend_f16, KV_F16, true)
#if HEAD_DIM % 32 == 0
ATTEND(attend_q8_0, KV_Q8_0, false)
ATTEND(rope_attend_q8_0, KV_Q8_0, true)
#endif
