/* The CPU backend. */
#ifndef DS_BACKEND_CPU_CPU_H
#define DS_BACKEND_CPU_CPU_H

#include "backend/backend.h"

typedef struct {
    int threads;       /* 0: one a core */
    unsigned cpu_mask; /* of ds_cpu_mask(); 0: all that the machine has */
    bool exact;
    ds_log log;
} ds_cpu_opts;

ds_status ds_cpu_open(ds_backend **out, const ds_cpu_opts *opts, ds_error *err);

#endif
