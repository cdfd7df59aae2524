/* ds_check: every kernel against its reference, bit for bit, for every ISA this machine can run.
 * ds_check [--seed N] [--cpu ISA] [--only NAME] [--bench] [--json] */
#ifndef DS_TESTS_KERNEL_CHECK_H
#define DS_TESTS_KERNEL_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct check_run {
    uint64_t seed;      /* printed at the start and with every failure */
    unsigned cpu_flags; /* of this machine AND --cpu */
    const char *only;   /* kernel name or NULL */
    bool bench, json;
    uint64_t rng;
    int checks, failures, skips;
} check_run;

/* Memory with canaries before and after; freed (and checked) all at once by check_free_all. */
void *check_alloc(check_run *run, size_t bytes);
void check_free_all(check_run *run);
float check_normal(check_run *run);                               /* standard normal */
uint32_t check_below(check_run *run, uint32_t n);                 /* uniform in [0, n) */
void check_fill(check_run *run, float *x, size_t n, float spike); /* normals, a few of size spike */
void check_fail(check_run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Says "skip: ..." once and returns false where the machine (or --cpu) lacks the flags, so that a gap is
 * seen. */
bool check_runnable(check_run *run, const char *kernel, const char *isa, unsigned need);
/* What one call does; bytes / ops 0: not shown. */
typedef struct {
    double bytes;      /* read: of weights, keys and values, or inputs */
    double set;        /* bytes that calls in turn read: what says from which memory they come */
    double ops;        /* a multiply and an add are two */
    const char *codes; /* of weights: "4 bits", "6 bits" (or 5), "8 bits" or "float" */
    int rows;
} check_cost;
/* Prints a bench line: nanoseconds a call, GB/s, Gop/s. */
void check_bench(check_run *run, const char *kernel, const char *isa, const char *shape,
                 void (*fn)(void *arg), void *arg, const check_cost *cost);

/* one function a subject, called by main in this order */
void check_matmul(check_run *run);
void check_attention(check_run *run);
void check_rows(check_run *run);
void check_pool(check_run *run);

#endif
