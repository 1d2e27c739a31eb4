/* session.c: timelines and the packing of their rows into steps. See session.h. */
#include "engine/session.h"

#include <string.h>

enum { MAX_SPANS = 256 }; /* sequences in one step */

struct mote_timeline {
    struct mote_forward *forward;
    struct mote_kv kv;
    int32_t *token;           /* [n_ctx], kv.n_past of them valid */
    struct mote_row_kept row; /* after the last token */
    int has_logits;
};

static const struct mote_network *network_of(const struct mote_timeline *t)
{
    return mote_forward_network(t->forward);
}

mote_status mote_timeline_create(struct mote_forward *forward, const struct mote_timeline_options *options,
                                 struct mote_timeline **out)
{
    *out = NULL;
    const struct mote_network *network = mote_forward_network(forward);
    int64_t n_ctx = options->n_ctx ? options->n_ctx : (int64_t)network->hyper.n_ctx_train;
    struct mote_timeline *t;
    TRY(mote_mem_calloc(network->budget, MOTE_MEM_TABLES, 1, sizeof *t, &t));
    t->forward = forward;
    t->row.at = -1;
    mote_status status;
    TRY_GOTO(mote_kv_create(&network->hyper, options->kv_type, n_ctx, mote_forward_backend(forward), &t->kv),
             status, fail);
    TRY_GOTO(mote_mem_calloc(network->budget, MOTE_MEM_TABLES, (size_t)n_ctx, sizeof *t->token, &t->token),
             status, fail);
    struct mote_backend *backend = mote_forward_backend(forward);
    TRY_GOTO(backend->ops->alloc_host(backend, MOTE_MEM_TABLES,
                                      (size_t)network->hyper.n_vocab * sizeof *t->row.logits, &t->row.logits),
             status, fail);
    *out = t;
    return MOTE_OK;
fail:
    mote_timeline_destroy(t);
    return status;
}

void mote_timeline_destroy(struct mote_timeline *t)
{
    if (!t) return;
    mote_kv_destroy(&t->kv);
    mote_mem_free(t->token);
    struct mote_backend *backend = mote_forward_backend(t->forward);
    mote_forward_drop(t->forward, &t->row);
    if (t->row.logits) backend->ops->free(backend, t->row.logits);
    mote_mem_free(t);
}

int64_t mote_timeline_n_ctx(const struct mote_timeline *t)
{
    return t->kv.view.n_ctx;
}

int64_t mote_timeline_n_vocab(const struct mote_timeline *t)
{
    return (int64_t)network_of(t)->hyper.n_vocab;
}

int64_t mote_timeline_n_token(const struct mote_timeline *t)
{
    return t->kv.n_past;
}

const int32_t *mote_timeline_tokens(const struct mote_timeline *t)
{
    return t->token;
}

const float *mote_timeline_logits(struct mote_timeline *t)
{
    return t->has_logits && mote_forward_fetch(t->forward, &t->row) == MOTE_OK ? t->row.logits : NULL;
}

const struct mote_shortlist *mote_timeline_shortlist(const struct mote_timeline *t)
{
    return t->has_logits ? &t->row.best : NULL;
}

static void forget_logits(struct mote_timeline *t)
{
    mote_forward_drop(t->forward, &t->row);
    t->has_logits = 0;
}

mote_status mote_timeline_rewind(struct mote_timeline *t, int64_t n)
{
    if (n == t->kv.n_past) return MOTE_OK;
    TRY(mote_kv_truncate(&t->kv, n));
    forget_logits(t);
    return MOTE_OK;
}

int64_t mote_timeline_match(const struct mote_timeline *t, const int32_t *ids, int64_t n)
{
    int64_t same = 0;
    while (same < n && same < t->kv.n_past && t->token[same] == ids[same]) same++;
    return same;
}

static mote_status check_turns(const struct mote_turn *turn, int64_t n_turn)
{
    for (int64_t i = 0; i < n_turn; i++) {
        const struct mote_timeline *t = turn[i].session;
        int64_t n_vocab = (int64_t)network_of(t)->hyper.n_vocab, n_ctx = t->kv.view.n_ctx;
        FAIL_IF(turn[i].n < 1, MOTE_ARGUMENT, "eval: %lld tokens, expected at least 1", (long long)turn[i].n);
        FAIL_IF(turn[i].n > n_ctx - t->kv.n_past, MOTE_CONTEXT,
                "context is full: %lld tokens there and %lld more do not fit %lld", (long long)t->kv.n_past,
                (long long)turn[i].n, (long long)n_ctx);
        for (int64_t j = 0; j < turn[i].n; j++)
            FAIL_IF(turn[i].ids[j] < 0 || turn[i].ids[j] >= n_vocab, MOTE_ARGUMENT,
                    "token %d (position %lld) is not in the vocabulary of %lld", turn[i].ids[j],
                    (long long)(t->kv.n_past + j), (long long)n_vocab);
        FAIL_IF(t->forward != turn[0].session->forward, MOTE_ARGUMENT,
                "eval: sessions of two models in one call");
        for (int64_t j = 0; j < i; j++)
            FAIL_IF(turn[j].session == t, MOTE_ARGUMENT, "eval: the same session twice in one call");
    }
    return MOTE_OK;
}

/* What a step is made of; big enough for any, on the stack of eval_many. */
struct step {
    int32_t n_row;
    int32_t n_span;
    struct mote_span span[MAX_SPANS];
    int64_t turn[MAX_SPANS]; /* whose span it is */
};

/* As many rows as fit: each turn in order gets what is left of the step. */
static void pack(const struct mote_turn *turn, int64_t n_turn, int64_t max_row, struct step *step)
{
    step->n_row = step->n_span = 0;
    for (int64_t i = 0; i < n_turn && step->n_row < max_row && step->n_span < MAX_SPANS; i++) {
        int64_t left = turn[i].n - turn[i].done, room = max_row - step->n_row, n = left < room ? left : room;
        if (n == 0) continue;
        const struct mote_timeline *t = turn[i].session;
        step->turn[step->n_span] = i;
        step->span[step->n_span++] = (struct mote_span){
            .kv = t->kv.view, .row = step->n_row, .n_row = (int32_t)n, .n_past = t->kv.n_past};
        step->n_row += (int32_t)n;
    }
}

/* A row without a place of its own belongs to a turn with `each`. */
struct looker {
    const struct mote_turn *turn;
    const struct step *step;
};
static void look(void *context, int32_t row, const float *logits)
{
    const struct looker *l = context;
    int32_t s = 0;
    while (row >= l->step->span[s].row + l->step->span[s].n_row) s++;
    const struct mote_turn *of = &l->turn[l->step->turn[s]];
    int64_t i = of->done + row - l->step->span[s].row;
    of->each(of->each_context, i, logits);
    if (i == of->n - 1)
        memcpy(of->session->row.logits, logits,
               (size_t)network_of(of->session)->hyper.n_vocab * sizeof *logits);
}

static mote_status run_step(struct mote_forward *forward, struct mote_turn *turn, const struct step *step)
{
    struct mote_row_lists *lists = mote_forward_lists(forward);
    int64_t n_want = 0, n_vocab = (int64_t)mote_forward_network(forward)->hyper.n_vocab;
    for (int32_t s = 0; s < step->n_span; s++) {
        const struct mote_span *span = &step->span[s];
        struct mote_turn *of = &turn[step->turn[s]];
        int ends = of->done + span->n_row == of->n;
        for (int32_t i = 0; i < span->n_row; i++) {
            lists->token[span->row + i] = of->ids[of->done + i];
            int is_last = ends && i == span->n_row - 1;
            if (!of->all_logits && !of->each && !is_last) continue;
            lists->want[n_want] = span->row + i;
            lists->logits[n_want] = of->all_logits ? of->all_logits + (of->done + i) * n_vocab : NULL;
            lists->kept[n_want++] = of->all_logits || of->each ? NULL : &of->session->row;
        }
    }
    struct mote_batch batch = {
        .n_row = step->n_row, .token = lists->token, .n_span = step->n_span, .span = step->span};
    struct looker looker = {turn, step};
    mote_forward_each(forward, look, &looker);
    mote_status status = mote_forward_step(forward, &batch, lists->want, n_want, lists->logits, lists->kept);
    mote_forward_each(forward, NULL, NULL);
    TRY(status);
    for (int32_t s = 0; s < step->n_span; s++) {
        struct mote_turn *of = &turn[step->turn[s]];
        struct mote_timeline *t = of->session;
        memcpy(t->token + t->kv.n_past, of->ids + of->done, (size_t)step->span[s].n_row * sizeof *t->token);
        t->kv.n_past += step->span[s].n_row;
        of->done += step->span[s].n_row;
        if (of->done < of->n) continue;
        if (of->all_logits)
            memcpy(t->row.logits, of->all_logits + (of->n - 1) * n_vocab,
                   (size_t)n_vocab * sizeof *t->row.logits);
        if (of->all_logits || of->each) t->row.best.n = 0;
        t->has_logits = 1;
    }
    return MOTE_OK;
}

mote_status mote_timeline_eval_many(struct mote_turn *turn, int64_t n_turn)
{
    FAIL_IF(n_turn < 1, MOTE_ARGUMENT, "eval: no session");
    TRY(check_turns(turn, n_turn));
    struct mote_forward *forward = turn[0].session->forward;
    for (int64_t i = 0; i < n_turn; i++) {
        turn[i].done = 0;
        forget_logits(turn[i].session);
    }
    mote_status status = MOTE_OK;
    struct step step;
    while (status == MOTE_OK) {
        pack(turn, n_turn, mote_forward_max_row(forward), &step);
        if (step.n_row == 0) break;
        status = run_step(forward, turn, &step);
    }
    if (status == MOTE_OK || status == MOTE_CANCELLED) return status;
    for (int64_t i = 0; i < n_turn; i++) {
        turn[i].session->kv.n_past -= turn[i].done;
        forget_logits(turn[i].session);
    }
    return status;
}

mote_status mote_timeline_eval(struct mote_timeline *t, const int32_t *ids, int64_t n)
{
    struct mote_turn turn = {.session = t, .ids = ids, .n = n};
    return mote_timeline_eval_many(&turn, 1);
}

mote_status mote_timeline_eval_each(struct mote_timeline *t, const int32_t *ids, int64_t n,
                                    mote_position_fn *each, void *context)
{
    struct mote_turn turn = {.session = t, .ids = ids, .n = n, .each = each, .each_context = context};
    return mote_timeline_eval_many(&turn, 1);
}

mote_status mote_timeline_eval_all(struct mote_timeline *t, const int32_t *ids, int64_t n, float *all_logits)
{
    struct mote_turn turn = {.session = t, .ids = ids, .n = n, .all_logits = all_logits};
    return mote_timeline_eval_many(&turn, 1);
}
