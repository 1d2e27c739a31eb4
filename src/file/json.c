/* json.c: see json.h. */
#include "file/json.h"

#include "file/catalogue_build.h"

mote_status mote_json_parse(const char *text, size_t length, json_t **out)
{
    json_error_t error;
    *out = length ? json_loadb(text, length, JSON_REJECT_DUPLICATES, &error) : NULL;
    FAIL_IF(length == 0, MOTE_FORMAT, "empty, expected a JSON object");
    FAIL_IF(!*out && json_error_code(&error) == json_error_out_of_memory, MOTE_MEMORY,
            "no memory for %zu bytes of JSON", length);
    FAIL_IF(!*out, MOTE_FORMAT, "not JSON: line %d, column %d: %s", error.line, error.column,
            mote_show_name(error.text).text);
    if (json_is_object(*out)) return MOTE_OK;
    const char *kind = mote_json_kind(*out);
    json_decref(*out);
    *out = NULL;
    return mote_fail(MOTE_FORMAT, "JSON holds %s, expected an object", kind);
}

const char *mote_json_kind(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "text";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "something";
}

int mote_json_u64(const json_t *value, uint64_t *out)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *out = (uint64_t)json_integer_value(value);
        return 1;
    }
    double real = json_is_real(value) ? json_real_value(value) : -1;
    if (real < 0 || real > 0x1p53 || real != (double)(uint64_t)real) return 0;
    *out = (uint64_t)real;
    return 1;
}
