/* cuda_ahead.c: what a model's kernels are, without a device: a backend that takes placements and keeps nothing but the
 * programs they ask for. `mote kernels -m MODEL` compiles them for machines without NVRTC.
 *
 * One idea: the same place functions as on a device (cuda_place.c), so that the list cannot differ from what a run loads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda_backend.h"

/* What programs depend on; multiprocessors decide only between shapes that differ by far. */
static const struct {
    int cc, n_sm;
    size_t shared_bytes;
} known[] = {{80, 108, 166912}, {86, 84, 101376},   {87, 16, 166912},   {89, 128, 101376},
             {90, 132, 232448}, {100, 148, 232448}, {103, 148, 232448}, {120, 170, 101376}};

static mote_status ahead_info(const char *arch, struct mote_cuda_info *info)
{
    int cc = strncmp(arch, "sm_", 3) ? 0 : atoi(arch + 3);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].cc != cc) continue;
        *info =
            (struct mote_cuda_info){.cc = cc, .n_sm = known[i].n_sm, .shared_bytes = known[i].shared_bytes};
        snprintf(info->arch, sizeof info->arch, "%s", arch);
        snprintf(info->name, sizeof info->name, "%s", arch);
        return MOTE_OK;
    }
    return mote_fail(
        MOTE_ARGUMENT,
        "architecture '%s': expected sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100a, sm_103a or sm_120", arch);
}

/* Vectors (norms, biases) get memory nobody reads. */
static mote_status ahead_alloc(struct mote_backend *backend, enum mote_mem_kind kind, size_t size, void *out)
{
    return mote_mem_calloc(cuda_of(backend)->budget, kind, 1, size, out);
}

static void ahead_free(struct mote_backend *backend, void *memory)
{
    (void)backend;
    mote_mem_free(memory);
}

static mote_status ahead_upload(struct mote_backend *backend, void *to, const void *host_from, size_t size)
{
    (void)backend;
    memcpy(to, host_from, size);
    return MOTE_OK;
}

static const struct mote_backend_ops ahead_ops = {
    .name = "cuda",
    .destroy = mote_cuda_destroy,
    .alloc = ahead_alloc,
    .free = ahead_free,
    .alloc_host = ahead_alloc,
    .upload = ahead_upload,
    .place = mote_cuda_place,
    .place_experts = mote_cuda_place_experts,
    .unplace = mote_cuda_unplace,
    .place_routing = mote_cuda_place_routing,
};

mote_status mote_cuda_ahead_create(const char *arch, const struct mote_backend_limits *limits,
                                   struct mote_budget *budget, struct mote_backend **out)
{
    *out = NULL;
    struct cuda_backend *cuda;
    TRY(mote_cuda_create_begin(&ahead_ops, limits, budget, &cuda));
    cuda->info = &cuda->ahead_info;
    return mote_cuda_create_end(cuda, ahead_info(arch, &cuda->ahead_info), out);
}

size_t mote_cuda_ahead_units(const struct mote_backend *backend, struct mote_cuda_unit *unit, size_t capacity)
{
    const struct cuda_backend *cuda = (const struct cuda_backend *)(const void *)backend;
    for (size_t i = 0; i < cuda->n_program && i < capacity; i++)
        unit[i] =
            (struct mote_cuda_unit){.text = cuda->program[i].text->name, .define = cuda->program[i].define};
    return cuda->n_program;
}
