/* file_bytes.h: what the tests of file/ share: files made byte by byte, and a folder for them that goes away. */
#ifndef MOTE_TESTS_FILE_BYTES_H
#define MOTE_TESTS_FILE_BYTES_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bytes {
    uint8_t *data; /* [size] */
    size_t size;
};

static inline void put(struct bytes *out, const void *data, size_t size)
{
    out->data = realloc(out->data, out->size + size + 1);
    if (!out->data) abort();
    if (size && data) memcpy(out->data + out->size, data, size);
    else memset(out->data + out->size, 0, size);
    out->size += size;
}

static inline void put_u32(struct bytes *out, uint32_t value)
{
    put(out, &value, 4);
}

static inline void put_u64(struct bytes *out, uint64_t value)
{
    put(out, &value, 8);
}

static inline void put_text(struct bytes *out, const char *text)
{
    put_u64(out, strlen(text));
    put(out, text, strlen(text));
}

static inline void put_zeros_to(struct bytes *out, size_t multiple)
{
    if (out->size % multiple) put(out, NULL, multiple - out->size % multiple);
}

/* A block of exactly `size` bytes, so that a sanitizer sees a read past the end. */
static inline uint8_t *exact_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    if (size) memcpy(copy, data, size);
    return copy;
}

struct folder {
    char path[256];
};

static inline struct folder folder_make(void)
{
    struct folder folder;
    const char *base = getenv("TMPDIR");
    snprintf(folder.path, sizeof folder.path, "%s/mote-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder.path)) abort();
    return folder;
}

static inline const char *folder_file(const struct folder *folder, const char *name)
{
    static char path[4][512]; /* four can be in use at once */
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder->path, name);
    return path[next];
}

static inline void folder_write(const struct folder *folder, const char *name, const void *data, size_t size)
{
    FILE *file = fopen(folder_file(folder, name), "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) abort();
}

static inline size_t folder_count(const struct folder *folder)
{
    size_t n = 0;
    DIR *dir = opendir(folder->path);
    if (!dir) abort();
    for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static inline void folder_remove(const struct folder *folder)
{
    DIR *dir = opendir(folder->path);
    if (!dir) abort();
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.') unlink(folder_file(folder, entry->d_name));
    closedir(dir);
    rmdir(folder->path);
}

#endif
