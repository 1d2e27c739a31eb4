/* driver.h: the two libraries of the CUDA installation that are used, as tables of functions filled at run time.
 *
 * Owns: which entry points there are, under which names the libraries export them, and finding the libraries.
 * Does not own: what the calls mean together (device.c, compile.c).
 * One idea: nothing of CUDA is needed to build or to start the program: no header, no import; our own declarations of
 * a few dozen functions, all of whose types are numbers and pointers.
 */
#ifndef MOTE_CUDA_DRIVER_H
#define MOTE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Handles (contexts, streams, modules, ...) are pointers, device addresses 64-bit numbers, results ints (0: done). */

/* X(field, symbol, needed, arguments). Symbols carry the version whose arguments these are. */
#define MOTE_CUDA_DRIVER_CALLS(X)                                                                     \
    X(init, "cuInit", 1, (unsigned flags))                                                            \
    X(version, "cuDriverGetVersion", 1, (int *version))                                               \
    X(error_name, "cuGetErrorName", 1, (int result, const char **text))                               \
    X(error_text, "cuGetErrorString", 1, (int result, const char **text))                             \
    X(device_count, "cuDeviceGetCount", 1, (int *n))                                                  \
    X(device_get, "cuDeviceGet", 1, (int *device, int index))                                         \
    X(device_name, "cuDeviceGetName", 1, (char *name, int capacity, int device))                      \
    X(device_attribute, "cuDeviceGetAttribute", 1, (int *value, int attribute, int device))           \
    X(device_memory, "cuDeviceTotalMem_v2", 1, (size_t * size, int device))                           \
    X(context_retain, "cuDevicePrimaryCtxRetain", 1, (void **context, int device))                    \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", 1, (int device))                               \
    X(context_use, "cuCtxSetCurrent", 1, (void *context))                                             \
    X(memory_info, "cuMemGetInfo_v2", 1, (size_t * free, size_t * total))                             \
    X(memory_alloc, "cuMemAlloc_v2", 1, (uint64_t * memory, size_t size))                             \
    X(memory_free, "cuMemFree_v2", 1, (uint64_t memory))                                              \
    X(pinned_alloc, "cuMemHostAlloc", 1, (void **memory, size_t size, unsigned flags))                \
    X(pinned_free, "cuMemFreeHost", 1, (void *memory))                                                \
    X(copy_in, "cuMemcpyHtoDAsync_v2", 1, (uint64_t to, const void *from, size_t size, void *stream)) \
    X(copy_out, "cuMemcpyDtoHAsync_v2", 1, (void *to, uint64_t from, size_t size, void *stream))      \
    X(fill, "cuMemsetD8Async", 1, (uint64_t to, unsigned char value, size_t size, void *stream))      \
    X(stream_create, "cuStreamCreate", 1, (void **stream, unsigned flags))                            \
    X(stream_destroy, "cuStreamDestroy_v2", 1, (void *stream))                                        \
    X(stream_wait, "cuStreamSynchronize", 1, (void *stream))                                          \
    X(capture_begin, "cuStreamBeginCapture_v2", 1, (void *stream, int mode))                          \
    X(capture_end, "cuStreamEndCapture", 1, (void *stream, void **graph))                             \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", 1,                                            \
      (void **exec, void *graph, unsigned long long flags))                                           \
    X(graph_destroy, "cuGraphDestroy", 1, (void *graph))                                              \
    X(exec_upload, "cuGraphUpload", 1, (void *exec, void *stream))                                    \
    X(exec_launch, "cuGraphLaunch", 1, (void *exec, void *stream))                                    \
    X(exec_destroy, "cuGraphExecDestroy", 1, (void *exec))                                            \
    X(event_create, "cuEventCreate", 1, (void **event, unsigned flags))                               \
    X(event_destroy, "cuEventDestroy_v2", 1, (void *event))                                           \
    X(event_record, "cuEventRecord", 1, (void *event, void *stream))                                  \
    X(event_wait, "cuEventSynchronize", 1, (void *event))                                             \
    X(event_elapsed, "cuEventElapsedTime", 1, (float *milliseconds, void *from, void *to))            \
    X(module_load, "cuModuleLoadData", 1, (void **module, const void *image))                         \
    X(module_unload, "cuModuleUnload", 1, (void *module))                                             \
    X(module_function, "cuModuleGetFunction", 1, (void **function, void *module, const char *name))   \
    X(function_get, "cuFuncGetAttribute", 1, (int *value, int attribute, void *function))             \
    X(function_set, "cuFuncSetAttribute", 1, (void *function, int attribute, int value))              \
    X(function_load, "cuFuncLoad", 0, (void *function))                                               \
    X(launch, "cuLaunchKernel", 1,                                                                    \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,           \
       unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **args, void **extra)) \
    X(launch_with, "cuLaunchKernelEx", 0,                                                             \
      (const struct mote_cu_launch *shape, void *function, void **args, void **extra))

/* What cuLaunchKernelEx takes: the layout is the driver's. */
struct mote_cu_attribute {
    uint32_t id, pad;
    union {
        char room[64];
        int number;
    } value;
};
struct mote_cu_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void *stream;
    struct mote_cu_attribute *attribute;
    unsigned n_attribute;
};

/* Numbers of the driver API that are used, named as there without CU_ and CUDA_. */
enum {
    CU_NO_DEVICE = 100,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_FOUND = 500,
    CU_ATTRIBUTE_N_SM = 16,
    CU_ATTRIBUTE_PCI_BUS = 33,
    CU_ATTRIBUTE_L2_BYTES = 38,
    CU_ATTRIBUTE_CC_MAJOR = 75,
    CU_ATTRIBUTE_CC_MINOR = 76,
    CU_ATTRIBUTE_SHARED_OPTIN = 97,
    CU_FUNCTION_SHARED = 1,
    CU_FUNCTION_LOCAL = 3,
    CU_FUNCTION_REGISTERS = 4,
    CU_FUNCTION_DYNAMIC_SHARED = 8,
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_PINNED_PORTABLE_MAPPED = 3,
    CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6
};

struct mote_cuda_driver {
#define X(field, symbol, needed, arguments) int(*field) arguments;
    MOTE_CUDA_DRIVER_CALLS(X)
#undef X
};

#define MOTE_NVRTC_CALLS(X)                                                                         \
    X(version, "nvrtcVersion", 1, (int *major, int *minor))                                         \
    X(create, "nvrtcCreateProgram", 1,                                                              \
      (void **program, const char *text, const char *name, int n_header, const char *const *header, \
       const char *const *header_name))                                                             \
    X(destroy, "nvrtcDestroyProgram", 1, (void **program))                                          \
    X(compile, "nvrtcCompileProgram", 1, (void *program, int n_option, const char *const *option))  \
    X(cubin_size, "nvrtcGetCUBINSize", 1, (void *program, size_t *size))                            \
    X(cubin, "nvrtcGetCUBIN", 1, (void *program, char *out))                                        \
    X(log_size, "nvrtcGetProgramLogSize", 1, (void *program, size_t *size))                         \
    X(log, "nvrtcGetProgramLog", 1, (void *program, char *out))

struct mote_nvrtc {
#define X(field, symbol, needed, arguments) int(*field) arguments;
    MOTE_NVRTC_CALLS(X)
#undef X
    const char *(*error_text)(int result);
    int number; /* 13000 for 13.0 */
};

/* The first call looks for the library, every later one gives the same answer. Thread-safe. MOTE_DEVICE, with what
 * was looked for and where, when there is none. The driver is initialised (cuInit).
 * MOTE_LIBCUDA=FILE in the environment: that file and no other. */
mote_status mote_cuda_driver_open(const struct mote_cuda_driver **out);
/* MOTE_NVRTC=FILE likewise. */
mote_status mote_nvrtc_open(const struct mote_nvrtc **out);

#endif
