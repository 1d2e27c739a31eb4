/* mote/kernels.h: the expert block of a mixture-of-experts layer, on your own pointers.
 *
 * For engines that have tensors of their own: hand the experts' weights over once (mote_moe_create), then compute the
 * block as often as you like (mote_moe_forward) on host memory, or on device memory and a CUDA stream. The same calls
 * serve every weight format that mote knows.
 *
 *   y[i] = residual[i] + sum over s = 0 .. n_used - 1 of weights[i][s] f_ids[i][s](x[i])
 *   f_e(v) = down_e( activation( gate_e v, up_e v ) )
 *
 *   mote_device *device;
 *   mote_moe *moe;
 *   struct mote_moe_options options = MOTE_OPTIONS(mote_moe_options);
 *   struct mote_moe_call call = MOTE_OPTIONS(mote_moe_call);
 *   mote_device_open("cuda", 0, &device);
 *   ... fill in options: sizes, and where gate, up and down lie ...
 *   mote_moe_create(device, &options, &moe);
 *   mote_moe_workspace(moe, n_row, &bytes);
 *   ... fill in call: rows, ids, weights, y, workspace, stream ...
 *   mote_moe_forward(moe, &call);
 *
 * A complete program: examples/moe.c. In Python: python/README.md.
 *
 * Rules that hold everywhere
 *   Errors     every function that can fail returns mote_status; mote_error() is the message (mote/status.h).
 *   Ownership  `open`/`create` give an object, `close`/`destroy` take it back (NULL is fine). On failure the out
 *              parameter is NULL and nothing is left behind. Strings passed in are copied.
 *   Options    structs that start with struct_size: set them with MOTE_OPTIONS(name), and zero means "default".
 *   Shapes     [a][b] is row-major, b contiguous, rows without padding. Sizes are in elements, `_bytes` in bytes.
 *   Device     on a GPU everything happens in the device's primary context, which PyTorch and the CUDA runtime use
 *              too; a call leaves it current on its thread.
 */
#ifndef MOTE_KERNELS_H
#define MOTE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "mote/float_type.h"
#include "mote/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. a device ---- */

/* Where blocks are computed: the CPU with its threads, or a GPU. Blocks of one device share its threads and compiled
 * kernels; open one and keep it. */
typedef struct mote_device mote_device;

/* name      "cpu" (also NULL), "cuda" (the first GPU) or "cuda:N"
 * n_thread  threads that compute (CPU) or pack weights (GPU); 0: as many as the process may use CPUs
 *
 * MOTE_ARGUMENT: no such name, or no such GPU; MOTE_DEVICE: the driver is missing or refuses, the message says why;
 * MOTE_UNSUPPORTED: compute capability below 8.0. libcuda is looked for only when a GPU is asked for.
 * Thread-safe. */
MOTE_API mote_status mote_device_open(const char *name, int n_thread, mote_device **out);
/* A device lives on until its last block is destroyed, so the order does not matter. */
MOTE_API void mote_device_close(mote_device *device);

/* ---- 2. weights ---- */

/* How the weights of one projection lie, all experts: matrices W[n_row][n_col], one after the other. n_row x n_col is
 * n_ff x d_model for gate and up, d_model x n_ff for down.
 *
 *   format        data [n_expert][n_row][..]        scale [n_expert][n_row][..]    bias
 *   "f32" "f16" "bf16"   [n_col] numbers            -                              -
 *   GGUF types: "q4_k",  [n_col / block] blocks as  -                              -
 *     "iq2_xxs", "mxfp4",  in a GGUF file
 *     "tq1_0", ...
 *   "affine2" .. "8"     [n_col * bits / 8] codes   [n_col / group] of scale_type  as scale
 *   "mlx_mxfp4"          [n_col / 2] e2m1           [n_col / 32] e8m0              -
 *   "mlx_nvfp4"          [n_col / 2] e2m1           [n_col / 16] e4m3              -
 *   "mlx_mxfp8"          [n_col] e4m3               [n_col / 32] e8m0              -
 *
 * mote_format_describe lists them all; case does not matter. "mxfp4" and "nvfp4" with a scale plane are "mlx_mxfp4" and
 * "mlx_nvfp4": how gpt-oss, DeepSeek, Kimi and MLX checkpoints have them.
 *   e2m1    two to a byte, the even column in the low nibble: 0 .5 1 1.5 2 3 4 6, bit 3 is the sign
 *   e8m0    2^(byte - 127); 255 makes the weights it scales infinite or NaN
 *   affine  weight = code * scale + bias; a row's codes are a little-endian bit stream
 * Sources: OCP Microscaling Formats 1.0; ggml; MLX. Bytes in detail: docs/formats.md.
 *
 * No alignment is asked of data, scale and bias. */
struct mote_weights {
    const char *format;              /* NULL: there is no such projection */
    const void *data;                /* codes, or whole blocks */
    const void *scale, *bias;        /* planes, where the format has them; NULL otherwise */
    enum mote_float_type scale_type; /* affine: of scale and bias */
    int32_t group;                   /* affine: columns of a scale: 32, 64, 128; 0: 64 */
    /* host [n_expert]: multiplies an expert's weights, as NVFP4's tensor scale does; NULL: 1 */
    const float *factor;
};

/* How gate and up lie. In all but the first `gate` describes both, [n_expert][2 n_ff][d_model], and `up` is empty. */
enum mote_gate_up {
    MOTE_GATE_UP_APART,       /* two tensors: GGUF, MLX, most Hugging Face checkpoints */
    MOTE_GATE_UP_STACKED,     /* rows 0 .. n_ff - 1 are gate's, then up's: "w13", gate_up_proj of Qwen3 */
    MOTE_UP_GATE_STACKED,     /* up's rows first */
    MOTE_GATE_UP_INTERLEAVED, /* row 2 r is row r of gate, row 2 r + 1 of up: gpt-oss */
    MOTE_GATE_UP_COUNT
};

/* ---- 3. a block ---- */

/* The experts of a layer, ready to be computed. */
typedef struct mote_moe_block mote_moe;

struct mote_moe_options {
    size_t struct_size;
    int64_t n_expert, n_used;           /* 1 <= n_used <= n_expert <= 1024 */
    int64_t d_model, n_ff;              /* width of x and y, of an expert */
    struct mote_weights gate, up, down; /* gate empty: the activation takes none */
    enum mote_gate_up gate_up;
    int on_device; /* data, scale and bias point to memory of the GPU (factor does not); 0: to host memory */
    /* What happens between the products; with g = gate x, u = up x, c = min(g, limit), silu(t) = t sigmoid(t):
     *   "swiglu"          silu(g) u                                            (NULL: this one)
     *   "swiglu_clamped"  silu(c) clip(u, -limit, limit)                       limit 10
     *   "swiglu_step"     min(silu(g), limit) clip(u, -limit, limit)           limit 7
     *   "swiglu_oai"      c sigmoid(1.702 c) (clip(u, -limit, limit) + 1)      limit 7, gpt-oss
     *   "relu2"           max(u, 0)^2, there is no gate */
    const char *activation;
    float limit; /* 0: as above */
    /* What the inputs of products become: "default" (also NULL): 8-bit integers (CPU) or 16-bit integers, halves and the like (GPU),
     * whatever is fastest inside the format's error budget; "f32": no 8-bit ones; "mxfp4": 4-bit floats, 32 to a power
     * of two (mote_mxfp4_quantise), where the weights are MXFP4, else as default. */
    const char *act;
    enum mote_float_type x_type, y_type; /* of x; of residual and y */
    /* The results of a row's experts may be added up in any order, where that is faster (GPU: MXFP4 on sm_90, y of f32, few rows: by
     * additions in memory, a launch less): the last bits of y may then differ from run to run. 0: the same bits every time. */
    int unordered;
};

/* Prepare a block: check everything, pack weights as kernels read them, compile kernels for these very shapes (GPU;
 * seconds the first time, then from the cache on disk: mote_cuda_support).
 *
 * Ownership of weights  GPU: copied; they may go when the call returns. CPU: read where they lie by every forward: they must
 *                       stay, unchanged, until destroy. (Interleaved scale and bias planes are copied.)
 * on_device             the weights are downloaded, packed by CPU threads and uploaded again: host memory for all of them
 *                       is needed meanwhile. They must be complete: synchronise whatever writes them first.
 * After a failure       nothing is left behind, *out is NULL.
 *
 * MOTE_ARGUMENT: a size, pointer, name or layout that makes no sense, named with what was expected; MOTE_UNSUPPORTED: no
 * kernels for this format, group or type on this device, the projection named; MOTE_MEMORY; MOTE_DEVICE: the driver or the
 * kernel compiler, in its words; MOTE_NOT_FOUND: neither a compiler (NVRTC) nor a compiled kernel.
 * Biases of products and a shared expert are not part of the block; a shared expert of the same width is an expert that
 * every row names with weight 1.
 * Thread-safe. Waits for the device: not while a graph is captured. */
MOTE_API mote_status mote_moe_create(mote_device *device, const struct mote_moe_options *options,
                                     mote_moe **out);

/* Work that uses the block must have ended: synchronise its streams first; recorded graphs that hold it are dead. */
MOTE_API void mote_moe_destroy(mote_moe *moe);

/* *bytes: memory that a forward of n_row rows needs: of the host (CPU) or the device (GPU). Grows with n_row, so that the
 * workspace of the longest call serves all; two calls that may run at the same time need two. n_row 0: 0 bytes.
 * MOTE_ARGUMENT: n_row < 0 or beyond what a call takes (GPU: 65535). Thread-safe. */
MOTE_API mote_status mote_moe_workspace(const mote_moe *moe, int64_t n_row, size_t *bytes);

/* All memory is of the block's device; GPU: x, y and residual aligned to 16 bytes, CPU: to their elements. */
struct mote_moe_call {
    size_t struct_size;
    int64_t n_row;        /* 0: nothing happens */
    const void *x;        /* [n_row][d_model] of x_type */
    const int32_t *ids;   /* [n_row][n_used]: 0 .. n_expert - 1; repeats are allowed */
    const float *weights; /* [n_row][n_used] */
    const void *residual; /* [n_row][d_model] of y_type, or NULL: 0 */
    void *y;              /* [n_row][d_model] of y_type */
    void *workspace;      /* mote_moe_workspace bytes, of any alignment and content */
    size_t workspace_bytes;
    /* CUstream (cudaStream_t) of the device's primary context; NULL: the legacy default stream. CPU: not looked at */
    void *stream;
};

/* y of the rows, by the formula at the top.
 *
 * Numerics   weights decode exactly, inputs of products are what `act` says, sums are f32 (of integers: exact), over experts in
 *            the order of the slots; one rounding, to y_type. On a GPU more than 64 rows are multiplied as halves, and weights
 *            that are none are rounded to them. MXFP4 weights on Hopper: operands of "mxfp4" are exact, by default those of
 *            several rows have bf16's precision; each leaves one of bf16 to the sum, but for few of "mxfp4". The same inputs
 *            give the same bits, in every run, with any number of threads.
 * Aliasing   y may be residual; beyond that y and workspace overlap nothing.
 * GPU        launches on `stream` and returns: no allocation, copy or synchronisation, so the call may stand inside a
 *            stream capture. What a graph recorded is read again by each replay: x, ids, weights and residual may change,
 *            addresses and n_row may not; the workspace must stay.
 * Errors     MOTE_ARGUMENT: a NULL or misaligned pointer, too small a workspace (both sizes named); nothing was launched. An id
 *            out of range: CPU: MOTE_ARGUMENT, y not written; GPU: no host sees it in time: the expert next in range is taken,
 *            no foreign memory is touched, and mote_moe_check tells. MOTE_DEVICE: a launch failed.
 *            A NaN or infinity in x reaches the y of its own row and no other.
 * Threads    any number of calls, of one block or several, may be under way from any threads, each with a workspace of
 *            its own. On the CPU they queue for the device's threads; on a GPU only the launching does: streams run side
 *            by side. */
MOTE_API mote_status mote_moe_forward(mote_moe *moe, const struct mote_moe_call *call);

/* Wait for `stream` and say whether any call of the block (replayed ones included) has met an id out of range since the last
 * check: MOTE_ARGUMENT, with the first one's place and value. MOTE_DEVICE: work queued before has failed. CPU: MOTE_OK, as
 * forward has said it. Not inside a capture. */
MOTE_API mote_status mote_moe_check(mote_moe *moe, void *stream);

/* ---- 4. formats, and rows to and from them (host memory) ---- */

struct mote_format_info {
    size_t struct_size;
    const char *name;    /* "q4_k" */
    int32_t block;       /* columns of a row are a multiple of it */
    int32_t block_bytes; /* of data; scales inside unless has_scale */
    int has_scale, has_bias;
    int can_quantise; /* mote_rows_quantise writes it */
};
/* Format number `index`, from 0. MOTE_NOT_FOUND past the last. Thread-safe. */
MOTE_API mote_status mote_format_describe(int index, struct mote_format_info *out);

/* Bytes of n_row rows of n_col weights: of data, scale and bias (0: the format has none). Of `as` format, scale_type and group
 * are read. Any of the outs may be NULL.
 * MOTE_ARGUMENT: no such format, columns that are no multiple of the block or group. Thread-safe. */
MOTE_API mote_status mote_rows_bytes(const struct mote_weights *as, int64_t n_row, int64_t n_col,
                                     size_t *data, size_t *scale, size_t *bias);

/* x [n_row][n_col] to the format that `as` names, in memory of mote_rows_bytes. The encoder looks for the codes of least
 * squared error, columns weighted by importance [n_col] (>= 0) where it is given and the format's encoder knows how.
 * MOTE_UNSUPPORTED: there is no encoder; MOTE_NUMERIC: a NaN or infinity, row and column named; MOTE_ARGUMENT as above, or a
 * plane missing. After a failure the outputs hold anything. One thread; split rows to use more. Thread-safe. */
MOTE_API mote_status mote_rows_quantise(const struct mote_weights *as, const float *x, int64_t n_row,
                                        int64_t n_col, const float *importance, void *data, void *scale,
                                        void *bias);

/* The weights of n_row rows, exactly: out [n_row][n_col]; of `rows`, factor is not looked at. Errors as above. Thread-safe. */
MOTE_API mote_status mote_rows_dequantise(const struct mote_weights *rows, int64_t n_row, int64_t n_col,
                                          float *out);

/* Activations to MXFP4 as blocks of `act` "mxfp4" make them, for reference and for kernels that take them:
 *   E = min(254, (bits(amax / 6) + 0x7FFFFF) >> 23) of 32 columns, amax / 6 being amax times the float 1/6, rounded
 *   code = x / 2^(E - 127) to the nearest e2m1, ties to the even mantissa, beyond 6: 6
 * x [n_row][n_col], codes [n_row][n_col / 2] (even column in the low nibble), scales [n_row][n_col / 32] (e8m0). A NaN or
 * infinity makes its block's scale 255, the codes 0.
 * MOTE_ARGUMENT: n_col not a multiple of 32. Source: AMD's aiter (a4w4 kernels). Thread-safe. */
MOTE_API mote_status mote_mxfp4_quantise(const float *x, int64_t n_row, int64_t n_col, uint8_t *codes,
                                         uint8_t *scales);

#ifdef __cplusplus
}
#endif
#endif
