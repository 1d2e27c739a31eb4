/* folder.h: what lies in a folder, and the names of files that are split in parts. Internal to file/. */
#ifndef MOTE_FILE_FOLDER_H
#define MOTE_FILE_FOLDER_H

#include "base/mem.h"

int mote_is_folder(const char *path);
int mote_is_file(const char *path);
/* "folder/name" in the arena. */
mote_status mote_path_join(struct mote_arena *arena, const char *folder, const char *name, char **out);
/* Names (without the folder) that end in `suffix`, sorted. */
mote_status mote_folder_list(struct mote_arena *arena, const char *folder, const char *suffix, char ***out,
                             size_t *n_out);

/* "STEM-00002-of-00005.gguf": stem_length, part 2, count 5. 0 when `path` is not of that form. */
struct mote_part_name {
    size_t stem_length;
    unsigned part, count; /* part is 1..count */
};
int mote_part_name_parse(const char *path, const char *suffix, struct mote_part_name *out);
/* The name of another part of the same file. */
mote_status mote_part_name_make(struct mote_arena *arena, const char *path, const char *suffix,
                                const struct mote_part_name *name, unsigned part, char **out);

#endif
