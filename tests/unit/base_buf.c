#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_appends(void **state)
{
    (void)state;
    ds_buf buf = {0};
    assert_string_equal(ds_buf_text(&buf), "");
    assert_true(ds_buf_add(&buf, "a\0b", 3));
    assert_true(ds_buf_str(&buf, "cd"));
    assert_true(ds_buf_fmt(&buf, "%d-%s", 42, "x"));
    assert_int_equal(buf.len, 9);
    assert_memory_equal(buf.data, "a\0bcd42-x", 10);
    for (int i = 0; i < 1000; i++)
        assert_true(ds_buf_fmt(&buf, "%03d", i));
    assert_int_equal(buf.len, 3009);
    assert_string_equal(buf.data + 3006, "999");
    size_t cap = buf.cap;
    ds_buf_clear(&buf);
    assert_string_equal(ds_buf_text(&buf), "");
    assert_int_equal(buf.cap, cap);
    ds_buf_release(&buf);
    assert_null(buf.data);
    ds_buf_release(&buf); /* twice is fine */
}

static void test_maximum(void **state)
{
    (void)state;
    static const struct {
        size_t max, first, second;
        int ok;
    } cases[] = {
        {8, 4, 4, 1}, {8, 4, 5, 0}, {8, 8, 0, 1}, {8, 8, 1, 0}, {8, 1, SIZE_MAX, 0}, {0, 1, SIZE_MAX - 1, 0},
    };
    static const char bytes[16] = "0123456789abcde";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_buf buf = {.max = cases[i].max};
        assert_true(ds_buf_add(&buf, bytes, cases[i].first));
        assert_int_equal(ds_buf_add(&buf, bytes, cases[i].second), cases[i].ok);
        assert_int_equal(buf.failed, !cases[i].ok);
        if (!cases[i].ok) { /* the rest is ignored, what was kept stays */
            assert_false(ds_buf_str(&buf, ""));
            assert_false(ds_buf_fmt(&buf, "x"));
            assert_int_equal(buf.len, cases[i].first);
            ds_buf_clear(&buf);
            assert_true(ds_buf_str(&buf, "ok"));
        }
        ds_buf_release(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends),
        cmocka_unit_test(test_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
