/* Weights in memory: matrices are packed one behind the other into slabs of huge pages, since a matrix of
 * its own would waste most of its last page. */
#include "backend/cpu/internal.h"
#include "backend/cpu/pack.h"
#include "base/mem.h"

#include <stdlib.h>

enum {
    SLAB = 32 << 20,
    BEHIND = 4096,  /* kernels prefetch past the end */
    DROP = 1 << 19, /* letting go of pages interrupts all threads: not for less */
};

struct ds_slab {
    uint8_t *pages;
    size_t size, used;
    int users; /* matrices in it, and the backend while it is the one being filled */
};

static void give_back(ds_slab *slab)
{
    if (!slab || --slab->users)
        return;
    ds_pages_free(slab->pages, slab->size);
    free(slab);
}

void ds_cpu_slab_close(ds_cpu *cpu)
{
    give_back(cpu->slab);
    cpu->slab = NULL;
}

/* `bytes` (a multiple of 64) zeroed bytes and the slab they lie in; NULL: out of memory. */
static uint8_t *take(ds_cpu *cpu, size_t bytes, ds_slab **from)
{
    *from = NULL;
    if (!cpu->slab || cpu->slab->size - cpu->slab->used < bytes + BEHIND) {
        ds_slab *slab = calloc(1, sizeof *slab);
        if (!slab)
            return NULL;
        slab->size = bytes + BEHIND > SLAB ? bytes + BEHIND : SLAB;
        slab->pages = ds_pages_alloc(slab->size);
        if (!slab->pages) {
            free(slab);
            return NULL;
        }
        slab->users = 1;
        give_back(cpu->slab);
        cpu->slab = slab;
    }
    *from = cpu->slab;
    cpu->slab->users++;
    uint8_t *at = cpu->slab->pages + cpu->slab->used;
    cpu->slab->used += bytes;
    return at;
}

typedef struct {
    const ds_matrix *m;
    const ds_weight *w;
    ds_cpu *cpu;
    int per_chunk;
    size_t tile_bytes;
} fill_arg;

static void fill_task(void *arg, int chunk, int worker)
{
    fill_arg *f = arg;
    int tiles = f->m->integer ? f->m->q.tiles : f->m->f.tiles;
    int t0 = chunk * f->per_chunk, t1 = t0 + f->per_chunk < tiles ? t0 + f->per_chunk : tiles;
    void *scratch = f->cpu->local[worker].data + DS_LOCAL_HEADER;
    if (f->m->integer)
        ds_qmat_fill(&f->m->q, f->m->pages, f->w, t0, t1, scratch);
    else
        ds_fmat_fill(&f->m->f, f->m->pages, f->w, t0, t1, scratch);
    if (f->w->drop && (size_t)(t1 - t0) * f->tile_bytes >= DROP) { /* others go whole, below */
        uint32_t end = (uint32_t)t1 * DS_TILE;
        f->w->drop(f->w, (uint32_t)t0 * DS_TILE, end < f->w->rows ? end : f->w->rows);
    }
}

ds_status ds_cpu_matrix_open(ds_backend *be, ds_matrix **out, const ds_weight *w, ds_error *err)
{
    ds_cpu *cpu = ds_cpu_of(be);
    *out = NULL;
    ds_matrix *m = calloc(1, sizeof *m);
    if (!m)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", w->name);
    m->n = (int)w->rows;
    m->k = (int)w->cols;
    m->integer = !be->exact && w->codes.bits > 0 && w->cols % DS_BLOCK == 0;
    int tiles;
    size_t tile_bytes;
    if (m->integer) {
        ds_qmat_describe(&m->q, w);
        tiles = m->q.tiles;
        tile_bytes = m->q.tile_bytes;
    } else {
        bool as_is = !be->exact && (w->type == DS_F16 || w->type == DS_BF16);
        ds_fmat_describe(&m->f, w, as_is ? w->type : DS_F32);
        tiles = m->f.tiles;
        tile_bytes = m->f.tile_bytes;
    }
    m->bytes = ((size_t)tiles * tile_bytes + 63) & ~(size_t)63;
    m->pages = take(cpu, m->bytes, &m->slab);
    if (!m->pages || !ds_locals_get(cpu, DS_LOCAL_HEADER + ds_pack_scratch(w))) {
        size_t bytes = m->bytes;
        give_back(m->slab);
        free(m);
        cpu->no_memory = false;
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory: the repacked matrix takes %zu bytes", w->name,
                       bytes);
    }
    m->q.data = m->f.data = m->pages;
    int threads = ds_pool_threads(cpu->pool);
    int per_chunk = tiles / (threads * 8) + 1; /* small enough that mapped pages are dropped early */
    if ((size_t)per_chunk * tile_bytes > 1 << 20)
        per_chunk = (int)((1 << 20) / tile_bytes) + 1;
    while ((tiles + per_chunk - 1) / per_chunk > DS_POOL_MAX_CHUNKS)
        per_chunk *= 2;
    fill_arg *f = ds_pool_add(cpu->pool, "repack", fill_task, (tiles + per_chunk - 1) / per_chunk, sizeof *f);
    *f = (fill_arg){ m, w, cpu, per_chunk, tile_bytes };
    ds_pool_run(cpu->pool);
    if (w->drop)
        w->drop(w, 0, w->rows);
    *out = m;
    return DS_OK;
}

void ds_cpu_matrix_close(ds_backend *be, ds_matrix *m)
{
    if (!m)
        return;
    ds_pool_run(ds_cpu_of(be)->pool);
    give_back(m->slab);
    free(m);
}

size_t ds_cpu_matrix_bytes(const ds_matrix *m)
{
    return m->bytes;
}

bool ds_cpu_matrix_is_integer(const ds_matrix *m)
{
    return m->integer;
}
