#include "tensor/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_table(void **state)
{
    (void)state;
    static const struct {
        ds_dtype type;
        const char *name;
        uint32_t elems, bytes;
    } cases[] = {
        {DS_F32, "F32", 1, 4},        {DS_BF16, "BF16", 1, 2},     {DS_F8_E4M3, "F8_E4M3", 1, 1},
        {DS_Q4_0, "Q4_0", 32, 18},    {DS_Q8_0, "Q8_0", 32, 34},   {DS_Q6_K, "Q6_K", 256, 210},
        {DS_TQ2_0, "TQ2_0", 256, 66}, {DS_AFFINE, "affine", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ds_dtype_info *info = ds_dtype_get(cases[i].type);
        assert_string_equal(info->name, cases[i].name);
        assert_int_equal(info->elems, cases[i].elems);
        assert_int_equal(info->bytes, cases[i].bytes);
    }
    for (int t = 0; t < DS_AFFINE; t++) /* everyone divides by them */
        assert_true(ds_dtype_get((ds_dtype)t)->elems > 0 && ds_dtype_get((ds_dtype)t)->bytes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
