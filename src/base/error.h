/* error.h: how a function fails.
 *
 * Owns: the thread-local message behind mote_error(), and the macros that fail and pass failures on.
 * One idea: the function that finds the fault writes the message, callers put context in front of it.
 */
#ifndef MOTE_BASE_ERROR_H
#define MOTE_BASE_ERROR_H

#include "mote/status.h"

/* Set this thread's message (printf style) and return `status`. */
mote_status mote_fail(mote_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put "context: " in front of this thread's message and return `status` unchanged. */
mote_status mote_context(mote_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Return from the calling function when `expr` fails. */
#define TRY(expr)                                       \
    do {                                                \
        mote_status try_status_ = (expr);               \
        if (try_status_ != MOTE_OK) return try_status_; \
    } while (0)

/* Jump to a clean-up label when `expr` fails; `status` is the caller's variable. */
#define TRY_GOTO(expr, status, label)        \
    do {                                     \
        (status) = (expr);                   \
        if ((status) != MOTE_OK) goto label; \
    } while (0)

/* Return a failure with a message when `cond` holds. */
#define FAIL_IF(cond, status, ...)                         \
    do {                                                   \
        if (cond) return mote_fail((status), __VA_ARGS__); \
    } while (0)

#endif
