/* compile.h: a translation unit to a cubin, through the cache.
 *
 * Owns: the compiler's options, which texts a unit consists of, an entry's key, reading the compiler's resource report.
 * One idea: the key is everything that shapes the result and can be known without NVRTC (texts, constants, options,
 * architecture), so that a machine without NVRTC finds what another has compiled; the NVRTC's version stands in the
 * entry, and one that is there makes entries of other versions anew.
 */
#ifndef MOTE_CUDA_COMPILE_H
#define MOTE_CUDA_COMPILE_H

#include "cuda/cache.h"

/* Thread-safe. Errors as mote_cuda_load's. */
mote_status mote_cubin_make(const char *arch, const struct mote_cuda_unit *unit, struct mote_cubin *out);
/* out[i] for unit[i], in parallel; all or, on failure, none. progress (may be NULL) is called on the calling thread. */
mote_status mote_cubin_make_all(const char *arch, const struct mote_cuda_unit *unit, size_t n,
                                struct mote_cubin *out, mote_cuda_progress_fn *progress, void *context);

#endif
