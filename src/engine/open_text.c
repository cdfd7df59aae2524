#include "engine/open_text.h"

#include "formats/gguf.h"

#include <stdlib.h>

/* An array that the file lacks stays NULL. */
static ds_status read_strings(const ds_gguf *gguf, const char *key, tk_span **out, size_t *n, ds_error *err)
{
    const ds_gguf_kv *kv;
    ds_status status = ds_gguf_array(gguf, key, true, &kv, err);
    if (status || !kv)
        return status;
    *out = calloc((size_t)kv->count + 1, sizeof **out);
    if (!*out)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for %s", key);
    const uint8_t *at = kv->value;
    for (*n = 0; *n < kv->count; ++*n)
        (*out)[*n].data = ds_gguf_next(&at, &(*out)[*n].len);
    return DS_OK;
}

static ds_status read_numbers(const ds_gguf *gguf, const char *key, double **out, size_t *n, ds_error *err)
{
    const ds_gguf_kv *kv;
    ds_status status = ds_gguf_array(gguf, key, false, &kv, err);
    if (status || !kv)
        return status;
    *out = calloc((size_t)kv->count + 1, sizeof **out);
    if (!*out)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for %s", key);
    for (*n = 0; *n < kv->count; ++*n)
        (*out)[*n] = ds_gguf_number(kv, *n);
    return DS_OK;
}

static ds_status open_gguf(ds_tokenizer **tok, ds_template **tpl, const ds_gguf *gguf, ds_error *err)
{
    json_t *meta = NULL;
    tk_span *tokens = NULL, *merges = NULL;
    double *types = NULL, *scores = NULL;
    ds_vocab vocab = {0};
    ds_status status = ds_gguf_json(gguf, &meta, err);
    if (!status)
        status = read_strings(gguf, "tokenizer.ggml.tokens", &tokens, &vocab.n_tokens, err);
    if (!status)
        status = read_strings(gguf, "tokenizer.ggml.merges", &merges, &vocab.n_merges, err);
    if (!status)
        status = read_numbers(gguf, "tokenizer.ggml.token_type", &types, &vocab.n_types, err);
    if (!status)
        status = read_numbers(gguf, "tokenizer.ggml.scores", &scores, &vocab.n_scores, err);
    vocab.meta = meta;
    vocab.tokens = tokens;
    vocab.merges = merges;
    vocab.types = types;
    vocab.scores = scores;
    if (!status)
        status = ds_tokenizer_open_gguf(tok, &vocab, err);
    if (!status)
        status = ds_template_open_gguf(tpl, meta, NULL, err);
    free(tokens);
    free(merges);
    free(types);
    free(scores);
    json_decref(meta);
    return status;
}

ds_status ds_text_open(ds_tokenizer **tok, ds_template **tpl, const ds_checkpoint *files, ds_error *err)
{
    *tok = NULL;
    *tpl = NULL;
    const ds_gguf *gguf = ds_checkpoint_gguf(files);
    const char *path = ds_checkpoint_path(files);
    ds_status status = gguf ? open_gguf(tok, tpl, gguf, err) : ds_tokenizer_open(tok, path, err);
    if (!status && !gguf)
        status = ds_template_open_folder(tpl, path, NULL, err);
    if (status) {
        ds_template_close(*tpl);
        ds_tokenizer_close(*tok);
        *tok = NULL;
        *tpl = NULL;
    }
    return status;
}
