/* name_index.h: names to numbers.
 *
 * Owns: a hash table of names, numbered in the order they are added. Does not own the bytes of the names.
 */
#ifndef MOTE_FILE_NAME_INDEX_H
#define MOTE_FILE_NAME_INDEX_H

#include "file/catalogue.h"

struct mote_name_index { /* all zero (but for the budget) is an empty one */
    struct mote_budget *budget;
    size_t n_name;
    struct mote_text *name; /* [n_name] */
    size_t room;            /* names that fit before growing */
    uint32_t *slot;         /* [n_slot] number + 1, 0 for free */
    size_t n_slot;          /* a power of two, at least twice n_name */
};

enum { MOTE_NAME_NONE = -1 };

int64_t mote_name_index_find(const struct mote_name_index *index, const char *data, size_t length);
/* The number of the name, and whether it is new. The bytes must stay where they are. */
mote_status mote_name_index_add(struct mote_name_index *index, const char *data, size_t length,
                                size_t *number, int *is_new);
void mote_name_index_free(struct mote_name_index *index);

#endif
