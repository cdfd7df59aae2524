/* Matmul and the activation quantiser: the references, and the table of implementations. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/half.h"

#include <float.h>
#include <math.h>

static float element(const uint8_t *p, ds_dtype type, int i)
{
    uint16_t h;
    float f;
    if (type == DS_F32) {
        memcpy(&f, p + 4 * (size_t)i, 4);
        return f;
    }
    memcpy(&h, p + 2 * (size_t)i, 2);
    return type == DS_F16 ? ds_half_float(h) : ds_bf16_float(h);
}

static void finish(const ds_dest *out, int row, int o, float acc)
{
    float *y = out->y + (size_t)row * out->ld + o;
    if (out->bias)
        acc += out->bias[o];
    *y = out->add ? *y + acc : acc;
}

/* sum code * q over the 32 inputs of a block, for output o of its tile */
static int32_t block_sum(const ds_qmat *w, const uint8_t *codes, int o, const int8_t *q)
{
    int32_t sum = 0;
    for (int i = 0; i < DS_BLOCK; i++) {
        int code = w->bits == 8 ? codes[i / 4 * 64 + 4 * o + i % 4]
                                : codes[i % 16 / 4 * 64 + 4 * o + i % 4] >> (i < 16 ? 0 : 4) & 15;
        sum += code * q[i];
    }
    return sum;
}

void ds_qmm_c(const ds_qmat *w, const ds_qact *x, int rows, int tile0, int tile1, const ds_dest *out)
{
    const int blocks = w->k / DS_BLOCK, per_group = w->group / DS_BLOCK, block_bytes = w->bits * 64;
    const int scale_bytes = w->scale_type == DS_F32 ? 64 : 32;
    for (int o = tile0 * DS_TILE; o < tile1 * DS_TILE && o < w->n; o++) {
        const uint8_t *tile = w->data + (size_t)(o / DS_TILE) * w->tile_bytes;
        const int lane = o % DS_TILE;
        for (int r = 0; r < rows; r++) {
            float acc = 0;
            for (int b = 0; b < blocks; b++) {
                const uint8_t *group = tile + (size_t)(b / per_group) * w->group_bytes;
                const uint8_t *scales = group + (size_t)per_group * block_bytes;
                const size_t at = (size_t)r * blocks + b;
                int32_t sum =
                    block_sum(w, group + (size_t)(b % per_group) * block_bytes, lane, x->q + at * DS_BLOCK) -
                    w->zero * x->sum[at];
                acc = fmaf(element(scales, w->scale_type, lane) * x->scale[at], (float)sum, acc);
                if (w->has_min)
                    acc = fmaf(element(scales + scale_bytes, w->scale_type, lane), x->min[at], acc);
            }
            finish(out, r, o, acc);
        }
    }
}

void ds_fmm_c(const ds_fmat *w, const float *x, int ldx, int rows, int tile0, int tile1, const ds_dest *out)
{
    for (int o = tile0 * DS_TILE; o < tile1 * DS_TILE && o < w->n; o++) {
        const uint8_t *tile = w->data + (size_t)(o / DS_TILE) * w->tile_bytes;
        for (int r = 0; r < rows; r++) {
            float acc = 0;
            for (int k = 0; k < w->k; k++)
                acc = fmaf(x[(size_t)r * ldx + k], element(tile, w->type, k * DS_TILE + o % DS_TILE), acc);
            finish(out, r, o, acc);
        }
    }
}

void ds_quant_c(const float *x, int k, int8_t *q, float *scale, float *min, int32_t *sum)
{
    for (int b = 0; b < k / DS_BLOCK; b++) {
        uint32_t bits = 0; /* magnitudes as integers: NaN is above infinity and stays */
        for (int i = 0; i < DS_BLOCK; i++) {
            uint32_t one = ds_float_bits(x[b * DS_BLOCK + i]) & 0x7fffffff;
            bits = one > bits ? one : bits;
        }
        const float max = ds_bits_float(bits);
        const bool usable = max >= DS_QUANT_LEAST && max <= FLT_MAX;
        const float inv = usable ? 127.0f / max : 0;
        int32_t total = 0;
        for (int i = 0; i < DS_BLOCK; i++) {
            int code = usable ? (int)rintf(x[b * DS_BLOCK + i] * inv) : 0;
            q[b * DS_BLOCK + i] = (int8_t)code;
            total += code;
        }
        scale[b] = max / 127.0f;
        min[b] = scale[b] * (float)total;
        sum[b] = total;
    }
}

const ds_matmul_impl ds_matmul_impls[] = {
    {"c", 0, ds_qmm_c, ds_fmm_c, ds_quant_c},
#if defined(__x86_64__)
    {"avx2", DS_CPU_AVX2, ds_qmm_avx2, ds_fmm_avx2, ds_quant_avx2},
    {"avx512", DS_CPU_AVX2 | DS_CPU_AVX512, ds_qmm_avx512, ds_fmm_avx512, ds_quant_avx512},
#endif
};
const size_t ds_matmul_impl_count = sizeof ds_matmul_impls / sizeof ds_matmul_impls[0];

const ds_matmul_impl *ds_matmul_pick(unsigned flags)
{
    const ds_matmul_impl *best = &ds_matmul_impls[0];
    for (size_t i = 1; i < ds_matmul_impl_count; i++)
        if ((ds_matmul_impls[i].need & ~flags) == 0)
            best = &ds_matmul_impls[i];
    return best;
}
