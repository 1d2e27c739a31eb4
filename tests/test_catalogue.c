/* test_catalogue.c: whole models: the trained one of ../shared, one that mlx wrote, and what else a path can be. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "base/log.h"
#include "file/catalogue.h"
#include "file/gguf_write.h"
#include "file_bytes.h"
#include "quant/decode.h"

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

/* ---- the trained model ---- */

static const char *const fable = "../shared/models/fable";

static void test_fable(void **state)
{
    (void)state;
    if (access(fable, R_OK) != 0) {
        print_message("%s is not there\n", fable);
        skip();
    }
    struct mote_catalogue *c;
    n_warning = 0;
    OK(mote_catalogue_open(fable, NULL, &c));
    assert_int_equal(n_warning, 0);
    assert_string_equal(c->source, "huggingface");
    static const struct {
        const char *key;
        double value;
    } keys[] = {
        {"qwen3moe.block_count", 8},
        {"qwen3moe.context_length", 2048},
        {"qwen3moe.embedding_length", 256},
        {"qwen3moe.feed_forward_length", 1024},
        {"qwen3moe.expert_feed_forward_length", 256},
        {"qwen3moe.expert_count", 16},
        {"qwen3moe.expert_used_count", 4},
        {"qwen3moe.attention.head_count", 4},
        {"qwen3moe.attention.head_count_kv", 2},
        {"qwen3moe.attention.key_length", 64},
        {"qwen3moe.attention.value_length", 64},
        {"qwen3moe.attention.layer_norm_rms_epsilon", (double)1e-6f},
        {"qwen3moe.rope.freq_base", 10000},
        {"qwen3moe.vocab_size", 4096},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double value;
        OK(mote_meta_f64(c, keys[i].key, &value));
        if (value != keys[i].value) fail_msg("%s is %g", keys[i].key, value);
    }
    struct mote_text text;
    int truth;
    OK(mote_meta_text(c, "general.architecture", &text));
    assert_int_equal(text.length, 8);
    assert_memory_equal(text.data, "qwen3moe", 8);
    OK(mote_meta_text(c, "general.name", &text));
    assert_memory_equal(text.data, "fable", 5);
    OK(mote_meta_bool(c, "qwen3moe.expert_weights_norm", &truth));
    assert_int_equal(truth, 1);

    /* Every tensor, and no other. */
    static const struct {
        const char *name;
        int64_t dim[3];
    } layer[] = {
        {"attn_norm", {256, 1, 1}},        {"attn_q", {256, 256, 1}},       {"attn_k", {256, 128, 1}},
        {"attn_v", {256, 128, 1}},         {"attn_output", {256, 256, 1}},  {"attn_q_norm", {64, 1, 1}},
        {"attn_k_norm", {64, 1, 1}},       {"ffn_norm", {256, 1, 1}},       {"ffn_gate_inp", {256, 16, 1}},
        {"ffn_gate_exps", {256, 256, 16}}, {"ffn_up_exps", {256, 256, 16}}, {"ffn_down_exps", {256, 256, 16}},
    };
    enum { N_LAYER = sizeof layer / sizeof *layer };
    assert_int_equal(c->n_tensor, 2 + 8 * N_LAYER);
    assert_non_null(mote_catalogue_tensor(c, "token_embd.weight"));
    assert_non_null(mote_catalogue_tensor(c, "output_norm.weight"));
    assert_null(mote_catalogue_tensor(c, "output.weight"));
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < N_LAYER; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, layer[i].name);
            const struct mote_tensor *t = mote_catalogue_tensor(c, name);
            if (!t) fail_msg("no %s", name);
            assert_int_equal(t->format, MOTE_FORMAT_BF16);
            for (int k = 0; k < 3; k++) assert_int_equal(t->dim[k], layer[i].dim[k]);
            assert_int_equal(t->n_byte, 2 * t->dim[0] * t->dim[1] * t->dim[2]);
        }
    assert_int_equal(c->n_byte, 55650816); /* total_size of its index */
    assert_non_null(c->tokenizer_json.data);
    assert_int_equal(c->tokenizer_json.length, 263218);
    assert_int_equal(c->tokenizer_config_json.length, 470);
    assert_int_equal(c->generation_config_json.length, 111);

    /* Bytes: offsets as the shard's own header has them. */
    const struct mote_mapfile *shard = NULL;
    for (size_t i = 0; i < c->n_file; i++)
        if (strstr(c->file_path[i], "model-00001-of")) shard = &c->file[i];
    assert_non_null(shard);
    const uint8_t *data = shard->data + 8 + mote_load_u64(shard->data);
    assert_ptr_equal(mote_catalogue_tensor(c, "token_embd.weight")->data, data);
    assert_ptr_equal(mote_catalogue_tensor(c, "blk.0.ffn_gate_inp.weight")->data, data + 8389120);
    const struct mote_tensor *gate = mote_catalogue_tensor(c, "blk.0.ffn_gate_exps.weight");
    assert_ptr_equal(mote_tensor_matrix(gate, 0).data, data + 2228736);
    assert_int_equal(mote_tensor_matrix(gate, 15).row_bytes, 512);
    mote_catalogue_close(c);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- a model that mlx wrote (tests/golden/gen_mlx_model.py) ---- */

static const char *const mlx_tiny = "tests/golden/mlx_tiny";

static void test_mlx(void **state)
{
    (void)state;
    struct mote_catalogue *c;
    n_warning = 0;
    OK(mote_catalogue_open(mlx_tiny, NULL, &c));
    assert_int_equal(n_warning, 0);
    assert_string_equal(c->source, "mlx");
    static const struct {
        const char *name;
        enum mote_format format;
        int group;
    } formats[] = {
        {"token_embd.weight", MOTE_FORMAT_AFFINE4, 32},
        {"blk.0.attn_q.weight", MOTE_FORMAT_MLX_MXFP8, 32},
        {"blk.0.attn_k.weight", MOTE_FORMAT_MLX_NVFP4, 16},
        {"blk.0.attn_v.weight", MOTE_FORMAT_BF16, 0},
        {"blk.0.attn_output.weight", MOTE_FORMAT_AFFINE6, 32},
        {"blk.0.ffn_gate_inp.weight", MOTE_FORMAT_AFFINE8, 64},
        {"blk.0.ffn_gate_exps.weight", MOTE_FORMAT_AFFINE4, 32},
        {"blk.0.ffn_up_exps.weight", MOTE_FORMAT_MLX_MXFP4, 32},
        {"blk.0.ffn_down_exps.weight", MOTE_FORMAT_AFFINE3, 64},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct mote_tensor *t = mote_catalogue_tensor(c, formats[i].name);
        if (!t) fail_msg("no %s", formats[i].name);
        assert_int_equal(t->format, formats[i].format);
        assert_int_equal(t->group, formats[i].group);
    }
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.attn_output.weight")->scale_format, MOTE_FORMAT_F32);
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.ffn_down_exps.weight")->scale_format, MOTE_FORMAT_F16);
    assert_int_equal(mote_catalogue_tensor(c, "blk.0.ffn_down_exps.weight")->dim[2], 3);

    FILE *file = fopen("tests/golden/mlx_tiny.bin", "rb");
    assert_non_null(file);
    struct {
        char name[40];
        uint32_t expert, n_row, n_col;
    } head;
    int n_matrix = 0;
    for (; fread(&head, sizeof head, 1, file) == 1; n_matrix++) {
        float expected[64], row[64];
        struct mote_matrix w = mote_tensor_matrix(mote_catalogue_tensor(c, head.name), head.expert);
        assert_int_equal(w.n_row, head.n_row);
        assert_int_equal(w.n_col, head.n_col);
        assert_true(head.n_col <= 64);
        for (uint32_t r = 0; r < head.n_row; r++) {
            assert_int_equal(fread(expected, 4, head.n_col, file), head.n_col);
            mote_decode(&w, r, 0, head.n_col, row);
            for (uint32_t i = 0; i < head.n_col; i++) /* mlx may fuse the multiplication and the addition */
                if (row[i] > expected[i] + 1e-6f || row[i] < expected[i] - 1e-6f)
                    fail_msg("%s expert %u row %u column %u: %g, mlx has %g", head.name, head.expert, r, i,
                             (double)row[i], (double)expected[i]);
        }
    }
    fclose(file);
    assert_int_equal(n_matrix, 14);
    mote_catalogue_close(c);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- what a path can be ---- */

static void write_gguf(const struct folder *folder, const char *name)
{
    struct mote_gguf_writer *w;
    OK(mote_gguf_create(folder_file(folder, name), &w));
    OK(mote_gguf_put_text(w, "general.architecture", "tiny", 4));
    OK(mote_gguf_begin(w));
    OK(mote_gguf_finish(w));
}

static void test_what_is_there(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    struct mote_catalogue *c;
    assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), MOTE_NOT_FOUND);
    assert_message("no config.json and 0 .safetensors files");
    folder_write(&folder, "config.json", "{}", 2);
    assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), MOTE_NOT_FOUND);
    assert_message("found config.json and 0 .safetensors files");
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "config.json"), NULL, &c), MOTE_ARGUMENT);
    assert_message("give the folder");
    write_gguf(&folder, "a.gguf"); /* many GGUF repositories hold a config.json */
    write_gguf(&folder, "mmproj-a.gguf");
    OK(mote_catalogue_open(folder.path, NULL, &c));
    assert_string_equal(c->source, "gguf");
    mote_catalogue_close(c);
    write_gguf(&folder, "b.gguf");
    assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), MOTE_ARGUMENT);
    assert_message("2 GGUF models (a.gguf, b.gguf)");
    folder_write(&folder, "x.gguf", "not a model", 11);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "x.gguf"), NULL, &c), MOTE_FORMAT);
    assert_message("x.gguf: 11 bytes that do not start with \"GGUF\"");
    folder_write(&folder, "empty.gguf", "", 0);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "empty.gguf"), NULL, &c), MOTE_FORMAT);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "none"), NULL, &c), MOTE_NOT_FOUND);
    assert_message("none: no such file or folder");
    assert_null(c);
    folder_remove(&folder);
    mote_catalogue_close(NULL);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- no memory ---- */

static void fail_each_allocation(const char *path, long step)
{
    mote_status status = MOTE_MEMORY;
    long n = 0;
    while (status == MOTE_MEMORY) {
        struct mote_catalogue *c;
        mote_mem_fail_at(n += n < 64 ? 1 : step);
        status = mote_catalogue_open(path, NULL, &c);
        mote_mem_fail_at(0);
        if (status == MOTE_OK) mote_catalogue_close(c);
        else assert_null(c);
        assert_int_equal(mote_mem_global_total(), 0);
    }
    assert_int_equal(status, MOTE_OK);
    assert_true(n > 10);
}

static void test_memory_failures(void **state)
{
    (void)state;
    fail_each_allocation(mlx_tiny, 1);
    if (access(fable, R_OK) == 0) fail_each_allocation(fable, 1);
}

/* A budget is held, and everything goes back to it. */
static void test_budget(void **state)
{
    (void)state;
    struct mote_budget *budget;
    struct mote_catalogue *c;
    OK(mote_budget_create(1 << 10, &budget));
    assert_int_equal(mote_catalogue_open(mlx_tiny, budget, &c), MOTE_BUDGET);
    assert_null(c);
    assert_int_equal(mote_budget_total(budget), 0);
    mote_budget_destroy(budget);
    OK(mote_budget_create(1 << 20, &budget));
    OK(mote_catalogue_open(mlx_tiny, budget, &c));
    assert_true(mote_budget_used(budget, MOTE_MEM_TABLES) > 0);
    mote_catalogue_close(c);
    assert_int_equal(mote_budget_total(budget), 0);
    mote_budget_destroy(budget);
}

int main(void)
{
    mote_log_set(on_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fable),         cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_what_is_there), cmocka_unit_test(test_memory_failures),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
