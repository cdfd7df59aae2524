/* ds_exp and ds_tree16 on vectors of 8, bit for bit. For *_avx2.c only. */
#ifndef DS_BACKEND_CPU_X86_VMATH_AVX2_H
#define DS_BACKEND_CPU_X86_VMATH_AVX2_H

#include "backend/cpu/exp.h"

#include <immintrin.h>

static inline __m256 exp8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f), round = _mm256_set1_ps(DS_EXP_ROUND);
    x = _mm256_min_ps(_mm256_set1_ps(DS_EXP_MAX), x); /* in this order a NaN stays */
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(DS_EXP_LOG2E), round), n = _mm256_sub_ps(t, round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-DS_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-DS_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(DS_EXP_C6), r, _mm256_set1_ps(DS_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(DS_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(DS_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(DS_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
    __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(DS_EXP_MIN), _CMP_LT_OQ);
    return _mm256_andnot_ps(low, _mm256_castsi256_ps(bits));
}

/* lanes 0-7 in a, 8-15 in b */
static inline float tree16(__m256 a, __m256 b)
{
    __m256 s = _mm256_add_ps(a, b);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

#endif
