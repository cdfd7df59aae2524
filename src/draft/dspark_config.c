#include "draft/dspark_config.h"

#include "base/buf.h"

#include <limits.h>
#include <math.h>
#include <string.h>

bool ds_dspark_recognise(const json_t *config)
{
    return ds_config_mentions(config, "model_type", "qwen3") ||
           ds_config_mentions(config, "model_type", "gemma4");
}

static ds_status check_required(const json_t *config, const char *where, ds_error *err)
{
    static const char *const keys[] = {"hidden_size",       "vocab_size",          "num_hidden_layers",
                                       "intermediate_size", "num_attention_heads", "block_size",
                                       "mask_token_id",     "target_layer_ids"};
    ds_buf missing = {.max = 256};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (!ds_config_set(config, keys[i]))
            ds_buf_fmt(&missing, "%s%s", missing.len ? ", " : "", keys[i]);
    ds_status status = DS_OK;
    if (missing.len)
        status =
            ds_fail(err, DS_BAD_FILE, "%s: the drafter's config.json lacks %s", where, ds_buf_text(&missing));
    ds_buf_release(&missing);
    return status;
}

static bool has_sliding_layers(const json_t *config)
{
    return ds_config_mentions(config, "layer_types", "sliding");
}

/* A reading that is close but wrong runs without an error and is only slow: refuse what is not there. */
static const char *unsupported_trait(const json_t *config)
{
    const json_t *dflash = json_object_get(config, "dflash_config");
    const json_t *rope = json_object_get(config, "rope_parameters");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *act = json_string_value(json_object_get(config, "hidden_act"));
    if (ds_config_mentions(config, "model_type", "gemma4") &&
        !ds_config_mentions(config, "model_type", "qwen3"))
        return "a gemma4 body";
    if (ds_config_true(config, "enable_qwen35_gated_q_proj") || (type && strcmp(type, "qwen3_5") == 0))
        return "a qwen3_5 body (gated queries, offset norms)";
    if (ds_config_true(config, "dflash_query_causal") || ds_config_true(dflash, "causal"))
        return "a causal block";
    if (ds_config_true(config, "attention_sink_bias"))
        return "attention sinks";
    if (ds_config_true(dflash, "use_swa") ||
        (dflash && ds_config_true(config, "sliding_window") &&
         (ds_config_true(config, "use_sliding_window") || has_sliding_layers(config))))
        return "a sliding window";
    if (ds_config_true(config, "log_snr_conditioning"))
        return "log-SNR conditioning";
    if (ds_config_mentions(rope, "rope_type", "yarn") || ds_config_mentions(rope, "type", "yarn"))
        return "yarn rope scaling";
    if (act && strcmp(act, "silu"))
        return "an activation other than silu";
    return NULL;
}

static ds_status read_taps(ds_dspark_config *c, const json_t *config, const char *where, ds_error *err)
{
    const json_t *list = json_object_get(config, "target_layer_ids");
    size_t n = json_array_size(list);
    if (n < 1 || n > DS_MAX_TAPS)
        return ds_fail(err, DS_BAD_FILE, "%s: target_layer_ids must list 1 to %d layers", where, DS_MAX_TAPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < -1 || id > 4096 || (i && id <= c->taps[i - 1]))
            return ds_fail(
                err, DS_BAD_FILE,
                "%s: target_layer_ids must be strictly increasing layer numbers (-1: the embedding)", where);
        c->taps[i] = (int)id;
    }
    c->n_taps = (int)n;
    return DS_OK;
}

/* One number for all slots, or a list with one a slot of the block or a predicting slot. */
static ds_status read_temperatures(ds_dspark_config *c, const json_t *config, const char *where,
                                   ds_error *err)
{
    const json_t *value = json_object_get(config, "confidence_temperatures");
    if (!value || json_is_null(value))
        return DS_OK;
    int slots = c->block - c->logits_start;
    size_t n = json_array_size(value);
    if (!json_is_number(value) && n != (size_t)slots && n != (size_t)c->block)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: confidence_temperatures must be a number or a list of %d numbers", where, slots);
    for (int i = 0; i < slots; i++) {
        const json_t *item =
            n ? json_array_get(value, (size_t)i + (n == (size_t)slots ? 0 : (size_t)c->logits_start)) : value;
        double t = json_number_value(item);
        if (!(t > 0 && t < 1e6))
            return ds_fail(err, DS_BAD_FILE, "%s: confidence_temperatures must be above 0", where);
        c->temperatures[i] = (float)t;
    }
    c->n_temperatures = slots;
    return DS_OK;
}

static ds_status read_markov(ds_dspark_config *c, const json_t *config, const char *where, ds_error *err)
{
    const char *type = "vanilla";
    c->rank = 256;
    ds_status status = ds_json_int32(config, "markov_rank", 0, 65536, &c->rank, where, err);
    status = status ? status : ds_json_text(config, "markov_head_type", &type, where, err);
    if (status)
        return status;
    if (strcmp(type, "vanilla") == 0)
        c->markov = DS_MARKOV_VANILLA;
    else if (strcmp(type, "gated") == 0)
        c->markov = DS_MARKOV_GATED;
    else if (strcmp(type, "rnn") == 0)
        c->markov = DS_MARKOV_RNN;
    else
        return ds_fail(err, DS_BAD_FILE,
                       "%s: a Markov head of type %s is not supported yet; vanilla, gated, rnn are", where,
                       type);
    if (c->rank == 0)
        c->markov = DS_MARKOV_NONE;
    return DS_OK;
}

static ds_status read_rope(ds_dspark_config *c, const json_t *config, const char *where, ds_error *err)
{
    const json_t *rope = json_object_get(config, "rope_parameters");
    bool neox = true;
    c->rope_theta = 1e6;
    ds_status status = ds_json_num(config, "rope_theta", 1, 1e12, &c->rope_theta, where, err);
    if (!status && json_is_object(rope))
        status = ds_json_num(rope, "rope_theta", 1, 1e12, &c->rope_theta, where, err);
    status = status ? status : ds_json_bool(config, "rope_is_neox_style", &neox, where, err);
    c->interleaved = !neox;
    return status;
}

static ds_status read_slots(ds_dspark_config *c, const json_t *config, const char *where, ds_error *err)
{
    bool from_anchor = true;
    ds_status status = ds_json_bool(config, "sample_from_anchor", &from_anchor, where, err);
    c->logits_start = from_anchor ? 0 : 1;
    status = status ? status : ds_json_int32(config, "block_size", 1, 1024, &c->block, where, err);
    status = status ? status : ds_json_int32(config, "logits_start", 0, 1023, &c->logits_start, where, err);
    if (status)
        return status;
    int slots = c->block - c->logits_start;
    if (slots < 1 || slots > DS_MAX_DRAFT)
        return ds_fail(
            err, DS_BAD_FILE,
            "%s: a block of %d whose logits start at slot %d drafts %d tokens; 1 to %d are supported", where,
            c->block, c->logits_start, slots, DS_MAX_DRAFT);
    return DS_OK;
}

ds_status ds_dspark_config_read(ds_dspark_config *c, const json_t *config, const char *where, ds_error *err)
{
    *c = (ds_dspark_config){.kv_heads = 8, .eps = 1e-6f, .confidence = true, .confidence_markov = true};
    const char *trait = unsupported_trait(config);
    if (trait)
        return ds_fail(err, DS_BAD_FILE, "%s: a drafter with %s is not supported yet", where, trait);
    ds_status status = check_required(config, where, err);
    if (status)
        return status;
    const struct {
        const char *key;
        int min, max, *out;
    } ints[] = {
        {"hidden_size", 1, 1 << 20, &c->hidden},     {"vocab_size", 1, 1 << 28, &c->vocab},
        {"num_hidden_layers", 1, 256, &c->layers},   {"intermediate_size", 1, 1 << 24, &c->intermediate},
        {"num_attention_heads", 1, 4096, &c->heads}, {"num_key_value_heads", 1, 4096, &c->kv_heads},
        {"mask_token_id", 0, INT_MAX, &c->mask},
    };
    for (size_t i = 0; i < COUNT(ints); i++) {
        status = ds_json_int32(config, ints[i].key, ints[i].min, ints[i].max, ints[i].out, where, err);
        if (status)
            return status;
    }
    c->head_dim = c->hidden / c->heads;
    c->vocab_out = c->vocab;
    status = ds_json_int32(config, "head_dim", 2, 512, &c->head_dim, where, err);
    status = status ? status : ds_json_int32(config, "draft_vocab_size", 1, c->vocab, &c->vocab_out, where, err);
    status = status ? status : ds_json_float(config, "rms_norm_eps", 0, 1, &c->eps, where, err);
    status = status ? status : ds_json_float(config, "final_logit_softcapping", 0, 1e6, &c->softcap, where, err);
    status = status ? status : ds_json_bool(config, "attention_bias", &c->bias, where, err);
    status = status ? status : ds_json_bool(config, "enable_confidence_head", &c->confidence, where, err);
    status = status ? status
                    : ds_json_bool(config, "confidence_head_with_markov", &c->confidence_markov, where, err);
    status = status ? status : read_slots(c, config, where, err);
    status = status ? status : read_taps(c, config, where, err);
    status = status ? status : read_rope(c, config, where, err);
    status = status ? status : read_markov(c, config, where, err);
    status = status ? status : read_temperatures(c, config, where, err);
    if (status)
        return status;
    c->reduced = c->vocab_out != c->vocab;
    c->confidence_markov = c->confidence_markov && c->rank > 0;
    c->quantized = ds_config_set(config, "quantization");
    if (c->heads % c->kv_heads)
        return ds_fail(err, DS_BAD_FILE, "%s: %d attention heads cannot share %d key/value heads", where,
                       c->heads, c->kv_heads);
    if (c->head_dim % 2)
        return ds_fail(err, DS_BAD_FILE, "%s: head_dim %d is odd", where, c->head_dim);
    if (c->mask >= c->vocab)
        return ds_fail(err, DS_BAD_FILE, "%s: mask_token_id %d is outside the vocabulary of %d", where,
                       c->mask, c->vocab);
    return DS_OK;
}
