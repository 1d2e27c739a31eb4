/* arch_qwen3moe.c: Qwen3 MoE: grouped-query attention with a norm per head on q and k, softmax over all
 * experts, then top-k, renormalised; some layers may be dense (which is seen from their tensors). */
#include "model/arch.h"

static const struct mote_key_rule keys[] = {
    MOTE_KEYS_COMMON,
    MOTE_KEYS_MOE,
    MOTE_KEY("expert_weights_norm", BOOL, OPTIONAL, renormalise, 1),
};

static const struct mote_tensor_rule tensors[] = {
    MOTE_TENSORS_GQA, MOTE_TENSORS_QK_NORM, MOTE_TENSORS_QKV_BIAS(1), MOTE_TENSORS_MOE, MOTE_TENSORS_DENSE,
};

const struct mote_arch mote_arch_qwen3moe = {
    .name = "qwen3moe",
    .key = keys,
    .n_key = sizeof keys / sizeof *keys,
    .tensor = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .score = MOTE_SCORE_SOFTMAX,
    .activation = {.kind = MOTE_ACTIVATION_SWIGLU},
};
