#include "formats/dequant.h"

#include "formats/blocks.h"

#include <math.h>

float ds_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 1023, bits;
    if (exp == 31) { /* infinity, NaN */
        bits = sign | 0x7F800000 | frac << 13;
    } else if (exp) {
        bits = sign | (exp + 112) << 23 | frac << 13;
    } else { /* zero, subnormal: frac * 2^-24, exact */
        float value = (float)frac * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    }
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

uint16_t ds_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x1FF)); /* NaN stays NaN */
    if (bits >= 0x477FF000)                                      /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (bits < 0x38800000) { /* below 2^-14: a whole number of 2^-24; the sum rounds to even for us */
        float mag, magic = 0.5f;
        memcpy(&mag, &bits, sizeof mag);
        mag += magic;
        memcpy(&bits, &mag, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3F000000));
    }
    bits += 0xFFF + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - 0x38000000) >> 13);
}

float ds_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

uint16_t ds_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void row_f32(const uint8_t *src, size_t n, float *out)
{
    if (n)
        memcpy(out, src, n * sizeof *out); /* the file need not be aligned */
}

static void row_f64(const uint8_t *src, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, src + 8 * i, sizeof value);
        out[i] = (float)value;
    }
}

static void row_f16(const uint8_t *src, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = ds_f16_to_f32(ds_le16(src + 2 * i));
}

static void row_bf16(const uint8_t *src, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = ds_bf16_to_f32(ds_le16(src + 2 * i));
}

/* Blocks of 32, 16 bytes of nibbles: low ones are inputs 0..15, high ones 16..31. */
static void row_q4_0(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 32, src += 18, out += 32) {
        float d = ds_f16_to_f32(ds_le16(src));
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((src[2 + i] & 15) - 8);
            out[i + 16] = d * (float)((src[2 + i] >> 4) - 8);
        }
    }
}

static void row_q4_1(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 32, src += 20, out += 32) {
        float d = ds_f16_to_f32(ds_le16(src)), m = ds_f16_to_f32(ds_le16(src + 2));
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)(src[4 + i] & 15) + m;
            out[i + 16] = d * (float)(src[4 + i] >> 4) + m;
        }
    }
}

/* As Q4, with bit 4 of every input in a word before the nibbles. */
static void row_q5_0(const uint8_t *src, size_t n, float *out)
{
    uint8_t codes[32];
    for (; n; n -= 32, src += 22, out += 32) {
        float d = ds_f16_to_f32(ds_le16(src));
        ds_q5_codes(src + 2, codes);
        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(codes[i] - 16);
    }
}

static void row_q5_1(const uint8_t *src, size_t n, float *out)
{
    uint8_t codes[32];
    for (; n; n -= 32, src += 24, out += 32) {
        float d = ds_f16_to_f32(ds_le16(src)), m = ds_f16_to_f32(ds_le16(src + 2));
        ds_q5_codes(src + 4, codes);
        for (int i = 0; i < 32; i++)
            out[i] = d * (float)codes[i] + m;
    }
}

static void row_q8_0(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 32, src += 34, out += 32) {
        float d = ds_f16_to_f32(ds_le16(src));
        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(int8_t)src[2 + i];
    }
}

/* E8M0 scale byte, 16 bytes of E2M1 nibbles; the table holds twice the value, so the scale is halved. */
static void row_mxfp4(const uint8_t *src, size_t n, float *out)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (; n; n -= 32, src += 17, out += 32) {
        float d = ldexpf(1, src[0] - 128);
        for (int i = 0; i < 16; i++) {
            out[i] = d * twice[src[1 + i] & 15];
            out[i + 16] = d * twice[src[1 + i] >> 4];
        }
    }
}

bool ds_dequant(ds_dtype type, const uint8_t *src, size_t n, float *out)
{
    static void (*const rows[DS_DTYPE_COUNT])(const uint8_t *src, size_t n, float *out) = {
        [DS_F32] = row_f32,          [DS_F64] = row_f64,      [DS_F16] = row_f16,
        [DS_BF16] = row_bf16,        [DS_Q4_0] = row_q4_0,    [DS_Q4_1] = row_q4_1,
        [DS_Q5_0] = row_q5_0,        [DS_Q5_1] = row_q5_1,    [DS_Q8_0] = row_q8_0,
        [DS_Q2_K] = ds_row_q2_k,     [DS_Q3_K] = ds_row_q3_k, [DS_Q4_K] = ds_row_q4_k,
        [DS_Q5_K] = ds_row_q5_k,     [DS_Q6_K] = ds_row_q6_k, [DS_IQ4_NL] = ds_row_iq4_nl,
        [DS_IQ4_XS] = ds_row_iq4_xs, [DS_MXFP4] = row_mxfp4,  [DS_TQ1_0] = ds_row_tq1_0,
        [DS_TQ2_0] = ds_row_tq2_0,
    };
    if ((unsigned)type >= DS_DTYPE_COUNT || !rows[type] || n % ds_dtype_get(type)->elems)
        return false;
    rows[type](src, n, out);
    return true;
}

/* Eight codes are `bits` whole bytes, whatever bits is. */
void ds_affine_codes(const uint8_t *row, int bits, size_t n, uint8_t *codes)
{
    uint64_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < n; i += 8, row += bits) {
        uint64_t word = 0;
        for (int b = 0; b < bits; b++)
            word |= (uint64_t)row[b] << 8 * b;
        for (int c = 0; c < 8; c++)
            codes[i + (size_t)c] = (uint8_t)(word >> c * bits & mask);
    }
}

void ds_affine_quantize(const float *w, int n, int bits, uint8_t *codes, float *scale, float *bias)
{
    float lo = w[0], hi = w[0], top = (float)((1 << bits) - 1);
    for (int i = 1; i < n; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = w[i] > hi ? w[i] : hi;
    }
    float s = fmaxf((hi - lo) / top, 1e-7f), edge = hi, b = 0;
    if (fabsf(lo) > fabsf(hi))
        edge = lo;
    else
        s = -s;
    float q0 = rintf(edge / s);
    if (q0 != 0) { /* the extreme of larger magnitude comes back exactly */
        s = edge / q0;
        b = edge;
    }
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)fminf(fmaxf(rintf((w[i] - b) / s), 0), top);
    *scale = s;
    *bias = b;
}
