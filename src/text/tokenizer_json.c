/* tokenizer_json.c: a tokenizer from Hugging Face's tokenizer.json.
 *
 * Owns: what the sections of the file mean. Reads BPE models, byte-level or with characters and byte fallback.
 * One idea: everything in the file either has its effect or is refused by name; nothing is passed over that would
 * change an id.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- small readers ---- */

static int flag(const json_t *object, const char *key, int otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* A field that must be absent, null, false, zero or "" for us to be exact. */
static mote_status refuse_set(const json_t *object, const char *key, const char *where)
{
    const json_t *value = json_object_get(object, key);
    int set = value && !json_is_null(value) && !json_is_false(value) &&
              !(json_is_string(value) && !json_string_length(value)) &&
              !(json_is_number(value) && json_number_value(value) == 0.0);
    FAIL_IF(set, MOTE_UNSUPPORTED, "tokenizer.json: %s with \"%s\" is not supported", where, key);
    return MOTE_OK;
}

static struct mote_piece string_piece(const json_t *value)
{
    return (struct mote_piece){json_string_value(value), json_string_length(value)};
}

static int32_t find(const struct mote_tokenizer *t, struct mote_piece piece)
{
    return mote_table_find(&t->by_spelling, t->spelling, piece.data, piece.length,
                           mote_hash(piece.data, piece.length));
}

/* A section is null, one object with a "type", or a Sequence of such. Calls fn for each. */
static mote_status each(struct mote_tokenizer *t, const json_t *section, const char *list, int depth,
                        mote_status (*fn)(struct mote_tokenizer *, const json_t *, const char *))
{
    if (!section || json_is_null(section)) return MOTE_OK;
    FAIL_IF(!json_is_object(section), MOTE_FORMAT,
            "tokenizer.json: a section that should be an object or null");
    const char *type = json_string_value(json_object_get(section, "type"));
    FAIL_IF(!type, MOTE_FORMAT, "tokenizer.json: an object without \"type\" where %s are expected", list);
    if (strcmp(type, "Sequence")) return fn(t, section, type);
    FAIL_IF(depth > 8, MOTE_FORMAT, "tokenizer.json: Sequences in each other, more than 8 deep");
    const json_t *items = json_object_get(section, list);
    FAIL_IF(!json_is_array(items), MOTE_FORMAT, "tokenizer.json: Sequence without \"%s\"", list);
    for (size_t i = 0; i < json_array_size(items); i++)
        TRY(each(t, json_array_get(items, i), list, depth + 1, fn));
    return MOTE_OK;
}

/* ---- model ---- */

/* Ids of a vocabulary and of the added tokens; *n is one more than the largest. */
static mote_status check_id(const json_t *id, const char *name, size_t *n)
{
    FAIL_IF(!json_is_integer(id), MOTE_FORMAT, "tokenizer.json: \"%.100s\" has no integer id", name);
    json_int_t value = json_integer_value(id);
    FAIL_IF(value < 0 || value >= MOTE_MAX_TOKENS, MOTE_FORMAT, "tokenizer.json: \"%.100s\" has id %lld",
            name, (long long)value);
    if ((size_t)value + 1 > *n) *n = (size_t)value + 1;
    return MOTE_OK;
}

static mote_status count_ids(json_t *vocab, const json_t *added, size_t *n)
{
    const char *name;
    json_t *id;
    *n = 0;
    json_object_foreach(vocab, name, id) TRY(check_id(id, name, n));
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *item = json_array_get(added, i);
        FAIL_IF(!json_is_string(json_object_get(item, "content")), MOTE_FORMAT,
                "tokenizer.json: added token %zu has no \"content\"", i);
        TRY(check_id(json_object_get(item, "id"), json_string_value(json_object_get(item, "content")), n));
    }
    return MOTE_OK;
}

static mote_status read_vocab(struct mote_tokenizer *t, json_t *vocab, const json_t *added, int byte_fallback)
{
    const char *name;
    size_t length;
    json_t *id;
    json_object_keylen_foreach(vocab, name, length, id)
    {
        size_t at = (size_t)json_integer_value(id);
        unsigned byte;
        char close;
        FAIL_IF(t->spelling[at].data, MOTE_FORMAT, "tokenizer.json: id %zu is both \"%s\" and \"%s\"", at,
                t->spelling[at].data, name);
        int is_byte =
            byte_fallback && length == 6 && sscanf(name, "<0x%2X%c", &byte, &close) == 2 && close == '>';
        TRY(mote_tokenizer_set(t, at, name, length, is_byte ? MOTE_TOKEN_BYTE : MOTE_TOKEN_NORMAL));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *item = json_array_get(added, i);
        size_t at = (size_t)json_integer_value(json_object_get(item, "id"));
        struct mote_piece piece = string_piece(json_object_get(item, "content")), *old = &t->spelling[at];
        FAIL_IF(old->data && (old->length != piece.length || memcmp(old->data, piece.data, piece.length)),
                MOTE_FORMAT, "tokenizer.json: id %zu is both \"%s\" and \"%s\"", at, old->data, piece.data);
        const json_t *other = json_object_getn(vocab, piece.data, piece.length);
        FAIL_IF(other && (size_t)json_integer_value(other) != at, MOTE_FORMAT,
                "tokenizer.json: added token \"%s\" has id %zu and is also %lld in the vocabulary",
                piece.data, at, (long long)json_integer_value(other));
        TRY(mote_tokenizer_set(t, at, piece.data, piece.length,
                               flag(item, "special", 0) ? MOTE_TOKEN_CONTROL : MOTE_TOKEN_USER));
    }
    return MOTE_OK;
}

static mote_status read_merges(struct mote_tokenizer *t, const json_t *merges)
{
    size_t n = json_array_size(merges);
    FAIL_IF(merges && !json_is_array(merges), MOTE_FORMAT, "tokenizer.json: \"merges\" is not a list");
    TRY(mote_merges_init(&t->merges, &t->arena, n));
    TRY(mote_arena_alloc(&t->arena, (n + 1) * sizeof *t->merge, &t->merge));
    t->n_merge = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(merges, i);
        struct mote_piece left, right;
        if (json_is_string(item)) {
            left = string_piece(item);
            const char *space = memchr(left.data, ' ', left.length);
            FAIL_IF(!space, MOTE_FORMAT, "tokenizer.json: merge %zu is \"%s\", expected \"left right\"", i,
                    left.data);
            size_t n_left = (size_t)(space - left.data);
            right = (struct mote_piece){space + 1, left.length - n_left - 1};
            left.length = n_left;
        } else {
            FAIL_IF(json_array_size(item) != 2 || !json_is_string(json_array_get(item, 0)) ||
                        !json_is_string(json_array_get(item, 1)),
                    MOTE_FORMAT, "tokenizer.json: merge %zu is not a pair of strings", i);
            left = string_piece(json_array_get(item, 0));
            right = string_piece(json_array_get(item, 1));
        }
        TRY(mote_tokenizer_merge(t, left.data, left.length, right.data, right.length, (uint32_t)i));
        char *text;
        TRY(mote_arena_alloc(&t->arena, left.length + right.length + 2, &text));
        memcpy(text, left.data, left.length);
        text[left.length] = ' ';
        memcpy(text + left.length + 1, right.data, right.length);
        t->merge[i] = (struct mote_piece){text, left.length + right.length + 1};
    }
    return MOTE_OK;
}

/* ---- normalizer ---- */

static mote_status count_step(struct mote_tokenizer *t, const json_t *object, const char *type)
{
    (void)object;
    (void)type;
    t->n_normal++;
    return MOTE_OK;
}

static mote_status read_normalizer(struct mote_tokenizer *t, const json_t *object, const char *type)
{
    static const struct {
        const char *type;
        enum mote_normal_kind kind;
    } kinds[] = {{"NFC", MOTE_NFC},   {"NFD", MOTE_NFD},         {"NFKC", MOTE_NFKC},
                 {"NFKD", MOTE_NFKD}, {"Prepend", MOTE_PREPEND}, {"Replace", MOTE_REPLACE}};
    struct mote_normal_step *step = &t->normal[t->n_normal];
    struct mote_piece from = {0}, to = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].type, type)) continue;
        step->kind = kinds[i].kind;
        if (step->kind == MOTE_PREPEND) to = string_piece(json_object_get(object, "prepend"));
        if (step->kind == MOTE_REPLACE) {
            from = string_piece(json_object_get(json_object_get(object, "pattern"), "String"));
            to = string_piece(json_object_get(object, "content"));
            FAIL_IF(!from.length, MOTE_UNSUPPORTED,
                    "tokenizer.json: Replace with a pattern that is not a String");
        }
        FAIL_IF(step->kind >= MOTE_PREPEND && !to.data, MOTE_FORMAT, "tokenizer.json: %s without its text",
                type);
        char *copy;
        TRY(mote_arena_strdup(&t->arena, from.data, from.length, &copy));
        step->from = (struct mote_piece){copy, from.length};
        TRY(mote_arena_strdup(&t->arena, to.data, to.length, &copy));
        step->to = (struct mote_piece){copy, to.length};
        t->n_normal++;
        if (step->kind == MOTE_PREPEND) t->add_space_prefix = 1;
        return MOTE_OK;
    }
    return mote_fail(MOTE_UNSUPPORTED, "tokenizer.json: normalizer \"%s\" is not supported", type);
}

/* ---- pre-tokenizer ---- */

static mote_status read_behavior(const json_t *object, enum mote_split_behavior otherwise,
                                 enum mote_split_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const json_t *value = json_object_get(object, "behavior");
    *out = otherwise;
    if (!value) return MOTE_OK;
    const char *name = json_string_value(value);
    for (int i = 0; name && i < 5; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum mote_split_behavior)i;
            return MOTE_OK;
        }
    return mote_fail(MOTE_FORMAT, "tokenizer.json: split behavior \"%s\" is not known",
                     name ? name : "(no string)");
}

static mote_status read_split(struct mote_tokenizer *t, const json_t *object)
{
    const json_t *pattern = json_object_get(object, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    enum mote_split_behavior behavior;
    TRY(read_behavior(object, MOTE_SPLIT_ISOLATED, &behavior));
    int invert = flag(object, "invert", 0);
    if (json_is_string(regex))
        return mote_steps_add_split(t, json_string_value(regex), json_string_length(regex), behavior, invert);
    FAIL_IF(!json_is_string(string), MOTE_FORMAT, "tokenizer.json: Split without a Regex or String pattern");
    /* A string as a pattern: everything that could mean something is escaped. */
    struct mote_buffer quoted = {0};
    mote_status status = MOTE_OK;
    for (size_t i = 0; i < json_string_length(string) && status == MOTE_OK; i++) {
        const char *c = json_string_value(string) + i;
        if (strchr("\\^$.[]|()?*+{}#", *c)) status = mote_buffer_append(&quoted, t->budget, "\\", 1);
        if (status == MOTE_OK) status = mote_buffer_append(&quoted, t->budget, c, 1);
    }
    if (status == MOTE_OK)
        status = mote_steps_add_split(t, quoted.data ? quoted.data : "", quoted.length, behavior, invert);
    mote_mem_free(quoted.data);
    return status;
}

static mote_status add_pattern(struct mote_tokenizer *t, const char *pattern,
                               enum mote_split_behavior behavior)
{
    return mote_steps_add_split(t, pattern, strlen(pattern), behavior, 0);
}

static mote_status read_metaspace(struct mote_tokenizer *t, const json_t *object)
{
    const char *scheme = json_string_value(json_object_get(object, "prepend_scheme"));
    const char *mark = json_string_value(json_object_get(object, "replacement"));
    struct mote_step step = {.kind = MOTE_STEP_MARK, .prepend = MOTE_PREPEND_ALWAYS};
    FAIL_IF(mark && strcmp(mark, MOTE_SPACE_MARK), MOTE_UNSUPPORTED,
            "tokenizer.json: Metaspace with replacement \"%s\"", mark);
    if (scheme && !strcmp(scheme, "first")) step.prepend = MOTE_PREPEND_FIRST;
    if ((scheme && !strcmp(scheme, "never")) || !flag(object, "add_prefix_space", 1))
        step.prepend = MOTE_PREPEND_NEVER;
    if (step.prepend != MOTE_PREPEND_NEVER) t->add_space_prefix = 1;
    TRY(mote_steps_add(t, step));
    return flag(object, "split", 1) ? add_pattern(t, MOTE_SPACE_MARK, MOTE_SPLIT_MERGED_NEXT) : MOTE_OK;
}

static mote_status read_pre_tokenizer(struct mote_tokenizer *t, const json_t *object, const char *type)
{
    enum mote_split_behavior behavior;
    FAIL_IF(t->byte_level, MOTE_UNSUPPORTED,
            "tokenizer.json: pre-tokenizer \"%s\" behind ByteLevel is not supported", type);
    if (!strcmp(type, "Split")) return read_split(t, object);
    if (!strcmp(type, "ByteLevel")) {
        if (flag(object, "add_prefix_space", 1))
            TRY(mote_steps_add(t,
                               (struct mote_step){.kind = MOTE_STEP_PREFIX, .prepend = MOTE_PREPEND_ALWAYS}));
        if (flag(object, "use_regex", 1)) TRY(add_pattern(t, mote_pattern_gpt2, MOTE_SPLIT_ISOLATED));
        t->byte_level = 1;
        return MOTE_OK;
    }
    if (!strcmp(type, "Digits"))
        return add_pattern(
            t, "\\p{N}", flag(object, "individual_digits", 0) ? MOTE_SPLIT_ISOLATED : MOTE_SPLIT_CONTIGUOUS);
    if (!strcmp(type, "Punctuation")) {
        TRY(read_behavior(object, MOTE_SPLIT_ISOLATED, &behavior));
        return add_pattern(t, "[\\p{P}$+<=>^`|~]", behavior);
    }
    if (!strcmp(type, "WhitespaceSplit")) return add_pattern(t, "\\s", MOTE_SPLIT_REMOVED);
    if (!strcmp(type, "Metaspace")) return read_metaspace(t, object);
    return mote_fail(MOTE_UNSUPPORTED, "tokenizer.json: pre-tokenizer \"%s\" is not supported", type);
}

/* ---- decoder: only whether it takes off the space that the encoder put in front ---- */

static mote_status read_decoder(struct mote_tokenizer *t, const json_t *object, const char *type)
{
    const char *content = json_string_value(json_object_get(object, "content"));
    const char *scheme = json_string_value(json_object_get(object, "prepend_scheme"));
    if (!strcmp(type, "Strip") && content && !strcmp(content, " ") &&
        json_integer_value(json_object_get(object, "start")) > 0)
        t->strip_space = 1;
    if (!strcmp(type, "Metaspace") && !(scheme && !strcmp(scheme, "never")) &&
        flag(object, "add_prefix_space", 1))
        t->strip_space = 1;
    if (!strcmp(type, "ByteLevel") && !t->byte_level)
        return mote_fail(MOTE_UNSUPPORTED,
                         "tokenizer.json: decoder ByteLevel without pre-tokenizer ByteLevel");
    return MOTE_OK;
}

/* ---- which tokens begin and end a text ---- */

static mote_status read_post_processor(struct mote_tokenizer *t, const json_t *object, const char *type)
{
    if (strcmp(type, "TemplateProcessing")) return MOTE_OK;
    const json_t *single = json_object_get(object, "single"),
                 *tokens = json_object_get(object, "special_tokens");
    size_t n = json_array_size(single);
    for (size_t i = 0; i<n; i += n> 1 ? n - 1 : 1) { /* the first and the last */
        const json_t *name =
            json_object_get(json_object_get(json_array_get(single, i), "SpecialToken"), "id");
        if (!json_is_string(name)) continue;
        const json_t *ids = json_object_get(json_object_get(tokens, json_string_value(name)), "ids");
        const json_t *id = json_array_get(ids, 0);
        FAIL_IF(!json_is_integer(id) || json_integer_value(id) < 0 ||
                    json_integer_value(id) >= (json_int_t)t->n_token,
                MOTE_FORMAT, "tokenizer.json: post_processor uses \"%s\", which has no id",
                json_string_value(name));
        if (i == 0) {
            t->bos = (int32_t)json_integer_value(id);
            t->add_bos = 1;
        } else {
            t->eos = (int32_t)json_integer_value(id);
            t->add_eos = 1;
        }
    }
    return MOTE_OK;
}

static void read_named(const struct mote_tokenizer *t, const json_t *config, const char *key, int32_t *id)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!json_is_string(value)) return;
    int32_t found = find(t, string_piece(value));
    if (found >= 0) *id = found;
}

static mote_status read_id(const struct mote_tokenizer *t, const json_t *value, const char *key, int32_t *id)
{
    if (!json_is_integer(value)) return MOTE_OK;
    json_int_t number = json_integer_value(value);
    FAIL_IF(number < -1 || number >= (json_int_t)t->n_token, MOTE_FORMAT,
            "generation_config.json: %s is %lld, there are %zu tokens", key, (long long)number, t->n_token);
    *id = (int32_t)number;
    return MOTE_OK;
}

static mote_status read_generation(struct mote_tokenizer *t, const json_t *generation)
{
    const json_t *eos = json_object_get(generation, "eos_token_id");
    if (t->bos < 0) TRY(read_id(t, json_object_get(generation, "bos_token_id"), "bos_token_id", &t->bos));
    if (t->pad < 0) TRY(read_id(t, json_object_get(generation, "pad_token_id"), "pad_token_id", &t->pad));
    size_t n = json_is_array(eos) ? json_array_size(eos) : json_is_integer(eos);
    for (size_t i = 0; i < n; i++) {
        int32_t id = -1;
        TRY(read_id(t, json_is_array(eos) ? json_array_get(eos, i) : eos, "eos_token_id", &id));
        if (id < 0) continue;
        t->ends[id] = 1;
        if (t->eos < 0) t->eos = id;
        else if (t->eot < 0 && id != t->eos) t->eot = id;
    }
    return MOTE_OK;
}

/* ---- added tokens ---- */

static mote_status read_added(struct mote_tokenizer *t, const json_t *added)
{
    size_t n = json_array_size(added);
    struct mote_buffer buffer = {0};
    TRY(mote_arena_alloc(&t->arena, (n + 1) * sizeof *t->raw.item, &t->raw.item));
    TRY(mote_arena_alloc(&t->arena, (n + 1) * sizeof *t->normalized.item, &t->normalized.item));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(added, i);
        int32_t id = (int32_t)json_integer_value(json_object_get(item, "id"));
        struct mote_added token = {.text = t->spelling[id],
                                   .id = id,
                                   .special = (char)flag(item, "special", 0),
                                   .lstrip = (char)flag(item, "lstrip", 0),
                                   .rstrip = (char)flag(item, "rstrip", 0),
                                   .single_word = (char)flag(item, "single_word", 0)};
        if (!flag(item, "normalized", 0)) {
            t->raw.item[t->raw.n++] = token;
            continue;
        }
        char *copy = NULL;
        struct mote_piece normal;
        mote_status status = mote_normalize(t, &buffer, token.text.data, token.text.length, &normal);
        if (status == MOTE_OK) status = mote_arena_strdup(&t->arena, normal.data, normal.length, &copy);
        mote_mem_free(buffer.data);
        buffer = (struct mote_buffer){0};
        TRY(status);
        token.text = (struct mote_piece){copy, normal.length};
        t->normalized.item[t->normalized.n++] = token;
    }
    TRY(mote_added_sort(&t->raw));
    return mote_added_sort(&t->normalized);
}

/* ---- the whole ---- */

static mote_status parse(const char *text, size_t length, const char *name, json_t **out)
{
    json_error_t error;
    *out = NULL;
    if (!text) return MOTE_OK;
    *out = json_loadb(text, length, JSON_ALLOW_NUL, &error);
    FAIL_IF(!*out, MOTE_FORMAT, "%s: line %d: %s", name, error.line, error.text);
    FAIL_IF(!json_is_object(*out), MOTE_FORMAT, "%s: not an object", name);
    return MOTE_OK;
}

static mote_status fill(struct mote_tokenizer *t, const json_t *root, const json_t *config,
                        const json_t *generation)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    int byte_fallback = flag(model, "byte_fallback", 0);
    TRY(refuse_set(model, "dropout", "a model"));
    TRY(refuse_set(model, "continuing_subword_prefix", "a model"));
    TRY(refuse_set(model, "end_of_word_suffix", "a model"));
    TRY(read_vocab(t, json_object_get(model, "vocab"), added, byte_fallback));
    TRY(each(t, json_object_get(root, "pre_tokenizer"), "pretokenizers", 0, read_pre_tokenizer));
    t->ignore_merges = flag(model, "ignore_merges", 0);
    t->fuse_unknown = flag(model, "fuse_unk", 0);
    TRY(mote_tokenizer_index(t));
    const json_t *unknown = json_object_get(model, "unk_token");
    if (json_is_string(unknown)) {
        t->unk = find(t, string_piece(unknown));
        FAIL_IF(t->unk < 0, MOTE_FORMAT, "tokenizer.json: unk_token \"%s\" is not in the vocabulary",
                json_string_value(unknown));
        if (!t->byte_level) t->kind[t->unk] = MOTE_TOKEN_UNKNOWN;
    }
    TRY(read_merges(t, json_object_get(model, "merges")));
    TRY(each(t, json_object_get(root, "normalizer"), "normalizers", 0, count_step));
    TRY(mote_arena_alloc(&t->arena, (t->n_normal + 1) * sizeof *t->normal, &t->normal));
    t->n_normal = 0;
    TRY(each(t, json_object_get(root, "normalizer"), "normalizers", 0, read_normalizer));
    TRY(read_added(t, added));
    TRY(each(t, json_object_get(root, "decoder"), "decoders", 0, read_decoder));
    TRY(each(t, json_object_get(root, "post_processor"), "processors", 0, read_post_processor));
    read_named(t, config, "bos_token", &t->bos);
    read_named(t, config, "eos_token", &t->eos);
    read_named(t, config, "pad_token", &t->pad);
    t->add_bos = flag(config, "add_bos_token", t->add_bos);
    t->add_eos = flag(config, "add_eos_token", t->add_eos);
    TRY(read_generation(t, generation));
    if (!t->byte_level) TRY(mote_spm_scores_from_merges(t));
    return mote_tokenizer_finish(t);
}

static mote_status create(const json_t *root, const json_t *config, const json_t *generation, size_t n_vocab,
                          struct mote_budget *budget, struct mote_tokenizer **out)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const char *type = json_string_value(json_object_get(model, "type"));
    size_t n;
    FAIL_IF(type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges"), MOTE_UNSUPPORTED,
            "tokenizer.json: model type \"%s\" is not supported, expected BPE", type ? type : "(none)");
    FAIL_IF(!json_is_object(vocab), MOTE_FORMAT, "tokenizer.json: the model has no \"vocab\" object");
    TRY(count_ids(vocab, added, &n));
    FAIL_IF(n_vocab && n > n_vocab, MOTE_FORMAT,
            "tokenizer.json has ids up to %zu, the model has %zu embedding rows", n - 1, n_vocab);
    TRY(mote_tokenizer_new(n_vocab ? n_vocab : n, budget, out));
    return fill(*out, root, config, generation);
}

mote_status mote_tokenizer_from_json(const char *json, size_t length, const char *config,
                                     size_t config_length, const char *generation, size_t generation_length,
                                     size_t n_vocab, struct mote_budget *budget, struct mote_tokenizer **out)
{
    json_t *root = NULL, *config_root = NULL, *generation_root = NULL;
    *out = NULL;
    FAIL_IF(!json, MOTE_ARGUMENT, "tokenizer.json: no text");
    mote_status status = parse(json, length, "tokenizer.json", &root);
    if (status == MOTE_OK) status = parse(config, config_length, "tokenizer_config.json", &config_root);
    if (status == MOTE_OK)
        status = parse(generation, generation_length, "generation_config.json", &generation_root);
    if (status == MOTE_OK) status = create(root, config_root, generation_root, n_vocab, budget, out);
    json_decref(root);
    json_decref(config_root);
    json_decref(generation_root);
    if (status == MOTE_OK) return MOTE_OK;
    mote_tokenizer_destroy(*out);
    *out = NULL;
    return status;
}
