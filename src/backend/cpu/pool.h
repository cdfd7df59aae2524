/* Worker threads that run a recorded list of tasks in order.
 *
 * A task is cut into chunks. Each thread of the team has a range of them, the same one every time, so that it
 * meets the same weights again; who is done helps the others. A task begins when the one before it is done.
 * A thread that the system has put aside holds up the others only while it is inside a chunk: nobody waits
 * for its arrival. One that does so often is left out for a while (team.h), so a shared machine slows us
 * down by what it takes away and no more. Which thread ran a chunk never changes a result. */
#ifndef DS_BACKEND_CPU_POOL_H
#define DS_BACKEND_CPU_POOL_H

#include "backend/backend.h"

#include <stddef.h>

typedef struct ds_pool ds_pool;
typedef void ds_task_fn(void *arg, int chunk, int worker); /* worker: 0 .. threads - 1 */

enum { DS_POOL_MAX_CHUNKS = 65535, DS_POOL_MAX_THREADS = 256 };

/* threads >= 1, the caller's own included: it works too while it waits in run. */
ds_status ds_pool_open(ds_pool **out, int threads, ds_error *err);
void ds_pool_close(ds_pool *pool); /* NULL is fine; forgets tasks that were not run */
int ds_pool_threads(const ds_pool *pool);
int ds_pool_active(const ds_pool *pool); /* of them, how many take part at present */

/* name: a string literal, for profiles.
 * Appends a task of at most DS_POOL_MAX_CHUNKS chunks and returns arg_size bytes for its argument (16-byte
 * aligned, uninitialised), which the caller fills before the next call. Runs what is recorded first
 * where the list is full. */
void *ds_pool_add(ds_pool *pool, const char *name, ds_task_fn *fn, int chunks, size_t arg_size);
/* Sets how many chunks the task added last has. */
void ds_pool_set_chunks(ds_pool *pool, int chunks);
/* As add, but never runs the list in between, so that a task may use the argument of the one before. */
void *ds_pool_follow(ds_pool *pool, const char *name, ds_task_fn *fn, int chunks, size_t arg_size);
/* Says how many bytes of weights the task added last reads. */
void ds_pool_weigh(ds_pool *pool, size_t bytes);
/* The list that is recorded may wait for files: that is not held against the team. */
void ds_pool_waits(ds_pool *pool);
void ds_pool_run(ds_pool *pool); /* returns when all recorded tasks are done; the list is empty then */

/* As the backend's functions of these names. */
void ds_pool_part(ds_pool *pool, const char *name);
void ds_pool_profile(ds_pool *pool, bool on);
int ds_pool_profile_rows(ds_pool *pool, ds_profile_row *rows, int max);
#endif
