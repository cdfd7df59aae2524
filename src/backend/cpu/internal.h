/* What the files of the CPU backend share. */
#ifndef DS_BACKEND_CPU_INTERNAL_H
#define DS_BACKEND_CPU_INTERNAL_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/pool.h"

typedef struct ds_slab ds_slab;
typedef struct ds_packs ds_packs;

struct ds_matrix {
    bool integer;
    ds_qmat q;
    ds_fmat f;
    int n, k;
    uint8_t *pages;
    size_t bytes;
    ds_slab *slab; /* where pages lie */
};

struct ds_table {
    ds_weight w;
};

struct ds_kv {
    ds_kv_shape shape;
    bool half;
    size_t element;    /* bytes */
    size_t head_bytes; /* of the K (or V) rows of one head: a whole number of attention chunks */
    uint8_t *pages;    /* [layers][2: K, V][kv_heads][head_bytes] */
    size_t bytes;
};

/* A worker's buffer begins with the serial of the linear whose prepared rows it holds, 0: none. Whoever
 * else uses the buffer starts behind it, and clears it where the serial could be read again. */
enum { DS_LOCAL_HEADER = 64 };

/* A buffer that recorded tasks point into: growing it runs them first. */
typedef struct {
    uint8_t *data;
    size_t size;
} ds_scratch;

typedef struct ds_cpu {
    ds_backend be; /* first: a ds_backend * is a ds_cpu * */
    ds_pool *pool;
    const ds_matmul_impl *matmul;
    const ds_attention_impl *attention;
    const ds_row_impl *row;
    ds_scratch act;                        /* activations of the linear being run */
    ds_scratch partial;                    /* attention results by chunk */
    ds_scratch best;                       /* largest outputs by chunk */
    ds_scratch local[DS_POOL_MAX_THREADS]; /* one a worker */
    ds_slab *slab;                         /* the one that is being filled */
    ds_packs *packs;                       /* between pack_begin and pack_end, else NULL */
    uint32_t serial;                       /* of the next linear */
    bool no_memory;                        /* a buffer could not grow: the next sync says so */
} ds_cpu;

static inline size_t ds_align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static inline ds_cpu *ds_cpu_of(ds_backend *be)
{
    return (ds_cpu *)be;
}

/* At least `size` bytes, 64-byte aligned; NULL (and cpu->no_memory) if there are none. */
uint8_t *ds_scratch_get(ds_cpu *cpu, ds_scratch *s, size_t size);
bool ds_locals_get(ds_cpu *cpu, size_t size); /* for every worker */

static inline uint8_t *ds_kv_k(const ds_kv *kv, int layer, int head)
{
    return kv->pages + ((size_t)(layer * 2) * kv->shape.kv_heads + head) * kv->head_bytes;
}
static inline uint8_t *ds_kv_v(const ds_kv *kv, int layer, int head)
{
    return kv->pages + ((size_t)(layer * 2 + 1) * kv->shape.kv_heads + head) * kv->head_bytes;
}

/* operations, one file a group; ds_cpu_open puts them into the table */
void ds_cpu_linear(ds_backend *be, const ds_in *in, int rows, const ds_out *outs, int n_outs);
void ds_cpu_linear_best(ds_backend *be, const ds_in *in, int rows, const ds_matrix *w, int32_t *best,
                        float *value);
void ds_cpu_refine(ds_backend *be, const float *x, int ld_x, const ds_matrix *w, float *y, int ld_y, int rows,
                   int top);
void ds_cpu_attention(ds_backend *be, const ds_attn *a);
void ds_cpu_heads(ds_backend *be, const ds_heads *h);
void ds_cpu_rope_angles(ds_backend *be, float *out, const ds_rope *rope, const ds_seq *seqs, int n_seqs);
void ds_cpu_embed(ds_backend *be, float *out, int ld, const ds_table *t, const int32_t *ids, int rows,
                  float scale);
void ds_cpu_rms_norm(ds_backend *be, float *out, int ld_out, const float *x, int ld, const float *w,
                     int rows, int n, float eps);
void ds_cpu_copy_rows(ds_backend *be, float *dst, int ld_dst, const float *src, int ld_src,
                      const int32_t *index, int rows, int n);
void ds_cpu_ew(ds_backend *be, ds_ew op, float *y, const float *a, const float *b, const float *c, float p,
               int rows, int n, int ld);
void ds_cpu_argmax(ds_backend *be, int32_t *out, const float *x, int ld, int rows, int n,
                   const int32_t *offsets);
void ds_cpu_upload(ds_backend *be, void *dst, const void *src, size_t bytes);

ds_slab *ds_slab_open(size_t bytes); /* NULL: out of memory; the first user's */
uint8_t *ds_slab_share(ds_slab *slab); /* one user more; its pages */
void ds_slab_give_back(ds_slab *slab); /* NULL is fine; the last user's frees it */
void ds_cpu_slab_close(ds_cpu *cpu);
ds_status ds_cpu_matrix_open(ds_backend *be, ds_matrix **out, const ds_weight *w, ds_error *err);
void ds_cpu_matrix_close(ds_backend *be, ds_matrix *m);
size_t ds_cpu_matrix_bytes(const ds_matrix *m);
bool ds_cpu_matrix_is_integer(const ds_matrix *m);
ds_status ds_cpu_table_open(ds_backend *be, ds_table **out, const ds_weight *w, ds_error *err);
void ds_cpu_table_close(ds_backend *be, ds_table *t);
void ds_cpu_pack_begin(ds_backend *be, const ds_pack_place *place);
void ds_cpu_pack_end(ds_backend *be, bool complete, ds_pack_report *report);

ds_status ds_cpu_kv_open(ds_backend *be, ds_kv **out, const ds_kv_shape *shape, ds_error *err);
void ds_cpu_kv_close(ds_backend *be, ds_kv *kv);
size_t ds_cpu_kv_bytes(const ds_kv *kv, int rows);
ds_status ds_cpu_kv_save(ds_backend *be, const ds_kv *kv, int from, int to, void *dst, ds_error *err);
ds_status ds_cpu_kv_load(ds_backend *be, ds_kv *kv, int from, int to, const void *src, ds_error *err);

#endif
