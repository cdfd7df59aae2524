#include "formats/safetensors.h"

#include "formats/blocks.h"

#include <inttypes.h>
#include <stdlib.h>

enum { HEADER_MAX = 256 << 20, RANK_MAX = 8 };

static bool find_dtype(const char *name, ds_dtype *type)
{
    static const ds_dtype types[] = {DS_F32, DS_F16, DS_BF16, DS_F64, DS_I8,   DS_I16,     DS_I32,    DS_I64,
                                     DS_U8,  DS_U16, DS_U32,  DS_U64, DS_BOOL, DS_F8_E4M3, DS_F8_E5M2};
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(ds_dtype_get(types[i])->name, name) == 0) {
            *type = types[i];
            return true;
        }
    return false;
}

/* A size or offset; JSON integers are signed, so more than INT64_MAX is no integer at all. */
static bool get_size(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static ds_status parse_shape(ds_tensor *tensor, const json_t *shape, const char *where, ds_error *err)
{
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > RANK_MAX)
        return ds_fail(err, DS_BAD_FILE, "%s: %s: shape must be a list of at most %d sizes", where,
                       tensor->name, RANK_MAX);
    uint64_t count = ds_dtype_get(tensor->type)->bytes;
    for (size_t i = 0; i < COUNT(tensor->dims); i++)
        tensor->dims[i] = 1;
    for (size_t i = 0; i < rank; i++) {
        uint64_t dim;
        if (!get_size(json_array_get(shape, i), &dim))
            return ds_fail(err, DS_BAD_FILE, "%s: %s: shape has an entry that is no size", where,
                           tensor->name);
        if (__builtin_mul_overflow(count, dim, &count) ||
            __builtin_mul_overflow(tensor->dims[i < 3 ? i : 3], dim, &tensor->dims[i < 3 ? i : 3]))
            return ds_fail(err, DS_BAD_FILE, "%s: %s: the sizes in its shape are too large", where,
                           tensor->name);
    }
    tensor->rank = rank < COUNT(tensor->dims) ? (int)rank : (int)COUNT(tensor->dims);
    if (count != tensor->bytes)
        return ds_fail(err, DS_BAD_FILE, "%s: %s: its shape takes %" PRIu64 " bytes, its offsets %" PRIu64,
                       where, tensor->name, count, tensor->bytes);
    return DS_OK;
}

static ds_status parse_tensor(ds_tensor *tensor, const char *name, const json_t *entry, const uint8_t *data,
                              uint64_t size, const char *where, ds_error *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    tensor->name = name;
    if (!dtype)
        return ds_fail(err, DS_BAD_FILE, "%s: %s: has no dtype", where, name);
    if (!find_dtype(dtype, &tensor->type))
        return ds_fail(err, DS_BAD_FILE, "%s: %s: dtype %s is not supported", where, name, dtype);
    if (json_array_size(offsets) != 2 || !get_size(json_array_get(offsets, 0), &begin) ||
        !get_size(json_array_get(offsets, 1), &end))
        return ds_fail(err, DS_BAD_FILE, "%s: %s: data_offsets must be two offsets", where, name);
    if (begin > end || end > size)
        return ds_fail(err, DS_BAD_FILE,
                       "%s: %s: lies at bytes %" PRIu64 " to %" PRIu64 ", but the file holds %" PRIu64
                       " bytes of tensors: truncated download?",
                       where, name, begin, end, size);
    tensor->data = data + begin;
    tensor->bytes = end - begin;
    return parse_shape(tensor, json_object_get(entry, "shape"), where, err);
}

static ds_status parse_all(ds_safetensors *st, const uint8_t *data, size_t size, const char *where,
                           ds_error *err)
{
    uint64_t header = size >= 8 ? ds_le64(data) : 0;
    if (header < 2 || header > HEADER_MAX || header > size - 8)
        return ds_fail(err, DS_BAD_FILE, "%s: the header claims %" PRIu64 " bytes, the file has %zu", where,
                       header, size);
    ds_status status = ds_json_parse(&st->header, (const char *)data + 8, (size_t)header, where, err);
    if (status)
        return status;
    if (!json_is_object(st->header))
        return ds_fail(err, DS_BAD_FILE, "%s: the header is not a JSON object", where);
    st->tensors = calloc(json_object_size(st->header) + 1, sizeof *st->tensors);
    if (!st->tensors)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    const char *name;
    json_t *entry;
    json_object_foreach(st->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        status = parse_tensor(&st->tensors[st->count], name, entry, data + 8 + header, size - 8 - header,
                              where, err);
        if (status)
            return status;
        st->count++;
    }
    return DS_OK;
}

ds_status ds_safetensors_parse(ds_safetensors **out, const uint8_t *data, size_t size, const char *where,
                               ds_error *err)
{
    *out = NULL;
    ds_safetensors *st = calloc(1, sizeof *st);
    if (!st)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    ds_status status = parse_all(st, data, size, where, err);
    if (status)
        ds_safetensors_close(st);
    else
        *out = st;
    return status;
}

ds_status ds_safetensors_open(ds_safetensors **out, const char *path, ds_error *err)
{
    *out = NULL;
    ds_map map;
    ds_status status = ds_map_open(&map, path, err);
    if (status)
        return status;
    status = ds_safetensors_parse(out, map.data, map.size, path, err);
    if (status)
        ds_map_close(&map);
    else
        (*out)->map = map;
    return status;
}

void ds_safetensors_close(ds_safetensors *st)
{
    if (!st)
        return;
    json_decref(st->header);
    free(st->tensors);
    ds_map_close(&st->map);
    free(st);
}
