/* test_mx_narrow.cc: mx_narrow.cu on MXFP4 activations, by mx_block.h. */
#define D_MODEL 704 /* a span and a half, its last unit half a one; a last block whose rows are not all there */
#define N_FF 160    /* ends inside a unit */
#define ACTIVATION SWIGLU
#define LIMIT 0.0f
#define PLANES 1
#define PAIRS 1, 17, 24, 30, 40, 52, 64, 130, 20, 0
#define PAIRS_SHORT 1, 17, 0, 65, 0, 129, 0, 0, 20, 0
#include "mx_block.h"
