/* format.h: every weight format, in one list.
 *
 * Owns: the list (id, GGUF type id, name, weights per block, bytes per block, family), the traits made from it,
 * and `struct mote_matrix`, the view that every decoder and kernel reads.
 * Layouts: docs/formats.md (facts gathered from ggml d99724f2 and MLX).
 *
 * Families:
 *   PLAIN   numbers, one after the other
 *   BLOCK   GGUF blocks with their scales inside, row after row without padding
 *   PLANAR  MLX: codes, scales (and biases) in planes of their own; a row of codes is a little-endian bit stream
 *   OTHER   integer types that carry no weights; only their size is known
 */
#ifndef MOTE_QUANT_FORMAT_H
#define MOTE_QUANT_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* X(id, GGUF type or -1, name, weights per block, bytes per block, family) */
#define MOTE_FORMATS(X)                           \
    X(F32, 0, "f32", 1, 4, PLAIN)                 \
    X(F16, 1, "f16", 1, 2, PLAIN)                 \
    X(BF16, 30, "bf16", 1, 2, PLAIN)              \
    X(Q4_0, 2, "q4_0", 32, 18, BLOCK)             \
    X(Q4_1, 3, "q4_1", 32, 20, BLOCK)             \
    X(Q5_0, 6, "q5_0", 32, 22, BLOCK)             \
    X(Q5_1, 7, "q5_1", 32, 24, BLOCK)             \
    X(Q8_0, 8, "q8_0", 32, 34, BLOCK)             \
    X(Q2_K, 10, "q2_k", 256, 84, BLOCK)           \
    X(Q3_K, 11, "q3_k", 256, 110, BLOCK)          \
    X(Q4_K, 12, "q4_k", 256, 144, BLOCK)          \
    X(Q5_K, 13, "q5_k", 256, 176, BLOCK)          \
    X(Q6_K, 14, "q6_k", 256, 210, BLOCK)          \
    X(IQ1_S, 19, "iq1_s", 256, 50, BLOCK)         \
    X(IQ1_M, 29, "iq1_m", 256, 56, BLOCK)         \
    X(IQ2_XXS, 16, "iq2_xxs", 256, 66, BLOCK)     \
    X(IQ2_XS, 17, "iq2_xs", 256, 74, BLOCK)       \
    X(IQ2_S, 22, "iq2_s", 256, 82, BLOCK)         \
    X(IQ3_XXS, 18, "iq3_xxs", 256, 98, BLOCK)     \
    X(IQ3_S, 21, "iq3_s", 256, 110, BLOCK)        \
    X(IQ4_NL, 20, "iq4_nl", 32, 18, BLOCK)        \
    X(IQ4_XS, 23, "iq4_xs", 256, 136, BLOCK)      \
    X(TQ1_0, 34, "tq1_0", 256, 54, BLOCK)         \
    X(TQ2_0, 35, "tq2_0", 256, 66, BLOCK)         \
    X(MXFP4, 39, "mxfp4", 32, 17, BLOCK)          \
    X(NVFP4, 40, "nvfp4", 64, 36, BLOCK)          \
    X(Q1_0, 41, "q1_0", 128, 18, BLOCK)           \
    X(Q2_0, 42, "q2_0", 64, 18, BLOCK)            \
    X(PQ2_0, 142, "pq2_0", 128, 34, BLOCK)        \
    X(PTQ1_0, 143, "ptq1_0", 128, 28, BLOCK)      \
    X(AFFINE2, -1, "affine2", 32, 8, PLANAR)      \
    X(AFFINE3, -1, "affine3", 32, 12, PLANAR)     \
    X(AFFINE4, -1, "affine4", 32, 16, PLANAR)     \
    X(AFFINE5, -1, "affine5", 32, 20, PLANAR)     \
    X(AFFINE6, -1, "affine6", 32, 24, PLANAR)     \
    X(AFFINE8, -1, "affine8", 32, 32, PLANAR)     \
    X(MLX_MXFP4, -1, "mlx_mxfp4", 32, 16, PLANAR) \
    X(MLX_NVFP4, -1, "mlx_nvfp4", 32, 16, PLANAR) \
    X(MLX_MXFP8, -1, "mlx_mxfp8", 32, 32, PLANAR) \
    X(F64, 28, "f64", 1, 8, OTHER)                \
    X(I8, 24, "i8", 1, 1, OTHER)                  \
    X(I16, 25, "i16", 1, 2, OTHER)                \
    X(I32, 26, "i32", 1, 4, OTHER)                \
    X(I64, 27, "i64", 1, 8, OTHER)

enum mote_format {
#define X(id, gguf, name, elems, bytes, family) MOTE_FORMAT_##id,
    MOTE_FORMATS(X)
#undef X
        MOTE_FORMAT_COUNT
};

enum mote_format_family { MOTE_FAMILY_PLAIN, MOTE_FAMILY_BLOCK, MOTE_FAMILY_PLANAR, MOTE_FAMILY_OTHER };

struct mote_format_traits {
    const char *name;
    int gguf_id;     /* -1: no GGUF type */
    int block_elems; /* a row is a multiple of this */
    int block_bytes; /* PLANAR: of codes alone */
    enum mote_format_family family;
};

const struct mote_format_traits *mote_format_traits(enum mote_format format); /* format must be valid */
int mote_format_from_name(const char *name); /* case does not matter; -1 if unknown */
int mote_format_from_gguf(uint32_t gguf_id); /* -1 if unknown */
/* Bytes of a row of n_col weights (codes alone for PLANAR); n_col must be a multiple of block_elems. */
size_t mote_format_row_bytes(enum mote_format format, int64_t n_col);
/* Bits of code per weight of a PLANAR format (2..8). */
int mote_format_code_bits(enum mote_format format);
/* Is it one of MLX's affine formats: scale and bias of a group's codes in planes? */
static inline int mote_format_is_affine(enum mote_format format)
{
    return format >= MOTE_FORMAT_AFFINE2 && format <= MOTE_FORMAT_AFFINE8;
}

/* One matrix of weights, W[n_row][n_col]; row r of a product is sum over c of W[r][c] * x[c].
 * Memory belongs to whoever made the view. No alignment may be assumed of any pointer, PLAIN and PLANAR included:
 * MLX writes safetensors whose data start at an odd byte, and they are read in place (mote_load_u*, loadu). */
struct mote_matrix {
    enum mote_format format;
    enum mote_format scale_format; /* AFFINE*: of scale and bias (F32, F16, BF16). Others: unused */
    int64_t n_row, n_col;
    size_t row_bytes;    /* from one row's codes to the next */
    const uint8_t *data; /* [n_row][row_bytes] */
    const uint8_t
        *scale;          /* PLANAR: [n_row][n_col / group]; AFFINE*: scale_format; MXFP*: e8m0; NVFP4: e4m3 */
    const uint8_t *bias; /* AFFINE*: [n_row][n_col / group], scale_format; else NULL */
    int32_t group;       /* PLANAR: weights per scale: 32, 64, 128 (16 for NVFP4); else 0 */
    float factor;        /* every weight is multiplied by it (NVFP4's tensor scale); 1 otherwise. Never 0 */
};

#endif
