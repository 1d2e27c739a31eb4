/* format.c: the traits made from the list in format.h, and the look-ups over them. */
#include "quant/format.h"

static const struct mote_format_traits traits[MOTE_FORMAT_COUNT] = {
#define X(id, gguf, name, elems, bytes, family) \
    [MOTE_FORMAT_##id] = {name, gguf, elems, bytes, MOTE_FAMILY_##family},
    MOTE_FORMATS(X)
#undef X
};

const struct mote_format_traits *mote_format_traits(enum mote_format format)
{
    return &traits[format];
}

/* ASCII only, whatever the locale says. */
static int same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        int x = *a >= 'A' && *a <= 'Z' ? *a + 32 : *a, y = *b >= 'A' && *b <= 'Z' ? *b + 32 : *b;
        if (x != y) return 0;
    }
    return *a == *b;
}

int mote_format_from_name(const char *name)
{
    for (int i = 0; i < MOTE_FORMAT_COUNT; i++)
        if (same_name(traits[i].name, name)) return i;
    return -1;
}

int mote_format_from_gguf(uint32_t gguf_id)
{
    for (int i = 0; i < MOTE_FORMAT_COUNT; i++)
        if (traits[i].gguf_id == (int64_t)gguf_id) return i; /* widened, so that no id can equal -1 */
    return -1;
}

size_t mote_format_row_bytes(enum mote_format format, int64_t n_col)
{
    return (size_t)(n_col / traits[format].block_elems) * (size_t)traits[format].block_bytes;
}

int mote_format_code_bits(enum mote_format format)
{
    return traits[format].block_bytes * 8 / traits[format].block_elems;
}
