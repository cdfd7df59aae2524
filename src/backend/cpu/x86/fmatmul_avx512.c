/* Float matmul for AVX-512. A pass holds the sums of some rows by 16 outputs in registers. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/x86/ahead.h"
#include "backend/cpu/x86/store_avx512.h"

enum { GROUP = 12, TILES_OF_1 = 4, TILES_OF_2 = 4 };

INLINE __m512 weights(const uint8_t *p, const ds_dtype type)
{
    if (type == DS_F32)
        return _mm512_loadu_ps(p);
    const __m256i h = _mm256_loadu_si256((const __m256i *)p);
    if (type == DS_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* acc[r][t]: k inputs of rows from x on, through the tiles from p on */
INLINE void pass(const uint8_t *p, size_t tile_bytes, const float *x, size_t ldx, int k, const int rows,
                 const int tiles, const ds_dtype type, float *acc)
{
    const int step = type == DS_F32 ? 64 : 32;
    __m512 sum[GROUP]; /* [rows][tiles] */
    UNROLL
    for (int c = 0; c < rows * tiles; c++)
        sum[c] = _mm512_loadu_ps(acc + c * DS_TILE);
    for (int i = 0; i < k; i++, p += step) {
        UNROLL
        for (int t = 0; t < tiles; t++) {
            _mm_prefetch((const char *)p + t * tile_bytes + DS_AHEAD_STREAMS, _MM_HINT_T0);
            const __m512 w = weights(p + t * tile_bytes, type);
            UNROLL
            for (int r = 0; r < rows; r++)
                sum[r * tiles + t] = _mm512_fmadd_ps(_mm512_set1_ps(x[r * ldx + i]), w, sum[r * tiles + t]);
        }
    }
    UNROLL
    for (int c = 0; c < rows * tiles; c++)
        _mm512_storeu_ps(acc + c * DS_TILE, sum[c]);
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
    PASS(type##_2_by_4, 2, 4, type)                                                                          \
    PASS(type##_3, 3, 1, type)                                                                               \
    PASS(type##_4, 4, 1, type)                                                                               \
    PASS(type##_5, 5, 1, type)                                                                               \
    PASS(type##_6, 6, 1, type)                                                                               \
    PASS(type##_7, 7, 1, type)                                                                               \
    PASS(type##_8, 8, 1, type)                                                                               \
    PASS(type##_9, 9, 1, type)                                                                               \
    PASS(type##_10, 10, 1, type)                                                                             \
    PASS(type##_11, 11, 1, type)                                                                             \
    PASS(type##_12, 12, 1, type)
PASSES(DS_F32)
PASSES(DS_F16)
PASSES(DS_BF16)

#define STREAMS(type)                                                                                        \
    {                                                                                                        \
        type##_1, type##_1_by_4, type##_2, type##_2_by_4                                                     \
    }
#define NEARS(type)                                                                                          \
    {                                                                                                        \
        NULL, NULL, type##_3, type##_4, type##_5, type##_6, type##_7, type##_8, type##_9, type##_10,         \
            type##_11, type##_12                                                                             \
    }
static pass_fn *const streams[3][4] = {STREAMS(DS_F32), STREAMS(DS_F16), STREAMS(DS_BF16)};
static pass_fn *const nears[3][GROUP] = {NEARS(DS_F32), NEARS(DS_F16), NEARS(DS_BF16)};

static void near_weights(const uint8_t *p, ds_dtype type, int k, float *room)
{
    for (int i = 0; i < k; i++, p += 32, room += DS_TILE) {
        _mm_prefetch((const char *)p + DS_AHEAD_STREAMS, _MM_HINT_T0);
        _mm512_storeu_ps(room, type == DS_F16 ? weights(p, DS_F16) : weights(p, DS_BF16));
    }
}

static void store_sums(const ds_dest *out, int row, int n, int o, const float *acc)
{
    store16(out, row, n, o, _mm512_loadu_ps(acc));
}

#include "backend/cpu/x86/fmatmul.h"

void ds_fmm_avx512(const ds_fmat *w, const float *x, int ldx, int rows, int tile0, int tile1,
                   const ds_dest *out)
{
    fmatmul(w, x, ldx, rows, tile0, tile1, out);
}
