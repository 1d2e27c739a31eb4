/* cli.h: what the commands share: options, sizes, reading text, reporting errors.
 *
 * The program uses the public header mote.h and nothing else of the library: that is the proof that it is
 * enough. Answers go to standard output, everything else (progress, timings, warnings, errors) to standard
 * error.
 */
#ifndef MOTE_CLI_H
#define MOTE_CLI_H

#include <stddef.h>
#include <stdint.h>

#include "mote.h"

/* Exit codes: 0 done, 1 the work failed, 2 the command line is wrong, 130 interrupted. */
enum { EXIT_DONE = 0, EXIT_WORK = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

struct command {
    const char *name, *summary, *usage;
    int (*run)(const struct command *self, int argc, char **argv);
};

extern const struct command command_run, command_chat, command_inspect, command_plan, command_quantize,
    command_perplexity, command_parity, command_imatrix, command_synth, command_bench, command_info,
    command_kernels;

/* ---- options: a table per command ---- */
enum option_kind { OPTION_FLAG, OPTION_INT, OPTION_FLOAT, OPTION_TEXT, OPTION_SIZE, OPTION_TEXTS };

/* Of an option that may be given several times. */
struct option_texts {
    const char *text[16];
    int n;
};

struct option_row {
    char letter;      /* 0: none */
    const char *name; /* without dashes; NULL ends the table */
    enum option_kind kind;
    void *value; /* int *, int64_t *, double *, const char **, uint64_t *, struct option_texts * */
    const char *help;
};

/* Fill the values. Positional arguments are moved to argv[0..return); -1 when the line is wrong (said on
 * stderr);
 * --help prints the usage and the table and exits with 0. */
int options_parse(const struct command *command, const struct option_row *table, int argc, char **argv);

/* The rows that every command with a model takes, and what they fill. */
struct model_rows {
    const char *model;
    int64_t n_thread, n_ctx, n_batch;
    uint64_t memory;
    const char *act, *moe, *kv, *device;
};
#define MODEL_ROWS(m)                                                                          \
    {'m', "model", OPTION_TEXT, &(m).model, "GGUF file, Hugging Face folder or MLX folder"},   \
        {'t', "threads", OPTION_INT, &(m).n_thread, "threads (all CPUs)"},                     \
        {'c', "ctx", OPTION_INT, &(m).n_ctx, "tokens of context (the model's, at most 4096)"}, \
        {'b', "batch", OPTION_INT, &(m).n_batch, "prompt tokens per step (512)"},              \
        {0, "memory", OPTION_SIZE, &(m).memory, "hard limit, e.g. 6G (none)"},                 \
        {0, "act", OPTION_TEXT, &(m).act, "activation type: default, f32, mxfp4"},             \
        {0, "moe", OPTION_TEXT, &(m).moe, "expert block: fused, unfused, portable"},           \
        {'D', "device", OPTION_TEXT, &(m).device, "where to run: cpu, cuda, cuda:N (cpu)"},    \
    {                                                                                          \
        0, "kv", OPTION_TEXT, &(m).kv, "KV cache type: f16, f32, q8_0"                         \
    }

struct mote_model_options model_options(const struct model_rows *rows);

/* Say "mote NAME: message" and return the exit code for the status. */
int report(const struct command *command, mote_status status);
int usage_error(const struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A whole file, or standard input for NULL: malloc'ed, terminated. NULL on failure (said on stderr). */
char *read_text(const struct command *command, const char *path, size_t *length);

/* "1,8,32" to numbers; the count, or -1. */
int parse_list(const char *text, int64_t *out, int capacity);

/* "5.2 GB" in a static buffer (four of them in turn). */
const char *show_bytes(double bytes);

/* A progress line on stderr when it is a terminal, with rate and time left; passes Ctrl-C on as a
 * cancellation. */
int show_progress(void *context, const char *what, uint64_t done, uint64_t total, const char *unit);

double now_seconds(void);

/* ---- Ctrl-C: the first one stops the answer, a second one within it ends the program ---- */
void interrupt_watch(mote_session *session); /* NULL: just remember */
int interrupted(void);                       /* since the last watch */

/* A string as a JSON string on `stream` (a FILE *). */
void put_json_text(void *stream, const char *text, size_t length);

#endif
