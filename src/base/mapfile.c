/* mapfile.c: see mapfile.h. */
#define _GNU_SOURCE
#include "base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

mote_status mote_mapfile_open(const char *path, struct mote_mapfile *out)
{
    *out = (struct mote_mapfile){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mote_fail(errno == ENOENT ? MOTE_NOT_FOUND : MOTE_IO, "%s: cannot open: %s", path,
                         strerror(errno));
    struct stat info;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return mote_fail(MOTE_IO, "%s: not a regular file", path);
    }
    if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            int code = errno;
            close(fd);
            return mote_fail(MOTE_IO, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size,
                             strerror(code));
        }
        out->data = data;
        out->size = (size_t)info.st_size;
    }
    close(fd);
    return MOTE_OK;
}

void mote_mapfile_close(struct mote_mapfile *file)
{
    if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
    *file = (struct mote_mapfile){0};
}
