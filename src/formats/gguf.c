#include "formats/gguf.h"

#include "base/buf.h"
#include "formats/blocks.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum {
    NAME_MAX_BYTES = 65535, /* of a key; GGUF's own limit */
    KV_MIN_BYTES = 8 + 4 + 1,
    TENSOR_MIN_BYTES = 8 + 4 + 8 + 4 + 8,
};

typedef struct {
    const uint8_t *at, *end;
    bool failed; /* a read went past the end: zeros from there on */
} cursor;

static const uint8_t *take(cursor *in, uint64_t len)
{
    if (in->failed || len > (uint64_t)(in->end - in->at)) {
        in->failed = true;
        return NULL;
    }
    const uint8_t *at = in->at;
    in->at += len;
    return at;
}

static uint32_t take32(cursor *in)
{
    const uint8_t *p = take(in, 4);
    return p ? ds_le32(p) : 0;
}

static uint64_t take64(cursor *in)
{
    const uint8_t *p = take(in, 8);
    return p ? ds_le64(p) : 0;
}

/* Bytes of one value; 0: not a fixed size. */
static uint32_t value_bytes(ds_gguf_type type)
{
    static const uint8_t bytes[DS_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return (uint32_t)type < DS_GGUF_TYPES ? bytes[type] : 0;
}

static bool tensor_type(uint32_t number, ds_dtype *type)
{
    static const struct {
        uint32_t number;
        ds_dtype type;
    } types[] = {
        {0, DS_F32},     {1, DS_F16},     {2, DS_Q4_0},   {3, DS_Q4_1},   {6, DS_Q5_0},   {7, DS_Q5_1},
        {8, DS_Q8_0},    {10, DS_Q2_K},   {11, DS_Q3_K},  {12, DS_Q4_K},  {13, DS_Q5_K},  {14, DS_Q6_K},
        {20, DS_IQ4_NL}, {23, DS_IQ4_XS}, {24, DS_I8},    {25, DS_I16},   {26, DS_I32},   {27, DS_I64},
        {28, DS_F64},    {30, DS_BF16},   {34, DS_TQ1_0}, {35, DS_TQ2_0}, {39, DS_MXFP4},
    };
    for (size_t i = 0; i < COUNT(types); i++)
        if (types[i].number == number) {
            *type = types[i].type;
            return true;
        }
    return false;
}

static ds_status truncated(const ds_gguf *gguf, const char *what, ds_error *err)
{
    return ds_fail(err, DS_BAD_FILE, "%s: ends inside its %s: truncated or damaged", gguf->where, what);
}

/* Reads a name into new memory. Names with a NUL would be cut: refused. */
static ds_status take_name(const ds_gguf *gguf, cursor *in, const char *what, char **out, ds_error *err)
{
    uint64_t len = take64(in);
    if (len > NAME_MAX_BYTES)
        return ds_fail(err, DS_BAD_FILE, "%s: a name in its %s claims %" PRIu64 " bytes", gguf->where, what,
                       len);
    const uint8_t *text = take(in, len);
    if (!text)
        return truncated(gguf, what, err);
    if (len == 0 || memchr(text, 0, (size_t)len))
        return ds_fail(err, DS_BAD_FILE, "%s: a name in its %s is empty or has a NUL byte", gguf->where,
                       what);
    *out = strndup((const char *)text, (size_t)len);
    return *out ? DS_OK : ds_fail(err, DS_NO_MEMORY, "%s: out of memory", gguf->where);
}

static ds_status parse_value(const ds_gguf *gguf, cursor *in, ds_gguf_kv *kv, ds_error *err)
{
    uint32_t type = take32(in);
    kv->type = (ds_gguf_type)type;
    kv->count = 1;
    if (type == DS_GGUF_STRING) {
        kv->count = take64(in);
        kv->value = take(in, kv->count);
    } else if (type == DS_GGUF_ARRAY) {
        uint32_t elem = take32(in);
        kv->elem = (ds_gguf_type)elem;
        kv->count = take64(in);
        kv->value = in->at;
        if (elem >= DS_GGUF_TYPES || elem == DS_GGUF_ARRAY)
            return ds_fail(err, DS_BAD_FILE, "%s: %s is an array of type %u, which is not supported",
                           gguf->where, kv->key, elem);
        if (elem == DS_GGUF_STRING) {
            if (kv->count > (uint64_t)(in->end - in->at) / 8) /* before looping over a made-up count */
                in->failed = true;
            for (uint64_t i = 0; i < kv->count && !in->failed; i++)
                take(in, take64(in));
        } else {
            uint64_t bytes;
            if (__builtin_mul_overflow(kv->count, (uint64_t)value_bytes(kv->elem), &bytes))
                in->failed = true;
            else
                take(in, bytes);
        }
    } else if (type < DS_GGUF_TYPES) {
        kv->value = take(in, value_bytes(kv->type));
    } else if (!in->failed) {
        return ds_fail(err, DS_BAD_FILE, "%s: %s has type %u, which does not exist", gguf->where, kv->key,
                       type);
    }
    return in->failed ? truncated(gguf, "metadata", err) : DS_OK;
}

static ds_status parse_tensor(const ds_gguf *gguf, cursor *in, ds_tensor *tensor, uint64_t *offset,
                              ds_error *err)
{
    uint32_t rank = take32(in);
    if (!in->failed && (rank < 1 || rank > 4))
        return ds_fail(err, DS_BAD_FILE, "%s: %s has %u dimensions", gguf->where, tensor->name, rank);
    tensor->rank = (int)rank;
    for (int i = 0; i < 4; i++)
        tensor->dims[i] = 1;
    for (uint32_t i = 0; i < rank && !in->failed; i++)
        tensor->dims[rank - 1 - i] = take64(in); /* the file lists the fastest first */
    uint32_t type = take32(in);
    *offset = take64(in);
    if (in->failed)
        return truncated(gguf, "list of tensors", err);
    if (!tensor_type(type, &tensor->type))
        return ds_fail(
            err, DS_BAD_FILE,
            "%s: %s has GGUF type %u, which is not supported; Q4_0, Q4_K, Q6_K and Q8_0 are among those "
            "that are",
            gguf->where, tensor->name, type);
    const ds_dtype_info *info = ds_dtype_get(tensor->type);
    uint64_t row = tensor->dims[rank - 1], bytes = row / info->elems;
    if (row % info->elems)
        return ds_fail(err, DS_BAD_FILE, "%s: %s: rows of %" PRIu64 " are not whole %s blocks of %u",
                       gguf->where, tensor->name, row, info->name, info->elems);
    /* the elements are checked as well as the bytes: others multiply the dimensions without a thought */
    uint64_t elems = row;
    bool over = __builtin_mul_overflow(bytes, (uint64_t)info->bytes, &bytes);
    for (uint32_t i = 0; i + 1 < rank; i++)
        over = __builtin_mul_overflow(bytes, tensor->dims[i], &bytes) || over ||
               __builtin_mul_overflow(elems, tensor->dims[i], &elems);
    if (over)
        return ds_fail(err, DS_BAD_FILE, "%s: %s: its dimensions are too large", gguf->where, tensor->name);
    tensor->bytes = bytes;
    return DS_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const ds_gguf_kv *)a)->key, ((const ds_gguf_kv *)b)->key);
}

static ds_status parse_metadata(ds_gguf *gguf, cursor *in, ds_error *err)
{
    for (size_t i = 0; i < gguf->kv_count; i++) {
        ds_status status = take_name(gguf, in, "metadata", &gguf->kvs[i].key, err);
        status = status ? status : parse_value(gguf, in, &gguf->kvs[i], err);
        if (status)
            return status;
    }
    if (gguf->kv_count)
        qsort(gguf->kvs, gguf->kv_count, sizeof *gguf->kvs, by_key);
    for (size_t i = 1; i < gguf->kv_count; i++)
        if (strcmp(gguf->kvs[i - 1].key, gguf->kvs[i].key) == 0)
            return ds_fail(err, DS_BAD_FILE, "%s: metadata has %s twice", gguf->where, gguf->kvs[i].key);
    return DS_OK;
}

static ds_status parse_tensors(ds_gguf *gguf, cursor *in, const uint8_t *data, size_t size, ds_error *err)
{
    int64_t align = 32;
    ds_status status = ds_gguf_int(gguf, "general.alignment", 1, 1 << 20, &align, err);
    if (status)
        return status;
    if (align & (align - 1))
        return ds_fail(err, DS_BAD_FILE, "%s: general.alignment is %" PRId64 ", not a power of two",
                       gguf->where, align);
    uint64_t *offsets = calloc(gguf->count + 1, sizeof *offsets);
    if (!offsets)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", gguf->where);
    for (size_t i = 0; i < gguf->count && !status; i++) {
        char *name = NULL;
        status = take_name(gguf, in, "list of tensors", &name, err);
        gguf->tensors[i].name = name;
        status = status ? status : parse_tensor(gguf, in, &gguf->tensors[i], &offsets[i], err);
    }
    uint64_t start = ((uint64_t)(in->at - data) + (uint64_t)align - 1) & ~((uint64_t)align - 1);
    uint64_t room = start < size ? size - start : 0;
    for (size_t i = 0; i < gguf->count && !status; i++) {
        ds_tensor *tensor = &gguf->tensors[i];
        if (offsets[i] % (uint64_t)align)
            status = ds_fail(err, DS_BAD_FILE, "%s: %s: offset %" PRIu64 " is not a multiple of %" PRId64,
                             gguf->where, tensor->name, offsets[i], align);
        else if (offsets[i] > room || tensor->bytes > room - offsets[i])
            status = ds_fail(err, DS_BAD_FILE,
                             "%s: %s: %" PRIu64 " bytes at offset %" PRIu64 ", but the file holds %" PRIu64
                             " bytes of tensors: truncated download?",
                             gguf->where, tensor->name, tensor->bytes, offsets[i], room);
        else
            tensor->data = tensor->bytes ? data + start + offsets[i] : data;
    }
    free(offsets);
    return status;
}

static ds_status parse_all(ds_gguf *gguf, const uint8_t *data, size_t size, ds_error *err)
{
    cursor in = {.at = data, .end = data + size};
    const uint8_t *magic = take(&in, 4);
    uint32_t version = take32(&in);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return ds_fail(err, DS_BAD_FILE, "%s: not a GGUF file", gguf->where);
    if (!in.failed && version != 2 && version != 3)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: GGUF version %u%s; versions 2 and 3, little endian, are supported", gguf->where,
                       version, version & 0xFFFF ? "" : " (a big-endian file?)");
    uint64_t tensors = take64(&in), kvs = take64(&in), left = (uint64_t)(in.end - in.at);
    if (in.failed)
        return truncated(gguf, "header", err);
    if (kvs > left / KV_MIN_BYTES || tensors > left / TENSOR_MIN_BYTES)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: claims %" PRIu64 " settings and %" PRIu64
                       " tensors, more than its %zu bytes can hold",
                       gguf->where, kvs, tensors, size);
    gguf->kv_count = (size_t)kvs;
    gguf->count = (size_t)tensors;
    gguf->kvs = calloc(gguf->kv_count + 1, sizeof *gguf->kvs);
    gguf->tensors = calloc(gguf->count + 1, sizeof *gguf->tensors);
    if (!gguf->kvs || !gguf->tensors)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", gguf->where);
    ds_status status = parse_metadata(gguf, &in, err);
    return status ? status : parse_tensors(gguf, &in, data, size, err);
}

ds_status ds_gguf_parse(ds_gguf **out, const uint8_t *data, size_t size, const char *where, ds_error *err)
{
    *out = NULL;
    ds_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf || !(gguf->where = strdup(where))) {
        free(gguf);
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    }
    static const uint8_t nothing[1];
    ds_status status = parse_all(gguf, data ? data : nothing, size, err);
    if (status)
        ds_gguf_close(gguf);
    else
        *out = gguf;
    return status;
}

ds_status ds_gguf_open(ds_gguf **out, const char *path, ds_error *err)
{
    *out = NULL;
    ds_map map;
    ds_status status = ds_map_open(&map, path, err);
    if (status)
        return status;
    status = ds_gguf_parse(out, map.data, map.size, path, err);
    if (status)
        ds_map_close(&map);
    else
        (*out)->map = map;
    return status;
}

void ds_gguf_close(ds_gguf *gguf)
{
    if (!gguf)
        return;
    for (size_t i = 0; gguf->kvs && i < gguf->kv_count; i++)
        free(gguf->kvs[i].key);
    for (size_t i = 0; gguf->tensors && i < gguf->count; i++)
        free((char *)(uintptr_t)gguf->tensors[i].name);
    free(gguf->kvs);
    free(gguf->tensors);
    free(gguf->where);
    ds_map_close(&gguf->map);
    free(gguf);
}

const ds_gguf_kv *ds_gguf_find(const ds_gguf *gguf, const char *key)
{
    ds_gguf_kv want = {.key = (char *)(uintptr_t)key};
    return gguf->kv_count ? bsearch(&want, gguf->kvs, gguf->kv_count, sizeof want, by_key) : NULL;
}

static bool is_number(ds_gguf_type type)
{
    return type != DS_GGUF_BOOL && value_bytes(type);
}

/* False: not a whole number that fits. */
static bool whole_number(ds_gguf_type type, const uint8_t *p, int64_t *out)
{
    switch (type) {
    case DS_GGUF_U8:
        *out = p[0];
        return true;
    case DS_GGUF_I8:
        *out = (int8_t)p[0];
        return true;
    case DS_GGUF_U16:
        *out = ds_le16(p);
        return true;
    case DS_GGUF_I16:
        *out = (int16_t)ds_le16(p);
        return true;
    case DS_GGUF_U32:
        *out = ds_le32(p);
        return true;
    case DS_GGUF_I32:
        *out = (int32_t)ds_le32(p);
        return true;
    case DS_GGUF_U64:
    case DS_GGUF_I64:
        *out = (int64_t)ds_le64(p);
        return type == DS_GGUF_I64 || *out >= 0;
    default:
        return false;
    }
}

static double number(ds_gguf_type type, const uint8_t *p)
{
    int64_t whole;
    float single;
    double real;
    if (whole_number(type, p, &whole))
        return (double)whole;
    if (type == DS_GGUF_U64)
        return (double)ds_le64(p);
    if (type == DS_GGUF_F32) {
        memcpy(&single, p, sizeof single);
        return (double)single;
    }
    memcpy(&real, p, sizeof real);
    return real;
}

/* A value of a fixed-size type. */
static json_t *scalar(ds_gguf_type type, const uint8_t *p)
{
    int64_t whole;
    if (type == DS_GGUF_BOOL)
        return json_boolean(p[0] != 0);
    if (whole_number(type, p, &whole))
        return json_integer(whole);
    double real = number(type, p);
    return isnan(real)   ? json_string("NaN")
           : isinf(real) ? json_string(real < 0 ? "-Infinity" : "Infinity")
                         : json_real(real);
}

/* Bytes of the character that starts here; 0: not UTF-8. */
static size_t utf8_char(const uint8_t *p, size_t left)
{
    size_t len = p[0] < 0x80                   ? 1
                 : p[0] >= 0xC2 && p[0] < 0xE0 ? 2
                 : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
                 : p[0] >= 0xF0 && p[0] < 0xF5 ? 4
                                               : 0;
    if (len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] >= 0xA0) || (p[0] == 0xF0 && p[1] < 0x90) ||
        (p[0] == 0xF4 && p[1] >= 0x90))
        return 0; /* overlong, surrogates, past the last code point */
    return len;
}

static json_t *text_value(const uint8_t *text, size_t len)
{
    json_t *value = json_stringn((const char *)text, len);
    if (value)
        return value;
    ds_buf fixed = {0};
    for (size_t i = 0, step; i < len; i += step ? step : 1) {
        step = utf8_char(text + i, len - i);
        ds_buf_add(&fixed, step ? (const char *)text + i : "\xEF\xBF\xBD", step ? step : 3);
    }
    value = fixed.failed ? NULL : json_stringn(ds_buf_text(&fixed), fixed.len);
    ds_buf_release(&fixed);
    return value;
}

ds_status ds_gguf_json(const ds_gguf *gguf, json_t **out, ds_error *err)
{
    *out = NULL;
    json_t *all = json_object();
    for (size_t i = 0; all && i < gguf->kv_count; i++) {
        const ds_gguf_kv *kv = &gguf->kvs[i];
        const uint8_t *key = (const uint8_t *)kv->key;
        if (kv->type == DS_GGUF_ARRAY)
            continue;
        for (size_t c = 0, step; key[c]; c += step) {
            step = utf8_char(key + c, strlen(kv->key + c));
            if (!step) {
                json_decref(all);
                return ds_fail(err, DS_BAD_FILE, "%s: a metadata key is not UTF-8", gguf->where);
            }
        }
        if (json_object_set_new(all, kv->key,
                                kv->type == DS_GGUF_STRING ? text_value(kv->value, (size_t)kv->count)
                                                           : scalar(kv->type, kv->value))) {
            json_decref(all);
            all = NULL;
        }
    }
    *out = all;
    return all ? DS_OK : ds_fail(err, DS_NO_MEMORY, "%s: out of memory", gguf->where);
}

ds_status ds_gguf_int(const ds_gguf *gguf, const char *key, int64_t min, int64_t max, int64_t *out,
                      ds_error *err)
{
    const ds_gguf_kv *kv = ds_gguf_find(gguf, key);
    if (!kv)
        return DS_OK;
    int64_t value;
    if (!whole_number(kv->type, kv->value, &value) || value < min || value > max)
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be a whole number from %" PRId64 " to %" PRId64,
                       gguf->where, key, min, max);
    *out = value;
    return DS_OK;
}

ds_status ds_gguf_num(const ds_gguf *gguf, const char *key, double min, double max, double *out,
                      ds_error *err)
{
    const ds_gguf_kv *kv = ds_gguf_find(gguf, key);
    if (!kv)
        return DS_OK;
    double value = is_number(kv->type) ? number(kv->type, kv->value) : NAN;
    if (!(value >= min && value <= max))
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be a number from %g to %g", gguf->where, key, min, max);
    *out = value;
    return DS_OK;
}

ds_status ds_gguf_text(const ds_gguf *gguf, const char *key, char *out, size_t size, ds_error *err)
{
    const ds_gguf_kv *kv = ds_gguf_find(gguf, key);
    if (!kv)
        return DS_OK;
    if (kv->type != DS_GGUF_STRING || kv->count >= size || memchr(kv->value, 0, (size_t)kv->count))
        return ds_fail(err, DS_BAD_FILE, "%s: %s must be a string shorter than %zu bytes", gguf->where, key,
                       size);
    memcpy(out, kv->value, (size_t)kv->count);
    out[kv->count] = '\0';
    return DS_OK;
}

ds_status ds_gguf_array(const ds_gguf *gguf, const char *key, bool strings, const ds_gguf_kv **out,
                        ds_error *err)
{
    const ds_gguf_kv *kv = *out = ds_gguf_find(gguf, key);
    if (!kv || (kv->type == DS_GGUF_ARRAY && (strings ? kv->elem == DS_GGUF_STRING : is_number(kv->elem))))
        return DS_OK;
    *out = NULL;
    return ds_fail(err, DS_BAD_FILE, "%s: %s must be an array of %s", gguf->where, key,
                   strings ? "strings" : "numbers");
}

const char *ds_gguf_next(const uint8_t **at, size_t *len)
{
    const uint8_t *text = *at + 8;
    *len = (size_t)ds_le64(*at);
    *at = text + *len;
    return (const char *)text;
}

double ds_gguf_number(const ds_gguf_kv *kv, uint64_t i)
{
    return number(kv->elem, kv->value + i * value_bytes(kv->elem));
}
