#include "formats/dequant.h"

#include "base/error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Every half comes back as itself, and halves order like their values. */
static void test_halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = ds_f16_to_f32((uint16_t)h), b = ds_bf16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true((h & 0x7C00) == 0x7C00 && (h & 0x3FF) && isnan(ds_f16_to_f32(ds_f32_to_f16(f))));
        else
            assert_int_equal(ds_f32_to_f16(f), h);
        if (isnan(b))
            assert_true(isnan(ds_bf16_to_f32(ds_f32_to_bf16(b))));
        else
            assert_int_equal(ds_f32_to_bf16(b), h);
        int exp = (int)(h >> 10 & 31), frac = (int)(h & 1023);
        if (exp < 31)
            assert_true(fabsf(f) ==
                        (exp ? ldexpf((float)(1024 + frac), exp - 25) : ldexpf((float)frac, -24)));
    }
}

/* Halfway between two neighbours goes to the even one, anything beyond to the nearer. */
static void test_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7BFF; h++) {
        float low = ds_f16_to_f32((uint16_t)h), high = ds_f16_to_f32((uint16_t)(h + 1)),
              mid = 0.5f * (low + high);
        assert_int_equal(ds_f32_to_f16(mid), h + (h & 1));
        assert_int_equal(ds_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(ds_f32_to_f16(nextafterf(mid, -INFINITY)), h);
        assert_int_equal(ds_f32_to_f16(-mid), 0x8000 | (h + (h & 1)));
    }
    static const struct {
        float in;
        uint16_t f16, bf16;
    } cases[] = {
        {65504, 0x7BFF, 0x4780},     {65519.996f, 0x7BFF, 0x4780}, {65520, 0x7C00, 0x4780},
        {1e30f, 0x7C00, 0x714A},     {INFINITY, 0x7C00, 0x7F80},   {-INFINITY, 0xFC00, 0xFF80},
        {0x1p-25f, 0, 0x3300},       {-0.0f, 0x8000, 0x8000},      {1, 0x3C00, 0x3F80},
        {0x1.01p0f, 0x3C04, 0x3F80}, {0x1.03p0f, 0x3C0C, 0x3F82},  {3.4e38f, 0x7C00, 0x7F80},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(ds_f32_to_f16(cases[i].in), cases[i].f16);
        assert_int_equal(ds_f32_to_bf16(cases[i].in), cases[i].bf16);
    }
}

/* The bit stream, read bit by bit. */
static void test_affine_codes(void **state)
{
    (void)state;
    uint8_t row[256], codes[256];
    srand(7);
    for (size_t i = 0; i < sizeof row; i++)
        row[i] = (uint8_t)rand();
    for (int bits = 1; bits <= 8; bits++) {
        ds_affine_codes(row, bits, 256, codes);
        for (int k = 0; k < 256; k++) {
            int want = 0;
            for (int b = 0; b < bits; b++)
                want |= (row[(bits * k + b) / 8] >> (bits * k + b) % 8 & 1) << b;
            assert_int_equal(codes[k], want);
        }
    }
}

/* Properties of the quantiser: the larger extreme comes back exactly, nothing is off by more than
 * a step, and groups without spread are kept. */
static void test_affine_quantize(void **state)
{
    (void)state;
    float w[128];
    uint8_t codes[128];
    srand(11);
    for (int bits = 1; bits <= 8; bits++)
        for (int n = 32; n <= 128; n *= 2)
            for (int round = 0; round < 50; round++) {
                float most = 0, scale, bias;
                for (int i = 0; i < n; i++) {
                    w[i] = round == 0   ? 0
                           : round == 1 ? 1.25f
                                        : ldexpf((float)rand() / (float)RAND_MAX - 0.4f, round % 7);
                    most = fabsf(w[i]) > fabsf(most) ? w[i] : most;
                }
                ds_affine_quantize(w, n, bits, codes, &scale, &bias);
                for (int i = 0; i < n; i++) {
                    float back = scale * (float)codes[i] + bias;
                    assert_true(codes[i] < 1 << bits);
                    assert_true(fabsf(back - w[i]) <= 1.01f * fabsf(scale));
                    if (w[i] == most && round)
                        assert_int_equal(bits_of(back), bits_of(most));
                }
            }
}

static void test_refusals(void **state)
{
    (void)state;
    uint8_t src[256] = {0};
    float out[64];
    static const struct {
        ds_dtype type;
        size_t n;
        bool ok;
    } cases[] = {
        {DS_F32, 0, true},    {DS_F32, 3, true},  {DS_Q4_0, 32, true}, {DS_Q4_0, 31, false},
        {DS_Q4_K, 64, false}, {DS_U32, 4, false}, {DS_I8, 4, false},   {DS_DTYPE_COUNT, 0, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(ds_dequant(cases[i].type, src, cases[i].n, out), cases[i].ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves),       cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_affine_codes), cmocka_unit_test(test_affine_quantize),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
