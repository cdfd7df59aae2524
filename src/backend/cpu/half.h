/* fp16 and bf16 in portable C, for the references and the packer. */
#ifndef DS_BACKEND_CPU_HALF_H
#define DS_BACKEND_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float ds_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t ds_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float ds_half_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag >= 0x7c00) /* infinity, NaN (made quiet, as the hardware does) */
        return ds_bits_float(sign | 0x7f800000 | mag << 13 | (mag > 0x7c00 ? 0x400000 : 0));
    float f = mag >= 0x0400 ? ds_bits_float((mag << 13) + (112u << 23)) : (float)mag * 0x1p-24f;
    return ds_bits_float(sign | ds_float_bits(f));
}

/* rounds to nearest even; NaN keeps the top of its payload and becomes quiet */
static inline uint16_t ds_float_half(float f)
{
    uint32_t u = ds_float_bits(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) /* below 2^-14: adding 1/2 leaves the result's bits at the bottom of the sum */
        return (uint16_t)(sign | (ds_float_bits(ds_bits_float(mag) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (mag - (112u << 23) + 0xfff + (mag >> 13 & 1)) >> 13);
}

static inline float ds_bf16_float(uint16_t h)
{
    return ds_bits_float((uint32_t)h << 16);
}

/* rounds to nearest even; NaN becomes quiet */
static inline uint16_t ds_float_bf16(float f)
{
    uint32_t u = ds_float_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif
