/* Prefill, and rounds over a batch: draft, verify in one forward, accept, roll back. */
#include "decode/gen.h"

#include <math.h>
#include <stdlib.h>

/* Rows of one gen in a forward, and what came of them. */
typedef struct {
    ds_gen *gen;
    int before;    /* rows in its states before the forward */
    int row0;      /* its first row in the forward */
    int logit0;    /* its first row of logits */
    int committed; /* tokens it gains */
    ds_verdict verdict;
} part;

/* Takes back what a failed forward or append left in the states. */
static void restore(const part *parts, int n)
{
    for (int i = 0; i < n; i++) {
        ds_gen *gen = parts[i].gen;
        if (ds_state_length(gen->state) > parts[i].before)
            ds_state_rollback(gen->state, parts[i].before);
        if (gen->draft_state && ds_draft_state_length(gen->draft_state) > parts[i].before)
            ds_draft_rollback(gen->draft_state, parts[i].before);
    }
}

/* Hands tap rows [row0, row0 + rows) of a forward to a drafter. */
static ds_status feed_drafter(ds_gen *gen, const ds_forward *fwd, int row0, int rows, ds_error *err)
{
    if (!gen->draft_state)
        return DS_OK;
    if (!fwd->taps)
        return ds_fail(err, DS_INTERNAL, "the target gave no tapped rows, which the drafter needs");
    size_t width = (size_t)ds_model_taps(gen->model) * (size_t)ds_model_get(gen->model)->hidden;
    return ds_draft_append(gen->draft_state, fwd->taps + (size_t)row0 * width, rows, err);
}

/* Logits in host memory: where they are, or copied. */
static ds_status host_logits(ds_gen *lead, const ds_forward *fwd, const float **out, ds_error *err)
{
    ds_backend *be = lead->be;
    ds_status status = be->sync(be, err);
    if (status)
        return status;
    *out = be->peek(be, fwd->logits);
    if (*out)
        return DS_OK;
    size_t count = (size_t)fwd->logit_rows * (size_t)ds_model_get(lead->model)->vocab;
    if (count > lead->host_cap) {
        free(lead->host);
        lead->host = malloc(count * sizeof *lead->host);
        lead->host_cap = lead->host ? count : 0;
        if (!lead->host)
            return ds_fail(err, DS_NO_MEMORY, "no memory for %d rows of logits", fwd->logit_rows);
    }
    *out = lead->host;
    return be->download(be, lead->host, fwd->logits, count * sizeof *lead->host, err);
}

static ds_status not_finite(ds_error *err)
{
    return ds_fail(err, DS_INTERNAL,
                   "the model gave logits that are not finite: its weights are damaged, fetch them again");
}

/* A NaN never wins an argmax, so that a row of nothing else would pass for token 0. */
static ds_status check_chosen(ds_backend *be, const ds_forward *fwd, const part *p, const int32_t *best,
                              size_t vocab, ds_error *err)
{
    for (int r = p->logit0; r <= p->logit0 + p->gen->draft.n; r++) {
        const float *at = fwd->logits + (size_t)r * vocab + best[r], *host = be->peek(be, at);
        float value = 0;
        ds_status status = DS_OK;
        if (host)
            value = *host;
        else
            status = be->download(be, &value, at, sizeof value, err);
        if (status)
            return status;
        if (!isfinite(value))
            return not_finite(err);
    }
    return DS_OK;
}

/* The likeliest tokens of greedy parts, from logits that others need too. */
static ds_status choose_greedy(part *parts, int n, const ds_forward *fwd, int32_t *best, ds_error *err)
{
    ds_gen *lead = parts[0].gen;
    ds_backend *be = lead->be;
    size_t vocab = (size_t)ds_model_get(lead->model)->vocab;
    bool greedy = false;
    for (int i = 0; i < n; i++)
        if (ds_gen_greedy(parts[i].gen)) {
            greedy = true;
            be->argmax(be, lead->chosen + parts[i].logit0, fwd->logits + (size_t)parts[i].logit0 * vocab,
                       (int)vocab, parts[i].gen->draft.n + 1, (int)vocab, NULL);
        }
    ds_status status = DS_OK;
    if (greedy)
        status = be->download(be, best, lead->chosen, (size_t)fwd->logit_rows * sizeof *best, err);
    for (int i = 0; i < n && !status; i++)
        if (ds_gen_greedy(parts[i].gen))
            status = check_chosen(be, fwd, &parts[i], best, vocab, err);
    return status;
}

static ds_status take_best(ds_backend *be, const ds_forward *fwd, int32_t *best, ds_error *err)
{
    float value[DS_MAX_ROWS];
    size_t rows = (size_t)fwd->logit_rows;
    ds_status status = be->download(be, best, fwd->best, rows * sizeof *best, err);
    if (!status)
        status = be->download(be, value, fwd->best_logit, rows * sizeof *value, err);
    for (size_t i = 0; i < rows && !status; i++)
        if (!isfinite(value[i]))
            status = not_finite(err);
    return status;
}

/* Fills every part's verdict from what the forward says. */
static ds_status judge(part *parts, int n, const ds_forward *fwd, ds_error *err)
{
    ds_gen *lead = parts[0].gen;
    size_t vocab = (size_t)ds_model_get(lead->model)->vocab;
    int32_t best[DS_MAX_ROWS];
    const float *logits = NULL;
    bool sampled = false;
    for (int i = 0; i < n; i++)
        sampled = sampled || !ds_gen_greedy(parts[i].gen);
    ds_status status =
        fwd->best ? take_best(lead->be, fwd, best, err) : choose_greedy(parts, n, fwd, best, err);
    if (!status && sampled)
        status = host_logits(lead, fwd, &logits, err);
    for (int i = 0; i < n && !status; i++) {
        const float *rows = logits ? logits + (size_t)parts[i].logit0 * vocab : NULL;
        status = ds_gen_judge(parts[i].gen, best + parts[i].logit0, rows, &parts[i].verdict, err);
    }
    return status;
}

static bool ends(const ds_gen *gen, int32_t id)
{
    for (int i = 0; i < gen->opts.n_eos && !gen->opts.ignore_eos; i++)
        if (gen->opts.eos[i] == id)
            return true;
    return false;
}

/* How many of the accepted drafts and the token after them are kept: up to the first EOS. */
static int count_committed(const ds_gen *gen, const ds_verdict *v)
{
    for (int i = 0; i < v->accepted; i++)
        if (ends(gen, gen->draft.ids[i]))
            return i + 1;
    return v->accepted + 1;
}

static void commit(ds_gen *gen, const ds_verdict *v, int count)
{
    for (int i = 0; i < count; i++)
        gen->ids[gen->n_ids++] = i < v->accepted ? gen->draft.ids[i] : v->next;
    if (ends(gen, gen->ids[gen->n_ids - 1]))
        gen->finish = DS_FINISH_STOP;
    else if (gen->n_ids == gen->limit)
        gen->finish = DS_FINISH_LENGTH;
}

ds_status ds_gen_prefill(ds_gen *gen, bool *done, ds_error *err)
{
    *done = gen->n_ids > 0;
    if (*done)
        return DS_OK;
    int left = gen->n_prompt - gen->fed, rows = left < DS_MAX_ROWS ? left : DS_MAX_ROWS;
    bool last = rows == left;
    part p = {.gen = gen, .before = gen->fed};
    ds_span span = {gen->state, gen->prompt + gen->fed, rows, last ? rows - 1 : rows, ds_gen_greedy(gen)};
    ds_forward fwd;
    ds_status status = ds_model_forward(gen->model, &span, 1, &fwd, err);
    if (!status)
        status = feed_drafter(gen, &fwd, 0, rows, err);
    gen->draft.n = 0;
    if (!status && last)
        status = judge(&p, 1, &fwd, err);
    else if (!status)
        status = gen->be->sync(gen->be, err); /* so that each call takes the time of its piece */
    if (status) {
        restore(&p, 1);
        return status;
    }
    gen->fed += rows;
    if (last)
        commit(gen, &p.verdict, 1);
    *done = last;
    return DS_OK;
}

static int draft_cap(const ds_gen *gen, int n_gens)
{
    if (!gen->draft_state)
        return 0;
    int cap = ds_drafter_get(gen->drafter)->max_draft;
    const int bounds[] = {
        gen->opts.max_draft > 0 ? gen->opts.max_draft : cap,
        gen->limit - gen->n_ids - 1, /* the token after the draft must still count */
        DS_MAX_ROWS / n_gens - 1,
        DS_MAX_DRAFT,
    };
    for (size_t i = 0; i < COUNT(bounds); i++)
        cap = bounds[i] < cap ? bounds[i] : cap;
    return cap;
}

static ds_status check(ds_gen *const *gens, int n, ds_error *err)
{
    if (n < 1 || n > DS_MAX_SPANS)
        return ds_fail(err, DS_INVALID, "a round of %d sequences: it takes 1 to %d", n, DS_MAX_SPANS);
    for (int i = 0; i < n; i++)
        if (gens[i]->model != gens[0]->model || gens[i]->n_ids == 0 || gens[i]->finish)
            return ds_fail(err, DS_INVALID, "sequence %d of the round %s", i,
                           gens[i]->model != gens[0]->model ? "runs on another model"
                           : gens[i]->finish                ? "has ended"
                                                            : "has not been prefilled");
    return DS_OK;
}

ds_status ds_gen_round(ds_gen *const *gens, int n, ds_error *err)
{
    ds_status status = check(gens, n, err);
    if (status)
        return status;
    part parts[DS_MAX_SPANS];
    ds_span spans[DS_MAX_SPANS];
    int32_t ids[DS_MAX_ROWS];
    int rows = 0;
    for (int i = 0; i < n; i++) {
        ds_gen *gen = gens[i];
        int cap = draft_cap(gen, n);
        gen->draft.n = 0;
        if (cap > 0)
            status = ds_gen_draft(gen, cap, err);
        if (status)
            return status;
        parts[i] = (part){.gen = gen, .before = ds_state_length(gen->state), .row0 = rows, .logit0 = rows};
        spans[i] = (ds_span){gen->state, ids + rows, gen->draft.n + 1, 0, ds_gen_greedy(gen)};
        ids[rows++] = gen->ids[gen->n_ids - 1];
        for (int j = 0; j < gen->draft.n; j++)
            ids[rows++] = gen->draft.ids[j];
    }

    ds_forward fwd;
    status = ds_model_forward(gens[0]->model, spans, n, &fwd, err);
    if (!status)
        status = judge(parts, n, &fwd, err);
    for (int i = 0; i < n && !status; i++) {
        parts[i].committed = count_committed(gens[i], &parts[i].verdict);
        status = feed_drafter(gens[i], &fwd, parts[i].row0, parts[i].committed, err);
    }
    if (status) {
        restore(parts, n);
        return status;
    }
    for (int i = 0; i < n; i++) { /* nothing fails from here on */
        ds_gen *gen = gens[i];
        const part *p = &parts[i];
        ds_state_rollback(gen->state, p->before + p->committed);
        gen->rounds[gen->n_rounds++] = (ds_round){
            .drafted = gen->draft.n,
            .accepted = p->verdict.accepted,
            .committed = p->committed,
            .source = gen->draft.n > 0 ? DS_SOURCE_DRAFTER : DS_SOURCE_PLAIN,
        };
        commit(gen, &p->verdict, p->committed);
    }
    return DS_OK;
}
