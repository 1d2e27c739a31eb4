/* answer.h: one answer: evaluate a prompt, draw tokens, stream their text, count and time. Used by run and
 * chat. */
#ifndef MOTE_CLI_ANSWER_H
#define MOTE_CLI_ANSWER_H

#include "cli/cli.h"

/* What both commands take for drawing tokens. */
struct draw_rows {
    int64_t n_token; /* -1: until the end */
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, seed;
};
#define DRAW_ROWS(d)                                                                                  \
    {'n', "tokens", OPTION_INT, &(d).n_token, "tokens to write at most (-1: until the text ends)"},   \
        {0, "temp", OPTION_FLOAT, &(d).temperature, "temperature; 0 takes the best token (0.8)"},     \
        {0, "top-k", OPTION_INT, &(d).top_k, "draw from the K best; 0: off (40)"},                    \
        {0, "top-p", OPTION_FLOAT, &(d).top_p, "draw from the best that sum to P; 1: off (0.95)"},    \
        {0, "min-p", OPTION_FLOAT, &(d).min_p, "at least P times the best one's probability (0.05)"}, \
        {0, "seed", OPTION_INT, &(d).seed, "same seed, same text (from the clock)"},                  \
    {                                                                                                 \
        0, "repeat-penalty", OPTION_FLOAT, &(d).repeat_penalty, "over the last 64 tokens; 1: off (1)" \
    }
#define DRAW_DEFAULTS                                                                            \
    {                                                                                            \
        .n_token = -1, .temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05, .seed = -1 \
    }

struct mote_sampler_options draw_options(const struct draw_rows *rows);

struct answer {
    int64_t n_prompt, n_token;
    double prompt_seconds, token_seconds;
    char *text; /* what was written: malloc'ed, terminated */
    size_t length;
    int cut; /* stopped by Ctrl-C */
};

/* Evaluate ids[n] on the session, then write tokens to standard output until the text ends, n_token are
 * written, the context is full or Ctrl-C comes. ignore_end: go on past the end of the text. The caller frees
 * answer->text, also after a failure. */
mote_status answer_write(mote_model *model, mote_session *session, mote_sampler *sampler, const int32_t *ids,
                         size_t n, int64_t n_token, int ignore_end, struct answer *answer);

/* The two lines of timings on stderr; bandwidth 0: leave the share of the floor out. */
void answer_timings(mote_model *model, const struct answer *answer, double bandwidth);

#endif
