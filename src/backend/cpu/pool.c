/* See pool.h. One 64-bit word per task carries the list's epoch, the number of chunks and how many are
 * claimed, so that a thread that wakes late can neither claim from nor wait for a list it was not
 * called for: its epoch no longer matches. */
#include "backend/cpu/pool.h"
#include "backend/cpu/profile.h"
#include "base/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MAX_TASKS = 4096,
    ARENA = 2 << 20,
    SPIN_IDLE = 4000,  /* pauses before an idle worker sleeps: tens of microseconds */
    SPIN_WAIT = 20000, /* pauses before a waiting thread gives its core up */
};

typedef struct {
    _Atomic uint64_t claim; /* epoch << 32 | chunks << 16 | claimed */
    _Atomic uint64_t done;  /* epoch << 32 | chunks that are done */
    ds_task_fn *fn;
    void *arg;
    const char *part, *name; /* for profiles, as is: */
    size_t bytes;            /* of weights */
    char pad[8]; /* tasks on separate cache lines: claims of one must not slow waits for another */
} task;

struct ds_pool {
    task *tasks;
    char *arena;
    size_t arena_used;
    int n_tasks, threads, started;
    const char *part;  /* of the tasks that are added */
    ds_profile profile; /* the caller's thread alone fills it */
    uint32_t epoch;
    _Atomic uint64_t list; /* epoch << 32 | tasks: what workers run */
    _Atomic uint32_t wake; /* futex word: changes with every list */
    _Atomic int sleepers;
    _Atomic bool quit;
    pthread_t handles[DS_POOL_MAX_THREADS];
    struct worker {
        ds_pool *pool;
        int index;
    } workers[DS_POOL_MAX_THREADS];
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_list(ds_pool *pool, uint32_t epoch, int n, int worker, ds_profile *profile)
{
    double begin = profile ? ds_now() : 0, waiting = 0;
    for (int i = 0; i < n; i++) {
        task *t = &pool->tasks[i];
        uint32_t chunks = 0;
        for (;;) {
            uint64_t v = atomic_load_explicit(&t->claim, memory_order_acquire);
            if ((uint32_t)(v >> 32) != epoch)
                return;
            chunks = (uint32_t)(v >> 16) & 0xffff;
            uint32_t claimed = (uint32_t)v & 0xffff;
            if (claimed >= chunks)
                break;
            if (!atomic_compare_exchange_weak_explicit(&t->claim, &v, v + 1, memory_order_acq_rel,
                                                       memory_order_relaxed))
                continue;
            t->fn(t->arg, (int)claimed, worker);
            atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
        }
        if (profile)
            waiting = ds_now();
        for (int spins = 0;; spins++) {
            uint64_t d = atomic_load_explicit(&t->done, memory_order_acquire);
            if ((uint32_t)(d >> 32) != epoch)
                return;
            if ((uint32_t)d >= chunks)
                break;
            if (spins < SPIN_WAIT)
                cpu_pause();
            else
                sched_yield();
        }
        if (profile) {
            double end = ds_now();
            ds_profile_add(profile, t->part, t->name, end - begin, end - waiting, t->bytes);
            begin = end;
        }
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    ds_pool *pool = w->pool;
    uint32_t seen = 0; /* epoch 0 is never run */
    for (;;) {
        int spins = 0;
        uint64_t list;
        for (;;) {
            uint32_t wake = atomic_load_explicit(&pool->wake, memory_order_acquire);
            list = atomic_load_explicit(&pool->list, memory_order_acquire);
            if (atomic_load_explicit(&pool->quit, memory_order_acquire))
                return NULL;
            if ((uint32_t)(list >> 32) != seen)
                break;
            if (spins++ < SPIN_IDLE) {
                cpu_pause();
                continue;
            }
            atomic_fetch_add(&pool->sleepers, 1);
            syscall(SYS_futex, (uint32_t *)&pool->wake, FUTEX_WAIT_PRIVATE, wake, NULL, NULL, 0);
            atomic_fetch_sub(&pool->sleepers, 1);
            spins = 0;
        }
        seen = (uint32_t)(list >> 32);
        run_list(pool, seen, (int)(uint32_t)list, w->index, NULL);
    }
}

static void wake_all(ds_pool *pool)
{
    atomic_fetch_add(&pool->wake, 1);
    if (atomic_load(&pool->sleepers) > 0)
        syscall(SYS_futex, (uint32_t *)&pool->wake, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

ds_status ds_pool_open(ds_pool **out, int threads, ds_error *err)
{
    *out = NULL;
    if (threads < 1 || threads > DS_POOL_MAX_THREADS)
        return ds_fail(err, DS_INVALID, "%d threads: give a number from 1 to %d", threads,
                       (int)DS_POOL_MAX_THREADS);
    ds_pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        pool->tasks = aligned_alloc(64, MAX_TASKS * sizeof *pool->tasks);
        pool->arena = aligned_alloc(64, ARENA);
    }
    if (!pool || !pool->tasks || !pool->arena) {
        ds_pool_close(pool);
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the thread pool");
    }
    for (int i = 0; i < MAX_TASKS; i++) {
        atomic_init(&pool->tasks[i].claim, 0);
        atomic_init(&pool->tasks[i].done, 0);
    }
    pool->threads = threads;
    pool->part = "setup";
    for (int i = 1; i < threads; i++) {
        pool->workers[i] = (struct worker){ pool, i };
        int rc = pthread_create(&pool->handles[i], NULL, worker_main, &pool->workers[i]);
        if (rc) {
            ds_pool_close(pool);
            return ds_fail(err, DS_NO_MEMORY, "could not start thread %d of %d (error %d): use fewer threads",
                           i + 1, threads, rc);
        }
        pool->started = i;
    }
    *out = pool;
    return DS_OK;
}

void ds_pool_close(ds_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->quit, true);
    wake_all(pool);
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->handles[i], NULL);
    free(pool->tasks);
    free(pool->arena);
    free(pool);
}

int ds_pool_threads(const ds_pool *pool)
{
    return pool->threads;
}

/* The word of a task that nobody has claimed from, for the epoch that ds_pool_run is about to use:
 * threads that are late from an earlier list see that it is not theirs. */
static uint64_t fresh(const ds_pool *pool)
{
    return (uint64_t)(uint32_t)(pool->epoch + 1 ? pool->epoch + 1 : 1) << 32;
}

void ds_pool_set_chunks(ds_pool *pool, int chunks)
{
    task *t = &pool->tasks[pool->n_tasks - 1];
    atomic_store_explicit(&t->done, fresh(pool), memory_order_relaxed);
    atomic_store_explicit(&t->claim, fresh(pool) | (uint64_t)chunks << 16, memory_order_release);
}

/* Tasks and bytes kept free for ds_pool_follow. */
enum { SPARE_TASKS = 8, SPARE_BYTES = 4096 };

void *ds_pool_follow(ds_pool *pool, const char *name, ds_task_fn *fn, int chunks, size_t arg_size)
{
    task *t = &pool->tasks[pool->n_tasks++];
    t->part = pool->part;
    t->name = name;
    t->bytes = 0;
    t->fn = fn;
    t->arg = pool->arena + pool->arena_used;
    pool->arena_used += (arg_size + 15) & ~(size_t)15;
    ds_pool_set_chunks(pool, chunks);
    return t->arg;
}

void *ds_pool_add(ds_pool *pool, const char *name, ds_task_fn *fn, int chunks, size_t arg_size)
{
    if (pool->n_tasks + SPARE_TASKS > MAX_TASKS || pool->arena_used + arg_size + SPARE_BYTES > ARENA)
        ds_pool_run(pool);
    return ds_pool_follow(pool, name, fn, chunks, arg_size);
}

void ds_pool_weigh(ds_pool *pool, size_t bytes)
{
    pool->tasks[pool->n_tasks - 1].bytes = bytes;
}

void ds_pool_part(ds_pool *pool, const char *name)
{
    pool->part = name;
}

void ds_pool_profile(ds_pool *pool, bool on)
{
    ds_pool_run(pool);
    pool->profile = (ds_profile){ .on = on };
}

int ds_pool_profile_rows(ds_pool *pool, ds_profile_row *rows, int max)
{
    ds_pool_run(pool);
    int n = pool->profile.n_rows < max ? pool->profile.n_rows : max;
    memcpy(rows, pool->profile.rows, (size_t)n * sizeof *rows);
    return n;
}

void ds_pool_run(ds_pool *pool)
{
    if (!pool->n_tasks)
        return;
    if (++pool->epoch == 0)
        pool->epoch = 1;
    atomic_store_explicit(&pool->list, (uint64_t)pool->epoch << 32 | (uint32_t)pool->n_tasks,
                          memory_order_release);
    if (pool->threads > 1)
        wake_all(pool);
    run_list(pool, pool->epoch, pool->n_tasks, 0, pool->profile.on ? &pool->profile : NULL);
    pool->n_tasks = 0;
    pool->arena_used = 0;
}
