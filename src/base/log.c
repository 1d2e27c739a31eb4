/* log.c: see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static mote_log_fn *handler;
static void *handler_context;

void mote_log_set(mote_log_fn *fn, void *context)
{
    handler = fn;
    handler_context = context;
}

void mote_log(enum mote_log_level level, const char *format, ...)
{
    if (!handler) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    handler(handler_context, (int)level, text);
}
