/* main.c: mote COMMAND: finds the command and runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static const struct command *const commands[] = {
    &command_run,      &command_chat,       &command_inspect, &command_plan,
    &command_quantize, &command_perplexity, &command_parity,  &command_imatrix,
    &command_synth,    &command_bench,      &command_info,    &command_kernels,
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void show_log(void *context, int level, const char *message)
{
    (void)context;
    /* Notes (a default that most files leave out) are for `MOTE_VERBOSE=1`. */
    const char *verbose = getenv("MOTE_VERBOSE");
    if (level > 0 && !(verbose && *verbose)) return;
    fprintf(stderr, "mote: %s%s\n", level == 0 ? "warning: " : "", message);
}

static void show_usage(FILE *out)
{
    fprintf(out, "mote %s: runs mixture-of-experts language models with experts in 1 to 8 bits\n\n",
            mote_version());
    fprintf(out, "usage: mote COMMAND [options]    (mote COMMAND --help lists them)\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
}

int main(int argc, char **argv)
{
    mote_log_handler(show_log, NULL);
    if (argc < 2) {
        show_usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        printf("mote %s\n", mote_version());
        return EXIT_DONE;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        show_usage(stdout);
        return EXIT_DONE;
    }
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(name, commands[i]->name)) {
            int code = commands[i]->run(commands[i], argc - 2, argv + 2);
            /* A full disk or a closed pipe is a failure of the command, not of a later reader. */
            if (fflush(stdout) != 0 && code == EXIT_DONE) {
                fprintf(stderr, "mote %s: cannot write to standard output\n", name);
                code = EXIT_WORK;
            }
            return code;
        }
    fprintf(stderr, "mote: no command '%s'; there are:", name);
    for (int i = 0; i < COMMAND_COUNT; i++) fprintf(stderr, " %s", commands[i]->name);
    fprintf(stderr, "\n");
    return EXIT_USAGE;
}
