/* JSON on top of jansson: bounded loading and getters that name what is wrong. */
#ifndef DS_BASE_JSON_H
#define DS_BASE_JSON_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DS_JSON_DEPTH = 64 }; /* deeper documents are refused before jansson recurses into them */

/* Parses text; the caller decrefs *out. Refuses depth over DS_JSON_DEPTH, duplicate keys in an object
 * and bad UTF-8; accepts any value at the top. Bare Infinity / NaN (written by Python) are read as
 * the strings "Infinity", "-Infinity", "NaN". where: file name for the message. */
ds_status ds_json_parse(json_t **out, const char *text, size_t len, const char *where, ds_error *err);
/* Reads a whole file of at most max bytes. A missing file is DS_BAD_FILE; use ds_file_exists first
 * where it is optional. */
ds_status ds_json_load(json_t **out, const char *path, size_t max, ds_error *err);
bool ds_file_exists(const char *path);

/* Getters over an object: absent or null leaves *out untouched (so set the default first) and is OK;
 * a wrong type or a value outside [min, max] is DS_BAD_FILE with "WHERE: KEY must be ...". */
ds_status ds_json_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                      const char *where, ds_error *err);
ds_status ds_json_num(const json_t *obj, const char *key, double min, double max, double *out,
                      const char *where, ds_error *err);
/* The same into an int or a float. */
ds_status ds_json_int32(const json_t *obj, const char *key, int min, int max, int *out, const char *where,
                        ds_error *err);
ds_status ds_json_float(const json_t *obj, const char *key, double min, double max, float *out,
                        const char *where, ds_error *err);
ds_status ds_json_bool(const json_t *obj, const char *key, bool *out, const char *where, ds_error *err);
/* *out borrowed from obj */
ds_status ds_json_text(const json_t *obj, const char *key, const char **out, const char *where,
                       ds_error *err);

#endif
