#include "model/blocks.h"

#include <math.h>
#include <string.h>

void ds_pass_narrow(ds_pass *pass, bool with_q)
{
    if (pass->narrowed)
        return;
    pass->narrowed = true;
    if (pass->few == pass->rows)
        return;
    const ds_config *c = &pass->model->config;
    int q_width = c->heads * c->head_dim;
    if (pass->few) {
        pass->be->copy_rows(pass->be, pass->x_few, c->hidden, pass->x, c->hidden, pass->few_rows, pass->few,
                            c->hidden);
        if (with_q)
            pass->be->copy_rows(pass->be, pass->q_few, q_width, pass->q, q_width, pass->few_rows, pass->few,
                                q_width);
    }
    pass->x = pass->x_few;
    pass->q = pass->q_few;
    pass->rows = pass->few;
    memcpy(pass->seqs, pass->few_seqs, sizeof pass->seqs);
    pass->n_seqs = pass->n_few_seqs;
}

static void set_window(ds_pass *pass, int window)
{
    for (int i = 0; i < pass->n_seqs; i++)
        pass->seqs[i].window = window;
}

void ds_block_attention(ds_pass *pass, int layer)
{
    const ds_config *c = &pass->model->config;
    const ds_layer *w = &pass->model->layers[layer];
    ds_backend *be = pass->be;
    int q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    int window = c->sliding[layer] ? c->window : 0;

    ds_in in = {.pre = DS_PRE_RMS,
                .name = "qkv",
                .x = pass->x,
                .ld = c->hidden,
                .w = w->input_norm,
                .eps = (float)c->eps};
    ds_out qkv[] = {
        {.w = w->q.matrix, .bias = w->q.bias, .y = pass->q, .ld = q_width},
        {.w = w->k.matrix, .bias = w->k.bias, .y = pass->k, .ld = kv_width},
        {.w = w->v.matrix, .bias = w->v.bias, .y = pass->v, .ld = kv_width},
    };
    be->linear(be, &in, pass->rows, qkv, COUNT(qkv));

    set_window(pass, window);
    ds_heads heads = {.layer = layer,
                      .heads = c->heads,
                      .kv_heads = c->kv_heads,
                      .dim = c->head_dim,
                      .q = pass->q,
                      .k = pass->k,
                      .v = pass->v,
                      .ld_q = q_width,
                      .ld_kv = kv_width,
                      .q_norm = w->q_norm,
                      .k_norm = w->k_norm,
                      .eps = (float)c->eps,
                      .angles = pass->angles,
                      .rope_dims = c->head_dim,
                      .interleaved = c->interleaved,
                      .seqs = pass->seqs,
                      .n_seqs = pass->n_seqs};
    be->heads(be, &heads);

    if (layer == c->layers - 1 && pass->narrow_in_last) {
        ds_pass_narrow(pass, true);
        if (!pass->rows)
            return;
        set_window(pass, window);
    }
    ds_attn attn = {.layer = layer,
                    .heads = c->heads,
                    .kv_heads = c->kv_heads,
                    .dim = c->head_dim,
                    .scale = (float)(1 / sqrt(c->head_dim)),
                    .q = pass->q,
                    .out = pass->attended,
                    .ld_q = q_width,
                    .ld_out = q_width,
                    .seqs = pass->seqs,
                    .n_seqs = pass->n_seqs};
    be->attention(be, &attn);

    ds_in attended = {.pre = DS_PRE_NONE, .name = "o", .x = pass->attended, .ld = q_width};
    ds_out out = {.w = w->o.matrix, .bias = w->o.bias, .y = pass->x, .ld = c->hidden, .add = true};
    be->linear(be, &attended, pass->rows, &out, 1);
}

void ds_block_mlp(ds_pass *pass, int layer)
{
    if (!pass->rows)
        return;
    const ds_config *c = &pass->model->config;
    const ds_layer *w = &pass->model->layers[layer];
    ds_backend *be = pass->be;

    ds_in in = {.pre = DS_PRE_RMS,
                .name = "gate+up",
                .x = pass->x,
                .ld = c->hidden,
                .w = w->post_norm,
                .eps = (float)c->eps};
    ds_out gate_up[] = {
        {.w = w->gate.matrix, .bias = w->gate.bias, .y = pass->gate, .ld = c->intermediate},
        {.w = w->up.matrix, .bias = w->up.bias, .y = pass->up, .ld = c->intermediate},
    };
    be->linear(be, &in, pass->rows, gate_up, COUNT(gate_up));

    ds_in mixed = {
        .pre = DS_PRE_SWIGLU, .name = "down", .x = pass->gate, .x2 = pass->up, .ld = c->intermediate};
    ds_out down = {.w = w->down.matrix, .bias = w->down.bias, .y = pass->x, .ld = c->hidden, .add = true};
    be->linear(be, &mixed, pass->rows, &down, 1);
}
