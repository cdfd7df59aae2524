/* Acceptance: how much of a draft stands, and the token after it. */
#include "decode/gen.h"

/* A token of one row without a draft: what plain decoding takes there. */
static ds_status choose(ds_gen *gen, const float *logits, int64_t pos, int32_t *token, ds_error *err)
{
    const ds_sampling *s = &gen->opts.sampling;
    int vocab = ds_model_get(gen->model)->vocab;
    if (gen->opts.accept == DS_ACCEPT_COUPLED) {
        *token = ds_sample_coupled(&gen->p, logits, vocab, s, pos, NULL, err);
        return *token < 0 ? err ? err->status : DS_INTERNAL : DS_OK;
    }
    ds_status status = ds_dist_make(&gen->p, logits, vocab, s, err);
    if (!status)
        *token = ds_dist_sample(&gen->p, ds_uniform(s->seed, pos, DS_DRAW_TOKEN));
    return status;
}

/* Drafts stand while they are what plain decoding takes. */
static ds_status judge_same(ds_gen *gen, const int32_t *best, const float *logits, ds_verdict *out,
                            ds_error *err)
{
    size_t vocab = (size_t)ds_model_get(gen->model)->vocab;
    for (int i = 0;; i++) {
        if (best) {
            out->next = best[i];
        } else {
            ds_status status =
                choose(gen, logits + (size_t)i * vocab, ds_gen_next_pos(gen) + i, &out->next, err);
            if (status)
                return status;
        }
        if (i == gen->draft.n || gen->draft.ids[i] != out->next) {
            out->accepted = i;
            return DS_OK;
        }
    }
}

/* A draft stands with probability p / q, else the token comes from what p has above q. */
static ds_status judge_rejection(ds_gen *gen, const float *logits, ds_verdict *out, ds_error *err)
{
    const ds_sampling *s = &gen->opts.sampling;
    int vocab = ds_model_get(gen->model)->vocab;
    for (int i = 0; i < gen->draft.n; i++) {
        int64_t pos = ds_gen_next_pos(gen) + i;
        ds_status status = ds_dist_make(&gen->p, logits + (size_t)i * (size_t)vocab, vocab, s, err);
        if (status)
            return status;
        int32_t id = gen->draft.ids[i];
        /* No distribution was kept: the draft then counts as given, which is as exact, and accepted
         * less often. */
        float one = 1;
        ds_dist given = {.n = 1, .ids = &id, .p = &one};
        const ds_dist *q = gen->q[i].n > 0 ? &gen->q[i] : &given;
        if (ds_accepts(&gen->p, q, id, ds_uniform(s->seed, pos, DS_DRAW_ACCEPT)))
            continue;
        out->accepted = i;
        out->next = ds_residual_sample(&gen->p, q, ds_uniform(s->seed, pos, DS_DRAW_TOKEN));
        return DS_OK;
    }
    out->accepted = gen->draft.n;
    return choose(gen, logits + (size_t)gen->draft.n * (size_t)vocab, ds_gen_next_pos(gen) + gen->draft.n,
                  &out->next, err);
}

ds_status ds_gen_judge(ds_gen *gen, const int32_t *best, const float *logits, ds_verdict *out, ds_error *err)
{
    if (ds_gen_greedy(gen))
        return judge_same(gen, best, NULL, out, err);
    if (gen->draft.n > 0 && gen->opts.accept == DS_ACCEPT_REJECTION)
        return judge_rejection(gen, logits, out, err);
    return judge_same(gen, NULL, logits, out, err);
}
