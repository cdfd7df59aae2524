/* Operations on rows: embedding, norms, rope and KV rows, copies, elementwise, argmax. */
#include "backend/cpu/internal.h"

#include <math.h>
#include <string.h>

/* Chunks for n rows of about `cost` floats each: none much smaller than a claim is worth. */
static int row_chunks(const ds_cpu *cpu, int rows, size_t cost)
{
    size_t pieces = (size_t)rows * cost / 4096 + 1, most = (size_t)ds_pool_threads(cpu->pool) * 4;
    if (pieces > most)
        pieces = most;
    return pieces > (size_t)rows ? rows : (int)pieces;
}

/* Every argument struct begins with this. */
typedef struct {
    ds_cpu *cpu;
    int rows, chunks;
} span;

static int span_begin(const span *s, int chunk)
{
    return (int)((int64_t)s->rows * chunk / s->chunks);
}

typedef struct {
    span s;
    float *out;
    int ld;
    const ds_table *t;
    const int32_t *ids;
    float scale;
} embed_arg;

static void embed_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const embed_arg *a = arg;
    for (int r = span_begin(&a->s, chunk); r < span_begin(&a->s, chunk + 1); r++) {
        float *out = a->out + (size_t)r * a->ld;
        if (a->ids[r] < 0 || (uint32_t)a->ids[r] >= a->t->w.rows) {
            memset(out, 0, a->t->w.cols * sizeof *out);
            continue;
        }
        a->t->w.floats(&a->t->w, (uint32_t)a->ids[r], out);
        if (a->scale != 1.0f)
            for (uint32_t i = 0; i < a->t->w.cols; i++)
                out[i] *= a->scale;
    }
}

void ds_cpu_embed(ds_backend *be, float *out, int ld, const ds_table *t, const int32_t *ids, int rows,
                  float scale)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int chunks = row_chunks(cpu, rows, t->w.cols);
    embed_arg *a = ds_pool_add(cpu->pool, "embed", embed_task, chunks, sizeof *a);
    *a = (embed_arg){ { cpu, rows, chunks }, out, ld, t, ids, scale };
}

typedef struct {
    span s;
    float *out;
    const float *x, *w;
    int ld_out, ld, n;
    float eps;
} norm_arg;

static void norm_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const norm_arg *a = arg;
    for (int r = span_begin(&a->s, chunk); r < span_begin(&a->s, chunk + 1); r++)
        a->s.cpu->row->rms(a->x + (size_t)r * a->ld, a->w, a->n, a->eps, a->out + (size_t)r * a->ld_out);
}

void ds_cpu_rms_norm(ds_backend *be, float *out, int ld_out, const float *x, int ld, const float *w,
                     int rows, int n, float eps)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int chunks = row_chunks(cpu, rows, (size_t)n);
    norm_arg *a = ds_pool_add(cpu->pool, "norm", norm_task, chunks, sizeof *a);
    *a = (norm_arg){ { cpu, rows, chunks }, out, x, w, ld_out, ld, n, eps };
}

typedef struct {
    span s;
    float *out;
    ds_rope rope;
    int n_seqs;
    ds_seq seqs[];
} angles_arg;

static int total_rows(const ds_seq *seqs, int n)
{
    int rows = 0;
    for (int i = 0; i < n; i++)
        rows += seqs[i].rows;
    return rows;
}

static void angles_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const angles_arg *a = arg;
    int from = span_begin(&a->s, chunk), to = span_begin(&a->s, chunk + 1), pairs = a->rope.dims / 2;
    for (int s = 0, first = 0; s < a->n_seqs; first += a->seqs[s++].rows)
        for (int r = 0; r < a->seqs[s].rows; r++) {
            if (first + r < from || first + r >= to)
                continue;
            float *out = a->out + (size_t)(a->seqs[s].row0 + r) * a->rope.dims;
            for (int i = 0; i < pairs; i++) {
                double angle = (a->seqs[s].pos0 + r) * a->rope.freq[i];
                out[2 * i] = (float)(cos(angle) * a->rope.scale);
                out[2 * i + 1] = (float)(sin(angle) * a->rope.scale);
            }
        }
}

void ds_cpu_rope_angles(ds_backend *be, float *out, const ds_rope *rope, const ds_seq *seqs, int n_seqs)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int rows = total_rows(seqs, n_seqs), chunks = row_chunks(cpu, rows, (size_t)rope->dims * 16);
    angles_arg *a = ds_pool_add(cpu->pool, "angles", angles_task, chunks,
                                sizeof *a + (size_t)n_seqs * sizeof *seqs);
    *a = (angles_arg){ { cpu, rows, chunks }, out, *rope, n_seqs };
    memcpy(a->seqs, seqs, (size_t)n_seqs * sizeof *seqs);
}

/* Shared out by head and by tile of 16 keys, never by rows within a tile: a K tile has the keys of a
 * dimension side by side, so that threads with rows of one tile would take each other's cache lines. */
typedef struct {
    span s; /* of units: a head's rows of one tile */
    ds_heads h;
    ds_seq seqs[];
} heads_arg;

static int key_tiles(const ds_seq *s)
{
    return s->rows ? (s->pos0 + s->rows - 1) / DS_TILE - s->pos0 / DS_TILE + 1 : 0;
}

static void turn_query(const heads_arg *a, int row, int head)
{
    const ds_heads *h = &a->h;
    float *q = h->q + (size_t)row * h->ld_q + (size_t)head * h->dim;
    if (h->q_norm)
        a->s.cpu->row->rms(q, h->q_norm, h->dim, h->eps, q);
    if (h->angles)
        a->s.cpu->row->turn(q, h->angles + (size_t)row * h->rope_dims, h->rope_dims, h->interleaved);
}

static void store_key(const heads_arg *a, const ds_seq *s, int r, int head)
{
    const ds_heads *h = &a->h;
    const ds_row_impl *impl = a->s.cpu->row;
    int row = s->row0 + r, pos = s->pos0 + r, dim = h->dim;
    const float *k = h->k + (size_t)row * h->ld_kv + (size_t)head * dim;
    const float *v = h->v + (size_t)row * h->ld_kv + (size_t)head * dim;
    float turned[512];
    if (h->k_norm)
        impl->rms(k, h->k_norm, dim, h->eps, turned);
    else
        memcpy(turned, k, (size_t)dim * sizeof *k);
    if (h->angles)
        impl->turn(turned, h->angles + (size_t)row * h->rope_dims, h->rope_dims, h->interleaved);
    size_t e = s->kv->element;
    uint8_t *tile = ds_kv_k(s->kv, h->layer, head) + (size_t)(pos / DS_TILE) * DS_TILE * dim * e;
    a->s.cpu->attention->store(turned, v, dim, s->kv->half, tile, pos % DS_TILE,
                               ds_kv_v(s->kv, h->layer, head) + (size_t)pos * dim * e);
}

static void heads_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const heads_arg *a = arg;
    int queries = a->h.q ? a->h.heads : 0, each = queries + a->h.kv_heads, first = 0;
    int from = span_begin(&a->s, chunk), to = span_begin(&a->s, chunk + 1);
    for (int n = 0; n < a->h.n_seqs; n++) {
        const ds_seq *s = &a->seqs[n];
        int end = first + key_tiles(s) * each;
        for (int u = from > first ? from : first; u < to && u < end; u++) {
            int tile = s->pos0 / DS_TILE + (u - first) / each, head = (u - first) % each;
            int r = tile * DS_TILE - s->pos0, stop = r + DS_TILE < s->rows ? r + DS_TILE : s->rows;
            for (r = r > 0 ? r : 0; r < stop; r++)
                if (head < queries)
                    turn_query(a, s->row0 + r, head);
                else
                    store_key(a, s, r, head - queries);
        }
        first = end;
    }
}

void ds_cpu_heads(ds_backend *be, const ds_heads *h)
{
    enum { COST = 4 }; /* of a float here, in floats that row_chunks has in mind */
    ds_cpu *cpu = ds_cpu_of(be);
    int each = (h->q ? h->heads : 0) + h->kv_heads, units = 0, rows = total_rows(h->seqs, h->n_seqs);
    for (int i = 0; i < h->n_seqs; i++)
        units += key_tiles(&h->seqs[i]) * each;
    if (!units)
        return;
    int chunks = row_chunks(cpu, units, COST * (size_t)h->dim * (size_t)rows * each / units);
    heads_arg *a = ds_pool_add(cpu->pool, "heads", heads_task, chunks,
                               sizeof *a + (size_t)h->n_seqs * sizeof(ds_seq));
    *a = (heads_arg){ { cpu, units, chunks }, *h };
    memcpy(a->seqs, h->seqs, (size_t)h->n_seqs * sizeof(ds_seq));
}

typedef struct {
    span s;
    float *dst;
    const float *src;
    int ld_dst, ld_src, n;
    bool indexed;
    int32_t index[];
} copy_arg;

static void copy_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const copy_arg *a = arg;
    for (int r = span_begin(&a->s, chunk); r < span_begin(&a->s, chunk + 1); r++)
        memcpy(a->dst + (size_t)r * a->ld_dst, a->src + (size_t)(a->indexed ? a->index[r] : r) * a->ld_src,
               (size_t)a->n * sizeof(float));
}

void ds_cpu_copy_rows(ds_backend *be, float *dst, int ld_dst, const float *src, int ld_src,
                      const int32_t *index, int rows, int n)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int chunks = row_chunks(cpu, rows, (size_t)n);
    copy_arg *a = ds_pool_add(cpu->pool, "copy", copy_task, chunks,
                              sizeof *a + (index ? (size_t)rows * sizeof *index : 0));
    *a = (copy_arg){ { cpu, rows, chunks }, dst, src, ld_dst, ld_src, n, index != NULL };
    if (index)
        memcpy(a->index, index, (size_t)rows * sizeof *index);
}

typedef struct {
    span s;
    ds_ew op;
    float *y;
    const float *a, *b, *c;
    float p;
    int n, ld;
} ew_arg;

static float sigmoid(float x)
{
    return 1.0f / (1.0f + ds_exp(-fmaxf(x, -87.0f)));
}

static float one(const ew_arg *e, size_t i)
{
    float a = e->a[i];
    switch (e->op) {
    case DS_EW_ADD:
        return a + e->b[i];
    case DS_EW_SIGMOID_MUL:
        return sigmoid(a) * e->b[i];
    case DS_EW_BLEND: {
        float g = sigmoid(a);
        return g * e->b[i] + (1.0f - g) * tanhf(e->c[i]);
    }
    case DS_EW_TANH:
        return tanhf(a);
    case DS_EW_SIGMOID:
        return sigmoid(a);
    case DS_EW_SOFTCAP:
        return e->p * tanhf(a / e->p);
    case DS_EW_SCALE:
        return e->p * a;
    }
    return a;
}

static void ew_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const ew_arg *e = arg;
    for (int r = span_begin(&e->s, chunk); r < span_begin(&e->s, chunk + 1); r++)
        for (int i = 0; i < e->n; i++)
            e->y[(size_t)r * e->ld + i] = one(e, (size_t)r * e->ld + i);
}

void ds_cpu_ew(ds_backend *be, ds_ew op, float *y, const float *a, const float *b, const float *c, float p,
               int rows, int n, int ld)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int chunks = row_chunks(cpu, rows, (size_t)n * 4);
    ew_arg *e = ds_pool_add(cpu->pool, "elementwise", ew_task, chunks, sizeof *e);
    *e = (ew_arg){ { cpu, rows, chunks }, op, y, a, b, c, p, n, ld };
}

typedef struct {
    span s;
    int32_t *out;
    const float *x;
    int ld, n;
    const int32_t *offsets;
} argmax_arg;

static void argmax_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const argmax_arg *a = arg;
    for (int r = span_begin(&a->s, chunk); r < span_begin(&a->s, chunk + 1); r++) {
        float max;
        int best = a->s.cpu->row->argmax(a->x + (size_t)r * a->ld, a->n, &max);
        a->out[r] = best + (a->offsets ? a->offsets[best] : 0);
    }
}

void ds_cpu_argmax(ds_backend *be, int32_t *out, const float *x, int ld, int rows, int n,
                   const int32_t *offsets)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int chunks = row_chunks(cpu, rows, (size_t)n);
    argmax_arg *a = ds_pool_add(cpu->pool, "argmax", argmax_task, chunks, sizeof *a);
    *a = (argmax_arg){ { cpu, rows, chunks }, out, x, ld, n, offsets };
}

typedef struct {
    void *dst;
    size_t bytes;
    uint8_t data[];
} upload_arg;

static void upload_task(void *arg, int chunk, int worker)
{
    (void)chunk;
    (void)worker;
    const upload_arg *a = arg;
    memcpy(a->dst, a->data, a->bytes);
}

void ds_cpu_upload(ds_backend *be, void *dst, const void *src, size_t bytes)
{
    ds_cpu *cpu = ds_cpu_of(be);
    if (bytes > 16384) { /* not worth a copy: wait for those that use dst */
        ds_pool_run(cpu->pool);
        memcpy(dst, src, bytes);
        return;
    }
    upload_arg *a = ds_pool_add(cpu->pool, "upload", upload_task, 1, sizeof *a + bytes);
    *a = (upload_arg){ dst, bytes };
    memcpy(a->data, src, bytes);
}
