/* mlx_write.h: writes an MLX folder in one pass, tensor bytes streamed: config.json and one model.safetensors.
 *
 * Use: create, put every key, declare every tensor (their order is the order in the file), begin, then write each
 * tensor's bytes in that order (any number of write calls), put the tokenizer's files, finish. Names and keys are the
 * neutral ones, GGUF's; the writer translates. The folder appears under its name only when finish succeeds (it is
 * written beside it as NAME.part and renamed); abandon removes it.
 */
#ifndef MOTE_FILE_MLX_WRITE_H
#define MOTE_FILE_MLX_WRITE_H

#include "file/catalogue.h"

struct mote_mlx_writer;

/* format: AFFINE*, what modules are unless config.json says otherwise; in groups of `group`. `folder` must be new or
 * empty. Fails with MOTE_UNSUPPORTED when Hugging Face has no such architecture (or none that is known here). */
mote_status mote_mlx_create(const char *folder, const char *arch, enum mote_format format, int group,
                            struct mote_mlx_writer **out);
/* key: behind "ARCH.". Two keys that share an entry of config.json must agree. */
mote_status mote_mlx_put(struct mote_mlx_writer *writer, const char *key, double value);
mote_status mote_mlx_put_json(struct mote_mlx_writer *writer, const char *entry, const char *json);
/* A whole file of the folder. */
mote_status mote_mlx_put_file(struct mote_mlx_writer *writer, const char *name, struct mote_text text);

/* name, format, n_dim and dim of the tensor count: dim[0] contiguous. PLAIN formats; AFFINE* ones also with scale_format
 * and group, and their bytes come as three planes, one behind the other: codes, scales, biases.
 * *n_byte: of all planes. */
mote_status mote_mlx_declare(struct mote_mlx_writer *writer, const struct mote_tensor *tensor,
                             uint64_t *n_byte);
mote_status mote_mlx_begin(struct mote_mlx_writer *writer);
mote_status mote_mlx_write(struct mote_mlx_writer *writer, const void *bytes, size_t n_byte);
mote_status mote_mlx_finish(struct mote_mlx_writer *writer); /* frees the writer, also on failure */
void mote_mlx_abandon(struct mote_mlx_writer *writer);       /* NULL is fine */

#endif
