/* recipe.h: for tests: a model in other formats than its file's.
 *
 * GGUF's formats through mote_quantize: experts in the recipe's format, attention and embedding in q8_0 or one of their own. A GGUF has no
 * place for MLX's affine ones: those replace the tensors of an opened source in memory, as mlx-lm would have written them
 * (groups of 64, bf16 scales, routers in 8 bits whatever the rest).
 */
#ifndef MOTE_TESTS_RECIPE_H
#define MOTE_TESTS_RECIPE_H

#include "run_model.h"

#include <stdlib.h>

#include "base/thread.h"
#include "mote.h"
#include "quant/decode.h"
#include "quant/encode.h"

struct recipe {
    const char *name;
    const char *expert;  /* of mote_quantize; NULL: affine */
    int bits, down_bits; /* affine: of everything, of the experts' down */
    int compact;         /* mote_backend_options: not the file's affair, nor are activations */
    enum mote_act_wish act;
    const char *dense; /* formats of the others, with `expert`; NULL: q8_0 */
};

enum { RECIPE_GROUP = 64, RECIPE_PLANES = 1024 };
struct recipe_model {
    struct mote_catalogue *catalogue;
    void *plane[RECIPE_PLANES]; /* malloc'ed */
    int n_plane;
};

static inline void *recipe_plane(struct recipe_model *model, size_t size)
{
    assert_true(model->n_plane < RECIPE_PLANES);
    void *plane = malloc(size);
    assert_non_null(plane);
    return model->plane[model->n_plane++] = plane;
}

/* A tensor's matrices, one per expert, and where their codes, scales and biases go. */
struct recipe_job {
    const struct mote_tensor *from;
    int bits;
    uint8_t *data, *scale, *bias;
    size_t data_bytes, scale_bytes; /* of a matrix */
    _Atomic int n_failed;
    struct mote_chunks chunks;
};

static inline void recipe_encode(void *context, int worker, int n_worker)
{
    (void)worker;
    (void)n_worker;
    struct recipe_job *job = context;
    int64_t n_row = job->from->dim[1], n_col = job->from->dim[0];
    float *x = malloc((size_t)(n_row * n_col) * sizeof *x);
    for (int64_t e, end; mote_next_chunk(&job->chunks, &e, &end);)
        for (; e < end; e++) {
            struct mote_matrix w = mote_tensor_matrix(job->from, e);
            for (int64_t r = 0; x && r < n_row; r++) mote_decode(&w, r, 0, n_col, x + r * n_col);
            if (!x || mote_encode_affine(job->bits, RECIPE_GROUP, MOTE_FORMAT_BF16, x, n_row, n_col,
                                         job->data + (size_t)e * job->data_bytes,
                                         job->scale + (size_t)e * job->scale_bytes,
                                         job->bias + (size_t)e * job->scale_bytes) != MOTE_OK)
                atomic_fetch_add(&job->n_failed, 1);
        }
    free(x);
}

static inline void recipe_affine_tensor(struct recipe_model *model, struct mote_pool *pool,
                                        struct mote_tensor *tensor, int bits)
{
    char name[16];
    snprintf(name, sizeof name, "affine%d", bits);
    int format = mote_format_from_name(name);
    assert_true(format >= 0 && tensor->dim[0] % RECIPE_GROUP == 0 && tensor->dim[3] == 1);
    struct mote_tensor from = *tensor;
    size_t n_row = (size_t)from.dim[1], n_expert = (size_t)from.dim[2];
    struct recipe_job job = {.from = &from,
                             .bits = bits,
                             .data_bytes =
                                 n_row * mote_format_row_bytes((enum mote_format)format, from.dim[0]),
                             .scale_bytes = n_row * (size_t)(from.dim[0] / RECIPE_GROUP) * 2};
    job.data = recipe_plane(model, n_expert * job.data_bytes);
    job.scale = recipe_plane(model, n_expert * job.scale_bytes);
    job.bias = recipe_plane(model, n_expert * job.scale_bytes);
    mote_chunks_init(&job.chunks, from.dim[2], 1);
    mote_pool_run(pool, recipe_encode, &job);
    assert_int_equal(job.n_failed, 0);
    tensor->format = (enum mote_format)format;
    tensor->n_byte = n_expert * job.data_bytes;
    tensor->data = job.data;
    tensor->scale_format = MOTE_FORMAT_BF16;
    tensor->scale = job.scale;
    tensor->bias = job.bias;
    tensor->group = RECIPE_GROUP;
    tensor->factor = 1;
    tensor->part = NULL;
}

static inline void recipe_affine(const struct recipe *recipe, struct recipe_model *model)
{
    struct mote_pool *pool;
    must(mote_pool_create(0, &pool));
    for (size_t i = 0; i < model->catalogue->n_tensor; i++) {
        /* ours to change until a network is made of it */
        struct mote_tensor *tensor = (struct mote_tensor *)(uintptr_t)&model->catalogue->tensor[i];
        if (tensor->n_dim == 1) continue;
        int bits = strstr(tensor->name, "ffn_gate_inp")    ? 8
                   : strstr(tensor->name, "ffn_down_exps") ? recipe->down_bits
                                                           : recipe->bits;
        recipe_affine_tensor(model, pool, tensor, bits);
    }
    mote_pool_destroy(pool);
}

static inline void recipe_open(const char *source, const struct recipe *recipe, struct recipe_model *model)
{
    *model = (struct recipe_model){0};
    if (!recipe->expert) {
        must(mote_catalogue_open(source, NULL, &model->catalogue));
        recipe_affine(recipe, model);
        return;
    }
    char path[] = "/tmp/mote-recipe-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    struct mote_quantize_options options = {.struct_size = sizeof options,
                                            .type = recipe->dense ? recipe->dense : "q8_0",
                                            .expert_type = recipe->expert};
    mote_status status = mote_quantize(source, path, &options);
    if (status == MOTE_OK) status = mote_catalogue_open(path, NULL, &model->catalogue);
    unlink(path); /* what is mapped stays */
    must(status);
}

static inline void recipe_close(struct recipe_model *model)
{
    mote_catalogue_close(model->catalogue);
    while (model->n_plane) free(model->plane[--model->n_plane]);
}

#endif
