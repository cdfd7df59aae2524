#include "text/detok.h"

#include "text_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define REPLACED "\xef\xbf\xbd"

/* Bytes as tokens of a byte-level vocabulary, and the text that Python's errors="replace" makes. */
static const struct {
    const char *name, *in, *out;
} cases[] = {
    {"ascii", "abc", "abc"},
    {"two bytes", "caf\xc3\xa9", "caf\xc3\xa9"},
    {"three bytes", "\xe2\x82\xac!", "\xe2\x82\xac!"},
    {"four bytes", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    {"cut at the end", "a\xf0\x9f\x98", "a" REPLACED},
    {"cut by a letter",
     "\xf0\x9f\x98"
     "a",
     REPLACED "a"},
    {"cut by a character", "\xe2\x82\xc3\xa9", REPLACED "\xc3\xa9"},
    {"lone continuation",
     "\x80\x80"
     "a",
     REPLACED REPLACED "a"},
    {"overlong", "\xc0\xaf", REPLACED REPLACED},
    {"overlong of three", "\xe0\x80\xaf", REPLACED REPLACED REPLACED},
    {"surrogate", "\xed\xa0\x80", REPLACED REPLACED REPLACED},
    {"too high", "\xf4\x90\x80\x80", REPLACED REPLACED REPLACED REPLACED},
    {"no lead byte",
     "\xff\xfe"
     "a",
     REPLACED REPLACED "a"},
    {"last of each length", "\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf", "\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf"},
};

static ds_tokenizer *open_tok(void)
{
    json_t *meta = text_byte_level("gpt-2");
    ds_tokenizer *tok = NULL;
    ds_error err = {0};
    if (text_open(&tok, meta, &err))
        fail_msg("%s", err.text);
    json_decref(meta);
    return tok;
}

/* Fed whole, split at every place and one by one. */
static void test_cases(void **state)
{
    (void)state;
    ds_tokenizer *tok = open_tok();
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t n = strlen(cases[c].in), cut = 0; cut <= n + 1; cut++) {
            int32_t ids[32];
            for (size_t i = 0; i < n; i++)
                ids[i] = BYTE0 + (uint8_t)cases[c].in[i];
            ds_buf out = {0};
            ds_detok detok;
            ds_detok_init(&detok, tok, true);
            for (size_t i = 0, step; i < n; i += step) {
                step = cut > n ? 1 : i < cut ? cut - i : n - i;
                assert_true(ds_detok_feed(&detok, ids + i, step, &out));
            }
            assert_true(ds_detok_end(&detok, &out));
            if (strcmp(ds_buf_text(&out), cases[c].out))
                fail_msg("%s, cut %zu: \"%s\"", cases[c].name, cut, ds_buf_text(&out));
            ds_buf_release(&out);
        }
    ds_tokenizer_close(tok);
}

static void test_special_and_held(void **state)
{
    (void)state;
    ds_tokenizer *tok = open_tok();
    static const int32_t ids[] = {1, HEL, THINK, BYTE0 + 0xc3, 2, BYTE0 + 0xa9};
    for (int skip = 0; skip < 2; skip++) {
        ds_buf out = {0};
        ds_detok detok;
        ds_detok_init(&detok, tok, skip);
        assert_true(ds_detok_feed(&detok, ids, 4, &out));
        assert_string_equal(ds_buf_text(&out), skip ? "hel<think>" : "<|im_start|>hel<think>");
        assert_true(ds_detok_feed(&detok, ids + 4, 2, &out));
        assert_true(ds_detok_end(&detok, &out));
        assert_string_equal(ds_buf_text(&out), skip ? "hel<think>\xc3\xa9"
                                                    : "<|im_start|>hel<think>" REPLACED
                                                      "<|im_end|>" REPLACED);
        ds_buf_release(&out);
    }
    ds_buf full = {.max = 2};
    ds_detok detok;
    ds_detok_init(&detok, tok, true);
    assert_false(ds_detok_feed(&detok, ids, 3, &full));
    ds_buf_release(&full);
    ds_tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_special_and_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
