#include "formats/requant.h"

#include "base/map.h"
#include "formats/blocks.h"
#include "formats/dequant.h"

#include <string.h>

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

enum { Q8_BYTES = 34 }; /* a block of Q8_0: the scale, 32 codes */

/* The code of largest magnitude becomes -8, so that its value comes back best. */
static uint16_t narrow_block(const uint8_t *block, uint8_t *codes)
{
    int8_t q[32], low = 0, high = 0;
    memcpy(q, block + 2, sizeof q);
    for (int i = 0; i < 32; i++) {
        low = q[i] < low ? q[i] : low;
        high = q[i] > high ? q[i] : high;
    }
    int top = -low > high ? low : high;
    float step = (float)top / -8.0f, inverse = top ? -8.0f / (float)top : 0;
    int wide[32];
    for (int i = 0; i < 32; i++) {
        int code = (int)((float)q[i] * inverse + 8.5f); /* never negative: rounds */
        wide[i] = code > 15 ? 15 : code;
    }
    for (int i = 0; i < 32; i++)
        codes[i] = (uint8_t)wide[i];
    return ds_f32_to_f16(ds_f16_to_f32(ds_le16(block)) * step);
}

static const uint8_t *narrow_row(const ds_weight *w, uint32_t row)
{
    return w->data + (size_t)row * (w->cols / 32) * Q8_BYTES;
}

static void narrow_codes(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    (void)mins;
    const uint8_t *block = narrow_row(w, row);
    for (uint32_t b = 0; b < w->cols / 32; b++, block += Q8_BYTES)
        scales[b] = ds_f16_to_f32(narrow_block(block, codes + (size_t)b * 32));
}

static void narrow_packed(const ds_weight *w, uint32_t row, uint8_t *bytes, void *scales, void *mins)
{
    (void)mins;
    const uint8_t *block = narrow_row(w, row);
    for (uint32_t b = 0; b < w->cols / 32; b++, block += Q8_BYTES, bytes += 16) {
        uint8_t codes[32];
        uint16_t scale = narrow_block(block, codes);
        memcpy((uint8_t *)scales + 2 * b, &scale, sizeof scale);
        for (int i = 0; i < 16; i++)
            bytes[i] = (uint8_t)(codes[i] | codes[16 + i] << 4);
    }
}

static void narrow_floats(const ds_weight *w, uint32_t row, float *out)
{
    const uint8_t *block = narrow_row(w, row);
    for (uint32_t b = 0; b < w->cols / 32; b++, block += Q8_BYTES, out += 32) {
        uint8_t codes[32];
        float scale = ds_f16_to_f32(narrow_block(block, codes));
        for (int i = 0; i < 32; i++)
            out[i] = scale * (float)(codes[i] - 8);
    }
}

static bool narrow_finite(const ds_weight *w, uint32_t begin, uint32_t end)
{
    unsigned bad = 0;
    for (const uint8_t *block = narrow_row(w, begin), *last = narrow_row(w, end); block < last; block += Q8_BYTES)
        bad |= (ds_le16(block) & 0x7C00) == 0x7C00;
    return !bad;
}

static void narrow_drop(const ds_weight *w, uint32_t begin, uint32_t end)
{
    ds_map_drop(narrow_row(w, begin), narrow_row(w, end));
}

bool ds_weight_narrow(const ds_weight *src, ds_weight *out)
{
    if (src->type != DS_Q8_0)
        return false;
    *out = (ds_weight){.name = src->name,
                       .type = DS_Q4_0,
                       .rows = src->rows,
                       .cols = src->cols,
                       .codes = {.bits = 4, .group = 32, .zero = 8, .scale_type = DS_F16},
                       .data = src->data,
                       .bytes = src->bytes,
                       .floats = narrow_floats,
                       .codes_row = narrow_codes,
                       .packed_row = narrow_packed,
                       .finite = narrow_finite,
                       .drop = narrow_drop};
    return true;
}
