/* matmul_k_avx2.c: matmul_k_x86.h for AVX2. */
#define MATMUL_FILL mote_matmul_k_avx2_fill
#include "cpu/matmul_k_x86.h"
