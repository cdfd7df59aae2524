/* Row kernels on vectors of 16. */
#include "backend/cpu/x86/rows.h"
#include "backend/cpu/x86/vmath_avx512.h"

void ds_swiglu_avx512(const float *g, const float *u, int n, float *out)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 z = _mm512_loadu_ps(g + i);
        __m512 silu = _mm512_div_ps(z, _mm512_add_ps(one, exp16(_mm512_xor_ps(z, sign))));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(silu, _mm512_loadu_ps(u + i)));
    }
    for (; i < n; i++)
        out[i] = g[i] / (1.0f + ds_exp(-g[i])) * u[i];
}
