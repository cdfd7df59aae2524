/* Block formats and the MLX quantiser against recorded vectors: $DSPARK_GOLDEN_DIR, else
 * tests/golden/data, else ../shared/golden beside the sources. */
#include "formats/dequant.h"
#include "formats/safetensors.h"
#include "formats/weight.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *golden_dir(void)
{
    static const char *const dirs[] = {TEST_SOURCE_DIR "/tests/golden/data",
                                       TEST_SOURCE_DIR "/../shared/golden"};
    const char *dir = getenv("DSPARK_GOLDEN_DIR");
    for (size_t i = 0; !dir && i < COUNT(dirs); i++)
        dir = ds_file_exists(dirs[i]) ? dirs[i] : NULL;
    if (!dir) {
        fprintf(stderr, "\n*** SKIP: no golden vectors (set DSPARK_GOLDEN_DIR) ***\n\n");
        skip();
    }
    return dir;
}

static ds_safetensors *open_case(const char *group, const char *name)
{
    char path[1024];
    ds_error err = {0};
    ds_safetensors *st;
    snprintf(path, sizeof path, "%s/%s/%s/golden.st", golden_dir(), group, name);
    if (ds_safetensors_open(&st, path, &err))
        fail_msg("%s", err.text);
    return st;
}

static const ds_tensor *find(const ds_safetensors *st, const char *name)
{
    for (size_t i = 0; i < st->count; i++)
        if (strcmp(st->tensors[i].name, name) == 0)
            return &st->tensors[i];
    fail_msg("no %s", name);
    return NULL;
}

static float *floats_of(const ds_tensor *tensor, size_t *count)
{
    *count = tensor->bytes / ds_dtype_get(tensor->type)->bytes;
    float *out = malloc((*count + 1) * sizeof *out);
    assert_true(ds_dequant(tensor->type, tensor->data, *count, out));
    return out;
}

static void check_values(const char *what, const float *got, const float *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i])))
            fail_msg("%s [%zu]: %a, not %a", what, i, (double)got[i], (double)want[i]);
}

/* Both views of a weight give the same values. */
static void check_codes(const char *what, const ds_weight *w)
{
    if (!w->codes.bits)
        return;
    int groups = (int)w->cols / w->codes.group;
    float *values = malloc(w->cols * sizeof *values), *scales = malloc(2 * (size_t)groups * sizeof *scales);
    uint8_t *codes = malloc(w->cols);
    for (uint32_t row = 0; row < w->rows; row++) {
        w->floats(w, row, values);
        w->codes_row(w, row, codes, scales, scales + groups);
        for (uint32_t i = 0; i < w->cols; i++) {
            int g = (int)i / w->codes.group;
            assert_true(codes[i] < 1 << w->codes.bits);
            float product = scales[g] * (float)(codes[i] - w->codes.zero);
            float value = w->codes.has_min ? product + scales[groups + g] : product;
            if (value != values[i])
                fail_msg("%s row %u [%u]: %a from codes, %a from floats", what, row, i, (double)value,
                         (double)values[i]);
        }
    }
    free(values);
    free(scales);
    free(codes);
}

static void test_blocks(void **state)
{
    (void)state;
    static const ds_dtype types[] = {DS_F16,    DS_BF16,   DS_Q4_0,  DS_Q4_1,  DS_Q5_0, DS_Q5_1,
                                     DS_Q8_0,   DS_Q2_K,   DS_Q3_K,  DS_Q4_K,  DS_Q5_K, DS_Q6_K,
                                     DS_IQ4_NL, DS_IQ4_XS, DS_MXFP4, DS_TQ1_0, DS_TQ2_0};
    ds_safetensors *st = open_case("gguf", "blocks");
    for (size_t t = 0; t < COUNT(types); t++) {
        const ds_dtype_info *info = ds_dtype_get(types[t]);
        char name[64];
        size_t count;
        snprintf(name, sizeof name, "%s.value", info->name);
        const ds_tensor *values = find(st, name);
        float *want = floats_of(values, &count), *got = malloc(count * sizeof *got);
        snprintf(name, sizeof name, "%s.raw", info->name);
        ds_tensor raw = *find(st, name);
        assert_int_equal(raw.bytes, count / info->elems * info->bytes);
        assert_true(ds_dequant(types[t], raw.data, count, got));
        check_values(info->name, got, want, count);
        raw.type = types[t];
        raw.dims[1] = values->dims[1];
        ds_weight w;
        assert_int_equal(ds_weight_plain(&w, &raw, NULL), DS_OK);
        for (uint32_t row = 0; row < w.rows; row++) {
            w.floats(&w, row, got);
            check_values(info->name, got, want + row * w.cols, w.cols);
        }
        check_codes(info->name, &w);
        free(got);
        free(want);
    }
    ds_safetensors_close(st);
}

/* Returns how many codes differ; none may by more than one. */
static size_t requantise(const char *name, const ds_weight *w, const float *source)
{
    size_t off = 0, group = (size_t)w->codes.group, groups = w->cols / group;
    uint8_t *want = malloc(w->cols), got[128];
    float *scales = malloc(2 * groups * sizeof *scales);
    for (uint32_t row = 0; row < w->rows; row++, source += w->cols) {
        w->codes_row(w, row, want, scales, scales + groups);
        for (size_t g = 0; g < groups; g++) {
            float scale, bias;
            ds_affine_quantize(source + g * group, (int)group, w->codes.bits, got, &scale, &bias);
            /* stored scales are rounded to their type: up to 2^-8 for bf16, 2^-24 for fp16 */
            assert_true(fabsf(scale - scales[g]) <= 0x1p-8f * fabsf(scale) + 0x1p-24f);
            assert_true(fabsf(bias - scales[groups + g]) <= 0x1p-8f * fabsf(bias));
            for (size_t i = 0; i < group; i++) {
                int diff = abs(got[i] - want[g * group + i]);
                if (diff > 1)
                    fail_msg("%s row %u [%zu]: code %d, not %d", name, row, g * group + i, got[i],
                             want[g * group + i]);
                off += diff != 0;
            }
        }
    }
    free(want);
    free(scales);
    return off;
}

static void test_affine(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits, group;
    } cases[] = {
#define THREE(b)                                                                                             \
    {"affine_b" #b "_g32_f32", b, 32}, {"affine_b" #b "_g64_f32", b, 64}, {"affine_b" #b "_g128_f32", b, 128}
        THREE(2),
        THREE(3),
        THREE(4),
        THREE(5),
        THREE(6),
        THREE(8),
#undef THREE
        {"affine_b4_g32_f16", 4, 32},
        {"affine_b4_g64_bf16", 4, 64},
        {"affine_b8_g64_bf16", 8, 64},
    };
    for (size_t c = 0; c < COUNT(cases); c++) {
        ds_safetensors *st = open_case("quant", cases[c].name);
        const ds_tensor *words = find(st, "q.weight"), *scales = find(st, "q.scales"),
                        *biases = find(st, "q.biases");
        size_t count;
        float *want = floats_of(find(st, "dequant"), &count), *source = floats_of(find(st, "w"), &count);
        uint64_t cols = find(st, "w")->dims[1];
        ds_weight w;
        ds_error err = {0};
        if (ds_weight_affine(&w, "q", words, scales, biases, cols, 0, 0, &err))
            fail_msg("%s: %s", cases[c].name, err.text);
        assert_int_equal(w.affine_bits, cases[c].bits);
        assert_int_equal(w.affine_group, cases[c].group);
        assert_int_equal(w.rows * w.cols, count);
        float *row = malloc(w.cols * sizeof *row);
        for (uint32_t r = 0; r < w.rows; r++) {
            w.floats(&w, r, row);
            check_values(cases[c].name, row, want + r * w.cols, w.cols);
        }
        check_codes(cases[c].name, &w);
        size_t off = requantise(cases[c].name, &w, source);
        if (off * 100 > count)
            fail_msg("%s: %zu of %zu codes are off by one", cases[c].name, off, count);
        free(row);
        free(want);
        free(source);
        ds_safetensors_close(st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_affine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
