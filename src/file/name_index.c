/* name_index.c: see name_index.h. Open addressing, FNV-1a, at most half full. */
#include "file/name_index.h"

#include <string.h>

static uint64_t hash_of(const char *data, size_t length)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)data[i]) * 0x100000001B3u;
    return hash ^ hash >> 32; /* the low bits choose the slot */
}

/* The slot that holds the name, or the free one where it belongs. */
static size_t slot_of(const struct mote_name_index *index, const char *data, size_t length)
{
    size_t mask = index->n_slot - 1, at = (size_t)hash_of(data, length) & mask;
    for (; index->slot[at]; at = (at + 1) & mask) {
        const struct mote_text *name = &index->name[index->slot[at] - 1];
        if (name->length == length && (length == 0 || memcmp(name->data, data, length) == 0)) break;
    }
    return at;
}

int64_t mote_name_index_find(const struct mote_name_index *index, const char *data, size_t length)
{
    if (index->n_name == 0) return MOTE_NAME_NONE;
    return (int64_t)index->slot[slot_of(index, data, length)] - 1;
}

static mote_status grow(struct mote_name_index *index)
{
    size_t room = index->room ? index->room * 2 : 64;
    FAIL_IF(room > UINT32_MAX / 4, MOTE_UNSUPPORTED, "%zu names are too many", index->n_name);
    TRY(mote_mem_resize(index->budget, MOTE_MEM_TABLES, room * sizeof *index->name, &index->name));
    uint32_t *slot;
    TRY(mote_mem_calloc(index->budget, MOTE_MEM_TABLES, room * 2, sizeof *slot, &slot));
    mote_mem_free(index->slot);
    index->slot = slot;
    index->n_slot = room * 2;
    index->room = room;
    for (size_t i = 0; i < index->n_name; i++)
        slot[slot_of(index, index->name[i].data, index->name[i].length)] = (uint32_t)i + 1;
    return MOTE_OK;
}

mote_status mote_name_index_add(struct mote_name_index *index, const char *data, size_t length,
                                size_t *number, int *is_new)
{
    int64_t found = mote_name_index_find(index, data, length);
    *is_new = found == MOTE_NAME_NONE;
    *number = *is_new ? index->n_name : (size_t)found;
    if (!*is_new) return MOTE_OK;
    if (index->n_name == index->room) TRY(grow(index));
    index->name[index->n_name] = (struct mote_text){data, length};
    index->slot[slot_of(index, data, length)] = (uint32_t)++index->n_name;
    return MOTE_OK;
}

void mote_name_index_free(struct mote_name_index *index)
{
    mote_mem_free(index->name);
    mote_mem_free(index->slot);
    *index = (struct mote_name_index){.budget = index->budget};
}
