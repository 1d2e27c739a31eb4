/* session.h: a session is one timeline: its tokens, their keys and values, and the logits after the last one.
 * (mote_session is the public handle, mote_timeline what is in it.)
 *
 * Owns: the token list and the KV cache. Several sessions share one forward (one caller at a time for all
 * of them).
 * One idea: position == number of tokens evaluated; a failed evaluation leaves the session as it was (a
 * cancelled one keeps the tokens of its finished chunks).
 */
#ifndef MOTE_ENGINE_SESSION_H
#define MOTE_ENGINE_SESSION_H

#include "model/forward.h"

struct mote_timeline;

struct mote_timeline_options {
    int64_t n_ctx; /* 0: the model's training context */
    enum mote_kv_type kv_type;
};

mote_status mote_timeline_create(struct mote_forward *forward, const struct mote_timeline_options *options,
                                 struct mote_timeline **out);
void mote_timeline_destroy(struct mote_timeline *session); /* NULL is fine */

int64_t mote_timeline_n_ctx(const struct mote_timeline *session);
int64_t mote_timeline_n_vocab(const struct mote_timeline *session);
int64_t mote_timeline_n_token(const struct mote_timeline *session);
const int32_t *mote_timeline_tokens(const struct mote_timeline *session); /* [n_token] */
/* Logits [n_vocab] after the last token evaluated with logits kept, brought from the device when they are not here yet;
 * NULL before the first eval and after rewind, and when the device fails (mote_error). The memory is the session's,
 * overwritten by the next eval. */
const float *mote_timeline_logits(struct mote_timeline *session);
/* The best of them, which are here already: n may be 0 (cuda/step.h). NULL when there are no logits. Valid until the next
 * eval. */
const struct mote_shortlist *mote_timeline_shortlist(const struct mote_timeline *session);

/* Evaluate ids[n] (n >= 1) after what is there, in chunks of the forward's max_row.
 * Fails with MOTE_CONTEXT when they do not fit (tokens there, tokens asked for and the limit in the message),
 * MOTE_ARGUMENT for an id out of range, and what mote_forward_step fails with; the session is then as before,
 * but for MOTE_CANCELLED: finished chunks stay. Logits are gone after a failure past the checks of
 * arguments. */
mote_status mote_timeline_eval(struct mote_timeline *session, const int32_t *ids, int64_t n);

typedef void mote_position_fn(void *context, int64_t i, const float *logits); /* after ids[i] */
/* The same, with `each` called for every position (what does not fit memory at once can be looked at). */
mote_status mote_timeline_eval_each(struct mote_timeline *session, const int32_t *ids, int64_t n,
                                    mote_position_fn *each, void *context);

/* The same with the logits of every one of the n positions: all_logits [n][n_vocab], the caller's. */
mote_status mote_timeline_eval_all(struct mote_timeline *session, const int32_t *ids, int64_t n,
                                   float *all_logits);

/* Evaluate several sessions' ids together, rows of all of them in the same steps (continuous batching).
 * Sessions must be different and share one forward. On failure all of them are as before. */
struct mote_turn {
    struct mote_timeline *session;
    const int32_t *ids;
    int64_t n;
    float *all_logits;      /* [n][n_vocab] or NULL: the last position's only, in the session */
    mote_position_fn *each; /* called for every position, in order, instead of keeping all; or NULL */
    void *each_context;
    int64_t done; /* set by the call: ids evaluated */
};
mote_status mote_timeline_eval_many(struct mote_turn *turn, int64_t n_turn);

/* Go back to the first n tokens (n <= n_token). Logits are gone: evaluate at least one token before sampling.
 */
mote_status mote_timeline_rewind(struct mote_timeline *session, int64_t n);

/* Length of the common prefix of the session's tokens and ids[n]: how much of a prompt is already there. */
int64_t mote_timeline_match(const struct mote_timeline *session, const int32_t *ids, int64_t n);

#endif
