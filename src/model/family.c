#include "model/family.h"

#include "model/blocks.h"

#include <stdio.h>
#include <string.h>

/* What most decoders on the Hugging Face hub use. */
static const ds_names hf_names = {
    .embed = "model.embed_tokens",
    .norm = "model.norm.weight",
    .head = "lm_head",
    .layer = "model.layers.%d.",
    .input_norm = "input_layernorm.weight",
    .post_norm = "post_attention_layernorm.weight",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm.weight",
    .k_norm = "self_attn.k_norm.weight",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

/* h = x + attention(rms(x)); y = h + mlp(rms(h)) */
static void dense_layer(ds_pass *pass, int layer)
{
    ds_block_attention(pass, layer);
    ds_block_mlp(pass, layer);
}

static const ds_family families[] = {
    {.name = "llama",
     .aliases = {"mistral", "iquestcoder", "xverse"},
     .names = &hf_names,
     .layer = dense_layer},
    {.name = "qwen2", .qkv_bias = true, .names = &hf_names, .layer = dense_layer},
    {.name = "qwen3", .qk_norm = true, .names = &hf_names, .layer = dense_layer},
};

const ds_family *ds_family_find(const char *model_type)
{
    for (size_t f = 0; f < COUNT(families); f++) {
        if (strcmp(families[f].name, model_type) == 0)
            return &families[f];
        for (size_t a = 0; a < COUNT(families[f].aliases) && families[f].aliases[a]; a++)
            if (strcmp(families[f].aliases[a], model_type) == 0)
                return &families[f];
    }
    return NULL;
}

void ds_family_list(char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t f = 0; f < COUNT(families) && used < size; f++) {
        used += (size_t)snprintf(out + used, size - used, "%s%s", f ? ", " : "", families[f].name);
        bool open = false;
        for (size_t a = 0; a < COUNT(families[f].aliases) && families[f].aliases[a] && used < size; a++) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", open ? ", " : " (also ",
                                     families[f].aliases[a]);
            open = true;
        }
        if (open && used < size)
            used += (size_t)snprintf(out + used, size - used, ")");
    }
}
