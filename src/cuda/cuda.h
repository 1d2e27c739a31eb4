/* cuda.h: NVIDIA devices through the driver API, opened at run time.
 *
 * Owns: libcuda and libnvrtc (dlopen; a program without them runs on, and the reason is a message), a device's
 * context and a stream, device and pinned memory, captured graphs, timing, and the kernels' modules:
 * embedded text, compiled for the device in hand with the caller's constants, cached on disk by hash.
 * Does not own: what kernels compute (kernels/), who launches them (backend/cuda_*.c).
 * One idea: every driver call is checked where it is made and becomes one message (what, on which device, the
 * driver's own words); nothing here waits for the device unless its comment says so.
 *
 * Device memory is an ordinary `void *` that the host must not read. One caller at a time per device.
 */
#ifndef MOTE_CUDA_CUDA_H
#define MOTE_CUDA_CUDA_H

#include "base/mem.h"

struct mote_cuda;        /* an opened device */
struct mote_cuda_module; /* compiled kernels, loaded */
struct mote_cuda_graph;  /* a captured step */
struct mote_cuda_event;

struct mote_cuda_info {
    char name[128];
    char arch[16]; /* what kernels are compiled for: "sm_90a", "sm_80" */
    int cc;        /* compute capability: 90 */
    int driver;    /* CUDA version of the driver: 13000 */
    int n_sm;
    size_t l2_bytes, total_bytes, free_bytes;
    size_t shared_bytes; /* most dynamic shared memory of a block (opt-in) */
    int pci_bus;
};

/* ---- devices ---- */

/* How many devices there are. MOTE_DEVICE, with the reason, when libcuda is missing or refuses. */
mote_status mote_cuda_count(int *n);
mote_status mote_cuda_describe(int index, struct mote_cuda_info *out); /* opens no context: free_bytes 0 */
/* Version of the NVRTC found (e.g. 13000), MOTE_DEVICE with the places looked at when there is none. */
mote_status mote_cuda_nvrtc(int *version);

mote_status mote_cuda_open(int index, struct mote_cuda **out);
void mote_cuda_close(struct mote_cuda *cuda); /* NULL is fine; memory and modules must be gone */
const struct mote_cuda_info *mote_cuda_info(const struct mote_cuda *cuda); /* free_bytes as of open */
mote_status mote_cuda_free_bytes(struct mote_cuda *cuda, size_t *out);
/* What is queued from now on goes to a caller's stream of the primary context (CUstream; NULL: the legacy default one), until
 * `own`. Meanwhile no memory is freed. */
void mote_cuda_stream_lend(struct mote_cuda *cuda, void *stream);
void mote_cuda_stream_own(struct mote_cuda *cuda);

/* ---- memory ---- */

/* alloc: 256-byte aligned, not zeroed; pinned: of the host, the device reads it. free waits for the device; NULL is
 * fine. */
mote_status mote_cuda_alloc(struct mote_cuda *cuda, size_t size, void *out);
void mote_cuda_free(struct mote_cuda *cuda, void *memory);
mote_status mote_cuda_alloc_pinned(struct mote_cuda *cuda, size_t size, void *out);
void mote_cuda_free_pinned(struct mote_cuda *cuda, void *memory);

/* All of these are in stream order. Copies from or to pinned memory return at once; from pageable memory the
 * driver has taken what it needs of `from` when upload returns. download from pageable memory waits. */
mote_status mote_cuda_upload(struct mote_cuda *cuda, void *to, const void *host_from, size_t size);
mote_status mote_cuda_download(struct mote_cuda *cuda, void *host_to, const void *from, size_t size);
mote_status mote_cuda_fill(struct mote_cuda *cuda, void *to, uint8_t value, size_t size);
mote_status mote_cuda_sync(struct mote_cuda *cuda); /* waits; late errors come back here */

/* ---- kernels ---- */

/* A translation unit: an embedded text and its constants. */
struct mote_cuda_unit {
    const char *text;   /* name of an embedded file: "decode.cu" */
    const char *define; /* blank-separated NAME=VALUE pairs: "FORMAT=12 K=2048" */
};

typedef void mote_cuda_progress_fn(void *context, size_t done, size_t total, size_t cached);

/* Compile (or take from the cache) and load units, out[i] for unit[i]. Missing ones are compiled in parallel on
 * all CPUs. The cache is $MOTE_CACHE, else $XDG_CACHE_HOME/mote, else ~/.cache/mote; an unwritable cache is a
 * warning, a damaged entry is compiled again. MOTE_DEVICE with the compiler's first error lines when a text
 * does not compile; MOTE_NOT_FOUND when there is neither NVRTC nor a cache entry. On failure nothing is loaded. */
mote_status mote_cuda_load(struct mote_cuda *cuda, const struct mote_cuda_unit *unit, size_t n_unit,
                           struct mote_cuda_module **out, mote_cuda_progress_fn *progress, void *context);
void mote_cuda_unload(struct mote_cuda *cuda, struct mote_cuda_module *module); /* NULL is fine */

struct mote_cuda_kernel {
    void *function; /* CUfunction */
    const char *name;
    int registers, shared_bytes, local_bytes; /* per thread, static per block, per thread */
};
#define MOTE_CUDA_SHARED_REST SIZE_MAX /* all that the kernel's own shared variables leave */
/* A kernel (extern "C" __global__) of a module. dynamic_shared: the most that launches will ask for (raises the
 * opt-in limit beyond 48 KiB). */
mote_status mote_cuda_kernel(struct mote_cuda *cuda, struct mote_cuda_module *module, const char *name,
                             size_t dynamic_shared, struct mote_cuda_kernel *out);

/* Programmatic dependent launch: may start before the kernel ahead has ended; the kernel itself waits
 * (griddepcontrol.wait) before it reads what that one wrote. */
enum { MOTE_CUDA_CHAIN = 1 };
struct mote_cuda_launch {
    unsigned grid[3], block;
    size_t shared; /* dynamic bytes */
    unsigned flags;
};
/* args[i] points at the i-th argument. Asynchronous; captured when a capture is under way. */
mote_status mote_cuda_launch(struct mote_cuda *cuda, const struct mote_cuda_kernel *kernel,
                             const struct mote_cuda_launch *shape, void **args);

/* A look at launches, for measurements: launches behind the first `most` are left out, all are counted and the first
 * MOTE_CUDA_WATCHED named. What a kernel takes is then the difference between two chains that are each right as far as
 * they go: neither order nor operands nor caches are other than in the whole. */
enum { MOTE_CUDA_WATCHED = 16 };
struct mote_cuda_watch {
    int most;
    int n_launch; /* since whoever watches last set it to 0 */
    const char *name[MOTE_CUDA_WATCHED];
};
/* Every launch from now on is shown to watch, which must live until it is replaced; NULL: nobody watches. */
void mote_cuda_watch(struct mote_cuda *cuda, struct mote_cuda_watch *watch);

/* Compile without a device, for `mote kernels --arch` and tests: cubin (free with mote_mem_free) and the resource
 * report of every kernel in it. Uses and fills the same cache. arch: "sm_80", "sm_89", "sm_90a", "sm_120". */
struct mote_cuda_usage {
    char name[96];
    int registers, shared_bytes, spill_bytes, stack_bytes;
};
mote_status mote_cuda_build(const char *arch, const struct mote_cuda_unit *unit, void **cubin, size_t *size,
                            struct mote_cuda_usage *usage, size_t capacity, size_t *n_usage);

/* ---- graphs and time ---- */

/* Between begin and end every launch and copy on the stream is recorded, not run. end gives the graph, ready to
 * be launched any number of times. A failure inside a capture ends it: cancel is always safe. */
mote_status mote_cuda_capture_begin(struct mote_cuda *cuda);
mote_status mote_cuda_capture_end(struct mote_cuda *cuda, struct mote_cuda_graph **out);
void mote_cuda_capture_cancel(struct mote_cuda *cuda);
mote_status mote_cuda_graph_launch(struct mote_cuda *cuda, struct mote_cuda_graph *graph);
void mote_cuda_graph_destroy(struct mote_cuda *cuda, struct mote_cuda_graph *graph); /* NULL is fine */

mote_status mote_cuda_event_create(struct mote_cuda *cuda, struct mote_cuda_event **out);
void mote_cuda_event_destroy(struct mote_cuda *cuda, struct mote_cuda_event *event);
mote_status mote_cuda_event_record(struct mote_cuda *cuda, struct mote_cuda_event *event);
/* Until it is reached. */
mote_status mote_cuda_event_wait(struct mote_cuda *cuda, struct mote_cuda_event *event);
/* Waits for both; seconds of device time from a to b. */
mote_status mote_cuda_event_seconds(struct mote_cuda *cuda, struct mote_cuda_event *a,
                                    struct mote_cuda_event *b, double *seconds);

#endif
