/* layout.h: how a matrix of weights lies in device memory: the tile layout. Read by the host (pack.c), by the
 * kernels (kernels/tile.cuh) and by tests: only what C11 and CUDA C++ share.
 *
 * One idea: a warp multiplies 16 rows x 128 columns (a unit) as four m16n8k32 integer products, and every lane
 * finds exactly its own operands in whole 4, 8 or 16-byte words, coalesced. A lane is g = lane / 4 (rows g and
 * g + 8 of the tile) and t = lane % 4; of each of the unit's four 32-column sub-blocks s it holds the eight
 * columns 32 s + 8 t .. + 7.
 *
 * A tile record is the codes, scales and super-scales of 16 rows, all columns:
 *   code planes   [n_unit] x per lane, see the list; more than 16 bytes lie as [n_unit][piece of 16 bytes][lane]
 *   scale plane   [n_scale] [8 g] [2: row g, row g + 8] [n_sub] [scale, min]  items; n_scale is 4 n_unit (sub 16, with
 *                 n_sub 2, and 32) or the padded columns / sub, rounded up
 *   super plane   [n_col / 256] [8 g] [2 rows] [d, dmin]  f16 (formats with super-blocks; dmin with min only)
 *   factor        f32 (formats with a tensor scale)
 * each plane padded to 16 bytes, the record to 128. A matrix is ceil(n_row / 16) records; rows and columns
 * that are not there (columns to a multiple of 128) have scale and code that give weight 0.
 *
 * Weight = scale * (code - zero) + min, code an integer of at most 8 bits:
 *   scale = item               (item as a number)       * factor   GROUP
 *   scale = d * item,  min = -dmin * item2                         SUPER
 *   scale = d * (2 nibble + 1) * 2^exponent (IQ: the nibble lies in the code plane)
 *
 * Code planes, per lane and unit (s sub-block, j weight 0..7 of the lane's eight, R: row g then row g + 8):
 *   C1      R u32: bit 8 (j & 3) + 2 s + (j >> 2). Alone the code is 2 bit.
 *   C2      R 2 u32, word s >> 1: bits 8 (j & 3) + 2 (2 (s & 1) + (j >> 2)) .. + 1
 *   C4      R 4 u32, word s: byte j & 3, low nibble j < 4, high nibble j >= 4
 *   LUT4    R 4 u32, word s: nibble j; the code is table[nibble]
 *   E2M1    R 4 u32, word s: the magnitude's three bits of j from bit 4 j on, the sign of j in bit 7 of byte j (j < 4), in bit 3
 *           of byte j - 4; twice the value is the code
 *   C8      R 8 u32, word 2 s + (j >> 2): byte j & 3, signed (AFFINE8: code - 128)
 *   C3 = C2 + 4 C1, C5 = C4 + 16 C1, C6 = C4 + 16 C2: two planes
 *   T5      13 bytes of base-3 digits, digit n of byte b = ((b * 3^n & 255) * 3) >> 8:
 *           plane of u32[2], plane of u32, plane of one byte. Words w0, w1, w2 as bytes b0..b11: row g owns
 *           b0..b3 and b4, b5, row g + 8 owns b6, b7 and b8..b11. Lane's quad q (0..7: s = q >> 1, half q & 1) of
 *           a row, element i: q < 5: digit q of that row's whole word, byte i; q = 5: digits 0, 0, 1, 1 of the pair
 *           bytes (first, second, first, second); q = 6: digits 2, 2, 3, 3 likewise; q = 7: digit 4 of the pair, then
 *           digits of the 13th byte: row g 0, 1, row g + 8 2, 3.
 *   IQ2XXS  u32[4]: R { four grid indexes (byte s), signs }: index s gives eight magnitudes.
 *   IQ3XXS  u32[4]: R { indexes of s = 0, 1 (two bytes each: j < 4, j >= 4), of s = 2, 3 }; u32[2]: R signs.
 *   signs   a u32: the sign of (s, j) is bit 4 j + ((s + 2) & 3), j < 7; the eighth is the parity of the others;
 *           bits 28..31 hold the scale nibble of the sub-block t (the lane's own) of that row.
 */
#ifndef MOTE_CUDA_LAYOUT_H
#define MOTE_CUDA_LAYOUT_H

enum { MOTE_TILE_ROWS = 16, MOTE_UNIT_COLS = 128 };

enum mote_tile_code {
    MOTE_CODE_NONE, /* not in tiles: plain rows (see mote_tile_plain) */
    MOTE_CODE_C1,
    MOTE_CODE_C2,
    MOTE_CODE_C3,
    MOTE_CODE_C4,
    MOTE_CODE_C5,
    MOTE_CODE_C6,
    MOTE_CODE_C8,
    MOTE_CODE_LUT4,
    MOTE_CODE_E2M1,
    MOTE_CODE_T5,
    MOTE_CODE_IQ2XXS,
    MOTE_CODE_IQ3XXS
};
/* Tables of LUT4 codes; what a nibble means:
 *   IQ4NL  the format's nibble v, rotated: (2 v & 15) | v >> 3
 *   IQ2 (IQ2_XS, IQ2_S)   8, 25, 43 and, 4 above, their negatives
 *   IQ1 (IQ1_S, IQ1_M)    -9, -7, -1, 1, 7, 9: 8 g - 1 and 8 g + 1 of g = -1, 0, 1
 * ODD: C4, the code is 2 nibble (IQ3_S). */
enum mote_tile_table { MOTE_TABLE_NONE, MOTE_TABLE_IQ4NL, MOTE_TABLE_ODD, MOTE_TABLE_IQ2, MOTE_TABLE_IQ1 };
enum mote_tile_item {
    MOTE_ITEM_F16,
    MOTE_ITEM_BF16,
    MOTE_ITEM_F32,
    MOTE_ITEM_E8M0,
    MOTE_ITEM_UE4M3,
    MOTE_ITEM_S8, /* the super kinds from here on */
    MOTE_ITEM_U8,
    MOTE_ITEM_NIBBLES, /* low nibble scale, high nibble min, one byte for both */
    MOTE_ITEM_INSIDE   /* in the code plane (IQ) */
};

/* X(format, code, zero, table, sub, item, min, exponent): the kind of every format that lies in tiles. sub: columns of
 * a scale item, 16 or 32, or 0: the format's own block (GROUP kinds; AFFINE: the tensor's group, item its scale
 * type). min: 1 when a second item follows the first. The scale is multiplied by 2^exponent. */
#define MOTE_TILE_KINDS(X)                         \
    X(Q4_0, C4, 8, NONE, 0, F16, 0, 0)             \
    X(Q4_1, C4, 0, NONE, 0, F16, 1, 0)             \
    X(Q5_0, C5, 16, NONE, 0, F16, 0, 0)            \
    X(Q5_1, C5, 0, NONE, 0, F16, 1, 0)             \
    X(Q8_0, C8, 0, NONE, 0, F16, 0, 0)             \
    X(Q2_K, C2, 0, NONE, 16, NIBBLES, 1, 0)        \
    X(Q3_K, C3, 4, NONE, 16, S8, 0, 0)             \
    X(Q4_K, C4, 0, NONE, 32, U8, 1, 0)             \
    X(Q5_K, C5, 0, NONE, 32, U8, 1, 0)             \
    X(Q6_K, C6, 32, NONE, 16, S8, 0, 0)            \
    X(IQ1_S, LUT4, 0, IQ1, 32, U8, 0, -3)          \
    X(IQ1_M, LUT4, 0, IQ1, 16, U8, 0, -3)          \
    X(IQ2_XXS, IQ2XXS, 0, NONE, 32, INSIDE, 0, -3) \
    X(IQ2_XS, LUT4, 0, IQ2, 16, U8, 0, -3)         \
    X(IQ2_S, LUT4, 0, IQ2, 16, U8, 0, -3)          \
    X(IQ3_XXS, IQ3XXS, 0, NONE, 32, INSIDE, 0, -2) \
    X(IQ3_S, C4, 15, ODD, 32, U8, 0, 0)            \
    X(IQ4_NL, LUT4, 0, IQ4NL, 0, F16, 0, 0)        \
    X(IQ4_XS, LUT4, 0, IQ4NL, 32, S8, 0, 0)        \
    X(TQ1_0, C2, 1, NONE, 0, F16, 0, 0)            \
    X(TQ2_0, C2, 1, NONE, 0, F16, 0, 0)            \
    X(MXFP4, E2M1, 0, NONE, 0, E8M0, 0, -1)        \
    X(NVFP4, E2M1, 0, NONE, 16, UE4M3, 0, -1)      \
    X(Q1_0, C1, 1, NONE, 0, F16, 0, 0)             \
    X(Q2_0, C2, 1, NONE, 0, F16, 0, 0)             \
    X(PQ2_0, C2, 1, NONE, 0, F16, 0, 0)            \
    X(PTQ1_0, C2, 1, NONE, 0, F16, 0, 0)           \
    X(AFFINE2, C2, 0, NONE, 0, F16, 1, 0)          \
    X(AFFINE3, C3, 0, NONE, 0, F16, 1, 0)          \
    X(AFFINE4, C4, 0, NONE, 0, F16, 1, 0)          \
    X(AFFINE5, C5, 0, NONE, 0, F16, 1, 0)          \
    X(AFFINE6, C6, 0, NONE, 0, F16, 1, 0)          \
    X(AFFINE8, C8, -128, NONE, 0, F16, 1, 0)       \
    X(MLX_MXFP4, E2M1, 0, NONE, 0, E8M0, 0, -1)    \
    X(MLX_NVFP4, E2M1, 0, NONE, 16, UE4M3, 0, -1)
/* The same for formats that lie wider in MOTE_TILE_KINDS than in their file, when they shall not: 2-bit codes take 22 %
 * more memory than base 3, but 28 instructions a lane and unit to take apart instead of 82, and decode of so few bits is
 * bound by instructions. */
#define MOTE_TILE_COMPACT_KINDS(X)      \
    X(TQ1_0, T5, 1, NONE, 0, F16, 0, 0) \
    X(PTQ1_0, T5, 1, NONE, 0, F16, 0, 0)
/* E2M1: codes are twice the value. IQ2_*, IQ1_*, IQ3_*: the item is 2 nibble + 1.
 * E8M0: 255 (no number in OCP) is infinity. UE4M3 has a sign (MLX); 0x7F is 480; GGUF's special cases are resolved.
 * MLX_MXFP8 is decoded to bf16 (exact) and, like F32, F16 and BF16, lies in plain rows (CODE_NONE):
 * [n_row] rows of n_col numbers, a row padded to 16 bytes. */

#endif
