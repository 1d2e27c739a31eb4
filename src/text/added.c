/* added.c: finding added tokens (control tokens, markers) in text.
 *
 * One idea: the tokens are sorted, so that those which start with the text read so far are a range; each further
 * byte narrows the range. Leftmost match, the longest one there, as `tokenizers` does it.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

static int compare(const struct mote_added *a, const struct mote_added *b)
{
    size_t n = a->text.length < b->text.length ? a->text.length : b->text.length;
    int order = memcmp(a->text.data, b->text.data, n);
    return order ? order : (a->text.length > b->text.length) - (a->text.length < b->text.length);
}

static void sift(struct mote_added *item, size_t at, size_t n)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && compare(&item[child], &item[child + 1]) < 0) child++;
        if (compare(&item[at], &item[child]) >= 0) return;
        struct mote_added swap = item[at];
        item[at] = item[child];
        item[child] = swap;
    }
}

mote_status mote_added_sort(struct mote_added_set *set)
{
    size_t n = set->n, kept = 0;
    for (size_t i = 0; i < n; i++) /* an empty one would match everywhere */
        if (set->item[i].text.length) set->item[kept++] = set->item[i];
    n = set->n = kept;
    for (size_t i = n / 2; i-- > 0;) sift(set->item, i, n);
    for (size_t i = n; i-- > 1;) {
        struct mote_added swap = set->item[0];
        set->item[0] = set->item[i];
        set->item[i] = swap;
        sift(set->item, 0, i);
    }
    for (size_t i = 1; i < n; i++)
        FAIL_IF(!compare(&set->item[i - 1], &set->item[i]), MOTE_FORMAT,
                "tokenizer: ids %d and %d are both \"%.*s\"", (int)set->item[i - 1].id, (int)set->item[i].id,
                (int)set->item[i].text.length, set->item[i].text.data);
    size_t at = 0;
    for (int byte = 0; byte <= 256; byte++) {
        while (at < n && (unsigned char)set->item[at].text.data[0] < byte) at++;
        set->first[byte] = (uint32_t)at;
    }
    return MOTE_OK;
}

/* The longest token at the start of text, NULL when there is none. */
static const struct mote_added *longest(const struct mote_added_set *set, const char *text, size_t length)
{
    const struct mote_added *best = NULL;
    size_t low = set->first[(unsigned char)text[0]], high = set->first[(unsigned char)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        /* Every item in [low, high) starts with text[0, depth); the shortest comes first. */
        if (set->item[low].text.length == depth) best = &set->item[low++];
        if (depth == length) break;
        int byte = (unsigned char)text[depth];
        for (size_t end = high; low < end;) { /* first item whose byte at depth is not below */
            size_t middle = low + (end - low) / 2;
            if ((unsigned char)set->item[middle].text.data[depth] < byte) low = middle + 1;
            else end = middle;
        }
        for (size_t start = low; start < high;) { /* first item whose byte is above */
            size_t middle = start + (high - start) / 2;
            if ((unsigned char)set->item[middle].text.data[depth] <= byte) start = middle + 1;
            else high = middle;
        }
    }
    return best;
}

static int is_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/* The character that ends at text + at; 0 bytes when there is none. */
static int previous(const char *text, size_t at, uint32_t *character)
{
    for (size_t n = 1; n <= 4 && n <= at; n++)
        if (mote_utf8_next(text + at - n, n, character) == (int)n) return (int)n;
    return 0;
}

/* For single_word only: a letter or digit of ASCII, or anything beyond ASCII that is not a space. */
static int is_word(uint32_t c)
{
    return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c >= 0xAA && !is_space(c));
}

mote_status mote_added_split(struct mote_encoder *e, const struct mote_added_set *set, const char *text,
                             size_t length, mote_status (*next)(struct mote_encoder *, const char *, size_t))
{
    size_t done = 0; /* everything before has gone out */
    uint32_t c;
    if (!set->n) return length ? next(e, text, length) : MOTE_OK;
    for (size_t at = 0; at < length;) {
        unsigned char byte = (unsigned char)text[at];
        if (set->first[byte] == set->first[byte + 1]) {
            at++;
            continue;
        }
        const struct mote_added *found = longest(set, text + at, length - at);
        if (!found) {
            at++;
            continue;
        }
        size_t begin = at, end = at + found->text.length;
        at = end; /* a match that does not count is passed over as a whole */
        if (found->special && !e->special) continue;
        if (found->single_word && ((previous(text, begin, &c) && is_word(c)) ||
                                   (mote_utf8_next(text + end, length - end, &c) && is_word(c))))
            continue;
        int step;
        if (found->lstrip)
            while (begin > done && (step = previous(text, begin, &c)) && is_space(c)) begin -= (size_t)step;
        if (found->rstrip)
            while ((step = mote_utf8_next(text + end, length - end, &c)) && is_space(c)) end += (size_t)step;
        if (begin > done) TRY(next(e, text + done, begin - done));
        mote_encoder_put(e, found->id);
        e->at_start = 0;
        done = at = end;
    }
    return done < length ? next(e, text + done, length - done) : MOTE_OK;
}
