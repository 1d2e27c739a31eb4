/* decode_parts.h: what decode.c dispatches to; nothing else includes it.
 *
 * One function per PLAIN and BLOCK format, named after its id in MOTE_FORMATS: a format without a decoder
 * does not link. decode_simple.c, decode_k.c and decode_iq.c define them; decode_planar.c owns the PLANAR
 * family.
 */
#ifndef MOTE_QUANT_DECODE_PARTS_H
#define MOTE_QUANT_DECODE_PARTS_H

#include "quant/format.h"

/* blocks[n_block][block_bytes] -> out[n_block][block_elems] */
typedef void mote_block_decoder(const uint8_t *blocks, int64_t n_block, float *out);

#define MOTE_DECLARE_PLAIN(id) mote_block_decoder mote_decode_##id;
#define MOTE_DECLARE_BLOCK(id) mote_block_decoder mote_decode_##id;
#define MOTE_DECLARE_PLANAR(id)
#define MOTE_DECLARE_OTHER(id)
#define X(id, gguf, name, elems, bytes, family) MOTE_DECLARE_##family(id)
MOTE_FORMATS(X)
#undef X

/* mote_decode for PLANAR formats. */
void mote_decode_planar(const struct mote_matrix *w, int64_t row, int64_t col, int64_t n, float *out);

#endif
