/* regex.c: see regex.h.
 *
 * Differences handled in the translation (all found by comparing every code point, see tools/gen_unicode_map.py):
 *   \s \S       PCRE2 counts U+180E as a space: written out as a class
 *   \w \W       Oniguruma: alphabetic, marks, decimal digits, connectors; PCRE2: letters, numbers, underscore
 *   \h \H       Ruby: a hexadecimal digit; PCRE2: horizontal space
 *   \uHHHH      unknown to PCRE2
 *   \p{Han}     PCRE2 looks at script extensions: \p{sc:Han}; \p{^X} and names like \p{Letter} mapped
 *   ^ $ .       Ruby: ^ and $ are always at lines, newline is LF alone: compile options
 *   (?m)        Ruby: dot matches newline, PCRE2's (?s)
 *   [A&&[^B]]   intersection: as one negated class when A is made of categories, else as (?:(?![B])[A])
 *   {n,m}+      possessive in PCRE2 only: refused; nested classes likewise
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define SPACES \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORD                                                                                         \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}" \
    "\\x{1F170}-\\x{1F189}"
#define HEX "0-9a-fA-F"

/* ---- translation ---- */

static const char *const categories[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                         "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                         "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};
enum { N_CATEGORY = sizeof categories / sizeof *categories };

static const struct {
    const char *name, *short_name;
} long_names[] = {{"letter", "L"},
                  {"mark", "M"},
                  {"number", "N"},
                  {"punctuation", "P"},
                  {"punct", "P"},
                  {"symbol", "S"},
                  {"separator", "Z"},
                  {"other", "C"},
                  {"uppercase_letter", "Lu"},
                  {"upper", "Lu"},
                  {"lowercase_letter", "Ll"},
                  {"decimal_number", "Nd"},
                  {"digit", "Nd"}};

struct translator {
    const char *at, *end; /* pattern still to read */
    const char *whole;    /* for messages */
    char *out;
    size_t n, capacity;
    struct mote_budget *budget;
};

static mote_status put(struct translator *t, const char *text, size_t length)
{
    size_t need;
    FAIL_IF(!mote_add_size(t->n, length, &need) || need > SIZE_MAX / 4, MOTE_MEMORY, "pattern is too long");
    if (need >= t->capacity) {
        size_t capacity = 2 * need + 64;
        TRY(mote_mem_resize(t->budget, MOTE_MEM_TABLES, capacity, &t->out));
        t->capacity = capacity;
    }
    if (length) memcpy(t->out + t->n, text, length);
    t->n = need;
    t->out[need] = 0;
    return MOTE_OK;
}

static mote_status put_text(struct translator *t, const char *text)
{
    return put(t, text, strlen(text));
}

static mote_status refuse(const struct translator *t, const char *what)
{
    return mote_fail(MOTE_UNSUPPORTED, "pattern: %s at byte %zu of \"%.*s\"", what,
                     (size_t)(t->at - t->whole), (int)(t->end - t->whole > 300 ? 300 : t->end - t->whole),
                     t->whole);
}

/* Bits of the categories that a property name of one or two letters covers, 0 when it is no such name. */
static uint32_t category_bits(const char *name, size_t length)
{
    uint32_t bits = 0;
    if (length == 1 || length == 2)
        for (int i = 0; i < N_CATEGORY; i++)
            if (!memcmp(categories[i], name, length)) bits |= 1u << i;
    return bits;
}

/* \p{...} or \P{...}, t->at behind the letter p. Writes PCRE2's form (it stands in and out of a class) and sets
 * *bits to the categories when it is a positive category. */
static mote_status put_property(struct translator *t, char letter, uint32_t *bits)
{
    *bits = 0;
    if (t->at == t->end || *t->at != '{') return refuse(t, "property without {name}");
    const char *name = t->at + 1, *close = memchr(name, '}', (size_t)(t->end - name));
    if (!close) return refuse(t, "property without }");
    int negative = letter == 'P';
    if (*name == '^') {
        negative = !negative;
        name++;
    }
    size_t length = (size_t)(close - name);
    char lower[24] = {0};
    for (size_t i = 0; i < length && i + 1 < sizeof lower; i++)
        lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 32 : name[i] == ' ' ? '_' : name[i]);
    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++)
        if (length == strlen(long_names[i].name) && !strcmp(lower, long_names[i].name)) {
            name = long_names[i].short_name;
            length = strlen(name);
        }
    uint32_t categories_in = category_bits(name, length);
    TRY(put_text(t, negative ? "\\P{" : "\\p{"));
    if (!categories_in) TRY(put_text(t, "sc:"));
    TRY(put(t, name, length));
    TRY(put_text(t, "}"));
    if (!negative) *bits = categories_in;
    t->at = close + 1;
    return MOTE_OK;
}

/* An escape, t->at behind the backslash. */
static mote_status put_escape(struct translator *t, int in_class, uint32_t *bits)
{
    static const struct {
        char letter, negative;
        const char *set;
    } sets[] = {{'s', 0, SPACES}, {'S', 1, SPACES}, {'w', 0, WORD},
                {'W', 1, WORD},   {'h', 0, HEX},    {'H', 1, HEX}};
    *bits = 0;
    if (t->at == t->end) return refuse(t, "backslash at the end");
    char letter = *t->at++;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (sets[i].letter != letter) continue;
        if (!in_class) {
            TRY(put_text(t, sets[i].negative ? "[^" : "["));
            TRY(put_text(t, sets[i].set));
            return put_text(t, "]");
        }
        if (!sets[i].negative) return put_text(t, sets[i].set);
        /* What is no space and no U+180E; the others have no exact form inside a class. */
        if (letter == 'S') return put_text(t, "\\S\\x{180E}");
        return refuse(t, "negated \\w or \\h in a class");
    }
    if (letter == 'p' || letter == 'P') return put_property(t, letter, bits);
    if (letter == 'u') {
        if (t->end - t->at < 4) return refuse(t, "\\u without four digits");
        TRY(put_text(t, "\\x{"));
        TRY(put(t, t->at, 4));
        t->at += 4;
        return put_text(t, "}");
    }
    if (letter == 'x' && t->at < t->end && *t->at == '{') {
        const char *close = memchr(t->at, '}', (size_t)(t->end - t->at));
        if (!close) return refuse(t, "\\x{ without }");
        TRY(put_text(t, "\\x"));
        TRY(put(t, t->at, (size_t)(close + 1 - t->at)));
        t->at = close + 1;
        return MOTE_OK;
    }
    TRY(put_text(t, "\\"));
    return put(t, &letter, 1);
}

/* Items of a class up to ']' or "&&" (neither is consumed), without the brackets. *bits: the categories when every
 * item is a positive category, else 0. */
static mote_status put_class_items(struct translator *t, uint32_t *bits)
{
    uint32_t all = 0;
    int only_categories = 1;
    while (t->at < t->end && *t->at != ']') {
        uint32_t item = 0;
        if (*t->at == '&' && t->end - t->at > 1 && t->at[1] == '&') break;
        if (*t->at == '\\') {
            t->at++;
            TRY(put_escape(t, 1, &item));
        } else if (*t->at == '[') {
            static const struct {
                const char *name, *set;
            } posix[] = {{"[:space:]", SPACES},   {"[:punct:]", "\\p{P}\\p{S}"}, {"[:digit:]", "\\p{Nd}"},
                         {"[:word:]", WORD},      {"[:xdigit:]", HEX},           {"[:upper:]", "\\p{Lu}"},
                         {"[:lower:]", "\\p{Ll}"}};
            size_t i = 0, length = 0;
            for (; i < sizeof posix / sizeof *posix; i++) {
                length = strlen(posix[i].name);
                if ((size_t)(t->end - t->at) >= length && !memcmp(t->at, posix[i].name, length)) break;
            }
            if (i == sizeof posix / sizeof *posix) return refuse(t, "class in a class");
            TRY(put_text(t, posix[i].set));
            t->at += length;
        } else {
            TRY(put(t, t->at++, 1));
        }
        if (!item) only_categories = 0;
        all |= item;
    }
    if (t->at == t->end) return refuse(t, "class without ]");
    *bits = only_categories ? all : 0;
    return MOTE_OK;
}

/* A class, t->at behind '['. */
static mote_status put_class(struct translator *t)
{
    uint32_t bits, ignored;
    size_t start = t->n;
    int negative = t->at < t->end && *t->at == '^';
    if (negative) t->at++;
    if (t->at < t->end && *t->at == ']') return refuse(t, "empty class");
    TRY(put_text(t, negative ? "[^" : "["));
    size_t items = t->n;
    TRY(put_class_items(t, &bits));
    if (*t->at == ']') {
        t->at++;
        return put_text(t, "]");
    }
    t->at += 2; /* && */
    if (negative || t->end - t->at < 3 || t->at[0] != '[' || t->at[1] != '^')
        return refuse(t, "intersection other than [A&&[^B]]");
    t->at += 2;
    if (bits) { /* everything outside A, or in B, not: one class, so that a long run needs no stack */
        t->n = start;
        TRY(put_text(t, "[^"));
        for (int i = 0; i < N_CATEGORY; i++)
            if (!(bits >> i & 1)) {
                char text[16];
                snprintf(text, sizeof text, "\\p{%s}", categories[i]);
                TRY(put_text(t, text));
            }
        TRY(put_class_items(t, &ignored));
    } else {
        char *left;
        size_t length = t->n - items;
        TRY(mote_mem_strdup(t->budget, t->out + items, length, &left));
        t->n = start;
        mote_status status = put_text(t, "(?:(?![");
        if (status == MOTE_OK) status = put_class_items(t, &ignored);
        if (status == MOTE_OK) status = put_text(t, "])[");
        if (status == MOTE_OK) status = put(t, left, length);
        mote_mem_free(left);
        TRY(status);
    }
    if (t->end - t->at < 2 || t->at[0] != ']' || t->at[1] != ']')
        return refuse(t, "intersection other than [A&&[^B]]");
    t->at += 2;
    return put_text(t, bits ? "]" : "])");
}

/* Option letters of "(?...", t->at behind the question mark: Ruby's m is PCRE2's s. */
static mote_status put_options(struct translator *t)
{
    const char *end = t->at;
    while (end < t->end && (*end == 'i' || *end == 'm' || *end == 'x' || *end == '-')) end++;
    if (end == t->at || end == t->end || (*end != ':' && *end != ')')) return MOTE_OK;
    for (; t->at < end; t->at++) TRY(put(t, *t->at == 'm' ? "s" : t->at, 1));
    return MOTE_OK;
}

static mote_status translate(struct translator *t)
{
    uint32_t ignored;
    int interval = 0; /* inside {n,m} */
    while (t->at < t->end) {
        char c = *t->at++;
        if (c == '\\') {
            TRY(put_escape(t, 0, &ignored));
        } else if (c == '[') {
            TRY(put_class(t));
        } else if (c == '(' && t->at < t->end && *t->at == '?') {
            TRY(put_text(t, "(?"));
            t->at++;
            TRY(put_options(t));
        } else {
            TRY(put(t, &c, 1));
            if (c == '{') interval = 1;
            if (c == '}' && interval) {
                interval = 0;
                if (t->at < t->end && *t->at == '+') return refuse(t, "+ behind {n,m}");
            }
        }
    }
    return put(t, "", 0);
}

mote_status mote_regex_translate(const char *pattern, size_t length, struct mote_budget *budget, char **out)
{
    struct translator t = {.at = pattern, .end = pattern + length, .whole = pattern, .budget = budget};
    *out = NULL;
    mote_status status = translate(&t);
    if (status != MOTE_OK) {
        mote_mem_free(t.out);
        return status;
    }
    *out = t.out;
    return MOTE_OK;
}

/* ---- compilation and matching ---- */

struct mote_regex {
    pcre2_code *code;
    pcre2_general_context *general;
    struct mote_budget *budget;
    int jit;
    char start[80]; /* of the pattern, for messages */
};

struct mote_regex_work {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack; /* made when the machine's own 32 KB were not enough */
    struct mote_budget *budget;
};

enum { MATCH_LIMIT = 50000000, HEAP_LIMIT_KB = 256 * 1024, STACK_LIMIT = 64 * 1024 * 1024 };

static void *budget_alloc(size_t size, void *budget)
{
    void *block;
    return mote_mem_alloc(budget, MOTE_MEM_TABLES, size, &block) == MOTE_OK ? block : NULL;
}

static void budget_free(void *block, void *budget)
{
    (void)budget;
    mote_mem_free(block);
}

mote_status mote_regex_create(const char *pattern, size_t length, struct mote_budget *budget,
                              struct mote_regex **out)
{
    struct mote_regex *regex = NULL;
    pcre2_compile_context *context = NULL;
    char *text = NULL;
    *out = NULL;
    TRY(mote_regex_translate(pattern, length, budget, &text));
    mote_status status;
    TRY_GOTO(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *regex, &regex), status, fail);
    regex->budget = budget;
    snprintf(regex->start, sizeof regex->start, "%.*s", (int)(length < 70 ? length : 70), pattern);
    regex->general = pcre2_general_context_create(budget_alloc, budget_free, budget);
    if (regex->general) context = pcre2_compile_context_create(regex->general);
    if (!context) {
        status = mote_fail(MOTE_MEMORY, "pattern \"%s\": out of memory", regex->start);
        goto fail;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE where;
    regex->code = pcre2_compile((PCRE2_SPTR)text, strlen(text), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                &code, &where, context);
    if (!regex->code) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(code, why, sizeof why);
        status = mote_fail(code == PCRE2_ERROR_HEAP_FAILED ? MOTE_MEMORY : MOTE_UNSUPPORTED,
                           "pattern \"%s\": %s (byte %zu of \"%.300s\")", regex->start, (char *)why,
                           (size_t)where, text);
        goto fail;
    }
    /* Without JIT (a system that forbids it) the interpreter does the same, slower. */
    regex->jit = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    pcre2_compile_context_free(context);
    mote_mem_free(text);
    *out = regex;
    return MOTE_OK;
fail:
    if (context) pcre2_compile_context_free(context);
    mote_mem_free(text);
    mote_regex_destroy(regex);
    return status;
}

void mote_regex_destroy(struct mote_regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    pcre2_general_context_free(regex->general);
    mote_mem_free(regex);
}

mote_status mote_regex_work_create(struct mote_budget *budget, struct mote_regex_work **out)
{
    struct mote_regex_work *work;
    *out = NULL;
    TRY(mote_mem_calloc(budget, MOTE_MEM_SCRATCH, 1, sizeof *work, &work));
    work->budget = budget;
    work->general = pcre2_general_context_create(budget_alloc, budget_free, budget);
    if (work->general) {
        work->context = pcre2_match_context_create(work->general);
        work->data =
            pcre2_match_data_create(1, work->general); /* the whole match; groups are of no interest */
    }
    if (!work->context || !work->data) {
        mote_regex_work_destroy(work);
        return mote_fail(MOTE_MEMORY, "pattern matcher: out of memory");
    }
    pcre2_set_match_limit(work->context, MATCH_LIMIT);
    pcre2_set_heap_limit(work->context, HEAP_LIMIT_KB);
    *out = work;
    return MOTE_OK;
}

void mote_regex_work_destroy(struct mote_regex_work *work)
{
    if (!work) return;
    pcre2_match_data_free(work->data);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    pcre2_general_context_free(work->general);
    mote_mem_free(work);
}

static int match(const struct mote_regex *regex, struct mote_regex_work *work, const char *text,
                 size_t length, size_t from)
{
    if (regex->jit)
        return pcre2_jit_match(regex->code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK, work->data,
                               work->context);
    return pcre2_match(regex->code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK, work->data,
                       work->context);
}

mote_status mote_regex_match(const struct mote_regex *regex, struct mote_regex_work *work, const char *text,
                             size_t length, size_t from, size_t *begin, size_t *end)
{
    int result = match(regex, work, text, length, from);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && !work->stack) {
        work->stack = pcre2_jit_stack_create(32 * 1024, STACK_LIMIT, work->general);
        FAIL_IF(!work->stack, MOTE_MEMORY, "pattern matcher: out of memory");
        pcre2_jit_stack_assign(work->context, NULL, work->stack);
        result = match(regex, work, text, length, from);
    }
    if (result == PCRE2_ERROR_NOMATCH) {
        *begin = *end = SIZE_MAX;
        return MOTE_OK;
    }
    if (result < 0) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(result, why, sizeof why);
        return mote_fail(result == PCRE2_ERROR_NOMEMORY ? MOTE_MEMORY : MOTE_UNSUPPORTED,
                         "pattern \"%s\" at byte %zu of a text of %zu: %s", regex->start, from, length,
                         (char *)why);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(work->data);
    /* \K or a lookbehind could put the bounds elsewhere; progress is what the caller relies on. */
    FAIL_IF(bounds[0] < from || bounds[1] < bounds[0] || bounds[1] > length, MOTE_UNSUPPORTED,
            "pattern \"%s\" matches outside the text it was given", regex->start);
    *begin = bounds[0];
    *end = bounds[1];
    return MOTE_OK;
}
