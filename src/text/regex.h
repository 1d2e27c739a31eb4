/* regex.h: the regular expressions of tokenizer.json, run by PCRE2.
 *
 * Owns: the translation from Oniguruma's Ruby syntax (what `tokenizers` uses) to PCRE2's, compilation, limits.
 * One idea: differences of syntax and of character tables are removed before PCRE2 sees pattern or text, so that
 * a match is the match that Oniguruma finds. What cannot be translated is refused with a message.
 */
#ifndef MOTE_TEXT_REGEX_H
#define MOTE_TEXT_REGEX_H

#include "base/mem.h"

struct mote_regex;      /* compiled, immutable: any number of threads may match with it */
struct mote_regex_work; /* one thread's match state */

/* Oniguruma syntax -> PCRE2 syntax, zero-terminated, to be freed with mote_mem_free. */
mote_status mote_regex_translate(const char *pattern, size_t length, struct mote_budget *budget, char **out);

mote_status mote_regex_create(const char *pattern, size_t length, struct mote_budget *budget,
                              struct mote_regex **out);
void mote_regex_destroy(struct mote_regex *regex); /* NULL is fine */

mote_status mote_regex_work_create(struct mote_budget *budget, struct mote_regex_work **out);
void mote_regex_work_destroy(struct mote_regex_work *work); /* NULL is fine */

/* Leftmost match in text[length] that starts at `from` or later; the text must be well-formed UTF-8. *begin and *end
 * are its bounds, *begin is SIZE_MAX when there is none. Fails with MOTE_UNSUPPORTED when PCRE2 runs into a limit. */
mote_status mote_regex_match(const struct mote_regex *regex, struct mote_regex_work *work, const char *text,
                             size_t length, size_t from, size_t *begin, size_t *end);
#endif
