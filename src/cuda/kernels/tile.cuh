// tile.cuh: a warp's view of weights in the tile layout (cuda/layout.h): load a unit (16 rows x 128 columns), get its
// codes as operands of mma.m16n8k32.s8 and its scales as floats.
//
// Owns: the layout as the device reads it (pack.c writes it). Does not own: products, activations.
// One idea: a lane's words of a unit are a few whole loads, and all that stands between them and the tensor core is
// the cheapest known way from packed bits to bytes, chosen at compile time. The same text compiles on the host
// (tests/test_tile.cc holds it to mote_decode).
//
// Tile<CODE, ZERO, TABLE, SUB, ITEM, MIN, EXP, FACTOR, K>
//   UNITS                 ceil(K / 128)
//   BYTES                 of a record; equals mote_tile_bytes
//   SUBS                  1 (SUB >= 32) or 2 (SUB == 16): scale items per 32 columns
//   SPAN                  sub-blocks of a unit, 1, 2 or 4, aligned, that surely share their scale
//   GROUP                 columns of a scale
//   ZERO                  integer to take off every code (applied by the caller: v - ZERO * sum x)
//   HAS_MIN, HAS_FACTOR
//   CODE_MIN, CODE_MAX    what codes() may give
//   LUT_WORDS             u32 words of shared memory that codes() reads (0: none)
//   Raw                   a lane's registers for one unit
//   fill<LIFTED>(lut, thread, n_thread)     block-wide, before a __syncthreads; lut lies on 16 bytes
//   load(raw, record, unit, lane)           only loads
//   codes<LIFTED>(raw, lut, lane, a[4][4])  a[s][0]: row g, columns 32 s + 8 t .. + 3 as four s8; a[s][1]: row g + 8;
//                                           a[s][2]: row g, columns + 4 .. + 7; a[s][3]: row g + 8 likewise
//                                           LIFTED: 128 more where CODE_MIN < 0, so that none is negative (fill too)
//   scales(raw, lane, scale[2][SUBS], min[2][SUBS])
//       of sub-block t (lane % 4) of the unit, rows g and g + 8; with SUBS 2 its first and second 16 columns.
//       Exponent and factor included; min is to be ADDED times the sum of x (SUPER: it is -dmin * item2).
//
// What codes() costs on sm_90a, instructions a weight (of them on the ALU, the other half-rate pipe (IMAD), shared
// loads), counted in SASS between 2 and 6 units of one kernel; the last column: weights a clock and SM that memory
// feeds at 4.2 TB/s, to be held against 128 / instructions and 64 / ALU. scales() takes 0.1 to 0.3 (SUB 16: to 0.6).
//   C1       0.48  0.44 0.04        120       LUT4 of 16  1.50  1.13 0.37        32 (IQ4_NL)
//   C2       0.44  0.44 -            60       LUT4 of 8   0.63  0.38 0.25        32 (IQ2_XS, IQ1_S: as they lie)
//   C3       0.99  0.85 0.15         39       T5          1.28  0.64 0.64        80
//   C4       0.37  0.38 -            30       C4 ODD      0.50  0.38 0.13        32
//   C5       0.92  0.72 0.20         25       IQ2XXS      1.27  0.79 0.36 0.13   65
//   C6       0.88  0.69 0.19         21       IQ3XXS      1.89  1.16 0.48 0.25   44
//   C8       0.25 (moves)            16       E2M1        1.38  1.25 0.13        32 (MXFP4)
#ifndef MOTE_TILE_CUH
#define MOTE_TILE_CUH

#include "common.cuh"
#include "iq_table.cuh"
#include "layout.h"

// Copies of a code book in shared memory, entry by entry: a lane reads its own (lane % 16), so that 32 random entries
// cost two passes and not four.
constexpr int LUT_COPIES = 16;

constexpr int tile_pad(int bytes, int to)
{
    return (bytes + to - 1) / to * to;
}
constexpr float tile_pow2(int e)
{
    return e < 0 ? tile_pow2(e + 1) * 0.5f : e > 0 ? tile_pow2(e - 1) * 2 : 1;
}

// Bits of a code that is an integer; 0: looked up.
constexpr int tile_code_bits(int code)
{
    return code == MOTE_CODE_C1   ? 1
           : code == MOTE_CODE_C2 ? 2
           : code == MOTE_CODE_C3 ? 3
           : code == MOTE_CODE_C4 ? 4
           : code == MOTE_CODE_C5 ? 5
           : code == MOTE_CODE_C6 ? 6
           : code == MOTE_CODE_C8 ? 8
                                  : 0;
}
// Words of the first and the second code plane, a lane and unit.
constexpr int tile_words0(int code)
{
    return code == MOTE_CODE_C1 || code == MOTE_CODE_T5 ? 2
           : code == MOTE_CODE_C2 || code == MOTE_CODE_C3 || code == MOTE_CODE_IQ2XXS ||
                   code == MOTE_CODE_IQ3XXS
               ? 4
           : code == MOTE_CODE_C8 ? 16
                                  : 8;
}
constexpr int tile_words1(int code)
{
    return code == MOTE_CODE_C3 || code == MOTE_CODE_C5 || code == MOTE_CODE_IQ3XXS ? 2
           : code == MOTE_CODE_C6                                                   ? 4
           : code == MOTE_CODE_T5                                                   ? 1
                                                                                    : 0;
}
constexpr int tile_item_bytes(int item)
{
    return item == MOTE_ITEM_F32                             ? 4
           : item == MOTE_ITEM_F16 || item == MOTE_ITEM_BF16 ? 2
           : item == MOTE_ITEM_INSIDE                        ? 0
                                                             : 1;
}

// Value of LUT4's nibble. 16-valued tables are read as A[n] ^ B[n ^ 8] with PRMT giving the byte's sign where bit 3 is
// set, so n and n ^ 8 must have the same sign: nibbles are rotated (sign in bit 0), see layout.h.
constexpr int tile_value(int table, int n)
{
    constexpr int iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    constexpr int iq2[8] = {8, 25, 43, 0, -8, -25, -43, 0};
    constexpr int iq1[8] = {-9, -7, -1, 1, 7, 9, 0, 0};
    return table == MOTE_TABLE_IQ4NL ? iq4nl[n >> 1 | (n & 1) << 3]
           : table == MOTE_TABLE_IQ2 ? iq2[n & 7]
                                     : iq1[n & 7];
}
// Entries first .. first + 3 as a word: of the table itself (8-valued), of A (first < 8) or B (16-valued).
constexpr u32 tile_table(int table, int first)
{
    bool wide = table == MOTE_TABLE_IQ4NL;
    u32 word = 0;
    for (int i = 0; i < 4; i++) {
        int n = first + i, v = tile_value(table, n);
        // A = T ^ sign(B), B = T ^ sign(A); with B never negative: A = T, B = T ^ sign(T).
        if (wide && n >= 8 && v < 0) v = ~v;
        word |= (u32)(v & 255) << 8 * i;
    }
    return word;
}

// Twice e2m1 of magnitudes first .. first + 3, or their negatives.
constexpr u32 tile_e2m1(int first, bool negative)
{
    constexpr int twice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    u32 word = 0;
    for (int i = 0; i < 4; i++) word |= (u32)((negative ? -twice[first + i] : twice[first + i]) & 255) << 8 * i;
    return word;
}

// Bits from, from + 1, .. of every byte (BITS of them; they may lie in the byte above by `from`) to bit `to`.
template <int BITS> MOTE_FN u32 tile_field(u32 w, int from, int to)
{
    u32 mask = (((1u << BITS) - 1) << to) * 0x01010101u;
    return (from > to ? w >> (from - to) : w << (to - from)) & mask;
}

// 2^(23 + exponent): an integer in its low bits is one times 2^exponent.
constexpr u32 tile_magic(int exponent)
{
    return (u32)(127 + 23 + exponent) << 23;
}
// Byte i of w, an integer 0..255, times 2^EXP as a float; `bias` is taken off the integer.
template <int EXP> MOTE_FN float tile_byte_float(u32 w, int i, float bias)
{
    return bits_float(prmt(w, tile_magic(EXP), 0x7640 + i)) - (8388608.0f + bias) * tile_pow2(EXP);
}

template <int CODE, int FORMAT_ZERO, int TABLE, int SUB, int ITEM, int MIN, int EXP, int FACTOR, int K>
struct Tile {
    static constexpr int BITS = tile_code_bits(CODE);
    static constexpr float POWER = tile_pow2(EXP);
    static constexpr int ZERO = FORMAT_ZERO;
    static constexpr bool HAS_MIN = MIN, HAS_FACTOR = FACTOR;
    static constexpr int CODE_MIN = CODE == MOTE_CODE_C8                                  ? -128
                                    : CODE == MOTE_CODE_IQ2XXS || TABLE == MOTE_TABLE_IQ2 ? -43
                                    : CODE == MOTE_CODE_IQ3XXS                            ? -62
                                    : TABLE == MOTE_TABLE_IQ1                             ? -9
                                    : CODE == MOTE_CODE_E2M1                              ? -12
                                    : TABLE == MOTE_TABLE_IQ4NL                           ? -127
                                                                                          : 0;
    static constexpr int CODE_MAX = CODE == MOTE_CODE_C8                           ? 127
                                    : TABLE == MOTE_TABLE_IQ4NL                    ? 113
                                    : TABLE == MOTE_TABLE_ODD                      ? 30
                                    : CODE == MOTE_CODE_C1 || CODE == MOTE_CODE_T5 ? 2
                                    : BITS > 0                                     ? (1 << BITS) - 1
                                                                                   : -CODE_MIN;

    static_assert(!MIN || EXP == 0, "the exponent is of scales");
    // Whole codes are fields of words, FIELD bits each: of a lane's eight columns of sub-block s, row g (row 0) or g + 8 (1),
    // columns j, j + 2 (j & 2 == 0) are at bits field_at(s, j >> 2) of bytes j & 1, (j & 1) + 2 of code[field_word(s, row)].
    static constexpr int FIELD = CODE == MOTE_CODE_C4 && TABLE == MOTE_TABLE_NONE ? 4 : CODE == MOTE_CODE_C2 ? 2 : 0;
    static constexpr int field_word(int s, int row) { return FIELD == 4 ? 4 * row + s : 2 * row + (s >> 1); }
    static constexpr int field_at(int s, int half) { return FIELD * half + (FIELD == 2 ? 4 * (s & 1) : 0); }

    static constexpr int UNITS = (K + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS;
    static constexpr int SUBS = SUB == 16 ? 2 : 1;
    static constexpr int SPAN = SUB > 0 && SUB % 128 == 0 ? 4 : SUB > 0 && SUB % 64 == 0 ? 2 : 1;
    static constexpr int GROUP = SUB; // columns of a scale
    static constexpr bool SUPER = ITEM >= MOTE_ITEM_S8;
    static constexpr int WORDS0 = tile_words0(CODE), WORDS1 = tile_words1(CODE);
    static constexpr int EACH = WORDS0 < 4 ? WORDS0 : 4; // words of a piece: more than four lie in pieces of four
    static constexpr bool LAST_BYTE = CODE == MOTE_CODE_T5;
    static constexpr int ITEMS = (ITEM == MOTE_ITEM_NIBBLES ? 1 : 1 + MIN) * SUBS * 2; // of a lane
    static constexpr int LANE_SCALE = ITEMS * tile_item_bytes(ITEM);                   // bytes
    static constexpr int N_SCALE = SUB <= 32 ? UNITS * 4 : (UNITS * MOTE_UNIT_COLS + SUB - 1) / SUB;
    static constexpr int LANE_SUPER = SUPER ? 4 * (1 + MIN) : 0;
    // Where the planes of a record start.
    static constexpr int AT1 = UNITS * 128 * WORDS0, AT_BYTE = AT1 + UNITS * 128 * WORDS1;
    static constexpr int AT_SCALE = AT_BYTE + (LAST_BYTE ? UNITS * 32 : 0);
    static constexpr int AT_SUPER = AT_SCALE + tile_pad(N_SCALE * 8 * LANE_SCALE, 16);
    static constexpr int AT_FACTOR = AT_SUPER + (K + 255) / 256 * 8 * LANE_SUPER;
    static constexpr u64 BYTES = tile_pad(AT_FACTOR + (FACTOR ? 16 : 0), 128);

    static constexpr bool TWO = CODE == MOTE_CODE_IQ2XXS; // the book of IQ2_XXS; else of IQ3_XXS
    static constexpr int BOOK = 256 * LUT_COPIES;
    static constexpr int LUT_WORDS = TWO || CODE == MOTE_CODE_IQ3XXS ? BOOK + 4 : 0; // whole pieces of 16 bytes

    struct Raw {
        u32 code[WORDS0 + WORDS1 + LAST_BYTE];
        u32 scale[LANE_SCALE > 4 ? LANE_SCALE / 4 : 1];
        u32 super[1 + MIN];
        float factor;
    };

    // The book; a thread writes an entry's copies in another order than its neighbours: no two to the same bank. Behind
    // it a constant that codes() wants in a register: one that the compiler knows it moves there before every use.
    template <bool LIFTED = false> static MOTE_FN void fill(u32 *lut, int thread, int n_thread)
    {
        if constexpr (LUT_WORDS > 0) {
            constexpr int QUADS = LUT_COPIES / 4; // of an entry; eight threads that store at once take different banks
            uint4 *quad = (uint4 *)lut;
            MOTE_ROLLED
            for (int entry = thread; entry < 256; entry += n_thread) {
                u32 v = TWO ? mote_iq2xxs_select[entry] : mote_iq3xxs_grid[entry] ^ lift(LIFTED);
                uint4 four = {v, v, v, v};
                MOTE_UNROLL
                for (int i = 0; i < QUADS; i++) quad[entry * QUADS + ((i + (entry >> 1)) & (QUADS - 1))] = four;
            }
            if (thread == 0) lut[BOOK] = TWO ? 0x002B1908u ^ lift(LIFTED) : 0x32103210u;
        }
    }

    // N bytes of a lane's own, to whole words.
    template <int N> static MOTE_FN void load_code(u32 *to, const u8 *from)
    {
        if constexpr (N == 16) {
            uint4 v = ldg16(from);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        } else if constexpr (N == 8) {
            uint2 v = ldg8(from);
            to[0] = v.x, to[1] = v.y;
        } else if constexpr (N == 4) to[0] = ldg4(from);
    }
    template <int N> static MOTE_FN void load_scale(u32 *to, const u8 *from)
    {
        if constexpr (N == 16) {
            uint4 v = keep16(from);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        } else if constexpr (N == 8) {
            uint2 v = keep8(from);
            to[0] = v.x, to[1] = v.y;
        } else if constexpr (N == 4) to[0] = keep4(from);
        else if constexpr (N == 2) to[0] = keep2(from);
    }

    static MOTE_FN void load(Raw &r, const u8 *record, int unit, int lane)
    {
        int g = lane >> 2, t = lane & 3;
        int item = SUB <= 32 ? unit * 4 + t : (unit * MOTE_UNIT_COLS + t * 32) / SUB;
        load_at(r, record + unit * WORDS0 * 128 + lane * (4 * EACH), record + AT1 + (unit * 32 + lane) * (4 * WORDS1),
                record + AT_BYTE + unit * 32 + lane, record + AT_SCALE + (item * 8 + g) * LANE_SCALE,
                record + AT_SUPER + ((unit >> 1) * 8 + g) * LANE_SUPER, record + AT_FACTOR);
    }
    static MOTE_FN void load_at(Raw &r, const u8 *code, const u8 *more, const u8 *byte, const u8 *scale, const u8 *super,
                                const u8 *factor)
    {
        MOTE_UNROLL
        for (int i = 0; i < WORDS0; i += EACH) load_code<4 * EACH>(r.code + i, code + i * 128);
        load_code<4 * WORDS1>(r.code + WORDS0, more);
        if constexpr (LAST_BYTE) r.code[WORDS0 + WORDS1] = ldg1(byte);
        load_scale<LANE_SCALE>(r.scale, scale);
        load_scale<LANE_SUPER>(r.super, super);
        if constexpr (FACTOR) r.factor = bits_float(keep4(factor));
    }

    // Loads of units first + 0, + STEP, + 2 STEP, ..: where a lane's words of `first` lie in a record. The compiler takes
    // these offsets as they are, so that a load costs one addition to the record's address and not all that leads there.
    template <int STEP> struct Walk {
        // Planes with an item for several units advance evenly when a step is whole items.
        static constexpr bool IS_EVEN = (SUB <= 32 || STEP * MOTE_UNIT_COLS % (SUB > 32 ? SUB : 32) == 0) && (!SUPER || STEP % 2 == 0);
        static constexpr int SCALE_STEP = STEP * MOTE_UNIT_COLS / (SUB > 32 ? SUB : 32) * 8 * LANE_SCALE;
        u32 code, more, byte, scale, super;

        MOTE_FN Walk(int first, int lane)
        {
            int g = lane >> 2, t = lane & 3;
            int item = SUB <= 32 ? first * 4 + t : (first * MOTE_UNIT_COLS + t * 32) / SUB;
            code = opaque(first * WORDS0 * 128 + lane * (4 * EACH));
            more = WORDS1 ? opaque(AT1 + (first * 32 + lane) * (4 * WORDS1)) : 0;
            byte = LAST_BYTE ? opaque(AT_BYTE + first * 32 + lane) : 0;
            scale = LANE_SCALE ? opaque(AT_SCALE + (item * 8 + g) * LANE_SCALE) : 0;
            super = SUPER ? opaque(AT_SUPER + ((first >> 1) * 8 + g) * LANE_SUPER) : 0;
        }
        MOTE_FN void load(Raw &r, const u8 *record, int i) const
        {
            load_at(r, record + code + i * (STEP * WORDS0 * 128), record + more + i * (STEP * 128 * WORDS1),
                    record + byte + i * (STEP * 32), record + scale + i * SCALE_STEP,
                    record + super + i * (STEP / 2 * 8 * LANE_SUPER), record + AT_FACTOR);
        }
    };

    // ---- codes ----

    static constexpr u32 lift(bool lifted) { return lifted ? 0x80808080u : 0; }

    template <bool LIFTED = false> static MOTE_FN void codes(const Raw &r, const u32 *lut, int lane, u32 a[4][4])
    {
        (void)lut, (void)lane;
        if constexpr (CODE == MOTE_CODE_T5) ternary(r, a);
        else if constexpr (CODE == MOTE_CODE_LUT4) looked_up<LIFTED>(r, a);
        else if constexpr (CODE == MOTE_CODE_E2M1) signed_magnitudes<LIFTED>(r, a);
        else if constexpr (LUT_WORDS > 0) books<LIFTED>(r, lut, lane, a);
        else {
            MOTE_UNROLL
            for (int i = 0; i < 16; i++) {
                a[i >> 2][i & 3] = integer(r.code, i >> 2, i >> 1 & 1, i & 1);
                if constexpr (LIFTED && CODE_MIN < 0) a[i >> 2][i & 3] ^= lift(true);
            }
        }
    }

    // Four integer codes: sub-block s, half h (columns 4 h .. + 3 of the eight), row g + 8 * row.
    static MOTE_FN u32 integer(const u32 *w, int s, int h, int row)
    {
        int pair = 2 * row + (s >> 1), at2 = 2 * (2 * (s & 1) + h), at1 = 2 * s + h;
        if constexpr (CODE == MOTE_CODE_C1) return tile_field<1>(w[row], at1, 1); // 2 bit
        else if constexpr (CODE == MOTE_CODE_C2) return tile_field<2>(w[pair], at2, 0);
        else if constexpr (CODE == MOTE_CODE_C3)
            return tile_field<2>(w[pair], at2, 0) | tile_field<1>(w[4 + row], at1, 2);
        else if constexpr (CODE == MOTE_CODE_C8) return w[8 * row + 2 * s + h];
        else {
            u32 low = tile_field<4>(w[4 * row + s], 4 * h, TABLE == MOTE_TABLE_ODD); // ODD: 2 nibble
            if constexpr (CODE == MOTE_CODE_C5) return low | tile_field<1>(w[8 + row], at1, 4);
            else if constexpr (CODE == MOTE_CODE_C6) return low | tile_field<2>(w[8 + pair], at2, 4);
            else return low;
        }
    }

    static constexpr u32 T0 = tile_table(TABLE, 0), T1 = tile_table(TABLE, 4);
    static constexpr u32 T2 = tile_table(TABLE, 8), T3 = tile_table(TABLE, 12);

    template <bool LIFTED> static MOTE_FN void looked_up(const Raw &r, u32 a[4][4])
    {
        MOTE_UNROLL
        for (int i = 0; i < 8; i++) {
            int s = i & 3, row = i >> 2;
            u32 w = r.code[4 * row + s];
            if constexpr (TABLE == MOTE_TABLE_IQ4NL) {
                u32 other = w ^ 0x88888888u;
                a[s][row] = prmt(T0, T1, w) ^ prmt(T2, T3, other) ^ lift(LIFTED);
                a[s][2 + row] = prmt(T0, T1, w >> 16) ^ prmt(T2, T3, other >> 16) ^ lift(LIFTED);
            } else {
                a[s][row] = prmt(T0 ^ lift(LIFTED), T1 ^ lift(LIFTED), w);
                a[s][2 + row] = prmt(T0 ^ lift(LIFTED), T1 ^ lift(LIFTED), w >> 16);
            }
        }
    }

    // PRMT spreads a byte's first bit over it: the mask that chooses between the magnitude and its negative.
    template <bool LIFTED> static MOTE_FN u32 signed_four(u32 magnitudes, u32 signs)
    {
        constexpr u32 RAISED = lift(LIFTED), P0 = tile_e2m1(0, false) ^ RAISED, P1 = tile_e2m1(4, false) ^ RAISED,
                      N0 = tile_e2m1(0, true) ^ RAISED, N1 = tile_e2m1(4, true) ^ RAISED;
        return merge(prmt(N0, N1, magnitudes), prmt(P0, P1, magnitudes), prmt(signs, 0, 0xBA98));
    }
    template <bool LIFTED> static MOTE_FN void signed_magnitudes(const Raw &r, u32 a[4][4])
    {
        MOTE_UNROLL
        for (int i = 0; i < 8; i++) {
            int s = i & 3, row = i >> 2;
            u32 w = r.code[4 * row + s], magnitudes = w & 0x77777777u;
            a[s][row] = signed_four<LIFTED>(magnitudes, w);
            a[s][2 + row] = signed_four<LIFTED>(magnitudes >> 16, w << 4);
        }
    }

    // Digits 0..4 of four bytes: whole[n] = floor(3^n byte / 256) of each, and digit n is whole[n + 1] - 3 whole[n].
    static MOTE_FN void digits(u32 w, u32 out[5])
    {
        u32 even = w & 0x00FF00FFu, odd = w >> 8 & 0x00FF00FFu, whole = 0;
        MOTE_UNROLL
        for (int n = 0; n < 5; n++) { // 3^5 * 255 < 2^16: lanes of 16 bits never meet
            even *= 3, odd *= 3;
            u32 next = prmt(even, odd, 0x7351);
            out[n] = next - 3 * whole;
            whole = next;
        }
    }

    static MOTE_FN void ternary(const Raw &r, u32 a[4][4])
    {
        u32 first[5], pairs[5], second[5]; // of row g, of both rows, of row g + 8
        digits(r.code[0], first);
        digits(r.code[1], pairs);
        digits(r.code[2], second);
        // The last byte: its digits 0..3 in the bytes of a word; the product takes 3 times the byte below off each.
        u32 last = prmt(r.code[3] * 0x001B0003u, r.code[3] * 0x00510009u, 0x7351) * (1u - 768u);
        MOTE_UNROLL
        for (int q = 0; q < 5; q++) {
            a[q >> 1][2 * (q & 1)] = first[q];
            a[q >> 1][2 * (q & 1) + 1] = second[q];
        }
        MOTE_UNROLL
        for (int row = 0; row < 2; row++) {
            u32 select = row ? 0x7632 : 0x5410;
            a[2][2 + row] = prmt(pairs[0], pairs[1], select);
            a[3][row] = prmt(pairs[2], pairs[3], select);
            a[3][2 + row] = prmt(pairs[4], last, select);
        }
    }

    // The sign words of a lane's two rows with the eighth signs restored, bit 4 j + ((s + 2) & 3).
    static MOTE_FN void signs(u32 w0, u32 w1, u32 out[2])
    {
        u32 x0 = (w0 & 0x0FFFFFFFu) ^ w0 << 16, x1 = (w1 & 0x0FFFFFFFu) ^ w1 << 16;
        u32 x = prmt(x0, x1, 0x7632); // the parity of both rows, folded further together
        x ^= x << 8;
        x ^= x << 4;
        out[0] = merge(w0, x << 16, 0x0FFFFFFFu);
        out[1] = merge(w1, x, 0x0FFFFFFFu);
    }

    template <bool LIFTED> static MOTE_FN void books(const Raw &r, const u32 *lut, int lane, u32 a[4][4])
    {
        shared_words own = words_at(lut + lane % LUT_COPIES); // entries of a lane's own copy
        u32 constant = lut[BOOK], both[2];
        signs(r.code[TWO ? 1 : 4], r.code[TWO ? 3 : 5], both);
        MOTE_UNROLL
        for (int row = 0; row < 2; row++) {
            u32 sign = both[row];
            MOTE_UNROLL
            for (int s = 0; s < 4; s++) {
                u32 bits = (s == 0   ? sign
                            : s == 1 ? sign >> 1
                            : s == 2 ? sign << 2
                                     : sign << 1) &
                           0x44444444u;
                if constexpr (TWO) { // 8, 25, 43 in the constant, and their negatives
                    u32 select = word_of_byte<4 * LUT_COPIES>(own, r.code[2 * row], s) ^ bits;
                    a[s][row] = prmt(constant, 0x00D5E7F8u ^ lift(LIFTED), select);
                    a[s][2 + row] = prmt(constant, 0x00D5E7F8u ^ lift(LIFTED), select >> 16);
                } else { // byte i of the magnitudes or of their negatives (lifted or not): none is 0, so no byte borrows
                    u32 select = bits | constant, w = r.code[2 * row + (s >> 1)];
                    u32 low = word_of_byte<4 * LUT_COPIES>(own, w, 2 * (s & 1));
                    u32 high = word_of_byte<4 * LUT_COPIES>(own, w, 2 * (s & 1) + 1);
                    a[s][row] = prmt(low, 0x01010100u - low, select);
                    a[s][2 + row] = prmt(high, 0x01010100u - high, select >> 16);
                }
            }
        }
    }

    // ---- scales ----

    static MOTE_FN float item(const u32 *w, int i)
    {
        if constexpr (ITEM == MOTE_ITEM_F32) return bits_float(w[i]);
        else if constexpr (ITEM == MOTE_ITEM_F16)
            return half_to_float(i & 1 ? w[i >> 1] >> 16 : w[i >> 1] & 0xFFFF);
        else if constexpr (ITEM == MOTE_ITEM_BF16)
            return bits_float(i & 1 ? w[i >> 1] & 0xFFFF0000u : w[i >> 1] << 16);
        else {
            u32 word = w[i >> 2];
            int byte = i & 3;
            if constexpr (ITEM == MOTE_ITEM_U8) return tile_byte_float<EXP>(word, byte, 0);
            else if constexpr (ITEM == MOTE_ITEM_S8) return tile_byte_float<EXP>(word ^ 0x80808080u, byte, 128);
            else if constexpr (ITEM == MOTE_ITEM_E8M0) { // 0 is the subnormal 2^-127
                u32 bits = (byte < 3 ? word >> 8 * byte & 255 : word >> 24) << 23;
                return bits_float(bits < 0x00400000u ? 0x00400000u : bits);
            } else { // e4m3 is a half with the top of its exponent cut off: 2^8 too small
                u32 bits = byte ? word >> (8 * byte - 8) : word << 8; // the item in bits 8..15
                return half_to_float((bits & 0x8000) | (bits & 0x7F00) >> 1) * 256;
            }
        }
    }

    static MOTE_FN void scales(const Raw &r, int lane, float scale[2][SUBS], float min[2][SUBS])
    {
        (void)lane;
        MOTE_UNROLL
        for (int row = 0; row < 2; row++) {
            float d = 1, dmin = 1;
            if constexpr (SUPER) {
                u32 w = r.super[MIN ? row : 0];
                d = half_to_float(!MIN && row ? w >> 16 : w & 0xFFFF);
                if constexpr (MIN) dmin = half_to_float(w >> 16);
                if constexpr (FACTOR) d *= r.factor, dmin *= r.factor;
            }
            MOTE_UNROLL
            for (int sub = 0; sub < SUBS; sub++) {
                int i = row * SUBS + sub;
                if constexpr (ITEM == MOTE_ITEM_INSIDE) { // 2 nibble + 1
                    u32 w = r.code[CODE == MOTE_CODE_IQ2XXS ? 2 * row + 1 : 4 + row];
                    scale[row][sub] = d * (bits_float((w >> 27 & 30) | 1 | tile_magic(EXP)) - 8388608.0f * POWER);
                } else if constexpr (ITEM == MOTE_ITEM_NIBBLES) {
                    scale[row][sub] = d * tile_byte_float<EXP>(r.scale[0] & 0x0F0F0F0Fu, i, 0);
                    min[row][sub] = -dmin * tile_byte_float<EXP>(r.scale[0] >> 4 & 0x0F0F0F0Fu, i, 0);
                } else if constexpr (SUPER) {
                    scale[row][sub] = d * item(r.scale, i * (1 + MIN));
                    if constexpr (MIN) min[row][sub] = -dmin * item(r.scale, i * 2 + 1);
                } else {
                    float v = item(r.scale, i * (1 + MIN)), m = MIN ? item(r.scale, i * 2 + 1) : 0;
                    if constexpr (EXP != 0) v *= POWER;
                    if constexpr (FACTOR) v *= r.factor, m *= r.factor;
                    scale[row][sub] = v;
                    if constexpr (MIN) min[row][sub] = m;
                }
                if constexpr (!MIN) min[row][sub] = 0;
            }
        }
    }
};

#endif
