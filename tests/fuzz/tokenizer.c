#include "text/tokenizer.h"
#include "text/detok.h"

#include "../unit/text_files.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A tokenizer.json (or, where the input begins with G, an object of GGUF metadata): what opens also
 * encodes, and each of its ids decodes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello  w\xc3\xb6rld 123\n<s>\xe4\xbd\xa0\xf0\x9f\x98\x80 it's";
    ds_tokenizer *tok = NULL;
    json_t *meta = NULL;
    ds_error err;
    if (size > 1 << 16)
        return 0;
    if (!size || data[0] != 'G')
        ds_tokenizer_open_json(&tok, (const char *)data, size, "input", &err);
    else if (ds_json_parse(&meta, (const char *)data + 1, size - 1, "input", &err) == DS_OK)
        text_open(&tok, meta, &err);
    json_decref(meta);
    if (!tok)
        return 0;
    for (int special = 0; special < 2; special++) {
        ds_ids ids = {0};
        ds_buf whole = {0}, stream = {0};
        ds_detok detok;
        ds_tokenizer_encode(tok, text, sizeof text - 1, special, &ids, &err);
        for (size_t i = 0; i < ids.len; i++)
            if (ids.data[i] < 0)
                abort();
        ds_tokenizer_decode(tok, ids.data, ids.len, special, &whole, &err);
        ds_detok_init(&detok, tok, special);
        for (int32_t id = -1; id <= (int32_t)ds_tokenizer_size(tok) && id < 1000; id++)
            ds_detok_feed(&detok, &id, 1, &stream);
        ds_detok_end(&detok, &stream);
        ds_ids_release(&ids);
        ds_buf_release(&whole);
        ds_buf_release(&stream);
    }
    int32_t eos[16];
    ds_tokenizer_eos_set(tok, NULL, 0, eos, COUNT(eos));
    ds_tokenizer_close(tok);
    return 0;
}
