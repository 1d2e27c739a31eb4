/* driver.c: finds libcuda and libnvrtc and fills their tables. See driver.h. */
#define _GNU_SOURCE
#include "cuda/driver.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"

/* Where a library may lie, after the dynamic linker's own search: a variable's folder (NULL: none) and a pattern. */
struct place {
    const char *variable, *pattern;
};

static const struct place driver_place[] = {
    {NULL, "/usr/lib/x86_64-linux-gnu"}, {NULL, "/usr/lib/aarch64-linux-gnu"}, {NULL, "/usr/lib64"},
    {NULL, "/usr/local/nvidia/lib64"},   {NULL, "/usr/lib/wsl/lib"},
};
static const struct place nvrtc_place[] = {
    {"CUDA_HOME", "/lib64"},
    {"CUDA_PATH", "/lib64"},
    {NULL, "/usr/local/cuda*/lib64"},
    {NULL, "/usr/local/cuda*/targets/*/lib"},
    {NULL, "/usr/local/cuda-*/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/c*/lib"},
    {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/c*/lib"},
    {"HOME", "/.local/lib/python3*/site-packages/nvidia/c*/lib"},
    {NULL, "/usr/local/lib/python3*/*-packages/nvidia/c*/lib"},
    {NULL, "/usr/lib/python3*/*-packages/nvidia/c*/lib"},
    {NULL, "/opt/*/lib/python3*/*-packages/nvidia/c*/lib"},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* NVRTC opens its part libnvrtc-builtins by name alone: outside the linker's search it is found because it is open. */
static void open_builtins(const char *folder)
{
    char pattern[512];
    snprintf(pattern, sizeof pattern, "%s/libnvrtc-builtins.so.[0-9]*", folder);
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
    globfree(&found);
}

/* The first of the places that has a library of this name. */
static void *open_library(const char *name, const struct place *place, size_t n_place)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < n_place && !library; i++) {
        const char *front = place[i].variable ? getenv(place[i].variable) : "";
        if (!front || (place[i].variable && !*front)) continue;
        char pattern[512];
        if ((size_t)snprintf(pattern, sizeof pattern, "%s%s/%s", front, place[i].pattern, name) >=
            sizeof pattern)
            continue;
        glob_t found;
        if (glob(pattern, 0, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc && !library; k++) {
                char *path = found.gl_pathv[k], *slash = strrchr(path, '/');
                *slash = 0;
                if (place == nvrtc_place) open_builtins(path);
                *slash = '/';
                library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            }
        globfree(&found);
    }
    return library;
}

struct call {
    const char *symbol;
    size_t offset; /* of the pointer in its table */
    int needed;
};

/* Fill a table's pointers; NULL, or the first needed symbol that the library lacks. */
static const char *fill_table(void *library, void *table, const struct call *call, size_t n_call)
{
    for (size_t i = 0; i < n_call; i++) {
        void *symbol = dlsym(library, call[i].symbol);
        if (!symbol && call[i].needed) return call[i].symbol;
        /* ISO C has no cast from object to function pointers; POSIX has both alike. */
        memcpy((char *)table + call[i].offset, &symbol, sizeof symbol);
    }
    return NULL;
}

/* ---- libcuda ---- */

static struct mote_cuda_driver driver;
static char driver_error[512]; /* "": open */

static const struct call driver_call[] = {
#define X(field, symbol, needed, arguments) {symbol, offsetof(struct mote_cuda_driver, field), needed},
    MOTE_CUDA_DRIVER_CALLS(X)
#undef X
};

static void find_driver(void)
{
    const char *file = getenv("MOTE_LIBCUDA");
    void *library = file && *file ? dlopen(file, RTLD_NOW | RTLD_LOCAL)
                                  : open_library("libcuda.so.1", driver_place, COUNT(driver_place));
    if (!library && file && *file) {
        snprintf(driver_error, sizeof driver_error, "CUDA: MOTE_LIBCUDA=%s does not open: %s", file,
                 dlerror());
        return;
    }
    if (!library) {
        snprintf(
            driver_error, sizeof driver_error,
            "CUDA: no libcuda.so.1 in the library path, /usr/lib64, /usr/local/nvidia/lib64: is NVIDIA's "
            "driver installed?");
        return;
    }
    const char *missing = fill_table(library, &driver, driver_call, COUNT(driver_call));
    if (missing) {
        snprintf(
            driver_error, sizeof driver_error,
            "CUDA: the driver's libcuda.so.1 has no %s: it is older than CUDA 11.4, the oldest supported",
            missing);
        return;
    }
    int result = driver.init(0);
    if (result) {
        const char *text = NULL;
        driver.error_text(result, &text);
        snprintf(driver_error, sizeof driver_error, "CUDA: %s (cuInit: %s, %d)",
                 result == CU_NO_DEVICE ? "no device" : "the driver does not start",
                 text ? text : "unknown error", result);
    }
}

mote_status mote_cuda_driver_open(const struct mote_cuda_driver **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    *out = NULL;
    FAIL_IF(*driver_error, MOTE_DEVICE, "%s", driver_error);
    *out = &driver;
    return MOTE_OK;
}

/* ---- libnvrtc ---- */

static struct mote_nvrtc nvrtc;
static char nvrtc_error[768]; /* "": open */

static const struct call nvrtc_call[] = {
#define X(field, symbol, needed, arguments) {symbol, offsetof(struct mote_nvrtc, field), needed},
    MOTE_NVRTC_CALLS(X)
#undef X
        {"nvrtcGetErrorString", offsetof(struct mote_nvrtc, error_text), 1},
};

static void find_nvrtc(void)
{
    /* Newest first; but a driver of CUDA 12 does not load what NVRTC 13 makes. */
    static const char *const newest[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    static const char *const twelve[] = {"libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.13"};
    const struct mote_cuda_driver *cuda;
    int version = 0;
    const char *const *name = newest;
    if (mote_cuda_driver_open(&cuda) == MOTE_OK && cuda->version(&version) == 0 && version < 13000)
        name = twelve;

    const char *file = getenv("MOTE_NVRTC");
    void *library = NULL;
    if (file && *file) {
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            snprintf(nvrtc_error, sizeof nvrtc_error, "NVRTC: MOTE_NVRTC=%s does not open: %s", file,
                     dlerror());
            return;
        }
    }
    for (size_t i = 0; i < COUNT(newest) && !library; i++)
        library = open_library(name[i], nvrtc_place, COUNT(nvrtc_place));
    if (!library) {
        snprintf(nvrtc_error, sizeof nvrtc_error,
                 "NVRTC: no libnvrtc.so.13 or .12 in the library path, $CUDA_HOME/lib64, "
                 "/usr/local/cuda*/lib64 or "
                 "Python's nvidia packages (pip install nvidia-cuda-nvrtc, or MOTE_NVRTC=FILE)");
        return;
    }
    const char *missing = fill_table(library, &nvrtc, nvrtc_call, COUNT(nvrtc_call));
    if (missing) {
        snprintf(nvrtc_error, sizeof nvrtc_error,
                 "NVRTC: the library found has no %s: it is older than CUDA 11.1", missing);
        return;
    }
    int major = 0, minor = 0;
    nvrtc.version(&major, &minor);
    nvrtc.number = 1000 * major + 10 * minor;
}

mote_status mote_nvrtc_open(const struct mote_nvrtc **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_nvrtc);
    *out = NULL;
    FAIL_IF(*nvrtc_error, MOTE_DEVICE, "%s", nvrtc_error);
    *out = &nvrtc;
    return MOTE_OK;
}

mote_status mote_cuda_nvrtc(int *version)
{
    const struct mote_nvrtc *library;
    *version = 0;
    TRY(mote_nvrtc_open(&library));
    *version = library->number;
    return MOTE_OK;
}
