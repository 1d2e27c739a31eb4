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
#define X(name, number, text) \
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
    char front[sizeof message];
    va_list args;
    va_start(args, format);
    vsnprintf(front, sizeof front - 2, format, args);
    va_end(args);
    strcat(front, ": ");
    size_t n = strlen(front), kept = strlen(message);
    if (kept > sizeof message - 1 - n) kept = sizeof message - 1 - n; /* the end of the old message is cut */
    memmove(message + n, message, kept);
    memcpy(message, front, n);
    message[n + kept] = 0;
    return status;
}
