/* See pool.h. What keeps threads that are late, from a list that is over, from doing harm:
 *
 * - A list's word changes when the list begins and when it ends. What a worker reads of a list
 *   counts only if the word is still the same afterwards; a list cannot end before what is claimed is reported.
 * - Ranges carry the number of the task they belong to. A range of an earlier task is one that nobody has
 *   claimed from yet, so nobody has to set ranges up for a thread that does not come.
 * - Tasks are numbered on and on, and chunks that are done only ever counted up. */
#include "backend/cpu/pool.h"
#include "backend/cpu/profile.h"
#include "backend/cpu/team.h"
#include "base/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_TASKS = 4096,
    ARENA = 2 << 20,
    LINE = 64,      /* bytes that processors pass around as one */
    GROUP = 8,      /* threads that count what is done in one word */
    NEIGHBOURS = 8, /* whom a worker helps; the caller helps all, so that no chunk is forgotten */
};

/* Waiting costs the others nothing for a while, if they run; after that the core may be what they need. */
static const double SPIN = 100e-6;

typedef struct {
    _Atomic uint32_t chunks;
    ds_task_fn *fn;
    void *arg;
    const char *part, *name; /* for profiles, as is: */
    size_t bytes;            /* of weights */
} task;

/* The range of one place in the team: task << 32 | next << 16 | end. Its thread takes from the front, others
 * from the end. */
typedef struct {
    alignas(LINE) _Atomic uint64_t range;
} place;

typedef struct {
    alignas(LINE) _Atomic uint64_t chunks; /* that threads of a group have done, since the pool was opened */
} tally;

typedef struct {
    alignas(LINE) ds_pool *pool;
    int index;
    _Atomic int place;
    _Atomic bool out;  /* left out: sleeps until it is called back */
    _Atomic bool busy; /* may be inside a chunk */
    pthread_t handle;
    clockid_t clock;  /* of the time it has run */
    double ran; /* the caller's, while it waits; -1: was not busy */
} worker;

struct ds_pool {
    /* read by all, written once a list */
    alignas(LINE) _Atomic uint64_t list; /* epoch << 32 | size of the team << 16 | tasks; tasks 0: none */
    _Atomic uint64_t done_before;        /* chunks done when the list began */
    _Atomic uint32_t first;              /* number of the list's first task */
    _Atomic uint32_t wake;               /* futex word of those that wait for a list */
    _Atomic uint32_t recall;             /* futex word of those that are left out */
    _Atomic bool quit;
    task *tasks;
    place *places;
    tally *done;
    worker *workers;
    int threads, groups, spins;
    /* written by all, rarely */
    alignas(LINE) _Atomic int sleepers;
    _Atomic int waiters;   /* for the end of a task, asleep */
    _Atomic uint32_t tick; /* futex word of those */
    /* the caller's */
    alignas(LINE) char *arena;
    size_t arena_used;
    int n_tasks, started;
    bool waits; /* the list that is recorded may wait for files */
    uint32_t epoch;
    const char *part;
    double lost;             /* in the list that runs, for a worker that did not */
    double mark, ran, slept; /* since the time `mark`: the caller's own, as of then, and what it slept */
    double end;              /* of the last list */
    ds_team team;
    ds_profile profile;
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, const struct timespec *limit)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, limit, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Seconds that a thread has been on a core. */
static double ran(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t))
        return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- claims --- */

static uint32_t range_begin(uint32_t chunks, int at, int team)
{
    /* rounded up: a single chunk is the caller's; 65535 x 256 fits */
    return (chunks * (uint32_t)at + (uint32_t)team - 1) / (uint32_t)team;
}

/* A chunk of task `number` from the range of place `at`; -1: there is none left, or the task is over. */
static int claim(ds_pool *pool, uint32_t number, uint32_t chunks, int at, int team, bool own)
{
    _Atomic uint64_t *range = &pool->places[at].range;
    uint64_t v = atomic_load_explicit(range, memory_order_acquire);
    for (;;) {
        int32_t age = (int32_t)((uint32_t)(v >> 32) - number);
        if (age > 0)
            return -1;
        uint32_t next = (uint32_t)v >> 16, end = (uint32_t)v & 0xffff;
        if (age < 0) {
            next = range_begin(chunks, at, team);
            end = range_begin(chunks, at + 1, team);
        }
        if (next >= end)
            return -1;
        uint32_t chunk = own ? next++ : --end;
        if (atomic_compare_exchange_weak_explicit(range, &v, (uint64_t)number << 32 | next << 16 | end,
                                                  memory_order_acq_rel, memory_order_acquire))
            return (int)chunk;
    }
}

static bool over(ds_pool *pool, uint64_t list)
{
    return atomic_load_explicit(&pool->list, memory_order_acquire) != list;
}

/* Runs what can be claimed of a task; the number of chunks. */
static int work(ds_pool *pool, uint64_t list, task *t, uint32_t number, uint32_t chunks, worker *w)
{
    int team = (int)(uint32_t)list >> 16, mine = atomic_load_explicit(&w->place, memory_order_relaxed) % team;
    int help = w->index == 0 || team - 1 < NEIGHBOURS ? team - 1 : NEIGHBOURS, did = 0;
    for (int k = 0; k <= help; k++) {
        int at = mine + k < team ? mine + k : mine + k - team;
        for (int chunk; (chunk = claim(pool, number, chunks, at, team, k == 0)) >= 0; did++)
            t->fn(t->arg, chunk, w->index);
    }
    return did;
}

/* --- waiting for the end of a task --- */

static bool reached(ds_pool *pool, uint64_t target)
{
    uint64_t sum = 0;
    for (int g = 0; g < pool->groups; g++)
        sum += atomic_load(&pool->done[g].chunks);
    return (int64_t)(sum - target) >= 0;
}

static bool is_busy(worker *w)
{
    return atomic_load_explicit(&w->busy, memory_order_relaxed);
}

/* The caller notes how long those it waits for have run. */
static void look_before(ds_pool *pool)
{
    for (int i = 1; i < pool->threads; i++) {
        worker *w = &pool->workers[i];
        w->ran = is_busy(w) ? ran(w->clock) : -1;
    }
}

/* Seconds of those `passed` since then that a worker it still waits for was not running; 0: it ran, and its
 * chunk is long. A worker that was done in between may have slept since, and does not count. */
static double lateness(worker *w, double passed)
{
    if (w->ran < 0 || !is_busy(w))
        return 0;
    double late = passed - (ran(w->clock) - w->ran);
    return late > passed / 2 ? late : 0;
}

static bool anyone_late(ds_pool *pool, double passed)
{
    for (int i = 1; i < pool->threads; i++)
        if (lateness(&pool->workers[i], passed) > 0)
            return true;
    return false;
}

static void note_late(ds_pool *pool, double passed)
{
    double most = 0;
    for (int i = 1; i < pool->threads; i++) {
        double late = lateness(&pool->workers[i], passed);
        if (late > 0)
            ds_team_late(&pool->team, i, late);
        most = late > most ? late : most;
    }
    pool->lost += most;
}

/* False: not within so many pauses. */
static bool spin_until(ds_pool *pool, uint64_t list, uint64_t target, bool caller, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (reached(pool, target) || (!caller && over(pool, list)))
            return true;
        cpu_pause();
    }
    return false;
}

static void sleep_until(ds_pool *pool, uint64_t list, uint64_t target, const struct timespec *limit)
{
    uint32_t tick = atomic_load(&pool->tick);
    atomic_fetch_add(&pool->waiters, 1);
    if (!reached(pool, target) && !over(pool, list))
        futex_wait(&pool->tick, tick, limit);
    atomic_fetch_sub(&pool->waiters, 1);
}

/* Sleeping lets a core idle, so that the system moves a thread there that waits for another core. The caller
 * does so only if somebody needs it: to be woken takes as long as many chunks. */
static void wait_until(ds_pool *pool, uint64_t list, uint64_t target, bool caller)
{
    static const struct timespec look = { .tv_nsec = 250000 };
    if (spin_until(pool, list, target, caller, pool->spins))
        return;
    while (!reached(pool, target) && !over(pool, list)) {
        if (!caller) {
            sleep_until(pool, list, target, NULL);
            continue;
        }
        double begin = ds_now();
        look_before(pool);
        if (spin_until(pool, list, target, true, pool->spins / 2))
            return;
        double from = ds_now();
        if (!anyone_late(pool, from - begin))
            continue;
        sleep_until(pool, list, target, &look);
        double end = ds_now();
        pool->slept += end - from;
        note_late(pool, end - begin);
    }
}

/* --- lists --- */

static void run_list(ds_pool *pool, uint64_t list, worker *w, ds_profile *profile)
{
    bool caller = w->index == 0;
    int n = (int)(list & 0xffff);
    uint32_t first = atomic_load_explicit(&pool->first, memory_order_acquire);
    uint64_t target = atomic_load_explicit(&pool->done_before, memory_order_acquire);
    if (!caller && over(pool, list)) /* then these are another list's, whose chunks we may not claim */
        return;
    tally *done = &pool->done[w->index / GROUP];
    double begin = profile ? ds_now() : 0, waiting = 0;
    for (int i = 0; i < n; i++) {
        task *t = &pool->tasks[i];
        uint32_t chunks = atomic_load_explicit(&t->chunks, memory_order_acquire);
        if (!caller && over(pool, list))
            return;
        target += chunks;
        atomic_store_explicit(&w->busy, true, memory_order_relaxed);
        int did = work(pool, list, t, first + (uint32_t)i, chunks, w);
        if (did > 0)
            atomic_fetch_add(&done->chunks, (uint64_t)did);
        atomic_store_explicit(&w->busy, false, memory_order_relaxed);
        if (did > 0 && atomic_load(&pool->waiters) > 0 && reached(pool, target))
            futex_wake(&pool->tick);
        if (profile)
            waiting = ds_now();
        wait_until(pool, list, target, caller);
        if (profile) {
            double end = ds_now();
            ds_profile_add(profile, t->part, t->name, end - begin, end - waiting, t->bytes);
            begin = end;
        }
    }
}

/* Without a team there is nothing to agree on. */
static void run_alone(ds_pool *pool, ds_profile *profile)
{
    double begin = profile ? ds_now() : 0;
    for (int i = 0; i < pool->n_tasks; i++) {
        const task *t = &pool->tasks[i];
        int chunks = (int)atomic_load_explicit(&t->chunks, memory_order_relaxed);
        for (int c = 0; c < chunks; c++)
            t->fn(t->arg, c, 0);
        if (profile) {
            double end = ds_now();
            ds_profile_add(profile, t->part, t->name, end - begin, 0, t->bytes);
            begin = end;
        }
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    ds_pool *pool = w->pool;
    uint32_t seen = 0; /* epoch 0 is never run */
    for (int spins = 0;;) {
        uint32_t recall = atomic_load(&pool->recall), wake = atomic_load(&pool->wake);
        if (atomic_load_explicit(&pool->quit, memory_order_acquire))
            return NULL;
        if (atomic_load(&w->out)) {
            futex_wait(&pool->recall, recall, NULL);
            continue;
        }
        uint64_t list = atomic_load_explicit(&pool->list, memory_order_acquire);
        if ((uint32_t)list && (uint32_t)(list >> 32) != seen) {
            seen = (uint32_t)(list >> 32);
            run_list(pool, list, w, NULL);
            spins = 0;
        } else if (spins++ < pool->spins) {
            cpu_pause();
        } else {
            atomic_fetch_add(&pool->sleepers, 1);
            futex_wait(&pool->wake, wake, NULL);
            atomic_fetch_sub(&pool->sleepers, 1);
            spins = 0;
        }
    }
}

/* --- opening and closing --- */

/* How many pauses take SPIN: they last from 10 to 150 cycles, by the processor. */
static int calibrate(void)
{
    enum { N = 500 };
    double best = 1;
    for (int i = 0; i < 5; i++) {
        double begin = ds_now();
        for (int k = 0; k < N; k++)
            cpu_pause();
        double took = ds_now() - begin;
        best = took < best ? took : best;
    }
    return best > 0 ? (int)(SPIN / best * N) + 1 : N;
}

static ds_status start(ds_pool *pool, ds_error *err)
{
    for (int i = 0; i < pool->threads; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->index = i;
        atomic_init(&w->place, i);
        int rc = i ? pthread_create(&w->handle, NULL, worker_main, w) : 0;
        if (rc)
            return ds_fail(err, DS_NO_MEMORY, "could not start thread %d of %d (error %d): use fewer threads",
                           i + 1, pool->threads, rc);
        if (i && pthread_getcpuclockid(w->handle, &w->clock))
            w->clock = CLOCK_MONOTONIC; /* runs always: is never late */
        pool->started = i;
    }
    return DS_OK;
}

static void *lines(size_t bytes)
{
    void *mem = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
    if (mem)
        memset(mem, 0, bytes);
    return mem;
}

ds_status ds_pool_open(ds_pool **out, int threads, ds_error *err)
{
    *out = NULL;
    if (threads < 1 || threads > DS_POOL_MAX_THREADS)
        return ds_fail(err, DS_INVALID, "%d threads: give a number from 1 to %d", threads,
                       (int)DS_POOL_MAX_THREADS);
    ds_pool *pool = lines(sizeof *pool);
    if (pool) {
        pool->threads = threads;
        pool->groups = (threads + GROUP - 1) / GROUP;
        pool->tasks = lines(MAX_TASKS * sizeof *pool->tasks);
        pool->arena = aligned_alloc(LINE, ARENA);
        pool->places = lines((size_t)threads * sizeof *pool->places);
        pool->done = lines((size_t)pool->groups * sizeof *pool->done);
        pool->workers = lines((size_t)threads * sizeof *pool->workers);
    }
    if (!pool || !pool->tasks || !pool->arena || !pool->places || !pool->done || !pool->workers) {
        ds_pool_close(pool);
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the thread pool");
    }
    pool->part = "setup";
    pool->spins = threads > 1 ? calibrate() : 0;
    ds_team_open(&pool->team, threads);
    ds_status status = start(pool, err);
    if (status)
        ds_pool_close(pool);
    else
        *out = pool;
    return status;
}

void ds_pool_close(ds_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->quit, true);
    futex_wake(&pool->wake);
    futex_wake(&pool->recall);
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].handle, NULL);
    free(pool->tasks);
    free(pool->arena);
    free(pool->places);
    free(pool->done);
    free(pool->workers);
    free(pool);
}

int ds_pool_threads(const ds_pool *pool)
{
    return pool->threads;
}

int ds_pool_active(const ds_pool *pool)
{
    return pool->team.active;
}

/* --- recording --- */

void ds_pool_set_chunks(ds_pool *pool, int chunks)
{
    atomic_store_explicit(&pool->tasks[pool->n_tasks - 1].chunks, (uint32_t)chunks, memory_order_release);
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

void ds_pool_waits(ds_pool *pool)
{
    pool->waits = true;
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

/* --- running --- */

/* Gives the members their places. The ranges of a place differ from then on, which only costs locality. */
static void set_places(ds_pool *pool)
{
    for (int i = 1, at = 1; i < pool->threads; i++) {
        worker *w = &pool->workers[i];
        atomic_store(&w->out, pool->team.members[i].out);
        if (!pool->team.members[i].out)
            atomic_store_explicit(&w->place, at++, memory_order_relaxed);
    }
}

/* Reading a thread's clock takes half a microsecond: not for every list. */
static const double GAP = 50e-6, MARKS = 4e-3;

/* Seconds since the last mark in which the caller neither ran nor slept here: other programs had its core. */
static double mark(ds_pool *pool, double now)
{
    double before = pool->ran, stopped = now - pool->mark - pool->slept;
    pool->mark = now;
    pool->slept = 0;
    pool->ran = ran(CLOCK_THREAD_CPUTIME_ID);
    stopped -= pool->ran - before;
    return stopped > 0 ? stopped : 0;
}

static void run_team(ds_pool *pool, ds_profile *profile)
{
    int team = pool->team.active;
    double begin = ds_now();
    if (begin - pool->end > GAP) /* in between it may have slept for reasons of its own */
        mark(pool, begin);
    uint32_t first = atomic_load_explicit(&pool->first, memory_order_relaxed);
    uint64_t before = 0;
    for (int g = 0; g < pool->groups; g++)
        before += atomic_load_explicit(&pool->done[g].chunks, memory_order_relaxed);
    atomic_store_explicit(&pool->done_before, before, memory_order_release);
    for (int i = 0; i < team; i++) /* an empty range of the task before */
        atomic_store_explicit(&pool->places[i].range, (uint64_t)(uint32_t)(first - 1) << 32,
                              memory_order_relaxed);
    if (++pool->epoch == 0)
        pool->epoch = 1;
    uint64_t list = (uint64_t)pool->epoch << 32 | (uint32_t)team << 16 | (uint32_t)pool->n_tasks;
    atomic_store_explicit(&pool->list, list, memory_order_release);
    atomic_store(&pool->wake, atomic_load_explicit(&pool->wake, memory_order_relaxed) + 1);
    if (atomic_load(&pool->sleepers) > 0)
        futex_wake(&pool->wake);
    pool->lost = 0;
    run_list(pool, list, &pool->workers[0], profile);
    /* closed before the next list is recorded: who is late must not take its tasks for this list's */
    atomic_store_explicit(&pool->list, (uint64_t)pool->epoch << 32, memory_order_release);
    atomic_store_explicit(&pool->first, first + (uint32_t)pool->n_tasks, memory_order_release);

    pool->end = ds_now();
    if (pool->waits) { /* for files, not for a core */
        mark(pool, pool->end);
        return;
    }
    double stopped = pool->end - pool->mark > MARKS ? mark(pool, pool->end) : 0;
    if (ds_team_end(&pool->team, pool->end, pool->end - begin, pool->lost + stopped))
        set_places(pool);
}

void ds_pool_run(ds_pool *pool)
{
    if (!pool->n_tasks)
        return;
    ds_profile *profile = pool->profile.on ? &pool->profile : NULL;
    if (pool->team.active < pool->threads && ds_team_begin(&pool->team, ds_now())) {
        set_places(pool);
        futex_wake(&pool->recall);
    }
    if (pool->team.active > 1)
        run_team(pool, profile);
    else
        run_alone(pool, profile);
    pool->n_tasks = 0;
    pool->waits = false;
    pool->arena_used = 0;
}
