/* encode.c: the table of encoders and the checks in front of them.
 *
 * Owns: argument checks, the search for NaN and infinity, the choice of the instruction set, scratch memory.
 * Does not own: any format (encode_simple.c, encode_k.c, encode_iq.c, encode_ternary.c, encode_affine.c).
 */
#include "quant/encode.h"

#include "base/cpu_tier.h"
#include "base/mem.h"
#include "quant/encode_block.h"

struct encoder {
    mote_encode_row_fn *row[2]; /* portable, AVX2 */
    int uses_importance;
    size_t scratch_bytes;
};

#if defined(__x86_64__)
#define AVX2_COPY(name) name##_avx2
#else
#define AVX2_COPY(name) name##_base
#endif

static const struct encoder encoders[MOTE_FORMAT_COUNT] = {
#define X(id, function, importance, scratch) \
    [MOTE_FORMAT_##id] = {                   \
        {mote_encode_row_##function##_base, AVX2_COPY(mote_encode_row_##function)}, importance, scratch},
    MOTE_ENCODERS(X)
#undef X
};
static mote_encode_affine_fn *const affine_groups[2] = {mote_encode_affine_groups_base,
                                                        AVX2_COPY(mote_encode_affine_groups)};

static int is_format(enum mote_format format)
{
    return (int)format >= 0 && (int)format < MOTE_FORMAT_COUNT;
}

int mote_can_encode(enum mote_format format)
{
    if (!is_format(format)) return 0;
    return encoders[format].row[0] || mote_format_is_affine(format);
}

int mote_encode_uses_importance(enum mote_format format)
{
    return is_format(format) && encoders[format].uses_importance;
}

/* 0: portable, 1: AVX2. */
static mote_status choose_copy(int *copy)
{
    enum mote_cpu_tier tier;
    TRY(mote_cpu_tier_choose(&tier));
    *copy = tier >= MOTE_CPU_AVX2;
    return MOTE_OK;
}

int mote_encode_is_finite(const float *x, int64_t n, int64_t *at)
{
    for (int64_t begin = 0; begin < n;) {
        int64_t end = n - begin > 256 ? begin + 256 : n;
        uint32_t bad = 0;
        for (int64_t i = begin; i < end; i++) bad |= (mote_f32_bits(x[i]) & 0x7FFFFFFFu) + 0x00800000u;
        if (bad & 0x80000000u) break;
        begin = end;
        if (begin == n) return 1;
    }
    for (int64_t i = 0; i < n; i++) {
        if ((mote_f32_bits(x[i]) & 0x7F800000u) != 0x7F800000u) continue;
        *at = i;
        return 0;
    }
    return 1;
}

static mote_status check_row(const float *x, int64_t row, int64_t n_col)
{
    int64_t at = 0;
    if (mote_encode_is_finite(x, n_col, &at)) return MOTE_OK;
    return mote_fail(MOTE_NUMERIC, "encode: %s at row %lld, column %lld; only finite weights can be encoded",
                     x[at] != x[at] ? "NaN" : "infinity", (long long)row, (long long)at);
}

/* Negative and non-finite importance is refused; an all-zero row counts as none (*used = NULL). */
static mote_status check_importance(const float *importance, int64_t n_col, const float **used)
{
    *used = NULL;
    if (!importance) return MOTE_OK;
    int any = 0;
    for (int64_t c = 0; c < n_col; c++) {
        FAIL_IF(!(importance[c] >= 0) || importance[c] > 0x1.fffffep127f, MOTE_NUMERIC,
                "encode: importance of column %lld is %g; expected a finite number >= 0", (long long)c,
                (double)importance[c]);
        any |= importance[c] > 0;
    }
    if (any) *used = importance;
    return MOTE_OK;
}

static mote_status check_shape(int64_t n_row, int64_t n_col, int64_t block)
{
    FAIL_IF(n_row < 0 || n_col < 0, MOTE_ARGUMENT, "encode: %lld rows of %lld columns", (long long)n_row,
            (long long)n_col);
    FAIL_IF(n_col % block, MOTE_ARGUMENT, "encode: %lld columns are not a multiple of the block of %lld",
            (long long)n_col, (long long)block);
    int64_t bytes;
    FAIL_IF(__builtin_mul_overflow(n_row, n_col, &bytes) || __builtin_mul_overflow(bytes, 8, &bytes),
            MOTE_ARGUMENT, "encode: %lld rows of %lld columns are too many", (long long)n_row,
            (long long)n_col);
    return MOTE_OK;
}

mote_status mote_encode(enum mote_format format, const float *x, int64_t n_row, int64_t n_col,
                        const float *importance, void *out)
{
    FAIL_IF(!is_format(format), MOTE_ARGUMENT, "encode: format %d does not exist", (int)format);
    const struct mote_format_traits *traits = mote_format_traits(format);
    const struct encoder *encoder = &encoders[format];
    FAIL_IF(!encoder->row[0], MOTE_UNSUPPORTED, "encode: there is no encoder for %s", traits->name);
    TRY(check_shape(n_row, n_col, traits->block_elems));
    const float *used;
    TRY(check_importance(importance, n_col, &used));
    int copy;
    TRY(choose_copy(&copy));
    void *scratch = NULL;
    if (encoder->scratch_bytes)
        TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, 1, encoder->scratch_bytes, &scratch));
    size_t row_bytes = (size_t)(n_col / traits->block_elems) * (size_t)traits->block_bytes;
    mote_status status = MOTE_OK;
    for (int64_t row = 0; row < n_row; row++) {
        const float *from = x + row * n_col;
        TRY_GOTO(check_row(from, row, n_col), status, done);
        encoder->row[copy](from, used, n_col, (uint8_t *)out + (size_t)row * row_bytes, scratch);
    }
done:
    mote_mem_free(scratch);
    return status;
}

static void store_affine(enum mote_format format, const float *value, int64_t n, uint8_t *out)
{
    switch (format) {
    case MOTE_FORMAT_F16:
        for (int64_t i = 0; i < n; i++) store_u16(out + 2 * i, f16_clamped(value[i]));
        break;
    case MOTE_FORMAT_BF16:
        for (int64_t i = 0; i < n; i++) store_u16(out + 2 * i, mote_f32_bf16(value[i]));
        break;
    default: memcpy(out, value, (size_t)n * sizeof *value);
    }
}

mote_status mote_encode_affine(int bits, int group, enum mote_format scale_format, const float *x,
                               int64_t n_row, int64_t n_col, void *codes, void *scale, void *bias)
{
    FAIL_IF((bits < 2 || bits > 6) && bits != 8, MOTE_UNSUPPORTED,
            "encode: affine codes of %d bits; expected 2, 3, 4, 5, 6 or 8", bits);
    FAIL_IF(group != 32 && group != 64 && group != 128, MOTE_UNSUPPORTED,
            "encode: affine groups of %d; expected 32, 64 or 128", group);
    FAIL_IF(scale_format != MOTE_FORMAT_F32 && scale_format != MOTE_FORMAT_F16 &&
                scale_format != MOTE_FORMAT_BF16,
            MOTE_UNSUPPORTED, "encode: affine scales are f32, f16 or bf16");
    TRY(check_shape(n_row, n_col, group));
    int copy;
    TRY(choose_copy(&copy));
    const int64_t n_group = n_col / group;
    const size_t scale_bytes = scale_format == MOTE_FORMAT_F32 ? 4 : 2;
    const size_t code_bytes = (size_t)(n_col / 8) * (size_t)bits;
    for (int64_t row = 0; row < n_row; row++) {
        const float *from = x + row * n_col;
        TRY(check_row(from, row, n_col));
        enum { PART = 64 };
        for (int64_t g = 0; g < n_group; g += PART) {
            int64_t n = n_group - g < PART ? n_group - g : PART;
            float s[PART], b[PART];
            affine_groups[copy](from + g * group, n, group, bits,
                                (uint8_t *)codes + (size_t)row * code_bytes + (size_t)(g * group / 8 * bits),
                                s, b);
            size_t at = (size_t)(row * n_group + g) * scale_bytes;
            store_affine(scale_format, s, n, (uint8_t *)scale + at);
            store_affine(scale_format, b, n, (uint8_t *)bias + at);
        }
    }
    return MOTE_OK;
}
