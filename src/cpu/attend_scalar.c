/* attend_scalar.c: attention in plain C and float64, and the layout of keys and values.
 *
 * Owns: the oracle of attention; bytes of a key or value row; the scratch that any tier may ask for.
 * One idea: one pass over the keys with a running maximum, so that no buffer grows with the context.
 */
#include "cpu/attend.h"

#include <math.h>

#include "base/float_bits.h"

enum { Q8_BLOCK = 32, Q8_BYTES = 34 };

size_t mote_kv_row_bytes(enum mote_kv_type type, int64_t head_dim)
{
    switch (type) {
    case MOTE_KV_F32: return (size_t)head_dim * sizeof(float);
    case MOTE_KV_F16: return (size_t)head_dim * sizeof(uint16_t);
    default: return (size_t)(head_dim + Q8_BLOCK - 1) / Q8_BLOCK * Q8_BYTES;
    }
}

const char *mote_kv_type_name(enum mote_kv_type type)
{
    static const char *const name[MOTE_KV_TYPE_COUNT] = {"f32", "f16", "q8_0"};
    return (unsigned)type < MOTE_KV_TYPE_COUNT ? name[type] : "?";
}

struct mote_attend_plan mote_attend_plan(int64_t n_query, int64_t n_group, int64_t head_dim)
{
    struct mote_attend_plan plan = {0};
    int64_t tile = n_group < MOTE_ATTEND_ROWS ? MOTE_ATTEND_ROWS / n_group : 1;
    plan.tile_query = tile < n_query ? tile : n_query;
    plan.rows = plan.tile_query * n_group;
    plan.width = (head_dim + MOTE_ATTEND_PANEL - 1) & ~(int64_t)(MOTE_ATTEND_PANEL - 1);
    size_t row = (size_t)plan.width * sizeof(float), rows = (size_t)plan.rows;
    size_t vector = (rows * sizeof(float) + 63) & ~(size_t)63;
    plan.out = plan.q + rows * row;
    plan.score = plan.out + rows * row;
    plan.max = plan.score + rows * MOTE_ATTEND_KEYS * sizeof(float);
    plan.total = plan.max + vector;
    plan.shrink = plan.total + vector;
    plan.k = plan.shrink + vector;
    plan.v = plan.k + MOTE_ATTEND_KEYS * row;
    plan.bytes = plan.v + MOTE_ATTEND_KEYS * row;
    return plan;
}

/* The scalar tier wants 12 bytes a column, which is less than the smallest plan. The tiers share one size, so
 * that scratch laid out for a table serves the one below it. */
size_t mote_attend_scratch(int64_t n_query, int64_t n_group, int64_t head_dim)
{
    return mote_attend_plan(n_query, n_group, head_dim).bytes;
}

static void load_row(enum mote_kv_type type, const uint8_t *row, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (type == MOTE_KV_F32) {
            out[i] = mote_bits_f32(mote_load_u32(row + 4 * i));
        } else if (type == MOTE_KV_F16) {
            out[i] = mote_f16_f32(mote_load_u16(row + 2 * i));
        } else {
            const uint8_t *block = row + i / Q8_BLOCK * Q8_BYTES;
            out[i] = mote_f16_f32(mote_load_u16(block)) * (float)(int8_t)block[2 + i % Q8_BLOCK];
        }
    }
}

static void attend_head(const struct mote_attend *a, int64_t i, int64_t g, double *sum, float *row)
{
    const float *q = a->q + i * a->q_stride + g * a->head_dim; // [head_dim]
    float *out = a->out + i * a->out_stride + g * a->head_dim; // [head_dim]
    double max = -INFINITY, total = 0;
    for (int64_t d = 0; d < a->head_dim; d++) sum[d] = 0;
    for (int64_t key = mote_attend_first(a, i); key <= a->n_past + i; key++) {
        load_row(a->type, (const uint8_t *)a->k + (size_t)key * a->k_stride, a->head_dim, row);
        double logit = 0;
        for (int64_t d = 0; d < a->head_dim; d++) logit += (double)q[d] * row[d];
        logit *= a->scale;
        if (logit == -INFINITY) continue;
        if (logit > max) {
            double shrink = exp(max - logit); /* 0 for the first key */
            total *= shrink;
            for (int64_t d = 0; d < a->head_dim; d++) sum[d] *= shrink;
            max = logit;
        }
        double weight = exp(logit - max);
        total += weight;
        load_row(a->type, (const uint8_t *)a->v + (size_t)key * a->v_stride, a->head_dim, row);
        for (int64_t d = 0; d < a->head_dim; d++) sum[d] += weight * row[d];
    }
    for (int64_t d = 0; d < a->head_dim; d++) out[d] = (float)(sum[d] / total);
}

void mote_attend_scalar(const struct mote_attend *a)
{
    double *sum = a->scratch;                  // [head_dim]
    float *row = (float *)(sum + a->head_dim); // [head_dim]
    for (int64_t i = 0; i < a->n_query; i++)
        for (int64_t g = 0; g < a->n_group; g++) attend_head(a, i, g, sum, row);
}
