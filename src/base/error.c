/* error.c: see error.h. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[2048];

const char *mote_error(void)
{
    return message;
}

const char *mote_status_text(mote_status status)
{
    switch (status) {
#define X(name, number, text)                                                                                \
    case MOTE_##name: return text;
        MOTE_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

mote_status mote_fail(mote_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

mote_status mote_context(mote_status status, const char *format, ...)
{
    char old[sizeof message];
    memcpy(old, message, sizeof old);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (n < 0) n = 0;
    if ((size_t)n >= sizeof message) n = (int)sizeof message - 1;
    snprintf(message + n, sizeof message - (size_t)n, ": %s", old);
    return status;
}
