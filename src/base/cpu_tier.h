/* cpu_tier.h: which instruction set this machine can run.
 *
 * Tiers are bundles: a tier counts only when the CPU has every feature in it and the operating system saves
 * the registers. MOTE_CPU=scalar|avx2|avx512 in the environment lowers the tier (tests run under each mask).
 */
#ifndef MOTE_BASE_CPU_TIER_H
#define MOTE_BASE_CPU_TIER_H

#include "base/error.h"

enum mote_cpu_tier {
    MOTE_CPU_SCALAR, /* plain C */
    MOTE_CPU_AVX2,   /* AVX2, FMA, F16C, BMI2 */
    MOTE_CPU_AVX512, /* the above and AVX-512 F, BW, VL, DQ, VNNI */
    MOTE_CPU_TIER_COUNT
};

const char *mote_cpu_tier_name(enum mote_cpu_tier tier);
enum mote_cpu_tier mote_cpu_tier_detect(void); /* what the machine has, no mask */

/* What to use: detected, lowered by MOTE_CPU. Fails with MOTE_ARGUMENT when MOTE_CPU names no tier, and with
 * MOTE_UNSUPPORTED when it names one that this machine lacks. */
mote_status mote_cpu_tier_choose(enum mote_cpu_tier *out);

#endif
