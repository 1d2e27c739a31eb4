/* matmul_k_avx512.c: matmul_k_x86.h for AVX-512 with VNNI. */
#define MATMUL_FILL mote_matmul_k_avx512_fill
#include "cpu/matmul_k_x86.h"
