/* moe_layer.h: for tests: a layer of experts in any formats, routed inputs, and what comes out of it in float64.
 *
 * Experts are windows of one matrix, each a row further than the one before: hundreds of different experts for the price of
 * one, a wrong expert is wrong everywhere, and float64 products of all of them are those of one matrix. */
#ifndef MOTE_TESTS_MOE_LAYER_H
#define MOTE_TESTS_MOE_LAYER_H

#include "activation64.h"
#include "cuda_pair.h"

enum { MAX_ROW = 300 }; /* rows of an input */

struct shape {
    int32_t n_expert, n_used;
    int64_t d_model, n_ff, n_ff_shared; /* n_ff_shared 0: none */
};

struct recipe {
    enum mote_format format[3]; /* gate, up, down */
    int group[3];               /* AFFINE */
    enum mote_format scale_format;
    /* Zeros: SwiGLU; without a gate format[0] is not used. */
    struct mote_activation activation, shared_activation;
    enum mote_act_wish act; /* of both sets */
};
#define ALL(f) PARTS(f, f, f, 64, F16)
#define PARTS(g, u, d, group, scale) GROUPS(g, group, u, group, d, group, scale)
/* a projection's own group */
#define GROUPS(g, group_g, u, group_u, d, group_d, scale)                                 \
    {                                                                                     \
        {MOTE_FORMAT_##g, MOTE_FORMAT_##u, MOTE_FORMAT_##d}, {group_g, group_u, group_d}, \
            MOTE_FORMAT_##scale                                                           \
    }

static inline const char *recipe_name(const struct recipe *r)
{
    static char text[96];
    snprintf(text, sizeof text, "%s/%s/%s %s", mote_format_traits(r->format[0])->name,
             mote_format_traits(r->format[1])->name, mote_format_traits(r->format[2])->name,
             mote_activation_traits(r->activation.kind)->name);
    return text;
}

/* ---- a layer ---- */

struct layer {
    struct shape shape;
    struct recipe recipe;
    struct matrix pool[3], shared[3];
    struct mote_matrix *view; /* [3][n_expert] */
    struct mote_expert_set experts, shared_set;
};

static inline void layer_make(struct mote_rng *rng, struct layer *l, const struct shape *s,
                              const struct recipe *r)
{
    *l = (struct layer){.shape = *s, .recipe = *r};
    int32_t n = s->n_expert;
    l->view = calloc((size_t)(3 * n), sizeof *l->view);
    for (int p = 0; p < 3; p++) {
        int64_t rows = p == 2 ? s->d_model : s->n_ff, cols = p == 2 ? s->n_ff : s->d_model;
        int group = cols % r->group[p] ? 32 : r->group[p];
        l->pool[p] = matrix_make(rng, r->format[p], rows + n - 1, cols, group, r->scale_format, 1);
        for (int32_t e = 0; e < n; e++) l->view[p * n + e] = matrix_rows(&l->pool[p], e, rows);
        if (!s->n_ff_shared) continue;
        rows = p == 2 ? s->d_model : s->n_ff_shared, cols = p == 2 ? s->n_ff_shared : s->d_model;
        l->shared[p] = matrix_make(rng, r->format[p], rows, cols, group, r->scale_format, 1);
    }
    l->experts = (struct mote_expert_set){.name = "experts",
                                          .n_expert = n,
                                          .n_ff = s->n_ff,
                                          .d_model = s->d_model,
                                          .activation = r->activation,
                                          .gate = is_gated64(&r->activation) ? l->view : NULL,
                                          .up = l->view + n,
                                          .down = l->view + 2 * n,
                                          .act = r->act};
    l->shared_set =
        (struct mote_expert_set){.name = "shared",
                                 .n_expert = 1,
                                 .n_ff = s->n_ff_shared,
                                 .d_model = s->d_model,
                                 .activation = r->shared_activation,
                                 .gate = is_gated64(&r->shared_activation) ? &l->shared[0].m : NULL,
                                 .up = &l->shared[1].m,
                                 .down = &l->shared[2].m,
                                 .act = r->act};
}

static inline void layer_free(struct layer *l)
{
    for (int p = 0; p < 3; p++) matrix_free(&l->pool[p]), matrix_free(&l->shared[p]);
    free(l->view);
}

/* A layer placed on one backend: the sets are copies, `placed` is the backend's. */
struct placed {
    struct mote_backend *backend;
    struct mote_expert_set experts, shared;
};

static inline mote_status layer_place(const struct layer *l, struct mote_backend *backend, struct placed *out)
{
    *out = (struct placed){.backend = backend, .experts = l->experts, .shared = l->shared_set};
    TRY(backend->ops->place_experts(backend, &out->experts));
    if (l->shape.n_ff_shared) TRY(backend->ops->place_experts(backend, &out->shared));
    return MOTE_OK;
}

static inline void layer_unplace(struct placed *p)
{
    p->backend->ops->unplace(p->backend, p->experts.placed);
    p->backend->ops->unplace(p->backend, p->shared.placed);
}

/* ---- inputs ---- */

enum routing_kind { UNIFORM, SKEWED, DUPLICATES, FEW_EXPERTS, KINDS };
static const char *const kind_name[] = {"uniform", "skewed", "duplicates", "few"};

struct input {
    struct shape shape;
    float *x, *residual, *weights, *gate;
    int32_t *ids;
};

static inline void input_make(struct mote_rng *rng, struct input *in, const struct shape *s,
                              enum routing_kind kind)
{
    int64_t pairs = MAX_ROW * (int64_t)s->n_used;
    *in = (struct input){.shape = *s,
                         .x = new_normals(rng, MAX_ROW * s->d_model),
                         .residual = new_normals(rng, MAX_ROW * s->d_model),
                         .weights = new_floats(pairs),
                         .gate = new_normals(rng, MAX_ROW),
                         .ids = malloc((size_t)pairs * sizeof(int32_t))};
    int32_t few = s->n_used + 1 < s->n_expert ? s->n_used + 1 : s->n_expert;
    for (int64_t p = 0; p < pairs; p++) {
        int32_t k = (int32_t)(p % s->n_used), again;
        do {
            uint64_t e = mote_rng_below(rng, (uint64_t)s->n_expert);
            if (kind == SKEWED && k == 0) e = (uint64_t)s->n_expert - 1; /* an expert that every row wants */
            if (kind == FEW_EXPERTS) e = e % (uint64_t)few * (uint64_t)(s->n_expert / few);
            if (kind == DUPLICATES && k && k % 2) e = (uint64_t)in->ids[p - 1];
            in->ids[p] = (int32_t)e;
            again = 0;
            for (int32_t j = 1; j <= k; j++) again |= in->ids[p - j] == in->ids[p];
        } while (again && kind != DUPLICATES);
        in->weights[p] = (float)random_uniform(rng, 0.05, 1);
    }
}

static inline void input_free(struct input *in)
{
    free(in->x), free(in->residual), free(in->weights), free(in->gate), free(in->ids);
}

/* Device copies of an input. */
struct memory {
    struct mote_backend *backend;
    float *x, *residual, *weights, *gate, *y, *hidden, *shared_hidden;
    int32_t *ids;
};

static inline void memory_make(struct memory *m, struct mote_backend *backend, const struct input *in,
                               int64_t n_row)
{
    const struct shape *s = &in->shape;
    *m = (struct memory){.backend = backend,
                         .x = put_floats(backend, in->x, n_row * s->d_model),
                         .residual = put_floats(backend, in->residual, n_row * s->d_model),
                         .weights = put_floats(backend, in->weights, n_row * s->n_used),
                         .gate = put_floats(backend, in->gate, n_row),
                         .y = put_floats(backend, NULL, n_row * s->d_model),
                         .hidden = put_floats(backend, NULL, n_row * s->n_used * s->n_ff),
                         .shared_hidden = put_floats(backend, NULL, n_row * s->n_ff_shared + 1),
                         .ids = put(backend, in->ids, (size_t)(n_row * s->n_used) * sizeof(int32_t))};
}

static inline void memory_free(struct memory *m)
{
    float *all[] = {m->x, m->residual, m->weights, m->gate, m->y, m->hidden, m->shared_hidden};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) take_back(m->backend, all[i]);
    take_back(m->backend, m->ids);
}

/* Rows [row, row + n_row) of the input. */
static inline struct mote_moe job_of(const struct placed *p, const struct shape *s, const struct memory *m,
                                     int64_t row, int64_t n_row)
{
    return (struct mote_moe){.n_row = n_row,
                             .d_model = s->d_model,
                             .n_used = s->n_used,
                             .x = m->x + row * s->d_model,
                             .experts = &p->experts,
                             .ids = m->ids + row * s->n_used,
                             .weights = m->weights + row * s->n_used,
                             .shared = s->n_ff_shared ? &p->shared : NULL,
                             .shared_gate = s->n_ff_shared ? m->gate + row : NULL,
                             .residual = m->residual + row * s->d_model,
                             .y = m->y};
}

/* ---- the reference ---- */

struct reference {
    const struct layer *l;
    const struct input *in;
    double *up[2];        /* gate, up: [row][pool rows]: every window at once */
    double *shared_up[2]; /* [row][n_ff_shared] */
    double *sum;          /* [row][d_model]: without the residual */
    double *hidden;       /* [row][k][n_ff] */
    double *shared_hidden;
};

/* Are the inputs of gate and up (0), of down (1) rounded to MXFP4? */
static inline int is_mxfp4_input(const struct recipe *r, int down)
{
    int mx[3];
    for (int p = 0; p < 3; p++) mx[p] = mote_act_chosen(r->format[p], r->act) == MOTE_ACT_MXFP4;
    return down ? mx[2] : mx[1] && (mx[0] || !mote_activation_traits(r->activation.kind)->is_gated);
}

static inline void reference_row(void *context, int64_t i)
{
    struct reference *r = context;
    const struct shape *s = &r->l->shape;
    double *sum = r->sum + i * s->d_model;
    int64_t pool = s->n_ff + s->n_expert - 1;
    double *read = new_doubles(s->n_ff); /* a row of h as down reads it */
    memset(sum, 0, (size_t)s->d_model * sizeof *sum);
    for (int32_t k = 0; k < s->n_used; k++) {
        int64_t p = i * s->n_used + k, e = r->in->ids[p];
        double *h = r->hidden + p * s->n_ff;
        for (int64_t f = 0; f < s->n_ff; f++)
            h[f] = activation64(&r->l->recipe.activation, r->up[0][i * pool + e + f],
                                r->up[1][i * pool + e + f]);
        memcpy(read, h, (size_t)s->n_ff * sizeof *h);
        if (is_mxfp4_input(&r->l->recipe, 1)) round_mxfp4(read, s->n_ff);
        for (int64_t d = 0; d < s->d_model; d++)
            sum[d] +=
                (double)r->in->weights[p] * dot64(r->l->pool[2].value + (e + d) * s->n_ff, read, s->n_ff);
    }
    free(read);
    if (!s->n_ff_shared) return;
    double *h = r->shared_hidden + i * s->n_ff_shared, weight = 1 / (1 + exp(-(double)r->in->gate[i]));
    for (int64_t f = 0; f < s->n_ff_shared; f++)
        h[f] = activation64(&r->l->recipe.shared_activation, r->shared_up[0][i * s->n_ff_shared + f],
                            r->shared_up[1][i * s->n_ff_shared + f]);
    read = new_doubles(s->n_ff_shared);
    memcpy(read, h, (size_t)s->n_ff_shared * sizeof *h);
    if (is_mxfp4_input(&r->l->recipe, 1)) round_mxfp4(read, s->n_ff_shared);
    for (int64_t d = 0; d < s->d_model; d++)
        sum[d] += weight * dot64(r->l->shared[2].value + d * s->n_ff_shared, read, s->n_ff_shared);
    free(read);
}

static inline void reference_make(struct reference *r, const struct layer *l, const struct input *in,
                                  int64_t n_row)
{
    const struct shape *s = &l->shape;
    *r = (struct reference){.l = l, .in = in};
    double *x = widened(in->x, n_row * s->d_model);
    if (is_mxfp4_input(&l->recipe, 0)) round_mxfp4(x, n_row * s->d_model);
    for (int p = 0; p < 2; p++) {
        r->up[p] = product64(&l->pool[p], x, n_row);
        if (s->n_ff_shared) r->shared_up[p] = product64(&l->shared[p], x, n_row);
    }
    free(x);
    r->sum = new_doubles(n_row * s->d_model);
    r->hidden = new_doubles(n_row * s->n_used * s->n_ff);
    r->shared_hidden = new_doubles(n_row * s->n_ff_shared);
    in_parallel(n_row, reference_row, r);
}

static inline void reference_free(struct reference *r)
{
    for (int p = 0; p < 2; p++) free(r->up[p]), free(r->shared_up[p]);
    free(r->sum), free(r->hidden), free(r->shared_hidden);
}

/* Three products and two roundings of the activations; a plain set is as exact as f32. In MXFP4 a number of h that is as
 * near to two of its numbers as sums in f32 can tell may become the other one, a block's largest may change its scale:
 * `flipped` (0: none does) is how far off such a row may be: numbers of the largest step, or a block under another
 * scale, in its experts. Where x is not exact all rows are such. */
static inline double moe_budget(const struct layer *l, int size, double *flipped)
{
    double most = 0;
    int x = is_mxfp4_input(&l->recipe, 0), h = is_mxfp4_input(&l->recipe, 1);
    for (int p = 0; p < 3; p++) {
        int is_exact = p == 2 ? h : x;
        most = fmax(
            most, budget_of(&l->pool[p].m, size,
                            is_exact || l->recipe.act == MOTE_WISH_F32 ? l->recipe.act : MOTE_WISH_DEFAULT));
    }
    *flipped = h ? 0.15 : 0;
    return h && !x ? *flipped : 2 * most;
}

#endif
