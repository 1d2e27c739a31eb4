/* test_decode_topk.cc: test_decode_router.cc with the softmax over the chosen alone and weights in f16. */
#define N_EXPERT 6
#define N_USED 2
#define SCORE 1
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 0
#define ITEM MOTE_ITEM_F16
#define PLAIN_FORMAT MOTE_FORMAT_F16
#define D_MODEL 256
#define WARPS 2
#include "test_decode_router.cc"
