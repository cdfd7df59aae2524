#include "base/json.h"

#include "base/buf.h"
#include "base/map.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads text once, outside strings: refuses deep nesting, and rewrites into out what Python writes but
 * jansson cannot read: bare NaN and Infinity become strings, integers beyond 64 bits become reals.
 * out stays empty where nothing had to change. */
static ds_status prepare(ds_buf *out, const char *text, size_t len, const char *where, ds_error *err)
{
    static const char *const bare[] = {"NaN", "-Infinity", "Infinity"};
    size_t kept = 0; /* text before it is in out */
    int depth = 0;
    for (size_t i = 0; i < len;) {
        char c = text[i];
        if (c == '"') {
            for (i++; i < len && text[i] != '"'; i++)
                if (text[i] == '\\')
                    i++;
            i++;
            continue;
        }
        if (c == '[' || c == '{') {
            if (++depth > DS_JSON_DEPTH)
                return ds_fail(err, DS_BAD_FILE, "%s: nested deeper than %d levels", where, DS_JSON_DEPTH);
        } else if (c == ']' || c == '}') {
            depth--;
        }
        size_t token = 0;
        for (size_t b = 0; b < COUNT(bare) && !token; b++) {
            size_t n = strlen(bare[b]);
            if (n <= len - i && memcmp(text + i, bare[b], n) == 0)
                token = n;
        }
        if (token) {
            ds_buf_add(out, text + kept, i - kept);
            ds_buf_fmt(out, "\"%.*s\"", (int)token, text + i);
            kept = i + token;
        } else if (isdigit((unsigned char)c) || c == '-') {
            size_t digits = c == '-';
            while (i + digits < len && isdigit((unsigned char)text[i + digits]))
                digits++;
            token = digits;
            char next = i + digits < len ? text[i + digits] : '\0';
            if (digits >= 19 && digits < 400 && next != '.' && next != 'e' && next != 'E') {
                char number[408] = {0};
                memcpy(number, text + i, digits);
                errno = 0;
                strtoll(number, NULL, 10);
                if (errno == ERANGE) {
                    ds_buf_add(out, text + kept, i + digits - kept);
                    ds_buf_str(out, ".0");
                    kept = i + digits;
                }
            }
        }
        i += token ? token : 1;
    }
    if (kept)
        ds_buf_add(out, text + kept, len - kept);
    return out->failed ? ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where) : DS_OK;
}

ds_status ds_json_parse(json_t **out, const char *text, size_t len, const char *where, ds_error *err)
{
    *out = NULL;
    ds_buf fixed = {.max = SIZE_MAX / 2};
    ds_status status = prepare(&fixed, text, len, where, err);
    if (!status) {
        json_error_t bad;
        *out = json_loadb(fixed.data ? fixed.data
                          : len      ? text
                                     : "",
                          fixed.data ? fixed.len : len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &bad);
        if (!*out)
            status = json_error_code(&bad) == json_error_out_of_memory
                         ? ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where)
                         : ds_fail(err, DS_BAD_FILE, "%s: not valid JSON: %s at line %d, column %d", where,
                                   bad.text, bad.line, bad.column);
    }
    ds_buf_release(&fixed);
    return status;
}

ds_status ds_json_load(json_t **out, const char *path, size_t max, ds_error *err)
{
    *out = NULL;
    ds_map map;
    ds_status status = ds_map_open(&map, path, err);
    if (status)
        return status;
    if (map.size > max)
        status = ds_fail(err, DS_BAD_FILE, "%s: %zu bytes are more than the %zu allowed for this file", path,
                         map.size, max);
    else
        status = ds_json_parse(out, (const char *)map.data, map.size, path, err);
    ds_map_close(&map);
    return status;
}

bool ds_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static const json_t *present(const json_t *obj, const char *key)
{
    const json_t *value = json_object_get(obj, key);
    return json_is_null(value) ? NULL : value;
}

ds_status ds_json_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                      const char *where, ds_error *err)
{
    const json_t *value = present(obj, key);
    if (!value)
        return DS_OK;
    int64_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < min || number > max)
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be a whole number from %lld to %lld", where, key,
                       (long long)min, (long long)max);
    *out = number;
    return DS_OK;
}

ds_status ds_json_num(const json_t *obj, const char *key, double min, double max, double *out,
                      const char *where, ds_error *err)
{
    const json_t *value = present(obj, key);
    if (!value)
        return DS_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max))
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be a number from %g to %g", where, key, min, max);
    *out = number;
    return DS_OK;
}

ds_status ds_json_int32(const json_t *obj, const char *key, int min, int max, int *out, const char *where,
                        ds_error *err)
{
    int64_t value = *out;
    ds_status status = ds_json_int(obj, key, min, max, &value, where, err);
    *out = (int)value;
    return status;
}

ds_status ds_json_float(const json_t *obj, const char *key, double min, double max, float *out,
                        const char *where, ds_error *err)
{
    double value = *out;
    ds_status status = ds_json_num(obj, key, min, max, &value, where, err);
    *out = (float)value;
    return status;
}

ds_status ds_json_bool(const json_t *obj, const char *key, bool *out, const char *where, ds_error *err)
{
    const json_t *value = present(obj, key);
    if (!value)
        return DS_OK;
    if (!json_is_boolean(value))
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be true or false", where, key);
    *out = json_is_true(value);
    return DS_OK;
}

ds_status ds_json_text(const json_t *obj, const char *key, const char **out, const char *where, ds_error *err)
{
    const json_t *value = present(obj, key);
    if (!value)
        return DS_OK;
    if (!json_is_string(value))
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be a string", where, key);
    *out = json_string_value(value);
    return DS_OK;
}
