/* hf_names.c: see hf_names.h. */
#include "file/hf_names.h"

#include <stdio.h>
#include <string.h>

/* ---- tensors ---- */

static const struct mote_hf_name qwen_names[] = {
    {"model.embed_tokens", "token_embd", MOTE_HF_DENSE},
    {"model.norm", "output_norm", MOTE_HF_DENSE},
    {"lm_head", "output", MOTE_HF_DENSE},
    {"model.layers.#.input_layernorm", "blk.#.attn_norm", MOTE_HF_DENSE},
    {"model.layers.#.self_attn.q_proj", "blk.#.attn_q", MOTE_HF_DENSE},
    {"model.layers.#.self_attn.k_proj", "blk.#.attn_k", MOTE_HF_DENSE},
    {"model.layers.#.self_attn.v_proj", "blk.#.attn_v", MOTE_HF_DENSE},
    {"model.layers.#.self_attn.o_proj", "blk.#.attn_output", MOTE_HF_DENSE},
    {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm", MOTE_HF_DENSE},
    {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm", MOTE_HF_DENSE},
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm", MOTE_HF_DENSE},
    {"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate", MOTE_HF_DENSE}, /* layers without experts */
    {"model.layers.#.mlp.up_proj", "blk.#.ffn_up", MOTE_HF_DENSE},
    {"model.layers.#.mlp.down_proj", "blk.#.ffn_down", MOTE_HF_DENSE},
    {"model.layers.#.mlp.gate", "blk.#.ffn_gate_inp", MOTE_HF_DENSE},
    {"model.layers.#.mlp.experts.#.gate_proj", "blk.#.ffn_gate_exps", MOTE_HF_EXPERT},
    {"model.layers.#.mlp.experts.#.up_proj", "blk.#.ffn_up_exps", MOTE_HF_EXPERT},
    {"model.layers.#.mlp.experts.#.down_proj", "blk.#.ffn_down_exps", MOTE_HF_EXPERT},
    {"model.layers.#.mlp.switch_mlp.gate_proj", "blk.#.ffn_gate_exps", MOTE_HF_STACKED}, /* MLX */
    {"model.layers.#.mlp.switch_mlp.up_proj", "blk.#.ffn_up_exps", MOTE_HF_STACKED},
    {"model.layers.#.mlp.switch_mlp.down_proj", "blk.#.ffn_down_exps", MOTE_HF_STACKED},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_exps", MOTE_HF_GATE_UP, "blk.#.ffn_up_exps"},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps", MOTE_HF_STACKED}, /* transformers 5 */
    {NULL},
};

static const struct mote_hf_name qwen2_shared_names[] = {
    {"model.layers.#.mlp.shared_expert.gate_proj", "blk.#.ffn_gate_shexp", MOTE_HF_DENSE},
    {"model.layers.#.mlp.shared_expert.up_proj", "blk.#.ffn_up_shexp", MOTE_HF_DENSE},
    {"model.layers.#.mlp.shared_expert.down_proj", "blk.#.ffn_down_shexp", MOTE_HF_DENSE},
    {"model.layers.#.mlp.shared_expert_gate", "blk.#.ffn_gate_inp_shexp", MOTE_HF_VECTOR},
    {NULL},
};

/* ---- keys ---- */

static const struct mote_hf_key qwen_keys[] = {
    {"num_hidden_layers", "block_count", MOTE_HF_U32, 1, 0},
    {"max_position_embeddings", "context_length", MOTE_HF_U32, 0, 32768},
    {"hidden_size", "embedding_length", MOTE_HF_U32, 1, 0},
    {"intermediate_size", "feed_forward_length", MOTE_HF_U32, 0, -1},
    {"moe_intermediate_size", "expert_feed_forward_length", MOTE_HF_U32, 1, 0},
    {"num_experts", "expert_count", MOTE_HF_U32, 1, 0},
    {"num_experts_per_tok", "expert_used_count", MOTE_HF_U32, 1, 0},
    {"norm_topk_prob", "expert_weights_norm", MOTE_HF_BOOL, 0, 0},
    {"num_attention_heads", "attention.head_count", MOTE_HF_U32, 1, 0},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", MOTE_HF_F32, 0, 1e-6},
    {"vocab_size", "vocab_size", MOTE_HF_U32, 1, 0},
    {NULL},
};

static const struct mote_hf_key qwen2_shared_keys[] = {
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", MOTE_HF_U32, 1, 0},
    {NULL},
};

/* What hf_config.c derives from several entries, as the one entry that is enough. */
static const struct mote_hf_key derived_keys[] = {
    {"num_key_value_heads", "attention.head_count_kv", MOTE_HF_U32, 0, 0},
    {"head_dim", "attention.key_length", MOTE_HF_U32, 0, 0},
    {"head_dim", "attention.value_length", MOTE_HF_U32, 0, 0},
    {"rope_theta", "rope.freq_base", MOTE_HF_F32, 0, 0},
    {NULL},
};

static const struct mote_hf_fixed qwen_fixed[] = {
    {"hidden_act", "\"silu\""},
    {"use_sliding_window", "false"},
    {NULL},
};

/* ---- families ---- */

static const struct mote_hf_family families[] = {
    {"qwen3_moe", "qwen3moe", {qwen_names}, {qwen_keys}, qwen_fixed},
    {"qwen2_moe", "qwen2moe", {qwen_names, qwen2_shared_names}, {qwen_keys, qwen2_shared_keys}, qwen_fixed},
};
enum { N_FAMILY = sizeof families / sizeof *families };

const struct mote_hf_family *mote_hf_family_find(const char *model_type)
{
    for (size_t i = 0; i < N_FAMILY; i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}

const struct mote_hf_family *mote_hf_family_of(const char *arch)
{
    for (size_t i = 0; i < N_FAMILY; i++)
        if (strcmp(families[i].arch, arch) == 0) return &families[i];
    return NULL;
}

void mote_hf_family_list(char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < N_FAMILY && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", families[i].model_type);
}

/* Match with # for a decimal number without leading zeros, at most nine digits. */
static int match(const char *pattern, const char *text, size_t length, int64_t number[2])
{
    const char *end = text + length;
    int n_number = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (text == end || *text++ != *pattern) return 0;
            continue;
        }
        const char *start = text;
        int64_t value = 0;
        for (; text < end && *text >= '0' && *text <= '9' && text - start < 9; text++)
            value = value * 10 + (*text - '0');
        if (text == start || (*start == '0' && text - start > 1)) return 0;
        number[n_number++] = value;
    }
    return text == end;
}

int mote_hf_place_find(const struct mote_hf_family *family, const char *module, size_t length,
                       struct mote_hf_place *out)
{
    for (size_t i = 0; i < sizeof family->names / sizeof *family->names && family->names[i]; i++) {
        for (const struct mote_hf_name *rule = family->names[i]; rule->from; rule++) {
            *out = (struct mote_hf_place){.rule = rule};
            if (match(rule->from, module, length, out->number)) return 1;
        }
    }
    return 0;
}

void mote_hf_name_make(const char *to, int64_t layer, const char *suffix, char *out, size_t size)
{
    const char *hash = strchr(to, '#');
    if (hash) snprintf(out, size, "%.*s%lld%s%s", (int)(hash - to), to, (long long)layer, hash + 1, suffix);
    else snprintf(out, size, "%s%s", to, suffix);
}

const struct mote_hf_name *mote_hf_module_make(const struct mote_hf_family *family, const char *name,
                                               size_t length, char *out, size_t size)
{
    int64_t number[2] = {0};
    for (size_t i = 0; i < sizeof family->names / sizeof *family->names && family->names[i]; i++)
        for (const struct mote_hf_name *rule = family->names[i]; rule->from; rule++) {
            if (rule->role == MOTE_HF_EXPERT || rule->role == MOTE_HF_GATE_UP) continue;
            if (!match(rule->to, name, length, number)) continue;
            mote_hf_name_make(rule->from, number[0], "", out, size);
            return rule;
        }
    return NULL;
}

static const struct mote_hf_key *find_key(const struct mote_hf_key *row, const char *to)
{
    for (; row && row->from; row++)
        if (strcmp(row->to, to) == 0) return row;
    return NULL;
}

const struct mote_hf_key *mote_hf_key_of(const struct mote_hf_family *family, const char *to)
{
    const struct mote_hf_key *found = find_key(derived_keys, to);
    for (size_t i = 0; !found && i < sizeof family->keys / sizeof *family->keys; i++)
        found = find_key(family->keys[i], to);
    return found;
}
