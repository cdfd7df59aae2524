/* Row kernels on vectors of 8. */
#include "backend/cpu/x86/rows.h"
#include "backend/cpu/x86/vmath_avx2.h"

#include <math.h>

void ds_rms_avx2(const float *x, const float *w, int n, float eps, float *out)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 xa = _mm256_loadu_ps(x + i), xb = _mm256_loadu_ps(x + i + 8);
        a = _mm256_fmadd_ps(xa, xa, a);
        b = _mm256_fmadd_ps(xb, xb, b);
    }
    if (i < n) {
        float lanes[16];
        _mm256_storeu_ps(lanes, a);
        _mm256_storeu_ps(lanes + 8, b);
        for (; i < n; i++)
            lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
        a = _mm256_loadu_ps(lanes);
        b = _mm256_loadu_ps(lanes + 8);
    }
    float inv = 1.0f / sqrtf(tree16(a, b) / (float)n + eps);
    __m256 scale = _mm256_set1_ps(inv);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);
        if (w)
            y = _mm256_mul_ps(y, _mm256_loadu_ps(w + i));
        _mm256_storeu_ps(out + i, y);
    }
    for (; i < n; i++)
        out[i] = w ? (x[i] * inv) * w[i] : x[i] * inv;
}

void ds_swiglu_avx2(const float *g, const float *u, int n, float *out)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 z = _mm256_loadu_ps(g + i);
        __m256 silu = _mm256_div_ps(z, _mm256_add_ps(one, exp8(_mm256_xor_ps(z, sign))));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(silu, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++)
        out[i] = g[i] / (1.0f + ds_exp(-g[i])) * u[i];
}

static void turn_halves(float *x, const float *cs, int half)
{
    int i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 lo = _mm256_loadu_ps(cs + 2 * i), hi = _mm256_loadu_ps(cs + 2 * i + 8);
        __m256 even = _mm256_permute2f128_ps(lo, hi, 0x20); /* pairs 0 1 | 4 5 */
        __m256 odd = _mm256_permute2f128_ps(lo, hi, 0x31);  /* pairs 2 3 | 6 7 */
        __m256 c = _mm256_shuffle_ps(even, odd, 0x88), s = _mm256_shuffle_ps(even, odd, 0xdd);
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = fmaf(a, c, -(b * s));
        x[half + i] = fmaf(b, c, a * s);
    }
}

void ds_turn_avx2(float *x, const float *cs, int dims, bool interleaved)
{
    if (!interleaved) {
        turn_halves(x, cs, dims / 2);
        return;
    }
    int i = 0;
    for (; i + 8 <= dims; i += 8) {
        __m256 y = _mm256_loadu_ps(x + i), turn = _mm256_loadu_ps(cs + i);
        __m256 swapped = _mm256_permute_ps(y, 0xb1); /* b a b a .. */
        __m256 other = _mm256_mul_ps(swapped, _mm256_movehdup_ps(turn));
        _mm256_storeu_ps(x + i, _mm256_fmaddsub_ps(y, _mm256_moveldup_ps(turn), other));
    }
    for (; i + 2 <= dims; i += 2) {
        float a = x[i], b = x[i + 1], c = cs[i], s = cs[i + 1];
        x[i] = fmaf(a, c, -(b * s));
        x[i + 1] = fmaf(b, c, a * s);
    }
}

enum { ARGMAX_BLOCK = 1024 };

/* One pass takes the largest of each block, then only the winning block is searched for its place. */
int ds_argmax_avx2(const float *x, int n, float *max)
{
    const __m256 low = _mm256_set1_ps(-INFINITY);
    float best = -INFINITY;
    int from = 0, to = n;
    for (int i = 0; i < n; i += ARGMAX_BLOCK) {
        int stop = n - i < ARGMAX_BLOCK ? n : i + ARGMAX_BLOCK, j = i;
        __m256 m0 = low, m1 = low, m2 = low, m3 = low;
        for (; j + 32 <= stop; j += 32) { /* max(x, m) is m where x is NaN */
            m0 = _mm256_max_ps(_mm256_loadu_ps(x + j), m0);
            m1 = _mm256_max_ps(_mm256_loadu_ps(x + j + 8), m1);
            m2 = _mm256_max_ps(_mm256_loadu_ps(x + j + 16), m2);
            m3 = _mm256_max_ps(_mm256_loadu_ps(x + j + 24), m3);
        }
        m0 = _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3));
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(m0), _mm256_extractf128_ps(m0, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        float top = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
        for (; j < stop; j++)
            top = x[j] > top ? x[j] : top;
        if (top > best) {
            best = top;
            from = i;
            to = stop;
        }
    }
    int at = from;
    while (at < to && x[at] != best)
        at++;
    at = at < to ? at : 0; /* all NaN */
    *max = x[at];
    return at;
}
