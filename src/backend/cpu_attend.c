/* cpu_attend.c: norm per head, rotation, store, attention: one job, one barrier.
 *
 * Phase 1 works on heads of rows (a decode step has one row, but many heads); phase 2 on blocks of a
 * sequence's query rows by key/value head.
 */
#include <math.h>

#include "backend/cpu_backend.h"

struct attend_step {
    struct cpu_backend *cpu;
    const struct mote_attention *job;
    const struct mote_batch *batch;
    const int32_t *span_of_row; /* [n_row] */
    int32_t *block_span;        /* [n_block] */
    const float *cosine, *sine; /* [n_row][n_rot / 2] */
    struct mote_chunks heads, tasks;
};

static void turn_angles(struct cpu_backend *cpu, const struct mote_rope *rope)
{
    const struct mote_batch *batch = cpu->batch;
    float *cosine = cpu_scratch(cpu, cpu->at.cosine), *sine = cpu_scratch(cpu, cpu->at.sine);
    for (int32_t s = 0; s < batch->n_span; s++) {
        const struct mote_span *span = &batch->span[s];
        for (int32_t i = 0; i < span->n_row; i++) {
            int64_t at = (span->row + i) * (rope->n_rot / 2);
            float position = (float)(span->n_past + i); /* the models were trained with f32 angles */
            for (int64_t j = 0; j < rope->n_rot / 2; j++) {
                float angle = position * rope->inv_freq[j];
                cosine[at + j] = cosf(angle) * rope->magnitude;
                sine[at + j] = sinf(angle) * rope->magnitude;
            }
        }
    }
    cpu->rope = rope;
}

static uint8_t *cache_row(uint8_t *base, const struct mote_kv_view *kv, size_t row_bytes, int64_t layer,
                          int64_t head, int64_t position)
{
    return base + (size_t)((layer * kv->n_head_kv + head) * kv->n_ctx + position) * row_bytes;
}

/* Heads of a row in order: queries, then keys (with their values). */
static void prepare_head(struct attend_step *step, int64_t row, int64_t head)
{
    const struct mote_attention *job = step->job;
    const struct mote_cpu_kernels *kernel = step->cpu->kernel;
    int64_t dim = job->head_dim, kv_head = head - job->n_head;
    int is_key = kv_head >= 0;
    float *x =
        is_key ? job->k + (row * job->n_head_kv + kv_head) * dim : job->q + (row * job->n_head + head) * dim;
    const float *norm = is_key ? job->k_norm : job->q_norm;
    if (norm) kernel->rms_norm(x, norm, dim, job->eps, x);
    if (job->rope->n_rot) {
        int64_t half = job->rope->n_rot / 2;
        kernel->rope(x, 1, dim, job->rope->n_rot, step->cosine + row * half, step->sine + row * half);
    }
    if (!is_key) return;
    const struct mote_span *span = &step->batch->span[step->span_of_row[row]];
    const struct mote_kv_view *kv = &span->kv;
    int64_t position = span->n_past + row - span->row;
    kernel->kv_store(kv->type, x, dim, cache_row(kv->k, kv, kv->k_row_bytes, job->layer, kv_head, position));
    kernel->kv_store(kv->type, job->v + (row * job->n_head_kv + kv_head) * dim, dim,
                     cache_row(kv->v, kv, kv->v_row_bytes, job->layer, kv_head, position));
}

static void attend_block(struct attend_step *step, int64_t block, int64_t kv_head, void *scratch)
{
    const struct mote_attention *job = step->job;
    int32_t s = step->block_span[block];
    int64_t begin = 0;
    while (block > begin && step->block_span[block - begin - 1] == s)
        begin++; /* blocks of the span before this */
    begin *= CPU_QUERY_BLOCK;
    const struct mote_span *span = &step->batch->span[s];
    const struct mote_kv_view *kv = &span->kv;
    int64_t n = span->n_row - begin < CPU_QUERY_BLOCK ? span->n_row - begin : CPU_QUERY_BLOCK;
    int64_t n_group = job->n_head / job->n_head_kv, width = job->n_head * job->head_dim;
    int64_t at = (span->row + begin) * width + kv_head * n_group * job->head_dim;
    struct mote_attend attend = {
        .n_query = n,
        .n_group = n_group,
        .head_dim = job->head_dim,
        .n_past = span->n_past + begin,
        .window = job->window,
        .scale = job->scale,
        .q = job->q + at,
        .q_stride = width,
        .type = kv->type,
        .k = cache_row(kv->k, kv, kv->k_row_bytes, job->layer, kv_head, 0),
        .v = cache_row(kv->v, kv, kv->v_row_bytes, job->layer, kv_head, 0),
        .k_stride = kv->k_row_bytes,
        .v_stride = kv->v_row_bytes,
        .out = job->out + at,
        .out_stride = width,
        .scratch = scratch,
    };
    step->cpu->kernel->attend(&attend);
}

static void attend_job(void *context, int worker, int n_worker)
{
    (void)n_worker;
    struct attend_step *step = context;
    const struct mote_attention *job = step->job;
    int64_t per_row = job->n_head + job->n_head_kv;
    for (int64_t i, end; mote_next_chunk(&step->heads, &i, &end);)
        for (; i < end; i++) prepare_head(step, i / per_row, i % per_row);
    mote_pool_barrier(step->cpu->pool);
    void *scratch = cpu_worker_scratch(step->cpu, worker);
    for (int64_t i, end; mote_next_chunk(&step->tasks, &i, &end);)
        for (; i < end; i++) attend_block(step, i / job->n_head_kv, i % job->n_head_kv, scratch);
}

mote_status mote_cpu_attend(struct mote_backend *backend, const struct mote_attention *job)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    const struct mote_backend_limits *limits = &cpu->limits;
    FAIL_IF(job->n_head != limits->n_head || job->n_head_kv != limits->n_head_kv ||
                job->head_dim != limits->head_dim || job->rope->n_rot > limits->n_rot,
            MOTE_ARGUMENT, "attention: shape differs from the one that the backend was created for");
    if (job->rope->n_rot && cpu->rope != job->rope) turn_angles(cpu, job->rope);
    struct attend_step step = {
        .cpu = cpu,
        .job = job,
        .batch = cpu->batch,
        .span_of_row = cpu_scratch(cpu, cpu->at.span_of_row),
        .block_span = cpu_scratch(cpu, cpu->at.block_span),
        .cosine = cpu_scratch(cpu, cpu->at.cosine),
        .sine = cpu_scratch(cpu, cpu->at.sine),
    };
    int64_t n_block = 0;
    for (int32_t s = 0; s < cpu->batch->n_span; s++)
        for (int32_t i = 0; i < cpu->batch->span[s].n_row; i += CPU_QUERY_BLOCK)
            step.block_span[n_block++] = s;
    int64_t n_head = cpu->batch->n_row * (job->n_head + job->n_head_kv);
    mote_chunks_init(&step.heads, n_head, 1 + n_head / (4 * cpu->n_thread));
    mote_chunks_init(&step.tasks, n_block * job->n_head_kv, 1);
    mote_pool_run(cpu->pool, attend_job, &step);
    return MOTE_OK;
}
