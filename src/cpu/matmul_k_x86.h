/* matmul_k_x86.h: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and the K formats: how each one's 256 columns unpack. See tile_x86.h.
 *
 * Largest code and integer scale, and with them the bounds of tile_x86.h (16-bit pairs <= 32512, 32-bit sums):
 *   Q2_K  3 x 15    Q3_K  7 x 32    Q4_K  15 x 63    Q5_K  31 x 63    Q6_K  63 x 128    Q4_0, Q4_1  15    Q5_0, Q5_1  31    Q8_0  -128..127
 *   the largest is Q6_K: pairs 2 * 63 * 127 = 16002, a tile in one lane 32 * 63 * 127 * 128 < 2^25.
 *
 * matmul_k_avx2.c and matmul_k_avx512.c compile this text, each for its instruction set and under its own
 * MATMUL_FILL; what differs between the two is in simd_x86.h and gemm.h.
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include "cpu/tile_x86.h"

/* ---- 32 weights per scale, activations per 32 ---- */

/* 34 bytes: f16 d, int8 q[32] */
MOTE_INLINE void tile_q8_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 34];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 34, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_load_256(b + 34 * k + 2);
    t->d = mote_load_8_f16(b, 34);
}

#define TILE_NAME q8_0
#define TILE_MAX_CODE 0
#define TILE_BIAS 0
#include "cpu/dot32_x86.h"

/* 18 bytes: f16 d, nibbles[16]; w = d * (code - 8) */
MOTE_INLINE void tile_q4_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 18];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 18, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_nibbles(b + 18 * k + 2);
    t->d = mote_load_8_f16(b, 18);
}

#define TILE_NAME q4_0
#define TILE_MAX_CODE 15
#define TILE_BIAS 0
#define TILE_OFFSET 8
#include "cpu/dot32_x86.h"

/* 20 bytes: f16 d, f16 m, nibbles[16]; w = d * code + m */
MOTE_INLINE void tile_q4_1(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 20];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 20, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_nibbles(b + 20 * k + 4);
    t->d = mote_load_8_f16(b, 20);
    t->bias = mote_load_8_f16(b + 2, 20);
}

#define TILE_NAME q4_1
#define TILE_MAX_CODE 15
#define TILE_BIAS 1
#include "cpu/dot32_x86.h"

/* 32 codes of 5 bits: bit j of `bits` is the fifth bit of column j. */
MOTE_INLINE __m256i codes_of_5(const uint8_t *bits, const uint8_t *nibbles)
{
    __m256i spread = _mm256_shuffle_epi8(
        mote_broadcast_u32(bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i fifth = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return _mm256_or_si256(mote_nibbles(nibbles), _mm256_and_si256(fifth, _mm256_set1_epi8(16)));
}

/* 22 bytes: f16 d, fifth bits[4], nibbles[16]; w = d * (code - 16) */
MOTE_INLINE void tile_q5_0(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 22];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 22, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = codes_of_5(b + 22 * k + 2, b + 22 * k + 6);
    t->d = mote_load_8_f16(b, 22);
}

#define TILE_NAME q5_0
#define TILE_MAX_CODE 31
#define TILE_BIAS 0
#define TILE_OFFSET 16
#include "cpu/dot32_x86.h"

/* 24 bytes: f16 d, f16 m, fifth bits[4], nibbles[16]; w = d * code + m */
MOTE_INLINE void tile_q5_1(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 24];
    const uint8_t *b = mote_tile_blocks(w, row, col, 32, 24, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = codes_of_5(b + 24 * k + 4, b + 24 * k + 8);
    t->d = mote_load_8_f16(b, 24);
    t->bias = mote_load_8_f16(b + 2, 24);
}

#define TILE_NAME q5_1
#define TILE_MAX_CODE 31
#define TILE_BIAS 1
#include "cpu/dot32_x86.h"

/* ---- K formats: 256 weights per block, activations per 256 ---- */

MOTE_INLINE const uint8_t *block_256(const struct mote_matrix *w, int64_t row, int64_t col, int bytes)
{
    const uint8_t *at = w->data + (size_t)row * w->row_bytes + (size_t)(col / 256) * (size_t)bytes;
    mote_tile_prefetch(at, bytes);
    return at;
}

/* Q4_K and Q5_K begin alike: f16 d, f16 dmin, 12 bytes that hold 8 scales and 8 minima of 6 bits:
 *   S[0..3]  low 6 bits: scale 0..3; top 2 bits: bits 4, 5 of scale 4..7
 *   S[4..7]  the same for the minima
 *   S[8..11] low nibble: bits 0..3 of scale 4..7; high nibble: of minimum 4..7 */
MOTE_INLINE void head_q4_q5_k(const uint8_t *b, struct mote_tile256 *t)
{
    const int z = -128;              /* pshufb: zero */
    __m128i head = mote_load_128(b); /* S starts at byte 4 */
    __m128i low =
        _mm_shuffle_epi8(head, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    __m128i high = _mm_shuffle_epi8(head, _mm_setr_epi8(z, z, z, z, 4, 5, 6, 7, z, z, z, z, 8, 9, 10, 11));
    low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                        _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
    high = _mm_and_si128(_mm_srli_epi32(high, 2), _mm_set1_epi8(0x30));
    __m256i both = _mm256_cvtepu8_epi16(_mm_or_si128(low, high)); /* 8 scales, 8 minima */
    t->scale = _mm256_permute4x64_epi64(both, 0x44);
    __m256i minima = _mm256_permute4x64_epi64(both, 0xFA);
    t->bias = _mm256_unpacklo_epi16(minima, minima);
    __m128 d = _mm_cvtph_ps(head);
    t->d = _mm_cvtss_f32(d);
    t->d_bias = _mm_cvtss_f32(_mm_movehdup_ps(d));
}

/* 144 bytes: head, nibbles[128]: per 64 columns 32 bytes, low nibbles first */
MOTE_INLINE void tile_q4_k(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = block_256(w, row, col, 144);
    const __m256i nibble = _mm256_set1_epi8(15);
    MOTE_UNROLL for (int k = 0; k < 8; k += 2)
    {
        __m256i v = mote_load_256(b + 16 + 16 * k);
        t->code[k] = _mm256_and_si256(v, nibble);
        t->code[k + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
    }
    head_q4_q5_k(b, t);
}

#define TILE_NAME q4_k
#define TILE_GROUP 32
#define TILE_MAX_CODE 15
#define TILE_BIAS 2
#include "cpu/dot256_x86.h"

/* 176 bytes: head, fifth bits[32] (bit k of byte r: column 32 k + r), nibbles as Q4_K */
MOTE_INLINE void tile_q5_k(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = block_256(w, row, col, 176);
    const __m256i nibble = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    __m256i bits = mote_load_256(b + 16);
    MOTE_UNROLL for (int k = 0; k < 8; k++)
    {
        __m256i v = mote_load_256(b + 48 + 32 * (k / 2));
        v = _mm256_and_si256(k % 2 ? _mm256_srli_epi16(v, 4) : v, nibble);
        __m256i top = k <= 4 ? _mm256_slli_epi16(bits, 4 - k) : _mm256_srli_epi16(bits, k - 4);
        t->code[k] = _mm256_or_si256(v, _mm256_and_si256(top, fifth));
    }
    head_q4_q5_k(b, t);
}

#define TILE_NAME q5_k
#define TILE_GROUP 32
#define TILE_MAX_CODE 31
#define TILE_BIAS 2
#include "cpu/dot256_x86.h"

/* 210 bytes: low nibbles[128], high pairs[64], int8 scales[16], f16 d; w = d * scale * (code - 32).
 * Half h of the block, columns 32 p + r of it: nibble of byte 64 h + r + 32 (p & 1), low for p < 2; bits 2p, 2p + 1
 * of pair byte 32 h + r. */
MOTE_INLINE void tile_q6_k(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = block_256(w, row, col, 210);
    const __m256i nibble = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(0x30);
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        __m256i a = mote_load_256(b + 64 * h), c = mote_load_256(b + 64 * h + 32);
        __m256i high = mote_load_256(b + 128 + 32 * h);
        __m256i *code = t->code + 4 * h;
        code[0] =
            _mm256_or_si256(_mm256_and_si256(a, nibble), _mm256_and_si256(_mm256_slli_epi16(high, 4), pair));
        code[1] =
            _mm256_or_si256(_mm256_and_si256(c, nibble), _mm256_and_si256(_mm256_slli_epi16(high, 2), pair));
        code[2] =
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), nibble), _mm256_and_si256(high, pair));
        code[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), nibble),
                                  _mm256_and_si256(_mm256_srli_epi16(high, 2), pair));
    }
    __m128i scale = mote_load_128(b + 192);
    t->scale = _mm256_cvtepi8_epi16(mote_even_odd(scale));
    t->bias = _mm256_slli_epi16(_mm256_cvtepi8_epi16(scale), 5);
    t->d = mote_f16_load(b + 208);
}

#define TILE_NAME q6_k
#define TILE_GROUP 16
#define TILE_MAX_CODE 63
#define TILE_BIAS 1
#include "cpu/dot256_x86.h"

/* Pairs of bits of 32 bytes per 128 columns, lowest pair first: Q2_K's codes and Q3_K's low bits. */
MOTE_INLINE void codes_of_pairs(const uint8_t *pairs, __m256i code[8])
{
    const __m256i three = _mm256_set1_epi8(3);
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        __m256i v = mote_load_256(pairs + 32 * h);
        code[4 * h] = _mm256_and_si256(v, three);
        code[4 * h + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 2), three);
        code[4 * h + 2] = _mm256_and_si256(_mm256_srli_epi16(v, 4), three);
        code[4 * h + 3] = _mm256_and_si256(_mm256_srli_epi16(v, 6), three);
    }
}

/* 84 bytes: scales[16] (low nibble scale, high nibble minimum), pairs[64], f16 d, f16 dmin */
MOTE_INLINE void tile_q2_k(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = block_256(w, row, col, 84);
    const __m128i nibble = _mm_set1_epi8(15);
    codes_of_pairs(b + 16, t->code);
    __m128i both = mote_load_128(b);
    t->scale = _mm256_cvtepu8_epi16(mote_even_odd(_mm_and_si128(both, nibble)));
    t->bias = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), nibble));
    __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)mote_load_u32(b + 80)));
    t->d = _mm_cvtss_f32(d);
    t->d_bias = _mm_cvtss_f32(_mm_movehdup_ps(d));
}

#define TILE_NAME q2_k
#define TILE_GROUP 16
#define TILE_MAX_CODE 3
#define TILE_BIAS 2
#include "cpu/dot256_x86.h"

/* 110 bytes: third bits[32] (bit k of byte r: column 32 k + r), pairs[64], scales[12], f16 d;
 * w = d * (scale - 32) * (code - 4). Scale j: low nibbles of S[0..7], then their high nibbles; bits 4, 5 from
 * S[8 + j % 4] at 2 (j / 4). */
MOTE_INLINE void tile_q3_k(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile256 *t)
{
    const uint8_t *b = block_256(w, row, col, 110);
    const __m256i four = _mm256_set1_epi8(4);
    codes_of_pairs(b + 32, t->code);
    __m256i bits = mote_load_256(b);
    MOTE_UNROLL for (int k = 0; k < 8; k++)
    {
        __m256i third = k <= 2 ? _mm256_slli_epi16(bits, 2 - k) : _mm256_srli_epi16(bits, k - 2);
        t->code[k] = _mm256_or_si256(t->code[k], _mm256_and_si256(third, four));
    }
    __m128i tail = mote_load_128(b + 94); /* the block's last 16 bytes: S starts at byte 2, d is at 14 */
    __m128i low = _mm_shuffle_epi8(tail, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
    low = _mm_and_si128(_mm_srlv_epi64(low, _mm_set_epi64x(4, 0)), _mm_set1_epi8(15));
    __m128i high =
        _mm_shuffle_epi8(tail, _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
    high = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    __m128i scale = _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
    t->scale = _mm256_cvtepi8_epi16(mote_even_odd(scale));
    t->bias = _mm256_slli_epi16(_mm256_cvtepi8_epi16(scale), 2);
    t->d = mote_f16_load(b + 108);
}

#define TILE_NAME q3_k
#define TILE_GROUP 16
#define TILE_MAX_CODE 7
#define TILE_BIAS 1
#include "cpu/dot256_x86.h"

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
#define FILL(act, format, name)                                    \
    table->dot[MOTE_ACT_##act][MOTE_FORMAT_##format] = dot_##name; \
    table->gemm[MOTE_ACT_##act][MOTE_FORMAT_##format] = gemm_##name;
    FILL(I8_32, Q8_0, q8_0)
    FILL(I8_32, Q4_0, q4_0)
    FILL(I8_32, Q4_1, q4_1)
    FILL(I8_32, Q5_0, q5_0)
    FILL(I8_32, Q5_1, q5_1)
    FILL(I8_256, Q2_K, q2_k)
    FILL(I8_256, Q3_K, q3_k)
    FILL(I8_256, Q4_K, q4_k)
    FILL(I8_256, Q5_K, q5_k)
    FILL(I8_256, Q6_K, q6_k)
#undef FILL
}

#else

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
