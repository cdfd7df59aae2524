/* A tiny target and drafter of the golden vectors, opened for a test: $DSPARK_GOLDEN_DIR, else
 * tests/golden/data, else ../shared/golden beside the sources. */
#ifndef DS_TESTS_DECODE_PAIR_H
#define DS_TESTS_DECODE_PAIR_H

#include "backend/cpu/cpu.h"
#include "decode/decode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    ds_backend *be;
    ds_checkpoint *target_files, *draft_files;
    ds_model *target;
    ds_drafter *drafter;
    json_t *golden;
    int32_t prompt[128];
    int n_prompt;
} test_pair;

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        ds_error err_ = {0};                                                                                 \
        ds_error *err = &err_;                                                                               \
        if (call)                                                                                            \
            fail_msg("%s:%d: %s", __FILE__, __LINE__, err_.text);                                            \
    } while (0)

/* Adds up to n ids of the list `key` of golden.json to the prompt. */
static inline void pair_prompt(test_pair *p, const char *key, size_t n)
{
    const json_t *ids = json_object_get(p->golden, key);
    for (size_t i = 0; i < n && i < json_array_size(ids) && p->n_prompt < (int)COUNT(p->prompt); i++)
        p->prompt[p->n_prompt++] = (int32_t)json_integer_value(json_array_get(ids, i));
}

static inline void pair_open(test_pair *p, const char *name, bool exact)
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
    *p = (test_pair){0};
    char path[2048], folder[1024];
    ds_cpu_opts cpu = {.threads = 1, .exact = exact};
    ds_drafter_opts opts;
    ds_drafter_defaults(&opts);
    opts.bits = exact ? 0 : opts.bits;
    snprintf(folder, sizeof folder, "%s/pairs/%s", dir, name);
    snprintf(path, sizeof path, "%s/golden.json", folder);
    MUST(ds_json_load(&p->golden, path, 1 << 24, err));
    snprintf(path, sizeof path, "%s/%.200s", folder, json_string_value(json_object_get(p->golden, "target")));
    MUST(ds_cpu_open(&p->be, &cpu, err));
    MUST(ds_checkpoint_open(&p->target_files, path, err));
    MUST(ds_checkpoint_open(&p->draft_files, folder, err));
    MUST(ds_model_open(&p->target, p->target_files, p->be, NULL, err));
    MUST(ds_drafter_open(&p->drafter, p->draft_files, p->target, &opts, err));
    pair_prompt(p, "ids", COUNT(p->prompt));
}

static inline void pair_close(test_pair *p)
{
    ds_drafter_close(p->drafter);
    ds_model_close(p->target);
    ds_checkpoint_close(p->draft_files);
    ds_checkpoint_close(p->target_files);
    p->be->close(p->be);
    json_decref(p->golden);
}

#endif
