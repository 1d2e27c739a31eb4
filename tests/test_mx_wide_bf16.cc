/* test_mx_wide_bf16.cc: mx_wide.cu on activations of bf16, by mx_block.h: rows that end with the first half of a unit, another activation, scales
 * of weights further apart than any other kernel takes together. */
#define D_MODEL 704
#define N_FF 160
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#define FP8 0
#define WIDTH 256
#define PAIRS 1, 70, 90, 97, 0, 160, 0, 530, 20, 0
#define PAIRS_SHORT 1, 70, 0, 0, 0, 161, 0, 0, 20, 0
#include "mx_block.h"
