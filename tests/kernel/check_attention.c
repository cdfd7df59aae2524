/* Attention: every variant against the reference bit for bit, rows alone against rows together with
 * all that a row may not see turned into NaN, and the reference against double arithmetic. */
#include "backend/cpu/kernels.h"
#include "base/mem.h"
#include "base/error.h"
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY0 = DS_KV_CHUNK, KEYS = 2 * DS_KV_CHUNK, PATTERNS = 8 };

static const int dims[] = { 8, 16, 24, 64, 80, 128, 256 };
static const int row_counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 27, 72 };

typedef struct {
    const char *what; /* of the rows' ranges */
    int dim, rows;
    bool half;
    ds_chunk c;
    void *k, *v;
    const float **q;
    int *begin, *end;
} attn_case;

static float half_value(uint16_t h)
{
    int exp = h >> 10 & 31, frac = h & 1023;
    float x = exp ? ldexpf((float)(frac + 1024), exp - 25) : ldexpf((float)frac, -24);
    return h & 0x8000 ? -x : x;
}

static float element(const void *p, size_t i, bool half)
{
    return half ? half_value(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static size_t k_index(int key, int d, int dim)
{
    return (size_t)(key / DS_TILE) * DS_TILE * dim + (size_t)d * DS_TILE + key % DS_TILE;
}

/* Ranges that callers make (whole chunks, causal rows, windows) and that they hardly will. */
static const char *make_ranges(check_run *run, int pattern, int rows, int *begin, int *end)
{
    static const char *names[PATTERNS] = { "whole",  "causal", "groups", "window",
                                           "border", "apart",  "empty",  "random" };
    int e = KEY0 + 1 + (int)check_below(run, DS_KV_CHUNK);
    for (int r = 0; r < rows; r++) {
        begin[r] = 0;
        switch (pattern) {
        case 0:
            end[r] = KEYS + 3;
            break;
        case 1:
            end[r] = e + r;
            break;
        case 2:
            end[r] = e + r / 3;
            break;
        case 3:
            begin[r] = KEY0 + 17 + r;
            end[r] = KEY0 + 170 + r;
            break;
        case 4:
            begin[r] = KEY0 + 15 + r % 3;
            end[r] = KEY0 + 31 + r % 4;
            break;
        case 5:
            begin[r] = KEY0 + r * 37 % 240;
            end[r] = begin[r] + 1 + r % 7;
            break;
        case 6:
            begin[r] = r % 3 == 1 ? KEYS : 0;
            end[r] = r % 3 ? KEYS + 9 : r % 2 ? KEY0 : e;
            break;
        default:
            begin[r] = KEY0 + (int)check_below(run, DS_KV_CHUNK);
            end[r] = begin[r] + (int)check_below(run, DS_KV_CHUNK);
        }
    }
    return names[pattern];
}

static bool visible(const attn_case *t, int row, int key)
{
    return key >= t->begin[row] && key < t->end[row] && key >= KEY0 && key < KEYS;
}

/* Poisons a key: the value of any arithmetic with it is NaN. */
static void poison(const attn_case *t, void *k, void *v, int key)
{
    for (int d = 0; d < t->dim; d++) {
        size_t at = k_index(key, d, t->dim), vat = (size_t)key * t->dim + d;
        if (t->half) {
            ((uint16_t *)k)[at] = 0x7e01;
            ((uint16_t *)v)[vat] = 0xfe02;
        } else {
            ((float *)k)[at] = NAN;
            ((float *)v)[vat] = -NAN;
        }
    }
}

static attn_case make_case(check_run *run, int dim, int rows, bool half, int pattern)
{
    attn_case t = { .dim = dim, .rows = rows, .half = half };
    t.begin = check_alloc(run, rows * sizeof(int));
    t.end = check_alloc(run, rows * sizeof(int));
    t.what = make_ranges(run, pattern, rows, t.begin, t.end);
    int last = KEY0; /* memory ends with the last tile that a row sees */
    for (int r = 0; r < rows; r++)
        last = t.begin[r] < t.end[r] && t.begin[r] < KEYS && t.end[r] > last ? t.end[r] : last;
    last = last < KEYS ? (last + DS_TILE - 1) / DS_TILE * DS_TILE : KEYS;
    size_t bytes = (size_t)last * dim * (half ? 2 : 4);
    t.k = check_alloc(run, bytes);
    t.v = check_alloc(run, bytes);
    float *row = check_alloc(run, 2 * dim * sizeof *row);
    for (int key = 0; key < last; key++) {
        bool seen = false;
        for (int r = 0; r < rows && !seen; r++)
            seen = visible(&t, r, key);
        if (!seen) {
            poison(&t, t.k, t.v, key);
            continue;
        }
        check_fill(run, row, 2 * dim, key % 50 ? 0 : 8);
        size_t elem = half ? 2 : 4;
        ds_attention_impls[0].store(row, row + dim, dim, half,
                                    (char *)t.k + (size_t)(key / DS_TILE) * DS_TILE * dim * elem,
                                    key % DS_TILE, (char *)t.v + (size_t)key * dim * elem);
    }
    float *q = check_alloc(run, (size_t)rows * dim * sizeof *q);
    check_fill(run, q, (size_t)rows * dim, 0);
    t.q = check_alloc(run, rows * sizeof *t.q);
    for (int r = 0; r < rows; r++) {
        t.q[r] = q + (size_t)(rows - 1 - r) * dim;
        for (int d = 0; d < dim; d++)
            q[(size_t)r * dim + d] *= 2 / sqrtf((float)dim);
    }
    t.c = (ds_chunk){ .k = t.k, .v = t.v, .half = half, .dim = dim, .key0 = KEY0, .rows = rows, .q = t.q,
                      .begin = t.begin, .end = t.end };
    return t;
}

/* Results of a call: max, sum and acc of all rows in one piece of memory, so that one memcmp will do. */
static float *results(check_run *run, ds_chunk *c)
{
    size_t n = (size_t)c->rows * (2 + c->dim);
    float *out = check_alloc(run, n * sizeof *out);
    for (size_t i = 0; i < n; i++)
        out[i] = NAN; /* an element left out shows */
    c->max = out;
    c->sum = out + c->rows;
    c->acc = out + 2 * c->rows;
    return out;
}

/* Row `row` alone, in a memory where it alone can see anything. */
static void check_alone(check_run *run, const ds_attention_impl *impl, const attn_case *t, int row)
{
    int last = KEY0;
    for (int r = 0; r < t->rows; r++)
        last = t->end[r] > last && t->begin[r] < KEYS ? t->end[r] : last;
    last = last < KEYS ? last : KEYS;
    size_t bytes = (size_t)((last + DS_TILE - 1) / DS_TILE * DS_TILE) * t->dim * (t->half ? 2 : 4);
    ds_chunk c = t->c;
    void *k = memcpy(check_alloc(run, bytes), t->k, bytes), *v = memcpy(check_alloc(run, bytes), t->v, bytes);
    for (int key = KEY0; key < last; key++)
        if (!visible(t, row, key))
            poison(t, k, v, key);
    c.k = k;
    c.v = v;
    c.rows = 1;
    c.q += row;
    c.begin += row;
    c.end += row;
    results(run, &c);
    impl->chunk(&c);
    if (memcmp(c.max, t->c.max + row, sizeof(float)) || memcmp(c.sum, t->c.sum + row, sizeof(float)) ||
        memcmp(c.acc, t->c.acc + (size_t)row * t->dim, t->dim * sizeof(float)))
        check_fail(run, "chunk_%s dim %d rows %d half %d %s: row %d depends on what it cannot see", impl->isa,
                   t->dim, t->rows, t->half, t->what, row);
}

static void check_chunk(check_run *run, int dim, int rows, bool half, int pattern)
{
    attn_case t = make_case(run, dim, rows, half, pattern);
    float *ref = results(run, &t.c);
    ds_attention_impls[0].chunk(&t.c);
    for (size_t i = 0; i < (size_t)rows * (2 + dim); i++)
        if (ref[i] != ref[i]) {
            check_fail(run, "chunk_c dim %d rows %d half %d %s: NaN at %zu", dim, rows, half, t.what, i);
            break;
        }
    for (size_t v = 0; v < ds_attention_impl_count; v++) {
        const ds_attention_impl *impl = &ds_attention_impls[v];
        if (!check_runnable(run, "chunk", impl->isa, impl->need))
            continue;
        float *got = results(run, &t.c);
        impl->chunk(&t.c);
        run->checks++;
        if (memcmp(ref, got, (size_t)rows * (2 + dim) * sizeof *ref))
            check_fail(run, "chunk_%s dim %d rows %d half %d %s: not the reference's bits", impl->isa, dim,
                       rows, half, t.what);
        check_alone(run, impl, &t, (int)check_below(run, rows));
        check_alone(run, impl, &t, rows - 1);
    }
    check_free_all(run);
}

static void check_merge(check_run *run, int n, int dim)
{
    int s = 1 + (int)check_below(run, 3);
    size_t count = (size_t)n * s;
    float *max = check_alloc(run, count * sizeof *max), *sum = check_alloc(run, count * sizeof *sum);
    float *acc = check_alloc(run, count * dim * sizeof *acc);
    float *ref = check_alloc(run, dim * sizeof *ref), *got = check_alloc(run, dim * sizeof *got);
    check_fill(run, acc, count * dim, 100);
    for (size_t i = 0; i < count; i++) {
        max[i] = check_below(run, 4) ? 20 * check_normal(run) : -INFINITY;
        sum[i] = max[i] > -INFINITY ? 1 + fabsf(check_normal(run)) : 0;
    }
    ds_attention_impls[0].merge(max, sum, acc, n, s, dim, ref);
    for (size_t v = 1; v < ds_attention_impl_count; v++) {
        const ds_attention_impl *impl = &ds_attention_impls[v];
        if (!check_runnable(run, "merge", impl->isa, impl->need))
            continue;
        memset(got, 0xff, dim * sizeof *got);
        impl->merge(max, sum, acc, n, s, dim, got);
        run->checks++;
        if (memcmp(ref, got, dim * sizeof *ref))
            check_fail(run, "merge_%s n %d dim %d: not the reference's bits", impl->isa, n, dim);
    }
    check_free_all(run);
}

/* Any bits at all, most of them in the range where halves are normal, subnormal or overflow. */
static float any_float(check_run *run)
{
    uint32_t bits = check_below(run, 1u << 31) << 1 | check_below(run, 2);
    if (check_below(run, 4))
        bits = (bits & 0x807fffff) | (100 + check_below(run, 46)) << 23;
    if (check_below(run, 4) == 0)
        bits = (bits & ~0x1fffu) | 0x1000; /* ties */
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void check_store(check_run *run, int dim, bool half)
{
    size_t elem = half ? 2 : 4, tile = DS_TILE * dim * elem;
    float *k = check_alloc(run, dim * sizeof *k), *v = check_alloc(run, dim * sizeof *v);
    uint8_t *ref = check_alloc(run, tile + dim * elem), *got = check_alloc(run, tile + dim * elem);
    for (int d = 0; d < dim; d++) {
        k[d] = any_float(run);
        v[d] = any_float(run);
    }
    int lane = (int)check_below(run, DS_TILE);
    memset(ref, 0xa5, tile + dim * elem);
    ds_attention_impls[0].store(k, v, dim, half, ref, lane, ref + tile);
    for (int d = 0; d < dim && half; d++) { /* the nearest half is as near as its neighbours */
        float x = v[d], y;
        uint16_t h = ((uint16_t *)(void *)(ref + tile))[d];
        if (!(fabsf(x) < 65504))
            continue;
        y = fabsf(half_value(h) - x);
        float up = fabsf(half_value(h + 1) - x), down = h & 0x7fff ? fabsf(half_value(h - 1) - x) : INFINITY;
        if (y > up || y > down || ((y == up || y == down) && h & 1 && up != down))
            check_fail(run, "store_c: %a became half %#x", x, h);
    }
    for (size_t i = 1; i < ds_attention_impl_count; i++) {
        const ds_attention_impl *impl = &ds_attention_impls[i];
        if (!check_runnable(run, "store", impl->isa, impl->need))
            continue;
        memset(got, 0xa5, tile + dim * elem);
        impl->store(k, v, dim, half, got, lane, got + tile);
        run->checks++;
        if (memcmp(ref, got, tile + dim * elem))
            check_fail(run, "store_%s dim %d half %d: not the reference's bits", impl->isa, dim, half);
    }
    check_free_all(run);
}

/* The reference, chunks merged, against softmax in double. With u = 2^-24 and every weight relative to
 * the same maximum (an error in that cancels), the relative error of a weight is at most
 *   w = dim u sum|q k|        its score
 *     + u X + 4 u             X = largest |score - max|: the argument's rounding, then ds_exp (2 ulp)
 *     + n (u X + 6 u)         each merge: again exp, and two roundings
 * so out is off by at most (2 w + (257 + 20 + 2 n + 2) u) sum p|V| / sum p, to first order. */
static void check_truth(check_run *run, int dim, int end, bool half)
{
    enum { MAX_CHUNKS = 5 };
    int n = (end + DS_KV_CHUNK - 1) / DS_KV_CHUNK;
    size_t elems = (size_t)((end + DS_TILE - 1) / DS_TILE * DS_TILE) * dim, elem = half ? 2 : 4;
    uint8_t *k = check_alloc(run, elems * elem), *v = check_alloc(run, elems * elem);
    float *row = check_alloc(run, 2 * dim * sizeof *row), *q = check_alloc(run, dim * sizeof *q);
    float *out = check_alloc(run, dim * sizeof *out), *acc = check_alloc(run, (size_t)n * dim * sizeof *acc);
    double *s = check_alloc(run, end * sizeof *s);
    float max[MAX_CHUNKS], sum[MAX_CHUNKS];
    memset(k, 0, elems * elem);
    memset(v, 0, elems * elem);
    for (int key = 0; key < end; key++) {
        check_fill(run, row, 2 * dim, 8);
        ds_attention_impls[0].store(row, row + dim, dim, half,
                                    k + (size_t)(key / DS_TILE) * DS_TILE * dim * elem, key % DS_TILE,
                                    v + (size_t)key * dim * elem);
    }
    check_fill(run, q, dim, 0);
    const float *qs[1] = { q };
    int begin[1] = { 0 }, ends[1] = { end };
    for (int i = 0; i < n; i++) {
        ds_chunk c = { .k = k, .v = v, .half = half, .dim = dim, .key0 = i * DS_KV_CHUNK, .rows = 1,
                       .q = qs, .begin = begin, .end = ends, .max = max + i, .sum = sum + i,
                       .acc = acc + (size_t)i * dim };
        ds_attention_impls[0].chunk(&c);
    }
    ds_attention_impls[0].merge(max, sum, acc, n, 1, dim, out);

    double u = 0x1p-24, top = -INFINITY, low = INFINITY, worst = 0, total = 0;
    for (int j = 0; j < end; j++) {
        double mag = 0;
        s[j] = 0;
        for (int d = 0; d < dim; d++) {
            double x = (double)q[d] * element(k, k_index(j, d, dim), half);
            s[j] += x;
            mag += fabs(x);
        }
        top = s[j] > top ? s[j] : top;
        low = s[j] < low ? s[j] : low;
        worst = mag > worst ? mag : worst;
    }
    for (int j = 0; j < end; j++)
        total += s[j] = exp(s[j] - top);
    double x = u * (top - low), w = dim * u * worst + x + 4 * u + n * (x + 6 * u);
    run->checks++;
    for (int d = 0; d < dim; d++) {
        double want = 0, mag = 0;
        for (int j = 0; j < end; j++) {
            double y = s[j] * element(v, (size_t)j * dim + d, half);
            want += y;
            mag += fabs(y);
        }
        double tol = 1.01 * (2 * w + (279 + 2 * n) * u) * mag / total + 1e-30;
        if (!(fabs(out[d] - want / total) <= tol)) {
            check_fail(run, "chunk_c dim %d end %d half %d: [%d] is %a, not %a (may be off by %a)", dim, end,
                       half, d, out[d], want / total, tol);
            break;
        }
    }
    check_free_all(run);
}

/* --- speed ----------------------------------------------------------------------------------- */

enum { BENCH_DIM = 64, BENCH_KEYS = 4096, BENCH_ROWS = 96 };

typedef struct {
    const ds_attention_impl *impl;
    ds_chunk c;
    size_t stride; /* bytes from one head's K (and V) to the next */
    int heads, head;
} attn_bench;

static void bench_call(void *arg)
{
    attn_bench *b = arg;
    ds_chunk c = b->c;
    c.k = (const char *)b->c.k + b->head * b->stride;
    c.v = (const char *)b->c.v + b->head * b->stride;
    b->head = (b->head + 1) % b->heads;
    for (c.key0 = 0; c.key0 < BENCH_KEYS; c.key0 += DS_KV_CHUNK)
        b->impl->chunk(&c);
}

static void bench_attention(check_run *run, const ds_attention_impl *impl)
{
    static const struct {
        const char *name;
        int rows, heads;
    } cases[] = {
        { "64x4096 1 row", 1, 1 },        { "64x4096 3 rows", 3, 1 },   { "64x4096 3 rows, 90 heads", 3, 90 },
        { "64x4096 24 rows", 24, 1 },     { "64x4096 96 rows", 96, 1 },   { "64x4096 24 rows, 90 heads", 24, 90 },
    };
    size_t stride = (size_t)BENCH_KEYS * BENCH_DIM * 2;
    float *q = check_alloc(run, BENCH_ROWS * BENCH_DIM * sizeof *q);
    float *out = check_alloc(run, (size_t)BENCH_ROWS * (2 + BENCH_DIM) * sizeof *out);
    const float *qs[BENCH_ROWS];
    int begin[BENCH_ROWS], end[BENCH_ROWS];
    check_fill(run, q, BENCH_ROWS * BENCH_DIM, 0);
    for (int r = 0; r < BENCH_ROWS; r++) {
        qs[r] = q + (size_t)r * BENCH_DIM;
        begin[r] = 0;
        end[r] = BENCH_KEYS - (BENCH_ROWS - 1 - r) % 24 / 3; /* 3 heads a token */
    }
    for (size_t i = 0; i < COUNT(cases) && (impl->need || cases[i].rows == 1); i++) {
        size_t bytes = stride * cases[i].heads;
        uint16_t *kv = ds_pages_alloc(2 * bytes); /* as a sequence has them */
        if (!kv) {
            check_fail(run, "no memory for keys and values");
            return;
        }
        for (size_t j = 0; j < bytes; j++)
            kv[j] = (uint16_t)(0x3000 + j * 2654435761u % 0x800); /* 0.125 .. 0.5 */
        attn_bench b = { .impl = impl, .heads = cases[i].heads, .stride = stride };
        b.c = (ds_chunk){ .k = kv, .v = (char *)kv + bytes, .half = true, .dim = BENCH_DIM,
                          .rows = cases[i].rows, .q = qs, .begin = begin, .end = end, .max = out,
                          .sum = out + BENCH_ROWS, .acc = out + 2 * BENCH_ROWS };
        check_cost cost = { .bytes = 2.0 * stride, .set = 2.0 * bytes, .codes = "float", .rows = cases[i].rows,
                            .ops = 4.0 * cases[i].rows * BENCH_KEYS * BENCH_DIM };
        check_bench(run, "chunk", impl->isa, cases[i].name, bench_call, &b, &cost);
        ds_pages_free(kv, 2 * bytes);
    }
    check_free_all(run);
}

void check_attention(check_run *run)
{
    for (size_t d = 0; d < COUNT(dims); d++) /* of the large ones a third: the reference is slow */
        for (size_t r = 0; r < COUNT(row_counts); r++)
            for (int half = 0; half < 2; half++)
                for (int p = 0; p < PATTERNS; p++)
                    if (row_counts[r] < 10 || check_below(run, 3) == 0)
                        check_chunk(run, dims[d], row_counts[r], half, p);
    for (size_t d = 0; d < COUNT(dims); d++) {
        for (int n = 1; n < 20; n++)
            check_merge(run, n, dims[d]);
        for (int i = 0; i < 40; i++)
            check_store(run, dims[d], i % 4);
        for (int half = 0; half < 2; half++) {
            check_truth(run, dims[d], 1 + (int)check_below(run, DS_KV_CHUNK), half);
            check_truth(run, dims[d], 1000, half);
        }
    }
    for (size_t v = 0; run->bench && v < ds_attention_impl_count; v++)
        if (check_runnable(run, "chunk", ds_attention_impls[v].isa, ds_attention_impls[v].need))
            bench_attention(run, &ds_attention_impls[v]);
}
