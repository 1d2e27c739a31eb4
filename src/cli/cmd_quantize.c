/* cmd_quantize.c: mote quantize and mote synth: the commands that write a model. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

static void show_written(const char *path, double start)
{
    struct stat info;
    char weights[4096];
    int known = stat(path, &info) == 0;
    if (known && S_ISDIR(info.st_mode)) {
        snprintf(weights, sizeof weights, "%s/model.safetensors", path);
        known = stat(weights, &info) == 0;
    }
    if (known)
        fprintf(stderr, "%s: %s in %.1f s\n", path, show_bytes((double)info.st_size), now_seconds() - start);
}

static int quantize(const struct command *self, int argc, char **argv)
{
    struct mote_quantize_options options = MOTE_OPTIONS(mote_quantize_options);
    int64_t n_thread = 0;
    const struct option_row table[] = {
        {0, "type", OPTION_TEXT, &options.type, "type of every matrix not named below"},
        {0, "expert-type", OPTION_TEXT, &options.expert_type, "gate and up of experts (--type)"},
        {0, "down-type", OPTION_TEXT, &options.down_type, "down of experts (--expert-type)"},
        {0, "attn-type", OPTION_TEXT, &options.attn_type, "attention (--type)"},
        {0, "embed-type", OPTION_TEXT, &options.embed_type, "embedding and output (--type)"},
        {0, "imatrix", OPTION_TEXT, &options.imatrix, "importance file made by mote imatrix"},
        {0, "name", OPTION_TEXT, &options.name, "general.name of the result"},
        {'t', "threads", OPTION_INT, &n_thread, "threads (all CPUs)"},
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (left != 2) return usage_error(self, "expected IN and OUT, got %d arguments", left);
    if (!options.type) return usage_error(self, "--type is missing");
    options.n_thread = (int)n_thread;
    options.progress = show_progress;
    interrupt_watch(NULL);
    double start = now_seconds();
    int code = report(self, mote_quantize(argv[0], argv[1], &options));
    if (code == EXIT_DONE) show_written(argv[1], start);
    return code;
}

static int synth(const struct command *self, int argc, char **argv)
{
    struct mote_synth_options options = MOTE_OPTIONS(mote_synth_options);
    int64_t n_thread = 0, seed = 1;
    int list = 0;
    const struct option_row table[] = {
        {0, "shape", OPTION_TEXT, &options.shape, "whose shape, e.g. qwen3-30b-a3b (--list)"},
        {0, "type", OPTION_TEXT, &options.type,
         "type of the experts, and of the rest; affine4: an MLX folder"},
        {0, "attn-type", OPTION_TEXT, &options.attn_type, "attention (--type)"},
        {0, "embed-type", OPTION_TEXT, &options.embed_type, "embedding and output (--type)"},
        {0, "layers", OPTION_INT, &options.n_layer, "only so many layers (all)"},
        {0, "tokenizer", OPTION_TEXT, &options.tokenizer, "model to take the tokenizer from (built-in)"},
        {0, "seed", OPTION_INT, &seed, "same seed, same file (1)"},
        {'t', "threads", OPTION_INT, &n_thread, "threads (all CPUs)"},
        {0, "list", OPTION_FLAG, &list, "list the shapes"},
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (list) {
        for (size_t i = 0; mote_synth_shape(i); i++) puts(mote_synth_shape(i));
        return EXIT_DONE;
    }
    if (left != 1) return usage_error(self, "expected OUT, got %d arguments", left);
    if (!options.shape || !options.type)
        return usage_error(self, "--%s is missing", options.shape ? "type" : "shape");
    options.n_thread = (int)n_thread;
    options.seed = (uint64_t)seed;
    options.progress = show_progress;
    interrupt_watch(NULL);
    double start = now_seconds();
    int code = report(self, mote_synth(argv[0], &options));
    if (code == EXIT_DONE) show_written(argv[0], start);
    return code;
}

const struct command command_quantize = {"quantize",
                                         "a GGUF, Hugging Face or MLX model to a GGUF of other types",
                                         "IN OUT --type TYPE [options]", quantize};
const struct command command_synth = {"synth",
                                      "a GGUF or MLX folder of true shapes, random weights, for timing",
                                      "OUT --shape SHAPE --type TYPE [--layers N]", synth};
