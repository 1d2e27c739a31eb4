/* fuzz_safetensors.c: any bytes as the only shard of a small MLX model: an error with a message, or a catalogue
 * whose every matrix can be read.
 */
#include <stdlib.h>
#include <string.h>

#include "file/hf_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As tests/golden/mlx_tiny/config.json has it, with an override or two. */
static const char config_text[] =
    "{\"model_type\":\"qwen3_moe\",\"vocab_size\":8,\"hidden_size\":64,\"moe_intermediate_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"head_dim\":32,\"num_experts\":3,\"num_experts_per_"
    "tok\":2,"
    "\"tie_word_embeddings\":true,\"quantization\":{\"group_size\":32,\"bits\":4,"
    "\"model.layers.0.self_attn.q_proj\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp8\"},"
    "\"model.layers.0.self_attn.k_proj\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"},"
    "\"model.layers.0.self_attn.o_proj\":{\"group_size\":32,\"bits\":6},"
    "\"model.layers.0.mlp.gate\":{\"group_size\":64,\"bits\":8},"
    "\"model.layers.0.mlp.switch_mlp.up_proj\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"},"
    "\"model.layers.0.mlp.switch_mlp.down_proj\":{\"group_size\":64,\"bits\":3}}}";

static volatile uint8_t sink;

static void touch(const struct mote_matrix *w)
{
    size_t rows = (size_t)w->n_row;
    sink = (uint8_t)(sink + w->data[0] + w->data[rows * w->row_bytes - 1]);
    if (w->group == 0) return;
    size_t scales = rows * (size_t)(w->n_col / w->group);
    if (w->bias) scales *= (size_t)mote_format_traits(w->scale_format)->block_bytes;
    sink = (uint8_t)(sink + w->scale[0] + w->scale[scales - 1]);
    if (w->bias) sink = (uint8_t)(sink + w->bias[0] + w->bias[scales - 1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mote_hf_config config;
    struct mote_catalogue *catalogue;
    struct mote_safetensors set;
    if (mote_hf_config_parse(config_text, sizeof config_text - 1, &config) != MOTE_OK) abort();
    if (mote_catalogue_create("fuzz", "mlx", NULL, &catalogue) != MOTE_OK) abort();
    if (mote_hf_config_keys(&config, "fuzz", catalogue) != MOTE_OK) abort();
    mote_safetensors_init(&set, NULL, &catalogue->state->arena);
    mote_status status = mote_safetensors_parse(&set, "fuzz", data, size);
    if (status == MOTE_OK) status = mote_hf_assemble(catalogue, &config, &set);
    if (status != MOTE_OK && !*mote_error()) abort();
    for (size_t i = 0; status == MOTE_OK && i < catalogue->n_tensor; i++)
        for (int64_t e = 0; e < catalogue->tensor[i].dim[2]; e++) {
            struct mote_matrix w = mote_tensor_matrix(&catalogue->tensor[i], e);
            touch(&w);
        }
    mote_safetensors_free(&set);
    mote_catalogue_close(catalogue);
    mote_hf_config_free(&config);
    return 0;
}
