/* matmul_small_avx2.c: matmul_small_x86.h for AVX2. */
#define MATMUL_FILL mote_matmul_small_avx2_fill
#include "cpu/matmul_small_x86.h"
