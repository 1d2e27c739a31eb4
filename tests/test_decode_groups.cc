/* test_decode_groups.cc: test_decode_router.cc with experts in groups, sigmoid scores and weights in f32; four warps. */
#define N_EXPERT 16
#define N_USED 4
#define SCORE 2
#define N_GROUP 4
#define N_GROUP_USED 2
#define RENORMALISE 1
#define ITEM MOTE_ITEM_F32
#define PLAIN_FORMAT MOTE_FORMAT_F32
#define D_MODEL 600
#define WARPS 4
#include "test_decode_router.cc"
