/* Float matmul for AVX2. A pass holds the sums of some rows by 16 outputs in registers. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/x86/ahead.h"
#include "backend/cpu/x86/avx2.h"

enum { GROUP = 6, TILES_OF_1 = 4, TILES_OF_2 = 2 };

INLINE pair16 weights(const uint8_t *p, const ds_dtype type)
{
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

/* acc[r][t]: k inputs of rows from x on, through the tiles from p on */
INLINE void pass(const uint8_t *p, size_t tile_bytes, const float *x, size_t ldx, int k, const int rows,
                 const int tiles, const ds_dtype type, float *acc)
{
    const int step = type == DS_F32 ? 64 : 32;
    pair16 sum[GROUP]; /* [rows][tiles] */
    UNROLL
    for (int c = 0; c < rows * tiles; c++)
        sum[c] = (pair16){_mm256_loadu_ps(acc + c * DS_TILE), _mm256_loadu_ps(acc + c * DS_TILE + 8)};
    for (int i = 0; i < k; i++, p += step) {
        UNROLL
        for (int t = 0; t < tiles; t++) {
            _mm_prefetch((const char *)p + t * tile_bytes + DS_AHEAD_STREAMS, _MM_HINT_T0);
            const pair16 w = weights(p + t * tile_bytes, type);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const __m256 v = _mm256_set1_ps(x[r * ldx + i]);
                pair16 *c = &sum[r * tiles + t];
                c->low = _mm256_fmadd_ps(v, w.low, c->low);
                c->high = _mm256_fmadd_ps(v, w.high, c->high);
            }
        }
    }
    UNROLL
    for (int c = 0; c < rows * tiles; c++) {
        _mm256_storeu_ps(acc + c * DS_TILE, sum[c].low);
        _mm256_storeu_ps(acc + c * DS_TILE + 8, sum[c].high);
    }
}

typedef void pass_fn(const uint8_t *p, size_t tile_bytes, const float *x, size_t ldx, int k, float *acc);

#define PASS(name, rows, tiles, type)                                                                        \
    static void name(const uint8_t *p, size_t tile_bytes, const float *x, size_t ldx, int k, float *acc)     \
    {                                                                                                        \
        pass(p, tile_bytes, x, ldx, k, rows, tiles, type, acc);                                              \
    }
#define PASSES(type)                                                                                         \
    PASS(type##_1, 1, 1, type)                                                                               \
    PASS(type##_1_by_4, 1, 4, type)                                                                          \
    PASS(type##_2, 2, 1, type)                                                                               \
    PASS(type##_2_by_2, 2, 2, type)                                                                          \
    PASS(type##_3, 3, 1, type)                                                                               \
    PASS(type##_4, 4, 1, type)                                                                               \
    PASS(type##_5, 5, 1, type)                                                                               \
    PASS(type##_6, 6, 1, type)
PASSES(DS_F32)
PASSES(DS_F16)
PASSES(DS_BF16)

#define STREAMS(type)                                                                                        \
    {                                                                                                        \
        type##_1, type##_1_by_4, type##_2, type##_2_by_2                                                     \
    }
#define NEARS(type)                                                                                          \
    {                                                                                                        \
        NULL, NULL, type##_3, type##_4, type##_5, type##_6                                                   \
    }
static pass_fn *const streams[3][4] = {STREAMS(DS_F32), STREAMS(DS_F16), STREAMS(DS_BF16)};
static pass_fn *const nears[3][GROUP] = {NEARS(DS_F32), NEARS(DS_F16), NEARS(DS_BF16)};

static void near_weights(const uint8_t *p, ds_dtype type, int k, float *room)
{
    for (int i = 0; i < k; i++, p += 32, room += DS_TILE) {
        const pair16 w = type == DS_F16 ? weights(p, DS_F16) : weights(p, DS_BF16);
        _mm_prefetch((const char *)p + DS_AHEAD_STREAMS, _MM_HINT_T0);
        _mm256_storeu_ps(room, w.low);
        _mm256_storeu_ps(room + 8, w.high);
    }
}

static void store_sums(const ds_dest *out, int row, int n, int o, const float *acc)
{
    store16(out, row, n, o, _mm256_loadu_ps(acc), _mm256_loadu_ps(acc + 8));
}

#include "backend/cpu/x86/fmatmul.h"

void ds_fmm_avx2(const ds_fmat *w, const float *x, int ldx, int rows, int tile0, int tile1,
                 const ds_dest *out)
{
    fmatmul(w, x, ldx, rows, tile0, tile1, out);
}
