/* Refining: the largest outputs of an approximate matmul, made again with the exact matrix. */
#include "backend/cpu/internal.h"

#include <math.h>
#include <string.h>

typedef struct {
    ds_cpu *cpu;
    const float *x;
    float *y;
    const ds_matrix *w;
    int ld_x, ld_y, top;
} refine_arg;

enum { MAX_TOP = 64 };

static void tile_maxima(const float *y, int n, float *max)
{
    for (int t = 0; t * DS_TILE < n; t++) {
        float m = -INFINITY;
        int end = n - t * DS_TILE < DS_TILE ? n - t * DS_TILE : DS_TILE;
        for (int i = 0; i < end; i++)
            m = y[t * DS_TILE + i] > m ? y[t * DS_TILE + i] : m;
        max[t] = m;
    }
}

/* The tiles with the `top` largest maxima, as a heap whose root is the smallest of them. */
static int best_tiles(const float *max, int tiles, int top, int *best)
{
    int n = 0;
    for (int t = 0; t < tiles; t++) {
        int at;
        if (n < top) {
            for (at = n++; at > 0 && max[t] < max[best[(at - 1) / 2]]; at = (at - 1) / 2)
                best[at] = best[(at - 1) / 2];
            best[at] = t;
            continue;
        }
        if (!(max[t] > max[best[0]]))
            continue;
        for (at = 0;;) {
            int child = 2 * at + 1;
            if (child + 1 < n && max[best[child + 1]] < max[best[child]])
                child++;
            if (child >= n || !(max[best[child]] < max[t]))
                break;
            best[at] = best[child];
            at = child;
        }
        best[at] = t;
    }
    return n;
}

static void refine_task(void *arg, int row, int worker)
{
    const refine_arg *a = arg;
    uint8_t *at = a->cpu->local[worker].data;
    memset(at, 0, DS_LOCAL_HEADER);
    at += DS_LOCAL_HEADER;
    size_t k = (size_t)a->w->k, blocks = k / DS_BLOCK;
    const float *x = a->x + (size_t)row * a->ld_x;
    float *y = a->y + (size_t)row * a->ld_y;
    int8_t *q = (int8_t *)at;
    float *scale = (float *)(at += ds_align64(k + 64)), *min = (float *)(at += ds_align64(blocks * 4));
    int32_t *sum = (int32_t *)(at += ds_align64(blocks * 4));
    float *max = (float *)(at += ds_align64(blocks * 4));
    if (a->w->integer)
        a->cpu->matmul->quant(x, (int)k, q, scale, min, sum);
    const ds_qact act = {.k = (int)k, .q = q, .scale = scale, .min = min, .sum = sum};
    const ds_dest dest = {.y = y, .ld = a->ld_y};
    int best[MAX_TOP];
    tile_maxima(y, a->w->n, max);
    int n = best_tiles(max, (a->w->n + DS_TILE - 1) / DS_TILE, a->top < MAX_TOP ? a->top : MAX_TOP, best);
    for (int i = 0; i < n; i++)
        if (a->w->integer)
            a->cpu->matmul->qmm(&a->w->q, &act, 1, best[i], best[i] + 1, &dest);
        else
            a->cpu->matmul->fmm(&a->w->f, x, a->ld_x, 1, best[i], best[i] + 1, &dest);
}

void ds_cpu_refine(ds_backend *be, const float *x, int ld_x, const ds_matrix *w, float *y, int ld_y, int rows,
                   int top)
{
    ds_cpu *cpu = ds_cpu_of(be);
    size_t k = (size_t)w->k, blocks = k / DS_BLOCK, tiles = ((size_t)w->n + DS_TILE - 1) / DS_TILE;
    if (!ds_locals_get(cpu, DS_LOCAL_HEADER + ds_align64(k + 64) + 3 * ds_align64(blocks * 4) + ds_align64(tiles * 4)))
        return;
    refine_arg *a = ds_pool_add(cpu->pool, "refine", refine_task, rows, sizeof *a);
    *a = (refine_arg){cpu, x, y, w, ld_x, ld_y, top};
}
