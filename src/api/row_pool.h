/* row_pool.h: a few rows of encoded Gaussian weights, and matrices of any size made of them.
 *
 * Owns: the rows. One idea: really encoding a gigabyte takes minutes; drawing its rows from a pool of a million
 * encoded weights takes as long as writing it, and a kernel sees the codes, signs and table indexes of real weights.
 */
#ifndef MOTE_API_ROW_POOL_H
#define MOTE_API_ROW_POOL_H

#include "base/rng.h"
#include "base/thread.h"
#include "quant/format.h"

enum { MOTE_ROW_GROUP = 64 }; /* AFFINE*: weights per scale */

enum mote_row_plane { MOTE_ROW_CODES, MOTE_ROW_SCALES, MOTE_ROW_BIASES, MOTE_ROW_PLANES };

struct mote_row_pool {
    enum mote_format format, scale_format; /* scale_format: AFFINE* */
    int64_t n_col, n_row;
    int32_t group;      /* PLANAR: weights per scale; else 0 */
    size_t row_bytes;   /* of codes */
    size_t scale_bytes; /* of a row of scales; biases take the same; 0: the format has no such plane */
    size_t bias_bytes;
    uint8_t *codes, *scale, *bias; /* [n_row] rows of each */
};

/* n_weight: how many weights to encode, rounded up to rows. AFFINE*: groups of 64, scales and biases as
 * scale_format (16 bits; others ignore it). Formats without an encoder get random codes under one fixed scale. threads runs
 * the encoder. Fails with MOTE_ARGUMENT when n_col is no multiple of the block or group. */
mote_status mote_row_pool_create(enum mote_format format, enum mote_format scale_format, int64_t n_col,
                                 int64_t n_weight, uint64_t seed, struct mote_pool *threads,
                                 struct mote_row_pool *out);
void mote_row_pool_free(struct mote_row_pool *pool); /* zeroed is fine */

/* Bytes of a row of that plane; 0: the format has none. */
size_t mote_row_plane_bytes(const struct mote_row_pool *pool, enum mote_row_plane plane);
/* One plane of rows drawn at random, out[n_row][plane bytes]; the same rng draws the same rows in every plane. */
void mote_row_pool_draw(const struct mote_row_pool *pool, enum mote_row_plane plane, struct mote_rng *rng,
                        int64_t n_row, uint8_t *out);

/* Bytes of a matrix of n_row rows, planes included. */
size_t mote_row_pool_bytes(const struct mote_row_pool *pool, int64_t n_row);
/* A matrix of drawn rows in `memory`, mote_row_pool_bytes long. */
struct mote_matrix mote_row_pool_matrix(const struct mote_row_pool *pool, struct mote_rng *rng, int64_t n_row,
                                        uint8_t *memory);

#endif
