#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *got;
    ds_error err;
    if (ds_json_parse(&got, (const char *)data, size, "input", &err) == DS_OK) {
        /* what was read can be written, and reads the same again */
        char *text = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
        json_t *again;
        if (!text || ds_json_parse(&again, text, strlen(text), "again", &err) || !json_equal(got, again))
            abort();
        json_decref(again);
        free(text);
        const char *key;
        json_t *value;
        json_object_foreach(got, key, value)
        {
            int64_t i = 0;
            double num = 0;
            bool b = false;
            const char *s = "";
            ds_json_int(got, key, -5, 5, &i, "input", &err);
            ds_json_num(got, key, -5, 5, &num, "input", &err);
            ds_json_bool(got, key, &b, "input", &err);
            ds_json_text(got, key, &s, "input", &err);
            if (i < -5 || i > 5 || !(num >= -5 && num <= 5))
                abort();
        }
    }
    json_decref(got);
    return 0;
}
