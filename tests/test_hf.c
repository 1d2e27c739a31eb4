/* test_hf.c: Hugging Face and MLX folders made here, with one thing changed at a time: names, experts, quantisation,
 * config.json, shards.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "base/log.h"
#include "file/catalogue.h"
#include "file_bytes.h"

#define OK(expr)                                                        \
    do {                                                                \
        if ((expr) != MOTE_OK) fail_msg("%s: %s", #expr, mote_error()); \
    } while (0)

static void assert_message(const char *part)
{
    if (!strstr(mote_error(), part)) fail_msg("message \"%s\" does not name \"%s\"", mote_error(), part);
}

/* The last warning. */
static char warning[1024];
static int n_warning;

static void on_log(void *context, int level, const char *message)
{
    (void)context;
    if (level != MOTE_LOG_WARNING) return;
    snprintf(warning, sizeof warning, "%s", message);
    n_warning++;
}

/* ---- small models made here ---- */

struct model {               /* a folder about to be: config.json and one or two shards */
    const char *type, *more; /* model_type; entries added to the configuration */
    int n_expert;
    struct shard {
        char header[16384];
        struct bytes data;
    } shard[2];
    int at; /* the shard that takes the next tensor */
};

/* Bytes count up within a tensor, from a number of its own. */
static void add(struct model *m, const char *name, const char *dtype, int size, const char *shape, size_t n)
{
    static uint8_t first;
    struct shard *s = &m->shard[m->at];
    size_t begin = s->data.size, used = strlen(s->header);
    for (size_t i = 0; i < n * (size_t)size; i++) put(&s->data, &(uint8_t){(uint8_t)(first + i)}, 1);
    first = (uint8_t)(first + 37);
    snprintf(s->header + used, sizeof s->header - used,
             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", used ? "," : "", name,
             dtype, shape, begin, s->data.size);
}

static void add_f16(struct model *m, const char *name, const char *shape, size_t n)
{
    add(m, name, "F16", 2, shape, n);
}

/* Attention, norms, embedding: hidden 32, 2 heads of 16, vocabulary 4. */
static void add_common(struct model *m)
{
    add_f16(m, "model.embed_tokens.weight", "[4,32]", 128);
    add_f16(m, "lm_head.weight", "[4,32]", 128);
    add_f16(m, "model.norm.weight", "[32]", 32);
    add_f16(m, "model.layers.0.input_layernorm.weight", "[32]", 32);
    add_f16(m, "model.layers.0.post_attention_layernorm.weight", "[32]", 32);
    add_f16(m, "model.layers.0.self_attn.q_proj.weight", "[32,32]", 1024);
    add_f16(m, "model.layers.0.self_attn.k_proj.weight", "[32,32]", 1024);
    add_f16(m, "model.layers.0.self_attn.v_proj.weight", "[32,32]", 1024);
    add_f16(m, "model.layers.0.self_attn.o_proj.weight", "[32,32]", 1024);
    add_f16(m, "model.layers.0.mlp.gate.weight", "[3,32]", 96);
}

/* One expert's module of 3: 32 columns, `rows` rows. */
static void add_expert(struct model *m, int expert, const char *module, const char *dtype, int rows)
{
    char name[96], shape[32];
    snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s.weight", expert, module);
    snprintf(shape, sizeof shape, "[%d,32]", rows);
    add(m, name, dtype, dtype[0] == 'F' && dtype[1] == '3' ? 4 : 2, shape, (size_t)rows * 32);
}

static void add_experts(struct model *m)
{
    for (int e = 2; e >= 0; e--) { /* backwards: the order in the file does not matter */
        add_expert(m, e, "gate_proj", "F16", 32);
        add_expert(m, e, "up_proj", "F16", 32);
        add_expert(m, e, "down_proj", "F16", 32);
    }
}

static void write_file(const struct folder *folder, const char *name, struct shard *s)
{
    struct bytes out = {0};
    size_t length = strlen(s->header) + 2;
    put_u64(&out, length);
    put(&out, "{", 1);
    put(&out, s->header, length - 2);
    put(&out, "}", 1);
    put(&out, s->data.data, s->data.size);
    folder_write(folder, name, out.data, out.size);
    free(out.data);
}

static struct folder write_model(struct model *m)
{
    char config[2048];
    struct folder folder = folder_make();
    snprintf(config, sizeof config,
             "{\"model_type\":\"%s\",\"num_hidden_layers\":1,\"hidden_size\":32,\"moe_intermediate_size\":32,"
             "\"num_experts\":%d,\"num_experts_per_tok\":2,\"num_attention_heads\":2,\"vocab_size\":4%s}",
             m->type ? m->type : "qwen3_moe", m->n_expert ? m->n_expert : 3, m->more ? m->more : "");
    folder_write(&folder, "config.json", config, strlen(config));
    int two = m->shard[1].header[0] != 0;
    write_file(&folder, two ? "model-00001-of-00002.safetensors" : "model.safetensors", &m->shard[0]);
    if (two) write_file(&folder, "model-00002-of-00002.safetensors", &m->shard[1]);
    for (int i = 0; i < 2; i++) free(m->shard[i].data.data);
    return folder;
}

/* Write, open, and expect success or a status and parts of its message. */
static struct mote_catalogue *open_good(struct model *m)
{
    struct folder folder = write_model(m);
    struct mote_catalogue *c;
    n_warning = 0;
    OK(mote_catalogue_open(folder.path, NULL, &c));
    folder_remove(&folder); /* the mapped files live on */
    return c;
}

static void open_bad(struct model *m, mote_status status, const char *message)
{
    struct folder folder = write_model(m);
    struct mote_catalogue *c;
    mote_status got = mote_catalogue_open(folder.path, NULL, &c);
    if (got != status)
        fail_msg("status %d (%s), expected %d: %s", got, got ? mote_error() : "", status, message);
    assert_null(c);
    assert_message(message);
    assert_message(folder.path);
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

static void close_all(struct mote_catalogue *c)
{
    mote_catalogue_close(c);
    assert_int_equal(mote_mem_global_total(), 0);
}

static void test_separate_experts(void **state)
{
    (void)state;
    struct model m = {0};
    add_common(&m);
    m.at = 1;
    add_experts(&m);
    add(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 4, "[8]", 8);
    struct mote_catalogue *c = open_good(&m);
    assert_int_equal(n_warning, 0);
    const struct mote_tensor *up = mote_catalogue_tensor(c, "blk.0.ffn_up_exps.weight");
    assert_non_null(up);
    assert_int_equal(up->dim[2], 3);
    assert_int_equal(up->n_byte, 3 * 2048);
    assert_null(up->data);
    for (int e = 0; e < 3; e++) {
        assert_ptr_equal(mote_tensor_matrix(up, e).data, up->part[e].data);
        assert_string_equal(up->part[e].name, up->name);
    }
    /* In the file: gate, up, down of expert 2, then of 1, then of 0; 2048 bytes each. */
    assert_int_equal(up->part[1].data - up->part[2].data, 3 * 2048);
    assert_int_equal(up->part[0].data - up->part[1].data, 3 * 2048);
    /* Values that config.json does not have: Hugging Face's own. */
    double value;
    int truth;
    OK(mote_meta_f64(c, "qwen3moe.rope.freq_base", &value));
    assert_true(value == 10000);
    OK(mote_meta_f64(c, "qwen3moe.attention.head_count_kv", &value));
    assert_true(value == 2);
    OK(mote_meta_f64(c, "qwen3moe.attention.key_length", &value));
    assert_true(value == 16);
    OK(mote_meta_bool(c, "qwen3moe.expert_weights_norm", &truth));
    assert_int_equal(truth, 0);
    assert_null(mote_catalogue_meta(c, "qwen3moe.rope.scaling.type"));
    close_all(c);
}

static void test_expert_faults(void **state)
{
    (void)state;
    struct model m = {0};
    add_common(&m);
    for (int e = 0; e < 3; e++) {
        add_expert(&m, e, "gate_proj", "F16", 32);
        if (e != 1) add_expert(&m, e, "up_proj", "F16", 32);
        add_expert(&m, e, "down_proj", "F16", 32);
    }
    open_bad(&m, MOTE_FORMAT, "blk.0.ffn_up_exps.weight: 1 of 3 experts are missing: 1");

    m = (struct model){.n_expert = 5};
    add_common(&m);
    add_experts(&m);
    open_bad(&m, MOTE_FORMAT, "2 of 5 experts are missing: 3, 4");

    m = (struct model){.n_expert = 2000000000};
    add_common(&m);
    add_experts(&m);
    open_bad(&m, MOTE_FORMAT, "2000000000 experts");

    m = (struct model){.n_expert = 2};
    add_common(&m);
    add_experts(&m);
    open_bad(&m, MOTE_FORMAT, "experts.2.gate_proj.weight': config.json has 2 experts");

    m = (struct model){0};
    add_common(&m);
    add_experts(&m);
    add_f16(&m, "model.layers.0.mlp.switch_mlp.up_proj.weight", "[3,32,32]", 3072);
    open_bad(&m, MOTE_FORMAT, "two tensors are named 'blk.0.ffn_up_exps.weight'");

    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.mlp.switch_mlp.up_proj.weight", "[3,32,32]", 3072);
    add_experts(&m);
    open_bad(&m, MOTE_FORMAT, "is there as a whole");

    m = (struct model){0};
    add_common(&m);
    add_expert(&m, 0, "up_proj", "F16", 32);
    add_expert(&m, 1, "up_proj", "F16", 16);
    open_bad(&m, MOTE_FORMAT,
             "experts.1.up_proj.weight' is [16][32], the other experts of its layer are [32][32]");

    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.mlp.experts.0.up_proj.weight", "[1,32,32]", 1024);
    open_bad(&m, MOTE_FORMAT, "experts.0.up_proj.weight' has 3 dimensions");
}

/* Two formats in one stack: each expert has its own. */
static void test_mixed_formats(void **state)
{
    (void)state;
    struct model m = {0};
    add_common(&m);
    add_expert(&m, 0, "up_proj", "F16", 32);
    add_expert(&m, 1, "up_proj", "F32", 32);
    add_expert(&m, 2, "up_proj", "BF16", 32);
    struct mote_catalogue *c = open_good(&m);
    const struct mote_tensor *up = mote_catalogue_tensor(c, "blk.0.ffn_up_exps.weight");
    assert_int_equal(mote_tensor_matrix(up, 0).format, MOTE_FORMAT_F16);
    assert_int_equal(mote_tensor_matrix(up, 1).format, MOTE_FORMAT_F32);
    assert_int_equal(mote_tensor_matrix(up, 1).row_bytes, 128);
    assert_int_equal(mote_tensor_matrix(up, 2).format, MOTE_FORMAT_BF16);
    assert_int_equal(up->n_byte, 2048 + 4096 + 2048);
    close_all(c);
}

static void test_fused_gate_up(void **state)
{
    (void)state;
    struct model m = {0};
    add_common(&m);
    add_f16(&m, "model.layers.0.mlp.experts.gate_up_proj", "[3,64,32]", 6144);
    add_f16(&m, "model.layers.0.mlp.experts.down_proj", "[3,32,32]", 3072);
    struct mote_catalogue *c = open_good(&m);
    assert_int_equal(n_warning, 0);
    const struct mote_tensor *gate = mote_catalogue_tensor(c, "blk.0.ffn_gate_exps.weight");
    const struct mote_tensor *up = mote_catalogue_tensor(c, "blk.0.ffn_up_exps.weight");
    const struct mote_tensor *down = mote_catalogue_tensor(c, "blk.0.ffn_down_exps.weight");
    assert_non_null(gate);
    assert_non_null(up);
    assert_non_null(down);
    assert_int_equal(gate->dim[1], 32);
    assert_int_equal(gate->n_byte, 6144);
    assert_string_equal(up->part[2].name, "blk.0.ffn_up_exps.weight");
    const uint8_t *start = mote_tensor_matrix(gate, 0).data;
    for (int e = 0; e < 3; e++) {
        assert_int_equal(mote_tensor_matrix(gate, e).data - start, e * 64 * 64);
        assert_int_equal(mote_tensor_matrix(up, e).data - start, e * 64 * 64 + 32 * 64);
        assert_int_equal(mote_tensor_matrix(up, e).n_row, 32);
        assert_int_equal(mote_tensor_matrix(down, e).data - down->data, e * 32 * 64);
    }
    assert_int_equal(c->n_byte, 2 * (128 * 2 + 32 * 3 + 1024 * 4 + 96 + 6144 + 3072));
    close_all(c);

    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.mlp.experts.gate_up_proj", "[3,63,32]", 6048);
    open_bad(&m, MOTE_FORMAT, "experts.gate_up_proj'");
    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.mlp.experts.down_proj", "[96,32]", 3072);
    open_bad(&m, MOTE_FORMAT, "experts.down_proj' has 2 dimensions");
}

static void test_qwen2(void **state)
{
    (void)state;
    struct model m = {.type = "qwen2_moe",
                      .more = ",\"shared_expert_intermediate_size\":64,\"norm_topk_prob\":true"};
    add_common(&m);
    add_experts(&m);
    add_f16(&m, "model.layers.0.self_attn.q_proj.bias", "[32]", 32);
    add_f16(&m, "model.layers.0.mlp.shared_expert.gate_proj.weight", "[64,32]", 2048);
    add_f16(&m, "model.layers.0.mlp.shared_expert.up_proj.weight", "[64,32]", 2048);
    add_f16(&m, "model.layers.0.mlp.shared_expert.down_proj.weight", "[32,64]", 2048);
    add_f16(&m, "model.layers.0.mlp.shared_expert_gate.weight", "[1,32]", 32);
    struct mote_catalogue *c = open_good(&m);
    assert_int_equal(n_warning, 0);
    uint64_t value;
    OK(mote_meta_u64(c, "qwen2moe.expert_shared_feed_forward_length", &value));
    assert_int_equal(value, 64);
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.attn_q.bias")->n_dim, 1);
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.ffn_gate_shexp.weight")->dim[1], 64);
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.ffn_down_shexp.weight")->dim[0], 64);
    assert_non_null(mote_catalogue_tensor(c, "blk.0.ffn_up_shexp.weight"));
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.ffn_gate_inp_shexp.weight")->n_dim, 1);
    close_all(c);

    m = (struct model){.type = "qwen2_moe", .more = ",\"shared_expert_intermediate_size\":64"};
    add_common(&m);
    add_f16(&m, "model.layers.0.mlp.shared_expert_gate.weight", "[2,32]", 64);
    open_bad(&m, MOTE_FORMAT, "shared_expert_gate.weight' has 2 rows");
    m = (struct model){.type = "qwen2_moe"};
    add_common(&m);
    open_bad(&m, MOTE_FORMAT, "'shared_expert_intermediate_size' is missing");
}

static void test_output_matrix(void **state)
{
    (void)state;
    struct model m = {.more = ",\"tie_word_embeddings\":true"};
    add_common(&m); /* has lm_head: a tied model does not use it */
    add_experts(&m);
    struct mote_catalogue *c = open_good(&m);
    assert_null(mote_catalogue_tensor(c, "output.weight"));
    assert_int_equal(n_warning, 1);
    assert_non_null(strstr(warning, "lm_head.weight"));
    close_all(c);

    m = (struct model){0};
    add_f16(&m, "model.embed_tokens.weight", "[4,32]", 128);
    open_bad(&m, MOTE_FORMAT, "no lm_head.weight");
}

static void test_unmapped(void **state)
{
    (void)state;
    struct model m = {0};
    add_common(&m);
    add_experts(&m);
    add(&m, "model.vision.patch.weight", "F8_E5M2", 1, "[9]", 9);
    add_f16(&m, "model.layers.00.mlp.gate.weight", "[3,32]", 96); /* not how a layer is counted */
    add(&m, "model.layers.0.mlp.gate.unheard_of", "X9", 1, "[3]", 5);
    struct mote_catalogue *c = open_good(&m);
    assert_int_equal(n_warning, 1);
    assert_non_null(strstr(warning, "skipped 3 tensors"));
    assert_non_null(strstr(warning, "model.vision.patch.weight (F8_E5M2)"));
    close_all(c);

    m = (struct model){0};
    add_common(&m);
    add(&m, "model.layers.0.mlp.experts.0.up_proj.weight", "F8_E4M3", 1, "[32,32]", 1024);
    open_bad(&m, MOTE_UNSUPPORTED, "experts.0.up_proj.weight' is of dtype F8_E4M3");
    m = (struct model){0};
    add_common(&m);
    add(&m, "model.layers.0.self_attn.q_norm.weight", "X9", 1, "[16]", 5);
    open_bad(&m, MOTE_UNSUPPORTED, "q_norm.weight' is of dtype X9");
    m = (struct model){0};
    add_common(&m);
    add(&m, "model.layers.0.mlp.experts.0.up_proj.bias", "F16", 2, "[32]", 32);
    open_bad(&m, MOTE_UNSUPPORTED, "up_proj.bias'");
    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.self_attn.q_norm.weight", "[0]", 0);
    open_bad(&m, MOTE_FORMAT, "q_norm.weight': dimension 0 is 0");
    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.self_attn.q_norm.weight", "[]", 1);
    open_bad(&m, MOTE_FORMAT, "q_norm.weight' has 0 dimensions");
    m = (struct model){0};
    add_common(&m);
    add_f16(&m, "model.layers.0.self_attn.q_norm.weight", "[1,1,1,1,16]", 16);
    open_bad(&m, MOTE_FORMAT, "q_norm.weight' has 5 dimensions");
}

/* ---- MLX ---- */

/* Module with planes: w words and g scales a row of 32 rows. */
static void add_mlx(struct model *m, const char *module, int w, int g, const char *scale_dtype, int biases)
{
    char name[128], shape[32];
    snprintf(name, sizeof name, "%s.weight", module);
    snprintf(shape, sizeof shape, "[32,%d]", w);
    add(m, name, "U32", 4, shape, (size_t)(32 * w));
    snprintf(name, sizeof name, "%s.scales", module);
    snprintf(shape, sizeof shape, "[32,%d]", g);
    add(m, name, scale_dtype, scale_dtype[0] == 'U' ? 1 : 2, shape, (size_t)(32 * g));
    snprintf(name, sizeof name, "%s.biases", module);
    if (biases) add(m, name, scale_dtype, 2, shape, (size_t)(32 * g));
}

#define K_PROJ "model.layers.0.mlp.experts.0.up_proj"
#define QUANT(text) ",\"quantization\":{" text "}"

static void test_mlx_separate_experts(void **state)
{
    (void)state;
    struct model m = {.more = QUANT("\"group_size\":32,\"bits\":4,"
                                    "\"model.layers.0.mlp.experts.1.up_proj\":{\"group_size\":32,\"bits\":8},"
                                    "\"model.layers.0.mlp.experts.2.up_proj\":false")};
    add_common(&m);
    add_mlx(&m, "model.layers.0.mlp.experts.0.up_proj", 4, 1, "BF16", 1);
    add_mlx(&m, "model.layers.0.mlp.experts.1.up_proj", 8, 1, "F16", 1);
    add_expert(&m, 2, "up_proj", "F16", 32);
    struct mote_catalogue *c = open_good(&m);
    assert_int_equal(n_warning, 0);
    assert_string_equal(c->source, "mlx");
    const struct mote_tensor *up = mote_catalogue_tensor(c, "blk.0.ffn_up_exps.weight");
    assert_int_equal(mote_tensor_matrix(up, 0).format, MOTE_FORMAT_AFFINE4);
    assert_int_equal(mote_tensor_matrix(up, 0).scale_format, MOTE_FORMAT_BF16);
    assert_int_equal(mote_tensor_matrix(up, 1).format, MOTE_FORMAT_AFFINE8);
    assert_int_equal(mote_tensor_matrix(up, 1).row_bytes, 32);
    assert_int_equal(mote_tensor_matrix(up, 2).format, MOTE_FORMAT_F16);
    assert_int_equal(mote_tensor_matrix(up, 0).scale - mote_tensor_matrix(up, 0).data, 32 * 16);
    assert_int_equal(mote_tensor_matrix(up, 0).bias - mote_tensor_matrix(up, 0).scale, 32 * 2);
    close_all(c);
}

static void test_mlx_faults(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        int words, groups;
        const char *dtype;
        int biases;
        mote_status status;
        const char *message;
    } cases[] = {
        {"", 4, 1, "F16", 1, MOTE_FORMAT, "'" K_PROJ "' has scales, but config.json has no"},
        {QUANT("\"group_size\":32,\"bits\":4,\"" K_PROJ "\":false"), 4, 1, "F16", 1, MOTE_FORMAT,
         "'" K_PROJ "' has scales, but config.json says"},
        {QUANT("\"group_size\":32,\"bits\":8"), 4, 1, "F16", 1, MOTE_FORMAT, "4 words and 1 scales a row"},
        {QUANT("\"group_size\":64,\"bits\":4"), 4, 1, "F16", 1, MOTE_FORMAT,
         "do not fit the 4 bits in groups of 64"},
        {QUANT("\"group_size\":32,\"bits\":4"), 5, 1, "F16", 1, MOTE_FORMAT, "5 words"},
        {QUANT("\"group_size\":32,\"bits\":7"), 4, 1, "F16", 1, MOTE_UNSUPPORTED, "7 bits"},
        {QUANT("\"group_size\":0,\"bits\":4"), 4, 1, "F16", 1, MOTE_UNSUPPORTED, "groups of 0"},
        {QUANT("\"group_size\":\"x\",\"bits\":4"), 4, 1, "F16", 1, MOTE_FORMAT, "'group_size' is text"},
        {QUANT("\"group_size\":32,\"bits\":4,\"mode\":\"new\""), 4, 1, "F16", 1, MOTE_UNSUPPORTED,
         "mode 'new'"},
        {QUANT("\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\""), 4, 1, "U8", 0, MOTE_UNSUPPORTED,
         "groups of 64"},
        {QUANT("\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\""), 4, 1, "F16", 0, MOTE_UNSUPPORTED,
         "expected U8"},
        {QUANT("\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\""), 4, 1, "F16", 1, MOTE_FORMAT,
         "mxfp4 but has biases"},
        /* An override replaces the default: without a mode it is affine. */
        {QUANT("\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\",\"" K_PROJ
               "\":{\"group_size\":32,\"bits\":4}"),
         4, 1, "U8", 0, MOTE_FORMAT, "mode affine but has no biases"},
        {QUANT("\"group_size\":32,\"bits\":4"), 4, 1, "U8", 1, MOTE_UNSUPPORTED, "scales' is of dtype U8"},
        {",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}", 4, 1, "F16", 1, MOTE_UNSUPPORTED,
         "'gptq'"},
        {",\"quantization\":4", 4, 1, "F16", 1, MOTE_FORMAT, "'quantization' is a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model m = {.more = cases[i].more};
        add_common(&m);
        if (cases[i].dtype[0] == 'U' && cases[i].biases) { /* as add_mlx, one byte each */
            add(&m, K_PROJ ".weight", "U32", 4, "[32,4]", 128);
            add(&m, K_PROJ ".scales", "U8", 1, "[32,1]", 32);
            add(&m, K_PROJ ".biases", "U8", 1, "[32,1]", 32);
        } else {
            add_mlx(&m, K_PROJ, cases[i].words, cases[i].groups, cases[i].dtype, cases[i].biases);
        }
        open_bad(&m, cases[i].status, cases[i].message);
    }
    static const char *const quant = QUANT("\"group_size\":32,\"bits\":4");
    struct model m = {.more = quant};
    add_common(&m);
    add(&m, K_PROJ ".weight", "U32", 4, "[32,4]", 128);
    open_bad(&m, MOTE_UNSUPPORTED, "up_proj.weight' is of dtype U32");
    m = (struct model){.more = quant};
    add_common(&m);
    add(&m, K_PROJ ".scales", "F16", 2, "[32,1]", 32);
    open_bad(&m, MOTE_FORMAT, "up_proj.scales' belongs to a weight that is not there");
    m = (struct model){.more = quant};
    add_common(&m);
    add(&m, K_PROJ ".weight", "U32", 4, "[32,4]", 128);
    add(&m, K_PROJ ".scales", "F16", 2, "[16,1]", 16);
    add(&m, K_PROJ ".biases", "F16", 2, "[32,1]", 32);
    open_bad(&m, MOTE_FORMAT, "up_proj.scales' does not go with");
    m = (struct model){.more = quant};
    add_common(&m);
    add(&m, K_PROJ ".weight", "U32", 4, "[32,4]", 128);
    add(&m, K_PROJ ".scales", "F16", 2, "[32,1]", 32);
    add(&m, K_PROJ ".biases", "BF16", 2, "[32,1]", 32);
    open_bad(&m, MOTE_FORMAT, "up_proj.biases' is of dtype BF16, its scales are F16");
}

/* ---- config.json ---- */

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *type, *more;
        mote_status status;
        const char *message;
    } bad[] = {
        {"llama9", "", MOTE_UNSUPPORTED,
         "model_type 'llama9' is not supported; supported: qwen3_moe, qwen2_moe"},
        {NULL, ",\"hidden_act\":\"gelu\"", MOTE_UNSUPPORTED, "'hidden_act' is gelu"},
        {NULL, ",\"use_sliding_window\":true", MOTE_UNSUPPORTED, "'use_sliding_window' is true"},
        {NULL, ",\"rope_theta\":\"x\"", MOTE_FORMAT, "'rope_theta' is text"},
        {NULL, ",\"rope_theta\":0", MOTE_FORMAT, "'rope_theta' is 0"},
        {NULL, ",\"rope_scaling\":{\"type\":\"dynamic\"}", MOTE_UNSUPPORTED, "rope_type 'dynamic'"},
        {NULL, ",\"rope_scaling\":{\"type\":\"yarn\"}", MOTE_FORMAT, "'rope_scaling.factor' is nothing"},
        {NULL, ",\"rope_scaling\":[1]", MOTE_FORMAT, "'rope_scaling' is an array"},
        {NULL, ",\"intermediate_size\":-4", MOTE_FORMAT, "'intermediate_size' is another number"},
        {NULL, ",\"intermediate_size\":4294967296", MOTE_FORMAT, "'intermediate_size' is another number"},
        {NULL, ",\"intermediate_size\":1.5", MOTE_FORMAT, "'intermediate_size' is another number"},
        {NULL, ",\"norm_topk_prob\":1", MOTE_FORMAT, "'norm_topk_prob' is a number"},
        {NULL, ",\"rms_norm_eps\":1e300", MOTE_FORMAT, "'rms_norm_eps' does not fit"},
        {NULL, ",\"tie_word_embeddings\":0", MOTE_FORMAT, "'tie_word_embeddings' is a number"},
        {NULL, ",\"hidden_size\":64", MOTE_FORMAT, "duplicate"},
        {NULL, ",", MOTE_FORMAT, "config.json: not JSON: line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model m = {.type = bad[i].type, .more = bad[i].more};
        add_common(&m);
        open_bad(&m, bad[i].status, bad[i].message);
    }

    static const struct {
        const char *more, *key;
        double value;
    } good[] = {
        {",\"rope_theta\":5e6", "qwen3moe.rope.freq_base", 5e6},
        {",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1234}", "qwen3moe.rope.freq_base",
         1234},
        {",\"rope_scaling\":null,\"head_dim\":8", "qwen3moe.attention.value_length", 8},
        {",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":"
         "32768}",
         "qwen3moe.rope.scaling.original_context_length", 32768},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}", "qwen3moe.rope.scaling.factor", 4},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attention_factor\":1}",
         "qwen3moe.rope.scaling.attn_factor", (double)(float)(1 / (1 + 0.1 * 1.3862943611198906)) /* ln 4 */},
        {",\"max_position_embeddings\":4096.0", "qwen3moe.context_length", 4096},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct model m = {.more = good[i].more};
        add_common(&m);
        add_experts(&m);
        struct mote_catalogue *c = open_good(&m);
        double value;
        OK(mote_meta_f64(c, good[i].key, &value));
        if (value != good[i].value) fail_msg("%s is %g", good[i].key, value);
        close_all(c);
    }
}

/* ---- shards ---- */

static const char index_text[] =
    "{\"metadata\":{},\"weight_map\":{\"lm_head.weight\":\"model-00001-of-00002.safetensors\","
    "\"model.layers.0.mlp.experts.0.up_proj.weight\":\"model-00002-of-00002.safetensors\"}}";

static void test_shards(void **state)
{
    (void)state;
    struct model m = {0};
    add_common(&m);
    m.at = 1;
    add_experts(&m);
    struct folder folder = write_model(&m);
    struct mote_catalogue *c;
    OK(mote_catalogue_open(folder.path, NULL, &c)); /* no index: by their names */
    assert_int_equal(c->n_file, 3);
    mote_catalogue_close(c);
    folder_write(&folder, "model.safetensors.index.json", index_text, sizeof index_text - 1);
    OK(mote_catalogue_open(folder.path, NULL, &c));
    assert_int_equal(c->n_file, 4);
    mote_catalogue_close(c);

    static const struct {
        const char *index;
        mote_status status;
        const char *message;
    } bad[] = {
        {"{\"weight_map\":{\"lm_head.weight\":\"model-00003-of-00003.safetensors\"}}", MOTE_NOT_FOUND,
         "model-00003-of-00003.safetensors is missing ('lm_head.weight' is to be in it)"},
        {"{\"weight_map\":{\"lm_head.weight\":\"model-00002-of-00002.safetensors\"}}", MOTE_FORMAT,
         "tensor 'lm_head.weight' is not in model-00002"},
        {"{\"weight_map\":{\"other\":\"model-00001-of-00002.safetensors\"}}", MOTE_FORMAT,
         "'other' is not in"},
        {"{\"weight_map\":{\"lm_head.weight\":\"../config.json\"}}", MOTE_FORMAT,
         "not a name in this folder"},
        {"{\"weight_map\":{\"lm_head.weight\":1}}", MOTE_FORMAT, "not a name in this folder"},
        {"{\"weight_map\":{}}", MOTE_FORMAT, "weight_map is empty"},
        {"{}", MOTE_FORMAT, "weight_map is nothing"},
        {"[", MOTE_FORMAT, "model.safetensors.index.json: not JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        folder_write(&folder, "model.safetensors.index.json", bad[i].index, strlen(bad[i].index));
        assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), bad[i].status);
        assert_null(c);
        assert_message(bad[i].message);
    }
    unlink(folder_file(&folder, "model.safetensors.index.json"));
    unlink(folder_file(&folder, "model-00001-of-00002.safetensors"));
    assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), MOTE_NOT_FOUND);
    assert_message("model-00001-of-00002.safetensors is missing (part 1 of 2)");
    folder_write(&folder, "config.json", "", 0);
    assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), MOTE_NOT_FOUND);
    assert_message("config.json is missing or empty");
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

int main(void)
{
    mote_log_set(on_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_separate_experts),
        cmocka_unit_test(test_expert_faults),
        cmocka_unit_test(test_mixed_formats),
        cmocka_unit_test(test_fused_gate_up),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_output_matrix),
        cmocka_unit_test(test_unmapped),
        cmocka_unit_test(test_mlx_separate_experts),
        cmocka_unit_test(test_mlx_faults),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
