/* cuda_edge.c: the expert block as callers hand it in: rows of bf16 and f16.
 *
 * One idea: the block itself knows f32 rows; kernels that read other types themselves spare these launches.
 */
#include "backend/cuda_backend.h"
#include "base/float_rows.h"

enum { EDGE_BLOCK = 256, EDGE_EACH = 4 }; /* as rows.cu has it */

static mote_status convert(struct cuda_backend *cuda, int kernel, enum mote_float_type type, const void *from,
                           const struct mote_moe *job, void *to)
{
    long long n = (long long)job->n_row * job->d_model;
    int number = (int)type;
    void *args[] = {&from, &number, &n, &to};
    return mote_cuda_run(cuda, cuda->rows_program, kernel,
                         (unsigned)((n + EDGE_BLOCK * EDGE_EACH - 1) / (EDGE_BLOCK * EDGE_EACH)), 1, 1,
                         EDGE_BLOCK, 0, args);
}

mote_status mote_cuda_edge_moe(struct mote_backend *backend, const struct mote_moe *job)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct mote_moe inner = *job;
    if (mote_cuda_mx_takes(job)) return mote_cuda_moe(backend, job);
    FAIL_IF(mote_cuda_mx_takes_all(&cuda->limits), MOTE_INTERNAL,
            "moe: a step for which there is no scratch; the limits name one set of experts");
    FAIL_IF((job->x_type != MOTE_F32 || job->y_type != MOTE_F32) && !mote_limits_have_edges(&cuda->limits),
            MOTE_INTERNAL, "moe: rows of another type than f32 are not what the backend was created for");
    if (job->x_type != MOTE_F32) {
        inner.x_type = MOTE_F32;
        inner.x = cuda->edge_x;
        TRY(convert(cuda, CUDA_ROWS_WIDEN, job->x_type, job->x, job, cuda->edge_x));
    }
    if (job->y_type != MOTE_F32) {
        inner.y_type = MOTE_F32;
        inner.y = cuda->edge_y;
        if (job->residual) {
            inner.residual = cuda->edge_y;
            TRY(convert(cuda, CUDA_ROWS_WIDEN, job->y_type, job->residual, job, cuda->edge_y));
        }
    }
    TRY(mote_cuda_moe(backend, &inner));
    if (job->y_type == MOTE_F32) return MOTE_OK;
    return convert(cuda, CUDA_ROWS_NARROW, job->y_type, cuda->edge_y, job, job->y);
}
