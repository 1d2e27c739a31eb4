/* test_gguf_write.c: GGUF written and read back, NVFP4's scales among it, and what the writer refuses. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "file/gguf_read.h"
#include "file/gguf_write.h"
#include "file_bytes.h"

static const char *const golden = "tests/golden/small.gguf";

#define OK(expr)                                                        \
    do {                                                                \
        if ((expr) != MOTE_OK) fail_msg("%s: %s", #expr, mote_error()); \
    } while (0)

static void assert_message(const char *part)
{
    if (!strstr(mote_error(), part)) fail_msg("message \"%s\" does not name \"%s\"", mote_error(), part);
}

/* ---- the writer ---- */

/* Three experts of NVFP4 with a scale each, one dense tensor with a scale, a key of every kind. */
static mote_status write_model(const char *path)
{
    static const int64_t experts[3] = {64, 2, 3}, dense[2] = {64, 2}, three[1] = {3}, one[1] = {1};
    static const float scales[3] = {2, -0.5f, 4}, scale = 8;
    static const int32_t numbers[2] = {-5, 7};
    static const struct mote_text words[2] = {{"a", 1}, {"\0b", 2}};
    uint8_t codes[36 * 6];
    struct mote_gguf_writer *w;
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 7);
    TRY(mote_gguf_create(path, &w));
    mote_status status;
    TRY_GOTO(mote_gguf_put_text(w, "general.architecture", "qwen3moe", 8), status, fail);
    TRY_GOTO(mote_gguf_put_u32(w, "general.alignment", 64), status, fail);
    TRY_GOTO(mote_gguf_put_f32(w, "k.f32", 0.1f), status, fail);
    TRY_GOTO(mote_gguf_put_bool(w, "k.bool", 5), status, fail);
    TRY_GOTO(mote_gguf_put_texts(w, "k.texts", words, 2), status, fail);
    TRY_GOTO(mote_gguf_put_i32s(w, "k.i32s", numbers, 2), status, fail);
    TRY_GOTO(mote_gguf_put_f32s(w, "k.f32s", scales, 3), status, fail);
    TRY_GOTO(mote_gguf_declare(w, "blk.0.ffn_up_exps.weight", MOTE_FORMAT_NVFP4, 3, experts), status, fail);
    TRY_GOTO(mote_gguf_declare(w, "blk.0.ffn_up_exps.scale", MOTE_FORMAT_F32, 1, three), status, fail);
    TRY_GOTO(mote_gguf_declare(w, "blk.0.attn_q.weight", MOTE_FORMAT_NVFP4, 2, dense), status, fail);
    TRY_GOTO(mote_gguf_declare(w, "blk.0.attn_q.scale", MOTE_FORMAT_F32, 1, one), status, fail);
    TRY_GOTO(mote_gguf_declare(w, "blk.0.attn_k.weight", MOTE_FORMAT_NVFP4, 2, dense), status, fail);
    TRY_GOTO(mote_gguf_begin(w), status, fail);
    for (size_t i = 0; i < sizeof codes; i += 27) /* in small pieces */
        TRY_GOTO(mote_gguf_write(w, codes + i, 27), status, fail);
    TRY_GOTO(mote_gguf_write(w, scales, sizeof scales), status, fail);
    TRY_GOTO(mote_gguf_write(w, codes, 72), status, fail);
    TRY_GOTO(mote_gguf_write(w, &scale, 4), status, fail);
    TRY_GOTO(mote_gguf_write(w, codes + 72, 72), status, fail);
    return mote_gguf_finish(w);
fail:
    mote_gguf_abandon(w);
    return status;
}

static void test_write_and_read(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m.gguf");
    struct mote_catalogue *c;
    OK(write_model(path));
    assert_int_equal(folder_count(&folder), 1); /* no .part left */
    OK(mote_catalogue_open(path, NULL, &c));
    double f;
    int truth;
    uint64_t u;
    OK(mote_meta_f64(c, "k.f32", &f));
    assert_true(f == (double)0.1f);
    OK(mote_meta_bool(c, "k.bool", &truth));
    assert_int_equal(truth, 1);
    OK(mote_meta_u64_at(c, "k.i32s", 1, &u));
    assert_int_equal(u, 7);
    const struct mote_meta *texts = mote_catalogue_meta(c, "k.texts");
    assert_int_equal(texts->value.array.text[1].length, 2);
    assert_memory_equal(texts->value.array.text[1].data, "\0b", 2);

    /* Scales became factors: one per expert, one for all, none. */
    static const float factors[3] = {2, -0.5f, 4};
    const struct mote_tensor *experts = mote_catalogue_tensor(c, "blk.0.ffn_up_exps.weight");
    assert_non_null(experts->part);
    assert_int_equal(experts->n_byte, 216);
    for (int e = 0; e < 3; e++) {
        struct mote_matrix matrix = mote_tensor_matrix(experts, e);
        assert_true(matrix.factor == factors[e]);
        assert_int_equal(matrix.n_row, 2);
        for (int i = 0; i < 72; i++) assert_int_equal(matrix.data[i], (uint8_t)((e * 72 + i) * 7));
    }
    struct mote_matrix q = mote_tensor_matrix(mote_catalogue_tensor(c, "blk.0.attn_q.weight"), 0);
    struct mote_matrix k = mote_tensor_matrix(mote_catalogue_tensor(c, "blk.0.attn_k.weight"), 0);
    assert_true(q.factor == 8 && k.factor == 1);
    assert_int_equal(k.data[0], (uint8_t)(72 * 7));

    /* Copying every key and tensor gives the same file. */
    struct mote_gguf_writer *w;
    OK(mote_gguf_create(folder_file(&folder, "copy.gguf"), &w));
    for (size_t i = 0; i < c->n_meta; i++) OK(mote_gguf_put_meta(w, &c->meta[i]));
    for (size_t i = 0; i < c->n_tensor; i++)
        OK(mote_gguf_declare(w, c->tensor[i].name, c->tensor[i].format, c->tensor[i].n_dim,
                             c->tensor[i].dim));
    OK(mote_gguf_begin(w));
    for (size_t i = 0; i < c->n_tensor; i++) {
        const struct mote_tensor *t = &c->tensor[i];
        if (!t->part) OK(mote_gguf_write(w, t->data, t->n_byte));
        for (int64_t e = 0; t->part && e < t->dim[2]; e++)
            OK(mote_gguf_write(w, t->part[e].data, t->part[e].n_byte));
    }
    OK(mote_gguf_finish(w));
    struct mote_mapfile a, b;
    OK(mote_mapfile_open(path, &a));
    OK(mote_mapfile_open(folder_file(&folder, "copy.gguf"), &b));
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    mote_mapfile_close(&a);
    mote_mapfile_close(&b);
    mote_catalogue_close(c);
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* Scales that are not one number per expert, or no scales at all. */
static void test_scale_faults(void **state)
{
    (void)state;
    static const struct {
        enum mote_format format;
        int n_dim;
        int64_t dim[2];
        float value;
        const char *message;
    } cases[] = {
        {MOTE_FORMAT_F32, 1, {2}, 1, "'w.scale': expected f32[1] or f32[3]"},
        {MOTE_FORMAT_F32, 2, {3, 3}, 1, "'w.scale': expected f32[1] or f32[3]"},
        {MOTE_FORMAT_F16, 1, {3}, 1, "'w.scale': expected f32[1] or f32[3]"},
        {MOTE_FORMAT_F32, 1, {3}, 0, "'w.scale': scale 0 is 0"},
        {MOTE_FORMAT_F32, 1, {1}, INFINITY, "'w.scale': scale 0 is inf"},
        {MOTE_FORMAT_F32, 1, {1}, NAN, "'w.scale': scale 0 is"},
    };
    static const int64_t experts[3] = {64, 1, 3};
    static const uint8_t codes[108];
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mote_gguf_writer *w;
        struct mote_catalogue *c;
        int64_t n = cases[i].dim[0] * (cases[i].n_dim > 1 ? cases[i].dim[1] : 1);
        OK(mote_gguf_create(path, &w));
        OK(mote_gguf_declare(w, "w.weight", MOTE_FORMAT_NVFP4, 3, experts));
        OK(mote_gguf_declare(w, "w.scale", cases[i].format, cases[i].n_dim, cases[i].dim));
        OK(mote_gguf_begin(w));
        OK(mote_gguf_write(w, codes, sizeof codes));
        for (int64_t k = 0; k < n; k++)
            OK(mote_gguf_write(w, &cases[i].value, cases[i].format == MOTE_FORMAT_F32 ? 4 : 2));
        OK(mote_gguf_finish(w));
        assert_int_equal(mote_catalogue_open(path, NULL, &c), MOTE_FORMAT);
        assert_message(cases[i].message);
        assert_message("m.gguf");
    }
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* Every value type of the golden file survives a copy. */
static void test_copy_golden(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    struct mote_catalogue *from, *to;
    struct mote_gguf_writer *w;
    OK(mote_catalogue_open(golden, NULL, &from));
    OK(mote_gguf_create(folder_file(&folder, "m.gguf"), &w));
    for (size_t i = 0; i < from->n_meta; i++) OK(mote_gguf_put_meta(w, &from->meta[i]));
    OK(mote_gguf_begin(w));
    OK(mote_gguf_finish(w));
    OK(mote_catalogue_open(folder_file(&folder, "m.gguf"), NULL, &to));
    assert_int_equal(to->n_meta, from->n_meta);
    assert_int_equal(to->n_tensor, 0);
    for (size_t i = 0; i < to->n_meta; i++) {
        const struct mote_meta *a = &from->meta[i], *b = &to->meta[i];
        assert_int_equal(a->type, b->type);
        if (a->type != MOTE_META_STRING && a->type != MOTE_META_ARRAY) assert_true(a->value.u == b->value.u);
        if (a->type == MOTE_META_STRING) {
            assert_int_equal(a->value.text.length, b->value.text.length);
            assert_memory_equal(a->value.text.data, b->value.text.data, a->value.text.length);
        }
        if (a->type == MOTE_META_ARRAY) {
            assert_int_equal(a->value.array.count, b->value.array.count);
            size_t size = mote_meta_type_size(a->value.array.type) * a->value.array.count;
            if (size) assert_memory_equal(a->value.array.data, b->value.array.data, size);
        }
    }
    mote_catalogue_close(from);
    mote_catalogue_close(to);
    folder_remove(&folder);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    const char *path = folder_file(&folder, "m.gguf");
    static const int64_t dim[2] = {32, 2}, odd[2] = {33, 2}, zero[2] = {32, 0};
    static const uint8_t data[64];
    struct mote_gguf_writer *w;
    OK(mote_gguf_create(path, &w));
    OK(mote_gguf_put_u32(w, "k", 1));
    assert_int_equal(mote_gguf_put_bool(w, "k", 1), MOTE_ARGUMENT);
    assert_message("'k'");
    assert_int_equal(mote_gguf_put_u32(w, "general.alignment", 24), MOTE_ARGUMENT);
    assert_int_equal(mote_gguf_declare(w, "t", MOTE_FORMAT_AFFINE4, 2, dim), MOTE_ARGUMENT);
    assert_message("affine4");
    assert_int_equal(mote_gguf_declare(w, "t", MOTE_FORMAT_Q8_0, 2, odd), MOTE_ARGUMENT);
    assert_int_equal(mote_gguf_declare(w, "t", MOTE_FORMAT_F32, 2, zero), MOTE_ARGUMENT);
    assert_int_equal(mote_gguf_declare(w, "t", MOTE_FORMAT_F32, 5, dim), MOTE_ARGUMENT);
    OK(mote_gguf_declare(w, "t", MOTE_FORMAT_Q8_0, 2, dim)); /* 68 bytes */
    assert_int_equal(mote_gguf_declare(w, "t", MOTE_FORMAT_Q8_0, 2, dim), MOTE_ARGUMENT);
    assert_int_equal(mote_gguf_write(w, data, 1), MOTE_ARGUMENT);
    OK(mote_gguf_begin(w));
    assert_int_equal(mote_gguf_put_u32(w, "late", 1), MOTE_ARGUMENT);
    assert_int_equal(mote_gguf_declare(w, "late", MOTE_FORMAT_Q8_0, 2, dim), MOTE_ARGUMENT);
    OK(mote_gguf_write(w, data, 60));
    assert_int_equal(mote_gguf_write(w, data, 9), MOTE_ARGUMENT);
    assert_message("lacks 8");
    assert_int_equal(mote_gguf_finish(w), MOTE_ARGUMENT);
    assert_message("lacks 8 of 68");
    assert_int_equal(folder_count(&folder), 0);

    OK(mote_gguf_create(path, &w));
    OK(mote_gguf_declare(w, "t", MOTE_FORMAT_Q8_0, 2, dim));
    OK(mote_gguf_begin(w));
    OK(mote_gguf_write(w, data, 64));
    mote_gguf_abandon(w);
    mote_gguf_abandon(NULL);
    assert_int_equal(folder_count(&folder), 0);
    assert_int_equal(mote_gguf_create("/no/such/folder/m.gguf", &w), MOTE_IO);
    assert_message("/no/such/folder");
    assert_null(w);
    if (access("/dev/full", W_OK) == 0) { /* a full disk: through a link, since the name gets .part */
        assert_int_equal(symlink("/dev/full", folder_file(&folder, "full.gguf.part")), 0);
        OK(mote_gguf_create(folder_file(&folder, "full.gguf"), &w));
        OK(mote_gguf_declare(w, "t", MOTE_FORMAT_Q8_0, 2, dim));
        OK(mote_gguf_begin(w));
        OK(mote_gguf_write(w, data, 64));
        OK(mote_gguf_write(w, data, 4));
        assert_int_equal(mote_gguf_finish(w), MOTE_IO);
        assert_message("full.gguf.part");
        assert_int_equal(folder_count(&folder), 0);
    }
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- no memory ---- */

static void test_writer_memory_failures(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    mote_status status = MOTE_MEMORY;
    long n = 0;
    while (status == MOTE_MEMORY) {
        mote_mem_fail_at(++n);
        status = write_model(folder_file(&folder, "w.gguf"));
        mote_mem_fail_at(0);
        assert_int_equal(mote_mem_global_total(), 0);
        assert_int_equal(folder_count(&folder), status == MOTE_OK ? 1 : 0);
    }
    assert_int_equal(status, MOTE_OK);
    assert_true(n > 5);
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_scale_faults),
        cmocka_unit_test(test_copy_golden),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_writer_memory_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
