// prefill_rows.cuh: what the loops of prefill kernels have in common (halves: prefill_loop.cuh; 8-bit integers:
// prefill_int8_loop.cuh): a block's warps, and a warp's weights on their way from device memory to registers.
#ifndef PREFILL_ROWS_CUH
#define PREFILL_ROWS_CUH
#include "tile.cuh"

constexpr int warps(int tiles) { return 16 / tiles; } // of a block of 256 rows, each with so many tiles
constexpr int threads(int tiles) { return warps(tiles) * 32; }
constexpr int KP = (COLS + 127) / 128 * 128; // columns of a row of activations
constexpr int smaller(int a, int b) { return a < b ? a : b; }

extern __shared__ __align__(1024) u8 shared[];

template <class A, class B> constexpr bool SAME = false;
template <class A> constexpr bool SAME<A, A> = true;

// Weights of one matrix on their way: a warp's tile.
template <class T> struct Rows {
    typename T::Raw raw;
    const u8 *record;
    const u32 *lut;

    MOTE_FN void start(const u8 *at, const u32 *table, int lane)
    {
        record = at;
        lut = table;
        T::load(raw, record, 0, lane);
        if (lane == 0) {
            to_l2(record + T::AT_BYTE, (int)T::BYTES - T::AT_BYTE); // all scales, and the codes of four units
            codes_to_l2(0, smaller(4, T::UNITS));
        }
    }
    // Codes of units first .. first + n from memory on their way to L2, some units before a warp asks for them.
    MOTE_FN void codes_to_l2(int first, int n) const
    {
        to_l2(record + first * T::WORDS0 * 128, n * T::WORDS0 * 128);
        if constexpr (T::WORDS1 > 0) to_l2(record + T::AT1 + first * T::WORDS1 * 128, n * T::WORDS1 * 128);
    }
};

#endif
