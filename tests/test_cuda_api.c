/* test_cuda_api.c: mote/kernels.h on a GPU: every layout and type against float64 over decoded weights, on streams of the
 * caller, recorded in the caller's graph and replayed with other rows and ids, two blocks at once, and what a bad id leaves
 * behind. Formats and shapes themselves: test_cuda_moe.c. Without a device: need_device.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/driver.h"
#include "kernels_block.h"
#include "need_device.h"

static struct mote_rng rng;
static const struct mote_cuda_driver *call;
static mote_device *device;

/* A caller's own: this program is one that has mote and the driver. */
#define cu(expression)                                                                \
    do {                                                                              \
        int code_ = (expression);                                                     \
        if (code_) fail_msg("%s:%d: %s: %d", __FILE__, __LINE__, #expression, code_); \
    } while (0)

static void *put(const void *host, size_t size)
{
    uint64_t memory;
    cu(call->memory_alloc(&memory, size ? size : 1));
    if (host) cu(call->copy_in(memory, host, size, NULL));
    cu(call->stream_wait(NULL));
    return (void *)(uintptr_t)memory;
}

static void take_back(const void *memory)
{
    if (memory) cu(call->memory_free((uint64_t)(uintptr_t)memory));
}

/* Rows on the device. */
struct device_rows {
    struct mote_moe_call call;
    const struct rows *host;
};

static struct device_rows device_rows(mote_moe *moe, const struct rows *rows, void *stream)
{
    struct device_rows d = {.call = rows_call(rows, rows->n_row), .host = rows};
    size_t n_pair = (size_t)(rows->n_row * BLOCK_USED);
    d.call.x = put(rows->x, rows->x_bytes);
    d.call.ids = put(rows->ids, n_pair * sizeof(int32_t));
    d.call.weights = put(rows->weights, n_pair * sizeof(float));
    d.call.residual = rows->residual ? put(rows->residual, rows->y_bytes) : NULL;
    d.call.y = put(NULL, rows->y_bytes);
    must(mote_moe_workspace(moe, rows->n_row, &d.call.workspace_bytes));
    d.call.workspace = put(NULL, d.call.workspace_bytes);
    cu(call->fill((uint64_t)(uintptr_t)d.call.workspace, 0xFF, d.call.workspace_bytes, NULL)); /* NaN */
    cu(call->fill((uint64_t)(uintptr_t)d.call.y, 0xFF, rows->y_bytes, NULL));
    cu(call->stream_wait(NULL));
    d.call.stream = stream;
    return d;
}

/* y to the host, and what the stream has done is over. */
static void fetch(const struct device_rows *d)
{
    cu(call->copy_out(d->host->y, (uint64_t)(uintptr_t)d->call.y, d->host->y_bytes, d->call.stream));
    cu(call->stream_wait(d->call.stream));
}

static void device_rows_free(struct device_rows *d)
{
    const void *all[] = {d->call.x,        d->call.ids, d->call.weights,
                         d->call.residual, d->call.y,   d->call.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) take_back(all[i]);
}

/* Tensor cores multiply halves; "f32" is those, "mxfp4" the same 4 bits as on the CPU. */
static double device_budget(const struct block *b)
{
    return (b->options.act && !strcmp(b->options.act, "mxfp4") ? 0.04 : 0.015) +
           (b->options.y_type == MOTE_BF16 ? 0x1p-8 : 0);
}

static mote_moe *device_block(const struct block *b, int on_device)
{
    struct mote_moe_options o = b->options;
    struct mote_weights *w[PROJECTIONS] = {&o.gate, &o.up, &o.down};
    const void *copy[PROJECTIONS][3] = {{NULL}};
    mote_moe *moe;
    o.on_device = on_device;
    for (int p = 0; p < PROJECTIONS && on_device; p++) {
        const void **plane[3] = {&w[p]->data, &w[p]->scale, &w[p]->bias};
        size_t size[3] = {0};
        if (!w[p]->format) continue;
        must(mote_rows_bytes(w[p], b->tensor[p].n_row, b->tensor[p].n_col, &size[0], &size[1], &size[2]));
        for (int i = 0; i < 3; i++)
            if (*plane[i]) *plane[i] = copy[p][i] = put(*plane[i], size[i]);
    }
    must(mote_moe_create(device, &o, &moe));
    for (int p = 0; p < PROJECTIONS; p++)
        for (int i = 0; i < 3; i++) take_back(copy[p][i]); /* they may go */
    return moe;
}

static const struct recipe recipes[] = {
    {.format = {"mlx_mxfp4", "mlx_mxfp4", "mlx_mxfp4"},
     .gate_up = MOTE_GATE_UP_STACKED,
     .x_type = MOTE_BF16,
     .y_type = MOTE_BF16},
    {.format = {"mlx_mxfp4", "mlx_mxfp4", "mlx_mxfp4"},
     .gate_up = MOTE_GATE_UP_INTERLEAVED,
     .activation = "swiglu_oai",
     .x_type = MOTE_BF16},
    {.format = {"mlx_mxfp4", "mlx_mxfp4", "mlx_mxfp4"},
     .gate_up = MOTE_GATE_UP_STACKED,
     .act = "mxfp4",
     .x_type = MOTE_BF16,
     .y_type = MOTE_BF16},
    {.format = {"mxfp4", "mxfp4", "mxfp4"}, .gate_up = MOTE_UP_GATE_STACKED, .y_type = MOTE_F16},
    {.format = {"q4_k", "q4_k", "q6_k"}, .x_type = MOTE_F16, .y_type = MOTE_BF16},
    {.format = {"affine4", "affine4", "affine6"},
     .gate_up = MOTE_GATE_UP_INTERLEAVED,
     .scale_type = MOTE_BF16},
    {.format = {"tq2_0", "tq2_0", "q4_0"}, .act = "f32"},
    {.format = {"mlx_nvfp4", "mlx_nvfp4", "mlx_nvfp4"}, .has_factor = 1},
    {.format = {"bf16", "bf16", "bf16"}, .x_type = MOTE_BF16, .y_type = MOTE_BF16}, /* not in tiles */
    {.format = {NULL, "iq2_xxs", "q4_k"}, .activation = "relu2"},
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static void test_against_float64(void **state)
{
    (void)state;
    need_device();
    static const int64_t size[] = {1, 2, 16, 64, 65, 300};
    void *stream;
    cu(call->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < RECIPES; i++) {
        struct block b;
        block_make(&rng, &b, &recipes[i]);
        mote_moe *moe = device_block(&b, i & 1);
        for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
            struct rows rows;
            rows_make(&rng, &rows, &b, size[k], k & 1);
            struct device_rows d = device_rows(moe, &rows, k & 2 ? stream : NULL);
            must(mote_moe_forward(moe, &d.call));
            must(mote_moe_check(moe, d.call.stream));
            fetch(&d);
            rows_check_within(&b, &rows, size[k], device_budget(&b), "gpu");
            void *first = malloc(rows.y_bytes);
            memcpy(first, rows.y, rows.y_bytes);
            must(mote_moe_forward(moe, &d.call));
            fetch(&d);
            assert_memory_equal(first, rows.y, rows.y_bytes); /* another run, the same bits */
            free(first);
            device_rows_free(&d);
            rows_free(&rows);
        }
        mote_moe_destroy(moe);
        block_free(&b);
    }
    cu(call->stream_destroy(stream));
}

/* The caller records, changes everything that may change, and replays. */
static void test_graph(void **state)
{
    (void)state;
    need_device();
    static const int64_t size[] = {1, 8, 100};
    void *stream;
    cu(call->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 4; i++) {
        struct block b;
        block_make(&rng, &b, &recipes[i]);
        mote_moe *moe = device_block(&b, 0);
        for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
            struct rows rows, other;
            void *graph, *exec;
            rows_make(&rng, &rows, &b, size[k], 1);
            struct device_rows d = device_rows(moe, &rows, stream);
            cu(call->capture_begin(stream, CU_CAPTURE_THREAD_LOCAL));
            /* behind something that is no kernel */
            cu(call->fill((uint64_t)(uintptr_t)d.call.y, 0xFF, rows.y_bytes, stream));
            must(mote_moe_forward(moe, &d.call));
            must(mote_moe_forward(moe, &d.call)); /* one after the other, in the same workspace */
            cu(call->capture_end(stream, &graph));
            cu(call->graph_instantiate(&exec, graph, 0));
            for (int turn = 0; turn < 3; turn++) {
                rows_make(&rng, &other, &b, size[k], 1);
                size_t n_pair = (size_t)(size[k] * BLOCK_USED);
                cu(call->copy_in((uint64_t)(uintptr_t)d.call.x, other.x, other.x_bytes, stream));
                cu(call->copy_in((uint64_t)(uintptr_t)d.call.ids, other.ids, n_pair * sizeof(int32_t),
                                 stream));
                cu(call->copy_in((uint64_t)(uintptr_t)d.call.weights, other.weights, n_pair * sizeof(float),
                                 stream));
                cu(call->copy_in((uint64_t)(uintptr_t)d.call.residual, other.residual, other.y_bytes,
                                 stream));
                cu(call->exec_launch(exec, stream));
                d.host = &other;
                fetch(&d);
                rows_check_within(&b, &other, size[k], device_budget(&b), "replayed");
                rows_free(&other);
            }
            must(mote_moe_check(moe, stream));
            cu(call->exec_destroy(exec));
            cu(call->graph_destroy(graph));
            device_rows_free(&d);
            rows_free(&rows);
        }
        mote_moe_destroy(moe);
        block_free(&b);
    }
    cu(call->stream_destroy(stream));
}

/* Two blocks on two streams, again and again without a wait between. */
static void test_two_streams(void **state)
{
    (void)state;
    need_device();
    enum { ROWS = 48, TURNS = 30 };
    struct block b[2];
    struct rows rows[2];
    struct device_rows d[2];
    mote_moe *moe[2];
    for (int i = 0; i < 2; i++) {
        void *stream;
        cu(call->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        block_make(&rng, &b[i], &recipes[2 + i]);
        moe[i] = device_block(&b[i], i);
        rows_make(&rng, &rows[i], &b[i], ROWS, 1);
        d[i] = device_rows(moe[i], &rows[i], stream);
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < 2; i++) must(mote_moe_forward(moe[i], &d[i].call));
    for (int i = 0; i < 2; i++) {
        fetch(&d[i]);
        rows_check_within(&b[i], &rows[i], ROWS, device_budget(&b[i]), "two streams");
        cu(call->stream_destroy(d[i].call.stream));
        device_rows_free(&d[i]);
        mote_moe_destroy(moe[i]);
        rows_free(&rows[i]);
        block_free(&b[i]);
    }
}

static void test_bad_ids(void **state)
{
    (void)state;
    need_device();
    static const int64_t size[] = {1, 16, 100};
    for (int i = 0; i < RECIPES; i++) {
        struct block b;
        block_make(&rng, &b, &recipes[i]);
        mote_moe *moe = device_block(&b, 0);
        for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
            struct rows rows;
            rows_make(&rng, &rows, &b, size[k], 0);
            int64_t bad = size[k] * BLOCK_USED - 1;
            int32_t kept = rows.ids[bad];
            rows.ids[bad] = k & 1 ? -7 : BLOCK_EXPERTS + 900;
            struct device_rows d = device_rows(moe, &rows, NULL);
            must(mote_moe_forward(moe, &d.call));
            must_fail(mote_moe_check(moe, NULL), MOTE_ARGUMENT, k & 1 ? "expert -7" : "expert 904");
            must(mote_moe_check(moe, NULL)); /* told once */
            rows.ids[bad] = kept;
            cu(call->copy_in((uint64_t)(uintptr_t)d.call.ids, rows.ids, (size_t)(bad + 1) * sizeof(int32_t),
                             NULL));
            must(mote_moe_forward(moe, &d.call));
            must(mote_moe_check(moe, NULL));
            fetch(&d);
            rows_check_within(&b, &rows, size[k], device_budget(&b), "after a bad id");
            device_rows_free(&d);
            rows_free(&rows);
        }
        mote_moe_destroy(moe);
        block_free(&b);
    }
}

static int setup(void **state)
{
    (void)state;
    mote_rng_seed(&rng, 83);
    int n = 0;
    if (mote_cuda_count(&n) != MOTE_OK || n == 0) return 0; /* every test says so */
    return mote_cuda_driver_open(&call) != MOTE_OK || mote_device_open("cuda", 0, &device) != MOTE_OK;
}
static int teardown(void **state)
{
    (void)state;
    mote_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_float64), cmocka_unit_test(test_graph),
                                       cmocka_unit_test(test_two_streams), cmocka_unit_test(test_bad_ids)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
