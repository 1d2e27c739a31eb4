/* ops_avx2.c: the small operations between matrix products, with AVX2.
 *
 * Owns: rms_norm, rope, kv_store, activations and axpy of the avx2 tier, and its entry of attention.
 * One idea: one pass over memory; ends that do not fill a vector are loaded and stored under a mask, so that
 * every element sees the same arithmetic wherever it stands.
 */
#include "cpu/attend.h"

#if defined(__x86_64__) && defined(__AVX2__)

#include <math.h>
#include <string.h>

#include "cpu/exp_avx2.h"

/* The first n lanes. */
static inline __m256i lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The sum of squares is taken in float64: a float would overflow at 1e19 and lose digits at 4096 columns. */
static void rms_norm(const float *x, const float *weight, int64_t n_col, float eps, float *y)
{
    __m256d sum[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    int64_t c = 0;
    for (; c + 16 <= n_col; c += 16) {
        for (int i = 0; i < 4; i++) {
            __m256d v = _mm256_cvtps_pd(_mm_loadu_ps(x + c + 4 * i));
            sum[i] = _mm256_fmadd_pd(v, v, sum[i]);
        }
    }
    double part[4], total = 0;
    _mm256_storeu_pd(part, _mm256_add_pd(_mm256_add_pd(sum[0], sum[1]), _mm256_add_pd(sum[2], sum[3])));
    for (; c < n_col; c++) total += (double)x[c] * x[c];
    total += (part[0] + part[1]) + (part[2] + part[3]);
    __m256d factor = _mm256_set1_pd(1 / sqrt(total / (double)n_col + eps));
    for (c = 0; c + 4 <= n_col; c += 4) {
        __m256d v = _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + c)), factor);
        _mm_storeu_ps(y + c, _mm256_cvtpd_ps(_mm256_mul_pd(v, _mm256_cvtps_pd(_mm_loadu_ps(weight + c)))));
    }
    for (; c < n_col; c++) y[c] = (float)(x[c] * _mm256_cvtsd_f64(factor) * weight[c]);
}

static void rope(float *x, int64_t n_head, int64_t head_dim, int64_t n_rot, const float *cosine,
                 const float *sine)
{
    int64_t half = n_rot / 2;
    for (int64_t i = 0; i < half; i += 8) {
        __m256i mask = lanes(half - i);
        __m256 c = _mm256_maskload_ps(cosine + i, mask), s = _mm256_maskload_ps(sine + i, mask);
        for (int64_t h = 0; h < n_head; h++) {
            float *first = x + h * head_dim + i, *second = first + half;
            __m256 a = _mm256_maskload_ps(first, mask), b = _mm256_maskload_ps(second, mask);
            _mm256_maskstore_ps(first, mask, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
            _mm256_maskstore_ps(second, mask, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
        }
    }
}

/* The same codes as the scalar tier's, bit for bit. */
static void store_q8_block(const float *x, int64_t n, uint8_t *out) // x[n], n <= 32; out[34]
{
    __m256 v[4], top = _mm256_setzero_ps(), nan = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_maskload_ps(x + 8 * i, lanes(n - 8 * i));
        top = _mm256_max_ps(top, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
    }
    __m128 top4 = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    top4 = _mm_max_ps(top4, _mm_movehl_ps(top4, top4));
    float amax = _mm256_movemask_ps(nan) ? NAN : _mm_cvtss_f32(_mm_max_ss(top4, _mm_movehdup_ps(top4)));
    uint16_t half = (uint16_t)_cvtss_sh(amax / 127, _MM_FROUND_TO_NEAREST_INT);
    float scale = _cvtsh_ss(half);
    memcpy(out, &half, sizeof half);
    __m256i code[4];
    for (int i = 0; i < 4; i++) {
        __m256 c = _mm256_div_ps(v[i], _mm256_set1_ps(scale));
        c = _mm256_min_ps(_mm256_max_ps(c, _mm256_set1_ps(-127)), _mm256_set1_ps(127));
        code[i] = scale > 0 && isfinite(scale) ? _mm256_cvtps_epi32(c) : _mm256_setzero_si256();
    }
    __m256i low = _mm256_packs_epi32(code[0], code[1]), high = _mm256_packs_epi32(code[2], code[3]);
    __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)(out + 2), bytes);
}

static void store_f16(const float *x, int64_t n, uint8_t *out) // x[n], out[2 * n]
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(out + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) {
        uint16_t half = (uint16_t)_cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
        memcpy(out + 2 * i, &half, sizeof half);
    }
}

static void kv_store(enum mote_kv_type type, const float *x, int64_t n, void *out)
{
    uint8_t *bytes = out;
    switch (type) {
    case MOTE_KV_F32: memcpy(bytes, x, (size_t)n * sizeof *x); break;
    case MOTE_KV_F16: store_f16(x, n, bytes); break;
    default:
        for (int64_t i = 0; i < n; i += 32, bytes += 34)
            store_q8_block(x + i, n - i < 32 ? n - i : 32, bytes);
    }
}

/* With e = exp(-|x|), which cannot overflow, sigmoid is 1 / (1 + e) for x >= 0 and e / (1 + e) below. */
static inline __m256 sigmoid(__m256 x)
{
    __m256 e = exp_nonpositive(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
    __m256 one = _mm256_set1_ps(1), top = _mm256_blendv_ps(one, e, x); /* the sign chooses */
    return _mm256_div_ps(top, _mm256_add_ps(one, e));
}
static inline __m256 silu(__m256 x)
{
    return _mm256_mul_ps(x, sigmoid(x));
}
/* Of a NaN and a number, min and max give the second. */
static inline __m256 at_most(__m256 x, __m256 limit)
{
    return _mm256_min_ps(limit, x);
}
static inline __m256 within(__m256 x, __m256 limit)
{
    return _mm256_max_ps(_mm256_xor_ps(limit, _mm256_set1_ps(-0.0f)), at_most(x, limit));
}

static inline __m256 activated(enum mote_activation_kind kind, __m256 g, __m256 u, __m256 limit)
{
    switch (kind) {
    case MOTE_ACTIVATION_SWIGLU_CLAMPED: return _mm256_mul_ps(silu(at_most(g, limit)), within(u, limit));
    case MOTE_ACTIVATION_SWIGLU_STEP: return _mm256_mul_ps(at_most(silu(g), limit), within(u, limit));
    case MOTE_ACTIVATION_SWIGLU_OAI:
        g = at_most(g, limit);
        u = _mm256_add_ps(within(u, limit), _mm256_set1_ps(1));
        return _mm256_mul_ps(_mm256_mul_ps(g, sigmoid(_mm256_mul_ps(g, _mm256_set1_ps(1.702f)))), u);
    case MOTE_ACTIVATION_RELU2: u = _mm256_max_ps(_mm256_setzero_ps(), u); return _mm256_mul_ps(u, u);
    default: return _mm256_mul_ps(silu(g), u);
    }
}

#define ACTIVATE(kind, name, is_gated, usual)                                                           \
    static void activate_##kind(const float *gate, const float *up, float limit, int64_t n, float *out) \
    {                                                                                                   \
        for (int64_t i = 0; i < n; i += 8) {                                                            \
            __m256i mask = lanes(n - i);                                                                \
            __m256 g = is_gated ? _mm256_maskload_ps(gate + i, mask) : _mm256_setzero_ps(),             \
                   u = _mm256_maskload_ps(up + i, mask);                                                \
            _mm256_maskstore_ps(out + i, mask,                                                          \
                                activated(MOTE_ACTIVATION_##kind, g, u, _mm256_set1_ps(limit)));        \
        }                                                                                               \
    }
MOTE_ACTIVATIONS(ACTIVATE)

static void axpy(float a, const float *x, int64_t n, float *y)
{
    __m256 factor = _mm256_set1_ps(a);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    __m256i mask = lanes(n - i);
    __m256 v = _mm256_fmadd_ps(factor, _mm256_maskload_ps(x + i, mask), _mm256_maskload_ps(y + i, mask));
    _mm256_maskstore_ps(y + i, mask, v);
}

void mote_ops_avx2_fill(struct mote_cpu_kernels *table)
{
    table->rms_norm = rms_norm;
    table->rope = rope;
    table->kv_store = kv_store;
    table->attend = mote_attend_avx2;
#define FILL(kind, name, is_gated, usual) table->activate[MOTE_ACTIVATION_##kind] = activate_##kind;
    MOTE_ACTIVATIONS(FILL)
#undef FILL
    table->axpy = axpy;
}

#else

void mote_ops_avx2_fill(struct mote_cpu_kernels *table)
{
    (void)table;
}

#endif
