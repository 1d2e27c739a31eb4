/* libcuda.c: a libcuda for tests: two devices whose memory is the host's and whose stream runs at once.
 *
 * Owns: enough of the driver API for cuda/device.c and cuda/module.c, with the driver's own strictness: a call without
 * a current context on its thread fails, and so does waiting or allocating inside a capture; what is captured runs
 * when its graph is launched. read_memory does *(int *)args[0] += *(int *)args[1], other kernels nothing.
 * Tests steer it through fake_*: see struct fake_state.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcuda.h"

struct fake_state fake;

static _Thread_local void *current;
static int contexts[2]; /* their addresses are the handles */
static const struct {
    const char *name;
    int cc, n_sm;
} devices[2] = {{"Fake H200", 90, 132}, {"Fake A100", 80, 108}};

/* Whether this call is the one that is to fail. */
static int fails(const char *symbol)
{
    if (!fake.fail_symbol || strcmp(fake.fail_symbol, symbol)) return 0;
    if (fake.fail_after-- > 0) return 0;
    if (!fake.fail_always) fake.fail_symbol = NULL;
    return fake.fail_code;
}
#define ENTER()                      \
    do {                             \
        int code_ = fails(__func__); \
        if (code_) return code_;     \
    } while (0)
#define ENTER_CONTEXT()           \
    do {                          \
        ENTER();                  \
        if (!current) return 201; \
    } while (0)

int cuInit(unsigned flags)
{
    return flags ? 1 : 0;
}
int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
int cuGetErrorName(int result, const char **text)
{
    *text = result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuGetErrorString(int result, const char **text)
{
    *text = result == 700 ? "an illegal memory access was encountered" : "some other error";
    return 0;
}
int cuDeviceGetCount(int *n)
{
    ENTER();
    *n = 2;
    return 0;
}
int cuDeviceGet(int *device, int index)
{
    ENTER();
    *device = 40 + index; /* a device's number need not be its index */
    return 0;
}
int cuDeviceGetName(char *name, int capacity, int device)
{
    ENTER();
    snprintf(name, (size_t)capacity, "%s", devices[device - 40].name);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER();
    const int cc = devices[device - 40].cc;
    switch (attribute) {
    case 16: *value = devices[device - 40].n_sm; return 0;
    case 33: *value = 7; return 0;
    case 38: *value = 60 << 20; return 0;
    case 75: *value = cc / 10; return 0;
    case 76: *value = cc % 10; return 0;
    case 97: *value = 227 << 10; return 0;
    default: return 1;
    }
}
int cuDeviceTotalMem_v2(size_t *size, int device)
{
    ENTER();
    (void)device;
    *size = (size_t)1 << 30;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER();
    *context = &contexts[device - 40];
    fake.n_context++;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    fake.n_context--;
    return 0;
}
int cuCtxSetCurrent(void *context)
{
    ENTER();
    current = context;
    return 0;
}
int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    ENTER_CONTEXT();
    *left = ((size_t)1 << 30) - fake.n_byte;
    *total = (size_t)1 << 30;
    return 0;
}

/* ---- memory: a block remembers its size in front ---- */

int cuMemAlloc_v2(uint64_t *memory, size_t size)
{
    ENTER_CONTEXT();
    if (fake.capturing) return 900;
    if (!size) return 1;
    if (size > ((size_t)1 << 30) - fake.n_byte) return 2;
    size_t *block = malloc(256 + size);
    if (!block) return 2;
    *block = size;
    fake.n_byte += size;
    *memory = (uint64_t)(uintptr_t)block + 256;
    return 0;
}
int cuMemFree_v2(uint64_t memory)
{
    ENTER_CONTEXT();
    size_t *block = (size_t *)(uintptr_t)(memory - 256);
    fake.n_byte -= *block;
    free(block);
    return 0;
}
int cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
    ENTER_CONTEXT();
    if (flags != 3) return 1;
    *memory = malloc(size);
    fake.n_pinned++;
    return 0;
}
int cuMemFreeHost(void *memory)
{
    ENTER_CONTEXT();
    fake.n_pinned--;
    free(memory);
    return 0;
}

/* ---- the stream: what is queued runs at once, or is recorded ---- */

struct step {
    enum { STEP_COPY, STEP_FILL, STEP_ADD } what;
    void *to;
    const void *from;
    size_t size;
    int value;
};
struct graph {
    struct step step[64];
    int n;
};
static struct graph *recording;

static int is_stream(const void *stream)
{
    return stream == &fake || (fake.lent && stream == fake.lent);
}

static int queue(struct step step)
{
    fake.n_copy += step.what != STEP_ADD;
    if (fake.capturing) {
        if (!recording) return 0; /* somebody else's capture (tests set `capturing`) */
        if (recording->n == 64) return 1;
        recording->step[recording->n++] = step;
        return 0;
    }
    switch (step.what) {
    case STEP_COPY: memmove(step.to, step.from, step.size); break;
    case STEP_FILL: memset(step.to, step.value, step.size); break;
    case STEP_ADD: *(int *)step.to += step.value; break;
    }
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream)
{
    ENTER_CONTEXT();
    if (!is_stream(stream)) return 400;
    return queue((struct step){STEP_COPY, (void *)(uintptr_t)to, from, size, 0});
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream)
{
    ENTER_CONTEXT();
    if (!is_stream(stream)) return 400;
    return queue((struct step){STEP_COPY, to, (void *)(uintptr_t)from, size, 0});
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream)
{
    ENTER_CONTEXT();
    if (!is_stream(stream)) return 400;
    return queue((struct step){STEP_FILL, (void *)(uintptr_t)to, NULL, size, value});
}
int cuStreamCreate(void **stream, unsigned flags)
{
    ENTER_CONTEXT();
    if (flags != 1) return 1;
    *stream = &fake;
    fake.n_stream++;
    return 0;
}
int cuStreamDestroy_v2(void *stream)
{
    (void)stream;
    fake.n_stream--;
    return 0;
}
int cuStreamSynchronize(void *stream)
{
    ENTER_CONTEXT();
    if (!is_stream(stream)) return 400;
    if (fake.capturing) return 900;
    if (stream == fake.lent) fake.n_lent_wait++;
    else fake.n_wait++;
    return 0;
}

/* ---- graphs ---- */

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    ENTER_CONTEXT();
    if (stream != &fake || mode != 1 || fake.capturing) return 1;
    recording = calloc(1, sizeof *recording);
    fake.capturing = 1;
    fake.n_graph++;
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph)
{
    if (stream != &fake || !fake.capturing) return 1;
    fake.capturing = 0;
    int code = fails(__func__);
    if (code) { /* an invalidated capture gives no graph */
        free(recording);
        recording = NULL;
        fake.n_graph--;
        *graph = NULL;
        return code;
    }
    *graph = recording;
    recording = NULL;
    return 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    ENTER_CONTEXT();
    if (flags) return 1;
    *exec = malloc(sizeof(struct graph));
    memcpy(*exec, graph, sizeof(struct graph));
    fake.n_exec++;
    return 0;
}
int cuGraphDestroy(void *graph)
{
    fake.n_graph--;
    free(graph);
    return 0;
}
int cuGraphUpload(void *exec, void *stream)
{
    ENTER_CONTEXT();
    return exec && stream == &fake ? 0 : 1;
}
int cuGraphLaunch(void *exec, void *stream)
{
    ENTER_CONTEXT();
    if (stream != &fake) return 400;
    const struct graph *graph = exec;
    for (int i = 0; i < graph->n; i++) queue(graph->step[i]);
    return 0;
}
int cuGraphExecDestroy(void *exec)
{
    fake.n_exec--;
    free(exec);
    return 0;
}

/* ---- events: the n-th record is n milliseconds ---- */

int cuEventCreate(void **event, unsigned flags)
{
    ENTER_CONTEXT();
    if (flags) return 1;
    *event = calloc(1, sizeof(float));
    fake.n_event++;
    return 0;
}
int cuEventDestroy_v2(void *event)
{
    fake.n_event--;
    free(event);
    return 0;
}
int cuEventRecord(void *event, void *stream)
{
    ENTER_CONTEXT();
    if (stream != &fake) return 400;
    *(float *)event = (float)++fake.n_record;
    return 0;
}
int cuEventSynchronize(void *event)
{
    ENTER_CONTEXT();
    return event ? 0 : 1;
}
int cuEventElapsedTime(float *milliseconds, void *from, void *to)
{
    ENTER_CONTEXT();
    *milliseconds = *(float *)to - *(float *)from;
    return 0;
}

/* ---- modules ---- */

int cuModuleLoadData(void **module, const void *image)
{
    ENTER_CONTEXT();
    if (memcmp(image, "\177ELF", 4)) return 200;
    *module = malloc(1);
    fake.n_module++;
    return 0;
}
int cuModuleUnload(void *module)
{
    fake.n_module--;
    free(module);
    return 0;
}
/* read_memory's launches change memory as test_cuda_device expects; what other kernels compute is not known here. */
static int function, other;
int cuModuleGetFunction(void **out, void *module, const char *name)
{
    ENTER_CONTEXT();
    if (!module || !strcmp(name, "missing")) return 500;
    *out = strcmp(name, "read_memory") ? &other : &function;
    return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *of)
{
    ENTER_CONTEXT();
    if (of != &function && of != &other) return 400;
    *value = attribute == 1 ? 1024 : attribute == 3 ? 16 : attribute == 4 ? 40 : -1;
    return 0;
}
int cuFuncSetAttribute(void *of, int attribute, int value)
{
    ENTER_CONTEXT();
    if ((of != &function && of != &other) || attribute != 8) return 1;
    fake.dynamic_shared = value;
    return 0;
}
int cuFuncLoad(void *of)
{
    ENTER_CONTEXT();
    return of == &function || of == &other ? 0 : 400;
}
int cuLaunchKernel(void *of, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **args, void **extra)
{
    ENTER_CONTEXT();
    if ((of != &function && of != &other) || !is_stream(stream) || extra || by != 1 || bz != 1) return 1;
    if (!gx || !gy || !gz || !bx || bx > 1024 || gy > 65535 || gz > 65535) return 1;
    if (of == &function && (int)shared > fake.dynamic_shared) return 1;
    fake.n_plain++;
    if (fake.lent && stream == fake.lent) fake.n_lent++;
    if (of == &other) return 0;
    return queue((struct step){STEP_ADD, *(void **)args[0], NULL, 0, *(int *)args[1]});
}
int cuLaunchKernelEx(const struct fake_launch *with, void *of, void **args, void **extra)
{
    ENTER_CONTEXT();
    if (with->n_attribute != 1 || with->attribute->id != 6 || with->attribute->value != 1) return 1;
    int code = cuLaunchKernel(of, with->grid[0], with->grid[1], with->grid[2], with->block[0], with->block[1],
                              with->block[2], with->shared, with->stream, args, extra);
    if (!code) fake.n_plain--, fake.n_chain++;
    return code;
}
