/* forward.c: a step, block by block: see forward.h.
 *
 *   x = embedding rows
 *   per layer: q, k, v = W rms(x);  a = attention;  x += W_o a;  x += ffn(rms(x)), the router beside it
 *   logits = W_out rms(x) of the wanted rows, LOGIT_ROWS at a time, and their shortlists
 */
#include "model/forward.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "model/arch.h"

enum { LOGIT_ROWS = MOTE_SHORTLIST_ROWS };

struct mote_forward {
    const struct mote_network *network;
    struct mote_backend *backend;
    uint64_t id; /* of all forwards of this process */
    int64_t max_row, logit_row;
    const volatile int *cancel;
    /* backend memory, one block */
    uint8_t *memory;
    float *x, *h;                /* [max_row][d_model] residual stream, normed rows */
    float *q, *attn;             /* [max_row][n_head * head_dim] */
    float *k, *v;                /* [max_row][n_head_kv * head_dim] */
    float *router, *weights;     /* [max_row][n_expert], [max_row][n_used] */
    float *shared_gate;          /* [max_row] */
    int32_t *ids;                /* [max_row][n_used] */
    float *logits;               /* [logit_row][n_vocab] */
    struct mote_shortlist *best; /* [logit_row] */
    float *hidden, *shared;      /* taps: [max_row][n_used][n_ff_expert], [max_row][n_ff_shared] */
    /* host memory */
    struct mote_row_lists lists; /* [max_row] */
    mote_row_fn *each;
    void *each_context;
    float *each_logits;                     /* [n_vocab] */
    struct mote_shortlist *host_best;       /* [logit_row], where downloads reach fastest */
    struct mote_row_kept *kept[LOGIT_ROWS]; /* who still has to fetch a row of `logits`; NULL: nobody */
    mote_tap_fn *tap;
    void *tap_context;
    float *tap_data; /* what a tap shows */
    int32_t *tap_ids;
    int can_tap;
};

/* ---- memory ---- */

/* Called twice: with memory NULL to add up, then to hand out. */
static int place(uint8_t *memory, size_t *total, void *out, int64_t rows, uint64_t cols)
{
    size_t bytes;
    void *address = memory ? memory + *total : NULL;
    memcpy(out, &address, sizeof address);
    return mote_mul_size((size_t)rows, (size_t)cols, &bytes) && mote_mul_size(bytes, sizeof(float), &bytes) &&
           mote_add_size(bytes, 63, &bytes) && mote_add_size(*total, bytes & ~(size_t)63, total);
}

static uint64_t widest(const struct mote_network *network)
{
    const struct mote_hyper *h = &network->hyper;
    uint64_t width = h->d_model, all[] = {h->n_head * h->head_dim, h->n_used * h->n_ff_expert,
                                          (uint64_t)network->limits.n_ff_shared};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] > width) width = all[i];
    return width;
}

static mote_status lay_out(struct mote_forward *f, uint8_t *memory, size_t *bytes)
{
    const struct mote_hyper *h = &f->network->hyper;
    uint64_t tap = f->can_tap ? 1 : 0, q_width = h->n_head * h->head_dim,
             kv_width = h->n_head_kv * h->head_dim;
    int64_t n = f->max_row;
    size_t total = 0;
    int ok = place(memory, &total, &f->x, n, h->d_model) && place(memory, &total, &f->h, n, h->d_model) &&
             place(memory, &total, &f->q, n, q_width) && place(memory, &total, &f->attn, n, q_width) &&
             place(memory, &total, &f->k, n, kv_width) && place(memory, &total, &f->v, n, kv_width) &&
             place(memory, &total, &f->router, n, h->n_expert) &&
             place(memory, &total, &f->weights, n, h->n_used) &&
             place(memory, &total, &f->shared_gate, n, 1) && place(memory, &total, &f->ids, n, h->n_used) &&
             place(memory, &total, &f->logits, f->logit_row, h->n_vocab) &&
             place(memory, &total, &f->best, f->logit_row, sizeof *f->best / sizeof(float)) &&
             place(memory, &total, &f->hidden, n, tap * h->n_used * h->n_ff_expert) &&
             place(memory, &total, &f->shared, n, tap * (uint64_t)f->network->limits.n_ff_shared);
    FAIL_IF(!ok, MOTE_ARGUMENT, "step buffers for %lld rows are more than an address space", (long long)n);
    *bytes = total;
    return MOTE_OK;
}

static size_t list_bytes(int64_t max_row)
{
    return (size_t)max_row * (sizeof(float *) + sizeof(struct mote_row_kept *) + 2 * sizeof(int32_t));
}

static mote_status prepare(struct mote_forward *f, const struct mote_network *network,
                           const struct mote_forward_options *options, size_t *scratch, size_t *tables)
{
    FAIL_IF(options->max_row < 1 || options->max_row > INT32_MAX / MOTE_MAX_EXPERTS, MOTE_ARGUMENT,
            "step: %lld rows, expected 1..%d", (long long)options->max_row, INT32_MAX / MOTE_MAX_EXPERTS);
    *f = (struct mote_forward){.network = network, .max_row = options->max_row, .can_tap = options->taps};
    f->logit_row = f->max_row < LOGIT_ROWS ? f->max_row : LOGIT_ROWS;
    TRY(lay_out(f, NULL, scratch));
    size_t tap = 0;
    FAIL_IF(f->can_tap &&
                (!mote_mul_size((size_t)f->max_row, (size_t)widest(network), &tap) || tap > SIZE_MAX / 8),
            MOTE_ARGUMENT, "taps for %lld rows are more than an address space", (long long)f->max_row);
    *tables = sizeof *f + list_bytes(f->max_row) + (size_t)network->hyper.n_vocab * sizeof(float) +
              (size_t)f->logit_row * sizeof *f->host_best + tap * sizeof(float) +
              (f->can_tap ? (size_t)f->max_row * (size_t)(network->hyper.n_used + 1) * sizeof(int32_t) : 0);
    return MOTE_OK;
}

mote_status mote_forward_bytes(const struct mote_network *network, const struct mote_forward_options *options,
                               size_t *scratch, size_t *tables)
{
    struct mote_forward f;
    return prepare(&f, network, options, scratch, tables);
}

mote_status mote_forward_create(const struct mote_network *network, struct mote_backend *backend,
                                const struct mote_forward_options *options, struct mote_forward **out)
{
    *out = NULL;
    struct mote_forward *f;
    struct mote_budget *budget = network->budget;
    size_t scratch, tables;
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *f, &f));
    mote_status status;
    TRY_GOTO(prepare(f, network, options, &scratch, &tables), status, fail);
    static _Atomic uint64_t n_made;
    f->backend = backend;
    f->id = atomic_fetch_add(&n_made, 1) + 1;
    TRY_GOTO(backend->ops->alloc(backend, MOTE_MEM_SCRATCH, scratch, &f->memory), status, fail);
    TRY_GOTO(lay_out(f, f->memory, &scratch), status, fail);
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, list_bytes(f->max_row), &f->lists.logits), status,
             fail);
    f->lists.kept = (struct mote_row_kept **)(void *)(f->lists.logits + f->max_row);
    f->lists.token = (int32_t *)(void *)(f->lists.kept + f->max_row);
    f->lists.want = f->lists.token + f->max_row;
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)network->hyper.n_vocab, sizeof(float),
                             &f->each_logits),
             status, fail);
    TRY_GOTO(backend->ops->alloc_host(backend, MOTE_MEM_TABLES, (size_t)f->logit_row * sizeof *f->host_best,
                                      &f->host_best),
             status, fail);
    if (f->can_tap) {
        size_t width = (size_t)widest(network), ids = (size_t)network->hyper.n_used + 1;
        TRY_GOTO(
            mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)f->max_row * width, sizeof(float), &f->tap_data),
            status, fail);
        TRY_GOTO(
            mote_mem_calloc(budget, MOTE_MEM_TABLES, (size_t)f->max_row * ids, sizeof(int32_t), &f->tap_ids),
            status, fail);
    }
    *out = f;
    return MOTE_OK;
fail:
    mote_forward_destroy(f);
    return status;
}

void mote_forward_destroy(struct mote_forward *f)
{
    if (!f) return;
    if (f->memory) f->backend->ops->free(f->backend, f->memory);
    if (f->host_best) f->backend->ops->free(f->backend, f->host_best);
    mote_mem_free(f->lists.logits);
    mote_mem_free(f->each_logits);
    mote_mem_free(f->tap_data);
    mote_mem_free(f->tap_ids);
    mote_mem_free(f);
}

const struct mote_network *mote_forward_network(const struct mote_forward *forward)
{
    return forward->network;
}

struct mote_backend *mote_forward_backend(const struct mote_forward *forward)
{
    return forward->backend;
}

int64_t mote_forward_max_row(const struct mote_forward *forward)
{
    return forward->max_row;
}

struct mote_row_lists *mote_forward_lists(struct mote_forward *forward)
{
    return &forward->lists;
}

mote_status mote_forward_tap(struct mote_forward *forward, mote_tap_fn *fn, void *context)
{
    FAIL_IF(fn && !forward->can_tap, MOTE_ARGUMENT, "taps: the forward was created without them");
    forward->tap = fn;
    forward->tap_context = context;
    return MOTE_OK;
}

void mote_forward_each(struct mote_forward *forward, mote_row_fn *fn, void *context)
{
    forward->each = fn;
    forward->each_context = context;
}

void mote_forward_cancel(struct mote_forward *forward, const volatile int *flag)
{
    forward->cancel = flag;
}

/* ---- the step ---- */

/* Show `rows` x cols values; n_id rows of chosen experts beside them. */
static mote_status show(struct mote_forward *f, int64_t layer, const char *name, const float *data,
                        int64_t rows, uint64_t cols, int64_t n_id)
{
    if (!f->tap) return MOTE_OK;
    struct mote_backend *backend = f->backend;
    int32_t n_used = (int32_t)f->network->hyper.n_used;
    TRY(backend->ops->download(backend, f->tap_data, data, (size_t)rows * (size_t)cols * sizeof *data));
    if (n_id)
        TRY(backend->ops->download(backend, f->tap_ids, f->ids,
                                   (size_t)n_id * (size_t)n_used * sizeof *f->ids));
    struct mote_tap tap = {
        .layer = (int)layer,
        .name = name,
        .n_row = rows,
        .n_col = (int64_t)cols,
        .data = f->tap_data,
        .ids = n_id ? f->tap_ids : NULL,
        .n_used = n_id ? n_used : 0,
    };
    f->tap(f->tap_context, &tap);
    return MOTE_OK;
}

static mote_status attention_block(struct mote_forward *f, int64_t index, int64_t n)
{
    const struct mote_hyper *h = &f->network->hyper;
    const struct mote_layer *layer = &f->network->layer[index];
    const struct mote_backend_ops *ops = f->backend->ops;
    int64_t d = (int64_t)h->d_model, q_width = (int64_t)(h->n_head * h->head_dim),
            kv_width = (int64_t)(h->n_head_kv * h->head_dim);
    struct mote_linear qkv = {
        .n_row = n,
        .n_col = d,
        .x = f->x,
        .norm = layer->attn_norm,
        .eps = (float)h->eps,
        .norm_out = f->h,
        .n_out = 3,
        .out = {{&layer->q, f->q, q_width, NULL},
                {&layer->k, f->k, kv_width, NULL},
                {&layer->v, f->v, kv_width, NULL}},
    };
    TRY(ops->linear(f->backend, &qkv));
    TRY(show(f, index, "attn_norm", f->h, n, h->d_model, 0));
    struct mote_attention attention = {
        .layer = (int32_t)index,
        .n_head = (int64_t)h->n_head,
        .n_head_kv = (int64_t)h->n_head_kv,
        .head_dim = (int64_t)h->head_dim,
        .q = f->q,
        .k = f->k,
        .v = f->v,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .eps = (float)h->eps,
        .scale = (float)(1 / sqrt((double)h->head_dim)),
        .rope = &f->network->rope,
        .out = f->attn,
    };
    TRY(ops->attend(f->backend, &attention));
    TRY(show(f, index, "attn", f->attn, n, (uint64_t)q_width, 0));
    struct mote_linear out = {
        .n_row = n, .n_col = q_width, .x = f->attn, .n_out = 1, .out = {{&layer->o, f->x, d, f->x}}};
    TRY(ops->linear(f->backend, &out));
    return show(f, index, "attn_out", f->x, n, h->d_model, 0);
}

static mote_status ffn_block(struct mote_forward *f, int64_t index, int64_t n)
{
    const struct mote_hyper *h = &f->network->hyper;
    const struct mote_layer *layer = &f->network->layer[index];
    const struct mote_backend_ops *ops = f->backend->ops;
    int is_moe = layer->experts.n_expert > 0, is_gated = layer->shared_gate.w.n_row > 0,
        is_shown = f->tap != NULL;
    struct mote_linear router = {
        .n_row = n,
        .n_col = (int64_t)h->d_model,
        .x = f->x,
        .norm = layer->ffn_norm,
        .eps = (float)h->eps,
        .norm_out = f->h,
    };
    if (is_moe)
        router.out[router.n_out++] =
            (struct mote_linear_out){&layer->router, f->router, (int64_t)h->n_expert, NULL};
    if (is_gated)
        router.out[router.n_out++] = (struct mote_linear_out){&layer->shared_gate, f->shared_gate, 1, NULL};
    struct mote_route route = {.routing = &layer->routing,
                               .router = &router,
                               .layer = (int32_t)index,
                               .n_row = n,
                               .logits = f->router,
                               .ids = f->ids,
                               .weights = f->weights};
    if (!is_moe) TRY(ops->linear(f->backend, &router));
    struct mote_moe moe = {
        .n_row = n,
        .d_model = (int64_t)h->d_model,
        .n_used = is_moe ? (int32_t)h->n_used : 0,
        .x = f->h,
        .route = is_moe ? &route : NULL,
        .experts = is_moe ? &layer->experts : NULL,
        .ids = f->ids,
        .weights = f->weights,
        .shared = layer->shared.n_expert ? &layer->shared : NULL,
        .shared_gate = is_gated ? f->shared_gate : NULL,
        .residual = f->x,
        .y = f->x,
        .hidden = is_shown && is_moe ? f->hidden : NULL,
        .shared_hidden = is_shown && layer->shared.n_expert ? f->shared : NULL,
    };
    TRY(ops->moe(f->backend, &moe));
    TRY(show(f, index, "ffn_norm", f->h, n, h->d_model, is_moe ? n : 0));
    if (moe.hidden)
        TRY(show(f, index, "ffn_hidden", moe.hidden, n * moe.n_used, (uint64_t)layer->experts.n_ff, n));
    if (moe.shared_hidden)
        TRY(show(f, index, "shared_hidden", moe.shared_hidden, n, (uint64_t)layer->shared.n_ff, 0));
    return show(f, index, "layer_out", f->x, n, h->d_model, 0);
}

static mote_status output_rows(struct mote_forward *f, const int32_t *want, int64_t n)
{
    const struct mote_network *network = f->network;
    const struct mote_backend_ops *ops = f->backend->ops;
    int64_t d = (int64_t)network->hyper.d_model, n_vocab = (int64_t)network->hyper.n_vocab;
    TRY(ops->rms_norm(f->backend, f->x, want, n, d, network->output_norm, (float)network->hyper.eps, f->h));
    TRY(show(f, (int64_t)network->hyper.n_layer, "output_norm", f->h, n, network->hyper.d_model, 0));
    struct mote_linear out = {
        .n_row = n, .n_col = d, .x = f->h, .n_out = 1, .out = {{&network->output, f->logits, n_vocab, NULL}}};
    TRY(ops->linear(f->backend, &out));
    return ops->shortlist ? ops->shortlist(f->backend, f->logits, n, f->best) : MOTE_OK;
}

/* ---- rows that stay ---- */

mote_status mote_forward_fetch(struct mote_forward *f, struct mote_row_kept *row)
{
    if (row->at < 0) return MOTE_OK;
    size_t n_vocab = (size_t)f->network->hyper.n_vocab;
    TRY(f->backend->ops->download(f->backend, row->logits, f->logits + (size_t)row->at * n_vocab,
                                  n_vocab * sizeof *f->logits));
    mote_forward_drop(f, row);
    return MOTE_OK;
}

void mote_forward_drop(struct mote_forward *f, struct mote_row_kept *row)
{
    if (row->at >= 0) f->kept[row->at] = NULL;
    row->at = -1;
}

/* The rows are about to be written again. */
static mote_status fetch_kept(struct mote_forward *f)
{
    for (int i = 0; i < LOGIT_ROWS; i++)
        if (f->kept[i]) TRY(mote_forward_fetch(f, f->kept[i]));
    return MOTE_OK;
}

/* ---- what the caller gets ---- */

/* Rows with a place of their own, and shortlists, come in one go; nobody looks at them before the sync. */
static mote_status hand_out(struct mote_forward *f, const int32_t *want, int64_t n, float *const *logits,
                            struct mote_row_kept *const *kept)
{
    const struct mote_backend_ops *ops = f->backend->ops;
    int64_t n_vocab = (int64_t)f->network->hyper.n_vocab, n_kept = 0;
    for (int64_t j = 0; j < n; j++) {
        const float *from = f->logits + j * n_vocab;
        size_t size = (size_t)n_vocab * sizeof *from;
        int is_kept = !logits[j] && kept[j];
        if (is_kept && ops->shortlist) n_kept++;
        else if (logits[j] || is_kept)
            TRY(ops->fetch(f->backend, is_kept ? kept[j]->logits : logits[j], from, size));
        else {
            TRY(ops->download(f->backend, f->each_logits, from, size));
            f->each(f->each_context, want[j], f->each_logits);
        }
    }
    if (n_kept) TRY(ops->fetch(f->backend, f->host_best, f->best, (size_t)n * sizeof *f->best));
    TRY(ops->sync(f->backend));
    for (int64_t j = 0; j < n; j++) {
        if (logits[j] || !kept[j]) continue;
        kept[j]->best.n = 0;
        if (!ops->shortlist) continue;
        kept[j]->best = f->host_best[j];
        kept[j]->at = (int32_t)j;
        f->kept[j] = kept[j];
    }
    return MOTE_OK;
}

static mote_status layers(struct mote_forward *f, int64_t n)
{
    TRY(f->backend->ops->embed(f->backend, &f->network->embedding, f->x));
    TRY(show(f, -1, "embed", f->x, n, f->network->hyper.d_model, 0));
    for (int64_t layer = 0; layer < (int64_t)f->network->hyper.n_layer; layer++) {
        FAIL_IF(f->cancel && *f->cancel, MOTE_CANCELLED, "step: cancelled in layer %lld", (long long)layer);
        mote_status status = attention_block(f, layer, n);
        if (status == MOTE_OK) status = ffn_block(f, layer, n);
        if (status != MOTE_OK) return mote_context(status, "layer %lld", (long long)layer);
    }
    return MOTE_OK;
}

/* A short step's launches up to its logits are the same whenever its shape is: recorded and replayed. */
static mote_status replayed(struct mote_forward *f, int64_t n, const int32_t *want, int64_t n_want)
{
    const struct mote_backend_ops *ops = f->backend->ops;
    struct mote_replay shape;
    memset(&shape, 0, sizeof shape); /* compared as bytes */
    shape.who = f->id;
    shape.n_want = (int32_t)n_want;
    memcpy(shape.want, want, (size_t)n_want * sizeof *want);
    int state;
    TRY(ops->replay_begin(f->backend, &shape, &state));
    if (state == MOTE_REPLAY_DONE) return MOTE_OK;
    mote_status status = layers(f, n);
    if (status == MOTE_OK && n_want) status = output_rows(f, want, n_want);
    return ops->replay_end(f->backend, status);
}

static mote_status run_step(struct mote_forward *f, const struct mote_batch *batch, const int32_t *want,
                            int64_t n_want, float *const *logits, struct mote_row_kept *const *kept)
{
    const struct mote_backend_ops *ops = f->backend->ops;
    int64_t n = batch->n_row;
    FAIL_IF(n < 1 || n > f->max_row, MOTE_ARGUMENT, "step: %lld rows, expected 1..%lld", (long long)n,
            (long long)f->max_row);
    for (int64_t j = 0; j < n_want; j++)
        FAIL_IF(want[j] < 0 || want[j] >= n, MOTE_ARGUMENT, "step: logits of row %d wanted, there are %lld",
                want[j], (long long)n);
    for (int64_t j = 0; j < n_want; j++)
        FAIL_IF(!logits[j] && !kept[j] && !f->each, MOTE_ARGUMENT, "step: no place for the logits of row %d",
                want[j]);
    if (n_want) TRY(fetch_kept(f));
    TRY(ops->begin(f->backend, batch));
    if (ops->replay_begin && n <= MOTE_REPLAY_ROWS && n_want <= f->logit_row && !f->tap) {
        TRY(replayed(f, n, want, n_want));
        return hand_out(f, want, n_want, logits, kept);
    }
    TRY(layers(f, n));
    if (!n_want) return ops->sync(f->backend);
    for (int64_t at = 0; at < n_want; at += f->logit_row) {
        int64_t m = n_want - at < f->logit_row ? n_want - at : f->logit_row;
        TRY(fetch_kept(f));
        TRY(output_rows(f, want + at, m));
        TRY(hand_out(f, want + at, m, logits + at, kept + at));
    }
    return MOTE_OK;
}

mote_status mote_forward_step(struct mote_forward *f, const struct mote_batch *batch, const int32_t *want,
                              int64_t n_want, float *const *logits, struct mote_row_kept *const *kept)
{
    mote_status status = run_step(f, batch, want, n_want, logits, kept);
    for (int64_t j = 0; j < n_want && status != MOTE_OK; j++)
        if (kept[j]) mote_forward_drop(f, kept[j]);
    return status;
}
