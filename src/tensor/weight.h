/* A weight matrix as its file has it, seen through the two ways a backend can take it in: rows of
 * codes with scales (integer path) or rows of fp32 values (exact). Made by formats/, read by
 * backend/, which need not know any file format. */
#ifndef DS_TENSOR_WEIGHT_H
#define DS_TENSOR_WEIGHT_H

#include "tensor/dtype.h"

#include <stddef.h>

/* Integer form: w[n][k] = scale[n][k / group] * (code[n][k] - zero) + min[n][k / group] */
typedef struct {
    int bits;            /* codes are 0 .. 2^bits - 1; 0: this weight has no integer form */
    int group;           /* 32, 64 or 128 inputs share a scale; cols is a multiple of it */
    int zero;            /* whole number taken off every code; 0 where has_min */
    bool has_min;
    ds_dtype scale_type; /* DS_F16, DS_BF16 or DS_F32: the narrowest that holds every scale and min exactly */
} ds_codes;

typedef struct ds_weight {
    const char *name;    /* as in the file, for messages; lives as long as the checkpoint */
    ds_dtype type;
    uint32_t rows, cols; /* [out][in] */
    ds_codes codes;
    const uint8_t *data; /* the file's bytes, in a mapping that outlives the weight */
    uint64_t bytes;
    /* MLX affine only */
    int affine_bits, affine_group;
    ds_dtype affine_scale_type;
    const uint8_t *affine_scales, *affine_biases;
    const void *owner;   /* for the decoders below: whatever the maker needs to find its data */
    /* Decoders set by formats/. row < rows. Thread-safe: they only read the mapping. */
    void (*floats)(const struct ds_weight *w, uint32_t row, float *out /* [cols] */);
    /* NULL where codes.bits == 0. scales, mins: [cols / group]; mins untouched unless has_min. */
    void (*codes_row)(const struct ds_weight *w, uint32_t row, uint8_t *codes /* [cols] */,
                      float *scales, float *mins);
    /* codes_row without conversions, for formats whose bytes allow it; NULL: use codes_row. bits <= 4: byte
     * 16b+i holds the codes of inputs 32b+i (low nibble) and 32b+16+i; 8: a byte a code. scales, mins:
     * [cols / group] of scale_type as they are in the file. */
    void (*packed_row)(const struct ds_weight *w, uint32_t row, uint8_t *bytes, void *scales, void *mins);
    /* False where a scale or minimum of rows [begin, end) is NaN or infinite, as only a damaged file has
     * them; NULL: this weight has none. Whoever takes a weight in asks once, when it reads the rows anyway. */
    bool (*finite)(const struct ds_weight *w, uint32_t begin, uint32_t end);
    /* Lets the file's pages of rows [begin, end) go from resident memory; NULL: nothing to drop. */
    void (*drop)(const struct ds_weight *w, uint32_t begin, uint32_t end);
} ds_weight;

#endif
