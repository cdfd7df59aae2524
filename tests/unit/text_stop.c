#include "text/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* hit: which of the strings, -1: none */
static const struct {
    const char *name, *stops[4], *in, *out;
    int hit;
} cases[] = {
    {"no stop strings", {NULL}, "abc", "abc", -1},
    {"absent", {"END"}, "abc", "abc", -1},
    {"hides itself", {"END"}, "abENDcd", "ab", 0},
    {"at once", {"END"}, "ENDcd", "", 0},
    {"at the end", {"END"}, "abEND", "ab", 0},
    {"prefix at the end", {"END"}, "abEN", "abEN", -1}, /* held back, then let go */
    {"false start", {"aab"}, "aaab", "a", 0},           /* restarts inside a match */
    {"false start in a false start", {"abac"}, "ababac", "ab", 0},
    {"bytes, not text", {"\xc3\xa9"}, "caf\xc3\xa9!", "caf", 0},
    {"half a character", {"\xc3\xa9"}, "caf\xc3\xa8!", "caf\xc3\xa8!", -1},
    {"first of two", {"END", "b"}, "abENDcd", "a", 1},
    {"second of two", {"x", "END"}, "abENDcdx", "ab", 1},
    {"one inside another", {"abc", "b"}, "xabcx", "x", 0}, /* the leftmost, though b was whole before */
    {"one inside another, alone", {"abcd", "b"}, "xabcx", "xa", 1},
    {"inside another, at the end", {"abcd", "b"}, "xab", "xa", 1}, /* found when the text ends */
    {"one starts another", {"abc", "ab"}, "xabcx", "x", -2},       /* either: the text is the same */
    {"same twice", {"ab", "ab"}, "xab", "x", 0},
    {"empty strings are none", {"", "ab"}, "xab", "x", 0},
    {"only empty strings", {""}, "xab", "xab", -1},
    {"longer than the text", {"abcdefghij"}, "abc", "abc", -1},
    {"empty text", {"a"}, "", "", -1},
};

/* Tokens cut text anywhere and a draft brings several at once: each case is fed whole, split at every
 * place and byte by byte (cut = n + 1), and gives the same answer each time. */
static void test_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t n = strlen(cases[c].in), cut = 0; cut <= n + 1; cut++) {
            size_t count = 0;
            while (count < 4 && cases[c].stops[count])
                count++;
            ds_stop stop;
            ds_error err;
            ds_buf out = {0};
            assert_int_equal(ds_stop_init(&stop, cases[c].stops, count, &err), DS_OK);
            bool hit = false;
            for (size_t i = 0, step; i < n && !hit; i += step) {
                step = cut > n ? 1 : i < cut ? cut - i : n - i;
                hit = ds_stop_feed(&stop, cases[c].in + i, step, &out);
            }
            hit = hit || ds_stop_end(&stop, &out);
            if (strcmp(ds_buf_text(&out), cases[c].out) || hit != (cases[c].hit != -1) ||
                (cases[c].hit >= 0 && stop.hit != cases[c].hit))
                fail_msg("%s, cut %zu: \"%s\", hit %d (%d)", cases[c].name, cut, ds_buf_text(&out), hit,
                         stop.hit);
            assert_int_equal(stop.released, out.len);
            ds_stop_release(&stop);
            ds_buf_release(&out);
        }
}

/* Text goes out at once unless it may still become a match. */
static void test_holds_back_little(void **state)
{
    (void)state;
    static const char *const stops[] = {"</s>", "\n\n"};
    static const struct {
        const char *in;
        size_t released; /* after it */
    } steps[] = {{"abc", 3}, {"\n", 3}, {"d", 5}, {"<", 5}, {"/", 5}, {"<", 7}, {"/s", 7}, {"x\n", 11}};
    ds_stop stop;
    ds_error err;
    ds_buf out = {0};
    assert_int_equal(ds_stop_init(&stop, stops, COUNT(stops), &err), DS_OK);
    for (size_t i = 0; i < COUNT(steps); i++) {
        assert_false(ds_stop_feed(&stop, steps[i].in, strlen(steps[i].in), &out));
        assert_int_equal(stop.released, steps[i].released);
    }
    assert_true(ds_stop_feed(&stop, "\n", 1, &out));
    assert_string_equal(ds_buf_text(&out), "abc\nd</</sx");
    assert_int_equal(stop.hit, 1);
    ds_stop_release(&stop);
    ds_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_holds_back_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
