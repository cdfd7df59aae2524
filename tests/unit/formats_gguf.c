#include "formats/gguf.h"

#include "formats_files.h"

#include <math.h>

enum { U32 = 4, F32 = 6 };

static ds_status parse(ds_gguf **out, const ds_buf *file, ds_error *err)
{
    return ds_gguf_parse(out, (const uint8_t *)file->data, file->len, "x.gguf", err);
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *gguf, *hf;
    } cases[] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output.weight", "lm_head.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
        {"blk.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"},
        {"blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"},
        {"blk.3.attn_k.bias", "model.layers.3.self_attn.k_proj.bias"},
        {"blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight"},
        {"blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"},
        {"blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"},
        {"blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"},
        {"blk.127.ffn_gate.weight", "model.layers.127.mlp.gate_proj.weight"},
        {"blk.127.ffn_up.weight", "model.layers.127.mlp.up_proj.weight"},
        {"blk.127.ffn_down.weight", "model.layers.127.mlp.down_proj.weight"},
        {"rope_freqs.weight", "rope_freqs.weight"},
        {"blk..attn_q.weight", "blk..attn_q.weight"},
        {"blk.1.weight", "blk.1.weight"},
        {"blk.1x.attn_q.weight", "blk.1x.attn_q.weight"},
        {"blk.1.attn_q", "blk.1.attn_q"},
        {"blk.1", "blk.1"},
        {"blk.", "blk."},
        {"blk.1234567.attn_q.weight", "blk.1234567.attn_q.weight"},
        {"", ""},
        {".weight", ".weight"},
    };
    char name[128], small[8];
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(ds_gguf_hf_name(cases[i].gguf, name, sizeof name));
        assert_string_equal(name, cases[i].hf);
        assert_int_equal(ds_gguf_hf_name(cases[i].gguf, small, sizeof small),
                         strlen(cases[i].hf) < sizeof small);
    }
}

/* One value of each type, read through every getter. */
static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t type;
        size_t bytes;
        uint64_t raw;
        double num;
        int whole, number; /* whether the getters take it */
    } cases[] = {
        {"u8", 0, 1, 200, 200, 1, 1},
        {"i8", 1, 1, 200, -56, 1, 1},
        {"u16", 2, 2, 40000, 40000, 1, 1},
        {"i16", 3, 2, 40000, -25536, 1, 1},
        {"u32", 4, 4, 4000000000, 4000000000, 1, 1},
        {"i32", 5, 4, 4000000000, -294967296, 1, 1},
        {"f32", 6, 4, 0x40200000, 2.5, 0, 1},
        {"bool", 7, 1, 1, 0, 0, 0},
        {"u64", 10, 8, 1ull << 40, 1099511627776, 1, 1},
        {"u64 high", 10, 8, 1ull << 63, 9223372036854775808.0, 0, 1},
        {"i64", 11, 8, (uint64_t)-5, -5, 1, 1},
        {"f64", 12, 8, 0x4004000000000000, 2.5, 0, 1},
        {"f32 nan", 6, 4, 0x7FC00000, 0, 0, 0},
        {"f64 inf", 12, 8, 0x7FF0000000000000, 0, 0, 0},
    };
    ds_buf file = {0};
    put_gguf(&file, 3, 0, COUNT(cases));
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_text(&file, cases[i].key);
        put32(&file, cases[i].type);
        ds_buf_add(&file, &cases[i].raw, cases[i].bytes);
    }
    ds_gguf *gguf;
    assert_int_equal(parse(&gguf, &file, NULL), DS_OK);
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t whole = 77;
        double num = 77;
        char text[8] = "same";
        assert_int_equal(ds_gguf_int(gguf, cases[i].key, INT64_MIN, INT64_MAX, &whole, NULL),
                         cases[i].whole ? DS_OK : DS_BAD_FILE);
        assert_true(whole == (cases[i].whole ? (int64_t)cases[i].num : 77));
        assert_int_equal(ds_gguf_num(gguf, cases[i].key, -1e300, 1e300, &num, NULL),
                         cases[i].number ? DS_OK : DS_BAD_FILE);
        assert_true(num == (cases[i].number ? cases[i].num : 77));
        assert_int_equal(ds_gguf_text(gguf, cases[i].key, text, sizeof text, NULL), DS_BAD_FILE);
    }
    int64_t whole = 5;
    ds_error err = {0};
    assert_int_equal(ds_gguf_int(gguf, "absent", 0, 1, &whole, &err), DS_OK);
    assert_int_equal(whole, 5);
    assert_int_equal(ds_gguf_int(gguf, "u8", 0, 199, &whole, &err), DS_BAD_FILE);
    assert_string_equal(err.text, "x.gguf: u8 must be a whole number from 0 to 199");
    json_t *all;
    assert_int_equal(ds_gguf_json(gguf, &all, NULL), DS_OK);
    assert_int_equal(json_object_size(all), COUNT(cases));
    assert_string_equal(json_string_value(json_object_get(all, "f32 nan")), "NaN");
    assert_string_equal(json_string_value(json_object_get(all, "f64 inf")), "Infinity");
    assert_true(json_is_true(json_object_get(all, "bool")));
    assert_int_equal(json_integer_value(json_object_get(all, "i32")), -294967296);
    json_decref(all);
    ds_gguf_close(gguf);
    ds_buf_release(&file);
}

static void test_strings(void **state)
{
    (void)state;
    ds_buf file = {0};
    put_gguf(&file, 2, 0, 4);
    put_kv_text(&file, "text", "caf\xc3\xa9");
    put_kv_text(&file, "bad", "a\xff\xed\xa0\x80z"); /* a stray byte and a surrogate */
    put_text(&file, "list");
    put32(&file, 9);
    put32(&file, 8);
    put64(&file, 3);
    put_text(&file, "a");
    put_text(&file, "");
    put_text(&file, "long");
    put_text(&file, "ints");
    put32(&file, 9);
    put32(&file, 5);
    put64(&file, 2);
    put32(&file, 1);
    put32(&file, (uint32_t)-1);
    ds_gguf *gguf;
    json_t *all;
    char text[6], tight[5];
    assert_int_equal(parse(&gguf, &file, NULL), DS_OK);
    assert_int_equal(ds_gguf_text(gguf, "text", text, sizeof text, NULL), DS_OK);
    assert_string_equal(text, "caf\xc3\xa9");
    assert_int_equal(ds_gguf_text(gguf, "text", tight, sizeof tight, NULL), DS_BAD_FILE);
    assert_int_equal(ds_gguf_text(gguf, "list", text, sizeof text, NULL), DS_BAD_FILE);
    assert_int_equal(ds_gguf_find(gguf, "list")->count, 3);
    assert_int_equal(ds_gguf_json(gguf, &all, NULL), DS_OK);
    const char *want =
        "{\"text\": \"caf\\u00e9\", \"bad\": \"a\\ufffd\\ufffd\\ufffd\\ufffdz\"}"; /* no arrays */
    json_t *expected = json_loads(want, 0, NULL);
    assert_true(json_equal(all, expected));
    json_decref(expected);
    json_decref(all);

    const ds_gguf_kv *kv;
    ds_error err = {0};
    assert_int_equal(ds_gguf_array(gguf, "list", true, &kv, NULL), DS_OK);
    static const char *const items[] = {"a", "", "long"};
    assert_int_equal(kv->count, COUNT(items));
    const uint8_t *at = kv->value;
    for (size_t i = 0; i < COUNT(items); i++) {
        size_t len;
        const char *item = ds_gguf_next(&at, &len);
        assert_int_equal(len, strlen(items[i]));
        assert_memory_equal(item, items[i], len);
    }
    assert_int_equal(ds_gguf_array(gguf, "ints", false, &kv, NULL), DS_OK);
    assert_int_equal(kv->count, 2);
    assert_true(ds_gguf_number(kv, 0) == 1 && ds_gguf_number(kv, 1) == -1);
    assert_int_equal(ds_gguf_array(gguf, "absent", true, &kv, NULL), DS_OK);
    assert_null(kv);
    static const struct {
        const char *key;
        bool strings;
    } wrong[] = {{"ints", true}, {"list", false}, {"text", true}, {"text", false}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(ds_gguf_array(gguf, wrong[i].key, wrong[i].strings, &kv, &err), DS_BAD_FILE);
        assert_null(kv);
        assert_non_null(strstr(err.text, wrong[i].strings ? "array of strings" : "array of numbers"));
    }
    ds_gguf_close(gguf);
    ds_buf_release(&file);
}

/* A small model: two settings that matter to the parser, tensors of three types. */
static void put_small(ds_buf *file)
{
    put_gguf(file, 3, 3, 2);
    put_kv_text(file, "general.architecture", "llama");
    put_kv32(file, "general.alignment", U32, 64);
    put_tensor(file, "norm", 4, 0, 0, 0);
    put_tensor(file, "q4", 64, 3, 2, 64);
    put_tensor(file, "half", 2, 5, 1, 192);
    put_zeros(file, 64, 212);
}

static void test_tensors(void **state)
{
    (void)state;
    ds_buf file = {0};
    ds_gguf *gguf;
    ds_error err = {0};
    put_small(&file);
    if (parse(&gguf, &file, &err))
        fail_msg("%s", err.text);
    const ds_tensor *q4 = &gguf->tensors[1];
    assert_int_equal(gguf->count, 3);
    assert_int_equal(q4->type, DS_Q4_0);
    assert_true(q4->rank == 2 && q4->dims[0] == 3 && q4->dims[1] == 64); /* slowest first */
    assert_int_equal(q4->bytes, 3 * 2 * 18);
    assert_ptr_equal(q4->data, file.data + file.len - 212 + 64);
    ds_gguf_close(gguf);
    for (size_t len = 0; len < file.len; len++) { /* cut anywhere: refused */
        uint8_t *cut = malloc(len ? len : 1);
        memcpy(cut, file.data, len);
        assert_int_equal(ds_gguf_parse(&gguf, len ? cut : NULL, len, "cut", &err), DS_BAD_FILE);
        assert_null(gguf);
        free(cut);
    }
    ds_buf_release(&file);
}

static void test_bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *magic;
        uint32_t version;
        uint64_t tensors, kvs;
        const char *says;
    } cases[] = {
        {"GGUF", 3, 0, 0, NULL},
        {"GGUF", 2, 0, 0, NULL},
        {"GGML", 3, 0, 0, "not a GGUF"},
        {"GGUF", 1, 0, 0, "version 1"},
        {"GGUF", 4, 0, 0, "version 4"},
        {"GGUF", 0x03000000, 0, 0, "big-endian"},
        {"GGUF", 3, 1, 0, "more than"},
        {"GGUF", 3, 0, UINT64_MAX, "more than"},
        {"GGUF", 3, UINT64_MAX, 0, "more than"},
        {"GGUF", 3, 0, 1, "more than"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_buf file = {0};
        ds_gguf *gguf;
        ds_error err = {0};
        put_gguf(&file, cases[i].version, cases[i].tensors, cases[i].kvs);
        memcpy(file.data, cases[i].magic, 4);
        assert_int_equal(parse(&gguf, &file, &err), cases[i].says ? DS_BAD_FILE : DS_OK);
        if (cases[i].says)
            assert_non_null(strstr(err.text, cases[i].says));
        ds_gguf_close(gguf);
        ds_buf_release(&file);
    }
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t a, b;
        uint32_t type, align;
        uint64_t offset;
        const char *says;
    } cases[] = {
        {"t", 4, 2, 0, 32, 0, NULL},
        {"t", 64, 0, 2, 32, 32, NULL},
        {"t", 4, 2, 0, 1, 3, NULL},
        {"t", 4, 2, 0, 32, 16, "not a multiple"},
        {"t", 4, 2, 0, 32, 64, "truncated"},
        {"t", 4, 5, 0, 32, 0, "truncated"},
        {"t", 4, 2, 0, 32, UINT64_MAX - 31, "truncated"},
        {"t", 33, 1, 2, 32, 0, "whole Q4_0 blocks"},
        {"t", 1ull << 62, 16, 0, 32, 0, "too large"},
        {"t", UINT64_MAX, 2, 24, 32, 0, "too large"},
        {"t", 1ull << 63, 2, 12, 32, 0, "too large"},
        {"t", 32, 1, 16, 32, 0, "GGUF type 16"},
        {"t", 32, 1, UINT32_MAX, 32, 0, "GGUF type"},
        {"t", 4, 2, 0, 24, 0, "not a power of two"},
        {"t", 4, 2, 0, 0, 0, "general.alignment must be"},
        {"", 4, 2, 0, 32, 0, "empty"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_buf file = {0};
        ds_gguf *gguf;
        ds_error err = {0};
        put_gguf(&file, 3, 1, 1);
        put_kv32(&file, "general.alignment", U32, cases[i].align);
        put_tensor(&file, cases[i].name, cases[i].a, cases[i].b, cases[i].type, cases[i].offset);
        put_zeros(&file, 32, 68);
        ds_status status = parse(&gguf, &file, &err);
        if (status != (cases[i].says ? DS_BAD_FILE : DS_OK) ||
            (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: status %d, '%s'", i, status, err.text);
        ds_gguf_close(gguf);
        ds_buf_release(&file);
    }
}

static void test_bad_metadata(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, elem;
        uint64_t count;
        const char *says;
    } cases[] = {
        {9, 0, 8, NULL},
        {9, 0, 9, "truncated"},
        {9, 8, UINT64_MAX, "truncated"},
        {9, 8, 1, NULL}, /* its string is the 8 bytes of zeros: empty */
        {9, 8, 2, "truncated"},
        {9, 12, 1ull << 61, "truncated"},
        {9, 9, 1, "array of type 9"},
        {9, 13, 1, "array of type 13"},
        {13, 0, 0, "does not exist"},
        {8, UINT32_MAX, UINT32_MAX, "truncated"}, /* a string longer than the file */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_buf file = {0};
        ds_gguf *gguf;
        ds_error err = {0};
        put_gguf(&file, 3, 0, 1);
        put_text(&file, "k");
        put32(&file, cases[i].type);
        put32(&file, cases[i].elem);
        put64(&file, cases[i].count);
        put64(&file, 0);
        ds_status status = parse(&gguf, &file, &err);
        if (status != (cases[i].says ? DS_BAD_FILE : DS_OK) ||
            (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: status %d, '%s'", i, status, err.text);
        ds_gguf_close(gguf);
        ds_buf_release(&file);
    }
    ds_buf twice = {0};
    ds_gguf *gguf;
    ds_error err = {0};
    put_gguf(&twice, 3, 0, 3);
    put_kv32(&twice, "b", U32, 1);
    put_kv32(&twice, "a", U32, 1);
    put_kv32(&twice, "b", U32, 2);
    assert_int_equal(parse(&gguf, &twice, &err), DS_BAD_FILE);
    assert_non_null(strstr(err.text, "has b twice"));
    ds_buf_release(&twice);
}

/* Settings of a plausible llama, with one changed (value text: a string; else f32 or u32) or left out. */
static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        float real;
    } base[] = {
        {"ARCH.embedding_length", 64, 0},       {"ARCH.block_count", 2, 0},
        {"ARCH.feed_forward_length", 96, 0},    {"ARCH.attention.head_count", 4, 0},
        {"ARCH.attention.head_count_kv", 2, 0}, {"ARCH.attention.layer_norm_rms_epsilon", 0, 1e-5f},
        {"ARCH.context_length", 512, 0},        {"ARCH.rope.freq_base", 0, 1e6f},
        {"tokenizer.ggml.eos_token_id", 2, 0},  {"tokenizer.ggml.eot_token_id", 7, 0},
        {"tokenizer.ggml.eom_token_id", 2, 0},  {"tokenizer.ggml.bos_token_id", 1, 0},
    };
    static const struct {
        const char *arch, *leave_out, *key, *text, *key2;
        float real, real2;
        const char *says, *json; /* json: keys that must be so */
    } cases[] = {
        {.arch = "llama",
         .json =
             "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"intermediate_size\":96,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":32,"
             "\"max_position_embeddings\":512,\"rope_theta\":1e6,\"rope_traditional\":true,"
             "\"tie_word_embeddings\":true,\"eos_token_id\":[2,7],\"bos_token_id\":1,\"rope_scaling\":null}"},
        {.arch = "qwen3", .json = "{\"model_type\":\"qwen3\",\"rope_traditional\":false}"},
        {.arch = "llama", .leave_out = "ARCH.attention.head_count_kv", .json = "{\"num_key_value_heads\":4}"},
        {.arch = "llama", .leave_out = "ARCH.rope.freq_base", .json = "{\"rope_theta\":10000.0}"},
        {.arch = "llama", .leave_out = "tokenizer.ggml.bos_token_id", .json = "{\"bos_token_id\":null}"},
        {.arch = "llama",
         .key = "ARCH.rope.scaling.type",
         .text = "linear",
         .key2 = "ARCH.rope.scaling.factor",
         .real2 = 4,
         .json = "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0}}"},
        {.arch = "llama",
         .key = "ARCH.rope.scaling.type",
         .text = "yarn",
         .key2 = "ARCH.rope.scaling.factor",
         .real2 = 2,
         .json = "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0}}"},
        {.arch = "llama", .key = "ARCH.rope.scaling.type", .text = "none", .json = "{\"rope_scaling\":null}"},
        {.arch = "llama",
         .key = "ARCH.rope.scale_linear",
         .real = 2,
         .json = "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}}"},
        {.arch = "llama", .key = "ARCH.rope.scaling.type", .text = "longrope", .says = "'longrope'"},
        {.arch = "llama", .key = "ARCH.expert_count", .real = -8, .says = "mixture of experts"},
        {.arch = "llama", .key = "ARCH.rope.dimension_count", .real = -8, .json = "{\"head_dim\":8}"},
        {.arch = "llama",
         .key = "ARCH.rope.dimension_count",
         .real = -8,
         .key2 = "ARCH.attention.key_length",
         .real2 = -16,
         .says = "must be equal"},
        {.arch = "llama", .key = "ARCH.attention.key_length", .real = -32, .json = "{\"head_dim\":32}"},
        {.arch = "llama", .key = "ARCH.attention.value_length", .real = -8, .says = "must be equal"},
        {.arch = "llama", .leave_out = "ARCH.block_count", .says = "lacks llama.block_count"},
        {.arch = "llama", .leave_out = "ARCH.attention.layer_norm_rms_epsilon", .says = "rms_epsilon"},
        {.arch = "llama",
         .leave_out = "ARCH.block_count",
         .key = "ARCH.block_count",
         .text = "two",
         .says = "whole number"},
        {.arch = "gemma3", .says = "architecture 'gemma3' is not supported; supported: llama, qwen3"},
        {.arch = NULL, .says = "lacks general.architecture"},
    };
    for (size_t c = 0; c < COUNT(cases); c++) {
        ds_buf file = {0}, kvs = {0};
        ds_error err = {0};
        uint64_t count = 0;
        const char *arch = cases[c].arch ? cases[c].arch : "llama";
        char key[128];
#define FULL(k) (strncmp(k, "ARCH.", 5) ? (k) : (snprintf(key, sizeof key, "%s%s", arch, (k) + 4), key))
        if (cases[c].arch) {
            put_kv_text(&kvs, "general.architecture", arch);
            count++;
        }
        for (size_t i = 0; i < COUNT(base); i++) {
            if (cases[c].leave_out && strcmp(cases[c].leave_out, base[i].key) == 0)
                continue;
            uint32_t raw = base[i].value;
            if (base[i].real != 0)
                memcpy(&raw, &base[i].real, 4);
            put_kv32(&kvs, FULL(base[i].key), base[i].real != 0 ? F32 : U32, raw);
            count++;
        }
        for (int n = 0; n < 2; n++) { /* below zero: the whole number without its sign */
            const char *more = n ? cases[c].key2 : cases[c].key;
            float real = n ? cases[c].real2 : cases[c].real;
            uint32_t raw;
            if (!more)
                continue;
            count++;
            memcpy(&raw, &real, 4);
            if (!n && cases[c].text)
                put_kv_text(&kvs, FULL(more), cases[c].text);
            else
                put_kv32(&kvs, FULL(more), real < 0 ? U32 : F32, real < 0 ? (uint32_t)-real : raw);
        }
        put_gguf(&file, 3, 1, count);
        ds_buf_add(&file, kvs.data, kvs.len);
        put_tensor(&file, "token_embd.weight", 64, 32, 1, 0);
        put_zeros(&file, 32, 64 * 32 * 2);
        ds_gguf *gguf;
        json_t *config;
        assert_int_equal(parse(&gguf, &file, &err), DS_OK);
        ds_status status = ds_gguf_config(gguf, &config, &err);
        if (status != (cases[c].says ? DS_BAD_FILE : DS_OK) ||
            (cases[c].says && !strstr(err.text, cases[c].says)))
            fail_msg("case %zu: status %d, '%s'", c, status, err.text);
        json_t *want = cases[c].json ? json_loads(cases[c].json, 0, NULL) : NULL;
        const char *name;
        json_t *value;
        json_object_foreach(want, name, value)
        {
            const json_t *got = json_object_get(config, name);
            bool same = json_is_null(value)     ? got == NULL
                        : json_is_number(value) ? json_number_value(got) == json_number_value(value)
                                                : json_equal(got, value);
            if (!same)
                fail_msg("case %zu: %s differs", c, name);
        }
        json_decref(want);
        json_decref(config);
        ds_gguf_close(gguf);
        ds_buf_release(&file);
        ds_buf_release(&kvs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),        cmocka_unit_test(test_values),
        cmocka_unit_test(test_strings),      cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_bad_headers),  cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_bad_metadata), cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
