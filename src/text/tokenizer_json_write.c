/* tokenizer_json_write.c: a byte-level tokenizer as Hugging Face's three files say it.
 *
 * What is written is what tokenizer_json.c reads: unused ids are left out, tokens matched whole are added tokens.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

static json_t *text(struct mote_piece piece)
{
    return json_stringn(piece.data, piece.length);
}

/* json_object_set_new and its kin fail when the value is NULL, so that one check behind a call is enough. */
static mote_status check(int failed)
{
    FAIL_IF(failed, MOTE_UNSUPPORTED, "tokenizer.json: a token that is not UTF-8, or no memory");
    return MOTE_OK;
}

static mote_status put_vocab(const struct mote_tokenizer *t, json_t *vocab, json_t *added)
{
    for (size_t id = 0; id < t->n_token; id++) {
        struct mote_piece piece = t->spelling[id];
        switch (t->kind[id]) {
        case MOTE_TOKEN_UNUSED: break;
        case MOTE_TOKEN_NORMAL:
        case MOTE_TOKEN_BYTE:
            TRY(check(json_object_setn_new(vocab, piece.data, piece.length, json_integer((json_int_t)id))));
            break;
        default:
            TRY(check(json_array_append_new(added, json_pack("{sI so sb sb sb sb sb}", "id", (json_int_t)id,
                                                             "content", text(piece), "single_word", 0,
                                                             "lstrip", 0, "rstrip", 0, "normalized", 0,
                                                             "special", t->kind[id] != MOTE_TOKEN_USER))));
        }
    }
    return MOTE_OK;
}

static mote_status put_splits(const struct mote_tokenizer *t, json_t *list)
{
    for (size_t i = 0; i < t->n_step; i++) {
        const struct mote_step *step = &t->step[i];
        FAIL_IF(step->kind != MOTE_STEP_SPLIT || step->behavior != MOTE_SPLIT_ISOLATED || step->invert,
                MOTE_UNSUPPORTED, "this tokenizer's splitting cannot be written to a tokenizer.json");
        TRY(check(
            json_array_append_new(list, json_pack("{ss s{ss} ss sb}", "type", "Split", "pattern", "Regex",
                                                  step->pattern, "behavior", "Isolated", "invert", 0))));
    }
    return check(
        json_array_append_new(list, json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", 0,
                                              "trim_offsets", 1, "use_regex", 0)));
}

static mote_status put_tokenizer(const struct mote_tokenizer *t, json_t *root)
{
    json_t *vocab = json_object(), *added = json_array(), *splits = json_array(), *merges = json_array();
    int failed = json_object_set_new(root, "version", json_string("1.0"));
    failed |= json_object_set_new(root, "added_tokens", added);
    failed |= json_object_set_new(root, "pre_tokenizer",
                                  json_pack("{ss so}", "type", "Sequence", "pretokenizers", splits));
    failed |= json_object_set_new(root, "decoder", json_pack("{ss}", "type", "ByteLevel"));
    failed |= json_object_set_new(root, "model",
                                  json_pack("{ss sb so so}", "type", "BPE", "ignore_merges", t->ignore_merges,
                                            "vocab", vocab, "merges", merges));
    TRY(check(failed));
    TRY(put_vocab(t, vocab, added));
    TRY(put_splits(t, splits));
    for (size_t i = 0; i < t->n_merge; i++) TRY(check(json_array_append_new(merges, text(t->merge[i]))));
    return MOTE_OK;
}

static mote_status put_names(const struct mote_tokenizer *t, struct mote_piece chat_template, json_t *config,
                             json_t *generation)
{
    const struct {
        const char *key;
        int32_t id;
    } names[] = {{"bos_token", t->bos}, {"eos_token", t->eos}, {"pad_token", t->pad}};
    int failed = json_object_set_new(config, "add_bos_token", json_boolean(t->add_bos));
    if (t->add_eos) failed |= json_object_set_new(config, "add_eos_token", json_true());
    for (int i = 0; i < 3; i++)
        if (names[i].id >= 0)
            failed |= json_object_set_new(config, names[i].key, text(t->spelling[names[i].id]));
    if (chat_template.length) failed |= json_object_set_new(config, "chat_template", text(chat_template));
    /* The order is what makes the second one the end of a turn; alone it becomes the end of text. More than two are there
     * only when both are (the others are found by name again). */
    json_t *ends = json_array();
    const int32_t first[] = {t->eos, t->eot};
    for (int i = 0; i < 2; i++)
        if (first[i] >= 0) failed |= json_array_append_new(ends, json_integer(first[i]));
    for (size_t id = 0; t->eos >= 0 && t->eot >= 0 && id < t->n_token; id++)
        if (t->ends[id] && (int32_t)id != t->eos && (int32_t)id != t->eot)
            failed |= json_array_append_new(ends, json_integer((json_int_t)id));
    return check(failed | json_object_set_new(generation, "eos_token_id", ends));
}

static mote_status dump(const json_t *root, char **out)
{
    char *dumped = json_dumps(root, JSON_INDENT(1));
    FAIL_IF(!dumped, MOTE_MEMORY, "no memory for a tokenizer's JSON");
    mote_status status = mote_mem_strdup(NULL, dumped, strlen(dumped), out);
    free(dumped);
    return status;
}

mote_status mote_tokenizer_to_json(const struct mote_tokenizer *t, struct mote_piece chat_template,
                                   struct mote_tokenizer_json *out)
{
    *out = (struct mote_tokenizer_json){0};
    FAIL_IF(
        !t->byte_level || t->n_normal, MOTE_UNSUPPORTED,
        "a score-based tokenizer, or one with a normalizer, cannot be written to a tokenizer.json; expected "
        "byte-level BPE");
    json_t *root[3] = {json_object(), json_object(), json_object()};
    mote_status status = put_tokenizer(t, root[0]);
    if (status == MOTE_OK) status = put_names(t, chat_template, root[1], root[2]);
    if (status == MOTE_OK) status = dump(root[0], &out->tokenizer);
    if (status == MOTE_OK) status = dump(root[1], &out->config);
    if (status == MOTE_OK) status = dump(root[2], &out->generation);
    for (int i = 0; i < 3; i++) json_decref(root[i]);
    if (status != MOTE_OK) mote_tokenizer_json_free(out);
    return status;
}

void mote_tokenizer_json_free(struct mote_tokenizer_json *json)
{
    mote_mem_free(json->tokenizer);
    mote_mem_free(json->config);
    mote_mem_free(json->generation);
    *json = (struct mote_tokenizer_json){0};
}
