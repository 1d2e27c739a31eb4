/* ops_scalar.c: the small operations between matrix products, in plain C.
 *
 * Owns: rms_norm, rope, kv_store, activations and axpy of the scalar tier: the oracle of the other tiers.
 * One idea: float64 inside, one rounding to float at the end.
 */
#include <math.h>
#include <string.h>

#include "base/float_bits.h"
#include "cpu/attend.h"

static void rms_norm(const float *x, const float *weight, int64_t n_col, float eps, float *y)
{
    double sum = 0;
    for (int64_t c = 0; c < n_col; c++) sum += (double)x[c] * x[c];
    double factor = 1 / sqrt(sum / (double)n_col + eps);
    for (int64_t c = 0; c < n_col; c++) y[c] = (float)(x[c] * factor * weight[c]);
}

static void rope(float *x, int64_t n_head, int64_t head_dim, int64_t n_rot, const float *cosine,
                 const float *sine)
{
    int64_t half = n_rot / 2;
    for (int64_t h = 0; h < n_head; h++, x += head_dim) {
        for (int64_t i = 0; i < half; i++) {
            double a = x[i], b = x[i + half];
            x[i] = (float)(a * cosine[i] - b * sine[i]);
            x[i + half] = (float)(a * sine[i] + b * cosine[i]);
        }
    }
}

/* The codes are taken against the scale as stored, so its rounding to f16 costs nothing but a clamp at 127.
 * NaN or infinity in a block makes its scale NaN or infinite, and with it the whole block. */
static void store_q8_block(const float *x, int64_t n, uint8_t *out) // x[n], n <= 32; out[34]
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++) {
        float magnitude = fabsf(x[i]);
        if (magnitude > amax || isnan(magnitude)) amax = magnitude;
        if (isnan(amax)) break;
    }
    uint16_t half = mote_f32_f16(amax / 127);
    float scale = mote_f16_f32(half);
    memcpy(out, &half, sizeof half);
    for (int64_t i = 0; i < 32; i++) {
        float code = i < n && scale > 0 && isfinite(scale) ? rintf(x[i] / scale) : 0;
        out[2 + i] = (uint8_t)(int8_t)fminf(fmaxf(code, -127), 127);
    }
}

static void kv_store(enum mote_kv_type type, const float *x, int64_t n, void *out)
{
    uint8_t *bytes = out;
    switch (type) {
    case MOTE_KV_F32: memcpy(bytes, x, (size_t)n * sizeof *x); break;
    case MOTE_KV_F16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t half = mote_f32_f16(x[i]);
            memcpy(bytes + 2 * i, &half, sizeof half);
        }
        break;
    default:
        for (int64_t i = 0; i < n; i += 32, bytes += 34)
            store_q8_block(x + i, n - i < 32 ? n - i : 32, bytes);
    }
}

/* Comparisons that are false for a NaN let it through. */
static double at_most(double x, double limit)
{
    return x > limit ? limit : x;
}
static double within(double x, double limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}
static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double activated(enum mote_activation_kind kind, double g, double u, double limit)
{
    switch (kind) {
    case MOTE_ACTIVATION_SWIGLU_CLAMPED: return silu(at_most(g, limit)) * within(u, limit);
    case MOTE_ACTIVATION_SWIGLU_STEP: return at_most(silu(g), limit) * within(u, limit);
    case MOTE_ACTIVATION_SWIGLU_OAI:
        g = at_most(g, limit);
        return g / (1 + exp(-1.702 * g)) * (within(u, limit) + 1);
    case MOTE_ACTIVATION_RELU2: return u < 0 ? 0 : u * u;
    default: return silu(g) * u;
    }
}

#define ACTIVATE(kind, name, is_gated, usual)                                                           \
    static void activate_##kind(const float *gate, const float *up, float limit, int64_t n, float *out) \
    {                                                                                                   \
        for (int64_t i = 0; i < n; i++)                                                                 \
            out[i] = (float)activated(MOTE_ACTIVATION_##kind, is_gated ? gate[i] : 0, up[i], limit);    \
    }
MOTE_ACTIVATIONS(ACTIVATE)

static void axpy(float a, const float *x, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = (float)((double)a * x[i] + y[i]);
}

void mote_ops_scalar_fill(struct mote_cpu_kernels *table)
{
    table->rms_norm = rms_norm;
    table->rope = rope;
    table->kv_store = kv_store;
    table->attend = mote_attend_scalar;
#define FILL(kind, name, is_gated, usual) table->activate[MOTE_ACTIVATION_##kind] = activate_##kind;
    MOTE_ACTIVATIONS(FILL)
#undef FILL
    table->axpy = axpy;
}
