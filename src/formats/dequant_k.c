/* Super-blocks of 256 inputs, and the formats with a table of values. The products d * scale are
 * exact in fp32 (11 bits by at most 8), so each value is rounded at most once. */
#include "formats/blocks.h"
#include "formats/dequant.h"

static float half_at(const uint8_t *p)
{
    return ds_f16_to_f32(ds_le16(p));
}

/* Two-bit code number i of 256 in 64 bytes (Q2_K, Q3_K, TQ2_0): each half of 128 inputs has 32 bytes,
 * which hold inputs 0..31 in their lowest pair of bits, then 32..63 in the next. */
static int pair_at(const uint8_t *packed, int i)
{
    return packed[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

/* scales[16] (low nibble scale, high nibble minimum), codes[64], d, dmin */
void ds_row_q2_k(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 256, src += 84, out += 256) {
        float d = half_at(src + 80), dmin = half_at(src + 82);
        for (int i = 0; i < 256; i++) {
            uint8_t both = src[i / 16];
            out[i] = d * (float)(both & 15) * (float)pair_at(src + 16, i) - dmin * (float)(both >> 4);
        }
    }
}

/* high bits[32], codes[64], scales[12], d. The sixteen six-bit scales: low nibbles in bytes 0..7 (low
 * half of the byte for 0..7, high half for 8..15), top pairs in bytes 8..11. A high bit adds 4. */
void ds_row_q3_k(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 256, src += 110, out += 256) {
        const uint8_t *packed = src + 96;
        float d = half_at(src + 108);
        for (int i = 0; i < 256; i++) {
            int j = i / 16;
            int low = packed[j % 8] >> j / 8 * 4 & 15, high = packed[8 + j % 4] >> j / 4 * 2 & 3;
            int bit = src[i % 32] >> i / 32 & 1;
            out[i] = d * (float)((low | high << 4) - 32) * (float)(pair_at(src + 32, i) + 4 * bit - 4);
        }
    }
}

void ds_q4_k_codes(const uint8_t *src, uint8_t *codes)
{
    for (int i = 0; i < 256; i++) /* 32 bytes per 64 inputs: low nibbles, then high */
        codes[i] = src[16 + i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

void ds_q5_k_codes(const uint8_t *src, uint8_t *codes)
{
    for (int i = 0; i < 256; i++) {
        int low = src[48 + i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
        codes[i] = (uint8_t)(low | (src[16 + i % 32] >> i / 32 & 1) << 4);
    }
}

/* d, dmin, scales[12], then the codes */
static void k_block(const uint8_t *src, const uint8_t *codes, float *out)
{
    float d = half_at(src), dmin = half_at(src + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        ds_k_scale(src + 4, j, &scale, &min);
        float s = d * (float)scale, m = dmin * (float)min;
        for (int i = 32 * j; i < 32 * j + 32; i++)
            out[i] = s * (float)codes[i] - m;
    }
}

void ds_row_q4_k(const uint8_t *src, size_t n, float *out)
{
    uint8_t codes[256];
    for (; n; n -= 256, src += 144, out += 256) {
        ds_q4_k_codes(src, codes);
        k_block(src, codes, out);
    }
}

void ds_row_q5_k(const uint8_t *src, size_t n, float *out)
{
    uint8_t codes[256];
    for (; n; n -= 256, src += 176, out += 256) {
        ds_q5_k_codes(src, codes);
        k_block(src, codes, out);
    }
}

/* low nibbles[128], top pairs[64], scales[16] signed, d. Each half of 128 inputs: 64 bytes of nibbles
 * (low halves are inputs 0..63), 32 bytes of pairs. */
void ds_row_q6_k(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 256, src += 210, out += 256) {
        float d = half_at(src + 208);
        for (int i = 0; i < 256; i++) {
            int half = i / 128, in = i % 128;
            int low = src[half * 64 + in % 64] >> in / 64 * 4 & 15;
            int high = src[128 + half * 32 + in % 32] >> in / 32 * 2 & 3;
            out[i] = d * (float)(int8_t)src[192 + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void iq4_32(float d, const uint8_t *nibbles, float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * iq4_values[nibbles[i] & 15];
        out[i + 16] = d * iq4_values[nibbles[i] >> 4];
    }
}

void ds_row_iq4_nl(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 32, src += 18, out += 32)
        iq4_32(half_at(src), src + 2, out);
}

/* d, top pairs of the eight scales (u16), their low nibbles[4], codes[128] */
void ds_row_iq4_xs(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 256, src += 136, out += 256) {
        float d = half_at(src);
        for (int j = 0; j < 8; j++) {
            int low = src[4 + j / 2] >> j % 2 * 4 & 15, high = ds_le16(src + 2) >> 2 * j & 3;
            iq4_32(d * (float)((low | high << 4) - 32), src + 8 + 16 * j, out + 32 * j);
        }
    }
}

/* Digit number `digit` of a byte that holds five base-3 digits as a fraction of 256. */
static int trit(uint8_t packed, int digit)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(packed * powers[digit]) * 3 >> 8;
}

/* bytes 0..31: 160 inputs, 32 per digit; 32..47: 80, 16 per digit; 48..51: the last 16, 4 per digit; d */
void ds_row_tq1_0(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 256, src += 54, out += 256) {
        float d = half_at(src + 52);
        for (int i = 0; i < 160; i++)
            out[i] = d * (float)(trit(src[i % 32], i / 32) - 1);
        for (int i = 0; i < 80; i++)
            out[160 + i] = d * (float)(trit(src[32 + i % 16], i / 16) - 1);
        for (int i = 0; i < 16; i++)
            out[240 + i] = d * (float)(trit(src[48 + i % 4], i / 4) - 1);
    }
}

void ds_row_tq2_0(const uint8_t *src, size_t n, float *out)
{
    for (; n; n -= 256, src += 66, out += 256) {
        float d = half_at(src + 64);
        for (int i = 0; i < 256; i++)
            out[i] = d * (float)(pair_at(src, i) - 1);
    }
}
