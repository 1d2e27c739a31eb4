/* cmd_bench.c: mote bench: kernels, the MoE block, the whole model; every figure next to its floor. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum bench_output { OUTPUT_TABLE, OUTPUT_CSV, OUTPUT_JSON };

struct bench_sheet {
    enum bench_output output;
    int n_row;
};

/* What a row is shown as: the row in the units of the outputs. */
struct shown {
    double us, low, high, floor, share; /* microseconds; floor / us */
    double gb_s, tflop_s, rows_s;
};

static double per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0;
}

static void show_csv(const struct mote_bench_row *row, const struct shown *s, int is_first)
{
    if (is_first)
        puts("what,name,type,act,rows,us,us_low,us_high,bytes,gb_s,tflop_s,rows_s,floor_us,share,experts,"
             "kernels");
    printf("%s,%s,%s,%s,%lld,%.3f,%.3f,%.3f,%.0f,%.3f,%.4f,%.2f,%.3f,%.4f,%lld,", row->what, row->name,
           row->type, row->act ? row->act : "", (long long)row->rows, s->us, s->low, s->high, row->bytes,
           s->gb_s, s->tflop_s, s->rows_s, s->floor, s->share, (long long)row->experts);
    for (size_t i = 0; i < row->n_kernel; i++)
        printf("%s%s=%.3f", i ? " " : "", row->kernel[i].name, 1e6 * row->kernel[i].seconds);
    putchar('\n');
}

static void show_json(const struct mote_bench_row *row, const struct shown *s, int is_first)
{
    printf("%s{\"what\": \"%s\", \"name\": \"%s\", \"type\": \"%s\", \"act\": \"%s\", \"rows\": %lld, "
           "\"us\": %.3f, "
           "\"us_low\": %.3f, \"us_high\": %.3f, \"bytes\": %.0f, \"gb_s\": %.3f, \"tflop_s\": %.4f, "
           "\"rows_s\": %.2f, \"floor_us\": %.3f, \"share\": %.4f, \"experts\": %lld, \"kernels\": [",
           is_first ? "[\n " : ",\n ", row->what, row->name, row->type, row->act ? row->act : "",
           (long long)row->rows, s->us, s->low, s->high, row->bytes, s->gb_s, s->tflop_s, s->rows_s, s->floor,
           s->share, (long long)row->experts);
    for (size_t i = 0; i < row->n_kernel; i++)
        printf("%s{\"name\": \"%s\", \"us\": %.3f}", i ? ", " : "", row->kernel[i].name,
               1e6 * row->kernel[i].seconds);
    printf("]}");
}

static void show_line(const struct mote_bench_row *row, const struct shown *s, int is_first)
{
    if (is_first)
        printf("%-28s %-9s %-7s %6s %12s %19s %10s %6s %8s %9s %10s %7s\n", "name", "type", "act", "rows",
               "us", "us low..high", "floor us", "floor", "GB/s", "TFLOP/s", "rows/s", "experts");
    printf("%-28s %-9s %-7s %6lld %12.1f %9.1f %9.1f %10.1f %5.0f%% %8.2f %9.3f %10.2f %7lld\n", row->name,
           row->type, row->act ? row->act : "", (long long)row->rows, s->us, s->low, s->high, s->floor,
           100 * s->share, s->gb_s, s->tflop_s, s->rows_s, (long long)row->experts);
    for (size_t i = 0; i < row->n_kernel; i++)
        printf("  %-43s %6s %12.1f\n", row->kernel[i].name, "", 1e6 * row->kernel[i].seconds);
}

static int show_row(void *context, const struct mote_bench_row *row)
{
    struct bench_sheet *sheet = context;
    int is_first = sheet->n_row++ == 0;
    const struct shown s = {.us = 1e6 * row->seconds,
                            .low = 1e6 * row->low,
                            .high = 1e6 * row->high,
                            .floor = 1e6 * row->floor,
                            .share = per_second(row->floor, row->seconds),
                            .gb_s = per_second(row->bytes, row->seconds) / 1e9,
                            .tflop_s = per_second(row->operations, row->seconds) / 1e12,
                            .rows_s = per_second((double)row->rows, row->seconds)};
    switch (sheet->output) {
    case OUTPUT_CSV: show_csv(row, &s, is_first); break;
    case OUTPUT_JSON: show_json(row, &s, is_first); break;
    case OUTPUT_TABLE: show_line(row, &s, is_first); break;
    }
    fflush(stdout);
    return interrupted();
}

static void list_shapes(void)
{
    int64_t d[4];
    printf("%-24s %8s %12s %13s %6s\n", "name", "experts", "model width", "expert width", "used");
    for (size_t i = 0; mote_bench_shape(i, d); i++)
        printf("%-24s %8lld %12lld %13lld %6lld\n", mote_bench_shape(i, d), (long long)d[0], (long long)d[1],
               (long long)d[2], (long long)d[3]);
}

static int bench(const struct command *self, int argc, char **argv)
{
    struct model_rows m = {0};
    struct mote_bench_options options = MOTE_OPTIONS(mote_bench_options);
    const char *rows = NULL, *depth = NULL, *batch = NULL;
    int64_t n_repeat = 0;
    double gigabytes = 0;
    int csv = 0, json = 0;
    int64_t row_list[32], depth_list[32], batch_list[32];
    const struct option_row table[] = {
        MODEL_ROWS(m),
        {0, "type", OPTION_TEXT, &options.type, "kernel, moe: one format (all)"},
        {0, "shape", OPTION_TEXT, &options.shape, "moe: NE/D/F/K or a name of bench shapes (128/2048/768/8)"},
        {0, "activation", OPTION_TEXT, &options.activation,
         "moe: swiglu, swiglu_clamped, swiglu_step, swiglu_oai, relu2 (no gate)"},
        {0, "routing", OPTION_TEXT, &options.routing,
         "moe: router: part of the block (default); uniform: experts drawn beforehand"},
        {0, "kernels", OPTION_FLAG, &options.kernels, "moe on a GPU: the time of every kernel too"},
        {0, "unordered", OPTION_FLAG, &options.unordered,
         "moe: a row's experts may be added in any order (faster for few rows, other bits in every run)"},
        {0, "bandwidth", OPTION_FLOAT, &gigabytes, "GB/s that floors count with (measured in this run)"},
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
    if (!strcmp(options.what, "shapes")) {
        list_shapes();
        return EXIT_DONE;
    }
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
    options.bandwidth = 1e9 * gigabytes;
    options.n_thread = (int)m.n_thread;
    if (!strcmp(options.what, "model") && !m.model) return usage_error(self, "-m MODEL is missing");
    interrupt_watch(NULL);
    struct bench_sheet sheet = {json ? OUTPUT_JSON : csv ? OUTPUT_CSV : OUTPUT_TABLE, 0};
    double bandwidth = 0;
    mote_status status = mote_bench(&options, &bandwidth, show_row, &sheet);
    if (json) puts(sheet.n_row ? "\n]" : "[]");
    if (status == MOTE_OK)
        fprintf(stderr, "%s: %s/s\n", gigabytes > 0 ? "bandwidth of the floors" : "plain reads in this run",
                show_bytes(bandwidth));
    return report(self, status);
}

const struct command command_bench = {"bench",
                                      "time kernels, the expert block or a whole model, next to the floor",
                                      "[kernel|moe|model|shapes] [options]", bench};
