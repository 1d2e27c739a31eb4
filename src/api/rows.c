/* rows.c: the list of formats, and rows of floats to and from them (mote/kernels.h, part 4).
 *
 * Owns: MXFP4 as planes, which are GGUF's blocks with their bytes in another order, and activations as such planes.
 * Does not own: encoders and decoders (quant/).
 */
#include <math.h>
#include <string.h>

#include "api/handle.h"
#include "api/weights.h"
#include "base/float_bits.h"
#include "mote/kernels.h"
#include "quant/decode.h"
#include "quant/encode.h"
#include "quant/mxfp4.h"

enum { MX_BLOCK = 32 }; /* columns of an MXFP4 scale */

static int can_quantise(enum mote_format format)
{
    return format == MOTE_FORMAT_MLX_MXFP4 || mote_can_encode(format);
}

mote_status mote_format_describe(int index, struct mote_format_info *out)
{
    int n = 0;
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        const struct mote_format_traits *traits = mote_format_traits((enum mote_format)f);
        if (traits->family == MOTE_FAMILY_OTHER || n++ != index) continue;
        struct mote_format_info info = {.struct_size = out->struct_size,
                                        .name = traits->name,
                                        .block = traits->block_elems,
                                        .block_bytes = traits->block_bytes,
                                        .has_scale = traits->family == MOTE_FAMILY_PLANAR,
                                        .has_bias = mote_format_is_affine((enum mote_format)f),
                                        .can_quantise = can_quantise((enum mote_format)f)};
        memcpy(out, &info, out->struct_size < sizeof info ? out->struct_size : sizeof info);
        return MOTE_OK;
    }
    return mote_fail(MOTE_NOT_FOUND, "format number %d: there are %d (from 0)", index, n);
}

/* ---- rows ---- */

mote_status mote_rows_bytes(const struct mote_weights *as, int64_t n_row, int64_t n_col, size_t *data,
                            size_t *scale, size_t *bias)
{
    struct mote_matrix matrix;
    struct mote_weights_planes planes;
    size_t *const out[WEIGHTS_PLANES] = {data, scale, bias};
    FAIL_IF(!as, MOTE_ARGUMENT, "rows: no format");
    TRY(mote_weights_read(as, "rows", n_row, n_col, 1, &matrix, &planes));
    for (int p = 0; p < WEIGHTS_PLANES; p++) {
        size_t bytes;
        FAIL_IF(!mote_mul_size(planes.row_bytes[p], (size_t)n_row, &bytes), MOTE_ARGUMENT,
                "rows: %lld of %lld columns are more than an address space", (long long)n_row,
                (long long)n_col);
        if (out[p]) *out[p] = bytes;
    }
    return MOTE_OK;
}

/* A block of GGUF has its first 16 columns in low nibbles, the others in high ones; a plane has neighbours in a byte. */
static void block_to_planes(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    const uint8_t *from = block + 1;
    *scale = block[0];
    for (int i = 0; i < MX_BLOCK / 4; i++) {
        codes[i] = (uint8_t)((from[2 * i] & 15) | (from[2 * i + 1] & 15) << 4);
        codes[MX_BLOCK / 4 + i] = (uint8_t)(from[2 * i] >> 4 | (from[2 * i + 1] & 0xF0));
    }
}

static mote_status quantise_planes(const float *x, int64_t n_row, int64_t n_col, const float *importance,
                                   uint8_t *codes, uint8_t *scale)
{
    enum { BLOCK_BYTES = 1 + MX_BLOCK / 2 };
    size_t n_block = (size_t)(n_col / MX_BLOCK);
    uint8_t *row;
    TRY(mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, n_block * BLOCK_BYTES, &row));
    mote_status status = MOTE_OK;
    for (int64_t r = 0; r < n_row && status == MOTE_OK; r++) {
        status = mote_encode(MOTE_FORMAT_MXFP4, x + r * n_col, 1, n_col, importance, row);
        if (status != MOTE_OK) status = mote_context(status, "row %lld", (long long)r);
        for (size_t b = 0; b < n_block && status == MOTE_OK; b++)
            block_to_planes(row + b * BLOCK_BYTES, codes + ((size_t)r * n_block + b) * (MX_BLOCK / 2),
                            scale + (size_t)r * n_block + b);
    }
    mote_mem_free(row);
    return status;
}

mote_status mote_rows_quantise(const struct mote_weights *as, const float *x, int64_t n_row, int64_t n_col,
                               const float *importance, void *data, void *scale, void *bias)
{
    FAIL_IF(!as || !x, MOTE_ARGUMENT, "rows: no %s", as ? "x" : "format");
    struct mote_weights to = *as;
    struct mote_matrix matrix;
    struct mote_weights_planes planes;
    to.data = data, to.scale = scale, to.bias = bias;
    TRY(mote_weights_read(&to, "rows", n_row, n_col, 0, &matrix, &planes));
    FAIL_IF(!can_quantise(matrix.format), MOTE_UNSUPPORTED, "rows: there is no encoder for %s",
            mote_format_traits(matrix.format)->name);
    if (matrix.format == MOTE_FORMAT_MLX_MXFP4)
        return quantise_planes(x, n_row, n_col, importance, data, scale);
    if (planes.row_bytes[WEIGHTS_SCALE])
        return mote_encode_affine(mote_format_code_bits(matrix.format), matrix.group, matrix.scale_format, x,
                                  n_row, n_col, data, scale, bias);
    return mote_encode(matrix.format, x, n_row, n_col, importance, data);
}

mote_status mote_rows_dequantise(const struct mote_weights *rows, int64_t n_row, int64_t n_col, float *out)
{
    FAIL_IF(!rows || !out, MOTE_ARGUMENT, "rows: no %s", rows ? "out" : "format");
    struct mote_matrix matrix;
    struct mote_weights_planes planes;
    TRY(mote_weights_read(rows, "rows", n_row, n_col, 0, &matrix, &planes));
    for (int64_t r = 0; r < n_row; r++) mote_decode(&matrix, r, 0, n_col, out + r * n_col);
    return MOTE_OK;
}

/* ---- activations ---- */

/* Twice a value of e2m1 to its code without the sign: by magnitude 0 .. 12. */
static const uint8_t code_of_twice[13] = {0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7};

static uint8_t code_of(float x, int8_t twice)
{
    unsigned sign = mote_f32_bits(x) >> 31;
    return (uint8_t)(code_of_twice[twice < 0 ? -twice : twice] | sign << 3);
}

static void quantise_block(const float *x, uint8_t *codes, uint8_t *scale)
{
    int8_t twice[MX_BLOCK];
    float unit = mote_mxfp4_block(x, twice); /* 2^(E - 128) */
    if (unit != unit) {
        memset(codes, 0, MX_BLOCK / 2);
        *scale = 255;
        return;
    }
    *scale = (uint8_t)(ilogbf(unit) + 128);
    for (int i = 0; i < MX_BLOCK / 2; i++)
        codes[i] = (uint8_t)(code_of(x[2 * i], twice[2 * i]) | code_of(x[2 * i + 1], twice[2 * i + 1]) << 4);
}

mote_status mote_mxfp4_quantise(const float *x, int64_t n_row, int64_t n_col, uint8_t *codes, uint8_t *scales)
{
    FAIL_IF(!x || !codes || !scales, MOTE_ARGUMENT, "mxfp4: %s is NULL",
            !x       ? "x"
            : !codes ? "codes"
                     : "scales");
    FAIL_IF(n_row < 0 || n_col < 0 || n_col % MX_BLOCK, MOTE_ARGUMENT,
            "mxfp4: %lld rows of %lld columns, expected a multiple of %d", (long long)n_row, (long long)n_col,
            MX_BLOCK);
    for (int64_t b = 0; b < n_row * (n_col / MX_BLOCK); b++)
        quantise_block(x + b * MX_BLOCK, codes + b * (MX_BLOCK / 2), scales + b);
    return MOTE_OK;
}
