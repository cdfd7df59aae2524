/* The CPU backend: opening and memory. */
#include "backend/cpu/internal.h"
#include "base/cpu.h"

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
    ds_cpu_pack_end(be, false, NULL);
    ds_pool_close(cpu->pool);
    ds_cpu_slab_close(cpu);
    free(cpu->act.data);
    free(cpu->partial.data);
    free(cpu->best.data);
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

static void part(ds_backend *be, const char *name)
{
    ds_pool_part(ds_cpu_of(be)->pool, name);
}

static void profile(ds_backend *be, bool on)
{
    ds_pool_profile(ds_cpu_of(be)->pool, on);
}

static int profile_rows(ds_backend *be, ds_profile_row *rows, int max)
{
    return ds_pool_profile_rows(ds_cpu_of(be)->pool, rows, max);
}

ds_status ds_cpu_open(ds_backend **out, const ds_cpu_opts *opts, ds_error *err)
{
    *out = NULL;
    ds_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return ds_fail(err, DS_NO_MEMORY, "out of memory");
    unsigned flags = ds_cpu_flags() & (opts->cpu_mask ? opts->cpu_mask : ~0u);
    int threads = opts->threads > 0 ? opts->threads : ds_cpu_cores();
    if (opts->threads <= 0 && threads > DS_POOL_MAX_THREADS)
        threads = DS_POOL_MAX_THREADS;
    ds_status status = ds_pool_open(&cpu->pool, threads, err);
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
        .part = part,
        .profile = profile,
        .profile_rows = profile_rows,
        .matrix_open = ds_cpu_matrix_open,
        .matrix_close = ds_cpu_matrix_close,
        .matrix_bytes = ds_cpu_matrix_bytes,
        .matrix_is_integer = ds_cpu_matrix_is_integer,
        .table_open = ds_cpu_table_open,
        .table_close = ds_cpu_table_close,
        .pack_begin = ds_cpu_pack_begin,
        .pack_end = ds_cpu_pack_end,
        .kv_open = ds_cpu_kv_open,
        .kv_close = ds_cpu_kv_close,
        .kv_bytes = ds_cpu_kv_bytes,
        .kv_save = ds_cpu_kv_save,
        .kv_load = ds_cpu_kv_load,
        .embed = ds_cpu_embed,
        .linear = ds_cpu_linear,
        .linear_best = ds_cpu_linear_best,
        .refine = ds_cpu_refine,
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
