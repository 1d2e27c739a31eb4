/* encode_block.h: what the encoder families share. Private to src/quant/encode*.c.
 *
 * Owns: the list of encoders, the 8-lane vector type, and the normalised copy of a block with its weights.
 * One idea: an encoder's text is plain C over 8-lane vectors and is compiled once per instruction set
 * (MOTE_TIER names the copies; encode_avx2.c is the second one). No fused multiply-add anywhere and a fixed
 * order of additions, so that every copy writes the same bytes.
 */
#ifndef MOTE_QUANT_ENCODE_BLOCK_H
#define MOTE_QUANT_ENCODE_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "base/float_bits.h"
#include "quant/format.h"

#ifndef MOTE_TIER
#define MOTE_TIER(name) name##_base
#endif

/* X(format id, function, does importance change the result, bytes of scratch) */
#define MOTE_ENCODERS(X)                                   \
    X(F32, f32, 0, 0)                                      \
    X(F16, f16, 0, 0)                                      \
    X(BF16, bf16, 0, 0)                                    \
    X(Q4_0, q4_0, 1, 0)                                    \
    X(Q4_1, q4_1, 1, 0)                                    \
    X(Q5_0, q5_0, 1, 0)                                    \
    X(Q5_1, q5_1, 1, 0)                                    \
    X(Q8_0, q8_0, 0, 0)                                    \
    X(Q2_K, q2_k, 1, 0)                                    \
    X(Q3_K, q3_k, 1, 0)                                    \
    X(Q4_K, q4_k, 1, 0)                                    \
    X(Q5_K, q5_k, 1, 0)                                    \
    X(Q6_K, q6_k, 1, 0)                                    \
    X(IQ2_XXS, iq2_xxs, 1, sizeof(struct mote_iq_scratch)) \
    X(IQ3_XXS, iq3_xxs, 1, sizeof(struct mote_iq_scratch)) \
    X(IQ4_NL, iq4_nl, 1, 0)                                \
    X(IQ4_XS, iq4_xs, 1, 0)                                \
    X(TQ1_0, tq1_0, 1, 0)                                  \
    X(TQ2_0, tq2_0, 1, 0)                                  \
    X(MXFP4, mxfp4, 1, 0)                                  \
    X(NVFP4, nvfp4, 1, 0)                                  \
    X(Q1_0, q1_0, 1, 0)                                    \
    X(Q2_0, q2_0, 1, 0)                                    \
    X(PQ2_0, pq2_0, 1, 0)                                  \
    X(PTQ1_0, ptq1_0, 1, 0)

/* Encode one row x[n] of finite values; v[n] is its importance or NULL for plain. n is a multiple of the
 * block. `scratch` has the bytes of the list above, zeroed before the first row and kept between the rows of
 * a call. */
typedef void mote_encode_row_fn(const float *x, const float *v, int64_t n, uint8_t *out, void *scratch);

#define X(id, function, importance, scratch) \
    mote_encode_row_fn mote_encode_row_##function##_base, mote_encode_row_##function##_avx2;
MOTE_ENCODERS(X)
#undef X

/* Codes of affine groups x[n_group][group] into a bit stream; scale and bias stay f32 (encode_affine.c stores
 * them as the caller's type). */
typedef void mote_encode_affine_fn(const float *x, int64_t n_group, int group, int bits, uint8_t *codes,
                                   float *scale, float *bias);
mote_encode_affine_fn mote_encode_affine_groups_base, mote_encode_affine_groups_avx2;

/* Whether x[n] is all finite; if not, *at is the first column that is not. */
int mote_encode_is_finite(const float *x, int64_t n, int64_t *at);

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

/* Working memory of the IQ2_XXS and IQ3_XXS search over one block of 256 (encode_iq.c says how). */
struct mote_iq_scratch {
    int ready;             /* grid[], square[], norm are filled */
    f32x8 grid[8][32];     /* [element][entry] */
    f32x8 square[8][32];   /* grid squared */
    f32x8 norm[32];        /* [entry]: sum of squares */
    f32x8 along[64][32];   /* [group][entry]: 2 sum w |x| g */
    f32x8 flipped[64][32]; /* the same with the cheapest sign flipped; groups of the wrong parity only */
    f32x8 energy[64][32];  /* sum w g^2; unused without importance (norm is it) */
};

/* Always inlined: how a 32-byte vector is passed depends on the instruction set (hence -Wno-psabi). */
#define MOTE_INLINE static inline __attribute__((always_inline, unused))

MOTE_INLINE f32x8 vec_splat(float value)
{
    return (f32x8){value, value, value, value, value, value, value, value};
}

MOTE_INLINE f32x8 vec_select(i32x8 mask, f32x8 yes, f32x8 no)
{
    return (f32x8)(((i32x8)yes & mask) | ((i32x8)no & ~mask));
}

#if defined(__SSE2__) && !defined(__AVX__) /* compilers make scalar code of 32-byte comparisons */
MOTE_INLINE __m128 vec_half(f32x8 x, int half)
{
    __m128 part[2];
    memcpy(part, &x, sizeof part);
    return part[half];
}

MOTE_INLINE f32x8 vec_join(__m128 low, __m128 high)
{
    f32x8 x;
    memcpy(&x, (const __m128[2]){low, high}, sizeof x);
    return x;
}
#endif

MOTE_INLINE f32x8 vec_min(f32x8 a, f32x8 b) /* a < b ? a : b */
{
#ifdef __AVX__
    return (f32x8)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return vec_join(_mm_min_ps(vec_half(a, 0), vec_half(b, 0)), _mm_min_ps(vec_half(a, 1), vec_half(b, 1)));
#else
    return vec_select(a < b, a, b);
#endif
}

MOTE_INLINE f32x8 vec_max(f32x8 a, f32x8 b) /* a > b ? a : b */
{
#ifdef __AVX__
    return (f32x8)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return vec_join(_mm_max_ps(vec_half(a, 0), vec_half(b, 0)), _mm_max_ps(vec_half(a, 1), vec_half(b, 1)));
#else
    return vec_select(a > b, a, b);
#endif
}

MOTE_INLINE f32x8 vec_load(const float *x)
{
    f32x8 value;
    memcpy(&value, x, sizeof value);
    return value;
}

MOTE_INLINE f32x8 vec_abs(f32x8 x)
{
    return (f32x8)((i32x8)x & 0x7FFFFFFF);
}

/* Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction. */
MOTE_INLINE f32x8 vec_round(f32x8 x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

/* Nearest integer, halves away from zero, for |x| < 2^22. */
MOTE_INLINE f32x8 vec_round_away(f32x8 x)
{
    f32x8 magnitude = vec_abs(x);
    f32x8 whole = __builtin_convertvector(__builtin_convertvector(magnitude, i32x8), f32x8);
    whole += (f32x8)((magnitude - whole >= 0.5f) & (i32x8)vec_splat(1));
    return (f32x8)((i32x8)whole | ((i32x8)x & (int32_t)0x80000000));
}

MOTE_INLINE float round_even(float x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

MOTE_INLINE float clampf(float x, float lo, float hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

MOTE_INLINE float max8(f32x8 x)
{
    float best = x[0];
    for (int i = 1; i < 8; i++) best = x[i] > best ? x[i] : best;
    return best;
}

MOTE_INLINE float min8(f32x8 x)
{
    float best = x[0];
    for (int i = 1; i < 8; i++) best = x[i] < best ? x[i] : best;
    return best;
}

MOTE_INLINE float sum8(f32x8 x)
{
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

MOTE_INLINE float abs_max(const float *x, int n) /* n: a multiple of 8 */
{
    f32x8 best = vec_splat(0);
    for (int i = 0; i < n; i += 8) best = vec_max(vec_abs(vec_load(x + i)), best);
    return max8(best);
}

/* The value of largest magnitude, the first one of equals. */
MOTE_INLINE float signed_max(const float *x, int n)
{
    float largest = abs_max(x, n);
    int i = 0;
    while (i < n - 1 && x[i] != largest && x[i] != -largest) i++;
    return x[i];
}

MOTE_INLINE void store_u16(uint8_t *out, uint16_t value)
{
    memcpy(out, &value, sizeof value);
}

/* Nearest finite half: beyond +-65504 the largest one, so that no block decodes to infinity. */
MOTE_INLINE uint16_t f16_clamped(float value)
{
    return mote_f32_f16(clampf(value, -65504.0f, 65504.0f));
}

/* 1/d as the reference quantisers use it, except that 1/denormal gives 0, not infinity. */
MOTE_INLINE float inverse_or_zero(float d)
{
    float inverse = d != 0 ? 1.0f / d : 0;
    return inverse < -0x1.fffffep127f || inverse > 0x1.fffffep127f ? 0 : inverse;
}

/* A block scaled by a power of two so that its largest magnitude is in [1, 2), and its weights with mean 1.
 */
struct block {
    float x[256], w[256];
    float unit; /* original = x * unit; 0: nothing in the block that half-precision scales could hold */
};

MOTE_INLINE void block_load(struct block *b, const float *x, const float *v, int n)
{
    float largest = abs_max(x, n);
    b->unit = 0;
    if (largest < 0x1p-60f) return;
    uint32_t exponent = mote_f32_bits(largest) & 0x7F800000u; /* of a power of two between 2^-60 and 2^127 */
    b->unit = mote_bits_f32(exponent);
    float inverse = 1.0f / b->unit; /* exact: 2^-127 is a subnormal float */
    for (int i = 0; i < n; i++) b->x[i] = x[i] * inverse;
    double sum = 0;
    if (v)
        for (int i = 0; i < n; i++) sum += (double)v[i];
    if (!(sum > 0)) {
        for (int i = 0; i < n; i++) b->w[i] = 1;
        return;
    }
    /* Columns of weight 0 still get a trace, so that every sum of weights is positive. */
    double scale = n / sum;
    for (int i = 0; i < n; i++) b->w[i] = (float)((double)v[i] * scale) + 1e-5f;
}

/* A normalised scale as the half that is stored, and the normalised value that decoding will use. */
MOTE_INLINE uint16_t block_scale(const struct block *b, float scale, float *used)
{
    uint16_t half = f16_clamped(scale * b->unit);
    *used = mote_f16_f32(half) / b->unit;
    return half;
}

#endif
