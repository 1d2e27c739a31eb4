/* cmd_inspect.c: mote inspect and mote plan: what is in a model, and what it will need. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* Bytes and weights by tensor type, in order of first appearance. */
struct type_sum {
    const char *type;
    size_t n_tensor;
    double n_byte, n_weight;
};

static size_t sum_types(const mote_file *file, struct type_sum *sum, size_t capacity)
{
    size_t n = 0;
    for (size_t i = 0; i < mote_file_tensors(file); i++) {
        struct mote_tensor_info info;
        mote_file_tensor(file, i, &info);
        size_t at = 0;
        while (at < n && strcmp(sum[at].type, info.type)) at++;
        if (at == capacity) continue;
        if (at == n) sum[n++] = (struct type_sum){.type = info.type};
        double weights = 1;
        for (int k = 0; k < info.n_dim; k++) weights *= (double)info.dim[k];
        sum[at].n_tensor++;
        sum[at].n_byte += (double)info.n_byte;
        sum[at].n_weight += weights;
    }
    return n;
}

static void show_file(const mote_file *file, const char *path)
{
    printf("%s: %s, %zu tensors, %zu keys\n\n", path, mote_file_source(file), mote_file_tensors(file),
           mote_file_metas(file));
    for (size_t i = 0; i < mote_file_metas(file); i++) {
        const char *key, *type;
        size_t length;
        char value[96];
        mote_file_meta(file, i, &key, &length, &type, value, sizeof value);
        for (char *c = value; *c; c++)
            if ((unsigned char)*c < 32) *c = ' ';
        printf("  %-46.*s %-8s %s\n", (int)length, key, type, value);
    }
    printf("\n  %-42s %-9s %-26s %12s\n", "tensor", "type", "shape", "bytes");
    for (size_t i = 0; i < mote_file_tensors(file); i++) {
        struct mote_tensor_info info;
        mote_file_tensor(file, i, &info);
        char shape[96];
        int at = 0;
        for (int k = 0; k < info.n_dim; k++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, k ? " x %lld" : "%lld",
                           (long long)info.dim[k]);
        printf("  %-42s %-9s %-26s %12llu\n", info.name, info.type, shape, (unsigned long long)info.n_byte);
    }
    struct type_sum sum[64];
    size_t n = sum_types(file, sum, 64);
    double bytes = 0, weights = 0;
    printf("\n  %-9s %8s %14s %12s %8s\n", "type", "tensors", "weights", "bytes", "bits");
    for (size_t i = 0; i < n; i++) {
        printf("  %-9s %8zu %14.0f %12s %8.3f\n", sum[i].type, sum[i].n_tensor, sum[i].n_weight,
               show_bytes(sum[i].n_byte), 8 * sum[i].n_byte / sum[i].n_weight);
        bytes += sum[i].n_byte;
        weights += sum[i].n_weight;
    }
    printf("  %-9s %8zu %14.0f %12s %8.3f\n", "all", mote_file_tensors(file), weights, show_bytes(bytes),
           weights > 0 ? 8 * bytes / weights : 0);
}

static int inspect(const struct command *self, int argc, char **argv)
{
    const char *path = NULL;
    int json = 0;
    const struct option_row table[] = {
        {'m', "model", OPTION_TEXT, &path, "GGUF file, Hugging Face folder or MLX folder"},
        {0, "json", OPTION_FLAG, &json, "everything as JSON"},
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (!path && left == 1) path = argv[0], left = 0;
    if (!path || left)
        return usage_error(self, path ? "unexpected argument '%s'" : "MODEL is missing", argv[0]);
    mote_file *file;
    mote_status status = mote_file_open(path, &file);
    if (status == MOTE_OK && json) {
        char *text;
        status = mote_file_json(file, &text);
        if (status == MOTE_OK) {
            puts(text);
            mote_text_free(text);
        }
    } else if (status == MOTE_OK) {
        show_file(file, path);
    }
    int code = report(self, status);
    if (file) mote_file_close(file);
    return code;
}

static int plan(const struct command *self, int argc, char **argv)
{
    struct model_rows m = {0};
    int json = 0;
    const struct option_row table[] = {
        MODEL_ROWS(m),
        {0, "json", OPTION_FLAG, &json, "as JSON"},
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (!m.model && left == 1) m.model = argv[0], left = 0;
    if (!m.model) return usage_error(self, "-m MODEL is missing");
    if (left) return usage_error(self, "unexpected argument '%s'", argv[0]);
    struct mote_model_options options = model_options(&m);
    struct mote_plan need = MOTE_OPTIONS(mote_plan);
    mote_status status = mote_model_plan(m.model, &options, &need);
    if (status != MOTE_OK) return report(self, status);
    const struct {
        const char *name, *what;
        uint64_t bytes;
    } rows[] = {
        {"mapped", "weights, read in place from the file", need.mapped},
        {"weights", "weights in memory of their own", need.weights},
        {"kv", "keys and values", need.kv},
        {"scratch", "between the layers", need.scratch},
        {"tables", "vocabulary, catalogue, program", need.tables},
        {"total", "", need.total},
    };
    enum { N = sizeof rows / sizeof *rows };
    if (json) {
        putchar('{');
        for (int i = 0; i < N; i++) printf("\"%s\": %llu, ", rows[i].name, (unsigned long long)rows[i].bytes);
        printf("\"kv_per_token\": %llu}\n", (unsigned long long)need.kv_per_token);
    } else {
        for (int i = 0; i < N; i++)
            printf("%-8s %14llu  %10s  %s\n", rows[i].name, (unsigned long long)rows[i].bytes,
                   show_bytes((double)rows[i].bytes), rows[i].what);
    }
    if (m.memory && need.total > m.memory) {
        fprintf(stderr, "mote plan: over the limit of %llu bytes; --memory %llu would do\n",
                (unsigned long long)m.memory, (unsigned long long)need.total);
        return EXIT_WORK;
    }
    return EXIT_DONE;
}

const struct command command_inspect = {"inspect", "metadata, tensors, types and sizes of a model",
                                        "[--json] MODEL", inspect};
const struct command command_plan = {"plan", "memory by kind, before anything is loaded",
                                     "-m MODEL [-c N] [--memory SIZE] [--json]", plan};
