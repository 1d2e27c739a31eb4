/* matmul_nvfp4_avx512.c: matmul_nvfp4_x86.h for AVX-512 with VNNI. */
#define MATMUL_FILL mote_matmul_nvfp4_avx512_fill
#include "cpu/matmul_nvfp4_x86.h"
