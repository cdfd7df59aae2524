#include "text/tokenizer.h"

#include "text_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static ds_tokenizer *open_meta(json_t *meta)
{
    ds_tokenizer *tok = NULL;
    ds_error err = {0};
    if (text_open(&tok, meta, &err))
        fail_msg("%s", err.text);
    json_decref(meta);
    return tok;
}

static void check_ids(const ds_tokenizer *tok, const char *text, bool special, const int32_t *want, size_t n)
{
    ds_ids ids = {0};
    ds_error err = {0};
    assert_int_equal(ds_tokenizer_encode(tok, text, strlen(text), special, &ids, &err), DS_OK);
    assert_int_equal(ids.len, n);
    for (size_t i = 0; i < n; i++)
        if (ids.data[i] != want[i])
            fail_msg("\"%s\" token %zu: %d, not %d", text, i, ids.data[i], want[i]);
    ds_ids_release(&ids);
}

#define CHECK_IDS(tok, text, special, ...)                                                                   \
    check_ids(tok, text, special, (const int32_t[]){__VA_ARGS__},                                            \
              sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t))

static void test_byte_level(void **state)
{
    (void)state;
    ds_tokenizer *tok = open_meta(text_byte_level("smollm"));
    assert_int_equal(ds_tokenizer_size(tok), BPE_SIZE);
    CHECK_IDS(tok, "hello", false, HEL, BYTE0 + 'l', BYTE0 + 'o');
    CHECK_IDS(tok, "he w", false, HE, SPACE_W);
    CHECK_IDS(tok, "<|im_start|>he<think>", false, 1, HE, THINK);
    CHECK_IDS(tok, "\xc3\xa9\n", false, BYTE0 + 0xc3, BYTE0 + 0xa9, BYTE0 + '\n');
    CHECK_IDS(tok, "he", true, HE); /* this kind adds no BOS unless the file says so */
    ds_error err;
    ds_ids ids = {0};
    assert_int_equal(ds_tokenizer_encode(tok, "\xff", 1, false, &ids, &err), DS_INVALID);
    assert_int_equal(ids.len, 0);
    size_t len;
    const uint8_t *bytes = ds_tokenizer_bytes(tok, SPACE_W, &len);
    assert_int_equal(len, 2);
    assert_memory_equal(bytes, " w", 2);
    for (int b = 0; b < 256; b++) { /* every byte has its token */
        bytes = ds_tokenizer_bytes(tok, BYTE0 + b, &len);
        assert_int_equal(len, 1);
        assert_int_equal(bytes[0], b);
    }
    bytes = ds_tokenizer_bytes(tok, 1, &len);
    assert_memory_equal(bytes, "<|im_start|>", len);
    static const int32_t unknown[] = {-1, BPE_SIZE, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(unknown); i++) {
        ds_tokenizer_bytes(tok, unknown[i], &len);
        assert_int_equal(len, 0);
        assert_false(ds_tokenizer_is_special(tok, unknown[i]));
    }
    assert_int_equal(ds_tokenizer_id(tok, "<|im_end|>"), 2);
    assert_int_equal(ds_tokenizer_id(tok, "nothing like it"), -1);
    assert_true(ds_tokenizer_is_special(tok, 2));
    assert_false(ds_tokenizer_is_special(tok, THINK)); /* user-defined: part of the text */
    assert_string_equal(ds_tokenizer_bos(tok), "<|im_start|>");
    assert_string_equal(ds_tokenizer_eos(tok), "<|im_end|>");
    ds_tokenizer_close(tok);
}

static void test_sentencepiece(void **state)
{
    (void)state;
    ds_tokenizer *tok = open_meta(text_sentencepiece());
    CHECK_IDS(tok, "hi", false, SPM_SPACE_HI);
    CHECK_IDS(tok, "hi hi", true, 1, SPM_SPACE_HI, SPM_SPACE_HI);
    CHECK_IDS(tok, "h", false, SPM_SPACE, SPM_H);
    CHECK_IDS(tok, "\xc3\xa9", false, SPM_SPACE, 3 + 0xc3, 3 + 0xa9); /* by bytes */
    CHECK_IDS(tok, "", true, 1);
    size_t len;
    assert_memory_equal(ds_tokenizer_bytes(tok, SPM_SPACE_HI, &len), " hi", 3);
    assert_int_equal(len, 3);
    assert_int_equal(ds_tokenizer_bytes(tok, 3 + 0xc3, &len)[0], 0xc3);
    assert_int_equal(len, 1);
    ds_tokenizer_close(tok);

    json_t *meta = text_sentencepiece(); /* as Gemma's: no space put in front */
    text_put(meta, "add_space_prefix", json_false());
    text_put(meta, "add_eos_token", json_true());
    tok = open_meta(meta);
    CHECK_IDS(tok, "hi hi", true, 1, SPM_HI, SPM_SPACE_HI, 2);
    ds_buf text = {0};
    ds_error err;
    assert_int_equal(ds_tokenizer_decode(tok, (int32_t[]){1, SPM_HI, SPM_SPACE_HI, 2}, 4, true, &text, &err),
                     0);
    assert_string_equal(ds_buf_text(&text), "hi hi");
    ds_buf_clear(&text);
    assert_int_equal(ds_tokenizer_decode(tok, (int32_t[]){1, SPM_HI}, 2, false, &text, &err), 0);
    assert_string_equal(ds_buf_text(&text), "<s>hi");
    ds_buf_release(&text);
    ds_tokenizer_close(tok);
}

/* Of equal tokens the last one counts; the others are ids of no token. */
static void test_duplicates(void **state)
{
    (void)state;
    json_t *meta = text_byte_level("gpt-2");
    text_token(meta, "hel", 1, 0);
    text_token(meta, "<|im_end|>", 3, 0);
    text_token(meta, "", 3, 0); /* nothing to find in a text */
    ds_tokenizer *tok = open_meta(meta);
    assert_int_equal(ds_tokenizer_size(tok), BPE_SIZE + 3);
    CHECK_IDS(tok, "hel<|im_end|>", false, BPE_SIZE, BPE_SIZE + 1);
    assert_int_equal(ds_tokenizer_eos_id(tok), BPE_SIZE + 1);
    assert_false(ds_tokenizer_is_special(tok, 2));
    size_t len;
    ds_tokenizer_bytes(tok, HEL, &len);
    assert_int_equal(len, 0);
    ds_tokenizer_close(tok);
}

static void test_eos_set(void **state)
{
    (void)state;
    ds_tokenizer *tok = open_meta(text_byte_level("gpt-2"));
    int32_t ids[8];
    size_t n = ds_tokenizer_eos_set(tok, (int32_t[]){7, 2, 7}, 3, ids, COUNT(ids));
    assert_int_equal(n, 2); /* <|endoftext|> is the UNK of this vocabulary */
    assert_int_equal(ids[0], 7);
    assert_int_equal(ids[1], 2);
    assert_int_equal(ds_tokenizer_eos_set(tok, NULL, 0, ids, 0), 0);
    ds_tokenizer_close(tok);

    json_t *meta = text_byte_level("gpt-2");
    json_object_del(meta, "tokenizer.ggml.unknown_token_id");
    text_put(meta, "eot_token_id", json_integer(1));
    tok = open_meta(meta);
    assert_int_equal(ds_tokenizer_eos_set(tok, NULL, 0, ids, COUNT(ids)), 3);
    assert_int_equal(ids[0] + ids[1] + ids[2], 3);
    ds_tokenizer_close(tok);
}

static void remove_key(json_t *meta, const char *key)
{
    json_object_del(meta, key);
}

static void set_pre(json_t *meta, const char *pre)
{
    text_put(meta, "pre", json_string(pre));
}

static void set_model(json_t *meta, const char *model)
{
    text_put(meta, "model", json_string(model));
}

static void set_merge(json_t *meta, const char *merge)
{
    json_array_set_new(json_object_get(meta, "tokenizer.ggml.merges"), 1, json_string(merge));
}

static void no_tokens(json_t *meta, const char *key)
{
    json_array_clear(json_object_get(meta, key));
}

static void short_types(json_t *meta, const char *key)
{
    json_array_remove(json_object_get(meta, key), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        bool sentencepiece;
        void (*damage)(json_t *meta, const char *arg);
        const char *arg, *says;
    } cases[] = {
        {false, set_pre, "chatglm-bpe", "chatglm-bpe"},
        {false, set_pre, "chatglm-bpe", "gpt-2, gpt2, smollm, qwen2"},
        {false, remove_key, "tokenizer.ggml.pre", "not given"},
        {false, set_model, "t5", "t5"},
        {false, remove_key, "tokenizer.ggml.model", "no tokenizer"},
        {false, remove_key, "tokenizer.ggml.tokens", "tokens"},
        {false, remove_key, "tokenizer.ggml.merges", "merges"},
        {false, no_tokens, "tokenizer.ggml.tokens", "tokens is missing or empty"},
        {false, set_merge, "he", "merge 1 is not two tokens"},
        {false, set_merge, "h e l", "merge 1 is not two tokens"},
        {false, set_merge, "he nothing", "`nothing` out of vocabulary"},
        {false, set_merge, "nothing he", "`nothing` out of vocabulary"},
        {false, set_merge, "h h", "`hh` out of vocabulary"},
        {false, set_merge, "<|endoftext|> <|endoftext|>", "merge 1 is longer than any token"},
        {false, short_types, "tokenizer.ggml.token_type", "token_type"},
        {true, short_types, "tokenizer.ggml.scores", "scores"},
        {true, remove_key, "tokenizer.ggml.scores", "scores"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *meta = cases[i].sentencepiece ? text_sentencepiece() : text_byte_level("gpt-2");
        ds_tokenizer *tok = (ds_tokenizer *)&meta;
        ds_error err = {0};
        cases[i].damage(meta, cases[i].arg);
        assert_int_equal(text_open(&tok, meta, &err), DS_BAD_FILE);
        assert_null(tok);
        if (!strstr(err.text, cases[i].says))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.text, cases[i].says);
        json_decref(meta);
    }
    static const char *const texts[] = {
        "",
        "{}",
        "[1",
        "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\"}}",
        "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4294967295},\"merges\":[]}}",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        ds_tokenizer *tok;
        ds_error err = {0};
        assert_int_equal(ds_tokenizer_open_json(&tok, texts[i], strlen(texts[i]), "t.json", &err),
                         DS_BAD_FILE);
        assert_non_null(strstr(err.text, "t.json"));
    }
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/ds_text_XXXXXX", path[300];
    assert_non_null(mkdtemp(dir));
    ds_tokenizer *tok;
    ds_error err = {0};
    assert_int_equal(ds_tokenizer_open(&tok, dir, &err), DS_BAD_FILE);
    write_file(
        dir, "tokenizer.json",
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true,"
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
        "\"truncation\":{\"max_length\":1,\"strategy\":\"LongestFirst\",\"stride\":0,"
        "\"direction\":\"Right\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<s>\":2,\"</s>\":9},\"merges\":[]}}");
    write_file(dir, "tokenizer_config.json",
               "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"add_bos_token\":true}");
    write_file(dir, "special_tokens_map.json",
               "{\"bos_token\":\"a\",\"unk_token\":\"b\"}"); /* asked second */
    if (ds_tokenizer_open(&tok, dir, &err))
        fail_msg("%s", err.text);
    CHECK_IDS(tok, "abab", true, 2, 0, 1, 0, 1); /* the file's truncation is not ours */
    CHECK_IDS(tok, "ab", false, 0, 1);
    assert_int_equal(ds_tokenizer_eos_id(tok), 9);
    assert_int_equal(ds_tokenizer_size(tok), 10); /* ids 3 to 8 are of no token */
    size_t len;
    ds_tokenizer_bytes(tok, 5, &len);
    assert_int_equal(len, 0);
    assert_memory_equal(ds_tokenizer_bytes(tok, 9, &len), "</s>", 4);
    assert_int_equal(len, 4);
    ds_tokenizer_close(tok);
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level), cmocka_unit_test(test_sentencepiece),
        cmocka_unit_test(test_eos_set),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_folder),     cmocka_unit_test(test_duplicates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
