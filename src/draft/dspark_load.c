/* From files to a ds_dspark: the strict match of tensors, the checks against the target, the weights. */
#include "base/buf.h"
#include "draft/dspark.h"
#include "model/requant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 64, SHOWN = 8 };

typedef char tensor_name[96];

typedef struct {
    const ds_checkpoint *ckpt;
    tensor_name *names;
    size_t n, cap;
    bool failed;
} name_list;

static void expect(name_list *list, const char *name)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 64;
        tensor_name *grown = realloc(list->names, cap * sizeof *grown);
        if (!grown) {
            list->failed = true;
            return;
        }
        list->names = grown;
        list->cap = cap;
    }
    snprintf(list->names[list->n++], sizeof *list->names, "%s", name);
}

/* A module of a matrix, in the form the file has it: floats, or MLX codes with scales and biases. */
static void expect_module(name_list *list, const char *path)
{
    tensor_name name;
    snprintf(name, sizeof name, "%s.weight", path);
    expect(list, name);
    snprintf(name, sizeof name, "%s.scales", path);
    if (!ds_checkpoint_find(list->ckpt, name))
        return;
    expect(list, name);
    snprintf(name, sizeof name, "%s.biases", path);
    expect(list, name);
}

static void expect_layer(name_list *list, const ds_dspark_config *c, int layer)
{
    static const char *const modules[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                          "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                          "mlp.down_proj"};
    static const char *const vectors[] = {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                                          "self_attn.k_norm"};
    tensor_name name;
    for (size_t i = 0; i < COUNT(modules); i++) {
        snprintf(name, sizeof name, "layers.%d.%s", layer, modules[i]);
        expect_module(list, name);
        if (c->bias && i < 4) {
            snprintf(name, sizeof name, "layers.%d.%s.bias", layer, modules[i]);
            expect(list, name);
        }
    }
    for (size_t i = 0; i < COUNT(vectors); i++) {
        snprintf(name, sizeof name, "layers.%d.%s.weight", layer, vectors[i]);
        expect(list, name);
    }
}

static void expect_all(name_list *list, const ds_dspark_config *c)
{
    expect_module(list, "fc");
    expect(list, "hidden_norm.weight");
    expect(list, "norm.weight");
    if (ds_checkpoint_has(list->ckpt, "embed_tokens"))
        expect_module(list, "embed_tokens");
    if (c->reduced || ds_checkpoint_has(list->ckpt, "lm_head"))
        expect_module(list, "lm_head"); /* the target's projection gives the target's vocabulary only */
    for (int i = 0; i < c->layers; i++)
        expect_layer(list, c, i);
    if (c->markov != DS_MARKOV_NONE) {
        expect_module(list, "markov_head.markov_w1");
        expect_module(list, "markov_head.markov_w2");
    }
    if (c->markov == DS_MARKOV_GATED) {
        expect_module(list, "markov_head.gate_proj");
        expect(list, "markov_head.gate_proj.bias");
    }
    if (c->markov == DS_MARKOV_RNN) {
        expect_module(list, "markov_head.joint_proj");
        expect(list, "markov_head.joint_proj.bias");
    }
    if (c->confidence) {
        expect_module(list, "confidence_head.proj");
        expect(list, "confidence_head.proj.bias");
    }
    if (c->reduced)
        expect(list, "d2t");
}

static bool expected(const name_list *list, const char *name)
{
    if (strcmp(name, "t2d") == 0) /* written by trainers, not needed here */
        return true;
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->names[i], name) == 0)
            return true;
    return false;
}

static void show(ds_buf *text, size_t *count, const char *label, const char *name)
{
    if (*count < SHOWN)
        ds_buf_fmt(text, "%s%s", *count ? ", " : label, name);
    else if (*count == SHOWN)
        ds_buf_str(text, ", ...");
    ++*count;
}

/* A partly loaded drafter runs without an error at almost no acceptance: every tensor must be accounted
 * for. */
static ds_status check_tensors(const ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const char *path = ds_checkpoint_path(ckpt);
    bool has_map = ds_checkpoint_find(ckpt, "d2t") != NULL;
    if (has_map != d->c.reduced)
        return ds_fail(
            err, DS_BAD_FILE,
            has_map ? "%s: has a table d2t, but config.json has no draft_vocab_size below vocab_size: ids "
                      "would be misread"
                    : "%s: config.json has a draft_vocab_size, but the table d2t is missing: ids would be "
                      "misread",
            path);
    name_list list = {.ckpt = ckpt};
    ds_buf missing = {0}, unexpected = {0};
    size_t n_missing = 0, n_unexpected = 0;
    expect_all(&list, &d->c);
    for (size_t i = 0; i < list.n; i++)
        if (!ds_checkpoint_find(ckpt, list.names[i]))
            show(&missing, &n_missing, " missing ", list.names[i]);
    for (size_t i = 0; i < ds_checkpoint_count(ckpt); i++)
        if (!expected(&list, ds_checkpoint_at(ckpt, i)->name))
            show(&unexpected, &n_unexpected, " unexpected ", ds_checkpoint_at(ckpt, i)->name);
    ds_status status = DS_OK;
    if (list.failed)
        status = ds_fail(err, DS_NO_MEMORY, "%s: out of memory", path);
    else if (n_missing || n_unexpected)
        status =
            ds_fail(err, DS_BAD_FILE, "%s: not the tensors of its config.json:%s%s%s", path,
                    ds_buf_text(&missing), n_missing && n_unexpected ? ";" : "", ds_buf_text(&unexpected));
    ds_buf_release(&missing);
    ds_buf_release(&unexpected);
    free(list.names);
    return status;
}

#define ANOTHER "%s: a drafter of another target: "

/* fc's width says how many features the tapped rows must have. */
static ds_status check_fc(const ds_dspark *d, const ds_checkpoint *ckpt, int target_hidden, ds_error *err)
{
    ds_weight fc;
    ds_status status = ds_checkpoint_weight(ckpt, "fc", (uint32_t)d->c.hidden, 0, &fc, err);
    if (status)
        return status;
    int64_t want = (int64_t)d->c.n_taps * target_hidden;
    if ((int64_t)fc.cols != want)
        return ds_fail(
            err, DS_INVALID,
            ANOTHER "its fc takes %u features, but %d tapped rows of this target's hidden size %d have %lld",
            ds_checkpoint_path(ckpt), fc.cols, d->c.n_taps, target_hidden, (long long)want);
    return DS_OK;
}

static ds_status check_target(const ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    const ds_model_info *t = ds_model_get(d->target);
    const char *path = ds_checkpoint_path(ckpt);
    int last = c->taps[c->n_taps - 1];
    bool own_embedding = ds_checkpoint_has(ckpt, "embed_tokens");
    if (last >= t->layers)
        return ds_fail(err, DS_INVALID, ANOTHER "it taps layer %d, this target has layers 0 to %d", path,
                       last, t->layers - 1);
    if (!c->reduced && c->vocab != t->vocab)
        return ds_fail(err, DS_INVALID, ANOTHER "its vocabulary has %d tokens, this target's %d", path,
                       c->vocab, t->vocab);
    if (c->hidden != t->hidden && !(own_embedding && ds_checkpoint_has(ckpt, "lm_head")))
        return ds_fail(err, DS_INVALID,
                       ANOTHER "it reuses the target's %s, but its hidden size is %d and this target's %d",
                       path, own_embedding ? "output projection" : "embedding", c->hidden, t->hidden);
    return check_fc(d, ckpt, t->hidden, err);
}

void *ds_dspark_alloc(ds_dspark *d, size_t bytes, ds_error *err)
{
    void **grown = realloc(d->memory, ((size_t)d->n_memory + 1) * sizeof *grown);
    if (grown)
        d->memory = grown;
    void *mem = grown ? d->be->mem_alloc(d->be, bytes) : NULL;
    if (mem)
        d->memory[d->n_memory++] = mem;
    else
        ds_fail(err, DS_NO_MEMORY, "the drafter needs %zu more bytes, and there are none", bytes);
    return mem;
}

static bool can_requant(const ds_dspark *d, const ds_weight *w)
{
    return d->bits && w->cols % GROUP == 0 && (w->type == DS_F32 || w->type == DS_F16 || w->type == DS_BF16);
}

static ds_status keep_matrix(ds_dspark *d, const ds_weight *w, ds_matrix **out, ds_error *err)
{
    ds_matrix **grown = realloc(d->matrices, ((size_t)d->n_matrices + 1) * sizeof *grown);
    if (!grown)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", w->name);
    d->matrices = grown;
    ds_status status = d->be->matrix_open(d->be, out, w, err);
    if (status)
        return status;
    d->matrices[d->n_matrices++] = *out;
    d->base.info.weight_bytes += d->be->matrix_bytes(*out);
    return DS_OK;
}

static ds_status load_matrix(ds_dspark *d, const ds_checkpoint *ckpt, const char *path, int rows, int cols,
                             ds_matrix **out, ds_error *err)
{
    ds_weight src, codes;
    const ds_weight *w = &src;
    ds_status status = ds_checkpoint_weight(ckpt, path, (uint32_t)rows, (uint32_t)cols, &src, err);
    if (!status && can_requant(d, &src)) {
        status = ds_weight_requant(&src, d->bits, GROUP, &codes, err);
        w = &codes;
    }
    return status ? status : keep_matrix(d, w, out, err);
}

/* A draft may be approximate: half the bytes of the target's head, which is most of what drafting reads. */
static ds_status narrow_head(ds_dspark *d, ds_matrix **out, ds_error *err)
{
    ds_weight narrow;
    return ds_weight_narrow(ds_model_head_weight(d->target), &narrow) ? keep_matrix(d, &narrow, out, err) : DS_OK;
}

/* source: where the unquantised weight stays for as long as the table. view: the weight as it is used. */
static ds_status load_table(ds_dspark *d, const ds_checkpoint *ckpt, const char *path, int rows, int cols,
                            ds_weight *source, ds_weight *view, ds_table **out, ds_error *err)
{
    ds_status status = ds_checkpoint_weight(ckpt, path, (uint32_t)rows, (uint32_t)cols, source, err);
    if (status)
        return status;
    *view = *source;
    if (can_requant(d, source))
        status = ds_weight_requant(source, d->bits, GROUP, view, err);
    status = status ? status : d->be->table_open(d->be, out, view, err);
    if (status)
        return status;
    d->tables[d->n_tables++] = *out;
    d->base.info.weight_bytes += source->bytes;
    return DS_OK;
}

static ds_status load_vector(ds_dspark *d, const ds_checkpoint *ckpt, const char *name, int n, float **out,
                             ds_error *err)
{
    size_t bytes = (size_t)n * sizeof(float);
    float *host = malloc(bytes);
    if (!host)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", name);
    ds_status status = ds_checkpoint_vector(ckpt, name, host, (size_t)n, err);
    if (!status && !(*out = ds_dspark_alloc(d, bytes, err)))
        status = DS_NO_MEMORY;
    if (!status) {
        d->be->upload(d->be, *out, host, bytes);
        d->base.info.weight_bytes += bytes;
        status = d->be->sync(d->be, err); /* before the host's copy goes */
    }
    free(host);
    return status;
}

static ds_status load_layer(ds_dspark *d, const ds_checkpoint *ckpt, int index, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    ds_dspark_layer *l = &d->layers[index];
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        const char *path;
        int rows, cols;
        ds_matrix **out;
        float **bias;
    } matrices[] = {
        {"self_attn.q_proj", q, c->hidden, &l->q, &l->q_bias},
        {"self_attn.k_proj", kv, c->hidden, &l->k, &l->k_bias},
        {"self_attn.v_proj", kv, c->hidden, &l->v, &l->v_bias},
        {"self_attn.o_proj", c->hidden, q, &l->o, &l->o_bias},
        {"mlp.gate_proj", c->intermediate, c->hidden, &l->gate, NULL},
        {"mlp.up_proj", c->intermediate, c->hidden, &l->up, NULL},
        {"mlp.down_proj", c->hidden, c->intermediate, &l->down, NULL},
    };
    const struct {
        const char *path;
        int n;
        float **out;
    } norms[] = {
        {"input_layernorm", c->hidden, &l->input_norm},
        {"post_attention_layernorm", c->hidden, &l->post_norm},
        {"self_attn.q_norm", c->head_dim, &l->q_norm},
        {"self_attn.k_norm", c->head_dim, &l->k_norm},
    };
    tensor_name name;
    ds_status status = DS_OK;
    for (size_t i = 0; i < COUNT(matrices) && !status; i++) {
        snprintf(name, sizeof name, "layers.%d.%s", index, matrices[i].path);
        status = load_matrix(d, ckpt, name, matrices[i].rows, matrices[i].cols, matrices[i].out, err);
        if (status || !c->bias || !matrices[i].bias)
            continue;
        snprintf(name, sizeof name, "layers.%d.%s.bias", index, matrices[i].path);
        status = load_vector(d, ckpt, name, matrices[i].rows, matrices[i].bias, err);
    }
    for (size_t i = 0; i < COUNT(norms) && !status; i++) {
        snprintf(name, sizeof name, "layers.%d.%s.weight", index, norms[i].path);
        status = load_vector(d, ckpt, name, norms[i].n, norms[i].out, err);
    }
    return status;
}

static ds_status load_markov(ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    int r = c->rank;
    if (c->markov == DS_MARKOV_NONE)
        return DS_OK;
    ds_status status =
        load_table(d, ckpt, "markov_head.markov_w1", c->vocab, r, &d->sources[1], &d->w1_weight, &d->w1, err);
    status = status ? status : load_matrix(d, ckpt, "markov_head.markov_w2", c->vocab_out, r, &d->w2, err);
    if (!status && c->markov == DS_MARKOV_GATED) {
        status = load_matrix(d, ckpt, "markov_head.gate_proj", r, c->hidden + r, &d->mix, err);
        status = status ? status : load_vector(d, ckpt, "markov_head.gate_proj.bias", r, &d->mix_bias, err);
    }
    if (!status && c->markov == DS_MARKOV_RNN) {
        status = load_matrix(d, ckpt, "markov_head.joint_proj", 3 * r, 2 * r + c->hidden, &d->mix, err);
        status =
            status ? status : load_vector(d, ckpt, "markov_head.joint_proj.bias", 3 * r, &d->mix_bias, err);
    }
    return status;
}

/* One row: it stays on the host. It is rounded to codes like the rest, so that all of a head is of one
 * precision; files that are quantised already say themselves what is not. */
static ds_status load_confidence(ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    if (!c->confidence)
        return DS_OK;
    ds_weight src, codes;
    const ds_weight *w = &src;
    int width = c->hidden + (c->confidence_markov ? c->rank : 0);
    ds_status status = ds_checkpoint_weight(ckpt, "confidence_head.proj", 1, (uint32_t)width, &src, err);
    if (!status && can_requant(d, &src)) {
        status = ds_weight_requant(&src, d->bits, GROUP, &codes, err);
        w = &codes;
    }
    if (!status && w->finite && !w->finite(w, 0, 1))
        status = ds_fail(err, DS_BAD_FILE, "%s: a scale is NaN or infinite: the file is damaged", w->name);
    if (status)
        return status;
    d->confidence = malloc(((size_t)width + 1) * sizeof(float));
    if (!d->confidence)
        return ds_fail(err, DS_NO_MEMORY, "confidence_head: out of memory");
    d->confidence_width = width;
    w->floats(w, 0, d->confidence);
    return ds_checkpoint_vector(ckpt, "confidence_head.proj.bias", d->confidence + width, 1, err);
}

static int64_t signed_at(const ds_tensor *t, size_t i)
{
    if (t->type == DS_I64) {
        int64_t wide;
        memcpy(&wide, t->data + 8 * i, sizeof wide);
        return wide;
    }
    int32_t narrow;
    memcpy(&narrow, t->data + 4 * i, sizeof narrow);
    return narrow;
}

static ds_status load_map(ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    const char *path = ds_checkpoint_path(ckpt);
    if (!c->reduced)
        return DS_OK;
    const ds_tensor *t = ds_checkpoint_find(ckpt, "d2t");
    int vocab = ds_model_get(d->target)->vocab;
    size_t n = (size_t)c->vocab_out, size = t->type == DS_I64 ? 8 : 4;
    if ((t->type != DS_I64 && t->type != DS_I32) || t->rank != 1 || t->bytes != n * size)
        return ds_fail(err, DS_BAD_FILE, "%s: d2t must be a list of %d whole numbers", path, c->vocab_out);
    d->map = malloc(n * sizeof *d->map);
    if (!d->map)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; i < n; i++) {
        int64_t offset = signed_at(t, i);
        if (offset < -(int64_t)i || offset >= vocab - (int64_t)i)
            return ds_fail(err, DS_INVALID,
                           ANOTHER
                           "d2t maps its token %zu to offset %lld, outside this target's vocabulary of %d",
                           path, i, (long long)offset, vocab);
        d->map[i] = (int32_t)offset;
    }
    d->map_on_backend = ds_dspark_alloc(d, n * sizeof *d->map, err);
    if (!d->map_on_backend)
        return DS_NO_MEMORY;
    d->be->upload(d->be, d->map_on_backend, d->map, n * sizeof *d->map);
    return DS_OK;
}

static ds_status load_ends(ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    ds_drafter_info *info = &d->base.info;
    ds_status status = DS_OK;
    info->own_embedding = ds_checkpoint_has(ckpt, "embed_tokens");
    info->own_head = ds_checkpoint_has(ckpt, "lm_head");
    d->embedding = ds_model_embedding(d->target);
    d->embed_scale = ds_model_get(d->target)->embed_scale;
    d->head = ds_model_head(d->target);
    if (info->own_embedding) {
        ds_weight view;
        ds_table *table = NULL;
        status = load_table(d, ckpt, "embed_tokens", c->vocab, c->hidden, &d->sources[0], &view, &table, err);
        d->embedding = table;
        d->embed_scale = 1;
    }
    if (status)
        return status;
    ds_matrix *head = NULL;
    if (info->own_head)
        status = load_matrix(d, ckpt, "lm_head", c->vocab_out, c->hidden, &head, err);
    else if (d->narrow_head && !d->be->exact)
        status = narrow_head(d, &head, err);
    if (head && !info->own_head)
        d->exact_head = d->head;
    if (head)
        d->head = head;
    return status;
}

ds_status ds_dspark_load(ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    ds_status status = check_tensors(d, ckpt, err);
    if (status)
        return status;
    d->be = ds_model_backend(d->target);
    status = check_target(d, ckpt, err);
    if (status)
        return status;
    d->layers = calloc((size_t)c->layers, sizeof *d->layers);
    if (!d->layers)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", ds_checkpoint_path(ckpt));
    int features = c->n_taps * ds_model_get(d->target)->hidden;
    status = load_matrix(d, ckpt, "fc", c->hidden, features, &d->fc, err);
    status = status ? status : load_vector(d, ckpt, "hidden_norm.weight", c->hidden, &d->hidden_norm, err);
    status = status ? status : load_vector(d, ckpt, "norm.weight", c->hidden, &d->norm, err);
    for (int i = 0; i < c->layers && !status; i++)
        status = load_layer(d, ckpt, i, err);
    status = status ? status : load_ends(d, ckpt, err);
    status = status ? status : load_markov(d, ckpt, err);
    status = status ? status : load_confidence(d, ckpt, err);
    return status ? status : load_map(d, ckpt, err);
}

void ds_dspark_unload(ds_dspark *d)
{
    for (int i = 0; i < d->n_matrices; i++)
        d->be->matrix_close(d->be, d->matrices[i]);
    for (int i = 0; i < d->n_tables; i++)
        d->be->table_close(d->be, d->tables[i]);
    for (int i = 0; i < d->n_memory; i++)
        d->be->mem_free(d->be, d->memory[i]);
    free(d->matrices);
    free(d->memory);
    free(d->layers);
    free(d->confidence);
    free(d->map);
}
