/* encode_avx2.c: the encoders again, compiled for AVX2 (see encode_block.h). Byte-equal to the portable
 * copies.
 *
 * The build gives this file its instruction set (the rule for src/quant in the Makefile).
 */
#include "quant/encode_block.h"

#if defined(__x86_64__)
#undef MOTE_TIER
#define MOTE_TIER(name) name##_avx2
#include "quant/encode_affine.c"
#include "quant/encode_iq.c"
#include "quant/encode_k.c"
#include "quant/encode_simple.c"
#include "quant/encode_ternary.c"
#endif
