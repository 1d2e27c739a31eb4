/* arch_qwen2moe.c: Qwen2 MoE: biases on q, k and v, softmax over all experts, then top-k, not renormalised,
 * and a shared expert behind a sigmoid gate. */
#include "model/arch.h"

static const struct mote_key_rule keys[] = {
    MOTE_KEYS_COMMON,
    MOTE_KEYS_MOE,
    MOTE_KEYS_SHARED,
    MOTE_KEY("expert_weights_norm", BOOL, OPTIONAL, renormalise, 0),
};

static const struct mote_tensor_rule tensors[] = {
    MOTE_TENSORS_GQA,          MOTE_TENSORS_QKV_BIAS(0), MOTE_TENSORS_MOE,
    MOTE_TENSORS_SHARED_GATED, MOTE_TENSORS_DENSE,
};

const struct mote_arch mote_arch_qwen2moe = {
    .name = "qwen2moe",
    .key = keys,
    .n_key = sizeof keys / sizeof *keys,
    .tensor = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .score = MOTE_SCORE_SOFTMAX,
    .activation = {.kind = MOTE_ACTIVATION_SWIGLU},
};
