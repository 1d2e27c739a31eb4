/* test_cuda_device.c: devices, memory, copies, launches, graphs and modules over the driver of tests/fake/libcuda.c: what is
 * called in which order, on which thread, and what a failure of any call leaves behind (nothing). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda.h"
#include "fake/libcuda.h"

static struct fake_state *fake;

static void ok(mote_status status)
{
    if (status != MOTE_OK) fail_msg("%s", mote_error());
}

static void assert_says(const char *text)
{
    if (!strstr(mote_error(), text)) fail_msg("'%s' is not in: %s", text, mote_error());
}

static void fail_at(const char *symbol, int after, int code)
{
    fake->fail_symbol = symbol;
    fake->fail_after = after;
    fake->fail_code = code;
}

static void assert_nothing_left(void)
{
    assert_int_equal(fake->n_context, 0);
    assert_int_equal(fake->n_stream, 0);
    assert_int_equal(fake->n_pinned, 0);
    assert_int_equal(fake->n_graph, 0);
    assert_int_equal(fake->n_exec, 0);
    assert_int_equal(fake->n_event, 0);
    assert_int_equal(fake->n_module, 0);
    assert_int_equal(fake->n_byte, 0);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- devices ---- */

static void test_devices(void **state)
{
    (void)state;
    int n;
    ok(mote_cuda_count(&n));
    assert_int_equal(n, 2);
    struct mote_cuda_info info;
    ok(mote_cuda_describe(0, &info));
    assert_string_equal(info.name, "Fake H200");
    assert_string_equal(info.arch, "sm_90a");
    assert_int_equal(info.cc, 90);
    assert_int_equal(info.n_sm, 132);
    assert_int_equal(info.driver, 13000);
    assert_int_equal(info.l2_bytes, 60 << 20);
    assert_int_equal(info.shared_bytes, 227 << 10);
    assert_int_equal(info.total_bytes, 1 << 30);
    assert_int_equal(info.free_bytes, 0);
    assert_int_equal(info.pci_bus, 7);
    ok(mote_cuda_describe(1, &info));
    assert_string_equal(info.arch, "sm_80");
    assert_int_equal(mote_cuda_describe(2, &info), MOTE_ARGUMENT);
    assert_says("device 2: there are 2");
    assert_int_equal(mote_cuda_describe(-1, &info), MOTE_ARGUMENT);
    assert_nothing_left(); /* describing opens nothing */
}

static void test_open(void **state)
{
    (void)state;
    struct mote_cuda *cuda;
    ok(mote_cuda_open(1, &cuda));
    assert_string_equal(mote_cuda_info(cuda)->name, "Fake A100");
    assert_int_equal(mote_cuda_info(cuda)->free_bytes, 1 << 30);
    mote_cuda_close(cuda);
    assert_nothing_left();
    static const char *const calls[] = {
        "cuDeviceGetCount",    "cuDeviceGet",          "cuDeviceGetName",
        "cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",     "cuStreamCreate",       "cuMemGetInfo_v2"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        fail_at(calls[i], 0, 999);
        assert_int_equal(mote_cuda_open(0, &cuda), MOTE_DEVICE);
        assert_null(cuda);
        assert_says("some other error (CUDA_ERROR_OTHER, 999)");
        assert_null(fake->fail_symbol); /* the call was made */
        assert_nothing_left();
    }
}

/* ---- memory ---- */

static void *from_another_thread(void *argument)
{
    struct mote_cuda *cuda = argument;
    void *memory;
    if (mote_cuda_alloc(cuda, 100, &memory) != MOTE_OK) return NULL;
    mote_cuda_free(cuda, memory);
    return cuda;
}

static void test_memory(void **state)
{
    (void)state;
    struct mote_cuda *cuda;
    ok(mote_cuda_open(0, &cuda));
    void *a, *b, *pinned;
    ok(mote_cuda_alloc(cuda, 0, &a));
    assert_non_null(a);
    mote_cuda_free(cuda, a);
    mote_cuda_free(cuda, NULL);
    ok(mote_cuda_alloc(cuda, 1000, &a));
    ok(mote_cuda_alloc(cuda, 1000, &b));
    size_t left;
    ok(mote_cuda_free_bytes(cuda, &left));
    assert_int_equal(left, ((size_t)1 << 30) - 2000);
    void *none = &left;
    assert_int_equal(mote_cuda_alloc(cuda, (size_t)2 << 30, &none), MOTE_MEMORY);
    assert_null(none);
    assert_says("2147483648 bytes");
    assert_says("1073739824 of 1073741824");

    uint8_t in[1000], out[1000];
    for (int i = 0; i < 1000; i++) in[i] = (uint8_t)(i * 7);
    ok(mote_cuda_upload(cuda, a, in, 1000));
    ok(mote_cuda_upload(cuda, b, in + 100, 900));
    ok(mote_cuda_fill(cuda, (uint8_t *)b + 900, 0xA5, 100));
    int waits = fake->n_wait;
    ok(mote_cuda_download(cuda, out, b, 1000));
    assert_int_equal(fake->n_wait, waits + 1); /* pageable memory: there when it returns */
    assert_memory_equal(out, in + 100, 900);
    for (int i = 900; i < 1000; i++) assert_int_equal(out[i], 0xA5);
    ok(mote_cuda_alloc_pinned(cuda, 1000, &pinned));
    waits = fake->n_wait;
    ok(mote_cuda_download(cuda, (uint8_t *)pinned + 500, a, 500));
    assert_int_equal(fake->n_wait, waits); /* pinned: returns at once */
    assert_memory_equal((uint8_t *)pinned + 500, in, 500);
    ok(mote_cuda_sync(cuda));
    assert_int_equal(fake->n_wait, waits + 1);
    ok(mote_cuda_upload(cuda, a, in, 0)); /* nothing to do, also where the driver would refuse */
    ok(mote_cuda_download(cuda, out, a, 0));
    ok(mote_cuda_fill(cuda, a, 1, 0));

    /* Many pinned blocks, freed in another order; then one of them is pageable memory again. */
    void *block[20];
    for (int i = 0; i < 20; i++) ok(mote_cuda_alloc_pinned(cuda, 64, &block[i]));
    for (int i = 0; i < 20; i += 2) mote_cuda_free_pinned(cuda, block[i]);
    waits = fake->n_wait;
    ok(mote_cuda_download(cuda, block[1], a, 64));
    ok(mote_cuda_download(cuda, block[19], a, 64));
    assert_int_equal(fake->n_wait, waits);
    for (int i = 1; i < 20; i += 2) mote_cuda_free_pinned(cuda, block[i]);
    mote_cuda_free_pinned(cuda, pinned);
    mote_cuda_free_pinned(cuda, NULL);
    assert_int_equal(fake->n_pinned, 0);

    /* A thread that has never seen the device. */
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, from_another_thread, cuda), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, cuda);

    /* An error of earlier work comes at the next wait, and is said to be of earlier work. */
    fail_at("cuStreamSynchronize", 0, 700);
    assert_int_equal(mote_cuda_sync(cuda), MOTE_DEVICE);
    assert_says("device 0 (Fake H200)");
    assert_says("illegal memory access");
    assert_says("work queued before");
    fail_at("cuStreamSynchronize", 0, 700);
    assert_int_equal(mote_cuda_download(cuda, out, a, 10), MOTE_DEVICE);
    mote_cuda_free(cuda, a);
    mote_cuda_free(cuda, b);
    mote_cuda_close(cuda);
    assert_nothing_left();
}

/* ---- modules and launches ---- */

struct loaded {
    struct mote_cuda *cuda;
    struct mote_cuda_module *module;
    struct mote_cuda_kernel kernel;
    int *sum; /* device memory, which in the fake is the host's */
};

static void load(struct loaded *l, int index)
{
    int version;
    if (mote_cuda_nvrtc(&version) != MOTE_OK) skip();
    static const struct mote_cuda_unit unit = {"bandwidth.cu", ""};
    ok(mote_cuda_open(index, &l->cuda));
    ok(mote_cuda_load(l->cuda, &unit, 1, &l->module, NULL, NULL));
    ok(mote_cuda_kernel(l->cuda, l->module, "read_memory", 100 << 10, &l->kernel));
    ok(mote_cuda_alloc(l->cuda, 4, &l->sum));
    ok(mote_cuda_fill(l->cuda, l->sum, 0, 4));
}

static void unload(struct loaded *l)
{
    mote_cuda_free(l->cuda, l->sum);
    mote_cuda_unload(l->cuda, l->module);
    mote_cuda_close(l->cuda);
    assert_nothing_left();
}

static mote_status add(struct loaded *l, int value, unsigned flags)
{
    struct mote_cuda_launch shape = {.grid = {3, 2, 1}, .block = 96, .shared = 99 << 10, .flags = flags};
    void *args[] = {&l->sum, &value};
    return mote_cuda_launch(l->cuda, &l->kernel, &shape, args);
}

static void test_kernels(void **state)
{
    (void)state;
    struct loaded l;
    load(&l, 0);
    assert_string_equal(l.kernel.name, "read_memory");
    assert_int_equal(l.kernel.registers, 40);
    assert_int_equal(l.kernel.shared_bytes, 1024);
    assert_int_equal(l.kernel.local_bytes, 16);
    assert_int_equal(fake->dynamic_shared, 100 << 10);
    struct mote_cuda_kernel other;
    assert_int_equal(mote_cuda_kernel(l.cuda, l.module, "missing", 0, &other), MOTE_DEVICE);
    assert_says("kernel missing of bandwidth.cu");
    assert_int_equal(mote_cuda_kernel(l.cuda, l.module, "read_memory", 227 << 10, &other), MOTE_DEVICE);
    assert_says("233472 bytes of shared memory");

    ok(add(&l, 5, 0));
    assert_int_equal(fake->n_plain, 1);
    ok(add(&l, 6, MOTE_CUDA_CHAIN));
    assert_int_equal(fake->n_chain, 1);
    assert_int_equal(fake->n_plain, 1);
    assert_int_equal(*l.sum, 11);
    fail_at("cuLaunchKernel", 0, 1);
    assert_int_equal(add(&l, 7, 0), MOTE_DEVICE);
    assert_says("launching read_memory, grid 3 x 2 x 1, block 96, 101376 bytes");
    unload(&l);
    load(&l, 1); /* older chips run kernels one after the other */
    ok(add(&l, 6, MOTE_CUDA_CHAIN));
    assert_int_equal(fake->n_chain, 1);
    assert_int_equal(fake->n_plain, 2);
    unload(&l);
}

static void test_load_fails(void **state)
{
    (void)state;
    int version;
    if (mote_cuda_nvrtc(&version) != MOTE_OK) skip();
    struct mote_cuda *cuda;
    ok(mote_cuda_open(0, &cuda));
    struct mote_cuda_unit unit[3] = {
        {"bandwidth.cu", "A=1"}, {"bandwidth.cu", "A=2"}, {"bandwidth.cu", "A=3"}};
    struct mote_cuda_module *module[3];
    fail_at("cuModuleLoadData", 2, 209);
    assert_int_equal(mote_cuda_load(cuda, unit, 3, module, NULL, NULL), MOTE_DEVICE);
    assert_says("loading bandwidth.cu (A=3) for sm_90a, made by NVRTC");
    for (int i = 0; i < 3; i++) assert_null(module[i]);
    assert_int_equal(fake->n_module, 0);
    unit[1].define = "uint4=2";
    assert_int_equal(mote_cuda_load(cuda, unit, 3, module, NULL, NULL), MOTE_DEVICE);
    for (int i = 0; i < 3; i++) assert_null(module[i]);
    ok(mote_cuda_load(cuda, unit, 1, module, NULL, NULL));
    ok(mote_cuda_load(cuda, unit, 0, NULL, NULL, NULL));
    mote_cuda_unload(cuda, module[0]);
    mote_cuda_unload(cuda, NULL);
    mote_cuda_close(cuda);
    assert_nothing_left();
}

/* ---- graphs and events ---- */

static void test_graphs(void **state)
{
    (void)state;
    struct loaded l;
    struct mote_cuda_graph *graph;
    load(&l, 0);
    mote_cuda_capture_cancel(l.cuda); /* safe without a capture */
    assert_int_equal(mote_cuda_capture_end(l.cuda, &graph), MOTE_INTERNAL);
    int copy = -1;
    ok(mote_cuda_capture_begin(l.cuda));
    assert_int_equal(mote_cuda_capture_begin(l.cuda), MOTE_INTERNAL);
    ok(add(&l, 5, MOTE_CUDA_CHAIN));
    ok(add(&l, 2, 0));
    ok(mote_cuda_download(l.cuda, &copy, l.sum, 4)); /* recorded too, and does not wait */
    assert_int_equal(*l.sum, 0);
    ok(mote_cuda_capture_end(l.cuda, &graph));
    assert_int_equal(*l.sum, 0);
    for (int i = 1; i < 4; i++) {
        ok(mote_cuda_graph_launch(l.cuda, graph));
        assert_int_equal(*l.sum, 7 * i);
        assert_int_equal(copy, 7 * i);
    }
    mote_cuda_graph_destroy(l.cuda, graph);
    mote_cuda_graph_destroy(l.cuda, NULL);

    /* A failure inside: cancelled, and the next capture is a fresh one. */
    ok(mote_cuda_capture_begin(l.cuda));
    ok(add(&l, 5, 0));
    void *memory;
    assert_int_equal(mote_cuda_alloc(l.cuda, 4, &memory), MOTE_DEVICE);
    mote_cuda_capture_cancel(l.cuda);
    static const char *const calls[] = {"cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphUpload"};
    for (int i = 0; i < 3; i++) {
        ok(mote_cuda_capture_begin(l.cuda));
        ok(add(&l, 5, 0));
        fail_at(calls[i], 0, 901);
        assert_int_equal(mote_cuda_capture_end(l.cuda, &graph), MOTE_DEVICE);
        assert_null(graph);
        assert_int_equal(fake->n_graph, 0);
        assert_int_equal(fake->n_exec, 0);
        mote_cuda_capture_cancel(l.cuda);
    }
    assert_int_equal(*l.sum, 21);
    fail_at("cuStreamBeginCapture_v2", 0, 1);
    assert_int_equal(mote_cuda_capture_begin(l.cuda), MOTE_DEVICE);
    ok(add(&l, 1, 0)); /* no capture is under way: it runs */
    assert_int_equal(*l.sum, 22);
    unload(&l);
}

/* Launches behind the first `most` are left out, in a recording too; all are counted and named. */
static void test_watch(void **state)
{
    (void)state;
    struct loaded l;
    struct mote_cuda_watch watch = {.most = 2};
    struct mote_cuda_graph *graph;
    load(&l, 0);
    mote_cuda_watch(l.cuda, &watch);
    ok(add(&l, 1, 0));
    ok(add(&l, 20, MOTE_CUDA_CHAIN));
    ok(add(&l, 300, 0));
    assert_int_equal(*l.sum, 21);
    assert_int_equal(watch.n_launch, 3);
    for (int i = 0; i < 3; i++) assert_string_equal(watch.name[i], "read_memory");
    watch.n_launch = 0, watch.most = 1;
    ok(mote_cuda_capture_begin(l.cuda));
    ok(add(&l, 4000, 0));
    ok(add(&l, 50000, 0));
    ok(mote_cuda_capture_end(l.cuda, &graph));
    ok(mote_cuda_graph_launch(l.cuda, graph));
    ok(mote_cuda_graph_launch(l.cuda, graph));
    assert_int_equal(*l.sum, 8021);
    mote_cuda_graph_destroy(l.cuda, graph);
    for (int i = 0; i < 2 * MOTE_CUDA_WATCHED; i++) ok(add(&l, 0, 0)); /* more than there are names for */
    assert_int_equal(watch.n_launch, 2 + 2 * MOTE_CUDA_WATCHED);
    mote_cuda_watch(l.cuda, NULL);
    ok(add(&l, 600000, 0));
    assert_int_equal(*l.sum, 608021);
    unload(&l);
}

static void test_events(void **state)
{
    (void)state;
    struct mote_cuda *cuda;
    struct mote_cuda_event *a, *b;
    ok(mote_cuda_open(0, &cuda));
    ok(mote_cuda_event_create(cuda, &a));
    ok(mote_cuda_event_create(cuda, &b));
    ok(mote_cuda_event_record(cuda, a));
    ok(mote_cuda_event_record(cuda, a));
    ok(mote_cuda_event_record(cuda, b));
    ok(mote_cuda_event_wait(cuda, b));
    double seconds;
    ok(mote_cuda_event_seconds(cuda, a, b, &seconds));
    assert_float_equal(seconds, 0.001, 1e-9);
    fail_at("cuEventSynchronize", 1, 700);
    assert_int_equal(mote_cuda_event_seconds(cuda, a, b, &seconds), MOTE_DEVICE);
    mote_cuda_event_destroy(cuda, a);
    mote_cuda_event_destroy(cuda, b);
    mote_cuda_event_destroy(cuda, NULL);
    mote_cuda_close(cuda);
    assert_nothing_left();
}

static char cache[] = "/tmp/mote-cache-XXXXXX";

int main(int argc, char **argv)
{
    (void)argc;
    /* The fake lies beside this program. It is not named as the driver is: NVRTC would find it too. */
    char path[1024];
    snprintf(path, sizeof path, "%.*s/libcuda_fake.so", (int)(strrchr(argv[0], '/') - argv[0]), argv[0]);
    setenv("MOTE_LIBCUDA", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake") : NULL;
    if (!fake) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
        return 1;
    }
    if (!mkdtemp(cache) || setenv("MOTE_CACHE", cache, 1)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices), cmocka_unit_test(test_open),       cmocka_unit_test(test_memory),
        cmocka_unit_test(test_kernels), cmocka_unit_test(test_load_fails), cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_watch),   cmocka_unit_test(test_events),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command) ? 1 : failed;
}
