/* The thread pool's cost, timed with --bench: a list of empty tasks, and one that reads memory as matrices
 * do. */
#include "check.h"

#include "backend/cpu/pool.h"
#include "base/cpu.h"

#include <stdio.h>
#include <string.h>

enum { TASKS = 64, TASK_BYTES = 512 << 10 };

typedef struct {
    ds_pool *pool;
    const uint8_t *data; /* NULL: tasks do nothing */
    int chunks;
} pool_bench;

typedef struct {
    const uint8_t *from;
    size_t bytes;
    int chunks;
} read_arg;

static void nothing(void *arg, int chunk, int worker)
{
    (void)arg;
    (void)chunk;
    (void)worker;
}

static volatile uint64_t sink;

static void read_chunk(void *arg, int chunk, int worker)
{
    const read_arg *a = arg;
    (void)worker;
    size_t from = a->bytes * (size_t)chunk / (size_t)a->chunks & ~(size_t)63;
    size_t to = a->bytes * (size_t)(chunk + 1) / (size_t)a->chunks & ~(size_t)63;
    uint64_t sums[4] = { 0 };
    for (size_t i = from; i < to; i += 32)
        for (int j = 0; j < 4; j++) {
            uint64_t word;
            memcpy(&word, a->from + i + 8 * j, sizeof word);
            sums[j] += word;
        }
    if (sums[0] + sums[1] + sums[2] + sums[3] == 1)
        sink = 1;
}

static void run_list(void *arg)
{
    const pool_bench *b = arg;
    for (int t = 0; t < TASKS; t++) {
        read_arg *a = ds_pool_add(b->pool, "bench", b->data ? read_chunk : nothing, b->chunks, sizeof *a);
        *a = (read_arg){ b->data ? b->data + (size_t)t * TASK_BYTES : NULL, TASK_BYTES, b->chunks };
    }
    ds_pool_run(b->pool);
}

static void bench_pool(check_run *run, int threads, const uint8_t *data)
{
    pool_bench b = { .chunks = threads == 1 ? 1 : threads * 4 };
    if (ds_pool_open(&b.pool, threads, NULL)) {
        check_fail(run, "no pool of %d threads", threads);
        return;
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%d empty tasks, threads=%d", TASKS, threads);
    check_bench(run, "pool", "any", shape, run_list, &b, &(check_cost){0});
    b.data = data;
    snprintf(shape, sizeof shape, "%d MiB read, threads=%d", TASKS * TASK_BYTES >> 20, threads);
    const double all = (double)TASKS * TASK_BYTES;
    check_bench(run, "pool", "any", shape, run_list, &b, &(check_cost){.bytes = all, .set = all});
    ds_pool_close(b.pool);
}

void check_pool(check_run *run)
{
    if (!run->bench || (run->only && strcmp(run->only, "pool") != 0))
        return;
    size_t bytes = (size_t)TASKS * TASK_BYTES;
    uint8_t *data = check_alloc(run, bytes);
    memset(data, 3, bytes);
    int cores = ds_cpu_cores();
    for (int threads = 1; threads < cores; threads *= 2)
        bench_pool(run, threads, data);
    bench_pool(run, cores, data);
    check_free_all(run);
}
