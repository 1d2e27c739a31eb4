/* matmul_scalar.c: the products and the quantisation that every other instruction set is held to.
 *
 * One idea: decode a tile of a weight row exactly, multiply by the activations as the contract quantises
 * them, add up in float64, round once. Slow on purpose: it has no shortcut that could hide a fault.
 */
#include <math.h>
#include <string.h>

#include "base/float_bits.h"
#include "cpu/kernel.h"
#include "quant/decode.h"

enum { TILE = 256, BATCH = 32 };

static double dot_f32(const float *w, const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += (double)w[c] * (double)x[c];
    return sum;
}

/* Columns [col, col + n) of row i of a quantised activation; `group` columns share a scale. */
static double dot_i8(const float *w, const struct mote_act *x, int64_t i, int64_t col, int64_t n,
                     int64_t group)
{
    const int8_t *q = x->q + i * x->stride + col;
    const float *scale = x->scale + (i * x->stride + col) / group;
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += (double)w[c] * ((double)scale[c / group] * q[c]);
    return sum;
}

/* dot and gemm of every format and activation type. */
static void matmul(const struct mote_matrix *w, int64_t row, int64_t n_row, const struct mote_act *x,
                   const int32_t *x_row, int64_t n_x, float *y, int64_t y_stride)
{
    float tile[TILE];
    int64_t group = mote_act_group(x->type);
    for (int64_t r = 0; r < n_row; r++) {
        for (int64_t first = 0; first < n_x; first += BATCH) {
            int64_t n_batch = n_x - first < BATCH ? n_x - first : BATCH;
            double sum[BATCH] = {0};
            for (int64_t col = 0; col < w->n_col; col += TILE) {
                int64_t n = w->n_col - col < TILE ? w->n_col - col : TILE;
                mote_decode(w, row + r, col, n, tile);
                for (int64_t b = 0; b < n_batch; b++) {
                    int64_t i = x_row ? x_row[first + b] : first + b;
                    sum[b] += x->type == MOTE_ACT_F32 ? dot_f32(tile, x->x + i * x->n_col + col, n)
                                                      : dot_i8(tile, x, i, col, n, group);
                }
            }
            for (int64_t b = 0; b < n_batch; b++) y[(first + b) * y_stride + r] = (float)sum[b];
        }
    }
}

/* One group: the largest magnitude gives the scale. A NaN or infinity makes the scale NaN, so that every
 * product with the row shows it; magnitudes below 2^-100 count as zero, so that 127 / amax cannot overflow.
 */
static float quantise_group(const float *x, int64_t n, int64_t group, int8_t *q)
{
    uint32_t amax_bits = 0; /* bits order like magnitudes, NaN above infinity */
    for (int64_t c = 0; c < n; c++) {
        uint32_t bits = mote_f32_bits(x[c]) & 0x7FFFFFFFu;
        if (bits > amax_bits) amax_bits = bits;
    }
    memset(q, 0, (size_t)group);
    if (amax_bits >= 0x7F800000u) return mote_bits_f32(0x7FC00000u);
    float amax = mote_bits_f32(amax_bits);
    if (amax < 0x1p-100f) return 0;
    float inverse = 127.0f / amax;
    for (int64_t c = 0; c < n; c++) q[c] = (int8_t)lrintf(x[c] * inverse);
    return amax / 127.0f;
}

static void quantise(const float *x, int64_t row, int64_t n_row, struct mote_act *act)
{
    if (act->type == MOTE_ACT_F32) return;
    if (act->type == MOTE_ACT_MXFP4) {
        mote_act_to_mxfp4(x, row, n_row, act);
        return;
    }
    int64_t group = mote_act_group(act->type);
    for (int64_t i = row; i < row + n_row; i++) {
        for (int64_t col = 0; col < act->stride; col += group) {
            int64_t left = act->n_col - col, n = left < 0 ? 0 : left < group ? left : group;
            int64_t at = i * act->stride + col;
            float scale = quantise_group(x + i * act->n_col + (n ? col : 0), n, group, act->q + at);
            act->scale[at / group] = scale;
            for (int64_t g = 0; g < group / 16; g++) {
                int sum = 0;
                for (int c = 0; c < 16; c++) sum += act->q[at + 16 * g + c];
                act->sum[at / 16 + g] = (int16_t)sum;
            }
            if (act->type == MOTE_ACT_I8_32)
                act->sum32[at / 32] = scale * (float)(act->sum[at / 16] + act->sum[at / 16 + 1]);
        }
    }
}

void mote_matmul_scalar_fill(struct mote_cpu_kernels *table)
{
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        if (mote_format_traits((enum mote_format)f)->family == MOTE_FAMILY_OTHER) continue;
        enum mote_act_type type = mote_act_default((enum mote_format)f);
        table->dot[MOTE_ACT_F32][f] = table->gemm[MOTE_ACT_F32][f] = matmul;
        table->dot[type][f] = table->gemm[type][f] = matmul;
    }
    table->quantise = quantise;
}
