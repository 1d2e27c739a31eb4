/* cmd_run.c: mote run: a prompt in, text out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/answer.h"

static int run(const struct command *self, int argc, char **argv)
{
    struct model_rows m = {0};
    struct draw_rows d = DRAW_DEFAULTS;
    const char *prompt = NULL, *file = NULL, *system = NULL;
    int chat = 0, special = 0, ignore_end = 0, quiet = 0;
    const struct option_row table[] = {
        MODEL_ROWS(m),
        {'p', "prompt", OPTION_TEXT, &prompt, "the text to continue (or -f, or a pipe)"},
        {'f', "file", OPTION_TEXT, &file, "read the prompt from a file"},
        {0, "chat", OPTION_FLAG, &chat, "the prompt is a user's turn of a conversation"},
        {0, "system", OPTION_TEXT, &system, "a system turn in front of it (with --chat)"},
        {0, "special", OPTION_FLAG, &special, "control tokens spelled out in the prompt count as such"},
        {0, "ignore-eos", OPTION_FLAG, &ignore_end, "go on past the end of the text"},
        {'q', "quiet", OPTION_FLAG, &quiet, "no timings"},
        DRAW_ROWS(d),
        {0},
    };
    int left = options_parse(self, table, argc, argv);
    if (left < 0) return EXIT_USAGE;
    if (left > 0) return usage_error(self, "unexpected argument '%s'", argv[0]);
    if (!m.model) return usage_error(self, "-m MODEL is missing");
    if (prompt && file) return usage_error(self, "-p and -f: one prompt at a time");
    if (!prompt && !file && isatty(STDIN_FILENO))
        return usage_error(self, "no prompt: -p TEXT, -f FILE or a pipe");

    int code = EXIT_WORK;
    char *text = NULL;
    int32_t *ids = NULL;
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_sampler *sampler = NULL;
    struct answer answer = {0};
    size_t length, n;
    if (prompt) {
        length = strlen(prompt);
    } else {
        prompt = text = read_text(self, file, &length);
        if (!text) return EXIT_WORK;
    }
    interrupt_watch(NULL);
    struct mote_model_options options = model_options(&m);
    struct mote_sampler_options draw = draw_options(&d);
    /* The floor is measured before the model takes its memory, and not at all under a limit: it needs a buffer that no
     * cache holds. What keeps it from being measured does not keep the model from running. */
    double bandwidth = 0;
    if (!quiet && !m.memory && mote_device_bandwidth(m.device, (int)m.n_thread, &bandwidth) != MOTE_OK)
        bandwidth = 0;
    mote_status status = mote_model_open(m.model, &options, &model);
    if (status == MOTE_OK) status = mote_session_create(model, &session);
    if (status == MOTE_OK) status = mote_sampler_create(model, &draw, &sampler);
    if (status != MOTE_OK) {
        code = report(self, status);
        goto out;
    }
    size_t capacity = length + (system ? strlen(system) : 0) + 64;
    ids = malloc(capacity * sizeof *ids);
    if (!ids) {
        code = report(self, MOTE_MEMORY);
        goto out;
    }
    if (chat) {
        struct mote_chat_message turn[2] = {{"system", system}, {"user", prompt}};
        status = mote_model_chat(model, turn + !system, system ? 2 : 1, ids, capacity, &n);
    } else {
        status =
            mote_model_tokenize(model, prompt, length,
                                MOTE_TOKENIZE_BOS | (special ? MOTE_TOKENIZE_SPECIAL : 0), ids, capacity, &n);
    }
    if (status == MOTE_OK && n == 0) {
        usage_error(self, "the prompt is empty, and this model has no token to begin a text with");
        code = EXIT_USAGE;
        goto out;
    }
    interrupt_watch(session);
    /* On a terminal the text reads on from its prompt; elsewhere the answer stands alone. */
    if (status == MOTE_OK && !chat && isatty(STDOUT_FILENO)) fwrite(prompt, 1, length, stdout);
    if (status == MOTE_OK)
        status = answer_write(model, session, sampler, ids, n, d.n_token, ignore_end, &answer);
    if (answer.length && answer.text[answer.length - 1] != '\n' && isatty(STDOUT_FILENO)) putchar('\n');
    fflush(stdout);
    if (!quiet && answer.n_prompt && answer.prompt_seconds > 0) {
        fputc('\n', stderr);
        answer_timings(model, &answer, bandwidth);
    }
    code = status == MOTE_OK ? answer.cut ? EXIT_INTERRUPTED : EXIT_DONE : report(self, status);
out:
    interrupt_watch(NULL);
    free(answer.text);
    free(ids);
    free(text);
    mote_sampler_destroy(sampler);
    mote_session_destroy(session);
    mote_model_close(model);
    return code;
}

const struct command command_run = {"run", "write text after a prompt", "-m MODEL -p TEXT [options]", run};
