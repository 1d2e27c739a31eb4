/* cpu_edge.c: the expert block for rows of bf16 and f16: to f32 in scratch, the block, and back with one rounding.
 *
 * One idea: the block itself knows f32 alone; what a row weighs at its edges is nothing beside its products.
 */
#include "backend/cpu_backend.h"
#include "base/float_rows.h"

/* n rows of d_model, one way or the other. */
struct edge {
    enum mote_float_type type;
    const void *from;
    void *to;
    int is_in; /* to f32 */
    int64_t d_model;
    struct mote_chunks rows;
};

static void convert_rows(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct edge *edge = context;
    for (int64_t row, end; mote_next_chunk(&edge->rows, &row, &end);) {
        int64_t at = row * edge->d_model, n = (end - row) * edge->d_model;
        size_t narrow = (size_t)at * mote_float_bytes(edge->type), wide = (size_t)at * sizeof(float);
        const uint8_t *from = edge->from;
        uint8_t *to = edge->to;
        if (edge->is_in) mote_floats_widen(edge->type, from + narrow, n, (float *)(void *)(to + wide));
        else mote_floats_narrow(edge->type, (const float *)(const void *)(from + wide), n, to + narrow);
    }
}

static void convert(struct cpu_backend *cpu, enum mote_float_type type, const void *from, void *to, int is_in,
                    const struct mote_moe *job)
{
    struct edge edge = {.type = type, .from = from, .to = to, .is_in = is_in, .d_model = job->d_model};
    mote_chunks_init(&edge.rows, job->n_row, 8);
    if (job->n_row <= 8) convert_rows(&edge, 0, 1); /* sooner done than handed out */
    else mote_pool_run(cpu->pool, convert_rows, &edge);
}

mote_status mote_cpu_edge_moe(struct mote_backend *backend, const struct mote_moe *job)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    if (job->x_type == MOTE_F32 && job->y_type == MOTE_F32) return mote_cpu_moe(backend, job);
    FAIL_IF(!mote_limits_have_edges(&cpu->limits) || job->n_row > cpu->limits.max_row ||
                job->d_model != cpu->limits.d_model,
            MOTE_ARGUMENT, "moe: %lld rows of %lld in another type are not what the backend was created for",
            (long long)job->n_row, (long long)job->d_model);
    struct mote_moe inner = *job;
    if (job->x_type != MOTE_F32) {
        inner.x_type = MOTE_F32;
        inner.x = cpu_scratch(cpu, cpu->at.edge_x);
        convert(cpu, job->x_type, job->x, cpu_scratch(cpu, cpu->at.edge_x), 1, job);
    }
    if (job->y_type != MOTE_F32) {
        inner.y_type = MOTE_F32;
        inner.y = cpu_scratch(cpu, cpu->at.edge_y);
        if (job->residual) {
            inner.residual = inner.y;
            convert(cpu, job->y_type, job->residual, inner.y, 1, job);
        }
    }
    TRY(mote_cpu_moe(backend, &inner));
    if (job->y_type != MOTE_F32) convert(cpu, job->y_type, inner.y, job->y, 0, job);
    return MOTE_OK;
}
