/* Linears: prepare the input rows (norm or activation, then int8), then multiply tile by tile.
 *
 * With one or two rows every thread prepares them for itself, which is cheaper than waiting for each
 * other; with more, preparing is a task of its own. The bits are the same either way. */
#include "backend/cpu/internal.h"

#include <string.h>

enum { MAX_OUTS = 4, ALONE_ROWS = 2 };

typedef struct {
    ds_in in;
    ds_cpu *cpu;
    int rows, k, n_outs, n_tiles, chunks, rows_per_chunk;
    bool need_q, need_f; /* some matrix wants int8 rows, fp32 rows */
    bool alone;          /* every worker prepares into its own buffer */
    uint32_t serial;
    ds_out outs[MAX_OUTS];
    uint8_t *shared; /* the buffer of prepared rows, unless alone */
} linear_arg;

/* Where the parts of prepared rows lie in a buffer, behind the serial of the linear they belong to. */
typedef struct {
    float *f;
    int8_t *q;
    float *scale, *min;
    int32_t *sum;
} prepared;

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t layout(const linear_arg *a, uint8_t *base, prepared *p)
{
    size_t at = DS_LOCAL_HEADER, rows = (size_t)a->rows, k = (size_t)a->k, blocks = k / DS_BLOCK;
    bool floats = a->need_f || a->in.pre != DS_PRE_NONE; /* PRE_NONE quantises straight from x */
    size_t f = at, f_rows = a->need_f ? rows : 1;
    at += floats ? align64(f_rows * k * sizeof(float)) : 0;
    size_t q = at;
    at += a->need_q ? align64(rows * k + 64) : 0;
    size_t scale = at;
    at += a->need_q ? align64(rows * blocks * sizeof(float)) : 0;
    size_t min = at;
    at += a->need_q ? align64(rows * blocks * sizeof(float)) : 0;
    size_t sum = at;
    at += a->need_q ? align64(rows * blocks * sizeof(int32_t)) : 0;
    if (base) {
        p->f = (float *)(base + f);
        p->q = (int8_t *)(base + q);
        p->scale = (float *)(base + scale);
        p->min = (float *)(base + min);
        p->sum = (int32_t *)(base + sum);
    }
    return at;
}

/* row_buffer: where the fp32 row goes if nobody needs it afterwards. */
static void prepare_row(const linear_arg *a, const prepared *p, int row, float *row_buffer)
{
    const ds_in *in = &a->in;
    const ds_row_impl *impl = a->cpu->row;
    const float *x = in->x + (size_t)row * in->ld;
    float *f = a->need_f ? p->f + (size_t)row * a->k : row_buffer;
    if (in->pre == DS_PRE_RMS) {
        impl->rms(x, in->w, a->k, in->eps, f);
        x = f;
    } else if (in->pre == DS_PRE_SWIGLU) {
        impl->swiglu(x, in->x2 + (size_t)row * in->ld, a->k, f);
        x = f;
    }
    if (a->need_q) {
        size_t blocks = (size_t)a->k / DS_BLOCK;
        a->cpu->matmul->quant(x, a->k, p->q + (size_t)row * a->k, p->scale + row * blocks,
                              p->min + row * blocks, p->sum + row * blocks);
    }
}

static void prepare_task(void *arg, int chunk, int worker)
{
    const linear_arg *a = arg;
    prepared p;
    layout(a, a->shared, &p);
    memset(a->cpu->local[worker].data, 0, DS_LOCAL_HEADER);
    float *row_buffer = (float *)(a->cpu->local[worker].data + DS_LOCAL_HEADER);
    int end = (chunk + 1) * a->rows_per_chunk;
    for (int r = chunk * a->rows_per_chunk; r < end && r < a->rows; r++)
        prepare_row(a, &p, r, row_buffer);
}

static void multiply_task(void *arg, int chunk, int worker)
{
    const linear_arg *a = arg;
    prepared p = { 0 };
    if (a->alone) {
        uint8_t *mine = a->cpu->local[worker].data;
        layout(a, mine, &p);
        uint32_t have;
        memcpy(&have, mine, sizeof have);
        if (have != a->serial) {
            for (int r = 0; r < a->rows; r++)
                prepare_row(a, &p, r, p.f);
            memcpy(mine, &a->serial, sizeof a->serial);
        }
    } else if (a->shared) {
        layout(a, a->shared, &p);
    }
    const ds_qact act = { .k = a->k, .q = p.q, .scale = p.scale, .min = p.min, .sum = p.sum };
    bool raw = a->in.pre == DS_PRE_NONE;
    int t0 = (int)((int64_t)a->n_tiles * chunk / a->chunks);
    int t1 = (int)((int64_t)a->n_tiles * (chunk + 1) / a->chunks);
    for (int i = 0, first = 0; i < a->n_outs && first < t1; i++) {
        const ds_out *o = &a->outs[i];
        int tiles = (o->w->n + DS_TILE - 1) / DS_TILE;
        int from = t0 > first ? t0 - first : 0, to = t1 - first < tiles ? t1 - first : tiles;
        first += tiles;
        if (from >= to)
            continue;
        const ds_dest dest = { o->y, o->ld, o->bias, o->add };
        if (o->w->integer)
            a->cpu->matmul->qmm(&o->w->q, &act, a->rows, from, to, &dest);
        else
            a->cpu->matmul->fmm(&o->w->f, raw ? a->in.x : p.f, raw ? a->in.ld : a->k, a->rows, from, to,
                                &dest);
    }
}

void ds_cpu_linear(ds_backend *be, const ds_in *in, int rows, const ds_out *outs, int n_outs)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int threads = ds_pool_threads(cpu->pool);
    linear_arg a = { .in = *in, .cpu = cpu, .rows = rows, .k = outs[0].w->k, .n_outs = n_outs };
    size_t weights = 0;
    for (int i = 0; i < n_outs; i++) {
        a.outs[i] = outs[i];
        a.n_tiles += (outs[i].w->n + DS_TILE - 1) / DS_TILE;
        a.need_q |= outs[i].w->integer;
        a.need_f |= !outs[i].w->integer && in->pre != DS_PRE_NONE;
        weights += outs[i].w->bytes;
    }
    bool prepare = a.need_q || a.need_f;
    a.alone = prepare && (rows <= ALONE_ROWS || threads == 1);
    if (++cpu->serial == 0)
        cpu->serial = 1; /* 0 marks a buffer that was just allocated */
    a.serial = cpu->serial;
    size_t size = prepare ? layout(&a, NULL, NULL) : 0;
    if (prepare) {
        size_t row_bytes = DS_LOCAL_HEADER + (size_t)a.k * sizeof(float);
        if (!ds_locals_get(cpu, a.alone ? size : row_bytes))
            return;
        if (!a.alone && !(a.shared = ds_scratch_get(cpu, &cpu->act, size)))
            return;
    }
    /* A chunk is worth claiming from about 16 KiB of weights on (times the rows that use them). */
    size_t pieces = weights * (size_t)(rows < 8 ? 1 : rows / 8) / 16384 + 1;
    size_t most = (size_t)threads * (rows > 16 ? 16 : 4);
    if (pieces > most)
        pieces = most;
    if (pieces > (size_t)a.n_tiles)
        pieces = (size_t)a.n_tiles;
    a.chunks = threads == 1 ? 1 : (int)pieces;
    a.rows_per_chunk = rows / (threads * 2) + 1;
    if (prepare && !a.alone) {
        int chunks = (rows + a.rows_per_chunk - 1) / a.rows_per_chunk;
        linear_arg *p = ds_pool_add(cpu->pool, "prepare", prepare_task, chunks, sizeof a);
        *p = a;
    }
    linear_arg *m =
        ds_pool_add(cpu->pool, in->name ? in->name : "linear", multiply_task, a.chunks, sizeof a);
    *m = a;
    ds_pool_weigh(cpu->pool, weights);
}
