/* importance.c: see importance.h. */
#include "api/importance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static const struct mote_tensor *find(const struct mote_importance *importance, const char *name,
                                      const char *what)
{
    char full[512];
    int length = snprintf(full, sizeof full, "%s.%s", name, what);
    if (length < 0 || (size_t)length >= sizeof full) return NULL;
    return mote_catalogue_tensor(importance->catalogue, full);
}

mote_status mote_importance_open(const char *path, struct mote_importance *out)
{
    *out = (struct mote_importance){0};
    struct mote_catalogue *catalogue;
    TRY(mote_catalogue_open(path, NULL, &catalogue));
    out->catalogue = catalogue;
    size_t n = 0;
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        const struct mote_tensor *tensor = &catalogue->tensor[i];
        size_t length = strlen(tensor->name);
        if (length < 8 || strcmp(tensor->name + length - 8, ".in_sum2")) continue;
        char name[512];
        mote_status status = MOTE_OK;
        if (tensor->format != MOTE_FORMAT_F32 || length - 8 >= sizeof name)
            status = mote_fail(MOTE_FORMAT, "%s: tensor %s is not f32", path, tensor->name);
        int64_t count = tensor->dim[0] * tensor->dim[1];
        for (int64_t k = 0; status == MOTE_OK && k < count; k++) {
            float value;
            memcpy(&value, tensor->data + 4 * k, 4);
            if (!isfinite(value) || value < 0)
                status = mote_fail(MOTE_FORMAT, "%s: tensor %s: value %lld is %g, expected a sum of squares",
                                   path, tensor->name, (long long)k, (double)value);
        }
        if (status == MOTE_OK) {
            memcpy(name, tensor->name, length - 8);
            name[length - 8] = 0;
            const struct mote_tensor *counts = find(out, name, "counts");
            if (!counts || counts->format != MOTE_FORMAT_F32 ||
                counts->dim[0] * counts->dim[1] != tensor->dim[1])
                status = mote_fail(MOTE_FORMAT, "%s: tensor %s has no %s.counts of %lld values", path,
                                   tensor->name, name, (long long)tensor->dim[1]);
        }
        if (status != MOTE_OK) {
            mote_importance_close(out);
            return status;
        }
        n++;
    }
    if (n == 0) {
        mote_importance_close(out);
        return mote_fail(MOTE_FORMAT, "%s: not an importance file: no tensor is named *.in_sum2", path);
    }
    return MOTE_OK;
}

void mote_importance_close(struct mote_importance *importance)
{
    if (importance->catalogue) mote_catalogue_close(importance->catalogue);
    importance->catalogue = NULL;
}

mote_status mote_importance_row(const struct mote_importance *importance, const char *name, int64_t expert,
                                int64_t n_expert, int64_t n_col, float *out, int *found)
{
    *found = 0;
    const struct mote_tensor *sums = find(importance, name, "in_sum2"),
                             *counts = find(importance, name, "counts");
    if (!sums || !counts) return MOTE_OK;
    FAIL_IF(sums->dim[0] != n_col || sums->dim[1] != n_expert, MOTE_FORMAT,
            "importance of %s has %lld columns for %lld experts, the tensor %lld for %lld", name,
            (long long)sums->dim[0], (long long)sums->dim[1], (long long)n_col, (long long)n_expert);
    float count;
    memcpy(&count, counts->data + 4 * expert, 4);
    if (!(count > 0)) return MOTE_OK;
    memcpy(out, sums->data + 4 * expert * n_col, (size_t)n_col * 4);
    for (int64_t c = 0; c < n_col; c++) out[c] /= count;
    *found = 1;
    return MOTE_OK;
}
