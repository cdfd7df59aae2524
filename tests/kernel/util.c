#include "check.h"

#include "base/clock.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n)   ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

enum { CANARY = 64, BYTE = 0xC5 };

/* A list of what check_alloc gave: the header, a canary, the caller's bytes, a canary. */
typedef struct block {
    struct block *next;
    size_t bytes;
    char pad[64 - sizeof(void *) - sizeof(size_t)];
} block;

static block *blocks;

void *check_alloc(check_run *run, size_t bytes)
{
    size_t all = sizeof(block) + CANARY + bytes + CANARY;
    block *b = aligned_alloc(64, (all + 63) / 64 * 64);
    if (!b) {
        fprintf(stderr, "out of memory (seed %llu)\n", (unsigned long long)run->seed);
        exit(2);
    }
    uint8_t *p = (uint8_t *)(b + 1) + CANARY;
    b->next = blocks;
    b->bytes = bytes;
    blocks = b;
    memset(p - CANARY, BYTE, CANARY);
    memset(p, 0xFF, bytes); /* NaN as floats: what was left out shows */
    memset(p + bytes, BYTE, CANARY);
    POISON(p - CANARY, CANARY);
    POISON(p + bytes, CANARY);
    return p;
}

void check_free_all(check_run *run)
{
    while (blocks) {
        block *b = blocks;
        uint8_t *p = (uint8_t *)(b + 1) + CANARY;
        UNPOISON(p - CANARY, CANARY);
        UNPOISON(p + b->bytes, CANARY);
        for (int i = 0; i < CANARY; i++) {
            if (p[-1 - i] != BYTE)
                check_fail(run, "memory %d bytes before a buffer of %zu was written", i + 1, b->bytes);
            if (p[b->bytes + (size_t)i] != BYTE)
                check_fail(run, "memory %d bytes past a buffer of %zu was written", i + 1, b->bytes);
        }
        blocks = b->next;
        free(b);
    }
}

static uint64_t next(check_run *run) /* splitmix64 */
{
    uint64_t z = run->rng += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint32_t check_below(check_run *run, uint32_t n)
{
    return (uint32_t)((next(run) >> 32) * n >> 32);
}

float check_normal(check_run *run)
{
    double u = (double)((next(run) >> 11) + 1) * 0x1p-53, v = (double)(next(run) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

void check_fill(check_run *run, float *x, size_t n, float spike)
{
    for (size_t i = 0; i < n; i++)
        x[i] = check_normal(run);
    if (spike != 0)
        for (size_t i = 0; i < n / 50 + 1; i++)
            x[check_below(run, (uint32_t)n)] = check_below(run, 2) ? spike : -spike;
}

void check_fail(check_run *run, const char *fmt, ...)
{
    va_list args;
    if (++run->failures > 50) /* enough to see what is wrong */
        return;
    fprintf(stderr, "FAIL (seed %llu): ", (unsigned long long)run->seed);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

static bool wanted(const check_run *run, const char *kernel)
{
    return !run->only || strcmp(run->only, kernel) == 0;
}

bool check_runnable(check_run *run, const char *kernel, const char *isa, unsigned need)
{
    static char said[1024];
    if (!wanted(run, kernel))
        return false;
    if ((need & ~run->cpu_flags) == 0)
        return true;
    char line[96];
    snprintf(line, sizeof line, "skip: %s %s\n", kernel, isa);
    if (!strstr(said, line) && strlen(said) + strlen(line) < sizeof said) {
        strcat(said, line);
        run->skips++;
        if (run->json)
            printf("{\"skip\":\"%s\",\"isa\":\"%s\"}\n", kernel, isa);
        else
            printf("skip: %s %s (this run lacks the instructions)\n", kernel, isa);
    }
    return false;
}

void check_bench(check_run *run, const char *kernel, const char *isa, const char *shape,
                 void (*fn)(void *arg), void *arg, const check_cost *cost)
{
    if (!wanted(run, kernel))
        return;
    double best = INFINITY;
    long calls = 1;
    fn(arg);
    for (int sample = 0; sample < 100;) { /* the least of many short ones: other programs only ever add */
        double start = ds_now();
        for (long i = 0; i < calls; i++)
            fn(arg);
        double took = ds_now() - start;
        if (took < 3e-4) {
            calls *= 2;
            continue;
        }
        best = fmin(best, took / (double)calls);
        sample++;
    }
    const double gb = cost->bytes / best * 1e-9, gop = cost->ops / best * 1e-9;
    if (run->json) {
        printf("{\"bench\":\"%s\",\"isa\":\"%s\",\"shape\":\"%s\",\"rows\":%d,\"ns\":%.1f", kernel, isa,
               shape, cost->rows, best * 1e9);
        if (cost->bytes > 0)
            printf(",\"bytes\":%.0f,\"set\":%.0f,\"gb_s\":%.2f", cost->bytes, cost->set, gb);
        if (cost->ops > 0)
            printf(",\"ops\":%.0f,\"codes\":\"%s\",\"gop_s\":%.1f", cost->ops, cost->codes, gop);
        printf("}\n");
    } else {
        printf("bench: %-7s %-7s %-32s %12.0f ns", kernel, isa, shape, best * 1e9);
        if (cost->bytes > 0)
            printf("  %7.2f GB/s", gb);
        if (cost->ops > 0)
            printf("  %7.1f Gop/s", gop);
        printf("\n");
    }
    fflush(stdout);
}
