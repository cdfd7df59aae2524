/* Sampling maths: truncated distributions, acceptance from given uniforms, and what follows a draft.
 * Penalties (the pen.* arrays) are not covered. */
#include "golden.h"

#include "decode/sampler.h"

#include <stdio.h>
#include <stdlib.h>

/* Running sums nearer to top_p than this may fall on either side of it. */
static const double CUT_GAP = 1e-5;

/* Case `spec`: rows of logits to kept ids and probabilities, rows concatenated. */
static bool distributions(const golden_case *c, const json_t *spec, char *why, size_t n_why)
{
    const char *name = json_string_value(json_object_get(spec, "name"));
    char key[64];
    snprintf(key, sizeof key, "logits.%s", json_string_value(json_object_get(spec, "logits")));
    const golden_array *logits = golden_want(c, key, 0, 0, why, n_why);
    snprintf(key, sizeof key, "%s.p", name);
    const golden_array *p = golden_want(c, key, 0, 0, why, n_why);
    snprintf(key, sizeof key, "%s.ids", name);
    const golden_array *ids = golden_find(c, key);
    if (!ids)
        golden_say(why, n_why, GOLDEN_FAILED, "%s is missing", key);
    if (!logits || !p || !ids)
        return false;
    bool close_call = golden_num(spec, "cut_gap", 1) < CUT_GAP;
    ds_sampling s = {
        .temperature = (float)golden_num(spec, "temperature", 1),
        .top_p = (float)golden_num(spec, "top_p", 1),
        .top_k = golden_int(spec, "top_k", 0),
    };
    ds_dist d = {0};
    ds_error err;
    bool ok = true;
    size_t at = 0;
    for (size_t row = 0; ok && row < logits->dims[0]; row++) {
        int vocab = (int)logits->dims[1];
        int want = (int)json_integer_value(json_array_get(json_object_get(spec, "kept"), row));
        char what[96];
        snprintf(what, sizeof what, "%s row %zu", name, row);
        if (ds_dist_make(&d, logits->f + row * (size_t)vocab, vocab, &s, &err)) {
            golden_say(why, n_why, GOLDEN_FAILED, "%s: %s", what, err.text);
            ok = false;
        } else if (at + (size_t)want > p->count || at + (size_t)want > ids->count) {
            golden_say(why, n_why, GOLDEN_FAILED, "%s: the file has too few results", what);
            ok = false;
        } else if (close_call && abs(d.n - want) == 1) {
            ; /* one id more or less: the sums decide */
        } else if (d.n != want) {
            golden_say(why, n_why, GOLDEN_FAILED, "%s: %d ids kept, expected %d", what, d.n, want);
            ok = false;
        } else {
            ok = golden_same(what, d.ids, (const int32_t *)(const void *)ids->data + at, want, why, n_why) &&
                 golden_close(c, what, d.p, p->f + at, (size_t)want, GOLDEN_TOL_PROB, true, why, n_why);
        }
        at += (size_t)want;
    }
    ds_dist_release(&d);
    return ok;
}

/* A distribution of the non-zero entries of a row. Room for n. */
static void from_row(ds_dist *d, const float *row, int n)
{
    d->n = 0;
    for (int i = 0; i < n; i++)
        if (row[i] > 0) {
            d->ids[d->n] = i;
            d->p[d->n++] = row[i];
        }
}

enum { VOCAB_MAX = 512 };

static bool acceptance(const golden_case *c, const json_t *spec, char *why, size_t n_why)
{
    const char *name = json_string_value(json_object_get(spec, "name"));
    char key[64];
    int m = 0;
    int32_t *draft = golden_ids(spec, "draft", &m);
    snprintf(key, sizeof key, "%s.p", name);
    const golden_array *p = golden_want(c, key, (size_t)m + 1, 0, why, n_why);
    size_t vocab = p ? p->dims[1] : 0;
    snprintf(key, sizeof key, "%s.q", name);
    const golden_array *q = golden_want(c, key, (size_t)m, vocab, why, n_why);
    snprintf(key, sizeof key, "%s.u", name);
    const golden_array *u = golden_want(c, key, 1, (size_t)m, why, n_why);
    snprintf(key, sizeof key, "%s.next", name);
    const golden_array *next = golden_want(c, key, 1, vocab, why, n_why);
    if (!p || !q || !u || !next || vocab > VOCAB_MAX) {
        free(draft);
        return false;
    }
    int32_t p_ids[VOCAB_MAX], q_ids[VOCAB_MAX];
    float p_p[VOCAB_MAX], q_p[VOCAB_MAX], got[VOCAB_MAX] = {0}, rest[VOCAB_MAX];
    ds_dist dp = {.ids = p_ids, .p = p_p}, dq = {.ids = q_ids, .p = q_p};
    int a = 0;
    for (; a < m; a++) {
        from_row(&dp, p->f + (size_t)a * vocab, (int)vocab);
        from_row(&dq, q->f + (size_t)a * vocab, (int)vocab);
        if (!ds_accepts(&dp, &dq, draft[a], (double)u->f[a]))
            break;
    }
    bool ok = a == golden_int(spec, "accepted", -1);
    if (!ok) {
        golden_say(why, n_why, GOLDEN_FAILED, "%s: %d accepted, expected %d", name, a,
                   golden_int(spec, "accepted", -1));
    } else {
        from_row(&dp, p->f + (size_t)a * vocab, (int)vocab);
        if (a == m)
            dq.n = 0; /* nothing was drafted: all of p is left */
        double sum = ds_residual(&dp, &dq, rest);
        for (int i = 0; i < dp.n; i++)
            got[dp.ids[i]] = (float)((double)rest[i] / sum);
        snprintf(key, sizeof key, "%s.next", name);
        ok = golden_close(c, key, got, next->f, vocab, GOLDEN_TOL_PROB, true, why, n_why);
        /* the sampler draws from that distribution: each id's interval of u, probed at its middle */
        double run = 0;
        for (int i = 0; ok && i < dp.n; i++) {
            double share = (double)rest[i] / sum;
            if (share > 1e-5 && ds_residual_sample(&dp, &dq, run + share / 2) != dp.ids[i]) {
                golden_say(why, n_why, GOLDEN_FAILED, "%s: the sample at id %d's share is another", name,
                           (int)dp.ids[i]);
                ok = false;
            }
            run += share;
        }
    }
    free(draft);
    return ok;
}

int golden_sampling(const golden_case *c, char *why, size_t n_why)
{
    size_t i;
    json_t *spec;
    json_array_foreach(json_object_get(c->json, "cases"), i, spec)
    {
        if (!distributions(c, spec, why, n_why))
            return GOLDEN_FAILED;
    }
    json_array_foreach(json_object_get(c->json, "accept"), i, spec)
    {
        if (!acceptance(c, spec, why, n_why))
            return GOLDEN_FAILED;
    }
    return GOLDEN_PASSED;
}
