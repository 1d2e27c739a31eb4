/* clock.h: monotonic seconds. */
#ifndef MOTE_BASE_CLOCK_H
#define MOTE_BASE_CLOCK_H

double mote_seconds(void); /* since an arbitrary start, never backwards */

#endif
