/* ds_weight over tensors of a file. Internal to formats/; others get weights from a ds_checkpoint. */
#ifndef DS_FORMATS_WEIGHT_H
#define DS_FORMATS_WEIGHT_H

#include "formats/checkpoint.h"

/* A matrix of one tensor: floats or GGUF blocks. Of three and more dimensions (experts), all but the
 * last are taken as rows. Refuses types without a decoder, and more rows or columns than 32 bits hold. */
ds_status ds_weight_plain(ds_weight *out, const ds_tensor *tensor, ds_error *err);
/* An MLX affine matrix: packed words, float scales and biases, whose shapes say bits and group.
 * cols, bits, group 0: not known; with neither cols nor both others the shapes must leave one answer.
 * path: the module, for messages. */
ds_status ds_weight_affine(ds_weight *out, const char *path, const ds_tensor *words, const ds_tensor *scales,
                           const ds_tensor *biases, uint64_t cols, int bits, int group, ds_error *err);
#endif
