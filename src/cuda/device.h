/* device.h: what an opened device is, for the files of this layer. Does not own its lifetime (device.c). */
#ifndef MOTE_CUDA_DEVICE_H
#define MOTE_CUDA_DEVICE_H

#include "cuda/cuda.h"
#include "cuda/driver.h"

struct pinned_range {
    const uint8_t *begin;
    size_t size;
};

struct mote_cuda {
    const struct mote_cuda_driver *call;
    int index, device; /* as counted, and the driver's number */
    void *context;
    void *own_stream, *stream; /* the one that launches and copies go to: its own, or one that is lent */
    int capturing;
    struct mote_cuda_watch *watch;
    struct pinned_range *pinned; /* [n_pinned]: which host memory may be copied without waiting */
    size_t n_pinned, pinned_room;
    struct mote_cuda_info info;
};

/* MOTE_OK for 0; else "device 0 (NAME): WHAT: the driver's words". */
mote_status mote_cuda_check(const struct mote_cuda *cuda, int result, const char *what);

/* Every entry point begins with this: the thread that calls may be a new one, or have used another device. */
static inline mote_status mote_cuda_use(const struct mote_cuda *cuda)
{
    int result = cuda->call->context_use(cuda->context);
    return result ? mote_cuda_check(cuda, result, "using the device") : MOTE_OK;
}

#endif
