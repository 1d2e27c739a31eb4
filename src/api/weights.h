/* weights.h: what a descriptor of mote/kernels.h (struct mote_weights) says, checked, as the views that kernels read.
 *
 * Owns: the checks of formats, planes and layouts, and copies where a view cannot say how weights lie.
 * Does not own: the caller's memory; devices (moe.c), conversion of rows (rows.c).
 * One idea: a tensor of all experts is one tall matrix; an expert's projection is some rows of it.
 */
#ifndef MOTE_API_WEIGHTS_H
#define MOTE_API_WEIGHTS_H

#include "backend/backend.h"
#include "mote/kernels.h"

/* Planes of a matrix, in the order of mote_weights; bytes of a row each, 0: there is none. */
enum { WEIGHTS_DATA, WEIGHTS_SCALE, WEIGHTS_BIAS, WEIGHTS_PLANES };
struct mote_weights_planes {
    size_t row_bytes[WEIGHTS_PLANES];
};

/* The matrix [n_row][n_col] that `w` describes, without its factor; `what` names it in messages. Pointers are checked for
 * being there, unless without_memory. MOTE_ARGUMENT, MOTE_UNSUPPORTED (no weights of such a format). */
mote_status mote_weights_read(const struct mote_weights *w, const char *what, int64_t n_row, int64_t n_col,
                              int without_memory, struct mote_matrix *matrix,
                              struct mote_weights_planes *planes);

enum mote_format mote_weights_scale_format(enum mote_float_type type);

/* The experts of a block as a set; memory of its own behind the views, where it has any. */
enum { WEIGHTS_COPIES = 3 * WEIGHTS_PLANES };
struct mote_weights_set {
    struct mote_expert_set set;
    struct mote_matrix *view;   /* [3][n_expert]: gate, up, down */
    void *copy[WEIGHTS_COPIES]; /* [n_copy] */
    int n_copy;
};

/* options: sizes, layout, activation and formats are checked here. backend: downloads, with options->on_device. After a
 * failure there is nothing to free. */
mote_status mote_weights_open(const struct mote_moe_options *options, struct mote_backend *backend,
                              struct mote_weights_set *out);
void mote_weights_close(struct mote_weights_set *set);

#endif
