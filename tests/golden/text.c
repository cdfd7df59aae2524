/* ds_golden_text [DIR]: tokenizers and chat templates against what the reference libraries gave.
 * DIR/text/NAME/golden.json has the expectations; the tokenizers themselves are fetched by
 * scripts/fetch_test_data.sh to $DSPARK_TEST_DATA or .cache/test-data. Exit 77: nothing could be run. */
#include "base/json.h"
#include "engine/open_text.h"
#include "text/detok.h"
#include "text/template.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_SKIP = 77, SHOWN = 5 };

static const struct {
    const char *name, *path; /* a folder, or a GGUF file */
} models[] = {
    {"smollm2", "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    {"qwen3", "qwen3"},
    {"gemma3", "gemma3"},
};

typedef struct {
    const char *name;
    ds_tokenizer *tok;
    ds_template *tpl;
    int failed;
} suite;

static void fail(suite *s, const char *what, const char *text, const char *got)
{
    if (s->failed++ < SHOWN)
        printf("FAIL %s: %s of \"%.80s\": %.200s\n", s->name, what, text, got);
}

static bool same_ids(const ds_ids *got, const json_t *want)
{
    if (got->len != json_array_size(want))
        return false;
    for (size_t i = 0; i < got->len; i++)
        if (got->data[i] != json_integer_value(json_array_get(want, i)))
            return false;
    return true;
}

/* Every character of these vocabularies comes back, so both ways to decode give the same text. */
static void check_decoded(suite *s, const ds_ids *ids, const char *text, const json_t *decoded)
{
    ds_buf whole = {0}, stream = {0};
    ds_error err;
    ds_detok detok;
    const char *want = json_string_value(decoded);
    if (ds_tokenizer_decode(s->tok, ids->data, ids->len, false, &whole, &err))
        fail(s, "decode", text, err.text);
    else if (whole.len != json_string_length(decoded) || memcmp(ds_buf_text(&whole), want, whole.len))
        fail(s, "decode", text, ds_buf_text(&whole));
    ds_detok_init(&detok, s->tok, false);
    for (size_t i = 0; i < ids->len; i++)
        ds_detok_feed(&detok, ids->data + i, 1, &stream);
    ds_detok_end(&detok, &stream);
    if (stream.len != json_string_length(decoded) || memcmp(ds_buf_text(&stream), want, stream.len))
        fail(s, "stream", text, ds_buf_text(&stream));
    ds_buf_release(&whole);
    ds_buf_release(&stream);
}

static void check_string(suite *s, const json_t *item)
{
    const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, "ids");
    const json_t *special = json_object_get(item, "ids_with_special");
    const char *str = json_string_value(text);
    for (int with = 0; with < 2; with++) {
        ds_ids got = {0};
        ds_error err;
        if (ds_tokenizer_encode(s->tok, str, json_string_length(text), with, &got, &err))
            fail(s, "encode", str, err.text);
        else if (!same_ids(&got, with && special ? special : ids))
            fail(s, with ? "ids_with_special" : "ids", str, "other ids");
        else if (!with)
            check_decoded(s, &got, str, json_object_get(item, "decoded"));
        ds_ids_release(&got);
    }
}

static void check_chat(suite *s, size_t number, const json_t *chat)
{
    const json_t *prompt = json_object_get(chat, "prompt"), *refusal = json_object_get(chat, "error");
    char label[32];
    snprintf(label, sizeof label, "chat %zu", number);
    ds_buf got = {0};
    ds_ids ids = {0};
    ds_error err = {0};
    ds_status status =
        ds_template_render(s->tpl, json_object_get(chat, "messages"), json_object_get(chat, "options"),
                           ds_tokenizer_bos(s->tok), ds_tokenizer_eos(s->tok), &got, &err);
    if (refusal) {
        if (status != DS_INVALID || !err.text[0])
            fail(s, "missing refusal", label, ds_buf_text(&got));
    } else if (status) {
        fail(s, "render", label, err.text);
    } else if (got.len != json_string_length(prompt) ||
               memcmp(got.data, json_string_value(prompt), got.len)) {
        fail(s, "prompt", label, ds_buf_text(&got));
    } else if (ds_tokenizer_encode(s->tok, got.data, got.len, false, &ids, &err)) {
        fail(s, "encode", label, err.text);
    } else if (!same_ids(&ids, json_object_get(chat, "ids"))) {
        fail(s, "ids", label, "other ids");
    }
    ds_ids_release(&ids);
    ds_buf_release(&got);
}

static ds_status open_model(suite *s, const char *path, ds_error *err)
{
    if (!strstr(path, ".gguf")) { /* the folder of a tokenizer alone */
        ds_status status = ds_tokenizer_open(&s->tok, path, err);
        return status ? status : ds_template_open_folder(&s->tpl, path, NULL, err);
    }
    ds_checkpoint *ckpt = NULL;
    ds_status status = ds_checkpoint_open(&ckpt, path, err);
    if (!status)
        status = ds_text_open(&s->tok, &s->tpl, ckpt, err);
    ds_checkpoint_close(ckpt);
    return status;
}

/* 1: passed, 0: failed, -1: not there */
static int run_model(const char *dir, const char *data, size_t m)
{
    suite s = {.name = models[m].name};
    ds_buf golden = {0}, path = {0};
    json_t *json = NULL, *item;
    ds_error err = {0};
    size_t i;
    int result = -1;
    ds_buf_fmt(&golden, "%s/text/%s/golden.json", dir, s.name);
    ds_buf_fmt(&path, "%s/%s", data, models[m].path);
    ds_buf probe = {0};
    ds_buf_fmt(&probe, "%s%s", ds_buf_text(&path), strstr(models[m].path, ".gguf") ? "" : "/tokenizer.json");
    if (!ds_file_exists(ds_buf_text(&golden)) || !ds_file_exists(ds_buf_text(&probe))) {
        printf("SKIP %s: %s is not there (scripts/fetch_test_data.sh fetches tokenizers)\n", s.name,
               ds_file_exists(ds_buf_text(&golden)) ? ds_buf_text(&probe) : ds_buf_text(&golden));
        goto done;
    }
    result = 0;
    json_error_t why;
    json = json_load_file(ds_buf_text(&golden), JSON_ALLOW_NUL, &why); /* a string has a NUL in it */
    if (!json)
        ds_fail(&err, DS_BAD_FILE, "%s: %s", ds_buf_text(&golden), why.text);
    if (!json || open_model(&s, ds_buf_text(&path), &err) || !s.tpl) {
        printf("FAIL %s: %s\n", s.name, err.text[0] ? err.text : "no chat template");
        goto done;
    }
    const json_t *strings = json_object_get(json, "strings"), *chats = json_object_get(json, "chats");
    json_array_foreach(strings, i, item) check_string(&s, item);
    int strings_failed = s.failed;
    json_array_foreach(chats, i, item) check_chat(&s, i, item);
    printf("%s: %zu strings (%d failures), %zu chats (%d failures)\n", s.name, json_array_size(strings),
           strings_failed, json_array_size(chats), s.failed - strings_failed);
    result = s.failed == 0 && json_array_size(strings) && json_array_size(chats);
done:
    json_decref(json);
    ds_template_close(s.tpl);
    ds_tokenizer_close(s.tok);
    ds_buf_release(&golden);
    ds_buf_release(&probe);
    ds_buf_release(&path);
    return result;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : getenv("DSPARK_GOLDEN_DIR"), *data = getenv("DSPARK_TEST_DATA");
    if (!dir || !*dir)
        dir = TEST_SOURCE_DIR "/tests/golden/data";
    if (!data || !*data)
        data = TEST_SOURCE_DIR "/.cache/test-data";
    int passed = 0, failed = 0, skipped = 0;
    for (size_t m = 0; m < COUNT(models); m++) {
        int result = run_model(dir, data, m);
        passed += result > 0;
        failed += result == 0;
        skipped += result < 0;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : passed ? 0 : EXIT_SKIP;
}
