/* matmul_iq_avx512.c: matmul_iq_x86.h for AVX-512 with VNNI. */
#define MATMUL_FILL mote_matmul_iq_avx512_fill
#include "cpu/matmul_iq_x86.h"
