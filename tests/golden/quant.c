/* Decoders of quantised values, and products with them. */
#include "golden.h"

#include "formats/dequant.h"
#include "formats/weight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static golden_result check_blocks(const golden_case *c, char *why, size_t n)
{
    const char *name;
    const json_t *number;
    json_object_foreach(json_object_get(c->json, "types"), name, number)
    {
        char key[64];
        snprintf(key, sizeof key, "%.40s.value", name);
        const golden_array *want = golden_want(c, key, 0, 0, why, n);
        snprintf(key, sizeof key, "%.40s.raw", name);
        const golden_array *raw = golden_find(c, key);
        if (!want || !raw)
            return golden_say(why, n, GOLDEN_FAILED, "golden.st lacks the arrays of %s", name);
        int type = 0;
        while (type < DS_DTYPE_COUNT && strcmp(ds_dtype_get((ds_dtype)type)->name, name) != 0)
            type++;
        float *got = malloc((want->count + 1) * sizeof *got);
        bool decoded = type < DS_DTYPE_COUNT && ds_dequant((ds_dtype)type, raw->data, want->count, got);
        bool close =
            decoded && golden_close(c, name, got, want->f, want->count, GOLDEN_TOL_DEQUANT, false, why, n);
        free(got);
        if (!decoded)
            return golden_say(why, n, GOLDEN_FAILED, "no decoder for %s", name);
        if (!close)
            return GOLDEN_FAILED;
    }
    return GOLDEN_PASSED;
}

static ds_tensor tensor(const golden_array *a)
{
    ds_tensor t = {.name = a->name, .type = a->type, .rank = a->rank, .data = a->data, .bytes = a->bytes};
    for (int d = 0; d < 4; d++)
        t.dims[d] = a->dims[d];
    return t;
}

/* y = x w^T through the backend. */
static golden_result check_product(const golden_case *c, const ds_weight *w, char *why, size_t n)
{
    const golden_array *x = golden_want(c, "x", 0, w->cols, why, n);
    const golden_array *y = x ? golden_want(c, "y", x->dims[0], w->rows, why, n) : NULL;
    if (!y)
        return GOLDEN_FAILED;
    ds_backend *be = golden_backend();
    ds_error err = {0};
    ds_matrix *matrix;
    if (be->matrix_open(be, &matrix, w, &err))
        return golden_say(why, n, GOLDEN_FAILED, "%s", err.text);
    float *in = be->mem_alloc(be, x->count * sizeof *in), *out = be->mem_alloc(be, y->count * sizeof *out);
    float *got = malloc(y->count * sizeof *got);
    be->upload(be, in, x->f, x->count * sizeof *in);
    ds_in from = {.x = in, .ld = (int)w->cols};
    ds_out to = {.w = matrix, .y = out, .ld = (int)w->rows};
    be->linear(be, &from, (int)x->dims[0], &to, 1);
    golden_result result = GOLDEN_PASSED;
    if (be->download(be, got, out, y->count * sizeof *got, &err))
        result = golden_say(why, n, GOLDEN_FAILED, "%s", err.text);
    else if (!golden_close(c, "product", got, y->f, y->count, GOLDEN_TOL_LOGITS, false, why, n))
        result = GOLDEN_FAILED;
    free(got);
    be->mem_free(be, in);
    be->mem_free(be, out);
    be->matrix_close(be, matrix);
    return result;
}

/* Quantising the source again gives the file's codes, but for rare neighbours. Only where the scales
 * were computed in fp32. */
static golden_result check_again(const golden_case *c, const ds_weight *w, char *why, size_t n)
{
    const golden_array *source = golden_want(c, "w", w->rows, w->cols, why, n);
    if (!source)
        return GOLDEN_FAILED;
    if (source->type != DS_F32)
        return GOLDEN_PASSED;
    uint8_t *stored = malloc(w->cols), *made = malloc(w->cols);
    size_t off = 0, far = 0;
    for (uint32_t r = 0; r < w->rows; r++) {
        float scale, bias;
        ds_affine_codes(w->data + (size_t)r * w->cols * (size_t)w->affine_bits / 8, w->affine_bits, w->cols,
                        stored);
        for (uint32_t k = 0; k < w->cols; k += (uint32_t)w->affine_group)
            ds_affine_quantize(source->f + (size_t)r * w->cols + k, w->affine_group, w->affine_bits, made + k,
                               &scale, &bias);
        for (uint32_t k = 0; k < w->cols; k++) {
            int diff = abs((int)stored[k] - (int)made[k]);
            off += diff > 0;
            far += diff > 1;
        }
    }
    free(stored);
    free(made);
    if (far || off * 100 > source->count)
        return golden_say(why, n, GOLDEN_FAILED,
                          "quantising again: %zu of %zu codes differ, %zu by more than one", off,
                          source->count, far);
    return GOLDEN_PASSED;
}

int golden_quant(const golden_case *c, char *why, size_t n)
{
    if (strcmp(c->kind, "gguf_blocks") == 0)
        return check_blocks(c, why, n);
    const char *mode = json_string_value(json_object_get(c->json, "mode"));
    if (!mode || strcmp(mode, "affine") != 0)
        return golden_say(why, n, GOLDEN_UNSUPPORTED, "mode %s", mode ? mode : "missing");
    const golden_array *words = golden_find(c, "q.weight"), *scales = golden_find(c, "q.scales");
    const golden_array *biases = golden_find(c, "q.biases"), *want = golden_want(c, "dequant", 0, 0, why, n);
    if (!words || !scales || !biases || !want)
        return golden_say(why, n, GOLDEN_FAILED, "golden.st lacks the arrays of a quantised matrix");
    ds_tensor tensors[] = {tensor(words), tensor(scales), tensor(biases)};
    ds_weight w;
    ds_error err = {0};
    if (ds_weight_affine(&w, "q", &tensors[0], &tensors[1], &tensors[2], want->dims[1],
                         golden_int(c->json, "bits", 0), golden_int(c->json, "group_size", 0), &err))
        return golden_say(why, n, GOLDEN_FAILED, "%s", err.text);
    if (w.rows != want->dims[0] || w.cols != want->dims[1])
        return golden_say(why, n, GOLDEN_FAILED, "%u x %u weights", w.rows, w.cols);
    float *got = malloc(want->count * sizeof *got);
    for (uint32_t r = 0; r < w.rows; r++)
        w.floats(&w, r, got + (size_t)r * w.cols);
    bool close = golden_close(c, "values", got, want->f, want->count, GOLDEN_TOL_DEQUANT, false, why, n);
    free(got);
    if (!close)
        return GOLDEN_FAILED;
    golden_result result = check_again(c, &w, why, n);
    return result ? result : check_product(c, &w, why, n);
}
