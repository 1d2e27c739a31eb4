/* pack.h: from the formats of files to the tile layout of device memory (layout.h).
 *
 * Owns: what kind a matrix becomes, how many bytes that takes, and the packing itself, in plain C on the host: any
 * range of tiles alone, so that threads share a matrix and a bounded staging buffer is enough.
 * One idea: packing is a permutation of the format's own bits: no rounding, no larger scale type, no code widened
 * (but for IQ1, IQ2_XS, IQ2_S and IQ3_S, whose grid indexes become 4-bit codes, and, where there is room, TQ1_0 and
 * PTQ1_0, whose base-3 digits become 2-bit codes).
 */
#ifndef MOTE_CUDA_PACK_H
#define MOTE_CUDA_PACK_H

#include "cuda/layout.h"
#include "quant/format.h"

/* What a kernel is compiled for, apart from the shape. */
struct mote_tile_kind {
    enum mote_tile_code code; /* NONE: plain rows of item (F32, F16 or BF16) */
    int zero;
    enum mote_tile_table table;
    int sub; /* columns of a scale item: 16, 32 or the group (32, 64, 128, 256) */
    enum mote_tile_item item;
    int has_min;
    int exponent;
    int has_factor; /* a tensor scale at the record's end */
};

/* compact: formats of MOTE_TILE_COMPACT_KINDS stay as small as in their file; 0: they lie as their kernels read them
 * fastest. MOTE_UNSUPPORTED, format named, for what has no device kernels (family OTHER). */
mote_status mote_tile_kind_of(const struct mote_matrix *w, int compact, struct mote_tile_kind *out);
/* Two matrices of the same kind and width run the same kernel. */
int mote_tile_kind_same(const struct mote_tile_kind *a, const struct mote_tile_kind *b);
/* "4,8,0,32,0,0,0,0": the template arguments of Tile<> before K, in the order of the struct's fields. */
enum { MOTE_TILE_TEXT = 64 };
void mote_tile_kind_text(const struct mote_tile_kind *kind, char out[MOTE_TILE_TEXT]);

/* Bytes of the record of 16 rows (plain: of 16 padded rows), and of a whole matrix. */
size_t mote_tile_bytes(const struct mote_tile_kind *kind, int64_t n_col);
size_t mote_tile_matrix_bytes(const struct mote_tile_kind *kind, int64_t n_row, int64_t n_col);

/* Pack tiles [tile, tile + n_tile) of w to out[n_tile * mote_tile_bytes], 16-byte aligned. Thread-safe. */
void mote_tile_pack(const struct mote_tile_kind *kind, const struct mote_matrix *w, int64_t tile,
                    int64_t n_tile, uint8_t *out);

/* Of a packed MXFP4 tile: base[16], of every row the largest E of its blocks that are not all zeros, less
 * MOTE_MX_WINDOW (0 at least): fp8 kernels hold E from base to base + MOTE_MX_WINDOW (kernels/mx_wgmma.cuh). Blocks of
 * zeros, which may have any E, are given the base. Returns 0, or MOTE_MX_WIDE when a row has an E below its base, or one that is no
 * number, then with MOTE_MX_NO_NUMBER. */
enum { MOTE_MX_WINDOW = 11, MOTE_MX_WIDE = 1, MOTE_MX_NO_NUMBER = 2 };
int mote_tile_mx_base(uint8_t *record, int64_t n_col, uint8_t base[MOTE_TILE_ROWS]);

#endif
