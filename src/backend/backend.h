/* backend.h: where a model's step is computed: memory, weights and one table of operations.
 *
 * Owns: the operations' contracts. cpu_*.c implements them on the CPU; a CUDA backend is a second table.
 * Does not own: what a layer is (model/), which tokens are in a step and where they stand (engine/).
 * One idea: an operation is as large as a backend can fuse (norm + all products of an input; rope + store +
 * attention; the whole expert block), so that neither backend pays for more hand-overs than its hardware asks
 * for.
 *
 * Pointers named `float *` or `int32_t *` in an operation are backend memory (alloc) unless marked "host".
 * Operations run in the order of the calls on one stream; they may return before they are done: download and
 * sync wait. Errors found late (MOTE_NUMERIC of a router, MOTE_DEVICE) come back from the next sync or
 * download at the latest; the rest of the step is then without meaning, but no memory outside its own is
 * touched. A failed step changes nothing that a repeated step would not write again. One caller at a time per
 * backend. Operations allocate nothing: scratch is taken when the backend is created. Results are a function
 * of the inputs alone: not of the number of threads, not of what else is in the machine.
 */
#ifndef MOTE_BACKEND_BACKEND_H
#define MOTE_BACKEND_BACKEND_H

#include "base/mem.h"
#include "cpu/act.h"
#include "cpu/activation.h"
#include "cpu/kernel.h"
#include "cuda/step.h"
#include "mote/float_type.h"
#include "quant/format.h"

struct mote_backend;

/* ---- weights ---- */

/* A matrix (and bias) as a product reads it. */
struct mote_weight {
    const char *name;       /* of the tensor, for messages */
    struct mote_matrix w;   /* host view of the file's bytes; n_row 0: there is none */
    const float *bias;      /* [w.n_row] backend memory, or NULL */
    enum mote_act_wish act; /* of its products' activations */
    void *placed;           /* the backend's own (device copy); NULL on the CPU, which reads the view */
};

/* The experts of a layer: y = down(activation(gate(x), up(x))). Formats may differ from projection to projection and
 * from expert to expert. The activation is the set's: layers, and a layer's shared expert, may have their own. */
struct mote_routing;
struct mote_expert_set {
    const char *name; /* for messages: "blk.3.ffn_*_exps" */
    int32_t n_expert; /* 0: there are none */
    int64_t n_ff, d_model;
    struct mote_activation activation;
    const struct mote_matrix *gate; /* [n_expert] of [n_ff][d_model]; NULL: the activation takes none */
    const struct mote_matrix *up;   /* [n_expert] of [n_ff][d_model] */
    const struct mote_matrix *down; /* [n_expert] of [d_model][n_ff] */
    enum mote_act_wish act;
    /* Who chooses among them, so that their kernels can (mote_moe.route); scale and bias are not looked at before a step.
     * NULL: nobody (shared, dense), or somebody else. */
    const struct mote_routing *routing;
    void *placed;
};

/* ---- a step ---- */

/* Keys and values of one sequence, in backend memory:
 *   k + ((layer * n_head_kv + head) * n_ctx + position) * k_row_bytes, v the same. */
struct mote_kv_view {
    enum mote_kv_type type;
    int32_t n_layer, n_head_kv;
    int64_t n_ctx;
    size_t k_row_bytes, v_row_bytes;
    uint8_t *k, *v;
};

/* Consecutive rows of a step that belong to one sequence; row i of the span stands at position n_past + i. */
struct mote_span {
    struct mote_kv_view kv;
    int32_t row, n_row; /* rows [row, row + n_row) of the step */
    int64_t n_past;     /* n_past + n_row <= kv.n_ctx */
};

/* Spans lie one after the other and cover rows [0, n_row); no two spans share a cache. */
struct mote_batch {
    int32_t n_row;                /* 1 .. limits.max_row */
    const int32_t *token;         /* host [n_row] */
    int32_t n_span;               /* 1 .. n_row */
    const struct mote_span *span; /* host [n_span] */
};

/* ---- operations ---- */

/* Products that read the same input, with an optional norm before them:
 *   h[i] = norm ? x[i] / sqrt(mean(x[i]^2) + eps) * norm : x[i]
 *   out[j].y[i][r] = sum_c W_j[r][c] h[i][c]  (+ bias_j[r])  (+ residual_j[i][r])
 * x [n_row][n_col]; norm [n_col] or NULL; norm_out [n_row][n_col] receives h, must be set when norm is, may
 * be x. y rows have stride y_stride (>= W rows), residual rows too; residual may be y, y must not overlap x
 * or norm_out. */
enum { MOTE_LINEAR_OUTS = 4 };
struct mote_linear {
    int64_t n_row, n_col;
    const float *x, *norm;
    float eps;
    float *norm_out;
    int n_out; /* 1..MOTE_LINEAR_OUTS */
    struct mote_linear_out {
        const struct mote_weight *weight;
        float *y;
        int64_t y_stride;
        const float *residual;
    } out[MOTE_LINEAR_OUTS];
};

/* Rotary embedding of halves: pairs (x[i], x[i + n_rot/2]) turn by position * inv_freq[i]; columns from n_rot
 * on stay. */
struct mote_rope {
    int64_t n_rot;         /* even, <= head_dim; 0: none */
    const float *inv_freq; /* host [n_rot / 2] */
    float magnitude;       /* cosine and sine are multiplied by it (yarn); 1 otherwise */
};

/* Self-attention of the step's rows (begin): per-head RMS norm of q and k where weights are given, rotation,
 * k and v into the caches of each row's sequence at layer `layer`, softmax(scale q.k) v over the sequence's
 * keys so far. q [n_row][n_head * head_dim] and k [n_row][n_head_kv * head_dim] may be changed in place; v
 * [n_row][n_head_kv * head_dim] is read; out [n_row][n_head * head_dim] may be q. Query head h reads head h /
 * (n_head / n_head_kv). */
struct mote_attention {
    int32_t layer;
    int64_t n_head, n_head_kv, head_dim;
    float *q, *k;
    const float *v;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    float eps, scale;
    int64_t window;               /* keys a query sees at most; 0: all */
    const struct mote_rope *rope; /* the same pointer through a step for the same rotation */
    float *out;
};

/* Router logits to chosen experts:
 *   p = softmax(logits) | logits | sigmoid(logits);  s = p + bias (selection only)
 *   groups: experts in n_group equal groups, a group's score is the sum of its two largest s (one when it has
 * one); only the best n_group_used groups take part ids[i][0..k) = the k largest s, falling, ties to the
 * lower index, all different w = p[ids] (SOFTMAX_TOPK: softmax over the chosen logits); renormalise: w /=
 * max(sum of w, 1e-20); w *= scale +inf logits: treated as the largest finite ones would be in the limit (all
 * of the probability, shared equally). Fails with MOTE_NUMERIC on a NaN, the row named. Sums run in float64
 * in index order, results are f32. */
enum mote_route_score { MOTE_SCORE_SOFTMAX, MOTE_SCORE_SOFTMAX_TOPK, MOTE_SCORE_SIGMOID };
struct mote_routing {
    enum mote_route_score score;
    int32_t n_expert, n_used; /* 1 <= n_used <= n_expert <= MOTE_MAX_EXPERTS */
    int32_t n_group,
        n_group_used; /* 1, 1: no groups; n_group divides n_expert; n_group_used groups hold n_used */
    int renormalise;
    float scale;
    const float *bias; /* [n_expert] backend memory, or NULL */
};
enum { MOTE_MAX_EXPERTS = 1024 };
struct mote_route {
    const struct mote_routing *routing;
    int32_t layer; /* for messages */
    /* The products that make the logits (out[0], whose y is `logits`) and whatever reads the same input; done first.
     * NULL: the logits are there. */
    const struct mote_linear *router;
    int64_t n_row;
    const float *logits; /* [n_row][n_expert] */
    int32_t *ids;        /* [n_row][n_used] */
    float *weights;      /* [n_row][n_used] */
};

/* The feed-forward block, routed, dense or both:
 *   f_e(h)  = down_e(activation(gate_e(h), up_e(h)))    the set's activation (cpu/activation.h)
 *   y[i]    = residual[i] + sum over s = 0..k-1 of weights[i][s] f_ids[i][s](x[i]) + g[i] f_shared(x[i])
 *   g[i]    = 1, or sigmoid(shared_gate[i]) when that is given
 * summed in that order in f32 (unordered: a row's experts in any), rounded once to y_type. A dense layer is one with
 * shared alone. Experts of a step are read once however many rows want them. x [n_row][d_model]; y may be residual, not x. ids in range (checked:
 * MOTE_ARGUMENT), repeats in a row allowed. hidden, shared_hidden: NULL, or where the inputs of down go
 * (calibration).
 * x_type, y_type: F32, which is zero, or the limits' own.
 * route: done first, whole or in part by whoever computes the experts; it makes x, ids and weights (its own are these),
 * which are there afterwards, the bits of the operation route. NULL: they are there. */
struct mote_moe {
    int64_t n_row, d_model;
    int32_t n_used;                        /* k; 0 when there are no routed experts */
    enum mote_float_type x_type, y_type;   /* of x; of residual and y */
    const void *x;                         /* [n_row][d_model] */
    const struct mote_route *route;        /* NULL without routed experts */
    const struct mote_expert_set *experts; /* NULL when n_used is 0 */
    const int32_t *ids;                    /* [n_row][k] */
    const float *weights;                  /* [n_row][k] */
    const struct mote_expert_set *shared;  /* one expert, or NULL */
    const float *shared_gate;              /* [n_row] or NULL */
    const void *residual;                  /* [n_row][d_model] or NULL */
    void *y;                               /* [n_row][d_model] */
    int unordered;
    float *hidden;        /* [n_row][k][n_ff] or NULL */
    float *shared_hidden; /* [n_row][shared n_ff] or NULL */
};

/* ---- what a caller brings along ---- */

/* Scratch, a stream and sizes in place of the backend's own, for expert blocks of callers that share a backend. */
struct mote_backend_limits;
struct mote_loan {
    const struct mote_backend_limits *limits; /* of the operations that follow */
    void *scratch;        /* backend memory, on a 256-byte line, of any content; NULL: for a sync
                                                 alone */
    size_t scratch_bytes; /* at least mote_backend_kind.scratch(limits) */
    struct mote_step_fault
        *fault;   /* backend memory, zero at first: where errors that only a device sees are kept
                                      until a sync with this loan; not used by the CPU */
    void *stream; /* CUstream; not used by the CPU */
};

/* ---- shortlists ---- */

enum { MOTE_SHORTLIST_ROWS = 32 }; /* in one call */

/* ---- replay ---- */

struct mote_cuda_watch;

enum { MOTE_REPLAY_RUN, MOTE_REPLAY_DONE };
enum { MOTE_REPLAY_ROWS = 16 };
struct mote_replay {
    uint64_t who;   /* whose buffers the calls work on: a number given once; an address may come back */
    int32_t n_want; /* rows of the step whose logits are computed */
    int32_t want[MOTE_REPLAY_ROWS];
};

struct mote_backend_ops {
    const char *name;   /* "cpu", "cuda" */
    int reads_in_place; /* matrices are read where their file is mapped: the run holds those pages */
    void (*destroy)(struct mote_backend *backend);

    /* Memory, counted against the backend's budget (and, for a device, its own). Zeroed. */
    mote_status (*alloc)(struct mote_backend *backend, enum mote_mem_kind kind, size_t size, void *out);
    void (*free)(struct mote_backend *backend, void *memory);
    /* Host memory that downloads reach fastest (pinned for a device); zeroed, freed by free. */
    mote_status (*alloc_host)(struct mote_backend *backend, enum mote_mem_kind kind, size_t size, void *out);
    mote_status (*upload)(struct mote_backend *backend, void *to, const void *host_from, size_t size);
    mote_status (*download)(struct mote_backend *backend, void *host_to, const void *from, size_t size);
    /* A download that is there after the next sync or download; host_to is not touched before. */
    mote_status (*fetch)(struct mote_backend *backend, void *host_to, const void *from, size_t size);
    mote_status (*sync)(struct mote_backend *backend);

    /* Make weights ready to be read: checks that there are kernels (MOTE_UNSUPPORTED, tensor and format named) and
     * that a set fits its activation (MOTE_ARGUMENT), and uploads and repacks where the backend has memory of its own.
     * The view must outlive the placement. */
    mote_status (*place)(struct mote_backend *backend, struct mote_weight *weight);
    mote_status (*place_experts)(struct mote_backend *backend, struct mote_expert_set *set);
    void (*unplace)(struct mote_backend *backend, void *placed); /* NULL is fine */
    /* A router that steps will use, with its placed weights (NULL: logits come from elsewhere); before ready. NULL:
     * nothing to do. */
    mote_status (*place_routing)(struct mote_backend *backend, const struct mote_routing *routing,
                                 const struct mote_weight *router);
    /* All weights are placed: compile what they need. NULL: nothing to do. */
    mote_status (*ready)(struct mote_backend *backend);

    /* Steps of one shape are recorded once and replayed (NULL: every step is run). After begin: *state says what the
     * caller does with the operations up to replay_end: MOTE_REPLAY_DONE: leave them out, they are under way;
     * otherwise call them, all without a download between, and then replay_end, whatever they returned. `shape` must
     * tell apart any two steps whose calls differ other than in tokens, positions and caches. */
    mote_status (*replay_begin)(struct mote_backend *backend, const struct mote_replay *shape, int *state);
    mote_status (*replay_end)(struct mote_backend *backend, mote_status status);
    /* Launches from now on are shown to watch (cuda/cuda.h); NULL: to nobody. NULL operation: there are no launches. */
    void (*watch)(struct mote_backend *backend, struct mote_cuda_watch *watch);

    /* Operations from now on take what is lent; NULL: the backend's own again. Only moe and sync work on a loan, without
     * begin, and no memory is freed meanwhile. MOTE_ARGUMENT: too small a scratch, both sizes named; nothing has changed. */
    mote_status (*lend)(struct mote_backend *backend, const struct mote_loan *loan);

    /* A step's rows; both live until the next begin. */
    mote_status (*begin)(struct mote_backend *backend, const struct mote_batch *batch);
    /* y[i] = row token[i] of the embedding, decoded; y [batch.n_row][n_col]. Ids checked: MOTE_ARGUMENT. */
    mote_status (*embed)(struct mote_backend *backend, const struct mote_weight *embedding, float *y);
    /* y[i] = x[row[i]] / sqrt(mean(x[row[i]]^2) + eps) * norm; row: host [n_row]; y not x. */
    mote_status (*rms_norm)(struct mote_backend *backend, const float *x, const int32_t *row, int64_t n_row,
                            int64_t n_col, const float *norm, float eps, float *y);
    mote_status (*linear)(struct mote_backend *backend, const struct mote_linear *job);
    mote_status (*attend)(struct mote_backend *backend, const struct mote_attention *job);
    mote_status (*route)(struct mote_backend *backend, const struct mote_route *job);
    mote_status (*moe)(struct mote_backend *backend, const struct mote_moe *job);
    /* The best of every row of logits [n_row][limits.n_vocab]: list [n_row], backend memory; n_row <=
     * MOTE_SHORTLIST_ROWS. NULL: a row of logits is nearer to whoever draws from it than any list. */
    mote_status (*shortlist)(struct mote_backend *backend, const float *logits, int64_t n_row,
                             struct mote_shortlist *list);
};

struct mote_backend { /* first member of every implementation */
    const struct mote_backend_ops *ops;
};

/* ---- creation ---- */

/* The largest step: scratch is sized by it, once. */
struct mote_backend_limits {
    int64_t max_row;
    int64_t max_col;          /* widest input of a linear */
    int64_t d_model;          /* of the moe blocks */
    int64_t n_ff;             /* widest routed expert; 0: none */
    int64_t n_ff_shared;      /* widest shared expert or dense layer; 0: none */
    int32_t n_expert, n_used; /* 0: none */
    int64_t n_head, n_head_kv, head_dim, n_rot;
    int64_t n_vocab;                        /* of a row of logits; 0: no shortlists */
    enum mote_float_type x_type, y_type;    /* of rows of moe; others than F32 take room to be converted */
    const struct mote_expert_set *only;     /* placed, and no other is served; NULL: any */
    unsigned act_linear, act_moe, act_down; /* bit mote_act_type: activation types of linear inputs, of moe
                                               inputs, of inputs of down */
};

static inline int mote_limits_have_edges(const struct mote_backend_limits *limits)
{
    return limits->x_type != MOTE_F32 || limits->y_type != MOTE_F32;
}

/* Which kernels compute the experts. Unfused: reference, one product at a time, then activation, then the weighted sum; the
 * bits of the portable ones in short steps. Portable: those of every architecture; fused has others where they are faster
 * (cuda_mx.c), with sums in another order. */
enum mote_moe_kernels { MOTE_MOE_FUSED, MOTE_MOE_UNFUSED, MOTE_MOE_PORTABLE };

struct mote_backend_options {
    int device;   /* of several: which */
    int no_graph; /* run every step launch by launch (measurements, debugging) */
    /* NULL: nobody asks. */
    void (*progress)(void *context, const char *what, size_t done, size_t total, const char *unit);
    void *progress_context;
    int n_thread; /* 0: as many as CPUs */
    enum mote_moe_kernels moe_kernels;
    int compact; /* formats that lie wider on a device than in their file do not: less memory, slower */
};

struct mote_backend_kind {
    const char *name;
    /* Bytes of MOTE_MEM_WEIGHTS that placing takes. NULL: weights are read where the file is mapped. */
    mote_status (*weight_bytes)(const struct mote_backend_options *options, const struct mote_weight *weight,
                                size_t *bytes);
    mote_status (*expert_bytes)(const struct mote_backend_options *options, const struct mote_expert_set *set,
                                size_t *bytes);
    /* Bytes that create will take as MOTE_MEM_SCRATCH. Fails with MOTE_ARGUMENT when limits overflow. */
    mote_status (*scratch)(const struct mote_backend_options *options,
                           const struct mote_backend_limits *limits, size_t *bytes);
    mote_status (*create)(const struct mote_backend_options *options,
                          const struct mote_backend_limits *limits, struct mote_budget *budget,
                          struct mote_backend **out);
};

extern const struct mote_backend_kind mote_backend_cpu;
extern const struct mote_backend_kind mote_backend_cuda;

/* A backend without a device that knows only which kernels a placed model needs on `arch` ("sm_90a"): it takes place,
 * place_experts, place_routing and unplace, and copies nothing; not compact. MOTE_ARGUMENT for an architecture it does
 * not know. */
struct mote_cuda_unit;
mote_status mote_cuda_ahead_create(const char *arch, const struct mote_backend_limits *limits,
                                   struct mote_budget *budget, struct mote_backend **out);
/* The units (cuda/cuda.h; valid while the backend lives); returns how many there are. */
size_t mote_cuda_ahead_units(const struct mote_backend *backend, struct mote_cuda_unit *unit,
                             size_t capacity);

#endif
