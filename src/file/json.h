/* json.h: jansson with this project's errors. Internal to file/. */
#ifndef MOTE_FILE_JSON_H
#define MOTE_FILE_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"

/* An object, or an error with line and column. Names that come twice are refused. json_decref the result. */
mote_status mote_json_parse(const char *text, size_t length, json_t **out);
const char *mote_json_kind(const json_t *value); /* "text", "a number", ... for messages; NULL is "nothing" */
/* An integer that is not negative; a real without a fraction counts. 0 if it is none. */
int mote_json_u64(const json_t *value, uint64_t *out);

#endif
