/* tokenizer_gguf.c: a tokenizer from the arrays of a GGUF, and back.
 *
 * Knows nothing of the file: struct mote_vocab is what the metadata say. A GGUF has no normalizer and no flags of
 * added tokens; a tokenizer made from one has none either.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

static mote_status read_merges(struct mote_tokenizer *t, const struct mote_vocab *v)
{
    TRY(mote_merges_init(&t->merges, &t->arena, v->n_merge));
    TRY(mote_arena_alloc(&t->arena, (v->n_merge + 1) * sizeof *t->merge, &t->merge));
    t->n_merge = v->n_merge;
    for (size_t i = 0; i < v->n_merge; i++) {
        const char *text = v->merge[i].data, *space;
        size_t length = v->merge[i].length;
        /* No token of the byte alphabet has a space in it; one that starts with it is not cut in front. */
        space = length > 1 ? memchr(text + 1, ' ', length - 1) : NULL;
        FAIL_IF(!space, MOTE_FORMAT, "tokenizer: merge %zu, \"%.*s\", is not \"left right\"", i, (int)length,
                text);
        size_t left = (size_t)(space - text);
        TRY(mote_tokenizer_merge(t, text, left, space + 1, length - left - 1, (uint32_t)i));
        char *copy;
        TRY(mote_arena_strdup(&t->arena, text, length, &copy));
        t->merge[i] = (struct mote_piece){copy, length};
    }
    return MOTE_OK;
}

static mote_status read_added(struct mote_tokenizer *t)
{
    size_t n = 0;
    for (size_t id = 0; id < t->n_token; id++)
        n += t->kind[id] == MOTE_TOKEN_CONTROL || t->kind[id] == MOTE_TOKEN_USER ||
             t->kind[id] == MOTE_TOKEN_UNKNOWN;
    TRY(mote_arena_alloc(&t->arena, (n + 1) * sizeof *t->raw.item, &t->raw.item));
    for (size_t id = 0; id < t->n_token; id++) {
        int special = t->kind[id] == MOTE_TOKEN_CONTROL || t->kind[id] == MOTE_TOKEN_UNKNOWN;
        if (!special && t->kind[id] != MOTE_TOKEN_USER) continue;
        /* Of two ids with one text the first is found, as everywhere. */
        if (mote_table_find(&t->by_spelling, t->spelling, t->spelling[id].data, t->spelling[id].length,
                            mote_hash(t->spelling[id].data, t->spelling[id].length)) != (int32_t)id)
            continue;
        t->raw.item[t->raw.n++] =
            (struct mote_added){.text = t->spelling[id], .id = (int32_t)id, .special = (char)special};
    }
    return mote_added_sort(&t->raw);
}

static mote_status fill(struct mote_tokenizer *t, const struct mote_vocab *v)
{
    for (size_t id = 0; id < v->n_token; id++)
        TRY(mote_tokenizer_set(t, id, v->token[id].data ? v->token[id].data : "", v->token[id].length,
                               v->kind ? v->kind[id] : MOTE_TOKEN_NORMAL));
    t->bos = v->bos;
    t->eos = v->eos;
    t->eot = v->eot;
    t->unk = v->unk;
    t->pad = v->pad;
    t->add_bos = v->add_bos;
    t->add_eos = v->add_eos;
    TRY(mote_tokenizer_index(t));
    if (t->byte_level) {
        char *pre;
        const char *name = v->pre && *v->pre ? v->pre : "default";
        TRY(mote_arena_strdup(&t->arena, name, strlen(name), &pre));
        t->pre = pre;
        TRY(mote_steps_by_name(t, name));
        TRY(read_merges(t, v));
    } else {
        TRY(mote_arena_alloc(&t->arena, t->n_token * sizeof *t->score, &t->score));
        FAIL_IF(!v->score, MOTE_FORMAT, "tokenizer: model \"llama\" without tokenizer.ggml.scores");
        for (size_t id = 0; id < t->n_token; id++) {
            FAIL_IF(v->score[id] != v->score[id], MOTE_FORMAT,
                    "tokenizer: score of token %zu is not a number", id);
            t->score[id] = v->score[id];
        }
        TRY(mote_spm_merges_from_scores(t));
        t->add_space_prefix = t->strip_space = v->add_space_prefix;
        TRY(mote_arena_alloc(&t->arena, 2 * sizeof *t->normal, &t->normal));
        const struct mote_piece mark = {MOTE_SPACE_MARK, 3};
        if (v->add_space_prefix)
            t->normal[t->n_normal++] = (struct mote_normal_step){.kind = MOTE_PREPEND, .to = mark};
        t->normal[t->n_normal++] =
            (struct mote_normal_step){.kind = MOTE_REPLACE, .from = (struct mote_piece){" ", 1}, .to = mark};
    }
    TRY(read_added(t));
    return mote_tokenizer_finish(t);
}

mote_status mote_tokenizer_from_vocab(const struct mote_vocab *vocab, struct mote_budget *budget,
                                      struct mote_tokenizer **out)
{
    struct mote_tokenizer *t;
    *out = NULL;
    const char *model = vocab->model ? vocab->model : "";
    FAIL_IF(strcmp(model, "gpt2") && strcmp(model, "llama"), MOTE_UNSUPPORTED,
            "tokenizer model \"%s\" is not supported, expected gpt2 or llama", model);
    TRY(mote_tokenizer_new(vocab->n_token, budget, &t));
    t->byte_level = !strcmp(model, "gpt2");
    mote_status status = fill(t, vocab);
    if (status != MOTE_OK) {
        mote_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return MOTE_OK;
}

mote_status mote_tokenizer_vocab(const struct mote_tokenizer *t, struct mote_vocab *out)
{
    *out = (struct mote_vocab){.model = t->byte_level ? "gpt2" : "llama",
                               .pre = t->pre          ? t->pre
                                      : t->byte_level ? mote_steps_name(t)
                                                      : "default",
                               .n_token = t->n_token,
                               .token = t->spelling,
                               .score = t->score,
                               .kind = t->kind,
                               .n_merge = t->byte_level ? t->n_merge : 0,
                               .merge = t->merge,
                               .bos = t->bos,
                               .eos = t->eos,
                               .eot = t->eot,
                               .unk = t->unk,
                               .pad = t->pad,
                               .add_bos = t->add_bos,
                               .add_eos = t->add_eos,
                               .add_space_prefix = t->add_space_prefix};
    if (!out->pre) {
        const struct mote_step *step = t->n_step ? &t->step[0] : NULL;
        return mote_fail(MOTE_UNSUPPORTED,
                         "this tokenizer's splitting has no name in a GGUF: %zu steps, the first is \"%s\"%s",
                         t->n_step, step && step->kind == MOTE_STEP_SPLIT ? step->pattern : "not a pattern",
                         t->ignore_merges ? ", and merges are ignored for whole words" : "");
    }
    FAIL_IF(!t->byte_level && t->n_step, MOTE_UNSUPPORTED,
            "a score-based tokenizer with a pre-tokenizer has no form in a GGUF");
    FAIL_IF(t->bad_score_note, MOTE_UNSUPPORTED, "scores cannot say what these merges do: %s",
            t->bad_score_note);
    return MOTE_OK;
}
