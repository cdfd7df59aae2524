/* Drafters come in many packagings of the same few networks. What runs is found by the table in
 * drafter.c; everything else that is known is refused here with its own name and a way out, since a
 * misread head would run without an error at a fraction of its speed. */
#include "draft/kind.h"

#include <string.h>
#include <strings.h>

#define SUPPORTED "supported are DSpark drafters in DeepSpec layout (docs/drafters.md)"

static bool has_part(const json_t *text, const char *part)
{
    const char *s = json_string_value(text);
    size_t n = strlen(part);
    for (; s && *s; s++)
        if (strncasecmp(s, part, n) == 0)
            return true;
    return false;
}

bool ds_config_mentions(const json_t *obj, const char *key, const char *part)
{
    const json_t *value = json_object_get(obj, key);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (has_part(json_array_get(value, i), part))
            return true;
    return has_part(value, part);
}

bool ds_config_set(const json_t *obj, const char *key)
{
    const json_t *value = json_object_get(obj, key);
    return value && !json_is_null(value);
}

bool ds_config_true(const json_t *obj, const char *key)
{
    const json_t *value = json_object_get(obj, key);
    return json_is_true(value) || (json_is_number(value) && json_number_value(value) != 0);
}

static bool has_prefix(const json_t *obj, const char *prefix)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)obj, key, value) if (strncmp(key, prefix, strlen(prefix)) == 0) return true;
    return false;
}

/* modelopt says so in config.json, in hf_quant_config.json, or only by its tensors' names. */
static bool is_nvfp4(const ds_checkpoint *ckpt, const json_t *config)
{
    const json_t *quant = json_object_get(config, "quantization_config");
    if (ds_config_mentions(quant, "quant_method", "modelopt") ||
        ds_config_mentions(quant, "quant_algo", "NVFP4"))
        return true;
    for (size_t i = 0; i < ds_checkpoint_count(ckpt); i++) {
        const char *name = ds_checkpoint_at(ckpt, i)->name;
        size_t len = strlen(name);
        if (len > 13 && strcmp(name + len - 13, ".weight_scale") == 0)
            return true;
    }
    return false;
}

ds_status ds_draft_refuse(const ds_checkpoint *ckpt, ds_error *err)
{
    const char *path = ds_checkpoint_path(ckpt);
    const json_t *config = ds_checkpoint_config(ckpt);
    const json_t *dflash = json_object_get(config, "dflash_config");
    if (ds_checkpoint_gguf(ckpt) != NULL)
        return ds_fail(err, DS_BAD_FILE, "%s: drafters in GGUF files are not supported yet; " SUPPORTED,
                       path);
    if (json_object_get(config, "speculators_config") || json_object_get(config, "speculators_model_type")) {
        const char *algorithm = json_string_value(json_object_get(config, "speculators_model_type"));
        if (!algorithm)
            algorithm = json_string_value(
                json_object_get(json_object_get(config, "speculators_config"), "algorithm"));
        if (!algorithm || strcmp(algorithm, "dspark"))
            return ds_fail(
                err, DS_BAD_FILE,
                "%s: a speculators drafter whose algorithm is %s, which is not supported; " SUPPORTED, path,
                algorithm ? algorithm : "not given");
        return ds_fail(
            err, DS_BAD_FILE,
            "%s: a DSpark drafter packaged as vLLM speculators, which is not supported yet; " SUPPORTED,
            path);
    }
    if (ds_config_mentions(dflash, "projector_type", "dspark"))
        return ds_fail(
            err, DS_BAD_FILE,
            "%s: a DSpark drafter packaged by SpecForge / SGLang, which is not supported yet; " SUPPORTED,
            path);
    if (ds_config_mentions(config, "architectures", "dspark") && !ds_config_set(config, "target_layer_ids") &&
        ds_config_set(dflash, "target_layer_ids"))
        return ds_fail(err, DS_BAD_FILE,
                       "%s: a DSpark drafter packaged by LiquidAI, which is not supported yet; " SUPPORTED,
                       path);
    if (is_nvfp4(ckpt, config))
        return ds_fail(
            err, DS_BAD_FILE,
            "%s: a drafter quantised by modelopt (NVFP4), which is not supported yet; use its bf16 "
            "original",
            path);
    if (ds_config_mentions(config, "architectures", "dflash2") || ds_config_true(dflash, "selector_rank"))
        return ds_fail(err, DS_BAD_FILE, "%s: a DFlash 2 drafter, which is not supported yet; " SUPPORTED,
                       path);
    if (ds_config_mentions(config, "architectures", "dflash"))
        return ds_fail(err, DS_BAD_FILE, "%s: a DFlash drafter%s, which is not supported%s; " SUPPORTED, path,
                       ds_config_set(config, "markov_rank") ? " with a Markov head" : "",
                       ds_config_set(config, "markov_rank") ? "" : " yet");
    if (ds_config_mentions(config, "architectures", "eagle") ||
        ds_config_mentions(config, "model_type", "eagle") || has_prefix(config, "eagle"))
        return ds_fail(err, DS_BAD_FILE, "%s: an EAGLE drafter, which is not supported; " SUPPORTED, path);
    if (ds_config_mentions(config, "architectures", "medusa") || has_prefix(config, "medusa"))
        return ds_fail(err, DS_BAD_FILE, "%s: a Medusa drafter, which is not supported; " SUPPORTED, path);
    if (!ds_config_set(config, "block_size")) {
        if (has_prefix(config, "dspark_"))
            return ds_fail(
                err, DS_BAD_FILE,
                "%s: a full model with an embedded DSpark drafter, which cannot be used as a drafter of "
                "its own",
                path);
        if (ds_config_set(config, "num_nextn_predict_layers") || has_prefix(config, "mtp_"))
            return ds_fail(err, DS_BAD_FILE,
                           "%s: a full model (with multi-token prediction layers), not a drafter; " SUPPORTED,
                           path);
        return ds_fail(err, DS_BAD_FILE,
                       "%s: not a drafter: its config.json has no block_size; is it a target model?", path);
    }
    return DS_OK;
}
