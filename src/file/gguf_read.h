/* gguf_read.h: reads GGUF into a catalogue. Internal to file/. */
#ifndef MOTE_FILE_GGUF_READ_H
#define MOTE_FILE_GGUF_READ_H

#include "file/catalogue_build.h"

/* A file, or any part of a split one. */
mote_status mote_gguf_open(const char *path, struct mote_budget *budget, struct mote_catalogue **out);

struct mote_gguf_part { /* what one file says about itself */
    size_t n_tensor;
    uint64_t split_no, split_count, split_tensors; /* split.no, .count, .tensors.count; 0 when absent */
};
/* Add the tensors (and, with keep_meta, the keys) of a GGUF that is in memory; data must outlive the catalogue.
 * `name` is for messages. */
mote_status mote_gguf_parse(struct mote_catalogue *catalogue, const char *name, const uint8_t *data,
                            size_t size, int keep_meta, struct mote_gguf_part *out);
/* NVFP4 keeps its tensor scales in "X.scale" beside "X.weight": put them into the factors. */
mote_status mote_gguf_apply_scales(struct mote_catalogue *catalogue);

#endif
