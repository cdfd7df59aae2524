/* Which workers take part. A worker that other programs keep from its core makes everyone wait whenever it
 * is stopped inside a chunk; where that costs more than the worker brings, it is left out for a while, and
 * then tried again, with pauses that double. Only bookkeeping: the pool measures and obeys. */
#ifndef DS_BACKEND_CPU_TEAM_H
#define DS_BACKEND_CPU_TEAM_H

#include "backend/cpu/pool.h"

typedef struct {
    bool out;
    double until; /* when it is tried again */
    double pause; /* how long it is left out the next time */
    double good;  /* seconds of lists without harm since it was taken in */
    double late;  /* seconds in this window that others waited for it while it was not running */
} ds_member;

typedef struct {
    int threads, active; /* active: the caller, who is always in, and the members that are not out */
    double wall, lost;   /* of the lists of this window */
    ds_member members[DS_POOL_MAX_THREADS];
} ds_team;

void ds_team_open(ds_team *t, int threads);
/* Before a list: takes in one whose pause is over. True: somebody was taken in. */
bool ds_team_begin(ds_team *t, double now);
/* The others waited for this worker, who was not running. */
void ds_team_late(ds_team *t, int worker, double seconds);
/* After a list that took `wall` seconds, of which `lost` went by without progress because threads of the team
 * were not running. The worker that is left out from now on, or 0. */
int ds_team_end(ds_team *t, double now, double wall, double lost);

#endif
