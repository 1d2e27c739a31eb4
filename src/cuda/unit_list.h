/* unit_list.h: representative units of every kernel text: what tests compile for every architecture and `mote kernels`
 * compiles ahead.
 *
 * Owns: the table. Does not own: which units a given model needs (backend/cuda_*.c).
 * One idea: every kernel text has rows here, so that a text that does not compile, spills or grows is seen without a
 * device.
 */
#ifndef MOTE_CUDA_UNIT_LIST_H
#define MOTE_CUDA_UNIT_LIST_H

#include "cuda/cuda.h"

struct mote_cuda_unit_row {
    struct mote_cuda_unit unit;
    const char *what; /* "q4_k": the table's name for it, unique for a text */
    int hot;          /* runs once a layer or more: its kernels must not spill */
    const char *arch; /* "sm_90a": the one it is written for; NULL: every one */
};
extern const struct mote_cuda_unit_row
    mote_cuda_unit_list[]; /* a NULL text ends it; a text's rows lie together */

/* Does it compile for `arch`? */
int mote_cuda_unit_is_for(const struct mote_cuda_unit_row *row, const char *arch);

#endif
