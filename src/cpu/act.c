/* act.c: where the arrays of a quantised activation lie, and which type a product uses by default. See act.h.
 */
#include "cpu/act.h"

#include "base/mem.h"

/* Formats that are not named have no integer product, or lose more to 8-bit activations than they save: F32.
 */
static const uint8_t default_type[MOTE_FORMAT_COUNT] = {
    [MOTE_FORMAT_Q4_0] = MOTE_ACT_I8_32,      [MOTE_FORMAT_Q8_0] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_Q4_1] = MOTE_ACT_I8_32,      [MOTE_FORMAT_Q5_0] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_Q5_1] = MOTE_ACT_I8_32,      [MOTE_FORMAT_Q2_K] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_Q3_K] = MOTE_ACT_I8_256,     [MOTE_FORMAT_Q4_K] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_Q5_K] = MOTE_ACT_I8_256,     [MOTE_FORMAT_Q6_K] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_IQ2_XXS] = MOTE_ACT_I8_256,  [MOTE_FORMAT_IQ2_XS] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_IQ2_S] = MOTE_ACT_I8_256,    [MOTE_FORMAT_IQ3_XXS] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_IQ3_S] = MOTE_ACT_I8_256,    [MOTE_FORMAT_IQ1_S] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_IQ1_M] = MOTE_ACT_I8_256,    [MOTE_FORMAT_IQ4_NL] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_IQ4_XS] = MOTE_ACT_I8_256,   [MOTE_FORMAT_TQ1_0] = MOTE_ACT_I8_256,
    [MOTE_FORMAT_TQ2_0] = MOTE_ACT_I8_256,    [MOTE_FORMAT_MXFP4] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_Q1_0] = MOTE_ACT_I8_32,      [MOTE_FORMAT_Q2_0] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_PQ2_0] = MOTE_ACT_I8_32,     [MOTE_FORMAT_PTQ1_0] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_AFFINE2] = MOTE_ACT_I8_32,   [MOTE_FORMAT_AFFINE3] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_AFFINE4] = MOTE_ACT_I8_32,   [MOTE_FORMAT_AFFINE5] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_AFFINE6] = MOTE_ACT_I8_32,   [MOTE_FORMAT_AFFINE8] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_MLX_MXFP4] = MOTE_ACT_I8_32, [MOTE_FORMAT_NVFP4] = MOTE_ACT_I8_32,
    [MOTE_FORMAT_MLX_NVFP4] = MOTE_ACT_I8_32,
};

enum mote_act_type mote_act_default(enum mote_format format)
{
    return (enum mote_act_type)default_type[format];
}

const char *mote_act_type_name(enum mote_act_type type)
{
    static const char *const name[MOTE_ACT_TYPE_COUNT] = {"f32", "i8x32", "i8x256"};
    return (unsigned)type < MOTE_ACT_TYPE_COUNT ? name[type] : "?";
}

/* The arrays q, scale, sum, sum32 lie one after the other, each begun on a 64-byte line. */
struct layout {
    size_t scale, sum, sum32, bytes;
};

static size_t round_up_64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Every array of a row is at most 4 * stride bytes, so n_row * stride <= 2^56 leaves no sum to overflow. */
static int lay_out(enum mote_act_type type, int64_t n_row, int64_t n_col, struct layout *out)
{
    size_t n;
    if (n_row < 0 || n_col < 0 || n_col > INT64_MAX / 2) return 0;
    if (!mote_mul_size((size_t)n_row, (size_t)mote_act_stride(n_col), &n) || n > (size_t)1 << 56) return 0;
    size_t group = type == MOTE_ACT_I8_32 ? 32 : 256;
    out->scale = round_up_64(n);
    out->sum = out->scale + round_up_64(n / group * sizeof(float));
    out->sum32 = out->sum + round_up_64(n / 16 * sizeof(int16_t));
    out->bytes = out->sum32 + (type == MOTE_ACT_I8_32 ? round_up_64(n / 32 * sizeof(float)) : 0);
    return 1;
}

size_t mote_act_bytes(enum mote_act_type type, int64_t n_row, int64_t n_col)
{
    struct layout at;
    if (type == MOTE_ACT_F32) return 0;
    return lay_out(type, n_row, n_col, &at) ? at.bytes : SIZE_MAX;
}

struct mote_act mote_act_place(enum mote_act_type type, int64_t n_row, int64_t n_col, const float *x,
                               void *memory)
{
    struct mote_act act = {
        .type = type, .n_row = n_row, .n_col = n_col, .stride = mote_act_stride(n_col), .x = x};
    struct layout at;
    if (type == MOTE_ACT_F32 || !lay_out(type, n_row, n_col, &at)) return act;
    char *base = memory;
    act.q = (int8_t *)base;
    act.scale = (float *)(void *)(base + at.scale);
    act.sum = (int16_t *)(void *)(base + at.sum);
    if (type == MOTE_ACT_I8_32) act.sum32 = (float *)(void *)(base + at.sum32);
    return act;
}
