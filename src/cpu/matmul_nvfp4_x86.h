/* matmul_nvfp4_x86.h: NVFP4, as GGUF and as MLX store it. See dot_plane_x86.h.
 *
 * e2m1 codes with an e4m3 scale for 16 columns, two of which share an activation's scale. Values are doubled and 12
 * is added, so that codes need no signs.
 *
 * matmul_nvfp4_avx2.c and matmul_nvfp4_avx512.c compile this text, each for its instruction set and under its own
 * MATMUL_FILL; what differs between the two is in simd_x86.h and gemm.h.
 */
#include "cpu/kernel.h"

#if defined(__AVX2__)

#include "cpu/plane_x86.h"
#include "cpu/tile_x86.h"

/* Halves of 8 e4m3 magnitudes: exponent and mantissa put in place are the value / 2^120, subnormals too. */
MOTE_INLINE __m256 e4m3_halves(__m128i bytes)
{
    __m256i x = _mm256_and_si256(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x7F));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 20)), _mm256_set1_ps(0x1p119f));
}

/* ---- GGUF: 4 blocks of 36 bytes: 4 scales, nibbles[4][8]: low ones columns 16 s + j, high ones 16 s + 8 + j ---- */

MOTE_INLINE void scales_nvfp4(const uint8_t *b, __m256 d[2])
{
    __m128i bytes = _mm_setr_epi32((int)mote_load_u32(b), (int)mote_load_u32(b + 36),
                                   (int)mote_load_u32(b + 72), (int)mote_load_u32(b + 108));
    /* 0x7F counts as 0; 0xFF does not */
    bytes = _mm_andnot_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7F)), bytes);
    d[0] = e4m3_halves(bytes), d[1] = e4m3_halves(_mm_srli_si128(bytes, 8));
}

MOTE_INLINE void planes_nvfp4(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[4],
                              __m256 d[2], __m256 *bias)
{
    uint8_t buffer[4 * 36];
    const uint8_t *b = mote_tile_blocks(w, row, col, 64, 36, buffer);
    scales_nvfp4(b, d);
    MOTE_UNROLL for (int k = 0; k < 4; k++) v[k] = mote_load_256(b + 36 * k + 4);
    (void)bias;
}

MOTE_INLINE void rows_nvfp4(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code,
                            float *scale)
{
    uint8_t buffer[4 * 36];
    const uint8_t *b = mote_tile_blocks(w, row, col, 64, 36, buffer);
    scales_nvfp4(b, (__m256 *)(void *)scale);
    const __m256i mask = _mm256_set1_epi8(15);
    MOTE_UNROLL for (int k = 0; k < 4; k++)
    {
        __m256i v = mote_load_256(b + 36 * k + 4);
        __m256i lo = _mm256_and_si256(v, mask), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
        __m256i even = _mm256_unpacklo_epi64(lo, hi), odd = _mm256_unpackhi_epi64(lo, hi); /* 16s 0 2, 1 3 */
        mote_store_256(code + 64 * k, mote_fp4_codes(_mm256_permute2x128_si256(even, odd, 0x20)));
        mote_store_256(code + 64 * k + 32, mote_fp4_codes(_mm256_permute2x128_si256(even, odd, 0x31)));
    }
}

#define PLANE_NAME nvfp4
#define PLANE_BITS 4
#define PLANE_SPLIT 2
#define PLANE_CODES(c) mote_fp4_codes(c)
#define PLANE_MAX_CODE 24
#define PLANE_BIAS 0
#define PLANE_UNIT 1
#define PLANE_OFFSET 12
#define PLANE_SUB 1
#include "cpu/dot_plane_x86.h"

/* ---- MLX: nibbles in column order; scales in a plane: signed, and 0x7F is NaN ---- */

MOTE_INLINE void scales_mlx_nvfp4(const struct mote_matrix *w, int64_t row, int64_t col, __m256 d[2])
{
    const uint8_t *p = w->scale + row * (w->n_col / 16) + col / 16;
    _Alignas(16) uint8_t few[16] = {0};
    if (__builtin_expect(w->n_col - col < 256, 0)) p = memcpy(few, p, (size_t)((w->n_col - col) / 16));
    __m128i bytes = mote_load_128(p);
    __m128i nan = _mm_cmpeq_epi8(_mm_or_si128(bytes, _mm_set1_epi8(-128)), _mm_set1_epi8(-1));
    __m128i sign = _mm_and_si128(bytes, _mm_set1_epi8(-128));
    MOTE_UNROLL for (int h = 0; h < 2; h++)
    {
        /* sign and NaN as they widen: 0x80 to the top bit, 0xFF to all ones */
        __m256i top = _mm256_slli_epi32(_mm256_cvtepi8_epi32(sign), 24), all = _mm256_cvtepi8_epi32(nan);
        d[h] = _mm256_or_ps(e4m3_halves(bytes), _mm256_castsi256_ps(_mm256_or_si256(top, all)));
        bytes = _mm_srli_si128(bytes, 8), nan = _mm_srli_si128(nan, 8), sign = _mm_srli_si128(sign, 8);
    }
}

MOTE_INLINE void planes_mlx_nvfp4(const struct mote_matrix *w, int64_t row, int64_t col, __m256i v[4],
                                  __m256 d[2], __m256 *bias)
{
    uint8_t buffer[8 * 16];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 16, buffer);
    scales_mlx_nvfp4(w, row, col, d);
    MOTE_UNROLL for (int k = 0; k < 4; k++) v[k] = mote_load_256(p + 32 * k);
    (void)bias;
}

MOTE_INLINE void rows_mlx_nvfp4(const struct mote_matrix *w, int64_t row, int64_t col, uint8_t *code,
                                float *scale)
{
    uint8_t buffer[8 * 16];
    const uint8_t *p = mote_tile_blocks(w, row, col, 32, 16, buffer);
    scales_mlx_nvfp4(w, row, col, (__m256 *)(void *)scale);
    MOTE_UNROLL for (int k = 0; k < 8; k++)
        mote_store_256(code + 32 * k, mote_fp4_codes(mote_nibbles_in_order(p + 16 * k)));
}

#define PLANE_NAME mlx_nvfp4
#define PLANE_BITS 4
#define PLANE_SPLIT 0
#define PLANE_CODES(c) mote_fp4_codes(c)
#define PLANE_MAX_CODE 24
#define PLANE_BIAS 0
#define PLANE_UNIT 1
#define PLANE_OFFSET 12
#define PLANE_SUB 1
#include "cpu/dot_plane_x86.h"

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
    table->dot[MOTE_ACT_I8_32][MOTE_FORMAT_NVFP4] = dot_nvfp4;
    table->gemm[MOTE_ACT_I8_32][MOTE_FORMAT_NVFP4] = gemm_nvfp4;
    table->dot[MOTE_ACT_I8_32][MOTE_FORMAT_MLX_NVFP4] = dot_mlx_nvfp4;
    table->gemm[MOTE_ACT_I8_32][MOTE_FORMAT_MLX_NVFP4] = gemm_mlx_nvfp4;
}

#else

void MATMUL_FILL(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
