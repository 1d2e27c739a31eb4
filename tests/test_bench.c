/* test_bench.c: rows of the benchmarks against what their shapes say, and one clear error for each wrong request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "api/bench.h"
#include "base/mem.h"
#include "mote.h"
#include "quant/format.h"

enum { MAX_ROWS = 16 };

struct sheet {
    int n, stop_after;
    struct mote_bench_row row[MAX_ROWS];
    char name[MAX_ROWS][64];
};

static int keep(void *context, const struct mote_bench_row *row)
{
    struct sheet *sheet = context;
    assert_true(sheet->n < MAX_ROWS);
    snprintf(sheet->name[sheet->n], sizeof sheet->name[0], "%s", row->name);
    sheet->row[sheet->n++] = *row;
    return sheet->n == sheet->stop_after;
}

static void sane(const struct mote_bench_row *row, double bandwidth)
{
    assert_true(bandwidth > 1e7 && bandwidth < 1e14);
    assert_true(row->low > 0 && row->low <= row->seconds && row->seconds <= row->high);
    assert_true(row->bytes > 0 && row->operations > 0);
    double floor = row->bytes / bandwidth;
    assert_true(row->floor > 0.999 * floor && row->floor < 1.001 * floor);
}

static void test_bandwidth(void **state)
{
    (void)state;
    size_t before = mote_mem_global_total();
    for (int n_thread = 0; n_thread <= 3; n_thread++) {
        double bandwidth = 0;
        assert_int_equal(mote_measure_bandwidth(n_thread, &bandwidth), MOTE_OK);
        assert_true(bandwidth > 1e7 && bandwidth < 1e14);
    }
    double bandwidth;
    assert_int_equal(mote_measure_bandwidth(-1, &bandwidth), MOTE_ARGUMENT);
    assert_int_equal(mote_measure_bandwidth(0, NULL), MOTE_ARGUMENT);
    assert_int_equal(mote_mem_global_total(), before);
}

/* Bytes of 2048 x 2048 weights, written down here a second time: a BLOCK format, one without an encoder, PLAIN,
 * and MLX with its planes (groups of 64 with two bf16; groups of 32 with a byte). */
static void test_kernel(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        double bytes;
    } expected[] = {{"q4_k", 2048.0 * 2048 * 4.5 / 8},
                    {"iq1_m", 2048.0 * 2048 * 1.75 / 8},
                    {"bf16", 2048.0 * 2048 * 2},
                    {"affine4", 2048.0 * 2048 * 4.5 / 8},
                    {"mlx_mxfp8", 2048.0 * 2048 * 8.25 / 8}};
    size_t before = mote_mem_global_total();
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        static const int64_t rows[] = {1, 8, 9};
        struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
        struct sheet sheet = {0};
        double bandwidth = 0;
        options.what = "kernel";
        options.type = expected[i].type;
        options.rows = rows;
        options.n_row = 3;
        options.n_repeat = 1;
        assert_int_equal(mote_bench(&options, &bandwidth, keep, &sheet), MOTE_OK);
        assert_int_equal(sheet.n, 3);
        for (int r = 0; r < 3; r++) {
            sane(&sheet.row[r], bandwidth);
            assert_int_equal(sheet.row[r].rows, rows[r]);
            assert_true(sheet.row[r].bytes == expected[i].bytes);
            assert_true(sheet.row[r].operations == 2.0 * 2048 * 2048 * (double)rows[r]);
            assert_non_null(strstr(sheet.name[r], r < 2 ? "dot " : "gemm "));
            assert_non_null(strstr(sheet.name[r], expected[i].type));
        }
    }
    assert_int_equal(mote_mem_global_total(), before);
}

static void test_moe(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 100};
    struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
    struct sheet sheet = {0};
    double bandwidth = 0;
    size_t before = mote_mem_global_total();
    options.what = "moe";
    options.type = "q4_k";
    options.shape = "8/256/96/2"; /* 96 is no multiple of 256: down is q8_0 */
    options.rows = rows;
    options.n_row = 2;
    options.n_repeat = 2;
    assert_int_equal(mote_bench(&options, &bandwidth, keep, &sheet), MOTE_OK);
    assert_int_equal(sheet.n, 2);
    double expert = 256.0 * 96 * (2 * 4.5 + 8.5) / 8, router = 8.0 * 256 * 4;
    for (int r = 0; r < 2; r++) {
        sane(&sheet.row[r], bandwidth);
        assert_string_equal(sheet.name[r], "8/256/96/2");
        assert_true(sheet.row[r].operations == 2.0 * (double)rows[r] * 256 * (3 * 2 * 96 + 8));
    }
    /* One row takes its two experts; a hundred rows leave out none of eight. */
    assert_int_equal(sheet.row[0].experts, 2);
    assert_int_equal(sheet.row[1].experts, 8);
    assert_true(sheet.row[0].bytes == 2 * expert + router);
    assert_true(sheet.row[1].bytes == 8 * expert + router);

    sheet.n = 0; /* without a gate: neither its bytes nor its products */
    options.activation = "relu2";
    assert_int_equal(mote_bench(&options, &bandwidth, keep, &sheet), MOTE_OK);
    assert_int_equal(sheet.n, 2);
    expert = 256.0 * 96 * (4.5 + 8.5) / 8;
    for (int r = 0; r < 2; r++) {
        sane(&sheet.row[r], bandwidth);
        assert_string_equal(sheet.name[r], "8/256/96/2 relu2");
        assert_true(sheet.row[r].operations == 2.0 * (double)rows[r] * 256 * (2 * 2 * 96 + 8));
    }
    assert_true(sheet.row[0].bytes == 2 * expert + router);
    assert_int_equal(mote_mem_global_total(), before);
}

/* Experts drawn beforehand: no router, neither its bytes nor its products; each row's experts are all different. */
static void test_uniform(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        int64_t n_expert, n_used, rows;
        double least, most; /* distinct experts */
    } expected[] = {
        {"64/256/64/6", 64, 6, 1, 6, 6},
        {"8/256/64/8", 8, 8, 2, 8, 8},
        /* 64 (1 - (58/64)^4) = 20.8 on average over 31 inputs, whose spread is about 1.5 each */
        {"64/256/64/6", 64, 6, 4, 20, 22},
        {"64/256/64/6", 64, 6, 300, 64, 64},
    };
    size_t before = mote_mem_global_total();
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
        struct mote_model_options model = MOTE_OPTIONS(mote_model_options);
        struct sheet sheet = {0};
        double bandwidth = 0, expert = 256.0 * 64 * 3 * 4.25 / 8;
        model.act = "mxfp4";
        options.what = "moe";
        options.type = "mxfp4";
        options.shape = expected[i].shape;
        options.routing = "uniform";
        options.rows = &expected[i].rows;
        options.n_row = 1;
        options.n_repeat = 1;
        options.bandwidth = 4.2e12;
        options.model_options = &model;
        assert_int_equal(mote_bench(&options, &bandwidth, keep, &sheet), MOTE_OK);
        assert_int_equal(sheet.n, 1);
        const struct mote_bench_row *row = &sheet.row[0];
        assert_true(bandwidth == 4.2e12);
        sane(row, bandwidth);
        assert_string_equal(row->act, "mxfp4");
        assert_true(row->rate == 0 && row->n_kernel == 0);
        assert_non_null(strstr(sheet.name[0], " uniform"));
        assert_true(row->operations ==
                    2.0 * (double)expected[i].rows * 256 * 3 * 64 * (double)expected[i].n_used);
        double experts = row->bytes / expert;
        if (experts < expected[i].least || experts > expected[i].most)
            fail_msg("%s, %d rows: %g distinct experts, expected %g to %g", expected[i].shape,
                     (int)expected[i].rows, experts, expected[i].least, expected[i].most);
        assert_true(row->experts == (int64_t)(experts + 0.5));
    }
    assert_int_equal(mote_mem_global_total(), before);
}

/* The larger of bytes at the bandwidth and operations at their rate, where that is known. */
static void test_floor(void **state)
{
    (void)state;
    double bandwidth = 4.2e12;
    struct sheet sheet = {0};
    struct mote_bench_job job = {.bandwidth = &bandwidth, .fn = keep, .context = &sheet};
    /* 385 experts of 7168 x 512 in 4.25 bits: kernels.md's 535 us; 8192 rows of 9: 902 GFLOP, 1.46 ms of bf16 */
    double bytes = 385.0 * 3 * 7168 * 512 * 4.25 / 8, operations = 2.0 * 8192 * 9 * 3 * 7168 * 512;
    const struct {
        double operations, rate, floor;
    } expected[] = {{operations, 0, 536e-6},
                    {operations, 620e12, 2619e-6},
                    {operations, 1200e12, 1353e-6},
                    {operations / 64, 1200e12, 536e-6}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct mote_bench_row row = {
            .name = "floor", .bytes = bytes, .operations = expected[i].operations, .rate = expected[i].rate};
        assert_int_equal(mote_bench_report(&job, &row), MOTE_OK);
        assert_true(row.floor > 0.998 * expected[i].floor && row.floor < 1.002 * expected[i].floor);
    }
}

/* Names of expert blocks; what is a block alone is no model. */
static void test_shapes(void **state)
{
    (void)state;
    int64_t dims[4];
    size_t n = 0, n_model = 0;
    int has_kimi = 0;
    for (const char *name; (name = mote_bench_shape(n, dims)); n++) {
        static const int64_t kimi[] = {385, 7168, 512, 9};
        has_kimi |= !strcmp(name, "kimi-k2.5-tp4") && !memcmp(dims, kimi, sizeof kimi);
        assert_true(dims[3] >= 1 && dims[3] <= dims[0] && dims[1] % 32 == 0 && dims[2] % 32 == 0);
    }
    assert_true(has_kimi);
    while (mote_synth_shape(n_model)) n_model++;
    assert_true(n_model > 0 && n_model < n);
    struct mote_synth_options options = MOTE_OPTIONS(mote_synth_options);
    options.type = "q8_0";
    options.shape = mote_bench_shape(n_model, dims);
    assert_int_equal(mote_synth("/nowhere/x.gguf", &options), MOTE_ARGUMENT);
    assert_non_null(strstr(mote_error(), "is an expert block, no model; there are: qwen3-30b-a3b"));
}

static char synth_path[64]; /* of this process */

static void test_model(void **state)
{
    (void)state;
    if (access("../shared/models/fable/config.json", R_OK)) {
        print_message("../shared/models/fable is not here\n");
        skip();
    }
    struct mote_quantize_options quantize = MOTE_OPTIONS(mote_quantize_options);
    quantize.type = "q8_0";
    snprintf(synth_path, sizeof synth_path, "/tmp/mote_test_bench_%ld.gguf", (long)getpid());
    assert_int_equal(mote_quantize("../shared/models/fable", synth_path, &quantize), MOTE_OK);
    size_t before = mote_mem_global_total();
    static const int64_t rows[] = {1, 40}, depth[] = {0, 30};
    struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
    struct mote_model_options model = MOTE_OPTIONS(mote_model_options);
    struct sheet sheet = {0};
    double bandwidth = 0;
    model.n_batch = 16; /* a prompt of 40 is three steps */
    options.what = "model";
    options.model = synth_path;
    options.rows = rows;
    options.n_row = 2;
    options.depth = depth;
    options.n_depth = 2;
    options.n_generate = 3;
    options.n_repeat = 2;
    options.model_options = &model;
    mote_status status = mote_bench(&options, &bandwidth, keep, &sheet);
    unlink(synth_path);
    if (status != MOTE_OK) fail_msg("%s", mote_error());
    assert_int_equal(sheet.n, 4);
    for (int i = 0; i < 4; i++) sane(&sheet.row[i], bandwidth);
    assert_string_equal(sheet.name[0], "pp1");
    assert_string_equal(sheet.name[1], "pp40");
    assert_string_equal(sheet.name[2], "tg3 @ 0");
    assert_string_equal(sheet.name[3], "tg3 @ 30");
    /* 8 layers of width 256: 4 heads of 64 and 2 for keys and values, 16 experts of width 256 of which 4, f32 router;
     * 4096 tokens, tied. Weights are 8.5 bits. */
    double q8 = 8.5 / 8, dense = 8 * (256.0 * (256 + 128 + 128 + 256) * q8 + 16 * 256 * 4);
    double experts = 8 * 16 * 3 * 256.0 * 256 * q8, output = 4096 * 256 * q8, kv = 8 * 2 * 2 * 64 * 2;
    double one = dense + experts / 4 + output;
    double want[] = {one, 0, 3 * one + 6 * kv, 3 * one + (3 * 30 + 6) * kv};
    double share16 = 1 - 0.01002259575761855 /* 0.75^16 */, share8 = 1 - 0.1001129150390625 /* 0.75^8 */;
    want[1] = 3 * dense + (2 * share16 + share8) * experts + output;
    for (int i = 0; i < 4; i++)
        if (sheet.row[i].bytes < 0.999999 * want[i] || sheet.row[i].bytes > 1.000001 * want[i])
            fail_msg("%s: %.0f bytes, expected %.0f", sheet.name[i], sheet.row[i].bytes, want[i]);
    assert_int_equal(mote_mem_global_total(), before);
}

static void refused(const struct mote_bench_options *options, mote_status status, const char *says)
{
    struct sheet sheet = {0};
    size_t before = mote_mem_global_total();
    mote_status got = mote_bench(options, NULL, keep, &sheet);
    if (got != status) fail_msg("%s: got %d, expected %d (%s)", says, got, status, mote_error());
    if (!strstr(mote_error(), says)) fail_msg("'%s' does not say '%s'", mote_error(), says);
    assert_int_equal(sheet.n, 0);
    assert_int_equal(mote_mem_global_total(), before);
}

static void test_refused(void **state)
{
    (void)state;
    static const int64_t none[] = {0}, few[] = {1};
    struct mote_bench_options good = MOTE_OPTIONS(mote_bench_options), o;
    good.what = "kernel";
    good.type = "q8_0";
    refused(NULL, MOTE_ARGUMENT, "options");
    o = good, o.struct_size = 0;
    refused(&o, MOTE_ARGUMENT, "struct_size");
    o = good, o.what = NULL;
    refused(&o, MOTE_ARGUMENT, "kernel, moe, model");
    o = good, o.what = "kernels";
    refused(&o, MOTE_ARGUMENT, "'kernels' is not known; there are: kernel, moe, model");
    o = good, o.type = "q9_k";
    refused(&o, MOTE_ARGUMENT, "'q9_k'");
    o = good, o.type = "i32";
    refused(&o, MOTE_ARGUMENT, "'i32'");
    o = good, o.rows = none, o.n_row = 1;
    refused(&o, MOTE_ARGUMENT, "0 rows, expected 1..");
    o = good, o.n_row = 1;
    refused(&o, MOTE_ARGUMENT, "no values");
    o = good, o.n_repeat = -1;
    refused(&o, MOTE_ARGUMENT, "-1 repeats");
    struct mote_model_options model = MOTE_OPTIONS(mote_model_options);
    model.act = "i4";
    o = good, o.model_options = &model;
    refused(&o, MOTE_ARGUMENT, "activation type 'i4', expected default, f32 or mxfp4");
    o = good, o.what = "moe", o.rows = few, o.n_row = 1;
    static const char *const shapes[] = {"8/256/96",   "8/256/96/2/", "2/256/96/8",
                                         "0/256/96/0", "8/16/96/2",   "qwen9"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        o.shape = shapes[i];
        refused(&o, MOTE_ARGUMENT, shapes[i]);
    }
    o.shape = NULL, o.activation = "gelu";
    refused(&o, MOTE_ARGUMENT, "'gelu' is not known; there are: swiglu ");
    o.activation = NULL, o.routing = "even";
    refused(&o, MOTE_ARGUMENT, "routing 'even' is not known; there are: router, uniform");
    o.routing = NULL, o.kernels = 1;
    refused(&o, MOTE_UNSUPPORTED, "times of single kernels are a GPU's");
    o.kernels = 0, o.bandwidth = -1;
    refused(&o, MOTE_ARGUMENT, "-1 bytes per second");
    o.bandwidth = 0;
    o.shape = "8/100/96/2"; /* q8_0 is blocks of 32 */
    refused(&o, MOTE_ARGUMENT, "multiples of 32");
    o.shape = "1024/65536/65536/8", o.type = "f32";
    refused(&o, MOTE_MEMORY, "1024/65536/65536/8 in f32");
    o = good, o.what = "model";
    refused(&o, MOTE_ARGUMENT, "path of a model");
    o.model = "no/such/file.gguf";
    refused(&o, MOTE_NOT_FOUND, "no/such/file.gguf");
}

/* A caller that has seen enough gets no more rows. */
static void test_stopped(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 2, 3};
    struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
    struct sheet sheet = {.stop_after = 2};
    size_t before = mote_mem_global_total();
    options.what = "kernel";
    options.type = "q8_0";
    options.rows = rows;
    options.n_row = 3;
    options.n_repeat = 1;
    assert_int_equal(mote_bench(&options, NULL, keep, &sheet), MOTE_CANCELLED);
    assert_int_equal(sheet.n, 2);
    assert_int_equal(mote_mem_global_total(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bandwidth), cmocka_unit_test(test_kernel),  cmocka_unit_test(test_moe),
        cmocka_unit_test(test_uniform),   cmocka_unit_test(test_floor),   cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_model),     cmocka_unit_test(test_refused), cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
