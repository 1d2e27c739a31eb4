/* mote.h: run mixture-of-experts language models whose experts are stored in 1 to 8 bits.
 *
 * Reads from simple to advanced: open a model, start a session, write text; then sampling and chat; then what a
 * model publisher needs (inspect, plan, quantise, measure); then benchmarks.
 *
 * Rules that hold everywhere
 *   Errors     every function that can fail returns mote_status; mote_error() is the message (mote/status.h).
 *   Ownership  `create`/`open` give an object, `destroy`/`close` take it back (NULL is fine). On failure the out
 *              parameter is NULL and nothing is left behind. Strings passed in are copied.
 *   Options    a struct that starts with struct_size; set it with MOTE_OPTIONS(name) and zero means "default".
 *   Threads    a model may   be shared by sessions, but one call at a time runs on it (it owns the thread
 *              pool); different models are independent. mote_error() is per thread.
 *   Output     the library never prints; mote_log_handler receives warnings and progress.
 */
#ifndef MOTE_H
#define MOTE_H

#include <stddef.h>
#include <stdint.h>

#include "mote/status.h"

#ifdef __cplusplus
extern "C" {
#endif

MOTE_API const char *mote_version(void); /* "0.1.0" */

/* level: 0 warning, 1 information. NULL: silence (the default). Process-wide. */
MOTE_API void mote_log_handler(void (*handler)(void *context, int level, const char *message), void *context);

/* Progress of long work: done and total in `unit` ("bytes", "tensors", "tokens"). Return 0 to go on, anything else
 * to cancel (the call then fails with MOTE_CANCELLED). */
typedef int mote_progress_fn(void *context, const char *what, uint64_t done, uint64_t total,
                             const char *unit);

/* ---- 1. a model ---- */

typedef struct mote_model mote_model;
typedef struct mote_session mote_session;

struct mote_model_options {
    size_t struct_size;
    int n_thread;    /* 0: all CPUs of this process */
    uint64_t memory; /* hard limit in bytes over weights, KV, scratch and tables; 0: none */
    /* Activation type of products: "default", 8-bit integers where a format's budget allows; "f32" (on a GPU: 16-bit
     * integers and halves); "mxfp4", 4-bit floats under a power of two for 32 where weights are MXFP4 too (GGUF's or MLX's,
     * experts and others), else as default. */
    const char *act;
    const char *moe;   /* "fused" (default), "unfused" (reference), "portable" (of every architecture) */
    int64_t n_ctx;     /* tokens per session; 0: the model's, at most 4096 */
    int64_t n_batch;   /* rows of a prefill step; 0: 512 */
    int64_t n_session; /* sessions that the plan counts KV for; 0: 1 */
    const char *kv;    /* "f16" (default), "f32", "q8_0" */
    mote_progress_fn *progress; /* may be NULL */
    void *progress_context;
    const char *device; /* "cpu" (default), "cuda" (the first GPU) or "cuda:N" */
};

/* Open a GGUF file, a Hugging Face folder or an MLX folder. On the CPU weights stay mapped from the file;
 * on a GPU they are copied there, and `memory` counts what is taken on it. There tq1_0 and ptq1_0 take 22 % more than in
 * the file, and are faster for it, unless that passes `memory` or, without one, what the GPU has free; a log line says so.
 * MOTE_NOT_FOUND, MOTE_IO, MOTE_FORMAT: the file; MOTE_UNSUPPORTED: names what is not supported and what is;
 * MOTE_BUDGET: `memory` is below the need, which the message names; nothing was loaded. */
MOTE_API mote_status mote_model_open(const char *path, const struct mote_model_options *options,
                                     mote_model **out);
MOTE_API void mote_model_close(mote_model *model); /* after its sessions */

struct mote_model_info {
    size_t struct_size;
    const char *arch, *name; /* "qwen3moe", "Fable" */
    const char *kernels;     /* "avx2", "sm_90a" */
    int64_t n_layer, n_vocab, d_model, n_expert, n_expert_used;
    int64_t n_ctx_train;
    uint64_t n_param, n_param_active;
    uint64_t n_byte;           /* weights in the file */
    uint64_t n_byte_per_token; /* weights that one decoded token reads */
    int n_thread;
};
MOTE_API mote_status mote_model_describe(const mote_model *model, struct mote_model_info *out);

/* ---- 2. text to tokens and back ---- */

enum { MOTE_TOKENIZE_SPECIAL = 1, MOTE_TOKENIZE_BOS = 2 };

/* ids[capacity]; *n is the number there are, also when they do not fit (MOTE_ARGUMENT then).
 * length + 2 is always enough. Control tokens in the text stay text unless MOTE_TOKENIZE_SPECIAL. */
MOTE_API mote_status mote_model_tokenize(const mote_model *model, const char *text, size_t length, int flags,
                                         int32_t *ids, size_t capacity, size_t *n);
MOTE_API int mote_model_token_ends(const mote_model *model, int32_t id); /* end of text or of turn */

struct mote_chat_message {
    const char *role, *content;
};
/* The conversation as ids, ending with an open assistant turn. Capacity: sum of lengths + 16 * n_message + 16. */
MOTE_API mote_status mote_model_chat(const mote_model *model, const struct mote_chat_message *message,
                                     size_t n_message, int32_t *ids, size_t capacity, size_t *n);

/* ---- 3. a session: one timeline of tokens ---- */

MOTE_API mote_status mote_session_create(mote_model *model, mote_session **out);
MOTE_API void mote_session_destroy(mote_session *session);

/* Append ids[n], n >= 1, and compute the logits after the last one. MOTE_CONTEXT (both numbers in the message) when
 * they do not fit; MOTE_CANCELLED when mote_session_cancel was called meanwhile. After a failure the session is as
 * before. */
MOTE_API mote_status mote_session_eval(mote_session *session, const int32_t *ids, size_t n);
MOTE_API void mote_session_cancel(mote_session *session); /* from a signal handler or another thread */
MOTE_API int64_t mote_session_length(const mote_session *session);
MOTE_API const int32_t *mote_session_tokens(const mote_session *session); /* [length] */
MOTE_API mote_status mote_session_truncate(mote_session *session,
                                           int64_t length); /* forget what comes after */
/* [n_vocab], valid until the next eval; NULL before the first, or when the device fails to send them (mote_error): they
 * come over when they are asked for, so a loop that only samples should not ask. */
MOTE_API const float *mote_session_logits(const mote_session *session);

struct mote_sampler_options {
    size_t struct_size;
    float temperature;    /* <= 0: greedy */
    int top_k;            /* 0: off */
    float top_p, min_p;   /* top_p: 0 or 1 is off; min_p: 0 is off */
    float repeat_penalty; /* 0 or 1: off; over the last 64 tokens */
    uint64_t seed;
};
typedef struct mote_sampler mote_sampler;
MOTE_API mote_status mote_sampler_create(const mote_model *model, const struct mote_sampler_options *options,
                                         mote_sampler **out);
MOTE_API void mote_sampler_destroy(mote_sampler *sampler);
/* The next token for the session's logits (it is not appended). MOTE_NUMERIC on NaN logits, MOTE_ARGUMENT before the
 * first eval. The session must be of the sampler's model. On a device the best 256 logits usually decide (greedy, any
 * top_k of some dozens); the whole row is fetched where they do not, and the token is the same. */
MOTE_API mote_status mote_sampler_next(mote_sampler *sampler, const mote_session *session, int32_t *id);

/* Bytes of a token stream: complete UTF-8 only; call `end` for what was held back. out must have room for
 * mote_model_text_capacity bytes; *n is what was written. */
typedef struct mote_decoder mote_decoder;
MOTE_API mote_status mote_decoder_create(const mote_model *model, int show_control, mote_decoder **out);
MOTE_API void mote_decoder_destroy(mote_decoder *decoder);
MOTE_API size_t mote_model_text_capacity(const mote_model *model);
MOTE_API void mote_decoder_put(mote_decoder *decoder, int32_t id, char *out, size_t *n);
MOTE_API void mote_decoder_end(mote_decoder *decoder, char *out, size_t *n);

/* ---- 4. what is in a file, and what it will need ---- */

typedef struct mote_file mote_file; /* headers only: no weights are read */
MOTE_API mote_status mote_file_open(const char *path, mote_file **out);
MOTE_API void mote_file_close(mote_file *file);
MOTE_API const char *mote_file_source(const mote_file *file); /* "gguf", "huggingface", "mlx" */

struct mote_tensor_info {
    const char *name, *type; /* GGUF name; "q4_k" */
    int n_dim;
    int64_t dim[4]; /* dim[0] contiguous */
    uint64_t n_byte;
    double bits; /* per weight, scales included */
};
MOTE_API size_t mote_file_tensors(const mote_file *file);
MOTE_API void mote_file_tensor(const mote_file *file, size_t index, struct mote_tensor_info *out);
MOTE_API size_t mote_file_metas(const mote_file *file);
/* Value as text (strings and arrays cut at `capacity`, always terminated); *type is its GGUF type's name. */
MOTE_API void mote_file_meta(const mote_file *file, size_t index, const char **key, size_t *key_length,
                             const char **type, char *value, size_t capacity);
/* Value as JSON, whole, allocated: free it with mote_text_free. */
MOTE_API mote_status mote_file_json(const mote_file *file, char **out);
MOTE_API void mote_text_free(char *text);

/* Memory by kind, counted before anything is allocated; the same options as mote_model_open. A plan over `memory` is the
 * smallest there is, and no failure. */
struct mote_plan {
    size_t struct_size;
    uint64_t mapped, weights, kv, scratch, tables, total; /* bytes */
    uint64_t kv_per_token;
};
MOTE_API mote_status mote_model_plan(const char *path, const struct mote_model_options *options,
                                     struct mote_plan *out);

/* ---- 5. publishing: quantise and measure ---- */

struct mote_quantize_options {
    size_t struct_size;
    const char *type;        /* every matrix not named below: "q4_k", "tq1_0", "f16", ... (needed) */
    const char *expert_type; /* gate and up of experts; NULL: type */
    const char *down_type;   /* down of experts; NULL: expert_type */
    const char *attn_type;   /* attention matrices; NULL: type */
    const char *embed_type;  /* embedding and output; NULL: type */
    const char *imatrix;     /* path of an importance file; NULL: none */
    const char *name;        /* general.name; NULL: the source's */
    int n_thread;            /* 0: all */
    mote_progress_fn *progress;
    void *progress_context;
};
/* A GGUF, Hugging Face or MLX model to a GGUF. Norms, routers and biases stay in their type (f32). A row length that
 * the type's block does not divide falls back to the nearest type that fits, with a warning that names the tensor. */
MOTE_API mote_status mote_quantize(const char *in, const char *out,
                                   const struct mote_quantize_options *options);

struct mote_measure_options {
    size_t struct_size;
    int64_t window;   /* tokens per window; 0: 512 */
    int64_t n_window; /* at most; 0: all */
    mote_progress_fn *progress;
    void *progress_context;
};
struct mote_perplexity_result {
    size_t struct_size;
    int64_t n_window, n_token; /* n_token: predictions */
    double nll, nll_error;     /* mean negative log-likelihood, its standard error */
};
/* Documents in the text are separated by "\n\x1e\n". */
MOTE_API mote_status mote_measure_perplexity(mote_model *model, const char *text, size_t length,
                                             const struct mote_measure_options *options,
                                             struct mote_perplexity_result *out);

/* Column importance of every matrix from what flows through it: written as a GGUF (llama.cpp's imatrix layout). */
MOTE_API mote_status mote_measure_imatrix(mote_model *model, const char *text, size_t length, const char *out,
                                          const struct mote_measure_options *options);

struct mote_parity_layer {
    int64_t layer;
    double error; /* ||a - b||^2 / ||a||^2 of the block's output */
};
struct mote_parity_change { /* greedy choices that differ */
    int64_t position;
    int32_t token_a, token_b;
    double margin; /* logit of a's choice minus its runner-up */
};
struct mote_parity_result {
    size_t struct_size;
    int64_t n_token;
    double kl_mean, kl_max; /* KL(a || b) per position, nats */
    double top1;            /* share of positions with the same best token */
    double logit_error;     /* largest |a - b| over a's ten best */
    int64_t first_layer;    /* first layer whose error passes `layer_limit`; -1: none */
    double nll_a, nll_b;
    size_t n_layer, n_change;
    const struct mote_parity_layer *layer;   /* [n_layer] */
    const struct mote_parity_change *change; /* [n_change], at most 1000 */
    void *memory;
};
/* Two models on the same tokens (a's tokenizer; the vocabularies must be equal). */
MOTE_API mote_status mote_measure_parity(mote_model *a, mote_model *b, const char *text, size_t length,
                                         double layer_limit, const struct mote_measure_options *options,
                                         struct mote_parity_result *out);
MOTE_API void mote_parity_result_free(struct mote_parity_result *parity);

/* A valid model of true shapes with encoded Gaussian weights and the given model's tokenizer: a GGUF, or, of type affine2
 * to affine8, an MLX folder (groups of 64, f16 scales; `out` must be new or an empty folder). */
struct mote_synth_options {
    size_t struct_size;
    const char *shape;                  /* "qwen3-30b-a3b", ...: mote_synth_shape lists them */
    const char *type;                   /* of experts, and of everything below unless named */
    const char *attn_type, *embed_type; /* in an MLX folder affine ones, f16, bf16 or f32 */
    int64_t n_layer;                    /* 0: all of the shape's */
    const char *tokenizer; /* GGUF file or folder to take the tokenizer from; NULL: the built-in one */
    uint64_t seed;
    int n_thread;
    mote_progress_fn *progress;
    void *progress_context;
};
MOTE_API mote_status mote_synth(const char *out, const struct mote_synth_options *options);
MOTE_API const char *mote_synth_shape(size_t index); /* NULL past the end */

/* Bytes per second that n_thread threads (0: all) read from memory, plainly: the bandwidth floors are made of.
 * Takes about a third of a second. */
MOTE_API mote_status mote_measure_bandwidth(int n_thread, double *out);
/* The same for where a model runs: device as in mote_model_options; n_thread is for the CPU. */
MOTE_API mote_status mote_device_bandwidth(const char *device, int n_thread, double *out);

/* ---- 6. benchmarks ---- */

/* One launch of an expert block: what the block takes longer than the same block ended before it. */
struct mote_bench_kernel {
    const char *name;
    double seconds;
};
struct mote_bench_row {
    const char *what; /* "kernel", "moe", "model" */
    const char *name; /* kernel: "dot q4_k"; moe: the shape; model: "pp512", "tg128 @ 2048" */
    const char *type;
    int64_t rows;      /* rows of activations, or tokens */
    double seconds;    /* median of one run */
    double low, high;  /* minimum and maximum */
    double bytes;      /* weights read by one run */
    double operations; /* multiply-adds x 2 */
    double floor;      /* seconds: bytes at the bandwidth, or operations at `rate` where those take longer */
    int64_t experts;   /* distinct experts per run; 0: none */
    const char *act;   /* moe: mote_model_options.act, "default"; else NULL */
    double rate;       /* operations per second that the floor counts with; 0: not known */
    const struct mote_bench_kernel
        *kernel; /* [n_kernel]: moe on a GPU, asked for: what the run is made of, in order */
    size_t n_kernel;
};
typedef int mote_bench_fn(void *context, const struct mote_bench_row *row); /* non-zero stops */

struct mote_bench_options {
    size_t struct_size;
    const char *what;    /* "kernel", "moe" or "model" */
    const char *type;    /* kernel and moe: one format, NULL: all of them */
    const char *shape;   /* moe: "128/2048/768/8" or a name of mote_bench_shape */
    const char *model;   /* model: path */
    const int64_t *rows; /* kernel, moe: activation rows; model: prompt lengths */
    size_t n_row;
    const int64_t *depth; /* model: tokens in the cache before generation */
    size_t n_depth;
    int64_t n_generate; /* model: 0: 64 */
    int n_repeat;       /* 0: 5 */
    int n_thread;
    struct mote_model_options *model_options;
    const int64_t *batch; /* model: sessions that generate together, each 1..64; none: 1 */
    size_t n_batch;
    const char *activation; /* moe: swiglu, swiglu_clamped, swiglu_step, swiglu_oai, relu2; NULL: swiglu */
    int compact;            /* moe: on a GPU, weights as small as where they have no room (mote_model_open) */
    /* moe: "router" (also NULL): the block begins with a router and its choice; "uniform": experts and weights are there,
     * drawn beforehand without favourites and, in a row, without repeats. */
    const char *routing;
    int kernels;      /* moe on a GPU: take the time of every launch too */
    double bandwidth; /* bytes per second that floors count with; 0: measured */
    int unordered;    /* moe: as struct mote_moe_options has it */
};
/* Shapes of expert blocks known by name: whole models', and a rank's part of one. dims: experts, model width, expert
 * width, experts used. NULL past the end. */
MOTE_API const char *mote_bench_shape(size_t index, int64_t dims[4]);
/* *bandwidth: bytes per second that floors count with: the options', or plain reads measured at the start of the run. */
MOTE_API mote_status mote_bench(const struct mote_bench_options *options, double *bandwidth,
                                mote_bench_fn *fn, void *context);

/* ---- 7. devices and their kernels ---- */

struct mote_device_info {
    size_t struct_size;
    char id[16];      /* "cpu", "cuda:0" */
    char name[128];   /* "NVIDIA H200" */
    char arch[16];    /* what kernels are made for: "avx2", "sm_90a" */
    int n_unit;       /* threads of this process, or multiprocessors */
    uint64_t memory;  /* bytes in all */
    uint64_t free;    /* bytes that are free now; 0 on a GPU when not measured */
    double bandwidth; /* bytes per second of plain reads; 0: not measured */
    char fault[512];  /* why it cannot be used; "": it can */
};
/* The CPU is device 0, NVIDIA devices that the driver knows follow. */
MOTE_API int mote_device_count(void);
/* measure: opens the device (and compiles a kernel where the cache lacks it) and reads a GiB or two some times over:
 * about a third of a second. What goes wrong there is `fault`, not a failure. MOTE_ARGUMENT: there is no such device. */
MOTE_API mote_status mote_device_describe(int index, int measure, struct mote_device_info *out);

/* What kernels of NVIDIA devices need, and where compiled ones are kept. */
struct mote_cuda_support {
    size_t struct_size;
    int driver, nvrtc;      /* CUDA versions, 13000 for 13.0; 0: not found */
    char driver_fault[512]; /* why the driver cannot be used; "": it can */
    char nvrtc_fault[512];  /* likewise for the compiler */
    char cache[1024];       /* folder */
    uint64_t cache_byte, cache_entry;
};
MOTE_API mote_status mote_cuda_support(struct mote_cuda_support *out);

struct mote_kernel_row {
    const char *arch, *text, *what, *kernel; /* "sm_90a", "decode.cu", "q4_k", the kernel's name */
    int registers;                           /* of a thread */
    int shared, spill, stack; /* bytes: static of a block; of a thread: stored and loaded again, frame */
};
typedef void mote_kernel_fn(void *context, const struct mote_kernel_row *row);
/* Compile into the cache, on all CPUs, what `model` (a path) needs, or representative kernels (NULL); no device is
 * needed, and a machine without NVRTC that is given the cache folder runs the model (tq1_0 and ptq1_0: where they have
 * room, see mote_model_open). arch: "sm_80", "sm_89", "sm_90a", "sm_120", ...; NULL: the first device's. act: as in
 * mote_model_options. MOTE_DEVICE with the compiler's words, MOTE_NOT_FOUND without a compiler. */
MOTE_API mote_status mote_kernels_build(const char *arch, const char *model, const char *act,
                                        mote_progress_fn *progress, void *progress_context,
                                        mote_kernel_fn *fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
