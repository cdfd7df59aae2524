/* Integer matmul and the quantiser for AVX2. Products by vpmaddubsw: unsigned codes, signed
 * activations, pair sums in 16 bits, kept there as long as the codes' size allows (enum codes). */
#include "backend/cpu/matmul.h"
#include "backend/cpu/x86/ahead.h"
#include "backend/cpu/x86/avx2.h"

#include <float.h>

/* Largest pair sums: 15 * 127 * 2 = 3810, eight fit 16 bits; 31 * 127 * 2 = 7874, four do;
 * 127 * 127 * 2 = 32258, one does. 255: code - 128 as magnitude, its sign given to the activation. */
enum codes { CODES4, CODES5, CODES7, CODES8 };

/* `rows` rows of a qact from one on, at block 0 */
typedef struct {
    const int8_t *q;
    const float *scale, *min;
    const int32_t *sum;
    size_t k, blocks;
} rows_at;

/* sums of a block: outputs 0..7 and 8..15 */
typedef struct {
    __m256i low, high;
} pair;

INLINE __m256i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Sums must be taken as they are written: gcc would sum in trees, for which there are too few registers. */
#ifdef __clang__
#define AS_WRITTEN(v) ((void)(v))
#else
#define AS_WRITTEN(v) __asm__("" : "+x"(v))
#endif

INLINE void add16(__m256i *sum, __m256i more)
{
    *sum = _mm256_add_epi16(*sum, more);
    AS_WRITTEN(*sum);
}

INLINE void add32(__m256i *sum, __m256i more)
{
    *sum = _mm256_add_epi32(*sum, more);
    AS_WRITTEN(*sum);
}

INLINE void block4(const uint8_t *p, const int8_t *q, size_t k, const int rows, pair *sum)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i a = load(p + 64 * j), b = load(p + 64 * j + 32);
        const __m256i a0 = _mm256_and_si256(a, nibble), b0 = _mm256_and_si256(b, nibble);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256i x = four(q + r * k + 4 * j);
            const __m256i low = _mm256_maddubs_epi16(a0, x), high = _mm256_maddubs_epi16(b0, x);
            add16(&sum[r].low, low);
            add16(&sum[r].high, high);
        }
        const __m256i a1 = _mm256_and_si256(_mm256_srli_epi16(a, 4), nibble);
        const __m256i b1 = _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256i x = four(q + r * k + 16 + 4 * j);
            add16(&sum[r].low, _mm256_maddubs_epi16(a1, x));
            add16(&sum[r].high, _mm256_maddubs_epi16(b1, x));
        }
    }
    const __m256i ones = _mm256_set1_epi16(1);
    UNROLL
    for (int r = 0; r < rows; r++) {
        sum[r].low = _mm256_madd_epi16(sum[r].low, ones);
        sum[r].high = _mm256_madd_epi16(sum[r].high, ones);
    }
}

INLINE void block8(const uint8_t *p, const int8_t *q, size_t k, const int rows, const enum codes codes,
                   pair *sum)
{
    const __m256i ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8(-128);
    const int run = codes == CODES5 ? 4 : 1; /* vectors whose products add up in 16 bits */
    const pair none = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    pair part[4] = {none, none, none, none};
    UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i a = load(p + 64 * j), b = load(p + 64 * j + 32), as = a, bs = b;
        if (codes == CODES8) {
            as = _mm256_xor_si256(a, flip);
            bs = _mm256_xor_si256(b, flip);
            a = _mm256_abs_epi8(as); /* -128 becomes 128, unsigned */
            b = _mm256_abs_epi8(bs);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256i x = four(q + r * k + 4 * j);
            const __m256i xa = codes == CODES8 ? _mm256_sign_epi8(x, as) : x;
            const __m256i xb = codes == CODES8 ? _mm256_sign_epi8(x, bs) : x;
            const __m256i low = _mm256_maddubs_epi16(a, xa), high = _mm256_maddubs_epi16(b, xb);
            if (run == 1) {
                add32(&sum[r].low, _mm256_madd_epi16(low, ones));
                add32(&sum[r].high, _mm256_madd_epi16(high, ones));
                continue;
            }
            add16(&part[r].low, low);
            add16(&part[r].high, high);
            if (j % run == run - 1) {
                add32(&sum[r].low, _mm256_madd_epi16(part[r].low, ones));
                add32(&sum[r].high, _mm256_madd_epi16(part[r].high, ones));
                part[r] = none;
            }
        }
    }
}

/* The type is looked at in every block, kept from the optimiser: a loop for each would be too much code. */
INLINE pair16 scales(const uint8_t *p, int type)
{
    __asm__("" : "+r"(type));
    if (type == DS_F32)
        return (pair16){_mm256_loadu_ps((const float *)(const void *)p),
                        _mm256_loadu_ps((const float *)(const void *)(p + 32))};
    const __m128i low = _mm_loadu_si128((const __m128i *)p),
                  high = _mm_loadu_si128((const __m128i *)(p + 16));
    if (type == DS_F16)
        return (pair16){_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)};
    return (pair16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))};
}

INLINE void pass(const ds_qmat *w, int tile, const rows_at *x, const int rows, const enum codes codes,
                 const bool has_min, ahead next, const ds_dest *out, int row)
{
    const int per_group = w->group / DS_BLOCK;
    const int block_bytes = codes == CODES4 ? 256 : 512, scale_bytes = w->scale_type == DS_F32 ? 64 : 32;
    const size_t k = x->k, blocks = x->blocks;
    const int8_t *q = x->q, *const end = q + k;
    const float *scale = x->scale, *min = x->min;
    const int32_t *xsum = x->sum;
    int corr = codes == CODES8 ? 128 - w->zero : -w->zero; /* times the sum of the row's block */
    const uint8_t *p = w->data + (size_t)tile * w->tile_bytes, *s = p;
    __m256 acc[4][2];
    UNROLL
    for (int r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (int left = 0; q != end; p += block_bytes, q += DS_BLOCK, scale++, min++, xsum++) {
        if (left == 0) { /* a new group: step over the last one's scales */
            p = q == x->q ? p : s + (has_min ? 2 : 1) * scale_bytes;
            s = p + per_group * block_bytes;
            left = per_group;
        }
        left--;
        fetch_ahead(&next);
        const pair none = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        pair sum[4] = {none, none, none, none};
        if (codes == CODES4)
            block4(p, q, k, rows, sum);
        else
            block8(p, q, k, rows, codes, sum);
        __asm__("" : "+r"(corr)); /* as in scales() */
        if ((!has_min || codes == CODES8) && corr) {
            UNROLL
            for (int r = 0; r < rows; r++) {
                const __m256i c = _mm256_set1_epi32(xsum[r * blocks] * corr);
                add32(&sum[r].low, c);
                add32(&sum[r].high, c);
            }
        }
        const pair16 ws = scales(s, w->scale_type);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256 xs = _mm256_set1_ps(scale[r * blocks]);
            acc[r][0] = _mm256_fmadd_ps(_mm256_mul_ps(ws.low, xs), _mm256_cvtepi32_ps(sum[r].low), acc[r][0]);
            acc[r][1] =
                _mm256_fmadd_ps(_mm256_mul_ps(ws.high, xs), _mm256_cvtepi32_ps(sum[r].high), acc[r][1]);
        }
        if (has_min) {
            const pair16 wm = scales(s + scale_bytes, w->scale_type);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const __m256 xm = _mm256_set1_ps(min[r * blocks]);
                acc[r][0] = _mm256_fmadd_ps(wm.low, xm, acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(wm.high, xm, acc[r][1]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        store16(out, row + r, w->n, tile * DS_TILE, acc[r][0], acc[r][1]);
}

typedef void pass_fn(const ds_qmat *w, int tile, const rows_at *x, ahead next, const ds_dest *out, int row);

#define PASS(codes, rows)                                                                                     \
    static void codes##_##rows(const ds_qmat *w, int tile, const rows_at *x, ahead next, const ds_dest *out,  \
                               int row)                                                                       \
    {                                                                                                         \
        pass(w, tile, x, rows, codes, false, next, out, row);                                                 \
    }                                                                                                         \
    static void codes##_min_##rows(const ds_qmat *w, int tile, const rows_at *x, ahead next,                  \
                                   const ds_dest *out, int row)                                               \
    {                                                                                                         \
        pass(w, tile, x, rows, codes, true, next, out, row);                                                  \
    }
#define PASSES(codes) PASS(codes, 1) PASS(codes, 2) PASS(codes, 3) PASS(codes, 4)
PASSES(CODES4)
PASSES(CODES5)
PASSES(CODES7)
PASSES(CODES8)

#define LIST(codes)                                                                                          \
    {                                                                                                        \
        {codes##_1, codes##_2, codes##_3, codes##_4},                                                        \
            {codes##_min_1, codes##_min_2, codes##_min_3, codes##_min_4},                                    \
    }
static pass_fn *const passes[4][2][4] = {LIST(CODES4), LIST(CODES5), LIST(CODES7), LIST(CODES8)};

void ds_qmm_avx2(const ds_qmat *w, const ds_qact *x, int rows, int tile0, int tile1, const ds_dest *out)
{
    const enum codes codes = w->bits == 4         ? CODES4
                             : w->code_max <= 31  ? CODES5
                             : w->code_max <= 127 ? CODES7
                                                  : CODES8;
    pass_fn *const *const of = passes[codes][w->has_min];
    const size_t k = w->k, blocks = k / DS_BLOCK;
    const int passes_a_tile = rows < 4 ? 1 : (rows + 1) / 4;
    for (int t = tile0; t < tile1; t++)
        for (int r = 0, some, i = 0; r < rows; r += some, i++) {
            const int left = rows - r;
            const rows_at at = {x->q + r * k,        x->scale + r * blocks, x->min + r * blocks,
                                x->sum + r * blocks, k,                     blocks};
            some = left >= 7 || left == 4 ? 4 : left >= 5 ? 3 : left; /* no row alone behind others */
            of[some - 1](w, t, &at, ahead_of(w, t, i, passes_a_tile), out, r);
        }
}

void ds_quant_avx2(const float *x, int k, int8_t *q, float *scale, float *min, int32_t *sum)
{
    const __m256i mag = _mm256_set1_epi32(0x7fffffff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* after two packs within halves */
    for (int b = 0; b < k / DS_BLOCK; b++, x += DS_BLOCK, q += DS_BLOCK) {
        const __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                             _mm256_loadu_ps(x + 24)};
        __m256i top = _mm256_setzero_si256(), code[4], total = top;
        for (int i = 0; i < 4; i++)
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), mag));
        __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
        t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
        t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
        const float max = _mm_cvtss_f32(_mm_castsi128_ps(t));
        const bool usable = max >= DS_QUANT_LEAST && max <= FLT_MAX;
        const __m256 inv = _mm256_set1_ps(usable ? 127.0f / max : 0);
        const __m256i keep = _mm256_set1_epi32(-usable);
        for (int i = 0; i < 4; i++) {
            code[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv)), keep);
            total = _mm256_add_epi32(total, code[i]);
        }
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
        _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(bytes, order));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        sum[b] = _mm_cvtsi128_si32(s);
        scale[b] = max / 127.0f;
        min[b] = scale[b] * (float)sum[b];
    }
}
