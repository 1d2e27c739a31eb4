/* moe.c: an expert block on raw pointers, from weights to checked results: mote/kernels.h in one page.
 *
 *   examples/moe                    on the CPU, weights in MXFP4
 *   examples/moe cuda mlx_mxfp4     on the first GPU
 *   examples/moe cpu q4_k           any format that `mote_rows_quantise` writes
 *
 * Built by `make`; with an installed library: cc moe.c $(pkg-config --cflags --libs mote) -lm
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mote/kernels.h>

enum { N_EXPERT = 8, N_USED = 2, D_MODEL = 512, N_FF = 256, N_ROW = 5 };

#define MUST(call)                                                 \
    do {                                                           \
        if ((call) != MOTE_OK) {                                   \
            fprintf(stderr, "%s\n  in %s\n", mote_error(), #call); \
            exit(1);                                               \
        }                                                          \
    } while (0)

static void *need(void *memory)
{
    if (memory) return memory;
    fprintf(stderr, "out of memory\n");
    exit(1);
}

/* Numbers between -1 and 1, the same in every run. */
static float next_number(void)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int)state / 2147483648.0f;
}

/* ---- memory where blocks are computed ---- */

/* Four functions of the CUDA driver, by hand, so that this builds without CUDA. Programs that have the runtime use
 * cudaMalloc and cudaMemcpy: both work in the context that mote uses. */
static struct {
    int (*alloc)(unsigned long long *memory, size_t size);
    int (*put)(unsigned long long to, const void *from, size_t size);
    int (*get)(void *to, unsigned long long from, size_t size);
    int (*wait)(void *stream);
} gpu;

static void gpu_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    static const char *const name[] = {"cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2",
                                       "cuStreamSynchronize"};
    void **const slot[] = {(void **)&gpu.alloc, (void **)&gpu.put, (void **)&gpu.get, (void **)&gpu.wait};
    for (int i = 0; i < 4; i++) *slot[i] = need(library ? dlsym(library, name[i]) : NULL);
}

static void *put(int on_gpu, const void *from, size_t size)
{
    if (!on_gpu) {
        void *memory = need(malloc(size));
        if (from) memcpy(memory, from, size);
        return memory;
    }
    unsigned long long memory = 0;
    if (gpu.alloc(&memory, size) || (from && gpu.put(memory, from, size))) need(NULL);
    return (void *)(size_t)memory;
}

static void get(int on_gpu, void *to, const void *from, size_t size)
{
    if (!on_gpu) memcpy(to, from, size);
    else if (gpu.get(to, (unsigned long long)(size_t)from, size)) need(NULL);
}

/* ---- weights ---- */

/* [n_row][n_col] of random weights in a format; *value: what they decode to. */
static struct mote_weights make_weights(const char *format, int64_t n_row, int64_t n_col, float **value)
{
    struct mote_weights w = {.format = format};
    size_t data, scale, bias;
    float *x = need(malloc((size_t)(n_row * n_col) * sizeof *x));
    for (int64_t i = 0; i < n_row * n_col; i++) x[i] = next_number() / sqrtf((float)n_col);
    MUST(mote_rows_bytes(&w, n_row, n_col, &data, &scale, &bias));
    void *codes = need(malloc(data)), *scales = scale ? need(malloc(scale)) : NULL,
         *biases = bias ? need(malloc(bias)) : NULL;
    MUST(mote_rows_quantise(&w, x, n_row, n_col, NULL, codes, scales, biases));
    w.data = codes, w.scale = scales, w.bias = biases;
    MUST(mote_rows_dequantise(&w, n_row, n_col, x));
    *value = x;
    return w;
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += w[i] * x[i];
    return sum;
}

/* y += share * down (silu(gate x) * (up x)) of one expert, in double precision. */
static void add_expert(const float *gate, const float *up, const float *down, const double *x, double share,
                       double *y)
{
    double hidden[N_FF];
    for (int f = 0; f < N_FF; f++) {
        double g = dot(gate + f * D_MODEL, x, D_MODEL);
        hidden[f] = g / (1 + exp(-g)) * dot(up + f * D_MODEL, x, D_MODEL);
    }
    for (int d = 0; d < D_MODEL; d++) y[d] += share * dot(down + d * N_FF, hidden, N_FF);
}

int main(int argc, char **argv)
{
    const char *where = argc > 1 ? argv[1] : "cpu", *format = argc > 2 ? argv[2] : "mlx_mxfp4";
    int on_gpu = strcmp(where, "cpu") != 0;
    float *gate, *up,
        *down; /* what the weights decode to: [N_EXPERT][N_FF][D_MODEL], down [N_EXPERT][D_MODEL][N_FF] */

    /* 1. A device, and a block with its weights. Here gate and up are two tensors in host memory. */
    mote_device *device;
    mote_moe *moe;
    struct mote_moe_options options = MOTE_OPTIONS(mote_moe_options);
    options.n_expert = N_EXPERT;
    options.n_used = N_USED;
    options.d_model = D_MODEL;
    options.n_ff = N_FF;
    options.gate = make_weights(format, N_EXPERT * N_FF, D_MODEL, &gate);
    options.up = make_weights(format, N_EXPERT * N_FF, D_MODEL, &up);
    options.down = make_weights(format, N_EXPERT * D_MODEL, N_FF, &down);
    MUST(mote_device_open(where, 0, &device));
    MUST(mote_moe_create(device, &options, &moe));
    if (on_gpu) gpu_open();

    /* 2. Rows, and who computes them with what share: a router's answer. */
    static float x[N_ROW][D_MODEL], share[N_ROW][N_USED], y[N_ROW][D_MODEL];
    static int32_t ids[N_ROW][N_USED];
    for (int i = 0; i < N_ROW; i++) {
        for (int d = 0; d < D_MODEL; d++) x[i][d] = next_number();
        for (int s = 0; s < N_USED; s++)
            ids[i][s] = (3 * i + s) % N_EXPERT, share[i][s] = 1.0f / (float)(s + 2);
    }

    /* 3. The call. Its memory is where the block is computed; the workspace serves every call of at most N_ROW rows. */
    struct mote_moe_call call = MOTE_OPTIONS(mote_moe_call);
    MUST(mote_moe_workspace(moe, N_ROW, &call.workspace_bytes));
    call.n_row = N_ROW;
    call.x = put(on_gpu, x, sizeof x);
    call.ids = put(on_gpu, ids, sizeof ids);
    call.weights = put(on_gpu, share, sizeof share);
    call.y = put(on_gpu, NULL, sizeof y);
    call.workspace = put(on_gpu, NULL, call.workspace_bytes);
    MUST(mote_moe_forward(moe, &call)); /* on a GPU: queued, on stream 0 */
    MUST(mote_moe_check(moe, call.stream));
    get(on_gpu, y, call.y, sizeof y);

    /* 4. The same in double precision. What differs is what the inputs of products became: 8-bit integers on a CPU. */
    double off = 0, all = 0;
    for (int i = 0; i < N_ROW; i++) {
        double wide[D_MODEL], want[D_MODEL] = {0};
        for (int d = 0; d < D_MODEL; d++) wide[d] = x[i][d];
        for (int s = 0; s < N_USED; s++) {
            size_t at = (size_t)ids[i][s] * N_FF * D_MODEL;
            add_expert(gate + at, up + at, down + at, wide, share[i][s], want);
        }
        for (int d = 0; d < D_MODEL; d++) {
            off += (y[i][d] - want[d]) * (y[i][d] - want[d]);
            all += want[d] * want[d];
        }
    }
    double error = sqrt(off / all);
    printf("%s, %s: %d rows through %d of %d experts, %.2g off double precision\n", where, format, N_ROW,
           N_USED, N_EXPERT, error);

    /* On a CPU everything was malloc'ed; memory of the GPU goes with the process. */
    void *mine[] = {(void *)(size_t)call.x, (void *)(size_t)call.ids, (void *)(size_t)call.weights, call.y,
                    call.workspace};
    for (int i = 0; i < 5 && !on_gpu; i++) free(mine[i]);
    mote_moe_destroy(moe);
    mote_device_close(device);
    const struct mote_weights *w[] = {&options.gate, &options.up, &options.down};
    for (int i = 0; i < 3; i++)
        free((void *)(size_t)w[i]->data), free((void *)(size_t)w[i]->scale), free((void *)(size_t)w[i]->bias);
    free(gate), free(up), free(down);
    return error < 0.02 ? 0 : 1;
}
