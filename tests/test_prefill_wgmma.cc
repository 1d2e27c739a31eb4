/* test_prefill_wgmma.cc: test_prefill_kernels.cc with the kernels of sm_90a: asynchronous products (done at once here) that
 * find the tokens by descriptor, and the wider shapes.
 */
#define EMULATE_WGMMA 1
#include "test_prefill_kernels.cc"
