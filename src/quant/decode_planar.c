/* decode_planar.c: MLX formats: codes in one plane, scales (and biases) in others.
 *
 * One idea: 32 codes of b bits are 4b whole bytes, so a run of 32 is unpacked to bytes first, whatever b is;
 * then a run has one scale (NVFP4: two).
 * Arithmetic is f32 on the stored values: AFFINE* rounds the product, then the sum. MLX does the same when
 * scales are f32; with 16-bit scales MLX computes in 16 bits, rounding twice, and is the coarser of the two.
 */
#include "base/float_bits.h"
#include "quant/decode_parts.h"
#include "quant/iq_grid.h"

/* 8 codes are `bits` bytes; a copy of constant size compiles to loads. */
#define UNPACK(bits)                                                                       \
    static void unpack##bits(const uint8_t *bytes, uint8_t code[restrict 32])              \
    {                                                                                      \
        for (int i = 0; i < 4; i++, bytes += (bits), code += 8) {                          \
            uint64_t word = 0;                                                             \
            memcpy(&word, bytes, (bits));                                                  \
            for (int j = 0; j < 8; j++) code[j] = word >> (bits)*j & ((1u << (bits)) - 1); \
        }                                                                                  \
    }
UNPACK(2)
UNPACK(3)
UNPACK(4)
UNPACK(5)
UNPACK(6)
UNPACK(8)

static float stored_scale(enum mote_format format, const uint8_t *plane, int64_t index)
{
    if (format == MOTE_FORMAT_F32) return mote_bits_f32(mote_load_u32(plane + 4 * index));
    uint16_t half = mote_load_u16(plane + 2 * index);
    return format == MOTE_FORMAT_F16 ? mote_f16_f32(half) : mote_bf16_f32(half);
}

static void affine_run(const struct mote_matrix *w, const uint8_t code[restrict 32], int64_t group,
                       float *restrict out)
{
    float scale = stored_scale(w->scale_format, w->scale, group),
          bias = stored_scale(w->scale_format, w->bias, group);
    float factor = w->factor;
    for (int i = 0; i < 32; i++) out[i] = ((float)code[i] * scale + bias) * factor; /* times 1 is exact */
}

/* n weights from a table of the values of all codes. */
static void table_run(const float *restrict value, const uint8_t *restrict code, float scale, int n,
                      float *restrict out)
{
    for (int i = 0; i < n; i++) out[i] = value[code[i]] * scale;
}

static void mxfp4_run(const struct mote_matrix *w, const uint8_t code[32], int64_t group, float *out)
{
    table_run(mote_e2m1_value, code, mote_e8m0_f32(w->scale[group]) * w->factor, 32, out);
}

static void mxfp8_run(const struct mote_matrix *w, const uint8_t code[32], int64_t group, float *out)
{
    table_run(mote_e4m3_value, code, mote_e8m0_f32(w->scale[group]) * w->factor, 32, out);
}

static void nvfp4_run(const struct mote_matrix *w, const uint8_t code[32], int64_t group, float *out)
{
    for (int half = 0; half < 2; half++) {
        float scale = mote_e4m3_value[w->scale[group + half]] * w->factor; /* MLX's order */
        table_run(mote_e2m1_value, code + 16 * half, scale, 16, out + 16 * half);
    }
}

static const struct {
    void (*unpack)(const uint8_t *bytes, uint8_t code[restrict 32]);
    void (*run)(const struct mote_matrix *w, const uint8_t code[32], int64_t group, float *out);
} planar[MOTE_FORMAT_COUNT] = {
    [MOTE_FORMAT_AFFINE2] = {unpack2, affine_run},  [MOTE_FORMAT_AFFINE3] = {unpack3, affine_run},
    [MOTE_FORMAT_AFFINE4] = {unpack4, affine_run},  [MOTE_FORMAT_AFFINE5] = {unpack5, affine_run},
    [MOTE_FORMAT_AFFINE6] = {unpack6, affine_run},  [MOTE_FORMAT_AFFINE8] = {unpack8, affine_run},
    [MOTE_FORMAT_MLX_MXFP4] = {unpack4, mxfp4_run}, [MOTE_FORMAT_MLX_NVFP4] = {unpack4, nvfp4_run},
    [MOTE_FORMAT_MLX_MXFP8] = {unpack8, mxfp8_run},
};

void mote_decode_planar(const struct mote_matrix *w, int64_t row, int64_t col, int64_t n, float *out)
{
    int run_bytes = mote_format_traits(w->format)->block_bytes; /* of 32 codes */
    const uint8_t *bytes = w->data + (size_t)row * w->row_bytes + (size_t)(col / 32 * run_bytes);
    int64_t row_group = row * (w->n_col / w->group);
    uint8_t code[32];
    for (int64_t i = 0; i < n; i += 32, bytes += run_bytes) {
        planar[w->format].unpack(bytes, code);
        planar[w->format].run(w, code, row_group + (col + i) / w->group, out + i);
    }
}
