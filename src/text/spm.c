/* spm.c: score-based vocabularies (SentencePiece BPE).
 *
 * Owns: what differs from byte-level BPE: characters with byte fallback as first symbols, and the way between
 * scores (GGUF) and merges (tokenizer.json). One idea: "the pair whose concatenation scores best" is the same as
 * a list of merges, made once: every way to cut a token in two tokens, ranked by the token's score.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

size_t mote_spm_symbols(const struct mote_tokenizer *t, const char *word, size_t length,
                        struct mote_symbol *symbol)
{
    size_t n = 0;
    for (size_t at = 0; at < length;) {
        uint32_t c;
        int step = mote_utf8_next(word + at, length - at, &c);
        int32_t id = -1;
        if (step)
            id = mote_table_find(&t->by_spelling, t->spelling, word + at, (size_t)step,
                                 mote_hash(word + at, (size_t)step));
        else step = 1; /* a byte that is not UTF-8 */
        if (id >= 0) {
            symbol[n++].id = id;
        } else {
            int bytes = 1;
            for (int i = 0; i < step; i++) bytes &= t->byte_id[(unsigned char)word[at + (size_t)i]] >= 0;
            if (bytes)
                for (int i = 0; i < step; i++)
                    symbol[n++].id = t->byte_id[(unsigned char)word[at + (size_t)i]];
            else if (t->unk >= 0 && !(t->fuse_unknown && n && symbol[n - 1].id == t->unk))
                symbol[n++].id = t->unk;
        }
        at += (size_t)step;
    }
    return n;
}

/* Normal tokens by score, best first. */
struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *left, const void *right)
{
    const struct scored *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* Calls fn for every cut of token `id` into two normal tokens. */
static mote_status each_cut(struct mote_tokenizer *t, int32_t id, mote_status (*fn)(void *, int32_t, int32_t),
                            void *context)
{
    const struct mote_piece *p = &t->spelling[id];
    for (size_t cut = 1; cut < p->length; cut++) {
        if (((unsigned char)p->data[cut] & 0xC0) == 0x80) continue; /* inside a character */
        int32_t a = mote_table_find(&t->by_spelling, t->spelling, p->data, cut, mote_hash(p->data, cut));
        if (a < 0 || t->kind[a] != MOTE_TOKEN_NORMAL) continue;
        int32_t b = mote_table_find(&t->by_spelling, t->spelling, p->data + cut, p->length - cut,
                                    mote_hash(p->data + cut, p->length - cut));
        if (b >= 0 && t->kind[b] == MOTE_TOKEN_NORMAL) TRY(fn(context, a, b));
    }
    return MOTE_OK;
}

struct cutting {
    struct mote_tokenizer *t;
    size_t n;
    uint32_t rank;
    int32_t id;
};

static mote_status count_cut(void *context, int32_t a, int32_t b)
{
    struct cutting *c = context;
    (void)a;
    (void)b;
    c->n++;
    return MOTE_OK;
}

static mote_status put_cut(void *context, int32_t a, int32_t b)
{
    struct cutting *c = context;
    mote_merges_put(&c->t->merges, a, b, c->rank, c->id);
    return MOTE_OK;
}

mote_status mote_spm_merges_from_scores(struct mote_tokenizer *t)
{
    struct cutting c = {.t = t};
    struct scored *order;
    size_t n = 0;
    for (size_t id = 0; id < t->n_token; id++)
        if (t->kind[id] == MOTE_TOKEN_NORMAL) TRY(each_cut(t, (int32_t)id, count_cut, &c));
    TRY(mote_merges_init(&t->merges, &t->arena, c.n));
    TRY(mote_mem_alloc(t->budget, MOTE_MEM_TABLES, t->n_token * sizeof *order, &order));
    for (size_t id = 0; id < t->n_token; id++)
        if (t->kind[id] == MOTE_TOKEN_NORMAL) order[n++] = (struct scored){t->score[id], (int32_t)id};
    qsort(order, n, sizeof *order, by_score);
    mote_status status = MOTE_OK;
    for (size_t i = 0; i < n && status == MOTE_OK; i++) {
        c.rank += i && order[i].score != order[i - 1].score; /* equal scores, equal rank: leftmost first */
        c.id = order[i].id;
        status = each_cut(t, c.id, put_cut, &c);
    }
    mote_mem_free(order);
    return status;
}

/* ---- merges to scores: only where that says the same ---- */

struct checking {
    struct mote_tokenizer *t;
    uint32_t first, last; /* ranks of this token's merges */
    size_t n, missing;
};

static mote_status check_cut(void *context, int32_t a, int32_t b)
{
    struct checking *c = context;
    const struct mote_merge_slot *slot = mote_merges_find(&c->t->merges, a, b);
    if (!slot) {
        c->missing++;
        return MOTE_OK;
    }
    if (slot->rank < c->first) c->first = slot->rank;
    if (slot->rank > c->last) c->last = slot->rank;
    c->n++;
    return MOTE_OK;
}

/* Scores are minus the first rank. That is exact when each token can be made by every cut and its merges stand
 * together in the list; bad_score_note says why not otherwise. */
mote_status mote_spm_scores_from_merges(struct mote_tokenizer *t)
{
    size_t total = 0;
    TRY(mote_arena_alloc(&t->arena, t->n_token * sizeof *t->score, &t->score));
    for (size_t id = 0; id < t->n_token; id++) {
        struct checking c = {.t = t, .first = MOTE_NO_RANK};
        if (t->kind[id] != MOTE_TOKEN_NORMAL) continue;
        TRY(each_cut(t, (int32_t)id, check_cut, &c));
        total += c.n;
        if (c.missing) t->bad_score_note = "a token is missing one of the merges that make it";
        else if (c.n && (size_t)(c.last - c.first) + 1 != c.n)
            t->bad_score_note = "merges of one token are apart in the list";
        /* Characters that nothing makes rank behind everything; their score is never looked at. */
        t->score[id] = c.n ? -(float)c.first : -(float)t->n_merge;
    }
    if (t->n_merge >= 1u << 24) t->bad_score_note = "more merges than a float counts";
    if (total != t->n_merge) t->bad_score_note = "a merge is listed twice or uses a special token";
    return MOTE_OK;
}
