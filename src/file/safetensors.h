/* safetensors.h: reads the headers of safetensors files. Internal to file/.
 *
 * Owns: the list of tensors over all shards, checked against the files. Does not own: their meaning, the mappings.
 */
#ifndef MOTE_FILE_SAFETENSORS_H
#define MOTE_FILE_SAFETENSORS_H

#include "file/name_index.h"

struct mote_safetensor {
    const char *name;
    const char *dtype; /* as the file spells it */
    int format;        /* PLAIN and OTHER formats; -1 when the dtype is none of them */
    int n_dim;         /* may be 0, or more than MOTE_MAX_DIMS */
    int64_t
        dim[MOTE_MAX_DIMS]; /* as in the file: the last one is contiguous; the first MOTE_MAX_DIMS of them */
    size_t n_byte;
    const uint8_t *data; /* [n_byte] */
    const char *file;    /* of which shard */
    int used;            /* for whoever maps the tensors */
};

struct mote_safetensors {
    struct mote_budget *budget;
    struct mote_arena *arena; /* where names go */
    size_t n_tensor, room;
    struct mote_safetensor *tensor; /* [n_tensor], in file order */
    struct mote_name_index index;
    int is_mlx; /* a shard's __metadata__ says so */
};

void mote_safetensors_init(struct mote_safetensors *set, struct mote_budget *budget,
                           struct mote_arena *arena);
void mote_safetensors_free(struct mote_safetensors *set);
/* Add the tensors of one file in memory. `file` is the shard's name, without its folder, and must live as long as the set. */
mote_status mote_safetensors_parse(struct mote_safetensors *set, const char *file, const uint8_t *data,
                                   size_t size);
/* How the file spells a format; NULL when it has no word for it. */
const char *mote_safetensors_dtype(enum mote_format format);
struct mote_safetensor *mote_safetensors_find(const struct mote_safetensors *set, const char *name);

#endif
