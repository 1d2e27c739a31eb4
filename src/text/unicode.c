/* unicode.c: UTF-8, and where the Unicode tables of our libraries differ from those of `tokenizers`.
 *
 * One idea: patterns run on Unicode 14 here and on 16 there, normal forms on 15 here and on 9 there. Characters that
 * fall in between are replaced by older ones of their kind in front of a pattern, and kept out of normal forms.
 */
#include "text/tokenizer_internal.h"
#include "text/unicode_map.h"

int mote_utf8_next(const char *data, size_t length, uint32_t *character)
{
    const unsigned char *s = (const unsigned char *)data;
    if (!length) return 0;
    if (s[0] < 0x80) {
        *character = s[0];
        return 1;
    }
    int n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || (size_t)n > length) return 0;
    uint32_t c = s[0] & (0x7Fu >> n);
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < smallest[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
    *character = c;
    return n;
}

int mote_utf8_put(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00 >> n & 0xF0) | (int)c);
    return n;
}

uint32_t mote_unicode_like(uint32_t c)
{
    size_t low = 0, high = sizeof unicode_map / sizeof *unicode_map, n = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (unicode_map[middle].last < c) low = middle + 1;
        else high = middle;
    }
    return low < n && c >= unicode_map[low].first ? unicode_map[low].like : 0;
}

int mote_unicode_no_form(uint32_t c)
{
    size_t low = 0, high = sizeof unicode_no_form / sizeof *unicode_no_form, n = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (unicode_no_form[middle].last < c) low = middle + 1;
        else high = middle;
    }
    return (low < n && c >= unicode_no_form[low].first) || mote_unicode_like(c);
}
