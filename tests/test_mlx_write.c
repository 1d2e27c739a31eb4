/* test_mlx_write.c: an MLX folder written and read back, and what the writer refuses; the rows that mote synth puts in. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "file/mlx_write.h"
#include "file_bytes.h"
#include "mote.h"

#define OK(expr)                                                        \
    do {                                                                \
        if ((expr) != MOTE_OK) fail_msg("%s: %s", #expr, mote_error()); \
    } while (0)

static void refused(mote_status status, mote_status want, const char *part)
{
    assert_int_equal(status, want);
    if (!strstr(mote_error(), part)) fail_msg("message \"%s\" does not name \"%s\"", mote_error(), part);
}

/* A tensor of every role that a writer has: dense, with bias, of other bits, a stack of experts, a vector, plain. */
static const struct mote_tensor tensors[] = {
    {"token_embd.weight", MOTE_FORMAT_BF16, 2, {64, 4}},
    {"blk.11.attn_q.weight", MOTE_FORMAT_AFFINE6, 2, {64, 3}, .scale_format = MOTE_FORMAT_F16, .group = 64},
    {"blk.11.attn_q.bias", MOTE_FORMAT_F16, 1, {3}},
    {"blk.11.ffn_up_exps.weight",
     MOTE_FORMAT_AFFINE4,
     3,
     {128, 2, 3},
     .scale_format = MOTE_FORMAT_F16,
     .group = 64},
    {"blk.11.ffn_gate_inp_shexp.weight", MOTE_FORMAT_F32, 1, {64}},
};
enum { N_TENSOR = sizeof tensors / sizeof *tensors, MAX_BYTES = 2048 };

static mote_status put_keys(struct mote_mlx_writer *w)
{
    static const struct {
        const char *key;
        double value;
    } keys[] = {{"block_count", 12},
                {"embedding_length", 64},
                {"attention.head_count", 2},
                {"attention.head_count_kv", 1},
                {"attention.key_length", 40},
                {"attention.value_length", 40},
                {"expert_count", 3},
                {"expert_used_count", 1},
                {"expert_feed_forward_length", 2},
                {"expert_shared_feed_forward_length", 8},
                {"vocab_size", 4},
                {"rope.freq_base", 12345.5},
                {"expert_weights_norm", 1}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) TRY(mote_mlx_put(w, keys[i].key, keys[i].value));
    return MOTE_OK;
}

static mote_status fill(struct mote_mlx_writer *w, const uint8_t *bytes, uint64_t n_byte[N_TENSOR])
{
    TRY(put_keys(w));
    for (int i = 0; i < N_TENSOR; i++) TRY(mote_mlx_declare(w, &tensors[i], &n_byte[i]));
    TRY(mote_mlx_begin(w));
    uint64_t total = 0;
    for (int i = 0; i < N_TENSOR; i++) total += n_byte[i];
    for (uint64_t at = 0; at < total; at += 100) /* in pieces that end anywhere */
        TRY(mote_mlx_write(w, bytes + at, total - at < 100 ? (size_t)(total - at) : 100));
    return mote_mlx_put_file(w, "tokenizer.json", (struct mote_text){"{}", 2});
}

static mote_status write_model(const char *path, const uint8_t *bytes, uint64_t n_byte[N_TENSOR])
{
    struct mote_mlx_writer *w;
    TRY(mote_mlx_create(path, "qwen2moe", MOTE_FORMAT_AFFINE4, 64, &w));
    mote_status status = fill(w, bytes, n_byte);
    if (status == MOTE_OK) return mote_mlx_finish(w);
    mote_mlx_abandon(w);
    return status;
}

static void remove_model(const char *path)
{
    struct folder inner;
    snprintf(inner.path, sizeof inner.path, "%s", path);
    folder_remove(&inner);
}

static void test_write_and_read(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m");
    uint8_t bytes[MAX_BYTES];
    uint64_t n_byte[N_TENSOR], u;
    double f;
    int truth;
    for (int i = 0; i < MAX_BYTES; i++) bytes[i] = (uint8_t)(i * 7 + i / 256);
    OK(write_model(path, bytes, n_byte));
    assert_int_equal(folder_count(&folder), 1); /* no .part left */
    struct mote_catalogue *c;
    OK(mote_catalogue_open(path, NULL, &c));
    assert_string_equal(c->source, "mlx");
    assert_int_equal(c->tokenizer_json.length, 2);
    OK(mote_meta_u64(c, "qwen2moe.attention.value_length", &u));
    assert_int_equal(u, 40);
    OK(mote_meta_f64(c, "qwen2moe.rope.freq_base", &f));
    assert_true(f == 12345.5);
    OK(mote_meta_bool(c, "qwen2moe.expert_weights_norm", &truth));
    assert_true(truth);
    assert_int_equal(c->n_tensor, N_TENSOR);
    const uint8_t *at = bytes;
    for (int i = 0; i < N_TENSOR; at += n_byte[i++]) {
        const struct mote_tensor *t = mote_catalogue_tensor(c, tensors[i].name);
        if (!t) fail_msg("no %s", tensors[i].name);
        assert_int_equal(t->format, tensors[i].format);
        assert_int_equal(t->n_dim, tensors[i].n_dim);
        assert_int_equal(t->group, tensors[i].group);
        for (int d = 0; d < t->n_dim; d++) assert_int_equal(t->dim[d], tensors[i].dim[d]);
        assert_memory_equal(t->data, at, t->n_byte);
        if (!t->group) continue;
        size_t n_plane = (n_byte[i] - t->n_byte) / 2;
        assert_int_equal(t->scale_format, MOTE_FORMAT_F16);
        assert_memory_equal(t->scale, at + t->n_byte, n_plane);
        assert_memory_equal(t->bias, at + t->n_byte + n_plane, n_plane);
    }
    mote_catalogue_close(c);
    /* A folder that is there and not empty stays as it is; an empty one is taken. */
    refused(write_model(path, bytes, n_byte), MOTE_ARGUMENT, "holds 3 files");
    remove_model(path);
    const char *empty = folder_file(&folder, "e/");
    mkdir(empty, 0777);
    OK(write_model(empty, bytes, n_byte));
    remove_model(empty);
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m");
    struct mote_mlx_writer *w;
    uint64_t n;
    refused(mote_mlx_create(path, "llama", MOTE_FORMAT_AFFINE4, 64, &w), MOTE_UNSUPPORTED, "qwen2_moe");
    folder_write(&folder, "file", "x", 1);
    refused(mote_mlx_create(folder_file(&folder, "file"), "qwen2moe", MOTE_FORMAT_AFFINE4, 64, &w),
            MOTE_ARGUMENT, "is a file");
    refused(mote_mlx_create(folder_file(&folder, "no/m"), "qwen2moe", MOTE_FORMAT_AFFINE4, 64, &w), MOTE_IO,
            "no/m.part");
    OK(mote_mlx_create(path, "qwen2moe", MOTE_FORMAT_AFFINE4, 64, &w));
    refused(mote_mlx_put(w, "ssm.state_size", 1), MOTE_UNSUPPORTED, "qwen2moe.ssm.state_size");
    OK(mote_mlx_put(w, "attention.key_length", 64));
    refused(mote_mlx_put(w, "attention.value_length", 32), MOTE_ARGUMENT, "head_dim");
    struct mote_tensor t = tensors[1];
    t.name = "blk.0.ssm_conv1d.weight";
    refused(mote_mlx_declare(w, &t, &n), MOTE_UNSUPPORTED, "ssm_conv1d");
    t.name = "blk.0.attn_k.weight";
    t.dim[0] = 96;
    refused(mote_mlx_declare(w, &t, &n), MOTE_ARGUMENT, "96");
    t.dim[0] = 256;
    t.format = MOTE_FORMAT_Q4_K;
    refused(mote_mlx_declare(w, &t, &n), MOTE_ARGUMENT, "q4_k");
    OK(mote_mlx_declare(w, &tensors[0], &n));
    refused(mote_mlx_declare(w, &tensors[0], &n), MOTE_ARGUMENT, "twice");
    refused(mote_mlx_write(w, "", 1), MOTE_ARGUMENT, "before begin");
    OK(mote_mlx_begin(w));
    refused(mote_mlx_declare(w, &tensors[1], &n), MOTE_ARGUMENT, "after begin");
    refused(mote_mlx_finish(w), MOTE_ARGUMENT, "0 of 512 bytes");
    assert_int_equal(folder_count(&folder), 1); /* nothing left */
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

static void test_failing_memory(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m");
    static const uint8_t bytes[MAX_BYTES];
    uint64_t n_byte[N_TENSOR];
    mote_status status = MOTE_MEMORY;
    for (long n = 1; status != MOTE_OK; n++) {
        mote_mem_fail_at(n);
        status = write_model(path, bytes, n_byte);
        mote_mem_fail_at(0);
        assert_true(status == MOTE_OK || status == MOTE_MEMORY);
        if (status != MOTE_OK) assert_int_equal(folder_count(&folder), 0);
        assert_int_equal(mote_mem_global_total(), 0);
    }
    remove_model(path);
    folder_remove(&folder);
}

/* Rows that are drawn twice have one set of codes, scales and biases: the planes are drawn alike. */
static void test_synth_rows(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m");
    struct mote_synth_options options = MOTE_OPTIONS(mote_synth_options);
    options.shape = "fable";
    options.type = "affine3";
    options.n_layer = 1;
    OK(mote_synth(path, &options));
    struct mote_catalogue *c;
    OK(mote_catalogue_open(path, NULL, &c));
    const struct mote_tensor *t = mote_catalogue_tensor(c, "token_embd.weight");
    enum { CODES = 256 * 3 / 8, SCALES = 256 / 64 * 2 };
    int n_twice = 0;
    for (int64_t a = 0; a < 1000; a++)
        for (int64_t b = a + 1; b < 1000; b++) {
            if (memcmp(t->data + a * CODES, t->data + b * CODES, CODES) != 0) continue;
            n_twice++;
            assert_memory_equal(t->scale + a * SCALES, t->scale + b * SCALES, SCALES);
            assert_memory_equal(t->bias + a * SCALES, t->bias + b * SCALES, SCALES);
        }
    assert_true(n_twice > 50); /* of 500000 pairs, from 4096 rows: 122 expected */
    mote_catalogue_close(c);
    remove_model(path);
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_failing_memory),
        cmocka_unit_test(test_synth_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
