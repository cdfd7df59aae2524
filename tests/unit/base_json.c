#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* back: JSON of the same value; NULL: refused with a message that has `says` in it. */
static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text, *back, *says;
    } cases[] = {
        {"{\"b\": 1, \"a\": [true, null]}", "{\"b\":1,\"a\":[true,null]}", NULL},
        {"3", "3", NULL},
        {"\"x\"", "\"x\"", NULL},
        {"null", "null", NULL},
        {"[NaN, Infinity, -Infinity]", "[\"NaN\",\"Infinity\",\"-Infinity\"]", NULL},
        {"Infinity", "\"Infinity\"", NULL},
        {"[\"NaN\", \"a\\\"NaN\", NaN]", "[\"NaN\",\"a\\\"NaN\",\"NaN\"]", NULL}, /* strings stay */
        {"{\"NaN\": -1}", "{\"NaN\":-1}", NULL},
        {"[9223372036854775807, -9223372036854775808]", "[9223372036854775807,-9223372036854775808]", NULL},
        {"[1000000000000000019884624838656]", "[1000000000000000019884624838656.0]", NULL},
        {"[9223372036854775808]", "[9223372036854775808.0]", NULL},
        {"[1234567890123456789012.5]", "[1234567890123456789012.5]", NULL},
        {"\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"", NULL},
        {"", NULL, "not valid JSON"},
        {"[1", NULL, "not valid JSON"},
        {"[1] 2", NULL, "not valid JSON"},
        {"\"abc", NULL, "not valid JSON"},
        {"\"abc\\", NULL, "not valid JSON"},
        {"{\"a\": 1, \"a\": 2}", NULL, "duplicate"},
        {"\"\xff\"", NULL, "decode byte"},
        {"\"\\ud800\"", NULL, "not valid JSON"},
        {"[-NaN]", NULL, "not valid JSON"},
        {"1e999", NULL, "not valid JSON"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *got;
        ds_error err = {0};
        ds_status status = ds_json_parse(&got, cases[i].text, strlen(cases[i].text), "f.json", &err);
        if (cases[i].back) {
            assert_int_equal(status, DS_OK);
            json_t *want = json_loads(cases[i].back, JSON_DECODE_ANY, NULL);
            assert_non_null(want);
            assert_true(json_equal(got, want)); /* an integer never equals a real */
            json_decref(want);
            json_decref(got);
        } else {
            assert_int_equal(status, DS_BAD_FILE);
            assert_null(got);
            assert_non_null(strstr(err.text, "f.json"));
            if (!strstr(err.text, cases[i].says))
                fail_msg("%s: says '%s'", cases[i].text, err.text);
        }
    }
}

static void test_depth(void **state)
{
    (void)state;
    char text[400];
    for (int depth = 1; depth <= 200; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        json_t *got;
        ds_error err;
        ds_status status = ds_json_parse(&got, text, 2 * (size_t)depth, "deep", &err);
        assert_int_equal(status, depth <= DS_JSON_DEPTH ? DS_OK : DS_BAD_FILE);
        if (status)
            assert_non_null(strstr(err.text, "deeper"));
        json_decref(got);
    }
    /* brackets in strings nest nothing */
    memset(text, '[', sizeof text);
    text[0] = text[sizeof text - 1] = '"';
    json_t *got;
    assert_int_equal(ds_json_parse(&got, text, sizeof text, "text", NULL), DS_OK);
    json_decref(got);
}

static void test_getters(void **state)
{
    (void)state;
    const char *text = "{\"i\": 5, \"r\": 1.5, \"t\": true, \"s\": \"x\", \"z\": null}";
    json_t *obj;
    assert_int_equal(ds_json_parse(&obj, text, strlen(text), "f", NULL), DS_OK);
    static const struct {
        const char *key;
        int i, num, b, s; /* 1: taken, 0: left alone, -1: refused */
    } cases[] = {
        {"i", 1, 1, -1, -1},  {"r", -1, 1, -1, -1}, {"t", -1, -1, 1, -1},
        {"s", -1, -1, -1, 1}, {"z", 0, 0, 0, 0},    {"absent", 0, 0, 0, 0},
    };
    for (size_t c = 0; c < COUNT(cases); c++) {
        int64_t i = -7;
        double num = -7;
        bool b = false;
        const char *s = NULL, *key = cases[c].key;
        ds_error err = {0};
        assert_int_equal(ds_json_int(obj, key, 0, 10, &i, "f", &err), cases[c].i < 0 ? DS_BAD_FILE : DS_OK);
        assert_int_equal(i, cases[c].i > 0 ? 5 : -7);
        assert_int_equal(ds_json_num(obj, key, 0, 10, &num, "f", &err),
                         cases[c].num < 0 ? DS_BAD_FILE : DS_OK);
        assert_int_equal(num > 0, cases[c].num > 0);
        assert_int_equal(ds_json_bool(obj, key, &b, "f", &err), cases[c].b < 0 ? DS_BAD_FILE : DS_OK);
        assert_int_equal(b, cases[c].b > 0);
        assert_int_equal(ds_json_text(obj, key, &s, "f", &err), cases[c].s < 0 ? DS_BAD_FILE : DS_OK);
        assert_int_equal(s != NULL, cases[c].s > 0);
    }
    int64_t i = 0;
    ds_error err = {0};
    assert_int_equal(ds_json_int(obj, "i", 6, 10, &i, "f", &err), DS_BAD_FILE);
    assert_string_equal(err.text, "f: i must be a whole number from 6 to 10");
    assert_int_equal(err.status, DS_BAD_FILE);
    assert_int_equal(ds_json_int(obj, "i", 0, 4, &i, "f", NULL), DS_BAD_FILE);
    json_decref(obj);
}

static void test_load(void **state)
{
    (void)state;
    char path[] = "/tmp/ds_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    json_t *got;
    ds_error err;
    assert_true(ds_file_exists(path));
    assert_int_equal(ds_json_load(&got, path, 100, &err), DS_BAD_FILE); /* empty */
    assert_int_equal(write(fd, "[1, 2]", 6), 6);
    close(fd);
    assert_int_equal(ds_json_load(&got, path, 6, &err), DS_OK);
    assert_int_equal(json_array_size(got), 2);
    json_decref(got);
    assert_int_equal(ds_json_load(&got, path, 5, &err), DS_BAD_FILE);
    unlink(path);
    assert_false(ds_file_exists(path));
    assert_int_equal(ds_json_load(&got, path, 100, &err), DS_BAD_FILE);
    assert_non_null(strstr(err.text, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
