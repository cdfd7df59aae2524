/* Sampling maths in fp32 from fp32 logits, with sums in fp64.
 *
 * p = truncate(softmax(logits / T)): top-k (ties with the k-th survive, no renormalisation), then
 * top-p over the unnormalised masses (kept while the sum before is < top_p; ties with the cutoff
 * survive), then min-p (p >= min_p * max p), then division by the sum.
 * Coupled sampling: token = argmax over kept ids of log p + Gumbel noise keyed by (seed, position,
 * id), lowest id on ties: an exact sample whose result is the same for everyone who uses the same key.
 * Rows with NaN, +inf or nothing above -inf are DS_INTERNAL. */
#ifndef DS_DECODE_SAMPLER_H
#define DS_DECODE_SAMPLER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    float temperature; /* 0: greedy */
    float top_p;       /* 1 (or 0 as unset): off */
    int top_k;         /* 0: off */
    float min_p;       /* 0: off */
    uint64_t seed;
} ds_sampling;

/* Checks ranges; DS_INVALID names the field, its value and the allowed range. top_p 0 becomes 1. */
ds_status ds_sampling_check(ds_sampling *s, ds_error *err);

/* A truncated distribution: ids ascending, p sums to 1. Zero it first, reuse it between rows, release
 * it once. */
typedef struct {
    int n;
    int32_t *ids;
    float *p;
    float *z; /* (logit - largest logit) / T of the kept ids */
    size_t cap;
    float *work; /* scratch of the last vocabulary size */
    size_t work_cap;
} ds_dist;
/* s: as ds_sampling_check left it. Temperature 0 is the distribution at one token. */
ds_status ds_dist_make(ds_dist *d, const float *logits, int n, const ds_sampling *s, ds_error *err);
void ds_dist_release(ds_dist *d);

int ds_argmax(const float *logits, int n); /* lowest index of the largest; NaN never wins */
/* The coupled token of a row at absolute position pos (of the token that is chosen). map: offset table
 * of a reduced draft vocabulary (noise is keyed by the target id), or NULL; returns an index of logits,
 * -1 on failure. */
int ds_sample_coupled(ds_dist *d, const float *logits, int n, const ds_sampling *s, int64_t pos,
                      const int32_t *map, ds_error *err);
/* Gumbel noise of one token. */
double ds_gumbel(uint64_t seed, int64_t pos, int32_t id);
/* Uniform in [0, 1) from a counter: purpose tells streams of one position apart. */
double ds_uniform(uint64_t seed, int64_t pos, uint32_t purpose);
/* Inverse CDF over the kept ids, u in [0, 1). */
int32_t ds_dist_sample(const ds_dist *d, double u);
float ds_dist_p(const ds_dist *d, int32_t id); /* 0 where not kept */
/* The rule of rejection sampling: whether a token drawn from q stands, u in [0, 1). */
bool ds_accepts(const ds_dist *p, const ds_dist *q, int32_t id, double u);
/* max(0, p - q) over p's ids, unnormalised, into r [p->n] (NULL: not wanted); returns its sum. */
double ds_residual(const ds_dist *p, const ds_dist *q, float *r);
/* Sample of normalise(max(0, p - q)); falls back to p where the residual is empty. */
int32_t ds_residual_sample(const ds_dist *p, const ds_dist *q, double u);

#endif
