// prefill_int8_loop.cuh: 128 rows of weights times up to N tokens in 8-bit integers, all columns.
//
// A warp owns 16 rows (a tile). Tokens go round a ring of shared memory in pairs of units (128 columns); weights go from
// device memory to registers one unit ahead and become bytes there, which are operands as they are. Sums of a group of
// columns are integers; at its end they become floats, times both scales. A block is over in microseconds, of which finding its
// work and its first operands is half: two blocks share a multiprocessor, and one's beginning and end lie under the other's
// products.
//
// Constants besides COLS: X_GROUP, columns of a scale of the activations, 128 or 256: at most those of a weight's.
//
// Shared memory (all dynamic): [STAGES] stages, groups of the tokens, their rows, and what the kernel puts behind
// (int8_shared_bytes of cuda_prefill.c).
#ifndef PREFILL_INT8_LOOP_CUH
#define PREFILL_INT8_LOOP_CUH
#include "prefill_int8.cuh"
#include "prefill_rows.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(PREFILL_MMA) || defined(EMULATE_WGMMA)
#include "prefill_int8_wgmma.cuh"
#define PREFILL_INT8_BLOCKS 2
#else
#include "prefill_int8_mma.cuh"
#define PREFILL_INT8_BLOCKS 1 // that would spill
#endif

constexpr int STAGES = 6;                      // three pairs of units
constexpr int WARPS = 8, THREADS = WARPS * 32; // of a block
constexpr int RESIDENT = PREFILL_INT8_BLOCKS;  // blocks of a multiprocessor
constexpr int N_GROUP = int8_groups(COLS, X_GROUP), UNITS = KP / 128;

template <int N> MOTE_FN float2 *shared_groups() { return (float2 *)(shared + STAGES * N * 128); } // [N_GROUP][N]
template <int N> MOTE_FN u32 *shared_from() { return (u32 *)(shared_groups<N>() + N_GROUP * N); }

template <int N> MOTE_FN u8 *shared_end() { return (u8 *)(shared_from<N>() + N); }

// A block's tokens on their way to shared memory.
template <int N> struct Ring {
    const i8 *q;

    // Tokens are rows row_of[first ..] (or first ..); past the count the last one again.
    MOTE_FN void start(const Int8Rows &x, const int *row_of, int first, int count)
    {
        q = x.q + threadIdx.x % 8 * 16;
        for (int j = threadIdx.x; j < N; j += THREADS) {
            int at = first + min(j, count - 1);
            shared_from<N>()[j] = (u32)(row_of ? row_of[at] : at);
        }
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x; i < N * N_GROUP; i += THREADS)
            shared_groups<N>()[i] = x.group[(size_t)shared_from<N>()[i % N] * N_GROUP + i / N];
    }
    // Two units, to stages `slot` and the next: a thread's chunk of every 32nd row.
    MOTE_FN void fill(int unit, int slot) const
    {
        u32 row = threadIdx.x / 8, to = shared_address(shared) + slot * (N * 128) + int8_place(row, threadIdx.x % 8);
        MOTE_UNROLL
        for (int i = 0; i < N / 32; i++) {
            const i8 *from = q + (u64)shared_from<N>()[row + 32 * i] * KP + unit * 128;
            if (unit < UNITS) stage_copy(to + i * 32 * 128, from);
            if (unit + 1 < UNITS) stage_copy(to + (N + i * 32) * 128, from + 128);
        }
    }
};

// acc += scale of the weight's row x scale of the token x (sum - zero x sum of the token's q), for a group's sums.
template <int N, int ZERO>
MOTE_FN void add_group(float (&acc)[N / 2], const int (&sum)[N / 2], const float scale[2], int group, int lane)
{
    const float4 *tokens = (const float4 *)(shared_groups<N>() + group * N) + lane % 4; // 2 t, 2 t + 1 of eight
    MOTE_UNROLL
    for (int b = 0; b < N / 8; b++) {
        float4 pair = tokens[4 * b];
        MOTE_UNROLL
        for (int j = 0; j < 4; j++) {
            float x = j & 1 ? pair.z : pair.x, all = j & 1 ? pair.w : pair.y, v = (float)sum[4 * b + j];
            v = ZERO ? __fmaf_rn(v, x, -ZERO * all) : v * x;
            acc[4 * b + j] = __fmaf_rn(scale[j >> 1], v, acc[4 * b + j]);
        }
    }
}

template <class T, int N> MOTE_FN void multiply_units(const Ring<N> &ring, const u8 *record, float (&acc)[N / 2])
{
    static_assert(T::GROUP % X_GROUP == 0 && !T::HAS_MIN && T::SUBS == 1, "not a kind for integers");
    int lane = threadIdx.x % 32, sum[N / 2];
    Rows<T> rows;
    rows.start(record, nullptr, lane); // kinds of small integers have no table
    MOTE_UNROLL
    for (int j = 0; j < N / 2; j++) acc[j] = 0;
    int slot = 0;
    MOTE_ROLLED
    for (int pair = 0; pair < UNITS; pair += 2) {
        if (pair > 0 && pair + 2 < UNITS && elected()) rows.codes_to_l2(pair + 2, UNITS % 2 ? min(2, UNITS - pair - 2) : 2);
        copy_wait<1>(); // this pair is there, the next one on its way
        stage_written();
        __syncthreads(); // for all, and no warp reads the pair before any more
        ring.fill(pair + 4, slot ? slot - 2 : STAGES - 2);
        copy_commit();
        u32 stage = shared_address(shared) + slot * (N * 128);
        slot = slot == STAGES - 2 ? 0 : slot + 2;
        MOTE_UNROLL
        for (int u = 0; u < 2; u++) {
            int unit = pair + u, is_end = UNITS % 2 && unit == UNITS - 1;
            u32 code[4][4];
            float scale[2][1], least[2][1];
            T::codes(rows.raw, nullptr, lane, code);
            T::scales(rows.raw, lane, scale, least);
            T::load(rows.raw, record, min(unit + 1, UNITS - 1), lane);
            float own[2] = {scale[0][0], scale[1][0]};
            products<N>(sum, code, stage + u * (N * 128), X_GROUP == 128 || u == 0, lane);
            if (X_GROUP == 128 || u == 1 || is_end) add_group<N, T::ZERO>(acc, sum, own, unit / (X_GROUP / 128), lane);
            if (is_end) break;
        }
    }
}

// acc = the 16 rows of `record` times the block's tokens; acc[4 b + j]: token 8 b + 2 t + (j & 1), row g + 8 (j >> 1) of the
// tile. Warps of the first half have a T0, the others a T1. All threads of the block.
template <class T0, class T1, int N> MOTE_FN void multiply_rows(const Ring<N> &ring, const u8 *record, float (&acc)[N / 2])
{
    MOTE_UNROLL
    for (int u = 0; u < 4; u += 2) {
        ring.fill(u, u);
        copy_commit();
    }
    if constexpr (SAME<T0, T1>) multiply_units<T0, N>(ring, record, acc);
    else if (threadIdx.x < THREADS / 2) multiply_units<T0, N>(ring, record, acc);
    else multiply_units<T1, N>(ring, record, acc);
}

#endif
