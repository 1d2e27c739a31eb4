/* test_mx_planes.cc: test_mx_large.cc where activations are two fp8 numbers each: pieces of up to 64 pairs, rows that end inside a
 * unit, another activation; no expert is left to others. */
#ifndef WIDTH
#define WIDTH 64
#define D_MODEL 736
#endif
#define PLANES 2
#define ACTIVATION SWIGLU_OAI
#define LIMIT 0.625f
#include "test_mx_large.cc"
