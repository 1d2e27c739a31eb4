/* test_mx_planes_wide.cc: test_mx_planes.cc in wide pieces, whose units share scales. */
#define WIDTH 144
#define D_MODEL 736
#include "test_mx_planes.cc"
