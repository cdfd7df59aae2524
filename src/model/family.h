/* Families of models, as descriptions over shared blocks. docs/adding-a-family.md tells how to add one. */
#ifndef DS_MODEL_FAMILY_H
#define DS_MODEL_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ds_pass ds_pass; /* one forward under way: blocks.h */

/* Modules ("...q_proj": its .weight, .bias, .scales) and vectors ("....weight") of a decoder made of
 * attention and a gated MLP. The layer's names follow "model.layers.N.". */
typedef struct {
    const char *embed, *norm, *head, *layer; /* layer: printf format of the prefix, one %d */
    const char *input_norm, *post_norm;
    const char *q, *k, *v, *o, *q_norm, *k_norm;
    const char *gate, *up, *down;
} ds_names;

typedef struct {
    const char *name;
    const char *aliases[5]; /* other model_types that are the same thing; NULL ends them */
    bool qk_norm;           /* q and k are normed per head before rope */
    bool qkv_bias;          /* q, k, v have biases whatever the config says, o has none */
    const ds_names *names;
    void (*layer)(ds_pass *pass, int layer); /* residual stream in, residual stream out */
} ds_family;

const ds_family *ds_family_find(const char *model_type); /* NULL: unknown */
/* "llama (also mistral, ...), qwen3, ..." for messages. */
void ds_family_list(char *out, size_t size);

#endif
