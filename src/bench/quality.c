#include "bench/rig.h"
#include "engine/prompt.h"

#include "base/map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double nll, nll_exact, kl;
    int64_t same, scored;
} sums;

/* Logits of the scored rows of a window, [rows][vocab], copied to out. */
static ds_status window_logits(float *out, ds_rig *rig, ds_state *state, const int32_t *ids, int n, int from,
                               ds_error *err)
{
    ds_state_rollback(state, 0);
    ds_span span = {.state = state, .ids = ids, .n = n, .logits_from = from};
    ds_forward forward;
    ds_status status = ds_model_forward(rig->model, &span, 1, &forward, err);
    size_t floats = (size_t)(n - from) * (size_t)ds_model_get(rig->model)->vocab;
    if (!status)
        status = rig->be->download(rig->be, out, forward.logits, floats * sizeof *out, err);
    return status;
}

static double log_sum(const float *logits, int n, int *best)
{
    *best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[*best])
            *best = i;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - logits[*best]);
    return log(sum) + logits[*best];
}

static void score_row(sums *s, const float *fast, const float *exact, int vocab, int32_t next)
{
    int best, best_exact;
    double norm = log_sum(fast, vocab, &best), norm_exact = log_sum(exact, vocab, &best_exact), kl = 0;
    for (int i = 0; i < vocab; i++) {
        double log_p = exact[i] - norm_exact, log_q = fast[i] - norm;
        kl += exp(log_p) * (log_p - log_q);
    }
    s->kl += kl;
    s->nll += norm - fast[next];
    s->nll_exact += norm_exact - exact[next];
    s->same += best == best_exact;
    s->scored++;
}

static ds_status score(sums *s, ds_rig *fast, ds_rig *exact, const int32_t *ids, size_t n, int window,
                       ds_error *err)
{
    int vocab = ds_model_get(fast->model)->vocab, half = window / 2;
    size_t floats = (size_t)(window - half) * (size_t)vocab;
    float *a = malloc(floats * sizeof *a), *b = malloc(floats * sizeof *b);
    ds_state *state_a = NULL, *state_b = NULL;
    ds_status status = a && b ? DS_OK : ds_fail(err, DS_NO_MEMORY, "out of memory for logits");
    if (!status)
        status = ds_state_open(&state_a, fast->model, window, err);
    if (!status)
        status = ds_state_open(&state_b, exact->model, window, err);
    for (size_t at = 0; at + (size_t)window <= n && !status; at += (size_t)window) {
        /* row i predicts token i + 1: the last row of a window has nothing to predict */
        status = window_logits(a, fast, state_a, ids + at, window - 1, half - 1, err);
        if (!status)
            status = window_logits(b, exact, state_b, ids + at, window - 1, half - 1, err);
        for (int i = half; i < window && !status; i++) {
            size_t row = (size_t)(i - half) * (size_t)vocab;
            score_row(s, a + row, b + row, vocab, ids[at + (size_t)i]);
        }
    }
    ds_state_close(state_a);
    ds_state_close(state_b);
    free(a);
    free(b);
    return status;
}

static ds_status open_text(ds_map *map, const char *path, ds_error *err)
{
    ds_status status = ds_map_open(map, path, err);
    if (status == DS_BAD_FILE)
        status = err->status = DS_INVALID;
    return status;
}

static ds_status tokenize(ds_ids *ids, ds_rig *rig, const ds_map *map, ds_error *err)
{
    ds_prompter *prompter = NULL;
    ds_status status = ds_prompter_open(&prompter, rig->target_files, err);
    if (!status)
        status = ds_prompter_encode(prompter, (const char *)map->data, map->size, false, ids, err);
    ds_prompter_close(prompter);
    return status;
}

ds_status ds_bench_quality(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup,
                           const char *text_file, int tokens, int window, ds_error *err)
{
    ds_rig fast = {0}, exact = {0};
    ds_bench_setup exact_setup = *setup;
    exact_setup.exact = true;
    ds_ids ids = {0};
    sums s = {0};
    *out = NULL;
    ds_map text;
    ds_status status = open_text(&text, text_file, err);
    if (status)
        return status;
    status = ds_rig_open(&fast, setup, err);
    if (!status)
        status = tokenize(&ids, &fast, &text, err);
    ds_map_close(&text);
    size_t n = ids.len;
    if (!status && tokens && (size_t)tokens < n)
        n = (size_t)tokens;
    if (!status && n < (size_t)window)
        status =
            ds_fail(err, DS_INVALID, "%s gives %zu tokens, but one window takes %d", text_file, n, window);
    if (!status)
        status = ds_rig_open(&exact, &exact_setup, err);
    if (!status) {
        ds_rig_ran(&fast, ran);
        status = score(&s, &fast, &exact, ids.data, n, window, err);
    }
    if (!status) {
        double count = (double)s.scored;
        *out = json_pack("{s:f, s:f, s:f, s:f, s:I}", "ppl", exp(s.nll / count), "ppl_exact",
                         exp(s.nll_exact / count), "kl", s.kl / count, "top1", (double)s.same / count,
                         "tokens", (json_int_t)s.scored);
        if (!*out)
            status = ds_fail(err, DS_INTERNAL, "the model's logits are not finite");
    }
    ds_ids_release(&ids);
    ds_rig_release(&exact);
    ds_rig_release(&fast);
    return status;
}
