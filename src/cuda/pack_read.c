/* pack_read.c: 128 columns of a row of every format of MOTE_TILE_KINDS as codes of a byte each and scale items.
 *
 * Owns the formats' bit fields as decode_*.c do (they are the oracle); what codes and items mean is in layout.h.
 * One idea: straight loops over 16 or 32 bytes, so that the compiler makes vectors of them.
 */
#include <string.h>

#include "base/float_bits.h"
#include "cuda/pack_parts.h"
#include "quant/iq_grid.h"

/* mote_pack_reader for BLOCK formats: `b` is the block in which the unit starts. A unit is `n / elems` blocks, or
 * half `half` of a super-block. */
#define READER(id)                                                                       \
    static void read_##id(const struct mote_matrix *w, int64_t row, int64_t unit, int n, \
                          struct mote_pack_row *out)
#define BLOCK(elems, bytes) \
    (w->data + (size_t)row * w->row_bytes + (size_t)(unit * MOTE_UNIT_COLS / (elems)) * (bytes))
/* Over the unit's blocks: block b, and where its codes go. */
#define FOR_BLOCKS(b, code, elems, bytes)   \
    const uint8_t *b = BLOCK(elems, bytes); \
    for (uint8_t *code = out->code; code < out->code + n; code += (elems), b += (bytes))

static inline void take_item(struct mote_pack_row *out, const uint8_t *code, int elems, const uint8_t *from,
                             size_t size)
{
    memcpy(out->item + (size_t)((code - out->code) / elems) * size, from, size);
}

static inline void take_super(struct mote_pack_row *out, const uint8_t *d, const uint8_t *dmin)
{
    out->super[0] = mote_load_u16(d);
    if (dmin) out->super[1] = mote_load_u16(dmin);
}

static inline unsigned nibble(const uint8_t *bytes, int index)
{
    return bytes[index >> 1] >> 4 * (index & 1) & 15u;
}

/* ---- blocks of one scale ---- */

/* 16 bytes: low nibbles, then high nibbles. */
static inline void halves(const uint8_t *restrict bytes, uint8_t *restrict code)
{
    for (int j = 0; j < 16; j++) {
        code[j] = bytes[j] & 15;
        code[16 + j] = bytes[j] >> 4;
    }
}

/* Bit j of `bits` is the fifth bit of code j. */
static inline void fifth_bits(uint32_t bits, uint8_t *restrict code)
{
    for (int j = 0; j < 32; j++) code[j] |= (uint8_t)((bits >> j & 1) << 4);
}

/* Nibbles of 16-valued tables, rotated left by one. */
static inline void rotate(uint8_t *code, int n)
{
    for (int j = 0; j < n; j++) code[j] = (uint8_t)((code[j] << 1 & 15) | code[j] >> 3);
}

READER(Q4_0)
{
    FOR_BLOCKS(b, code, 32, 18)
    {
        halves(b + 2, code);
        take_item(out, code, 32, b, 2);
    }
}

READER(Q4_1)
{
    FOR_BLOCKS(b, code, 32, 20)
    {
        halves(b + 4, code);
        take_item(out, code, 32, b, 4);
    }
}

READER(Q5_0)
{
    FOR_BLOCKS(b, code, 32, 22)
    {
        halves(b + 6, code);
        fifth_bits(mote_load_u32(b + 2), code);
        take_item(out, code, 32, b, 2);
    }
}

READER(Q5_1)
{
    FOR_BLOCKS(b, code, 32, 24)
    {
        halves(b + 8, code);
        fifth_bits(mote_load_u32(b + 4), code);
        take_item(out, code, 32, b, 4);
    }
}

READER(Q8_0)
{
    FOR_BLOCKS(b, code, 32, 34)
    {
        memcpy(code, b + 2, 32);
        take_item(out, code, 32, b, 2);
    }
}

READER(IQ4_NL)
{
    FOR_BLOCKS(b, code, 32, 18)
    {
        halves(b + 2, code);
        rotate(code, 32);
        take_item(out, code, 32, b, 2);
    }
}

READER(MXFP4)
{
    FOR_BLOCKS(b, code, 32, 17)
    {
        halves(b + 1, code);
        take_item(out, code, 32, b, 1);
    }
}

/* The block's scales have no sign and 0x7F is 0. */
READER(NVFP4)
{
    FOR_BLOCKS(b, code, 64, 36)
    {
        for (int s = 0; s < 4; s++)
            for (int j = 0; j < 8; j++) {
                code[16 * s + j] = b[4 + 8 * s + j] & 15;
                code[16 * s + 8 + j] = b[4 + 8 * s + j] >> 4;
            }
        uint8_t scale[4];
        for (int s = 0; s < 4; s++) scale[s] = b[s] == 0x7F ? 0 : b[s] & 0x7F;
        take_item(out, code, 64, scale, 4);
    }
}

READER(Q1_0)
{
    FOR_BLOCKS(b, code, 128, 18)
    {
        for (int j = 0; j < 16; j++)
            for (int k = 0; k < 8; k++) code[8 * j + k] = b[2 + j] >> k & 1;
        take_item(out, code, 128, b, 2);
    }
}

/* Codes of two bits in order. */
static inline void two_bits(const uint8_t *restrict bytes, int n_byte, uint8_t *restrict code)
{
    for (int j = 0; j < n_byte; j++)
        for (int k = 0; k < 4; k++) code[4 * j + k] = bytes[j] >> 2 * k & 3;
}

READER(Q2_0)
{
    FOR_BLOCKS(b, code, 64, 18)
    {
        two_bits(b + 2, 16, code);
        take_item(out, code, 64, b, 2);
    }
}

READER(PQ2_0)
{
    FOR_BLOCKS(b, code, 128, 34)
    {
        two_bits(b + 2, 32, code);
        take_item(out, code, 128, b, 2);
    }
}

/* ---- ternary ---- */

/* Digits first .. of n_byte bytes. */
static inline void digits(const uint8_t *restrict bytes, int n_byte, int first, int n_digit,
                          uint8_t *restrict code)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int n = first; n < first + n_digit; n++, code += n_byte)
        for (int m = 0; m < n_byte; m++) code[m] = (uint8_t)((uint8_t)(bytes[m] * power[n]) * 3u >> 8);
}

READER(TQ1_0)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 54);
    if (unit & 1) {
        digits(b, 32, 4, 1, out->code);
        digits(b + 32, 16, 0, 5, out->code + 32);
        digits(b + 48, 4, 0, 4, out->code + 112);
    } else digits(b, 32, 0, 4, out->code);
    memcpy(out->item, b + 52, 2);
}

READER(PTQ1_0)
{
    FOR_BLOCKS(b, code, 128, 28)
    {
        digits(b, 16, 0, 5, code);
        digits(b + 16, 8, 0, 5, code + 80);
        digits(b + 24, 2, 0, 4, code + 120);
        take_item(out, code, 128, b + 26, 2);
    }
}

/* Four planes of two bits of 32 bytes. */
static inline void planes(const uint8_t *restrict bytes, uint8_t *restrict code)
{
    for (int s = 0; s < 4; s++)
        for (int m = 0; m < 32; m++) code[32 * s + m] = bytes[m] >> 2 * s & 3;
}

READER(TQ2_0)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 66);
    planes(b + 32 * (unit & 1), out->code);
    memcpy(out->item, b + 64, 2);
}

/* ---- K ---- */

READER(Q2_K)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 84);
    int half = unit & 1;
    planes(b + 16 + 32 * half, out->code);
    memcpy(out->item, b + 8 * half, 8);
    take_super(out, b + 80, b + 82);
}

READER(Q3_K)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 110),
                  *packed = b + 96; /* 16 scales: 8 bytes of low nibbles, 4 of high pairs */
    int half = unit & 1;
    planes(b + 32 + 32 * half, out->code);
    for (int s = 0; s < 4; s++)
        for (int m = 0; m < 32; m++) out->code[32 * s + m] |= (uint8_t)((b[m] >> (4 * half + s) & 1) << 2);
    for (int k = 0; k < 8; k++) {
        int low = packed[k] >> 4 * half & 15, high = packed[8 + (k & 3)] >> (4 * half + 2 * (k >> 2)) & 3;
        out->item[k] = (uint8_t)((low | high << 4) - 32);
    }
    take_super(out, b + 108, NULL);
}

/* 6-bit scales and offsets of runs 4 half .. + 3 of Q4_K and Q5_K. */
static inline void six_bits(const uint8_t *packed, int half, uint8_t *item)
{
    for (int k = 0; k < 4; k++) {
        const uint8_t *p = packed + k;
        item[2 * k] = half ? (p[8] & 15) | p[0] >> 6 << 4 : p[0] & 63;
        item[2 * k + 1] = half ? p[8] >> 4 | p[4] >> 6 << 4 : p[4] & 63;
    }
}

/* Two runs of 32 bytes; of each the low nibbles, then the high nibbles. */
static inline void nibble_planes(const uint8_t *restrict bytes, uint8_t *restrict code)
{
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < 32; m++) {
            code[64 * i + m] = bytes[32 * i + m] & 15;
            code[64 * i + 32 + m] = bytes[32 * i + m] >> 4;
        }
}

READER(Q4_K)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 144);
    int half = unit & 1;
    nibble_planes(b + 16 + 64 * half, out->code);
    six_bits(b + 4, half, out->item);
    take_super(out, b, b + 2);
}

READER(Q5_K)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 176), *high = b + 16;
    int half = unit & 1;
    nibble_planes(b + 48 + 64 * half, out->code);
    for (int s = 0; s < 4; s++)
        for (int m = 0; m < 32; m++) out->code[32 * s + m] |= (uint8_t)((high[m] >> (4 * half + s) & 1) << 4);
    six_bits(b + 4, half, out->item);
    take_super(out, b, b + 2);
}

READER(Q6_K)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 210);
    int half = unit & 1;
    const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
    for (int s = 0; s < 4; s++)
        for (int m = 0; m < 32; m++) {
            int q = (low[32 * (s & 1) + m] >> 4 * (s >> 1) & 15) | (high[m] >> 2 * s & 3) << 4;
            out->code[32 * s + m] = (uint8_t)q;
        }
    memcpy(out->item, b + 192 + 8 * half, 8);
    take_super(out, b + 208, NULL);
}

/* ---- IQ ---- */

/* Bit j of mask in bit 7 of byte j. */
static inline uint64_t top_bits(unsigned mask)
{
    uint64_t own = mask * 0x0101010101010101u & 0x8040201008040201u;
    return (own + 0x7F7F7F7F7F7F7F7Fu) & 0x8080808080808080u;
}

/* Levels 0, 1, 2 of magnitudes 8, 25, 43 (their bits 4 and 5), and 4 for a minus. */
static inline void put_levels(uint8_t *code, uint64_t entry, unsigned negative)
{
    uint64_t bytes = (entry >> 4 & 0x0303030303030303u) | top_bits(negative) >> 5;
    memcpy(code, &bytes, 8);
}

READER(IQ2_XS)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 74);
    int half = unit & 1;
    for (int g = 0; g < 16; g++) {
        unsigned word = mote_load_u16(b + 2 + 32 * half + 2 * g);
        put_levels(out->code + 8 * g, mote_iq2xs_grid[word & 511], mote_sign_mask[word >> 9]);
    }
    for (int k = 0; k < 8; k++) out->item[k] = (uint8_t)(2 * nibble(b + 66 + 4 * half, k) + 1);
    take_super(out, b, NULL);
}

READER(IQ2_S)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 82);
    int half = unit & 1;
    for (int g = 0; g < 16; g++) {
        unsigned index = b[2 + 16 * half + g] | (b[66 + 4 * half + (g >> 2)] >> 2 * (g & 3) & 3u) << 8;
        put_levels(out->code + 8 * g, mote_iq2s_grid[index], b[34 + 16 * half + g]);
    }
    for (int k = 0; k < 8; k++) out->item[k] = (uint8_t)(2 * nibble(b + 74 + 4 * half, k) + 1);
    take_super(out, b, NULL);
}

/* Nibbles 8 + (m >> 1) of magnitudes m = 1, 3 .. 15, 7 - (m >> 1) for a minus. */
READER(IQ3_S)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 110);
    int half = unit & 1;
    for (int g = 0; g < 16; g++) { /* groups of 8: two entries of 4 */
        const uint8_t *index = b + 2 + 32 * half + 2 * g;
        unsigned high = b[66 + 4 * half + (g >> 2)] >> 2 * (g & 3);
        uint64_t entry = mote_iq3s_grid[index[0] | (high & 1) << 8] |
                         (uint64_t)mote_iq3s_grid[index[1] | (high & 2) << 7] << 32;
        uint64_t minus = (top_bits(b[74 + 16 * half + g]) >> 7) * 15;
        uint64_t bytes = ((entry >> 1 & 0x0707070707070707u) | 0x0808080808080808u) ^ minus;
        memcpy(out->code + 8 * g, &bytes, 8);
    }
    for (int k = 0; k < 4; k++) out->item[k] = (uint8_t)(2 * nibble(b + 106 + 2 * half, k) + 1);
    take_super(out, b, NULL);
}

/* 2 (digit + 1), plus one for a shift upwards. */
static inline void put_ternary(uint8_t *code, unsigned index, unsigned up)
{
    uint64_t digit =
        ((mote_iq1s_grid[index] ^ 0x8080808080808080u) + 0x0101010101010101u) ^ 0x8080808080808080u;
    uint64_t bytes = digit << 1 | up * 0x0101010101010101u;
    memcpy(code, &bytes, 8);
}

READER(IQ1_S)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 50);
    int half = unit & 1;
    for (int k = 0; k < 4; k++) {
        unsigned word = mote_load_u16(b + 34 + 8 * half + 2 * k);
        for (int g = 0; g < 4; g++)
            put_ternary(out->code + 32 * k + 8 * g, b[2 + 16 * half + 4 * k + g] | (word >> 3 * g & 7) << 8,
                        ~word >> 15 & 1);
        out->item[k] = (uint8_t)(2 * (word >> 12 & 7) + 1);
    }
    take_super(out, b, NULL);
}

READER(IQ1_M)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 56);
    int half = unit & 1;
    unsigned d = 0; /* in the top nibbles of the four words of scales */
    for (int i = 0; i < 4; i++) d |= (unsigned)(mote_load_u16(b + 48 + 2 * i) >> 12) << 4 * i;
    for (int g = 0; g < 16; g++) {
        unsigned bits = nibble(b + 32 + 8 * half, g);
        put_ternary(out->code + 8 * g, b[16 * half + g] | (bits & 7) << 8, ~bits >> 3 & 1);
    }
    for (int k = 0; k < 8; k++)
        out->item[k] =
            (uint8_t)(2 * (mote_load_u16(b + 48 + 4 * half + 2 * (k >> 2)) >> 3 * (k & 3) & 7) + 1);
    out->super[0] = (uint16_t)d;
}

READER(IQ4_XS)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 136);
    int half = unit & 1;
    unsigned high = mote_load_u16(b + 2) >> 8 * half;
    for (int s = 0; s < 4; s++) {
        halves(b + 8 + 64 * half + 16 * s, out->code + 32 * s);
        out->item[s] = (uint8_t)((nibble(b + 4 + 2 * half, s) | (high >> 2 * s & 3) << 4) - 32);
    }
    rotate(out->code, 128);
    take_super(out, b, NULL);
}

/* Bits 0..6 to bits 0, 4, .. 24. */
static inline uint32_t spread(uint32_t bits)
{
    bits = (bits | bits << 12) & 0x000F000Fu;
    bits = (bits | bits << 6) & 0x03030303u;
    return (bits | bits << 3) & 0x11111111u;
}

/* Lane t's sign word from the four sub-blocks' words of sign codes and scale. */
static inline uint32_t sign_word(const uint32_t word[4], int t)
{
    uint32_t signs = word[t] & 0xF0000000u;
    for (int s = 0; s < 4; s++) signs |= spread(word[s] >> 7 * t & 127) << ((s + 2) & 3);
    return signs;
}

READER(IQ2_XXS)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 66), *part = b + 2 + 32 * (unit & 1);
    uint32_t word[4];
    for (int s = 0; s < 4; s++) word[s] = mote_load_u32(part + 8 * s + 4);
    for (int t = 0; t < 4; t++) {
        out->word[t][0] = part[t] | (uint32_t)part[8 + t] << 8 | (uint32_t)part[16 + t] << 16 |
                          (uint32_t)part[24 + t] << 24;
        out->word[t][1] = sign_word(word, t);
    }
    take_super(out, b, NULL);
}

READER(IQ3_XXS)
{
    (void)n;
    const uint8_t *b = BLOCK(256, 98), *index = b + 2 + 32 * (unit & 1);
    uint32_t word[4];
    memcpy(word, b + 66 + 16 * (unit & 1), sizeof word);
    for (int t = 0; t < 4; t++, index += 2) {
        out->word[t][0] = mote_load_u16(index) | (uint32_t)mote_load_u16(index + 8) << 16;
        out->word[t][1] = mote_load_u16(index + 16) | (uint32_t)mote_load_u16(index + 24) << 16;
        out->word[t][2] = sign_word(word, t);
    }
    take_super(out, b, NULL);
}

/* ---- PLANAR ---- */

/* Codes of the unit, a little-endian bit stream: 8 codes are `bits` bytes. */
static inline void stream(const struct mote_matrix *w, int64_t row, int64_t unit, int n, int bits,
                          uint8_t *code)
{
    const uint8_t *bytes =
        w->data + (size_t)row * w->row_bytes + (size_t)(unit * (MOTE_UNIT_COLS / 8) * bits);
    for (int i = 0; i < n; i += 8, bytes += bits) {
        uint64_t word = 0;
        memcpy(&word, bytes, (size_t)bits);
        for (int j = 0; j < 8; j++) code[i + j] = (uint8_t)(word >> bits * j & ((1u << bits) - 1));
    }
}

/* Scale and bias of the groups that start in the unit. */
static inline void take_groups(const struct mote_matrix *w, int64_t row, int64_t unit, int n,
                               struct mote_pack_row *out)
{
    size_t size = w->scale_format == MOTE_FORMAT_F32 ? 4 : 2;
    size_t at = (size_t)(row * (w->n_col / w->group) + unit * MOTE_UNIT_COLS / w->group) * size;
    for (size_t i = 0; i < (size_t)(n / w->group); i++) {
        memcpy(out->item + 2 * i * size, w->scale + at + i * size, size);
        memcpy(out->item + (2 * i + 1) * size, w->bias + at + i * size, size);
    }
}

#define AFFINE(id, bits)                          \
    READER(id)                                    \
    {                                             \
        stream(w, row, unit, n, bits, out->code); \
        take_groups(w, row, unit, n, out);        \
    }
AFFINE(AFFINE2, 2)
AFFINE(AFFINE3, 3)
AFFINE(AFFINE4, 4)
AFFINE(AFFINE5, 5)
AFFINE(AFFINE6, 6)

READER(AFFINE8)
{
    stream(w, row, unit, n, 8, out->code);
    for (int j = 0; j < n; j++) out->code[j] ^= 128; /* signed: less 128 */
    take_groups(w, row, unit, n, out);
}

READER(MLX_MXFP4)
{
    stream(w, row, unit, n, 4, out->code);
    memcpy(out->item, w->scale + row * (w->n_col / 32) + unit * 4, (size_t)(n / 32));
}

READER(MLX_NVFP4)
{
    stream(w, row, unit, n, 4, out->code);
    memcpy(out->item, w->scale + row * (w->n_col / 16) + unit * 8, (size_t)(n / 16));
}

mote_pack_reader *const mote_pack_reader_of[MOTE_FORMAT_COUNT] = {
#define X(id, code, zero, table, sub, item, min, exponent) [MOTE_FORMAT_##id] = read_##id,
    MOTE_TILE_KINDS(X)
#undef X
};
