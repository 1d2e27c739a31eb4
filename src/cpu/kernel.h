/* kernel.h: the table of CPU kernels: one function per job, filled once by instruction set.
 *
 * Owns: the table's type and how it is chosen. Kernels are single-threaded and see pointers and sizes only;
 * who splits work over threads is backend/. One idea: the scalar table is complete (every slot filled,
 * accumulates in float64: the oracle); avx2 and avx512 copy the tier below and overlay what they do better.
 * Tests and benches walk the filled slots.
 */
#ifndef MOTE_CPU_KERNEL_H
#define MOTE_CPU_KERNEL_H

#include "base/cpu_tier.h"
#include "cpu/act.h"
#include "cpu/activation.h"
#include "quant/format.h"

/* y[i * y_stride + r] = sum over c of W[row + r][c] * X[x_row[i]][c]    r in [0, n_row), i in [0, n_x)
 *
 * w      weights; any n_col that is a multiple of the format's block; rows [row, row + n_row) exist
 * x      activations of the slot's type, x->n_col == w->n_col
 * x_row  [n_x] which rows of x, any order, repeats allowed; NULL: rows 0 .. n_x - 1
 * y      not aliased with anything; only the n_x * n_row values named above are written
 * Sums within a row of W run in an order that depends on W's format and n_col only: neither on n_row nor on
 * row, and for `dot` not on n_x: a row alone equals the row in a batch, bit for bit. */
typedef void mote_matmul_fn(const struct mote_matrix *w, int64_t row, int64_t n_row, const struct mote_act *x,
                            const int32_t *x_row, int64_t n_x, float *y, int64_t y_stride);

enum { MOTE_DOT_ROWS = 8 }; /* `dot` takes 1..8 rows of x; `gemm` any number */

enum mote_kv_type { MOTE_KV_F32, MOTE_KV_F16, MOTE_KV_Q8_0, MOTE_KV_TYPE_COUNT };

/* Attention of consecutive query rows of one sequence that share one key/value head.
 * Keys and values lie [n_key][kv_row_bytes] in kv type (Q8_0: blocks of 32 as in the GGUF format; head_dim is
 * a multiple of 32 then). Query row i (0-based of n_query) may see keys [first, n_past + i + 1) where n_past
 * is the number of keys before the first query row; first is 0 unless a sliding window says otherwise. */
struct mote_attend {
    int64_t n_query, n_group, head_dim; /* n_group: query heads on this key/value head */
    int64_t n_past;
    int64_t window; /* keys a query sees at most; 0: all */
    float scale;    /* 1 / sqrt(head_dim) */
    const float *q; /* q[i * q_stride + g * head_dim + d] */
    int64_t q_stride;
    enum mote_kv_type type;
    const void *k, *v;         /* [n_past + n_query] rows */
    size_t k_stride, v_stride; /* bytes from one key's row to the next */
    float *out;                /* out[i * out_stride + g * head_dim + d] */
    int64_t out_stride;
    void *scratch; /* mote_attend_scratch(n_query, n_group, head_dim) bytes, 64-byte aligned */
};

struct mote_cpu_kernels {
    enum mote_cpu_tier tier;
    /* NULL where a format has no product with that activation type; F32 is filled for every weight format. */
    mote_matmul_fn *dot[MOTE_ACT_TYPE_COUNT][MOTE_FORMAT_COUNT];
    mote_matmul_fn *gemm[MOTE_ACT_TYPE_COUNT][MOTE_FORMAT_COUNT];
    /* Quantise rows [row, row + n_row) of act->x layout: x[n_row][n_col] -> q, scale, sum (sum32) of those
     * rows. */
    void (*quantise)(const float *x, int64_t row, int64_t n_row, struct mote_act *act);
    /* y[c] = x[c] / sqrt(mean(x^2) + eps) * weight[c]; y may be x. */
    void (*rms_norm)(const float *x, const float *weight, int64_t n_col, float eps, float *y);
    /* Rotate pairs (x[i], x[i + n_rot/2]), i < n_rot/2, by angles whose cosine and sine are given [n_rot/2];
     * in place; columns from n_rot on stay. n_head rows of head_dim. */
    void (*rope)(float *x, int64_t n_head, int64_t head_dim, int64_t n_rot, const float *cosine,
                 const float *sine);
    /* Store n floats (a head's key or value) as kv type. */
    void (*kv_store)(enum mote_kv_type type, const float *x, int64_t n, void *out);
    void (*attend)(const struct mote_attend *a);
    /* out[i] = the activation (activation.h) of gate[i], up[i]; out may be gate or up; a kind without a gate reads
     * none, one without a limit no limit. */
    void (*activate[MOTE_ACTIVATION_COUNT])(const float *gate, const float *up, float limit, int64_t n,
                                            float *out);
    /* y[i] += a * x[i] */
    void (*axpy)(float a, const float *x, int64_t n, float *y);
};

size_t mote_kv_row_bytes(enum mote_kv_type type, int64_t head_dim);
const char *mote_kv_type_name(enum mote_kv_type type);
size_t mote_attend_scratch(int64_t n_query, int64_t n_group, int64_t head_dim);

/* The table of a tier; built on first use, never changes. tier must be one that this machine has. */
const struct mote_cpu_kernels *mote_cpu_kernels(enum mote_cpu_tier tier);

/* Each file of kernels adds its slots; kernel.c calls them tier by tier (avx2/avx512 ones do nothing
 * elsewhere). */
void mote_matmul_scalar_fill(struct mote_cpu_kernels *table);
void mote_ops_scalar_fill(struct mote_cpu_kernels *table);
void mote_matmul_float_avx2_fill(struct mote_cpu_kernels *table);
void mote_matmul_k_avx2_fill(struct mote_cpu_kernels *table);
void mote_matmul_iq_avx2_fill(struct mote_cpu_kernels *table);
void mote_matmul_small_avx2_fill(struct mote_cpu_kernels *table);  /* ternary, 1-2 bit, MXFP4 */
void mote_matmul_affine_avx2_fill(struct mote_cpu_kernels *table); /* MLX: affine, MXFP4 */
void mote_matmul_nvfp4_avx2_fill(struct mote_cpu_kernels *table);  /* GGUF and MLX */
void mote_ops_avx2_fill(struct mote_cpu_kernels *table);
void mote_matmul_k_avx512_fill(struct mote_cpu_kernels *table);
void mote_matmul_iq_avx512_fill(struct mote_cpu_kernels *table);
void mote_matmul_small_avx512_fill(struct mote_cpu_kernels *table);
void mote_matmul_affine_avx512_fill(struct mote_cpu_kernels *table);
void mote_matmul_nvfp4_avx512_fill(struct mote_cpu_kernels *table);

#endif
