/* test_prefill_int8_mma.cc: test_prefill_int8.cc with the kernels of devices without wgmma, on Q1_0: an odd number of units, and
 * experts without a gate.
 */
#define W0 MOTE_CODE_C1, 1, 0, 128, MOTE_ITEM_F16, 0, 0, 0
#define W1 W0
#define FORMAT0 MOTE_FORMAT_Q1_0
#define FORMAT1 MOTE_FORMAT_Q1_0
#define COLS 640
#define X_GROUP 128
#define ACTIVATION RELU2
#define LIMIT 0.0f
#include "test_prefill_int8.cc"
