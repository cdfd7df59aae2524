/* What the two AVX2 matmuls share. */
#ifndef DS_BACKEND_CPU_X86_AVX2_H
#define DS_BACKEND_CPU_X86_AVX2_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/x86/flat.h"

#include <immintrin.h>
#include <string.h>


/* 16 outputs */
typedef struct {
    __m256 low, high;
} pair16;

/* the last tile of a matrix whose n is no multiple of 16 */
static __attribute__((noinline, cold, unused)) void store_some16(const ds_dest *out, int row, int n, int o,
                                                                 __m256 low, __m256 high)
{
    float v[DS_TILE], *y = out->y + (size_t)row * out->ld + o;
    _mm256_storeu_ps(v, low);
    _mm256_storeu_ps(v + 8, high);
    for (int i = 0; i < n - o; i++) {
        if (out->bias)
            v[i] += out->bias[o + i];
        y[i] = out->add ? y[i] + v[i] : v[i];
    }
}

INLINE void store16(const ds_dest *out, int row, int n, int o, __m256 low, __m256 high)
{
    float *y = out->y + (size_t)row * out->ld + o;
    if (n - o < DS_TILE) {
        store_some16(out, row, n, o, low, high);
        return;
    }
    if (out->bias) {
        low = _mm256_add_ps(low, _mm256_loadu_ps(out->bias + o));
        high = _mm256_add_ps(high, _mm256_loadu_ps(out->bias + o + 8));
    }
    if (out->add) {
        low = _mm256_add_ps(_mm256_loadu_ps(y), low);
        high = _mm256_add_ps(_mm256_loadu_ps(y + 8), high);
    }
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + 8, high);
}

#endif
