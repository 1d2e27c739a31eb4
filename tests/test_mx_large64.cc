/* test_mx_large64.cc: test_mx_large.cc where pieces have up to 64 pairs: one part, four groups. */
#define WIDTH 64
#include "test_mx_large.cc"
