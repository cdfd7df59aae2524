/* One GGUF file, version 2 or 3, little endian: metadata as an index into the bytes, and the tensors
 * under their own names. What they are called elsewhere is the matter of gguf_names.c. */
#ifndef DS_FORMATS_GGUF_H
#define DS_FORMATS_GGUF_H

#include "base/map.h"
#include "formats/checkpoint.h"

/* The file's numbers for value types. */
typedef enum {
    DS_GGUF_U8,
    DS_GGUF_I8,
    DS_GGUF_U16,
    DS_GGUF_I16,
    DS_GGUF_U32,
    DS_GGUF_I32,
    DS_GGUF_F32,
    DS_GGUF_BOOL,
    DS_GGUF_STRING,
    DS_GGUF_ARRAY,
    DS_GGUF_U64,
    DS_GGUF_I64,
    DS_GGUF_F64,
    DS_GGUF_TYPES
} ds_gguf_type;

typedef struct {
    char *key;               /* owned by the ds_gguf */
    ds_gguf_type type, elem; /* elem: of an array */
    uint64_t count;          /* elements of an array, bytes of a string, else 1 */
    const uint8_t
        *value; /* the first element, in the file's bytes; strings in arrays have their length before them */
} ds_gguf_kv;

struct ds_gguf {
    ds_map map;      /* empty where the bytes are the caller's */
    ds_gguf_kv *kvs; /* sorted by key */
    size_t kv_count;
    ds_tensor *tensors; /* file order; dimensions slowest first */
    size_t count;
    char *where; /* for messages */
};

ds_status ds_gguf_open(ds_gguf **out, const char *path, ds_error *err);
/* The same over bytes that outlive *out. where: file name for messages, copied. */
ds_status ds_gguf_parse(ds_gguf **out, const uint8_t *data, size_t size, const char *where, ds_error *err);
void ds_gguf_close(ds_gguf *gguf); /* NULL is fine */

const ds_gguf_kv *ds_gguf_find(const ds_gguf *gguf, const char *key); /* NULL: none */
/* As the getters of base/json.h: an absent key leaves *out alone and is OK, a wrong type or a value
 * outside [min, max] is DS_BAD_FILE. Any integer type counts as an integer, and as a number. */
ds_status ds_gguf_int(const ds_gguf *gguf, const char *key, int64_t min, int64_t max, int64_t *out,
                      ds_error *err);
ds_status ds_gguf_num(const ds_gguf *gguf, const char *key, double min, double max, double *out,
                      ds_error *err);
/* out[size] gets the string and a NUL; longer ones are DS_BAD_FILE. */
ds_status ds_gguf_text(const ds_gguf *gguf, const char *key, char *out, size_t size, ds_error *err);
/* All metadata but arrays as one object (a new reference). Numbers that JSON lacks are the strings "NaN",
 * "Infinity", "-Infinity"; bytes of strings that are not UTF-8 become U+FFFD. */
ds_status ds_gguf_json(const ds_gguf *gguf, json_t **out, ds_error *err);

/* An array of strings, or else of numbers. Absent: OK, and *out is NULL; another type is DS_BAD_FILE. */
ds_status ds_gguf_array(const ds_gguf *gguf, const char *key, bool strings, const ds_gguf_kv **out,
                        ds_error *err);
/* The string at *at, in the file's bytes; *at begins as the array's value and moves on to the next. At most
 * count calls: their lengths were checked when the file was opened. */
const char *ds_gguf_next(const uint8_t **at, size_t *len);
double ds_gguf_number(const ds_gguf_kv *kv, uint64_t i); /* element i < count of an array of numbers */

/* The settings under Hugging Face keys, as checkpoint.h lists them (a new reference). */
ds_status ds_gguf_config(const ds_gguf *gguf, json_t **out, ds_error *err);
/* A tensor's name in the Hugging Face spelling; one without a counterpart keeps its own. False: it
 * does not fit out[size]. */
bool ds_gguf_hf_name(const char *name, char *out, size_t size);

#endif
