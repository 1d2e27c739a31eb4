/* pretokenizer.c: text to words, by the steps that a tokenizer.json lists or a GGUF names.
 *
 * Owns: the table of named pre-tokenizers. One idea: every split, whatever its name in the file, is a pattern and
 * a behaviour; a word that leaves one step enters the next at once, so nothing is collected.
 *
 * Bytes that are not UTF-8 become words of their own, and patterns see the stretches between them as separate texts.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- named pre-tokenizers: patterns as the models' own tokenizer.json have them ---- */

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TAIL_SLASH "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define UPPER_NO_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER_NO_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define QWEN2 CONTRACTION "|" HEAD "\\p{L}+|\\p{N}" TAIL
#define QWEN35           \
    CONTRACTION "|" HEAD \
                "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CONTRACTION "|" HEAD "\\p{L}+|\\p{N}{1,3}" TAIL
#define GPT4O                                                                                    \
    HEAD UPPER "*" LOWER "+" CONTRACTION "?|" HEAD UPPER "+" LOWER "*" CONTRACTION "?|\\p{N}{1," \
               "3}" TAIL_SLASH
#define TEKKEN HEAD UPPER "*" LOWER "+|" HEAD UPPER "+" LOWER "*|\\p{N}" TAIL_SLASH
#define KIMI                                                                                 \
    "[\\p{Han}]+|" HEAD UPPER_NO_HAN "*" LOWER_NO_HAN "+" CONTRACTION "?|" HEAD UPPER_NO_HAN \
    "+" LOWER_NO_HAN "*" CONTRACTION "?|\\p{N}{1,3}" TAIL
#define DEEPSEEK3                                                                                       \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK3_CJK "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-"        \
    "\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}"  \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-"        \
    "\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-" \
    "\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}"        \
    "\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-"       \
    "\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-"         \
    "\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-"        \
    "\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"         \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-"         \
    "\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}"         \
    "\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}"         \
    "\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"        \
    "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-"       \
    "\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}"  \
    "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define BAILING                                                                                   \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*" \
    "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define DEFAULT_PUNCTUATION "[\\p{P}\\$\\+<=>\\^~\\|]+"

const char mote_pattern_gpt2[] = GPT2;

enum { MAX_PATTERNS = 6 };

static const struct named {
    const char *name, *aliases; /* aliases are separated by spaces */
    int ignore_merges;
    int written; /* mote_tokenizer_vocab may give this name */
    const char *pattern[MAX_PATTERNS];
} named[] = {
    {"qwen2", "deepseek-r1-qwen megrez hunyuan stablelm2 solar-open grok-2", 0, 1, {QWEN2}},
    {"qwen35", "", 0, 1, {QWEN35}},
    {"llama-bpe", "llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 glm4 glm5", 1, 1, {LLAMA3}},
    {"smaug-bpe", "dbrx chatglm-bpe", 0, 1, {LLAMA3}},
    {"gpt-4o", "llama4 kanana2 minimax-m2", 0, 1, {GPT4O}},
    {"tekken", "", 1, 1, {TEKKEN}},
    {"kimi-k2", "", 0, 1, {KIMI}},
    {"deepseek-v3", "hunyuan-dense joyai-llm", 0, 1, {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}},
    {"deepseek-llm",
     "",
     0,
     1,
     {"[\r\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", "\\s+$",
      DEEPSEEK_CJK, "\\p{N}+"}},
    {"deepseek-coder", "", 0, 1, {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {"bailingmoe", "bailingmoe2 llada-moe", 0, 1, {BAILING}},
    {"starcoder", "smollm refact command-r codeshell exaone minerva-7b mellum2", 0, 1, {"\\p{N}", GPT2}},
    {"gpt-2",
     "phi-2 olmo mpt jais trillion granite-docling exaone4 mellum modern-bert gigachat",
     0,
     1,
     {GPT2}},
    /* What a GGUF with this name, or without any, means to the program that defined the format. */
    {"default", "", 0, 0, {DEFAULT_PUNCTUATION, GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
enum { N_NAMED = sizeof named / sizeof *named };

static int has_name(const struct named *entry, const char *name)
{
    size_t length = strlen(name);
    if (!strcmp(entry->name, name)) return 1;
    for (const char *at = entry->aliases; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ' ' || !at[length]) && length) return 1;
    return 0;
}

mote_status mote_steps_by_name(struct mote_tokenizer *t, const char *name)
{
    for (size_t i = 0; i < N_NAMED; i++) {
        if (!has_name(&named[i], name)) continue;
        t->ignore_merges = named[i].ignore_merges;
        for (size_t k = 0; k < MAX_PATTERNS && named[i].pattern[k]; k++)
            TRY(mote_steps_add_split(t, named[i].pattern[k], strlen(named[i].pattern[k]), MOTE_SPLIT_ISOLATED,
                                     0));
        return MOTE_OK;
    }
    return mote_fail(
        MOTE_UNSUPPORTED,
        "pre-tokenizer \"%s\" is not known; known are qwen2, qwen35, llama-bpe, smaug-bpe, gpt-4o, "
        "tekken, kimi-k2, deepseek-v3, deepseek-llm, deepseek-coder, glm4, bailingmoe, starcoder, gpt-2, "
        "default and their aliases",
        name);
}

/* Equal, where a control character and its escape are the same: some files have "\\r" in a pattern, some a CR. */
static int same_pattern(const char *a, const char *b)
{
    while (*a && *b) {
        char x = *a++, y = *b++;
        if (x == '\\' && (*a == 'r' || *a == 'n') && (y == '\r' || y == '\n')) x = *a++ == 'r' ? '\r' : '\n';
        else if (y == '\\' && (*b == 'r' || *b == 'n') && (x == '\r' || x == '\n'))
            y = *b++ == 'r' ? '\r' : '\n';
        if (x != y) return 0;
    }
    return *a == *b;
}

static int same_steps(const struct mote_tokenizer *t, const struct named *entry)
{
    size_t k = 0;
    for (; k < t->n_step && k < MAX_PATTERNS && entry->pattern[k]; k++) {
        const struct mote_step *s = &t->step[k];
        /* These patterns leave nothing between matches, so that removing it is the same. */
        int keeps_all = s->behavior == MOTE_SPLIT_ISOLATED ||
                        (s->behavior == MOTE_SPLIT_REMOVED && s->invert && t->n_step == 1);
        if (s->kind != MOTE_STEP_SPLIT || !keeps_all || !same_pattern(s->pattern, entry->pattern[k]))
            return 0;
    }
    return k && k == t->n_step && (k == MAX_PATTERNS || !entry->pattern[k]);
}

const char *mote_steps_name(const struct mote_tokenizer *t)
{
    const char *otherwise = NULL;
    for (size_t i = 0; i < N_NAMED; i++) {
        if (!named[i].written || !same_steps(t, &named[i])) continue;
        if (named[i].ignore_merges == t->ignore_merges) return named[i].name;
        if (t->merges_make_all) otherwise = named[i].name;
    }
    return otherwise;
}

mote_status mote_steps_add(struct mote_tokenizer *t, struct mote_step step)
{
    FAIL_IF(t->n_step == MOTE_MAX_STEPS, MOTE_UNSUPPORTED, "pre-tokenizer: more than %d steps",
            MOTE_MAX_STEPS);
    t->step[t->n_step++] = step;
    return MOTE_OK;
}

mote_status mote_steps_add_split(struct mote_tokenizer *t, const char *pattern, size_t length,
                                 enum mote_split_behavior behavior, int invert)
{
    struct mote_step step = {.kind = MOTE_STEP_SPLIT, .behavior = behavior, .invert = invert};
    char *copy;
    TRY(mote_arena_strdup(&t->arena, pattern, length, &copy));
    step.pattern = copy;
    FAIL_IF(t->n_step == MOTE_MAX_STEPS, MOTE_UNSUPPORTED, "pre-tokenizer: more than %d steps",
            MOTE_MAX_STEPS);
    TRY(mote_regex_create(pattern, length, t->budget, &step.regex));
    t->step[t->n_step++] = step;
    return MOTE_OK;
}

/* ---- running the steps ---- */

struct span { /* text and its stand-in for patterns: mostly the same pointer, always the same length */
    const char *text, *shadow;
    size_t length;
};

static struct span part(struct span span, size_t begin, size_t end)
{
    return (struct span){span.text + begin, span.shadow + begin, end - begin};
}

static mote_status run(struct mote_encoder *e, size_t index, struct span span);

/* Matches and what lies between them come in order; behaviours join neighbours before they go on. */
struct joiner {
    struct mote_encoder *e;
    size_t next; /* step */
    struct span span;
    enum mote_split_behavior behavior;
    size_t begin, end; /* pending piece */
    int pending, pending_match;
};

static mote_status flush(struct joiner *j)
{
    if (!j->pending) return MOTE_OK;
    j->pending = 0;
    return run(j->e, j->next, part(j->span, j->begin, j->end));
}

static mote_status join(struct joiner *j, size_t begin, size_t end, int is_match)
{
    if (begin == end) return MOTE_OK;
    int extend = 0;
    switch (j->behavior) {
    case MOTE_SPLIT_REMOVED:
        if (is_match) return MOTE_OK;
        break;
    case MOTE_SPLIT_CONTIGUOUS: extend = j->pending && j->pending_match == is_match; break;
    case MOTE_SPLIT_MERGED_PREVIOUS: extend = j->pending && is_match && !j->pending_match; break;
    case MOTE_SPLIT_MERGED_NEXT: extend = j->pending && !is_match && j->pending_match; break;
    case MOTE_SPLIT_ISOLATED: break;
    }
    if (!extend) {
        TRY(flush(j));
        j->begin = begin;
    }
    j->end = end;
    j->pending = 1;
    j->pending_match = is_match;
    return MOTE_OK;
}

static mote_status split(struct mote_encoder *e, size_t index, struct span span)
{
    const struct mote_step *step = &e->t->step[index];
    struct joiner j = {.e = e, .next = index + 1, .span = span, .behavior = step->behavior};
    size_t done = 0, from = 0, begin, end;
    while (from <= span.length) {
        TRY(mote_regex_match(step->regex, e->regex, span.shadow, span.length, from, &begin, &end));
        if (begin == SIZE_MAX) break;
        TRY(join(&j, done, begin, step->invert));
        TRY(join(&j, begin, end, !step->invert));
        done = from = end;
        if (begin == end) { /* an empty match is a border; look for the next one character on */
            uint32_t c;
            int n = mote_utf8_next(span.shadow + from, span.length - from, &c);
            from += n ? (size_t)n : 1;
        }
    }
    TRY(join(&j, done, span.length, step->invert));
    return flush(&j);
}

static mote_status add_marked(struct mote_encoder *e, struct mote_buffer *buffer,
                              const struct mote_step *step, int prefix, const char *text, size_t length)
{
    struct mote_budget *budget = e->t->budget;
    buffer->length = 0;
    if (step->kind == MOTE_STEP_PREFIX) {
        TRY(mote_buffer_append(buffer, budget, " ", (size_t)prefix));
        return mote_buffer_append(buffer, budget, text, length);
    }
    TRY(mote_buffer_append(buffer, budget, MOTE_SPACE_MARK, prefix ? 3 : 0));
    for (size_t at = 0, end; at < length; at = end + 1) {
        const char *space = memchr(text + at, ' ', length - at);
        end = space ? (size_t)(space - text) : length;
        TRY(mote_buffer_append(buffer, budget, text + at, end - at));
        if (space) TRY(mote_buffer_append(buffer, budget, MOTE_SPACE_MARK, 3));
    }
    return MOTE_OK;
}

static mote_status mark(struct mote_encoder *e, size_t index, struct span span)
{
    const struct mote_step *step = &e->t->step[index];
    int starts = span.text[0] == ' ' ||
                 (step->kind == MOTE_STEP_MARK && span.length >= 3 && !memcmp(span.text, MOTE_SPACE_MARK, 3));
    int wanted = step->prepend == MOTE_PREPEND_ALWAYS || (step->prepend == MOTE_PREPEND_FIRST && e->at_start);
    e->at_start = 0;
    TRY(add_marked(e, &e->marked[0], step, wanted && !starts, span.text, span.length));
    struct span marked = {e->marked[0].data, e->marked[0].data, e->marked[0].length};
    if (span.shadow != span.text) {
        TRY(add_marked(e, &e->marked[1], step, wanted && !starts, span.shadow, span.length));
        marked.shadow = e->marked[1].data;
    }
    return run(e, index + 1, marked);
}

/* Without a token that spans it, the border in front of U+2581 can be cut: short words instead of one long text. */
static mote_status words_at_mark(struct mote_encoder *e, struct span span)
{
    size_t begin = 0, at = 0;
    while (at < span.length) {
        const char *hit = memchr(span.text + at, MOTE_SPACE_MARK[0], span.length - at);
        if (!hit) break;
        at = (size_t)(hit - span.text);
        int is_mark = span.length - at >= 3 && !memcmp(hit, MOTE_SPACE_MARK, 3);
        int after_mark = at >= 3 && !memcmp(hit - 3, MOTE_SPACE_MARK, 3);
        if (is_mark && !after_mark && at > begin) {
            TRY(mote_encode_word(e, span.text + begin, at - begin));
            begin = at;
        }
        at += is_mark ? 3 : 1;
    }
    return mote_encode_word(e, span.text + begin, span.length - begin);
}

static mote_status run(struct mote_encoder *e, size_t index, struct span span)
{
    if (index < e->t->n_step)
        return e->t->step[index].kind == MOTE_STEP_SPLIT ? split(e, index, span) : mark(e, index, span);
    e->at_start = 0;
    if (e->t->words_at_mark) return words_at_mark(e, span);
    return mote_encode_word(e, span.text, span.length);
}

/* ---- well-formed stretches, and stand-ins for characters newer than the pattern matcher's tables ---- */

static size_t ascii_run(const char *text, size_t length)
{
    size_t n = 0;
    uint64_t chunk;
    for (; n + 8 <= length; n += 8) {
        memcpy(&chunk, text + n, 8);
        if (chunk & 0x8080808080808080u) break;
    }
    while (n < length && (unsigned char)text[n] < 0x80) n++;
    return n;
}

static mote_status shadow(struct mote_encoder *e, const char *text, size_t length)
{
    e->shadow.length = 0;
    TRY(mote_buffer_append(&e->shadow, e->t->budget, text, length));
    uint32_t c, like;
    for (size_t at = 0; at < length;) {
        int n = mote_utf8_next(text + at, length - at, &c);
        if (n >= 3 && (like = mote_unicode_like(c))) mote_utf8_put(like, e->shadow.data + at);
        at += (size_t)n;
    }
    return MOTE_OK;
}

mote_status mote_pretokenize(struct mote_encoder *e, const char *text, size_t length)
{
    for (size_t begin = 0, at = 0; begin < length; begin = at) {
        int mapped = 0;
        uint32_t c;
        while (at < length) {
            at += ascii_run(text + at, length - at);
            int n = mote_utf8_next(text + at, length - at, &c);
            if (!n) break;
            at += (size_t)n;
            if (n >= 3 && e->t->n_step && mote_unicode_like(c)) mapped = 1;
        }
        if (mapped) TRY(shadow(e, text + begin, at - begin));
        if (at > begin)
            TRY(run(e, 0, (struct span){text + begin, mapped ? e->shadow.data : text + begin, at - begin}));
        if (at < length) {
            e->at_start = 0;
            TRY(mote_encode_word(e, text + at, 1));
            at++;
        }
    }
    return MOTE_OK;
}
