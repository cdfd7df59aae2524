/* One call for plain decoding, verification, prefill and batches: rows of all sequences side by side. */
#include "model/blocks.h"

#include <string.h>

static ds_status check_spans(const ds_model *model, const ds_span *spans, int n_spans, ds_error *err)
{
    if (n_spans < 1 || n_spans > DS_MAX_SPANS)
        return ds_fail(err, DS_INVALID, "%d sequences in one forward; 1 to %d are possible", n_spans,
                       DS_MAX_SPANS);
    int rows = 0;
    for (int s = 0; s < n_spans; s++) {
        const ds_span *span = &spans[s];
        if (!span->state || span->state->model != model)
            return ds_fail(err, DS_INVALID, "a sequence of another model");
        for (int t = 0; t < s; t++)
            if (spans[t].state == span->state)
                return ds_fail(err, DS_INVALID, "a sequence occurs twice in one forward");
        if (span->n < 1 || span->n > DS_MAX_ROWS - rows)
            return ds_fail(err, DS_INVALID, "%d rows of a sequence: a forward takes 1 to %d rows in all",
                           span->n, DS_MAX_ROWS);
        rows += span->n;
        if (span->logits_from < 0 || span->logits_from > span->n)
            return ds_fail(err, DS_INVALID, "logits from row %d of %d", span->logits_from, span->n);
        if (span->n > span->state->capacity - span->state->length)
            return ds_fail(err, DS_INVALID,
                           "%d more rows do not fit a sequence that has %d of at most %d rows", span->n,
                           span->state->length, span->state->capacity);
        for (int i = 0; i < span->n; i++)
            if (span->ids[i] < 0 || span->ids[i] >= model->config.vocab)
                return ds_fail(err, DS_INVALID, "token %d is outside the vocabulary of %d", span->ids[i],
                               model->config.vocab);
    }
    return DS_OK;
}

/* Room for `rows` rows of `width` floats, in steps of powers of two: decoding stays small, and a long
 * prompt makes few steps. */
static ds_status room(ds_model *model, ds_scratch *s, int rows, int width, ds_error *err)
{
    size_t steps = 1;
    while (steps < (size_t)rows)
        steps *= 2;
    size_t bytes = steps * (size_t)width * sizeof(float);
    if (!rows || bytes <= s->bytes)
        return DS_OK;
    ds_backend *be = model->be;
    ds_status status = be->sync(be, err); /* recorded operations may still use the old memory */
    if (status)
        return status;
    be->mem_free(be, s->mem);
    s->mem = be->mem_alloc(be, bytes);
    s->bytes = s->mem ? bytes : 0;
    return s->mem ? DS_OK
                  : ds_fail(err, DS_NO_MEMORY, "out of memory for %d rows of activations (%zu bytes)", rows,
                            bytes);
}

static ds_status make_room(ds_model *model, int rows, int few, bool best_only, ds_error *err)
{
    const ds_config *c = &model->config;
    int q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    int gathered = few < rows ? few : 0;
    const struct {
        ds_scratch *s;
        int rows, width;
    } all[] = {
        {&model->ids, rows, 1},
        {&model->x, rows, c->hidden},
        {&model->q, rows, q_width},
        {&model->k, rows, kv_width},
        {&model->v, rows, kv_width},
        {&model->attended, rows, q_width},
        {&model->gate, rows, c->intermediate},
        {&model->up, rows, c->intermediate},
        {&model->angles, rows, c->head_dim},
        {&model->x_few, gathered, c->hidden},
        {&model->q_few, gathered, q_width},
        {&model->logits, best_only ? 0 : few, c->vocab},
        {&model->best, best_only ? few : 0, 1},
        {&model->best_logit, best_only ? few : 0, 1},
        {&model->tapped, model->n_taps ? rows : 0, model->n_taps * c->hidden},
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        ds_status status = room(model, all[i].s, all[i].rows, all[i].width, err);
        if (status)
            return status;
    }
    return DS_OK;
}

/* Lays the spans out as rows: sequences of the call, and those of the rows that need logits. */
static void lay_out(ds_pass *pass, const ds_span *spans, int n_spans)
{
    for (int s = 0; s < n_spans; s++) {
        const ds_span *span = &spans[s];
        int pos = span->state->length, few = span->n - span->logits_from;
        memcpy(pass->model->host_ids + pass->rows, span->ids, (size_t)span->n * sizeof *span->ids);
        pass->seqs[pass->n_seqs++] =
            (ds_seq){.kv = span->state->kv, .row0 = pass->rows, .rows = span->n, .pos0 = pos, .causal = true};
        if (few)
            pass->few_seqs[pass->n_few_seqs++] = (ds_seq){.kv = span->state->kv,
                                                          .row0 = pass->few,
                                                          .rows = few,
                                                          .pos0 = pos + span->logits_from,
                                                          .causal = true};
        for (int i = span->logits_from; i < span->n; i++)
            pass->few_rows[pass->few++] = pass->rows + i;
        pass->rows += span->n;
    }
}

/* Copies the residual stream where `layer` is tapped. */
static void tap(ds_pass *pass, int layer)
{
    const ds_model *model = pass->model;
    int hidden = model->config.hidden, ld = model->n_taps * hidden;
    for (int t = 0; t < model->n_taps; t++)
        if (model->taps[t] == layer)
            pass->be->copy_rows(pass->be, (float *)model->tapped.mem + t * hidden, ld, pass->x, hidden, NULL,
                                pass->rows, hidden);
}

ds_status ds_model_forward(ds_model *model, const ds_span *spans, int n_spans, ds_forward *out, ds_error *err)
{
    const ds_config *c = &model->config;
    ds_backend *be = model->be;
    ds_status status = check_spans(model, spans, n_spans, err);
    if (status)
        return status;
    ds_pass pass = {.model = model, .be = be};
    lay_out(&pass, spans, n_spans);
    int rows = pass.rows;
    bool best_only = true;
    for (int s = 0; s < n_spans; s++)
        best_only = best_only && (spans[s].best_only || spans[s].logits_from == spans[s].n);
    status = make_room(model, rows, pass.few, best_only, err);
    if (status)
        return status;
    pass.x = model->x.mem;
    pass.q = model->q.mem;
    pass.k = model->k.mem;
    pass.v = model->v.mem;
    pass.attended = model->attended.mem;
    pass.gate = model->gate.mem;
    pass.up = model->up.mem;
    pass.angles = model->angles.mem;
    pass.x_few = model->x_few.mem;
    pass.q_few = model->q_few.mem;
    pass.narrow_in_last = !model->n_taps || model->taps[model->n_taps - 1] != c->layers - 1;

    be->part(be, "target");
    be->upload(be, model->ids.mem, model->host_ids, (size_t)rows * sizeof *model->host_ids);
    be->embed(be, pass.x, c->hidden, model->embedding, model->ids.mem, rows, model->info.embed_scale);
    be->rope_angles(be, pass.angles, &model->rope, pass.seqs, pass.n_seqs);
    tap(&pass, -1);
    for (int i = 0; i < c->layers; i++) {
        c->family->layer(&pass, i);
        tap(&pass, i);
    }
    ds_pass_narrow(&pass, false);
    if (pass.rows) {
        ds_in in = {.pre = DS_PRE_RMS,
                    .name = "head",
                    .x = pass.x,
                    .ld = c->hidden,
                    .w = model->norm,
                    .eps = (float)c->eps};
        ds_out logits = {.w = model->head, .y = model->logits.mem, .ld = c->vocab};
        if (best_only)
            be->linear_best(be, &in, pass.rows, model->head, model->best.mem, model->best_logit.mem);
        else
            be->linear(be, &in, pass.rows, &logits, 1);
    }

    for (int s = 0; s < n_spans; s++)
        spans[s].state->length += spans[s].n;
    *out = (ds_forward){.logits = pass.few && !best_only ? model->logits.mem : NULL,
                        .best = pass.few && best_only ? model->best.mem : NULL,
                        .best_logit = pass.few && best_only ? model->best_logit.mem : NULL,
                        .taps = model->n_taps ? model->tapped.mem : NULL,
                        .logit_rows = pass.few,
                        .rows = rows};
    return DS_OK;
}
