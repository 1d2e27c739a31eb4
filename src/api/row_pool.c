/* row_pool.c: see row_pool.h. */
#include "api/row_pool.h"

#include <math.h>
#include <string.h>

#include "quant/decode.h"
#include "quant/encode.h"

/* ---- rows without an encoder ---- */

/* Random codes; what is a scale becomes 2^-6, so that products stay finite. */
static void random_row(const struct mote_row_pool *pool, struct mote_rng *rng, int64_t row)
{
    const struct mote_format_traits *traits = mote_format_traits(pool->format);
    uint8_t *codes = pool->codes + (size_t)row * pool->row_bytes;
    for (size_t i = 0; i < pool->row_bytes; i++) codes[i] = (uint8_t)mote_rng_below(rng, 256);
    switch (pool->format) {
    case MOTE_FORMAT_IQ1_M: /* a half spread over the high nibbles of the last four 16-bit words */
        for (size_t at = 0; at < pool->row_bytes; at += (size_t)traits->block_bytes) {
            for (size_t i = 49; i < 56; i += 2) codes[at + i] &= 0x0F;
            codes[at + 55] |= 0x20;
            codes[at + 53] |= 0x40;
        }
        break;
    case MOTE_FORMAT_MLX_MXFP8: /* exponents up to 7: neither NaN nor large */
        for (size_t i = 0; i < pool->row_bytes; i++) codes[i] &= 0xBF;
        memset(pool->scale + (size_t)row * pool->scale_bytes, 127 - 6, pool->scale_bytes);
        break;
    case MOTE_FORMAT_MLX_MXFP4:
        memset(pool->scale + (size_t)row * pool->scale_bytes, 127 - 6, pool->scale_bytes);
        break;
    case MOTE_FORMAT_MLX_NVFP4:
        memset(pool->scale + (size_t)row * pool->scale_bytes, 0x08, pool->scale_bytes);
        break;
    default: /* blocks that begin with a half */
        for (size_t at = 0; at < pool->row_bytes; at += (size_t)traits->block_bytes)
            codes[at] = 0, codes[at + 1] = 0x24;
    }
}

/* ---- rows with one ---- */

struct encode_job {
    struct mote_row_pool *pool;
    uint64_t seed;
    struct mote_chunks chunks;
    float *scratch; /* [n_worker][n_col] */
    _Atomic int failed;
};

static mote_status encode_row(const struct mote_row_pool *pool, const float *x, int64_t row)
{
    uint8_t *codes = pool->codes + (size_t)row * pool->row_bytes;
    if (!pool->bias_bytes) return mote_encode(pool->format, x, 1, pool->n_col, NULL, codes);
    return mote_encode_affine(mote_format_code_bits(pool->format), pool->group, pool->scale_format, x, 1,
                              pool->n_col, codes, pool->scale + (size_t)row * pool->scale_bytes,
                              pool->bias + (size_t)row * pool->bias_bytes);
}

static void encode_rows(void *context, int worker, int n_worker)
{
    struct encode_job *job = context;
    const struct mote_row_pool *pool = job->pool;
    (void)n_worker;
    float *x = job->scratch + worker * pool->n_col;
    /* Products keep the size of their inputs, as in a trained model. */
    double deviation = 1 / sqrt((double)pool->n_col);
    for (int64_t row, end; mote_next_chunk(&job->chunks, &row, &end);)
        for (; row < end; row++) {
            struct mote_rng rng;
            mote_rng_seed(&rng, job->seed + (uint64_t)row * 0x9E3779B97F4A7C15u);
            if (!mote_can_encode(pool->format)) {
                random_row(pool, &rng, row);
                continue;
            }
            for (int64_t c = 0; c < pool->n_col; c += 2) {
                double pair[2];
                mote_rng_normal2(&rng, pair);
                x[c] = (float)(deviation * pair[0]);
                if (c + 1 < pool->n_col) x[c + 1] = (float)(deviation * pair[1]);
            }
            if (encode_row(pool, x, row) != MOTE_OK) atomic_store(&job->failed, 1);
        }
}

static mote_status fill(struct mote_row_pool *pool, uint64_t seed, struct mote_pool *threads)
{
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)pool->n_row, pool->row_bytes, &pool->codes));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)pool->n_row, pool->scale_bytes, &pool->scale));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)pool->n_row, pool->bias_bytes, &pool->bias));
    struct encode_job job = {.pool = pool, .seed = seed};
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)mote_pool_size(threads) * (size_t)pool->n_col,
                        sizeof(float), &job.scratch));
    mote_chunks_init(&job.chunks, pool->n_row, 4);
    mote_pool_run(threads, encode_rows, &job);
    mote_mem_free(job.scratch);
    FAIL_IF(atomic_load(&job.failed), MOTE_INTERNAL, "a Gaussian row could not be encoded as %s",
            mote_format_traits(pool->format)->name);
    return MOTE_OK;
}

mote_status mote_row_pool_create(enum mote_format format, enum mote_format scale_format, int64_t n_col,
                                 int64_t n_weight, uint64_t seed, struct mote_pool *threads,
                                 struct mote_row_pool *out)
{
    const struct mote_format_traits *traits = mote_format_traits(format);
    int is_planar = traits->family == MOTE_FAMILY_PLANAR;
    int is_affine = mote_format_is_affine(format);
    int32_t group = is_affine ? MOTE_ROW_GROUP : format == MOTE_FORMAT_MLX_NVFP4 ? 16 : is_planar ? 32 : 0;
    int64_t block = group > traits->block_elems ? group : traits->block_elems;
    *out = (struct mote_row_pool){0};
    FAIL_IF(traits->family == MOTE_FAMILY_OTHER, MOTE_ARGUMENT, "%s is no format of weights", traits->name);
    FAIL_IF(n_col < 1 || n_col % block, MOTE_ARGUMENT, "rows of %lld weights, %s takes multiples of %lld",
            (long long)n_col, traits->name, (long long)block);
    struct mote_row_pool pool = {.format = format,
                                 .scale_format = scale_format,
                                 .n_col = n_col,
                                 .n_row = (n_weight + n_col - 1) / n_col,
                                 .group = group,
                                 .row_bytes = mote_format_row_bytes(format, n_col)};
    if (is_planar) pool.scale_bytes = (size_t)(n_col / group) * (is_affine ? 2 : 1);
    if (is_affine) pool.bias_bytes = pool.scale_bytes;
    mote_status status = fill(&pool, seed, threads);
    if (status != MOTE_OK) {
        mote_row_pool_free(&pool);
        return status;
    }
    *out = pool;
    return MOTE_OK;
}

void mote_row_pool_free(struct mote_row_pool *pool)
{
    mote_mem_free(pool->codes);
    mote_mem_free(pool->scale);
    mote_mem_free(pool->bias);
    *pool = (struct mote_row_pool){0};
}

/* ---- drawing ---- */

size_t mote_row_plane_bytes(const struct mote_row_pool *pool, enum mote_row_plane plane)
{
    return plane == MOTE_ROW_CODES    ? pool->row_bytes
           : plane == MOTE_ROW_SCALES ? pool->scale_bytes
                                      : pool->bias_bytes;
}

void mote_row_pool_draw(const struct mote_row_pool *pool, enum mote_row_plane plane, struct mote_rng *rng,
                        int64_t n_row, uint8_t *out)
{
    const uint8_t *rows = plane == MOTE_ROW_CODES    ? pool->codes
                          : plane == MOTE_ROW_SCALES ? pool->scale
                                                     : pool->bias;
    size_t bytes = mote_row_plane_bytes(pool, plane);
    for (int64_t r = 0; r < n_row; r++) {
        size_t pick = (size_t)mote_rng_below(rng, (uint64_t)pool->n_row);
        memcpy(out + (size_t)r * bytes, rows + pick * bytes, bytes);
    }
}

size_t mote_row_pool_bytes(const struct mote_row_pool *pool, int64_t n_row)
{
    return (size_t)n_row * (pool->row_bytes + pool->scale_bytes + pool->bias_bytes);
}

struct mote_matrix mote_row_pool_matrix(const struct mote_row_pool *pool, struct mote_rng *rng, int64_t n_row,
                                        uint8_t *memory)
{
    struct mote_matrix w = mote_matrix_view(pool->format, memory, n_row, pool->n_col);
    uint8_t *scale = memory + (size_t)n_row * pool->row_bytes;
    uint8_t *bias = scale + (size_t)n_row * pool->scale_bytes;
    struct mote_rng again = *rng, once_more = *rng;
    mote_row_pool_draw(pool, MOTE_ROW_CODES, rng, n_row, memory);
    if (!pool->group) return w;
    mote_row_pool_draw(pool, MOTE_ROW_SCALES, &again, n_row, scale);
    mote_row_pool_draw(pool, MOTE_ROW_BIASES, &once_more, n_row, bias);
    w.scale_format = pool->scale_format;
    w.group = pool->group;
    w.scale = scale;
    w.bias = pool->bias_bytes ? bias : NULL;
    return w;
}
