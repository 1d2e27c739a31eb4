/* handle_session.c: the public handles of a session and of a sampler. See mote.h. */
#include <string.h>

#include "api/handle.h"

mote_status mote_session_create(mote_model *model, mote_session **out)
{
    *out = NULL;
    struct mote_session *session;
    TRY(mote_mem_calloc(model->budget, MOTE_MEM_TABLES, 1, sizeof *session, &session));
    session->model = model;
    struct mote_timeline_options options = {.n_ctx = model->n_ctx, .kv_type = model->kv_type};
    mote_status status = mote_timeline_create(model->forward, &options, &session->timeline);
    if (status != MOTE_OK) {
        mote_mem_free(session);
        return status;
    }
    *out = session;
    return MOTE_OK;
}

void mote_session_destroy(mote_session *session)
{
    if (!session) return;
    mote_timeline_destroy(session->timeline);
    mote_mem_free(session);
}

mote_status mote_session_eval(mote_session *session, const int32_t *ids, size_t n)
{
    FAIL_IF(n == 0 || n > INT32_MAX, MOTE_ARGUMENT, "session: %zu tokens to evaluate, expected 1 to %d", n,
            INT32_MAX);
    session->cancel = 0;
    mote_forward_cancel(session->model->forward, &session->cancel);
    mote_status status = mote_timeline_eval(session->timeline, ids, (int64_t)n);
    mote_forward_cancel(session->model->forward, NULL);
    return status;
}

void mote_session_cancel(mote_session *session)
{
    session->cancel = 1;
}

int64_t mote_session_length(const mote_session *session)
{
    return mote_timeline_n_token(session->timeline);
}

const int32_t *mote_session_tokens(const mote_session *session)
{
    return mote_timeline_tokens(session->timeline);
}

mote_status mote_session_truncate(mote_session *session, int64_t length)
{
    /* Cutting nothing off keeps the logits. */
    if (length == mote_timeline_n_token(session->timeline)) return MOTE_OK;
    return mote_timeline_rewind(session->timeline, length);
}

const float *mote_session_logits(const mote_session *session)
{
    return mote_timeline_logits(session->timeline);
}

/* ---- sampler ---- */

struct mote_sampler {
    struct mote_chain *chain;
};

mote_status mote_sampler_create(const mote_model *model, const struct mote_sampler_options *options,
                                mote_sampler **out)
{
    *out = NULL;
    struct mote_sampler_options own = {0};
    FAIL_IF(options->struct_size < sizeof(size_t), MOTE_ARGUMENT, "sampler options: struct_size is not set");
    MOTE_TAKE_OPTIONS(own, options);
    struct mote_chain_options chain = {
        .temperature = own.temperature > 0 ? own.temperature : 0,
        .top_k = own.top_k,
        .top_p = own.top_p == 0 ? 1 : own.top_p,
        .min_p = own.min_p,
        .repeat_penalty = own.repeat_penalty == 0 ? 1 : own.repeat_penalty,
        .repeat_last = 64,
        .seed = own.seed,
    };
    struct mote_sampler *sampler;
    TRY(mote_mem_calloc(NULL, MOTE_MEM_TABLES, 1, sizeof *sampler, &sampler));
    mote_status status =
        mote_chain_create(&chain, (int64_t)model->network->hyper.n_vocab, model->budget, &sampler->chain);
    if (status != MOTE_OK) {
        mote_mem_free(sampler);
        return status;
    }
    *out = sampler;
    return MOTE_OK;
}

void mote_sampler_destroy(mote_sampler *sampler)
{
    if (!sampler) return;
    mote_chain_destroy(sampler->chain);
    mote_mem_free(sampler);
}

mote_status mote_sampler_next(mote_sampler *sampler, const mote_session *session, int32_t *id)
{
    return mote_chain_next(sampler->chain, session->timeline, id, NULL);
}
