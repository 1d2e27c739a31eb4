/* test_format.c: the list of formats against sizes written down here a second time, and the look-ups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "quant/format.h"

/* GGUF id, name, bytes of a row of 256 weights: bits per weight times 32. */
static const struct {
    int gguf;
    const char *name;
    size_t bytes;
} expected[] = {
    {0, "f32", 1024},   {1, "f16", 512},     {30, "bf16", 512},   {2, "q4_0", 144},    {3, "q4_1", 160},
    {6, "q5_0", 176},   {7, "q5_1", 192},    {8, "q8_0", 272},    {10, "q2_k", 84},    {11, "q3_k", 110},
    {12, "q4_k", 144},  {13, "q5_k", 176},   {14, "q6_k", 210},   {16, "iq2_xxs", 66}, {17, "iq2_xs", 74},
    {19, "iq1_s", 50},  {18, "iq3_xxs", 98}, {20, "iq4_nl", 144}, {21, "iq3_s", 110},  {22, "iq2_s", 82},
    {29, "iq1_m", 56},  {23, "iq4_xs", 136}, {34, "tq1_0", 54},   {35, "tq2_0", 66},   {39, "mxfp4", 136},
    {40, "nvfp4", 144}, {41, "q1_0", 36},    {42, "q2_0", 72},    {142, "pq2_0", 68},  {143, "ptq1_0", 56},
    {24, "i8", 256},    {25, "i16", 512},    {26, "i32", 1024},   {27, "i64", 2048},   {28, "f64", 2048},
};

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        int format = mote_format_from_gguf((uint32_t)expected[i].gguf);
        assert_true(format >= 0);
        assert_string_equal(mote_format_traits(format)->name, expected[i].name);
        assert_int_equal(mote_format_row_bytes(format, 256), expected[i].bytes);
        assert_int_equal(mote_format_row_bytes(format, 256 * 1000), expected[i].bytes * 1000);
    }
    /* Rows of an expert tensor of a large model do not fit 32 bits. */
    assert_int_equal(mote_format_row_bytes(MOTE_FORMAT_F32, 5000000000), 20000000000);
}

static void test_gguf_ids(void **state)
{
    (void)state;
    int n_known = 0;
    for (uint32_t id = 0; id < 65536; id++) {
        int format = mote_format_from_gguf(id);
        if (format < 0) continue;
        n_known++;
        assert_int_equal(mote_format_traits(format)->gguf_id, id);
    }
    assert_int_equal(n_known, sizeof expected / sizeof *expected);
    /* Removed types, the activation types, and what a cast could take for "no GGUF type". */
    static const uint32_t unknown[] = {4,  5,  9,  15,  31,         32,         33,
                                       36, 37, 38, 144, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(mote_format_from_gguf(unknown[i]), -1);
}

static void test_names(void **state)
{
    (void)state;
    for (int format = 0; format < MOTE_FORMAT_COUNT; format++) {
        char upper[32];
        snprintf(upper, sizeof upper, "%s", mote_format_traits(format)->name);
        assert_int_equal(mote_format_from_name(upper), format); /* also: no two formats share a name */
        for (char *c = upper; *c; c++)
            if (*c >= 'a' && *c <= 'z') *c -= 32;
        assert_int_equal(mote_format_from_name(upper), format);
    }
    static const char *const unknown[] = {"", "q", "q4_", "q4_00", "q4-0", "q4_k_m", " f32", "f32 ", "q8_1"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(mote_format_from_name(unknown[i]), -1);
}

static void test_planar(void **state)
{
    (void)state;
    static const struct {
        enum mote_format format;
        int bits;
    } planar[] = {
        {MOTE_FORMAT_AFFINE2, 2},   {MOTE_FORMAT_AFFINE3, 3},   {MOTE_FORMAT_AFFINE4, 4},
        {MOTE_FORMAT_AFFINE5, 5},   {MOTE_FORMAT_AFFINE6, 6},   {MOTE_FORMAT_AFFINE8, 8},
        {MOTE_FORMAT_MLX_MXFP4, 4}, {MOTE_FORMAT_MLX_NVFP4, 4}, {MOTE_FORMAT_MLX_MXFP8, 8},
    };
    int n_planar = 0;
    for (int format = 0; format < MOTE_FORMAT_COUNT; format++)
        n_planar += mote_format_traits(format)->family == MOTE_FAMILY_PLANAR;
    assert_int_equal(n_planar, sizeof planar / sizeof *planar);
    for (size_t i = 0; i < sizeof planar / sizeof *planar; i++) {
        assert_int_equal(mote_format_traits(planar[i].format)->family, MOTE_FAMILY_PLANAR);
        assert_int_equal(mote_format_traits(planar[i].format)->gguf_id, -1);
        assert_int_equal(mote_format_code_bits(planar[i].format), planar[i].bits);
        assert_int_equal(mote_format_row_bytes(planar[i].format, 2048), 256 * planar[i].bits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_gguf_ids),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_planar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
