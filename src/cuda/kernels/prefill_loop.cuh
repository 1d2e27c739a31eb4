// prefill_loop.cuh: 256 rows of weights times up to N tokens, all columns: what every prefill kernel is made of.
//
// A warp owns 16 rows (a tile) of TILES matrices (or of one, twice). Tokens go round a ring of shared memory, a unit (128
// columns) a stage, copied asynchronously two units ahead; weights go from device memory to registers one unit ahead, become
// half precision there and are multiplied from there. So a weight is unpacked once per N tokens and never written anywhere.
//
// Unpacking is instructions (300 a tile and unit), and needs warps to hide their latency: sixteen on a multiprocessor, which
// are two blocks of 8 warps x 2 tiles x 64 tokens that fill each other's gaps, or one of 16 warps x 1 tile x 128 tokens.
//
// Shared memory (all dynamic): [STAGES] stages, the tokens' scales and starts, tables of the kinds
// (shared_bytes of cuda_prefill.c).
#ifndef PREFILL_LOOP_CUH
#define PREFILL_LOOP_CUH
#include "prefill_rows.cuh"
// Products of 128 tokens are for wgmma alone: with mma.m16n8k16 there are no registers left for unpacking.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(PREFILL_MMA) || defined(EMULATE_WGMMA)
#define PREFILL_WGMMA 1
#include "prefill_wgmma.cuh"
#else
#define PREFILL_WGMMA 0
#include "prefill_mma.cuh"
#endif

constexpr int STAGES = 4, AHEAD = STAGES - 2;

template <int N> MOTE_FN float *shared_scale() { return (float *)(shared + STAGES * N * 256); }
template <int N> MOTE_FN u32 *shared_from() { return (u32 *)(shared_scale<N>() + N); } // in chunks of 16 bytes
template <int N> MOTE_FN u32 *shared_lut() { return shared_from<N>() + N; }

// Blocks of two tiles a warp that registers allow on a multiprocessor, unspilled.
template <class T> constexpr int BLOCKS = PREFILL_WGMMA && T::WORDS0 + T::WORDS1 < 12 && !(T::LUT_WORDS && T::WORDS1) ? 2 : 1;

// A block's tokens on their way to shared memory. Thread: chunk tid % 16 of rows tid / 16, + AT_ONCE, .. Where rows start is
// kept in shared memory, not in registers.
template <int N, int TILES> struct Ring {
    static constexpr int THREADS = threads(TILES), AT_ONCE = THREADS / 16;
    const u8 *x;

    // Tokens are rows row_of[first ..] (or first ..) of x; past the count the last one again.
    MOTE_FN void start(const u16 *rows, const int *row_of, int first, int count)
    {
        x = (const u8 *)rows + threadIdx.x % 16 * 16;
        for (int j = threadIdx.x; j < N; j += THREADS) {
            int at = first + min(j, count - 1);
            shared_from<N>()[j] = (u32)(row_of ? row_of[at] : at) * (KP / 8);
        }
        __syncthreads();
    }
    MOTE_FN void fill(int unit) const
    {
        u32 r = threadIdx.x / 16, to = shared_address(shared) + unit % STAGES * (N * 256) + stage_place<N>(r, threadIdx.x % 16);
        MOTE_UNROLL
        for (int i = 0; i < N / AT_ONCE; i++)
            stage_copy(to + i * AT_ONCE * 128, x + (u64)(shared_from<N>()[r + AT_ONCE * i] + unit * 16) * 16);
    }
};

template <class T> struct HalfRows : Rows<T> {
    using Rows<T>::raw;
    using Rows<T>::record;
    using Rows<T>::lut;

    // acc += this unit's columns; the next unit's weights are asked for on the way, after `before_load`: the fence that it
    // holds waits for loads too, and here few are under way.
    template <int N, class Before>
    MOTE_FN void multiply(float (&acc)[N / 2], u32 (&a)[UNDER_WAY + 1][2][4], u32 stage, int unit, int lane, Before before_load)
    {
        u32 code[4][4], scale_pair[T::SUBS], min_pair[T::SUBS];
        float scale[2][T::SUBS], least[2][T::SUBS];
        int here = lane; // addresses are not worth registers through the loop
        asm volatile("" : "+r"(here));
        Operand<T, X_BF16>::codes(raw, lut, here, code);
        T::scales(raw, lane, scale, least);
        MOTE_UNROLL
        for (int b = 0; b < T::SUBS; b++) {
            scale_pair[b] = Operand<T, X_BF16>::pair(scale[0][b], scale[1][b]);
            min_pair[b] = T::HAS_MIN ? Operand<T, X_BF16>::pair(least[0][b], least[1][b]) : 0;
        }
        MOTE_UNROLL
        for (int s = 0; s < 4; s++) {
            u32 m = T::HAS_MIN ? of_sub_block(min_pair, s, lane) : 0;
            products_wait<UNDER_WAY>();
            Operand<T, X_BF16>::convert(code[s], s, of_sub_block(scale_pair, s, lane), m, a[s % (UNDER_WAY + 1)]);
            products_begin();
            products<N, X_BF16>(acc, a[s % (UNDER_WAY + 1)], stage, s, lane);
            products_end();
            if (s == 2) { // most registers of this unit are free
                before_load();
                T::load(raw, record, min(unit + 1, T::UNITS - 1), here);
            }
        }
    }

    // The lane with t = s holds sub-block s; the first 16 columns of 32 are those of lanes 0 and 1 of a row.
    static MOTE_FN u32 of_sub_block(const u32 pair[T::SUBS], int s, int lane)
    {
        u32 v = __shfl_sync(~0u, pair[0], (lane & 28) | s);
        if constexpr (T::SUBS == 2) {
            u32 second = __shfl_sync(~0u, pair[1], (lane & 28) | s);
            if (lane & 2) v = second;
        }
        return v;
    }
};

// All units of a warp's tiles. Warps of other kinds take other copies of this: their steps meet at the same barriers.
template <class T0, class T1, int TILES, int N>
MOTE_FN void multiply_units(const Ring<N, TILES> &ring, const u8 *const record[TILES], const u32 *lut0, const u32 *lut1,
                            float (&acc)[TILES][N / 2])
{
    int lane = threadIdx.x % 32;
    HalfRows<T0> first;
    HalfRows<T1> second;
    first.start(record[0], lut0, lane);
    if constexpr (TILES == 2) second.start(record[1], lut1, lane);
    MOTE_UNROLL
    for (int i = 0; i < TILES; i++)
        MOTE_UNROLL
        for (int j = 0; j < N / 2; j++) acc[i][j] = 0;
    u32 a[UNDER_WAY + 1][2][4];
    auto next_tokens = [] { // this thread's of the next unit are there, for tensor cores too
        copy_wait<AHEAD - 1>();
        stage_written();
    };
    next_tokens();
    MOTE_ROLLED
    for (int unit = 0; unit < T0::UNITS; unit++) {
        if (unit % 2 == 0 && unit > 0 && unit + 2 < T0::UNITS && elected()) {
            int n = T0::UNITS % 2 == 0 ? 2 : min(2, T0::UNITS - unit - 2);
            first.codes_to_l2(unit + 2, n);
            if constexpr (TILES == 2) second.codes_to_l2(unit + 2, n);
        }
        __syncthreads(); // this unit's tokens are there, and no warp reads those of two units ago any more
        if (unit + AHEAD < T0::UNITS) ring.fill(unit + AHEAD);
        copy_commit();
        u32 stage = shared_address(shared) + unit % STAGES * (N * 256);
        first.template multiply<N>(acc[0], a, stage, unit, lane, next_tokens);
        if constexpr (TILES == 2) second.template multiply<N>(acc[1], a, stage, unit, lane, [] {});
    }
    products_wait<0>();
}

// acc[i] = the 16 rows of record[i] times the block's tokens; acc[.][4 b + j]: token 8 b + 2 t + (j & 1), row g + 8 (j >> 1)
// of the tile. Kinds: TILES 2: record[0] is a T0, record[1] a T1; TILES 1: T0 for the first half of the warps, T1 for
// the others. All threads of the block.
template <class T0, class T1, int TILES, int N>
MOTE_FN void multiply_rows(const Ring<N, TILES> &ring, const u8 *const record[TILES], float (&acc)[TILES][N / 2])
{
    constexpr int THREADS = threads(TILES);
    constexpr bool ONE_KIND = SAME<T0, T1>;
    u32 *lut0 = shared_lut<N>(), *lut1 = ONE_KIND ? lut0 : lut0 + T0::LUT_WORDS;
    MOTE_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        if (u < T0::UNITS) ring.fill(u);
        copy_commit();
    }
    if constexpr (T0::LUT_WORDS > 0) T0::template fill<true>(lut0, threadIdx.x, THREADS);
    if constexpr (!ONE_KIND && T1::LUT_WORDS > 0) T1::template fill<true>(lut1, threadIdx.x, THREADS);
    if constexpr (TILES == 2 || ONE_KIND) multiply_units<T0, T1, TILES, N>(ring, record, lut0, lut1, acc);
    else if (threadIdx.x < THREADS / 2) multiply_units<T0, T0, 1, N>(ring, record, lut0, lut0, acc);
    else multiply_units<T1, T1, 1, N>(ring, record, lut1, lut1, acc);
}

#endif
