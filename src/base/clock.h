/* Monotonic time. */
#ifndef DS_BASE_CLOCK_H
#define DS_BASE_CLOCK_H

double ds_now(void); /* seconds since some fixed moment */

#endif
