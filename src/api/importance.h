/* importance.h: column importance of matrices, on disk.
 *
 * Format: a GGUF as llama.cpp's imatrix writes it: general.type "imatrix"; for a tensor NAME, "NAME.in_sum2"
 * [n_expert][n_col] f32 (sums of squares of what flowed into each column) and "NAME.counts" [n_expert][1] f32 (rows
 * that flowed). An expert with count 0 was never activated: it is quantised without importance.
 */
#ifndef MOTE_API_IMPORTANCE_H
#define MOTE_API_IMPORTANCE_H

#include "file/catalogue.h"

struct mote_importance {
    struct mote_catalogue *catalogue;
};

/* Fails with MOTE_FORMAT when the file is no importance file, or a value in it is negative or not finite (named). */
mote_status mote_importance_open(const char *path, struct mote_importance *out);
void mote_importance_close(struct mote_importance *importance);

/* Mean square of each column of matrix `name`, expert `expert`: out[n_col]; *found 0 when the file has none for it.
 * MOTE_FORMAT when its shape is another. */
mote_status mote_importance_row(const struct mote_importance *importance, const char *name, int64_t expert,
                                int64_t n_expert, int64_t n_col, float *out, int *found);

#endif
