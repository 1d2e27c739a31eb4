/* cpu_moe.c: the feed-forward block as one job: rows grouped by expert, every weight read once.
 *
 *   quantise rows of x | gate and up tiles of every expert that is wanted, activated in place | quantise |
 *   down tiles: a tile of y's columns for all experts into the worker's own scratch, then the weighted sum
 * of it
 *
 * (a bar is a barrier). The sum over experts runs inside the tile, in slot order, so that neither the
 * thread count nor the grouping changes a bit, and down's products never go to memory as a whole.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu_backend.h"

void mote_cpu_moe_activate(const struct cpu_moe_step *s, const struct cpu_group *g, int64_t col, int64_t n)
{
    float *gate = cpu_group_gate(s, g) + col, *up = cpu_group_up(s, g) + col;
    for (int64_t i = 0; i < g->n; i++)
        s->cpu->kernel->activate[g->activation.kind](gate + i * g->n_ff, up + i * g->n_ff,
                                                     g->activation.limit, n, gate + i * g->n_ff);
}

void mote_cpu_moe_hidden(struct cpu_moe_step *s, const struct cpu_group *g, int64_t begin, int64_t end)
{
    const struct mote_moe *job = s->job;
    const float *h = g->is_shared ? s->shared_gate : s->gate;
    struct mote_act *act = cpu_group_down(s, g);
    begin += g->first;
    end += g->first;
    if (act->type != MOTE_ACT_F32) s->cpu->kernel->quantise(h, begin, end - begin, act);
    float *to = g->is_shared ? job->shared_hidden : job->hidden;
    if (!to) return;
    for (int64_t i = begin; i < end; i++)
        memcpy(to + (g->is_shared ? i : s->pair_id[i]) * g->n_ff, h + i * g->n_ff,
               (size_t)g->n_ff * sizeof *h);
}

void mote_cpu_moe_sum(const struct cpu_moe_step *s, int64_t i, int64_t col, int64_t n, const float *routed,
                      const float *shared, int64_t stride)
{
    const struct mote_moe *job = s->job;
    const struct mote_cpu_kernels *kernel = s->cpu->kernel;
    const float *residual = job->residual;
    float *y = (float *)job->y + i * job->d_model + col;
    if (!residual) memset(y, 0, (size_t)n * sizeof *y);
    else if (job->residual != job->y) memcpy(y, residual + i * job->d_model + col, (size_t)n * sizeof *y);
    for (int32_t slot = 0; slot < job->n_used; slot++) {
        int64_t pair = i * job->n_used + slot;
        kernel->axpy(job->weights[pair], routed + s->place[pair] * stride, n, y);
    }
    if (!job->shared) return;
    float gate = job->shared_gate ? 1 / (1 + expf(-job->shared_gate[i])) : 1;
    kernel->axpy(gate, shared + i * stride, n, y);
}

/* ---- the fused job ---- */

struct fused {
    struct cpu_moe_step *s;
    int64_t ff_tile, down_tile;
    struct mote_chunks rows, tiles, hidden, down;
};

static void quantise_x(struct fused *f)
{
    struct cpu_moe_step *s = f->s;
    for (int64_t i, end; mote_next_chunk(&f->rows, &i, &end);)
        for (int type = MOTE_ACT_F32 + 1; type < MOTE_ACT_TYPE_COUNT; type++)
            if (s->x_types >> type & 1) s->cpu->kernel->quantise(s->job->x, i, end - i, &s->x[type]);
}

static void gate_up_tile(struct fused *f, const struct cpu_group *g, int64_t row)
{
    struct cpu_moe_step *s = f->s;
    int64_t n = g->n_ff - row < f->ff_tile ? g->n_ff - row : f->ff_tile;
    float *gate = cpu_group_gate(s, g) + row, *up = cpu_group_up(s, g) + row;
    const int32_t *rows = cpu_group_rows(s, g);
    if (g->gate) mote_cpu_product(s->cpu, g->gate, row, n, &s->x[g->gate_type], rows, g->n, gate, g->n_ff);
    mote_cpu_product(s->cpu, g->up, row, n, &s->x[g->up_type], rows, g->n, up, g->n_ff);
    mote_cpu_moe_activate(s, g, row, n);
}

/* Positions of a phase go up, so a worker looks for its group from the last one on. */
static void gate_up(struct fused *f)
{
    struct cpu_moe_step *s = f->s;
    int at = 0;
    for (int64_t task, end; mote_next_chunk(&f->tiles, &task, &end);)
        for (; task < end; task++) {
            while (at + 1 < s->n_group && s->group[at + 1].task <= task) at++;
            gate_up_tile(f, &s->group[at], (task - s->group[at].task) * f->ff_tile);
        }
}

static void hidden(struct fused *f)
{
    struct cpu_moe_step *s = f->s;
    int at = 0;
    int64_t group_begin = 0;
    for (int64_t i, end; mote_next_chunk(&f->hidden, &i, &end);)
        while (i < end) {
            while (i >= group_begin + s->group[at].n) group_begin += s->group[at++].n;
            int64_t group_end = group_begin + s->group[at].n, stop = end < group_end ? end : group_end;
            mote_cpu_moe_hidden(s, &s->group[at], i - group_begin, stop - group_begin);
            i = stop;
        }
}

static void down(struct fused *f, float *tile)
{
    struct cpu_moe_step *s = f->s;
    int64_t d_model = s->job->d_model;
    for (int64_t task, last; mote_next_chunk(&f->down, &task, &last);)
        for (; task < last; task++) {
            int64_t col = task * f->down_tile,
                    n = d_model - col < f->down_tile ? d_model - col : f->down_tile;
            float *shared = tile + s->n_pair * n;
            for (int at = 0; at < s->n_group; at++) {
                const struct cpu_group *g = &s->group[at];
                struct mote_act act = mote_cpu_act_rows(cpu_group_down(s, g), g->first, g->n);
                mote_cpu_product(s->cpu, g->down, col, n, &act, NULL, g->n,
                                 g->is_shared ? shared : tile + g->first * n, n);
            }
            for (int64_t i = 0; i < s->job->n_row; i++) mote_cpu_moe_sum(s, i, col, n, tile, shared, n);
        }
}

static void fused_job(void *context, int worker, int n_worker)
{
    (void)n_worker;
    struct fused *f = context;
    struct mote_pool *pool = f->s->cpu->pool;
    quantise_x(f);
    mote_pool_barrier(pool);
    gate_up(f);
    mote_pool_barrier(pool);
    hidden(f);
    mote_pool_barrier(pool);
    down(f, cpu_worker_scratch(f->s->cpu, worker));
}

static void run_fused(struct cpu_moe_step *s)
{
    struct cpu_backend *cpu = s->cpu;
    struct fused f = {.s = s};
    int64_t n_ff = 0, n_row = s->n_pair, most = CPU_TILE_DOT;
    for (int g = 0; g < s->n_group; g++) {
        n_ff += s->group[g].n_ff;
        if (s->group[g].is_shared) n_row += s->group[g].n;
        if (s->group[g].n > MOTE_DOT_ROWS) most = CPU_TILE_GEMM;
    }
    f.ff_tile = mote_cpu_tile(cpu, n_ff, most);
    int64_t n_tile = 0;
    for (int g = 0; g < s->n_group; g++) {
        s->group[g].task = n_tile;
        n_tile += (s->group[g].n_ff + f.ff_tile - 1) / f.ff_tile;
    }
    int64_t room = (int64_t)(cpu->at.worker_bytes / sizeof(float)) / n_row / 16 * 16;
    f.down_tile = mote_cpu_tile(cpu, s->job->d_model, room < CPU_TILE_DOWN ? room : CPU_TILE_DOWN);
    mote_chunks_init(&f.rows, s->job->n_row, 1);
    mote_chunks_init(&f.tiles, n_tile, 1);
    mote_chunks_init(&f.hidden, n_row, 1 + n_row / (8 * cpu->n_thread));
    mote_chunks_init(&f.down, (s->job->d_model + f.down_tile - 1) / f.down_tile, 1);
    mote_pool_run(cpu->pool, fused_job, &f);
}

/* ---- grouping ---- */

static struct cpu_group make_group(struct cpu_moe_step *s, const struct mote_expert_set *set, int32_t expert,
                                   int32_t first, int32_t n)
{
    struct cpu_group g = {
        .gate = set->gate ? &set->gate[expert] : NULL,
        .up = &set->up[expert],
        .down = &set->down[expert],
        .first = first,
        .n = n,
        .n_ff = set->n_ff,
        .activation = set->activation,
    };
    g.up_type = mote_act_chosen(g.up->format, set->act);
    g.gate_type = g.gate ? mote_act_chosen(g.gate->format, set->act) : g.up_type;
    g.down_type = mote_act_chosen(g.down->format, set->act);
    s->x_types |= 1u << g.gate_type | 1u << g.up_type;
    return g;
}

/* Counting sort of the pairs (row, slot) by expert, rows rising inside an expert. */
static mote_status group_pairs(struct cpu_moe_step *s)
{
    const struct mote_moe *job = s->job;
    int32_t next[MOTE_MAX_EXPERTS + 1] = {0}, n_expert = job->experts->n_expert;
    for (int64_t p = 0; p < s->n_pair; p++) {
        FAIL_IF(job->ids[p] < 0 || job->ids[p] >= n_expert, MOTE_ARGUMENT,
                "%s: expert %d of %d asked for by row %lld", job->experts->name, job->ids[p], n_expert,
                (long long)(p / job->n_used));
        next[job->ids[p] + 1]++;
    }
    for (int32_t e = 0; e < n_expert; e++) {
        if (next[e + 1]) s->group[s->n_group++] = make_group(s, job->experts, e, next[e], next[e + 1]);
        next[e + 1] += next[e];
    }
    for (int64_t p = 0; p < s->n_pair; p++) {
        int32_t at = next[job->ids[p]]++;
        s->place[p] = at;
        s->pair_id[at] = (int32_t)p;
        s->pair_row[at] = (int32_t)(p / job->n_used);
    }
    return MOTE_OK;
}

static mote_status check(const struct cpu_backend *cpu, const struct mote_moe *job)
{
    const struct mote_backend_limits *l = &cpu->limits;
    const struct mote_expert_set *experts = job->experts, *shared = job->shared;
    FAIL_IF(job->n_row < 1 || job->n_row > l->max_row || job->d_model != l->d_model ||
                job->n_used > l->n_used || (job->n_used > 0) != (experts != NULL) || (!experts && !shared),
            MOTE_ARGUMENT,
            "moe: %lld rows of %lld, %d experts each, are not what the backend was created for",
            (long long)job->n_row, (long long)job->d_model, job->n_used);
    FAIL_IF((experts && (experts->n_ff > l->n_ff || experts->n_expert > l->n_expert)) ||
                (shared && shared->n_ff > l->n_ff_shared),
            MOTE_ARGUMENT, "%s: larger than the backend was created for",
            experts ? experts->name : shared->name);
    if (experts) TRY(mote_activation_check(&experts->activation, experts->gate != NULL));
    if (shared) TRY(mote_activation_check(&shared->activation, shared->gate != NULL));
    return MOTE_OK;
}

mote_status mote_cpu_moe(struct mote_backend *backend, const struct mote_moe *job)
{
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    const struct cpu_layout *at = &cpu->at;
    TRY(check(cpu, job));
    if (job->route) TRY(mote_cpu_route(backend, job->route));
    struct cpu_moe_step s = {
        .cpu = cpu,
        .job = job,
        .n_pair = job->n_row * job->n_used,
        .group = cpu_scratch(cpu, at->group),
        .pair_id = cpu_scratch(cpu, at->pair_id),
        .pair_row = cpu_scratch(cpu, at->pair_row),
        .place = cpu_scratch(cpu, at->place),
        .gate = cpu_scratch(cpu, at->gate),
        .up = cpu_scratch(cpu, at->up),
        .shared_gate = cpu_scratch(cpu, at->shared_gate),
        .shared_up = cpu_scratch(cpu, at->shared_up),
    };
    if (job->n_used) TRY(group_pairs(&s));
    if (job->shared) {
        s.group[s.n_group] = make_group(&s, job->shared, 0, 0, (int32_t)job->n_row);
        s.group[s.n_group++].is_shared = 1;
    }
    unsigned down_types = 0;
    for (int g = 0; g < s.n_group; g++) down_types |= 1u << s.group[g].down_type;
    FAIL_IF((s.x_types & ~cpu->limits.act_moe) || (down_types & ~cpu->limits.act_down), MOTE_ARGUMENT,
            "moe: an activation type that the backend was not created for");
    for (int t = 0; t < MOTE_ACT_TYPE_COUNT; t++) {
        enum mote_act_type type = (enum mote_act_type)t;
        if (s.x_types >> t & 1)
            s.x[t] = mote_act_place(type, job->n_row, job->d_model, job->x, cpu_scratch(cpu, at->act_moe[t]));
        if (!(down_types >> t & 1)) continue;
        if (job->n_used)
            s.down[t] =
                mote_act_place(type, s.n_pair, job->experts->n_ff, s.gate, cpu_scratch(cpu, at->act_down[t]));
        if (job->shared)
            s.shared[t] = mote_act_place(type, job->n_row, job->shared->n_ff, s.shared_gate,
                                         cpu_scratch(cpu, at->act_shared[t]));
    }
    if (cpu->moe_unfused) mote_cpu_moe_reference(&s);
    else run_fused(&s);
    return MOTE_OK;
}
