/* test_safetensors.c: headers of safetensors files, right ones and wrong ones. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "file/safetensors.h"
#include "file_bytes.h"

static struct bytes file_of(const char *header, size_t n_data)
{
    struct bytes out = {0};
    put_text(&out, header);
    for (size_t i = 0; i < n_data; i++) put(&out, &(uint8_t){(uint8_t)i}, 1);
    return out;
}

struct reading {
    struct mote_arena arena;
    struct mote_safetensors set;
};

static void begin(struct reading *r)
{
    mote_arena_init(&r->arena, NULL, MOTE_MEM_TABLES);
    mote_safetensors_init(&r->set, NULL, &r->arena);
}

static void end(struct reading *r)
{
    mote_safetensors_free(&r->set);
    mote_arena_free(&r->arena);
}

static void test_good(void **state)
{
    (void)state;
    /* Out of order, a scalar, an empty tensor, dtypes that are not known, five dimensions, trailing spaces. */
    struct bytes file =
        file_of("{\"__metadata__\":{\"format\":\"mlx\",\"other\":\"x\"},"
                "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                "\"empty\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[16,16]},"
                "\"odd\":{\"dtype\":\"F4_NEW\",\"shape\":[5],\"data_offsets\":[16,19]},"
                "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,2],\"data_offsets\":[19,21]}}   ",
                21);
    uint8_t *copy = exact_copy(file.data, file.size);
    struct reading r;
    begin(&r);
    if (mote_safetensors_parse(&r.set, "file", copy, file.size) != MOTE_OK) fail_msg("%s", mote_error());
    assert_int_equal(r.set.n_tensor, 5);
    assert_true(r.set.is_mlx);
    assert_string_equal(r.set.tensor[0].name, "b");
    const struct mote_safetensor *b = mote_safetensors_find(&r.set, "b");
    assert_int_equal(b->format, MOTE_FORMAT_BF16);
    assert_int_equal(b->n_dim, 2);
    assert_int_equal(b->dim[0], 2);
    assert_int_equal(b->dim[1], 3);
    assert_int_equal(b->n_byte, 12);
    assert_int_equal(b->data[0], 4);
    assert_int_equal(mote_safetensors_find(&r.set, "a")->n_dim, 0);
    assert_int_equal(mote_safetensors_find(&r.set, "odd")->format, -1);
    assert_string_equal(mote_safetensors_find(&r.set, "odd")->dtype, "F4_NEW");
    assert_int_equal(mote_safetensors_find(&r.set, "deep")->n_dim, 5);
    assert_null(mote_safetensors_find(&r.set, "c"));

    /* The same names again, from another shard. */
    assert_int_equal(mote_safetensors_parse(&r.set, "second", copy, file.size), MOTE_FORMAT);
    assert_non_null(strstr(mote_error(), "second: tensor 'b' is also in file"));
    end(&r);
    free(copy);
    free(file.data);
    assert_int_equal(mote_mem_global_total(), 0);
}

#define ONE(text) "{\"w\":{" text "}}"

static const struct wrong {
    const char *header;
    size_t n_data;
    const char *message;
} wrongs[] = {
    {"", 0, "empty"},
    {"{", 0, "not JSON: line 1"},
    {"[]", 0, "JSON holds an array"},
    {"{\"w\":1}", 0, "tensor 'w': dtype is nothing"},
    {ONE("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "'w': dtype is a number"},
    {ONE("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, "'w': shape is nothing"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2]"), 8, "'w': data_offsets are not two integers"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8,
     "'w': data_offsets are not two integers"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,\"8\"]"), 8,
     "data_offsets are not two integers"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), 8, "data_offsets are not two integers"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9223372036854775808]"), 8, "not JSON"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, "'w': data_offsets 8 to 0"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 7,
     "'w': data_offsets 0 to 8, but the file has 7"},
    {ONE("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8,
     "'w': shape and dtype F32 need 12 bytes"},
    {ONE("\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
     "'w': shape and dtype F16 need 4 bytes"},
    {ONE("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "'w': shape item 0"},
    {ONE("\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,8]"), 8, "'w': shape item 0"},
    {ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"), 8,
     "'w': shape: dimension 1"},
    {ONE("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,8]"), 8,
     "'w': shape: dimension 0"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 9,
     "bytes 8 to 9 of the data, at the end"},
    {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), 8,
     "bytes 0 to 4 of the data, before 'w'"},
    {"{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"w\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[4,8]}}",
     8, "duplicate"},
    {"{\"v\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6]},\"w\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[4,8]}}",
     8, "'v' and 'w' overlap at byte 4"},
    {"{\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"w\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[0,4]}}",
     4, "overlap at byte 0"},
};

static void test_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct bytes file = file_of(wrongs[i].header, wrongs[i].n_data);
        uint8_t *copy = exact_copy(file.data, file.size);
        struct reading r;
        begin(&r);
        mote_status status = mote_safetensors_parse(&r.set, "the-file", copy, file.size);
        if (status != MOTE_FORMAT) fail_msg("case %zu: status %d", i, status);
        if (!strstr(mote_error(), wrongs[i].message) || !strstr(mote_error(), "the-file"))
            fail_msg("case %zu: \"%s\" does not name \"%s\"", i, mote_error(), wrongs[i].message);
        end(&r);
        free(copy);
        free(file.data);
    }
    assert_int_equal(mote_mem_global_total(), 0);
}

/* The length in front: past the end, past the format's limit, all ones; files shorter than it. */
static void test_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 100000001, 1ull << 40, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct bytes file = {0};
        put_u64(&file, lengths[i]);
        put(&file, "{}", 2);
        struct reading r;
        begin(&r);
        assert_int_equal(mote_safetensors_parse(&r.set, "file", file.data, file.size), MOTE_FORMAT);
        assert_non_null(strstr(mote_error(), "in a file of 10"));
        end(&r);
        free(file.data);
    }
    struct bytes file = file_of(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8);
    for (size_t size = 0; size < file.size; size++) {
        uint8_t *copy = exact_copy(file.data, size);
        struct reading r;
        begin(&r);
        assert_int_equal(mote_safetensors_parse(&r.set, "file", copy, size), MOTE_FORMAT);
        end(&r);
        free(copy);
    }
    free(file.data);
}

static void test_deep_nesting(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 1);
    assert_non_null(text);
    memset(text, '[', DEPTH);
    memcpy(text, "{\"w\":", 5);
    text[DEPTH] = 0;
    struct bytes file = file_of(text, 0);
    struct reading r;
    begin(&r);
    assert_int_equal(mote_safetensors_parse(&r.set, "file", file.data, file.size), MOTE_FORMAT);
    end(&r);
    free(file.data);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_deep_nesting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
