/* compact_formats.h: for tests: which formats lie otherwise on a device where there is little room (cuda/layout.h). */
#ifndef MOTE_TESTS_COMPACT_FORMATS_H
#define MOTE_TESTS_COMPACT_FORMATS_H

#include "cuda/layout.h"
#include "quant/format.h"

static inline int lies_compact(enum mote_format format)
{
#define X(id, ...) \
    if (format == MOTE_FORMAT_##id) return 1;
    MOTE_TILE_COMPACT_KINDS(X)
#undef X
    return 0;
}

#endif
