#include "draft/dspark.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ds_draft_state base;
    ds_kv *kv; /* capacity rows of context, then the block */
} dspark_state;

static ds_dspark *of(const ds_draft_state *s)
{
    return (ds_dspark *)s->drafter;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* What the Markov head reads: where s, h and e lie in `cat`; -1: not in it. */
typedef struct {
    int s, e, h, width;
} cat_layout;

static cat_layout cat_of(const ds_dspark_config *c)
{
    int r = c->rank, h = c->hidden;
    switch (c->markov) {
    case DS_MARKOV_GATED:
        return (cat_layout){.s = -1, .h = 0, .e = h, .width = h + r};
    case DS_MARKOV_RNN:
        return (cat_layout){.s = 0, .e = r, .h = 2 * r, .width = 2 * r + h};
    default:
        return (cat_layout){.s = -1, .h = -1, .e = 0, .width = r ? r : 1};
    }
}

static ds_status make_rope(ds_dspark *d, ds_error *err)
{
    int pairs = d->c.head_dim / 2;
    d->freq = malloc((size_t)pairs * sizeof *d->freq);
    if (!d->freq)
        return ds_fail(err, DS_NO_MEMORY, "the drafter: out of memory");
    for (int i = 0; i < pairs; i++)
        d->freq[i] = pow(d->c.rope_theta, -2.0 * i / d->c.head_dim);
    d->rope = (ds_rope){.dims = d->c.head_dim, .interleaved = d->c.interleaved, .freq = d->freq, .scale = 1};
    return DS_OK;
}

static ds_status make_scratch(ds_dspark *d, ds_error *err)
{
    const ds_dspark_config *c = &d->c;
    size_t hidden = (size_t)c->hidden, block = (size_t)c->block, dim = (size_t)c->head_dim;
    size_t q = (size_t)c->heads * dim, kv = (size_t)c->kv_heads * dim, slots = (size_t)d->base.info.max_draft;
    const struct {
        float **out;
        size_t rows, width;
    } parts[] = {
        {&d->raw, DS_MAX_ROWS, hidden},
        {&d->fused, DS_MAX_ROWS, hidden},
        {&d->ctx_k, DS_MAX_ROWS, kv},
        {&d->ctx_v, DS_MAX_ROWS, kv},
        {&d->ctx_angles, DS_MAX_ROWS, dim},
        {&d->h, block, hidden},
        {&d->q, block, q},
        {&d->k, block, kv},
        {&d->v, block, kv},
        {&d->attn, block, q},
        {&d->gate, block, (size_t)c->intermediate},
        {&d->up, block, (size_t)c->intermediate},
        {&d->angles, block, dim},
        {&d->logits, slots, (size_t)c->vocab_out},
        {&d->cat, 1, (size_t)cat_of(c).width},
        {&d->mixed, 3, (size_t)(c->rank ? c->rank : 1)},
    };
    for (size_t i = 0; i < COUNT(parts); i++)
        if (!(*parts[i].out = ds_dspark_alloc(d, parts[i].rows * parts[i].width * sizeof(float), err)))
            return DS_NO_MEMORY;
    d->result_bytes = slots * hidden * sizeof(float) + (slots + 1) * sizeof(int32_t);
    d->block_ids = ds_dspark_alloc(d, block * sizeof(int32_t), err);
    d->result = d->block_ids ? ds_dspark_alloc(d, d->result_bytes, err) : NULL;
    if (!d->result)
        return DS_NO_MEMORY;
    d->ids = (int32_t *)(void *)(d->result + slots * hidden);
    d->host_block = malloc(block * sizeof *d->host_block);
    d->host_result = malloc(d->result_bytes);
    d->host_logits = malloc((size_t)c->vocab_out * sizeof(float));
    d->host_row = malloc((size_t)(c->rank ? c->rank : 1) * sizeof(float));
    if (!d->host_block || !d->host_result || !d->host_logits || !d->host_row)
        return ds_fail(err, DS_NO_MEMORY, "the drafter: out of memory");
    for (int i = 0; i < c->block; i++)
        d->host_block[i] = c->mask;
    return DS_OK;
}

static void dspark_close(ds_drafter *base)
{
    ds_dspark *d = (ds_dspark *)base;
    ds_dspark_unload(d);
    free(d->freq);
    free(d->host_block);
    free(d->host_result);
    free(d->host_logits);
    free(d->host_row);
    free(d);
}

static ds_status dspark_open(ds_drafter **out, const ds_checkpoint *ckpt, ds_model *target,
                             const ds_drafter_opts *opts, ds_error *err)
{
    ds_dspark *d = calloc(1, sizeof *d);
    if (!d)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", ds_checkpoint_path(ckpt));
    ds_dspark_config *c = &d->c;
    ds_status status = ds_dspark_config_read(c, ds_checkpoint_config(ckpt), ds_checkpoint_path(ckpt), err);
    if (status) {
        free(d);
        return status;
    }
    d->target = target;
    d->bits = c->quantized ? 0 : opts->bits;
    d->narrow_head = opts->narrow_head;
    d->base.kind = &ds_dspark_kind;
    d->base.info = (ds_drafter_info){.kind = ds_dspark_kind.name,
                                     .layers = c->layers,
                                     .hidden = c->hidden,
                                     .block = c->block,
                                     .max_draft = c->block - c->logits_start,
                                     .logits_start = c->logits_start,
                                     .vocab_out = c->vocab_out,
                                     .has_confidence = c->confidence,
                                     .n_taps = c->n_taps,
                                     .window = opts->window};
    memcpy(d->base.info.taps, c->taps, sizeof c->taps);
    status = ds_dspark_load(d, ckpt, err);
    status = status ? status : make_rope(d, err);
    status = status ? status : make_scratch(d, err);
    status = status ? status : ds_model_set_taps(target, c->taps, c->n_taps, err);
    status = status ? status : d->be->sync(d->be, err);
    if (status) {
        dspark_close(&d->base);
        return status;
    }
    d->base.map = d->map;
    *out = &d->base;
    return DS_OK;
}

static void dspark_state_close(ds_draft_state *base)
{
    dspark_state *s = (dspark_state *)base;
    ds_dspark *d = of(base);
    if (d->last_append == base)
        d->last_append = NULL;
    if (d->last_propose == base)
        d->last_propose = NULL;
    if (s->kv)
        d->be->kv_close(d->be, s->kv);
    free(s);
}

static ds_status dspark_state_open(ds_draft_state **out, ds_drafter *base, int capacity, ds_error *err)
{
    ds_dspark *d = (ds_dspark *)base;
    dspark_state *s = calloc(1, sizeof *s);
    if (!s)
        return ds_fail(err, DS_NO_MEMORY, "a drafter's state: out of memory");
    s->base = (ds_draft_state){.drafter = base, .capacity = capacity};
    ds_kv_shape shape = {.layers = d->c.layers,
                         .kv_heads = d->c.kv_heads,
                         .dim = d->c.head_dim,
                         .capacity = capacity + d->c.block};
    ds_status status = d->be->kv_open(d->be, &s->kv, &shape, err);
    if (status) {
        s->kv = NULL;
        dspark_state_close(&s->base);
        return status;
    }
    *out = &s->base;
    return DS_OK;
}

/* --- context ---------------------------------------------------------------------------------- */

static ds_heads heads_of(const ds_dspark *d, int layer, const ds_seq *seq)
{
    const ds_dspark_config *c = &d->c;
    const ds_dspark_layer *l = &d->layers[layer];
    return (ds_heads){.layer = layer,
                      .heads = c->heads,
                      .kv_heads = c->kv_heads,
                      .dim = c->head_dim,
                      .ld_q = c->heads * c->head_dim,
                      .ld_kv = c->kv_heads * c->head_dim,
                      .q_norm = l->q_norm,
                      .k_norm = l->k_norm,
                      .eps = c->eps,
                      .rope_dims = c->head_dim,
                      .interleaved = c->interleaved,
                      .seqs = seq,
                      .n_seqs = 1};
}

static ds_status dspark_append(ds_draft_state *base, const float *taps, int n, ds_error *err)
{
    (void)err;
    ds_dspark *d = of(base);
    ds_backend *be = d->be;
    const ds_dspark_config *c = &d->c;
    int kv = c->kv_heads * c->head_dim;
    be->part(be, "draft");
    ds_seq seq = {.kv = ((dspark_state *)base)->kv, .rows = n, .pos0 = base->length, .causal = true};
    ds_in in = {.name = "fc", .x = taps, .ld = c->n_taps * ds_model_get(d->target)->hidden};
    ds_out fc = {.w = d->fc, .y = d->raw, .ld = c->hidden};
    be->linear(be, &in, n, &fc, 1);
    be->rms_norm(be, d->fused, c->hidden, d->raw, c->hidden, d->hidden_norm, n, c->hidden, c->eps);
    be->rope_angles(be, d->ctx_angles, &d->rope, &seq, 1);
    for (int i = 0; i < c->layers; i++) {
        const ds_dspark_layer *l = &d->layers[i];
        /* fused rows enter every layer as they are: its input norm is for the block only */
        ds_in fused = {.name = "context kv", .x = d->fused, .ld = c->hidden};
        ds_out outs[] = {
            {.w = l->k, .bias = l->k_bias, .y = d->ctx_k, .ld = kv},
            {.w = l->v, .bias = l->v_bias, .y = d->ctx_v, .ld = kv},
        };
        be->linear(be, &fused, n, outs, 2);
        ds_heads heads = heads_of(d, i, &seq);
        heads.k = d->ctx_k;
        heads.v = d->ctx_v;
        heads.angles = d->ctx_angles;
        be->heads(be, &heads);
    }
    d->last_append = base;
    d->last_rows = n;
    return DS_OK;
}

/* --- a block ---------------------------------------------------------------------------------- */

/* Rows [from, from + n) of the residual through the rest of a layer: what attention gave, then the MLP. */
static void finish_layer(ds_dspark *d, const ds_dspark_layer *l, int from, int n)
{
    ds_backend *be = d->be;
    const ds_dspark_config *c = &d->c;
    int q = c->heads * c->head_dim;
    float *h = d->h + (size_t)from * (size_t)c->hidden;
    ds_in attended = {.name = "o", .x = d->attn + (size_t)from * (size_t)q, .ld = q};
    ds_out o = {.w = l->o, .bias = l->o_bias, .y = h, .ld = c->hidden, .add = true};
    be->linear(be, &attended, n, &o, 1);
    ds_in normed = {
        .pre = DS_PRE_RMS, .name = "gate+up", .x = h, .ld = c->hidden, .w = l->post_norm, .eps = c->eps};
    ds_out wide[] = {
        {.w = l->gate, .y = d->gate, .ld = c->intermediate},
        {.w = l->up, .y = d->up, .ld = c->intermediate},
    };
    be->linear(be, &normed, n, wide, 2);
    ds_in product = {.pre = DS_PRE_SWIGLU, .name = "down", .x = d->gate, .x2 = d->up, .ld = c->intermediate};
    ds_out down = {.w = l->down, .y = h, .ld = c->hidden, .add = true};
    be->linear(be, &product, n, &down, 1);
}

/* Leaves the hidden rows of `cap` slots in result. All slots see all slots, so that the full width runs
 * whatever the cap; only behind the last attention are the other rows of no use. */
static void run_block(ds_dspark *d, const dspark_state *s, int cap)
{
    ds_backend *be = d->be;
    const ds_dspark_config *c = &d->c;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, n = s->base.length;
    int window = d->base.info.window;
    ds_seq seq = {.kv = s->kv, .rows = c->block, .pos0 = n, .begin = window && n > window ? n - window : 0};
    be->embed(be, d->h, c->hidden, d->embedding, d->block_ids, c->block, d->embed_scale);
    be->rope_angles(be, d->angles, &d->rope, &seq, 1);
    for (int i = 0; i < c->layers; i++) {
        const ds_dspark_layer *l = &d->layers[i];
        ds_in normed = {
            .pre = DS_PRE_RMS, .name = "qkv", .x = d->h, .ld = c->hidden, .w = l->input_norm, .eps = c->eps};
        ds_out outs[] = {
            {.w = l->q, .bias = l->q_bias, .y = d->q, .ld = q},
            {.w = l->k, .bias = l->k_bias, .y = d->k, .ld = kv},
            {.w = l->v, .bias = l->v_bias, .y = d->v, .ld = kv},
        };
        be->linear(be, &normed, c->block, outs, 3);
        ds_heads heads = heads_of(d, i, &seq);
        heads.q = d->q;
        heads.k = d->k;
        heads.v = d->v;
        heads.angles = d->angles;
        be->heads(be, &heads);
        ds_attn attn = {.layer = i,
                        .heads = c->heads,
                        .kv_heads = c->kv_heads,
                        .dim = c->head_dim,
                        .scale = 1.0f / sqrtf((float)c->head_dim),
                        .q = d->q,
                        .out = d->attn,
                        .ld_q = q,
                        .ld_out = q,
                        .seqs = &seq,
                        .n_seqs = 1};
        be->attention(be, &attn);
        if (i + 1 < c->layers)
            finish_layer(d, l, 0, c->block);
        else
            finish_layer(d, l, c->logits_start, cap);
    }
    be->rms_norm(be, d->result, c->hidden, d->h + (size_t)c->logits_start * (size_t)c->hidden, c->hidden,
                 d->norm, cap, c->hidden, c->eps);
}

/* Candidates of a slot whose logits are made again by the target's own head after a pass through the 4-bit
 * copy: acceptance is then that of the target's head (docs/drafters.md). */
enum { REFINED = 32 };

static void run_head(ds_dspark *d, float *logits, int cap)
{
    const ds_dspark_config *c = &d->c;
    ds_in in = {.name = "head", .x = d->result, .ld = c->hidden};
    ds_out out = {.w = d->head, .y = logits, .ld = c->vocab_out};
    d->be->linear(d->be, &in, cap, &out, 1);
    if (d->exact_head)
        d->be->refine(d->be, d->result, c->hidden, d->exact_head, logits, c->vocab_out, cap, REFINED);
    if (c->softcap > 0)
        d->be->ew(d->be, DS_EW_SOFTCAP, logits, logits, NULL, NULL, c->softcap, cap, c->vocab_out,
                  c->vocab_out);
}

/* Adds the correction by token ids[slot] to the logits of a slot. */
static void add_markov(ds_dspark *d, int slot)
{
    ds_backend *be = d->be;
    const ds_dspark_config *c = &d->c;
    cat_layout at = cat_of(c);
    int r = c->rank;
    float *e = d->cat + at.e;
    const float *x = e;
    be->embed(be, e, r, d->w1, d->ids + slot, 1, 1);
    if (at.h >= 0) {
        be->copy_rows(be, d->cat + at.h, c->hidden, d->result + (size_t)slot * (size_t)c->hidden, c->hidden,
                      NULL, 1, c->hidden);
        ds_in in = {.name = "markov mix", .x = d->cat, .ld = at.width};
        int width = c->markov == DS_MARKOV_RNN ? 3 * r : r;
        ds_out mix = {.w = d->mix, .bias = d->mix_bias, .y = d->mixed, .ld = width};
        be->linear(be, &in, 1, &mix, 1);
    }
    if (c->markov == DS_MARKOV_GATED) {
        be->ew(be, DS_EW_SIGMOID_MUL, d->mixed, d->mixed, e, NULL, 0, 1, r, r);
        x = d->mixed;
    } else if (c->markov == DS_MARKOV_RNN) {
        float *o = d->mixed + 2 * (size_t)r;
        be->ew(be, DS_EW_TANH, o, o, NULL, NULL, 0, 1, r, r);
        be->ew(be, DS_EW_BLEND, d->mixed, d->mixed, d->cat + at.s, d->mixed + r, 0, 1, r, r);
        be->copy_rows(be, d->cat + at.s, r, d->mixed, r, NULL, 1, r);
        x = o;
    }
    ds_in in = {.name = "markov", .x = x, .ld = r};
    ds_out out = {
        .w = d->w2, .y = d->logits + (size_t)slot * (size_t)c->vocab_out, .ld = c->vocab_out, .add = true};
    be->linear(be, &in, 1, &out, 1);
}

/* The caller's choice for a slot: its logits come to the host, its token goes back for the next slot. */
static ds_status pick_slot(ds_dspark *d, int slot, ds_draft_pick pick, void *user, int32_t *id, ds_error *err)
{
    ds_backend *be = d->be;
    int n = d->c.vocab_out;
    const float *row = d->logits + (size_t)slot * (size_t)n;
    ds_status status = be->sync(be, err);
    const float *host = status || !be->peek ? NULL : be->peek(be, row);
    if (!status && !host) {
        status = be->download(be, d->host_logits, row, (size_t)n * sizeof *row, err);
        host = d->host_logits;
    }
    if (status)
        return status;
    int index = pick(user, slot, host, n);
    if (index < 0 || index >= n)
        return ds_fail(err, DS_INTERNAL, "a draft index of %d is outside the drafter's vocabulary of %d",
                       index, n);
    *id = index + (d->map ? d->map[index] : 0);
    be->upload(be, d->ids + slot + 1, id, sizeof *id);
    return DS_OK;
}

/* c_i = sigmoid(w [h_i; w1[prev_i]] + b): it never depends on token i itself, which keeps cutting a
 * draft by it lossless under sampling. */
static void set_confidence(const ds_dspark *d, int32_t pending, ds_draft *out)
{
    const ds_dspark_config *c = &d->c;
    for (int i = 0; i < out->n; i++) {
        if (!d->confidence) {
            out->confidence[i] = 1;
            continue;
        }
        const float *h = d->host_result + (size_t)i * (size_t)c->hidden;
        double sum = d->confidence[d->confidence_width];
        for (int j = 0; j < c->hidden; j++)
            sum += (double)d->confidence[j] * h[j];
        uint32_t prev = (uint32_t)(i ? out->ids[i - 1] : pending);
        if (c->confidence_markov && prev < d->w1_weight.rows) {
            d->w1_weight.floats(&d->w1_weight, prev, d->host_row);
            for (int j = 0; j < c->rank; j++)
                sum += (double)d->confidence[c->hidden + j] * d->host_row[j];
        }
        if (c->n_temperatures)
            sum /= c->temperatures[i];
        out->confidence[i] = (float)(1 / (1 + exp(-sum)));
    }
}

static ds_status dspark_propose(ds_draft_state *base, int32_t pending, int cap, ds_draft_pick pick,
                                void *user, ds_draft *out, ds_error *err)
{
    ds_dspark *d = of(base);
    ds_backend *be = d->be;
    const ds_dspark_config *c = &d->c;
    int vocab = ds_model_get(d->target)->vocab;
    if (pending < 0 || pending >= vocab)
        return ds_fail(err, DS_INVALID, "token %d is outside the vocabulary of %d", pending, vocab);
    d->host_block[0] = pending;
    be->part(be, "draft");
    be->upload(be, d->block_ids, d->host_block, (size_t)c->block * sizeof(int32_t));
    be->upload(be, d->ids, d->host_block, sizeof(int32_t));
    if (c->markov == DS_MARKOV_RNN) { /* s starts at 0 */
        memset(d->host_row, 0, (size_t)c->rank * sizeof(float));
        be->upload(be, d->cat + cat_of(c).s, d->host_row, (size_t)c->rank * sizeof(float));
    }
    run_block(d, (dspark_state *)base, cap);
    run_head(d, d->logits, cap);
    d->last_propose = base;
    d->last_cap = cap;
    ds_status status = DS_OK;
    int32_t picked[DS_MAX_DRAFT];
    for (int i = 0; i < cap && !status; i++) {
        if (c->markov != DS_MARKOV_NONE)
            add_markov(d, i);
        if (pick)
            status = pick_slot(d, i, pick, user, &picked[i], err);
        else if (c->markov != DS_MARKOV_NONE)
            be->argmax(be, d->ids + i + 1, d->logits + (size_t)i * (size_t)c->vocab_out, c->vocab_out, 1,
                       c->vocab_out, d->map_on_backend);
    }
    if (!pick && c->markov == DS_MARKOV_NONE)
        be->argmax(be, d->ids + 1, d->logits, c->vocab_out, cap, c->vocab_out, d->map_on_backend);
    status = status ? status : be->download(be, d->host_result, d->result, d->result_bytes, err);
    if (status)
        return status;
    size_t slots = (size_t)d->base.info.max_draft;
    out->n = cap;
    memcpy(out->ids, d->host_result + slots * (size_t)c->hidden + 1, (size_t)cap * sizeof(int32_t));
    set_confidence(d, pending, out);
    return DS_OK;
}

/* --- inspection ------------------------------------------------------------------------------- */

/* The base logits were overwritten by the Markov term: made again, which gives the same bits. */
static size_t inspect_base(ds_dspark *d, float *out, size_t count)
{
    float *again = d->be->mem_alloc(d->be, count * sizeof *again);
    if (!again)
        return 0;
    run_head(d, again, d->last_cap);
    ds_status status = d->be->download(d->be, out, again, count * sizeof *again, NULL);
    d->be->mem_free(d->be, again);
    return status ? 0 : count;
}

static size_t dspark_inspect(ds_draft_state *base, const char *which, float *out, size_t max)
{
    ds_dspark *d = of(base);
    size_t hidden = (size_t)d->c.hidden, cap = (size_t)d->last_cap, vocab = (size_t)d->c.vocab_out;
    const float *from = NULL;
    size_t count = 0;
    if (strcmp(which, "fused") == 0 && d->last_append == base) {
        from = d->fused;
        count = (size_t)d->last_rows * hidden;
    } else if (d->last_propose == base) {
        bool logits = strcmp(which, "step_logits") == 0, bare = strcmp(which, "base_logits") == 0;
        if (strcmp(which, "hidden") == 0) {
            from = d->result;
            count = cap * hidden;
        } else if (logits || bare) {
            from = d->logits;
            count = cap * vocab;
        }
        if (bare && count <= max)
            return inspect_base(d, out, count);
    }
    if (!from || count > max)
        return 0;
    return d->be->download(d->be, out, from, count * sizeof *out, NULL) ? 0 : count;
}

const ds_draft_kind ds_dspark_kind = {
    .name = "dspark",
    .recognise = ds_dspark_recognise,
    .open = dspark_open,
    .close = dspark_close,
    .state_open = dspark_state_open,
    .state_close = dspark_state_close,
    .append = dspark_append,
    .propose = dspark_propose,
    .inspect = dspark_inspect,
};
