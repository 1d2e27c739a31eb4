/* compile.c: a translation unit to a cubin, through the cache. See compile.h. */
#include "cuda/compile.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cuda/driver.h"
#include "cuda/kernel_text.h"

enum { MAX_HEADER = 32, MAX_OPTION = 64, DEFINE_BYTES = 4096, MAX_KERNEL = 64, NAME_BYTES = 192 };

/* ---- the texts of a unit ---- */

/* A text and all that it includes, each once. */
struct texts {
    const char *text; /* of the unit's own file */
    const char *header[MAX_HEADER], *header_name[MAX_HEADER];
    int n_header;
};

static const struct mote_kernel_text *find_text(const char *name, size_t length)
{
    for (const struct mote_kernel_text *text = mote_kernel_texts; text->name; text++)
        if (strlen(text->name) == length && !memcmp(text->name, name, length)) return text;
    return NULL;
}

/* Collect what `text` includes, and what that includes. A name that is not embedded is left to the compiler's message. */
static mote_status collect(struct texts *texts, const char *text)
{
    static const char mark[] = "#include \"";
    for (const char *at = text; (at = strstr(at, mark));) {
        at += sizeof mark - 1;
        const struct mote_kernel_text *found = find_text(at, strcspn(at, "\"\n"));
        if (!found) continue;
        int known = 0;
        for (int i = 0; i < texts->n_header; i++) known |= texts->header[i] == found->text;
        if (known) continue;
        FAIL_IF(texts->n_header == MAX_HEADER, MOTE_INTERNAL, "kernel text %s: more than %d texts included",
                found->name, MAX_HEADER);
        texts->header[texts->n_header] = found->text;
        texts->header_name[texts->n_header++] = found->name;
        TRY(collect(texts, found->text));
    }
    return MOTE_OK;
}

static mote_status find_texts(const char *name, struct texts *out)
{
    out->n_header = 0;
    const struct mote_kernel_text *own = find_text(name, strlen(name));
    FAIL_IF(!own, MOTE_INTERNAL, "kernel text %s: there is no such file in src/cuda/kernels", name);
    out->text = own->text;
    return collect(out, own->text);
}

/* ---- options ---- */

struct options {
    const char *option[MAX_OPTION + 1]; /* room for NO_CACHE */
    int n;
    char arch[32], define[DEFINE_BYTES]; /* what the strings above point into */
};

/* -v: the resource report in the log. -default-device: plain functions and constants are the device's. */
static mote_status make_options(const char *arch, const char *define, struct options *out)
{
    snprintf(out->arch, sizeof out->arch, "-arch=%s", arch);
    out->n = 0;
    out->option[out->n++] = out->arch;
    out->option[out->n++] = "--std=c++17";
    out->option[out->n++] = "-default-device";
    out->option[out->n++] = "--ptxas-options=-v";
    const char *lines = getenv("MOTE_LINEINFO"); /* source lines for profilers */
    if (lines && *lines) out->option[out->n++] = "-lineinfo";
    size_t used = 0;
    for (const char *at = define ? define : "";;) {
        at += strspn(at, " ");
        size_t length = strcspn(at, " ");
        if (!length) return MOTE_OK;
        FAIL_IF(out->n == MAX_OPTION || used + length + 3 > sizeof out->define, MOTE_INTERNAL,
                "kernel constants: more than %d of them, or than %d characters: %s", MAX_OPTION - 5,
                DEFINE_BYTES, define);
        char *option = out->define + used;
        used += (size_t)snprintf(option, sizeof out->define - used, "-D%.*s", (int)length, at) + 1;
        out->option[out->n++] = option;
        at += length;
    }
}

/* ---- the key and the name of an entry ---- */

static struct mote_digest unit_key(const struct texts *texts, const struct options *options)
{
    struct mote_digest key = mote_digest_start();
    for (int i = 0; i < options->n; i++) mote_digest_text(&key, options->option[i]);
    mote_digest_text(&key, texts->text);
    for (int i = 0; i < texts->n_header; i++) {
        mote_digest_text(&key, texts->header_name[i]);
        mote_digest_text(&key, texts->header[i]);
    }
    return key;
}

static void entry_name(const char *arch, const char *text, const struct mote_digest *key,
                       char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%s-%.*s-%016llx%016llx.cubin", arch, (int)strcspn(text, "."), text,
             (unsigned long long)key->a, (unsigned long long)key->b);
}

/* ---- the compiler ---- */

/* The number in front of `mark` in a line, 0 when the line has no such mark. */
static int number_before(const char *line, const char *mark)
{
    const char *at = strstr(line, mark);
    if (!at) return 0;
    int value = 0;
    for (int unit = 1; at > line && at[-1] >= '0' && at[-1] <= '9'; unit *= 10) value += unit * (*--at - '0');
    return value;
}

/* Fill usage from the log of ptxas -v; the number of kernels. A kernel's lines come after "Compiling entry function
 * 'NAME'"; those of a function that it calls are counted with it. */
static size_t read_usage(char *log, struct mote_cuda_usage *usage, size_t capacity)
{
    size_t n = 0;
    for (char *line = log, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        const char *name = strstr(line, "Compiling entry function '");
        if (name) {
            if (n == capacity) return n;
            name += strlen("Compiling entry function '");
            usage[n] = (struct mote_cuda_usage){0};
            snprintf(usage[n++].name, sizeof usage->name, "%.*s", (int)strcspn(name, "'"), name);
        }
        if (!n) continue;
        struct mote_cuda_usage *last = &usage[n - 1];
        last->spill_bytes +=
            number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
        int stack = number_before(line, " bytes stack frame"),
            deep = number_before(line, " bytes cumulative stack");
        if (stack > last->stack_bytes) last->stack_bytes = stack;
        if (deep > last->stack_bytes) last->stack_bytes = deep;
        const char *used = strstr(line, "Used ");
        if (!used) continue;
        last->registers = number_before(used, " registers");
        last->shared_bytes = number_before(used, " bytes smem");
    }
    return n;
}

/* The first three errors of a compiler log, a line each, in one line. */
static void first_errors(const char *log, char *out, size_t capacity)
{
    size_t used = 0;
    int n = 0;
    out[0] = 0;
    for (const char *line = log; line && *line && n < 3; line = strchr(line, '\n'), line += line != NULL) {
        int length = (int)strcspn(line, "\n");
        char text[512];
        snprintf(text, sizeof text, "%.*s", length, line);
        if (!strstr(text, "error") && !strstr(text, "fatal")) continue;
        int put = snprintf(out + used, capacity - used, "%s%s", n++ ? "; " : "", text);
        used = (size_t)put < capacity - used ? used + (size_t)put : capacity - 1;
    }
    if (!n) snprintf(out, capacity, "%.400s", log);
}

static mote_status nvrtc_failed(const struct mote_nvrtc *nvrtc, int result, const char *what)
{
    return mote_fail(MOTE_DEVICE, "NVRTC %d.%d: %s: %s", nvrtc->number / 1000, nvrtc->number % 1000 / 10,
                     what, nvrtc->error_text(result));
}

static mote_status program_log(const struct mote_nvrtc *nvrtc, void *program, char **out)
{
    size_t size = 0;
    *out = NULL;
    int result = nvrtc->log_size(program, &size);
    if (result) return nvrtc_failed(nvrtc, result, "reading the log");
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, size + 1, out));
    result = nvrtc->log(program, *out);
    return result ? nvrtc_failed(nvrtc, result, "reading the log") : MOTE_OK;
}

static mote_status take_cubin(const struct mote_nvrtc *nvrtc, void *program, char *log,
                              const struct mote_digest *key, struct mote_cubin *out)
{
    struct mote_cuda_usage usage[MAX_KERNEL];
    size_t n_usage = read_usage(log, usage, MAX_KERNEL), size = 0;
    FAIL_IF(!n_usage, MOTE_INTERNAL, "NVRTC's log has no resource report (or the text no kernel)");
    int result = nvrtc->cubin_size(program, &size);
    if (result) return nvrtc_failed(nvrtc, result, "reading the result");
    void *image;
    TRY(mote_cubin_create(key, nvrtc->number, usage, n_usage, size, out, &image));
    result = nvrtc->cubin(program, image);
    if (result) {
        mote_cubin_free(out);
        return nvrtc_failed(nvrtc, result, "reading the result");
    }
    mote_cubin_seal(out);
    return MOTE_OK;
}

/* NVRTC's own cache (12.9 on) gives back a cubin without the resource report. Not part of an entry's key. */
static const char NO_CACHE[] = "--no-cache";
enum { NO_CACHE_SINCE = 12090 };

static mote_status compile(const struct mote_nvrtc *nvrtc, const char *name, const struct texts *texts,
                           struct options *options, const struct mote_digest *key, struct mote_cubin *out)
{
    void *program;
    if (nvrtc->number >= NO_CACHE_SINCE) options->option[options->n++] = NO_CACHE;
    int result =
        nvrtc->create(&program, texts->text, name, texts->n_header, texts->header, texts->header_name);
    if (result) return nvrtc_failed(nvrtc, result, "starting");
    char *log = NULL;
    result = nvrtc->compile(program, options->n, options->option);
    mote_status status = program_log(nvrtc, program, &log);
    if (status == MOTE_OK && result) {
        char errors[1200];
        first_errors(log, errors, sizeof errors);
        status = mote_fail(MOTE_DEVICE, "%s: %s", nvrtc->error_text(result), errors);
    } else if (status == MOTE_OK) {
        status = take_cubin(nvrtc, program, log, key, out);
    }
    mote_mem_free(log);
    nvrtc->destroy(&program);
    return status;
}

/* ---- a unit ---- */

/* Once for every folder: with hundreds of units one line says it. */
static void warn_unwritable(void)
{
    static _Atomic uint64_t warned;
    char folder[MOTE_CACHE_PATH];
    char why[1400];
    snprintf(why, sizeof why, "%.1399s", mote_error());
    struct mote_digest digest = mote_digest_start();
    if (mote_cache_folder(folder) == MOTE_OK) mote_digest_text(&digest, folder);
    if (atomic_exchange(&warned, digest.a) != digest.a)
        mote_log(MOTE_LOG_WARNING, "%s: kernels are compiled again at every start", why);
}

mote_status mote_cubin_make(const char *arch, const struct mote_cuda_unit *unit, struct mote_cubin *out)
{
    memset(out, 0, sizeof *out);
    struct texts texts;
    struct options options;
    size_t digits = strncmp(arch, "sm_", 3) ? 0 : strspn(arch + 3, "0123456789");
    FAIL_IF(!digits || digits > 4 || strlen(arch + 3 + digits) > 1, MOTE_ARGUMENT,
            "'%s' is no architecture: expected sm_80, sm_90a, ...", arch);
    TRY(find_texts(unit->text, &texts));
    TRY(make_options(arch, unit->define, &options));
    struct mote_digest key = unit_key(&texts, &options);
    char name[NAME_BYTES];
    entry_name(arch, unit->text, &key, name);

    const struct mote_nvrtc *nvrtc;
    mote_status found = mote_nvrtc_open(&nvrtc);
    if (mote_cache_read(name, &key, out) == MOTE_OK) {
        if (!nvrtc || nvrtc->number == out->nvrtc) return MOTE_OK;
        mote_cubin_free(out);
    }
    if (found != MOTE_OK) {
        mote_nvrtc_open(&nvrtc); /* its reason again, after the cache's */
        return mote_context(MOTE_NOT_FOUND,
                            "%s for %s is not in the kernel cache, and it cannot be compiled here",
                            unit->text, arch);
    }
    mote_status status = compile(nvrtc, unit->text, &texts, &options, &key, out);
    if (status != MOTE_OK)
        return mote_context(status, "%s for %s (%s)", unit->text, arch,
                            unit->define && *unit->define ? unit->define : "no constants");
    if (mote_cache_write(name, out) != MOTE_OK) warn_unwritable();
    return MOTE_OK;
}
