/* test_kernels_driver.c: mote/kernels.h on a GPU, as far as the driver of tests/fake/libcuda.c knows one: on whose stream is
 * launched, that a forward does nothing else, and what a failure of any call leaves behind (nothing). What kernels compute:
 * test_cuda_api.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda.h"
#include "cuda_pair.h"
#include "fake/libcuda.h"
#include "kernels_block.h"

static struct fake_state *fake;
static struct mote_rng rng;
static int stream_of_caller; /* its address is the handle */

static const struct recipe recipes[] = {
    {.format = {"mlx_mxfp4", NULL, "mlx_mxfp4"},
     .gate_up = MOTE_GATE_UP_INTERLEAVED,
     .x_type = MOTE_BF16,
     .y_type = MOTE_BF16,
     .activation = "swiglu_oai"},
    {.format = {"mxfp4", "mxfp4", "mxfp4"}, .act = "mxfp4", .y_type = MOTE_F16},
    {.format = {"bf16", "bf16", "bf16"}}, /* not in tiles */
    {.format = {"mxfp4", "mxfp4", "mxfp4"}, .act = "mxfp4", .x_type = MOTE_BF16, .y_type = MOTE_BF16},
};

enum { RECIPES = sizeof recipes / sizeof *recipes, MX_PLANES = 0, MX_F16 = 1, MX_ALONE = 3 };

static void need_compiler(void)
{
    int version;
    if (mote_cuda_nvrtc(&version) == MOTE_OK) return;
    print_message("%s\n", mote_error());
    skip();
}

static void assert_nothing_left(void)
{
    assert_int_equal(fake->n_context, 0);
    assert_int_equal(fake->n_stream, 0);
    assert_int_equal(fake->n_pinned, 0);
    assert_int_equal(fake->n_event, 0);
    assert_int_equal(fake->n_module, 0);
    assert_int_equal(fake->n_byte, 0);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* Memory of this device is the host's, of any alignment; the door asks for 16 bytes. */
static void *aligned(void **memory, size_t size)
{
    *memory = malloc(size + 16);
    return (uint8_t *)*memory + (-(uintptr_t)*memory & 15);
}

/* Returns how many kernels were launched. */
static int check_forward(mote_moe *moe, const struct block *b, int64_t n_row, int is_captured)
{
    struct rows rows;
    void *memory[3], *workspace;
    rows_make(&rng, &rows, b, n_row, 1);
    struct mote_moe_call call = rows_call(&rows, n_row);
    must(mote_moe_workspace(moe, n_row, &call.workspace_bytes));
    call.x = aligned(&memory[0], rows.x_bytes);
    call.y = aligned(&memory[1], rows.y_bytes);
    call.residual = aligned(&memory[2], rows.y_bytes);
    call.workspace = workspace = malloc(call.workspace_bytes);
    call.stream = &stream_of_caller;
    struct fake_state before = *fake;
    fake->capturing = is_captured; /* waiting, allocating and the like fail */
    must(mote_moe_forward(moe, &call));
    int launched = fake->n_plain + fake->n_chain - before.n_plain - before.n_chain;
    assert_true(launched >= 2);
    assert_int_equal(fake->n_lent - before.n_lent, launched);
    assert_int_equal(fake->n_copy, before.n_copy);
    assert_int_equal(fake->n_wait + fake->n_lent_wait, before.n_wait + before.n_lent_wait);
    assert_true(fake->n_byte == before.n_byte && fake->n_pinned == before.n_pinned);
    /* What is refused launches nothing. */
    before = *fake;
    call.workspace_bytes -= 512;
    must_fail(mote_moe_forward(moe, &call), MOTE_ARGUMENT, "rows need");
    call.workspace_bytes += 512;
    call.x = (const uint8_t *)call.x + 4;
    must_fail(mote_moe_forward(moe, &call), MOTE_ARGUMENT, "expected a multiple of 16 bytes");
    assert_int_equal(fake->n_plain + fake->n_chain, before.n_plain + before.n_chain);
    fake->capturing = 0;
    /* The check waits for the caller's stream and no other. */
    before = *fake;
    must(mote_moe_check(moe, &stream_of_caller));
    assert_true(fake->n_lent_wait > before.n_lent_wait && fake->n_wait == before.n_wait);
    for (int i = 0; i < 3; i++) free(memory[i]);
    free(workspace);
    rows_free(&rows);
    return launched;
}

static void test_forward(void **state)
{
    (void)state;
    need_compiler();
    static const int64_t size[] = {1, 7, 64, 65, 200};
    mote_device *device;
    mote_moe *moe[RECIPES];
    struct block b[RECIPES];
    must(mote_device_open("cuda:1", 1, &device));
    for (int i = 0; i < RECIPES; i++) {
        block_make(&rng, &b[i], &recipes[i]);
        b[i].options.on_device = i == 0;
        must(mote_moe_create(device, &b[i].options, &moe[i]));
        size_t bytes;
        must_fail(mote_moe_workspace(moe[i], 65536, &bytes), MOTE_ARGUMENT, "65536 rows");
    }
    mote_device_close(device); /* it lives on */
    for (int i = 0; i < RECIPES; i++)
        for (size_t k = 0; k < sizeof size / sizeof *size; k++) check_forward(moe[i], &b[i], size[k], k & 1);
    for (int i = 0; i < RECIPES; i++) mote_moe_destroy(moe[i]), block_free(&b[i]);
    assert_nothing_left();
}

/* On sm_90 MXFP4 has kernels of its own (cuda_mx.c). Where they serve every step of a block it needs no scratch of others. */
static void test_mx_forward(void **state)
{
    (void)state;
    need_compiler();
    if (getenv("MOTE_TEST_SHORT")) skip(); /* half a minute inside the compiler */
    static const int64_t size[] = {1, 7, 65, 200};
    static const int n_launch[] = {
        3, 4, 4, 5}; /* as below, and of wide pieces h by itself; two more where rows are f16 */
    mote_device *device;
    mote_moe *moe[2];
    struct block b[2];
    size_t bytes[2];
    must(mote_device_open("cuda:0", 1, &device));
    for (int i = 0; i < 2; i++) {
        block_make(&rng, &b[i], &recipes[i ? MX_ALONE : MX_F16]);
        must(mote_moe_create(device, &b[i].options, &moe[i]));
        must(mote_moe_workspace(moe[i], 200, &bytes[i]));
        for (size_t k = 0; k < sizeof size / sizeof *size; k++)
            assert_int_equal(check_forward(moe[i], &b[i], size[k], k & 1), n_launch[k] + (i ? 0 : 2));
    }
    print_message("workspace of 200 rows: %zu bytes, %zu with rows of f16\n", bytes[1], bytes[0]);
    assert_true(bytes[1] < bytes[0] / 2);
    mote_device_close(device);
    for (int i = 0; i < 2; i++) mote_moe_destroy(moe[i]), block_free(&b[i]);
    assert_nothing_left();
}

/* Few rows, summed in any order: a launch less. More: nothing else. */
static void test_mx_unordered(void **state)
{
    (void)state;
    need_compiler();
    if (getenv("MOTE_TEST_SHORT")) skip();
    mote_device *device;
    struct block b;
    int n_launch[2][2];
    struct recipe recipe = recipes[MX_ALONE];
    recipe.y_type = MOTE_F32; /* of others the order stays */
    block_make(&rng, &b, &recipe);
    must(mote_device_open("cuda:0", 1, &device));
    for (b.options.unordered = 0; b.options.unordered < 2; b.options.unordered++) {
        mote_moe *moe;
        must(mote_moe_create(device, &b.options, &moe));
        for (int is_large = 0; is_large < 2; is_large++)
            n_launch[b.options.unordered][is_large] = check_forward(moe, &b, is_large ? 65 : 2, is_large);
        mote_moe_destroy(moe);
    }
    assert_int_equal(n_launch[1][0], n_launch[0][0] - 1);
    assert_int_equal(n_launch[1][1], n_launch[0][1]);
    mote_device_close(device);
    block_free(&b);
    assert_nothing_left();
}

/* MXFP4 weights whose activations are not: those kernels, which read and write bf16 themselves, for steps of more than few pairs an
 * expert; of one row the portable ones, between edges, and of any where a scale of weights is NaN. */
static void test_mx_planes_forward(void **state)
{
    (void)state;
    need_compiler();
    if (getenv("MOTE_TEST_SHORT")) skip();
    static const struct {
        int64_t n_row;
        int n_launch; /* begin, the small kernel or gate and up, down, sum; 0: others' */
        int n_wide;   /* the same where scales of a row of weights lie too far apart for narrow pieces */
    } step[] = {{1, 0, 0}, {2, 3, 3}, {7, 4, 0}, {65, 4, 0}, {4000, 4, 4}};
    mote_device *device;
    mote_moe *moe;
    struct block b;
    block_make(&rng, &b, &recipes[MX_PLANES]);
    must(mote_device_open("cuda:0", 1, &device));
    for (int spoilt = 0; spoilt < 3; spoilt++) {
        if (spoilt)
            *(uint8_t *)b.plane[DOWN][1] =
                spoilt == 1 ? 60 : 255; /* of the first row's first block; 255: NaN */
        must(mote_moe_create(device, &b.options, &moe));
        for (size_t k = 0; k < sizeof step / sizeof *step; k++) {
            int n_launch = check_forward(moe, &b, step[k].n_row, k & 1);
            int expected = spoilt == 0 ? step[k].n_launch : spoilt == 1 ? step[k].n_wide : 0;
            if (expected) assert_int_equal(n_launch, expected);
            else assert_true(n_launch < 3 || n_launch > 5);
        }
        mote_moe_destroy(moe);
    }
    block_free(&b);
    mote_device_close(device);
    assert_nothing_left();
}

static mote_status create_all(const struct block *b)
{
    mote_device *device = NULL;
    mote_moe *moe = NULL;
    mote_status status = mote_device_open("cuda", 1, &device);
    if (status == MOTE_OK) status = mote_moe_create(device, &b->options, &moe);
    assert_true((status == MOTE_OK) == (moe != NULL));
    mote_moe_destroy(moe);
    mote_device_close(device);
    return status;
}

/* A model's block, with a shared expert beside the routed ones: first their kernels, then what a shared expert alone takes. */
static int launched(struct mote_backend *backend, const struct mote_moe *job)
{
    int before = fake->n_plain + fake->n_chain;
    begin_rows(backend, job->n_row);
    must(backend->ops->moe(backend, job));
    return fake->n_plain + fake->n_chain - before;
}

static void test_mx_shared(void **state)
{
    (void)state;
    need_compiler();
    if (getenv("MOTE_TEST_SHORT")) skip();
    enum { D = 512, FF = 256, EXPERTS = 4, ROWS = 200 };
    static const enum mote_act_wish act[] = {MOTE_WISH_MXFP4, MOTE_WISH_DEFAULT};
    struct mote_matrix gate = mote_matrix_view(MOTE_FORMAT_MXFP4, NULL, FF, D), /* any bytes */
        down = mote_matrix_view(MOTE_FORMAT_MXFP4, NULL, D, FF), all[3][EXPERTS];
    uint8_t *bytes = calloc(FF, gate.row_bytes);
    gate.data = down.data = bytes;
    for (int e = 0; e < EXPERTS; e++) all[0][e] = all[1][e] = gate, all[2][e] = down;
    const struct mote_backend_limits limits = {.max_row = ROWS,
                                               .max_col = D,
                                               .d_model = D,
                                               .n_ff = FF,
                                               .n_ff_shared = FF,
                                               .n_expert = EXPERTS,
                                               .n_used = 2,
                                               .act_moe = 15,
                                               .act_down = 15};
    for (int i = 0; i < 2; i++) {
        struct mote_expert_set set[2] = {{.name = "routed", .n_expert = EXPERTS},
                                         {.name = "shared", .n_expert = 1}};
        struct mote_backend_options options = {0};
        struct mote_backend *backend;
        must(mote_backend_cuda.create(&options, &limits, NULL, &backend));
        for (int k = 0; k < 2; k++) {
            set[k].n_ff = FF, set[k].d_model = D, set[k].act = act[i];
            set[k].gate = all[0], set[k].up = all[1], set[k].down = all[2];
            must(backend->ops->place_experts(backend, &set[k]));
        }
        make_ready(backend);
        float *x = put_floats(backend, NULL, ROWS * D), *y = put_floats(backend, NULL, ROWS * D);
        float *weights = put_floats(backend, NULL, ROWS * 2);
        int32_t *ids = put(backend, NULL, ROWS * 2 * sizeof *ids);
        for (int64_t n = 3; n <= ROWS; n += ROWS - 3) {
            struct mote_moe routed = {.n_row = n, .d_model = D, .n_used = 2, .x = x, .experts = &set[0]};
            routed.ids = ids, routed.weights = weights, routed.residual = y, routed.y = y;
            struct mote_moe both = routed, shared = routed, portable = routed;
            both.shared = shared.shared = portable.shared = &set[1];
            shared.n_used = 0, shared.experts = NULL;
            portable.x = y; /* which they may not: x would be gone before it is read again */
            int n_routed = launched(backend, &routed), n_shared = launched(backend, &shared);
            assert_int_equal(launched(backend, &both), n_routed + n_shared);
            assert_int_not_equal(launched(backend, &portable), n_routed + n_shared);
        }
        take_back(backend, x), take_back(backend, y), take_back(backend, weights), take_back(backend, ids);
        for (int k = 0; k < 2; k++) backend->ops->unplace(backend, set[k].placed);
        backend->ops->destroy(backend);
        assert_nothing_left();
    }
    free(bytes);
}

/* Every call of the driver fails in its turn. */
static void test_failures(void **state)
{
    (void)state;
    need_compiler();
    static const char *const symbol[] = {
        "cuDevicePrimaryCtxRetain", "cuStreamCreate",      "cuMemAlloc_v2",       "cuMemHostAlloc",
        "cuMemcpyHtoDAsync_v2",     "cuModuleLoadData",    "cuModuleGetFunction", "cuEventRecord",
        "cuMemcpyDtoHAsync_v2",     "cuStreamSynchronize", "cuMemsetD8Async",     "cuEventCreate"};
    struct block b;
    block_make(&rng, &b, &recipes[0]);
    b.options.on_device = 1;
    for (size_t i = 0; i < sizeof symbol / sizeof *symbol; i++) {
        int after = 0;
        for (;; after++) {
            fake->fail_symbol = symbol[i];
            fake->fail_after = after;
            fake->fail_code = 700;
            mote_status status = create_all(&b);
            int was_met = fake->fail_symbol == NULL;
            fake->fail_symbol = NULL;
            assert_nothing_left();
            if (!was_met) break;
            if (status == MOTE_OK) continue; /* on the way down: nobody is told */
            assert_int_equal(status, MOTE_DEVICE);
            assert_non_null(strstr(mote_error(), "illegal memory access"));
        }
        assert_true(after > 0);
    }
    block_free(&b);
}

static void test_refused(void **state)
{
    (void)state;
    mote_device *device;
    must_fail(mote_device_open("cuda:2", 0, &device), MOTE_ARGUMENT, "device 2");
    assert_null(device);
    assert_nothing_left();
}

int main(int argc, char **argv)
{
    (void)argc;
    char path[1024];
    snprintf(path, sizeof path, "%.*s/libcuda_fake.so", (int)(strrchr(argv[0], '/') - argv[0]), argv[0]);
    setenv("MOTE_LIBCUDA", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake") : NULL;
    if (!fake) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
        return 1;
    }
    fake->lent = &stream_of_caller;
    mote_rng_seed(&rng, 82);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),      cmocka_unit_test(test_mx_forward),
        cmocka_unit_test(test_mx_unordered), cmocka_unit_test(test_mx_planes_forward),
        cmocka_unit_test(test_mx_shared),    cmocka_unit_test(test_failures),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
