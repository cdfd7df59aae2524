/* Row kernels: the reference and the table. kernels.h has the order of operations. */
#include "backend/cpu/x86/rows.h"
#include "base/error.h"

#include <math.h>

static void rms_c(const float *x, const float *w, int n, float eps, float *out)
{
    float lanes[16] = { 0 };
    for (int i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    float inv = 1.0f / sqrtf(ds_tree16(lanes) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = w ? (x[i] * inv) * w[i] : x[i] * inv;
}

static void swiglu_c(const float *g, const float *u, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = g[i] / (1.0f + ds_exp(-g[i])) * u[i];
}

static void turn_c(float *x, const float *cs, int dims, bool interleaved)
{
    int half = dims / 2;
    for (int i = 0; i < half; i++) {
        float *pa = interleaved ? x + 2 * i : x + i, *pb = interleaved ? pa + 1 : pa + half;
        float a = *pa, b = *pb, c = cs[2 * i], s = cs[2 * i + 1];
        *pa = fmaf(a, c, -(b * s));
        *pb = fmaf(b, c, a * s);
    }
}

static int argmax_c(const float *x, int n, float *max)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (x[i] == x[i] && (best < 0 || x[i] > x[best]))
            best = i;
    best = best < 0 ? 0 : best; /* all NaN */
    *max = x[best];
    return best;
}

const ds_row_impl ds_row_impls[] = {
    /* isa, CPU flags needed, rms, swiglu, turn, argmax (rms waits for its chain, argmax for memory:
     * wider vectors would not help these) */
    { "c", 0, rms_c, swiglu_c, turn_c, argmax_c },
#if defined(__x86_64__)
    { "avx2", DS_CPU_AVX2, ds_rms_avx2, ds_swiglu_avx2, ds_turn_avx2, ds_argmax_avx2 },
    { "avx512", DS_CPU_AVX512 | DS_CPU_AVX2, ds_rms_avx2, ds_swiglu_avx512, ds_turn_avx2, ds_argmax_avx2 },
#endif
};
const size_t ds_row_impl_count = COUNT(ds_row_impls);

const ds_row_impl *ds_row_pick(unsigned flags)
{
    const ds_row_impl *best = &ds_row_impls[0];
    for (size_t i = 1; i < ds_row_impl_count; i++)
        if ((ds_row_impls[i].need & ~flags) == 0)
            best = &ds_row_impls[i];
    return best;
}
