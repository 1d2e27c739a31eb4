/* unit_list.c: the table of representative units. See unit_list.h. */
#include "cuda/unit_list.h"

const struct mote_cuda_unit_row mote_cuda_unit_list[] = {
    {{"bandwidth.cu", ""}, "read", 1},
    {{NULL, NULL}, NULL, 0},
};
