#include "formats/safetensors.h"

#include "touch.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ds_tensor *find(const ds_safetensors *st, const char *name)
{
    for (size_t i = 0; i < st->count; i++)
        if (strcmp(st->tensors[i].name, name) == 0)
            return &st->tensors[i];
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_safetensors *st;
    ds_error err;
    if (ds_safetensors_parse(&st, data, size, "input", &err))
        return 0;
    for (size_t i = 0; i < st->count; i++)
        touch_tensor(&st->tensors[i]);
    const ds_tensor *words = find(st, "q.weight"), *scales = find(st, "q.scales");
    ds_weight w;
    for (uint64_t cols = 0; words && scales && cols <= 128; cols += 64)
        if (ds_weight_affine(&w, "q", words, scales, find(st, "q.biases"), cols, 0, 0, &err) == DS_OK)
            touch_weight(&w);
    ds_safetensors_close(st);
    return 0;
}
