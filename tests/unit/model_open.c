/* Opening whole models: what they report, and files that lack tensors or say other shapes. */
#include "backend/cpu/cpu.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DATA TEST_SOURCE_DIR "/tests/golden/data/"

static ds_backend *be;
static ds_error err;

static int set_up(void **state)
{
    (void)state;
    ds_cpu_opts opts = {.threads = 2};
    return ds_cpu_open(&be, &opts, &err);
}

static int tear_down(void **state)
{
    (void)state;
    be->close(be);
    return 0;
}

static ds_status open_model(ds_model **model, ds_checkpoint **ckpt, const char *path,
                            const ds_model_opts *opts)
{
    *model = NULL;
    err = (ds_error){0};
    ds_status status = ds_checkpoint_open(ckpt, path, &err);
    if (status)
        return status;
    status = ds_model_open(model, *ckpt, be, opts, &err);
    assert_true((status == DS_OK) == (*model != NULL));
    if (status)
        ds_checkpoint_close(*ckpt);
    return status;
}

static double last_done;
static int calls;

static void note_progress(void *user, double done)
{
    assert_ptr_equal(user, &calls);
    assert_true(done > last_done && done <= 1);
    last_done = done;
    calls++;
}

static void test_info(void **state)
{
    (void)state;
    ds_model *model;
    ds_checkpoint *ckpt;
    ds_model_opts opts = {.progress = note_progress, .user = &calls};
    if (open_model(&model, &ckpt, DATA "targets/llama_q4_g64_tied", &opts))
        fail_msg("%s", err.text);
    const ds_model_info *info = ds_model_get(model);
    assert_string_equal(info->family, "llama");
    assert_int_equal(info->layers, 3);
    assert_int_equal(info->hidden, 64);
    assert_int_equal(info->heads, 4);
    assert_int_equal(info->kv_heads, 2);
    assert_int_equal(info->head_dim, 16);
    assert_int_equal(info->intermediate, 128);
    assert_int_equal(info->vocab, 384);
    assert_int_equal(info->context_max, 4096);
    assert_true(info->tied);
    assert_int_equal(info->n_eos, 2); /* of config.json, then generation_config.json */
    assert_int_equal(info->eos[0], 2);
    assert_int_equal(info->eos[1], 0);
    assert_int_equal(info->integer_matrices, 3 * 7 + 1);
    assert_int_equal(info->float_matrices, 0);
    assert_null(info->slow_reason);
    assert_true(info->weight_bytes > 0);
    assert_ptr_equal(ds_model_backend(model), be);
    assert_non_null(ds_model_embedding(model));
    assert_non_null(ds_model_head(model));
    assert_int_equal(calls, 3 * 7 + 1);
    assert_true(last_done > 0.999999);
    ds_model_close(model);
    ds_checkpoint_close(ckpt);
    ds_model_close(NULL);
}

/* A folder whose weights are a golden's and whose config is given. */
static ds_status open_with(const char *golden, const json_t *config, ds_model **model, ds_checkpoint **ckpt)
{
    char dir[] = "/tmp/ds_model_XXXXXX", path[512], weights[512];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(weights, sizeof weights, DATA "targets/%s/model.safetensors", golden);
    assert_int_equal(symlink(weights, path), 0);
    ds_status status = open_model(model, ckpt, dir, NULL);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
    return status;
}

static json_t *config_of(const char *golden)
{
    char path[512];
    json_t *config;
    snprintf(path, sizeof path, DATA "targets/%s/config.json", golden);
    if (ds_json_load(&config, path, 1 << 20, &err))
        fail_msg("%s", err.text);
    return config;
}

static void test_missing(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *key, *value;
        const char *says[3];
    } cases[] = {
        {"mistral_bf16",
         "num_hidden_layers",
         "4",
         {"missing tensors", "model.layers.3.input_layernorm.weight",
          "model.layers.3.self_attn.q_proj.weight"}},
        {"mistral_bf16", "num_hidden_layers", "512", {"missing tensors", "more", "model.layers.3."}},
        {"mistral_bf16",
         "attention_bias",
         "true",
         {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias"}},
        {"mistral_bf16", "model_type", "\"qwen3\"", {"model.layers.0.self_attn.q_norm.weight"}},
        {"mistral_bf16", "model_type", "\"qwen2\"", {"model.layers.0.self_attn.q_proj.bias"}},
        {"llama_q4_g64_tied", "tie_word_embeddings", "false", {"missing tensor:", "lm_head.weight"}},
        {"mistral_bf16", "hidden_size", "128", {"128", "64"}},
        {"mistral_bf16", "vocab_size", "383", {"383", "384"}},
        {"mistral_bf16", "intermediate_size", "256", {"256", "128"}},
        {"llama_q4_g64_tied", "num_key_value_heads", "4", {"k_proj"}},
        {"llama_q4_g64_tied", "intermediate_size", "64", {"mlp."}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *config = config_of(cases[i].golden), *value;
        assert_int_equal(ds_json_parse(&value, cases[i].value, strlen(cases[i].value), "test", &err), DS_OK);
        json_object_set_new(config, cases[i].key, value);
        ds_model *model;
        ds_checkpoint *ckpt;
        ds_status status = open_with(cases[i].golden, config, &model, &ckpt);
        json_decref(config);
        if (status != DS_BAD_FILE)
            fail_msg("%s = %s: status %d", cases[i].key, cases[i].value, status);
        for (int s = 0; s < 3 && cases[i].says[s]; s++)
            if (!strstr(err.text, cases[i].says[s]))
                fail_msg("%s = %s: \"%s\" does not say %s", cases[i].key, cases[i].value, err.text,
                         cases[i].says[s]);
    }
}

/* Every key of a real config set to nonsense: refused with a sentence, or harmless. */
static void test_nonsense(void **state)
{
    (void)state;
    static const char *const values[] = {
        "0",    "-1",   "3",      "9000000000000000000", "1e308", "\"x\"", "[]", "{}",
        "true", "null", "[[[]]]", "{\"type\":\"yarn\"}", NULL};
    static const char *const goldens[] = {"llama_q4_g64_tied", "llama_rope_yarn", "llama_sliding"};
    for (size_t g = 0; g < COUNT(goldens); g++) {
        json_t *base = config_of(goldens[g]), *ignored;
        const char *key;
        json_object_foreach(base, key, ignored)
        {
            for (size_t v = 0; v < COUNT(values); v++) {
                json_t *config = json_deep_copy(base), *value = NULL;
                if (values[v])
                    assert_int_equal(ds_json_parse(&value, values[v], strlen(values[v]), "test", &err),
                                     DS_OK);
                if (value)
                    json_object_set_new(config, key, value);
                else
                    json_object_del(config, key);
                ds_model *model;
                ds_checkpoint *ckpt;
                ds_status status = open_with(goldens[g], config, &model, &ckpt);
                if (!status) {
                    ds_model_close(model);
                    ds_checkpoint_close(ckpt);
                } else if (status != DS_BAD_FILE || !err.text[0]) {
                    fail_msg("%s: %s = %s: status %d, \"%s\"", goldens[g], key,
                             values[v] ? values[v] : "missing", status, err.text);
                }
                json_decref(config);
            }
        }
        json_decref(base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_nonsense),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
