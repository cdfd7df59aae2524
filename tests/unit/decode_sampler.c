/* Truncation against a full sort in fp64, the noise, and coupled and rejection samples against the
 * distributions they must have. */
#include "decode/sampler.h"

#include "decode_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { DRAWS = 20000 };
#else
enum { DRAWS = 100000 };
#endif

static ds_sampling sampling(float temperature, float top_p, int top_k, float min_p)
{
    return (ds_sampling){.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p};
}

/* --- settings --- */

static void test_check(void **state)
{
    (void)state;
    static const struct {
        const char *field;
        ds_sampling s;
    } bad[] = {
        {"temperature", {.temperature = -1}},
        {"temperature", {.temperature = NAN}},
        {"temperature", {.temperature = 1000}},
        {"top_p", {.top_p = -0.1f}},
        {"top_p", {.top_p = 1.5f}},
        {"top_p", {.top_p = NAN}},
        {"top_k", {.top_k = -1}},
        {"min_p", {.min_p = 2}},
        {"min_p", {.min_p = NAN}},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        ds_sampling s = bad[i].s;
        ds_error err = {0};
        assert_int_equal(ds_sampling_check(&s, &err), DS_INVALID);
        assert_non_null(strstr(err.text, bad[i].field));
    }
    ds_sampling zero = {0};
    assert_int_equal(ds_sampling_check(&zero, NULL), DS_OK);
    assert_true(zero.top_p == 1);
}

/* --- truncation --- */

/* Logits are logarithms of the masses given. */
static const struct {
    const char *name;
    int n;
    float mass[8];
    ds_sampling s;
    int kept;
    int32_t ids[8];
} cases[] = {
    {"nothing cut", 4, {4, 3, 2, 1}, {1, 1, 0, 0, 0}, 4, {0, 1, 2, 3}},
    {"top-k", 4, {1, 2, 3, 4}, {1, 1, 2, 0, 0}, 2, {2, 3}},
    {"top-k, tie with the k-th", 5, {1, 2, 4, 2, 1}, {1, 1, 2, 0, 0}, 3, {1, 2, 3}},
    {"top-k beyond the vocabulary", 3, {1, 2, 4}, {1, 1, 99, 0, 0}, 3, {0, 1, 2}},
    {"top-k equal to the vocabulary", 3, {1, 2, 4}, {1, 1, 3, 0, 0}, 3, {0, 1, 2}},
    {"top-k 1, all equal", 3, {1, 1, 1}, {1, 1, 1, 0, 0}, 3, {0, 1, 2}},
    {"top-p keeps the first", 4, {4, 3, 2, 1}, {1, 0.01f, 0, 0, 0}, 1, {0}},
    {"top-p within the second", 4, {4, 3, 2, 1}, {1, 0.45f, 0, 0, 0}, 2, {0, 1}},
    {"top-p, tie with the cutoff", 5, {1, 3, 2, 3, 1}, {1, 0.2f, 0, 0, 0}, 2, {1, 3}},
    {"top-p after top-k is not renormalised", 4, {4, 3, 2, 1}, {1, 0.5f, 2, 0, 0}, 2, {0, 1}},
    {"top-p over what top-k left", 4, {4, 3, 2, 1}, {1, 0.9f, 2, 0, 0}, 2, {0, 1}},
    {"min-p", 4, {8, 3, 2, 1}, {1, 1, 0, 0.3f, 0}, 2, {0, 1}},
    {"min-p 1", 4, {4, 3, 4, 1}, {1, 1, 0, 1, 0}, 2, {0, 2}},
    {"all three", 5, {8, 4, 2, 1, 1}, {1, 0.9f, 3, 0.4f, 0}, 2, {0, 1}},
    {"impossible ids", 4, {0, 3, 0, 1}, {1, 0.99f, 0, 0, 0}, 2, {1, 3}},
    {"temperature sharpens", 2, {2, 1}, {0.1f, 0.99f, 0, 0, 0}, 1, {0}},
    {"temperature flattens", 2, {100, 1}, {10, 0.99f, 0, 0, 0}, 2, {0, 1}},
    {"temperature near 0", 3, {2, 2.0001f, 1}, {1e-30f, 0.95f, 0, 0, 0}, 1, {1}},
    {"greedy", 3, {2, 3, 3}, {0, 1, 0, 0, 0}, 1, {1}},
};

static void test_table(void **state)
{
    (void)state;
    ds_dist d = {0};
    for (size_t c = 0; c < COUNT(cases); c++) {
        float logits[8];
        for (int i = 0; i < cases[c].n; i++)
            logits[i] = logf(cases[c].mass[i]);
        assert_int_equal(ds_dist_make(&d, logits, cases[c].n, &cases[c].s, NULL), DS_OK);
        if (d.n != cases[c].kept || memcmp(d.ids, cases[c].ids, (size_t)d.n * sizeof *d.ids))
            fail_msg("%s: %d ids kept, the first is %d", cases[c].name, d.n, (int)d.ids[0]);
    }
    ds_dist_release(&d);
}

static void test_bad_rows(void **state)
{
    (void)state;
    ds_dist d = {0};
    ds_error err;
    ds_sampling s = sampling(1, 1, 0, 0);
    const float bad[][3] = {{1, NAN, 2}, {INFINITY, 1, 2}, {-INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(ds_dist_make(&d, bad[i], 3, &s, &err), DS_INTERNAL);
        assert_int_equal(ds_sample_coupled(&d, bad[i], 3, &s, 0, NULL, &err), -1);
    }
    const float extreme[] = {-3.4e38f, 3.4e38f, -INFINITY};
    assert_int_equal(ds_dist_make(&d, extreme, 3, &s, &err), DS_OK);
    assert_int_equal(ds_sample_coupled(&d, extreme, 3, &s, 0, NULL, &err), 1);
    assert_int_equal(ds_argmax((const float[]){NAN, 1, 3, 3}, 4), 2);
    ds_dist_release(&d);
}

typedef struct {
    double p;
    float z;
    int32_t id;
} item;

static int by_mass(const void *a, const void *b)
{
    float x = ((const item *)a)->z, y = ((const item *)b)->z;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The header's rules over a full sort. Fills p [n], 0 where cut. Returns how near a sum came to top_p. */
static double naive(const float *logits, int n, const ds_sampling *s, double *p)
{
    item *items = malloc((size_t)n * sizeof *items);
    float max = logits[ds_argmax(logits, n)];
    double total = 0, run = 0, kept_mass = 0, gap = 1;
    for (int i = 0; i < n; i++) {
        float z = (logits[i] - max) / s->temperature;
        items[i] = (item){exp((double)z), z, i};
        total += items[i].p;
        p[i] = 0;
    }
    qsort(items, (size_t)n, sizeof *items, by_mass);
    int kept = n;
    if (s->top_k > 0 && s->top_k < n)
        for (kept = s->top_k; kept < n && items[kept].z == items[s->top_k - 1].z;)
            kept++;
    if (s->top_p < 1) {
        int end = 0;
        for (; end < kept && run / total < (double)s->top_p; end++) {
            run += items[end].p;
            gap = fmin(gap, fabs(run / total - (double)s->top_p));
        }
        for (; end < kept && items[end].z == items[end - 1].z;)
            end++;
        kept = end;
    }
    while (kept > 1 && items[kept - 1].p < (double)s->min_p)
        kept--;
    for (int i = 0; i < kept; i++)
        kept_mass += items[i].p;
    for (int i = 0; i < kept; i++)
        p[items[i].id] = items[i].p / kept_mass;
    free(items);
    return gap;
}

static void compare(ds_dist *d, const float *logits, int n, const ds_sampling *s, const char *what)
{
    double *p = malloc((size_t)n * sizeof *p);
    double gap = naive(logits, n, s, p);
    assert_int_equal(ds_dist_make(d, logits, n, s, NULL), DS_OK);
    double sum = 0, worst = 0;
    int differ = 0, at = 0;
    for (int i = 0; i < n; i++) {
        bool kept = at < d->n && d->ids[at] == i;
        differ += kept != (p[i] > 0) && !(kept && d->p[at] < 1e-30f);
        worst = fmax(worst, fabs((kept ? (double)d->p[at] : 0) - p[i]));
        sum += kept ? (double)d->p[at] : 0;
        at += kept;
    }
    if (at != d->n || (differ && gap > 1e-6) || (worst > 1e-6 && gap > 1e-6) || fabs(sum - 1) > 1e-5)
        fail_msg("%s, n %d, T %g, top_p %g, top_k %d, min_p %g: %d ids differ, p by %g, sum %g", what, n,
                 (double)s->temperature, (double)s->top_p, s->top_k, (double)s->min_p, differ, worst, sum);
    free(p);
}

static void test_against_sort(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 7, 63, 64, 65, 500, 8209, 49152};
    static const float temperatures[] = {0.05f, 0.7f, 1, 2.5f}, tops[] = {0.05f, 0.5f, 0.95f, 0.9999f, 1};
    static const int ks[] = {0, 1, 2, 40, 700, 1 << 20};
    static const float mins[] = {0, 0.05f};
    enum { MOST = 49152 };
    float *logits = malloc(MOST * sizeof *logits);
    ds_dist d = {0};
    uint64_t seed = 7;
    for (size_t a = 0; a < COUNT(sizes); a++)
        for (int rounded = 0; rounded < 2; rounded++) {
            for (int i = 0; i < sizes[a]; i++) {
                logits[i] = (float)(3 * test_normal(&seed));
                if (rounded) /* many ties */
                    logits[i] = roundf(2 * logits[i]) / 2;
            }
            int step = sizes[a] > 5000 ? 17 : 1; /* of the large ones only some combinations */
            int combinations = (int)(COUNT(temperatures) * COUNT(tops) * COUNT(ks) * COUNT(mins));
            for (int x = 0; x < combinations; x += step) {
                ds_sampling s = sampling(temperatures[x % 4], tops[x / 4 % 5], ks[x / 20 % 6], mins[x / 120]);
                compare(&d, logits, sizes[a], &s, rounded ? "ties" : "normal");
            }
        }
    free(logits);
    ds_dist_release(&d);
}

/* Sums of many small terms in low precision stop growing: then a nucleus would be the whole row. */
static void test_flat(void **state)
{
    (void)state;
    enum { N = 152000 };
    float *logits = malloc(N * sizeof *logits);
    ds_dist d = {0};
    ds_sampling s = sampling(1, 0.95f, 0, 0);
    for (int i = 0; i < N; i++)
        logits[i] = 2.5f;
    compare(&d, logits, N, &s, "equal");
    assert_int_equal(d.n, N);
    for (int i = 0; i < N; i++)
        logits[i] = 20 - (float)(i * 2147483629ll % N) * 0x1p-18f;
    assert_int_equal(ds_dist_make(&d, logits, N, &s, NULL), DS_OK);
    /* mass of the first k: (1 - e^(-k h)) / (1 - e^(-n h)) */
    double h = 0x1p-18, total = 1 - exp(-N * h);
    int expected = (int)ceil(-log(1 - (double)s.top_p * total) / h);
    assert_true(abs(d.n - expected) <= 2);
    s.top_p = 1;
    assert_int_equal(ds_dist_make(&d, logits, N, &s, NULL), DS_OK);
    assert_int_equal(d.n, N);
    free(logits);
    ds_dist_release(&d);
}

/* --- noise --- */

static void test_uniform_noise(void **state)
{
    (void)state;
    enum { BINS = 64 };
    for (uint32_t purpose = 0; purpose < 4; purpose++) {
        double counts[BINS] = {0}, expected[BINS], pairs[BINS] = {0};
        double before = 0;
        for (int i = 0; i < DRAWS; i++) {
            double u = ds_uniform(42, i, purpose);
            assert_true(u >= 0 && u < 1);
            counts[(int)(u * BINS)]++;
            pairs[(int)(u * 8) * 8 + (int)(before * 8)]++; /* with the position before */
            before = u;
        }
        for (int b = 0; b < BINS; b++)
            expected[b] = (double)DRAWS / BINS;
        assert_true(chi_square_z(counts, expected, BINS) < CHI_LIMIT);
        assert_true(chi_square_z(pairs, expected, BINS) < CHI_LIMIT);
    }
}

/* The distribution function of a Gumbel number turns the noise into uniform numbers: alone, and in
 * pairs that must not know of each other. */
static void test_gumbel(void **state)
{
    (void)state;
    static const struct {
        const char *with;
        uint64_t seed;
        int pos;
        int32_t id;
    } others[] = {
        {"the next id, mostly of its block", 0, 0, 1},
        {"an id of its block", 0, 0, 7},
        {"the next block", 0, 0, 64},
        {"the next position", 0, 1, 0},
        {"the next seed", 1, 0, 0},
        {"the next seed and position", 1, 1, 0},
    };
    enum { SIDE = 8, BINS = SIDE * SIDE };
    for (size_t o = 0; o < COUNT(others); o++) {
        double pairs[BINS] = {0}, fine[BINS] = {0}, expected[BINS];
        for (int i = 0; i < DRAWS; i++) {
            /* ids and positions that are not walked in step with the pairs' distance */
            int32_t id = (int32_t)(i * 131ll % 50000);
            int64_t pos = i / 7 * 3;
            double u = exp(-exp(-ds_gumbel(9, pos, id)));
            double v = exp(-exp(-ds_gumbel(9 + others[o].seed, pos + others[o].pos, id + others[o].id)));
            assert_true(u >= 0 && u <= 1);
            fine[u < 1 ? (int)(u * BINS) : BINS - 1]++;
            pairs[(u < 1 ? (int)(u * SIDE) : SIDE - 1) * SIDE + (v < 1 ? (int)(v * SIDE) : SIDE - 1)]++;
        }
        for (int b = 0; b < BINS; b++)
            expected[b] = (double)DRAWS / BINS;
        assert_true(chi_square_z(fine, expected, BINS) < CHI_LIMIT);
        if (chi_square_z(pairs, expected, BINS) >= CHI_LIMIT)
            fail_msg("noise depends on %s: %g deviations", others[o].with,
                     chi_square_z(pairs, expected, BINS));
    }
}

/* --- coupled samples --- */

/* The definition: every kept id's noise looked at. */
static int brute_force(ds_dist *d, const float *logits, int n, const ds_sampling *s, int64_t pos,
                       const int32_t *map)
{
    assert_int_equal(ds_dist_make(d, logits, n, s, NULL), DS_OK);
    int best = -1;
    double score = -INFINITY;
    for (int i = 0; i < d->n; i++) {
        int32_t target = d->ids[i] + (map ? map[d->ids[i]] : 0);
        double x = (double)d->z[i] + ds_gumbel(s->seed, pos, target);
        if (x > score) {
            score = x;
            best = d->ids[i];
        }
    }
    return best;
}

static void test_coupled_search(void **state)
{
    (void)state;
    static const int sizes[] = {1, 5, 64, 100, 1000, 20011};
    static const ds_sampling settings[] = {
        {1, 1, 0, 0, 3},  {0.3f, 1, 0, 0, 3}, {5, 1, 0, 0, 3},         {0.8f, 0.9f, 0, 0, 3},
        {1, 1, 40, 0, 3}, {1, 1, 0, 0.1f, 3}, {0.8f, 0.95f, 20, 0, 3}, {100, 1, 0, 0, 3},
    };
    enum { MOST = 20011 };
    float *logits = malloc(MOST * sizeof *logits);
    int32_t *map = malloc(MOST * sizeof *map);
    ds_dist d = {0};
    uint64_t seed = 11;
    for (size_t a = 0; a < COUNT(sizes); a++) {
        int n = sizes[a];
        for (int i = 0; i < n; i++)
            map[i] = i * 2 + (i % 3 == 0); /* ascending target ids i + map[i] */
        for (int pos = 0; pos < (n > 5000 ? 6 : 60); pos++) {
            for (int i = 0; i < n; i++)
                logits[i] = (float)(pos % 3 == 2 ? 0 : 2 * test_normal(&seed));
            for (size_t c = 0; c < COUNT(settings); c++)
                for (int mapped = 0; mapped < 2; mapped++) {
                    int want = brute_force(&d, logits, n, &settings[c], pos, mapped ? map : NULL);
                    int got = ds_sample_coupled(&d, logits, n, &settings[c], pos, mapped ? map : NULL, NULL);
                    assert_int_equal(got, want);
                }
        }
    }
    free(map);
    free(logits);
    ds_dist_release(&d);
}

static void test_coupled_is_exact(void **state)
{
    (void)state;
    static const ds_sampling settings[] = {
        {1, 1, 0, 0, 1}, {0.6f, 1, 0, 0, 2}, {1, 1, 8, 0, 3}, {1, 0.8f, 0, 0, 4}, {3, 1, 0, 0.05f, 5},
    };
    enum { N = 300 };
    float logits[N];
    double p[N], expected[N];
    uint64_t seed = 5;
    ds_dist d = {0};
    for (int i = 0; i < N; i++)
        logits[i] = (float)(2 * test_normal(&seed));
    for (size_t c = 0; c < COUNT(settings); c++) {
        naive(logits, N, &settings[c], p);
        for (int by_seed = 0; by_seed < 2; by_seed++) { /* over positions, and over seeds */
            double counts[N] = {0};
            for (int i = 0; i < DRAWS; i++) {
                ds_sampling s = settings[c];
                s.seed += by_seed ? (uint64_t)i : 0;
                int token = ds_sample_coupled(&d, logits, N, &s, by_seed ? 17 : i, NULL, NULL);
                assert_in_range(token, 0, N - 1);
                counts[token]++;
            }
            for (int i = 0; i < N; i++)
                expected[i] = p[i] * DRAWS;
            double z = chi_square_z(counts, expected, N);
            if (z >= CHI_LIMIT)
                fail_msg("settings %zu %s: %g deviations", c, by_seed ? "by seed" : "by position", z);
        }
    }
    ds_dist_release(&d);
}

/* --- rejection --- */

static void test_rejection_is_exact(void **state)
{
    (void)state;
    enum { N = 80 };
    float target[N], drafter[N];
    double p[N], expected[N], counts[N] = {0};
    uint64_t seed = 23;
    ds_dist dp = {0}, dq = {0};
    ds_sampling s = sampling(0.8f, 0.95f, 20, 0);
    for (int i = 0; i < N; i++) {
        target[i] = (float)(2 * test_normal(&seed));
        drafter[i] = target[i] + (float)test_normal(&seed);
    }
    naive(target, N, &s, p);
    assert_int_equal(ds_dist_make(&dp, target, N, &s, NULL), DS_OK);
    assert_int_equal(ds_dist_make(&dq, drafter, N, &s, NULL), DS_OK);
    for (int i = 0; i < DRAWS; i++) {
        int32_t token = ds_dist_sample(&dq, ds_uniform(1, i, 1));
        if (!ds_accepts(&dp, &dq, token, ds_uniform(1, i, 2)))
            token = ds_residual_sample(&dp, &dq, ds_uniform(1, i, 3));
        counts[token]++;
    }
    for (int i = 0; i < N; i++)
        expected[i] = p[i] * DRAWS;
    assert_true(chi_square_z(counts, expected, N) < CHI_LIMIT);
    /* nothing of p lies above itself */
    assert_int_equal(ds_residual_sample(&dp, &dp, 0.3), ds_dist_sample(&dp, 0.3));
    ds_dist_release(&dp);
    ds_dist_release(&dq);
}

static void test_inverse_cdf(void **state)
{
    (void)state;
    int32_t ids[] = {3, 5, 9, 11};
    float p[] = {0, 0.25f, 0.75f, 0};
    ds_dist d = {.n = 4, .ids = ids, .p = p};
    assert_int_equal(ds_dist_sample(&d, 0), 5);
    assert_int_equal(ds_dist_sample(&d, 0.2499), 5);
    assert_int_equal(ds_dist_sample(&d, 0.25), 9);
    assert_int_equal(ds_dist_sample(&d, 1 - 0x1p-53), 9);
    assert_true(ds_dist_p(&d, 9) == 0.75f);
    assert_true(ds_dist_p(&d, 4) == 0);
    assert_true(ds_dist_p(&d, 12) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_against_sort),
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_uniform_noise),
        cmocka_unit_test(test_gumbel),
        cmocka_unit_test(test_coupled_search),
        cmocka_unit_test(test_coupled_is_exact),
        cmocka_unit_test(test_rejection_is_exact),
        cmocka_unit_test(test_inverse_cdf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
