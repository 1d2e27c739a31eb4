/* gguf_write.h: writes a GGUF v3 file in one pass, tensor bytes streamed.
 *
 * Use: create, add every key, declare every tensor (their order is the order in the file), begin, then write each
 * tensor's bytes in that order (any number of write calls), finish. The file appears under its name only when
 * finish succeeds (it is written beside it as NAME.part and renamed); abandon removes it.
 */
#ifndef MOTE_FILE_GGUF_WRITE_H
#define MOTE_FILE_GGUF_WRITE_H

#include "file/catalogue.h"

struct mote_gguf_writer;

mote_status mote_gguf_create(const char *path, struct mote_gguf_writer **out);
mote_status mote_gguf_put_u32(struct mote_gguf_writer *writer, const char *key, uint32_t value);
mote_status mote_gguf_put_f32(struct mote_gguf_writer *writer, const char *key, float value);
mote_status mote_gguf_put_bool(struct mote_gguf_writer *writer, const char *key, int value);
mote_status mote_gguf_put_text(struct mote_gguf_writer *writer, const char *key, const char *text,
                               size_t length);
mote_status mote_gguf_put_texts(struct mote_gguf_writer *writer, const char *key,
                                const struct mote_text *text, size_t count);
mote_status mote_gguf_put_i32s(struct mote_gguf_writer *writer, const char *key, const int32_t *value,
                               size_t count);
mote_status mote_gguf_put_f32s(struct mote_gguf_writer *writer, const char *key, const float *value,
                               size_t count);
mote_status mote_gguf_put_meta(struct mote_gguf_writer *writer,
                               const struct mote_meta *meta); /* copy any value */
/* A key put twice is MOTE_ARGUMENT. */

/* dim[0] contiguous, as in mote_tensor. PLAIN, BLOCK and OTHER formats (those with a GGUF type). */
mote_status mote_gguf_declare(struct mote_gguf_writer *writer, const char *name, enum mote_format format,
                              int n_dim, const int64_t *dim);
mote_status mote_gguf_begin(struct mote_gguf_writer *writer);
mote_status mote_gguf_write(struct mote_gguf_writer *writer, const void *bytes, size_t n_byte);
mote_status mote_gguf_finish(struct mote_gguf_writer *writer); /* frees the writer, also on failure */
void mote_gguf_abandon(struct mote_gguf_writer *writer);       /* NULL is fine */
#endif
