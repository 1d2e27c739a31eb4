/* decode.c: finds the decoder of a format and the bytes of a range of a matrix.
 *
 * The decoders themselves: decode_simple.c, decode_k.c, decode_iq.c (PLAIN and BLOCK), decode_planar.c.
 */
#include "quant/decode.h"

#include "quant/decode_parts.h"

#define DECODER_PLAIN(id) mote_decode_##id
#define DECODER_BLOCK(id) mote_decode_##id
#define DECODER_PLANAR(id) NULL
#define DECODER_OTHER(id) NULL

static mote_block_decoder *const decoders[MOTE_FORMAT_COUNT] = {
#define X(id, gguf, name, elems, bytes, family) [MOTE_FORMAT_##id] = DECODER_##family(id),
    MOTE_FORMATS(X)
#undef X
};

void mote_decode_blocks(enum mote_format format, const void *blocks, int64_t n_block, float *out)
{
    decoders[format](blocks, n_block, out);
}

void mote_decode(const struct mote_matrix *w, int64_t row, int64_t col, int64_t n, float *out)
{
    const struct mote_format_traits *traits = mote_format_traits(w->format);
    if (traits->family == MOTE_FAMILY_PLANAR) {
        mote_decode_planar(w, row, col, n, out);
        return;
    }
    const uint8_t *blocks = w->data + (size_t)row * w->row_bytes + mote_format_row_bytes(w->format, col);
    decoders[w->format](blocks, n / traits->block_elems, out);
    if (w->factor != 1)
        for (int64_t i = 0; i < n; i++) out[i] *= w->factor;
}

struct mote_matrix mote_matrix_view(enum mote_format format, const void *data, int64_t n_row, int64_t n_col)
{
    return (struct mote_matrix){.format = format,
                                .n_row = n_row,
                                .n_col = n_col,
                                .row_bytes = mote_format_row_bytes(format, n_col),
                                .data = data,
                                .factor = 1};
}
