/* Keys and values of one sequence: K in tiles of 16 keys, dimension-major, V by rows; per layer and
 * head one region that holds a whole number of attention chunks. */
#include "backend/cpu/internal.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Up to this size the first rows may commit all memory (a huge page lies across many rows, or several heads):
 * attention to 4096 keys is 15 % faster with huge pages. Above, memory is committed as rows are written. */
enum { HUGE_PAGES_MOST = 256 << 20 };

ds_status ds_cpu_kv_open(ds_backend *be, ds_kv **out, const ds_kv_shape *shape, ds_error *err)
{
    *out = NULL;
    if (shape->capacity < 1 || shape->layers < 1 || shape->kv_heads < 1 || shape->dim < 8 ||
        shape->dim % 8 || shape->dim > 512)
        return ds_fail(err, DS_INVALID, "KV rows of %d layers x %d heads x %d dimensions, capacity %d: not supported",
                       shape->layers, shape->kv_heads, shape->dim, shape->capacity);
    ds_kv *kv = calloc(1, sizeof *kv);
    if (!kv)
        return ds_fail(err, DS_NO_MEMORY, "out of memory");
    kv->shape = *shape;
    kv->half = !be->exact;
    kv->element = kv->half ? 2 : 4;
    size_t rows = ((size_t)shape->capacity + DS_KV_CHUNK - 1) / DS_KV_CHUNK * DS_KV_CHUNK;
    kv->head_bytes = rows * (size_t)shape->dim * kv->element;
    kv->bytes = 2 * (size_t)shape->layers * (size_t)shape->kv_heads * kv->head_bytes;
    kv->pages = ds_pages_reserve(kv->bytes, kv->bytes <= HUGE_PAGES_MOST);
    if (!kv->pages) {
        size_t bytes = kv->bytes;
        free(kv);
        return ds_fail(err, DS_NO_MEMORY, "out of memory: %d context rows need %zu bytes of KV: use a smaller --ctx",
                       shape->capacity, bytes);
    }
    *out = kv;
    return DS_OK;
}

void ds_cpu_kv_close(ds_backend *be, ds_kv *kv)
{
    if (!kv)
        return;
    ds_pool_run(ds_cpu_of(be)->pool);
    ds_pages_free(kv->pages, kv->bytes);
    free(kv);
}

size_t ds_cpu_kv_bytes(const ds_kv *kv, int rows)
{
    return 2 * (size_t)kv->shape.layers * (size_t)kv->shape.kv_heads * (size_t)rows * (size_t)kv->shape.dim *
           kv->element;
}

/* Saved form: per layer K rows then V rows of every head, row-major, rows [from, to). */
static void move_rows(const ds_kv *kv, int from, int to, uint8_t *at, bool save)
{
    size_t dim = (size_t)kv->shape.dim, e = kv->element, row_bytes = dim * e;
    for (int l = 0; l < kv->shape.layers; l++)
        for (int h = 0; h < kv->shape.kv_heads; h++) {
            for (int r = from; r < to; r++, at += row_bytes) {
                uint8_t *tile = ds_kv_k(kv, l, h) + (size_t)(r / DS_TILE) * DS_TILE * row_bytes;
                for (size_t d = 0; d < dim; d++) {
                    uint8_t *cell = tile + (d * DS_TILE + (size_t)(r % DS_TILE)) * e;
                    if (save)
                        memcpy(at + d * e, cell, e);
                    else
                        memcpy(cell, at + d * e, e);
                }
            }
            uint8_t *v = ds_kv_v(kv, l, h) + (size_t)from * row_bytes;
            size_t bytes = (size_t)(to - from) * row_bytes;
            if (save)
                memcpy(at, v, bytes);
            else
                memcpy(v, at, bytes);
            at += bytes;
        }
}

static ds_status check_range(const ds_kv *kv, int from, int to, ds_error *err)
{
    if (from < 0 || to < from || to > kv->shape.capacity)
        return ds_fail(err, DS_INVALID, "KV rows %d to %d: the store has %d", from, to, kv->shape.capacity);
    return DS_OK;
}

ds_status ds_cpu_kv_save(ds_backend *be, const ds_kv *kv, int from, int to, void *dst, ds_error *err)
{
    ds_status status = check_range(kv, from, to, err);
    if (!status)
        status = be->sync(be, err);
    if (!status)
        move_rows(kv, from, to, dst, true);
    return status;
}

ds_status ds_cpu_kv_load(ds_backend *be, ds_kv *kv, int from, int to, const void *src, ds_error *err)
{
    ds_status status = check_range(kv, from, to, err);
    if (!status)
        status = be->sync(be, err);
    if (!status)
        move_rows(kv, from, to, (uint8_t *)src, false);
    return status;
}
