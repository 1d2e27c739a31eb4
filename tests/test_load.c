/* test_load.c: loading: a small Qwen2-MoE (biases, gated shared expert) against llama.cpp, and files that
 * are wrong in one place each: one clear error, nothing left behind. */
#include "run_model.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "compact_formats.h"
#include "cuda/pack.h"
#include "file/gguf_write.h"
#include "mote.h"

#define TINY "tests/golden/qwen2moe_tiny.gguf"
#define TERNARY "models/fable-tq1_0.gguf"

static void test_against_reference(void **state)
{
    (void)state;
    json_t *golden = json_load_file("tests/golden/qwen2moe_tiny.json", 0, NULL);
    assert_non_null(golden);
    for (int unfused = 0; unfused < 2; unfused++) {
        struct run run;
        run_open(TINY,
                 &(struct run_options){.act = MOTE_WISH_F32,
                                       .n_thread = 2,
                                       .moe_kernels = unfused ? MOTE_MOE_UNFUSED : MOTE_MOE_FUSED},
                 &run);
        assert_int_equal(run.network->hyper.n_ff_shared, 64);
        assert_int_equal(run.network->layer[0].routing.renormalise, 0);
        size_t p;
        const json_t *prompt;
        double worst = 0;
        json_array_foreach(json_object_get(golden, "prompts"), p, prompt)
        {
            int32_t ids[32];
            static float logits[32 * 48];
            size_t n = json_array_size(json_object_get(prompt, "ids"));
            for (size_t i = 0; i < n; i++)
                ids[i] = (int32_t)json_integer_value(json_array_get(json_object_get(prompt, "ids"), i));
            struct mote_timeline *session = run_session(&run, 0, MOTE_KV_F32);
            assert_int_equal(mote_timeline_n_ctx(session), 64);
            must(mote_timeline_eval_all(session, ids, (int64_t)n, logits));
            for (size_t i = 0; i < n; i++)
                for (size_t v = 0; v < 48; v++) {
                    const json_t *row = json_array_get(json_object_get(prompt, "logits"), i);
                    double error = fabs(logits[i * 48 + v] - json_number_value(json_array_get(row, v)));
                    if (error > worst) worst = error;
                }
            mote_timeline_destroy(session);
        }
        print_message("qwen2moe: largest logit error %.1e\n", worst);
        assert_true(worst <= 2e-4);
        run_close(&run);
    }
    json_decref(golden);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* ---- one thing changed ---- */

struct edit {
    const char *drop_key, *drop_tensor; /* left out */
    const char *reshape;                /* this tensor's dim[at] becomes to */
    int at;
    int64_t to;
    const char *retype;             /* this tensor becomes i32 */
    const char *add_tensor;         /* f32 [32] */
    const char *put_key, *put_text; /* in the place of whatever it was */
    const char *poison;             /* this tensor's element poison_at is NaN */
    int64_t poison_at;
    uint32_t put_number; /* when put_text is NULL */
};

static int is(const char *name, const char *edit)
{
    return edit && !strcmp(name, edit);
}

static void write_edited(const char *path, const struct edit *edit)
{
    struct mote_catalogue *from;
    struct mote_gguf_writer *to;
    must(mote_catalogue_open(TINY, NULL, &from));
    must(mote_gguf_create(path, &to));
    for (size_t i = 0; i < from->n_meta; i++) {
        char key[128];
        snprintf(key, sizeof key, "%.*s", (int)from->meta[i].key.length, from->meta[i].key.data);
        if (!is(key, edit->drop_key) && !is(key, edit->put_key)) must(mote_gguf_put_meta(to, &from->meta[i]));
    }
    if (edit->put_key && edit->put_text)
        must(mote_gguf_put_text(to, edit->put_key, edit->put_text, strlen(edit->put_text)));
    else if (edit->put_key) must(mote_gguf_put_u32(to, edit->put_key, edit->put_number));
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) must(mote_gguf_begin(to));
        for (size_t i = 0; i < from->n_tensor; i++) {
            const struct mote_tensor *t = &from->tensor[i];
            int64_t dim[MOTE_MAX_DIMS], n = 1;
            memcpy(dim, t->dim, sizeof dim);
            if (is(t->name, edit->reshape)) dim[edit->at] = edit->to;
            for (int d = 0; d < t->n_dim; d++) n *= dim[d];
            if (is(t->name, edit->drop_tensor)) continue;
            enum mote_format format = is(t->name, edit->retype) ? MOTE_FORMAT_I32 : t->format;
            if (pass == 0) must(mote_gguf_declare(to, t->name, format, t->n_dim, dim));
            else {
                float *bytes = calloc((size_t)n, sizeof *bytes);
                memcpy(bytes, t->data, t->n_byte < (size_t)n * 4 ? t->n_byte : (size_t)n * 4);
                if (is(t->name, edit->poison)) bytes[edit->poison_at] = NAN;
                must(mote_gguf_write(to, bytes, (size_t)n * sizeof *bytes));
                free(bytes);
            }
        }
        if (!edit->add_tensor) continue;
        int64_t dim[MOTE_MAX_DIMS] = {32, 1, 1, 1};
        float zeros[32] = {0};
        if (pass == 0) must(mote_gguf_declare(to, edit->add_tensor, MOTE_FORMAT_F32, 1, dim));
        else must(mote_gguf_write(to, zeros, sizeof zeros));
    }
    must(mote_gguf_finish(to));
    mote_catalogue_close(from);
}

static void temporary(char path[64])
{
    snprintf(path, 64, "/tmp/mote_test_load_%ld.gguf", (long)getpid());
}

static void test_wrong_files(void **state)
{
    (void)state;
    static const struct {
        struct edit edit;
        mote_status status;
        const char *text;
    } cases[] = {
        {{.put_key = "general.architecture", .put_text = "mamba9"}, MOTE_UNSUPPORTED, "qwen3moe, qwen2moe"},
        {{.drop_key = "general.architecture"}, MOTE_FORMAT, "general.architecture"},
        {{.drop_key = "qwen2moe.block_count"}, MOTE_FORMAT, "qwen2moe.block_count"},
        {{.drop_key = "qwen2moe.expert_used_count"}, MOTE_FORMAT, "qwen2moe.expert_used_count"},
        {{.put_key = "qwen2moe.block_count", .put_number = 0}, MOTE_FORMAT, "block_count"},
        {{.put_key = "qwen2moe.block_count", .put_number = 3},
         MOTE_FORMAT,
         "blk.2.attn_norm.weight is missing"},
        {{.put_key = "qwen2moe.block_count", .put_number = 1}, MOTE_UNSUPPORTED, "blk.1."},
        {{.put_key = "qwen2moe.block_count", .put_number = 4000000000u}, MOTE_FORMAT, "block_count"},
        {{.put_key = "qwen2moe.block_count", .put_text = "two"}, MOTE_FORMAT, "block_count"},
        {{.put_key = "qwen2moe.embedding_length", .put_number = 0}, MOTE_FORMAT, "embedding_length"},
        {{.put_key = "qwen2moe.embedding_length", .put_number = 64}, MOTE_FORMAT, "[64, 48, 1]"},
        {{.put_key = "qwen2moe.attention.head_count", .put_number = 0}, MOTE_FORMAT, "head_count"},
        {{.put_key = "qwen2moe.attention.head_count", .put_number = 2000000000}, MOTE_FORMAT, "head"},
        {{.put_key = "qwen2moe.attention.head_count_kv", .put_number = 3}, MOTE_FORMAT, "multiple"},
        {{.put_key = "qwen2moe.attention.value_length", .put_number = 8}, MOTE_UNSUPPORTED, "value_length"},
        {{.put_key = "qwen2moe.rope.dimension_count", .put_number = 17}, MOTE_FORMAT, "dimension_count"},
        {{.put_key = "qwen2moe.rope.scaling.type", .put_text = "yarn"}, MOTE_UNSUPPORTED, "\"yarn\""},
        {{.put_key = "qwen2moe.expert_count", .put_number = 1025}, MOTE_UNSUPPORTED, "1024"},
        {{.put_key = "qwen2moe.expert_count", .put_number = 7}, MOTE_FORMAT, "expected [32, 7, 1]"},
        {{.put_key = "qwen2moe.expert_used_count", .put_number = 7}, MOTE_FORMAT, "expected 1..6"},
        {{.put_key = "qwen2moe.expert_used_count", .put_number = 0}, MOTE_FORMAT, "expected 1..6"},
        {{.drop_tensor = "token_embd.weight"}, MOTE_FORMAT, "token_embd.weight"},
        {{.drop_tensor = "output_norm.weight"}, MOTE_FORMAT, "output_norm.weight"},
        {{.drop_tensor = "blk.1.attn_k.bias"}, MOTE_FORMAT, "blk.1.attn_k.bias is missing"},
        {{.drop_tensor = "blk.1.ffn_up_exps.weight"}, MOTE_FORMAT, "blk.1.ffn_up_exps.weight is missing"},
        {{.drop_tensor = "blk.0.ffn_gate_inp_shexp.weight"}, MOTE_FORMAT, "blk.0.ffn_gate_inp_shexp.weight"},
        {{.reshape = "blk.0.ffn_down_exps.weight", .at = 2, .to = 5}, MOTE_FORMAT, "expected [32, 32, 6]"},
        {{.reshape = "output.weight", .at = 1, .to = 47}, MOTE_FORMAT, "output.weight is [32, 47, 1, 1]"},
        {{.reshape = "blk.1.ffn_norm.weight", .at = 0, .to = 31}, MOTE_FORMAT, "blk.1.ffn_norm.weight"},
        {{.retype = "blk.0.attn_q.weight"}, MOTE_UNSUPPORTED, "i32"},
        {{.retype = "blk.0.attn_norm.weight"}, MOTE_UNSUPPORTED, "blk.0.attn_norm.weight"},
        {{.add_tensor = "blk.0.attn_output.bias"}, MOTE_UNSUPPORTED, "blk.0.attn_output.bias"},
    };
    char path[64];
    temporary(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run run;
        write_edited(path, &cases[i].edit);
        mote_status status = run_try_open(path, &(struct run_options){.n_thread = 1, .max_row = 8}, &run);
        if (status != cases[i].status || !strstr(mote_error(), cases[i].text) || !strstr(mote_error(), path))
            fail_msg("case %zu: status %d, message \"%s\", expected \"%s\"", i, (int)status, mote_error(),
                     cases[i].text);
        assert_null(run.network);
        assert_null(run.backend); /* refused before anything was loaded */
        run_close(&run);
        assert_int_equal(mote_mem_global_total(), 0);
    }
    unlink(path);
}

static char log_text[4096];
static void collect(void *context, int level, const char *message)
{
    (void)context;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%c %s\n", level == MOTE_LOG_WARNING ? 'W' : 'I',
             message);
}

static void logits_of(const char *path, float *logits)
{
    static const int32_t ids[4] = {3, 40, 7, 7};
    struct run run;
    run_open(path, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 1, .max_row = 8}, &run);
    struct mote_timeline *session = run_session(&run, 32, MOTE_KV_F32);
    must(mote_timeline_eval_all(session, ids, 4, logits));
    mote_timeline_destroy(session);
    run_close(&run);
}

/* A missing key gets its default, which is what the file said, and a word about it; a key with another
 * value counts. */
static void test_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *key, *word;
    } keys[] = {
        {"qwen2moe.rope.freq_base", "W qwen2moe.rope.freq_base is missing: using 10000"},
        {"qwen2moe.attention.layer_norm_rms_epsilon",
         "W qwen2moe.attention.layer_norm_rms_epsilon is missing"},
        {"qwen2moe.expert_feed_forward_length", "I qwen2moe.expert_feed_forward_length is missing: inferred"},
        {"qwen2moe.expert_shared_feed_forward_length",
         "I qwen2moe.expert_shared_feed_forward_length is missing"},
        {"qwen2moe.feed_forward_length", "I qwen2moe.feed_forward_length is missing"},
    };
    char path[64];
    temporary(path);
    static float expected[4 * 48], logits[4 * 48];
    logits_of(TINY, expected);
    mote_log_set(collect, NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        write_edited(path, &(struct edit){.drop_key = keys[i].key});
        log_text[0] = 0;
        logits_of(path, logits);
        if (!strstr(log_text, keys[i].word)) fail_msg("no \"%s\" in the log:\n%s", keys[i].word, log_text);
        assert_memory_equal(logits, expected, sizeof expected);
    }
    write_edited(path, &(struct edit){.add_tensor = "mtp.extra.weight"});
    log_text[0] = 0;
    logits_of(path, logits);
    assert_non_null(strstr(log_text, "W tensor mtp.extra.weight is not used"));
    assert_memory_equal(logits, expected, sizeof expected);
    mote_log_set(NULL, NULL);

    static const struct edit changes[] = {
        {.put_key = "qwen2moe.rope.freq_base", .put_number = 100},
        {.put_key = "qwen2moe.expert_used_count", .put_number = 3},
        {.put_key = "qwen2moe.rope.dimension_count", .put_number = 8},
        {.put_key = "qwen2moe.expert_weights_scale", .put_number = 2},
        {.drop_tensor = "output.weight"}, /* tied to the embedding */
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_edited(path, &changes[i]);
        logits_of(path, logits);
        for (int v = 0; v < 4 * 48; v++) assert_true(isfinite(logits[v]));
        assert_memory_not_equal(logits, expected, sizeof expected);
    }
    unlink(path);
    assert_int_equal(mote_mem_global_total(), 0);
}

/* A token whose embedding is not a number ends the request that asks for it, and nothing else. */
static void test_poisoned_token(void **state)
{
    (void)state;
    static const int32_t good[3] = {3, 7, 30}, bad[3] = {3, 7, 40};
    char path[64];
    temporary(path);
    write_edited(path, &(struct edit){.poison = "token_embd.weight", .poison_at = 40 * 32 + 5});
    struct run run;
    run_open(path, &(struct run_options){.act = MOTE_WISH_F32, .n_thread = 2, .max_row = 4}, &run);
    struct mote_timeline *a = run_session(&run, 32, MOTE_KV_F32), *b = run_session(&run, 32, MOTE_KV_F32);
    static float expected[48];
    must(mote_timeline_eval(a, good, 3));
    memcpy(expected, mote_timeline_logits(a), sizeof expected);
    must(mote_timeline_rewind(a, 0));
    must_fail(mote_timeline_eval(a, bad, 3), MOTE_NUMERIC, "layer 0: router: row 2");
    assert_int_equal(mote_timeline_n_token(a), 0);
    struct mote_turn turn[2] = {{.session = b, .ids = good, .n = 3}, {.session = a, .ids = bad, .n = 3}};
    must_fail(mote_timeline_eval_many(turn, 2), MOTE_NUMERIC, "layer 0"); /* in the second step */
    assert_int_equal(mote_timeline_n_token(b), 0);
    must(mote_timeline_eval(a, good, 3)); /* over what the failed calls left in the cache */
    assert_memory_equal(mote_timeline_logits(a), expected, sizeof expected);
    must(mote_timeline_eval(b, good, 3));
    assert_memory_equal(mote_timeline_logits(b), expected, sizeof expected);
    mote_timeline_destroy(a);
    mote_timeline_destroy(b);
    run_close(&run);
    unlink(path);
}

/* ---- plans for a device ---- */

/* What a catalogue's ternary tensors take in tiles. */
static size_t ternary_bytes(const struct mote_catalogue *catalogue, int compact)
{
    size_t bytes = 0;
    for (size_t i = 0; i < catalogue->n_tensor; i++) {
        struct mote_matrix w = mote_tensor_matrix(&catalogue->tensor[i], 0);
        struct mote_tile_kind kind;
        if (!lies_compact(w.format)) continue;
        must(mote_tile_kind_of(&w, compact, &kind));
        bytes += (size_t)catalogue->tensor[i].dim[2] * mote_tile_matrix_bytes(&kind, w.n_row, w.n_col);
    }
    return bytes;
}

static struct mote_plan plan_within(uint64_t memory, const char *word)
{
    struct mote_model_options options = {.struct_size = sizeof options, .device = "cuda", .memory = memory};
    struct mote_plan plan = {.struct_size = sizeof plan};
    log_text[0] = 0;
    must(mote_model_plan(TERNARY, &options, &plan));
    if (!strstr(log_text, word))
        fail_msg("limit %llu: no \"%s\" in the log:\n%s", (unsigned long long)memory, word, log_text);
    return plan;
}

/* Ternary weights lie compact only where a limit asks for it. */
static void test_compact(void **state)
{
    (void)state;
    struct mote_catalogue *catalogue;
    must(mote_catalogue_open(TERNARY, NULL, &catalogue));
    size_t wide = ternary_bytes(catalogue, 0), compact = ternary_bytes(catalogue, 1);
    mote_catalogue_close(catalogue);
    assert_true(compact > 0 && wide > compact + compact / 5 &&
                wide < compact + compact / 3); /* records are padded */

    mote_log_set(collect, NULL);
    struct mote_plan roomy = plan_within((uint64_t)1 << 40, "I weights have room"),
                     least = plan_within(roomy.total - 1, "W weights lie compact");
    assert_int_equal(roomy.weights - least.weights, wide - compact);
    assert_int_equal(roomy.total - least.total, wide - compact);
    assert_int_equal(plan_within(roomy.total, "I weights have room").total, roomy.total);
    assert_int_equal(plan_within(least.total, "W weights lie compact").total, least.total);
    assert_int_equal(plan_within(least.total - 1, "W weights lie compact").total, least.total);
    mote_log_set(NULL, NULL);

    char need[64];
    snprintf(need, sizeof need, "the run needs %llu bytes", (unsigned long long)least.total);
    struct mote_model_options options = {
        .struct_size = sizeof options, .device = "cuda", .memory = least.total - 1};
    mote_model *model;
    must_fail(mote_model_open(TERNARY, &options, &model), MOTE_BUDGET, need);
    assert_null(model);
    assert_int_equal(mote_mem_global_total(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference), cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_defaults),          cmocka_unit_test(test_poisoned_token),
        cmocka_unit_test(test_compact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
