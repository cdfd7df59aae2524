/* Target models: logits of the whole prompt, tapped rows, the prompt in pieces, and greedy decoding one
 * row at a time. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const golden_case *c;
    char *why;
    size_t n;
    ds_backend *be;
    ds_model *model;
    ds_state *state;
    int32_t *ids, *greedy;
    int n_ids, n_greedy, vocab, hidden;
    float *logits; /* [n_ids][vocab], of the prompt in one piece */
    float *again;  /* the same size */
    ds_error err;
} target;

static golden_result broken(target *t, const char *what)
{
    return golden_say(t->why, t->n, GOLDEN_FAILED, "%s: %s", what, t->err.text);
}

static ds_status feed(target *t, const int32_t *ids, int n, int logits_from, ds_forward *f)
{
    ds_span span = {.state = t->state, .ids = ids, .n = n, .logits_from = logits_from};
    return ds_model_forward(t->model, &span, 1, f, &t->err);
}

static golden_result check_prompt(target *t)
{
    size_t count = (size_t)t->n_ids * (size_t)t->vocab;
    const golden_array *want = golden_want(t->c, "logits", (size_t)t->n_ids, (size_t)t->vocab, t->why, t->n);
    if (!want)
        return GOLDEN_FAILED;
    int n_taps, layers[DS_MAX_TAPS] = {0};
    int32_t *taps = golden_ids(t->c->json, "taps", &n_taps);
    if (n_taps > DS_MAX_TAPS)
        n_taps = DS_MAX_TAPS;
    for (int i = 0; i < n_taps; i++)
        layers[i] = taps[i];
    free(taps);
    if (ds_model_set_taps(t->model, layers, n_taps, &t->err))
        return broken(t, "taps");
    ds_forward f;
    if (feed(t, t->ids, t->n_ids, 0, &f) ||
        t->be->download(t->be, t->logits, f.logits, count * sizeof(float), &t->err))
        return broken(t, "prompt");
    if (!golden_close(t->c, "logits", t->logits, want->f, count, GOLDEN_TOL_LOGITS, false, t->why, t->n))
        return GOLDEN_FAILED;

    size_t hidden = (size_t)t->hidden, width = hidden * (size_t)n_taps;
    float *rows = malloc((size_t)t->n_ids * (width + hidden) * sizeof *rows),
          *one = rows + (size_t)t->n_ids * width;
    golden_result result = GOLDEN_PASSED;
    if (n_taps && t->be->download(t->be, rows, f.taps, (size_t)t->n_ids * width * sizeof *rows, &t->err))
        result = broken(t, "taps");
    for (int k = 0; result == GOLDEN_PASSED && k < n_taps; k++) {
        char name[32];
        snprintf(name, sizeof name, "tap.%d", layers[k]);
        want = golden_want(t->c, name, (size_t)t->n_ids, hidden, t->why, t->n);
        for (size_t i = 0; i < (size_t)t->n_ids; i++)
            memcpy(one + i * hidden, rows + i * width + (size_t)k * hidden, hidden * sizeof *one);
        if (!want || !golden_close(t->c, name, one, want->f, (size_t)t->n_ids * hidden, GOLDEN_TOL_LOGITS,
                                   false, t->why, t->n))
            result = GOLDEN_FAILED;
    }
    free(rows);
    if (!result && ds_model_set_taps(t->model, NULL, 0, &t->err))
        return broken(t, "taps");
    return result;
}

/* Pieces of any size give the bits of the whole. */
static golden_result check_pieces(target *t)
{
    int sizes[] = {golden_int(t->c->json, "chunk", 10), 1, 7};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        ds_state_rollback(t->state, 0);
        for (int at = 0, step; at < t->n_ids; at += step) {
            step = t->n_ids - at < sizes[s] ? t->n_ids - at : sizes[s];
            ds_forward f;
            if (feed(t, t->ids + at, step, 0, &f) ||
                t->be->download(t->be, t->again + (size_t)at * (size_t)t->vocab, f.logits,
                                (size_t)step * (size_t)t->vocab * sizeof(float), &t->err))
                return broken(t, "prompt in pieces");
        }
        if (memcmp(t->logits, t->again, (size_t)t->n_ids * (size_t)t->vocab * sizeof(float)) != 0)
            return golden_say(t->why, t->n, GOLDEN_FAILED,
                              "a prompt in pieces of %d has other bits than the whole", sizes[s]);
    }
    return GOLDEN_PASSED;
}

static int32_t best(const float *x, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[at])
            at = i;
    return at;
}

static golden_result check_greedy(target *t)
{
    const golden_array *last = golden_find(t->c, "greedy_logits_last");
    size_t vocab = (size_t)t->vocab;
    int tail = last ? (int)last->dims[0] : 0;
    if (last && !golden_want(t->c, "greedy_logits_last", 0, vocab, t->why, t->n))
        return GOLDEN_FAILED;
    float *row = t->again;
    int32_t *got = malloc((size_t)(t->n_greedy + 1) * sizeof *got);
    golden_result result = GOLDEN_PASSED;
    memcpy(row, t->logits + (size_t)(t->n_ids - 1) * vocab, vocab * sizeof *row);
    for (int i = 0; !result && i < t->n_greedy; i++) {
        int behind = i - (t->n_greedy - tail);
        if (behind >= 0 && !golden_close(t->c, "logits while decoding", row, last->f + (size_t)behind * vocab,
                                         vocab, GOLDEN_TOL_LOGITS, false, t->why, t->n))
            result = GOLDEN_FAILED;
        got[i] = best(row, t->vocab);
        ds_forward f;
        if (feed(t, &got[i], 1, 0, &f) || t->be->download(t->be, row, f.logits, vocab * sizeof *row, &t->err))
            result = broken(t, "decoding");
    }
    if (!result && !golden_same("greedy decoding", got, t->greedy, t->n_greedy, t->why, t->n))
        result = GOLDEN_FAILED;
    free(got);
    return result;
}

static golden_result check(target *t, const ds_checkpoint *ckpt)
{
    ds_status status = ds_model_open(&t->model, ckpt, t->be, NULL, &t->err);
    if (status)
        return golden_say(t->why, t->n, strstr(t->err.text, "support") ? GOLDEN_UNSUPPORTED : GOLDEN_FAILED,
                          "%s", t->err.text);
    t->vocab = ds_model_get(t->model)->vocab;
    t->hidden = ds_model_get(t->model)->hidden;
    t->ids = golden_ids(t->c->json, "ids", &t->n_ids);
    t->greedy = golden_ids(t->c->json, "greedy_ids", &t->n_greedy);
    if (t->n_ids < 1 || t->n_ids > DS_MAX_ROWS)
        return golden_say(t->why, t->n, GOLDEN_FAILED, "%d prompt ids", t->n_ids);
    size_t bytes = (size_t)t->n_ids * (size_t)t->vocab * sizeof(float);
    t->logits = malloc(bytes);
    t->again = malloc(bytes);
    if (ds_state_open(&t->state, t->model, t->n_ids + t->n_greedy, &t->err))
        return broken(t, "sequence");
    golden_result result = check_prompt(t);
    if (!result)
        result = check_pieces(t);
    if (!result)
        result = check_greedy(t);
    if (!result && golden_find(t->c, "kv8.logits"))
        return golden_say(t->why, t->n, GOLDEN_UNSUPPORTED, "quantised keys and values; all else passed");
    return result;
}

int golden_target(const golden_case *c, char *why, size_t n)
{
    target t = {.c = c, .why = why, .n = n, .be = golden_backend()};
    char path[4096];
    golden_path(c, "model.gguf", path, sizeof path);
    ds_checkpoint *ckpt;
    ds_status status = ds_checkpoint_open(&ckpt, strcmp(c->kind, "gguf") == 0 ? path : c->dir, &t.err);
    if (status)
        return golden_say(why, n, strstr(t.err.text, "support") ? GOLDEN_UNSUPPORTED : GOLDEN_FAILED, "%s",
                          t.err.text);
    golden_result result = check(&t, ckpt);
    ds_state_close(t.state);
    ds_model_close(t.model);
    ds_checkpoint_close(ckpt);
    free(t.ids);
    free(t.greedy);
    free(t.logits);
    free(t.again);
    return result;
}
