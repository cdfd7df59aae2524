/* Shared between the block decoders and ds_weight: little endian reads, code unpacking, and the row
 * decoders that live in dequant_k.c. Internal to formats/. */
#ifndef DS_FORMATS_BLOCKS_H
#define DS_FORMATS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t ds_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t ds_le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t ds_le64(const uint8_t *p)
{
    return ds_le32(p) | (uint64_t)ds_le32(p + 4) << 32;
}

/* 16 bytes of nibbles to 32 codes: low ones first, then high ones. */
static inline void ds_q4_codes(const uint8_t *nibbles, uint8_t *codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = nibbles[i] & 15;
        codes[i + 16] = nibbles[i] >> 4;
    }
}

/* A word of fifth bits, then nibbles as above. */
static inline void ds_q5_codes(const uint8_t *packed, uint8_t *codes)
{
    uint32_t high = ds_le32(packed);
    ds_q4_codes(packed + 4, codes);
    for (int i = 0; i < 32; i++)
        codes[i] |= (uint8_t)((high >> i & 1) << 4);
}

/* Scale and minimum number j of 8 in the 12 packed bytes of Q4_K and Q5_K: six bits each. The last four
 * keep their low nibble in bytes 8..11 and their top two bits above the first four. */
static inline void ds_k_scale(const uint8_t *packed, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *min = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

/* The codes of one block of 256. src: the block. */
void ds_q4_k_codes(const uint8_t *src, uint8_t *codes);
void ds_q5_k_codes(const uint8_t *src, uint8_t *codes);

/* n is a multiple of the block's elements. */
void ds_row_q2_k(const uint8_t *src, size_t n, float *out);
void ds_row_q3_k(const uint8_t *src, size_t n, float *out);
void ds_row_q4_k(const uint8_t *src, size_t n, float *out);
void ds_row_q5_k(const uint8_t *src, size_t n, float *out);
void ds_row_q6_k(const uint8_t *src, size_t n, float *out);
void ds_row_iq4_nl(const uint8_t *src, size_t n, float *out);
void ds_row_iq4_xs(const uint8_t *src, size_t n, float *out);
void ds_row_tq1_0(const uint8_t *src, size_t n, float *out);
void ds_row_tq2_0(const uint8_t *src, size_t n, float *out);

#endif
