/* vocab.c: see vocab.h. Keys: GGUF's "tokenizer.ggml.*". */
#include "engine/vocab.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static int text_is(struct mote_text text, const char *want)
{
    return text.length == strlen(want) && !memcmp(text.data, want, text.length);
}

/* An array of strings as pieces; both are pointer and length. */
static mote_status find_texts(const struct mote_catalogue *catalogue, const char *key, int needed,
                              const struct mote_piece **out, size_t *n)
{
    _Static_assert(sizeof(struct mote_piece) == sizeof(struct mote_text), "one memory, two names");
    const struct mote_meta *meta = mote_catalogue_meta(catalogue, key);
    *out = NULL;
    *n = 0;
    if (!meta) {
        FAIL_IF(needed, MOTE_NOT_FOUND, "%s: no key %s", catalogue->path, key);
        return MOTE_OK;
    }
    FAIL_IF(meta->type != MOTE_META_ARRAY || meta->value.array.type != MOTE_META_STRING, MOTE_FORMAT,
            "%s: key %s is not an array of strings", catalogue->path, key);
    *out = (const struct mote_piece *)(const void *)meta->value.array.text;
    *n = meta->value.array.count;
    return MOTE_OK;
}

/* An array of 4-byte numbers of one type, copied: the file aligns nothing. Absent: *out NULL. */
static mote_status copy_numbers(const struct mote_catalogue *catalogue, const char *key,
                                enum mote_meta_type type, size_t n_token, void *out)
{
    const struct mote_meta *meta = mote_catalogue_meta(catalogue, key);
    void *none = NULL;
    memcpy(out, &none, sizeof none);
    if (!meta) return MOTE_OK;
    FAIL_IF(meta->type != MOTE_META_ARRAY ||
                (meta->value.array.type != type &&
                 !(type == MOTE_META_I32 && meta->value.array.type == MOTE_META_U32)),
            MOTE_FORMAT, "%s: key %s is not an array of 4-byte %s", catalogue->path, key,
            type == MOTE_META_F32 ? "floats" : "integers");
    FAIL_IF(meta->value.array.count != n_token, MOTE_FORMAT, "%s: key %s has %zu items for %zu tokens",
            catalogue->path, key, meta->value.array.count, n_token);
    void *copy;
    TRY(mote_mem_alloc(NULL, MOTE_MEM_TABLES, n_token * 4, &copy));
    memcpy(copy, meta->value.array.data, n_token * 4);
    memcpy(out, &copy, sizeof copy);
    return MOTE_OK;
}

static mote_status find_id(const struct mote_catalogue *catalogue, const char *key, size_t n_token,
                           int32_t *out)
{
    uint64_t id;
    mote_status status = mote_meta_u64(catalogue, key, &id);
    if (status == MOTE_NOT_FOUND) return MOTE_OK;
    TRY(status);
    /* 0xFFFFFFFF is how some writers say "none". */
    if (id == UINT32_MAX) return MOTE_OK;
    FAIL_IF(id >= n_token, MOTE_FORMAT, "%s: key %s is %llu, there are %zu tokens", catalogue->path, key,
            (unsigned long long)id, n_token);
    *out = (int32_t)id;
    return MOTE_OK;
}

static mote_status find_flag(const struct mote_catalogue *catalogue, const char *key, int *out)
{
    mote_status status = mote_meta_bool(catalogue, key, out);
    return status == MOTE_NOT_FOUND ? MOTE_OK : status;
}

static mote_status from_gguf(const struct mote_catalogue *catalogue, struct mote_budget *budget,
                             struct mote_tokenizer **out)
{
    struct mote_text model, pre = {"default", 7};
    mote_status status = mote_meta_text(catalogue, "tokenizer.ggml.model", &model);
    FAIL_IF(status == MOTE_NOT_FOUND, MOTE_NOT_FOUND,
            "%s: carries no tokenizer (no key tokenizer.ggml.model)", catalogue->path);
    TRY(status);
    status = mote_meta_text(catalogue, "tokenizer.ggml.pre", &pre);
    if (status != MOTE_NOT_FOUND) TRY(status);
    FAIL_IF(!text_is(model, "gpt2") && !text_is(model, "llama"), MOTE_UNSUPPORTED,
            "%s: tokenizer model '%.*s': gpt2 (byte-level BPE) and llama (score-based) are supported",
            catalogue->path, (int)(model.length < 64 ? model.length : 64), model.data);
    char pre_name[64];
    FAIL_IF(pre.length >= sizeof pre_name, MOTE_UNSUPPORTED, "%s: pre-tokenizer's name has %zu bytes",
            catalogue->path, pre.length);
    memcpy(pre_name, pre.data, pre.length);
    pre_name[pre.length] = 0;

    struct mote_vocab vocab = {
        .model = text_is(model, "gpt2") ? "gpt2" : "llama",
        .pre = pre_name,
        .bos = -1,
        .eos = -1,
        .eot = -1,
        .unk = -1,
        .pad = -1,
        .add_bos = text_is(model, "llama"),
        .add_space_prefix = text_is(model, "llama"),
    };
    TRY(find_texts(catalogue, "tokenizer.ggml.tokens", 1, &vocab.token, &vocab.n_token));
    TRY(find_texts(catalogue, "tokenizer.ggml.merges", text_is(model, "gpt2"), &vocab.merge, &vocab.n_merge));
    static const char *const id_keys[] = {"bos", "eos", "eot", "unknown", "padding"};
    int32_t *ids[] = {&vocab.bos, &vocab.eos, &vocab.eot, &vocab.unk, &vocab.pad};
    for (int i = 0; i < 5; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", id_keys[i]);
        TRY(find_id(catalogue, key, vocab.n_token, ids[i]));
    }
    TRY(find_flag(catalogue, "tokenizer.ggml.add_bos_token", &vocab.add_bos));
    TRY(find_flag(catalogue, "tokenizer.ggml.add_eos_token", &vocab.add_eos));
    TRY(find_flag(catalogue, "tokenizer.ggml.add_space_prefix", &vocab.add_space_prefix));
    float *score = NULL;
    int32_t *kind = NULL;
    TRY_GOTO(copy_numbers(catalogue, "tokenizer.ggml.scores", MOTE_META_F32, vocab.n_token, &score), status,
             out);
    TRY_GOTO(copy_numbers(catalogue, "tokenizer.ggml.token_type", MOTE_META_I32, vocab.n_token, &kind),
             status, out);
    vocab.score = score;
    vocab.kind = kind;
    status = mote_tokenizer_from_vocab(&vocab, budget, out);
out:
    mote_mem_free(score);
    mote_mem_free(kind);
    return status == MOTE_OK ? MOTE_OK : mote_context(status, "%s", catalogue->path);
}

mote_status mote_vocab_open(const struct mote_catalogue *catalogue, size_t n_vocab,
                            struct mote_budget *budget, struct mote_tokenizer **out)
{
    *out = NULL;
    if (!strcmp(catalogue->source, "gguf")) return from_gguf(catalogue, budget, out);
    FAIL_IF(!catalogue->tokenizer_json.data, MOTE_NOT_FOUND, "%s: no tokenizer.json", catalogue->path);
    mote_status status = mote_tokenizer_from_json(
        catalogue->tokenizer_json.data, catalogue->tokenizer_json.length,
        catalogue->tokenizer_config_json.data, catalogue->tokenizer_config_json.length,
        catalogue->generation_config_json.data, catalogue->generation_config_json.length, n_vocab, budget,
        out);
    return status == MOTE_OK ? MOTE_OK : mote_context(status, "%s", catalogue->path);
}

mote_status mote_vocab_write(const struct mote_tokenizer *tokenizer, size_t n_token,
                             struct mote_text chat_template, struct mote_gguf_writer *writer)
{
    struct mote_vocab vocab;
    TRY(mote_tokenizer_vocab(tokenizer, &vocab));
    if (n_token < vocab.n_token) n_token = vocab.n_token;
    TRY(mote_gguf_put_text(writer, "tokenizer.ggml.model", vocab.model, strlen(vocab.model)));
    TRY(mote_gguf_put_text(writer, "tokenizer.ggml.pre", vocab.pre, strlen(vocab.pre)));

    struct mote_arena arena;
    mote_arena_init(&arena, NULL, MOTE_MEM_TABLES);
    struct mote_text *token;
    int32_t *kind;
    float *score;
    mote_status status;
    TRY_GOTO(mote_arena_alloc(&arena, n_token * sizeof *token, &token), status, out);
    TRY_GOTO(mote_arena_alloc(&arena, n_token * sizeof *kind, &kind), status, out);
    TRY_GOTO(mote_arena_alloc(&arena, n_token * sizeof *score, &score), status, out);
    for (size_t i = 0; i < n_token; i++) {
        if (i < vocab.n_token) {
            token[i] = (struct mote_text){vocab.token[i].data, vocab.token[i].length};
            kind[i] = vocab.kind ? vocab.kind[i] : MOTE_TOKEN_NORMAL;
            score[i] = vocab.score ? vocab.score[i] : 0;
            continue;
        }
        char name[32];
        int length = snprintf(name, sizeof name, "[PAD%zu]", i);
        char *copy;
        TRY_GOTO(mote_arena_strdup(&arena, name, (size_t)length, &copy), status, out);
        token[i] = (struct mote_text){copy, (size_t)length};
        kind[i] = MOTE_TOKEN_UNUSED;
        score[i] = -1e9f;
    }
    TRY_GOTO(mote_gguf_put_texts(writer, "tokenizer.ggml.tokens", token, n_token), status, out);
    TRY_GOTO(mote_gguf_put_i32s(writer, "tokenizer.ggml.token_type", kind, n_token), status, out);
    if (vocab.score)
        TRY_GOTO(mote_gguf_put_f32s(writer, "tokenizer.ggml.scores", score, n_token), status, out);
    if (!strcmp(vocab.model, "gpt2")) /* also when there are none: readers want the key */
        TRY_GOTO(mote_gguf_put_texts(writer, "tokenizer.ggml.merges",
                                     (const struct mote_text *)(const void *)vocab.merge, vocab.n_merge),
                 status, out);
    static const char *const id_keys[] = {"bos", "eos", "eot", "unknown", "padding"};
    const int32_t ids[] = {vocab.bos, vocab.eos, vocab.eot, vocab.unk, vocab.pad};
    for (int i = 0; i < 5; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", id_keys[i]);
        if (ids[i] >= 0) TRY_GOTO(mote_gguf_put_u32(writer, key, (uint32_t)ids[i]), status, out);
    }
    TRY_GOTO(mote_gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", vocab.add_bos), status, out);
    if (vocab.add_eos) TRY_GOTO(mote_gguf_put_bool(writer, "tokenizer.ggml.add_eos_token", 1), status, out);
    if (!strcmp(vocab.model, "llama"))
        TRY_GOTO(mote_gguf_put_bool(writer, "tokenizer.ggml.add_space_prefix", vocab.add_space_prefix),
                 status, out);
    if (chat_template.length)
        TRY_GOTO(
            mote_gguf_put_text(writer, "tokenizer.chat_template", chat_template.data, chat_template.length),
            status, out);
out:
    mote_arena_free(&arena);
    return status;
}

mote_status mote_vocab_chat_template(const struct mote_catalogue *catalogue, struct mote_text *out,
                                     char **owned)
{
    *out = (struct mote_text){0};
    *owned = NULL;
    if (!strcmp(catalogue->source, "gguf")) {
        mote_status status = mote_meta_text(catalogue, "tokenizer.chat_template", out);
        return status == MOTE_NOT_FOUND ? MOTE_OK : status;
    }
    if (!catalogue->tokenizer_config_json.data) return MOTE_OK;
    json_t *config =
        json_loadb(catalogue->tokenizer_config_json.data, catalogue->tokenizer_config_json.length, 0, NULL);
    const json_t *text = json_object_get(config, "chat_template");
    mote_status status = MOTE_OK;
    if (json_is_string(text)) {
        size_t length = json_string_length(text);
        status = mote_mem_strdup(NULL, json_string_value(text), length, owned);
        if (status == MOTE_OK) *out = (struct mote_text){*owned, length};
    }
    json_decref(config);
    return status;
}
