/* matmul_iq_avx2.c: matmul_iq_x86.h for AVX2. */
#define MATMUL_FILL mote_matmul_iq_avx2_fill
#include "cpu/matmul_iq_x86.h"
