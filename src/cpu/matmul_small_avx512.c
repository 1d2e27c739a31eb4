/* matmul_small_avx512.c: matmul_small_x86.h for AVX-512 with VNNI. */
#define MATMUL_FILL mote_matmul_small_avx512_fill
#include "cpu/matmul_small_x86.h"
