/* test_prefill_mxfp4_wgmma.cc: test_prefill_mxfp4.cc with the kernels of sm_90a, where gate and up of a row are two warps'. */
#define EMULATE_WGMMA 1
#include "test_prefill_mxfp4.cc"
