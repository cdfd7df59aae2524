#include "draft/kind.h"

static const ds_draft_kind *const kinds[] = {
    &ds_dspark_kind,
};

void ds_drafter_defaults(ds_drafter_opts *opts)
{
    *opts = (ds_drafter_opts){.bits = 4, .window = 4096, .narrow_head = true};
}

ds_status ds_drafter_open(ds_drafter **out, const ds_checkpoint *ckpt, ds_model *target,
                          const ds_drafter_opts *opts, ds_error *err)
{
    *out = NULL;
    ds_drafter_opts chosen;
    ds_drafter_defaults(&chosen);
    if (opts)
        chosen = *opts;
    if (chosen.bits != 0 && chosen.bits != 4 && chosen.bits != 8)
        return ds_fail(err, DS_INVALID, "a drafter is quantised to 4 or 8 bits, or kept (0), not to %d",
                       chosen.bits);
    if (chosen.window < 0)
        return ds_fail(err, DS_INVALID, "the drafter's window must be 0 (all) or a number of rows, not %d",
                       chosen.window);
    ds_status status = ds_draft_refuse(ckpt, err);
    if (status)
        return status;
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (kinds[i]->recognise(ds_checkpoint_config(ckpt)))
            return kinds[i]->open(out, ckpt, target, &chosen, err);
    const char *type = json_string_value(json_object_get(ds_checkpoint_config(ckpt), "model_type"));
    return ds_fail(err, DS_BAD_FILE, "%s: a drafter with model_type %s is not supported; supported: qwen3",
                   ds_checkpoint_path(ckpt), type ? type : "missing");
}

void ds_drafter_close(ds_drafter *d)
{
    if (d)
        d->kind->close(d);
}

const ds_drafter_info *ds_drafter_get(const ds_drafter *d)
{
    return &d->info;
}

const int32_t *ds_drafter_map(const ds_drafter *d)
{
    return d->map;
}

ds_status ds_draft_state_open(ds_draft_state **out, ds_drafter *d, int capacity, ds_error *err)
{
    *out = NULL;
    if (capacity < 1)
        return ds_fail(err, DS_INVALID, "a drafter's state needs room for at least one row, not %d",
                       capacity);
    return d->kind->state_open(out, d, capacity, err);
}

void ds_draft_state_close(ds_draft_state *s)
{
    if (s)
        s->drafter->kind->state_close(s);
}

int ds_draft_state_length(const ds_draft_state *s)
{
    return s->length;
}

ds_status ds_draft_append(ds_draft_state *s, const float *taps, int n, ds_error *err)
{
    if (n < 0 || n > DS_MAX_ROWS)
        return ds_fail(err, DS_INVALID, "a drafter takes up to %d context rows at a time, not %d",
                       DS_MAX_ROWS, n);
    if (n > s->capacity - s->length)
        return ds_fail(err, DS_INVALID, "the drafter's context is full: %d rows of %d, %d more do not fit",
                       s->length, s->capacity, n);
    if (n == 0)
        return DS_OK;
    ds_status status = s->drafter->kind->append(s, taps, n, err);
    if (!status)
        s->length += n;
    return status;
}

void ds_draft_rollback(ds_draft_state *s, int length)
{
    if (length >= 0 && length < s->length)
        s->length = length; /* rows behind it are overwritten before anything reads them */
}

ds_status ds_draft_propose(ds_draft_state *s, int32_t pending, int cap, ds_draft_pick pick, void *user,
                           ds_draft *out, ds_error *err)
{
    const ds_drafter_info *info = &s->drafter->info;
    out->n = 0;
    if (cap < 1)
        return ds_fail(err, DS_INVALID, "a draft has at least one token, not %d", cap);
    return s->drafter->kind->propose(s, pending, cap < info->max_draft ? cap : info->max_draft, pick, user,
                                     out, err);
}

size_t ds_draft_inspect(ds_draft_state *s, const char *which, float *out, size_t max)
{
    return s->drafter->kind->inspect(s, which, out, max);
}
