/* matmul_nvfp4_avx2.c: matmul_nvfp4_x86.h for AVX2. */
#define MATMUL_FILL mote_matmul_nvfp4_avx2_fill
#include "cpu/matmul_nvfp4_x86.h"
