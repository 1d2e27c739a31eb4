/* test_mx_wide.cc: mx_wide.cu on MXFP4 activations, by mx_block.h: more spans than one, a last unit that is
 * half there, a last block whose rows are not all there. */
#define D_MODEL 2240
#define N_FF 160
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#define FP8 1
#define WIDTH 208
#define PAIRS 1, 70, 0, 97, 0, 0, 0, 212, 20, 0
#define PAIRS_SHORT 1, 70, 0, 0, 0, 161, 0, 0, 20, 0
#include "mx_block.h"
