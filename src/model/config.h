/* A model's settings, checked: what config.json (or GGUF metadata) says about its shape and rope.
 * Internal to model/. */
#ifndef DS_MODEL_CONFIG_H
#define DS_MODEL_CONFIG_H

#include "base/json.h"
#include "formats/checkpoint.h"
#include "model/family.h"

enum {
    DS_MAX_LAYERS = 512,
    DS_MAX_HIDDEN = 1 << 16,
    DS_MAX_INNER = 1 << 20, /* intermediate size; heads * head_dim */
    DS_MAX_HEAD_DIM = 512,
    DS_MAX_VOCAB = 1 << 22,
    DS_MAX_CONTEXT = 1 << 27,
    DS_MAX_EOS = 16,
};

typedef struct {
    const ds_family *family;
    int layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, context;
    double eps;
    bool qkv_bias, o_bias, mlp_bias;
    bool tied;
    int window; /* keys that a row of a sliding layer sees, itself included */
    bool sliding[DS_MAX_LAYERS];
    bool interleaved;                 /* pairs of rope */
    double freq[DS_MAX_HEAD_DIM / 2]; /* angles per position, [head_dim / 2] */
    double rope_scale;                /* of cos and sin */
    int n_eos;
    int32_t eos[DS_MAX_EOS];
} ds_config;

/* has_head: an output projection of its own is in the file; it decides where tie_word_embeddings is
 * absent. where: the file, for messages. Every refusal is DS_BAD_FILE and names file and key. */
ds_status ds_config_parse(ds_config *out, const json_t *config, bool has_head, const char *where,
                          ds_error *err);
/* Adds the EOS ids of obj (a number or a list; absent: none) that are not there yet. */
ds_status ds_config_add_eos(ds_config *config, const json_t *obj, const char *where, ds_error *err);
/* All of a checkpoint: its config, generation_config.json beside it, rope divisors of GGUF files. */
ds_status ds_config_read(ds_config *out, const ds_checkpoint *ckpt, ds_error *err);

/* rope.c: fills freq and rope_scale from rope_theta and rope_scaling; head_dim and context are set. */
ds_status ds_rope_parse(ds_config *out, const json_t *config, const char *where, ds_error *err);

#endif
