/* answer.c: see answer.h. */
#include "cli/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mote_sampler_options draw_options(const struct draw_rows *rows)
{
    struct mote_sampler_options options = MOTE_OPTIONS(mote_sampler_options);
    options.temperature = (float)rows->temperature;
    options.top_k = (int)rows->top_k;
    options.top_p = (float)rows->top_p;
    options.min_p = (float)rows->min_p;
    options.repeat_penalty = (float)rows->repeat_penalty;
    options.seed = rows->seed >= 0 ? (uint64_t)rows->seed : (uint64_t)time(NULL);
    return options;
}

static mote_status put_text(struct answer *answer, const char *text, size_t n)
{
    if (!n) return MOTE_OK;
    char *more = realloc(answer->text, answer->length + n + 1);
    if (!more) return MOTE_MEMORY;
    answer->text = more;
    memcpy(more + answer->length, text, n);
    answer->length += n;
    more[answer->length] = 0;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return MOTE_OK;
}

mote_status answer_write(mote_model *model, mote_session *session, mote_sampler *sampler, const int32_t *ids,
                         size_t n, int64_t n_token, int ignore_end, struct answer *answer)
{
    *answer = (struct answer){.n_prompt = (int64_t)n, .text = calloc(1, 1)};
    char *out = malloc(mote_model_text_capacity(model));
    mote_decoder *decoder = NULL;
    if (!answer->text || !out) {
        free(out);
        return MOTE_MEMORY;
    }
    mote_status status = mote_decoder_create(model, 0, &decoder);
    double start = now_seconds();
    if (status == MOTE_OK) status = mote_session_eval(session, ids, n);
    answer->prompt_seconds = now_seconds() - start;
    start = now_seconds();
    size_t written;
    while (status == MOTE_OK && (n_token < 0 || answer->n_token < n_token) && !interrupted()) {
        int32_t id;
        status = mote_sampler_next(sampler, session, &id);
        if (status != MOTE_OK) break;
        if (!ignore_end && mote_model_token_ends(model, id)) break;
        answer->n_token++;
        mote_decoder_put(decoder, id, out, &written);
        status = put_text(answer, out, written);
        /* The last token's logits are of no use: do not compute them. */
        if (status != MOTE_OK || answer->n_token == n_token) break;
        status = mote_session_eval(session, &id, 1);
    }
    answer->token_seconds = now_seconds() - start;
    if (decoder) {
        mote_decoder_end(decoder, out, &written);
        put_text(answer, out, written);
    }
    if (status == MOTE_CANCELLED || interrupted()) {
        answer->cut = 1;
        status = MOTE_OK;
    }
    mote_decoder_destroy(decoder);
    free(out);
    return status;
}

void answer_timings(mote_model *model, const struct answer *answer, double bandwidth)
{
    struct mote_model_info info = MOTE_OPTIONS(mote_model_info);
    if (mote_model_describe(model, &info) != MOTE_OK) return;
    fprintf(stderr, "prompt      %6lld tokens %8.2f ms %10.2f tokens/s\n", (long long)answer->n_prompt,
            1e3 * answer->prompt_seconds,
            answer->prompt_seconds > 0 ? (double)answer->n_prompt / answer->prompt_seconds : 0);
    /* The first token comes with the prompt: n tokens cost n - 1 steps. */
    double rate = answer->n_token > 1 && answer->token_seconds > 0
                      ? (double)(answer->n_token - 1) / answer->token_seconds
                      : 0;
    fprintf(stderr, "generation  %6lld tokens %8.2f ms %10.2f tokens/s   %s read a token",
            (long long)answer->n_token, 1e3 * answer->token_seconds, rate,
            show_bytes((double)info.n_byte_per_token));
    if (bandwidth > 0 && rate > 0)
        fprintf(stderr, ", %.0f %% of the floor at %s/s",
                100 * rate * (double)info.n_byte_per_token / bandwidth, show_bytes(bandwidth));
    fprintf(stderr, "\n");
}
