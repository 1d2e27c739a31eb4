/* arch.h: an architecture is a table: metadata keys with defaults, tensors with shapes, the kind of routing.
 *
 * Owns: the tables' types and the fragments that architectures share. load.c walks them; forward.c runs what
 * they filled in. A new architecture of known blocks is one file with a `struct mote_arch` and a row in
 * arch.c.
 */
#ifndef MOTE_MODEL_ARCH_H
#define MOTE_MODEL_ARCH_H

#include "model/model.h"

/* ---- metadata keys: "<architecture>.<suffix>" to a field of mote_hyper ---- */
enum mote_key_type { MOTE_KEY_U64, MOTE_KEY_F64, MOTE_KEY_BOOL };
enum mote_key_need {
    MOTE_KEY_REQUIRED,
    MOTE_KEY_EXPECTED, /* files carry it: a default is a warning */
    MOTE_KEY_OPTIONAL  /* often absent: the default is only worth a note */
};
struct mote_key_rule {
    const char *suffix;
    enum mote_key_type type;
    enum mote_key_need need;
    size_t offset;   /* in mote_hyper */
    double fallback; /* MOTE_KEY_INFERRED: load.c works it out from other keys or from tensors */
};
#define MOTE_KEY_INFERRED (-1.0)

#define MOTE_KEY(suffix, type, need, field, fallback)                                          \
    {                                                                                          \
        suffix, MOTE_KEY_##type, MOTE_KEY_##need, offsetof(struct mote_hyper, field), fallback \
    }

#define MOTE_KEYS_COMMON                                                                  \
    MOTE_KEY("block_count", U64, REQUIRED, n_layer, 0),                                   \
        MOTE_KEY("embedding_length", U64, REQUIRED, d_model, 0),                          \
        MOTE_KEY("context_length", U64, EXPECTED, n_ctx_train, 2048),                     \
        MOTE_KEY("attention.head_count", U64, REQUIRED, n_head, 0),                       \
        MOTE_KEY("attention.head_count_kv", U64, EXPECTED, n_head_kv, MOTE_KEY_INFERRED), \
        MOTE_KEY("attention.key_length", U64, OPTIONAL, head_dim, MOTE_KEY_INFERRED),     \
        MOTE_KEY("attention.layer_norm_rms_epsilon", F64, EXPECTED, eps, 1e-6),           \
        MOTE_KEY("rope.dimension_count", U64, OPTIONAL, n_rot, MOTE_KEY_INFERRED),        \
        MOTE_KEY("rope.freq_base", F64, EXPECTED, rope_base, 10000),                      \
        MOTE_KEY("feed_forward_length", U64, OPTIONAL, n_ff, MOTE_KEY_INFERRED)

#define MOTE_KEYS_MOE                                                                          \
    MOTE_KEY("expert_count", U64, REQUIRED, n_expert, 0),                                      \
        MOTE_KEY("expert_used_count", U64, REQUIRED, n_used, 0),                               \
        MOTE_KEY("expert_feed_forward_length", U64, OPTIONAL, n_ff_expert, MOTE_KEY_INFERRED), \
        MOTE_KEY("expert_weights_scale", F64, OPTIONAL, expert_scale, 1)

#define MOTE_KEYS_SHARED \
    MOTE_KEY("expert_shared_feed_forward_length", U64, OPTIONAL, n_ff_shared, MOTE_KEY_INFERRED)

/* ---- tensors: "blk.<layer>.<name>" to a field of mote_layer ---- */
enum mote_dim {
    MOTE_DIM_ONE,
    MOTE_DIM_MODEL,
    MOTE_DIM_Q,  /* n_head * head_dim */
    MOTE_DIM_KV, /* n_head_kv * head_dim */
    MOTE_DIM_HEAD,
    MOTE_DIM_EXPERTS,
    MOTE_DIM_FF,
    MOTE_DIM_FF_EXPERT,
    MOTE_DIM_FF_SHARED,
    MOTE_DIM_COUNT
};
enum mote_rule_kind {
    MOTE_RULE_MATRIX, /* struct mote_weight; [rows][cols] */
    MOTE_RULE_ROUTER, /* the same, always with float activations */
    MOTE_RULE_VECTOR, /* const float *; [rows] */
    MOTE_RULE_EXPERTS /* struct mote_expert_set; "%s" in the name is gate, up (rows x d_model) or down; cols:
                         experts */
};
enum mote_rule_where {
    MOTE_IN_ALL,
    MOTE_IN_MOE,
    MOTE_IN_DENSE
}; /* a layer with "ffn_gate_inp.weight" is MoE */
struct mote_tensor_rule {
    const char *name;
    enum mote_rule_kind kind;
    enum mote_rule_where where;
    int optional;
    size_t offset; /* in mote_layer */
    enum mote_dim rows, cols;
};

#define MOTE_TENSOR(name, kind, where, optional, field, rows, cols)                            \
    {                                                                                          \
        name, MOTE_RULE_##kind, MOTE_IN_##where, optional, offsetof(struct mote_layer, field), \
            MOTE_DIM_##rows, MOTE_DIM_##cols                                                   \
    }

#define MOTE_TENSORS_GQA                                                    \
    MOTE_TENSOR("attn_norm.weight", VECTOR, ALL, 0, attn_norm, MODEL, ONE), \
        MOTE_TENSOR("attn_q.weight", MATRIX, ALL, 0, q, Q, MODEL),          \
        MOTE_TENSOR("attn_k.weight", MATRIX, ALL, 0, k, KV, MODEL),         \
        MOTE_TENSOR("attn_v.weight", MATRIX, ALL, 0, v, KV, MODEL),         \
        MOTE_TENSOR("attn_output.weight", MATRIX, ALL, 0, o, MODEL, Q),     \
        MOTE_TENSOR("ffn_norm.weight", VECTOR, ALL, 0, ffn_norm, MODEL, ONE)

#define MOTE_TENSORS_QK_NORM                                              \
    MOTE_TENSOR("attn_q_norm.weight", VECTOR, ALL, 0, q_norm, HEAD, ONE), \
        MOTE_TENSOR("attn_k_norm.weight", VECTOR, ALL, 0, k_norm, HEAD, ONE)

#define MOTE_TENSORS_QKV_BIAS(optional)                                     \
    MOTE_TENSOR("attn_q.bias", VECTOR, ALL, optional, q.bias, Q, ONE),      \
        MOTE_TENSOR("attn_k.bias", VECTOR, ALL, optional, k.bias, KV, ONE), \
        MOTE_TENSOR("attn_v.bias", VECTOR, ALL, optional, v.bias, KV, ONE)

#define MOTE_TENSORS_MOE                                                        \
    MOTE_TENSOR("ffn_gate_inp.weight", ROUTER, MOE, 0, router, EXPERTS, MODEL), \
        MOTE_TENSOR("ffn_%s_exps.weight", EXPERTS, MOE, 0, experts, FF_EXPERT, EXPERTS)

#define MOTE_TENSORS_SHARED_GATED                                                      \
    MOTE_TENSOR("ffn_gate_inp_shexp.weight", ROUTER, MOE, 0, shared_gate, ONE, MODEL), \
        MOTE_TENSOR("ffn_%s_shexp.weight", EXPERTS, MOE, 0, shared, FF_SHARED, ONE)

#define MOTE_TENSORS_DENSE MOTE_TENSOR("ffn_%s.weight", EXPERTS, DENSE, 0, shared, FF, ONE)

/* ---- architectures ---- */
struct mote_arch {
    const char *name; /* general.architecture */
    const struct mote_key_rule *key;
    size_t n_key;
    const struct mote_tensor_rule *tensor;
    size_t n_tensor;
    enum mote_route_score score;
    struct mote_activation activation; /* of experts, shared experts and dense layers */
};

extern const struct mote_arch mote_arch_qwen3moe, mote_arch_qwen2moe;

const struct mote_arch *mote_arch_find(const char *name, size_t length); /* NULL: not supported */
const char *mote_arch_names(void);                                       /* "qwen3moe, qwen2moe" */

#endif
