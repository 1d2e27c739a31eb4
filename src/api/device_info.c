/* device_info.c: what can be computed on here, how fast its memory is, and kernels compiled ahead. See mote.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/handle.h"
#include "base/cpu_tier.h"
#include "base/thread.h"
#include "cuda/compile.h"
#include "cuda/unit_list.h"

/* ---- bandwidth of an NVIDIA device ---- */

enum { READ_BLOCK = 512, READ_LOADS = 8, READ_PASS = 12 };
static const size_t read_most = (size_t)2 << 30, read_least = (size_t)64 << 20;

static const struct mote_cuda_unit bandwidth_unit = {"bandwidth.cu", ""};

struct reader {
    struct mote_cuda *cuda;
    struct mote_cuda_module *module;
    struct mote_cuda_event *from, *to;
    void *data, *seen; /* device memory */
};

static mote_status measure_with(struct reader *r, double *out)
{
    struct mote_cuda_kernel kernel;
    TRY(mote_cuda_load(r->cuda, &bandwidth_unit, 1, &r->module, NULL, NULL));
    TRY(mote_cuda_kernel(r->cuda, r->module, "read_memory", 0, &kernel));
    size_t left;
    TRY(mote_cuda_free_bytes(r->cuda, &left));
    struct mote_cuda_launch shape = {.grid = {2 * (unsigned)mote_cuda_info(r->cuda)->n_sm, 1, 1},
                                     .block = READ_BLOCK};
    size_t turn = (size_t)shape.grid[0] * READ_BLOCK * READ_LOADS * 16,
           size = left / 2 < read_most ? left / 2 : read_most;
    size -= size % turn;
    FAIL_IF(size < read_least, MOTE_MEMORY, "%zu bytes are free: too few to measure bandwidth", left);
    TRY(mote_cuda_alloc(r->cuda, size, &r->data));
    TRY(mote_cuda_alloc(r->cuda, 16, &r->seen));
    TRY(mote_cuda_fill(r->cuda, r->data, 0, size));
    TRY(mote_cuda_event_create(r->cuda, &r->from));
    TRY(mote_cuda_event_create(r->cuda, &r->to));
    unsigned long long n = size / 16;
    void *args[] = {&r->data, &n, &r->seen};
    double best = 0;
    for (int i = 0; i < READ_PASS; i++) { /* the best pass: clocks rise while it runs */
        double seconds;
        TRY(mote_cuda_event_record(r->cuda, r->from));
        TRY(mote_cuda_launch(r->cuda, &kernel, &shape, args));
        TRY(mote_cuda_event_record(r->cuda, r->to));
        TRY(mote_cuda_event_seconds(r->cuda, r->from, r->to, &seconds));
        if (i == 0 || seconds < best) best = seconds;
    }
    TRY(mote_cuda_sync(r->cuda));
    *out = best > 0 ? (double)size / best : 0;
    return MOTE_OK;
}

static mote_status measure_device(int index, struct mote_device_info *info)
{
    struct reader r = {0};
    TRY(mote_cuda_open(index, &r.cuda));
    info->free = mote_cuda_info(r.cuda)->free_bytes;
    mote_status status = measure_with(&r, &info->bandwidth);
    mote_cuda_event_destroy(r.cuda, r.from);
    mote_cuda_event_destroy(r.cuda, r.to);
    mote_cuda_free(r.cuda, r.data);
    mote_cuda_free(r.cuda, r.seen);
    mote_cuda_unload(r.cuda, r.module);
    mote_cuda_close(r.cuda);
    return status;
}

/* ---- devices ---- */

static void cpu_name(char *out, size_t capacity)
{
    snprintf(out, capacity, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            const char *at = strchr(line, ':') + 1;
            at += strspn(at, " \t");
            snprintf(out, capacity, "%.*s", (int)strcspn(at, "\n"), at);
            break;
        }
    if (file) fclose(file);
}

static void describe_cpu(int measure, struct mote_device_info *info)
{
    enum mote_cpu_tier tier = MOTE_CPU_SCALAR;
    long page = sysconf(_SC_PAGESIZE), all = sysconf(_SC_PHYS_PAGES), unused = sysconf(_SC_AVPHYS_PAGES);
    snprintf(info->id, sizeof info->id, "cpu");
    cpu_name(info->name, sizeof info->name);
    info->n_unit = mote_cpu_count();
    if (page > 0 && all > 0) info->memory = (uint64_t)all * (uint64_t)page;
    if (page > 0 && unused > 0) info->free = (uint64_t)unused * (uint64_t)page;
    mote_status status = mote_cpu_tier_choose(&tier);
    if (status == MOTE_OK && measure) status = mote_measure_bandwidth(0, &info->bandwidth);
    snprintf(info->arch, sizeof info->arch, "%s", mote_cpu_tier_name(tier));
    if (status != MOTE_OK) snprintf(info->fault, sizeof info->fault, "%.511s", mote_error());
}

static void describe_cuda(int index, int measure, struct mote_device_info *info)
{
    struct mote_cuda_info cuda;
    snprintf(info->id, sizeof info->id, "cuda:%d", index);
    mote_status status = mote_cuda_describe(index, &cuda);
    if (status == MOTE_OK) {
        memcpy(info->name, cuda.name, sizeof info->name);
        memcpy(info->arch, cuda.arch, sizeof info->arch);
        info->n_unit = cuda.n_sm;
        info->memory = cuda.total_bytes;
        if (measure) status = measure_device(index, info);
    }
    if (status != MOTE_OK) snprintf(info->fault, sizeof info->fault, "%.511s", mote_error());
}

int mote_device_count(void)
{
    int n = 0;
    return mote_cuda_count(&n) == MOTE_OK ? 1 + n : 1;
}

/* Copy to a struct that may be of an older, shorter form. */
static void give(void *out, size_t out_size, const void *own, size_t own_size)
{
    memcpy(out, own, out_size < own_size ? out_size : own_size);
}

mote_status mote_device_describe(int index, int measure, struct mote_device_info *out)
{
    FAIL_IF(!out || out->struct_size < sizeof(size_t), MOTE_ARGUMENT, "device: struct_size is not set");
    int n = mote_device_count();
    FAIL_IF(index < 0 || index >= n, MOTE_ARGUMENT, "device %d: there are %d, from 0", index, n);
    struct mote_device_info info = {.struct_size = out->struct_size};
    if (index == 0) describe_cpu(measure, &info);
    else describe_cuda(index - 1, measure, &info);
    give(out, out->struct_size, &info, sizeof info);
    return MOTE_OK;
}

mote_status mote_device_bandwidth(const char *device, int n_thread, double *out)
{
    const struct mote_backend_kind *kind;
    int index;
    TRY(mote_device_choose(device, &kind, &index));
    if (!kind->weight_bytes) return mote_measure_bandwidth(n_thread, out);
    struct mote_cuda_info known;
    struct mote_device_info info = MOTE_OPTIONS(mote_device_info);
    TRY(mote_cuda_describe(index, &known)); /* its reasons are better than "there are so many" */
    TRY(mote_device_describe(1 + index, 1, &info));
    FAIL_IF(!(info.bandwidth > 0), MOTE_DEVICE, "%s: %s", device, info.fault);
    *out = info.bandwidth;
    return MOTE_OK;
}

size_t mote_device_room(int index)
{
    struct mote_cuda *cuda;
    if (mote_cuda_open(index, &cuda) != MOTE_OK) return 0;
    size_t bytes = mote_cuda_info(cuda)->free_bytes;
    mote_cuda_close(cuda);
    return bytes;
}

mote_status mote_cuda_support(struct mote_cuda_support *out)
{
    FAIL_IF(!out || out->struct_size < sizeof(size_t), MOTE_ARGUMENT, "CUDA support: struct_size is not set");
    struct mote_cuda_support info = {.struct_size = out->struct_size};
    struct mote_cuda_info device;
    int n = 0;
    mote_status status = mote_cuda_count(&n);
    if (status == MOTE_OK && n) status = mote_cuda_describe(0, &device);
    if (status != MOTE_OK) snprintf(info.driver_fault, sizeof info.driver_fault, "%.511s", mote_error());
    else if (n) info.driver = device.driver;
    if (mote_cuda_nvrtc(&info.nvrtc) != MOTE_OK)
        snprintf(info.nvrtc_fault, sizeof info.nvrtc_fault, "%.511s", mote_error());
    if (mote_cache_folder(info.cache) != MOTE_OK) info.cache[0] = 0;
    else TRY(mote_cache_size(&info.cache_byte, &info.cache_entry));
    give(out, out->struct_size, &info, sizeof info);
    return MOTE_OK;
}

/* ---- kernels ahead ---- */

struct progress {
    mote_progress_fn *fn;
    void *context;
};

/* Units that are under way cannot be stopped: a wish to cancel is not heard here. */
static void pass_on(void *context, size_t done, size_t total, size_t cached)
{
    struct progress *progress = context;
    (void)cached;
    progress->fn(progress->context, "compiling kernels", done, total, "units");
}

/* A model's units, by placing it on a backend that has no device. */
struct model_units {
    struct mote_budget *budget;
    struct mote_catalogue *catalogue;
    struct mote_network *network;
    struct mote_backend *backend;
};

static mote_status open_model(const char *path, const char *act, const char *arch, struct model_units *m)
{
    struct mote_network_options network = {0};
    TRY(mote_act_wish_parse(act, &network.act));
    TRY(mote_budget_create(0, &m->budget));
    TRY(mote_catalogue_open(path, m->budget, &m->catalogue));
    TRY(mote_network_open(m->catalogue, &network, m->budget, &m->network));
    struct mote_backend_limits limits = m->network->limits;
    limits.max_row = 512; /* no kernel depends on it */
    TRY(mote_cuda_ahead_create(arch, &limits, m->budget, &m->backend));
    return mote_network_place(m->network, m->backend);
}

static void close_model(struct model_units *m)
{
    mote_network_close(m->network);
    if (m->backend) m->backend->ops->destroy(m->backend);
    if (m->catalogue) mote_catalogue_close(m->catalogue);
    mote_budget_destroy(m->budget);
}

static mote_status build_units(const char *arch, const struct mote_cuda_unit *unit, const char *const *what,
                               size_t n, struct progress *told, mote_kernel_fn *fn, void *context)
{
    struct mote_cubin *cubin;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n + 1, sizeof *cubin, &cubin));
    mote_status status = mote_cubin_make_all(arch, unit, n, cubin, told->fn ? pass_on : NULL, told);
    for (size_t i = 0; i < n && status == MOTE_OK; i++) {
        for (size_t k = 0; k < cubin[i].n_usage && fn; k++) {
            const struct mote_cuda_usage *usage = &cubin[i].usage[k];
            struct mote_kernel_row row = {
                .arch = arch,
                .text = unit[i].text,
                .what = what ? what[i] : "model",
                .kernel = usage->name,
                .registers = usage->registers,
                .shared = usage->shared_bytes,
                .spill = usage->spill_bytes,
                .stack = usage->stack_bytes,
            };
            fn(context, &row);
        }
        mote_cubin_free(&cubin[i]);
    }
    mote_mem_free(cubin);
    return status;
}

mote_status mote_kernels_build(const char *arch, const char *model, const char *act,
                               mote_progress_fn *progress, void *progress_context, mote_kernel_fn *fn,
                               void *context)
{
    struct mote_cuda_info device;
    struct progress told = {progress, progress_context};
    struct model_units m = {0};
    struct mote_cuda_unit *unit = NULL;
    const char **what = NULL;
    size_t n = 0;
    if (!arch) {
        TRY(mote_cuda_describe(0, &device));
        arch = device.arch;
    }
    mote_status status = MOTE_OK;
    if (model) {
        TRY_GOTO(open_model(model, act, arch, &m), status, out);
        n = mote_cuda_ahead_units(m.backend, NULL, 0);
        TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_TABLES, n + 1, sizeof *unit, &unit), status, out);
        mote_cuda_ahead_units(m.backend, unit, n);
        unit[n++] = bandwidth_unit; /* `mote run` measures what its speed is held against */
    } else {
        size_t room = 0;
        while (mote_cuda_unit_list[room].unit.text) room++;
        TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_TABLES, room, sizeof *unit, &unit), status, out);
        TRY_GOTO(mote_mem_calloc(NULL, MOTE_MEM_TABLES, room, sizeof *what, &what), status, out);
        for (const struct mote_cuda_unit_row *row = mote_cuda_unit_list; row->unit.text; row++) {
            if (!mote_cuda_unit_is_for(row, arch)) continue;
            unit[n] = row->unit;
            what[n++] = row->what;
        }
    }
    status = build_units(arch, unit, what, n, &told, fn, context);
out:
    mote_mem_free(what);
    mote_mem_free(unit);
    close_model(&m);
    return status;
}
