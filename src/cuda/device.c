/* device.c: a device: its context and stream, memory, copies, launches, captured graphs and events. See cuda.h. */
#include "cuda/device.h"

#include <stdio.h>
#include <string.h>

/* ---- errors ---- */

/* After these the context is of no more use: every later call fails the same way. */
static int is_final(int result)
{
    static const short final[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721};
    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        if (final[i] == result) return 1;
    return 0;
}

static mote_status driver_failed(const struct mote_cuda_driver *call, int result, const char *where,
                                 const char *what)
{
    const char *name = NULL, *text = NULL;
    call->error_name(result, &name);
    call->error_text(result, &text);
    return mote_fail(
        result == CU_OUT_OF_MEMORY ? MOTE_MEMORY : MOTE_DEVICE, "%s: %s: %s (%s, %d)%s", where, what,
        text ? text : "unknown error", name ? name : "no name", result,
        is_final(result) ? "; work queued before this failed, the device takes no more in this process" : "");
}

mote_status mote_cuda_check(const struct mote_cuda *cuda, int result, const char *what)
{
    if (result == 0) return MOTE_OK;
    char where[192];
    snprintf(where, sizeof where, "device %d (%s)", cuda->index, cuda->info.name);
    return driver_failed(cuda->call, result, where, what);
}

#define CALL(cuda, expr, what) TRY(mote_cuda_check((cuda), (cuda)->call->expr, (what)))

/* ---- which devices there are ---- */

mote_status mote_cuda_count(int *n)
{
    const struct mote_cuda_driver *call;
    *n = 0;
    TRY(mote_cuda_driver_open(&call));
    int result = call->device_count(n);
    return result ? driver_failed(call, result, "CUDA", "counting devices") : MOTE_OK;
}

static mote_status describe(const struct mote_cuda_driver *call, int index, int *device,
                            struct mote_cuda_info *out)
{
    int n;
    TRY(mote_cuda_count(&n));
    FAIL_IF(index < 0 || index >= n, MOTE_ARGUMENT, "device %d: there are %d (from 0)", index, n);
    char where[32];
    snprintf(where, sizeof where, "device %d", index);
    memset(out, 0, sizeof *out);
    int major = 0, minor = 0, l2 = 0, shared = 0;
    const struct {
        int number, *value;
    } attribute[] = {
        {CU_ATTRIBUTE_CC_MAJOR, &major},      {CU_ATTRIBUTE_CC_MINOR, &minor},
        {CU_ATTRIBUTE_N_SM, &out->n_sm},      {CU_ATTRIBUTE_L2_BYTES, &l2},
        {CU_ATTRIBUTE_SHARED_OPTIN, &shared}, {CU_ATTRIBUTE_PCI_BUS, &out->pci_bus},
    };
    int result = call->device_get(device, index);
    if (!result) result = call->device_name(out->name, sizeof out->name, *device);
    if (!result) result = call->device_memory(&out->total_bytes, *device);
    if (!result) result = call->version(&out->driver);
    for (size_t i = 0; i < sizeof attribute / sizeof *attribute && !result; i++)
        result = call->device_attribute(attribute[i].value, attribute[i].number, *device);
    if (result) return driver_failed(call, result, where, "asking for its properties");
    out->name[sizeof out->name - 1] = 0;
    out->cc = 10 * major + minor;
    out->l2_bytes = (size_t)l2;
    out->shared_bytes = (size_t)shared;
    /* wgmma and setmaxnreg are of sm_90a alone; nothing of the other chips' "a" targets is used. */
    snprintf(out->arch, sizeof out->arch, "sm_%d%s", out->cc, out->cc == 90 ? "a" : "");
    return MOTE_OK;
}

mote_status mote_cuda_describe(int index, struct mote_cuda_info *out)
{
    const struct mote_cuda_driver *call;
    int device;
    TRY(mote_cuda_driver_open(&call));
    return describe(call, index, &device, out);
}

mote_status mote_cuda_open(int index, struct mote_cuda **out)
{
    *out = NULL;
    const struct mote_cuda_driver *call;
    TRY(mote_cuda_driver_open(&call));
    struct mote_cuda *cuda;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *cuda, &cuda));
    cuda->call = call;
    cuda->index = index;
    mote_status status;
    TRY_GOTO(describe(call, index, &cuda->device, &cuda->info), status, fail);
    TRY_GOTO(mote_cuda_check(cuda, call->context_retain(&cuda->context, cuda->device), "opening a context"),
             status, fail);
    TRY_GOTO(mote_cuda_use(cuda), status, fail);
    TRY_GOTO(mote_cuda_check(cuda, call->stream_create(&cuda->own_stream, CU_STREAM_NON_BLOCKING),
                             "making a stream"),
             status, fail);
    cuda->stream = cuda->own_stream;
    size_t total;
    TRY_GOTO(
        mote_cuda_check(cuda, call->memory_info(&cuda->info.free_bytes, &total), "asking for free memory"),
        status, fail);
    *out = cuda;
    return MOTE_OK;
fail:
    mote_cuda_close(cuda);
    return status;
}

void mote_cuda_close(struct mote_cuda *cuda)
{
    if (!cuda) return;
    if (cuda->context) {
        cuda->call->context_use(cuda->context);
        if (cuda->own_stream) {
            cuda->call->stream_wait(cuda->own_stream);
            cuda->call->stream_destroy(cuda->own_stream);
        }
        cuda->call->context_release(cuda->device);
    }
    mote_mem_free(cuda->pinned);
    mote_mem_free(cuda);
}

void mote_cuda_stream_lend(struct mote_cuda *cuda, void *stream)
{
    cuda->stream = stream;
}

void mote_cuda_stream_own(struct mote_cuda *cuda)
{
    cuda->stream = cuda->own_stream;
}

const struct mote_cuda_info *mote_cuda_info(const struct mote_cuda *cuda)
{
    return &cuda->info;
}

mote_status mote_cuda_free_bytes(struct mote_cuda *cuda, size_t *out)
{
    size_t total;
    *out = 0;
    TRY(mote_cuda_use(cuda));
    CALL(cuda, memory_info(out, &total), "asking for free memory");
    return MOTE_OK;
}

/* ---- memory ---- */

static uint64_t address(const void *memory)
{
    return (uint64_t)(uintptr_t)memory;
}

mote_status mote_cuda_alloc(struct mote_cuda *cuda, size_t size, void *out)
{
    uint64_t memory = 0;
    void *none = NULL;
    memcpy(out, &none, sizeof none);
    TRY(mote_cuda_use(cuda));
    int result = cuda->call->memory_alloc(&memory, size ? size : 1); /* the driver refuses 0 */
    if (result == CU_OUT_OF_MEMORY) {
        size_t left = 0, total = 0;
        cuda->call->memory_info(&left, &total);
        return mote_fail(MOTE_MEMORY, "device %d (%s): %zu bytes asked for, %zu of %zu are free", cuda->index,
                         cuda->info.name, size, left, total);
    }
    TRY(mote_cuda_check(cuda, result, "allocating memory"));
    void *pointer = (void *)(uintptr_t)memory;
    memcpy(out, &pointer, sizeof pointer);
    return MOTE_OK;
}

void mote_cuda_free(struct mote_cuda *cuda, void *memory)
{
    if (!memory || mote_cuda_use(cuda) != MOTE_OK) return;
    /* What is queued may use it. A late error of that work is kept by the driver for the next sync. */
    cuda->call->stream_wait(cuda->stream);
    cuda->call->memory_free(address(memory));
}

mote_status mote_cuda_alloc_pinned(struct mote_cuda *cuda, size_t size, void *out)
{
    void *memory = NULL;
    memcpy(out, &memory, sizeof memory);
    TRY(mote_cuda_use(cuda));
    if (cuda->n_pinned == cuda->pinned_room) {
        size_t room = cuda->pinned_room ? 2 * cuda->pinned_room : 8;
        TRY(mote_mem_resize(NULL, MOTE_MEM_TABLES, room * sizeof *cuda->pinned, &cuda->pinned));
        cuda->pinned_room = room;
    }
    int result = cuda->call->pinned_alloc(&memory, size ? size : 1, CU_PINNED_PORTABLE_MAPPED);
    if (result == CU_OUT_OF_MEMORY)
        return mote_fail(
            MOTE_MEMORY,
            "device %d (%s): %zu bytes of pinned host memory asked for: the host has not that much",
            cuda->index, cuda->info.name, size);
    TRY(mote_cuda_check(cuda, result, "allocating pinned host memory"));
    cuda->pinned[cuda->n_pinned++] = (struct pinned_range){memory, size};
    memcpy(out, &memory, sizeof memory);
    return MOTE_OK;
}

void mote_cuda_free_pinned(struct mote_cuda *cuda, void *memory)
{
    if (!memory || mote_cuda_use(cuda) != MOTE_OK) return;
    for (size_t i = 0; i < cuda->n_pinned; i++)
        if (cuda->pinned[i].begin == memory) {
            cuda->pinned[i] = cuda->pinned[--cuda->n_pinned];
            break;
        }
    cuda->call->stream_wait(cuda->stream); /* queued copies and kernels may read it */
    cuda->call->pinned_free(memory);
}

static int is_pinned(const struct mote_cuda *cuda, const void *memory, size_t size)
{
    const uint8_t *begin = memory;
    for (size_t i = 0; i < cuda->n_pinned; i++) {
        const struct pinned_range *range = &cuda->pinned[i];
        if (begin >= range->begin && begin + size <= range->begin + range->size) return 1;
    }
    return 0;
}

mote_status mote_cuda_upload(struct mote_cuda *cuda, void *to, const void *host_from, size_t size)
{
    if (!size) return MOTE_OK;
    TRY(mote_cuda_use(cuda));
    CALL(cuda, copy_in(address(to), host_from, size, cuda->stream), "copying to the device");
    return MOTE_OK;
}

mote_status mote_cuda_download(struct mote_cuda *cuda, void *host_to, const void *from, size_t size)
{
    if (!size) return MOTE_OK;
    TRY(mote_cuda_use(cuda));
    CALL(cuda, copy_out(host_to, address(from), size, cuda->stream), "copying from the device");
    /* Where the driver reads pageable memory in place (ATS, HMM) its own call need not wait. */
    if (!cuda->capturing && !is_pinned(cuda, host_to, size))
        CALL(cuda, stream_wait(cuda->stream), "copying from the device");
    return MOTE_OK;
}

mote_status mote_cuda_fill(struct mote_cuda *cuda, void *to, uint8_t value, size_t size)
{
    if (!size) return MOTE_OK;
    TRY(mote_cuda_use(cuda));
    CALL(cuda, fill(address(to), value, size, cuda->stream), "filling memory");
    return MOTE_OK;
}

mote_status mote_cuda_sync(struct mote_cuda *cuda)
{
    TRY(mote_cuda_use(cuda));
    CALL(cuda, stream_wait(cuda->stream), "waiting for the device");
    return MOTE_OK;
}

/* ---- launches ---- */

static int launch(struct mote_cuda *cuda, const struct mote_cuda_kernel *kernel,
                  const struct mote_cuda_launch *shape, void **args)
{
    const unsigned *grid = shape->grid;
    /* Only Hopper and later overlap kernels, and only there do kernels wait for the one ahead. */
    if (!(shape->flags & MOTE_CUDA_CHAIN) || cuda->info.cc < 90 || !cuda->call->launch_with)
        return cuda->call->launch(kernel->function, grid[0], grid[1], grid[2], shape->block, 1, 1,
                                  (unsigned)shape->shared, cuda->stream, args, NULL);
    struct mote_cu_attribute chain = {.id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.number = 1};
    struct mote_cu_launch with = {
        .grid_x = grid[0],
        .grid_y = grid[1],
        .grid_z = grid[2],
        .block_x = shape->block,
        .block_y = 1,
        .block_z = 1,
        .shared = (unsigned)shape->shared,
        .stream = cuda->stream,
        .attribute = &chain,
        .n_attribute = 1,
    };
    return cuda->call->launch_with(&with, kernel->function, args, NULL);
}

void mote_cuda_watch(struct mote_cuda *cuda, struct mote_cuda_watch *watch)
{
    cuda->watch = watch;
}

/* Whether the watch wants this launch made. */
static int shown(struct mote_cuda_watch *watch, const struct mote_cuda_kernel *kernel)
{
    int i = watch->n_launch++;
    if (i < MOTE_CUDA_WATCHED) watch->name[i] = kernel->name;
    return i < watch->most;
}

mote_status mote_cuda_launch(struct mote_cuda *cuda, const struct mote_cuda_kernel *kernel,
                             const struct mote_cuda_launch *shape, void **args)
{
    if (cuda->watch && !shown(cuda->watch, kernel)) return MOTE_OK;
    TRY(mote_cuda_use(cuda));
    int result = launch(cuda, kernel, shape, args);
    if (result == 0) return MOTE_OK;
    char what[256];
    snprintf(what, sizeof what, "launching %s, grid %u x %u x %u, block %u, %zu bytes of shared memory",
             kernel->name, shape->grid[0], shape->grid[1], shape->grid[2], shape->block, shape->shared);
    return mote_cuda_check(cuda, result, what);
}

/* ---- graphs ---- */

mote_status mote_cuda_capture_begin(struct mote_cuda *cuda)
{
    FAIL_IF(cuda->capturing, MOTE_INTERNAL, "device %d: a capture is already under way", cuda->index);
    TRY(mote_cuda_use(cuda));
    CALL(cuda, capture_begin(cuda->stream, CU_CAPTURE_THREAD_LOCAL), "beginning a capture");
    cuda->capturing = 1;
    return MOTE_OK;
}

mote_status mote_cuda_capture_end(struct mote_cuda *cuda, struct mote_cuda_graph **out)
{
    *out = NULL;
    FAIL_IF(!cuda->capturing, MOTE_INTERNAL, "device %d: no capture is under way", cuda->index);
    TRY(mote_cuda_use(cuda));
    void *graph = NULL, *exec = NULL;
    cuda->capturing = 0;
    CALL(cuda, capture_end(cuda->stream, &graph), "ending a capture");
    mote_status status =
        mote_cuda_check(cuda, cuda->call->graph_instantiate(&exec, graph, 0), "making a graph ready");
    if (graph) cuda->call->graph_destroy(graph);
    TRY(status);
    status = mote_cuda_check(cuda, cuda->call->exec_upload(exec, cuda->stream), "uploading a graph");
    if (status != MOTE_OK) {
        cuda->call->exec_destroy(exec);
        return status;
    }
    *out = exec;
    return MOTE_OK;
}

void mote_cuda_capture_cancel(struct mote_cuda *cuda)
{
    if (!cuda->capturing || mote_cuda_use(cuda) != MOTE_OK) return;
    void *graph = NULL;
    cuda->capturing = 0;
    if (cuda->call->capture_end(cuda->stream, &graph) == 0 && graph) cuda->call->graph_destroy(graph);
}

mote_status mote_cuda_graph_launch(struct mote_cuda *cuda, struct mote_cuda_graph *graph)
{
    TRY(mote_cuda_use(cuda));
    CALL(cuda, exec_launch(graph, cuda->stream), "launching a graph");
    return MOTE_OK;
}

void mote_cuda_graph_destroy(struct mote_cuda *cuda, struct mote_cuda_graph *graph)
{
    if (!graph || mote_cuda_use(cuda) != MOTE_OK) return;
    cuda->call->stream_wait(cuda->stream);
    cuda->call->exec_destroy(graph);
}

/* ---- events ---- */

mote_status mote_cuda_event_create(struct mote_cuda *cuda, struct mote_cuda_event **out)
{
    void *event = NULL;
    *out = NULL;
    TRY(mote_cuda_use(cuda));
    CALL(cuda, event_create(&event, 0), "making an event");
    *out = event;
    return MOTE_OK;
}

void mote_cuda_event_destroy(struct mote_cuda *cuda, struct mote_cuda_event *event)
{
    if (event && mote_cuda_use(cuda) == MOTE_OK) cuda->call->event_destroy(event);
}

mote_status mote_cuda_event_record(struct mote_cuda *cuda, struct mote_cuda_event *event)
{
    TRY(mote_cuda_use(cuda));
    CALL(cuda, event_record(event, cuda->stream), "recording an event");
    return MOTE_OK;
}

mote_status mote_cuda_event_wait(struct mote_cuda *cuda, struct mote_cuda_event *event)
{
    TRY(mote_cuda_use(cuda));
    CALL(cuda, event_wait(event), "waiting for an event");
    return MOTE_OK;
}

mote_status mote_cuda_event_seconds(struct mote_cuda *cuda, struct mote_cuda_event *a,
                                    struct mote_cuda_event *b, double *seconds)
{
    float milliseconds = 0;
    *seconds = 0;
    TRY(mote_cuda_use(cuda));
    CALL(cuda, event_wait(a), "waiting for an event");
    CALL(cuda, event_wait(b), "waiting for an event");
    CALL(cuda, event_elapsed(&milliseconds, a, b), "reading a time");
    *seconds = 1e-3 * (double)milliseconds;
    return MOTE_OK;
}
