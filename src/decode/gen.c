/* Opening and closing of a generation, and what it has produced. */
#include "decode/gen.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static ds_status check(const ds_model_info *info, const int32_t *prompt, int n_prompt, int ctx,
                       ds_decode_opts *opts, int *limit, ds_error *err)
{
    if (n_prompt < 1 || !prompt)
        return ds_fail(err, DS_INVALID, "the prompt is empty: generation needs at least one token");
    if (opts->max_new < 1)
        return ds_fail(err, DS_INVALID, "max_new is %d: it must be at least 1", opts->max_new);
    if (!(opts->confidence_threshold >= 0 && opts->confidence_threshold <= 1))
        return ds_fail(err, DS_INVALID, "confidence_threshold is %g: it must be from 0 (off) to 1",
                       (double)opts->confidence_threshold);
    int room = info->context_max > 0 ? info->context_max : INT_MAX;
    if (ctx > 0 && ctx < room)
        room = ctx;
    if (n_prompt >= room)
        return ds_fail(err, DS_INVALID,
                       "the prompt has %d tokens and the context holds %d: no room is left for an answer",
                       n_prompt, room);
    for (int i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= info->vocab)
            return ds_fail(err, DS_INVALID, "token %d of the prompt is id %d: the model has %d", i,
                           (int)prompt[i], info->vocab);
    *limit = opts->max_new < room - n_prompt ? opts->max_new : room - n_prompt;
    return ds_sampling_check(&opts->sampling, err);
}

ds_status ds_gen_open(ds_gen **out, ds_model *model, ds_drafter *drafter, const int32_t *prompt, int n_prompt,
                      int ctx, const ds_decode_opts *opts, ds_error *err)
{
    *out = NULL;
    ds_gen *gen = calloc(1, sizeof *gen);
    if (!gen)
        return ds_fail(err, DS_NO_MEMORY, "no memory for a generation");
    gen->model = model;
    gen->be = ds_model_backend(model);
    gen->drafter = opts->max_draft < 0 ? NULL : drafter;
    gen->opts = *opts;
    gen->opts.eos = NULL;
    gen->opts.n_eos = opts->n_eos > 0 ? opts->n_eos : 0;
    gen->n_prompt = n_prompt;
    ds_status status = check(ds_model_get(model), prompt, n_prompt, ctx, &gen->opts, &gen->limit, err);
    if (status)
        goto fail;

    int32_t *eos = malloc(((size_t)gen->opts.n_eos + 1) * sizeof *eos);
    gen->opts.eos = eos;
    gen->prompt = malloc((size_t)n_prompt * sizeof *gen->prompt);
    gen->ids = malloc((size_t)gen->limit * sizeof *gen->ids);
    gen->rounds = malloc((size_t)gen->limit * sizeof *gen->rounds);
    gen->chosen = gen->be->mem_alloc(gen->be, DS_MAX_ROWS * sizeof *gen->chosen);
    bool rejects = gen->drafter && opts->accept == DS_ACCEPT_REJECTION && !ds_gen_greedy(gen);
    if (rejects)
        gen->q = calloc(DS_MAX_DRAFT, sizeof *gen->q);
    if (!eos || !gen->prompt || !gen->ids || !gen->rounds || !gen->chosen || (rejects && !gen->q)) {
        status = ds_fail(err, DS_NO_MEMORY, "no memory for a generation of %d tokens", gen->limit);
        goto fail;
    }
    memcpy(gen->prompt, prompt, (size_t)n_prompt * sizeof *prompt);
    if (gen->opts.n_eos)
        memcpy(eos, opts->eos, (size_t)gen->opts.n_eos * sizeof *eos);

    /* The last token is never fed, and drafts never reach past it: one row less would do. */
    int rows = n_prompt + gen->limit;
    status = ds_state_open(&gen->state, model, rows, err);
    if (!status && gen->drafter)
        status = ds_draft_state_open(&gen->draft_state, gen->drafter, rows, err);
    if (status)
        goto fail;
    *out = gen;
    return DS_OK;
fail:
    ds_gen_close(gen);
    return status;
}

void ds_gen_close(ds_gen *gen)
{
    if (!gen)
        return;
    if (gen->draft_state)
        ds_draft_state_close(gen->draft_state);
    if (gen->state)
        ds_state_close(gen->state);
    gen->be->mem_free(gen->be, gen->chosen);
    ds_dist_release(&gen->p);
    for (int i = 0; gen->q && i < DS_MAX_DRAFT; i++)
        ds_dist_release(&gen->q[i]);
    free(gen->q);
    free(gen->host);
    free(gen->rounds);
    free(gen->ids);
    free(gen->prompt);
    free((void *)(uintptr_t)gen->opts.eos);
    free(gen);
}

const int32_t *ds_gen_ids(const ds_gen *gen, int *n)
{
    *n = gen->n_ids;
    return gen->ids;
}

ds_finish ds_gen_finish(const ds_gen *gen)
{
    return gen->finish;
}

const ds_round *ds_gen_rounds(const ds_gen *gen, int *n)
{
    *n = gen->n_rounds;
    return gen->rounds;
}

int ds_gen_prefilled(const ds_gen *gen)
{
    return gen->fed;
}
