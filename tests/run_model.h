/* run_model.h: for tests: a model opened, placed and ready to step, and taken down again. */
#ifndef MOTE_TESTS_RUN_MODEL_H
#define MOTE_TESTS_RUN_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/session.h"
#include "file/catalogue.h"
#include "must.h"

#define FABLE "../shared/models/fable"
#define FABLE_TERNARY "../shared/models/fable-ternary"

struct run_options {
    const struct mote_backend_kind *device; /* NULL: the CPU */
    enum mote_act_wish act;
    int n_thread, taps, no_graph, compact;
    enum mote_moe_kernels moe_kernels;
    int64_t max_row;
    size_t budget;
    struct mote_catalogue *catalogue; /* opened, and closed, by the caller; NULL: of `path` */
};

struct run {
    struct mote_budget *budget;
    struct mote_catalogue *catalogue;
    int is_borrowed; /* the catalogue */
    struct mote_network *network;
    struct mote_backend *backend;
    struct mote_forward *forward;
};

static inline void run_close(struct run *run)
{
    mote_forward_destroy(run->forward);
    mote_network_close(run->network);
    if (run->backend) run->backend->ops->destroy(run->backend);
    if (!run->is_borrowed) mote_catalogue_close(run->catalogue);
    mote_budget_destroy(run->budget);
    *run = (struct run){0};
}

static inline mote_status run_try_open(const char *path, const struct run_options *o, struct run *run)
{
    *run = (struct run){0};
    int64_t max_row = o->max_row ? o->max_row : 512;
    TRY(mote_budget_create(o->budget, &run->budget));
    run->catalogue = o->catalogue;
    run->is_borrowed = o->catalogue != NULL;
    if (!run->catalogue) TRY(mote_catalogue_open(path, run->budget, &run->catalogue));
    struct mote_network_options network = {.act = o->act};
    TRY(mote_network_open(run->catalogue, &network, run->budget, &run->network));
    const struct mote_backend_kind *device = o->device ? o->device : &mote_backend_cpu;
    struct mote_backend_options backend = {.n_thread = o->n_thread,
                                           .moe_kernels = o->moe_kernels,
                                           .no_graph = o->no_graph,
                                           .compact = o->compact};
    struct mote_backend_limits limits = run->network->limits;
    limits.max_row = max_row;
    TRY(device->create(&backend, &limits, run->budget, &run->backend));
    TRY(mote_network_place(run->network, run->backend));
    struct mote_forward_options forward = {.max_row = max_row, .taps = o->taps};
    return mote_forward_create(run->network, run->backend, &forward, &run->forward);
}

static inline void run_open(const char *path, const struct run_options *o, struct run *run)
{
    if (run_try_open(path, o, run) != MOTE_OK) fail_msg("%s: %s", path, mote_error());
}

static inline struct mote_timeline *run_session(struct run *run, int64_t n_ctx, enum mote_kv_type kv_type)
{
    struct mote_timeline_options options = {.n_ctx = n_ctx, .kv_type = kv_type};
    struct mote_timeline *session;
    if (mote_timeline_create(run->forward, &options, &session) != MOTE_OK) fail_msg("%s", mote_error());
    return session;
}

#define need_shared()                                                  \
    do {                                                               \
        if (access(FABLE "/config.json", R_OK)) {                      \
            print_message("../shared/models is not there: skipped\n"); \
            skip();                                                    \
        }                                                              \
    } while (0)

#endif
