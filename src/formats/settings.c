#include "formats/settings.h"

#include <string.h>

static ds_status add_id(json_t *list, const json_t *id, const char *where, ds_error *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return ds_fail(err, DS_BAD_FILE, "%s: eos_token_id must be a token id or a list of them", where);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), id))
            return DS_OK;
    return json_array_append_new(list, json_integer(json_integer_value(id)))
               ? ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where)
               : DS_OK;
}

static ds_status add_ids(json_t *list, const json_t *ids, const char *where, ds_error *err)
{
    ds_status status = DS_OK;
    if (!ids || json_is_null(ids))
        return DS_OK;
    if (!json_is_array(ids))
        return add_id(list, ids, where, err);
    for (size_t i = 0; i < json_array_size(ids) && !status; i++)
        status = add_id(list, json_array_get(ids, i), where, err);
    return status;
}

ds_status ds_settings_eos(json_t *config, const json_t *generation, const char *where, ds_error *err)
{
    const json_t *own = json_object_get(config, "eos_token_id");
    if (!own || json_is_null(own))
        own = json_object_get(json_object_get(config, "text_config"), "eos_token_id");
    json_t *list = json_array();
    ds_status status = add_ids(list, own, where, err);
    status = status ? status : add_ids(list, json_object_get(generation, "eos_token_id"), where, err);
    if (!status && json_array_size(list) && json_object_set(config, "eos_token_id", list))
        status = ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    json_decref(list);
    return status;
}

ds_status ds_settings_quant(const json_t *config, const char *path, int *bits, int *group, bool *off,
                            ds_error *err)
{
    *bits = *group = 0;
    *off = false;
    const json_t *block = json_object_get(config, "quantization");
    if (!block ||
        json_is_null(block)) { /* the same block under the other name, unless it is some other scheme's */
        block = json_object_get(config, "quantization_config");
        if (json_object_get(block, "quant_method") || !json_object_get(block, "group_size"))
            return DS_OK;
    }
    if (!json_is_object(block))
        return ds_fail(err, DS_BAD_FILE, "config.json: quantization must be an object");
    const json_t *entry = json_object_get(block, path);
    if (json_is_false(entry)) {
        *off = true;
        return DS_OK;
    }
    if (entry && !json_is_object(entry) && !json_is_true(entry))
        return ds_fail(err, DS_BAD_FILE, "config.json: quantization of %s must be false or an object", path);
    int64_t b = 0, g = 0;
    const json_t *from = json_is_object(entry) ? entry : block;
    ds_status status = ds_json_int(from, "bits", 1, 8, &b, "config.json: quantization", err);
    status = status ? status : ds_json_int(from, "group_size", 1, 4096, &g, "config.json: quantization", err);
    *bits = (int)b;
    *group = (int)g;
    return status;
}
