/* cmd_chat.c: mote chat: a conversation in the terminal.
 *
 * One idea: the conversation is a list of messages; every turn encodes all of them and keeps the part of the
 * session whose tokens are the same, so that any chat template works and nothing is computed twice that did
 * not change.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <editline/readline.h>

#include "cli/answer.h"

struct talk {
    const struct command *self;
    mote_model *model;
    mote_session *session;
    mote_sampler *sampler;
    struct mote_chat_message *message; /* [n]; contents malloc'ed */
    size_t n;
    int64_t n_token;
    int quiet;
};

static mote_status talk_add(struct talk *talk, const char *role, const char *content)
{
    struct mote_chat_message *more = realloc(talk->message, (talk->n + 1) * sizeof *more);
    size_t size = strlen(content) + 1;
    char *copy = malloc(size);
    if (more) talk->message = more;
    if (!more || !copy) {
        free(copy);
        return MOTE_MEMORY;
    }
    memcpy(copy, content, size);
    talk->message[talk->n++] = (struct mote_chat_message){role, copy};
    return MOTE_OK;
}

static void talk_drop(struct talk *talk, size_t keep)
{
    while (talk->n > keep) free((char *)(uintptr_t)talk->message[--talk->n].content);
}

/* Answer the last message; on success the answer is a message of its own. */
static mote_status talk_answer(struct talk *talk)
{
    size_t capacity = 64, n;
    for (size_t i = 0; i < talk->n; i++) capacity += strlen(talk->message[i].content) + 32;
    int32_t *ids = malloc(capacity * sizeof *ids);
    if (!ids) return MOTE_MEMORY;
    mote_status status = mote_model_chat(talk->model, talk->message, talk->n, ids, capacity, &n);
    struct answer answer = {0};
    if (status == MOTE_OK) {
        const int32_t *old = mote_session_tokens(talk->session);
        size_t have = (size_t)mote_session_length(talk->session), same = 0;
        while (same < have && same + 1 < n && old[same] == ids[same]) same++;
        status = mote_session_truncate(talk->session, (int64_t)same);
        interrupt_watch(talk->session);
        if (status == MOTE_OK)
            status = answer_write(talk->model, talk->session, talk->sampler, ids + same, n - same,
                                  talk->n_token, 0, &answer);
        interrupt_watch(NULL);
        if (answer.length) putchar('\n');
        fflush(stdout);
        if (!talk->quiet && answer.n_token) answer_timings(talk->model, &answer, 0);
    }
    /* What was written stays part of the conversation, also when it was cut short. */
    if (answer.length) {
        mote_status added = talk_add(talk, "assistant", answer.text);
        if (status == MOTE_OK) status = added;
    }
    free(answer.text);
    free(ids);
    return status;
}

/* A line of input, or several: a line that ends in a backslash goes on, and """ opens a block up to the next
 * """. NULL at the end of the input. malloc'ed. */
static char *read_message(int terminal)
{
    char *text = NULL;
    size_t used = 0;
    int block = 0;
    for (;;) {
        char *line = NULL;
        if (terminal) {
            line = readline(used || block ? ". " : "> ");
        } else {
            size_t room = 0;
            ssize_t got = getline(&line, &room, stdin);
            if (got < 0) {
                free(line);
                line = NULL;
            } else if (got && line[got - 1] == '\n') {
                line[got - 1] = 0;
            }
        }
        if (!line) return text;
        if (terminal && *line) add_history(line);
        size_t n = strlen(line);
        const char *from = line;
        int go_on = 0;
        if (!block && !used && !strncmp(line, "\"\"\"", 3)) {
            block = 1;
            from += 3;
            n -= 3;
        }
        if (block) {
            go_on = 1;
            if (n >= 3 && !strcmp(from + n - 3, "\"\"\"")) {
                n -= 3;
                go_on = 0;
            }
        } else if (n && from[n - 1] == '\\') {
            n--;
            go_on = 1;
        }
        char *more = realloc(text, used + n + 2);
        if (!more) {
            free(line);
            free(text);
            return NULL;
        }
        text = more;
        memcpy(text + used, from, n);
        used += n;
        if (go_on) text[used++] = '\n';
        text[used] = 0;
        free(line);
        if (!go_on) return text;
    }
}

static int chat(const struct command *self, int argc, char **argv)
{
    struct model_rows m = {0};
    struct draw_rows d = DRAW_DEFAULTS;
    const char *system = NULL;
    int quiet = 0;
    const struct option_row table[] = {
        MODEL_ROWS(m),
        {0, "system", OPTION_TEXT, &system, "a system turn to begin with"},
        {'q', "quiet", OPTION_FLAG, &quiet, "no timings"},
        DRAW_ROWS(d),
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (left > 0) return usage_error(self, "unexpected argument '%s'", argv[0]);
    if (!m.model) return usage_error(self, "-m MODEL is missing");

    struct talk talk = {.self = self, .n_token = d.n_token, .quiet = quiet};
    struct mote_model_options options = model_options(&m);
    struct mote_sampler_options draw = draw_options(&d);
    mote_status status = mote_model_open(m.model, &options, &talk.model);
    if (status == MOTE_OK) status = mote_session_create(talk.model, &talk.session);
    if (status == MOTE_OK) status = mote_sampler_create(talk.model, &draw, &talk.sampler);
    if (status == MOTE_OK && system) status = talk_add(&talk, "system", system);
    int code = report(self, status), terminal = isatty(STDIN_FILENO);
    size_t first = talk.n;
    if (status == MOTE_OK && terminal)
        fprintf(stderr, "/clear forgets, /regen answers again, /bye ends; \"\"\" or \\ for several lines\n");
    while (code == EXIT_DONE) {
        interrupt_watch(NULL);
        char *text = read_message(terminal);
        if (!text) break;
        if (!strcmp(text, "/bye")) {
            free(text);
            break;
        }
        if (!strcmp(text, "/clear")) {
            talk_drop(&talk, first);
        } else if (!strcmp(text, "/regen")) {
            if (talk.n > first && !strcmp(talk.message[talk.n - 1].role, "assistant"))
                talk_drop(&talk, talk.n - 1);
            if (talk.n > first) status = talk_answer(&talk);
            else fprintf(stderr, "there is no answer to write again\n");
        } else if (*text == '/' && text[1] != ' ' && text[1]) {
            fprintf(stderr, "no command %s; there are /clear /regen /bye\n", text);
        } else if (*text) {
            status = talk_add(&talk, "user", text);
            if (status == MOTE_OK) status = talk_answer(&talk);
            /* A turn that does not fit is taken back: the conversation can go on after /clear. */
            if (status != MOTE_OK && !strcmp(talk.message[talk.n - 1].role, "user"))
                talk_drop(&talk, talk.n - 1);
        }
        free(text);
        if (status == MOTE_CONTEXT) {
            fprintf(stderr, "mote chat: %s; /clear begins anew\n", mote_error());
            status = MOTE_OK;
            if (!terminal) code = EXIT_WORK; /* a script must not miss it */
        } else if (status != MOTE_OK) {
            code = report(self, status);
        }
    }
    talk_drop(&talk, 0);
    free(talk.message);
    mote_sampler_destroy(talk.sampler);
    mote_session_destroy(talk.session);
    mote_model_close(talk.model);
    return code;
}

const struct command command_chat = {"chat", "talk with a model", "-m MODEL [options]", chat};
