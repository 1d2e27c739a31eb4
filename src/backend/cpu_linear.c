/* cpu_linear.c: products of one input with up to four matrices, a norm before them: one job, one barrier.
 *
 * Phase 1 norms and quantises rows; phase 2 hands out tiles of all matrices' rows together, so that q, k
 * and v, or router and shared gate, fill the threads as one matrix would.
 */
#include <string.h>

#include "backend/cpu_backend.h"

struct mote_act mote_cpu_act_rows(const struct mote_act *act, int64_t row, int64_t n_row)
{
    struct mote_act part = *act;
    part.n_row = n_row;
    if (act->x) part.x += row * act->n_col;
    if (act->type == MOTE_ACT_F32) return part;
    int64_t group = mote_act_group(act->type);
    part.q += row * act->stride;
    part.scale += row * (act->stride / group);
    part.sum += row * (act->stride / 16);
    if (part.sum32) part.sum32 += row * (act->stride / 32);
    return part;
}

void mote_cpu_product(const struct cpu_backend *cpu, const struct mote_matrix *w, int64_t row, int64_t n_row,
                      const struct mote_act *x, const int32_t *x_row, int64_t n_x, float *y, int64_t y_stride)
{
    mote_matmul_fn *const(*table)[MOTE_FORMAT_COUNT] =
        n_x <= MOTE_DOT_ROWS ? cpu->kernel->dot : cpu->kernel->gemm;
    table[x->type][w->format](w, row, n_row, x, x_row, n_x, y, y_stride);
}

int64_t mote_cpu_tile(const struct cpu_backend *cpu, int64_t n_row, int64_t most)
{
    int64_t tile = n_row / (8 * cpu->n_thread) / 16 * 16;
    return tile < CPU_TILE_MIN ? CPU_TILE_MIN : tile > most ? most : tile;
}

struct linear_step {
    struct cpu_backend *cpu;
    const struct mote_linear *job;
    const float *h; /* [n_row][n_col] what the products read */
    unsigned types; /* activation types that they read it in */
    struct mote_act act[MOTE_ACT_TYPE_COUNT];
    int64_t tile;
    int64_t first_task[MOTE_LINEAR_OUTS + 1];
    struct mote_chunks rows, tasks;
};

static void norm_rows(struct linear_step *step)
{
    const struct mote_linear *job = step->job;
    const struct mote_cpu_kernels *kernel = step->cpu->kernel;
    for (int64_t i, end; mote_next_chunk(&step->rows, &i, &end);) {
        if (job->norm)
            for (int64_t r = i; r < end; r++)
                kernel->rms_norm(job->x + r * job->n_col, job->norm, job->n_col, job->eps,
                                 job->norm_out + r * job->n_col);
        for (int type = MOTE_ACT_F32 + 1; type < MOTE_ACT_TYPE_COUNT; type++)
            if (step->types >> type & 1) kernel->quantise(step->h, i, end - i, &step->act[type]);
    }
}

static void product_tile(struct linear_step *step, int64_t task, float *tile)
{
    const struct mote_linear *job = step->job;
    int o = 0;
    while (task >= step->first_task[o + 1]) o++;
    const struct mote_linear_out *out = &job->out[o];
    const struct mote_weight *weight = out->weight;
    int64_t row = (task - step->first_task[o]) * step->tile, n = weight->w.n_row - row;
    if (n > step->tile) n = step->tile;
    const struct mote_act *x = &step->act[mote_act_chosen(weight->w.format, weight->act)];
    if (!weight->bias && !out->residual) {
        mote_cpu_product(step->cpu, &weight->w, row, n, x, NULL, job->n_row, out->y + row, out->y_stride);
        return;
    }
    mote_cpu_product(step->cpu, &weight->w, row, n, x, NULL, job->n_row, tile, n);
    for (int64_t i = 0; i < job->n_row; i++) {
        const float *from = tile + i * n;
        const float *residual = out->residual ? out->residual + i * out->y_stride + row : NULL;
        float *to = out->y + i * out->y_stride + row;
        for (int64_t r = 0; r < n; r++) {
            float value = from[r];
            if (weight->bias) value += weight->bias[row + r];
            to[r] = residual ? residual[r] + value : value;
        }
    }
}

static void linear_job(void *context, int worker, int n_worker)
{
    (void)n_worker;
    struct linear_step *step = context;
    norm_rows(step);
    mote_pool_barrier(step->cpu->pool);
    float *tile = cpu_worker_scratch(step->cpu, worker);
    for (int64_t task, end; mote_next_chunk(&step->tasks, &task, &end);)
        for (; task < end; task++) product_tile(step, task, tile);
}

mote_status mote_cpu_linear(struct mote_backend *backend, const struct mote_linear *job)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    FAIL_IF(job->n_row < 1 || job->n_row > cpu->limits.max_row || job->n_col > cpu->limits.max_col,
            MOTE_ARGUMENT, "linear: input [%lld][%lld] is larger than the backend's [%lld][%lld]",
            (long long)job->n_row, (long long)job->n_col, (long long)cpu->limits.max_row,
            (long long)cpu->limits.max_col);
    struct linear_step step = {.cpu = cpu, .job = job, .h = job->norm ? job->norm_out : job->x};
    int64_t n_row = 0;
    for (int o = 0; o < job->n_out; o++) {
        const struct mote_weight *weight = job->out[o].weight;
        FAIL_IF(weight->w.n_col != job->n_col, MOTE_ARGUMENT,
                "linear: tensor %s has %lld columns, the input %lld", weight->name,
                (long long)weight->w.n_col, (long long)job->n_col);
        step.types |= 1u << mote_act_chosen(weight->w.format, weight->act);
        n_row += weight->w.n_row;
    }
    FAIL_IF(step.types & ~cpu->limits.act_linear, MOTE_ARGUMENT,
            "linear: an activation type that the backend was not created for");
    for (int type = 0; type < MOTE_ACT_TYPE_COUNT; type++)
        if (step.types >> type & 1)
            step.act[type] = mote_act_place((enum mote_act_type)type, job->n_row, job->n_col, step.h,
                                            cpu_scratch(cpu, cpu->at.act_linear[type]));
    step.tile = mote_cpu_tile(cpu, n_row, job->n_row <= MOTE_DOT_ROWS ? CPU_TILE_DOT : CPU_TILE_GEMM);
    for (int o = 0; o < job->n_out; o++)
        step.first_task[o + 1] =
            step.first_task[o] + (job->out[o].weight->w.n_row + step.tile - 1) / step.tile;
    mote_chunks_init(&step.rows, job->n_row, 1);
    mote_chunks_init(&step.tasks, step.first_task[job->n_out], 1);
    mote_pool_run(cpu->pool, linear_job, &step);
    return MOTE_OK;
}
