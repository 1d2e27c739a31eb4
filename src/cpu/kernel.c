/* kernel.c: builds the tables of kernel.h, once, tier by tier. Has no kernels of its own. */
#include "cpu/kernel.h"

#include <pthread.h>

static struct mote_cpu_kernels tables[MOTE_CPU_TIER_COUNT];

/* MXFP4 activations lie as 8-bit integers with a scale for 32 do: the same products. */
static void share_mxfp4(struct mote_cpu_kernels *table)
{
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++)
        if (mote_act_chosen((enum mote_format)f, MOTE_WISH_MXFP4) == MOTE_ACT_MXFP4) {
            table->dot[MOTE_ACT_MXFP4][f] = table->dot[MOTE_ACT_I8_32][f];
            table->gemm[MOTE_ACT_MXFP4][f] = table->gemm[MOTE_ACT_I8_32][f];
        }
}

static void build(void)
{
    struct mote_cpu_kernels *scalar = &tables[MOTE_CPU_SCALAR];
    scalar->tier = MOTE_CPU_SCALAR;
    mote_matmul_scalar_fill(scalar);
    mote_ops_scalar_fill(scalar);

    struct mote_cpu_kernels *avx2 = &tables[MOTE_CPU_AVX2];
    *avx2 = *scalar;
    avx2->tier = MOTE_CPU_AVX2;
    mote_matmul_float_avx2_fill(avx2);
    mote_matmul_k_avx2_fill(avx2);
    mote_matmul_small_avx2_fill(avx2);
    mote_matmul_affine_avx2_fill(avx2);
    mote_matmul_nvfp4_avx2_fill(avx2);
    mote_matmul_iq_avx2_fill(avx2);
    mote_ops_avx2_fill(avx2);

    struct mote_cpu_kernels *avx512 = &tables[MOTE_CPU_AVX512];
    *avx512 = *avx2;
    avx512->tier = MOTE_CPU_AVX512;
    mote_matmul_k_avx512_fill(avx512);
    mote_matmul_iq_avx512_fill(avx512);
    mote_matmul_small_avx512_fill(avx512);
    mote_matmul_affine_avx512_fill(avx512);
    mote_matmul_nvfp4_avx512_fill(avx512);

    for (int tier = 0; tier < MOTE_CPU_TIER_COUNT; tier++) share_mxfp4(&tables[tier]);
}

const struct mote_cpu_kernels *mote_cpu_kernels(enum mote_cpu_tier tier)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build);
    return &tables[tier];
}
