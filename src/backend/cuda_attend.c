/* cuda_attend.c: launches of attention: single rows over shares of the keys, which also turn and store when no sequence
 * has two rows; else rotation and store first, then single rows or tiles of many rows of a sequence.
 *
 * Owns: the shapes of those launches and their scratch. Does not own: what the kernels do (kernels/attend.cu,
 * attend_prefill.cu), whose constants are counted again here.
 * One idea: shapes follow from the step's shape and the caches' length alone; how many keys there are is read on the
 * device, and blocks without any end at once.
 */
#include <string.h>

#include "backend/cuda_backend.h"

enum {
    MAX_HEAD_DIM = 256,
    MAX_FREQUENCIES = MAX_HEAD_DIM / 2,
    ROPE_WARPS = 4,
    DECODE_WARPS = 8,
    SHARE_KEYS = 256, /* keys of a block at least */
    HEAD_PARTS = 4,   /* blocks that share the heads of a context no longer than that */
    MAX_SHARES = 128, /* their factors fit where the sums of warps were */
    PREFILL_SPAN = 8, /* sequences of more rows take tiles, in steps of more than CUDA_DECODE_ROWS */
    PREFILL_WARPS = 4,
};

/* Kernels of attend.cu, by kind and type of cache. Heads that q8_0 cannot hold have no kernels for it. */
enum { ROPE_STORE, ATTEND, ROPE_ATTEND, KINDS };
#define KERNELS(type) "rope_store_" type, "attend_" type, "rope_attend_" type
static const struct cuda_text attend_text = {
    .name = "attend.cu",
    .kernel = {KERNELS("f32"), KERNELS("f16"), KERNELS("q8_0")},
    .shared = 1,
};
static const struct cuda_text attend_text_no_q8 = {
    .name = "attend.cu",
    .kernel = {KERNELS("f32"), KERNELS("f16")},
    .shared = 1,
};
static const struct cuda_text prefill_text = {
    .name = "attend_prefill.cu",
    .kernel = {"attend_prefill_f32", "attend_prefill_f16", "attend_prefill_q8_0"},
    .shared = 1,
};
static const struct cuda_text prefill_text_no_q8 = {
    .name = "attend_prefill.cu",
    .kernel = {"attend_prefill_f32", "attend_prefill_f16"},
    .shared = 1,
};
/* What attend.cu and attend_prefill.cu derive from the same constants. */
struct shape {
    int64_t head_dim, group;
    int64_t heads;         /* query heads of a decode block: products of eight */
    int64_t blocks_per_kv; /* decode blocks of a head of keys */
    int64_t rows;          /* of a prefill tile */
    size_t sums;           /* f32 of a decode block: its share's weighted sums */
};

static struct shape shape_of(const struct mote_backend_limits *limits)
{
    struct shape s = {.head_dim = limits->head_dim};
    s.group = limits->n_head_kv ? limits->n_head / limits->n_head_kv : 1;
    s.heads = s.group > 8 && s.head_dim <= 128 ? 16 : 8;
    s.blocks_per_kv = (s.group + s.heads - 1) / s.heads;
    s.rows = PREFILL_WARPS * 16 * (s.head_dim <= 128 ? 2 : 1);
    s.sums = (size_t)(s.heads * s.head_dim);
    return s;
}

static size_t decode_shared(const struct shape *s)
{
    size_t stride = (size_t)((s->head_dim / 8 + 3) / 8 * 8 + 4) * 8, heads = (size_t)s->heads;
    size_t q = 2 * heads * stride * 2, out = heads * (size_t)(s->head_dim + 1) * 4;
    return ((q > out ? q : out) + 15) / 16 * 16 +
           (DECODE_WARPS * s->sums + (2 * DECODE_WARPS + 1) * heads + 1) * 4;
}

static size_t prefill_bytes(const struct shape *s, enum mote_kv_type type, size_t keys, size_t slots)
{
    size_t raw = type == MOTE_KV_F16 ? 0 : 2 * (keys * mote_kv_row_bytes(type, s->head_dim) + 16);
    return ((size_t)s->rows + 2 * slots * keys) * (size_t)(s->head_dim + 8) * 2 + raw;
}

static size_t prefill_shared(const struct shape *s, enum mote_kv_type type, size_t limit)
{
    size_t keys = 64;
    while (keys > 16 && prefill_bytes(s, type, keys, 1) > limit) keys /= 2;
    size_t twice = prefill_bytes(s, type, keys, 2);
    return type == MOTE_KV_F16 && 2 * twice + 2048 <= limit ? twice : prefill_bytes(s, type, keys, 1);
}

/* Scratch: tickets [n_sm], then a place for every block of a launch that shares keys: at most n_sm of them. */
static size_t ticket_bytes(int n_sm)
{
    return ((size_t)n_sm * sizeof(uint32_t) + 255) & ~(size_t)255;
}

size_t mote_cuda_attend_scratch(const struct mote_backend_limits *limits, int n_sm)
{
    struct shape s = shape_of(limits);
    return ticket_bytes(n_sm) + (size_t)n_sm * (s.sums + 2 * (size_t)s.heads) * sizeof(float);
}

mote_status mote_cuda_attend_programs(struct cuda_backend *cuda)
{
    const struct mote_backend_limits *l = &cuda->limits;
    if (!l->n_head) return MOTE_OK; /* a backend for expert blocks alone */
    struct shape s = shape_of(l);
    FAIL_IF(l->head_dim < 16 || l->head_dim % 16 || l->head_dim > MAX_HEAD_DIM, MOTE_UNSUPPORTED,
            "attention on CUDA: heads of %lld, expected a multiple of 16 up to %d", (long long)l->head_dim,
            MAX_HEAD_DIM);
    FAIL_IF(l->n_head_kv < 1 || l->n_head % l->n_head_kv || s.group > s.rows, MOTE_UNSUPPORTED,
            "attention on CUDA: %lld heads over %lld of keys, expected 1..%lld times as many",
            (long long)l->n_head, (long long)l->n_head_kv, (long long)s.rows);
    FAIL_IF(l->n_rot % 2 || l->n_rot > l->head_dim, MOTE_UNSUPPORTED,
            "attention on CUDA: %lld rotated columns of %lld, expected an even number", (long long)l->n_rot,
            (long long)l->head_dim);
    int has_q8 = l->head_dim % 32 == 0;
    size_t largest = prefill_shared(&s, MOTE_KV_F32, cuda->info->shared_bytes), decode = decode_shared(&s);
    if (decode > largest) largest = decode;
    FAIL_IF(largest > cuda->info->shared_bytes, MOTE_UNSUPPORTED,
            "attention on CUDA: heads of %lld need %zu bytes of shared memory a block, %s has %zu",
            (long long)l->head_dim, largest, cuda->info->name, cuda->info->shared_bytes);
    long long dim = l->head_dim, n_head = l->n_head, n_head_kv = l->n_head_kv, n_rot = l->n_rot;
    TRY(mote_cuda_program(cuda, has_q8 ? &attend_text : &attend_text_no_q8, &cuda->attend_program,
                          "HEAD_DIM=%lld N_HEAD=%lld N_HEAD_KV=%lld N_ROT=%lld", dim, n_head, n_head_kv,
                          n_rot));
    return mote_cuda_program(cuda, has_q8 ? &prefill_text : &prefill_text_no_q8,
                             &cuda->attend_prefill_program,
                             "HEAD_DIM=%lld N_HEAD=%lld N_HEAD_KV=%lld N_ROT=%lld SHARED=%zu", dim, n_head,
                             n_head_kv, n_rot, cuda->info->shared_bytes);
}

/* Arguments of attend.cu: struct Heads, struct Frequencies. */
struct heads {
    float *q, *k;
    const float *v, *q_norm, *k_norm;
    float eps, magnitude;
    int32_t n_rot, layer;
};
struct frequencies {
    float inverse[MAX_FREQUENCIES]; /* the kernels take the first N_ROT / 2 */
};

static mote_status rope_store(struct cuda_backend *cuda, enum mote_kv_type type, struct heads *heads,
                              struct frequencies *frequencies)
{
    void *args[] = {heads, frequencies, &cuda->position, &cuda->span_of_row, &cuda->span};
    unsigned n_head = (unsigned)(cuda->limits.n_head + 2 * cuda->limits.n_head_kv);
    return mote_cuda_run(cuda, cuda->attend_program, (int)type * KINDS + ROPE_STORE,
                         (n_head + ROPE_WARPS - 1) / ROPE_WARPS, (unsigned)cuda->batch->n_row, 1,
                         ROPE_WARPS * 32, ROPE_WARPS * (size_t)cuda->limits.head_dim * sizeof(float), args);
}

/* kind: ATTEND or ROPE_ATTEND. */
static mote_status single_rows(struct cuda_backend *cuda, const struct mote_attention *job,
                               enum mote_kv_type type, int kind, struct heads *heads,
                               struct frequencies *frequencies, int64_t n_ctx, const struct shape *s)
{
    int64_t visible = job->window > 0 && job->window < n_ctx ? job->window : n_ctx,
            n_row = cuda->batch->n_row;
    int64_t tiles = n_row * job->n_head_kv * s->blocks_per_kv, n_share = cuda->info->n_sm / tiles;
    int64_t most = (visible + SHARE_KEYS - 1) / SHARE_KEYS;
    if (most < HEAD_PARTS) most = HEAD_PARTS;
    if (n_share > most) n_share = most;
    if (n_share > MAX_SHARES) n_share = MAX_SHARES;
    if (n_share < 1) n_share = 1;

    int window = visible < n_ctx ? (int)job->window : 0;
    int quantise = n_row <= cuda->decode_rows && job->head_dim % 32 == 0 &&
                   job->n_head * job->head_dim <= cuda->limits.max_col; /* else nobody reads it as an input */
    float scale = job->scale, *out = job->out;
    struct mote_step_act act = {0};
    if (quantise) { /* as most products want it */
        cuda->act.rounding = MOTE_ROUND_I16;
        act = cuda->act;
    }
    uint8_t *ticket = cuda->attend_scratch, *partial = ticket + ticket_bytes(cuda->info->n_sm);
    void *args[] = {heads,       frequencies, &scale, &window,  &cuda->position, &cuda->span_of_row,
                    &cuda->span, &out,        &act,   &partial, &ticket};
    TRY(mote_cuda_run(cuda, cuda->attend_program, (int)type * KINDS + kind, (unsigned)n_share,
                      (unsigned)(job->n_head_kv * s->blocks_per_kv), (unsigned)n_row, DECODE_WARPS * 32,
                      decode_shared(s), args));
    if (quantise) cuda->act_of = job->out;
    return MOTE_OK;
}

static mote_status tiles(struct cuda_backend *cuda, const struct mote_attention *job, enum mote_kv_type type,
                         int64_t n_ctx, const struct shape *s)
{
    struct mote_attention a = *job;
    int window = job->window < n_ctx ? (int)job->window : 0, n_span = cuda->batch->n_span;
    void *args[] = {&a.q, &a.scale, &window, &a.layer, &cuda->span, &n_span, &a.out};
    int64_t n_tile = cuda->batch->n_row / (s->rows / s->group) + n_span; /* at least as many as there are */
    return mote_cuda_run(cuda, cuda->attend_prefill_program, (int)type, (unsigned)n_tile,
                         (unsigned)job->n_head_kv, 1, PREFILL_WARPS * 32,
                         prefill_shared(s, type, cuda->info->shared_bytes), args);
}

mote_status mote_cuda_attend(struct mote_backend *backend, const struct mote_attention *job)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct mote_backend_limits *l = &cuda->limits;
    const struct mote_batch *batch = cuda->batch;
    FAIL_IF(!l->n_head || job->n_head != l->n_head || job->n_head_kv != l->n_head_kv ||
                job->head_dim != l->head_dim || job->rope->n_rot > l->n_rot,
            MOTE_ARGUMENT, "attention: shape differs from the one that the backend was created for");
    enum mote_kv_type type = batch->span[0].kv.type;
    int64_t n_ctx = 0; /* of the longest cache */
    for (int32_t i = 0; i < batch->n_span; i++) {
        const struct mote_kv_view *kv = &batch->span[i].kv;
        FAIL_IF(kv->type != type, MOTE_UNSUPPORTED, "attention on CUDA: caches of %s and %s in one step",
                mote_kv_type_name(type), mote_kv_type_name(kv->type));
        if (kv->n_ctx > n_ctx) n_ctx = kv->n_ctx;
    }
    FAIL_IF((unsigned)type >= MOTE_KV_TYPE_COUNT || (type == MOTE_KV_Q8_0 && job->head_dim % 32),
            MOTE_ARGUMENT, "attention: a cache of %s with heads of %lld", mote_kv_type_name(type),
            (long long)job->head_dim);
    struct shape s = shape_of(l);
    struct heads heads = {job->q,
                          job->k,
                          job->v,
                          job->q_norm,
                          job->k_norm,
                          job->eps,
                          job->rope->magnitude,
                          (int32_t)job->rope->n_rot,
                          job->layer};
    struct frequencies frequencies = {{0}};
    if (job->rope->n_rot)
        memcpy(frequencies.inverse, job->rope->inv_freq, (size_t)(job->rope->n_rot / 2) * sizeof(float));
    cuda->act_of = NULL; /* q may change in place, out may be anything */
    if (cuda->max_span_row == 1)
        return single_rows(cuda, job, type, ROPE_ATTEND, &heads, &frequencies, n_ctx, &s);
    TRY(rope_store(cuda, type, &heads, &frequencies));
    if (batch->n_row > cuda->decode_rows && cuda->max_span_row > PREFILL_SPAN)
        return tiles(cuda, job, type, n_ctx, &s);
    return single_rows(cuda, job, type, ATTEND, &heads, &frequencies, n_ctx, &s);
}
