#include "check.h"

#include "backend/cpu/kernels.h"
#include "backend/cpu/pack.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- matrices made of random codes, packed as the engine packs a file's --------------------------- */

typedef struct {
    ds_weight weight;
    ds_qmat packed;
    uint8_t *codes;     /* [n][k] */
    float *scale, *min; /* [n][k / group] */
} matrix;

static const struct {
    const char *name;
    ds_codes codes;
} formats[] = {
    {"q4_0", {4, 32, 8, false, DS_F16}},        {"q4_1", {4, 32, 0, true, DS_F16}},
    {"q4_k", {4, 32, 0, true, DS_F32}},         {"affine4/64", {4, 64, 0, true, DS_BF16}},
    {"affine4/128", {4, 128, 0, true, DS_F16}}, {"affine2/64", {2, 64, 0, true, DS_BF16}},
    {"affine3/32", {3, 32, 0, true, DS_F32}},   {"q5_0", {5, 32, 16, false, DS_F16}},
    {"q5_1", {5, 32, 0, true, DS_F16}},         {"q5_k", {5, 32, 0, true, DS_F32}},
    {"affine6/64", {6, 64, 0, true, DS_BF16}},  {"q6", {6, 32, 32, false, DS_F32}},
    {"q7/128", {7, 128, 64, false, DS_BF16}},   {"q8_0", {8, 32, 128, false, DS_F16}},
    {"affine8/64", {8, 64, 0, true, DS_F16}},   {"affine8/128", {8, 128, 0, true, DS_BF16}},
    {"u8", {8, 32, 0, false, DS_F32}},          {"u8 - 200", {8, 64, 200, false, DS_BF16}},
    {"affine7/32", {7, 32, 0, true, DS_F16}},
};

static void codes_row(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    const matrix *m = w->owner;
    const size_t groups = w->cols / (size_t)w->codes.group;
    memcpy(codes, m->codes + (size_t)row * w->cols, w->cols);
    memcpy(scales, m->scale + row * groups, groups * sizeof *scales);
    if (w->codes.has_min)
        memcpy(mins, m->min + row * groups, groups * sizeof *mins);
}

/* Seven bits of significand: exact in every scale type. */
static float scale_value(check_run *run)
{
    int32_t whole = 64 + (int32_t)check_below(run, 64);
    float s = ldexpf((float)whole, -13);
    return check_below(run, 4) ? s : -s;
}

enum codes_kind { CODES_RANDOM, CODES_MOST, CODES_LEAST };

static void make_matrix(check_run *run, matrix *m, int n, int k, const ds_codes *codes, enum codes_kind kind)
{
    const size_t groups = (size_t)k / (size_t)codes->group, count = (size_t)n * (size_t)k;
    m->codes = check_alloc(run, count);
    m->scale = check_alloc(run, (size_t)n * groups * sizeof(float));
    m->min = check_alloc(run, (size_t)n * groups * sizeof(float));
    for (size_t i = 0; i < count; i++)
        m->codes[i] = (uint8_t)(kind == CODES_MOST    ? (1u << codes->bits) - 1
                                : kind == CODES_LEAST ? 0
                                                      : check_below(run, 1u << codes->bits));
    for (size_t i = 0; i < (size_t)n * groups; i++) {
        m->scale[i] = scale_value(run);
        m->min[i] = scale_value(run);
    }
    m->weight = (ds_weight){.name = "random",
                            .rows = (uint32_t)n,
                            .cols = (uint32_t)k,
                            .codes = *codes,
                            .owner = m,
                            .codes_row = codes_row};
    ds_qmat_describe(&m->packed, &m->weight);
    uint8_t *data = check_alloc(run, (size_t)m->packed.tiles * m->packed.tile_bytes);
    memset(data, 0, (size_t)m->packed.tiles * m->packed.tile_bytes);
    ds_qmat_fill(&m->packed, data, &m->weight, 0, m->packed.tiles,
                 check_alloc(run, ds_pack_scratch(&m->weight)));
    m->packed.data = data;
}

/* --- activations --------------------------------------------------------------------------------- */

typedef struct {
    int8_t *q;
    float *scale, *min;
    int32_t *sum;
    ds_qact act;
} quantised;

static void make_act(check_run *run, quantised *a, const float *x, int rows, int k)
{
    const size_t count = (size_t)rows * (size_t)k, blocks = count / DS_BLOCK, row = (size_t)k / DS_BLOCK;
    a->q = check_alloc(run, count);
    a->scale = check_alloc(run, blocks * sizeof(float));
    a->min = check_alloc(run, blocks * sizeof(float));
    a->sum = check_alloc(run, blocks * sizeof(int32_t));
    for (int r = 0; r < rows; r++)
        ds_matmul_impls[0].quant(x + (size_t)r * (size_t)k, k, a->q + (size_t)r * (size_t)k,
                                 a->scale + (size_t)r * row, a->min + (size_t)r * row,
                                 a->sum + (size_t)r * row);
    a->act = (ds_qact){k, a->q, a->scale, a->min, a->sum};
}

enum rows_kind { ROWS_NORMAL, ROWS_SPIKES, ROWS_ZERO, ROWS_MOST, ROWS_LEAST, ROWS_KINDS };

static float *make_rows(check_run *run, int rows, int k, enum rows_kind kind)
{
    const size_t count = (size_t)rows * (size_t)k;
    float *x = check_alloc(run, count * sizeof *x);
    check_fill(run, x, count, kind == ROWS_SPIKES ? 1e4f : 0);
    for (size_t i = 0; i < count && kind >= ROWS_ZERO; i++)
        x[i] = kind == ROWS_ZERO ? 0 : kind == ROWS_MOST ? 3.0f : -3.0f;
    return x;
}

/* --- one case of a matmul, integer or float -------------------------------------------------------- */

typedef struct {
    const ds_qmat *q; /* NULL: float */
    const ds_fmat *f;
    const ds_qact *act;
    const float *x;
    int n, k, tiles, rows;
    char name[96];
} matmul;

static void call(const ds_matmul_impl *impl, const matmul *m, int row, int rows, int tile0, int tile1,
                 const ds_dest *out)
{
    const size_t k = (size_t)m->k, at = (size_t)row * k, block = at / DS_BLOCK;
    if (m->q) {
        const ds_qact act = {m->k, m->act->q + at, m->act->scale + block, m->act->min + block,
                             m->act->sum + block};
        impl->qmm(m->q, &act, rows, tile0, tile1, out);
    } else
        impl->fmm(m->f, m->x + at, m->k, rows, tile0, tile1, out);
}

/* exact: [rows][n] in double, mag: the sum of the terms' magnitudes, F: fused multiply-adds of a chain.
 * A term passes one rounding as a product and one in every step after it, then bias and addition:
 * |y - exact| <= (F + 3) * 2^-24 * mag to first order; the last factor takes the higher orders. */
static void check_bound(check_run *run, const matmul *m, const float *y, int ld, const double *exact,
                        const double *mag, int fmas)
{
    const double tol = (fmas + 3) * 0x1p-24 * 1.001;
    for (int r = 0; r < m->rows; r++)
        for (int o = 0; o < m->n; o++) {
            const size_t i = (size_t)r * (size_t)m->n + (size_t)o;
            const double got = (double)y[(size_t)r * (size_t)ld + (size_t)o];
            if (!(fabs(got - exact[i]) <= tol * mag[i] + 1e-35)) {
                check_fail(run, "%s c: [%d][%d] is %.9g, not %.9g (+- %.3g)", m->name, r, o, got, exact[i],
                           tol * mag[i]);
                return;
            }
        }
}

/* Every implementation against the reference, whole, row by row, and in two spans of tiles. */
static void check_impls(check_run *run, const char *kernel, const matmul *m, const double *exact, double *mag,
                        int fmas)
{
    const int ld = m->n + 3;
    const size_t cells = (size_t)m->rows * (size_t)ld, bytes = cells * sizeof(float);
    float *old = check_alloc(run, bytes), *ref = check_alloc(run, bytes), *got = check_alloc(run, bytes);
    float *bias = check_alloc(run, (size_t)m->n * sizeof(float));
    const uint32_t with = check_below(run, 4);
    for (int o = 0; o < m->n; o++)
        bias[o] = check_normal(run);
    for (int r = 0; r < m->rows; r++)
        for (int o = 0; o < m->n; o++) /* the three cells between rows stay NaN, and must */
            old[(size_t)r * (size_t)ld + (size_t)o] = check_normal(run);
    ds_dest out = {ref, ld, with & 1 ? bias : NULL, with & 2};
    memcpy(ref, old, bytes);
    call(&ds_matmul_impls[0], m, 0, m->rows, 0, m->tiles, &out);
    double *want = check_alloc(run, (size_t)m->rows * (size_t)m->n * sizeof *want);
    for (int r = 0; r < m->rows; r++)
        for (int o = 0; o < m->n; o++) {
            const size_t i = (size_t)r * (size_t)m->n + (size_t)o;
            const double b = out.bias ? (double)bias[o] : 0;
            const double a = out.add ? (double)old[(size_t)r * (size_t)ld + (size_t)o] : 0;
            want[i] = exact[i] + b + a;
            mag[i] += fabs(b) + fabs(a);
        }
    check_bound(run, m, ref, ld, want, mag, fmas);
    for (size_t v = 0; v < ds_matmul_impl_count; v++) {
        const ds_matmul_impl *impl = &ds_matmul_impls[v];
        if (!check_runnable(run, kernel, impl->isa, impl->need))
            continue;
        run->checks++;
        out.y = memcpy(got, old, bytes);
        call(impl, m, 0, m->rows, 0, m->tiles, &out);
        if (memcmp(ref, got, bytes) != 0)
            for (size_t i = 0; i < cells; i++)
                if (memcmp(ref + i, got + i, sizeof *ref) != 0) {
                    check_fail(run, "%s %s: [%zu][%zu] is %a, not %a", m->name, impl->isa, i / (size_t)ld,
                               i % (size_t)ld, (double)got[i], (double)ref[i]);
                    break;
                }
        memcpy(got, old, bytes);
        for (int r = 0; r < m->rows; r++) {
            out.y = got + (size_t)r * (size_t)ld;
            call(impl, m, r, 1, 0, m->tiles, &out);
        }
        if (memcmp(ref, got, bytes) != 0)
            check_fail(run, "%s %s: a row alone has other bits", m->name, impl->isa);
        const int cut = (int)check_below(run, (uint32_t)m->tiles + 1);
        out.y = memcpy(got, old, bytes);
        call(impl, m, 0, m->rows, 0, cut, &out);
        call(impl, m, 0, m->rows, cut, m->tiles, &out);
        if (memcmp(ref, got, bytes) != 0)
            check_fail(run, "%s %s: tiles [0, %d) and [%d, %d) have other bits", m->name, impl->isa, cut, cut,
                       m->tiles);
    }
}

/* --- integer -------------------------------------------------------------------------------------- */

static void check_integer(check_run *run, size_t format, int n, int k, int rows, enum rows_kind kind,
                          enum codes_kind codes)
{
    const ds_codes *c = &formats[format].codes;
    matrix w;
    quantised a;
    make_matrix(run, &w, n, k, c, codes);
    make_act(run, &a, make_rows(run, rows, k, kind), rows, k);
    matmul m = {.q = &w.packed, .act = &a.act, .n = n, .k = k, .tiles = w.packed.tiles, .rows = rows};
    snprintf(m.name, sizeof m.name, "qmm %s n %d k %d rows %d case %d.%d", formats[format].name, n, k, rows,
             (int)kind, (int)codes);
    double *exact = check_alloc(run, (size_t)rows * (size_t)n * sizeof *exact);
    double *mag = check_alloc(run, (size_t)rows * (size_t)n * sizeof *mag);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < n; o++) {
            double sum = 0, size = 0;
            for (int b = 0; b < k / DS_BLOCK; b++) {
                const size_t at = (size_t)r * (size_t)(k / DS_BLOCK) + (size_t)b;
                const size_t g = (size_t)o * (size_t)(k / c->group) + (size_t)(b * DS_BLOCK / c->group);
                long whole = 0;
                for (int i = 0; i < DS_BLOCK; i++)
                    whole += (w.codes[(size_t)o * (size_t)k + (size_t)(b * DS_BLOCK + i)] - c->zero) *
                             a.q[at * DS_BLOCK + (size_t)i];
                const double term = (double)w.scale[g] * (double)a.scale[at] * (double)whole;
                const double low = c->has_min ? (double)w.min[g] * (double)a.min[at] : 0;
                sum += term + low;
                size += fabs(term) + fabs(low);
            }
            exact[(size_t)r * (size_t)n + (size_t)o] = sum;
            mag[(size_t)r * (size_t)n + (size_t)o] = size;
        }
    check_impls(run, "qmm", &m, exact, mag, k / DS_BLOCK * (c->has_min ? 2 : 1));
    check_free_all(run);
}

static const int row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33};

static void check_integers(check_run *run)
{
    static const struct {
        int n, k;
    } shapes[] = {{1, 128}, {17, 128}, {39, 384}, {64, 256}};
    for (size_t f = 0; f < COUNT(formats); f++) {
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (size_t r = 0; r < COUNT(row_counts); r++)
                check_integer(run, f, shapes[s].n, shapes[s].k, row_counts[r],
                              r % 2 ? ROWS_SPIKES : ROWS_NORMAL, CODES_RANDOM);
        for (int kind = ROWS_NORMAL; kind < ROWS_KINDS; kind++) /* sums at their ends: saturation shows */
            for (int codes = CODES_RANDOM; codes <= CODES_LEAST; codes++)
                check_integer(run, f, 20, 128, 5, (enum rows_kind)kind, (enum codes_kind)codes);
    }
}

/* --- float ---------------------------------------------------------------------------------------- */

static void floats_row(const ds_weight *w, uint32_t row, float *out)
{
    memcpy(out, (const float *)w->owner + (size_t)row * w->cols, w->cols * sizeof *out);
}

static void check_float(check_run *run, ds_dtype type, int n, int k, int rows)
{
    float *values = check_alloc(run, (size_t)n * (size_t)k * sizeof *values);
    for (size_t i = 0; i < (size_t)n * (size_t)k; i++)
        values[i] = type == DS_F32 ? check_normal(run) : scale_value(run);
    float *x = check_alloc(run, (size_t)rows * (size_t)k * sizeof *x);
    check_fill(run, x, (size_t)rows * (size_t)k, rows % 2 ? 0 : 1e4f);
    const ds_weight weight = {.name = "random",
                              .type = type,
                              .rows = (uint32_t)n,
                              .cols = (uint32_t)k,
                              .owner = values,
                              .floats = floats_row};
    ds_fmat w;
    ds_fmat_describe(&w, &weight, type);
    uint8_t *data = check_alloc(run, (size_t)w.tiles * w.tile_bytes);
    memset(data, 0, (size_t)w.tiles * w.tile_bytes);
    ds_fmat_fill(&w, data, &weight, 0, w.tiles, check_alloc(run, ds_pack_scratch(&weight)));
    w.data = data;
    matmul m = {.f = &w, .x = x, .n = n, .k = k, .tiles = w.tiles, .rows = rows};
    snprintf(m.name, sizeof m.name, "fmm %s n %d k %d rows %d", ds_dtype_get(type)->name, n, k, rows);
    double *exact = check_alloc(run, (size_t)rows * (size_t)n * sizeof *exact);
    double *mag = check_alloc(run, (size_t)rows * (size_t)n * sizeof *mag);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < n; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < k; i++) {
                const double term = (double)x[(size_t)r * (size_t)k + (size_t)i] *
                                    (double)values[(size_t)o * (size_t)k + (size_t)i];
                sum += term;
                size += fabs(term);
            }
            exact[(size_t)r * (size_t)n + (size_t)o] = sum;
            mag[(size_t)r * (size_t)n + (size_t)o] = size;
        }
    check_impls(run, "fmm", &m, exact, mag, k);
    check_free_all(run);
}

static void check_floats(check_run *run)
{
    static const struct {
        int n, k;
    } shapes[] = {{1, 1}, {17, 7}, {80, 64}, {50, 301}};
    static const ds_dtype types[] = {DS_F32, DS_F16, DS_BF16};
    static const int more_rows[] = {10, 13, 24, 49, 60, 107};
    for (size_t t = 0; t < COUNT(types); t++) {
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (size_t r = 0; r < COUNT(row_counts); r++)
                check_float(run, types[t], shapes[s].n, shapes[s].k, row_counts[r]);
        for (size_t r = 0; r < COUNT(more_rows); r++)
            check_float(run, types[t], 33, 70, more_rows[r]);
    }
}

/* --- the quantiser -------------------------------------------------------------------------------- */

/* k inputs: the definition for the reference, its bits for the others */
static void check_quant(check_run *run, const float *x, int k, const char *what)
{
    const size_t blocks = (size_t)k / DS_BLOCK;
    quantised ref, got;
    make_act(run, &ref, x, 1, k);
    for (size_t b = 0; b < blocks; b++) {
        float max = 0;
        bool finite = true;
        int sum = 0;
        for (size_t i = b * DS_BLOCK; i < (b + 1) * DS_BLOCK; i++) {
            max = fmaxf(max, fabsf(x[i]));
            finite = finite && isfinite(x[i]);
            sum += ref.q[i];
        }
        if (sum != ref.sum[b] ||
            (finite && (ref.scale[b] != max / 127 || ref.min[b] != ref.scale[b] * (float)sum)))
            check_fail(run, "quant c %s: block %zu has the wrong scale or sum", what, b);
        if (!finite && isfinite(ref.scale[b]))
            check_fail(run, "quant c %s: block %zu lost its infinity or NaN", what, b);
        for (size_t i = b * DS_BLOCK; i < (b + 1) * DS_BLOCK && finite; i++) /* half a step, and rounding */
            if (!(fabs((double)x[i] - (double)ref.scale[b] * ref.q[i]) <=
                  (double)max / 127 * 0.50002 + 0x1p-100))
                check_fail(run, "quant c %s: %a became %d", what, (double)x[i], ref.q[i]);
    }
    for (size_t v = 1; v < ds_matmul_impl_count; v++) {
        const ds_matmul_impl *impl = &ds_matmul_impls[v];
        if (!check_runnable(run, "quant", impl->isa, impl->need))
            continue;
        run->checks++;
        got.q = check_alloc(run, (size_t)k);
        got.scale = check_alloc(run, blocks * sizeof(float));
        got.min = check_alloc(run, blocks * sizeof(float));
        got.sum = check_alloc(run, blocks * sizeof(int32_t));
        impl->quant(x, k, got.q, got.scale, got.min, got.sum);
        if (memcmp(ref.q, got.q, (size_t)k) != 0 || memcmp(ref.sum, got.sum, blocks * 4) != 0 ||
            memcmp(ref.scale, got.scale, blocks * 4) != 0 || memcmp(ref.min, got.min, blocks * 4) != 0)
            check_fail(run, "quant %s %s: other bits", impl->isa, what);
    }
}

static void check_quants(check_run *run)
{
    static const float sizes[] = {1, 1e-30f, 1e-36f, 1e-42f, 1e30f, 3e38f};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        float *x = check_alloc(run, 640 * sizeof *x);
        check_fill(run, x, 640, s == 0 ? 1e4f : 0);
        for (int i = 0; i < 640; i++)
            x[i] = fmaxf(-1, fminf(1, x[i] / 4)) * sizes[s];
        memset(x + 64, 0, 32 * sizeof *x);
        check_quant(run, x, 640, "random");
        check_free_all(run);
    }
    float *x = check_alloc(run, 256 * sizeof *x);
    for (int i = 0; i < 256; i++) /* ties: halves go to the even neighbour */
        x[i] = i % 32 == 0 ? 127 : (float)(i % 32) + 0.5f - 16;
    check_quant(run, x, 256, "ties");
    for (int b = 0; b < 6; b++) {
        const float odd[] = {INFINITY, -INFINITY, NAN, -NAN, -0.0f, 0x1p-149f};
        x[b * DS_BLOCK + b * 5] = odd[b];
    }
    for (int i = 0; i < 32; i++)
        x[192 + i] = i % 2 ? NAN : INFINITY;
    check_quant(run, x, 256, "not finite");
    check_free_all(run);
}

/* --- bench ---------------------------------------------------------------------------------------- */

typedef struct {
    const ds_matmul_impl *impl;
    matmul m;
    ds_qmat q;
    ds_fmat f;
    uint8_t *pages; /* copies of the matrix, taken in turn, so that it comes from memory */
    size_t stride;
    int copies, at;
    ds_dest out;
} bench;

static void bench_call(void *arg)
{
    bench *b = arg;
    b->q.data = b->f.data = b->pages + b->stride * (size_t)b->at;
    b->at = (b->at + 1) % b->copies;
    call(b->impl, &b->m, 0, b->m.rows, 0, b->m.tiles, &b->out);
}

enum { BENCH_ROWS = 256 };
static const size_t bench_set = (size_t)96 << 20;

static void bench_rows(check_run *run, bench *b, const char *kernel, const char *name)
{
    static const int rows[] = {1, 2, 3, 4, 6, 8, 16, 64, BENCH_ROWS};
    const size_t k = (size_t)b->m.k, n = (size_t)b->m.n;
    float *x = make_rows(run, BENCH_ROWS, b->m.k, ROWS_NORMAL);
    quantised a;
    if (b->m.q)
        make_act(run, &a, x, BENCH_ROWS, b->m.k);
    b->m.act = &a.act;
    b->m.x = x;
    b->out = (ds_dest){.y = check_alloc(run, BENCH_ROWS * n * sizeof(float)), .ld = b->m.n};
    for (size_t i = 0; i < COUNT(rows); i++) {
        char shape[64];
        if (n > 10000 && rows[i] > 16) /* the head has few rows */
            continue;
        b->m.rows = rows[i];
        snprintf(shape, sizeof shape, "%s n%zu k%zu rows %d", name, n, k, rows[i]);
        const check_cost cost = {.bytes = (double)b->stride,
                                 .set = (double)b->stride * b->copies,
                                 .ops = 2.0 * (double)n * (double)k * rows[i],
                                 .codes = !b->m.q               ? "float"
                                          : b->q.code_max <= 15 ? "4 bits"
                                          : b->q.code_max <= 63 ? "6 bits"
                                                                : "8 bits",
                                 .rows = rows[i]};
        check_bench(run, kernel, b->impl->isa, shape, bench_call, b, &cost);
    }
    ds_pages_free(b->pages, b->stride * (size_t)b->copies);
    check_free_all(run);
}

static bool bench_pages(check_run *run, bench *b, size_t bytes)
{
    b->stride = (bytes + 63) / 64 * 64;
    b->copies = bytes < bench_set ? (int)(bench_set / b->stride) + 1 : 1;
    b->pages = ds_pages_alloc(b->stride * (size_t)b->copies);
    if (!b->pages)
        check_fail(run, "bench: no memory");
    return b->pages != NULL;
}

static void bench_integer(check_run *run, const ds_matmul_impl *impl, int n, int k, const char *format)
{
    size_t f = 0;
    while (strcmp(formats[f].name, format) != 0)
        f++;
    bench b = {.impl = impl};
    matrix w;
    make_matrix(run, &w, n, k, &formats[f].codes, CODES_RANDOM);
    b.q = w.packed;
    b.m = (matmul){.q = &b.q, .n = n, .k = k, .tiles = w.packed.tiles};
    if (!bench_pages(run, &b, (size_t)w.packed.tiles * w.packed.tile_bytes))
        return;
    for (int i = 0; i < b.copies; i++)
        memcpy(b.pages + b.stride * (size_t)i, w.packed.data, (size_t)w.packed.tiles * w.packed.tile_bytes);
    bench_rows(run, &b, "qmm", format);
}

static void bench_float(check_run *run, const ds_matmul_impl *impl, int n, int k, ds_dtype type)
{
    bench b = {.impl = impl};
    const ds_weight weight = {.rows = (uint32_t)n, .cols = (uint32_t)k};
    ds_fmat_describe(&b.f, &weight, type);
    b.m = (matmul){.f = &b.f, .n = n, .k = k, .tiles = b.f.tiles};
    if (!bench_pages(run, &b, (size_t)b.f.tiles * b.f.tile_bytes))
        return;
    const size_t elems = b.stride * (size_t)b.copies / (type == DS_F32 ? 4 : 2);
    for (size_t i = 0; i < elems; i++) /* 1 or 1.5 in any of the types */
        if (type == DS_F32)
            ((float *)(void *)b.pages)[i] = i % 3 ? 1.0f : 1.5f;
        else
            ((uint16_t *)(void *)b.pages)[i] =
                type == DS_F16 ? (i % 3 ? 0x3c00 : 0x3e00) : (i % 3 ? 0x3f80 : 0x3fc0);
    bench_rows(run, &b, "fmm", ds_dtype_get(type)->name);
}

typedef struct {
    const ds_matmul_impl *impl;
    const float *x;
    quantised out;
    int k;
} bench_quantiser;

static void quant_call(void *arg)
{
    bench_quantiser *b = arg;
    b->impl->quant(b->x, b->k, b->out.q, b->out.scale, b->out.min, b->out.sum);
}

static void bench_impl(check_run *run, const ds_matmul_impl *impl)
{
    if (check_runnable(run, "qmm", impl->isa, impl->need)) {
        bench_integer(run, impl, 1536, 576, "q4_1");
        bench_integer(run, impl, 576, 1536, "q4_1");
        bench_integer(run, impl, 1536, 576, "q4_0");
        bench_integer(run, impl, 1536, 576, "affine4/64");
        bench_integer(run, impl, 1536, 576, "q5_0");
        bench_integer(run, impl, 1536, 576, "affine6/64");
        bench_integer(run, impl, 49152, 576, "q8_0");
        bench_integer(run, impl, 49152, 576, "affine8/64");
    }
    if (check_runnable(run, "fmm", impl->isa, impl->need)) {
        bench_float(run, impl, 1536, 576, DS_F32);
        bench_float(run, impl, 576, 1536, DS_F16);
        bench_float(run, impl, 576, 1536, DS_BF16);
    }
    if (check_runnable(run, "quant", impl->isa, impl->need)) {
        bench_quantiser b = {.impl = impl, .x = make_rows(run, 1, 1536, ROWS_NORMAL), .k = 1536};
        make_act(run, &b.out, b.x, 1, b.k);
        const double bytes = b.k * (double)sizeof *b.x;
        check_bench(run, "quant", impl->isa, "k1536", quant_call, &b, &(check_cost){bytes, bytes, .rows = 1});
        check_free_all(run);
    }
}

void check_matmul(check_run *run)
{
    if (ds_matmul_pick(0) != &ds_matmul_impls[0])
        check_fail(run, "pick: the reference is what a machine without flags runs");
    check_integers(run);
    check_floats(run);
    check_quants(run);
    for (size_t v = 1; v < ds_matmul_impl_count && run->bench; v++)
        bench_impl(run, &ds_matmul_impls[v]);
}
