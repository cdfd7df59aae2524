/* Fetching weights ahead of the integer matmuls that read them. */
#ifndef DS_BACKEND_CPU_X86_AHEAD_H
#define DS_BACKEND_CPU_X86_AHEAD_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/x86/flat.h"

#include <immintrin.h>

enum {
    DS_AHEAD = 8192,   /* bytes: what memory delivers in its latency, and well within a first-level cache */
    DS_AHEAD_STREAMS = 2048, /* where several tiles are read side by side */
    DS_AHEAD_PASSES = 4,
};

/* What a pass over a tile fetches: `lines` cache lines a block from `at` on. All passes over the tile share
 * the work, so that memory is as busy in each of them. */
typedef struct {
    const uint8_t *at;
    int lines;
} ahead;

/* Of the pass `i` of `passes` over a tile. */
INLINE ahead ahead_of(const ds_qmat *w, int tile, int i, int passes)
{
    const size_t blocks = (size_t)w->k / DS_BLOCK;
    const size_t fetching = (size_t)(passes < DS_AHEAD_PASSES ? passes : DS_AHEAD_PASSES);
    const size_t lines = (w->tile_bytes + 64 * blocks * fetching - 1) / (64 * blocks * fetching);
    const uint8_t *at = w->data + (size_t)tile * w->tile_bytes + DS_AHEAD + (size_t)i * lines * blocks * 64;
    return (ahead){at, (size_t)i < fetching ? (int)lines : 0};
}

INLINE void fetch_ahead(ahead *a)
{
    for (int i = 0; i < a->lines; i++, a->at += 64)
        _mm_prefetch((const char *)a->at, _MM_HINT_T0);
}

#endif
