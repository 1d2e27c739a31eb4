/* test_prefill_half.cc: the arithmetic of the device's prefill kernels, lane by lane on the host: codes become operands of
 * a product of 16 x 8 x 16 (as PTX lays them out in a warp), tokens go through a stage of shared memory and come back as
 * the other operand, and the sums are those of the decoded weights; what gate and up leave for down is in the order that
 * such a product reads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>

#include "base/error.h"
#include "base/float_bits.h"
#include "base/rng.h"
#include "cuda/pack.h"
#include "quant/decode.h"
#include "quant/encode.h"
}

#include "cuda/kernels/tile.cuh"

/* ---- the device's half-precision instructions ---- */

static u32 pack(u16 low, u16 high)
{
    return (u32)high << 16 | low;
}
static u32 pack_half2(float low, float high)
{
    return pack(mote_f32_f16(low), mote_f32_f16(high));
}
static u32 pack_bf16x2(float low, float high)
{
    return pack(mote_f32_bf16(low), mote_f32_bf16(high));
}
static u32 each_half(u32 a, u32 b, u32 c, float (*f)(float, float, float))
{
    u16 half[2];
    for (int i = 0; i < 2; i++)
        half[i] = mote_f32_f16(f(mote_f16_f32((u16)(a >> 16 * i)), mote_f16_f32((u16)(b >> 16 * i)),
                                 mote_f16_f32((u16)(c >> 16 * i))));
    return pack(half[0], half[1]);
}
static u32 add_half2(u32 a, u32 b)
{
    return each_half(a, b, 0, [](float x, float y, float) { return x + y; });
}
static u32 mul_half2(u32 a, u32 b)
{
    return each_half(a, b, 0, [](float x, float y, float) { return x * y; });
}
static u32 fma_half2(u32 a, u32 b, u32 c)
{
    return each_half(a, b, c, [](float x, float y, float z) { return x * y + z; });
}
static u32 fma_bf16x2(u32 a, u32 b, u32 c)
{
    u16 half[2];
    for (int i = 0; i < 2; i++)
        half[i] = mote_f32_bf16(fmaf(mote_bf16_f32((u16)(a >> 16 * i)), mote_bf16_f32((u16)(b >> 16 * i)),
                                     mote_bf16_f32((u16)(c >> 16 * i))));
    return pack(half[0], half[1]);
}

template <int WHICH> static u32 both_halves(u32 pair_of)
{
    u16 half = (u16)(pair_of >> 16 * WHICH);
    return pack(half, half);
}

#include "cuda/kernels/prefill_half.cuh"

static struct mote_rng rng;

static float normal()
{
    double pair[2];
    mote_rng_normal2(&rng, pair);
    return (float)pair[0];
}

static float half_value(u16 half, int is_bf16)
{
    return is_bf16 ? mote_bf16_f32(half) : mote_f16_f32(half);
}

/* ---- order of columns ---- */

static void test_positions(void **state)
{
    (void)state;
    unsigned seen = 0;
    for (int p = 0; p < 32; p++) {
        assert_in_range(prefill_column(p), 0, 31);
        assert_int_equal(prefill_position(prefill_column(p)), p);
        seen |= 1u << prefill_column(p);
    }
    assert_int_equal(seen, ~0u);
}

/* ---- a stage ---- */

enum { TOKENS = 32 };

/* What threads of Ring copy: chunk `tid % 16` of rows tid / 16, + 16. x [TOKENS][128]. */
static void fill_stage(const u16 *x, u8 *stage)
{
    for (u32 tid = 0; tid < 256; tid++)
        for (u32 i = 0; i < TOKENS / 16; i++)
            memcpy(stage + stage_place<TOKENS>(tid / 16, tid % 16) + i * 16 * 128,
                   x + (tid / 16 + 16 * i) * 128 + tid % 16 * 8, 16);
}

/* wgmma's view of the same: bits 4..6 of an address are turned by bits 7..9. */
static void test_swizzle(void **state)
{
    (void)state;
    for (u32 row = 0; row < TOKENS; row++)
        for (u32 chunk = 0; chunk < 16; chunk++) {
            u32 plain = (chunk >> 3) * (TOKENS * 128) + row * 128 + (chunk & 7) * 16;
            assert_int_equal(stage_place<TOKENS>(row, chunk), plain ^ (plain >> 7 & 7) << 4);
        }
}

/* ---- a warp ---- */

/* ldmatrix of four matrices: lane 8 m + i names row i of matrix m; lane 4 g + t gets halves 2 t, 2 t + 1 of row g. */
static void load_matrices(const u8 *stage, const u32 at[32], int lane, u32 x[4])
{
    for (int m = 0; m < 4; m++) memcpy(&x[m], stage + at[8 * m + lane / 4] + lane % 4 * 4, 4);
}

/* One m16n8k16 of a warp: c[16][8] += a b. */
static void product(double c[16][8], u32 a[32][4], u32 b[32][2], int is_bf16)
{
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 2; e++) {
            for (int w = 0; w < 4; w++)
                left[g + 8 * (w & 1)][2 * t + e + 8 * (w >> 1)] =
                    half_value((u16)(a[lane][w] >> 16 * e), is_bf16);
            for (int w = 0; w < 2; w++)
                right[2 * t + e + 8 * w][g] = half_value((u16)(b[lane][w] >> 16 * e), is_bf16);
        }
    }
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++)
            for (int k = 0; k < 16; k++) c[r][n] += (double)left[r][k] * (double)right[k][n];
}

/* As Rows::multiply and products() of prefill_mma.cuh, for one tile and TOKENS tokens. */
template <class T, int BF16> static void multiply(const u8 *record, const u16 *x, double acc[16][TOKENS])
{
    static u32 lut[T::LUT_WORDS ? T::LUT_WORDS : 1];
    for (int thread = 0; thread < 256; thread++) T::template fill<true>(lut, thread, 256);
    for (int unit = 0; unit < T::UNITS; unit++) {
        alignas(1024) u8 stage[TOKENS * 256];
        u16 part[TOKENS][128];
        for (int n = 0; n < TOKENS; n++) memcpy(part[n], x + (n * T::UNITS + unit) * 128, 256);
        fill_stage(part[0], stage);
        u32 code[32][4][4], scale_pair[32][T::SUBS], min_pair[32][T::SUBS];
        for (int lane = 0; lane < 32; lane++) {
            typename T::Raw raw;
            float scale[2][T::SUBS], min[2][T::SUBS];
            T::load(raw, record, unit, lane);
            Operand<T, BF16>::codes(raw, lut, lane, code[lane]);
            T::scales(raw, lane, scale, min);
            for (int b = 0; b < T::SUBS; b++) {
                scale_pair[lane][b] = Operand<T, BF16>::pair(scale[0][b], scale[1][b]);
                min_pair[lane][b] = Operand<T, BF16>::pair(min[0][b], min[1][b]);
            }
        }
        for (int s = 0; s < 4; s++) {
            u32 a[32][2][4], at[32];
            for (int lane = 0; lane < 32; lane++) {
                int owner = (lane & 28) | s, sub = T::SUBS == 2 && lane & 2 ? 1 : 0;
                Operand<T, BF16>::convert(code[lane][s], s, scale_pair[owner][sub], min_pair[owner][sub],
                                          a[lane]);
                at[lane] = stage_place<TOKENS>((u32)lane & 7, (u32)(s * 4 + (lane >> 3)));
            }
            for (int b = 0; b < TOKENS / 8; b++) {
                double c[16][8] = {};
                u32 place[32], all[32][4];
                for (int lane = 0; lane < 32; lane++) place[lane] = at[lane] + (u32)b * 8 * 128;
                for (int lane = 0; lane < 32; lane++) load_matrices(stage, place, lane, all[lane]);
                for (int i = 0; i < 2; i++) {
                    u32 left[32][4], right[32][2];
                    for (int lane = 0; lane < 32; lane++) {
                        memcpy(left[lane], a[lane][i], sizeof left[lane]);
                        memcpy(right[lane], all[lane] + 2 * i, sizeof right[lane]);
                    }
                    product(c, left, right, BF16);
                }
                for (int r = 0; r < 16; r++)
                    for (int n = 0; n < 8; n++) acc[r][8 * b + n] += c[r][n];
            }
        }
    }
}

template <class T, int BF16> static void check(enum mote_format format, int n_col, double most)
{
    struct mote_tile_kind kind;
    size_t row_bytes = mote_format_row_bytes(format, n_col);
    float *plain = (float *)malloc((size_t)(16 * n_col) * sizeof *plain),
          *x = (float *)malloc((size_t)(TOKENS * n_col) * sizeof *x);
    u8 *file = (u8 *)malloc(16 * row_bytes), *record = (u8 *)malloc(T::BYTES);
    u16 *halves = (u16 *)calloc((size_t)(TOKENS * T::UNITS * 128), sizeof *halves);
    for (int i = 0; i < 16 * n_col; i++) plain[i] = 0.03f * normal();
    for (int i = 0; i < TOKENS * n_col; i++) x[i] = normal();
    assert_int_equal(mote_encode(format, plain, 16, n_col, NULL, file), MOTE_OK);
    struct mote_matrix w = mote_matrix_view(format, file, 16, n_col);
    assert_int_equal(mote_tile_kind_of(&w, 1, &kind), MOTE_OK); /* TQ1_0 in base 3, or it were TQ2_0 */
    assert_int_equal(mote_tile_bytes(&kind, n_col), T::BYTES);
    mote_tile_pack(&kind, &w, 0, 1, record);
    mote_decode(&w, 0, 0, n_col, plain);
    for (int r = 0; r < 16; r++) mote_decode(&w, r, 0, n_col, plain + r * n_col);
    for (int n = 0; n < TOKENS; n++) /* as prefill_convert writes them */
        for (int p = 0; p < T::UNITS * 128; p++) {
            int c = p / 32 * 32 + prefill_column(p % 32);
            float v = c < n_col ? x[n * n_col + c] : 0;
            halves[n * T::UNITS * 128 + p] = BF16 ? mote_f32_bf16(v) : mote_f32_f16(v);
        }
    double acc[16][TOKENS] = {}, error = 0, size = 0;
    multiply<T, BF16>(record, halves, acc);
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < TOKENS; n++) {
            double sum = 0, got = acc[r][n] * (BF16 ? 1 : 1 / (double)WEIGHT_UP);
            for (int c = 0; c < n_col; c++) sum += (double)plain[r * n_col + c] * (double)x[n * n_col + c];
            error += (got - sum) * (got - sum);
            size += sum * sum;
        }
    double relative = sqrt(error / size);
    print_message("%-8s %s: error %.2g\n", mote_format_traits(format)->name, BF16 ? "bf16" : "f16", relative);
    if (!(relative < most))
        fail_msg("%s: error %g, at most %g", mote_format_traits(format)->name, relative, most);
    free(plain), free(x), free(file), free(record), free(halves);
}

/* Halves keep 11 bits, bf16 8: a scale and its product with a code are rounded, and a minimum that nearly cancels them. */
static void test_products(void **state)
{
    (void)state;
    constexpr double F16 = 4e-4, MIN_F16 = 1.2e-3, BF = 4e-3;
    check<Tile<MOTE_CODE_C4, 8, 0, 32, MOTE_ITEM_F16, 0, 0, 0, 288>, 0>(MOTE_FORMAT_Q4_0, 288, F16);
    check<Tile<MOTE_CODE_C5, 0, 0, 32, MOTE_ITEM_F16, 1, 0, 0, 288>, 0>(MOTE_FORMAT_Q5_1, 288, F16);
    check<Tile<MOTE_CODE_C8, 0, 0, 32, MOTE_ITEM_F16, 0, 0, 0, 384>, 0>(MOTE_FORMAT_Q8_0, 384, F16);
    check<Tile<MOTE_CODE_C8, 0, 0, 32, MOTE_ITEM_F16, 0, 0, 0, 384>, 1>(MOTE_FORMAT_Q8_0, 384, BF);
    check<Tile<MOTE_CODE_C2, 0, 0, 16, MOTE_ITEM_NIBBLES, 1, 0, 0, 512>, 0>(MOTE_FORMAT_Q2_K, 512, MIN_F16);
    check<Tile<MOTE_CODE_C3, 4, 0, 16, MOTE_ITEM_S8, 0, 0, 0, 512>, 0>(MOTE_FORMAT_Q3_K, 512, F16);
    check<Tile<MOTE_CODE_C4, 0, 0, 32, MOTE_ITEM_U8, 1, 0, 0, 768>, 0>(MOTE_FORMAT_Q4_K, 768, MIN_F16);
    check<Tile<MOTE_CODE_C4, 0, 0, 32, MOTE_ITEM_U8, 1, 0, 0, 768>, 1>(MOTE_FORMAT_Q4_K, 768, 2 * BF);
    check<Tile<MOTE_CODE_C6, 32, 0, 16, MOTE_ITEM_S8, 0, 0, 0, 256>, 0>(MOTE_FORMAT_Q6_K, 256, F16);
    check<Tile<MOTE_CODE_IQ2XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -3, 0, 256>, 0>(MOTE_FORMAT_IQ2_XXS, 256,
                                                                                F16);
    check<Tile<MOTE_CODE_IQ3XXS, 0, 0, 32, MOTE_ITEM_INSIDE, 0, -2, 0, 256>, 0>(MOTE_FORMAT_IQ3_XXS, 256,
                                                                                F16);
    check<Tile<MOTE_CODE_LUT4, 0, MOTE_TABLE_IQ4NL, 32, MOTE_ITEM_S8, 0, 0, 0, 256>, 0>(MOTE_FORMAT_IQ4_XS,
                                                                                        256, F16);
    check<Tile<MOTE_CODE_T5, 1, 0, 256, MOTE_ITEM_F16, 0, 0, 0, 512>, 0>(MOTE_FORMAT_TQ1_0, 512, F16);
    check<Tile<MOTE_CODE_C2, 1, 0, 256, MOTE_ITEM_F16, 0, 0, 0, 512>, 0>(MOTE_FORMAT_TQ2_0, 512, F16);
    check<Tile<MOTE_CODE_C1, 1, 0, 128, MOTE_ITEM_F16, 0, 0, 0, 384>, 0>(MOTE_FORMAT_Q1_0, 384, F16);
    check<Tile<MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0, 288>, 1>(MOTE_FORMAT_MXFP4,
                                                                                          288, BF);
    check<Tile<MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 16, MOTE_ITEM_UE4M3, 0, -1, 1, 320>, 0>(MOTE_FORMAT_NVFP4,
                                                                                           320, F16);
}

/* ---- what gate and up leave ---- */

static void test_hidden(void **state)
{
    (void)state;
    u16 row[8][64]; /* eight tokens, 64 columns: four tiles of two warps' worth */
    memset(row, 0xFF, sizeof row);
    for (int tile = 0; tile < 4; tile++) {
        u32 pair[32][2];
        for (int lane = 0; lane < 32; lane++)
            for (int odd = 0; odd < 2; odd++) { /* a number that names token and column */
                int g = lane / 4, token = lane % 4 * 2 + odd;
                pair[lane][odd] =
                    pack((u16)(token * 64 + tile * 16 + g), (u16)(token * 64 + tile * 16 + g + 8));
            }
        for (int lane = 0; lane < 32; lane++) {
            int odd = hidden_keeps(lane), other = lane ^ HIDDEN_OTHER;
            uint2 words = hidden_words(pair[lane], pair[other][!hidden_keeps(other)], lane);
            memcpy(&row[lane % 4 * 2 + odd][hidden_place(tile, lane)], &words, sizeof words);
        }
    }
    for (int token = 0; token < 8; token++)
        for (int p = 0; p < 64; p++)
            assert_int_equal(row[token][p], token * 64 + p / 32 * 32 + prefill_column(p % 32));
}

int main(void)
{
    mote_rng_seed(&rng, 20);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_positions), cmocka_unit_test(test_swizzle),
                                       cmocka_unit_test(test_products), cmocka_unit_test(test_hidden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
