/* What the two AVX-512 matmuls share. */
#ifndef DS_BACKEND_CPU_X86_STORE_AVX512_H
#define DS_BACKEND_CPU_X86_STORE_AVX512_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/x86/avx512.h"
#include "backend/cpu/x86/flat.h"

#include <string.h>


INLINE void store16(const ds_dest *out, int row, int n, int o, __m512 acc)
{
    float *y = out->y + (size_t)row * out->ld + o;
    const unsigned mask = n - o >= DS_TILE ? 0xffff : (1u << (n - o)) - 1;
    if (out->bias)
        acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps((__mmask16)mask, out->bias + o));
    if (out->add)
        acc = _mm512_add_ps(_mm512_maskz_loadu_ps((__mmask16)mask, y), acc);
    _mm512_mask_storeu_ps(y, (__mmask16)mask, acc);
}

#endif
