#include "formats/checkpoint.h"
#include "formats/gguf.h"

#include "formats_files.h"

#include <math.h>

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* A fresh folder with a config.json. */
static void start(const char *config)
{
    if (*folder)
        remove_folder();
    make_folder();
    if (config)
        write_text("config.json", config);
}

static void write_st(const char *name, const char *header, const void *data, size_t bytes)
{
    ds_buf file = {0};
    put_text(&file, header);
    ds_buf_add(&file, data, bytes);
    write_file(name, file.data, file.len);
    ds_buf_release(&file);
}

#define T(dtype, shape, from, to)                                                                            \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void expect_refused(const char *path, const char *says)
{
    ds_checkpoint *ckpt;
    ds_error err = {0};
    ds_status status = ds_checkpoint_open(&ckpt, path, &err);
    assert_null(ckpt);
    if (status != DS_BAD_FILE || !strstr(err.text, says))
        fail_msg("expected '%s', got %d '%s'", says, status, err.text);
}

static ds_checkpoint *opened(const char *path)
{
    ds_checkpoint *ckpt;
    ds_error err = {0};
    if (ds_checkpoint_open(&ckpt, path, &err))
        fail_msg("%s", err.text);
    return ckpt;
}

static void test_folder(void **state)
{
    (void)state;
    uint8_t bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    start(NULL);
    expect_refused(folder, "no config.json");
    write_text("config.json", "[]");
    expect_refused(folder, "not a JSON object");
    write_text("config.json", "{\"hidden_size\": 8}");
    expect_refused(folder, "no .safetensors");
    expect_refused(in_folder("absent"), "absent");

    write_st("drafter.safetensors", "{\"z.weight\":" T("BF16", "[2,4]", "0", "16") "}", bytes, 16);
    ds_checkpoint *ckpt = opened(folder);
    assert_int_equal(ds_checkpoint_count(ckpt), 1);
    assert_true(ds_checkpoint_has(ckpt, "z"));
    ds_checkpoint_close(ckpt);

    /* with a model*.safetensors the other file is not looked at */
    write_st("model-00001-of-00002.safetensors",
             "{\"b.weight\":" T("F32", "[2,4]", "0", "32") ",\"n\":" T("F16", "[3]", "32", "38") "}", bytes,
             38);
    write_st("model-00002-of-00002.safetensors", "{\"a.weight\":" T("F16", "[1,4]", "0", "8") "}", bytes, 8);
    ckpt = opened(folder);
    assert_string_equal(ds_checkpoint_path(ckpt), folder);
    assert_null(ds_checkpoint_gguf(ckpt));
    assert_int_equal(ds_checkpoint_count(ckpt), 3);
    assert_string_equal(ds_checkpoint_at(ckpt, 0)->name, "a.weight");
    assert_string_equal(ds_checkpoint_at(ckpt, 2)->name, "n");
    assert_null(ds_checkpoint_at(ckpt, 3));
    assert_null(ds_checkpoint_find(ckpt, "z.weight"));
    assert_false(ds_checkpoint_has(ckpt, "n"));
    assert_true(ds_checkpoint_bytes(ckpt) > 46);
    assert_int_equal(json_integer_value(json_object_get(ds_checkpoint_config(ckpt), "hidden_size")), 8);

    ds_weight w;
    ds_error err = {0};
    float row[4], want[4];
    assert_int_equal(ds_checkpoint_weight(ckpt, "b", 2, 4, &w, &err), DS_OK);
    w.floats(&w, 1, row);
    memcpy(want, bytes + 16, 16);
    assert_memory_equal(row, want, 16);
    w.drop(&w, 0, 2);
    assert_int_equal(ds_checkpoint_weight(ckpt, "b", 0, 0, &w, &err), DS_OK);
    assert_true(w.rows == 2 && w.cols == 4 && w.codes.bits == 0 && !w.codes_row);
    assert_int_equal(ds_checkpoint_weight(ckpt, "b", 4, 2, &w, &err), DS_BAD_FILE);
    assert_string_equal(err.text, "b.weight: is [2, 4], expected [4, 2]");
    assert_int_equal(ds_checkpoint_weight(ckpt, "gone", 0, 0, &w, &err), DS_BAD_FILE);
    assert_non_null(strstr(err.text, "gone.weight is missing"));
    assert_int_equal(ds_checkpoint_vector(ckpt, "n", row, 3, &err), DS_OK);
    assert_int_equal(ds_checkpoint_vector(ckpt, "n", row, 4, &err), DS_BAD_FILE);
    assert_string_equal(err.text, "n: has 3 elements, expected 4");
    assert_int_equal(ds_checkpoint_vector(ckpt, "m", row, 4, &err), DS_BAD_FILE);
    ds_checkpoint_close(ckpt);

    write_text("model.safetensors.index.json",
               "{\"weight_map\": {\"n\": \"x\", \"c.weight\": \"model-3.safetensors\"}}");
    expect_refused(folder, "c.weight is missing (the index says it is in model-3.safetensors)");
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"n\": \"x\"}}");
    ds_checkpoint_close(opened(folder));
    write_st("model-3.safetensors", "{\"n\":" T("U8", "[1]", "0", "1") "}", bytes, 1);
    expect_refused(folder, "tensor n twice");
    ds_checkpoint_close(NULL);
}

static void test_eos(void **state)
{
    (void)state;
    static const struct {
        const char *config, *generation, *want; /* want NULL: refused */
    } cases[] = {
        {"{}", NULL, "null"},
        {"{\"eos_token_id\": 3}", NULL, "[3]"},
        {"{\"eos_token_id\": [3, 4]}", "{\"eos_token_id\": [4, 5]}", "[3, 4, 5]"},
        {"{\"eos_token_id\": 3}", "{}", "[3]"},
        {"{\"eos_token_id\": null}", "{\"eos_token_id\": 9}", "[9]"},
        {"{\"text_config\": {\"eos_token_id\": 1}}", "{\"eos_token_id\": [9, 1]}", "[1, 9]"},
        {"{\"eos_token_id\": \"x\"}", NULL, NULL},
        {"{\"eos_token_id\": [1.5]}", NULL, NULL},
        {"{\"eos_token_id\": -1}", NULL, NULL},
        {"{}", "{\"eos_token_id\": {}}", NULL},
        {"{}", "{", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        start(cases[i].config);
        write_st("model.safetensors", "{}", "", 0);
        if (cases[i].generation)
            write_text("generation_config.json", cases[i].generation);
        if (!cases[i].want) {
            expect_refused(folder, folder);
            continue;
        }
        ds_checkpoint *ckpt = opened(folder);
        json_t *want = json_loads(cases[i].want, JSON_DECODE_ANY, NULL);
        const json_t *got = json_object_get(ds_checkpoint_config(ckpt), "eos_token_id");
        assert_true(json_is_null(want) ? !got : json_equal(got, want));
        json_decref(want);
        ds_checkpoint_close(ckpt);
    }
}

/* Two rows of 64 inputs: 4 bits in one group of 64, or 8 bits in two of 32; both take 16 (32) words. */
static void test_affine(void **state)
{
    (void)state;
    static const struct {
        const char *quantization;     /* in config.json */
        const char *words, *scales;   /* shapes */
        const char *type;             /* of scales */
        int words_bytes, scale_bytes; /* each */
        uint32_t cols;
        int bits, group;
        const char *says;
    } cases[] = {
        {"{\"bits\":4,\"group_size\":64}", "[2,8]", "[2,1]", "F16", 64, 4, 64, 4, 64, NULL},
        {"{\"bits\":4,\"group_size\":64}", "[2,8]", "[2,1]", "F16", 64, 4, 0, 4, 64, NULL},
        {"null", "[2,8]", "[2,1]", "BF16", 64, 4, 64, 4, 64, NULL},
        {"null", "[2,8]", "[2,1]", "F16", 64, 4, 0, 0, 0, "several pairs"},
        {"null", "[2,8]", "[2,1]", "F32", 64, 8, 32, 8, 32, NULL}, /* the same bytes, read otherwise */
        {"null", "[2,8]", "[2,1]", "F16", 64, 4, 128, 2, 128, NULL},
        {"null", "[2,1]", "[2,1]", "F16", 8, 4, 0, 1, 32, NULL}, /* one answer only */
        {"{\"bits\":8,\"group_size\":64}", "[2,8]", "[2,1]", "F16", 64, 4, 64, 0, 0,
         "config.json says 8 bits"},
        {"{\"bits\":8,\"group_size\":64}", "[2,8]", "[2,1]", "F16", 64, 4, 0, 0, 0,
         "config.json says 8 bits"},
        {"{\"bits\":8,\"group_size\":32,\"m.q\":{\"bits\":4,\"group_size\":64}}", "[2,8]", "[2,1]", "F16", 64,
         4, 64, 4, 64, NULL},
        {"{\"bits\":4,\"group_size\":64,\"m.q\":{\"bits\":5,\"group_size\":64}}", "[2,8]", "[2,1]", "F16", 64,
         4, 64, 0, 0, "m.q"},
        {"{\"bits\":4,\"group_size\":64,\"m.q\":false}", "[2,8]", "[2,1]", "F16", 64, 4, 64, 0, 0,
         "says it is not quantised"},
        {"{\"bits\":4,\"group_size\":64,\"m.q\":7}", "[2,8]", "[2,1]", "F16", 64, 4, 64, 0, 0,
         "false or an object"},
        {"{\"bits\":\"4\"}", "[2,8]", "[2,1]", "F16", 64, 4, 64, 0, 0, "bits must be"},
        {"null", "[2,8]", "[2,2]", "U8", 64, 4, 64, 0, 0, "not supported yet"},
        {"null", "[2,8]", "[1,2]", "F16", 64, 4, 64, 0, 0, "rows"},
        {"null", "[2,7]", "[2,1]", "F16", 56, 4, 64, 0, 0, "no affine matrix of 64 columns"},
        {"null", "[2,7]", "[2,3]", "F16", 56, 12, 0, 0, 0, "fit no affine format"},
    };
    uint8_t bytes[256];
    memset(bytes, 0x31, sizeof bytes);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char config[256], header[512];
        snprintf(config, sizeof config, "{\"quantization\": %s}", cases[i].quantization);
        start(config);
        int w0 = cases[i].words_bytes, s0 = cases[i].scale_bytes;
        snprintf(header, sizeof header,
                 "{\"m.q.weight\":{\"dtype\":\"U32\",\"shape\":%s,\"data_offsets\":[0,%d]},"
                 "\"m.q.scales\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]},"
                 "\"m.q.biases\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}}",
                 cases[i].words, w0, cases[i].type, cases[i].scales, w0, w0 + s0, cases[i].type,
                 cases[i].scales, w0 + s0, w0 + 2 * s0);
        write_st("model.safetensors", header, bytes, (size_t)(w0 + 2 * s0));
        ds_checkpoint *ckpt = opened(folder);
        ds_weight w;
        ds_error err = {0};
        ds_status status = ds_checkpoint_weight(ckpt, "m.q", 0, cases[i].cols, &w, &err);
        if (status != (cases[i].says ? DS_BAD_FILE : DS_OK) ||
            (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: %d '%s'", i, status, err.text);
        if (!status) {
            float values[128], scales[8], mins[8];
            uint8_t codes[128];
            assert_int_equal(w.affine_bits, cases[i].bits);
            assert_int_equal(w.affine_group, cases[i].group);
            assert_true(w.rows == 2 && w.type == DS_AFFINE && w.codes.has_min);
            w.floats(&w, 1, values);
            w.codes_row(&w, 1, codes, scales, mins);
            for (uint32_t k = 0; k < w.cols; k++) {
                float product = scales[k / (uint32_t)w.codes.group] * (float)codes[k];
                assert_true(values[k] == product + mins[k / (uint32_t)w.codes.group]);
            }
            w.drop(&w, 0, 2);
        }
        ds_checkpoint_close(ckpt);
    }
}

static void test_affine_parts(void **state)
{
    (void)state;
    static const struct {
        const char *header, *says;
    } cases[] = {
        {"{\"q.weight\":" T("U32", "[2,8]", "0", "64") "}", "q.scales is missing"},
        {"{\"q.weight\":" T("U32", "[2,8]", "0", "64") ",\"q.scales\":" T("F16", "[2,1]", "64", "68") "}",
         "q.biases is missing"},
        {"{\"q.weight\":" T("I32", "[2,8]", "0", "64") ",\"q.scales\":" T(
             "F16", "[2,1]", "64", "68") ",\"q.biases\":" T("F16", "[2,1]", "68", "72") "}",
         "not I32"},
        {"{\"q.weight\":" T("U32", "[2,8]", "0", "64") ",\"q.scales\":" T(
             "F16", "[2,1]", "64", "68") ",\"q.biases\":" T("BF16", "[2,1]", "68", "72") "}",
         "of one type"},
        {"{\"q.weight\":" T("U32", "[2,8]", "0", "64") ",\"q.scales\":" T(
             "F16", "[2,0]", "64", "64") ",\"q.biases\":" T("F16", "[2,0]", "64", "64") "}",
         "not a matrix"},
        {"{\"q.weight\":" T("I64", "[2,4]", "0", "64") "}", "type I64 is not supported"},
        {"{\"q.weight\":" T("F16", "[8]", "0", "16") "}", "not a matrix"},
        {"{\"q.weight\":" T("F16", "[0,8]", "0", "0") "}", "not a matrix"},
    };
    uint8_t bytes[80] = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        start("{}");
        ds_weight w;
        ds_error err = {0};
        ds_buf file = {0};
        put_text(&file, cases[i].header);
        ds_buf_add(&file, bytes, sizeof bytes);
        write_file("model.safetensors", file.data, file.len);
        ds_buf_release(&file);
        ds_checkpoint *ckpt = opened(folder);
        assert_int_equal(ds_checkpoint_weight(ckpt, "q", 0, 64, &w, &err), DS_BAD_FILE);
        if (!strstr(err.text, cases[i].says))
            fail_msg("case %zu: '%s'", i, err.text);
        ds_checkpoint_close(ckpt);
    }
}

/* A NaN or infinity among the scales of any format is found, in the last block too. */
static void test_bad_scales(void **state)
{
    (void)state;
    static const struct {
        uint32_t number; /* GGUF's */
        uint64_t cols;
        uint32_t block, at[2]; /* bytes of a block, where its scales are */
    } cases[] = {
        {2, 64, 18, {0, 0}},        {3, 64, 20, {0, 2}},     {6, 64, 22, {0, 0}},
        {7, 64, 24, {0, 2}},        {8, 64, 34, {0, 0}},     {10, 512, 84, {80, 82}},
        {11, 512, 110, {108, 108}}, {12, 512, 144, {0, 2}},  {13, 512, 176, {0, 2}},
        {14, 512, 210, {208, 208}}, {20, 64, 18, {0, 0}},    {23, 512, 136, {0, 0}},
        {34, 512, 54, {52, 52}},    {35, 512, 66, {64, 64}},
    };
    static const uint16_t values[] = {0x3C00, 0x7C00, 0xFC00, 0x7E01};
    static const char *const keys[] = {"llama.embedding_length", "llama.block_count",
                                       "llama.feed_forward_length", "llama.attention.head_count"};
    start(NULL);
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t v = 0; v < COUNT(values); v++)
            for (int which = 0; which < 2; which++) {
                ds_buf file = {0};
                put_gguf(&file, 3, 1, 2 + COUNT(keys));
                put_kv_text(&file, "general.architecture", "llama");
                put_kv32(&file, "llama.attention.layer_norm_rms_epsilon", 6, 0);
                for (size_t k = 0; k < COUNT(keys); k++)
                    put_kv32(&file, keys[k], 4, 2);
                put_tensor(&file, "blk.0.attn_q.weight", cases[c].cols, 3, cases[c].number, 0);
                put_zeros(&file, 32, 6 * cases[c].block);
                size_t last = file.len - cases[c].block + cases[c].at[which];
                memcpy(file.data + last, &values[v], 2);
                put_zeros(&file, 32, 0);
                write_file("m.gguf", file.data, file.len);
                ds_buf_release(&file);
                ds_checkpoint *ckpt = opened(in_folder("m.gguf"));
                ds_weight w;
                ds_error err = {0};
                assert_int_equal(ds_checkpoint_gguf(ckpt)->kv_count, 2 + COUNT(keys));
                if (ds_checkpoint_weight(ckpt, "model.layers.0.self_attn.q_proj", 3, 0, &w, &err))
                    fail_msg("%s", err.text);
                assert_int_equal(w.finite(&w, 0, 3), v == 0);
                assert_int_equal(w.finite(&w, 2, 3), v == 0);
                assert_true(w.finite(&w, 0, 2));
                ds_checkpoint_close(ckpt);
            }
    /* affine, where the scales are of any float type */
    static const struct {
        const char *type;
        uint32_t bytes, bad;
    } floats[] = {{"F16", 2, 0x7C00}, {"BF16", 2, 0xFF80}, {"F32", 4, 0x7F800000}, {"F32", 4, 0x7FC00000}};
    for (size_t f = 0; f < COUNT(floats); f++)
        for (uint32_t place = 0; place <= 4; place++) { /* two scales, two biases, then none */
            uint8_t data[32 + 16] = {0};
            char header[512];
            uint32_t n = floats[f].bytes;
            if (place < 4)
                memcpy(data + 32 + place * n, &floats[f].bad, n);
            start("{}");
            snprintf(header, sizeof header,
                     "{\"q.weight\":" T(
                         "U32", "[2,4]", "0",
                         "32") ",\"q.scales\":{\"dtype\":\"%s\",\"shape\":[2,1],\"data_offsets\":[32,%u]},"
                               "\"q.biases\":{\"dtype\":\"%s\",\"shape\":[2,1],\"data_offsets\":[%u,%u]}}",
                     floats[f].type, 32 + 2 * n, floats[f].type, 32 + 2 * n, 32 + 4 * n);
            write_st("model.safetensors", header, data, 32 + 4 * n);
            ds_checkpoint *ckpt = opened(folder);
            ds_weight w;
            assert_int_equal(ds_checkpoint_weight(ckpt, "q", 2, 32, &w, NULL), DS_OK);
            assert_int_equal(w.finite(&w, 0, 2), place == 4);
            assert_int_equal(w.finite(&w, 0, 1), place == 4 || place % 2 == 1);
            ds_checkpoint_close(ckpt);
        }
}

static void test_gguf_collision(void **state)
{
    (void)state;
    start(NULL);
    ds_buf file = {0};
    static const char *const keys[] = {"llama.embedding_length", "llama.block_count",
                                       "llama.feed_forward_length", "llama.attention.head_count"};
    put_gguf(&file, 3, 2, 2 + COUNT(keys));
    put_kv_text(&file, "general.architecture", "llama");
    put_kv32(&file, "llama.attention.layer_norm_rms_epsilon", 6, 0);
    for (size_t k = 0; k < COUNT(keys); k++)
        put_kv32(&file, keys[k], 4, 2);
    put_tensor(&file, "output_norm.weight", 8, 0, 0, 0);
    put_tensor(&file, "model.norm.weight", 8, 0, 0, 0);
    put_zeros(&file, 32, 32);
    write_file("m.gguf", file.data, file.len);
    expect_refused(in_folder("m.gguf"), "model.norm.weight twice");
    write_file("m.gguf", file.data, 3);
    expect_refused(in_folder("m.gguf"), "not a GGUF file");
    ds_buf_release(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),     cmocka_unit_test(test_eos),
        cmocka_unit_test(test_affine),     cmocka_unit_test(test_affine_parts),
        cmocka_unit_test(test_bad_scales), cmocka_unit_test(test_gguf_collision),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (*folder)
        remove_folder();
    return failed;
}
