/* cpu_tier.c: see cpu_tier.h. */
#include "base/cpu_tier.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdlib.h>
#include <string.h>

static const char *const names[MOTE_CPU_TIER_COUNT] = {"scalar", "avx2", "avx512"};

const char *mote_cpu_tier_name(enum mote_cpu_tier tier)
{
    return (unsigned)tier < MOTE_CPU_TIER_COUNT ? names[tier] : "?";
}

enum mote_cpu_tier mote_cpu_tier_detect(void)
{
#if defined(__x86_64__)
    /* The compiler's support library reads CPUID and XGETBV, so the state the OS saves is part of the answer. F16C
     * has no name in clang 14's list; its bit stands in leaf 1. */
    __builtin_cpu_init();
    unsigned eax, ebx, ecx = 0, edx;
    int f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
    if (!(f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          __builtin_cpu_supports("bmi2")))
        return MOTE_CPU_SCALAR;
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vnni")))
        return MOTE_CPU_AVX2;
    return MOTE_CPU_AVX512;
#else
    return MOTE_CPU_SCALAR;
#endif
}

mote_status mote_cpu_tier_choose(enum mote_cpu_tier *out)
{
    enum mote_cpu_tier have = mote_cpu_tier_detect();
    *out = have;
    const char *mask = getenv("MOTE_CPU");
    if (!mask || !*mask) return MOTE_OK;
    for (int tier = 0; tier < MOTE_CPU_TIER_COUNT; tier++) {
        if (strcmp(mask, names[tier])) continue;
        FAIL_IF(tier > (int)have, MOTE_UNSUPPORTED, "MOTE_CPU=%s: this machine's CPU stops at %s", mask,
                names[have]);
        *out = (enum mote_cpu_tier)tier;
        return MOTE_OK;
    }
    return mote_fail(MOTE_ARGUMENT, "MOTE_CPU=%s: expected scalar, avx2 or avx512", mask);
}
