/* Settings of untrusted files: every refusal is DS_BAD_FILE and names file and key; nothing crashes. */
#include "model/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char base_text[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":3,\"intermediate_size\":128,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"rms_norm_eps\":1e-6,\"vocab_"
    "size\":384,"
    "\"max_position_embeddings\":4096,\"rope_theta\":10000.0,\"sliding_window\":12,\"eos_token_id\":[2,0],"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"],\"attention_bias\":"
    "true,"
    "\"mlp_bias\":false,\"tie_word_embeddings\":false,\"rope_traditional\":false,\"hidden_act\":\"silu\"}";

static json_t *parse(const char *text)
{
    json_t *json;
    ds_error err = {0};
    if (ds_json_parse(&json, text, strlen(text), "test", &err))
        fail_msg("%s: %s", text, err.text);
    return json;
}

/* The base with key set to the JSON value (NULL: taken away). */
static ds_status with(const char *key, const char *value, ds_config *out, ds_error *err)
{
    json_t *config = parse(base_text);
    if (value)
        json_object_set_new(config, key, parse(value));
    else
        json_object_del(config, key);
    *err = (ds_error){0};
    ds_status status = ds_config_parse(out, config, true, "dir/config.json", err);
    json_decref(config);
    return status;
}

static void test_base(void **state)
{
    (void)state;
    ds_config c;
    ds_error err;
    assert_int_equal(with("note", "1", &c, &err), DS_OK);
    assert_string_equal(c.family->name, "llama");
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.kv_heads, 2);
    assert_true(c.sliding[0] && !c.sliding[1] && c.sliding[2]);
    assert_int_equal(c.window, 12);
    assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias && !c.tied && !c.interleaved);
    assert_int_equal(c.n_eos, 2);
    assert_float_equal(c.rope_scale, 1, 0);
    for (int i = 0; i < 8; i++)
        assert_float_equal(c.freq[i], pow(10000, -i / 8.0), 1e-15);
}

/* Every number: zero, below zero, huge, missing, of another type. What may be absent has a default. */
static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bool optional;
    } keys[] = {
        {"hidden_size", false},         {"num_hidden_layers", false},  {"intermediate_size", false},
        {"num_attention_heads", false}, {"vocab_size", false},         {"max_position_embeddings", false},
        {"rms_norm_eps", false},        {"num_key_value_heads", true}, {"head_dim", true},
        {"rope_theta", true},           {"sliding_window", false},
    };
    static const char *const values[] = {"0",  "-1",   "9000000000000000000",  "1e300",   "\"64\"", "[64]",
                                         "{}", "true", "-9223372036854775808", "\"NaN\"", NULL};
    for (size_t k = 0; k < COUNT(keys); k++)
        for (size_t v = 0; v < COUNT(values); v++) {
            ds_config c;
            ds_error err;
            ds_status status = with(keys[k].key, values[v], &c, &err);
            if (!values[v] && keys[k].optional) {
                assert_int_equal(status, DS_OK);
                continue;
            }
            if (status != DS_BAD_FILE)
                fail_msg("%s = %s: status %d", keys[k].key, values[v] ? values[v] : "missing", status);
            assert_non_null(strstr(err.text, "dir/config.json"));
            assert_non_null(strstr(err.text, keys[k].key));
        }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        {"model_type", "\"gpt2\"", "supported are llama (also mistral, iquestcoder, xverse), qwen2, qwen3"},
        {"model_type", NULL, "model_type is missing"},
        {"model_type", "7", "model_type must be a string"},
        {"model_file", "\"model.py\"", "model_file"},
        {"hidden_size", "65537", "hidden_size"},
        {"num_hidden_layers", "513", "num_hidden_layers"},
        {"vocab_size", "4194305", "vocab_size"},
        {"num_key_value_heads", "3", "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"},
        {"num_attention_heads", "5", "num_key_value_heads"},
        {"head_dim", "12", "head_dim (12)"},
        {"head_dim", "520", "head_dim"},
        {"rms_norm_eps", "0.5", "rms_norm_eps"},
        {"layer_types", "[\"full_attention\"]", "layer_types must be a list of num_hidden_layers (3)"},
        {"layer_types", "\"full_attention\"", "layer_types"},
        {"layer_types", "[\"full_attention\",\"full_attention\",\"linear_attention\"]", "layer_types[2]"},
        {"layer_types", "[1,2,3]", "layer_types[0]"},
        {"attention_bias", "1", "attention_bias must be true or false"},
        {"mlp_bias", "\"yes\"", "mlp_bias"},
        {"tie_word_embeddings", "0", "tie_word_embeddings"},
        {"rope_traditional", "[]", "rope_traditional"},
        {"hidden_act", "\"gelu\"", "hidden_act"},
        {"eos_token_id", "-1", "eos_token_id"},
        {"eos_token_id", "[1,\"a\"]", "eos_token_id"},
        {"eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "more than 16"},
        {"rope_scaling", "\"yarn\"", "rope_scaling must be an object"},
        {"rope_parameters", "3", "rope_parameters must be an object"},
        {"rope_parameters", "{\"rope_theta\":0}", "rope_theta"},
        {"rope_scaling", "{\"type\":\"dynamic\",\"factor\":2}", "rope type \"dynamic\" is not supported"},
        {"rope_scaling", "{\"rope_type\":\"wavy\"}", "rope type \"wavy\" is not supported"},
        {"rope_scaling", "{\"rope_type\":5}", "rope_type must be a string"},
        {"rope_scaling", "{\"type\":\"linear\"}", "factor"},
        {"rope_scaling", "{\"type\":\"linear\",\"factor\":0}", "factor"},
        {"rope_scaling", "{\"type\":\"linear\",\"factor\":\"2\"}", "factor"},
        {"rope_scaling", "{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}",
         "high_freq_factor"},
        {"rope_scaling", "{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}",
         "original_max_position_embeddings"},
        {"rope_scaling", "{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0}", "beta_fast"},
        {"rope_scaling", "{\"type\":\"longrope\",\"long_factor\":[1,1,1,1,1,1,1,1]}",
         "original_max_position_embeddings"},
        {"rope_scaling",
         "{\"type\":\"longrope\",\"original_max_position_embeddings\":64,\"long_factor\":[1]}",
         "long_factor must be a list of 8"},
        {"rope_scaling",
         "{\"type\":\"longrope\",\"original_max_position_embeddings\":64,\"long_factor\":[1,1,1,0,1,1,1,1]}",
         "long_factor[3]"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_config c;
        ds_error err;
        ds_status status = with(cases[i].key, cases[i].value, &c, &err);
        if (status != DS_BAD_FILE || !strstr(err.text, cases[i].says) || !strstr(err.text, "dir/config.json"))
            fail_msg("%s = %s: status %d, \"%s\"", cases[i].key, cases[i].value, status, err.text);
    }
    ds_config c;
    ds_error err;
    json_t *wide = parse(base_text);
    json_object_set_new(wide, "num_attention_heads", json_integer(65536));
    json_object_set_new(wide, "head_dim", json_integer(24));
    assert_int_equal(ds_config_parse(&c, wide, true, "dir/config.json", &err), DS_BAD_FILE);
    assert_non_null(strstr(err.text, "num_attention_heads (65536) times head_dim (24)"));
    json_decref(wide);
    json_t *list = parse("[1]");
    assert_int_equal(ds_config_parse(&c, list, true, "dir/config.json", NULL), DS_BAD_FILE);
    json_decref(list);
}

static void test_defaults(void **state)
{
    (void)state;
    ds_config c;
    ds_error err;
    assert_int_equal(with("num_key_value_heads", NULL, &c, &err), DS_OK);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(with("head_dim", "null", &c, &err), DS_OK);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(with("model_type", "\"mistral\"", &c, &err), DS_OK);
    assert_string_equal(c.family->name, "llama");
    assert_int_equal(with("eos_token_id", "7", &c, &err), DS_OK);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(with("layer_types", NULL, &c, &err), DS_OK);
    assert_false(c.sliding[0]); /* a window alone does not make layers slide */

    /* absent: tied, unless the file brings an output projection */
    json_t *config = parse(base_text);
    json_object_del(config, "tie_word_embeddings");
    assert_int_equal(ds_config_parse(&c, config, false, "x", &err), DS_OK);
    assert_true(c.tied);
    assert_int_equal(ds_config_parse(&c, config, true, "x", &err), DS_OK);
    assert_false(c.tied);
    json_object_set_new(config, "tie_word_embeddings", json_true());
    assert_int_equal(ds_config_parse(&c, config, true, "x", &err), DS_OK);
    assert_true(c.tied);
    json_decref(config);

    assert_int_equal(with("model_type", "\"qwen2\"", &c, &err), DS_OK);
    assert_true(c.qkv_bias && !c.o_bias);
}

static void test_rope(void **state)
{
    (void)state;
    ds_config c;
    ds_error err;
    assert_int_equal(with("rope_parameters", "{\"rope_theta\":500000,\"rope_type\":\"default\"}", &c, &err),
                     DS_OK);
    assert_float_equal(c.freq[4], pow(500000, -0.5), 1e-12);
    assert_int_equal(with("rope_scaling", "{\"type\":\"mrope\"}", &c, &err), DS_OK);
    assert_float_equal(c.freq[4], 0.01, 1e-12);
    assert_int_equal(with("rope_scaling", "{\"type\":\"linear\",\"factor\":4}", &c, &err), DS_OK);
    assert_float_equal(c.freq[4], 0.0025, 1e-12);
    assert_int_equal(with("rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4}", &c, &err), DS_OK);
    assert_float_equal(c.rope_scale, 0.1 * log(4) + 1, 1e-12);
    assert_float_equal(c.freq[0], 1, 1e-12); /* turns fast: kept */
    for (int i = 0; i < 8; i++)
        assert_true(c.freq[i] <= pow(10000, -i / 8.0) && c.freq[i] >= pow(10000, -i / 8.0) / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),     cmocka_unit_test(test_numbers), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
