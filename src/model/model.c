#include "model/internal.h"

#include <stdlib.h>
#include <string.h>

static void describe(ds_model *model)
{
    const ds_config *c = &model->config;
    ds_model_info *info = &model->info;
    info->family = c->family->name;
    info->layers = c->layers;
    info->hidden = c->hidden;
    info->heads = c->heads;
    info->kv_heads = c->kv_heads;
    info->head_dim = c->head_dim;
    info->intermediate = c->intermediate;
    info->vocab = c->vocab;
    info->context_max = c->context;
    info->embed_scale = 1;
    info->tied = c->tied;
    info->n_eos = c->n_eos;
    memcpy(info->eos, c->eos, sizeof info->eos);
    model->rope = (ds_rope){
        .dims = c->head_dim, .interleaved = c->interleaved, .freq = c->freq, .scale = (float)c->rope_scale};
}

ds_status ds_model_open(ds_model **out, const ds_checkpoint *ckpt, ds_backend *be, const ds_model_opts *opts,
                        ds_error *err)
{
    *out = NULL;
    ds_model *model = calloc(1, sizeof *model);
    if (!model)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a model");
    model->be = be;
    ds_status status = ds_config_read(&model->config, ckpt, err);
    if (!status) {
        describe(model);
        status = ds_weights_open(model, ckpt, opts, err);
    }
    if (status) {
        ds_model_close(model);
        return status;
    }
    *out = model;
    return DS_OK;
}

void ds_model_close(ds_model *model)
{
    if (!model)
        return;
    ds_backend *be = model->be;
    ds_scratch *const all[] = {&model->ids,      &model->x,      &model->q,     &model->k,      &model->v,
                               &model->attended, &model->gate,   &model->up,    &model->angles, &model->x_few,
                               &model->q_few,    &model->logits, &model->best,  &model->best_logit,
                               &model->tapped};
    for (size_t i = 0; i < COUNT(all); i++)
        be->mem_free(be, all[i]->mem);
    ds_weights_close(model);
    free(model);
}

const ds_model_info *ds_model_get(const ds_model *model)
{
    return &model->info;
}

ds_backend *ds_model_backend(const ds_model *model)
{
    return model->be;
}

ds_status ds_model_set_taps(ds_model *model, const int *layers, int n, ds_error *err)
{
    if (n < 0 || n > DS_MAX_TAPS)
        return ds_fail(err, DS_INVALID, "%d tapped layers; at most %d are possible", n, DS_MAX_TAPS);
    for (int i = 0; i < n; i++)
        if (layers[i] < -1 || layers[i] >= model->config.layers || (i && layers[i] <= layers[i - 1]))
            return ds_fail(err, DS_INVALID,
                           "tapped layer %d: layers must be increasing and from -1 to %d, the target's last",
                           layers[i], model->config.layers - 1);
    model->n_taps = n;
    for (int i = 0; i < n; i++)
        model->taps[i] = layers[i];
    return DS_OK;
}

int ds_model_taps(const ds_model *model)
{
    return model->n_taps;
}

const ds_table *ds_model_embedding(const ds_model *model)
{
    return model->embedding;
}

const ds_matrix *ds_model_head(const ds_model *model)
{
    return model->head;
}

const ds_weight *ds_model_head_weight(const ds_model *model)
{
    return &model->head_weight;
}
