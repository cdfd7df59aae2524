/* Reference decoders of every block format, bit-exact to the file's own values, and the affine
 * quantiser. src points at one row (or any whole number of blocks). */
#ifndef DS_FORMATS_DEQUANT_H
#define DS_FORMATS_DEQUANT_H

#include "tensor/dtype.h"

#include <stddef.h>

float ds_f16_to_f32(uint16_t h);
uint16_t ds_f32_to_f16(float f); /* round to nearest even */
float ds_bf16_to_f32(uint16_t h);
uint16_t ds_f32_to_bf16(float f); /* round to nearest even */

/* GGUF block types, F64, F32, F16, BF16: n elements (a multiple of the block's). False: no decoder. */
bool ds_dequant(ds_dtype type, const uint8_t *src, size_t n, float *out);
/* MLX affine: the codes of n inputs (multiple of 32) from the row's bit stream. bits 1..8. */
void ds_affine_codes(const uint8_t *row, int bits, size_t n, uint8_t *codes);
/* The MLX quantiser of one group of n fp32 values: codes[n], scale, bias (see docs/numerics.md). */
void ds_affine_quantize(const float *w, int n, int bits, uint8_t *codes, float *scale, float *bias);

#endif
