/* Integer matmul and the quantiser for AVX-512 with VNNI: 16 outputs in a register, four inputs each
 * by vpdpbusd with the row's activations broadcast from memory. Its sums are exact for any codes. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/x86/ahead.h"
#include "backend/cpu/x86/avx512.h"
#include "backend/cpu/x86/store_avx512.h"

#include <float.h>

enum { ROWS = 8 };

/* rows of a qact from one on, at block 0 */
typedef struct {
    const int8_t *q;
    const float *scale, *min;
    const int32_t *sum;
    size_t k, blocks;
} rows_at;

/* gcc 12 broadcasts by an instruction of its own and keeps a pointer to each row: where loops are laid out
 * flat, as the constants in the address need, dot() writes the instruction itself. */
#if defined(DS_FLAT) && defined(__OPTIMIZE__) && !defined(__clang__)
#define DOT(address, stride)                                                                                 \
    __asm__("vpdpbusd " address "%{1to16%}, %1, %0"                                                          \
            : "+v"(*sum)                                                                                     \
            : "v"(codes), "r"(q), "r"(stride), "i"(i), "m"(*(const int8_t(*)[])q))
#endif

/* Where the rows of a pass are: rows 4 .. 7 from their own base, so that two bases and two strides are
 * all the registers that addresses take. */
typedef struct {
    const int8_t *q, *q4;
    size_t k, k3;
} places;

/* sum += the dot products of four codes of each output with four activations of row r, from input i on */
INLINE void dot(__m512i *sum, __m512i codes, const places *at, const int r, const int i)
{
    const int8_t *q = r < 4 ? at->q : at->q4;
#ifdef DOT
    if (r % 4 == 0)
        DOT("%c4(%2)", at->k);
    else if (r % 4 == 1)
        DOT("%c4(%2,%3)", at->k);
    else if (r % 4 == 2)
        DOT("%c4(%2,%3,2)", at->k);
    else
        DOT("%c4(%2,%3)", at->k3);
#else
    int32_t four;
    memcpy(&four, q + (size_t)(r % 4) * at->k + i, sizeof four);
    *sum = _mm512_dpbusd_epi32(*sum, codes, _mm512_set1_epi32(four));
#endif
}

/* Few rows have too few chains to hide the latency of vpdpbusd: they get two each. */
INLINE void block4(const uint8_t *p, const places *at, const int rows, __m512i *sum, __m512i *sum2)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i a = _mm512_loadu_si512(p + 64 * j);
        const __m512i low = _mm512_and_si512(a, nibble);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(a, 4), nibble);
        UNROLL
        for (int r = 0; r < rows; r++) {
            dot(&sum[r], low, at, r, 4 * j);
            dot(rows <= 4 ? &sum2[r] : &sum[r], high, at, r, 16 + 4 * j);
        }
    }
}

INLINE void block8(const uint8_t *p, const places *at, const int rows, __m512i *sum, __m512i *sum2)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m512i a = _mm512_loadu_si512(p + 64 * j);
        UNROLL
        for (int r = 0; r < rows; r++)
            dot(rows <= 4 && j % 2 ? &sum2[r] : &sum[r], a, at, r, 4 * j);
    }
}

/* The type is looked at in every block, kept from the optimiser: a loop for each would be too much code. */
INLINE __m512 scales(const uint8_t *p, int type)
{
    __asm__("" : "+r"(type));
    if (type == DS_F32)
        return _mm512_loadu_ps(p);
    const __m256i h = _mm256_loadu_si256((const __m256i *)p);
    if (type == DS_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void pass(const ds_qmat *w, int tile, const rows_at *x, const int rows, const int bits,
                 const bool has_min, ahead next, const ds_dest *out, int row)
{
    const int per_group = w->group / DS_BLOCK;
    const int block_bytes = bits * 64, scale_bytes = w->scale_type == DS_F32 ? 64 : 32;
    const size_t blocks = x->blocks;
    const int8_t *const end = x->q + x->k;
    places at = {x->q, rows > 4 ? x->q + 4 * x->k : x->q, x->k, 3 * x->k};
    const float *scale = x->scale, *min = x->min;
    const int32_t *xsum = x->sum;
    const __m512i zero = _mm512_set1_epi32(w->zero);
    const uint8_t *p = w->data + (size_t)tile * w->tile_bytes, *s = p;
    __m512 acc[ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (int left = 0; at.q != end;
         p += block_bytes, at.q += DS_BLOCK, at.q4 += DS_BLOCK, scale++, min++, xsum++) {
        if (left == 0) { /* a new group: step over the last one's scales */
            p = at.q == x->q ? p : s + (has_min ? 2 : 1) * scale_bytes;
            s = p + per_group * block_bytes;
            left = per_group;
        }
        left--;
        fetch_ahead(&next);
        __m512i sum[ROWS], sum2[ROWS];
        UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = sum2[r] = _mm512_setzero_si512();
        if (bits == 4)
            block4(p, &at, rows, sum, sum2);
        else
            block8(p, &at, rows, sum, sum2);
        const __m512 ws = scales(s, w->scale_type);
        UNROLL
        for (int r = 0; r < rows; r++) {
            if (rows <= 4)
                sum[r] = _mm512_add_epi32(sum[r], sum2[r]);
            if (!has_min)
                sum[r] =
                    _mm512_sub_epi32(sum[r], _mm512_mullo_epi32(zero, _mm512_set1_epi32(xsum[r * blocks])));
            acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(ws, _mm512_set1_ps(scale[r * blocks])),
                                     _mm512_cvtepi32_ps(sum[r]), acc[r]);
        }
        if (has_min) {
            const __m512 wm = scales(s + scale_bytes, w->scale_type);
            UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = _mm512_fmadd_ps(wm, _mm512_set1_ps(min[r * blocks]), acc[r]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        store16(out, row + r, w->n, tile * DS_TILE, acc[r]);
}

typedef void pass_fn(const ds_qmat *w, int tile, const rows_at *x, ahead next, const ds_dest *out, int row);

#define PASS(name, rows, bits, has_min)                                                                      \
    static void name(const ds_qmat *w, int tile, const rows_at *x, ahead next, const ds_dest *out, int row)  \
    {                                                                                                        \
        pass(w, tile, x, rows, bits, has_min, next, out, row);                                               \
    }
#define PASSES(name, bits, has_min)                                                                          \
    PASS(name##1, 1, bits, has_min)                                                                          \
    PASS(name##2, 2, bits, has_min)                                                                          \
    PASS(name##3, 3, bits, has_min)                                                                          \
    PASS(name##4, 4, bits, has_min)                                                                          \
    PASS(name##5, 5, bits, has_min)                                                                          \
    PASS(name##6, 6, bits, has_min)                                                                          \
    PASS(name##7, 7, bits, has_min)                                                                          \
    PASS(name##8, 8, bits, has_min)
PASSES(bits4_, 4, false)
PASSES(bits4_min_, 4, true)
PASSES(bits8_, 8, false)
PASSES(bits8_min_, 8, true)

#define LIST(name)                                                                                           \
    {                                                                                                        \
        name##1, name##2, name##3, name##4, name##5, name##6, name##7, name##8                               \
    }
static pass_fn *const passes[2][2][ROWS] = {
    {LIST(bits4_), LIST(bits4_min_)},
    {LIST(bits8_), LIST(bits8_min_)},
};

void ds_qmm_avx512(const ds_qmat *w, const ds_qact *x, int rows, int tile0, int tile1, const ds_dest *out)
{
    pass_fn *const *of = passes[w->bits == 8][w->has_min];
    const size_t k = w->k, blocks = k / DS_BLOCK;
    const int passes_a_tile = rows < 2 * ROWS ? (rows > ROWS) + 1 : (rows + ROWS - 1) / ROWS;
    for (int t = tile0; t < tile1; t++)
        for (int r = 0, some, i = 0; r < rows; r += some, i++) {
            const int left = rows - r;
            const rows_at at = {
                x->q + r * k, x->scale + r * blocks, x->min + r * blocks, x->sum + r * blocks, k, blocks};
            some = left >= 2 * ROWS || left == ROWS ? ROWS : left > ROWS ? (left + 1) / 2 : left;
            of[some - 1](w, t, &at, ahead_of(w, t, i, passes_a_tile), out, r);
        }
}

void ds_quant_avx512(const float *x, int k, int8_t *q, float *scale, float *min, int32_t *sum)
{
    const __m512i mag = _mm512_set1_epi32(0x7fffffff);
    for (int b = 0; b < k / DS_BLOCK; b++, x += DS_BLOCK, q += DS_BLOCK) {
        const __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
        const __m512i m0 = _mm512_and_si512(_mm512_castps_si512(v0), mag);
        const __m512i m1 = _mm512_and_si512(_mm512_castps_si512(v1), mag);
        const int32_t top = _mm512_reduce_max_epi32(_mm512_max_epi32(m0, m1)); /* NaN is above infinity */
        float max;
        memcpy(&max, &top, sizeof max);
        const bool usable = max >= DS_QUANT_LEAST && max <= FLT_MAX;
        const __m512 inv = _mm512_set1_ps(usable ? 127.0f / max : 0);
        const __m512i keep = _mm512_set1_epi32(-usable);
        const __m512i q0 = _mm512_and_si512(_mm512_cvtps_epi32(_mm512_mul_ps(v0, inv)), keep);
        const __m512i q1 = _mm512_and_si512(_mm512_cvtps_epi32(_mm512_mul_ps(v1, inv)), keep);
        _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(q1));
        sum[b] = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
        scale[b] = max / 127.0f;
        min[b] = scale[b] * (float)sum[b];
    }
}
