/* The CPU backend's parts that no model test reaches alone: refining, argmax, KV in and out. */
#include "backend/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- refining --- */

static float wave(uint32_t row, uint32_t col, float seed)
{
    uint32_t h = row * 2654435761u ^ (col + 1) * 40503u ^ (uint32_t)(seed * 977);
    h ^= h >> 13;
    h *= 0x5bd1e995;
    h ^= h >> 15;
    return (float)(h & 0xffff) / 65536.0f - 0.5f;
}

static void exact_floats(const ds_weight *w, uint32_t row, float *out)
{
    for (uint32_t i = 0; i < w->cols; i++)
        out[i] = wave(row, i, 1);
}

static void rough_floats(const ds_weight *w, uint32_t row, float *out)
{
    exact_floats(w, row, out);
    for (uint32_t i = 0; i < w->cols; i++)
        out[i] += wave(row, i, 2) * 0.02f;
}

static void test_refine(void **state)
{
    (void)state;
    enum { N = 1003, K = 96, ROWS = 3, TOP = 5 };
    for (int threads = 1; threads <= 2; threads++) {
        ds_backend *be;
        ds_cpu_opts opts = {.threads = threads};
        assert_int_equal(ds_cpu_open(&be, &opts, NULL), DS_OK);
        ds_weight w = {.name = "w", .type = DS_F32, .rows = N, .cols = K, .floats = exact_floats};
        ds_matrix *exact, *rough;
        assert_int_equal(be->matrix_open(be, &exact, &w, NULL), DS_OK);
        w.floats = rough_floats;
        assert_int_equal(be->matrix_open(be, &rough, &w, NULL), DS_OK);
        float x[ROWS * K], y[ROWS * N], want[ROWS * N], before[ROWS * N];
        for (int i = 0; i < ROWS * K; i++)
            x[i] = wave((uint32_t)i, 7, 3);
        ds_in in = {.x = x, .ld = K};
        ds_out out = {.w = exact, .y = want, .ld = N};
        be->linear(be, &in, ROWS, &out, 1);
        out = (ds_out){.w = rough, .y = y, .ld = N};
        be->linear(be, &in, ROWS, &out, 1);
        assert_int_equal(be->sync(be, NULL), DS_OK);
        memcpy(before, y, sizeof before);
        be->refine(be, x, K, exact, y, N, ROWS, TOP);
        int32_t best[ROWS], truth[ROWS];
        be->argmax(be, best, y, N, ROWS, N, NULL);
        be->argmax(be, truth, want, N, ROWS, N, NULL);
        assert_int_equal(be->sync(be, NULL), DS_OK);
        for (int r = 0; r < ROWS; r++) {
            int refined = 0;
            for (int i = 0; i < N; i++) { /* every output is either the exact one or untouched */
                float v = y[r * N + i];
                int is_exact = memcmp(&v, &want[r * N + i], sizeof v) == 0;
                assert_true(is_exact || memcmp(&v, &before[r * N + i], sizeof v) == 0);
                refined += is_exact;
            }
            assert_true(refined >= TOP && refined <= TOP * 16 + 8);
            assert_int_equal(best[r], truth[r]);
        }
        be->matrix_close(be, exact);
        be->matrix_close(be, rough);
        be->close(be);
    }
}

/* --- KV out and in, at another capacity --- */

static void test_kv(void **state)
{
    (void)state;
    enum { DIM = 24, HEADS = 2, LAYERS = 3, ROWS = 37 };
    for (int exact = 0; exact < 2; exact++) {
        ds_backend *be;
        ds_cpu_opts opts = {.threads = 1, .exact = exact};
        assert_int_equal(ds_cpu_open(&be, &opts, NULL), DS_OK);
        ds_kv *a, *b;
        ds_kv_shape shape = {LAYERS, HEADS, DIM, 50};
        assert_int_equal(be->kv_open(be, &a, &shape, NULL), DS_OK);
        shape.capacity = 700;
        assert_int_equal(be->kv_open(be, &b, &shape, NULL), DS_OK);
        float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
        for (int i = 0; i < ROWS * HEADS * DIM; i++) {
            k[i] = wave((uint32_t)i, 1, 4);
            v[i] = wave((uint32_t)i, 2, 4);
        }
        ds_seq seq = {.kv = a, .rows = ROWS, .causal = true};
        for (int l = 0; l < LAYERS; l++) {
            ds_heads h = {.layer = l, .heads = HEADS, .kv_heads = HEADS, .dim = DIM, .k = k, .v = v,
                          .ld_kv = HEADS * DIM, .seqs = &seq, .n_seqs = 1};
            be->heads(be, &h);
        }
        size_t bytes = be->kv_bytes(a, ROWS);
        assert_int_equal(bytes, (size_t)2 * LAYERS * HEADS * ROWS * DIM * (exact ? 4 : 2));
        uint8_t *first = malloc(bytes), *second = malloc(bytes);
        assert_int_equal(be->kv_save(be, a, 0, ROWS, first, NULL), DS_OK);
        assert_int_equal(be->kv_load(be, b, 0, ROWS, first, NULL), DS_OK);
        assert_int_equal(be->kv_save(be, b, 0, ROWS, second, NULL), DS_OK);
        assert_memory_equal(first, second, bytes);
        ds_error err;
        assert_int_equal(be->kv_save(be, a, 0, 51, first, &err), DS_INVALID);
        free(first);
        free(second);
        be->kv_close(be, a);
        be->kv_close(be, b);
        be->close(be);
    }
}

static void test_argmax(void **state)
{
    (void)state;
    ds_backend *be;
    ds_cpu_opts opts = {.threads = 2};
    assert_int_equal(ds_cpu_open(&be, &opts, NULL), DS_OK);
    float x[2][40] = {{0}};
    x[0][7] = x[0][31] = 3; /* the lower index of equals */
    x[1][39] = 1;
    int32_t offsets[40] = {[7] = 100, [39] = -9}, out[2];
    be->argmax(be, out, x[0], 40, 2, 40, NULL);
    assert_int_equal(be->sync(be, NULL), DS_OK);
    assert_int_equal(out[0], 7);
    assert_int_equal(out[1], 39);
    be->argmax(be, out, x[0], 40, 2, 40, offsets);
    assert_int_equal(be->sync(be, NULL), DS_OK);
    assert_int_equal(out[0], 107);
    assert_int_equal(out[1], 30);
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refine), cmocka_unit_test(test_kv),
                                       cmocka_unit_test(test_argmax)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
