/* Statistics for tests of sampling. Seeds are fixed, so that what passes once passes always. */
#ifndef DS_TESTS_DECODE_STATS_H
#define DS_TESTS_DECODE_STATS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>

/* How many standard deviations above its mean a chi-square sum lies (Wilson and Hilferty's cube root):
 * 3.09 is p = 0.001. counts and expected: [n]; cells that expect under 5 are pooled into one. */
static inline double chi_square_z(const double *counts, const double *expected, int n)
{
    double sum = 0, pooled_count = 0, pooled = 0;
    int cells = 0;
    for (int i = 0; i < n; i++) {
        if (expected[i] < 5) {
            pooled_count += counts[i];
            pooled += expected[i];
            continue;
        }
        sum += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
        cells++;
    }
    if (pooled > 0) {
        sum += (pooled_count - pooled) * (pooled_count - pooled) / pooled;
        cells++;
    } else if (pooled_count > 0) {
        return INFINITY; /* something that cannot happen did */
    }
    if (cells < 2)
        return 0;
    double k = cells - 1, spread = 2 / (9 * k);
    return (cbrt(sum / k) - (1 - spread)) / sqrt(spread);
}

static const double CHI_LIMIT = 3.09;

/* Numbers for inputs, unrelated to the engine's own generator. */
static inline uint64_t test_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline double test_uniform(uint64_t *state)
{
    return (double)(test_random(state) >> 11) * 0x1p-53;
}

static inline double test_normal(uint64_t *state)
{
    double u = test_uniform(state) + 0x1p-60;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * test_uniform(state));
}

#endif
