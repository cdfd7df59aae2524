#include "formats/weight.h"

#include "base/map.h"
#include "formats/blocks.h"
#include "formats/dequant.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static size_t row_bytes(const ds_weight *w)
{
    if (w->type == DS_AFFINE)
        return (size_t)w->cols * (size_t)w->affine_bits / 8;
    const ds_dtype_info *info = ds_dtype_get(w->type);
    return (size_t)w->cols / info->elems * info->bytes;
}

static const uint8_t *row_at(const ds_weight *w, uint32_t row)
{
    return w->data + row * row_bytes(w);
}

static void drop_rows(const ds_weight *w, uint32_t begin, uint32_t end)
{
    ds_map_drop(row_at(w, begin), row_at(w, end));
    if (w->type == DS_AFFINE) {
        size_t bytes = (size_t)w->cols / (size_t)w->affine_group * ds_dtype_get(w->affine_scale_type)->bytes;
        ds_map_drop(w->affine_scales + begin * bytes, w->affine_scales + end * bytes);
        ds_map_drop(w->affine_biases + begin * bytes, w->affine_biases + end * bytes);
    }
}

static void plain_floats(const ds_weight *w, uint32_t row, float *out)
{
    ds_dequant(w->type, row_at(w, row), w->cols, out);
}

/* Blocks of 32 with the scale first: what the codes of a row look like. */
static void block32_codes(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    const uint8_t *src = row_at(w, row);
    uint32_t bytes = ds_dtype_get(w->type)->bytes;
    for (uint32_t b = 0; b < w->cols / 32; b++, src += bytes, codes += 32) {
        const uint8_t *packed = src + 2;
        scales[b] = ds_f16_to_f32(ds_le16(src));
        if (w->codes.has_min) {
            mins[b] = ds_f16_to_f32(ds_le16(packed));
            packed += 2;
        }
        if (w->codes.bits == 4)
            ds_q4_codes(packed, codes);
        else if (w->codes.bits == 5)
            ds_q5_codes(packed, codes);
        else
            for (int i = 0; i < 32; i++)
                codes[i] = packed[i] ^ 0x80; /* two's complement to code - 128 */
    }
}

/* Sizes known when compiled: copies of a few bytes then cost no calls. */
static inline __attribute__((always_inline)) void copy_blocks(const ds_weight *w, const uint8_t *src, uint8_t *bytes,
                                                              uint8_t *scales, uint8_t *mins, const bool has_min,
                                                              const int code_bytes)
{
    const int head = has_min ? 4 : 2;
    for (uint32_t b = 0; b < w->cols / 32; b++, src += head + code_bytes, bytes += code_bytes) {
        memcpy(scales + 2 * (size_t)b, src, 2);
        if (has_min)
            memcpy(mins + 2 * (size_t)b, src + 2, 2);
        memcpy(bytes, src + head, (size_t)code_bytes);
        for (int i = 0; code_bytes == 32 && i < code_bytes; i++)
            bytes[i] ^= 0x80; /* two's complement to code - 128 */
    }
}

static void block32_packed(const ds_weight *w, uint32_t row, uint8_t *bytes, void *scales, void *mins)
{
    if (w->type == DS_Q4_0)
        copy_blocks(w, row_at(w, row), bytes, scales, mins, false, 16);
    else if (w->type == DS_Q4_1)
        copy_blocks(w, row_at(w, row), bytes, scales, mins, true, 16);
    else
        copy_blocks(w, row_at(w, row), bytes, scales, mins, false, 32);
}

static void block256_codes(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    const uint8_t *src = row_at(w, row);
    uint32_t bytes = ds_dtype_get(w->type)->bytes;
    for (uint32_t b = 0; b < w->cols / 256; b++, src += bytes, codes += 256) {
        float d = ds_f16_to_f32(ds_le16(src)), dmin = ds_f16_to_f32(ds_le16(src + 2));
        for (int j = 0; j < 8; j++) {
            int scale, min;
            ds_k_scale(src + 4, j, &scale, &min);
            scales[8 * b + (uint32_t)j] = d * (float)scale; /* 11 bits by 6: exact */
            mins[8 * b + (uint32_t)j] = -(dmin * (float)min);
        }
        if (w->codes.bits == 4)
            ds_q4_k_codes(src, codes);
        else
            ds_q5_k_codes(src, codes);
    }
}

static void affine_scales(const ds_weight *w, uint32_t row, float *scales, float *biases)
{
    size_t groups = w->cols / (uint32_t)w->affine_group;
    size_t bytes = groups * ds_dtype_get(w->affine_scale_type)->bytes;
    ds_dequant(w->affine_scale_type, w->affine_scales + row * bytes, groups, scales);
    ds_dequant(w->affine_scale_type, w->affine_biases + row * bytes, groups, biases);
}

static void affine_codes(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    ds_affine_codes(row_at(w, row), w->affine_bits, w->cols, codes);
    affine_scales(w, row, scales, mins);
}

/* 4 bits: neighbours share a byte in the file; 8 bits: as it is. */
static void affine_packed(const ds_weight *w, uint32_t row, uint8_t *bytes, void *scales, void *mins)
{
    const uint8_t *src = row_at(w, row);
    if (w->affine_bits == 8)
        memcpy(bytes, src, w->cols);
    for (uint32_t b = 0; w->affine_bits == 4 && b < w->cols / 32; b++, src += 16, bytes += 16)
        for (int i = 0; i < 8; i++) {
            bytes[2 * i] = (uint8_t)((src[i] & 15) | src[8 + i] << 4);
            bytes[2 * i + 1] = (uint8_t)(src[i] >> 4 | (src[8 + i] & 0xf0));
        }
    size_t n = (size_t)(w->cols / (uint32_t)w->affine_group) * ds_dtype_get(w->affine_scale_type)->bytes;
    memcpy(scales, w->affine_scales + row * n, n);
    memcpy(mins, w->affine_biases + row * n, n);
}

static void affine_floats(const ds_weight *w, uint32_t row, float *out)
{
    uint8_t codes[128];
    const uint8_t *src = row_at(w, row);
    size_t group = (size_t)w->affine_group, one = ds_dtype_get(w->affine_scale_type)->bytes;
    size_t first = (size_t)row * (w->cols / group);
    for (size_t g = 0; g < w->cols / group; g++, src += group * (size_t)w->affine_bits / 8, out += group) {
        float scale, bias;
        ds_dequant(w->affine_scale_type, w->affine_scales + (first + g) * one, 1, &scale);
        ds_dequant(w->affine_scale_type, w->affine_biases + (first + g) * one, 1, &bias);
        ds_affine_codes(src, w->affine_bits, group, codes);
        for (size_t i = 0; i < group; i++) {
            float product = scale * (float)codes[i]; /* rounded before the sum, as MLX has it */
            out[i] = product + bias;
        }
    }
}

/* Every type that can be a matrix. Half-precision scales lie at at[0], and at[1] where it is not 0. */
static const struct layout {
    ds_dtype type;
    ds_codes codes;
    void (*codes_row)(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins);
    int scales, at[2];
} layouts[] = {
    {.type = DS_F32},
    {.type = DS_F16},
    {.type = DS_BF16},
    {DS_Q4_0, {.bits = 4, .group = 32, .zero = 8, .scale_type = DS_F16}, block32_codes, 1, {0}},
    {DS_Q4_1, {.bits = 4, .group = 32, .has_min = true, .scale_type = DS_F16}, block32_codes, 2, {0, 2}},
    {DS_Q5_0, {.bits = 5, .group = 32, .zero = 16, .scale_type = DS_F16}, block32_codes, 1, {0}},
    {DS_Q5_1, {.bits = 5, .group = 32, .has_min = true, .scale_type = DS_F16}, block32_codes, 2, {0, 2}},
    {DS_Q8_0, {.bits = 8, .group = 32, .zero = 128, .scale_type = DS_F16}, block32_codes, 1, {0}},
    {DS_Q4_K, {.bits = 4, .group = 32, .has_min = true, .scale_type = DS_F32}, block256_codes, 2, {0, 2}},
    {DS_Q5_K, {.bits = 5, .group = 32, .has_min = true, .scale_type = DS_F32}, block256_codes, 2, {0, 2}},
    {DS_Q2_K, {.bits = 0}, NULL, 2, {80, 82}},
    {DS_Q3_K, {.bits = 0}, NULL, 1, {108}},
    {DS_Q6_K, {.bits = 0}, NULL, 1, {208}},
    {DS_IQ4_NL, {.bits = 0}, NULL, 1, {0}},
    {DS_IQ4_XS, {.bits = 0}, NULL, 1, {0}},
    {DS_MXFP4, {.bits = 0}, NULL, 0, {0}},
    {DS_TQ1_0, {.bits = 0}, NULL, 1, {52}},
    {DS_TQ2_0, {.bits = 0}, NULL, 1, {64}},
};

static const struct layout *find_layout(ds_dtype type)
{
    for (size_t i = 0; i < COUNT(layouts); i++)
        if (layouts[i].type == type)
            return &layouts[i];
    return NULL;
}

static bool finite_halves(const uint8_t *p, size_t count, size_t stride, uint16_t exponent)
{
    unsigned bad = 0;
    for (size_t i = 0; i < count; i++)
        bad |= (ds_le16(p + i * stride) & exponent) == exponent;
    return !bad;
}

static bool finite_floats(ds_dtype type, const uint8_t *p, size_t count)
{
    if (type == DS_F16)
        return finite_halves(p, count, 2, 0x7C00);
    /* the upper half of an fp32 is a bf16 */
    return type == DS_BF16 ? finite_halves(p, count, 2, 0x7F80) : finite_halves(p + 2, count, 4, 0x7F80);
}

static bool finite_affine(const ds_weight *w, uint32_t begin, uint32_t end)
{
    size_t groups = w->cols / (uint32_t)w->affine_group, first = begin * groups, count = (end - begin) * groups;
    size_t one = ds_dtype_get(w->affine_scale_type)->bytes;
    return finite_floats(w->affine_scale_type, w->affine_scales + first * one, count) &&
           finite_floats(w->affine_scale_type, w->affine_biases + first * one, count);
}

static bool finite_blocks(const ds_weight *w, uint32_t begin, uint32_t end)
{
    const ds_dtype_info *info = ds_dtype_get(w->type);
    const struct layout *layout = find_layout(w->type);
    const uint8_t *first = row_at(w, begin);
    size_t count = (size_t)(end - begin) * (w->cols / info->elems);
    bool ok = true;
    for (int i = 0; layout && i < layout->scales; i++)
        ok = ok && finite_halves(first + layout->at[i], count, info->bytes, 0x7C00);
    for (size_t i = 0; w->type == DS_MXFP4 && i < count; i++)
        ok = ok && first[i * info->bytes] != 255;
    return ok;
}

/* Rows: the product of all dimensions but the last. The product of all was checked when the file was read. */
static ds_status shape_of(const ds_tensor *tensor, uint32_t *rows, uint32_t *cols, ds_error *err)
{
    uint64_t count = 1, last = tensor->rank ? tensor->dims[tensor->rank - 1] : 0;
    for (int i = 0; i + 1 < tensor->rank; i++)
        count *= tensor->dims[i];
    if (tensor->rank < 2 || !last || !count || last > UINT32_MAX || count > UINT32_MAX)
        return ds_fail(err, DS_BAD_FILE, "%s: not a matrix (%d dimensions, %" PRIu64 " rows of %" PRIu64 ")",
                       tensor->name, tensor->rank, count, last);
    *rows = (uint32_t)count;
    *cols = (uint32_t)last;
    return DS_OK;
}

static bool packs_directly(ds_dtype type)
{
    return type == DS_Q4_0 || type == DS_Q4_1 || type == DS_Q8_0;
}

ds_status ds_weight_plain(ds_weight *out, const ds_tensor *tensor, ds_error *err)
{
    const struct layout *layout = find_layout(tensor->type);
    if (!layout)
        return ds_fail(err, DS_BAD_FILE, "%s: a matrix of type %s is not supported", tensor->name,
                       ds_dtype_get(tensor->type)->name);
    ds_weight w = {.name = tensor->name,
                   .type = tensor->type,
                   .codes = layout->codes,
                   .data = tensor->data,
                   .bytes = tensor->bytes,
                   .floats = plain_floats,
                   .codes_row = layout->codes_row,
                   .packed_row = packs_directly(tensor->type) ? block32_packed : NULL,
                   .finite = layout->scales || tensor->type == DS_MXFP4 ? finite_blocks : NULL,
                   .drop = drop_rows};
    ds_status status = shape_of(tensor, &w.rows, &w.cols, err);
    if (status)
        return status;
    if (w.cols % ds_dtype_get(w.type)->elems)
        return ds_fail(err, DS_BAD_FILE, "%s: rows of %u are not whole %s blocks", w.name, w.cols,
                       ds_dtype_get(w.type)->name);
    *out = w;
    return DS_OK;
}

static bool affine_fits(uint64_t per_group, int bits, int group)
{
    return bits >= 1 && bits <= 8 && (group == 32 || group == 64 || group == 128) &&
           (uint64_t)bits * (uint64_t)group == per_group;
}

ds_status ds_weight_affine(ds_weight *out, const char *path, const ds_tensor *words, const ds_tensor *scales,
                           const ds_tensor *biases, uint64_t cols, int bits, int group, ds_error *err)
{
    uint32_t rows = 0, width = 0, scale_rows = 0, groups = 1, bias_rows = 0, bias_groups = 0;
    if (scales->type == DS_U8)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: quantised with 8-bit scales (an fp4 or fp8 mode), which is not supported yet; "
                       "use an affine or GGUF quantisation",
                       path);
    if (!biases)
        return ds_fail(err, DS_BAD_FILE, "%s: has scales but %s.biases is missing", path, path);
    ds_status status = shape_of(words, &rows, &width, err);
    status = status ? status : shape_of(scales, &scale_rows, &groups, err);
    status = status ? status : shape_of(biases, &bias_rows, &bias_groups, err);
    if (status)
        return status;
    if (words->type != DS_U32 ||
        (scales->type != DS_F32 && scales->type != DS_F16 && scales->type != DS_BF16) ||
        biases->type != scales->type)
        return ds_fail(
            err, DS_BAD_FILE,
            "%s: a quantised module needs U32 weights and float scales and biases of one type, not "
            "%s, %s and %s",
            path, ds_dtype_get(words->type)->name, ds_dtype_get(scales->type)->name,
            ds_dtype_get(biases->type)->name);
    if (scale_rows != rows || bias_rows != rows || bias_groups != groups)
        return ds_fail(err, DS_BAD_FILE, "%s: weight has %u rows, scales [%u, %u], biases [%u, %u]", path,
                       rows, scale_rows, groups, bias_rows, bias_groups);
    uint64_t per_group = 32 * (uint64_t)width % groups ? 0 : 32 * (uint64_t)width / groups; /* bits * group */
    int found = 0, found_bits = 0, found_group = 0;
    for (int g = 32; g <= 128; g *= 2)
        for (int b = 1; b <= 8; b++)
            if (affine_fits(per_group, b, g) && (!cols || cols == (uint64_t)groups * (uint64_t)g) &&
                (cols || !bits || !group || (b == bits && g == group))) {
                found++;
                found_bits = b;
                found_group = g;
            }
    if (!found && bits && group && !cols)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: config.json says %d bits in groups of %d, but the shapes are [%u, %u] words and "
                       "[%u, %u] scales",
                       path, bits, group, rows, width, rows, groups);
    if (!found && !cols)
        return ds_fail(err, DS_BAD_FILE, "%s: [%u, %u] words and [%u, %u] scales fit no affine format", path,
                       rows, width, rows, groups);
    if (!found)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: [%u, %u] words and [%u, %u] scales are no affine matrix of %" PRIu64 " columns",
                       path, rows, width, rows, groups, cols);
    if (found > 1)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: the shapes fit several pairs of bits and group size, and config.json has no "
                       "quantization block",
                       path);
    if ((bits && bits != found_bits) || (group && group != found_group))
        return ds_fail(err, DS_BAD_FILE,
                       "%s: config.json says %d bits in groups of %d, the shapes say %d bits in groups of %d",
                       path, bits, group, found_bits, found_group);
    if ((uint64_t)groups * (uint64_t)found_group > UINT32_MAX)
        return ds_fail(err, DS_BAD_FILE, "%s: rows are too long", path);
    *out = (ds_weight){
        .name = words->name,
        .type = DS_AFFINE,
        .rows = rows,
        .cols = groups * (uint32_t)found_group,
        .codes = {.bits = found_bits, .group = found_group, .has_min = true, .scale_type = scales->type},
        .data = words->data,
        .bytes = words->bytes,
        .affine_bits = found_bits,
        .affine_group = found_group,
        .affine_scale_type = scales->type,
        .affine_scales = scales->data,
        .affine_biases = biases->data,
        .floats = affine_floats,
        .codes_row = affine_codes,
                   .packed_row = bits == 4 || bits == 8 ? affine_packed : NULL,
        .finite = finite_affine,
        .drop = drop_rows};
    return DS_OK;
}
