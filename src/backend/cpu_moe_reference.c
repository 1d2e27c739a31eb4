/* cpu_moe_reference.c: the feed-forward block one product at a time: what the fused job must equal bit for
 * bit.
 *
 * Every expert's gate, up and down are products of their own over the whole matrix, the activation runs
 * over whole rows, the weighted sum over the whole width. Memory for all of down's results is the price.
 */
#include "backend/cpu_backend.h"

struct product_job {
    const struct cpu_backend *cpu;
    const struct mote_matrix *w;
    const struct mote_act *x;
    const int32_t *x_row;
    int64_t n_x, y_stride;
    float *y;
    struct mote_chunks rows;
};

static void product_rows(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct product_job *job = context;
    for (int64_t row, end; mote_next_chunk(&job->rows, &row, &end);)
        mote_cpu_product(job->cpu, job->w, row, end - row, job->x, job->x_row, job->n_x, job->y + row,
                         job->y_stride);
}

static void product(struct cpu_moe_step *s, const struct mote_matrix *w, const struct mote_act *x,
                    const int32_t *x_row, int64_t n_x, float *y)
{
    struct product_job job = {
        .cpu = s->cpu, .w = w, .x = x, .x_row = x_row, .n_x = n_x, .y_stride = w->n_row, .y = y};
    mote_chunks_init(&job.rows, w->n_row, CPU_TILE_GEMM);
    mote_pool_run(s->cpu->pool, product_rows, &job);
}

void mote_cpu_moe_reference(struct cpu_moe_step *s)
{
    const struct mote_moe *job = s->job;
    struct cpu_backend *cpu = s->cpu;
    float *routed = cpu_scratch(cpu, cpu->at.product), *shared = routed + s->n_pair * job->d_model;
    for (int type = MOTE_ACT_F32 + 1; type < MOTE_ACT_TYPE_COUNT; type++)
        if (s->x_types >> type & 1) cpu->kernel->quantise(job->x, 0, job->n_row, &s->x[type]);
    for (int at = 0; at < s->n_group; at++) {
        const struct cpu_group *g = &s->group[at];
        float *gate = cpu_group_gate(s, g), *up = cpu_group_up(s, g);
        if (g->gate) product(s, g->gate, &s->x[g->gate_type], cpu_group_rows(s, g), g->n, gate);
        product(s, g->up, &s->x[g->up_type], cpu_group_rows(s, g), g->n, up);
        mote_cpu_moe_activate(s, g, 0, g->n_ff);
        mote_cpu_moe_hidden(s, g, 0, g->n);
        struct mote_act act = mote_cpu_act_rows(cpu_group_down(s, g), g->first, g->n);
        product(s, g->down, &act, NULL, g->n, g->is_shared ? shared : routed + g->first * job->d_model);
    }
    for (int64_t i = 0; i < job->n_row; i++)
        mote_cpu_moe_sum(s, i, 0, job->d_model, routed, shared, job->d_model);
}
