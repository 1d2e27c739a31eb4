/* bench_kernel.c: one product, format by format: `dot` for up to eight rows of activations, `gemm` above.
 *
 * One idea: a run is a whole matrix of 2048 x 2048 by all threads, and the matrices of a format fill 256 MB, so that
 * no run finds its weights in a cache. Activations are quantised beforehand: a model does that once for several
 * matrices.
 */
#include <stdio.h>

#include "api/bench.h"
#include "api/handle.h"
#include "api/row_pool.h"
#include "cpu/kernel.h"

enum { N_ROW = 2048, N_COL = 2048, TILE = 64 };

struct kernel_bench {
    const struct mote_bench_job *job;
    const struct mote_cpu_kernels *kernels;
    struct mote_pool *threads;
    uint8_t *memory; /* MOTE_BENCH_COLD and a matrix more */
    size_t matrix_bytes;
    int64_t n_matrix;
    struct mote_matrix *matrix; /* [n_matrix] */
    float *x;                   /* [most rows][N_COL] */
    float *y;                   /* [most rows][N_ROW] */
    void *act_memory;
    /* of the product being timed */
    struct mote_act act;
    mote_matmul_fn *product;
    const struct mote_matrix *w;
    struct mote_chunks chunks;
};

static void product_tiles(void *context, int worker, int n_worker)
{
    struct kernel_bench *bench = context;
    (void)worker;
    (void)n_worker;
    for (int64_t row, end; mote_next_chunk(&bench->chunks, &row, &end);)
        bench->product(bench->w, row, end - row, &bench->act, NULL, bench->act.n_row, bench->y + row, N_ROW);
}

static mote_status run_product(void *context, int64_t run)
{
    struct kernel_bench *bench = context;
    bench->w = &bench->matrix[run % bench->n_matrix];
    mote_chunks_init(&bench->chunks, N_ROW, TILE);
    mote_pool_run(bench->threads, product_tiles, bench);
    return MOTE_OK;
}

static mote_status bench_rows(struct kernel_bench *bench, enum mote_format format, int64_t n_x)
{
    const char *type_name = mote_format_traits(format)->name;
    enum mote_act_type type = mote_act_chosen(format, bench->job->act);
    int is_dot = n_x <= MOTE_DOT_ROWS;
    bench->product = (is_dot ? bench->kernels->dot : bench->kernels->gemm)[type][format];
    FAIL_IF(!bench->product, MOTE_UNSUPPORTED, "no %s kernel for %s with %s activations",
            mote_cpu_tier_name(bench->kernels->tier), type_name, mote_act_type_name(type));
    bench->act = mote_act_place(type, n_x, N_COL, bench->x, bench->act_memory);
    if (type != MOTE_ACT_F32) bench->kernels->quantise(bench->x, 0, n_x, &bench->act);
    char name[64];
    snprintf(name, sizeof name, "%s %s %s", is_dot ? "dot" : "gemm", type_name, mote_act_type_name(type));
    struct mote_bench_row row = {.what = "kernel",
                                 .name = name,
                                 .type = type_name,
                                 .rows = n_x,
                                 .bytes = (double)bench->matrix_bytes,
                                 .operations = 2.0 * N_ROW * N_COL * (double)n_x};
    TRY(mote_bench_time(bench->job, run_product, NULL, bench, &row));
    return mote_bench_report(bench->job, &row);
}

/* Matrices of the format, one after the other. */
static mote_status draw_matrices(struct kernel_bench *bench, enum mote_format format)
{
    struct mote_row_pool pool;
    struct mote_rng rng;
    mote_rng_seed(&rng, 7);
    TRY(mote_row_pool_create(format, MOTE_FORMAT_BF16, N_COL, MOTE_BENCH_POOL, 1, bench->threads, &pool));
    size_t bytes = bench->matrix_bytes = mote_row_pool_bytes(&pool, N_ROW);
    bench->n_matrix = (int64_t)(MOTE_BENCH_COLD / bytes) + 1;
    mote_mem_free(bench->matrix);
    bench->matrix = NULL;
    mote_status status = mote_mem_calloc(NULL, MOTE_MEM_TABLES, (size_t)bench->n_matrix,
                                         sizeof *bench->matrix, &bench->matrix);
    for (int64_t i = 0; status == MOTE_OK && i < bench->n_matrix; i++)
        bench->matrix[i] = mote_row_pool_matrix(&pool, &rng, N_ROW, bench->memory + (size_t)i * bytes);
    mote_row_pool_free(&pool);
    return status;
}

static mote_status take_memory(struct kernel_bench *bench, int64_t most)
{
    size_t cold = MOTE_BENCH_COLD + (size_t)N_ROW * N_COL * sizeof(float), act = 0;
    for (int type = MOTE_ACT_F32; type < MOTE_ACT_TYPE_COUNT; type++) {
        size_t bytes = mote_act_bytes((enum mote_act_type)type, most, N_COL);
        if (bytes > act) act = bytes;
    }
    TRY(mote_bench_fits("cold weights", cold));
    TRY(mote_mem_alloc(NULL, MOTE_MEM_WEIGHTS, cold, &bench->memory));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)most * N_COL, sizeof(float), &bench->x));
    TRY(mote_mem_calloc(NULL, MOTE_MEM_SCRATCH, (size_t)most * N_ROW, sizeof(float), &bench->y));
    TRY(mote_mem_alloc(NULL, MOTE_MEM_SCRATCH, act, &bench->act_memory));
    TRY(mote_pool_create(bench->job->n_thread, &bench->threads));
    mote_bench_normals(bench->threads, 3, 1, most * N_COL, bench->x);
    return MOTE_OK;
}

mote_status mote_bench_kernel(const struct mote_bench_job *job)
{
    static const int64_t default_rows[] = {1, 4, 8, 64, 512};
    enum mote_format format[MOTE_FORMAT_COUNT];
    const int64_t *rows;
    size_t n_rows;
    int n_format;
    enum mote_cpu_tier tier;
    TRY(mote_bench_formats(job, format, &n_format));
    TRY(mote_bench_rows(job, default_rows, sizeof default_rows / sizeof *default_rows, &rows, &n_rows));
    TRY(mote_cpu_tier_choose(&tier));
    TRY(mote_bench_start(job));
    int64_t most = 1;
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i] > most) most = rows[i];
    const struct mote_backend_kind *kind;
    int index;
    TRY(mote_device_choose(job->model->device, &kind, &index));
    FAIL_IF(kind->weight_bytes, MOTE_UNSUPPORTED,
            "bench kernel: times the CPU's products; on a device use bench moe or model");
    struct kernel_bench bench = {.job = job, .kernels = mote_cpu_kernels(tier)};
    mote_status status = take_memory(&bench, most);
    for (int f = 0; status == MOTE_OK && f < n_format; f++) {
        status = draw_matrices(&bench, format[f]);
        for (size_t i = 0; status == MOTE_OK && i < n_rows; i++)
            status = bench_rows(&bench, format[f], rows[i]);
    }
    mote_pool_destroy(bench.threads);
    mote_mem_free(bench.act_memory);
    mote_mem_free(bench.matrix);
    mote_mem_free(bench.y);
    mote_mem_free(bench.x);
    mote_mem_free(bench.memory);
    return status;
}
