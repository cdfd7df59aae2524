/* Truncation without sorting, and the search for the coupled token.
 *
 * All three truncations keep the ids whose z lies above a cutoff, so what survives is decided by the
 * highest of the three cutoffs, and ids that a cheap bound shows to be below any of them are never
 * looked at singly. */
#include "decode/sampler.h"

#include "decode/noise.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = DS_NOISE_BLOCK };

/* --- settings and memory --- */

ds_status ds_sampling_check(ds_sampling *s, ds_error *err)
{
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return ds_fail(err, DS_INVALID, "temperature is %g: it must be from 0 (greedy) to 100",
                       (double)s->temperature);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return ds_fail(err, DS_INVALID, "top_p is %g: it must be above 0 and at most 1 (off)",
                       (double)s->top_p);
    if (s->top_k < 0)
        return ds_fail(err, DS_INVALID, "top_k is %d: it must be 0 (off) or more", s->top_k);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return ds_fail(err, DS_INVALID, "min_p is %g: it must be from 0 (off) to 1", (double)s->min_p);
    if (s->top_p == 0)
        s->top_p = 1;
    return DS_OK;
}

void ds_dist_release(ds_dist *d)
{
    free(d->ids);
    free(d->p);
    free(d->z);
    free(d->work);
    *d = (ds_dist){0};
}

static ds_status grow(ds_dist *d, size_t n, ds_error *err)
{
    if (n <= d->cap)
        return DS_OK;
    size_t cap = n + n / 2 < 256 ? 256 : n + n / 2;
    free(d->ids);
    free(d->p);
    free(d->z);
    d->ids = malloc(cap * sizeof *d->ids);
    d->p = malloc(cap * sizeof *d->p);
    d->z = malloc(cap * sizeof *d->z);
    d->cap = d->ids && d->p && d->z ? cap : 0;
    d->n = 0;
    return d->cap ? DS_OK : ds_fail(err, DS_NO_MEMORY, "sampling: no memory for %zu candidates", n);
}

/* --- rows --- */

int ds_argmax(const float *logits, int n)
{
    int best = 0;
    float max = -INFINITY;
    for (int i = 0; i < n; i++)
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    return best;
}

/* Largest logit of every block of ids into work, and of the row. */
static ds_status scan(ds_dist *d, const float *logits, int n, float *max, ds_error *err)
{
    size_t blocks = ((size_t)n + BLOCK - 1) / BLOCK;
    if (blocks > d->work_cap) {
        free(d->work);
        d->work = malloc(blocks * 2 * sizeof *d->work); /* twice: scan's, and keep's copy */
        d->work_cap = d->work ? blocks : 0;
        if (!d->work)
            return ds_fail(err, DS_NO_MEMORY, "sampling: no memory for a row of %d logits", n);
    }
    *max = -INFINITY;
    int bad = 0;
    for (size_t b = 0; b < blocks; b++) {
        const float *x = logits + b * BLOCK;
        int len = n - (int)b * BLOCK < BLOCK ? n - (int)b * BLOCK : BLOCK;
        float lane[8];
        for (int j = 0; j < 8; j++)
            lane[j] = -INFINITY;
        int i = 0;
        for (; i + 8 <= len; i += 8)
            for (int j = 0; j < 8; j++) {
                lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
                bad |= !(x[i + j] <= FLT_MAX);
            }
        for (; i < len; i++) {
            lane[0] = x[i] > lane[0] ? x[i] : lane[0];
            bad |= !(x[i] <= FLT_MAX);
        }
        for (int j = 1; j < 8; j++)
            lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
        d->work[b] = lane[0];
        *max = lane[0] > *max ? lane[0] : *max;
    }
    if (bad || *max == -INFINITY)
        return ds_fail(err, DS_INTERNAL, "sampling: the model gave logits that are %s",
                       bad ? "not finite" : "all -inf");
    return DS_OK;
}

/* exp(z) for z <= 0, to 2 units in the last place; 0 below -87. The same operations everywhere, and
 * such as compilers turn into vectors: libm's function is neither. */
static inline float exp_down(float z)
{
    float x = z < -87.0f ? -87.0f : z;
    float t = x * 1.44269504f + 0x1.8p23f; /* the sum's low bits are the nearest whole number */
    int32_t bits;
    memcpy(&bits, &t, sizeof bits);
    float k = t - 0x1.8p23f;
    float r = x - k * 0x1.62e4p-1f; /* ln 2 in two parts: the first product is exact */
    r = r - k * 0x1.7f7d1cp-20f;
    float y = 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    int32_t scale = (int32_t)((uint32_t)bits << 23) + 0x3f800000;
    float s;
    memcpy(&s, &scale, sizeof s);
    return z < -87.0f ? 0.0f : y * s;
}

/* z down to which the mass is summed apart: a nucleus that reaches its share there ends there. */
static const float levels[] = {-3, -8};

typedef struct {
    double total;                /* sum of exp(z) over a row */
    double above[COUNT(levels)]; /* of z >= levels[i], good to 1e-5 */
} masses;

static masses weigh(const float *logits, int n, float max, float t)
{
    enum { CHUNK = 256, LANES = 8 };
    masses m = {0};
    for (int from = 0; from < n; from += CHUNK) {
        int len = n - from < CHUNK ? n - from : CHUNK;
        float z[CHUNK], e[CHUNK];
        for (int i = 0; i < len; i++)
            z[i] = (logits[from + i] - max) / t;
        for (int i = len; i < CHUNK; i++)
            z[i] = -INFINITY;
        for (int i = 0; i < CHUNK; i++)
            e[i] = exp_down(z[i]);
        double lane[LANES] = {0};
        for (int i = 0; i < CHUNK; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += (double)e[i + j];
        m.total += ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
        for (size_t l = 0; l < COUNT(levels); l++) {
            float part[LANES] = {0};
            for (int i = 0; i < CHUNK; i += LANES)
                for (int j = 0; j < LANES; j++)
                    part[j] += z[i + j] >= levels[l] ? e[i + j] : 0;
            for (int j = 0; j < LANES; j++)
                m.above[l] += (double)part[j];
        }
    }
    return m;
}

/* --- truncation --- */

/* z is never positive, so that its bits without the sign grow as z falls. */
static inline uint32_t depth_bits(float z)
{
    uint32_t bits;
    memcpy(&bits, &z, sizeof bits);
    return bits & 0x7fffffff;
}

/* The lowest z of which the values above weigh less than target: the k-th largest (w NULL: each weighs
 * 1, target k), or the end of the nucleus. A search by digits of the bits: 11, then 10, then 10. */
static float cutoff(const float *z, const float *w, int n, double target)
{
    static const struct {
        int shift, width;
    } digits[] = {{20, 11}, {10, 10}, {0, 10}};
    double bins[1 << 11], above = 0;
    uint32_t prefix = 0;
    for (size_t level = 0; level < COUNT(digits); level++) {
        int shift = digits[level].shift, width = digits[level].width, count = 1 << width;
        bool seen[1 << 11] = {false};
        memset(bins, 0, (size_t)count * sizeof *bins);
        for (int i = 0; i < n; i++) {
            uint32_t bits = depth_bits(z[i]);
            if (level && bits >> (shift + width) != prefix)
                continue;
            uint32_t digit = bits >> shift & (uint32_t)(count - 1);
            bins[digit] += w ? (double)w[i] : 1.0;
            seen[digit] = true;
        }
        int at = -1; /* where rounding keeps all digits below the target, the last one is it */
        for (int b = 0; b < count && !(at >= 0 && above + bins[at] >= target); b++) {
            if (!seen[b])
                continue;
            if (at >= 0)
                above += bins[at];
            at = b;
        }
        if (at < 0)
            return -INFINITY;
        prefix = prefix << width | (uint32_t)at;
    }
    float z_cut;
    prefix |= 0x80000000u;
    memcpy(&z_cut, &prefix, sizeof z_cut);
    return z_cut;
}

/* Drops ids below a cutoff. */
static void cut(ds_dist *d, float z_cut)
{
    int n = 0;
    for (int i = 0; i < d->n; i++)
        if (d->z[i] >= z_cut) {
            d->ids[n] = d->ids[i];
            d->z[n++] = d->z[i];
        }
    d->n = n;
}

/* The mass of top-p; raises *floor to a bound below which no id is in the nucleus. */
static double floor_of_nucleus(const float *logits, int n, float max, float t, float top_p, float *floor)
{
    masses m = weigh(logits, n, max, t);
    double mass = (double)top_p * m.total;
    /* in any case: n ids under it weigh less than the rest that is cut */
    float bound = -(float)log(n / ((1 - (double)top_p) * m.total)) - 1e-3f;
    for (size_t l = 0; l < COUNT(levels); l++)
        if (m.above[l] > mass * (1 + 1e-4)) {
            bound = levels[l];
            break;
        }
    *floor = fmaxf(*floor, bound);
    return mass;
}

/* Fills ids and z with what survives truncation. Temperature is above 0. */
static ds_status keep(ds_dist *d, const float *logits, int n, const ds_sampling *s, ds_error *err)
{
    float max, t = s->temperature, floor = -INFINITY;
    ds_status status = scan(d, logits, n, &max, err);
    if (status)
        return status;
    double nucleus = 0; /* mass at which it is full */
    int blocks = (n + BLOCK - 1) / BLOCK;
    float *top = d->work + blocks; /* z of each block's largest */
    for (int b = 0; b < blocks; b++)
        top[b] = (d->work[b] - max) / t;
    /* Bounds that no survivor lies below. Of top-k: k blocks hold an id above it. Of top-p: what lies
     * above it has the share already. */
    if (s->top_k > 0 && s->top_k <= blocks)
        floor = cutoff(top, NULL, blocks, s->top_k);
    if (s->top_p < 1)
        nucleus = floor_of_nucleus(logits, n, max, t, s->top_p, &floor);
    if (s->min_p > 0)
        floor = fmaxf(floor, logf(s->min_p) - 1e-3f);
    size_t most = 0;
    for (int b = 0; b < blocks; b++)
        most += top[b] >= floor ? BLOCK : 0;
    status = grow(d, most, err);
    if (status)
        return status;
    d->n = 0;
    for (int b = 0; b < blocks; b++) {
        if (!(top[b] >= floor))
            continue;
        int end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        for (int i = b * BLOCK; i < end; i++) {
            float z = (logits[i] - max) / t;
            d->ids[d->n] = i;
            d->z[d->n] = z;
            d->n += z >= floor;
        }
    }
    if (s->top_k > 0 && s->top_k < d->n)
        cut(d, cutoff(d->z, NULL, d->n, s->top_k));
    if (s->top_p < 1) {
        for (int i = 0; i < d->n; i++)
            d->p[i] = exp_down(d->z[i]);
        cut(d, cutoff(d->z, d->p, d->n, nucleus));
    }
    if (s->min_p > 0) {
        int kept = 0;
        for (int i = 0; i < d->n; i++)
            if (exp_down(d->z[i]) >= s->min_p) {
                d->ids[kept] = d->ids[i];
                d->z[kept++] = d->z[i];
            }
        d->n = kept;
    }
    return DS_OK;
}

static bool truncates(const ds_sampling *s)
{
    return s->top_k > 0 || s->top_p < 1 || s->min_p > 0;
}

ds_status ds_dist_make(ds_dist *d, const float *logits, int n, const ds_sampling *s, ds_error *err)
{
    if (s->temperature == 0) {
        ds_status status = grow(d, 1, err);
        if (status)
            return status;
        d->n = 1;
        d->ids[0] = ds_argmax(logits, n);
        d->p[0] = 1;
        d->z[0] = 0;
        return DS_OK;
    }
    ds_status status = keep(d, logits, n, s, err);
    if (status)
        return status;
    double sum = 0;
    for (int i = 0; i < d->n; i++) {
        d->p[i] = exp_down(d->z[i]);
        sum += (double)d->p[i];
    }
    for (int i = 0; i < d->n; i++)
        d->p[i] = (float)((double)d->p[i] / sum);
    return DS_OK;
}

/* --- sampling --- */

typedef struct {
    ds_noise noise;
    double score; /* of the best id so far */
    int32_t id;   /* its target id */
    int index;
} search;

/* Bounds are compared with the score by way of logarithms, whose last bits we do not rely on. */
static const double SLACK = 1e-9;

static void consider(search *best, float z, int32_t id, int index, uint64_t bits, double least)
{
    double score = (double)z - log(ds_noise_id(&best->noise, id, bits, least));
    if (score > best->score || (score == best->score && id < best->id)) {
        best->score = score;
        best->id = id;
        best->index = index;
    }
}

/* Over the ids that keep() left. */
static void search_list(search *best, const ds_dist *d, const int32_t *map)
{
    int32_t block = -1;
    uint64_t bits = 0;
    double least = 0, bound = 0;
    bool exact = false;
    for (int i = 0; i < d->n; i++) {
        int32_t id = d->ids[i] + (map ? map[d->ids[i]] : 0);
        if (id / BLOCK != block) {
            block = id / BLOCK;
            bits = ds_noise_block(&best->noise, block);
            bound = ds_noise_bound(bits);
            exact = false;
        }
        if ((double)d->z[i] + bound < best->score - SLACK)
            continue;
        if (!exact) { /* the block's noise is worth its logarithm */
            least = ds_noise_least(bits);
            bound = -log(least);
            exact = true;
            if ((double)d->z[i] + bound < best->score - SLACK)
                continue;
        }
        consider(best, d->z[i], id, d->ids[i], bits, least);
    }
}

/* Over the whole row, which scan() has been over: ids are indices, and nothing is cut. */
static void search_row(search *best, const ds_dist *d, const float *logits, int n, float max, float t)
{
    int blocks = (n + BLOCK - 1) / BLOCK, first = 0;
    while (d->work[first] != max)
        first++;
    for (int k = -1; k < blocks; k++) { /* the block of the largest logit sets the mark for the others */
        int b = k < 0 ? first : k;
        if (k == first)
            continue;
        uint64_t bits = ds_noise_block(&best->noise, b);
        double top = (double)((d->work[b] - max) / t);
        if (top + ds_noise_bound(bits) < best->score - SLACK)
            continue;
        double least = ds_noise_least(bits), bound = -log(least);
        if (top + bound < best->score - SLACK)
            continue;
        int end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        for (int i = b * BLOCK; i < end; i++) {
            float z = (logits[i] - max) / t;
            if ((double)z + bound >= best->score - SLACK)
                consider(best, z, i, i, bits, least);
        }
    }
}

int ds_sample_coupled(ds_dist *d, const float *logits, int n, const ds_sampling *s, int64_t pos,
                      const int32_t *map, ds_error *err)
{
    if (s->temperature == 0)
        return ds_argmax(logits, n);
    search best = {.noise = ds_noise_at(s->seed, pos), .score = -INFINITY, .index = -1};
    if (map || truncates(s)) {
        if (keep(d, logits, n, s, err))
            return -1;
        search_list(&best, d, map);
    } else {
        float max;
        if (scan(d, logits, n, &max, err))
            return -1;
        search_row(&best, d, logits, n, max, s->temperature);
    }
    return best.index;
}

double ds_gumbel(uint64_t seed, int64_t pos, int32_t id)
{
    ds_noise noise = ds_noise_at(seed, pos);
    uint64_t bits = ds_noise_block(&noise, id / BLOCK);
    return -log(ds_noise_id(&noise, id, bits, ds_noise_least(bits)));
}

double ds_uniform(uint64_t seed, int64_t pos, uint32_t purpose)
{
    return (double)(ds_noise_key(seed, pos, purpose) >> 11) * 0x1p-53;
}

int32_t ds_dist_sample(const ds_dist *d, double u)
{
    double sum = 0, run = 0;
    for (int i = 0; i < d->n; i++)
        sum += (double)d->p[i];
    int last = 0;
    for (int i = 0; i < d->n; i++) {
        run += (double)d->p[i];
        if (run > u * sum)
            return d->ids[i];
        last = d->p[i] > 0 ? i : last; /* a weight of 0 is never drawn, rounding or not */
    }
    return d->ids[last];
}

float ds_dist_p(const ds_dist *d, int32_t id)
{
    int from = 0, to = d->n;
    while (from < to) {
        int mid = from + (to - from) / 2;
        if (d->ids[mid] == id)
            return d->p[mid];
        if (d->ids[mid] < id)
            from = mid + 1;
        else
            to = mid;
    }
    return 0;
}

bool ds_accepts(const ds_dist *p, const ds_dist *q, int32_t id, double u)
{
    return u * (double)ds_dist_p(q, id) < (double)ds_dist_p(p, id);
}

double ds_residual(const ds_dist *p, const ds_dist *q, float *r)
{
    double sum = 0;
    for (int i = 0, j = 0; i < p->n; i++) {
        while (j < q->n && q->ids[j] < p->ids[i])
            j++;
        float less = j < q->n && q->ids[j] == p->ids[i] ? q->p[j] : 0;
        float rest = p->p[i] > less ? p->p[i] - less : 0;
        if (r)
            r[i] = rest;
        sum += (double)rest;
    }
    return sum;
}

int32_t ds_residual_sample(const ds_dist *p, const ds_dist *q, double u)
{
    double sum = ds_residual(p, q, NULL), run = 0;
    if (sum < 1e-9) /* p and q agree up to rounding: their difference is nothing to draw from */
        return ds_dist_sample(p, u);
    int last = 0;
    for (int i = 0, j = 0; i < p->n; i++) {
        while (j < q->n && q->ids[j] < p->ids[i])
            j++;
        float less = j < q->n && q->ids[j] == p->ids[i] ? q->p[j] : 0;
        if (p->p[i] <= less)
            continue;
        run += (double)(p->p[i] - less);
        last = i;
        if (run > u * sum)
            break;
    }
    return p->ids[last];
}
