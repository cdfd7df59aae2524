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

/* Q8_0 in 4 bits: the three decoders agree, and no value is off by more than its step allows. */
static void test_narrow(void **state)
{
    (void)state;
    enum { BLOCKS = 4, WIDTH = BLOCKS * 32 };
    uint8_t data[BLOCKS * 34];
    for (int b = 0; b < BLOCKS; b++) {
        uint16_t scale = ds_f32_to_f16(0.01f * (float)(b + 1));
        memcpy(data + b * 34, &scale, 2);
        for (int i = 0; i < 32; i++)
            data[b * 34 + 2 + i] = (uint8_t)(b == 3 ? 0 : b == 2 ? 128 : i * 37 + b * 11);
    }
    ds_weight src = {.name = "q8", .type = DS_Q8_0, .rows = 1, .cols = WIDTH, .data = data, .bytes = sizeof data}, w;
    assert_true(ds_weight_narrow(&src, &w));
    uint8_t codes[WIDTH], bytes[WIDTH / 2];
    float scales[BLOCKS], values[WIDTH], exact[WIDTH];
    uint16_t raw[BLOCKS];
    ds_dequant(DS_Q8_0, data, WIDTH, exact);
    w.codes_row(&w, 0, codes, scales, NULL);
    w.floats(&w, 0, values);
    w.packed_row(&w, 0, bytes, raw, NULL);
    for (int i = 0; i < WIDTH; i++) {
        int b = i / 32, at = i % 32;
        assert_true(scales[b] == ds_f16_to_f32(raw[b]));
        assert_int_equal(codes[i], at < 16 ? bytes[b * 16 + at] & 15 : bytes[b * 16 + at - 16] >> 4);
        assert_true(values[i] == scales[b] * (float)(codes[i] - w.codes.zero));
        assert_true(fabsf(values[i] - exact[i]) <= fabsf(scales[b]) * 1.01f);
    }
    src.type = DS_F32;
    assert_false(ds_weight_narrow(&src, &w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_narrow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
