/* A model on disk, whatever its packaging: a GGUF file, or a folder with config.json and
 * *.safetensors. Tensor names and settings are always given in the Hugging Face spelling
 * ("model.layers.0.self_attn.q_proj", "hidden_size"); GGUF names and metadata are translated.
 *
 * Files are untrusted: every offset and length is checked against the bytes that are there. */
#ifndef DS_FORMATS_CHECKPOINT_H
#define DS_FORMATS_CHECKPOINT_H

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "tensor/weight.h"

typedef struct ds_checkpoint ds_checkpoint;
typedef struct ds_gguf ds_gguf;

typedef struct {
    const char *name; /* Hugging Face spelling, e.g. "model.norm.weight" */
    ds_dtype type;
    int rank;
    uint64_t dims[4]; /* slowest first, unused ones 1; a fifth dimension and on are folded into dims[3] */
    const uint8_t *data;
    uint64_t bytes;
} ds_tensor;

/* path: a .gguf file or a folder. On failure *out is NULL. The mapping lives until close. */
ds_status ds_checkpoint_open(ds_checkpoint **out, const char *path, ds_error *err);
void ds_checkpoint_close(ds_checkpoint *ckpt);

const char *ds_checkpoint_path(const ds_checkpoint *ckpt);
uint64_t ds_checkpoint_bytes(const ds_checkpoint *ckpt); /* of all weight files */
/* Adds a line for every file (path without links, size, time of change, inode): what is made from a
 * checkpoint stays good for as long as this text does. */
ds_status ds_checkpoint_identity(const ds_checkpoint *ckpt, ds_buf *out, ds_error *err);
/* config.json, or the same keys made from GGUF metadata: model_type ("llama", "qwen3"), hidden_size,
 * num_hidden_layers, intermediate_size, num_attention_heads, num_key_value_heads, head_dim,
 * rms_norm_eps, vocab_size, max_position_embeddings, rope_theta, rope_scaling, rope_traditional
 * (true for llama GGUF, whose q/k rows are stored for interleaved pairs), tie_word_embeddings,
 * eos_token_id (list), bos_token_id. Borrowed. */
json_t *ds_checkpoint_config(const ds_checkpoint *ckpt);
/* The file behind it, for its metadata (formats/gguf.h); NULL for folders. Borrowed. */
const ds_gguf *ds_checkpoint_gguf(const ds_checkpoint *ckpt);

size_t ds_checkpoint_count(const ds_checkpoint *ckpt);
const ds_tensor *ds_checkpoint_at(const ds_checkpoint *ckpt, size_t i);           /* sorted by name */
const ds_tensor *ds_checkpoint_find(const ds_checkpoint *ckpt, const char *name); /* NULL: none */

/* The matrix of module `path` ("model.layers.0.mlp.up_proj"): reads PATH.weight, and PATH.scales and
 * PATH.biases where the module is MLX-quantised. rows / cols 0: any, else a mismatch is DS_BAD_FILE
 * naming both shapes. Of stacked matrices (experts) all dimensions but the last are rows. A missing
 * tensor is DS_BAD_FILE. Nothing of the matrix is read: out->finite is left to whoever takes it in. */
ds_status ds_checkpoint_weight(const ds_checkpoint *ckpt, const char *path, uint32_t rows, uint32_t cols,
                               ds_weight *out, ds_error *err);
bool ds_checkpoint_has(const ds_checkpoint *ckpt, const char *path); /* PATH.weight is there */
/* A vector (norm, bias, sink): any float type to fp32, out[n]; n must match the tensor's element
 * count. name is the full tensor name. */
ds_status ds_checkpoint_vector(const ds_checkpoint *ckpt, const char *name, float *out, size_t n,
                               ds_error *err);

#endif
