/* The CPU backend: opening, memory, and weights. */
#include "backend/cpu/internal.h"
#include "backend/cpu/pack.h"
#include "base/cpu.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

uint8_t *ds_scratch_get(ds_cpu *cpu, ds_scratch *s, size_t size)
{
    if (size <= s->size)
        return s->data;
    ds_pool_run(cpu->pool); /* recorded tasks point into the old memory */
    size_t want = (size + size / 4 + 4095) & ~(size_t)4095;
    uint8_t *data = aligned_alloc(64, want);
    if (!data) {
        cpu->no_memory = true;
        return NULL;
    }
    memset(data, 0, DS_LOCAL_HEADER);
    free(s->data);
    s->data = data;
    s->size = want;
    return data;
}

bool ds_locals_get(ds_cpu *cpu, size_t size)
{
    for (int i = 0; i < ds_pool_threads(cpu->pool); i++)
        if (!ds_scratch_get(cpu, &cpu->local[i], size))
            return false;
    return true;
}

static void close_cpu(ds_backend *be)
{
    if (!be)
        return;
    ds_cpu *cpu = ds_cpu_of(be);
    ds_pool_close(cpu->pool);
    free(cpu->act.data);
    free(cpu->partial.data);
    for (int i = 0; i < DS_POOL_MAX_THREADS; i++)
        free(cpu->local[i].data);
    free(cpu);
}

static void *mem_alloc(ds_backend *be, size_t bytes)
{
    (void)be;
    size_t size = (bytes + 63) & ~(size_t)63;
    void *mem = aligned_alloc(64, size ? size : 64);
    if (mem)
        memset(mem, 0, size);
    return mem;
}

static void mem_free(ds_backend *be, void *mem)
{
    if (mem)
        ds_pool_run(ds_cpu_of(be)->pool); /* recorded tasks may still use it */
    free(mem);
}

static ds_status run(ds_backend *be, ds_error *err)
{
    ds_cpu *cpu = ds_cpu_of(be);
    ds_pool_run(cpu->pool);
    if (!cpu->no_memory)
        return DS_OK;
    cpu->no_memory = false;
    return ds_fail(err, DS_NO_MEMORY, "out of memory for activations: use a shorter context or fewer rows");
}

static ds_status download(ds_backend *be, void *dst, const void *src, size_t bytes, ds_error *err)
{
    ds_status status = run(be, err);
    if (!status)
        memcpy(dst, src, bytes);
    return status;
}

static const void *peek(ds_backend *be, const void *mem)
{
    (void)be;
    return mem;
}

typedef struct {
    const ds_matrix *m;
    const ds_weight *w;
    ds_cpu *cpu;
    int per_chunk;
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
    if (f->w->drop) {
        uint32_t end = (uint32_t)t1 * DS_TILE;
        f->w->drop(f->w, (uint32_t)t0 * DS_TILE, end < f->w->rows ? end : f->w->rows);
    }
}

static ds_status matrix_open(ds_backend *be, ds_matrix **out, const ds_weight *w, ds_error *err)
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
    m->bytes = (size_t)tiles * tile_bytes + 4096; /* kernels prefetch past the end */
    m->pages = ds_pages_alloc(m->bytes);
    if (!m->pages || !ds_locals_get(cpu, DS_LOCAL_HEADER + ds_pack_scratch(w))) {
        size_t bytes = m->bytes;
        ds_pages_free(m->pages, m->bytes);
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
    fill_arg *f = ds_pool_add(cpu->pool, fill_task, (tiles + per_chunk - 1) / per_chunk, sizeof *f);
    *f = (fill_arg){ m, w, cpu, per_chunk };
    ds_pool_run(cpu->pool);
    *out = m;
    return DS_OK;
}

static void matrix_close(ds_backend *be, ds_matrix *m)
{
    if (!m)
        return;
    ds_pool_run(ds_cpu_of(be)->pool);
    ds_pages_free(m->pages, m->bytes);
    free(m);
}

static size_t matrix_bytes(const ds_matrix *m)
{
    return m->bytes;
}

static bool matrix_is_integer(const ds_matrix *m)
{
    return m->integer;
}

static ds_status table_open(ds_backend *be, ds_table **out, const ds_weight *w, ds_error *err)
{
    (void)be;
    *out = malloc(sizeof **out);
    if (!*out)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", w->name);
    (*out)->w = *w;
    return DS_OK;
}

static void table_close(ds_backend *be, ds_table *t)
{
    if (t)
        ds_pool_run(ds_cpu_of(be)->pool);
    free(t);
}

ds_status ds_cpu_open(ds_backend **out, const ds_cpu_opts *opts, ds_error *err)
{
    *out = NULL;
    ds_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return ds_fail(err, DS_NO_MEMORY, "out of memory");
    unsigned flags = ds_cpu_flags() & (opts->cpu_mask ? opts->cpu_mask : ~0u);
    ds_status status = ds_pool_open(&cpu->pool, opts->threads > 0 ? opts->threads : ds_cpu_cores(), err);
    if (status) {
        free(cpu);
        return status;
    }
    cpu->matmul = ds_matmul_pick(flags);
    cpu->attention = ds_attention_pick(flags);
    cpu->row = ds_row_pick(flags);
    cpu->serial = 1;
    cpu->be = (ds_backend){
        .name = "cpu",
        .isa = cpu->matmul->isa,
        .threads = ds_pool_threads(cpu->pool),
        .exact = opts->exact,
        .log = opts->log,
        .close = close_cpu,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .upload = ds_cpu_upload,
        .download = download,
        .sync = run,
        .peek = peek,
        .matrix_open = matrix_open,
        .matrix_close = matrix_close,
        .matrix_bytes = matrix_bytes,
        .matrix_is_integer = matrix_is_integer,
        .table_open = table_open,
        .table_close = table_close,
        .kv_open = ds_cpu_kv_open,
        .kv_close = ds_cpu_kv_close,
        .kv_bytes = ds_cpu_kv_bytes,
        .kv_save = ds_cpu_kv_save,
        .kv_load = ds_cpu_kv_load,
        .embed = ds_cpu_embed,
        .linear = ds_cpu_linear,
        .rms_norm = ds_cpu_rms_norm,
        .rope_angles = ds_cpu_rope_angles,
        .heads = ds_cpu_heads,
        .attention = ds_cpu_attention,
        .copy_rows = ds_cpu_copy_rows,
        .ew = ds_cpu_ew,
        .argmax = ds_cpu_argmax,
    };
    ds_say(&opts->log, DS_LOG_DEBUG, "cpu: %s kernels, %d threads%s", cpu->be.isa, cpu->be.threads,
           opts->exact ? ", exact" : "");
    *out = &cpu->be;
    return DS_OK;
}
