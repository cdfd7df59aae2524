/* Attention on vectors of 16: a tile of keys is one vector, and there are at most 24 sums at a time. */
#define DS_ATTENTION_ROWS 12
#include "backend/cpu/x86/attention.h"
#include "backend/cpu/x86/attention_rows.h"
#include "backend/cpu/x86/vmath_avx512.h"

enum { LANES = 16, SUMS = 24 };

INLINE int tiles_for(int rows)
{
    return rows == 1 ? 8 : rows > 6 ? 2 : 4;
}

INLINE int vectors_for(int rows)
{
    return rows > 6 ? 2 : 4;
}

INLINE __m256 load8(const void *p, size_t i, bool half)
{
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)p + i)))
                : _mm256_loadu_ps((const float *)p + i);
}

INLINE __m512 load16(const void *p, size_t i, bool half)
{
    if (!half)
        return _mm512_loadu_ps((const float *)p + i);
#ifdef DS_SIMDE /* has no _mm512_cvtph_ps */
    return _mm512_insertf32x8(_mm512_castps256_ps512(load8(p, i, true)), load8(p, i + 8, true), 1);
#else
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)p + i)));
#endif
}

/* s[r][i] += x[r][at] * y[i], y[i] being the 16 values at y_at + i * y_step. The longer side is the
 * outer loop: its values are needed one at a time, which saves registers. */
INLINE void product(__m512 *s, const float *const *x, size_t at, const void *y, size_t y_at, size_t y_step,
                    bool half, int rows, int n)
{
    __m512 xs[ROWS], ys[8];
    if (rows > n) {
        UNROLL
        for (int i = 0; i < n; i++)
            ys[i] = load16(y, y_at + i * y_step, half);
        UNROLL
        for (int r = 0; r < rows; r++) {
            xs[r] = _mm512_set1_ps(x[r][at]);
            UNROLL
            for (int i = 0; i < n; i++)
                s[r * n + i] = _mm512_fmadd_ps(xs[r], ys[i], s[r * n + i]);
        }
    } else {
        UNROLL
        for (int r = 0; r < rows; r++)
            xs[r] = _mm512_set1_ps(x[r][at]);
        UNROLL
        for (int i = 0; i < n; i++) {
            ys[i] = load16(y, y_at + i * y_step, half);
            UNROLL
            for (int r = 0; r < rows; r++)
                s[r * n + i] = _mm512_fmadd_ps(xs[r], ys[i], s[r * n + i]);
        }
    }
}

/* Scores of `rows` rows with n tiles from key j on. */
INLINE void score_tiles(block *b, bool half, int j, int rows, int n)
{
    int dim = b->dim;
    __m512 s[SUMS];
    UNROLL
    for (int i = 0; i < rows * n; i++)
        s[i] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d++) {
        fetch(b, b->v, (size_t)j * dim + d * n * DS_TILE, n * DS_TILE, half);
        product(s, b->q, d, b->k, (size_t)j * dim + d * DS_TILE, (size_t)DS_TILE * dim, half, rows, n);
    }
    UNROLL
    for (int i = 0; i < rows * n; i++)
        _mm512_storeu_ps(&b->p[i / n][j + i % n * LANES], s[i]);
}

INLINE void score(block *b, bool half, int from, int to, int rows, int tiles)
{
    int j = from;
    for (; j + tiles * DS_TILE <= to; j += tiles * DS_TILE)
        score_tiles(b, half, j, rows, tiles);
    for (; j < to; j += DS_TILE)
        score_tiles(b, half, j, rows, 1);
}

/* acc[first + r][d ..] over keys [from, to) for `rows` rows and n vectors. */
INLINE void add_dims(block *b, bool half, int d, int from, int to, int first, int rows, int n)
{
    __m512 acc[SUMS];
    const float *p[ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        p[r] = b->p[first + r];
    UNROLL
    for (int i = 0; i < rows * n; i++)
        acc[i] = _mm512_loadu_ps(b->acc[first + i / n] + d + i % n * LANES);
    for (int j = from; j < to; j++) {
        fetch(b, b->k, (size_t)(DS_KV_CHUNK + j) * b->dim + d, n * LANES, half);
        product(acc, p, j, b->v, (size_t)j * b->dim + d, LANES, half, rows, n);
    }
    UNROLL
    for (int i = 0; i < rows * n; i++)
        _mm512_storeu_ps(b->acc[first + i / n] + d + i % n * LANES, acc[i]);
}

/* The last 8 dims where they are no multiple of 16. */
INLINE void add_last8(block *b, bool half, int from, int to, int first, int rows)
{
    int d = b->dim - 8;
    __m256 acc[ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        acc[r] = _mm256_loadu_ps(b->acc[first + r] + d);
    for (int j = from; j < to; j++) {
        __m256 v = load8(b->v, (size_t)j * b->dim + d, half);
        UNROLL
        for (int r = 0; r < rows; r++)
            acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(b->p[first + r][j]), v, acc[r]);
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        _mm256_storeu_ps(b->acc[first + r] + d, acc[r]);
}

/* n: the widest step. Keys go in pieces that stay in L1 for all dims. */
INLINE void add(block *b, bool half, int from, int to, int first, int rows, int n)
{
    int piece = 8192 / b->dim; /* keys */
    for (int j = from; j < to; j += piece) {
        int stop = to - j < piece ? to : j + piece, d = 0;
        for (; d + n * LANES <= b->dim; d += n * LANES)
            add_dims(b, half, d, j, stop, first, rows, n);
        for (; d + LANES <= b->dim; d += LANES)
            add_dims(b, half, d, j, stop, first, rows, 1);
        if (d < b->dim)
            add_last8(b, half, j, stop, first, rows);
    }
}

/* Scores outside [begin, end) of the tile at j become -INFINITY. */
static void hide(float *s, int j, int begin, int end)
{
    unsigned before = begin > j ? begin - j : 0, after = end < j + DS_TILE ? j + DS_TILE - end : 0;
    __mmask16 seen = (__mmask16)((0xffffu << before & 0xffff) & 0xffffu >> after);
    _mm512_storeu_ps(s + j, _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, _mm512_loadu_ps(s + j)));
}

/* Scores of a row to exponentials; hidden keys of its tiles become 0. */
static void soften(float *s, int begin, int end, float *max, float *sum)
{
    int from = begin & -DS_TILE, to = (end + DS_TILE - 1) & -DS_TILE;
    if (begin != from)
        hide(s, from, begin, end);
    if (end != to)
        hide(s, to - DS_TILE, begin, end);
    __m512 top = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (int j = from; j < to; j += DS_TILE) /* max(x, m) is m where x is NaN */
        top = _mm512_max_ps(_mm512_loadu_ps(s + j), top);
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(top), 1));
    __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(top), high);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    *max = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m))) + 0.0f;
    top = _mm512_set1_ps(*max);
    for (int j = from; j < to; j += DS_TILE) {
        __m512 p = exp16(_mm512_sub_ps(_mm512_loadu_ps(s + j), top));
        _mm512_storeu_ps(s + j, p);
        total = _mm512_add_ps(total, p);
    }
    *sum = tree16(total);
}

void ds_chunk_avx512(const ds_chunk *c)
{
    chunk_rows(c);
}
