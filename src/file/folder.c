/* folder.c: see folder.h. */
#define _GNU_SOURCE
#include "file/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int mote_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int mote_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

mote_status mote_path_join(struct mote_arena *arena, const char *folder, const char *name, char **out)
{
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/') a--;
    TRY(mote_arena_alloc(arena, a + b + 2, out));
    memcpy(*out, folder, a);
    (*out)[a] = '/';
    memcpy(*out + a + 1, name, b + 1);
    return MOTE_OK;
}

static int ends_with(const char *text, const char *suffix)
{
    size_t a = strlen(text), b = strlen(suffix);
    return a >= b && memcmp(text + a - b, suffix, b) == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct name_list {
    struct name_list *next;
    char *name;
};

static mote_status list(DIR *dir, struct mote_arena *arena, const char *folder, const char *suffix,
                        char ***out, size_t *n_out)
{
    struct name_list *head = NULL;
    size_t n = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(dir)); errno = 0) {
        if (entry->d_name[0] == '.' || !ends_with(entry->d_name, suffix)) continue;
        struct name_list *node;
        TRY(mote_arena_alloc(arena, sizeof *node, &node));
        TRY(mote_arena_strdup(arena, entry->d_name, strlen(entry->d_name), &node->name));
        node->next = head;
        head = node;
        n++;
    }
    FAIL_IF(errno, MOTE_IO, "%s: cannot list: %s", folder, strerror(errno));
    TRY(mote_arena_alloc(arena, (n + 1) * sizeof **out, out));
    *n_out = n;
    for (; head; head = head->next) (*out)[--n] = head->name;
    qsort(*out, *n_out, sizeof **out, by_name);
    return MOTE_OK;
}

mote_status mote_folder_list(struct mote_arena *arena, const char *folder, const char *suffix, char ***out,
                             size_t *n_out)
{
    *n_out = 0;
    DIR *dir = opendir(folder);
    FAIL_IF(!dir, errno == ENOENT ? MOTE_NOT_FOUND : MOTE_IO, "%s: cannot list: %s", folder, strerror(errno));
    mote_status status = list(dir, arena, folder, suffix, out, n_out);
    closedir(dir);
    return status;
}

static int five_digits(const char *text, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        *out = *out * 10 + (unsigned)(text[i] - '0');
    }
    return 1;
}

int mote_part_name_parse(const char *path, const char *suffix, struct mote_part_name *out)
{
    enum { TAIL = 15 }; /* -00002-of-00005 */
    size_t length = strlen(path), end = strlen(suffix);
    if (length < TAIL + end || !ends_with(path, suffix)) return 0;
    const char *tail = path + length - end - TAIL;
    if (tail[0] != '-' || memcmp(tail + 6, "-of-", 4) != 0) return 0;
    if (!five_digits(tail + 1, &out->part) || !five_digits(tail + 10, &out->count)) return 0;
    out->stem_length = (size_t)(tail - path);
    return out->part >= 1 && out->part <= out->count;
}

mote_status mote_part_name_make(struct mote_arena *arena, const char *path, const char *suffix,
                                const struct mote_part_name *name, unsigned part, char **out)
{
    size_t size = name->stem_length + strlen(suffix) + 32;
    TRY(mote_arena_alloc(arena, size, out));
    snprintf(*out, size, "%.*s-%05u-of-%05u%s", (int)name->stem_length, path, part, name->count, suffix);
    return MOTE_OK;
}
