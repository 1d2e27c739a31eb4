/* need_device.h: for tests that run on a CUDA device: a skip with the reason where there is none; a failure with
 * MOTE_CUDA_REQUIRED=1 (`make test-cuda`). */
#ifndef MOTE_TESTS_NEED_DEVICE_H
#define MOTE_TESTS_NEED_DEVICE_H

#include <stdlib.h>

#include "cuda/cuda.h"

static inline void need_device(void)
{
    int n = 0;
    if (mote_cuda_count(&n) == MOTE_OK && n > 0) return;
    const char *required = getenv("MOTE_CUDA_REQUIRED");
    if (required && *required) fail_msg("no CUDA device: %s", mote_error());
    print_message("no CUDA device, skipped: %s\n", mote_error());
    skip();
}

#endif
