/* act.c: where the arrays of a quantised activation lie, and which type a product uses by default. See act.h.
 */
#include "cpu/act.h"

#include <string.h>

#include "base/mem.h"
#include "quant/mxfp4.h"

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

enum mote_act_type mote_act_chosen(enum mote_format format, enum mote_act_wish wish)
{
    if (wish == MOTE_WISH_F32) return MOTE_ACT_F32;
    int is_mx = format == MOTE_FORMAT_MXFP4 || format == MOTE_FORMAT_MLX_MXFP4;
    return wish == MOTE_WISH_MXFP4 && is_mx ? MOTE_ACT_MXFP4 : mote_act_default(format);
}

mote_status mote_act_wish_parse(const char *text, enum mote_act_wish *out)
{
    static const char *const name[] = {"default", "f32", "mxfp4"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!strcmp(text ? text : "default", name[i])) {
            *out = (enum mote_act_wish)i;
            return MOTE_OK;
        }
    return mote_fail(MOTE_ARGUMENT, "activation type '%s', expected default, f32 or mxfp4", text);
}

const char *mote_act_type_name(enum mote_act_type type)
{
    static const char *const name[MOTE_ACT_TYPE_COUNT] = {"f32", "i8x32", "i8x256", "mxfp4"};
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
    size_t group = (size_t)mote_act_group(type);
    out->scale = round_up_64(n);
    out->sum = out->scale + round_up_64(n / group * sizeof(float));
    out->sum32 = out->sum + round_up_64(n / 16 * sizeof(int16_t));
    out->bytes = out->sum32 + (group == 32 ? round_up_64(n / 32 * sizeof(float)) : 0);
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
    if (mote_act_group(type) == 32) act.sum32 = (float *)(void *)(base + at.sum32);
    return act;
}

void mote_act_to_mxfp4(const float *x, int64_t row, int64_t n_row, struct mote_act *act)
{
    for (int64_t i = row; i < row + n_row; i++)
        for (int64_t col = 0; col < act->stride; col += 32) {
            int64_t left = act->n_col - col,
                    n = left < 0    ? 0
                        : left < 32 ? left
                                    : 32,
                    at = i * act->stride + col;
            float block[32] = {0};
            for (int64_t c = 0; c < n; c++) block[c] = x[i * act->n_col + col + c];
            int8_t *q = act->q + at;
            int16_t *sum = act->sum + at / 16;
            act->scale[at / 32] = mote_mxfp4_block(block, q);
            for (int g = 0; g < 2; g++) {
                int all = 0;
                for (int c = 0; c < 16; c++) all += q[16 * g + c];
                sum[g] = (int16_t)all;
            }
            act->sum32[at / 32] = act->scale[at / 32] * (float)(sum[0] + sum[1]);
        }
}
