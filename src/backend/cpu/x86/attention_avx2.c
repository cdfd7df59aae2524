/* Attention on vectors of 8: at most 12 sums at a time, which leaves 4 registers for K or V and q or p. */
#define DS_ATTENTION_ROWS 6
#include "backend/cpu/x86/attention.h"
#include "backend/cpu/x86/attention_rows.h"
#include "backend/cpu/x86/vmath_avx2.h"

enum { LANES = 8, SUMS = 12 };

INLINE int tiles_for(int rows)
{
    return rows == 1 ? 4 : rows < 4 ? 2 : 1;
}

INLINE int vectors_for(int rows)
{
    return 2 * tiles_for(rows);
}

INLINE __m256 load8(const void *p, size_t i, bool half)
{
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)p + i)))
                : _mm256_loadu_ps((const float *)p + i);
}

/* s[r][i] += x[r][at] * y[i], y[i] being vector i%2 of the 16 values at y_at + i/2 * y_step. The longer
 * side is the outer loop: its values are needed one at a time, which saves registers. */
INLINE void product(__m256 *s, const float *const *x, size_t at, const void *y, size_t y_at, size_t y_step,
                    bool half, int rows, int n)
{
    __m256 xs[ROWS], ys[8];
    if (rows > n) {
        UNROLL
        for (int i = 0; i < n; i++)
            ys[i] = load8(y, y_at + i / 2 * y_step + i % 2 * LANES, half);
        UNROLL
        for (int r = 0; r < rows; r++) {
            xs[r] = _mm256_broadcast_ss(x[r] + at);
            UNROLL
            for (int i = 0; i < n; i++)
                s[r * n + i] = _mm256_fmadd_ps(xs[r], ys[i], s[r * n + i]);
        }
    } else {
        UNROLL
        for (int r = 0; r < rows; r++)
            xs[r] = _mm256_broadcast_ss(x[r] + at);
        UNROLL
        for (int i = 0; i < n; i++) {
            ys[i] = load8(y, y_at + i / 2 * y_step + i % 2 * LANES, half);
            UNROLL
            for (int r = 0; r < rows; r++)
                s[r * n + i] = _mm256_fmadd_ps(xs[r], ys[i], s[r * n + i]);
        }
    }
}

/* Scores of `rows` rows with `tiles` tiles from key j on. */
INLINE void score_tiles(block *b, bool half, int j, int rows, int tiles)
{
    int dim = b->dim, n = 2 * tiles;
    __m256 s[SUMS];
    UNROLL
    for (int i = 0; i < rows * n; i++)
        s[i] = _mm256_setzero_ps();
    for (int d = 0; d < dim; d++) {
        fetch(b, b->v, (size_t)j * dim + d * tiles * DS_TILE, tiles * DS_TILE, half);
        product(s, b->q, d, b->k, (size_t)j * dim + d * DS_TILE, (size_t)DS_TILE * dim, half, rows, n);
    }
    UNROLL
    for (int i = 0; i < rows * n; i++)
        _mm256_storeu_ps(&b->p[i / n][j + i % n * LANES], s[i]);
}

INLINE void score(block *b, bool half, int from, int to, int rows, int tiles)
{
    int j = from;
    for (; j + tiles * DS_TILE <= to; j += tiles * DS_TILE)
        score_tiles(b, half, j, rows, tiles);
    for (; tiles > 1 && j < to; j += DS_TILE)
        score_tiles(b, half, j, rows, 1);
}

/* acc[first + r][d ..] over keys [from, to) for `rows` rows and n vectors. */
INLINE void add_dims(block *b, bool half, int d, int from, int to, int first, int rows, int n)
{
    __m256 acc[SUMS];
    const float *p[ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        p[r] = b->p[first + r];
    UNROLL
    for (int i = 0; i < rows * n; i++)
        acc[i] = _mm256_loadu_ps(b->acc[first + i / n] + d + i % n * LANES);
    for (int j = from; j < to; j++) {
        fetch(b, b->k, (size_t)(DS_KV_CHUNK + j) * b->dim + d, n * LANES, half);
        product(acc, p, j, b->v, (size_t)j * b->dim + d, 2 * LANES, half, rows, n);
    }
    UNROLL
    for (int i = 0; i < rows * n; i++)
        _mm256_storeu_ps(b->acc[first + i / n] + d + i % n * LANES, acc[i]);
}

/* n: the widest step, a power of 2. Keys go in pieces that stay in L1 for all dims. */
INLINE void add(block *b, bool half, int from, int to, int first, int rows, int n)
{
    int piece = 8192 / b->dim; /* keys */
    for (int j = from; j < to; j += piece) {
        int stop = to - j < piece ? to : j + piece, d = 0;
        for (; d + n * LANES <= b->dim; d += n * LANES)
            add_dims(b, half, d, j, stop, first, rows, n);
        for (; n > 2 && d + 2 * LANES <= b->dim; d += 2 * LANES)
            add_dims(b, half, d, j, stop, first, rows, 2);
        for (; d < b->dim; d += LANES)
            add_dims(b, half, d, j, stop, first, rows, 1);
    }
}

/* Scores outside [begin, end) of the tile at j become -INFINITY. */
static void hide(float *s, int j, int begin, int end)
{
    for (int i = j; i < j + DS_TILE; i += LANES) {
        __m256i at = _mm256_add_epi32(_mm256_set1_epi32(i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), at);
        __m256i inside = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), at));
        __m256 x = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(s + i),
                                    _mm256_castsi256_ps(inside));
        _mm256_storeu_ps(s + i, x);
    }
}

/* Scores of a row to exponentials; hidden keys of its tiles become 0. */
static void soften(float *s, int begin, int end, float *max, float *sum)
{
    int from = begin & -DS_TILE, to = (end + DS_TILE - 1) & -DS_TILE;
    if (begin != from)
        hide(s, from, begin, end);
    if (end != to)
        hide(s, to - DS_TILE, begin, end);
    __m256 ma = _mm256_set1_ps(-INFINITY), mb = ma, a = _mm256_setzero_ps(), b = a;
    for (int j = from; j < to; j += DS_TILE) { /* max(x, m) is m where x is NaN */
        ma = _mm256_max_ps(_mm256_loadu_ps(s + j), ma);
        mb = _mm256_max_ps(_mm256_loadu_ps(s + j + LANES), mb);
    }
    ma = _mm256_max_ps(ma, mb);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(ma), _mm256_extractf128_ps(ma, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    *max = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m))) + 0.0f;
    ma = _mm256_set1_ps(*max);
    for (int j = from; j < to; j += DS_TILE) {
        __m256 pa = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + j), ma));
        __m256 pb = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + j + LANES), ma));
        _mm256_storeu_ps(s + j, pa);
        _mm256_storeu_ps(s + j + LANES, pb);
        a = _mm256_add_ps(a, pa);
        b = _mm256_add_ps(b, pb);
    }
    *sum = tree16(a, b);
}

void ds_chunk_avx2(const ds_chunk *c)
{
    chunk_rows(c);
}

void ds_merge_avx2(const float *max, const float *sum, const float *acc, int n, int s, int dim, float *out)
{
    float top = -INFINITY, total = 1.0f;
    memset(out, 0, dim * sizeof *out);
    for (int i = 0; i < n; i++, max += s, sum += s, acc += (size_t)s * dim) {
        if (*max == -INFINITY)
            continue;
        if (top == -INFINITY) {
            top = *max;
            total = *sum;
            memcpy(out, acc, dim * sizeof *out);
            continue;
        }
        float new_top = *max > top ? *max : top;
        __m256 ab = exp8(_mm256_setr_ps(top - new_top, *max - new_top, 0, 0, 0, 0, 0, 0));
        __m128 ab4 = _mm256_castps256_ps128(ab);
        float a = _mm_cvtss_f32(ab4), b = _mm_cvtss_f32(_mm_movehdup_ps(ab4));
        top = new_top;
        total = fmaf(total, a, *sum * b);
        __m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);
        for (int d = 0; d < dim; d += LANES) {
            __m256 add = _mm256_mul_ps(_mm256_loadu_ps(acc + d), vb);
            _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(out + d), va, add));
        }
    }
    __m256 by = _mm256_set1_ps(total);
    for (int d = 0; d < dim; d += LANES)
        _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_loadu_ps(out + d), by));
}

void ds_store_avx2(const float *k, const float *v, int dim, bool half, void *k_tile, int lane, void *v_row)
{
    if (!half) {
        for (int d = 0; d < dim; d++)
            ((float *)k_tile)[d * DS_TILE + lane] = k[d];
        memcpy(v_row, v, dim * sizeof *v);
        return;
    }
    for (int d = 0; d < dim; d += LANES) {
        uint16_t column[LANES];
        _mm_storeu_si128((__m128i *)column,
                         _mm256_cvtps_ph(_mm256_loadu_ps(k + d), _MM_FROUND_TO_NEAREST_INT));
        for (int i = 0; i < LANES; i++)
            ((uint16_t *)k_tile)[(d + i) * DS_TILE + lane] = column[i];
        _mm_storeu_si128((__m128i *)((uint16_t *)v_row + d),
                         _mm256_cvtps_ph(_mm256_loadu_ps(v + d), _MM_FROUND_TO_NEAREST_INT));
    }
}
