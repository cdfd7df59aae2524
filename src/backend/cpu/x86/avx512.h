/* The AVX-512 intrinsics. DS_SIMDE (tests/kernel only) takes them from SIMDe, which computes the same
 * results with AVX2, so that the bits of this code are proven on machines that cannot run it. What
 * SIMDe lacks is made here of two halves. */
#ifndef DS_BACKEND_CPU_X86_AVX512_H
#define DS_BACKEND_CPU_X86_AVX512_H

#ifndef DS_SIMDE
#include <immintrin.h>
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <string.h>

#ifndef __FMA__
#error "the emulation needs -mavx2 -mfma -mf16c: a multiply and an add would round twice"
#endif

typedef union {
    float f32[16];
    int32_t i32[16];
    uint16_t u16[32];
    __m256 ps[2];
    __m256i si[2];
} ds_emu;

#define DS_EMU static inline __attribute__((always_inline, unused))

DS_EMU ds_emu ds_emu_of(const void *v)
{
    ds_emu e;
    memcpy(&e, v, sizeof e);
    return e;
}

DS_EMU __m512 ds_emu_ps(__m256 low, __m256 high)
{
    ds_emu e = {.ps = {low, high}};
    return _mm512_loadu_ps(&e);
}

DS_EMU __m512i ds_emu_si(__m256i low, __m256i high)
{
    ds_emu e = {.si = {low, high}};
    return _mm512_loadu_si512(&e);
}

DS_EMU __m512 ds_emu_cvtepi32_ps(__m512i a)
{
    ds_emu e = ds_emu_of(&a);
    return ds_emu_ps(_mm256_cvtepi32_ps(e.si[0]), _mm256_cvtepi32_ps(e.si[1]));
}

DS_EMU __m512i ds_emu_cvtps_epi32(__m512 a)
{
    ds_emu e = ds_emu_of(&a);
    return ds_emu_si(_mm256_cvtps_epi32(e.ps[0]), _mm256_cvtps_epi32(e.ps[1]));
}

DS_EMU __m512 ds_emu_cvtph_ps(__m256i a)
{
    return ds_emu_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}

DS_EMU __m512i ds_emu_cvtepu16_epi32(__m256i a)
{
    return ds_emu_si(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                     _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
}

DS_EMU __m512i ds_emu_cvtepi8_epi32(__m128i a)
{
    return ds_emu_si(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}

DS_EMU __m128i ds_emu_cvtepi32_epi8(__m512i a)
{
    ds_emu e = ds_emu_of(&a);
    int8_t b[16];
    for (int i = 0; i < 16; i++)
        b[i] = (int8_t)e.i32[i];
    return _mm_loadu_si128((const __m128i *)b);
}

DS_EMU int ds_emu_reduce_add_epi32(__m512i a)
{
    ds_emu e = ds_emu_of(&a);
    int sum = 0;
    for (int i = 0; i < 16; i++)
        sum += e.i32[i];
    return sum;
}

DS_EMU int ds_emu_reduce_max_epi32(__m512i a)
{
    ds_emu e = ds_emu_of(&a);
    int max = e.i32[0];
    for (int i = 1; i < 16; i++)
        max = e.i32[i] > max ? e.i32[i] : max;
    return max;
}

DS_EMU float ds_emu_reduce_max_ps(__m512 a)
{
    ds_emu e = ds_emu_of(&a);
    float max = e.f32[0];
    for (int i = 1; i < 16; i++)
        max = e.f32[i] > max ? e.f32[i] : max;
    return max;
}

DS_EMU void ds_emu_mask_storeu_ps(void *p, unsigned mask, __m512 a)
{
    ds_emu e = ds_emu_of(&a);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)p + 4 * i, &e.f32[i], 4);
}

DS_EMU __m512 ds_emu_maskz_loadu_ps(unsigned mask, const void *p)
{
    ds_emu e;
    memset(&e, 0, sizeof e);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy(&e.f32[i], (const char *)p + 4 * i, 4);
    return _mm512_loadu_ps(&e);
}

DS_EMU __m256i ds_emu_cvtps_ph(__m512 a)
{
    ds_emu e = ds_emu_of(&a);
    return _mm256_set_m128i(_mm256_cvtps_ph(e.ps[1], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(e.ps[0], _MM_FROUND_TO_NEAREST_INT));
}

DS_EMU __m256 ds_emu_extractf32x8_ps(__m512 a, int half)
{
    ds_emu e = ds_emu_of(&a);
    return e.ps[half];
}

#undef _mm512_cvtps_ph
#undef _mm512_extractf32x8_ps
#define _mm512_cvtepi32_ps        ds_emu_cvtepi32_ps
#define _mm512_cvtps_epi32        ds_emu_cvtps_epi32
#define _mm512_cvtph_ps           ds_emu_cvtph_ps
#define _mm512_cvtps_ph(a, round) ds_emu_cvtps_ph(a)
#define _mm512_cvtepu16_epi32     ds_emu_cvtepu16_epi32
#define _mm512_cvtepi8_epi32      ds_emu_cvtepi8_epi32
#define _mm512_cvtepi32_epi8      ds_emu_cvtepi32_epi8
#define _mm512_reduce_add_epi32   ds_emu_reduce_add_epi32
#define _mm512_reduce_max_epi32   ds_emu_reduce_max_epi32
#define _mm512_reduce_max_ps      ds_emu_reduce_max_ps
#define _mm512_mask_storeu_ps     ds_emu_mask_storeu_ps
#define _mm512_maskz_loadu_ps     ds_emu_maskz_loadu_ps
#define _mm512_extractf32x8_ps    ds_emu_extractf32x8_ps
#endif

#endif
