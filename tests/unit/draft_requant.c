/* Quantising on the fly gives what a quantised file would hold. */
#include "formats/dequant.h"
#include "model/requant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 5, COLS = 192 };

static ds_weight weight_of(ds_dtype type, void *data, uint32_t cols)
{
    return (ds_weight){.name = "w",
                       .type = type,
                       .rows = ROWS,
                       .cols = cols,
                       .data = data,
                       .bytes = (uint64_t)ROWS * cols * ds_dtype_get(type)->bytes};
}

static void fill(uint16_t *bf16, size_t n)
{
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        float value = (float)(int32_t)x / 2147483648.0f * (i % 17 == 3 ? 4 : 0.25f);
        bf16[i] = ds_f32_to_bf16(i / 64 == 2 ? 0 : value); /* one group of zeros */
    }
}

static void test_rows(void **state)
{
    (void)state;
    uint16_t data[ROWS * COLS];
    fill(data, ROWS * COLS);
    for (int bits = 2; bits <= 8; bits++)
        for (int group = 32; group <= 64; group *= 2) {
            ds_weight src = weight_of(DS_BF16, data, COLS), w;
            ds_error err;
            assert_int_equal(ds_weight_requant(&src, bits, group, &w, &err), DS_OK);
            assert_int_equal(w.codes.bits, bits);
            assert_int_equal(w.codes.scale_type, DS_BF16);
            for (uint32_t row = 0; row < ROWS; row++) {
                uint8_t codes[COLS];
                float scales[COLS / 32], mins[COLS / 32], values[COLS], whole[COLS];
                ds_dequant(DS_BF16, (const uint8_t *)(data + row * COLS), COLS, whole);
                w.codes_row(&w, row, codes, scales, mins);
                w.floats(&w, row, values);
                for (uint32_t i = 0; i < COLS; i++) {
                    uint32_t g = i / (uint32_t)group;
                    float scale = scales[g], product = scale * (float)codes[i];
                    assert_true(codes[i] < 1 << bits);
                    assert_true(scale == ds_bf16_to_f32(ds_f32_to_bf16(scale)));
                    assert_true(values[i] == product + mins[g]);
                    float slack = fabsf(scale) * (1.01f + (float)codes[i] / 256);
                    assert_true(fabsf(values[i] - whole[i]) <= slack);
                }
            }
        }
}

static void test_refused(void **state)
{
    (void)state;
    float data[ROWS * 48] = {0};
    ds_weight src = weight_of(DS_F32, data, 48), w;
    ds_error err;
    assert_int_equal(ds_weight_requant(&src, 4, 64, &w, &err), DS_INVALID); /* 48 is no whole group */
    assert_int_equal(ds_weight_requant(&src, 1, 32, &w, &err), DS_INVALID);
    src.type = DS_Q4_0;
    src.cols = 64;
    assert_int_equal(ds_weight_requant(&src, 4, 64, &w, &err), DS_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
