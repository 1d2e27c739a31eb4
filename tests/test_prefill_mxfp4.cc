/* test_prefill_mxfp4.cc: test_prefill_kernels.cc with activations in MXFP4: rounded as quant/mxfp4.c does, x where it is copied and h where it
 * is made, then multiplied exactly. With wgmma: test_prefill_mxfp4_wgmma.cc.
 */
#define W0 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0
#define W1 MOTE_CODE_E2M1, 0, MOTE_TABLE_NONE, 32, MOTE_ITEM_E8M0, 0, -1, 0
#define FORMAT0 MOTE_FORMAT_MXFP4
#define FORMAT1 MOTE_FORMAT_MXFP4
#define COLS 288
#define X_TYPE AS_MXFP4
#define H_TYPE AS_MXFP4
#include "test_prefill_kernels.cc"
