/* Attention: query rows that share a KV head are packed together and meet each chunk of 256 keys once.
 *
 * Where there are fewer packs than threads could use, a pack's chunks are shared out too and merged by
 * a second task; a chunk's result and the order of merging are the same in both cases. */
#include "backend/cpu/internal.h"

#include <string.h>

enum { PACK_ROWS = 48 }; /* query rows (rows x heads of a group) of a pack, about */

typedef struct {
    int seq, head, row, rows; /* rows [row, row + rows) of the sequence */
    int chunk0, chunks;       /* chunks of keys that its rows see */
    size_t partial;           /* index of its first partial result (split packs only) */
} pack;

typedef struct {
    ds_attn a;
    ds_cpu *cpu;
    ds_seq *seqs;
    pack *packs;
    int n_packs, pieces; /* pieces a pack is split into; 1: not split */
    float *partial;
} attention_arg;

static int key_end(const ds_seq *s, int row)
{
    return s->causal ? s->pos0 + row + 1 : s->pos0 + s->rows;
}

static int key_begin(const ds_seq *s, int row)
{
    int begin = s->begin;
    if (s->window && s->pos0 + row + 1 - s->window > begin)
        begin = s->pos0 + row + 1 - s->window;
    return begin > 0 ? begin : 0;
}

static size_t partial_floats(int rows, int dim)
{
    return (size_t)rows * ((size_t)dim + 2);
}

/* A partial result of `rows` query rows: [rows] max, [rows] sum, [rows][dim] acc. */
typedef struct {
    float *max, *sum, *acc;
} partials;

/* The parts of n consecutive chunks' results lie apart by kind, so that merging strides by rows. */
static partials partial_at(float *base, int chunks, int rows)
{
    size_t n = (size_t)chunks * (size_t)rows;
    return (partials){ base, base + n, base + 2 * n };
}

static void run_chunks(const attention_arg *t, const pack *p, int c0, int c1, partials out, float *scratch)
{
    const ds_attn *a = &t->a;
    const ds_seq *s = &t->seqs[p->seq];
    int group = a->heads / a->kv_heads, rows = p->rows * group, dim = a->dim;
    float *q = scratch;
    const float **ptr = (const float **)(q + (((size_t)rows * dim + 15) & ~(size_t)15));
    int *begin = (int *)(ptr + rows), *end = begin + rows;
    for (int r = 0; r < p->rows; r++)
        for (int g = 0; g < group; g++) {
            int i = r * group + g;
            const float *src = a->q + (size_t)(s->row0 + p->row + r) * a->ld_q + (size_t)(p->head * group + g) * dim;
            for (int d = 0; d < dim; d++)
                q[(size_t)i * dim + d] = src[d] * a->scale;
            ptr[i] = q + (size_t)i * dim;
            begin[i] = key_begin(s, p->row + r);
            end[i] = key_end(s, p->row + r);
        }
    for (int c = c0; c < c1; c++) {
        size_t at = (size_t)(c - p->chunk0) * rows;
        const ds_chunk chunk = {
            .k = ds_kv_k(s->kv, a->layer, p->head),
            .v = ds_kv_v(s->kv, a->layer, p->head),
            .half = s->kv->half,
            .dim = dim,
            .key0 = c * DS_KV_CHUNK,
            .rows = rows,
            .q = ptr,
            .begin = begin,
            .end = end,
            .max = out.max + at,
            .sum = out.sum + at,
            .acc = out.acc + at * dim,
        };
        t->cpu->attention->chunk(&chunk);
    }
}

static void merge_rows(const attention_arg *t, const pack *p, partials in)
{
    const ds_attn *a = &t->a;
    const ds_seq *s = &t->seqs[p->seq];
    int group = a->heads / a->kv_heads, rows = p->rows * group, dim = a->dim;
    for (int i = 0; i < rows; i++) {
        float *out = a->out + (size_t)(s->row0 + p->row + i / group) * a->ld_out +
                     (size_t)(p->head * group + i % group) * dim;
        t->cpu->attention->merge(in.max + i, in.sum + i, in.acc + (size_t)i * dim, p->chunks, rows, dim, out);
    }
}

static size_t scratch_bytes(int rows, int dim)
{
    return (((size_t)rows * dim + 15) & ~(size_t)15) * sizeof(float) +
           (size_t)rows * (sizeof(float *) + 2 * sizeof(int)) + 64;
}

static void whole_task(void *arg, int chunk, int worker)
{
    const attention_arg *t = arg;
    const pack *p = &t->packs[chunk];
    int rows = p->rows * (t->a.heads / t->a.kv_heads);
    uint8_t *mine = t->cpu->local[worker].data;
    memset(mine, 0, DS_LOCAL_HEADER); /* what a linear prepared here is gone */
    mine += DS_LOCAL_HEADER;
    partials out = partial_at((float *)(mine + ((scratch_bytes(rows, t->a.dim) + 63) & ~(size_t)63)), p->chunks,
                              rows);
    run_chunks(t, p, p->chunk0, p->chunk0 + p->chunks, out, (float *)mine);
    merge_rows(t, p, out);
}

static void split_task(void *arg, int chunk, int worker)
{
    const attention_arg *t = *(attention_arg **)arg;
    const pack *p = &t->packs[chunk / t->pieces];
    int piece = chunk % t->pieces, rows = p->rows * (t->a.heads / t->a.kv_heads);
    int c0 = p->chunk0 + p->chunks * piece / t->pieces, c1 = p->chunk0 + p->chunks * (piece + 1) / t->pieces;
    uint8_t *mine = t->cpu->local[worker].data;
    memset(mine, 0, DS_LOCAL_HEADER);
    if (c0 < c1)
        run_chunks(t, p, c0, c1, partial_at(t->partial + p->partial, p->chunks, rows),
                   (float *)(mine + DS_LOCAL_HEADER));
}

static void merge_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const attention_arg *t = *(attention_arg **)arg;
    const pack *p = &t->packs[chunk];
    int rows = p->rows * (t->a.heads / t->a.kv_heads);
    merge_rows(t, p, partial_at(t->partial + p->partial, p->chunks, rows));
}

/* Packs of at most about `rows_a_pack` query rows; packs NULL: only counts. */
static int make_packs(const ds_attn *a, int rows_a_pack, pack *packs)
{
    int n = 0, group = a->heads / a->kv_heads;
    int step = rows_a_pack / group > 0 ? rows_a_pack / group : 1;
    for (int s = 0; s < a->n_seqs; s++)
        for (int row = 0; row < a->seqs[s].rows; row += step)
            for (int h = 0; h < a->kv_heads; h++, n++) {
                if (!packs)
                    continue;
                const ds_seq *q = &a->seqs[s];
                int rows = q->rows - row < step ? q->rows - row : step;
                int first = key_begin(q, row) / DS_KV_CHUNK; /* begins and ends ascend with the row */
                int last = (key_end(q, row + rows - 1) - 1) / DS_KV_CHUNK;
                packs[n] = (pack){ s, h, row, rows, first, last - first + 1, 0 };
            }
    return n;
}

void ds_cpu_attention(ds_backend *be, const ds_attn *a)
{
    ds_cpu *cpu = ds_cpu_of(be);
    int threads = ds_pool_threads(cpu->pool), group = a->heads / a->kv_heads;
    int rows_a_pack = PACK_ROWS, n = make_packs(a, rows_a_pack, NULL);
    while (n > DS_POOL_MAX_CHUNKS / 2)
        n = make_packs(a, rows_a_pack *= 2, NULL);
    size_t size = sizeof(attention_arg) + (size_t)a->n_seqs * sizeof(ds_seq) + (size_t)n * sizeof(pack) + 64;

    /* Sizes first: buffers may not grow once the task is recorded. */
    int max_rows = 0, max_chunks = 0;
    int step = rows_a_pack / group > 0 ? rows_a_pack / group : 1;
    size_t all = 0;
    for (int s = 0; s < a->n_seqs; s++) {
        const ds_seq *q = &a->seqs[s];
        int rows = (q->rows < step ? q->rows : step) * group;
        int chunks = (key_end(q, q->rows - 1) - 1) / DS_KV_CHUNK - key_begin(q, 0) / DS_KV_CHUNK + 1;
        max_rows = rows > max_rows ? rows : max_rows;
        max_chunks = chunks > max_chunks ? chunks : max_chunks;
        all += (size_t)chunks * partial_floats(q->rows * group, a->dim) * (size_t)a->kv_heads;
    }
    bool split = threads > 1 && n < threads * 3 && max_chunks > 1;
    size_t local = DS_LOCAL_HEADER + ((scratch_bytes(max_rows, a->dim) + 63) & ~(size_t)63);
    if (!split)
        local += (size_t)max_chunks * partial_floats(max_rows, a->dim) * sizeof(float);
    if (!ds_locals_get(cpu, local) || (split && !ds_scratch_get(cpu, &cpu->partial, all * sizeof(float))))
        return;

    attention_arg **head = ds_pool_add(cpu->pool, "attention", split ? split_task : whole_task, 1,
                                        size + 2 * sizeof *head);
    attention_arg *t = split ? (attention_arg *)(head + 2) : (attention_arg *)head;
    *t = (attention_arg){ .a = *a, .cpu = cpu, .n_packs = n, .pieces = 1, .partial = (float *)cpu->partial.data };
    t->seqs = (ds_seq *)(t + 1);
    memcpy(t->seqs, a->seqs, (size_t)a->n_seqs * sizeof(ds_seq));
    t->packs = (pack *)(t->seqs + a->n_seqs);
    make_packs(a, rows_a_pack, t->packs);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        t->packs[i].partial = at;
        at += (size_t)t->packs[i].chunks * partial_floats(t->packs[i].rows * group, a->dim);
    }
    if (!split) {
        ds_pool_set_chunks(cpu->pool, n);
        return;
    }
    t->pieces = (threads * 4 + n - 1) / n;
    if (t->pieces > max_chunks)
        t->pieces = max_chunks;
    *head = t;
    ds_pool_set_chunks(cpu->pool, n * t->pieces);
    attention_arg **again = ds_pool_follow(cpu->pool, "attention merge", merge_task, n, sizeof *again);
    *again = t;
}
