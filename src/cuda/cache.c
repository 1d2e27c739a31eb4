/* cache.c: compiled kernels on disk. See cache.h. */
#define _GNU_SOURCE
#include "cuda/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- digest: two byte-wise multiplicative hashes with different mixing ---- */

struct mote_digest mote_digest_start(void)
{
    return (struct mote_digest){0xcbf29ce484222325u, 0x9e3779b97f4a7c15u};
}

void mote_digest_add(struct mote_digest *digest, const void *data, size_t size)
{
    const uint8_t *byte = data;
    uint64_t a = digest->a, b = digest->b;
    for (size_t i = 0; i < size; i++) {
        a = (a ^ byte[i]) * 0x100000001b3u;
        b = (b + byte[i] + 1) * 0xff51afd7ed558ccdu;
        b ^= b >> 29;
    }
    *digest = (struct mote_digest){a, b};
}

void mote_digest_text(struct mote_digest *digest, const char *text)
{
    mote_digest_add(digest, text, strlen(text) + 1);
}

/* ---- an entry: header, usage[n_usage], image ---- */

struct header {
    char magic[8];
    struct mote_digest key;
    uint32_t nvrtc, n_usage;
    uint64_t image_size;
    struct mote_digest content; /* of all bytes after the header */
    uint64_t unused;
};
_Static_assert(sizeof(struct header) == 64 && sizeof(struct mote_cuda_usage) % 16 == 0,
               "the image is aligned");
static const char magic[8] = {'M', 'O', 'T', 'E', 'C', 'U', 'B', '1'};

void mote_cubin_free(struct mote_cubin *cubin)
{
    mote_mem_free(cubin->memory);
    memset(cubin, 0, sizeof *cubin);
}

/* The parts of a block whose header is filled in. */
static void find_parts(struct mote_cubin *cubin)
{
    const struct header *header = cubin->memory;
    const uint8_t *after = (const uint8_t *)(header + 1);
    cubin->usage = (const struct mote_cuda_usage *)(const void *)after;
    cubin->n_usage = header->n_usage;
    cubin->image = after + header->n_usage * sizeof *cubin->usage;
    cubin->image_size = (size_t)header->image_size;
    cubin->nvrtc = (int)header->nvrtc;
}

mote_status mote_cubin_create(const struct mote_digest *key, int nvrtc, const struct mote_cuda_usage *usage,
                              size_t n_usage, size_t image_size, struct mote_cubin *out, void **image)
{
    memset(out, 0, sizeof *out);
    size_t before = sizeof(struct header) + n_usage * sizeof *usage;
    TRY(mote_mem_alloc(NULL, MOTE_MEM_TABLES, before + image_size, &out->memory));
    out->memory_size = before + image_size;
    struct header header = {
        .key = *key, .nvrtc = (uint32_t)nvrtc, .n_usage = (uint32_t)n_usage, .image_size = image_size};
    memcpy(header.magic, magic, sizeof magic);
    memcpy(out->memory, &header, sizeof header);
    find_parts(out);
    uint8_t *after = (uint8_t *)out->memory + sizeof header;
    if (n_usage) memcpy(after, usage, n_usage * sizeof *usage);
    *image = after + n_usage * sizeof *usage;
    return MOTE_OK;
}

static struct mote_digest content_digest(const struct mote_cubin *cubin)
{
    struct mote_digest digest = mote_digest_start();
    mote_digest_add(&digest, (const uint8_t *)cubin->memory + sizeof(struct header),
                    cubin->memory_size - sizeof(struct header));
    return digest;
}

void mote_cubin_seal(struct mote_cubin *cubin)
{
    struct header *header = cubin->memory;
    header->content = content_digest(cubin);
}

static int same_digest(const struct mote_digest *a, const struct mote_digest *b)
{
    return a->a == b->a && a->b == b->b;
}

/* What is wrong with a block of memory_size bytes that came from a file; NULL: nothing. */
static const char *entry_fault(struct mote_cubin *cubin, const struct mote_digest *key)
{
    const struct header *header = cubin->memory;
    if (cubin->memory_size < sizeof *header) return "shorter than its header";
    if (memcmp(header->magic, magic, sizeof magic)) return "not an entry of this version";
    if (!same_digest(&header->key, key)) return "of another key";
    size_t left = cubin->memory_size - sizeof *header;
    if (header->n_usage > left / sizeof *cubin->usage ||
        header->image_size != left - header->n_usage * sizeof *cubin->usage)
        return "not as long as its header says";
    struct mote_digest content = content_digest(cubin);
    if (!same_digest(&header->content, &content)) return "damaged (its hash differs)";
    return NULL;
}

/* ---- files ---- */

mote_status mote_cache_folder(char out[MOTE_CACHE_PATH])
{
    static const struct {
        const char *variable, *after;
    } place[] = {{"MOTE_CACHE", ""}, {"XDG_CACHE_HOME", "/mote"}, {"HOME", "/.cache/mote"}};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        const char *front = getenv(place[i].variable);
        if (!front || !*front) continue;
        int n = snprintf(out, MOTE_CACHE_PATH, "%s%s/kernels", front, place[i].after);
        FAIL_IF(n >= MOTE_CACHE_PATH - 128, MOTE_ARGUMENT, "kernel cache: the path in %s is too long",
                place[i].variable);
        return MOTE_OK;
    }
    return mote_fail(MOTE_NOT_FOUND, "kernel cache: none of MOTE_CACHE, XDG_CACHE_HOME, HOME is set");
}

mote_status mote_cache_size(uint64_t *bytes, uint64_t *n)
{
    char folder[MOTE_CACHE_PATH];
    *bytes = *n = 0;
    TRY(mote_cache_folder(folder));
    DIR *listing = opendir(folder);
    if (!listing) return MOTE_OK;
    for (struct dirent *entry; (entry = readdir(listing));) {
        size_t length = strlen(entry->d_name);
        struct stat about;
        if (length < 6 || strcmp(entry->d_name + length - 6, ".cubin")) continue;
        if (fstatat(dirfd(listing), entry->d_name, &about, 0)) continue;
        *bytes += (uint64_t)about.st_size;
        *n += 1;
    }
    closedir(listing);
    return MOTE_OK;
}

mote_status mote_cache_read(const char *name, const struct mote_digest *key, struct mote_cubin *out)
{
    char path[MOTE_CACHE_PATH + 256];
    memset(out, 0, sizeof *out);
    TRY(mote_cache_folder(path));
    strcat(path, "/");
    strncat(path, name, 255);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    FAIL_IF(file < 0, MOTE_NOT_FOUND, "%s: %s", path, strerror(errno));
    struct stat about;
    mote_status status = MOTE_OK;
    if (fstat(file, &about) || !S_ISREG(about.st_mode)) status = mote_fail(MOTE_IO, "%s: not a file", path);
    if (status == MOTE_OK)
        status = mote_mem_alloc(NULL, MOTE_MEM_TABLES, (size_t)about.st_size, &out->memory);
    if (status == MOTE_OK) {
        out->memory_size = (size_t)about.st_size;
        for (size_t at = 0; at < out->memory_size && status == MOTE_OK;) {
            ssize_t got = read(file, (uint8_t *)out->memory + at, out->memory_size - at);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0)
                status = mote_fail(MOTE_IO, "%s: %s", path, got ? strerror(errno) : "it became shorter");
            else at += (size_t)got;
        }
    }
    close(file);
    const char *fault = status == MOTE_OK ? entry_fault(out, key) : NULL;
    if (fault) status = mote_fail(MOTE_FORMAT, "%s: %s", path, fault);
    if (status != MOTE_OK) {
        mote_cubin_free(out);
        return status;
    }
    find_parts(out);
    out->cached = 1;
    return MOTE_OK;
}

/* mkdir -p */
static int make_folder(char *path)
{
    for (char *at = path + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            int failed = mkdir(path, 0777) && errno != EEXIST;
            *at = '/';
            if (failed) return -1;
        }
    return mkdir(path, 0777) && errno != EEXIST ? -1 : 0;
}

static int write_all(int file, const void *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t put = write(file, (const uint8_t *)data + at, size - at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return -1;
        at += (size_t)put;
    }
    return 0;
}

mote_status mote_cache_write(const char *name, const struct mote_cubin *cubin)
{
    char path[MOTE_CACHE_PATH + 256], temporary[sizeof path + 16];
    TRY(mote_cache_folder(path));
    FAIL_IF(make_folder(path), MOTE_IO, "kernel cache: cannot make %s: %s", path, strerror(errno));
    strcat(path, "/");
    strncat(path, name, 255);
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int file = mkostemp(temporary, O_CLOEXEC);
    FAIL_IF(file < 0, MOTE_IO, "kernel cache: cannot write %s: %s", temporary, strerror(errno));
    int failed = write_all(file, cubin->memory, cubin->memory_size);
    failed |= fchmod(file, 0644); /* mkostemp makes it the owner's alone */
    failed |= close(file);
    failed = failed || rename(temporary, path);
    if (failed) {
        int code = errno;
        unlink(temporary);
        return mote_fail(MOTE_IO, "kernel cache: cannot write %s: %s", path, strerror(code));
    }
    return MOTE_OK;
}
