/* cmd_bench.c: mote bench: kernels, the MoE block, the whole model; every figure next to its floor. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum bench_output { OUTPUT_TABLE, OUTPUT_CSV, OUTPUT_JSON };

struct bench_sheet {
    enum bench_output output;
    int n_row;
};

static int show_row(void *context, const struct mote_bench_row *row)
{
    struct bench_sheet *sheet = context;
    double share = row->seconds > 0 ? 100 * row->floor / row->seconds : 0;
    double rate = row->seconds > 0 ? row->bytes / row->seconds / 1e9 : 0;
    double work = row->seconds > 0 ? row->operations / row->seconds / 1e9 : 0;
    double tokens = row->seconds > 0 ? (double)row->rows / row->seconds : 0;
    int first = sheet->n_row++ == 0;
    switch (sheet->output) {
    case OUTPUT_CSV:
        if (first)
            printf("what,name,type,rows,us,us_low,us_high,bytes,gb_s,gop_s,rows_s,floor_us,share,experts\n");
        printf("%s,%s,%s,%lld,%.3f,%.3f,%.3f,%.0f,%.3f,%.3f,%.2f,%.3f,%.4f,%lld\n", row->what, row->name,
               row->type, (long long)row->rows, 1e6 * row->seconds, 1e6 * row->low, 1e6 * row->high,
               row->bytes, rate, work, tokens, 1e6 * row->floor, share / 100, (long long)row->experts);
        break;
    case OUTPUT_JSON:
        printf("%s{\"what\": \"%s\", \"name\": \"%s\", \"type\": \"%s\", \"rows\": %lld, \"us\": %.3f, "
               "\"us_low\": %.3f, "
               "\"us_high\": %.3f, \"bytes\": %.0f, \"gb_s\": %.3f, \"gop_s\": %.3f, \"rows_s\": %.2f, "
               "\"floor_us\": %.3f, "
               "\"share\": %.4f, \"experts\": %lld}",
               first ? "[\n " : ",\n ", row->what, row->name, row->type, (long long)row->rows,
               1e6 * row->seconds, 1e6 * row->low, 1e6 * row->high, row->bytes, rate, work, tokens,
               1e6 * row->floor, share / 100, (long long)row->experts);
        break;
    case OUTPUT_TABLE:
        if (first)
            printf("%-28s %-9s %6s %12s %19s %8s %9s %10s %6s %7s\n", "name", "type", "rows", "us",
                   "us low..high", "GB/s", "Gop/s", "rows/s", "floor", "experts");
        printf("%-28s %-9s %6lld %12.1f %9.1f %9.1f %8.2f %9.1f %10.2f %5.0f%% %7lld\n", row->name, row->type,
               (long long)row->rows, 1e6 * row->seconds, 1e6 * row->low, 1e6 * row->high, rate, work, tokens,
               share, (long long)row->experts);
        break;
    }
    fflush(stdout);
    return interrupted();
}

static int bench(const struct command *self, int argc, char **argv)
{
    struct model_rows m = {0};
    struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
    const char *rows = NULL, *depth = NULL, *batch = NULL;
    int64_t n_repeat = 0;
    int csv = 0, json = 0;
    int64_t row_list[32], depth_list[32], batch_list[32];
    const struct option_row table[] = {
        MODEL_ROWS(m),
        {0, "type", OPTION_TEXT, &options.type, "kernel, moe: one format (all)"},
        {0, "shape", OPTION_TEXT, &options.shape, "moe: NE/D/F/K or a shape's name (128/2048/768/8)"},
        {0, "activation", OPTION_TEXT, &options.activation,
         "moe: swiglu, swiglu_clamped, swiglu_step, swiglu_oai, relu2 (no gate)"},
        {0, "compact", OPTION_FLAG, &options.compact,
         "moe: weights as where a GPU has no room for wider ones"},
        {'M', "rows", OPTION_TEXT, &rows, "activation rows, or prompt lengths: 1,8,64"},
        {'d', "depth", OPTION_TEXT, &depth, "model: tokens in the cache before generation: 0,2048"},
        {'B', "sessions", OPTION_TEXT, &batch, "model: sessions that generate together: 1,4,16"},
        {'n', "tokens", OPTION_INT, &options.n_generate, "model: tokens to generate (64)"},
        {'r', "repeat", OPTION_INT, &n_repeat, "runs of each (5)"},
        {0, "csv", OPTION_FLAG, &csv, "comma-separated"},
        {0, "json", OPTION_FLAG, &json, "JSON"},
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (left > 1) return usage_error(self, "unexpected argument '%s'", argv[1]);
    options.what = left ? argv[0] : m.model ? "model" : "kernel";
    if (rows) {
        int n = parse_list(rows, row_list, 32);
        if (n < 1) return usage_error(self, "-M %s: expected numbers such as 1,8,64", rows);
        options.rows = row_list;
        options.n_row = (size_t)n;
    }
    if (depth) {
        int n = parse_list(depth, depth_list, 32);
        if (n < 1) return usage_error(self, "-d %s: expected numbers such as 0,2048", depth);
        options.depth = depth_list;
        options.n_depth = (size_t)n;
    }
    if (batch) {
        int n = parse_list(batch, batch_list, 32);
        if (n < 1) return usage_error(self, "-B %s: expected numbers such as 1,4,16", batch);
        options.batch = batch_list;
        options.n_batch = (size_t)n;
    }
    struct mote_model_options model = model_options(&m);
    options.model = m.model;
    options.model_options = &model;
    options.n_repeat = (int)n_repeat;
    options.n_thread = (int)m.n_thread;
    if (!strcmp(options.what, "model") && !m.model) return usage_error(self, "-m MODEL is missing");
    interrupt_watch(NULL);
    struct bench_sheet sheet = {json ? OUTPUT_JSON : csv ? OUTPUT_CSV : OUTPUT_TABLE, 0};
    double bandwidth = 0;
    mote_status status = mote_bench(&options, &bandwidth, show_row, &sheet);
    if (json) puts(sheet.n_row ? "\n]" : "[]");
    if (status == MOTE_OK) fprintf(stderr, "plain reads in this run: %s/s\n", show_bytes(bandwidth));
    return report(self, status);
}

const struct command command_bench = {"bench",
                                      "time kernels, the expert block or a whole model, next to the floor",
                                      "[kernel|moe|model] [options]", bench};
