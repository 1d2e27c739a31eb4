/* kv.c: see kv.h. */
#include "model/kv.h"

static mote_status lay_out(const struct mote_hyper *hyper, enum mote_kv_type type, int64_t n_ctx,
                           struct mote_kv_view *view, size_t *half)
{
    FAIL_IF((unsigned)type >= MOTE_KV_TYPE_COUNT, MOTE_ARGUMENT, "KV cache: type %d does not exist",
            (int)type);
    FAIL_IF(n_ctx < 1 || n_ctx > INT32_MAX, MOTE_ARGUMENT, "KV cache: a context of %lld, expected 1..%d",
            (long long)n_ctx, INT32_MAX);
    FAIL_IF(type == MOTE_KV_Q8_0 && hyper->head_dim % 32, MOTE_ARGUMENT,
            "KV cache: q8_0 wants heads of a multiple of 32, these have %llu",
            (unsigned long long)hyper->head_dim);
    size_t row = mote_kv_row_bytes(type, (int64_t)hyper->head_dim), bytes;
    FAIL_IF(!mote_mul_size((size_t)hyper->n_layer * (size_t)hyper->n_head_kv, (size_t)n_ctx, &bytes) ||
                !mote_mul_size(bytes, row, &bytes) || bytes > SIZE_MAX / 4,
            MOTE_ARGUMENT, "KV cache: a context of %lld is more than an address space", (long long)n_ctx);
    *half = (bytes + 63) & ~(size_t)63;
    *view = (struct mote_kv_view){
        .type = type,
        .n_layer = (int32_t)hyper->n_layer,
        .n_head_kv = (int32_t)hyper->n_head_kv,
        .n_ctx = n_ctx,
        .k_row_bytes = row,
        .v_row_bytes = row,
    };
    return MOTE_OK;
}

mote_status mote_kv_bytes(const struct mote_hyper *hyper, enum mote_kv_type type, int64_t n_ctx,
                          size_t *bytes)
{
    struct mote_kv_view view;
    TRY(lay_out(hyper, type, n_ctx, &view, bytes));
    *bytes *= 2;
    return MOTE_OK;
}

mote_status mote_kv_create(const struct mote_hyper *hyper, enum mote_kv_type type, int64_t n_ctx,
                           struct mote_backend *backend, struct mote_kv *out)
{
    size_t half;
    *out = (struct mote_kv){.backend = backend};
    TRY(lay_out(hyper, type, n_ctx, &out->view, &half));
    TRY(backend->ops->alloc(backend, MOTE_MEM_KV, 2 * half, &out->view.k));
    out->view.v = out->view.k + half;
    return MOTE_OK;
}

void mote_kv_destroy(struct mote_kv *kv)
{
    if (kv->view.k) kv->backend->ops->free(kv->backend, kv->view.k);
    *kv = (struct mote_kv){0};
}

mote_status mote_kv_truncate(struct mote_kv *kv, int64_t n_past)
{
    FAIL_IF(n_past < 0 || n_past > kv->n_past, MOTE_ARGUMENT,
            "KV cache: cannot go back to %lld, there are %lld", (long long)n_past, (long long)kv->n_past);
    kv->n_past = n_past;
    return MOTE_OK;
}
