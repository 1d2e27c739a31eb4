/* cpu_backend.h: what the files of the CPU backend share: its state and the layout of its scratch.
 *
 * Owns: thread pool, kernel table, one block of scratch cut up once. Backend memory is ordinary memory.
 * One idea: an operation is one job on the pool; its phases are separated by barriers, its tiles are handed
 * out on demand, and no sum ever depends on who took which tile.
 */
#ifndef MOTE_BACKEND_CPU_BACKEND_H
#define MOTE_BACKEND_CPU_BACKEND_H

#include "backend/backend.h"
#include "base/thread.h"

enum {
    CPU_TILE_MIN = 16,  /* rows of W; multiples of 16, so that vector ends fall where they do without tiles */
    CPU_TILE_GEMM = 64, /* most rows of W in a tile of many activation rows */
    CPU_TILE_DOT = 256, /* and of few */
    CPU_TILE_DOWN = 64, /* most columns of y that the experts' down products fill at once */
    CPU_QUERY_BLOCK = 32 /* query rows of an attention task */
};

/* Offsets in bytes from the start of the scratch; arrays of activations are by enum mote_act_type. */
struct cpu_layout {
    size_t act_linear[MOTE_ACT_TYPE_COUNT]; /* [max_row][max_col] */
    size_t act_moe[MOTE_ACT_TYPE_COUNT];    /* [max_row][d_model] */
    size_t act_down[MOTE_ACT_TYPE_COUNT];   /* [max_pair][n_ff] */
    size_t act_shared[MOTE_ACT_TYPE_COUNT]; /* [max_row][n_ff_shared] */
    size_t edge_x, edge_y;                  /* f32 [max_row][d_model], where rows are of other types */
    size_t gate, up;                        /* f32 [max_pair][n_ff] */
    size_t shared_gate, shared_up;          /* f32 [max_row][n_ff_shared] */
    size_t product;                         /* unfused: f32 [max_pair + max_row][d_model] */
    size_t pair_id, pair_row, place;        /* i32 [max_pair] */
    size_t group;                           /* struct cpu_group [n_expert + 1] */
    size_t cosine, sine;                    /* f32 [max_row][n_rot / 2] */
    size_t span_of_row, block_span;         /* i32 [max_row] */
    size_t worker;                          /* [n_thread][worker_bytes] */
    size_t worker_bytes;                    /* product tiles or attention scratch, whichever is larger */
    size_t bytes;
};

struct cpu_backend {
    struct mote_backend base;
    const struct mote_cpu_kernels *kernel;
    struct mote_pool *pool;
    int n_thread;
    int moe_unfused;
    struct mote_budget *budget;
    struct mote_backend_limits own_limits;
    uint8_t *own_scratch;
    /* Of the backend itself, or of a loan. */
    struct mote_backend_limits limits;
    int64_t max_pair; /* max_row * n_used */
    struct cpu_layout at;
    uint8_t *scratch;
    const struct mote_batch *batch;
    const struct mote_rope *rope; /* whose cosines and sines of the batch are in scratch; NULL: nobody's */
};

static inline void *cpu_scratch(const struct cpu_backend *cpu, size_t offset)
{
    return cpu->scratch + offset;
}
static inline void *cpu_worker_scratch(const struct cpu_backend *cpu, int worker)
{
    return cpu->scratch + cpu->at.worker + (size_t)worker * cpu->at.worker_bytes;
}

/* The rows of x from `row` on. */
struct mote_act mote_cpu_act_rows(const struct mote_act *act, int64_t row, int64_t n_row);

/* y = W[row, row + n_row) x: dot for few activation rows, gemm for many. */
void mote_cpu_product(const struct cpu_backend *cpu, const struct mote_matrix *w, int64_t row, int64_t n_row,
                      const struct mote_act *x, const int32_t *x_row, int64_t n_x, float *y,
                      int64_t y_stride);

/* Rows of W per task: about eight tasks for each worker, between the bounds, a multiple of 16. */
int64_t mote_cpu_tile(const struct cpu_backend *cpu, int64_t n_row, int64_t most);

mote_status mote_cpu_linear(struct mote_backend *backend, const struct mote_linear *job);
mote_status mote_cpu_attend(struct mote_backend *backend, const struct mote_attention *job);
mote_status mote_cpu_route(struct mote_backend *backend, const struct mote_route *job);
mote_status mote_cpu_edge_moe(struct mote_backend *backend, const struct mote_moe *job); /* cpu_edge.c */
mote_status mote_cpu_moe(struct mote_backend *backend, const struct mote_moe *job);      /* of f32 rows */

/* ---- mixture of experts: shared between the fused job and the reference ---- */

/* An expert with its rows: pairs (row, slot) lie sorted by expert, [first, first + n) are this one's. The
 * shared expert is a group of its own with every row, in buffers of its own. */
struct cpu_group {
    const struct mote_matrix *gate, *up, *down; /* gate NULL: there is none */
    enum mote_act_type gate_type, up_type, down_type;
    struct mote_activation activation;
    int32_t first, n;
    int is_shared;
    int64_t n_ff;
    int64_t task; /* first gate-and-up tile */
};

struct cpu_moe_step {
    struct cpu_backend *cpu;
    const struct mote_moe *job;
    int64_t n_pair; /* routed ones */
    int n_group;
    struct cpu_group *group;
    int32_t *pair_id;                            /* [n_pair] row * k + slot of the pair at a sorted place */
    int32_t *pair_row;                           /* [n_pair] its row */
    int32_t *place;                              /* [n_pair] sorted place of pair row * k + slot */
    unsigned x_types;                            /* activation types that gates and ups read */
    struct mote_act x[MOTE_ACT_TYPE_COUNT];      /* [n_row][d_model] */
    struct mote_act down[MOTE_ACT_TYPE_COUNT];   /* [n_pair][n_ff] */
    struct mote_act shared[MOTE_ACT_TYPE_COUNT]; /* [n_row][n_ff of shared] */
    float *gate, *up, *shared_gate, *shared_up;
};

/* Rows of a group in its activation arrays and gate buffer, where its activated values go too. */
static inline float *cpu_group_gate(const struct cpu_moe_step *s, const struct cpu_group *g)
{
    return (g->is_shared ? s->shared_gate : s->gate) + (int64_t)g->first * g->n_ff;
}
static inline float *cpu_group_up(const struct cpu_moe_step *s, const struct cpu_group *g)
{
    return (g->is_shared ? s->shared_up : s->up) + (int64_t)g->first * g->n_ff;
}
static inline const int32_t *cpu_group_rows(const struct cpu_moe_step *s, const struct cpu_group *g)
{
    return g->is_shared ? NULL : s->pair_row + g->first;
}
static inline struct mote_act *cpu_group_down(struct cpu_moe_step *s, const struct cpu_group *g)
{
    return g->is_shared ? &s->shared[g->down_type] : &s->down[g->down_type];
}

/* Columns [col, col + n) of the group's rows of gate and up become activated values. */
void mote_cpu_moe_activate(const struct cpu_moe_step *s, const struct cpu_group *g, int64_t col, int64_t n);

/* Quantise the group's rows [begin, end) of activated values for its down product, copying them to
 * job->hidden. */
void mote_cpu_moe_hidden(struct cpu_moe_step *s, const struct cpu_group *g, int64_t begin, int64_t end);

/* y[i][col, col + n) from the down products of row i: routed[place - ...][stride] and shared[i][stride],
 * both pointing at column col. */
void mote_cpu_moe_sum(const struct cpu_moe_step *s, int64_t i, int64_t col, int64_t n, const float *routed,
                      const float *shared, int64_t stride);

/* The reference: one product at a time. */
void mote_cpu_moe_reference(struct cpu_moe_step *s);

#endif
