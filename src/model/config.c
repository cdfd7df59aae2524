#include "model/config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* A whole number in [min, max] that must be there. */
static ds_status need_int(const json_t *config, const char *key, int min, int max, int *out,
                          const char *where, ds_error *err)
{
    int64_t value = INT64_MIN;
    ds_status status = ds_json_int(config, key, min, max, &value, where, err);
    if (status)
        return status;
    if (value == INT64_MIN)
        return ds_fail(err, DS_BAD_FILE, "%s: %s is missing", where, key);
    *out = (int)value;
    return DS_OK;
}

static ds_status find_family(ds_config *out, const json_t *config, const char *where, ds_error *err)
{
    const char *type = NULL, *code = NULL;
    ds_status status = ds_json_text(config, "model_type", &type, where, err);
    if (!status)
        status = ds_json_text(config, "model_file", &code, where, err);
    if (status)
        return status;
    if (!type)
        return ds_fail(err, DS_BAD_FILE, "%s: model_type is missing", where);
    if (code)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: model_file asks for code of the checkpoint to be run, which is never done",
                       where);
    out->family = ds_family_find(type);
    if (!out->family) {
        char list[200];
        ds_family_list(list, sizeof list);
        return ds_fail(err, DS_BAD_FILE, "%s: model_type \"%.60s\" is not supported; supported are %s", where,
                       type, list);
    }
    return DS_OK;
}

static ds_status read_shape(ds_config *c, const json_t *config, const char *where, ds_error *err)
{
    ds_status status;
    if ((status = need_int(config, "hidden_size", 1, DS_MAX_HIDDEN, &c->hidden, where, err)) ||
        (status = need_int(config, "num_hidden_layers", 1, DS_MAX_LAYERS, &c->layers, where, err)) ||
        (status = need_int(config, "intermediate_size", 1, DS_MAX_INNER, &c->intermediate, where, err)) ||
        (status = need_int(config, "num_attention_heads", 1, DS_MAX_HIDDEN, &c->heads, where, err)) ||
        (status = need_int(config, "vocab_size", 1, DS_MAX_VOCAB, &c->vocab, where, err)) ||
        (status = need_int(config, "max_position_embeddings", 1, DS_MAX_CONTEXT, &c->context, where, err)))
        return status;
    c->kv_heads = c->heads;
    status = ds_json_int32(config, "num_key_value_heads", 1, DS_MAX_HIDDEN, &c->kv_heads, where, err);
    if (status)
        return status;
    if (c->heads % c->kv_heads)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: num_attention_heads (%d) must be a multiple of num_key_value_heads (%d)", where,
                       c->heads, c->kv_heads);
    c->head_dim = 0;
    status = ds_json_int32(config, "head_dim", 8, DS_MAX_HEAD_DIM, &c->head_dim, where, err);
    if (status)
        return status;
    if (!c->head_dim) {
        if (c->hidden % c->heads)
            return ds_fail(err, DS_BAD_FILE,
                           "%s: hidden_size (%d) must be a multiple of num_attention_heads (%d) where there "
                           "is no head_dim",
                           where, c->hidden, c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (c->head_dim % 8 || c->head_dim > DS_MAX_HEAD_DIM)
        return ds_fail(err, DS_BAD_FILE, "%s: head_dim (%d) must be a multiple of 8 up to %d", where,
                       c->head_dim, DS_MAX_HEAD_DIM);
    if (c->heads > DS_MAX_INNER / c->head_dim)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: num_attention_heads (%d) times head_dim (%d) must be at most %d", where, c->heads,
                       c->head_dim, DS_MAX_INNER);
    c->eps = -1;
    /* above zero: a row of zeros is divided by its root */
    status = ds_json_num(config, "rms_norm_eps", 1e-20, 0.1, &c->eps, where, err);
    if (!status && c->eps < 0)
        status = ds_fail(err, DS_BAD_FILE, "%s: rms_norm_eps is missing", where);
    return status;
}

/* Layers are full unless layer_types says otherwise: sliding_window alone stands in the configs of
 * models that do not slide. */
static ds_status read_windows(ds_config *c, const json_t *config, const char *where, ds_error *err)
{
    ds_status status = ds_json_int32(config, "sliding_window", 1, INT_MAX, &c->window, where, err);
    const json_t *types = json_object_get(config, "layer_types");
    if (status || !types || json_is_null(types))
        return status;
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->layers)
        return ds_fail(err, DS_BAD_FILE, "%s: layer_types must be a list of num_hidden_layers (%d) names",
                       where, c->layers);
    for (int i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        c->sliding[i] = type && strcmp(type, "sliding_attention") == 0;
        if (!c->sliding[i] && (!type || strcmp(type, "full_attention") != 0))
            return ds_fail(err, DS_BAD_FILE,
                           "%s: layer_types[%d] must be \"full_attention\" or \"sliding_attention\"", where,
                           i);
        if (c->sliding[i] && !c->window)
            return ds_fail(err, DS_BAD_FILE, "%s: sliding_window is missing, which layer_types needs", where);
    }
    return DS_OK;
}

ds_status ds_config_add_eos(ds_config *c, const json_t *obj, const char *where, ds_error *err)
{
    const json_t *value = json_object_get(obj, "eos_token_id");
    if (!value || json_is_null(value))
        return DS_OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        int64_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            return ds_fail(err, DS_BAD_FILE, "%s: eos_token_id must be a token number or a list of them",
                           where);
        bool known = false;
        for (int j = 0; j < c->n_eos; j++)
            known |= c->eos[j] == id;
        if (known)
            continue;
        if (c->n_eos == DS_MAX_EOS)
            return ds_fail(err, DS_BAD_FILE, "%s: eos_token_id lists more than %d tokens", where, DS_MAX_EOS);
        c->eos[c->n_eos++] = (int32_t)id;
    }
    return DS_OK;
}

ds_status ds_config_parse(ds_config *out, const json_t *config, bool has_head, const char *where,
                          ds_error *err)
{
    memset(out, 0, sizeof *out);
    if (!json_is_object(config))
        return ds_fail(err, DS_BAD_FILE, "%s: not a JSON object", where);
    ds_status status;
    if ((status = find_family(out, config, where, err)) || (status = read_shape(out, config, where, err)))
        return status;

    const char *act = "silu";
    bool bias = false;
    out->tied = !has_head;
    if ((status = ds_json_text(config, "hidden_act", &act, where, err)) ||
        (status = ds_json_bool(config, "attention_bias", &bias, where, err)) ||
        (status = ds_json_bool(config, "mlp_bias", &out->mlp_bias, where, err)) ||
        (status = ds_json_bool(config, "tie_word_embeddings", &out->tied, where, err)) ||
        (status = ds_json_bool(config, "rope_traditional", &out->interleaved, where, err)))
        return status;
    if (strcmp(act, "silu") != 0)
        return ds_fail(err, DS_BAD_FILE, "%s: hidden_act \"%.40s\" is not supported; silu is", where, act);
    out->qkv_bias = bias || out->family->qkv_bias;
    out->o_bias = bias && !out->family->qkv_bias;
    if ((status = read_windows(out, config, where, err)) || (status = ds_rope_parse(out, config, where, err)))
        return status;
    return ds_config_add_eos(out, config, where, err);
}

/* Per-pair divisors that llama 3 GGUF files carry instead of rope_scaling. */
static ds_status divide_freqs(ds_config *c, const ds_checkpoint *ckpt, ds_error *err)
{
    float divisors[DS_MAX_HEAD_DIM / 2];
    if (!ds_checkpoint_find(ckpt, "rope_freqs.weight"))
        return DS_OK;
    ds_status status =
        ds_checkpoint_vector(ckpt, "rope_freqs.weight", divisors, (size_t)c->head_dim / 2, err);
    if (status)
        return status;
    for (int i = 0; i < c->head_dim / 2; i++) {
        if (!(divisors[i] >= 1e-6f && divisors[i] <= 1e30f))
            return ds_fail(err, DS_BAD_FILE, "%s: rope_freqs.weight[%d] is %g, not a divisor above zero",
                           ds_checkpoint_path(ckpt), i, (double)divisors[i]);
        c->freq[i] /= (double)divisors[i];
    }
    return DS_OK;
}

ds_status ds_config_read(ds_config *out, const ds_checkpoint *ckpt, ds_error *err)
{
    const char *path = ds_checkpoint_path(ckpt);
    bool gguf = ds_checkpoint_gguf(ckpt) != NULL;
    char where[4096];
    snprintf(where, sizeof where, gguf ? "%s" : "%s/config.json", path);
    ds_status status =
        ds_config_parse(out, ds_checkpoint_config(ckpt), ds_checkpoint_has(ckpt, "lm_head"), where, err);
    if (status)
        return status;
    if (gguf)
        return divide_freqs(out, ckpt, err);
    if (snprintf(where, sizeof where, "%s/generation_config.json", path) >= (int)sizeof where ||
        !ds_file_exists(where))
        return DS_OK;
    json_t *generation;
    status = ds_json_load(&generation, where, 1 << 20, err);
    if (!status)
        status = ds_config_add_eos(out, generation, where, err);
    json_decref(generation);
    return status;
}
