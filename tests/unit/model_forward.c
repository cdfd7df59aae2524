/* Row exactness of whole models: a token's logits have the same bits in whatever pieces, batch, after
 * whatever rollback or restore, and at any number of threads they are computed. */
#include "backend/cpu/cpu.h"
#include "base/cpu.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA TEST_SOURCE_DIR "/tests/golden/data/targets/"

enum { PROMPT = 24, LONG = 300 }; /* LONG: more than one chunk of keys */

/* one integer, one float with sliding layers, one with biases and interleaved rope, one unquantised tied */
static const char *const models[] = {"qwen3_q4_g64", "llama_sliding", "llama_bias_traditional",
                                     "llama_q4_g64_tied"};

typedef struct {
    ds_checkpoint *ckpt;
    ds_backend *be;
    ds_model *model;
    const ds_model_info *info;
    size_t vocab;
    char label[96];
} fixture;

static ds_error err;

static void ok(const fixture *f, ds_status status, const char *what)
{
    if (status)
        fail_msg("%s: %s: %s", f->label, what, err.text);
}

static void open_fixture(fixture *f, const char *name, const ds_cpu_opts *opts)
{
    char path[512];
    snprintf(path, sizeof path, DATA "%s", name);
    *f = (fixture){0};
    snprintf(f->label, sizeof f->label, "%s", name);
    ok(f, ds_cpu_open(&f->be, opts, &err), "backend");
    snprintf(f->label, sizeof f->label, "%s, %s, %d threads%s", name, f->be->isa, f->be->threads,
             opts->exact ? ", exact" : "");
    ok(f, ds_checkpoint_open(&f->ckpt, path, &err), "checkpoint");
    ok(f, ds_model_open(&f->model, f->ckpt, f->be, NULL, &err), "model");
    f->info = ds_model_get(f->model);
    f->vocab = (size_t)f->info->vocab;
}

static void close_fixture(fixture *f)
{
    ds_model_close(f->model);
    ds_checkpoint_close(f->ckpt);
    f->be->close(f->be);
}

static ds_state *new_state(const fixture *f, int capacity)
{
    ds_state *state;
    ok(f, ds_state_open(&state, f->model, capacity, &err), "sequence");
    return state;
}

/* Deterministic ids; `which` tells sequences apart. */
static void make_ids(const fixture *f, int32_t *ids, int n, unsigned which)
{
    uint32_t x = 12345u + which * 7919u;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % (uint32_t)f->info->vocab);
    }
}

/* Feeds ids in pieces of at most `step`, logits of all rows into out (NULL: none). */
static void feed(const fixture *f, ds_state *state, const int32_t *ids, int n, int step, float *out)
{
    for (int at = 0; at < n; at += step) {
        int rows = n - at < step ? n - at : step;
        ds_span span = {.state = state, .ids = ids + at, .n = rows, .logits_from = out ? 0 : rows};
        ds_forward result;
        ok(f, ds_model_forward(f->model, &span, 1, &result, &err), "forward");
        if (out)
            ok(f,
               f->be->download(f->be, out + (size_t)at * f->vocab, result.logits,
                               (size_t)rows * f->vocab * sizeof *out, &err),
               "logits");
    }
}

static void same(const fixture *f, const float *a, const float *b, size_t rows, const char *what, int detail)
{
    for (size_t r = 0; r < rows; r++)
        if (memcmp(a + r * f->vocab, b + r * f->vocab, f->vocab * sizeof *a) != 0)
            fail_msg("%s: %s %d: row %zu has other bits", f->label, what, detail, r);
}

/* --- properties --- */

static void pieces(const fixture *f, const int32_t *ids, const float *whole, float *work)
{
    static const int steps[] = {1, 2, 5, 8, 23};
    for (size_t s = 0; s < COUNT(steps); s++) {
        ds_state *state = new_state(f, PROMPT);
        feed(f, state, ids, PROMPT, steps[s], work);
        same(f, work, whole, PROMPT, "pieces of", steps[s]);
        assert_int_equal(ds_state_length(state), PROMPT);
        ds_state_close(state);
    }
}

/* Other tokens are fed behind a place, then forgotten, as after a rejected draft. stride: between the
 * places that are tried. */
static void rollback(const fixture *f, const int32_t *ids, const float *whole, float *work, int stride)
{
    int32_t other[PROMPT];
    make_ids(f, other, PROMPT, 99);
    ds_state *state = new_state(f, 2 * PROMPT);
    feed(f, state, ids, PROMPT, PROMPT, NULL);
    for (int keep = 0; keep < PROMPT; keep += stride) {
        ds_state_rollback(state, keep);
        feed(f, state, other, PROMPT, PROMPT, NULL);
        ds_state_rollback(state, keep);
        assert_int_equal(ds_state_length(state), keep);
        feed(f, state, ids + keep, PROMPT - keep, 7, work);
        same(f, work, whole + (size_t)keep * f->vocab, (size_t)(PROMPT - keep), "rollback to", keep);
    }
    ds_state_rollback(state, PROMPT + 1); /* not there: nothing changes */
    ds_state_rollback(state, -1);
    assert_int_equal(ds_state_length(state), PROMPT);
    ds_state_close(state);
}

static void snapshots(const fixture *f, const int32_t *ids, const float *whole, float *work, int stride)
{
    int32_t other[PROMPT];
    make_ids(f, other, PROMPT, 98);
    ds_state *from = new_state(f, PROMPT), *to = new_state(f, 3 * PROMPT + 5), *tiny = new_state(f, 4);
    feed(f, from, ids, PROMPT, PROMPT, NULL);
    for (int length = 0; length < PROMPT; length += stride) {
        ds_snapshot *snap;
        ok(f, ds_state_snapshot(&snap, from, length, &err), "snapshot");
        assert_int_equal(ds_snapshot_length(snap), length);
        ds_state_rollback(to, 0);
        feed(f, to, other, PROMPT, PROMPT, NULL);
        ok(f, ds_state_restore(to, snap, &err), "restore");
        assert_int_equal(ds_state_length(to), length);
        if (length > 4)
            assert_int_equal(ds_state_restore(tiny, snap, &err), DS_INVALID);
        ds_snapshot_close(snap);
        feed(f, to, ids + length, PROMPT - length, PROMPT, work);
        same(f, work, whole + (size_t)length * f->vocab, (size_t)(PROMPT - length), "snapshot of", length);
    }
    ds_snapshot *snap;
    assert_int_equal(ds_state_snapshot(&snap, from, PROMPT + 1, &err), DS_INVALID);
    assert_null(snap);
    ds_state_close(from);
    ds_state_close(to);
    ds_state_close(tiny);
}

/* Sequences of different lengths and needs in one forward: each as when it is alone. */
static void batch(const fixture *f, float *work)
{
    enum { N = 4 };
    static const int before[N] = {0, 11, 3, 20}, rows[N] = {9, 1, 5, 8}, from[N] = {0, 0, 5, 7};
    ds_state *states[N];
    ds_span spans[N];
    int32_t ids[N][PROMPT + 8];
    float *alone = work, *together = work + (size_t)PROMPT * f->vocab;
    int expected = 0;
    for (int s = 0; s < N; s++) {
        make_ids(f, ids[s], PROMPT + 8, (unsigned)s);
        states[s] = new_state(f, PROMPT + 8);
        feed(f, states[s], ids[s], before[s], PROMPT, NULL);
        feed(f, states[s], ids[s] + before[s], rows[s], 1, together); /* as scratch */
        memcpy(alone + (size_t)expected * f->vocab, together + (size_t)from[s] * f->vocab,
               (size_t)(rows[s] - from[s]) * f->vocab * sizeof *alone);
        expected += rows[s] - from[s];
        ds_state_rollback(states[s], before[s]);
        spans[s] =
            (ds_span){.state = states[s], .ids = ids[s] + before[s], .n = rows[s], .logits_from = from[s]};
    }
    ds_forward result;
    ok(f, ds_model_forward(f->model, spans, N, &result, &err), "batch");
    assert_int_equal(result.logit_rows, expected);
    assert_int_equal(result.rows, 9 + 1 + 5 + 8);
    ok(f, f->be->download(f->be, together, result.logits, (size_t)expected * f->vocab * sizeof *work, &err),
       "batch");
    same(f, together, alone, (size_t)expected, "batch of", N);
    /* the keys and values written without logits are right too */
    ds_state *fresh = new_state(f, PROMPT + 8);
    feed(f, fresh, ids[2], before[2] + rows[2] + 1, PROMPT + 8, alone);
    feed(f, states[2], ids[2] + before[2] + rows[2], 1, 1, together);
    same(f, together, alone + (size_t)(before[2] + rows[2]) * f->vocab, 1, "after a batch, sequence", 2);
    ds_state_close(fresh);
    for (int s = 0; s < N; s++)
        ds_state_close(states[s]);
}

/* The likeliest tokens without logits are those of the logits, whatever the number of rows. */
static void best_only(const fixture *f, const int32_t *ids, const float *whole)
{
    static const int steps[] = {1, 3, 8, PROMPT};
    for (size_t s = 0; s < COUNT(steps); s++) {
        ds_state *state = new_state(f, PROMPT);
        for (int at = 0; at < PROMPT; at += steps[s]) {
            int rows = PROMPT - at < steps[s] ? PROMPT - at : steps[s];
            ds_span span = {.state = state, .ids = ids + at, .n = rows, .best_only = true};
            ds_forward result;
            int32_t best[PROMPT];
            float value[PROMPT];
            ok(f, ds_model_forward(f->model, &span, 1, &result, &err), "forward");
            assert_null(result.logits);
            ok(f, f->be->download(f->be, best, result.best, (size_t)rows * sizeof *best, &err), "best");
            ok(f, f->be->download(f->be, value, result.best_logit, (size_t)rows * sizeof *value, &err),
               "their logits");
            for (int r = 0; r < rows; r++) {
                const float *row = whole + (size_t)(at + r) * f->vocab;
                int top = 0;
                for (int i = 1; i < (int)f->vocab; i++)
                    top = row[i] > row[top] ? i : top;
                if (best[r] != top || memcmp(&value[r], &row[top], sizeof *value) != 0)
                    fail_msg("%s: row %d alone says %d, its logits say %d", f->label, at + r, best[r], top);
            }
        }
        ds_state_close(state);
    }
}

/* Taps and fewer logits change no bits; taps are the same with and without logits. */
static void taps(const fixture *f, const int32_t *ids, const float *whole, float *work)
{
    const int last = f->info->layers - 1;
    const int sets[][3] = {{-1, 0, last}, {-1, 0, 1}};
    size_t hidden = (size_t)f->info->hidden, bytes = PROMPT * 3 * hidden * sizeof(float);
    float *first = malloc(bytes), *again = malloc(bytes);
    for (size_t s = 0; s < COUNT(sets); s++) {
        ok(f, ds_model_set_taps(f->model, sets[s], 3, &err), "taps");
        assert_int_equal(ds_model_taps(f->model), 3);
        for (int logits_from = 0; logits_from <= PROMPT; logits_from += PROMPT / 4) {
            ds_state *state = new_state(f, PROMPT);
            ds_span span = {.state = state, .ids = ids, .n = PROMPT, .logits_from = logits_from};
            ds_forward result;
            ok(f, ds_model_forward(f->model, &span, 1, &result, &err), "forward");
            int rows = PROMPT - logits_from;
            assert_int_equal(result.logit_rows, rows);
            assert_true(rows ? result.logits != NULL : result.logits == NULL);
            if (rows)
                ok(f,
                   f->be->download(f->be, work, result.logits, (size_t)rows * f->vocab * sizeof *work, &err),
                   "logits");
            same(f, work, whole + (size_t)logits_from * f->vocab, (size_t)rows, "logits from", logits_from);
            ok(f, f->be->download(f->be, again, result.taps, bytes, &err), "taps");
            if (!logits_from)
                memcpy(first, again, bytes);
            else if (memcmp(first, again, bytes) != 0)
                fail_msg("%s: taps depend on which rows give logits", f->label);
            ds_state_close(state);
        }
    }
    static const int wrong[][2] = {{1, 1}, {2, 0}, {-2, 0}, {0, 99}};
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_int_equal(ds_model_set_taps(f->model, wrong[i], 2, &err), DS_INVALID);
    ok(f, ds_model_set_taps(f->model, NULL, 0, &err), "no taps");
    free(first);
    free(again);
}

/* Several chunks of keys, the window far from the start, a prompt in pieces of odd sizes. */
static void long_prompt(const fixture *f)
{
    int32_t ids[LONG];
    make_ids(f, ids, LONG, 5);
    float *whole = malloc(2 * LONG * f->vocab * sizeof *whole), *work = whole + LONG * f->vocab;
    ds_state *state = new_state(f, LONG);
    feed(f, state, ids, LONG, LONG, whole);
    ds_state_rollback(state, 0);
    feed(f, state, ids, 250, 47, work);
    feed(f, state, ids + 250, LONG - 250, 1, work + 250 * f->vocab);
    same(f, work, whole, LONG, "long prompt of", LONG);
    ds_state_rollback(state, 255);
    feed(f, state, ids + 255, 6, 6, work); /* a verify over the border of a chunk */
    same(f, work, whole + 255 * f->vocab, 6, "verify at", 255);
    ds_state_close(state);
    free(whole);
}

static void refusals(const fixture *f)
{
    int32_t ids[DS_MAX_ROWS + 1];
    make_ids(f, ids, DS_MAX_ROWS + 1, 3);
    int32_t bad[] = {1, (int32_t)f->vocab}, negative[] = {-1};
    ds_state *state = new_state(f, 8), *big = new_state(f, DS_MAX_ROWS + 1);
    feed(f, state, ids, 3, 3, NULL);
    const ds_span cases[] = {
        {state, ids, 6, 0, false},                          /* does not fit */
        {state, ids, 0, 0, false},                          /* no rows */
        {state, ids, -1, 0, false},     {state, bad, 2, 0, false}, /* outside the vocabulary */
        {state, negative, 1, 0, false}, {state, ids, 2, 3, false}, /* logits of rows that are not there */
        {state, ids, 2, -1, false},     {big, ids, DS_MAX_ROWS + 1, 0, false},
        {NULL, ids, 1, 0, false},
    };
    ds_forward out;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (ds_model_forward(f->model, &cases[i], 1, &out, &err) != DS_INVALID)
            fail_msg("%s: refusal %zu did not come", f->label, i);
        assert_int_equal(ds_state_length(state), 3);
        assert_int_equal(ds_state_length(big), 0);
    }
    const ds_span twice[] = {{state, ids, 1, 0, false}, {state, ids, 1, 0, false}};
    assert_int_equal(ds_model_forward(f->model, twice, 2, &out, &err), DS_INVALID);
    const ds_span second_bad[] = {{big, ids, 1, 0, false}, {state, bad, 2, 0, false}};
    assert_int_equal(ds_model_forward(f->model, second_bad, 2, &out, &err), DS_INVALID);
    assert_int_equal(ds_state_length(big), 0);
    assert_int_equal(ds_model_forward(f->model, cases, 0, &out, &err), DS_INVALID);
    ds_state *none;
    assert_int_equal(ds_state_open(&none, f->model, 0, &err), DS_INVALID);
    assert_null(none);
    ds_state_close(state);
    ds_state_close(big);
    ds_state_close(NULL);
}

static void one_model(const char *name)
{
    static const char *const isas[] = {"c", "avx2", "auto"};
    for (int exact = 0; exact < 2; exact++)
        for (size_t i = 0; i < COUNT(isas); i++) {
            unsigned mask;
            assert_true(ds_cpu_mask(isas[i], &mask));
            float *reference = NULL;
            for (int threads = 1; threads <= 2; threads++) {
                fixture f;
                ds_cpu_opts opts = {.threads = threads, .cpu_mask = mask, .exact = exact};
                open_fixture(&f, name, &opts);
                int32_t ids[PROMPT];
                make_ids(&f, ids, PROMPT, 1);
                size_t count = PROMPT * f.vocab;
                float *whole = malloc(3 * count * sizeof *whole), *work = whole + count;
                ds_state *state = new_state(&f, PROMPT);
                feed(&f, state, ids, PROMPT, PROMPT, whole);
                ds_state_close(state);
                if (reference)
                    same(&f, whole, reference, PROMPT, "threads", threads);
                pieces(&f, ids, whole, work);
                rollback(&f, ids, whole, work, threads == 1 ? 1 : 5);
                snapshots(&f, ids, whole, work, threads == 1 ? 1 : 5);
                batch(&f, work);
                best_only(&f, ids, whole);
                taps(&f, ids, whole, work);
                long_prompt(&f);
                if (threads == 1)
                    refusals(&f);
                close_fixture(&f);
                free(reference);
                reference = whole;
            }
            free(reference);
        }
}

static void test_model(void **state)
{
    one_model(*state);
}

int main(void)
{
    struct CMUnitTest tests[COUNT(models)];
    for (size_t i = 0; i < COUNT(models); i++)
        tests[i] = (struct CMUnitTest){models[i], test_model, NULL, NULL, (void *)models[i]};
    return _cmocka_run_group_tests("model_forward", tests, COUNT(tests), NULL, NULL);
}
