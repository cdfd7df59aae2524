#include "formats/gguf.h"

#include "touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_gguf *gguf;
    ds_error err;
    json_t *config, *all;
    char name[256];
    if (ds_gguf_parse(&gguf, data, size, "input", &err))
        return 0;
    for (size_t i = 0; i < gguf->count; i++) {
        ds_gguf_hf_name(gguf->tensors[i].name, name, sizeof name);
        touch_tensor(&gguf->tensors[i]);
    }
    if (ds_gguf_config(gguf, &config, &err) == DS_OK)
        json_decref(config);
    if (ds_gguf_json(gguf, &all, &err) == DS_OK)
        json_decref(all);
    for (size_t i = 0; i < gguf->kv_count; i++) {
        const ds_gguf_kv *kv;
        if (ds_gguf_array(gguf, gguf->kvs[i].key, true, &kv, &err) == DS_OK) {
            const uint8_t *at = kv->value;
            volatile char last = 0;
            for (uint64_t n = 0; n < kv->count; n++) {
                size_t len;
                const char *text = ds_gguf_next(&at, &len);
                last = len ? text[len - 1] : 0;
            }
            (void)last;
        }
        if (ds_gguf_array(gguf, gguf->kvs[i].key, false, &kv, &err) == DS_OK)
            for (uint64_t n = 0; n < kv->count; n++)
                ds_gguf_number(kv, n);
    }
    ds_gguf_close(gguf);
    return 0;
}
