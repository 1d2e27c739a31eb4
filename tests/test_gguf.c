/* test_gguf.c: GGUF read: a golden file of PyPI's gguf, corruptions one at a time, the two meanings of type id 42,
 * split files.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/float_bits.h"
#include "file/gguf_read.h"
#include "file/gguf_write.h"
#include "file_bytes.h"
#include "quant/decode.h"

static const char *const golden = "tests/golden/small.gguf";

#define OK(expr)                                                        \
    do {                                                                \
        if ((expr) != MOTE_OK) fail_msg("%s: %s", #expr, mote_error()); \
    } while (0)

static void assert_message(const char *part)
{
    if (!strstr(mote_error(), part)) fail_msg("message \"%s\" does not name \"%s\"", mote_error(), part);
}

/* ---- a file by PyPI's gguf (tests/golden/gen_gguf.py) ---- */

static void test_golden(void **state)
{
    (void)state;
    struct mote_catalogue *c;
    if (mote_catalogue_open(golden, NULL, &c) != MOTE_OK) fail_msg("%s", mote_error());
    assert_string_equal(c->source, "gguf");
    assert_int_equal(c->n_tensor, 4);
    static const struct {
        const char *key;
        enum mote_meta_type type;
        int64_t value;
    } integers[] = {
        {"t.u8", MOTE_META_U8, 200},
        {"t.i8", MOTE_META_I8, -100},
        {"t.u16", MOTE_META_U16, 60000},
        {"t.i16", MOTE_META_I16, -30000},
        {"t.u32", MOTE_META_U32, 4000000000},
        {"t.i32", MOTE_META_I32, -2000000000},
        {"t.i64", MOTE_META_I64, -((int64_t)1 << 62)},
    };
    uint64_t u;
    double f;
    int truth;
    struct mote_text text;
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const struct mote_meta *meta = mote_catalogue_meta(c, integers[i].key);
        assert_non_null(meta);
        assert_int_equal(meta->type, integers[i].type);
        assert_int_equal(mote_meta_f64(c, integers[i].key, &f), MOTE_OK);
        assert_true(f == (double)integers[i].value);
        int negative = integers[i].value < 0;
        assert_int_equal(mote_meta_u64(c, integers[i].key, &u), negative ? MOTE_FORMAT : MOTE_OK);
        if (!negative) assert_true(u == (uint64_t)integers[i].value);
        else assert_message(integers[i].key);
    }
    assert_int_equal(mote_meta_u64(c, "t.u64", &u), MOTE_OK);
    assert_true(u == ((uint64_t)1 << 63) + 5);
    assert_int_equal(mote_meta_f64(c, "t.f32", &f), MOTE_OK);
    assert_true(f == 0.5);
    assert_int_equal(mote_meta_f64(c, "t.f64", &f), MOTE_OK);
    assert_true(f == 1e300);
    assert_int_equal(mote_meta_bool(c, "t.bool", &truth), MOTE_OK);
    assert_int_equal(truth, 1);
    assert_int_equal(mote_meta_text(c, "t.text", &text), MOTE_OK);
    assert_int_equal(text.length, 5);
    assert_memory_equal(text.data, "caf\xC3\xA9", 5);
    const struct mote_meta *texts = mote_catalogue_meta(c, "t.texts");
    assert_int_equal(texts->value.array.type, MOTE_META_STRING);
    assert_int_equal(texts->value.array.count, 3);
    assert_int_equal(texts->value.array.text[0].length, 0);
    assert_memory_equal(texts->value.array.text[2].data, "\xE4\xB8\xAD\xE6\x96\x87", 6);

    /* Items of arrays, scalars in their place, and what is neither. */
    assert_int_equal(mote_meta_u64_at(c, "t.i32s", 2, &u), MOTE_OK);
    assert_int_equal(u, 70000);
    assert_int_equal(mote_meta_u64_at(c, "t.i32s", 0, &u), MOTE_FORMAT);
    assert_int_equal(mote_meta_u64_at(c, "t.i32s", 3, &u), MOTE_FORMAT);
    assert_message("3 items, item 3");
    assert_int_equal(mote_meta_u64_at(c, "t.u8", 17, &u), MOTE_OK);
    assert_int_equal(u, 200);
    assert_int_equal(mote_meta_u64_at(c, "t.f32s", 0, &u), MOTE_FORMAT);
    u = 77;
    assert_int_equal(mote_meta_u64(c, "t.none", &u), MOTE_NOT_FOUND);
    assert_message("t.none");
    assert_int_equal(u, 77);
    assert_int_equal(mote_meta_u64(c, "t.text", &u), MOTE_FORMAT);
    assert_message("expected an integer");
    assert_int_equal(mote_meta_bool(c, "t.u8", &truth), MOTE_FORMAT);
    assert_int_equal(mote_meta_text(c, "t.u8", &text), MOTE_FORMAT);
    assert_int_equal(mote_meta_f64(c, "t.bool", &f), MOTE_FORMAT);

    const struct mote_tensor *experts = mote_catalogue_tensor(c, "blk.0.ffn_up_exps.weight");
    assert_non_null(experts);
    assert_int_equal(experts->n_dim, 3);
    assert_int_equal(experts->dim[0], 5);
    assert_int_equal(experts->dim[1], 3);
    assert_int_equal(experts->dim[2], 2);
    for (int e = 0; e < 2; e++) {
        struct mote_matrix matrix = mote_tensor_matrix(experts, e);
        assert_int_equal(matrix.n_row, 3);
        assert_int_equal(matrix.n_col, 5);
        for (int r = 0; r < 3; r++) {
            float row[5];
            mote_decode(&matrix, r, 0, 5, row);
            for (int i = 0; i < 5; i++) assert_true(row[i] == (float)(e * 15 + r * 5 + i) / 4);
        }
    }
    static const char *const blocks[] = {"token_embd.weight", "output.weight"};
    for (int k = 0; k < 2; k++) {
        const struct mote_tensor *tensor = mote_catalogue_tensor(c, blocks[k]);
        assert_non_null(tensor);
        assert_int_equal(tensor->format, k ? MOTE_FORMAT_Q4_0 : MOTE_FORMAT_Q8_0);
        struct mote_matrix matrix = mote_tensor_matrix(tensor, 0);
        for (int r = 0; r < 3; r++) {
            float row[64];
            mote_decode(&matrix, r, 0, 64, row);
            for (int i = 0; i < 64; i++) {
                float error = row[i] - (float)((r * 64 + i) % 17 - 8);
                assert_true(error < 1.01f && error > -1.01f);
            }
        }
    }
    const struct mote_tensor *half = mote_catalogue_tensor(c, "half");
    for (int i = 0; i < 7; i++)
        assert_true(mote_f16_f32(mote_load_u16(half->data + 2 * i)) == (float)(i - 3));
    assert_null(mote_catalogue_tensor(c, "hal"));
    mote_catalogue_close(c);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- corruptions ---- */

enum { MAX_TENSOR = 3 };

struct spec { /* a small file; a corruption changes one thing */
    const char *magic;
    uint32_t version;
    uint64_t n_tensor, n_meta;
    uint32_t alignment_type;
    uint64_t alignment, key_length;
    const char *key, *next_key;
    uint64_t array_count, text_length;
    uint32_t array_type, value_type, truth;
    struct {
        const char *name;
        uint64_t name_length;
        uint32_t n_dim, type;
        uint64_t dim[8], offset;
    } tensor[MAX_TENSOR];
    size_t data_size, cut; /* bytes of tensor data, and of the end of the file that are missing */
};

static struct spec spec_good(void)
{
    return (struct spec){
        .magic = "GGUF",
        .version = 3,
        .n_tensor = 3,
        .n_meta = 5,
        .alignment_type = MOTE_META_U32,
        .alignment = 64,
        .key_length = 4,
        .key = "some",
        .next_key = "numbers",
        .array_count = 3,
        .array_type = MOTE_META_I16,
        .text_length = 2,
        .value_type = MOTE_META_F32,
        .truth = 1,
        .tensor = {{"a.weight", 8, 2, 0, {8, 2}, 0},      /* f32, 64 bytes */
                   {"b.weight", 8, 3, 2, {64, 3, 2}, 64}, /* q4_0, 216 bytes */
                   {"c.weight", 8, 1, 1, {4}, 320}},      /* f16, 8 bytes */
        .data_size = 328,
    };
}

static struct bytes spec_bytes(const struct spec *s)
{
    struct bytes out = {0};
    put(&out, s->magic, 4);
    put_u32(&out, s->version);
    put_u64(&out, s->n_tensor);
    put_u64(&out, s->n_meta);
    put_text(&out, "general.alignment");
    put_u32(&out, s->alignment_type);
    if (s->alignment_type == MOTE_META_U64) put_u64(&out, s->alignment);
    else put_u32(&out, (uint32_t)s->alignment);
    put_u64(&out, s->key_length);
    put(&out, s->key, 4);
    put_u32(&out, s->value_type);
    put_u32(&out, 0x3F800000);
    put_text(&out, s->next_key);
    put_u32(&out, MOTE_META_ARRAY);
    put_u32(&out, s->array_type);
    put_u64(&out, s->array_count);
    put(&out, "\1\0\2\0\3\0", 6);
    put_text(&out, "texts");
    put_u32(&out, MOTE_META_ARRAY);
    put_u32(&out, MOTE_META_STRING);
    put_u64(&out, 1);
    put_u64(&out, s->text_length);
    put(&out, "hi", 2);
    put_text(&out, "truth");
    put_u32(&out, MOTE_META_BOOL);
    put(&out, &s->truth, 1);
    for (int i = 0; i < MAX_TENSOR; i++) {
        put_u64(&out, s->tensor[i].name_length);
        put(&out, s->tensor[i].name, strlen(s->tensor[i].name));
        put_u32(&out, s->tensor[i].n_dim);
        for (uint32_t k = 0; k < s->tensor[i].n_dim && k < 8; k++) put_u64(&out, s->tensor[i].dim[k]);
        put_u32(&out, s->tensor[i].type);
        put_u64(&out, s->tensor[i].offset);
    }
    put_zeros_to(&out, 64);
    put(&out, NULL, s->data_size);
    out.size -= s->cut;
    return out;
}

static mote_status parse_bytes(const uint8_t *data, size_t size, struct mote_catalogue **out)
{
    struct mote_gguf_part part;
    assert_int_equal(mote_catalogue_create("memory", "gguf", NULL, out), MOTE_OK);
    return mote_gguf_parse(*out, "small.gguf", data, size, 1, &part);
}

/* X(name, change, status, part of the message) */
#define CORRUPTIONS(X)                                                                                    \
    X(magic, s->magic = "GGML", MOTE_FORMAT, "start with")                                                \
    X(version_1, s->version = 1, MOTE_UNSUPPORTED, "version 1, expected 2 or 3")                          \
    X(version_4, s->version = 4, MOTE_UNSUPPORTED, "version 4")                                           \
    X(big_endian, s->version = 3u << 24, MOTE_UNSUPPORTED, "big-endian")                                  \
    X(tensors_billions, s->n_tensor = 4000000000u, MOTE_FORMAT, "4000000000 tensors")                     \
    X(tensors_max, s->n_tensor = UINT64_MAX, MOTE_FORMAT, "tensors")                                      \
    X(keys_billions, s->n_meta = 4000000000u, MOTE_FORMAT, "4000000000 metadata keys")                    \
    X(keys_max, s->n_meta = UINT64_MAX, MOTE_FORMAT, "metadata keys")                                     \
    X(keys_more, s->n_meta = 6, MOTE_FORMAT, "tensor name needs")                                         \
    X(alignment_0, s->alignment = 0, MOTE_FORMAT, "alignment of 0")                                       \
    X(alignment_1, s->alignment = 1, MOTE_FORMAT, "alignment of 1")                                       \
    X(alignment_odd, s->alignment = 48, MOTE_FORMAT, "alignment of 48")                                   \
    X(alignment_huge, (s->alignment_type = MOTE_META_U64, s->alignment = 1ull << 63), MOTE_FORMAT,        \
      "alignment of 9223372036854775808")                                                                 \
    X(alignment_text, s->alignment_type = MOTE_META_F32, MOTE_FORMAT, "general.alignment")                \
    X(alignment_negative, (s->alignment_type = MOTE_META_I32, s->alignment = 0xFFFFFFFF), MOTE_FORMAT,    \
      "general.alignment")                                                                                \
    X(key_long, s->key_length = 1ull << 40, MOTE_FORMAT, "metadata key needs 1099511627776 bytes")        \
    X(key_max, s->key_length = UINT64_MAX, MOTE_FORMAT, "metadata key needs")                             \
    X(key_empty, s->key_length = 0, MOTE_FORMAT, "key 1 is empty")                                        \
    X(key_twice, s->next_key = "some", MOTE_FORMAT, "two metadata keys are named 'some'")                 \
    X(value_type, s->value_type = 13, MOTE_FORMAT, "'some': unknown value type 13")                       \
    X(array_type, s->array_type = 99, MOTE_FORMAT, "'numbers': array items of unknown type 99")           \
    X(array_of_arrays, s->array_type = MOTE_META_ARRAY, MOTE_UNSUPPORTED, "'numbers': arrays of arrays")  \
    X(array_huge, s->array_count = 1ull << 62, MOTE_FORMAT, "'numbers': 4611686018427387904 array items") \
    X(array_wraps, (s->array_type = MOTE_META_U64, s->array_count = (1ull << 61) + 1), MOTE_FORMAT,       \
      "array items")                                                                                      \
    X(array_of_texts_huge, (s->array_type = MOTE_META_STRING, s->array_count = 1ull << 33), MOTE_FORMAT,  \
      "'numbers'")                                                                                        \
    X(text_long, s->text_length = 1000000, MOTE_FORMAT, "'texts': array of text needs 1000000 bytes")     \
    X(truth, s->truth = 2, MOTE_FORMAT, "'truth': a bool of value 2")                                     \
    X(name_long, s->tensor[1].name_length = 1ull << 50, MOTE_FORMAT, "tensor name needs")                 \
    X(name_twice, s->tensor[1].name = "a.weight", MOTE_FORMAT, "two tensors are named 'a.weight'")        \
    X(name_empty, (s->tensor[0].name = "", s->tensor[0].name_length = 0), MOTE_FORMAT, "name is empty")   \
    X(dims_0, s->tensor[1].n_dim = 0, MOTE_FORMAT, "'b.weight' has 0 dimensions")                         \
    X(dims_5, s->tensor[1].n_dim = 5, MOTE_FORMAT, "'b.weight' has 5 dimensions")                         \
    X(dims_max, s->tensor[1].n_dim = UINT32_MAX, MOTE_FORMAT, "'b.weight' has 4294967295")                \
    X(dim_zero, s->tensor[1].dim[1] = 0, MOTE_FORMAT, "'b.weight': dimension 1 is 0")                     \
    X(dim_negative, s->tensor[1].dim[2] = UINT64_MAX, MOTE_FORMAT, "'b.weight': dimension 2")             \
    X(dim_overflows, (s->tensor[0].dim[0] = 1ull << 62), MOTE_FORMAT, "'a.weight'")                       \
    X(dims_overflow, (s->tensor[1].dim[1] = 1ull << 40, s->tensor[1].dim[2] = 1ull << 40), MOTE_FORMAT,   \
      "'b.weight': 64 x 1099511627776 x 1099511627776 x 1 weights overflow")                              \
    X(dims_wrap_to_little, (s->tensor[0].dim[0] = 1ull << 32, s->tensor[0].dim[1] = 1ull << 32),          \
      MOTE_FORMAT, "'a.weight'")                                                                          \
    X(row_not_blocks, s->tensor[1].dim[0] = 65, MOTE_FORMAT, "'b.weight': rows of 65 weights")            \
    X(type_unknown, s->tensor[2].type = 97, MOTE_UNSUPPORTED, "'c.weight' is of type id 97")              \
    X(type_removed, s->tensor[2].type = 4, MOTE_UNSUPPORTED, "'c.weight' is of type id 4")                \
    X(type_max, s->tensor[2].type = UINT32_MAX, MOTE_UNSUPPORTED, "'c.weight' is of type id 4294967295")  \
    X(offset_unaligned, s->tensor[1].offset = 68, MOTE_FORMAT, "'b.weight' starts at 68")                 \
    X(offset_past_end, s->tensor[2].offset = 1 << 20, MOTE_FORMAT, "'c.weight' needs 8 bytes at 1048576") \
    X(offset_max, s->tensor[2].offset = UINT64_MAX - 63, MOTE_FORMAT, "'c.weight'")                       \
    X(overlap, s->tensor[1].offset = 0, MOTE_FORMAT, "overlap")                                           \
    X(overlap_in_part, s->tensor[2].offset = 256, MOTE_FORMAT,                                            \
      "'b.weight' (216 bytes at 64) and 'c.weight'")                                                      \
    X(too_big, s->tensor[2].dim[0] = 5, MOTE_FORMAT, "'c.weight' needs 10 bytes")                         \
    X(truncated, s->cut = 1, MOTE_FORMAT, "'c.weight' needs 8 bytes at 320, the file has 327")            \
    X(no_data, s->cut = 328, MOTE_FORMAT, "'a.weight'")

#define X(name, change, status, message)       \
    static void corrupt_##name(struct spec *s) \
    {                                          \
        change;                                \
    }
CORRUPTIONS(X)
#undef X

static const struct corruption {
    const char *name;
    void (*change)(struct spec *);
    mote_status status;
    const char *message;
} corruptions[] = {
#define X(name, change, status, message) {#name, corrupt_##name, status, message},
    CORRUPTIONS(X)
#undef X
};

static void test_corruptions(void **state)
{
    (void)state;
    struct spec good = spec_good();
    struct bytes bytes = spec_bytes(&good);
    struct mote_catalogue *c;
    if (parse_bytes(bytes.data, bytes.size, &c) != MOTE_OK) fail_msg("%s", mote_error());
    assert_int_equal(c->n_tensor, 3);
    assert_int_equal(mote_catalogue_tensor(c, "b.weight")->n_byte, 216);
    assert_int_equal(c->n_byte, 64 + 216 + 8);
    mote_catalogue_close(c);
    free(bytes.data);
    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        struct spec bad = spec_good();
        corruptions[i].change(&bad);
        bytes = spec_bytes(&bad);
        uint8_t *copy = exact_copy(bytes.data, bytes.size);
        mote_status status = parse_bytes(copy, bytes.size, &c);
        if (status != corruptions[i].status)
            fail_msg("%s: status %d (%s), expected %d", corruptions[i].name, status, mote_error(),
                     corruptions[i].status);
        assert_message(corruptions[i].message);
        assert_message("small.gguf");
        mote_catalogue_close(c);
        free(copy);
        free(bytes.data);
    }
    assert_int_equal(mote_mem_global_total(), 0);
}

/* A download that stopped, wherever it stopped. */
static void test_every_prefix(void **state)
{
    (void)state;
    struct spec good = spec_good();
    struct bytes bytes = spec_bytes(&good);
    for (size_t size = 0; size < bytes.size; size++) {
        struct mote_catalogue *c;
        uint8_t *copy = exact_copy(bytes.data, size);
        mote_status status = parse_bytes(copy, size, &c);
        if (status != MOTE_FORMAT) fail_msg("%zu of %zu bytes: status %d", size, bytes.size, status);
        mote_catalogue_close(c);
        free(copy);
    }
    free(bytes.data);
}

/* A header cannot make the reader take more than a small multiple of the file's size. */
static void test_memory_is_bounded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        struct spec bad = spec_good();
        corruptions[i].change(&bad);
        struct bytes bytes = spec_bytes(&bad);
        struct mote_budget *budget;
        struct mote_catalogue *c;
        struct mote_gguf_part part;
        assert_int_equal(mote_budget_create(0, &budget), MOTE_OK);
        assert_int_equal(mote_catalogue_create("memory", "gguf", budget, &c), MOTE_OK);
        mote_gguf_parse(c, "small.gguf", bytes.data, bytes.size, 1, &part);
        assert_true(mote_budget_peak(budget) < 128 * 1024 + 64 * bytes.size);
        mote_catalogue_close(c);
        mote_budget_destroy(budget);
        free(bytes.data);
    }
}

/* ---- type id 42 ---- */

/* n tensors of 128 x rows weights of id 42, each `bytes_per_128` bytes a block of 128, the last one unpadded. */
static struct bytes id_42_file(const int *rows, int n, const int *bytes_per_128)
{
    struct bytes out = {0};
    uint64_t offset = 0;
    put(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, (uint64_t)n);
    put_u64(&out, 0);
    for (int i = 0; i < n; i++) {
        char name[8] = {(char)('a' + i), 0};
        put_text(&out, name);
        put_u32(&out, 2);
        put_u64(&out, 128);
        put_u64(&out, (uint64_t)rows[i]);
        put_u32(&out, 42);
        put_u64(&out, offset);
        offset = (offset + (uint64_t)rows[i] * (uint64_t)bytes_per_128[i] + 31) / 32 * 32;
    }
    put_zeros_to(&out, 32);
    for (int i = 0; i < n; i++) {
        put_zeros_to(&out, 32);
        put(&out, NULL, (size_t)rows[i] * (size_t)bytes_per_128[i]);
    }
    return out;
}

static void test_id_42(void **state)
{
    (void)state;
    static const struct {
        int n, rows[3], size[3];
        mote_status status;
        enum mote_format format;
    } cases[] = {
        {2, {64, 64}, {36, 36}, MOTE_OK, MOTE_FORMAT_Q2_0},
        {2, {64, 64}, {34, 34}, MOTE_OK, MOTE_FORMAT_PQ2_0},
        {1, {64}, {36}, MOTE_OK, MOTE_FORMAT_Q2_0},
        {1, {64}, {34}, MOTE_OK, MOTE_FORMAT_PQ2_0},
        {3,
         {1, 64, 1},
         {34, 34, 34},
         MOTE_OK,
         MOTE_FORMAT_PQ2_0}, /* one row fits both: the other tensors decide */
        {3, {1, 64, 1}, {36, 36, 36}, MOTE_OK, MOTE_FORMAT_Q2_0},
        {2, {64, 64}, {34, 36}, MOTE_FORMAT, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mote_catalogue *c;
        struct bytes bytes = id_42_file(cases[i].rows, cases[i].n, cases[i].size);
        mote_status status = parse_bytes(bytes.data, bytes.size, &c);
        if (status != cases[i].status) fail_msg("case %zu: status %d (%s)", i, status, mote_error());
        if (status == MOTE_OK)
            for (size_t k = 0; k < c->n_tensor; k++) {
                assert_int_equal(c->tensor[k].format, cases[i].format);
                assert_int_equal(c->tensor[k].n_byte, cases[i].rows[k] * cases[i].size[k]);
            }
        else assert_message("42");
        mote_catalogue_close(c);
        free(bytes.data);
    }
}

/* ---- split files ---- */

struct part {                   /* what one part says */
    int64_t no, count, tensors; /* -1: no key */
    const char *tensor;
};

static void write_part(const struct folder *folder, const char *name, const struct part *part)
{
    static const int64_t dim[1] = {2};
    static const char *const keys[3] = {"split.no", "split.count", "split.tensors.count"};
    const int64_t values[3] = {part->no, part->count, part->tensors};
    struct mote_gguf_writer *w;
    OK(mote_gguf_create(folder_file(folder, name), &w));
    OK(mote_gguf_put_text(w, "general.architecture", "tiny", 4));
    for (int i = 0; i < 3; i++) {
        struct mote_meta meta = {{keys[i], strlen(keys[i])}, i == 2 ? MOTE_META_I32 : MOTE_META_U16, {0}};
        meta.value.i = values[i];
        if (values[i] >= 0) OK(mote_gguf_put_meta(w, &meta));
    }
    OK(mote_gguf_declare(w, part->tensor, MOTE_FORMAT_F32, 1, dim));
    OK(mote_gguf_begin(w));
    OK(mote_gguf_write(w, part->tensor, 8));
    OK(mote_gguf_finish(w));
}

static const char *const part_names[3] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                          "m-00003-of-00003.gguf"};
static const struct part good_parts[3] = {
    {0, 3, 3, "first.weight"}, {1, 3, 3, "second.weight"}, {2, 3, -1, "third.weight"}};

static void test_split(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    struct mote_catalogue *c;
    for (int i = 0; i < 3; i++) write_part(&folder, part_names[i], &good_parts[i]);
    for (int i = 0; i < 4; i++) { /* any part, and the folder */
        OK(mote_catalogue_open(i < 3 ? folder_file(&folder, part_names[i]) : folder.path, NULL, &c));
        assert_int_equal(c->n_tensor, 3);
        assert_int_equal(c->n_file, 3);
        assert_string_equal(c->tensor[0].name, "first.weight");
        assert_string_equal(c->tensor[2].name, "third.weight");
        assert_memory_equal(c->tensor[2].data, "third.we", 8);
        mote_catalogue_close(c);
    }

    static const struct {
        int which;
        struct part part;
        mote_status status;
        const char *message[2];
    } cases[] = {
        {1, {1, 2, 3, "second.weight"}, MOTE_FORMAT, {"m-00002-of-00003.gguf: split.count is 2", "00001-of"}},
        {1,
         {2, 3, 3, "second.weight"},
         MOTE_FORMAT,
         {"m-00002-of-00003.gguf: split.no is 2, expected 1", "00001-of"}},
        {1,
         {-1, -1, -1, "second.weight"},
         MOTE_FORMAT,
         {"m-00002-of-00003.gguf: split.count is 0", "expected 3"}},
        {1, {1, 3, 4, "second.weight"}, MOTE_FORMAT, {"split.tensors.count is 4", "it is 3"}},
        {2, {2, 3, 3, "first.weight"}, MOTE_FORMAT, {"two tensors are named 'first.weight'", "00003-of"}},
        {0, {0, 3, 7, "first.weight"}, MOTE_FORMAT, {"split.tensors.count is", "7"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_part(&folder, part_names[cases[i].which], &cases[i].part);
        assert_int_equal(mote_catalogue_open(folder_file(&folder, part_names[0]), NULL, &c), cases[i].status);
        assert_null(c);
        for (int k = 0; k < 2; k++) assert_message(cases[i].message[k]);
        write_part(&folder, part_names[cases[i].which], &good_parts[cases[i].which]);
    }

    /* A part is missing: both it and the first are named; the whole name offers the first part. */
    unlink(folder_file(&folder, part_names[1]));
    assert_int_equal(mote_catalogue_open(folder_file(&folder, part_names[2]), NULL, &c), MOTE_NOT_FOUND);
    assert_message("m-00002-of-00003.gguf: part 2 of 3 is missing");
    assert_message(part_names[0]);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, part_names[1]), NULL, &c), MOTE_NOT_FOUND);
    assert_message("first part");
    assert_message(part_names[0]);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "m.gguf"), NULL, &c), MOTE_NOT_FOUND);
    assert_message(part_names[0]);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "other.gguf"), NULL, &c), MOTE_NOT_FOUND);
    assert_null(strstr(mote_error(), part_names[0]));
    unlink(folder_file(&folder, part_names[0]));
    assert_int_equal(mote_catalogue_open(folder.path, NULL, &c), MOTE_NOT_FOUND);
    assert_message("no whole model");

    /* Renamed: the parts cannot be found. */
    write_part(&folder, "renamed.gguf", &good_parts[0]);
    assert_int_equal(mote_catalogue_open(folder_file(&folder, "renamed.gguf"), NULL, &c), MOTE_FORMAT);
    assert_message("MODEL-00001-of-00003.gguf");
    folder_remove(&folder);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- no memory ---- */

static void test_memory_failures(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    for (int i = 0; i < 3; i++) write_part(&folder, part_names[i], &good_parts[i]);
    const char *paths[3] = {golden, folder.path, NULL};
    for (int i = 0; paths[i]; i++) {
        mote_status status = MOTE_MEMORY;
        long n = 0;
        while (status == MOTE_MEMORY) {
            struct mote_catalogue *c;
            mote_mem_fail_at(++n);
            status = mote_catalogue_open(paths[i], NULL, &c);
            mote_mem_fail_at(0);
            if (status == MOTE_OK) mote_catalogue_close(c);
            else assert_null(c);
            assert_int_equal(mote_mem_global_total(), 0);
        }
        assert_int_equal(status, MOTE_OK);
        assert_true(n > 5);
    }
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),          cmocka_unit_test(test_corruptions),
        cmocka_unit_test(test_every_prefix),    cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_id_42),           cmocka_unit_test(test_split),
        cmocka_unit_test(test_memory_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
