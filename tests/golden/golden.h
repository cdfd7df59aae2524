/* ds_golden: reference vectors against the engine. A case is a folder with golden.json (what to feed,
 * ids and scalars expected) and mostly golden.st (arrays, in safetensors format).
 *
 * One function a kind of case (golden.c lists them). Each returns a golden_result and leaves in `why` one
 * phrase for a person: what failed, or why the case cannot run; it may stay empty where the case passed. */
#ifndef DS_TESTS_GOLDEN_GOLDEN_H
#define DS_TESTS_GOLDEN_GOLDEN_H

#include "backend/backend.h"
#include "base/json.h"
#include "model/model.h"

typedef enum { GOLDEN_PASSED, GOLDEN_FAILED, GOLDEN_UNSUPPORTED } golden_result;

/* Tolerances: fraction of the largest expected magnitude, except probabilities (absolute). */
#define GOLDEN_TOL_LOGITS  1e-4 /* logits, taps, hidden rows */
#define GOLDEN_TOL_PROB    1e-5 /* probabilities, confidences, distributions: absolute */
#define GOLDEN_TOL_DEQUANT 1e-6

typedef struct golden_arrays golden_arrays;

typedef struct {
    const char *name; /* "pairs/p4_vanilla" */
    const char *dir;  /* its folder */
    const char *kind; /* golden.json's "kind" */
    const json_t *json;
    const golden_arrays *arrays; /* NULL where there is no golden.st */
    double *worst;               /* the largest error that golden_close saw, for the report */
} golden_case;

/* --- arrays of golden.st; everything borrowed, valid until the case ends --- */

typedef struct {
    const char *name;
    ds_dtype type; /* as in the file */
    int rank;
    size_t dims[4];      /* slowest first; unused ones are 1 */
    size_t count;        /* elements */
    const float *f;      /* F32, F16, BF16: widened; else NULL */
    const uint8_t *data; /* the file's bytes */
    size_t bytes;
} golden_array;

const golden_array *golden_find(const golden_case *c, const char *name); /* NULL: none */
/* A float array of `rows` x `cols` (rank 1: rows = 1; 0: any). NULL, with why filled, otherwise. */
const golden_array *golden_want(const golden_case *c, const char *name, size_t rows, size_t cols, char *why,
                                size_t n_why);

/* --- golden.json --- */

/* Whole numbers of obj's list `key`, malloc'd (free it); *n 0 and NULL where it is absent. */
int32_t *golden_ids(const json_t *obj, const char *key, int *n);
int golden_int(const json_t *obj, const char *key, int or);
double golden_num(const json_t *obj, const char *key, double or);
/* dir/rel of the case ("../targets/qwen3" works). */
void golden_path(const golden_case *c, const char *rel, char *out, size_t n_out);

/* --- comparing --- */

/* Largest |got - want| / max |want|; infinite where got has a NaN. */
double golden_rel(const float *got, const float *want, size_t n);
double golden_abs(const float *got, const float *want, size_t n);
/* True within tol (relative to max |want|, or absolute); notes the error in *c->worst, and on false
 * says in why what differs by how much. */
bool golden_close(const golden_case *c, const char *what, const float *got, const float *want, size_t n,
                  double tol, bool absolute, char *why, size_t n_why);
/* False, with why naming the first difference, where the lists differ in their first n ids. */
bool golden_same(const char *what, const int32_t *got, const int32_t *want, int n, char *why, size_t n_why);

/* Fills why and returns the result: `return golden_say(why, n, GOLDEN_FAILED, "%s: ...", x);` */
golden_result golden_say(char *why, size_t n_why, golden_result result, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The backend that all cases share: CPU, exact. */
ds_backend *golden_backend(void);

/* --- kinds --- */

int golden_target(const golden_case *c, char *why, size_t n);   /* target.c: "target", "gguf" */
int golden_quant(const golden_case *c, char *why, size_t n);    /* quant.c: "quant", "gguf_blocks" */
int golden_pair(const golden_case *c, char *why, size_t n);     /* pairs.c: "dspark" */
int golden_sampling(const golden_case *c, char *why, size_t n); /* sampling.c: "sampling" */

#endif
