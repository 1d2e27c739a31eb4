/* mote/status.h: what a call can come back with.
 *
 * Owns: the list of status values (numbers are pinned: they are part of the ABI) and access to the message
 * of the last failure on this thread. Every mote_* function that can fail returns a mote_status; on failure
 * the message says what, where and what was expected, with context added on the way up.
 */
#ifndef MOTE_STATUS_H
#define MOTE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(_WIN32)
#define MOTE_API __attribute__((visibility("default")))
#else
#define MOTE_API
#endif

/* X(name, number, text) */
#define MOTE_STATUS_LIST(X)                \
    X(OK, 0, "ok")                         \
    X(ARGUMENT, 1, "bad argument")         \
    X(MEMORY, 2, "out of memory")          \
    X(BUDGET, 3, "over the memory budget") \
    X(IO, 4, "input/output error")         \
    X(FORMAT, 5, "malformed file")         \
    X(UNSUPPORTED, 6, "not supported")     \
    X(NOT_FOUND, 7, "not found")           \
    X(CONTEXT, 8, "context is full")       \
    X(NUMERIC, 9, "not a number")          \
    X(CANCELLED, 10, "cancelled")          \
    X(DEVICE, 11, "device error")          \
    X(INTERNAL, 12, "internal error")

typedef enum mote_status {
#define X(name, number, text) MOTE_##name = number,
    MOTE_STATUS_LIST(X)
#undef X
} mote_status;

/* How a struct with struct_size begins: struct mote_x x = MOTE_OPTIONS(mote_x); everything else is zero, the default. Libraries
 * of a later version read it by its size. */
#ifdef __cplusplus
#define MOTE_OPTIONS(type)  \
    {                       \
        sizeof(struct type) \
    }
#else
#define MOTE_OPTIONS(type)                 \
    {                                      \
        .struct_size = sizeof(struct type) \
    }
#endif

/* The fixed text of a status value; "unknown status" for a number that is not in the list. */
MOTE_API const char *mote_status_text(mote_status status);

/* The message of the last failed call on this thread, "" if none. Valid until the next failing call on this
 * thread. Never NULL. */
MOTE_API const char *mote_error(void);

#ifdef __cplusplus
}
#endif
#endif
