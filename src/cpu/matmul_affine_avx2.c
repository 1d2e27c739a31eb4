/* matmul_affine_avx2.c: matmul_affine_x86.h for AVX2. */
#define MATMUL_FILL mote_matmul_affine_avx2_fill
#include "cpu/matmul_affine_x86.h"
