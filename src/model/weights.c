/* Takes a checkpoint's tensors into a backend. What is needed is listed first, so that everything that
 * is missing can be named at once and progress can be told by bytes. */
#include "model/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char name[96];       /* module of a matrix, tensor of a vector */
    uint32_t rows, cols; /* cols 0: a vector of `rows` values */
    void *slot;          /* ds_matrix ** or float ** */
} need;

typedef struct {
    need *items;
    size_t n, cap;
} needs;

static void add(needs *list, const char *prefix, const char *name, const char *suffix, int rows, int cols,
                void *slot)
{
    if (list->n == list->cap)
        return; /* plan() has room for all */
    need *item = &list->items[list->n++];
    snprintf(item->name, sizeof item->name, "%s%s%s", prefix, name, suffix);
    item->rows = (uint32_t)rows;
    item->cols = (uint32_t)cols;
    item->slot = slot;
}

static void add_lin(needs *list, const char *prefix, const char *name, int rows, int cols, bool bias,
                    ds_lin *lin)
{
    add(list, prefix, name, "", rows, cols, &lin->matrix);
    if (bias)
        add(list, prefix, name, ".bias", rows, 0, &lin->bias);
}

/* Every tensor of the family except the embedding, which becomes a table. */
static ds_status plan(ds_model *model, needs *list, ds_error *err)
{
    const ds_config *c = &model->config;
    const ds_names *names = c->family->names;
    int q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    list->cap = (size_t)c->layers * 18 + 2;
    list->items = calloc(list->cap, sizeof *list->items);
    if (!list->items)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a list of tensors");
    for (int i = 0; i < c->layers; i++) {
        ds_layer *layer = &model->layers[i];
        char prefix[48];
        snprintf(prefix, sizeof prefix, names->layer, i);
        add(list, prefix, names->input_norm, "", c->hidden, 0, &layer->input_norm);
        add(list, prefix, names->post_norm, "", c->hidden, 0, &layer->post_norm);
        if (c->family->qk_norm) {
            add(list, prefix, names->q_norm, "", c->head_dim, 0, &layer->q_norm);
            add(list, prefix, names->k_norm, "", c->head_dim, 0, &layer->k_norm);
        }
        add_lin(list, prefix, names->q, q_width, c->hidden, c->qkv_bias, &layer->q);
        add_lin(list, prefix, names->k, kv_width, c->hidden, c->qkv_bias, &layer->k);
        add_lin(list, prefix, names->v, kv_width, c->hidden, c->qkv_bias, &layer->v);
        add_lin(list, prefix, names->o, c->hidden, q_width, c->o_bias, &layer->o);
        add_lin(list, prefix, names->gate, c->intermediate, c->hidden, c->mlp_bias, &layer->gate);
        add_lin(list, prefix, names->up, c->intermediate, c->hidden, c->mlp_bias, &layer->up);
        add_lin(list, prefix, names->down, c->hidden, c->intermediate, c->mlp_bias, &layer->down);
    }
    add(list, "", names->norm, "", c->hidden, 0, &model->norm);
    add(list, "", c->tied ? names->embed : names->head, "", c->vocab, c->hidden, &model->head);
    return DS_OK;
}

static const ds_tensor *tensor_of(const ds_checkpoint *ckpt, const need *item)
{
    char name[112];
    snprintf(name, sizeof name, item->cols ? "%s.weight" : "%s", item->name);
    return ds_checkpoint_find(ckpt, name);
}

static ds_status check_present(const needs *list, const ds_checkpoint *ckpt, const char *embed, ds_error *err)
{
    char missing[360] = "";
    size_t used = 0;
    int count = 0, more = 0;
    for (size_t i = 0; i <= list->n; i++) {
        bool last = i == list->n;
        if (last ? ds_checkpoint_has(ckpt, embed) : tensor_of(ckpt, &list->items[i]) != NULL)
            continue;
        const char *name = last ? embed : list->items[i].name;
        const char *suffix = last || list->items[i].cols ? ".weight" : "";
        count++;
        if (used + strlen(name) + strlen(suffix) + 3 < sizeof missing && !more)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s%s", used ? ", " : "", name,
                                     suffix);
        else
            more++;
    }
    if (!count)
        return DS_OK;
    if (more)
        return ds_fail(err, DS_BAD_FILE, "%s: missing tensors: %s and %d more", ds_checkpoint_path(ckpt),
                       missing, more);
    return ds_fail(err, DS_BAD_FILE, "%s: missing tensor%s: %s", ds_checkpoint_path(ckpt),
                   count > 1 ? "s" : "", missing);
}

/* All vectors lie in one piece of backend memory. */
static ds_status load_vectors(ds_model *model, const needs *list, const ds_checkpoint *ckpt, ds_error *err)
{
    ds_backend *be = model->be;
    size_t total = 0;
    for (size_t i = 0; i < list->n; i++)
        total += list->items[i].cols ? 0 : list->items[i].rows;
    float *host = malloc(total * sizeof *host);
    model->vectors = be->mem_alloc(be, total * sizeof *host);
    if (!host || !model->vectors) {
        free(host);
        return ds_fail(err, DS_NO_MEMORY, "out of memory for norms and biases");
    }
    ds_status status = DS_OK;
    for (size_t i = 0, at = 0; !status && i < list->n; i++) {
        const need *item = &list->items[i];
        if (item->cols)
            continue;
        status = ds_checkpoint_vector(ckpt, item->name, host + at, item->rows, err);
        *(float **)item->slot = model->vectors + at;
        at += item->rows;
    }
    if (!status) {
        be->upload(be, model->vectors, host, total * sizeof *host);
        status = be->sync(be, err);
        model->info.weight_bytes += total * sizeof *host;
    }
    free(host);
    return status;
}

/* Why a quantised type runs as floats, as text that lives for ever. */
static const char *slow_reason(ds_dtype type)
{
    static const char *const reasons[] = {
#define X(name, text, elems, bytes) "matrices of type " text " are multiplied as floats, which is slower",
        DS_DTYPE_MAP(X)
#undef X
    };
    if (type == DS_F32 || type == DS_F16 || type == DS_BF16 || type == DS_F64)
        return NULL;
    return reasons[type];
}

static ds_status load_matrices(ds_model *model, const needs *list, const ds_checkpoint *ckpt,
                               const ds_model_opts *opts, ds_error *err)
{
    ds_backend *be = model->be;
    double total = 0, done = 0;
    for (size_t i = 0; i < list->n; i++)
        total += list->items[i].cols ? (double)tensor_of(ckpt, &list->items[i])->bytes : 0;
    for (size_t i = 0; i < list->n; i++) {
        const need *item = &list->items[i];
        if (!item->cols)
            continue;
        ds_weight weight;
        ds_matrix **matrix = item->slot;
        ds_status status = ds_checkpoint_weight(ckpt, item->name, item->rows, item->cols, &weight, err);
        if (!status)
            status = be->matrix_open(be, matrix, &weight, err);
        if (status)
            return status;
        if (matrix == &model->head)
            model->head_weight = weight;
        model->info.weight_bytes += be->matrix_bytes(*matrix);
        if (be->matrix_is_integer(*matrix)) {
            model->info.integer_matrices++;
        } else {
            model->info.float_matrices++;
            if (!be->exact && !model->info.slow_reason)
                model->info.slow_reason = slow_reason(weight.type);
        }
        done += (double)tensor_of(ckpt, item)->bytes;
        if (opts && opts->progress)
            opts->progress(opts->user, total > 0 ? done / total : 1);
    }
    return DS_OK;
}

ds_status ds_weights_open(ds_model *model, const ds_checkpoint *ckpt, const ds_model_opts *opts,
                          ds_error *err)
{
    const ds_config *c = &model->config;
    const char *embed = c->family->names->embed;
    needs list = {0};
    ds_weight weight;
    model->layers = calloc((size_t)c->layers, sizeof *model->layers);
    ds_status status = model->layers ? plan(model, &list, err)
                                     : ds_fail(err, DS_NO_MEMORY, "out of memory for %d layers", c->layers);
    if (!status)
        status = check_present(&list, ckpt, embed, err);
    if (!status)
        status = ds_checkpoint_weight(ckpt, embed, (uint32_t)c->vocab, (uint32_t)c->hidden, &weight, err);
    if (!status)
        status = model->be->table_open(model->be, &model->embedding, &weight, err);
    if (!status)
        status = load_vectors(model, &list, ckpt, err);
    if (!status)
        status = load_matrices(model, &list, ckpt, opts, err);
    free(list.items);
    return status;
}

static void close_lin(ds_backend *be, ds_lin *lin)
{
    if (lin->matrix)
        be->matrix_close(be, lin->matrix);
}

void ds_weights_close(ds_model *model)
{
    ds_backend *be = model->be;
    for (int i = 0; model->layers && i < model->config.layers; i++) {
        ds_layer *layer = &model->layers[i];
        ds_lin *const all[] = {&layer->q,    &layer->k,  &layer->v,   &layer->o,
                               &layer->gate, &layer->up, &layer->down};
        for (size_t j = 0; j < COUNT(all); j++)
            close_lin(be, all[j]);
    }
    free(model->layers);
    if (model->head)
        be->matrix_close(be, model->head);
    if (model->embedding)
        be->table_close(be, model->embedding);
    be->mem_free(be, model->vectors);
}
