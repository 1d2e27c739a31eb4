/* log.h: warnings and progress, handed to whoever embeds the library.
 *
 * The library never prints: without a handler, messages are dropped.
 */
#ifndef MOTE_BASE_LOG_H
#define MOTE_BASE_LOG_H

enum mote_log_level { MOTE_LOG_WARNING, MOTE_LOG_INFO };
typedef void mote_log_fn(void *context, int level, const char *message);

void mote_log_set(mote_log_fn *fn, void *context); /* NULL: drop. Process-wide. */
void mote_log(enum mote_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
