/* module.c: units to loaded modules, in parallel, and kernels out of modules. See cuda.h. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "cuda/compile.h"
#include "cuda/device.h"

enum { MAX_WORKER = 128 };

struct mote_cuda_module {
    void *handle;
    char text[32]; /* the unit's, for messages */
};

/* ---- many units at once ---- */

struct job {
    const char *arch;
    const struct mote_cuda_unit *unit; /* [n] */
    struct mote_cubin *cubin;          /* [n] */
    struct mote_chunks chunks;
    mote_cuda_progress_fn *progress;
    void *progress_context;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t change;
    size_t n, done, cached;
    int working; /* workers that are not through */
    mote_status status;
    char message[2048]; /* of the first failure */
};

/* Worker 0 is the caller: it only tells how far the others are, so that progress is heard on the caller's thread. */
static void tell(struct job *job)
{
    size_t told = 0;
    pthread_mutex_lock(&job->lock);
    while (job->working) {
        pthread_cond_wait(&job->change, &job->lock);
        if (!job->progress || job->done == told) continue;
        size_t cached = job->cached;
        told = job->done;
        pthread_mutex_unlock(&job->lock);
        job->progress(job->progress_context, told, job->n, cached);
        pthread_mutex_lock(&job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    if (job->progress && job->done != told)
        job->progress(job->progress_context, job->done, job->n, job->cached);
}

static void build_some(void *context, int worker, int n_worker)
{
    struct job *job = context;
    (void)n_worker;
    if (worker == 0) {
        tell(job);
        return;
    }
    int64_t begin, end;
    while (mote_next_chunk(&job->chunks, &begin, &end)) {
        mote_status status = mote_cubin_make(job->arch, &job->unit[begin], &job->cubin[begin]);
        pthread_mutex_lock(&job->lock);
        if (status != MOTE_OK && job->status == MOTE_OK) {
            job->status = status;
            snprintf(job->message, sizeof job->message, "%s", mote_error());
        }
        job->done++;
        job->cached += job->cubin[begin].cached != 0;
        int stop = job->status != MOTE_OK;
        pthread_cond_signal(&job->change);
        pthread_mutex_unlock(&job->lock);
        if (stop) break;
    }
    pthread_mutex_lock(&job->lock);
    job->working--;
    pthread_cond_signal(&job->change);
    pthread_mutex_unlock(&job->lock);
}

static mote_status build_all(struct job *job)
{
    int n_worker = mote_cpu_count() < MAX_WORKER ? mote_cpu_count() : MAX_WORKER;
    if (job->n < (size_t)n_worker) n_worker = (int)job->n;
    struct mote_pool *pool;
    TRY(mote_pool_create(n_worker + 1, &pool));
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->change, NULL);
    mote_chunks_init(&job->chunks, (int64_t)job->n, 1);
    job->working = n_worker;
    mote_pool_run(pool, build_some, job);
    mote_pool_destroy(pool);
    pthread_cond_destroy(&job->change);
    pthread_mutex_destroy(&job->lock);
    return job->status == MOTE_OK ? MOTE_OK : mote_fail(job->status, "%s", job->message);
}

static mote_status load_one(struct mote_cuda *cuda, const struct mote_cuda_unit *unit,
                            const struct mote_cubin *cubin, struct mote_cuda_module **out)
{
    struct mote_cuda_module *module;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *module, &module));
    snprintf(module->text, sizeof module->text, "%s", unit->text);
    int result = cuda->call->module_load(&module->handle, cubin->image);
    if (result) {
        char what[256];
        snprintf(what, sizeof what, "loading %s (%.150s) for %s, made by NVRTC %d.%d", unit->text,
                 unit->define ? unit->define : "", cuda->info.arch, cubin->nvrtc / 1000,
                 cubin->nvrtc % 1000 / 10);
        mote_status status = mote_cuda_check(cuda, result, what);
        mote_mem_free(module);
        return status;
    }
    *out = module;
    return MOTE_OK;
}

mote_status mote_cuda_load(struct mote_cuda *cuda, const struct mote_cuda_unit *unit, size_t n_unit,
                           struct mote_cuda_module **out, mote_cuda_progress_fn *progress, void *context)
{
    for (size_t i = 0; i < n_unit; i++) out[i] = NULL;
    if (!n_unit) return MOTE_OK;
    struct job job = {.arch = cuda->info.arch,
                      .unit = unit,
                      .n = n_unit,
                      .progress = progress,
                      .progress_context = context};
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n_unit, sizeof *job.cubin, &job.cubin));
    mote_status status = build_all(&job);
    if (status == MOTE_OK) status = mote_cuda_use(cuda);
    for (size_t i = 0; i < n_unit && status == MOTE_OK; i++)
        status = load_one(cuda, &unit[i], &job.cubin[i], &out[i]);
    for (size_t i = 0; i < n_unit; i++) {
        mote_cubin_free(&job.cubin[i]);
        if (status == MOTE_OK) continue;
        mote_cuda_unload(cuda, out[i]);
        out[i] = NULL;
    }
    mote_mem_free(job.cubin);
    return status;
}

void mote_cuda_unload(struct mote_cuda *cuda, struct mote_cuda_module *module)
{
    if (!module) return;
    if (cuda->call->context_use(cuda->context) == 0) cuda->call->module_unload(module->handle);
    mote_mem_free(module);
}

mote_status mote_cuda_kernel(struct mote_cuda *cuda, struct mote_cuda_module *module, const char *name,
                             size_t dynamic_shared, struct mote_cuda_kernel *out)
{
    memset(out, 0, sizeof *out);
    TRY(mote_cuda_use(cuda));
    const struct mote_cuda_driver *call = cuda->call;
    char what[192];
    snprintf(what, sizeof what, "kernel %s of %s", name, module->text);
    struct mote_cuda_kernel kernel = {.name = name};
    TRY(mote_cuda_check(cuda, call->module_function(&kernel.function, module->handle, name), what));
    /* A driver that loads kernels when they are first used would do so inside a capture, where it may not. */
    if (call->function_load) TRY(mote_cuda_check(cuda, call->function_load(kernel.function), what));
    const struct {
        int number, *value;
    } attribute[] = {{CU_FUNCTION_REGISTERS, &kernel.registers},
                     {CU_FUNCTION_SHARED, &kernel.shared_bytes},
                     {CU_FUNCTION_LOCAL, &kernel.local_bytes}};
    for (size_t i = 0; i < sizeof attribute / sizeof *attribute; i++)
        TRY(mote_cuda_check(
            cuda, call->function_get(attribute[i].value, attribute[i].number, kernel.function), what));
    size_t all = dynamic_shared + (size_t)kernel.shared_bytes;
    FAIL_IF(all > cuda->info.shared_bytes && all > 48 * 1024, MOTE_DEVICE,
            "device %d (%s): %s needs %zu bytes of shared memory a block, the device has %zu", cuda->index,
            cuda->info.name, what, all, cuda->info.shared_bytes);
    if (dynamic_shared)
        TRY(mote_cuda_check(
            cuda, call->function_set(kernel.function, CU_FUNCTION_DYNAMIC_SHARED, (int)dynamic_shared),
            what));
    *out = kernel;
    return MOTE_OK;
}

/* ---- without a device ---- */

mote_status mote_cuda_build(const char *arch, const struct mote_cuda_unit *unit, void **cubin, size_t *size,
                            struct mote_cuda_usage *usage, size_t capacity, size_t *n_usage)
{
    *cubin = NULL;
    *size = *n_usage = 0;
    struct mote_cubin made;
    TRY(mote_cubin_make(arch, unit, &made));
    mote_status status = mote_mem_alloc(NULL, MOTE_MEM_TABLES, made.image_size, cubin);
    if (status == MOTE_OK) {
        memcpy(*cubin, made.image, made.image_size);
        *size = made.image_size;
        *n_usage = made.n_usage;
        for (size_t i = 0; i < made.n_usage && i < capacity; i++) usage[i] = made.usage[i];
    }
    mote_cubin_free(&made);
    return status;
}
