/* The thread pool: every chunk once and tasks in order whatever the threads do, and who is left out when. */
#include "backend/cpu/pool.h"
#include "backend/cpu/team.h"
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* --- every chunk once, in order --- */

enum { TASKS = 300, CHUNKS = 37 };
static int chunks_of[TASKS];
static _Atomic int runs[TASKS][CHUNKS];
static _Atomic int finished[TASKS];
static _Atomic int out_of_order;
static _Atomic int lazy; /* this worker sleeps in every chunk */
static _Atomic int chunks_by[64];

static void note(void *arg, int chunk, int worker)
{
    int task = *(int *)arg;
    if (worker && worker == atomic_load_explicit(&lazy, memory_order_relaxed))
        usleep(300);
    atomic_fetch_add(&chunks_by[worker], 1);
    if (task > 0 && atomic_load(&finished[task - 1]) != chunks_of[task - 1])
        atomic_fetch_add(&out_of_order, 1);
    atomic_fetch_add(&runs[task][chunk], 1);
    atomic_fetch_add(&finished[task], 1);
}

static void run_once(ds_pool *pool, int tasks, uint32_t *seed)
{
    memset(runs, 0, sizeof runs);
    memset(finished, 0, sizeof finished);
    for (int t = 0; t < tasks; t++) {
        *seed = *seed * 1664525 + 1013904223;
        int n = 1 + (int)(*seed >> 16) % (*seed >> 31 ? CHUNKS : 3); /* often fewer than threads */
        chunks_of[t] = n;
        *(int *)ds_pool_add(pool, "note", note, 1, sizeof(int)) = t;
        ds_pool_set_chunks(pool, n);
    }
    ds_pool_run(pool);
    for (int t = 0; t < tasks; t++)
        for (int k = 0; k < CHUNKS; k++)
            assert_int_equal(atomic_load(&runs[t][k]), k < chunks_of[t]);
    assert_int_equal(atomic_load(&out_of_order), 0);
}

static void test_chunks(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 5, 19};
    uint32_t seed = 1;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        ds_pool *pool;
        assert_int_equal(ds_pool_open(&pool, counts[c], NULL), DS_OK);
        assert_int_equal(ds_pool_threads(pool), counts[c]);
        for (int round = 0; round < 20; round++) { /* later lists reuse the tasks of earlier ones */
            run_once(pool, TASKS - round, &seed);
            if (round % 4 == 3)
                usleep(1000); /* workers fall asleep and wake late */
        }
        ds_pool_close(pool);
    }
    ds_error err;
    ds_pool *pool;
    assert_int_equal(ds_pool_open(&pool, 0, &err), DS_INVALID);
    assert_null(pool);
    assert_int_equal(ds_pool_open(&pool, DS_POOL_MAX_THREADS + 1, &err), DS_INVALID);
    ds_pool_close(NULL);
}

static void test_many_short_lists(void **state)
{
    (void)state;
    ds_pool *pool;
    uint32_t seed = 7;
    assert_int_equal(ds_pool_open(&pool, 4, NULL), DS_OK);
    for (int round = 0; round < 2000; round++)
        run_once(pool, 1 + round % 3, &seed);
    ds_pool_close(pool);
}

/* More tasks and larger arguments than a list holds. */
static void test_full_list(void **state)
{
    (void)state;
    enum { MANY = 5000, BYTES = 2000 };
    static const int zero;
    ds_pool *pool;
    assert_int_equal(ds_pool_open(&pool, 2, NULL), DS_OK);
    memset(finished, 0, sizeof finished);
    for (int t = 0; t < MANY; t++)
        memcpy(ds_pool_add(pool, "note", note, 1, BYTES), &zero, sizeof zero);
    ds_pool_run(pool);
    assert_int_equal(atomic_load(&finished[0]), MANY);
    ds_pool_run(pool); /* nothing to do */
    ds_pool_close(pool);
}

/* --- a worker that does not run is left out, and comes back --- */

static void test_lazy_worker(void **state)
{
    (void)state;
    ds_pool *pool;
    uint32_t seed = 3;
    assert_int_equal(ds_pool_open(&pool, 3, NULL), DS_OK);
    atomic_store(&lazy, 2);
    double begin = ds_now();
    int least = 3;
    while (least == 3 && ds_now() - begin < 30) {
        run_once(pool, 50, &seed);
        least = ds_pool_active(pool) < least ? ds_pool_active(pool) : least;
    }
    assert_true(least < 3);
    for (int round = 0; round < 100; round++) /* comes and goes */
        run_once(pool, 50, &seed);
    atomic_store(&lazy, 0);
    begin = ds_now(); /* on a busy machine it need not stay, but it is tried */
    int before = atomic_load(&chunks_by[2]);
    while (atomic_load(&chunks_by[2]) == before && ds_now() - begin < 30)
        run_once(pool, 50, &seed);
    assert_true(atomic_load(&chunks_by[2]) > before);
    ds_pool_close(pool);
}

/* --- profiles --- */

static void test_profile(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        ds_pool *pool;
        ds_profile_row rows[8];
        uint32_t seed = 5;
        assert_int_equal(ds_pool_open(&pool, threads, NULL), DS_OK);
        run_once(pool, 3, &seed);
        assert_int_equal(ds_pool_profile_rows(pool, rows, 8), 0);
        ds_pool_profile(pool, true);
        ds_pool_part(pool, "first");
        run_once(pool, 3, &seed);
        ds_pool_part(pool, "second");
        run_once(pool, 4, &seed);
        memset(finished, 0, sizeof finished);
        *(int *)ds_pool_add(pool, "heavy", note, 1, sizeof(int)) = 0;
        ds_pool_weigh(pool, 1000);
        assert_int_equal(ds_pool_profile_rows(pool, rows, 8), 3); /* which runs what is recorded */
        assert_string_equal(rows[0].part, "first");
        assert_string_equal(rows[0].name, "note");
        assert_int_equal(rows[0].calls, 3);
        assert_string_equal(rows[1].part, "second");
        assert_int_equal(rows[1].calls, 4);
        assert_string_equal(rows[2].name, "heavy");
        assert_true(rows[2].bytes == 1000 && rows[1].bytes == 0);
        for (int i = 0; i < 3; i++)
            assert_true(rows[i].seconds >= rows[i].wait && rows[i].wait >= 0);
        assert_int_equal(ds_pool_profile_rows(pool, rows, 2), 2);
        ds_pool_profile(pool, false);
        run_once(pool, 3, &seed);
        assert_int_equal(ds_pool_profile_rows(pool, rows, 8), 0);
        ds_pool_close(pool);
    }
}

/* --- the rules of leaving out, with made-up times --- */

/* Lists of 5 ms until `until`, each of which loses `lost`; how long worker 1 was in. */
static double lists(ds_team *t, double *now, double until, double lost)
{
    double in = 0;
    while (*now < until) {
        ds_team_begin(t, *now);
        *now += 5e-3;
        if (t->members[1].out)
            continue;
        in += 5e-3;
        if (lost > 0)
            ds_team_late(t, 1, lost);
        ds_team_end(t, *now, 5e-3, lost);
    }
    return in;
}

static void test_rules(void **state)
{
    (void)state;
    ds_team t;
    double now = 100;
    ds_team_open(&t, 2);
    lists(&t, &now, now + 5, 0.5e-3); /* a tenth is lost: two threads are still faster */
    assert_int_equal(t.active, 2);
    double in = lists(&t, &now, now + 20, 3e-3);
    assert_true(in > 0.05 && in < 0.6); /* it is tried, ever more rarely */
    now += 2;
    lists(&t, &now, now + 2, 0);
    assert_int_equal(t.active, 2);
    /* a single disturbance afterwards costs a short pause only */
    lists(&t, &now, now + 20, 0);
    lists(&t, &now, now + 5e-3, 4e-3);
    assert_int_equal(t.active, 1);
    double gone = now;
    while (!ds_team_begin(&t, now))
        now += 1e-3;
    assert_true(now - gone < 0.02);

    /* of several the one that was late; where the caller did not run, the last */
    ds_team_open(&t, 5);
    ds_team_late(&t, 2, 4e-3);
    ds_team_late(&t, 3, 1e-3);
    assert_int_equal(ds_team_end(&t, now, 10e-3, 5e-3), 2);
    assert_int_equal(ds_team_end(&t, now, 10e-3, 5e-3), 4);
    assert_int_equal(ds_team_end(&t, now, 10e-3, 5e-3), 3);
    assert_int_equal(ds_team_end(&t, now, 10e-3, 9e-3), 1);
    assert_int_equal(ds_team_end(&t, now, 10e-3, 9e-3), 0); /* the caller stays */
    assert_int_equal(t.active, 1);
    assert_true(ds_team_begin(&t, now + 1));
    assert_int_equal(t.active, 2); /* one at a time */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),    cmocka_unit_test(test_many_short_lists),
        cmocka_unit_test(test_full_list), cmocka_unit_test(test_lazy_worker),
        cmocka_unit_test(test_profile),   cmocka_unit_test(test_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
