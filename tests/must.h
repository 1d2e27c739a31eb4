/* must.h: for tests: a call that succeeds, a call that fails as it should. */
#ifndef MOTE_TESTS_MUST_H
#define MOTE_TESTS_MUST_H

#include "base/error.h"

#define must(call)                                                                      \
    do {                                                                                \
        if ((call) != MOTE_OK) fail_msg("%s:%d: %s", __FILE__, __LINE__, mote_error()); \
    } while (0)

/* The call fails with that status and its message holds `text`. */
#define must_fail(call, expected, text)                                                                   \
    do {                                                                                                  \
        mote_status status_ = (call);                                                                     \
        if (status_ != (expected) || !strstr(mote_error(), (text)))                                       \
            fail_msg("%s:%d: status %d, message \"%s\"", __FILE__, __LINE__, (int)status_, mote_error()); \
    } while (0)

#endif
