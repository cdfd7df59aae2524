/* The half of attention that does not depend on the width of vectors: rows in blocks of up to ROWS, so
 * that each vector of K or V is loaded and converted once for several of them. Scores are computed for
 * whole tiles, whatever a row may see of them: a lane is a chain of its own. V is added row by row where
 * not all rows of a block see a key. attention_avx2.c and attention_avx512.c each build it into theirs
 * and define what is declared here. */
#ifndef DS_BACKEND_CPU_X86_ATTENTION_ROWS_H
#define DS_BACKEND_CPU_X86_ATTENTION_ROWS_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/x86/flat.h"

#include <math.h>
#include <string.h>

enum { ROWS = DS_ATTENTION_ROWS }; /* 6 or 12: as many as keep a block's sums in registers */

/* One block of rows; keys count from the chunk's first. */
typedef struct {
    const void *k, *v;
    bool half;
    int dim;
    const float *q[ROWS];
    int begin[ROWS], end[ROWS];
    float *acc[ROWS];
    float max[ROWS], sum[ROWS];
    size_t ahead; /* all ones for a chunk's first block, which fetches for those behind it; else 0 */
    float p[ROWS][DS_KV_CHUNK]; /* scores, then their exponentials */
} block;

/* While K is read, as much of V is fetched; while V is read, of the next chunk's K: without it one of
 * the two phases computes while memory rests. n elements from at; in later blocks a line at hand. */
INLINE void fetch(const block *b, const void *p, size_t at, int n, bool half)
{
    const char *line = (const char *)p + ((half ? 2 : 4) * at & b->ahead);
    for (int i = 0; i < (half ? 2 : 4) * n; i += 64)
        __builtin_prefetch(line + i, 0, 3);
}

/* How many tiles of K, and vectors of V, to take at a time. */
INLINE int tiles_for(int rows);
INLINE int vectors_for(int rows);
/* p[r][j] = score of row r, r < rows, with key j, keys [from, to) being whole tiles. */
INLINE void score(block *b, bool half, int from, int to, int rows, int tiles);
/* Scores of a row to exponentials; hidden keys of its tiles become 0. */
static void soften(float *p, int begin, int end, float *max, float *sum);
/* acc of rows first .. first + rows - 1, over keys [from, to). */
INLINE void add(block *b, bool half, int from, int to, int first, int rows, int vectors);

static void add_alone(block *b, int from, int to, int row)
{
    if (b->half)
        add(b, true, from, to, row, 1, vectors_for(1));
    else
        add(b, false, from, to, row, 1, vectors_for(1));
}

INLINE void attend(block *b, bool half, int rows)
{
    int from = b->begin[0], to = b->end[0];     /* seen by some row */
    int all = b->begin[0], all_end = b->end[0]; /* seen by every row */
    for (int r = 1; r < rows; r++) {
        from = b->begin[r] < from ? b->begin[r] : from;
        to = b->end[r] > to ? b->end[r] : to;
        all = b->begin[r] > all ? b->begin[r] : all;
        all_end = b->end[r] < all_end ? b->end[r] : all_end;
    }
    if (all >= all_end)
        all = all_end = DS_KV_CHUNK;
    score(b, half, from & -DS_TILE, (to + DS_TILE - 1) & -DS_TILE, rows, tiles_for(rows));
    for (int r = 0; r < rows; r++) {
        soften(b->p[r], b->begin[r], b->end[r], &b->max[r], &b->sum[r]);
        memset(b->acc[r], 0, b->dim * sizeof(float));
        int stop = all < b->end[r] ? all : b->end[r];
        if (b->begin[r] < stop)
            add_alone(b, b->begin[r], stop, r);
    }
    add(b, half, all, all_end, 0, rows, vectors_for(rows));
    for (int r = 0; r < rows; r++)
        if (all_end < b->end[r])
            add_alone(b, all_end, b->end[r], r);
}

INLINE void attend_rows(block *b, bool half, int rows)
{
    switch (rows) {
    case 1:
        attend(b, half, 1);
        break;
    case 2:
        attend(b, half, 2);
        break;
    case 3:
        attend(b, half, 3);
        break;
    case 4:
        attend(b, half, 4);
        break;
#if DS_ATTENTION_ROWS == 12
    case 8:
        attend(b, half, 8);
        break;
    case 12:
        attend(b, half, 12);
        break;
#endif
    default:
        attend(b, half, 6);
    }
}

/* How many of `left` rows the next block takes: a size that attend_rows has, and no single row at the end
 * if that can be helped. */
static int block_rows(int left)
{
#if DS_ATTENTION_ROWS == 12
    static const int few[] = { 0, 1, 2, 3, 4, 3, 6, 4, 8, 6, 6, 8, 12, 8, 8, 12, 8, 12 };
#else
    static const int few[] = { 0, 1, 2, 3, 4, 3, 6, 4, 4, 6, 6, 4 };
#endif
    return left < (int)(sizeof few / sizeof *few) ? few[left] : ROWS;
}

static void chunk_rows(const ds_chunk *c)
{
    size_t skip = (size_t)c->key0 * c->dim * (c->half ? 2 : 4);
    block b; /* p is large and needs no zeros */
    b.k = (const char *)c->k + skip;
    b.v = (const char *)c->v + skip;
    b.half = c->half;
    b.dim = c->dim;
    b.ahead = (size_t)-1;
    int left = 0, rows[ROWS], n = 0;
    for (int r = 0; r < c->rows; r++)
        left += c->begin[r] < c->end[r] && c->begin[r] < c->key0 + DS_KV_CHUNK && c->end[r] > c->key0;
    for (int r = 0; r < c->rows; r++) {
        int begin = c->begin[r] - c->key0, end = c->end[r] - c->key0;
        begin = begin > 0 ? begin : 0;
        end = end < DS_KV_CHUNK ? end : DS_KV_CHUNK;
        if (begin >= end) {
            c->max[r] = -INFINITY;
            c->sum[r] = 0;
            memset(c->acc + (size_t)r * c->dim, 0, c->dim * sizeof(float));
            continue;
        }
        b.q[n] = c->q[r];
        b.begin[n] = begin;
        b.end[n] = end;
        b.acc[n] = c->acc + (size_t)r * c->dim;
        rows[n++] = r;
        if (n < block_rows(left))
            continue;
        if (c->half)
            attend_rows(&b, true, n);
        else
            attend_rows(&b, false, n);
        for (int i = 0; i < n; i++) {
            c->max[rows[i]] = b.max[i];
            c->sum[rows[i]] = b.sum[i];
        }
        left -= n;
        n = 0;
        b.ahead = 0;
    }
}

#endif
