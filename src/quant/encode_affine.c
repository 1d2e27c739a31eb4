/* encode_affine.c: MLX affine codes, 2 to 8 bits, groups of 32, 64 or 128; bit-equal to mlx.core.quantize.
 *
 * The rule: the scale spans the group's range; the end of larger magnitude becomes the bias, moved so that
 * zero is a code (the scale is negative when the bias is the maximum). Codes come from the f32 scale and
 * bias; these are rounded to the stored type afterwards, so scales of float16 beyond its range are clamped to
 * it.
 */
#include <math.h>

#include "quant/encode_block.h"

/* Little-endian bit stream: code i in bits [i * bits, i * bits + bits). 8 codes are `bits` bytes. */
MOTE_INLINE void pack_stream(const uint8_t *q, int n, int bits, uint8_t *out)
{
    for (int i = 0; i < n; i += 8, out += bits) {
        uint64_t word = 0;
        for (int j = 0; j < 8; j++) word |= (uint64_t)q[i + j] << j * bits;
        for (int j = 0; j < bits; j++) out[j] = (uint8_t)(word >> 8 * j);
    }
}

MOTE_INLINE void encode_group(const float *x, int group, int bits, uint8_t *codes, float *scale_out,
                              float *bias_out)
{
    const float top = (float)((1 << bits) - 1);
    f32x8 low8 = vec_load(x), high8 = low8;
    for (int i = 8; i < group; i += 8) {
        low8 = vec_min(vec_load(x + i), low8);
        high8 = vec_max(vec_load(x + i), high8);
    }
    float low = min8(low8), high = max8(high8);
    if (high - low > 0x1.fffffep127f) { /* a range that no scale could span without decoding to infinity */
        low = -1.6e38f;
        high = 1.6e38f;
    }
    int from_low = fabsf(low) > fabsf(high);
    float scale = (high - low) / top, edge = from_low ? low : high, bias = 0;
    if (scale < 1e-7f) scale = 1e-7f;
    if (!from_low) scale = -scale;
    float steps = rintf(edge / scale);
    if (steps != 0) {
        scale = edge / steps;
        bias = edge;
    }
    uint8_t q[128];
    for (int i = 0; i < group; i += 8) {
        /* steps may be infinite and the scale 0 for constant groups of huge values: then NaN, and code 0 */
        f32x8 y = (vec_load(x + i) - bias) / scale;
        y = vec_min(vec_select(y > 0, y, vec_splat(0)), vec_splat(256));
        i32x8 code = __builtin_convertvector(vec_min(vec_round(y), vec_splat(top)), i32x8);
        for (int j = 0; j < 8; j++) q[i + j] = (uint8_t)code[j];
    }
    pack_stream(q, group, bits, codes);
    *scale_out = scale;
    *bias_out = bias;
}

void MOTE_TIER(mote_encode_affine_groups)(const float *x, int64_t n_group, int group, int bits,
                                          uint8_t *codes, float *scale, float *bias)
{
#define CASE(b)                                                                                      \
    case b:                                                                                          \
        for (int64_t g = 0; g < n_group; g++)                                                        \
            encode_group(x + g * group, group, b, codes + g * (group * b / 8), scale + g, bias + g); \
        break
    switch (bits) { /* constant widths make the bit stream straight-line code */
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(8);
    }
#undef CASE
}
