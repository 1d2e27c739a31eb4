/* pack_code.c: codes of 16 rows to the words of 32 lanes, one writer per kind of code (layout.h).
 *
 * One idea: four codes are the bytes of a word, so that a plane's word is an OR of shifted words.
 */
#include <string.h>

#include "base/float_bits.h"
#include "cuda/pack_parts.h"

/* Lane 4 g + t holds rows g and g + 8. */
#define FOR_LANES(g, t, lane)             \
    for (int lane = 0; lane < 32; lane++) \
        for (int g = lane >> 2, t = lane & 3, once = 1; once; once = 0)

/* Codes 4 h .. + 3 of the lane's eight in sub-block s. */
static inline uint32_t four(const struct mote_pack_row *row, int t, int s, int h)
{
    return mote_load_u32(row->code + 32 * s + 8 * t + 4 * h);
}

/* Eight bytes' low nibbles as a word. */
static inline uint32_t nibbles(uint64_t bytes)
{
    bytes = (bytes | bytes >> 4) & 0x00FF00FF00FF00FFu;
    bytes = (bytes | bytes >> 8) & 0x0000FFFF0000FFFFu;
    return (uint32_t)(bytes | bytes >> 16);
}

static inline void put(uint8_t *at, uint32_t word)
{
    memcpy(at, &word, 4);
}

/* Bits [shift, shift + 1), [shift, shift + 2), [0, 4) of the codes, as planes C1, C2, C4. */
static void plane_c1(const struct mote_pack_row row[16], int shift, uint8_t *out)
{
    FOR_LANES(g, t, lane)
    for (int r = 0; r < 2; r++) {
        uint32_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= (four(row + g + 8 * r, t, i >> 1, i & 1) >> shift & 0x01010101u) << i;
        put(out + 8 * lane + 4 * r, word);
    }
}

static void plane_c2(const struct mote_pack_row row[16], int shift, uint8_t *out)
{
    FOR_LANES(g, t, lane)
    for (int i = 0; i < 4; i++) { /* row, half of the unit */
        uint32_t word = 0;
        for (int k = 0; k < 4; k++)
            word |= (four(row + g + 8 * (i >> 1), t, 2 * (i & 1) + (k >> 1), k & 1) >> shift & 0x03030303u)
                    << 2 * k;
        put(out + 16 * lane + 4 * i, word);
    }
}

static void plane_c4(const struct mote_pack_row row[16], uint8_t *out)
{
    FOR_LANES(g, t, lane)
    for (int i = 0; i < 8; i++) { /* row, sub-block */
        const struct mote_pack_row *from = row + g + 8 * (i >> 2);
        uint32_t low = four(from, t, i & 3, 0) & 0x0F0F0F0Fu, high = four(from, t, i & 3, 1) & 0x0F0F0F0Fu;
        put(out + 512 * (i >> 2) + 16 * lane + 4 * (i & 3), low | high << 4);
    }
}

static void write_c1(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    plane_c1(row, 0, plane[0]);
}

static void write_c2(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    plane_c2(row, 0, plane[0]);
}

static void write_c3(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    plane_c2(row, 0, plane[0]);
    plane_c1(row, 2, plane[1]);
}

static void write_c4(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    plane_c4(row, plane[0]);
}

static void write_c5(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    plane_c4(row, plane[0]);
    plane_c1(row, 4, plane[1]);
}

static void write_c6(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    plane_c4(row, plane[0]);
    plane_c2(row, 4, plane[1]);
}

static void write_c8(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    FOR_LANES(g, t, lane)
    for (int i = 0; i < 8; i++) /* row, sub-block */
        memcpy(plane[0] + 512 * (i >> 1) + 16 * lane + 8 * (i & 1),
               row[g + 8 * (i >> 2)].code + 32 * (i & 3) + 8 * t, 8);
}

static void write_lut4(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    FOR_LANES(g, t, lane)
    for (int i = 0; i < 8; i++) /* row, sub-block */
        put(plane[0] + 512 * (i >> 2) + 16 * lane + 4 * (i & 3),
            nibbles(mote_load_u64(row[g + 8 * (i >> 2)].code + 32 * (i & 3) + 8 * t)));
}

static void write_e2m1(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    FOR_LANES(g, t, lane)
    for (int i = 0; i < 8; i++) { /* row, sub-block */
        const struct mote_pack_row *from = row + g + 8 * (i >> 2);
        uint32_t low = four(from, t, i & 3, 0), high = four(from, t, i & 3, 1);
        uint64_t both = low | (uint64_t)high << 32;
        put(plane[0] + 512 * (i >> 2) + 16 * lane + 4 * (i & 3),
            nibbles(both & 0x0707070707070707u) | (low & 0x08080808u) << 4 | (high & 0x08080808u));
    }
}

/* Four bytes of digits in base 3 from five words of four digits each: as a fraction's digits, the fraction rounded up
 * to a 256th. */
static inline uint32_t trits(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e)
{
    uint32_t number = (((a * 3 + b) * 3 + c) * 3 + d) * 3 + e, word = 0; /* 242 at most: bytes never meet */
    for (int i = 0; i < 32; i += 8) word |= ((number >> i & 255) * 256 + 242) / 243 << i;
    return word;
}

static void write_t5(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    FOR_LANES(g, t, lane)
    {
        uint32_t x[8], y[8],
            pair[8]; /* quads of rows g and g + 8; halves of both: x low, y low; x high, y high .. */
        for (int q = 0; q < 8; q++) {
            x[q] = four(row + g, t, q >> 1, q & 1);
            y[q] = four(row + g + 8, t, q >> 1, q & 1);
        }
        for (int q = 5; q < 8; q++) {
            pair[2 * (q - 5)] = (x[q] & 0xFFFF) | y[q] << 16;
            pair[2 * (q - 5) + 1] = x[q] >> 16 | (y[q] & 0xFFFF0000u);
        }
        put(plane[0] + 8 * lane, trits(x[0], x[1], x[2], x[3], x[4]));
        put(plane[0] + 8 * lane + 4, trits(pair[0], pair[1], pair[2], pair[3], pair[4]));
        put(plane[1] + 4 * lane, trits(y[0], y[1], y[2], y[3], y[4]));
        plane[2][lane] = (uint8_t)trits(pair[5], pair[5] >> 8, pair[5] >> 16, pair[5] >> 24, 0);
    }
}

static void write_iq2xxs(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    FOR_LANES(g, t, lane)
    for (int r = 0; r < 2; r++) memcpy(plane[0] + 16 * lane + 8 * r, row[g + 8 * r].word[t], 8);
}

static void write_iq3xxs(const struct mote_pack_row row[16], uint8_t *const plane[3])
{
    FOR_LANES(g, t, lane)
    for (int r = 0; r < 2; r++) {
        memcpy(plane[0] + 16 * lane + 8 * r, row[g + 8 * r].word[t], 8);
        put(plane[1] + 8 * lane + 4 * r, row[g + 8 * r].word[t][2]);
    }
}

const struct mote_pack_code mote_pack_code_of[] = {
    [MOTE_CODE_C1] = {{8}, write_c1},          [MOTE_CODE_C2] = {{16}, write_c2},
    [MOTE_CODE_C3] = {{16, 8}, write_c3},      [MOTE_CODE_C4] = {{32}, write_c4},
    [MOTE_CODE_C5] = {{32, 8}, write_c5},      [MOTE_CODE_C6] = {{32, 16}, write_c6},
    [MOTE_CODE_C8] = {{64}, write_c8},         [MOTE_CODE_LUT4] = {{32}, write_lut4},
    [MOTE_CODE_E2M1] = {{32}, write_e2m1},     [MOTE_CODE_T5] = {{8, 4, 1}, write_t5},
    [MOTE_CODE_IQ2XXS] = {{16}, write_iq2xxs}, [MOTE_CODE_IQ3XXS] = {{16, 8}, write_iq3xxs},
};
