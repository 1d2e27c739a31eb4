/* test_mx_narrow_planes.cc: mx_narrow.cu on activations of two fp8 numbers each, by mx_block.h: rows that end inside a unit, another activation; no
 * expert is left to others. */
#define D_MODEL 736
#define N_FF 160
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#define PLANES 2
#define PAIRS 2, 40, 0, 0, 0, 64, 0, 0, 20, 0
#define PAIRS_SHORT 1, 17, 0, 0, 0, 33, 0, 0, 1, 0
#include "mx_block.h"
