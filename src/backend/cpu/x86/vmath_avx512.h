/* ds_exp and ds_tree16 on vectors of 16, bit for bit. For *_avx512.c only. */
#ifndef DS_BACKEND_CPU_X86_VMATH_AVX512_H
#define DS_BACKEND_CPU_X86_VMATH_AVX512_H

#include "backend/cpu/exp.h"
#include "backend/cpu/x86/avx512.h"

static inline __m512 exp16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f), round = _mm512_set1_ps(DS_EXP_ROUND);
    x = _mm512_min_ps(_mm512_set1_ps(DS_EXP_MAX), x); /* in this order a NaN stays */
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(DS_EXP_LOG2E), round), n = _mm512_sub_ps(t, round);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-DS_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-DS_EXP_LN2_LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(DS_EXP_C6), r, _mm512_set1_ps(DS_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(DS_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(DS_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(DS_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23));
    __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(DS_EXP_MIN), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(_mm512_castsi512_ps(bits), low, _mm512_setzero_ps());
}

static inline float tree16(__m512 a)
{
    __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a), hi);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

#endif
