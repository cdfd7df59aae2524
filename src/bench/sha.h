/* Which model a result was measured with. */
#ifndef DS_BENCH_SHA_H
#define DS_BENCH_SHA_H

#include "base/error.h"

#include <jansson.h>

/* SHA-256, as 64 hex digits, of a model's weight file; of a folder with several, of all of them in the
 * order of their names, one after the other. */
ds_status ds_model_sha(char out[65], const char *path, ds_error *err);
/* Adds model_sha, threads, isa and version to a result. */
ds_status ds_result_sign(json_t *result, const char *path, int threads, const char *isa, ds_error *err);

#endif
