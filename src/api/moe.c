/* moe.c: devices and expert blocks of mote/kernels.h.
 *
 * Owns: a backend for each device that is open, and the order of its callers. Does not own: weights (weights.c),
 * what a backend computes.
 * One idea: a block is placed weights and sizes; everything that a call writes belongs to its caller (struct mote_loan), so
 * blocks share a backend, and calls on different streams disturb each other no longer than a launch takes.
 */
#include <pthread.h>
#include <string.h>

#include "api/handle.h"
#include "api/weights.h"
#include "base/float_rows.h"

struct mote_device {
    const struct mote_backend_kind *kind;
    struct mote_backend_options options;
    struct mote_backend *backend;
    pthread_mutex_t lock; /* of the backend and of what follows */
    int n_user;           /* blocks, and one while it is open */
};

struct mote_moe_block {
    mote_device *device;
    struct mote_weights_set
        weights; /* where the backend reads in place; elsewhere the set alone, without views */
    struct mote_backend_limits limits; /* but for max_row */
    enum mote_float_type x_type, y_type;
    int unordered;
    struct mote_step_fault *fault; /* backend memory; NULL where every fault is seen at once */
};

/* Scratch begins on such a line; a caller's workspace need not. */
enum { WORKSPACE_LINE = 256, DEVICE_LINE = 16 };

static int on_gpu(const mote_device *device)
{
    return !device->backend->ops->reads_in_place;
}

/* ---- devices ---- */

mote_status mote_device_open(const char *name, int n_thread, mote_device **out)
{
    *out = NULL;
    const struct mote_backend_limits none = {.max_row = 1}; /* scratch comes with the calls */
    FAIL_IF(n_thread < 0, MOTE_ARGUMENT, "device: %d threads, expected 0 or more", n_thread);
    mote_device *device;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *device, &device));
    device->options.n_thread = n_thread;
    device->n_user = 1;
    mote_status status = mote_device_choose(name, &device->kind, &device->options.device);
    if (status == MOTE_OK) status = device->kind->create(&device->options, &none, NULL, &device->backend);
    if (status != MOTE_OK) {
        mote_mem_free(device);
        return status;
    }
    pthread_mutex_init(&device->lock, NULL);
    *out = device;
    return MOTE_OK;
}

static void leave(mote_device *device)
{
    pthread_mutex_lock(&device->lock);
    int is_last = --device->n_user == 0;
    pthread_mutex_unlock(&device->lock);
    if (!is_last) return;
    device->backend->ops->destroy(device->backend);
    pthread_mutex_destroy(&device->lock);
    mote_mem_free(device);
}

void mote_device_close(mote_device *device)
{
    if (device) leave(device);
}

/* ---- blocks ---- */

static unsigned act_bits(const struct mote_matrix *w, const struct mote_expert_set *set)
{
    return w ? 1u << mote_act_chosen(w->format, set->act) : 0;
}

static struct mote_backend_limits limits_of(const struct mote_moe_options *o,
                                            const struct mote_expert_set *set)
{
    return (struct mote_backend_limits){.d_model = o->d_model,
                                        .n_ff = o->n_ff,
                                        .n_expert = (int32_t)o->n_expert,
                                        .n_used = (int32_t)o->n_used,
                                        .act_moe = act_bits(set->gate, set) | act_bits(set->up, set),
                                        .act_down = act_bits(set->down, set),
                                        .x_type = o->x_type,
                                        .y_type = o->y_type,
                                        .only = set};
}

/* Under the device's lock. Memory of other streams' callers is ready when this returns. */
static mote_status place(mote_moe *moe)
{
    struct mote_backend *backend = moe->device->backend;
    TRY(backend->ops->place_experts(backend, &moe->weights.set));
    if (backend->ops->ready) TRY(backend->ops->ready(backend));
    if (on_gpu(moe->device))
        TRY(backend->ops->alloc(backend, MOTE_MEM_TABLES, sizeof *moe->fault, &moe->fault));
    return backend->ops->sync(backend);
}

/* Weights that the backend has copied may go; a step looks at nothing but what was placed. */
static void drop_views(mote_moe *moe)
{
    struct mote_expert_set set = moe->weights.set;
    mote_weights_close(&moe->weights);
    set.gate = set.up = set.down = NULL;
    moe->weights.set = set;
}

static mote_status fill(mote_moe *moe, const struct mote_moe_options *options)
{
    mote_device *device = moe->device;
    FAIL_IF(options->on_device && !on_gpu(device), MOTE_ARGUMENT,
            "weights on a device, but the block is computed by the CPU: expected on_device 0");
    pthread_mutex_lock(&device->lock);
    mote_status status = mote_weights_open(options, device->backend, &moe->weights);
    if (status == MOTE_OK) {
        moe->limits = limits_of(options, &moe->weights.set);
        status = place(moe);
    }
    pthread_mutex_unlock(&device->lock);
    if (status == MOTE_OK && on_gpu(device)) drop_views(moe);
    return status;
}

mote_status mote_moe_create(mote_device *device, const struct mote_moe_options *given, mote_moe **out)
{
    *out = NULL;
    struct mote_moe_options options = {0};
    FAIL_IF(!device || !given, MOTE_ARGUMENT, "moe: %s is NULL", device ? "options" : "device");
    FAIL_IF(given->struct_size < sizeof(size_t), MOTE_ARGUMENT, "moe options: struct_size is not set");
    MOTE_TAKE_OPTIONS(options, given);
    mote_moe *moe;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *moe, &moe));
    moe->device = device;
    pthread_mutex_lock(&device->lock);
    device->n_user++;
    pthread_mutex_unlock(&device->lock);
    moe->x_type = options.x_type;
    moe->y_type = options.y_type;
    moe->unordered = options.unordered;
    mote_status status = fill(moe, &options);
    if (status != MOTE_OK) {
        mote_moe_destroy(moe);
        return mote_context(status, "moe");
    }
    *out = moe;
    return MOTE_OK;
}

void mote_moe_destroy(mote_moe *moe)
{
    if (!moe) return;
    mote_device *device = moe->device;
    struct mote_backend *backend = device->backend;
    pthread_mutex_lock(&device->lock);
    backend->ops->unplace(backend, moe->weights.set.placed);
    if (moe->fault) backend->ops->free(backend, moe->fault);
    pthread_mutex_unlock(&device->lock);
    mote_weights_close(&moe->weights);
    mote_mem_free(moe);
    leave(device);
}

/* ---- calls ---- */

static struct mote_backend_limits limits_for(const mote_moe *moe, int64_t n_row)
{
    struct mote_backend_limits limits = moe->limits;
    limits.max_row = n_row;
    return limits;
}

mote_status mote_moe_workspace(const mote_moe *moe, int64_t n_row, size_t *bytes)
{
    FAIL_IF(!moe || !bytes, MOTE_ARGUMENT, "moe: %s is NULL", moe ? "bytes" : "block");
    *bytes = 0;
    if (n_row == 0) return MOTE_OK;
    const mote_device *device = moe->device;
    struct mote_backend_limits limits = limits_for(moe, n_row);
    mote_status status = device->kind->scratch(&device->options, &limits, bytes);
    if (status != MOTE_OK) return mote_context(status, "moe");
    *bytes += WORKSPACE_LINE - 1;
    return MOTE_OK;
}

static mote_status check_rows(const char *name, const void *rows, size_t line)
{
    FAIL_IF(!rows, MOTE_ARGUMENT, "moe: %s is NULL", name);
    FAIL_IF((uintptr_t)rows % line, MOTE_ARGUMENT, "moe: %s at %p, expected a multiple of %zu bytes", name,
            rows, line);
    return MOTE_OK;
}

static mote_status check_call(const mote_moe *moe, const struct mote_moe_call *call)
{
    int gpu = on_gpu(moe->device);
    size_t x_line = gpu ? DEVICE_LINE : mote_float_bytes(moe->x_type),
           y_line = gpu ? DEVICE_LINE : mote_float_bytes(moe->y_type);
    TRY(check_rows("x", call->x, x_line));
    TRY(check_rows("ids", call->ids, sizeof *call->ids));
    TRY(check_rows("weights", call->weights, sizeof *call->weights));
    TRY(check_rows("y", call->y, y_line));
    TRY(check_rows("workspace", call->workspace, 1));
    return call->residual ? check_rows("residual", call->residual, y_line) : MOTE_OK;
}

/* Under the device's lock. */
static mote_status run(mote_moe *moe, const struct mote_moe_call *call)
{
    struct mote_backend *backend = moe->device->backend;
    size_t skip = -(uintptr_t)call->workspace % WORKSPACE_LINE;
    struct mote_backend_limits limits = limits_for(moe, call->n_row);
    struct mote_loan loan = {.limits = &limits,
                             .scratch = (uint8_t *)call->workspace + skip,
                             .scratch_bytes = call->workspace_bytes > skip ? call->workspace_bytes - skip : 0,
                             .fault = moe->fault,
                             .stream = call->stream};
    struct mote_moe job = {.n_row = call->n_row,
                           .d_model = limits.d_model,
                           .n_used = limits.n_used,
                           .x_type = moe->x_type,
                           .y_type = moe->y_type,
                           .x = call->x,
                           .experts = &moe->weights.set,
                           .ids = call->ids,
                           .weights = call->weights,
                           .residual = call->residual,
                           .y = call->y,
                           .unordered = moe->unordered};
    TRY(backend->ops->lend(backend, &loan));
    mote_status status = backend->ops->moe(backend, &job);
    mote_status back = backend->ops->lend(backend, NULL);
    return status != MOTE_OK ? status : back;
}

mote_status mote_moe_forward(mote_moe *moe, const struct mote_moe_call *given)
{
    struct mote_moe_call call = {0};
    FAIL_IF(!moe || !given, MOTE_ARGUMENT, "moe: %s is NULL", moe ? "call" : "block");
    FAIL_IF(given->struct_size < sizeof(size_t), MOTE_ARGUMENT, "moe call: struct_size is not set");
    MOTE_TAKE_OPTIONS(call, given);
    FAIL_IF(call.n_row < 0, MOTE_ARGUMENT, "moe: %lld rows, expected 0 or more", (long long)call.n_row);
    if (call.n_row == 0) return MOTE_OK;
    TRY(check_call(moe, &call));
    pthread_mutex_lock(&moe->device->lock);
    mote_status status = run(moe, &call);
    pthread_mutex_unlock(&moe->device->lock);
    return status == MOTE_OK ? status : mote_context(status, "moe");
}

mote_status mote_moe_check(mote_moe *moe, void *stream)
{
    FAIL_IF(!moe, MOTE_ARGUMENT, "moe: block is NULL");
    if (!moe->fault) return MOTE_OK;
    struct mote_backend *backend = moe->device->backend;
    struct mote_backend_limits limits = {.max_row = 1};
    struct mote_loan loan = {.limits = &limits, .fault = moe->fault, .stream = stream};
    pthread_mutex_lock(&moe->device->lock);
    mote_status status = backend->ops->lend(backend, &loan);
    if (status == MOTE_OK) status = backend->ops->sync(backend);
    mote_status back = backend->ops->lend(backend, NULL);
    pthread_mutex_unlock(&moe->device->lock);
    if (status == MOTE_OK) status = back;
    return status == MOTE_OK ? status : mote_context(status, "moe");
}
