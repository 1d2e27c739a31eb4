/* module.c: units to loaded modules, and kernels out of modules. See cuda.h. */
#include <stdio.h>
#include <string.h>

#include "cuda/compile.h"
#include "cuda/device.h"

struct mote_cuda_module {
    void *handle;
    char text[32]; /* the unit's, for messages */
};

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
    struct mote_cubin *cubin;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n_unit, sizeof *cubin, &cubin));
    mote_status status = mote_cubin_make_all(cuda->info.arch, unit, n_unit, cubin, progress, context);
    if (status == MOTE_OK) status = mote_cuda_use(cuda);
    for (size_t i = 0; i < n_unit && status == MOTE_OK; i++)
        status = load_one(cuda, &unit[i], &cubin[i], &out[i]);
    for (size_t i = 0; i < n_unit; i++) {
        mote_cubin_free(&cubin[i]);
        if (status == MOTE_OK) continue;
        mote_cuda_unload(cuda, out[i]);
        out[i] = NULL;
    }
    mote_mem_free(cubin);
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
    if (dynamic_shared == MOTE_CUDA_SHARED_REST)
        dynamic_shared = cuda->info.shared_bytes > (size_t)kernel.shared_bytes
                             ? cuda->info.shared_bytes - (size_t)kernel.shared_bytes
                             : 0;
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
