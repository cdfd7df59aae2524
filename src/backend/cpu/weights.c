/* Weights in memory: matrices are packed one behind the other into slabs of huge pages, since a matrix of
 * its own would waste most of its last page. */
#include "backend/cpu/internal.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/packs.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    SLAB = 32 << 20,
    BEHIND = 4096,  /* the last matrix's end is no page's: prefetches run on for a while */
    DROP = 1 << 19, /* letting go of pages interrupts all threads: not for less */
};

struct ds_slab {
    uint8_t *pages;
    size_t size, used;
    int users; /* matrices in it, and the backend while it is the one being filled */
};

ds_slab *ds_slab_open(size_t bytes)
{
    ds_slab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return NULL;
    *slab = (ds_slab){.size = bytes + BEHIND, .users = 1};
    slab->pages = ds_pages_alloc(slab->size);
    if (!slab->pages) {
        free(slab);
        return NULL;
    }
    return slab;
}

uint8_t *ds_slab_share(ds_slab *slab)
{
    slab->users++;
    return slab->pages;
}

void ds_slab_give_back(ds_slab *slab)
{
    if (!slab || --slab->users)
        return;
    ds_pages_free(slab->pages, slab->size);
    free(slab);
}

void ds_cpu_slab_close(ds_cpu *cpu)
{
    ds_slab_give_back(cpu->slab);
    cpu->slab = NULL;
}

/* `bytes` (a multiple of 64) zeroed bytes and the slab they lie in; NULL: out of memory. */
static uint8_t *take(ds_cpu *cpu, size_t bytes, ds_slab **from)
{
    *from = NULL;
    if (!cpu->slab || cpu->slab->size - cpu->slab->used < bytes + BEHIND) {
        ds_slab *slab = ds_slab_open(bytes + BEHIND > SLAB ? bytes : SLAB - BEHIND);
        if (!slab)
            return NULL;
        ds_slab_give_back(cpu->slab);
        cpu->slab = slab;
    }
    *from = cpu->slab;
    uint8_t *at = ds_slab_share(cpu->slab) + cpu->slab->used;
    cpu->slab->used += bytes;
    return at;
}

typedef struct {
    const ds_matrix *m; /* NULL: only looks whether all is finite */
    const ds_weight *w;
    ds_cpu *cpu;
    atomic_bool *damaged;
    int tiles, per_chunk;
    size_t tile_bytes;
} fill_arg;

static void fill_task(void *arg, int chunk, int worker)
{
    fill_arg *f = arg;
    int t0 = chunk * f->per_chunk, t1 = t0 + f->per_chunk < f->tiles ? t0 + f->per_chunk : f->tiles;
    uint32_t begin = (uint32_t)t0 * DS_TILE, end = (uint32_t)t1 * DS_TILE;
    end = end < f->w->rows ? end : f->w->rows;
    void *scratch = f->m ? f->cpu->local[worker].data + DS_LOCAL_HEADER : NULL;
    if (f->w->finite && !f->w->finite(f->w, begin, end)) /* here, where the rows are read anyway */
        atomic_store(f->damaged, true);
    if (f->m && f->m->integer)
        ds_qmat_fill(&f->m->q, f->m->pages, f->w, t0, t1, scratch);
    else if (f->m)
        ds_fmat_fill(&f->m->f, f->m->pages, f->w, t0, t1, scratch);
    if (f->w->drop && (size_t)(t1 - t0) * f->tile_bytes >= DROP) /* others go whole, below */
        f->w->drop(f->w, begin, end);
}

/* Fills m (NULL: reads only) from the weight's file, whose pages then leave resident memory. */
static ds_status read_weight(ds_cpu *cpu, const ds_matrix *m, const ds_weight *w, int tiles,
                             size_t tile_bytes, ds_error *err)
{
    atomic_bool damaged = false;
    int threads = ds_pool_threads(cpu->pool);
    int per_chunk = tiles / (threads * 8) + 1; /* small enough that mapped pages are dropped early */
    if ((size_t)per_chunk * tile_bytes > 1 << 20)
        per_chunk = (int)((1 << 20) / tile_bytes) + 1;
    while ((tiles + per_chunk - 1) / per_chunk > DS_POOL_MAX_CHUNKS)
        per_chunk *= 2;
    ds_pool_run(cpu->pool);
    ds_pool_waits(cpu->pool);
    fill_arg *f = ds_pool_add(cpu->pool, m ? "repack" : "check", fill_task, (tiles + per_chunk - 1) / per_chunk,
                              sizeof *f);
    *f = (fill_arg){m, w, cpu, &damaged, tiles, per_chunk, tile_bytes};
    ds_pool_run(cpu->pool);
    if (w->drop)
        w->drop(w, 0, w->rows);
    if (atomic_load(&damaged))
        return ds_fail(err, DS_BAD_FILE, "%s: a scale is NaN or infinite: the file is damaged", w->name);
    return DS_OK;
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
    ds_status status = DS_OK;
    if (!ds_packs_take(cpu->packs, m, w->name)) {
        m->pages = take(cpu, m->bytes, &m->slab);
        if (m->pages && ds_locals_get(cpu, DS_LOCAL_HEADER + ds_pack_scratch(w)))
            status = read_weight(cpu, m, w, tiles, tile_bytes, err);
        else
            status = ds_fail(err, DS_NO_MEMORY, "%s: out of memory: the repacked matrix takes %zu bytes",
                             w->name, m->bytes);
        cpu->no_memory = false;
    }
    m->q.data = m->f.data = m->pages;
    if (status) {
        ds_slab_give_back(m->slab);
        free(m);
        return status;
    }
    ds_packs_add(cpu->packs, m, w->name);
    *out = m;
    return DS_OK;
}

void ds_cpu_matrix_close(ds_backend *be, ds_matrix *m)
{
    if (!m)
        return;
    ds_pool_run(ds_cpu_of(be)->pool);
    ds_slab_give_back(m->slab);
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

/* A table's rows are decoded one by one for as long as it lives: nobody else would look at all of them. */
ds_status ds_cpu_table_open(ds_backend *be, ds_table **out, const ds_weight *w, ds_error *err)
{
    ds_cpu *cpu = ds_cpu_of(be);
    *out = NULL;
    ds_status status = DS_OK;
    if (w->finite && !ds_packs_checked(cpu->packs)) {
        size_t tile_bytes = (size_t)(w->bytes / w->rows + 1) * DS_TILE;
        status = read_weight(cpu, NULL, w, (int)((w->rows + DS_TILE - 1) / DS_TILE), tile_bytes, err);
    }
    if (status)
        return status;
    *out = malloc(sizeof **out);
    if (!*out)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", w->name);
    (*out)->w = *w;
    return DS_OK;
}

void ds_cpu_table_close(ds_backend *be, ds_table *t)
{
    if (t)
        ds_pool_run(ds_cpu_of(be)->pool);
    free(t);
}
