/* options.c: the option tables (through getopt_long) and the small things that commands share. See cli.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

enum { MAX_ROWS = 40 };

static void show_help(const struct command *command, const struct option_row *table)
{
    printf("usage: mote %s %s\n%s\n\n", command->name, command->usage, command->summary);
    for (const struct option_row *row = table; row->name; row++) {
        static const char *const value[] = {"", " N", " X", " TEXT", " SIZE", " TEXT"};
        char left[64];
        snprintf(left, sizeof left, "--%s%s", row->name, value[row->kind]);
        if (row->letter) printf("  -%c, %-24s %s\n", row->letter, left, row->help);
        else printf("      %-24s %s\n", left, row->help);
    }
}

int usage_error(const struct command *command, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "mote %s: ", command->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nusage: mote %s %s\n", command->name, command->usage);
    return EXIT_USAGE;
}

/* 6G, 512M, 1.5g, 100000; binary multiples. */
static int parse_size(const char *text, uint64_t *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || !(value >= 0)) return -1;
    double unit = 1;
    switch (*end) {
    case 'k':
    case 'K':
        unit = 0x1p10;
        end++;
        break;
    case 'm':
    case 'M':
        unit = 0x1p20;
        end++;
        break;
    case 'g':
    case 'G':
        unit = 0x1p30;
        end++;
        break;
    case 't':
    case 'T':
        unit = 0x1p40;
        end++;
        break;
    default: break;
    }
    if ((*end == 'i' || *end == 'I') && (end[1] == 'b' || end[1] == 'B')) end += 2;
    else if (*end == 'b' || *end == 'B') end++;
    if (*end || value * unit >= 0x1p63) return -1;
    *out = (uint64_t)(value * unit);
    return 0;
}

static int set_value(const struct command *command, const struct option_row *row, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (row->kind) {
    case OPTION_FLAG: *(int *)row->value = 1; return 0;
    case OPTION_TEXT: *(const char **)row->value = text; return 0;
    case OPTION_TEXTS: {
        struct option_texts *texts = row->value;
        if (texts->n < (int)(sizeof texts->text / sizeof *texts->text)) {
            texts->text[texts->n++] = text;
            return 0;
        }
        usage_error(command, "--%s is given more than %d times", row->name, texts->n);
        return -1;
    }
    case OPTION_SIZE:
        if (parse_size(text, row->value) == 0) return 0;
        usage_error(command, "--%s %s: expected a size such as 6G or 512M", row->name, text);
        return -1;
    case OPTION_INT: {
        long long value = strtoll(text, &end, 10);
        if (end != text && !*end && !errno) {
            *(int64_t *)row->value = value;
            return 0;
        }
        usage_error(command, "--%s %s: expected a whole number", row->name, text);
        return -1;
    }
    case OPTION_FLOAT: {
        double value = strtod(text, &end);
        if (end != text && !*end && isfinite(value)) {
            *(double *)row->value = value;
            return 0;
        }
        usage_error(command, "--%s %s: expected a number", row->name, text);
        return -1;
    }
    }
    return -1;
}

int options_parse(const struct command *command, const struct option_row *table, int argc, char **argv)
{
    struct option longs[MAX_ROWS + 2] = {{0}};
    char shorts[2 * MAX_ROWS + 4] = ":h";
    int n = 0;
    for (; table[n].name && n < MAX_ROWS; n++) {
        int takes = table[n].kind != OPTION_FLAG;
        longs[n] = (struct option){table[n].name, takes ? required_argument : no_argument, NULL, 256 + n};
        if (table[n].letter) {
            char letter[3] = {table[n].letter, takes ? ':' : 0, 0};
            strcat(shorts, letter);
        }
    }
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    /* getopt expects the program's name first: commands hand over the arguments after theirs. */
    char **all = malloc(((size_t)argc + 2) * sizeof *all);
    if (!all) return -1;
    all[0] = (char *)(uintptr_t)command->name;
    memcpy(all + 1, argv, (size_t)argc * sizeof *all);
    all[argc + 1] = NULL;
    opterr = 0;
    optind = 1;
    int left = 0, found;
    while ((found = getopt_long(argc + 1, all, shorts, longs, NULL)) != -1) {
        if (found == 'h') {
            show_help(command, table);
            exit(EXIT_DONE);
        }
        const struct option_row *row = NULL;
        if (found >= 256) row = &table[found - 256];
        else
            for (int i = 0; i < n && !row; i++)
                if (table[i].letter == found) row = &table[i];
        if (found == '?' || found == ':' || !row) {
            const char *what = all[optind - 1];
            if (found == ':') usage_error(command, "%s needs a value", what);
            else usage_error(command, "unknown option %s", what);
            free(all);
            return -1;
        }
        if (set_value(command, row, optarg)) {
            free(all);
            return -1;
        }
    }
    for (int i = optind; i < argc + 1; i++) argv[left++] = all[i];
    free(all);
    return left;
}

struct mote_model_options model_options(const struct model_rows *rows)
{
    struct mote_model_options options = MOTE_OPTIONS(mote_model_options);
    options.n_thread = (int)rows->n_thread;
    options.memory = rows->memory;
    options.act = rows->act;
    options.moe = rows->moe;
    options.n_ctx = rows->n_ctx;
    options.n_batch = rows->n_batch;
    options.kv = rows->kv;
    options.device = rows->device;
    options.progress = show_progress;
    return options;
}

int report(const struct command *command, mote_status status)
{
    if (status == MOTE_OK) return EXIT_DONE;
    fprintf(stderr, "mote %s: %s\n", command->name, *mote_error() ? mote_error() : mote_status_text(status));
    if (status == MOTE_CANCELLED) return EXIT_INTERRUPTED;
    return status == MOTE_ARGUMENT ? EXIT_USAGE : EXIT_WORK;
}

char *read_text(const struct command *command, const char *path, size_t *length)
{
    FILE *file = path ? fopen(path, "rb") : stdin;
    if (!file) {
        fprintf(stderr, "mote %s: %s: cannot open: %s\n", command->name, path, strerror(errno));
        return NULL;
    }
    size_t used = 0, room = 1 << 16;
    char *text = malloc(room + 1);
    while (text) {
        used += fread(text + used, 1, room - used, file);
        if (used < room) break;
        room *= 2;
        char *more = realloc(text, room + 1);
        if (!more) free(text);
        text = more;
    }
    int failed = ferror(file);
    if (path) fclose(file);
    if (!text || failed) {
        fprintf(stderr, "mote %s: %s: cannot read%s\n", command->name, path ? path : "standard input",
                text ? "" : ": out of memory");
        free(text);
        return NULL;
    }
    text[used] = 0;
    *length = used;
    return text;
}

int parse_list(const char *text, int64_t *out, int capacity)
{
    int n = 0;
    for (const char *at = text; *at;) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || value < 0 || (*end && *end != ',') || n == capacity) return -1;
        out[n++] = value;
        at = *end ? end + 1 : end;
    }
    return n;
}

const char *show_bytes(double bytes)
{
    static char text[4][32];
    static int turn;
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 1000 && u < 4) bytes /= 1000, u++;
    char *out = text[turn++ & 3];
    snprintf(out, sizeof text[0], u ? "%.2f %s" : "%.0f %s", bytes, unit[u]);
    return out;
}

double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int show_progress(void *context, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    static double start, last;
    static const char *shown;
    (void)context;
    if (interrupted()) return 1;
    if (!isatty(STDERR_FILENO)) return 0;
    double now = now_seconds();
    if (shown != what || done == 0) shown = what, start = now, last = 0;
    if (done < total && now - last < 0.1) return 0;
    last = now;
    double rate = now > start ? (double)done / (now - start) : 0;
    int bytes = !strcmp(unit, "bytes");
    fprintf(stderr, "\r\033[K%s: %s", what, bytes ? show_bytes((double)done) : "");
    if (!bytes) fprintf(stderr, "%llu", (unsigned long long)done);
    if (total) fprintf(stderr, " of %s", bytes ? show_bytes((double)total) : "");
    if (total && !bytes) fprintf(stderr, "%llu %s", (unsigned long long)total, unit);
    if (bytes) fprintf(stderr, ", %s/s", show_bytes(rate));
    else fprintf(stderr, ", %.1f/s", rate);
    if (total && rate > 0) fprintf(stderr, ", %.0f s left", (double)(total - done) / rate);
    if (done >= total) fprintf(stderr, "\r\033[K");
    fflush(stderr);
    return 0;
}

static volatile sig_atomic_t interrupt_count;
static mote_session *volatile interrupt_session;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupt_count++) _exit(EXIT_INTERRUPTED);
    if (interrupt_session) mote_session_cancel(interrupt_session);
}

void interrupt_watch(mote_session *session)
{
    interrupt_session = session;
    interrupt_count = 0;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

int interrupted(void)
{
    return interrupt_count != 0;
}

void put_json_text(void *stream, const char *text, size_t length)
{
    FILE *out = stream;
    fputc('"', out);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c == '\n') fputs("\\n", out);
        else if (c < 32) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}
