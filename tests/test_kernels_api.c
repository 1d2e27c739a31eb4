/* test_kernels_api.c: mote/kernels.h on the CPU: every format and layout against float64 over decoded weights, what calls
 * refuse, and that nothing is lost whatever fails. On the stand-in driver: test_kernels_driver.c; on a GPU: test_cuda_api.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/mem.h"
#include "kernels_block.h"

static struct mote_rng rng;
static mote_device *device;

/* ---- blocks ---- */

static void forward_rows(mote_moe *moe, const struct block *b, const struct rows *rows, int64_t n_row)
{
    size_t bytes;
    must(mote_moe_workspace(moe, n_row, &bytes));
    uint8_t *workspace = malloc(bytes + 1);
    struct mote_moe_call call = rows_call(rows, n_row);
    call.workspace = workspace + 1; /* of any alignment */
    call.workspace_bytes = bytes;
    memset(workspace, 0xA5, bytes + 1);
    memset(rows->y, 0xFF, rows->y_bytes);
    must(mote_moe_forward(moe, &call));
    rows_check(b, rows, n_row, "cpu");
    free(workspace);
}

static void check_block(const struct block *b)
{
    static const int64_t size[] = {1, 3, BLOCK_ROWS};
    mote_moe *moe;
    must(mote_moe_create(device, &b->options, &moe));
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        struct rows rows;
        rows_make(&rng, &rows, b, size[i], i & 1);
        forward_rows(moe, b, &rows, size[i]);
        rows_free(&rows);
    }
    mote_moe_destroy(moe);
}

static void test_every_format(void **state)
{
    (void)state;
    struct mote_format_info info = MOTE_OPTIONS(mote_format_info);
    int n = 0;
    for (; mote_format_describe(n, &info) == MOTE_OK; n++) {
        struct block b;
        struct recipe r = {.format = {info.name, info.name, info.name}};
        block_make(&rng, &b, &r);
        check_block(&b);
        b.options.act = "f32";
        check_block(&b);
        block_free(&b);
    }
    assert_true(n > 35);
    must_fail(mote_format_describe(n, &info), MOTE_NOT_FOUND, "format number");
    must_fail(mote_format_describe(-1, &info), MOTE_NOT_FOUND, "format number -1");
}

static void test_layouts(void **state)
{
    (void)state;
    static const struct recipe recipe[] = {
        {.format = {"q4_k", "q4_k", "q6_k"}, .gate_up = MOTE_GATE_UP_STACKED},
        {.format = {"q4_k", "q4_k", "q6_k"}, .gate_up = MOTE_UP_GATE_STACKED},
        {.format = {"q4_0", "q4_0", "iq2_xxs"}, .gate_up = MOTE_GATE_UP_INTERLEAVED},
        {.format = {"mlx_mxfp4", "mlx_mxfp4", "mlx_mxfp4"}, .gate_up = MOTE_GATE_UP_STACKED},
        {.format = {"mlx_mxfp4", "mlx_mxfp4", "mlx_mxfp4"},
         .gate_up = MOTE_GATE_UP_INTERLEAVED,
         .activation = "swiglu_oai",
         .act = "mxfp4"},
        {.format = {"affine4", "affine4", "affine6"},
         .gate_up = MOTE_GATE_UP_INTERLEAVED,
         .scale_type = MOTE_BF16,
         .group = 32},
        {.format = {"affine3", "affine3", "affine8"},
         .gate_up = MOTE_UP_GATE_STACKED,
         .scale_type = MOTE_F16,
         .group = 128},
        {.format = {"bf16", "bf16", "bf16"}, .gate_up = MOTE_GATE_UP_INTERLEAVED},
        {.format = {"mlx_nvfp4", "mlx_nvfp4", "mlx_nvfp4"}, .gate_up = MOTE_GATE_UP_STACKED, .has_factor = 1},
        {.format = {"mxfp4", "q8_0", "f16"}, .has_factor = 1},
        {.format = {NULL, "q4_k", "mxfp4"}, .activation = "relu2"},
        {.format = {"q5_k", "q5_k", "q5_k"}, .activation = "swiglu_clamped", .limit = 0.4f},
    };
    for (size_t i = 0; i < sizeof recipe / sizeof *recipe; i++) {
        struct block b;
        block_make(&rng, &b, &recipe[i]);
        check_block(&b);
        block_free(&b);
    }
}

static void test_float_types(void **state)
{
    (void)state;
    for (int x = 0; x < MOTE_FLOAT_TYPE_COUNT; x++)
        for (int y = 0; y < MOTE_FLOAT_TYPE_COUNT; y++) {
            struct block b;
            struct recipe r = {.format = {"q8_0", "q8_0", "q8_0"},
                               .act = "f32",
                               .x_type = (enum mote_float_type)x,
                               .y_type = (enum mote_float_type)y};
            block_make(&rng, &b, &r);
            check_block(&b);
            block_free(&b);
        }
}

/* "mxfp4" with a plane of scales is "mlx_mxfp4", and GGUF's blocks of the same numbers give the same bits. */
static void test_mxfp4_names(void **state)
{
    (void)state;
    struct block b;
    struct recipe r = {.format = {"mlx_mxfp4", "mlx_mxfp4", "mlx_mxfp4"}, .act = "f32"};
    block_make(&rng, &b, &r);
    struct rows rows;
    rows_make(&rng, &rows, &b, BLOCK_ROWS, 0);
    float *first = malloc(rows.y_bytes);
    for (int turn = 0; turn < 3; turn++) {
        struct mote_weights *w[3] = {&b.options.gate, &b.options.up, &b.options.down};
        uint8_t *blocks[3] = {NULL};
        for (int p = 0; p < 3 && turn; p++) {
            w[p]->format = "MXFP4";
            if (turn == 1) continue;
            blocks[p] = mxfp4_blocks(w[p], b.n_weight[p]);
            *w[p] = (struct mote_weights){.format = "mxfp4", .data = blocks[p]};
        }
        mote_moe *moe;
        must(mote_moe_create(device, &b.options, &moe));
        forward_rows(moe, &b, &rows, BLOCK_ROWS);
        if (turn == 0) memcpy(first, rows.y, rows.y_bytes);
        else assert_memory_equal(first, rows.y, rows.y_bytes);
        mote_moe_destroy(moe);
        for (int p = 0; p < 3; p++) free(blocks[p]);
    }
    free(first);
    rows_free(&rows);
    block_free(&b);
}

/* ---- what is refused ---- */

static void test_refused_options(void **state)
{
    (void)state;
    struct block good;
    struct recipe r = {.format = {"q4_k", "affine4", "mlx_mxfp4"}};
    block_make(&rng, &good, &r);
    size_t before = mote_mem_global_total();
    mote_moe *moe;
#define REFUSED(change, status, text)                                   \
    do {                                                                \
        struct mote_moe_options o = good.options;                       \
        change;                                                         \
        must_fail(mote_moe_create(device, &o, &moe), (status), (text)); \
        assert_null(moe);                                               \
        assert_int_equal(mote_mem_global_total(), before);              \
    } while (0)
    REFUSED(o.struct_size = 0, MOTE_ARGUMENT, "struct_size");
    REFUSED(o.n_expert = 0, MOTE_ARGUMENT, "experts");
    REFUSED(o.n_expert = 1025, MOTE_ARGUMENT, "experts");
    REFUSED(o.n_used = o.n_expert + 1, MOTE_ARGUMENT, "experts");
    REFUSED(o.d_model = 0, MOTE_ARGUMENT, "d_model");
    REFUSED(o.n_ff = -1, MOTE_ARGUMENT, "n_ff");
    REFUSED(o.d_model = 500, MOTE_ARGUMENT, "gate: 500 columns are not a multiple of 256");
    REFUSED(o.n_ff = 48, MOTE_ARGUMENT, "down: 48 columns");
    REFUSED(o.gate.format = "q9_x", MOTE_ARGUMENT, "gate: format 'q9_x'");
    REFUSED(o.gate.format = NULL, MOTE_ARGUMENT, "gate: no format");
    REFUSED(o.up.format = "i32", MOTE_UNSUPPORTED, "up: i32");
    REFUSED(o.gate.data = NULL, MOTE_ARGUMENT, "gate: data is NULL");
    REFUSED(o.gate.scale = o.gate.data, MOTE_ARGUMENT, "gate: scale is given, and q4_k has none");
    REFUSED(o.up.scale = NULL, MOTE_ARGUMENT, "up: scale is NULL, and affine4 has one");
    REFUSED(o.up.bias = NULL, MOTE_ARGUMENT, "up: bias is NULL");
    REFUSED(o.down.bias = o.down.data, MOTE_ARGUMENT, "down: bias is given");
    REFUSED(o.up.group = 48, MOTE_ARGUMENT, "up: groups of 48");
    REFUSED(o.up.scale_type = MOTE_FLOAT_TYPE_COUNT, MOTE_ARGUMENT, "up: scale type");
    REFUSED(o.gate_up = MOTE_GATE_UP_STACKED, MOTE_ARGUMENT, "up empty");
    REFUSED(o.gate_up = MOTE_GATE_UP_COUNT, MOTE_ARGUMENT, "gate_up 4");
    REFUSED(o.activation = "gelu", MOTE_ARGUMENT, "activation 'gelu'");
    REFUSED(o.activation = "relu2", MOTE_ARGUMENT, "takes no gate");
    REFUSED(o.limit = -1, MOTE_ARGUMENT, "limit");
    REFUSED(o.act = "int3", MOTE_ARGUMENT, "activation type 'int3'");
    REFUSED(o.x_type = (enum mote_float_type)7, MOTE_ARGUMENT, "x_type 7");
    REFUSED(o.on_device = 1, MOTE_ARGUMENT, "on_device 0");
    static float zero[BLOCK_EXPERTS];
    REFUSED(o.down.factor = zero, MOTE_ARGUMENT, "down: factor of expert 0");
    must_fail(mote_moe_create(NULL, &good.options, &moe), MOTE_ARGUMENT, "device is NULL");
    must_fail(mote_moe_create(device, NULL, &moe), MOTE_ARGUMENT, "options is NULL");
    block_free(&good);
    mote_device *none;
    must_fail(mote_device_open("tpu", 0, &none), MOTE_ARGUMENT, "device 'tpu'");
    assert_null(none);
    must_fail(mote_device_open("cpu", -1, &none), MOTE_ARGUMENT, "-1 threads");
}

static void test_refused_calls(void **state)
{
    (void)state;
    struct block b;
    struct recipe r = {.format = {"q8_0", "q8_0", "q8_0"}, .x_type = MOTE_BF16};
    block_make(&rng, &b, &r);
    struct rows rows;
    rows_make(&rng, &rows, &b, 3, 1);
    mote_moe *moe;
    must(mote_moe_create(device, &b.options, &moe));
    size_t bytes, before = mote_mem_global_total();
    must(mote_moe_workspace(moe, 0, &bytes));
    assert_int_equal(bytes, 0);
    must_fail(mote_moe_workspace(moe, -1, &bytes), MOTE_ARGUMENT, "-1 rows");
    must_fail(mote_moe_workspace(moe, INT64_MAX, &bytes), MOTE_ARGUMENT, "rows");
    must_fail(mote_moe_workspace(NULL, 1, &bytes), MOTE_ARGUMENT, "block is NULL");
    must(mote_moe_workspace(moe, 3, &bytes));
    struct mote_moe_call good = rows_call(&rows, 3);
    uint8_t *workspace = malloc(bytes);
    good.workspace = workspace;
    good.workspace_bytes = bytes;
    must(mote_moe_forward(moe, &good));
    uint8_t *y = malloc(rows.y_bytes);
    memcpy(y, rows.y, rows.y_bytes);
#undef REFUSED
#define REFUSED(change, status, text)                           \
    do {                                                        \
        struct mote_moe_call c = good;                          \
        change;                                                 \
        must_fail(mote_moe_forward(moe, &c), (status), (text)); \
        assert_memory_equal(y, rows.y, rows.y_bytes);           \
    } while (0)
    REFUSED(c.struct_size = 0, MOTE_ARGUMENT, "struct_size");
    REFUSED(c.n_row = -2, MOTE_ARGUMENT, "-2 rows");
    REFUSED(c.x = NULL, MOTE_ARGUMENT, "x is NULL");
    REFUSED(c.ids = NULL, MOTE_ARGUMENT, "ids is NULL");
    REFUSED(c.weights = NULL, MOTE_ARGUMENT, "weights is NULL");
    REFUSED(c.y = NULL, MOTE_ARGUMENT, "y is NULL");
    REFUSED(c.workspace = NULL, MOTE_ARGUMENT, "workspace is NULL");
    REFUSED(c.workspace_bytes = bytes - 256, MOTE_ARGUMENT, "rows need");
    REFUSED(c.n_row = 300, MOTE_ARGUMENT, "300 rows need");
    REFUSED(c.x = (const uint8_t *)c.x + 1, MOTE_ARGUMENT, "x at");
    REFUSED(c.y = (uint8_t *)c.y + 2, MOTE_ARGUMENT, "y at");
    int32_t kept = rows.ids[4];
    rows.ids[4] = BLOCK_EXPERTS;
    REFUSED((void)0, MOTE_ARGUMENT, "expert 4 of 4 asked for by row 2");
    rows.ids[4] = -1;
    REFUSED((void)0, MOTE_ARGUMENT, "expert -1");
    rows.ids[4] = kept;
    must_fail(mote_moe_forward(NULL, &good), MOTE_ARGUMENT, "block is NULL");
    must_fail(mote_moe_forward(moe, NULL), MOTE_ARGUMENT, "call is NULL");
    struct mote_moe_call none = MOTE_OPTIONS(mote_moe_call);
    must(mote_moe_forward(moe, &none)); /* no rows: nothing is looked at */
    must(mote_moe_check(moe, NULL));
    must(mote_moe_forward(moe, &good)); /* nothing above has hurt it */
    assert_memory_equal(y, rows.y, rows.y_bytes);
    assert_int_equal(mote_mem_global_total(), before);
    free(y), free(workspace);
    mote_moe_destroy(moe);
    mote_moe_destroy(NULL);
    mote_device_close(NULL);
    rows_free(&rows);
    block_free(&b);
}

/* ---- memory and threads ---- */

static mote_status create_all(const struct block *b, mote_device **own, mote_moe **moe)
{
    *moe = NULL;
    TRY(mote_device_open("cpu", 2, own));
    return mote_moe_create(*own, &b->options, moe);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    struct block b;
    struct recipe r = {.format = {"affine4", "affine4", "affine4"}, .gate_up = MOTE_GATE_UP_INTERLEAVED};
    block_make(&rng, &b, &r);
    size_t before = mote_mem_global_total();
    int n_failed = 0;
    for (long at = 1;; at++) {
        mote_device *own = NULL;
        mote_moe *moe;
        mote_mem_fail_at(at);
        mote_status status = create_all(&b, &own, &moe);
        mote_mem_fail_at(0);
        mote_device_close(own); /* before its block */
        mote_moe_destroy(moe);
        assert_int_equal(mote_mem_global_total(), before);
        if (status == MOTE_OK) break;
        assert_int_equal(status, MOTE_MEMORY);
        assert_null(moe);
        n_failed++;
    }
    assert_true(n_failed >= 6);
    block_free(&b);
}

/* Two blocks of a device, each called from a thread of its own, and one block from two. */
struct caller {
    mote_moe *moe;
    const struct block *block;
    struct rows rows;
};

static void *call_often(void *context)
{
    struct caller *c = context;
    size_t bytes;
    mote_status status = mote_moe_workspace(c->moe, BLOCK_ROWS, &bytes);
    struct mote_moe_call call = rows_call(&c->rows, BLOCK_ROWS);
    call.workspace = malloc(bytes);
    call.workspace_bytes = bytes;
    for (int i = 0; i < 20 && status == MOTE_OK; i++) status = mote_moe_forward(c->moe, &call);
    free(call.workspace);
    return status == MOTE_OK ? NULL : c;
}

static void test_threads(void **state)
{
    (void)state;
    struct block b[2];
    struct recipe r[2] = {{.format = {"q4_k", "q4_k", "q6_k"}}, {.format = {"bf16", "bf16", "bf16"}}};
    mote_moe *moe[2];
    struct caller caller[4];
    pthread_t thread[4];
    for (int i = 0; i < 2; i++) {
        block_make(&rng, &b[i], &r[i]);
        must(mote_moe_create(device, &b[i].options, &moe[i]));
    }
    for (int i = 0; i < 4; i++) {
        caller[i] = (struct caller){.moe = moe[i % 2], .block = &b[i % 2]};
        rows_make(&rng, &caller[i].rows, &b[i % 2], BLOCK_ROWS, 0);
        assert_int_equal(pthread_create(&thread[i], NULL, call_often, &caller[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
        rows_check(caller[i].block, &caller[i].rows, BLOCK_ROWS, "thread");
        rows_free(&caller[i].rows);
    }
    for (int i = 0; i < 2; i++) mote_moe_destroy(moe[i]), block_free(&b[i]);
}

/* ---- rows ---- */

static void test_rows(void **state)
{
    (void)state;
    enum { N_ROW = 3, N_COL = 512 };
    float x[N_ROW * N_COL], back[N_ROW * N_COL];
    for (int i = 0; i < N_ROW * N_COL; i++) x[i] = (float)random_uniform(&rng, -1, 1);
    struct mote_format_info info = MOTE_OPTIONS(mote_format_info);
    for (int f = 0; mote_format_describe(f, &info) == MOTE_OK; f++) {
        struct mote_weights w = {.format = info.name, .scale_type = MOTE_F16};
        size_t size[3];
        must(mote_rows_bytes(&w, N_ROW, N_COL, &size[0], &size[1], &size[2]));
        assert_int_equal(size[0], N_ROW * (N_COL / info.block) * info.block_bytes);
        assert_int_equal(size[1] != 0, info.has_scale);
        assert_int_equal(size[2] != 0, info.has_bias);
        uint8_t *plane[3];
        for (int p = 0; p < 3; p++) plane[p] = size[p] ? malloc(size[p]) : NULL; /* to the byte: ASan looks */
        mote_status status = mote_rows_quantise(&w, x, N_ROW, N_COL, NULL, plane[0], plane[1], plane[2]);
        assert_int_equal(status, info.can_quantise ? MOTE_OK : MOTE_UNSUPPORTED);
        if (info.can_quantise) {
            w.data = plane[0], w.scale = plane[1], w.bias = plane[2];
            must(mote_rows_dequantise(&w, N_ROW, N_COL, back));
            double off = 0, all = 0;
            for (int i = 0; i < N_ROW * N_COL; i++) {
                off += (x[i] - back[i]) * (x[i] - back[i]);
                all += x[i] * x[i];
            }
            double bits = 8.0 * (double)(size[0] + size[1] + size[2]) / (N_ROW * N_COL);
            if (off > all * 1.3 * exp2(-2 * (bits > 8 ? 8 : bits) + 3)) /* a bit is worth a factor of four */
                fail_msg("%s: error %g of %g with %.2f bits", info.name, off, all, bits);
        }
        for (int p = 0; p < 3; p++) free(plane[p]);
    }
    struct mote_weights w = {.format = "q4_k"};
    size_t bytes;
    must_fail(mote_rows_bytes(&w, 1, 100, &bytes, NULL, NULL), MOTE_ARGUMENT, "100 columns");
    must_fail(mote_rows_bytes(&w, 0, 256, &bytes, NULL, NULL), MOTE_ARGUMENT, "0 rows");
    must_fail(mote_rows_bytes(NULL, 1, 256, &bytes, NULL, NULL), MOTE_ARGUMENT, "no format");
    must_fail(mote_rows_quantise(&w, x, 1, 256, NULL, NULL, NULL, NULL), MOTE_ARGUMENT, "data is NULL");
    must_fail(mote_rows_quantise(&w, NULL, 1, 256, NULL, back, NULL, NULL), MOTE_ARGUMENT, "no x");
    must_fail(mote_rows_dequantise(&w, 1, 256, back), MOTE_ARGUMENT, "data is NULL");
    x[N_COL + 5] = (float)INFINITY;
    must_fail(mote_rows_quantise(&w, x, N_ROW, N_COL, NULL, back, NULL, NULL), MOTE_NUMERIC,
              "row 1, column 5");
    w.format = "mlx_mxfp4";
    uint8_t codes[N_ROW * N_COL / 2], scale[N_ROW * N_COL / 32];
    must_fail(mote_rows_quantise(&w, x, N_ROW, N_COL, NULL, codes, scale, NULL), MOTE_NUMERIC, "row 1");
}

/* Planes of activations decode, as weights of "mlx_mxfp4", to what the rule of quant/mxfp4.h says. */
static void test_mxfp4_activations(void **state)
{
    (void)state;
    enum { N_ROW = 64, N_COL = 96 };
    float *x = malloc(N_ROW * N_COL * sizeof *x), back[N_COL];
    uint8_t codes[N_ROW * N_COL / 2], scales[N_ROW * N_COL / 32];
    for (int i = 0; i < N_ROW * N_COL; i++)
        x[i] =
            (float)(random_uniform(&rng, -1, 1) * exp2(i / N_COL * 4.0 - 126)); /* every row its own size */
    for (int c = 0; c < 32; c++) x[c] = 0;
    must(mote_mxfp4_quantise(x, N_ROW, N_COL, codes, scales));
    struct mote_weights w = {.format = "mlx_mxfp4", .data = codes, .scale = scales};
    for (int r = 0; r < N_ROW; r++) {
        w.data = codes + r * N_COL / 2, w.scale = scales + r * N_COL / 32;
        must(mote_rows_dequantise(&w, 1, N_COL, back));
        for (int b = 0; b < N_COL / 32; b++) {
            int8_t twice[32];
            double unit = mote_mxfp4_block(x + r * N_COL + 32 * b, twice);
            for (int c = 0; c < 32; c++) {
                float want = (float)(twice[c] * unit);
                assert_true(back[32 * b + c] == want || (want == 0 && back[32 * b + c] == 0));
            }
        }
    }
    x[40] = NAN;
    must(mote_mxfp4_quantise(x, N_ROW, N_COL, codes, scales));
    assert_int_equal(scales[1], 255);
    assert_int_equal(codes[20], 0);
    assert_int_not_equal(scales[2], 255);
    must_fail(mote_mxfp4_quantise(x, 1, 33, codes, scales), MOTE_ARGUMENT, "33 columns");
    must_fail(mote_mxfp4_quantise(x, 1, 32, NULL, scales), MOTE_ARGUMENT, "codes is NULL");
    must(mote_mxfp4_quantise(x, 0, 32, codes, scales));
    free(x);
}

static int setup(void **state)
{
    (void)state;
    mote_rng_seed(&rng, 81);
    return mote_device_open(NULL, 2, &device) != MOTE_OK;
}
static int teardown(void **state)
{
    (void)state;
    mote_device_close(device);
    return mote_mem_global_total() != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_float_types),
        cmocka_unit_test(test_mxfp4_names),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_mxfp4_activations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
