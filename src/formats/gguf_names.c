/* GGUF's names for tensors and settings, and what Hugging Face calls them. */
#include "base/buf.h"
#include "formats/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *gguf, *hf;
} name_pair;

static const name_pair model_names[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const name_pair layer_names[] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

static const char *lookup(const name_pair *pairs, size_t count, const char *name, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(pairs[i].gguf) == len && memcmp(pairs[i].gguf, name, len) == 0)
            return pairs[i].hf;
    return NULL;
}

bool ds_gguf_hf_name(const char *name, char *out, size_t size)
{
    const char *dot = strrchr(name, '.'), *hf = NULL;
    int len;
    if (dot && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0)) {
        size_t digits = strncmp(name, "blk.", 4) == 0 ? strspn(name + 4, "0123456789") : 0;
        const char *layer = name + 4, *inner = layer + digits + 1;
        if (digits && digits < 6 && layer[digits] == '.' && inner < dot) {
            hf = lookup(layer_names, COUNT(layer_names), inner, (size_t)(dot - inner));
            if (hf) {
                len = snprintf(out, size, "model.layers.%.*s.%s%s", (int)digits, layer, hf, dot);
                return len >= 0 && (size_t)len < size;
            }
        }
        hf = lookup(model_names, COUNT(model_names), name, (size_t)(dot - name));
    }
    len = hf ? snprintf(out, size, "%s%s", hf, dot) : snprintf(out, size, "%s", name);
    return len >= 0 && (size_t)len < size;
}

/* Reading settings of one architecture: "ARCH.KEY". The first failure is kept, later reads do nothing. */
typedef struct {
    const ds_gguf *gguf;
    const char *arch;
    json_t *config;
    ds_status status;
    ds_error *err;
} reader;

static const char *full_key(const reader *r, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", r->arch, key);
    return out;
}

static int64_t get_int(reader *r, const char *key, int64_t min, int64_t max, int64_t otherwise)
{
    char full[128];
    if (!r->status)
        r->status = ds_gguf_int(r->gguf, full_key(r, key, full), min, max, &otherwise, r->err);
    return otherwise;
}

static double get_num(reader *r, const char *key, double min, double max, double otherwise)
{
    char full[128];
    if (!r->status)
        r->status = ds_gguf_num(r->gguf, full_key(r, key, full), min, max, &otherwise, r->err);
    return otherwise;
}

static bool has(const reader *r, const char *key)
{
    char full[128];
    return ds_gguf_find(r->gguf, full_key(r, key, full)) != NULL;
}

static void need(reader *r, const char *key)
{
    if (!r->status && !has(r, key))
        r->status = ds_fail(r->err, DS_BAD_FILE, "%s: metadata lacks %s.%s", r->gguf->where, r->arch, key);
}

static void put(reader *r, const char *key, json_t *value)
{
    if (json_object_set_new(r->config, key, value) && !r->status)
        r->status = ds_fail(r->err, DS_NO_MEMORY, "%s: out of memory", r->gguf->where);
}

static const ds_tensor *find_tensor(const ds_gguf *gguf, const char *name)
{
    for (size_t i = 0; i < gguf->count; i++)
        if (strcmp(gguf->tensors[i].name, name) == 0)
            return &gguf->tensors[i];
    return NULL;
}

static void put_shape(reader *r)
{
    static const struct {
        const char *gguf, *hf;
        int64_t max;
    } sizes[] = {
        {"embedding_length", "hidden_size", 1 << 20},
        {"block_count", "num_hidden_layers", 4096},
        {"feed_forward_length", "intermediate_size", 1 << 24},
        {"attention.head_count", "num_attention_heads", 1 << 16},
    };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        need(r, sizes[i].gguf);
        put(r, sizes[i].hf, json_integer(get_int(r, sizes[i].gguf, 1, sizes[i].max, 1)));
    }
    int64_t heads = json_integer_value(json_object_get(r->config, "num_attention_heads"));
    int64_t hidden = json_integer_value(json_object_get(r->config, "hidden_size"));
    put(r, "num_key_value_heads", json_integer(get_int(r, "attention.head_count_kv", 1, 1 << 16, heads)));

    int64_t rotary = get_int(r, "rope.dimension_count", 1, 1 << 16, 0);
    int64_t head = get_int(r, "attention.key_length", 1, 1 << 16,
                           rotary  ? rotary
                           : heads ? hidden / heads
                                   : 0);
    int64_t value = get_int(r, "attention.value_length", 1, 1 << 16, head);
    if (!r->status && (head < 1 || value != head || (rotary && rotary != head)))
        r->status = ds_fail(r->err, DS_BAD_FILE,
                            "%s: heads of %" PRId64 " keys, %" PRId64 " values and %" PRId64
                            " rotated dimensions are not supported: the three must be equal",
                            r->gguf->where, head, value, rotary);
    put(r, "head_dim", json_integer(head));
    if (get_int(r, "expert_count", 0, INT64_MAX, 0) > 0 && !r->status)
        r->status =
            ds_fail(r->err, DS_BAD_FILE, "%s: a mixture of experts in GGUF is not supported", r->gguf->where);

    need(r, "attention.layer_norm_rms_epsilon");
    put(r, "rms_norm_eps", json_real(get_num(r, "attention.layer_norm_rms_epsilon", 0, 1, 1e-5)));
    put(r, "max_position_embeddings", json_integer(get_int(r, "context_length", 1, INT64_C(1) << 40, 2048)));
}

static void put_vocab(reader *r)
{
    /* The embedding table decides; a file without one (a tokenizer only) may still say. */
    const ds_tensor *table = find_tensor(r->gguf, "token_embd.weight");
    const ds_gguf_kv *tokens = ds_gguf_find(r->gguf, "tokenizer.ggml.tokens");
    int64_t vocab = tokens && tokens->type == DS_GGUF_ARRAY ? (int64_t)tokens->count : 0;
    vocab = get_int(r, "vocab_size", 1, INT32_MAX, vocab);
    if (table && table->rank == 2 && table->dims[0] <= INT32_MAX)
        vocab = (int64_t)table->dims[0];
    if (vocab > 0)
        put(r, "vocab_size", json_integer(vocab));
    put(r, "tie_word_embeddings", json_boolean(!find_tensor(r->gguf, "output.weight")));

    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    for (size_t i = 0; i < COUNT(ends) && !r->status; i++) {
        int64_t id = -1;
        r->status = ds_gguf_int(r->gguf, ends[i], 0, UINT32_MAX, &id, r->err);
        bool known = id < 0 || id > INT32_MAX; /* 2^32 - 1 is how GGUF says "none" */
        for (size_t k = 0; k < json_array_size(list); k++)
            known = known || json_integer_value(json_array_get(list, k)) == id;
        if (!known)
            json_array_append_new(list, json_integer(id));
    }
    put(r, "eos_token_id", list);
    int64_t bos = -1;
    if (!r->status)
        r->status = ds_gguf_int(r->gguf, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &bos, r->err);
    if (bos >= 0 && bos <= INT32_MAX)
        put(r, "bos_token_id", json_integer(bos));
}

static void put_rope(reader *r)
{
    static const double most = 1e12;
    char type[32] = "none", full[128];
    put(r, "rope_theta", json_real(get_num(r, "rope.freq_base", 1, most, 10000)));
    put(r, "rope_traditional", json_boolean(strcmp(r->arch, "llama") == 0));
    double factor = get_num(r, "rope.scale_linear", 1e-6, most, 1); /* as early files had it */
    if (factor != 1)
        strcpy(type, "linear");
    if (!r->status)
        r->status = ds_gguf_text(r->gguf, full_key(r, "rope.scaling.type", full), type, sizeof type, r->err);
    factor = get_num(r, "rope.scaling.factor", 0, most, factor);
    if (r->status || strcmp(type, "none") == 0 || !*type)
        return;
    bool yarn = strcmp(type, "yarn") == 0;
    if (!yarn && strcmp(type, "linear") != 0) {
        r->status =
            ds_fail(r->err, DS_BAD_FILE, "%s: rope scaling '%s' is not supported; supported: linear, yarn",
                    r->gguf->where, type);
        return;
    }
    if (factor == 0) /* how the format says "not scaled" */
        return;
    json_t *scaling = json_object();
    json_object_set_new(scaling, "rope_type", json_string(type));
    json_object_set_new(scaling, "factor", json_real(factor));
    if (has(r, "rope.scaling.original_context_length"))
        json_object_set_new(
            scaling, "original_max_position_embeddings",
            json_integer(get_int(r, "rope.scaling.original_context_length", 1, INT64_C(1) << 40, 1)));
    if (yarn) {
        static const name_pair betas[] = {{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                          {"rope.scaling.yarn_beta_slow", "beta_slow"}};
        for (size_t i = 0; i < COUNT(betas); i++)
            if (has(r, betas[i].gguf))
                json_object_set_new(scaling, betas[i].hf, json_real(get_num(r, betas[i].gguf, 0, most, 1)));
        /* GGUF's factor is on top of the usual one, Hugging Face's is the whole */
        double usual = factor > 1 ? 0.1 * log(factor) + 1 : 1;
        if (has(r, "rope.scaling.attn_factor"))
            json_object_set_new(scaling, "attention_factor",
                                json_real(usual * get_num(r, "rope.scaling.attn_factor", 1e-6, most, 1)));
    }
    put(r, "rope_scaling", scaling);
}

ds_status ds_gguf_config(const ds_gguf *gguf, json_t **out, ds_error *err)
{
    static const char *const archs[] = {"llama", "qwen3"};
    *out = NULL;
    char arch[64] = "";
    ds_status status = ds_gguf_text(gguf, "general.architecture", arch, sizeof arch, err);
    if (status)
        return status;
    if (!*arch)
        return ds_fail(err, DS_BAD_FILE, "%s: metadata lacks general.architecture", gguf->where);
    reader r = {.gguf = gguf, .err = err};
    for (size_t i = 0; i < COUNT(archs); i++)
        if (strcmp(arch, archs[i]) == 0)
            r.arch = archs[i];
    if (!r.arch)
        return ds_fail(err, DS_BAD_FILE, "%s: architecture '%s' is not supported; supported: llama, qwen3",
                       gguf->where, arch);
    r.config = json_object();
    put(&r, "model_type", json_string(r.arch));
    put_shape(&r);
    put_vocab(&r);
    put_rope(&r);
    if (r.status)
        json_decref(r.config);
    else
        *out = r.config;
    return r.status;
}
