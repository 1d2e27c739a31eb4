/* matmul_affine_avx512.c: matmul_affine_x86.h for AVX-512 with VNNI. */
#define MATMUL_FILL mote_matmul_affine_avx512_fill
#include "cpu/matmul_affine_x86.h"
