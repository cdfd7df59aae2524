/* Where the time of a pool's tasks goes, by part and name. */
#ifndef DS_BACKEND_CPU_PROFILE_H
#define DS_BACKEND_CPU_PROFILE_H

#include "backend/backend.h"

enum { DS_PROFILE_ROWS = 64 }; /* names beyond that are counted in the last row */

typedef struct {
    bool on;
    int n_rows;
    ds_profile_row rows[DS_PROFILE_ROWS];
} ds_profile;

void ds_profile_add(ds_profile *p, const char *part, const char *name, double seconds, double wait,
                    size_t bytes);

#endif
