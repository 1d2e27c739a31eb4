/* cmd_info.c: mote info and mote kernels: what this machine can compute on, and device kernels compiled ahead. */
#include <stdio.h>

#include "cli/cli.h"

/* ---- info ---- */

static void put_text(const char *name, const char *text)
{
    size_t length = 0;
    while (text[length]) length++;
    printf("\"%s\": ", name);
    put_json_text(stdout, text, length);
}

static void show_device(const struct mote_device_info *info, int json, int first)
{
    if (json) {
        printf("%s\n  {", first ? "" : ",");
        put_text("id", info->id);
        printf(", ");
        put_text("name", info->name);
        printf(", ");
        put_text("arch", info->arch);
        printf(", \"units\": %d, \"memory\": %llu, \"free\": %llu, \"bandwidth\": %.4g, ", info->n_unit,
               (unsigned long long)info->memory, (unsigned long long)info->free, info->bandwidth);
        put_text("fault", info->fault);
        printf("}");
        return;
    }
    printf("  %-8s %s, %s, %d %s, %s", info->id, info->name, info->arch, info->n_unit,
           first ? "threads" : "multiprocessors", show_bytes((double)info->memory));
    if (info->free) printf(" (%s free)", show_bytes((double)info->free));
    if (info->bandwidth > 0) printf(", reads %s/s", show_bytes(info->bandwidth));
    printf("\n");
    if (*info->fault) printf("           cannot be used: %s\n", info->fault);
}

static void show_version(const char *what, int version, const char *fault)
{
    if (version) printf("  %-8s CUDA %d.%d\n", what, version / 1000, version % 1000 / 10);
    else printf("  %-8s %s\n", what, *fault ? fault : "no device");
}

static void show_support(const struct mote_cuda_support *cuda, int json)
{
    if (json) {
        printf("\n ],\n \"driver\": %d, \"nvrtc\": %d, ", cuda->driver, cuda->nvrtc);
        put_text("driver_fault", cuda->driver_fault);
        printf(", ");
        put_text("nvrtc_fault", cuda->nvrtc_fault);
        printf(",\n ");
        put_text("cache", cuda->cache);
        printf(", \"cache_bytes\": %llu, \"cache_entries\": %llu}\n", (unsigned long long)cuda->cache_byte,
               (unsigned long long)cuda->cache_entry);
        return;
    }
    printf("\nNVIDIA\n");
    show_version("driver", cuda->driver, cuda->driver_fault);
    show_version("NVRTC", cuda->nvrtc, cuda->nvrtc_fault);
    printf("  %-8s %s: %llu kernels, %s\n", "cache", *cuda->cache ? cuda->cache : "no folder",
           (unsigned long long)cuda->cache_entry, show_bytes((double)cuda->cache_byte));
}

static int info(const struct command *self, int argc, char **argv)
{
    int json = 0, quick = 0;
    const struct option_row table[] = {
        {0, "json", OPTION_FLAG, &json, "everything as JSON"},
        {0, "quick", OPTION_FLAG, &quick, "do not measure bandwidth"},
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (left) return usage_error(self, "unexpected argument %s", argv[0]);
    printf(json ? "{\"devices\": [" : "devices\n");
    for (int i = 0; i < mote_device_count(); i++) {
        struct mote_device_info device = MOTE_OPTIONS(mote_device_info);
        mote_status status = mote_device_describe(i, !quick, &device);
        if (status != MOTE_OK) return report(self, status);
        show_device(&device, json, i == 0);
    }
    struct mote_cuda_support cuda = MOTE_OPTIONS(mote_cuda_support);
    mote_status status = mote_cuda_support(&cuda);
    if (status != MOTE_OK) return report(self, status);
    show_support(&cuda, json);
    return EXIT_DONE;
}

/* ---- kernels ---- */

static void show_kernel(void *context, const struct mote_kernel_row *row)
{
    int *n = context;
    if (!(*n)++)
        printf("%-8s %-20s %-14s %-28s %9s %7s %6s %6s\n", "arch", "text", "for", "kernel", "registers",
               "shared", "spill", "stack");
    printf("%-8s %-20s %-14s %-28s %9d %7d %6d %6d\n", row->arch, row->text, row->what, row->kernel,
           row->registers, row->shared, row->spill, row->stack);
}

static int kernels(const struct command *self, int argc, char **argv)
{
    struct option_texts arch = {0};
    const char *model = NULL, *act = NULL;
    const struct option_row table[] = {
        {'m', "model", OPTION_TEXT, &model, "what this model needs (representative kernels)"},
        {0, "arch", OPTION_TEXTS, &arch,
         "sm_80, sm_89, sm_90a, sm_120, ...; may be repeated (the device here)"},
        {0, "act", OPTION_TEXT, &act, "activation type of the run to come: default, f32, mxfp4"},
        {0},
    };
    int left = options_parse(self, table, argc, argv), n = 0, code = EXIT_DONE;
    if (left < 0) return EXIT_USAGE;
    if (left) return usage_error(self, "unexpected argument %s", argv[0]);
    for (int i = 0; i < (arch.n ? arch.n : 1) && code == EXIT_DONE; i++)
        code =
            report(self, mote_kernels_build(arch.text[i], model, act, show_progress, NULL, show_kernel, &n));
    return code;
}

const struct command command_info = {
    "info", "what this machine can compute on: devices, drivers, kernel cache", "[--quick] [--json]", info};
const struct command command_kernels = {"kernels", "compile kernels of NVIDIA devices ahead, into the cache",
                                        "[-m MODEL] [--arch sm_90a]... [--act mxfp4]", kernels};
