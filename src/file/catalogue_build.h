/* catalogue_build.h: how the readers of one file format fill a catalogue. Internal to file/.
 *
 * One idea: a reader creates an empty catalogue, adds files, keys and tensors in file order, and closes it when
 * something fails; names that come twice are refused here, for every format.
 */
#ifndef MOTE_FILE_CATALOGUE_BUILD_H
#define MOTE_FILE_CATALOGUE_BUILD_H

#include "file/catalogue.h"
#include "file/name_index.h"

struct mote_catalogue_state {
    struct mote_budget *budget;
    struct mote_arena arena; /* every name, path and array that the catalogue points at */
    struct mote_name_index tensor_index, meta_index;
    struct mote_tensor *tensor; /* the catalogue's own arrays, not const here */
    struct mote_meta *meta;
    struct mote_mapfile *file;
    const char **file_path;
    size_t tensor_room, meta_room, file_room, path_room;
};

mote_status mote_catalogue_create(const char *path, const char *source, struct mote_budget *budget,
                                  struct mote_catalogue **out);
/* Map the file and keep it; *out is a copy of its entry. */
mote_status mote_catalogue_add_file(struct mote_catalogue *catalogue, const char *path,
                                    struct mote_mapfile *out);
/* Copies the structs; what they point at must live in the arena or in a mapped file. A name that is there already
 * is MOTE_FORMAT. */
mote_status mote_catalogue_add_tensor(struct mote_catalogue *catalogue, const struct mote_tensor *tensor);
mote_status mote_catalogue_add_meta(struct mote_catalogue *catalogue, const struct mote_meta *meta);

/* Make room for one more item of `item` bytes behind `count` of them; `array` is the address of a pointer. */
mote_status mote_grow(struct mote_budget *budget, size_t count, size_t *room, size_t item, void *array);

/* Check n_dim, dim[] and the block size of tensor->format, then set n_byte (codes). PLANAR formats too. */
mote_status mote_tensor_measure(struct mote_tensor *tensor);
/* Bytes of one row's scales (equal to those of its biases); 0 for formats without planes. */
size_t mote_tensor_scale_row(const struct mote_tensor *tensor);
/* Codes and planes of all experts. */
size_t mote_tensor_bytes(const struct mote_tensor *tensor);
/* Rows [row, row + n_row) of one expert as a tensor of their own, [n_row][dim[0]]. */
struct mote_tensor mote_tensor_rows(const struct mote_tensor *tensor, int64_t expert, int64_t row,
                                    int64_t n_row);

size_t mote_meta_type_size(enum mote_meta_type type); /* 0 for strings and arrays */
/* Whether the value is an integer >= 0, and which. */
int mote_meta_as_u64(const struct mote_meta *meta, uint64_t *out);

/* A name for a message: control bytes replaced, cut when long. */
struct mote_shown {
    char text[160];
};
struct mote_shown mote_show(const char *data, size_t length);
struct mote_shown mote_show_name(const char *name);

#endif
