/* weights.c: descriptors to views. See weights.h. */
#include "api/weights.h"

#include <math.h>
#include <string.h>

#include "base/float_rows.h"
#include "quant/decode.h"

enum { MOST_WIDTH = 1 << 20 }; /* sizes stay far from overflow: 1024 experts x 2^21 rows x 2^22 bytes */

/* ---- one descriptor ---- */

enum mote_format mote_weights_scale_format(enum mote_float_type type)
{
    static const enum mote_format format[MOTE_FLOAT_TYPE_COUNT] = {
        [MOTE_F32] = MOTE_FORMAT_F32, [MOTE_BF16] = MOTE_FORMAT_BF16, [MOTE_F16] = MOTE_FORMAT_F16};
    return format[type];
}

/* The layout in planes of a format that is named as its blocks are. */
static enum mote_format in_planes(enum mote_format format)
{
    return format == MOTE_FORMAT_MXFP4   ? MOTE_FORMAT_MLX_MXFP4
           : format == MOTE_FORMAT_NVFP4 ? MOTE_FORMAT_MLX_NVFP4
                                         : format;
}

static mote_status read_format(const struct mote_weights *w, const char *what, enum mote_format *out)
{
    FAIL_IF(!w->format, MOTE_ARGUMENT, "%s: no format", what);
    int format = mote_format_from_name(w->format);
    FAIL_IF(format < 0, MOTE_ARGUMENT, "%s: format '%s' is not known; mote_format_describe lists all", what,
            w->format);
    FAIL_IF(mote_format_traits((enum mote_format)format)->family == MOTE_FAMILY_OTHER, MOTE_UNSUPPORTED,
            "%s: %s is no format of weights", what, w->format);
    *out = w->scale ? in_planes((enum mote_format)format) : (enum mote_format)format;
    return MOTE_OK;
}

static mote_status read_group(const struct mote_weights *w, const char *what, enum mote_format format,
                              int32_t *group)
{
    *group = 0;
    if (mote_format_traits(format)->family != MOTE_FAMILY_PLANAR) return MOTE_OK;
    *group = format == MOTE_FORMAT_MLX_NVFP4 ? 16 : 32;
    if (!mote_format_is_affine(format)) return MOTE_OK;
    *group = w->group ? w->group : 64;
    FAIL_IF(*group != 32 && *group != 64 && *group != 128, MOTE_ARGUMENT,
            "%s: groups of %d columns, expected 32, 64 or 128", what, w->group);
    FAIL_IF((unsigned)w->scale_type >= MOTE_FLOAT_TYPE_COUNT, MOTE_ARGUMENT,
            "%s: scale type %d, expected 0..%d", what, (int)w->scale_type, MOTE_FLOAT_TYPE_COUNT - 1);
    return MOTE_OK;
}

static mote_status check_plane(const char *what, const char *format, const char *plane, const void *memory,
                               size_t row_bytes)
{
    FAIL_IF(row_bytes && !memory, MOTE_ARGUMENT, "%s: %s is NULL, and %s has one", what, plane, format);
    FAIL_IF(!row_bytes && memory, MOTE_ARGUMENT, "%s: %s is given, and %s has none: expected NULL", what,
            plane, format);
    return MOTE_OK;
}

mote_status mote_weights_read(const struct mote_weights *w, const char *what, int64_t n_row, int64_t n_col,
                              int without_memory, struct mote_matrix *matrix,
                              struct mote_weights_planes *planes)
{
    enum mote_format format = MOTE_FORMAT_F32;
    int32_t group;
    TRY(read_format(w, what, &format));
    TRY(read_group(w, what, format, &group));
    const struct mote_format_traits *traits = mote_format_traits(format);
    int block = group > traits->block_elems ? group : traits->block_elems;
    FAIL_IF(n_row < 1 || n_col < 1 || n_row > (int64_t)1 << 40 || n_col > (int64_t)1 << 40, MOTE_ARGUMENT,
            "%s: %lld rows of %lld columns", what, (long long)n_row, (long long)n_col);
    FAIL_IF(n_col % block, MOTE_ARGUMENT, "%s: %lld columns are not a multiple of %d, as %s wants them", what,
            (long long)n_col, block, traits->name);
    *matrix = mote_matrix_view(format, w->data, n_row, n_col);
    matrix->group = group;
    matrix->scale_format =
        mote_format_is_affine(format) ? mote_weights_scale_format(w->scale_type) : MOTE_FORMAT_F32;
    matrix->scale = w->scale;
    matrix->bias = w->bias;
    size_t n_scale = group ? (size_t)(n_col / group) : 0;
    planes->row_bytes[WEIGHTS_DATA] = matrix->row_bytes;
    planes->row_bytes[WEIGHTS_SCALE] =
        n_scale * (mote_format_is_affine(format) ? mote_float_bytes(w->scale_type) : 1);
    planes->row_bytes[WEIGHTS_BIAS] = mote_format_is_affine(format) ? planes->row_bytes[WEIGHTS_SCALE] : 0;
    if (without_memory) return MOTE_OK;
    TRY(check_plane(what, traits->name, "data", w->data, planes->row_bytes[WEIGHTS_DATA]));
    TRY(check_plane(what, traits->name, "scale", w->scale, planes->row_bytes[WEIGHTS_SCALE]));
    return check_plane(what, traits->name, "bias", w->bias, planes->row_bytes[WEIGHTS_BIAS]);
}

/* ---- tensors of all experts ---- */

struct tensor {
    const char *what;
    const struct mote_weights *from;
    struct mote_matrix all; /* [n_expert * n_row] rows */
    struct mote_weights_planes planes;
    int64_t n_row; /* of an expert */
};

static const uint8_t **plane_of(struct mote_matrix *w, int plane)
{
    return plane == WEIGHTS_DATA ? &w->data : plane == WEIGHTS_SCALE ? &w->scale : &w->bias;
}

/* Memory that goes with the set. */
static mote_status new_copy(struct mote_weights_set *set, size_t size, uint8_t **out)
{
    TRY(mote_mem_alloc(NULL, MOTE_MEM_WEIGHTS, size, out));
    set->copy[set->n_copy++] = *out;
    return MOTE_OK;
}

static mote_status download(struct mote_weights_set *set, struct mote_backend *backend, struct tensor *t)
{
    for (int p = 0; p < WEIGHTS_PLANES; p++) {
        size_t size = t->planes.row_bytes[p] * (size_t)t->all.n_row;
        uint8_t *host;
        if (!size) continue;
        TRY(new_copy(set, size, &host));
        TRY(backend->ops->download(backend, host, *plane_of(&t->all, p), size));
        *plane_of(&t->all, p) = host;
    }
    return MOTE_OK;
}

/* Even rows of scale and bias, then odd ones: a view can step over rows of data, not over those of other planes. */
static mote_status part_planes(struct mote_weights_set *set, struct tensor *t)
{
    for (int p = WEIGHTS_SCALE; p < WEIGHTS_PLANES; p++) {
        size_t row = t->planes.row_bytes[p], half = (size_t)t->all.n_row / 2;
        const uint8_t *from = *plane_of(&t->all, p);
        uint8_t *to;
        if (!row) continue;
        TRY(new_copy(set, 2 * half * row, &to));
        for (size_t r = 0; r < half; r++) {
            memcpy(to + r * row, from + 2 * r * row, row);
            memcpy(to + (half + r) * row, from + (2 * r + 1) * row, row);
        }
        *plane_of(&t->all, p) = to;
    }
    return MOTE_OK;
}

static mote_status open_tensor(struct mote_weights_set *set, const struct mote_moe_options *options,
                               struct mote_backend *backend, struct tensor *t, int64_t n_col)
{
    TRY(mote_weights_read(t->from, t->what, t->n_row * options->n_expert, n_col, 0, &t->all, &t->planes));
    for (int64_t e = 0; t->from->factor && e < options->n_expert; e++)
        FAIL_IF(!isfinite(t->from->factor[e]) || t->from->factor[e] == 0, MOTE_ARGUMENT,
                "%s: factor of expert %lld is %g, expected a finite number other than 0", t->what,
                (long long)e, (double)t->from->factor[e]);
    return options->on_device ? download(set, backend, t) : MOTE_OK;
}

/* Rows first, first + step, .. of every expert, n_row each, where rows of scale and bias lie at `plane_first` and follow
 * each other, plane_rows to an expert. */
struct slice {
    int64_t first, step, n_row, plane_first, plane_rows;
};

static void view_experts(const struct tensor *t, const struct slice *s, int64_t n_expert,
                         struct mote_matrix *view)
{
    for (int64_t e = 0; e < n_expert; e++) {
        view[e] = t->all;
        view[e].n_row = s->n_row;
        view[e].row_bytes = t->all.row_bytes * (size_t)s->step;
        view[e].factor = t->from->factor ? t->from->factor[e] : 1;
        view[e].data += (size_t)(e * t->n_row + s->first) * t->all.row_bytes;
        size_t row = (size_t)(s->plane_first + e * s->plane_rows);
        if (view[e].scale) view[e].scale += row * t->planes.row_bytes[WEIGHTS_SCALE];
        if (view[e].bias) view[e].bias += row * t->planes.row_bytes[WEIGHTS_BIAS];
    }
}

static void view_whole(const struct tensor *t, int64_t n_expert, struct mote_matrix *view)
{
    view_experts(t, &(struct slice){.step = 1, .n_row = t->n_row, .plane_rows = t->n_row}, n_expert, view);
}

/* Both halves of a tensor of gate and up. */
static mote_status view_halves(struct mote_weights_set *set, const struct mote_moe_options *options,
                               struct tensor *t, struct mote_matrix *gate, struct mote_matrix *up)
{
    int64_t n_ff = options->n_ff;
    struct mote_matrix *half[2] = {gate, up};
    if (options->gate_up == MOTE_UP_GATE_STACKED) half[0] = up, half[1] = gate;
    int is_interleaved = options->gate_up == MOTE_GATE_UP_INTERLEAVED;
    if (is_interleaved) TRY(part_planes(set, t));
    for (int h = 0; h < 2; h++) {
        struct slice stacked = {
            .first = h * n_ff, .step = 1, .n_row = n_ff, .plane_first = h * n_ff, .plane_rows = 2 * n_ff};
        struct slice interleaved = {.first = h,
                                    .step = 2,
                                    .n_row = n_ff,
                                    .plane_first = h * n_ff * options->n_expert,
                                    .plane_rows = n_ff};
        view_experts(t, is_interleaved ? &interleaved : &stacked, options->n_expert, half[h]);
    }
    return MOTE_OK;
}

/* ---- a set ---- */

static mote_status check_options(const struct mote_moe_options *o, struct mote_activation *activation)
{
    FAIL_IF(o->n_expert < 1 || o->n_expert > MOTE_MAX_EXPERTS || o->n_used < 1 || o->n_used > o->n_expert,
            MOTE_ARGUMENT, "%lld of %lld experts, expected 1 <= used <= experts <= %d", (long long)o->n_used,
            (long long)o->n_expert, MOTE_MAX_EXPERTS);
    FAIL_IF(o->d_model < 1 || o->n_ff < 1 || o->d_model > MOST_WIDTH || o->n_ff > MOST_WIDTH, MOTE_ARGUMENT,
            "d_model %lld, n_ff %lld, expected 1..%d", (long long)o->d_model, (long long)o->n_ff, MOST_WIDTH);
    FAIL_IF((unsigned)o->gate_up >= MOTE_GATE_UP_COUNT, MOTE_ARGUMENT, "gate_up %d, expected 0..%d",
            (int)o->gate_up, MOTE_GATE_UP_COUNT - 1);
    FAIL_IF((unsigned)o->x_type >= MOTE_FLOAT_TYPE_COUNT || (unsigned)o->y_type >= MOTE_FLOAT_TYPE_COUNT,
            MOTE_ARGUMENT, "x_type %d, y_type %d, expected 0..%d", (int)o->x_type, (int)o->y_type,
            MOTE_FLOAT_TYPE_COUNT - 1);
    TRY(mote_activation_find(o->activation ? o->activation : "swiglu", activation));
    FAIL_IF(!isfinite(o->limit) || o->limit < 0, MOTE_ARGUMENT, "limit %g, expected a number above 0, or 0",
            (double)o->limit);
    if (o->limit > 0) activation->limit = o->limit;
    const struct mote_activation_traits *traits = mote_activation_traits(activation->kind);
    int is_fused = o->gate_up != MOTE_GATE_UP_APART;
    FAIL_IF(!traits->is_gated && (o->gate.format || is_fused), MOTE_ARGUMENT,
            "activation %s takes no gate: expected gate empty and gate_up 0", traits->name);
    FAIL_IF(is_fused && o->up.format, MOTE_ARGUMENT, "gate_up %d: gate holds up too, expected up empty",
            (int)o->gate_up);
    return MOTE_OK;
}

static mote_status fill(const struct mote_moe_options *o, struct mote_backend *backend,
                        struct mote_weights_set *out)
{
    struct mote_activation activation;
    enum mote_act_wish act;
    TRY(check_options(o, &activation));
    TRY(mote_act_wish_parse(o->act, &act));
    int64_t n = o->n_expert;
    int is_gated = mote_activation_traits(activation.kind)->is_gated,
        is_fused = o->gate_up != MOTE_GATE_UP_APART;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 3 * (size_t)n, sizeof *out->view, &out->view));
    struct mote_matrix *gate = out->view, *up = gate + n, *down = up + n;
    struct tensor t;
    if (is_fused) {
        t = (struct tensor){.what = "gate and up", .from = &o->gate, .n_row = 2 * o->n_ff};
        TRY(open_tensor(out, o, backend, &t, o->d_model));
        TRY(view_halves(out, o, &t, gate, up));
    } else {
        if (is_gated) {
            t = (struct tensor){.what = "gate", .from = &o->gate, .n_row = o->n_ff};
            TRY(open_tensor(out, o, backend, &t, o->d_model));
            view_whole(&t, n, gate);
        }
        t = (struct tensor){.what = "up", .from = &o->up, .n_row = o->n_ff};
        TRY(open_tensor(out, o, backend, &t, o->d_model));
        view_whole(&t, n, up);
    }
    t = (struct tensor){.what = "down", .from = &o->down, .n_row = o->d_model};
    TRY(open_tensor(out, o, backend, &t, o->n_ff));
    view_whole(&t, n, down);
    out->set = (struct mote_expert_set){.name = "moe",
                                        .n_expert = (int32_t)n,
                                        .n_ff = o->n_ff,
                                        .d_model = o->d_model,
                                        .activation = activation,
                                        .gate = is_gated ? gate : NULL,
                                        .up = up,
                                        .down = down,
                                        .act = act};
    return MOTE_OK;
}

mote_status mote_weights_open(const struct mote_moe_options *options, struct mote_backend *backend,
                              struct mote_weights_set *out)
{
    *out = (struct mote_weights_set){0};
    mote_status status = fill(options, backend, out);
    if (status != MOTE_OK) mote_weights_close(out);
    return status;
}

void mote_weights_close(struct mote_weights_set *set)
{
    for (int i = 0; i < set->n_copy; i++) mote_mem_free(set->copy[i]);
    mote_mem_free(set->view);
    *set = (struct mote_weights_set){0};
}
