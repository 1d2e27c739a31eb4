/* mapfile.h: a file mapped read-only.
 *
 * Does not count against a budget: the reader that keeps the mapping decides what of it is weights.
 */
#ifndef MOTE_BASE_MAPFILE_H
#define MOTE_BASE_MAPFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct mote_mapfile {
    const uint8_t *data; /* [size]; NULL for an empty file */
    size_t size;
};

/* Fails with MOTE_NOT_FOUND or MOTE_IO, the path named. */
mote_status mote_mapfile_open(const char *path, struct mote_mapfile *out);
void mote_mapfile_close(struct mote_mapfile *file); /* closing twice is fine */

#endif
