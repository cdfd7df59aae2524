/* A view of an unquantised weight as if its file held MLX affine codes: rows are quantised on the fly,
 * so that a backend can take a bf16 matrix in as integers without a quantised copy of it on disk. */
#ifndef DS_FORMATS_REQUANT_H
#define DS_FORMATS_REQUANT_H

#include "base/error.h"
#include "tensor/weight.h"

#include <stdbool.h>

/* src: F32, F16 or BF16, of whole groups. It must outlive *out and what a backend makes of it (a table
 * decodes rows for as long as it lives). bits 2..8; group 32, 64 or 128. Scales and biases are rounded
 * to src's type, as a file of that type would hold them; the codes are chosen with the unrounded ones. */
ds_status ds_weight_requant(const ds_weight *src, int bits, int group, ds_weight *out, ds_error *err);

/* A view of a Q8_0 weight in 4 bits (a scale for 32 inputs, codes - 8): for matrices that may be
 * approximate. False: src is of another type. No other lifetime than src's data. */
bool ds_weight_narrow(const ds_weight *src, ds_weight *out);

#endif
