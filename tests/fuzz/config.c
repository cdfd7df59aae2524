/* config.json and generation_config.json: one input is both, split at the first NUL byte. */
#include "formats/settings.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const modules[] = {"lm_head", "model.layers.0.mlp.up_proj", "bits"};
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut - data) : size;
    json_t *config, *generation = NULL;
    ds_error err;
    if (ds_json_parse(&config, (const char *)data, first, "config.json", &err))
        return 0;
    if (cut)
        ds_json_parse(&generation, (const char *)cut + 1, size - first - 1, "generation_config.json", &err);
    if (json_is_object(config) && ds_settings_eos(config, generation, "config.json", &err) == DS_OK) {
        const json_t *ids = json_object_get(config, "eos_token_id");
        for (size_t i = 0; i < json_array_size(ids); i++)
            if (!json_is_integer(json_array_get(ids, i)))
                abort();
    }
    for (size_t i = 0; i < COUNT(modules); i++) {
        int bits, group;
        bool off;
        if (ds_settings_quant(config, modules[i], &bits, &group, &off, &err) == DS_OK &&
            (bits < 0 || bits > 8))
            abort();
    }
    json_decref(generation);
    json_decref(config);
    return 0;
}
