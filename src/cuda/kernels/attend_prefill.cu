// attend_prefill.cu: attention of many rows of a sequence, after rope_store of attend.cu has filled the caches.
//
// Owns: steps in which some sequence has more than a few rows. Does not own: single rows (attend.cu).
// One idea: a tile's rows are query rows times the heads of a group, all of which read the same keys; so a tile is
// full with few query rows, and long prompts and short chunks take the same path. Keys and values pass through shared
// memory as halves, asynchronously: the next keys arrive while values are multiplied and the other way round.
// Constants: those of attend.cuh; SHARED, the bytes of shared memory that a block may have.
#include "attend.cuh"

constexpr int PREFILL_WARPS = 4;
constexpr int BANDS =
    HEAD_DIM <= 128 ? 2 : 1; // 16-row bands of a warp: keys from shared memory serve all of them
constexpr int ROWS = PREFILL_WARPS * BANDS * 16; // of a tile
constexpr int QUERIES = ROWS / GROUP;            // query rows of a tile; cuda_attend.c counts tiles with it
constexpr int STRIDE = HEAD_DIM + 8; // halves: 16 bytes more, so that eight rows lie in different banks
constexpr int STEPS = HEAD_DIM / 16;

// Shared memory: queries [ROWS][STRIDE], then a ring of keys and one of values [slots][KEYS][STRIDE]; types that are
// not halves have one slot and a copy of the cache's bytes beside it. cuda_attend.c asks for as much.
MOTE_FN constexpr int prefill_bytes(int type, int keys, int slots)
{
    return (ROWS + 2 * slots * keys) * STRIDE * 2 + (type == KV_F16 ? 0 : 2 * (keys * row_bytes(type) + 16));
}
template <int TYPE> struct Shape {
    static constexpr bool DIRECT = TYPE == KV_F16;
    static constexpr int KEYS = prefill_bytes(TYPE, 64, 1) <= SHARED   ? 64
                                : prefill_bytes(TYPE, 32, 1) <= SHARED ? 32
                                                                       : 16; // of a tile
    static constexpr int SLOTS = DIRECT && 2 * prefill_bytes(TYPE, KEYS, 2) + 2048 <= SHARED ? 2 : 1;
    static constexpr int RAW_BYTES = KEYS * ROW_BYTES<TYPE> + 16;
};

// The thread, asked for anew: what is counted from it is not worth a register through the loop.
MOTE_FN unsigned thread_now()
{
    unsigned i;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
    return i;
}

// The rows of a tile that a thread has in its accumulators: of band b, h 0: g, 1: g + 8.
MOTE_FN int own_row(int b, int h)
{
    int thread = (int)thread_now();
    return (thread / 32 * BANDS + b) * 16 + thread % 32 / 4 + 8 * h;
}

// Row r of a tile is head r % GROUP of its query row r / GROUP, which is row `row` of the step: its floats in q and out.
MOTE_FN u64 place(int row, int kv_head, int r)
{
    return ((u64)row * N_HEAD + kv_head * GROUP + r % GROUP) * HEAD_DIM;
}

// Which span and which tile of it a block has; false: none.
MOTE_FN bool find_tile(const mote_step_span *spans, int n_span, int tile, mote_step_span &span, int &first)
{
    int lane = threadIdx.x % 32;
    for (int base = 0; base < n_span; base += 32) {
        int n = base + lane < n_span ? (spans[base + lane].n_row + QUERIES - 1) / QUERIES : 0, sum = n;
        MOTE_UNROLL
        for (int i = 1; i < 32; i *= 2) {
            int below = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += below;
        }
        u32 after = __ballot_sync(~0u, sum > tile);
        if (after) {
            int owner = __ffs(after) - 1;
            span = spans[base + owner];
            first = (tile - __shfl_sync(~0u, sum - n, owner)) * QUERIES;
            return true;
        }
        tile -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

// A tile's keys or values: begun by `start`, halves in `slot` after `finish`. Rows past n_key are zeros.
template <int TYPE> struct Loader {
    using S = Shape<TYPE>;
    const u8 *head; // position 0 of the cache
    u8 *raw;        // not DIRECT: [RAW_BYTES]

    MOTE_FN void start(u16 *slot, int key, int n_key) const
    {
        const u8 *from = head + (u64)key * ROW_BYTES<TYPE>;
        if constexpr (S::DIRECT) {
            constexpr int CHUNKS = HEAD_DIM / 8;
            for (unsigned i = thread_now(); i < S::KEYS * CHUNKS; i += PREFILL_WARPS * 32)
                copy16(slot + i / CHUNKS * STRIDE + i % CHUNKS * 8, from + i * 16,
                       (int)(i / CHUNKS) < n_key ? 16 : 0);
        } else { // rows of a head are one run of bytes
            int skip = (int)((u64)from & 15),
                n = skip + (n_key < S::KEYS ? n_key : S::KEYS) * ROW_BYTES<TYPE>;
#pragma unroll 1
            for (int i = (int)thread_now() * 16; i < n; i += PREFILL_WARPS * 512)
                copy16(raw + i, from - skip + i, n - i < 16 ? n - i : 16);
        }
        copy_commit();
    }

    // After the copy and a barrier; ends with a barrier when there is something to do.
    MOTE_FN void finish(u16 *slot, int key, int n_key) const
    {
        if constexpr (!S::DIRECT) {
            const u8 *from = raw + (int)((u64)(head + (u64)key * ROW_BYTES<TYPE>)&15);
            constexpr int CHUNKS = HEAD_DIM / 8;
#pragma unroll 1
            for (unsigned i = thread_now(); i < S::KEYS * CHUNKS; i += PREFILL_WARPS * 32) {
                int row = (int)(i / CHUNKS), chunk = (int)(i % CHUNKS);
                uint4 word = make_uint4(0, 0, 0, 0);
                if (row < n_key) {
                    Piece<TYPE, 8> piece;
                    piece.load(from + row * ROW_BYTES<TYPE>, chunk * 8);
                    word = make_uint4(piece.pair(0, 0), piece.pair(1, 0), piece.pair(2, 0), piece.pair(3, 0));
                }
                *(uint4 *)(slot + row * STRIDE + chunk * 8) = word;
            }
            __syncthreads();
        }
    }
};

// Grid (tiles of all spans, kv head): at least as many x as there are tiles.
template <int TYPE>
MOTE_FN void attend_prefill(const float *q, float scale, int window, int layer, const mote_step_span *spans,
                            int n_span, float *out)
{
    using S = Shape<TYPE>;
    constexpr int KEYS = S::KEYS, COLUMNS = KEYS / 8;
    extern __shared__ __align__(16) u8 shared[];
    u16 *queries = (u16 *)shared, *k_ring = queries + ROWS * STRIDE,
        *v_ring = k_ring + S::SLOTS * KEYS * STRIDE;
    u8 *raw = (u8 *)(v_ring + S::SLOTS * KEYS * STRIDE);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane & 3, kv_head = blockIdx.y;
    chain_launch();
    mote_step_span span;
    int first; // query row of the span
    // The last tiles of a sequence see the most keys: they go first.
    if (!find_tile(spans, n_span, (int)(gridDim.x - 1 - blockIdx.x), span, first)) return;
    int n_query = span.n_row - first < QUERIES ? span.n_row - first : QUERIES;
    int at = span.n_past + first, top = span.row + first; // of query row 0: position, row of the step
    int begin = first_key(at, window), end = at + n_query;
    chain_wait();

    Loader<TYPE> keys = {cache_head<TYPE>(span.k, span, layer, kv_head), raw};
    Loader<TYPE> values = {cache_head<TYPE>(span.v, span, layer, kv_head), raw + S::RAW_BYTES};
    keys.start(k_ring, begin, end - begin);
    if constexpr (S::SLOTS == 2 || !S::DIRECT) values.start(v_ring, begin, end - begin);

    float to_power = scale * 1.4426950408889634f;
    for (int i = threadIdx.x; i < ROWS * (HEAD_DIM / 8); i += PREFILL_WARPS * 32) {
        int row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8), query = row / GROUP;
        uint4 word = make_uint4(0, 0, 0, 0);
        if (query < n_query) {
            const float *from = q + place(top + query, kv_head, row) + chunk * 8;
            float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
            word = make_uint4(
                pack_half2(a.x * to_power, a.y * to_power), pack_half2(a.z * to_power, a.w * to_power),
                pack_half2(b.x * to_power, b.y * to_power), pack_half2(b.z * to_power, b.w * to_power));
        }
        *(uint4 *)(queries + row * STRIDE + chunk * 8) = word;
    }

    float acc[BANDS][STEPS * 2][4], max[BANDS][2], total[BANDS][2]; // rows g and g + 8 of a band
    MOTE_UNROLL
    for (int b = 0; b < BANDS; b++) {
        MOTE_UNROLL
        for (int h = 0; h < 2; h++) max[b][h] = never(), total[b][h] = 0;
        MOTE_UNROLL
        for (int n = 0; n < STEPS * 2; n++) MOTE_UNROLL
        for (int i = 0; i < 4; i++) acc[b][n][i] = 0;
    }
    // Lanes' rows of the matrices that they load: see fragment.cuh.
    u32 q_address = shared_address(queries + (warp * BANDS * 16 + (lane & 15)) * STRIDE + lane / 16 * 8);
    u32 k_address = shared_address(k_ring + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8);
    u32 v_address = shared_address(v_ring + (lane & 15) * STRIDE + lane / 16 * 8);
    constexpr u32 SLOT = KEYS * STRIDE * 2, BAND = 16 * STRIDE * 2;

    u32 slot = 0;
#pragma unroll 1
    for (int key = begin; key < end; key += KEYS) {
        u32 next = S::SLOTS == 2 ? slot ^ 1 : 0;
        bool more = key + KEYS < end;
        // Keys are there, and everybody is done with the keys and values of the tile before.
        copy_wait<S::SLOTS == 2 || !S::DIRECT ? 1 : 0>();
        __syncthreads();
        keys.finish(k_ring, key, end - key);
        if constexpr (S::SLOTS == 2 || !S::DIRECT) {
            if (more) keys.start(k_ring + next * KEYS * STRIDE, key + KEYS, end - key - KEYS);
            else copy_commit(); // an empty group keeps the count
        } else {
            values.start(v_ring, key, end - key);
        }

        float s[BANDS][COLUMNS][4];
        MOTE_UNROLL
        for (int b = 0; b < BANDS; b++) MOTE_UNROLL
        for (int n = 0; n < COLUMNS; n++) MOTE_UNROLL
        for (int i = 0; i < 4; i++) s[b][n][i] = 0;
#pragma unroll 2
        for (int i = 0; i < STEPS; i++) {
            u32 a[BANDS][4];
            MOTE_UNROLL
            for (int b = 0; b < BANDS; b++) load_matrices(a[b], q_address + b * BAND + i * 32);
            MOTE_UNROLL
            for (int n = 0; n < COLUMNS; n += 2) {
                u32 k[4];
                load_matrices(k, k_address + slot * SLOT + n * 8 * STRIDE * 2 + i * 32);
                MOTE_UNROLL
                for (int b = 0; b < BANDS; b++) {
                    mma_half(s[b][n], a[b], k[0], k[1]);
                    mma_half(s[b][n + 1], a[b], k[2], k[3]);
                }
            }
        }

        if (key + KEYS > at + 1 || (window > 0 && key <= end - 1 - window)) // some row does not see some key
            MOTE_UNROLL
        for (int b = 0; b < BANDS; b++) MOTE_UNROLL
        for (int h = 0; h < 2; h++) {
            int position = at + own_row(b, h) / GROUP;
            MOTE_UNROLL
            for (int n = 0; n < COLUMNS; n++) MOTE_UNROLL
            for (int i = 0; i < 2; i++) {
                int k = key + 8 * n + 2 * t + i;
                if (k > position || (window > 0 && k <= position - window)) s[b][n][2 * h + i] = never();
            }
        }
        u32 p[BANDS][COLUMNS][2]; // weights of rows g and g + 8, a pair a word
        MOTE_UNROLL
        for (int b = 0; b < BANDS; b++) MOTE_UNROLL
        for (int h = 0; h < 2; h++) {
            float top_logit = max[b][h];
            MOTE_UNROLL
            for (int n = 0; n < COLUMNS; n++)
                top_logit = fmaxf(top_logit, fmaxf(s[b][n][2 * h], s[b][n][2 * h + 1]));
            top_logit = fmaxf(top_logit, __shfl_xor_sync(~0u, top_logit, 1));
            top_logit = fmaxf(top_logit, __shfl_xor_sync(~0u, top_logit, 2));
            float base = top_logit == never() ? 0 : top_logit, shrink = power2(max[b][h] - base), sum = 0;
            max[b][h] = top_logit;
            MOTE_UNROLL
            for (int n = 0; n < COLUMNS; n++) {
                float x = power2(s[b][n][2 * h] - base), y = power2(s[b][n][2 * h + 1] - base);
                sum += x + y;
                p[b][n][h] = pack_half2(x, y);
            }
            total[b][h] = total[b][h] * shrink + sum;
            if (__any_sync(~0u, shrink != 1)) { // rare once the largest logits have been seen
                MOTE_UNROLL
                for (int n = 0; n < STEPS * 2; n++)
                    acc[b][n][2 * h] *= shrink, acc[b][n][2 * h + 1] *= shrink;
            }
        }

        // Values are there, and everybody is done with the keys.
        copy_wait<S::SLOTS == 2 || !S::DIRECT ? 1 : 0>();
        __syncthreads();
        values.finish(v_ring, key, end - key);
        if constexpr (S::SLOTS == 2 || !S::DIRECT) {
            if (more) values.start(v_ring + next * KEYS * STRIDE, key + KEYS, end - key - KEYS);
            else copy_commit();
        } else if (more) {
            keys.start(k_ring, key + KEYS, end - key - KEYS);
        }
        MOTE_UNROLL
        for (int i = 0; i < KEYS / 16; i++) {
            MOTE_UNROLL
            for (int n = 0; n < STEPS * 2; n += 2) {
                u32 v[4];
                load_matrices_turned(v, v_address + slot * SLOT + i * BAND + n * 16);
                MOTE_UNROLL
                for (int b = 0; b < BANDS; b++) {
                    const u32 a[4] = {p[b][2 * i][0], p[b][2 * i][1], p[b][2 * i + 1][0], p[b][2 * i + 1][1]};
                    mma_half(acc[b][n], a, v[0], v[1]);
                    mma_half(acc[b][n + 1], a, v[2], v[3]);
                }
            }
        }
        slot = next;
    }

    MOTE_UNROLL
    for (int b = 0; b < BANDS; b++) MOTE_UNROLL
    for (int h = 0; h < 2; h++) {
        float sum = total[b][h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int row = own_row(b, h), query = row / GROUP;
        if (query < end - at) {
            float *to = out + place(top + query, blockIdx.y, row) + 2 * t, inverse = 1 / sum;
            MOTE_UNROLL
            for (int n = 0; n < STEPS * 2; n++)
                *(float2 *)(to + 8 * n) =
                    make_float2(acc[b][n][2 * h] * inverse, acc[b][n][2 * h + 1] * inverse);
        }
    }
}

#define ATTEND_PREFILL(NAME, TYPE)                                                                        \
    extern "C" __global__ void __launch_bounds__(PREFILL_WARPS * 32, 2)                                   \
        NAME(const float *q, float scale, int window, int layer, const mote_step_span *spans, int n_span, \
             float *out)                                                                                  \
    {                                                                                                     \
        attend_prefill<TYPE>(q, scale, window, layer, spans, n_span, out);                                \
    }
ATTEND_PREFILL(attend_prefill_f32, KV_F32)
ATTEND_PREFILL(attend_prefill_f16, KV_F16)
#if HEAD_DIM % 32 == 0
ATTEND_PREFILL(attend_prefill_q8_0, KV_Q8_0)
#endif
