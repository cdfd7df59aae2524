#include "formats/requant.h"

#include "formats/dequant.h"

static float rounded(ds_dtype type, float x)
{
    if (type == DS_BF16)
        return ds_bf16_to_f32(ds_f32_to_bf16(x));
    return type == DS_F16 ? ds_f16_to_f32(ds_f32_to_f16(x)) : x;
}

/* One group at a time straight from the file's bytes: no row buffer, whatever the width. */
static void quantize_group(const ds_weight *w, uint32_t row, uint32_t group, uint8_t *codes, float *scale,
                           float *bias)
{
    const ds_weight *src = w->owner;
    float values[128];
    size_t n = (size_t)w->codes.group;
    size_t first = (size_t)row * w->cols + group * n;
    ds_dequant(src->type, src->data + first * ds_dtype_get(src->type)->bytes, n, values);
    ds_affine_quantize(values, (int)n, w->codes.bits, codes, scale, bias);
    *scale = rounded(src->type, *scale);
    *bias = rounded(src->type, *bias);
}

static void requant_codes(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    uint32_t n = (uint32_t)w->codes.group;
    for (uint32_t g = 0; g < w->cols / n; g++)
        quantize_group(w, row, g, codes + (size_t)g * n, &scales[g], &mins[g]);
}

static void requant_floats(const ds_weight *w, uint32_t row, float *out)
{
    uint8_t codes[128];
    uint32_t n = (uint32_t)w->codes.group;
    for (uint32_t g = 0; g < w->cols / n; g++, out += n) {
        float scale, bias;
        quantize_group(w, row, g, codes, &scale, &bias);
        for (uint32_t i = 0; i < n; i++) {
            float product = scale * (float)codes[i]; /* rounded before the sum, as MLX has it */
            out[i] = product + bias;
        }
    }
}

static void requant_drop(const ds_weight *w, uint32_t begin, uint32_t end)
{
    const ds_weight *src = w->owner;
    if (src->drop)
        src->drop(src, begin, end);
}

ds_status ds_weight_requant(const ds_weight *src, int bits, int group, ds_weight *out, ds_error *err)
{
    if (src->type != DS_F32 && src->type != DS_F16 && src->type != DS_BF16)
        return ds_fail(err, DS_INVALID, "%s: is quantised already (%s)", src->name,
                       ds_dtype_get(src->type)->name);
    if (bits < 2 || bits > 8 || (group != 32 && group != 64 && group != 128))
        return ds_fail(err, DS_INVALID, "%s: cannot be quantised to %d bits in groups of %d", src->name, bits,
                       group);
    if (src->cols % (uint32_t)group)
        return ds_fail(err, DS_INVALID, "%s: rows of %u are not whole groups of %d", src->name, src->cols,
                       group);
    *out = (ds_weight){.name = src->name,
                       .type = DS_AFFINE,
                       .rows = src->rows,
                       .cols = src->cols,
                       .codes = {.bits = bits, .group = group, .has_min = true, .scale_type = src->type},
                       .affine_bits = bits,
                       .affine_group = group,
                       .affine_scale_type = src->type,
                       .owner = src,
                       .floats = requant_floats,
                       .codes_row = requant_codes,
                       .drop = requant_drop};
    return DS_OK;
}
