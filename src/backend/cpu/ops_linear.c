/* Linears: prepare the input rows (norm or activation, then int8), then multiply tile by tile.
 *
 * With one or two rows every thread prepares them for itself, which is cheaper than waiting for each
 * other; with more, preparing is a task of its own. The bits are the same either way. */
#include "backend/cpu/internal.h"

#include <string.h>

enum {
    MAX_OUTS = 4,
    ALONE_ROWS = 2,
    BEST_TILES = 8, /* whose outputs are looked through at a time, while they are cached */
};

/* The largest of a chunk's outputs for one row. */
typedef struct {
    float value;
    int32_t id;
} largest;

typedef struct {
    ds_in in;
    ds_cpu *cpu;
    int rows, k, n_outs, n_tiles, chunks, rows_per_chunk;
    bool need_q, need_f; /* some matrix wants int8 rows, fp32 rows */
    bool alone;          /* every worker prepares into its own buffer */
    uint32_t serial;
    size_t weights; /* bytes of all matrices */
    ds_out outs[MAX_OUTS];
    uint8_t *shared; /* the buffer of prepared rows, unless alone */
    largest *best;   /* [chunks][rows]: wanted instead of outputs */
    size_t outputs;  /* where in a worker's buffer outputs go then */
    int32_t *to_best;
    float *to_value;
} linear_arg;

/* Where the parts of prepared rows lie in a buffer, behind the serial of the linear they belong to. */
typedef struct {
    float *f;
    int8_t *q;
    float *scale, *min;
    int32_t *sum;
} prepared;

static size_t layout(const linear_arg *a, uint8_t *base, prepared *p)
{
    size_t at = DS_LOCAL_HEADER, rows = (size_t)a->rows, k = (size_t)a->k, blocks = k / DS_BLOCK;
    bool floats = a->need_f || a->in.pre != DS_PRE_NONE; /* PRE_NONE quantises straight from x */
    size_t f = at, f_rows = a->need_f ? rows : 1;
    at += floats ? ds_align64(f_rows * k * sizeof(float)) : 0;
    size_t q = at;
    at += a->need_q ? ds_align64(rows * k + 64) : 0;
    size_t scale = at;
    at += a->need_q ? ds_align64(rows * blocks * sizeof(float)) : 0;
    size_t min = at;
    at += a->need_q ? ds_align64(rows * blocks * sizeof(float)) : 0;
    size_t sum = at;
    at += a->need_q ? ds_align64(rows * blocks * sizeof(int32_t)) : 0;
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

/* The input rows as matmuls take them, prepared here where every worker does so for itself. */
static prepared rows_of(const linear_arg *a, int worker)
{
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
    return p;
}

static void multiply(const linear_arg *a, const prepared *p, const ds_matrix *w, int from, int to,
                     const ds_dest *dest)
{
    const ds_qact act = { .k = a->k, .q = p->q, .scale = p->scale, .min = p->min, .sum = p->sum };
    bool raw = a->in.pre == DS_PRE_NONE;
    if (w->integer)
        a->cpu->matmul->qmm(&w->q, &act, a->rows, from, to, dest);
    else
        a->cpu->matmul->fmm(&w->f, raw ? a->in.x : p->f, raw ? a->in.ld : a->k, a->rows, from, to, dest);
}

static int chunk_begin(const linear_arg *a, int chunk)
{
    return (int)((int64_t)a->n_tiles * chunk / a->chunks);
}

static void multiply_task(void *arg, int chunk, int worker)
{
    const linear_arg *a = arg;
    const prepared p = rows_of(a, worker);
    int t0 = chunk_begin(a, chunk), t1 = chunk_begin(a, chunk + 1);
    for (int i = 0, first = 0; i < a->n_outs && first < t1; i++) {
        const ds_out *o = &a->outs[i];
        int tiles = (o->w->n + DS_TILE - 1) / DS_TILE;
        int from = t0 > first ? t0 - first : 0, to = t1 - first < tiles ? t1 - first : tiles;
        first += tiles;
        if (from >= to)
            continue;
        const ds_dest dest = { o->y, o->ld, o->bias, o->add };
        multiply(a, &p, o->w, from, to, &dest);
    }
}

/* Some tiles of a matrix as a matrix of its own. */
static ds_matrix tiles_of(const ds_matrix *w, int from, int n)
{
    ds_matrix m = *w;
    int left = w->n - from * DS_TILE;
    m.n = left < n * DS_TILE ? left : n * DS_TILE;
    m.q.n = m.f.n = m.n;
    m.q.tiles = m.f.tiles = (m.n + DS_TILE - 1) / DS_TILE;
    if (w->integer)
        m.q.data += (size_t)from * m.q.tile_bytes;
    else
        m.f.data += (size_t)from * m.f.tile_bytes;
    return m;
}

/* NaN never wins, and gives way. */
static bool better(float value, float best)
{
    return value > best || (value == value && best != best);
}

static void best_task(void *arg, int chunk, int worker)
{
    const linear_arg *a = arg;
    const prepared p = rows_of(a, worker);
    uint8_t *mine = a->cpu->local[worker].data;
    float *y = (float *)(mine + a->outputs);
    largest *best = a->best + (size_t)chunk * a->rows;
    if (!a->alone)
        memset(mine, 0, DS_LOCAL_HEADER); /* what a linear prepared here is written over */
    int t0 = chunk_begin(a, chunk), t1 = chunk_begin(a, chunk + 1);
    for (int t = t0; t < t1; t += BEST_TILES) {
        const ds_matrix w = tiles_of(a->outs[0].w, t, t1 - t < BEST_TILES ? t1 - t : BEST_TILES);
        const ds_dest dest = { .y = y, .ld = BEST_TILES * DS_TILE };
        multiply(a, &p, &w, 0, w.q.tiles, &dest);
        for (int r = 0; r < a->rows; r++) {
            largest l;
            l.id = t * DS_TILE + a->cpu->row->argmax(y + (size_t)r * dest.ld, w.n, &l.value);
            if (t == t0 || better(l.value, best[r].value))
                best[r] = l;
        }
    }
}

/* Chunks ascend, so that the lowest index wins among equals. */
static void best_of_all_task(void *arg, int row, int worker)
{
    (void)worker;
    const linear_arg *a = *(linear_arg **)arg;
    largest best = a->best[row];
    for (int c = 1; c < a->chunks; c++) {
        const largest *l = &a->best[(size_t)c * a->rows + row];
        if (better(l->value, best.value))
            best = *l;
    }
    a->to_best[row] = best.id;
    a->to_value[row] = best.value;
}

/* Fills the argument from its matrices, rows and input, and gets the buffers.
 * more: bytes of a worker's buffer behind what a linear needs. False: out of memory. */
static bool set_up(linear_arg *a, size_t more)
{
    ds_cpu *cpu = a->cpu;
    int rows = a->rows, threads = ds_pool_threads(cpu->pool);
    a->k = a->outs[0].w->k;
    for (int i = 0; i < a->n_outs; i++) {
        a->n_tiles += (a->outs[i].w->n + DS_TILE - 1) / DS_TILE;
        a->need_q |= a->outs[i].w->integer;
        a->need_f |= !a->outs[i].w->integer && a->in.pre != DS_PRE_NONE;
        a->weights += a->outs[i].w->bytes;
    }
    bool prepare = a->need_q || a->need_f;
    a->alone = prepare && (rows <= ALONE_ROWS || threads == 1);
    if (++cpu->serial == 0)
        cpu->serial = 1; /* 0 marks a buffer that was just allocated */
    a->serial = cpu->serial;
    size_t size = prepare ? layout(a, NULL, NULL) : 0, row_bytes = DS_LOCAL_HEADER + (size_t)a->k * sizeof(float);
    a->outputs = ds_align64(a->alone ? size : row_bytes);
    if ((prepare || more) && !ds_locals_get(cpu, a->outputs + more))
        return false;
    if (prepare && !a->alone && !(a->shared = ds_scratch_get(cpu, &cpu->act, size)))
        return false;
    /* A chunk is worth claiming from about 16 KiB of weights on (times the rows that use them), and at 512 KiB
     * its rest is worth sharing. */
    size_t pieces = a->weights * (size_t)(rows < 8 ? 1 : rows / 8) / 16384 + 1;
    size_t most = (size_t)threads * (rows > 16 ? 16 : 4), least = a->weights / (512 << 10);
    if (pieces > most)
        pieces = most > least ? most : least;
    if (pieces > DS_POOL_MAX_CHUNKS)
        pieces = DS_POOL_MAX_CHUNKS;
    if (pieces > (size_t)a->n_tiles)
        pieces = (size_t)a->n_tiles;
    a->chunks = threads == 1 ? 1 : (int)pieces;
    a->rows_per_chunk = rows / (threads * 2) + 1;
    return true;
}

/* The task, and before it the preparing of the rows where that is one of its own. */
static linear_arg *record(const linear_arg *a, ds_task_fn *fn)
{
    ds_pool *pool = a->cpu->pool;
    if ((a->need_q || a->need_f) && !a->alone) {
        int chunks = (a->rows + a->rows_per_chunk - 1) / a->rows_per_chunk;
        linear_arg *p = ds_pool_add(pool, "prepare", prepare_task, chunks, sizeof *a);
        *p = *a;
    }
    linear_arg *m = ds_pool_add(pool, a->in.name ? a->in.name : "linear", fn, a->chunks, sizeof *a);
    *m = *a;
    ds_pool_weigh(pool, a->weights);
    return m;
}

void ds_cpu_linear(ds_backend *be, const ds_in *in, int rows, const ds_out *outs, int n_outs)
{
    linear_arg a = { .in = *in, .cpu = ds_cpu_of(be), .rows = rows, .n_outs = n_outs };
    for (int i = 0; i < n_outs; i++)
        a.outs[i] = outs[i];
    if (set_up(&a, 0))
        record(&a, multiply_task);
}

void ds_cpu_linear_best(ds_backend *be, const ds_in *in, int rows, const ds_matrix *w, int32_t *best,
                        float *value)
{
    ds_cpu *cpu = ds_cpu_of(be);
    linear_arg a = { .in = *in, .cpu = cpu, .rows = rows, .n_outs = 1, .outs = { { .w = w } } };
    if (!set_up(&a, (size_t)rows * BEST_TILES * DS_TILE * sizeof(float)))
        return;
    a.best = (largest *)ds_scratch_get(cpu, &cpu->best, (size_t)a.chunks * rows * sizeof *a.best);
    if (!a.best)
        return;
    a.to_best = best;
    a.to_value = value;
    linear_arg *m = record(&a, best_task);
    linear_arg **again = ds_pool_follow(cpu->pool, "best of all", best_of_all_task, rows, sizeof *again);
    *again = m;
}
