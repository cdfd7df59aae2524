/* Row kernels: every variant against the reference bit for bit, and the references against double. */
#include "backend/cpu/kernels.h"
#include "base/error.h"
#include "check.h"

#include <math.h>
#include <string.h>

static const int sizes[] = { 1, 2, 7, 8, 15, 16, 17, 31, 64, 100, 576, 1536, 2051 };

static void compare(check_run *run, const char *kernel, const char *isa, int n, const float *ref,
                    const float *got)
{
    run->checks++;
    for (int i = 0; i < n; i++)
        if (memcmp(ref + i, got + i, sizeof *ref)) {
            check_fail(run, "%s_%s n %d [%d]: %a, not %a", kernel, isa, n, i, got[i], ref[i]);
            return;
        }
}

static double ulp_of(double x)
{
    int e;
    frexp(x, &e);
    return ldexp(1, e - 24);
}

/* ds_exp over all its range: every step-th float from 0 down to -87 and up to 88. */
static void check_exp(check_run *run)
{
    double worst = 0;
    float at = 0;
    for (uint32_t bits = check_below(run, 997); bits < 0x42b00000; bits += 997)
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint32_t both = bits | sign << 31;
            float x;
            memcpy(&x, &both, sizeof x);
            if (x < -87)
                continue;
            double want = exp((double)x), off = fabs(ds_exp(x) - want) / ulp_of(want);
            if (!(off <= worst)) {
                worst = off;
                at = x;
            }
        }
    run->checks++;
    if (!(worst < 1))
        check_fail(run, "ds_exp(%a) is off by %g ulp", at, worst);
    if (ds_exp(0) != 1 || ds_exp(-0.0f) != 1 || ds_exp(nextafterf(-87, -88)) != 0 || ds_exp(-INFINITY) != 0 ||
        !(ds_exp(88) < INFINITY) || ds_exp(INFINITY) != ds_exp(88) || !isnan(ds_exp(NAN)))
        check_fail(run, "ds_exp is wrong at an edge");
}

/* out = x w / sqrt(mean + eps): the mean's relative error is at most (n / 16 + 6) u, of which half counts,
 * then the root, the division and two products: u each. */
static void check_rms(check_run *run, int n, bool weighted)
{
    float *x = check_alloc(run, n * sizeof *x), *w = check_alloc(run, n * sizeof *w);
    float *ref = check_alloc(run, n * sizeof *ref), *got = check_alloc(run, n * sizeof *got);
    check_fill(run, x, n, 1e3f);
    check_fill(run, w, n, 0);
    const float *weight = weighted ? w : NULL;
    ds_row_impls[0].rms(x, weight, n, 1e-5f, ref);
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (int i = 0; i < n; i++) {
        double want = x[i] / sqrt(sum / n + (double)1e-5f) * (weighted ? w[i] : 1);
        if (!(fabs(ref[i] - want) <= (n / 32 + 8) * 0x1p-24 * fabs(want)))
            check_fail(run, "rms_c n %d [%d]: %a, not %a", n, i, ref[i], want);
    }
    for (size_t v = 1; v < ds_row_impl_count; v++) {
        const ds_row_impl *impl = &ds_row_impls[v];
        if (!check_runnable(run, "rms", impl->isa, impl->need))
            continue;
        memset(got, 0xff, n * sizeof *got);
        impl->rms(x, weight, n, 1e-5f, got);
        compare(run, "rms", impl->isa, n, ref, got);
        memcpy(got, x, n * sizeof *got);
        impl->rms(got, weight, n, 1e-5f, got);
        compare(run, "rms (in place)", impl->isa, n, ref, got);
    }
    check_free_all(run);
}

/* silu(g) u: exp is off by 2 u at most, the sum, the division and the product by u each. */
static void check_swiglu(check_run *run, int n)
{
    float *g = check_alloc(run, n * sizeof *g), *u = check_alloc(run, n * sizeof *u);
    float *ref = check_alloc(run, n * sizeof *ref), *got = check_alloc(run, n * sizeof *got);
    check_fill(run, g, n, 200);
    check_fill(run, u, n, 50);
    g[0] = -0.0f;
    ds_row_impls[0].swiglu(g, u, n, ref);
    for (int i = 0; i < n; i++) {
        double want = g[i] / (1 + exp(-(double)g[i])) * u[i];
        if (!(fabs(ref[i] - want) <= 6 * 0x1p-24 * fabs(want) + 1e-30 * fabs(u[i])))
            check_fail(run, "swiglu_c n %d [%d]: %a, not %a", n, i, ref[i], want);
    }
    for (size_t v = 1; v < ds_row_impl_count; v++) {
        const ds_row_impl *impl = &ds_row_impls[v];
        if (!check_runnable(run, "swiglu", impl->isa, impl->need))
            continue;
        memset(got, 0xff, n * sizeof *got);
        impl->swiglu(g, u, n, got);
        compare(run, "swiglu", impl->isa, n, ref, got);
        memcpy(got, g, n * sizeof *got);
        impl->swiglu(got, u, n, got);
        compare(run, "swiglu (in place)", impl->isa, n, ref, got);
    }
    check_free_all(run);
}

static void check_turn(check_run *run, int dims, bool interleaved)
{
    int more = 5; /* behind the turned dims: untouched */
    float *x = check_alloc(run, (dims + more) * sizeof *x), *cs = check_alloc(run, dims * sizeof *cs);
    size_t bytes = (dims + more) * sizeof(float);
    float *ref = check_alloc(run, bytes), *got = check_alloc(run, bytes);
    check_fill(run, x, dims + more, 30);
    for (int i = 0; i < dims / 2; i++) {
        float angle = 100 * check_normal(run);
        cs[2 * i] = cosf(angle);
        cs[2 * i + 1] = sinf(angle);
    }
    memcpy(ref, x, bytes);
    ds_row_impls[0].turn(ref, cs, dims, interleaved);
    for (int i = 0; i < dims / 2; i++) {
        int at = interleaved ? 2 * i : i, bt = interleaved ? at + 1 : at + dims / 2;
        double a = x[at], b = x[bt], c = cs[2 * i], s = cs[2 * i + 1];
        double tol = 0x1p-23 * (fabs(a) + fabs(b));
        if (!(fabs(ref[at] - (a * c - b * s)) <= tol && fabs(ref[bt] - (b * c + a * s)) <= tol))
            check_fail(run, "turn_c dims %d interleaved %d: pair %d", dims, interleaved, i);
    }
    for (size_t v = 1; v < ds_row_impl_count; v++) {
        const ds_row_impl *impl = &ds_row_impls[v];
        if (!check_runnable(run, "turn", impl->isa, impl->need))
            continue;
        memcpy(got, x, bytes);
        impl->turn(got, cs, dims, interleaved);
        compare(run, interleaved ? "turn (interleaved)" : "turn", impl->isa, dims + more, ref, got);
    }
    check_free_all(run);
}

static void argmax_case(check_run *run, const char *what, const float *x, int n, int want)
{
    for (size_t v = 0; v < ds_row_impl_count; v++) {
        const ds_row_impl *impl = &ds_row_impls[v];
        if (!check_runnable(run, "argmax", impl->isa, impl->need))
            continue;
        float max = -1;
        int got = impl->argmax(x, n, &max);
        run->checks++;
        if (got != want || memcmp(&max, x + want, sizeof max))
            check_fail(run, "argmax_%s n %d, %s: %d (%a), not %d (%a)", impl->isa, n, what, got, max, want,
                       x[want]);
    }
}

static void check_argmax(check_run *run, int n)
{
    float *x = check_alloc(run, n * sizeof *x);
    check_fill(run, x, n, 0);
    int a = (int)check_below(run, n), b = a + (int)check_below(run, n - a);
    x[a] = x[b] = 100;
    argmax_case(run, "two equal", x, n, a);
    for (int i = 0; i < n; i++)
        x[i] = i == b ? -3 : NAN;
    argmax_case(run, "all but one NaN", x, n, b);
    x[b] = -INFINITY;
    argmax_case(run, "-inf and NaN", x, n, b);
    x[b] = NAN;
    argmax_case(run, "all NaN", x, n, 0);
    for (int i = 0; i < n; i++)
        x[i] = i < a ? -1 : i % 2 ? 0.0f : -0.0f;
    argmax_case(run, "zeros of both signs", x, n, a);
    for (int i = 0; i < n; i++)
        x[i] = -INFINITY;
    argmax_case(run, "all -inf", x, n, 0);
    x[b] = INFINITY;
    argmax_case(run, "inf", x, n, b);
    check_free_all(run);
}

/* --- speed ----------------------------------------------------------------------------------- */

enum { BENCH_RMS = 576, BENCH_MLP = 1536, BENCH_VOCAB = 49152 };

typedef struct {
    const ds_row_impl *impl;
    float *x, *y, *out;
} row_bench;

static void bench_rms(void *arg)
{
    row_bench *b = arg;
    b->impl->rms(b->x, b->y, BENCH_RMS, 1e-5f, b->out);
}

static void bench_swiglu(void *arg)
{
    row_bench *b = arg;
    b->impl->swiglu(b->x, b->y, BENCH_MLP, b->out);
}

static void bench_argmax(void *arg)
{
    row_bench *b = arg;
    b->out[0] = (float)b->impl->argmax(b->x, BENCH_VOCAB, b->out + 1);
}

static void bench_rows(check_run *run, const ds_row_impl *impl)
{
    row_bench b = { .impl = impl };
    b.x = check_alloc(run, BENCH_VOCAB * sizeof *b.x);
    b.y = check_alloc(run, BENCH_MLP * sizeof *b.y);
    b.out = check_alloc(run, BENCH_MLP * sizeof *b.out);
    check_fill(run, b.x, BENCH_VOCAB, 0);
    check_fill(run, b.y, BENCH_MLP, 0);
    check_cost rms = { .bytes = 2 * BENCH_RMS * sizeof *b.x, .set = 2 * BENCH_RMS * sizeof *b.x, .rows = 1 };
    check_cost mlp = { .bytes = 2 * BENCH_MLP * sizeof *b.x, .set = 2 * BENCH_MLP * sizeof *b.x, .rows = 1 };
    check_cost max = { .bytes = BENCH_VOCAB * sizeof *b.x, .set = BENCH_VOCAB * sizeof *b.x, .rows = 1 };
    check_bench(run, "rms", impl->isa, "576", bench_rms, &b, &rms);
    check_bench(run, "swiglu", impl->isa, "1536", bench_swiglu, &b, &mlp);
    check_bench(run, "argmax", impl->isa, "49152", bench_argmax, &b, &max);
    check_free_all(run);
}

void check_rows(check_run *run)
{
    check_exp(run);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        check_rms(run, sizes[i], true);
        check_rms(run, sizes[i], false);
        check_swiglu(run, sizes[i]);
        check_turn(run, sizes[i] / 2 * 2, false);
        check_turn(run, sizes[i] / 2 * 2, true);
        for (int times = 0; times < 5; times++)
            check_argmax(run, sizes[i]);
    }
    for (size_t v = 0; run->bench && v < ds_row_impl_count; v++)
        if ((ds_row_impls[v].need & ~run->cpu_flags) == 0)
            bench_rows(run, &ds_row_impls[v]);
}
