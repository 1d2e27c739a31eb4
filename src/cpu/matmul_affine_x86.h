/* matmul_affine_x86.h: MLX formats: how 256 columns of a row unpack from codes and planes of scales.
 *
 * See tile_x86.h. Codes are a little-endian bit stream, 4 * bits bytes for 32 columns; a group of 32, 64 or 128
 * columns has a scale (AFFINE: and a bias) in f32, f16 or bf16 (MXFP4: e8m0).
 * Largest codes: AFFINE<b> 2^b - 1, AFFINE8 signed after subtracting 128; MXFP4 24 (value doubled, plus 12).
 *
 * matmul_affine_avx2.c and matmul_affine_avx512.c compile this text, each for its instruction set and under its own
 * MATMUL_FILL; what differs between the two is in simd_x86.h and gemm.h.
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include "cpu/plane_x86.h"
#include "cpu/tile_x86.h"

/* How many columns of the tile at col are in the row. */
MOTE_INLINE int64_t tile_columns(const struct mote_matrix *w, int64_t col)
{
    return w->n_col - col < 256 ? w->n_col - col : 256;
}

/* 256 / group values of a plane, from `index` on, to one for each 32 columns; zeros past the row's end. */
MOTE_INLINE __m256 plane_values(const struct mote_matrix *w, const uint8_t *plane, int64_t index,
                                int64_t columns)
{
    size_t size = w->scale_format == MOTE_FORMAT_F32 ? 4 : 2;
    const uint8_t *p = plane + (size_t)index * size;
    uint8_t buffer[32];
    if (__builtin_expect(columns < 256, 0)) {
        memset(buffer, 0, sizeof buffer);
        memcpy(buffer, p, (size_t)(columns / w->group) * size);
        p = buffer;
    }
    __m256 v;
    if (size == 4) {
        if (w->group == 32) return _mm256_loadu_ps((const float *)(const void *)p);
        __m128i few = w->group == 64 ? mote_load_128(p) : _mm_loadl_epi64((const void *)p);
        v = _mm256_castsi256_ps(_mm256_castsi128_si256(few));
    } else {
        __m128i h = w->group == 32   ? mote_load_128(p)
                    : w->group == 64 ? _mm_loadl_epi64((const void *)p)
                                     : _mm_cvtsi32_si128((int)mote_load_u32(p));
        v = w->scale_format == MOTE_FORMAT_F16
                ? _mm256_cvtph_ps(h)
                : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
        if (w->group == 32) return v;
    }
    __m256i from = w->group == 64 ? _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)
                                  : _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return _mm256_permutevar8x32_ps(v, from);
}

/* 32 codes of 3, 5 or 6 bits in column order. 8 codes are `bits` bytes. Each 16-bit lane gets the 2 bytes in which
 * its code lies; shifting the code to the lane's top (a product) drops what lies above it, shifting it down again what
 * lies below. The second load ends where the codes end. */
MOTE_INLINE __m256i codes_across_bytes(const uint8_t *p, const int bits)
{
    const int load = bits == 3 ? 8 : 16, skip = 4 * bits - load, lag = 2 * bits - skip;
    __m128i low = bits == 3 ? _mm_loadl_epi64((const void *)p) : mote_load_128(p);
    __m128i high = bits == 3 ? _mm_loadl_epi64((const void *)(p + skip)) : mote_load_128(p + skip);
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
#define BYTES(i) (char)((i)*bits / 8), (char)((i)*bits / 8 + 1)
#define SHIFT(i) (short)(1 << (16 - bits - (i)*bits % 8))
    __m128i first =
        _mm_setr_epi8(BYTES(0), BYTES(1), BYTES(2), BYTES(3), BYTES(4), BYTES(5), BYTES(6), BYTES(7));
    __m128i shift =
        _mm_setr_epi16(SHIFT(0), SHIFT(1), SHIFT(2), SHIFT(3), SHIFT(4), SHIFT(5), SHIFT(6), SHIFT(7));
#undef BYTES
#undef SHIFT
    __m256i from = _mm256_set_m128i(_mm_add_epi8(first, _mm_set1_epi8((char)lag)), first);
    __m256i then = _mm256_add_epi8(from, _mm256_set1_epi8((char)bits)),
            up = _mm256_broadcastsi128_si256(shift);
    __m256i a = _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(v, from), up), 16 - bits);
    __m256i b = _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(v, then), up), 16 - bits);
    return _mm256_packus_epi16(a, b);
}

MOTE_INLINE void affine_scales(const struct mote_matrix *w, int64_t row, int64_t col, __m256 *d, __m256 *bias)
{
    int64_t columns = tile_columns(w, col), index = row * (w->n_col / w->group) + col / w->group;
    *d = plane_values(w, w->scale, index, columns);
    *bias = plane_values(w, w->bias, index, columns);
}

MOTE_INLINE void tile_affine(const struct mote_matrix *w, int64_t row, int64_t col, const int bits,
                             struct mote_tile32 *t)
{
    uint8_t buffer[8 * 32];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 4 * bits, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++)
    {
        const uint8_t *run = p + 4 * bits * k;
        t->code[k] = bits == 2   ? mote_pairs(run)
                     : bits == 4 ? mote_nibbles_in_order(run)
                     : bits == 8 ? _mm256_xor_si256(mote_load_256(run), _mm256_set1_epi8(-128))
                                 : codes_across_bytes(run, bits);
    }
    affine_scales(w, row, col, &t->d, &t->bias);
    if (bits == 8) t->bias = _mm256_fmadd_ps(t->d, _mm256_set1_ps(128), t->bias);
}

#define AFFINE(bits)                                                                          \
    MOTE_INLINE void tile_affine##bits(const struct mote_matrix *w, int64_t row, int64_t col, \
                                       struct mote_tile32 *t)                                 \
    {                                                                                         \
        tile_affine(w, row, col, bits, t);                                                    \
    }
AFFINE(2)
AFFINE(3)
AFFINE(4)
AFFINE(5)
AFFINE(6)
AFFINE(8)

MOTE_INLINE void planes_affine2(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[2],
                                __m256 *d, __m256 *bias)
{
    uint8_t buffer[8 * 8];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 8, buffer);
    MOTE_UNROLL for (int k = 0; k < 2; k++) v[k] = mote_load_256(p + 32 * k);
    affine_scales(w, row, col, d, bias);
}

#define PLANE_NAME affine2
#define PLANE_BITS 2
#define PLANE_SPLIT 0
#define PLANE_CODES(c) (c)
#define PLANE_MAX_CODE 3
#define PLANE_BIAS 1
#define PLANE_UNIT 1
#define PLANE_OFFSET 0
#include "cpu/dot_plane_x86.h"

#define TILE_NAME affine3
#define TILE_MAX_CODE 7
#define TILE_BIAS 1
#include "cpu/dot32_x86.h"

MOTE_INLINE void planes_affine4(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[4],
                                __m256 *d, __m256 *bias)
{
    uint8_t buffer[8 * 16];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 16, buffer);
    MOTE_UNROLL for (int k = 0; k < 4; k++) v[k] = mote_load_256(p + 32 * k);
    affine_scales(w, row, col, d, bias);
}

#define PLANE_NAME affine4
#define PLANE_BITS 4
#define PLANE_SPLIT 0
#define PLANE_CODES(c) (c)
#define PLANE_MAX_CODE 15
#define PLANE_BIAS 1
#define PLANE_UNIT 1
#define PLANE_OFFSET 0
#include "cpu/dot_plane_x86.h"

#define TILE_NAME affine5
#define TILE_MAX_CODE 31
#define TILE_BIAS 1
#include "cpu/dot32_x86.h"

#define TILE_NAME affine6
#define TILE_MAX_CODE 63
#define TILE_BIAS 1
#include "cpu/dot32_x86.h"

#define TILE_NAME affine8
#define TILE_MAX_CODE 0
#define TILE_BIAS 1
#include "cpu/dot32_x86.h"

MOTE_INLINE __m256 scales_mlx_mxfp4(const struct mote_matrix *w, int64_t row, int64_t col)
{
    int64_t columns = tile_columns(w, col);
    const uint8_t *scale = w->scale + row * (w->n_col / 32) + col / 32;
    uint64_t bytes = 0;
    if (__builtin_expect(columns < 256, 0)) memcpy(&bytes, scale, (size_t)(columns / 32));
    else bytes = mote_load_u64(scale);
    __m256i e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)), 23);
    e = _mm256_max_epi32(e, _mm256_set1_epi32(0x00400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(e), _mm256_set1_ps(0.5f));
}

/* w = 2^(e - 127) / 2 * (code - 12); e of 0 is the subnormal 2^-127, of 255 infinity */
MOTE_INLINE void tile_mlx_mxfp4(const struct mote_matrix *w, int64_t row, int64_t col, struct mote_tile32 *t)
{
    uint8_t buffer[8 * 16];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 16, buffer);
    MOTE_UNROLL for (int k = 0; k < 8; k++) t->code[k] = mote_fp4_codes(mote_nibbles_in_order(p + 16 * k));
    t->d = mote_fp4_scales(t->code, scales_mlx_mxfp4(w, row, col));
}

MOTE_INLINE void planes_mlx_mxfp4(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[4],
                                  __m256 *d, __m256 *bias)
{
    uint8_t buffer[8 * 16];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 16, buffer);
    MOTE_UNROLL for (int k = 0; k < 4; k++) v[k] = mote_load_256(p + 32 * k);
    *d = scales_mlx_mxfp4(w, row, col);
    (void)bias;
}

#define PLANE_NAME mlx_mxfp4
#define PLANE_BITS 4
#define PLANE_SPLIT 0
#define PLANE_CODES(c) mote_fp4_codes(c)
#define PLANE_MAX_CODE 24
#define PLANE_BIAS 0
#define PLANE_UNIT 1
#define PLANE_OFFSET 12
#define PLANE_CENTRED 1
#include "cpu/dot_plane_x86.h"

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
#define FILL(format, name)                                         \
    table->dot[MOTE_ACT_I8_32][MOTE_FORMAT_##format] = dot_##name; \
    table->gemm[MOTE_ACT_I8_32][MOTE_FORMAT_##format] = gemm_##name;
    FILL(AFFINE2, affine2)
    FILL(AFFINE3, affine3)
    FILL(AFFINE4, affine4)
    FILL(AFFINE5, affine5)
    FILL(AFFINE6, affine6)
    FILL(AFFINE8, affine8)
    FILL(MLX_MXFP4, mlx_mxfp4)
#undef FILL
}

#else

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
