/* cuda_backend.h: what the files of the CUDA backend share: its state, placed weights, programs, and who implements
 * which operation.
 *
 * Owns: the device, one block of scratch cut up once, the step block (cuda/step.h), the list of compiled programs.
 * One idea: an operation is a fixed chain of launches whose shapes depend on the step's shape alone; the kernels find
 * everything else (tokens, lengths, chosen experts) in device memory. So a step is captured once per shape.
 */
#ifndef MOTE_BACKEND_CUDA_BACKEND_H
#define MOTE_BACKEND_CUDA_BACKEND_H

#include "backend/backend.h"
#include "base/thread.h"
#include "cuda/cuda.h"
#include "cuda/pack.h"
#include "cuda/step.h"

enum {
    CUDA_DECODE_ROWS = 64,    /* steps of at most so many rows take the decode kernels (see decode_rows) */
    CUDA_DECODE_PAIRS = 1024, /* and of so many pairs of a row and an expert: MAX_PAIRS of moe_decode.cu */
    /* Rows that decode kernels, or unfused and plain experts, take through the expert block at once: what lies between
     * its products has room for so many. */
    CUDA_PIECE_ROWS = CUDA_DECODE_ROWS,
    CUDA_DEFINE = 512,
    CUDA_PROGRAM_KERNELS = 12,
    CUDA_STAGES = 2, /* staging buffers of an upload: one is packed while the other is copied */
    CUDA_STAGE_BYTES = 16 << 20,
    CUDA_RECORDS = 32,   /* shapes of steps kept recorded */
    CUDA_INPUT_ROWS = 32 /* rows by list in one launch */
};

/* A kernel text with the kernels that are taken from it. */
struct cuda_text {
    const char *name;                         /* "decode.cu" */
    const char *kernel[CUDA_PROGRAM_KERNELS]; /* NULL-terminated when shorter */
    int shared;                               /* launches ask for more than 48 KiB of shared memory */
};

/* Kernels of rows.cu, in the order of the text in cuda_backend.c. */
enum { CUDA_ROWS_INPUT, CUDA_ROWS_ACTIVATE, CUDA_ROWS_COMBINE, CUDA_ROWS_WIDEN, CUDA_ROWS_NARROW };

/* A text compiled with constants; loaded by `ready`. */
struct cuda_program {
    const struct cuda_text *text;
    char define[CUDA_DEFINE];
    struct mote_cuda_module *module;
    struct mote_cuda_kernel kernel[CUDA_PROGRAM_KERNELS];
};

/* Kernels of linear.cu, plain.cu, by their place in the text's list. */
enum { CUDA_LINEAR_ONE, CUDA_LINEAR_FOUR, CUDA_LINEAR_SIXTEEN, CUDA_LINEAR_NORMED, CUDA_LINEAR_EMBED };
enum { CUDA_PLAIN_LINEAR, CUDA_PLAIN_GEMM, CUDA_PLAIN_PROJECT, CUDA_PLAIN_EMBED };

/* What every placed thing starts with: its device memory. */
struct cuda_placed {
    uint8_t *data;
    uint64_t *slot;
};

/* A placed matrix (mote_weight.placed). */
struct cuda_weight {
    uint8_t *data;  /* device: tiles or plain rows (cuda/layout.h) */
    uint64_t *slot; /* NULL */
    struct mote_tile_kind kind;
    int64_t n_row, n_col;
    const float *bias;      /* [n_row] device, or NULL */
    enum mote_act_wish act; /* of x; MXFP4 only where the weights are MXFP4 too */
    unsigned warps;         /* of a tile's columns: WARPS of linear.cu */
    int decode, prefill;    /* programs */
    int x_type;             /* what activations become for prefill (cuda_prefill.c) */
};

/* Placed experts (mote_expert_set.placed). Kernels reach weights through `slot` alone. Without a gate all that is gate's
 * is 0. */
enum { CUDA_GATE, CUDA_UP, CUDA_DOWN, CUDA_PROJECTIONS };
struct cuda_experts {
    uint8_t *data;  /* device: every expert's matrices */
    uint64_t *slot; /* device [n_expert][3]: address of an expert's gate, up and down */
    struct mote_activation activation;
    struct mote_routing routing; /* the one that `decode` can make; n_expert 0: none */
    int first;                   /* of an expert's matrices: CUDA_GATE, or CUDA_UP where there is no gate */
    struct mote_tile_kind kind[CUDA_PROJECTIONS];
    enum mote_act_wish x_act, h_act; /* of the inputs of gate and up, of down: as cuda_weight.act */
    int32_t n_expert;
    int64_t n_ff, d_model;
    int is_tiled;                  /* all lie in tiles: the fused and prefill kernels can read them */
    int decode;                    /* program of moe_decode.cu, with is_tiled */
    int project[CUDA_PROJECTIONS]; /* of moe_reference.cu or plain.cu */
    int split[CUDA_PROJECTIONS];   /* warps of `project` */
    int prefill_gate_up, prefill_down;
    int x_type, h_type; /* what the inputs of gate and up, of down become there (cuda_prefill.c) */
    /* MXFP4 weights (cuda_mx.c); base and wide lie behind `slot` */
    const uint8_t *base; /* device [n_expert][rows]: mote_tile_mx_base */
    const int32_t *wide; /* device [n_expert]: 1 where a row's scales are too far apart for base */
    int32_t n_wide;      /* how many experts that are */
    int has_no_number;   /* one of those scales is NaN */
    /* fp8 numbers that an activation is made of: 1 of MXFP4, 2 of others; 0: none of its kernels take these experts */
    int mx_planes, mx_small, mx_narrow, mx_wide;
};

/* A router's programs, by all that their texts know of it; found once, because a step must not make texts to find them. */
struct cuda_router {
    struct mote_routing routing; /* scale and bias are arguments, not constants */
    enum mote_tile_item item;
    int64_t n_col;     /* of its plain weights; 0: in tiles, or logits come from elsewhere */
    int route, router; /* of route.cu; of router.cu with n_col */
};

struct cuda_allocation {
    void *memory;
    size_t size;
    enum mote_mem_kind kind;
    int is_pinned; /* host memory */
};

/* A step's launches, by all that they depend on. */
struct cuda_record {
    struct mote_replay shape;
    int32_t n_row, n_span;
    int max_span_row;
    enum mote_kv_type kv_type;
    int64_t n_ctx; /* longest cache */
    struct mote_cuda_graph *graph;
};

struct cuda_stage {
    uint8_t *data; /* pinned [CUDA_STAGE_BYTES] */
    struct mote_cuda_event *event;
    int is_busy;
};

struct cuda_backend {
    struct mote_backend base;
    struct mote_cuda *cuda;
    const struct mote_cuda_info *info;
    struct mote_cuda_info ahead_info; /* without a device (cuda_ahead.c): then cuda is NULL */
    struct mote_budget *budget;
    struct mote_backend_limits own_limits, limits; /* limits: those, or of a loan */
    enum mote_moe_kernels moe_kernels;
    int compact;
    int64_t piece_pair;  /* of the routed experts: the shared expert's rows of `down` begin there */
    int64_t decode_rows; /* steps of at most so many rows take the decode kernels */

    struct cuda_program *program; /* [n_program] */
    size_t n_program, max_program;
    struct cuda_router *router; /* [n_router] */
    size_t n_router;

    struct cuda_allocation *allocation; /* [n_allocation] */
    size_t n_allocation, max_allocation;
    struct cuda_stage stage[CUDA_STAGES];
    int next_stage;
    struct mote_pool *pool; /* packs weights */
    void (*progress)(void *context, const char *what, size_t done, size_t total, const char *unit);
    void *progress_context;

    /* the step: device copies, written by begin in one upload from host_step */
    const struct mote_batch *batch;
    int32_t *token, *position, *span_of_row; /* [max_row] */
    struct mote_step_span *span;             /* [max_row] */
    struct mote_step_fault *fault, *host_fault;
    size_t step_bytes;
    uint8_t *host_step; /* pinned */
    int max_span_row;   /* most rows of a span of this batch */
    int is_step_pending;

    /* recorded steps */
    struct cuda_record *record; /* [n_record] */
    size_t n_record;
    struct cuda_record recording;
    int is_recording, no_graph;
    int chain; /* programmatic dependent launches */

    uint8_t *own_scratch;
    /* scratch: device memory, one block (struct cuda_scratch): the backend's own, or lent */
    struct mote_step_act act;      /* [max_row][max_col]: inputs of linear and moe */
    struct mote_step_act down;     /* [pairs and rows of a piece][n_ff]: inputs of down */
    const float *act_of;           /* x whose rows `act` holds now, rounded as it says; NULL: nothing's */
    float *edge_x, *edge_y;        /* f32 of x and y of the expert block, where rows are of other types */
    float *gate, *up, *product;    /* unfused and plain experts, of a piece's pairs; hidden lies in up */
    int32_t *ticket;               /* [max_row] of router and shortlist; zero between launches */
    struct mote_step_group *group; /* [shortlist rows][groups of a row] */
    void *attend_scratch;          /* mote_cuda_attend_scratch bytes */
    void *prefill_scratch;         /* mote_cuda_prefill_scratch bytes */
    int attend_program, attend_prefill_program, rows_program;
    int shortlist_program;               /* with limits.n_vocab */
    int prefill_program, prefill_x_type; /* prefill_step.cu; what its copy of x is made of */
    int mx_program;                      /* mx_step.cu */
};

/* Warps that norm a row of activations: a function of its width alone, so that a row's sum of squares is the same
 * whichever kernel makes it. */
static inline unsigned cuda_row_warps(int64_t n_col)
{
    int64_t unit = (n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS;
    return unit >= 16 ? 16 : unit >= 8 ? 8 : unit >= 4 ? 4 : unit >= 2 ? 2 : 1;
}

/* How few rows of activations are rounded (cuda/step.h) for weights of a wish. */
static inline int cuda_rounding(enum mote_act_wish wish)
{
    return wish == MOTE_WISH_MXFP4 ? MOTE_ROUND_MXFP4 : MOTE_ROUND_I16;
}

static inline struct cuda_backend *cuda_of(struct mote_backend *backend)
{
    return (struct cuda_backend *)(void *)backend;
}

/* The index of the program of this text and these constants (printf style), added when new. Before `ready` only. */
mote_status mote_cuda_program(struct cuda_backend *cuda, const struct cuda_text *text, int *index,
                              const char *define, ...) __attribute__((format(printf, 4, 5)));

/* A backend of either table (cuda_ops, that of cuda_ahead.c) with nothing opened; what opening it came to, and the programs
 * that every model needs: *out, or what there is of it destroyed. */
mote_status mote_cuda_create_begin(const struct mote_backend_ops *ops,
                                   const struct mote_backend_limits *limits, struct mote_budget *budget,
                                   struct cuda_backend **out);
mote_status mote_cuda_create_end(struct cuda_backend *cuda, mote_status status, struct mote_backend **out);
void mote_cuda_destroy(struct mote_backend *backend);

/* The constants by which a text knows an activation (expert.cuh). */
enum { CUDA_ACTIVATION_TEXT = 48 };
void mote_cuda_activation_text(const struct mote_activation *activation,
                               char text[CUDA_ACTIVATION_TEXT]); /* cuda_place.c */

/* The constants by which a text knows a routing (route.cu); of no routing when it is NULL. */
enum { CUDA_ROUTING_TEXT = 128 };
void mote_cuda_routing_text(const struct mote_routing *routing,
                            char text[CUDA_ROUTING_TEXT]); /* cuda_moe.c */

/* Launch kernel number `kernel` of a program: all arguments by address, in order, ended by nothing: args[] as
 * mote_cuda_launch takes it. flags: MOTE_CUDA_CHAIN. */
mote_status mote_cuda_run(struct cuda_backend *cuda, int program, int kernel, unsigned grid_x,
                          unsigned grid_y, unsigned grid_z, unsigned block, size_t shared, void **args);

/* Device memory, counted by kind; not zeroed. */
mote_status mote_cuda_device_alloc(struct cuda_backend *cuda, enum mote_mem_kind kind, size_t size,
                                   void *out);
void mote_cuda_device_free(struct cuda_backend *cuda, void *memory); /* NULL is fine */

/* Rows of x (of a host list of at most CUDA_INPUT_ROWS, or all), normed when norm is given: to out [n_row][n_col] when
 * given, quantised to act when given. */
mote_status mote_cuda_input_rows(struct cuda_backend *cuda, const float *x, const int32_t *row, int64_t n_row,
                                 int64_t n_col, const float *norm, float eps, float *out,
                                 const struct mote_step_act *act);
/* Has the rows of x in `act`, rounded for weights of this wish: as they are there already, or from x. */
mote_status mote_cuda_want_act(struct cuda_backend *cuda, const float *x, int64_t n_row, int64_t n_col,
                               enum mote_act_wish wish);

/* ---- operations ---- */

/* cuda_place.c */
mote_status mote_cuda_weight_bytes(const struct mote_backend_options *options,
                                   const struct mote_weight *weight, size_t *bytes);
mote_status mote_cuda_expert_bytes(const struct mote_backend_options *options,
                                   const struct mote_expert_set *set, size_t *bytes);
mote_status mote_cuda_place(struct mote_backend *backend, struct mote_weight *weight);
mote_status mote_cuda_place_experts(struct mote_backend *backend, struct mote_expert_set *set);
void mote_cuda_unplace(struct mote_backend *backend, void *placed);
mote_status mote_cuda_linear(struct mote_backend *backend, const struct mote_linear *job); /* cuda_linear.c */
mote_status mote_cuda_route(struct mote_backend *backend, const struct mote_route *job);   /* cuda_moe.c */
mote_status mote_cuda_place_routing(struct mote_backend *backend, const struct mote_routing *routing,
                                    const struct mote_weight *router);
mote_status mote_cuda_moe(struct mote_backend *backend, const struct mote_moe *job); /* of f32 rows */
/* cuda_edge.c: the operation moe; calls the one above. */
mote_status mote_cuda_edge_moe(struct mote_backend *backend, const struct mote_moe *job);

/* ---- attention: cuda_attend.c, kernels/attend.cu ---- */

size_t mote_cuda_attend_scratch(const struct mote_backend_limits *limits, int n_sm);
mote_status mote_cuda_attend_programs(struct cuda_backend *cuda); /* sets attend_program; called by create */
/* The operation attend. For steps of at most CUDA_DECODE_ROWS rows it also leaves `out` quantised in cuda->act
 * (head_dim a multiple of 32) and sets act_of = job->out. */
mote_status mote_cuda_attend(struct mote_backend *backend, const struct mote_attention *job);

/* ---- prefill: cuda_prefill.c, kernels/prefill_*.cu ---- */

size_t mote_cuda_prefill_scratch(const struct mote_backend_limits *limits);
/* Programs for a tile-kind matrix and for a set of experts (kind.code != NONE for all three). */
mote_status mote_cuda_prefill_weight(struct cuda_backend *cuda, struct cuda_weight *weight);
mote_status mote_cuda_prefill_experts(struct cuda_backend *cuda, struct cuda_experts *experts);
/* The operation linear for n_row > CUDA_DECODE_ROWS, of x (normed already): out `first`, which lies in tiles, and those
 * behind it of the same kind, whose bits are set in *done. `fresh`: x is not the x of the call before (its half-precision
 * copy in scratch must be made). */
mote_status mote_cuda_prefill_linear(struct cuda_backend *cuda, const struct mote_linear *job, int first,
                                     const float *x, int fresh, unsigned *done);
/* The operation moe for n_row > CUDA_DECODE_ROWS, all weights in tiles, nothing for hidden. */
mote_status mote_cuda_prefill_moe(struct cuda_backend *cuda, const struct mote_moe *job);

/* ---- MXFP4 experts on sm_90: cuda_mx.c, kernels/mx_*.cu ---- */

size_t mote_cuda_mx_scratch(const struct mote_backend_limits *limits);
/* mx_planes that experts of these kinds would have on sm_90: all projections MXFP4, and their inputs by wish. */
int mote_cuda_mx_fits(enum mote_moe_kernels kernels, enum mote_act_wish wish,
                      const struct mote_tile_kind kind[CUDA_PROJECTIONS], int first);
/* Their programs, where there are kernels for the device, the activations and the weights' scales; sets mx_planes. */
mote_status mote_cuda_mx_experts(struct cuda_backend *cuda, struct cuda_experts *experts);
/* Is the block theirs? They take and give f32 and bf16. A shared expert beside the routed ones is not: others add it to y. */
int mote_cuda_mx_takes(const struct mote_moe *job);
/* Every step of the one set that the limits name: nobody else's scratch is needed then. */
int mote_cuda_mx_takes_all(const struct mote_backend_limits *limits);
/* The operation moe, once ids and weights are there. */
mote_status mote_cuda_mx_moe(struct cuda_backend *cuda, const struct mote_moe *job);

#endif
