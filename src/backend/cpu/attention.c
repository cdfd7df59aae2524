/* Attention kernels: the reference and the table. kernels.h has the layouts and the order of sums. */
#include "backend/cpu/half.h"
#include "backend/cpu/x86/attention.h"
#include "base/error.h"

#include <math.h>
#include <string.h>

static float load(const void *p, size_t i, bool half)
{
    return half ? ds_half_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void chunk_c(const ds_chunk *c)
{
    int dim = c->dim;
    for (int r = 0; r < c->rows; r++) {
        int begin = c->begin[r] > c->key0 ? c->begin[r] : c->key0;
        int end = c->end[r] < c->key0 + DS_KV_CHUNK ? c->end[r] : c->key0 + DS_KV_CHUNK;
        float p[DS_KV_CHUNK], lanes[DS_TILE] = { 0 }, max = -INFINITY;
        float *acc = c->acc + (size_t)r * dim;
        for (int j = begin; j < end; j++) {
            size_t tile = (size_t)(j / DS_TILE) * DS_TILE * dim;
            float s = 0;
            for (int d = 0; d < dim; d++)
                s = fmaf(c->q[r][d], load(c->k, tile + (size_t)d * DS_TILE + j % DS_TILE, c->half), s);
            p[j - c->key0] = s;
            max = s > max ? s : max;
        }
        max += 0.0f; /* no -0: which zero came first depends on the order */
        memset(acc, 0, dim * sizeof *acc);
        for (int j = begin; j < end; j++) {
            float pj = ds_exp(p[j - c->key0] - max);
            lanes[j % DS_TILE] += pj;
            for (int d = 0; d < dim; d++)
                acc[d] = fmaf(pj, load(c->v, (size_t)j * dim + d, c->half), acc[d]);
        }
        c->max[r] = max;
        c->sum[r] = ds_tree16(lanes);
    }
}

static void merge_c(const float *max, const float *sum, const float *acc, int n, int s, int dim, float *out)
{
    float M = -INFINITY, L = 1.0f;
    memset(out, 0, dim * sizeof *out);
    for (int i = 0; i < n; i++, max += s, sum += s, acc += (size_t)s * dim) {
        if (*max == -INFINITY)
            continue;
        if (M == -INFINITY) {
            M = *max;
            L = *sum;
            memcpy(out, acc, dim * sizeof *out);
            continue;
        }
        float top = *max > M ? *max : M;
        float a = ds_exp(M - top), b = ds_exp(*max - top);
        M = top;
        L = fmaf(L, a, *sum * b);
        for (int d = 0; d < dim; d++)
            out[d] = fmaf(out[d], a, acc[d] * b);
    }
    for (int d = 0; d < dim; d++)
        out[d] /= L;
}

static void store_c(const float *k, const float *v, int dim, bool half, void *k_tile, int lane, void *v_row)
{
    for (int d = 0; d < dim; d++) {
        if (half) {
            ((uint16_t *)k_tile)[d * DS_TILE + lane] = ds_float_half(k[d]);
            ((uint16_t *)v_row)[d] = ds_float_half(v[d]);
        } else {
            ((float *)k_tile)[d * DS_TILE + lane] = k[d];
            ((float *)v_row)[d] = v[d];
        }
    }
}

const ds_attention_impl ds_attention_impls[] = {
    /* isa, CPU flags needed, chunk, merge, store */
    { "c", 0, chunk_c, merge_c, store_c },
#if defined(__x86_64__)
    { "avx2", DS_CPU_AVX2, ds_chunk_avx2, ds_merge_avx2, ds_store_avx2 },
    { "avx512", DS_CPU_AVX512 | DS_CPU_AVX2, ds_chunk_avx512, ds_merge_avx2, ds_store_avx2 },
#endif
};
const size_t ds_attention_impl_count = COUNT(ds_attention_impls);

const ds_attention_impl *ds_attention_pick(unsigned flags)
{
    const ds_attention_impl *best = &ds_attention_impls[0];
    for (size_t i = 1; i < ds_attention_impl_count; i++)
        if ((ds_attention_impls[i].need & ~flags) == 0)
            best = &ds_attention_impls[i];
    return best;
}
