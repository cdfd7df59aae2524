#include "text/tokenizer.h"

#include "base/map.h"
#include "text/gguf_vocab.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOKENIZER_MAX = 256 << 20, /* bytes of a tokenizer.json */
    CONFIG_MAX = 32 << 20,
};

typedef struct {
    char *text; /* NULL: none */
    int32_t id; /* -1: none */
} named;

struct ds_tokenizer {
    tk_tokenizer *tk;
    tk_table table;
    named bos, eos, unk;
    int32_t eot;
    bool add_bos, add_eos; /* what the tokenizer.json itself does not add */
};

bool ds_ids_add(ds_ids *ids, const int32_t *data, size_t n)
{
    if (n > ids->cap - ids->len) {
        size_t cap = ids->len + n + ids->cap / 2;
        if (cap > SIZE_MAX / sizeof *data)
            return false;
        int32_t *grown = realloc(ids->data, cap * sizeof *data);
        if (!grown)
            return false;
        ids->data = grown;
        ids->cap = cap;
    }
    if (n)
        memcpy(ids->data + ids->len, data, n * sizeof *data);
    ids->len += n;
    return true;
}

void ds_ids_release(ds_ids *ids)
{
    free(ids->data);
    *ids = (ds_ids){0};
}

/* Takes tk, also where it fails. */
static ds_status wrap(ds_tokenizer **out, tk_tokenizer *tk, ds_error *err)
{
    ds_tokenizer *tok = *out = calloc(1, sizeof *tok);
    if (!tok) {
        tk_tokenizer_close(tk);
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a tokenizer");
    }
    tok->bos.id = tok->eos.id = tok->unk.id = tok->eot = -1;
    tok->tk = tk;
    tok->table = tk_tokenizer_table(tk);
    return DS_OK;
}

ds_status ds_tokenizer_open_json(ds_tokenizer **out, const char *json, size_t len, const char *where,
                                 ds_error *err)
{
    *out = NULL;
    if (len > TOKENIZER_MAX)
        return ds_fail(err, DS_BAD_FILE, "%s: longer than %d MiB", where, TOKENIZER_MAX >> 20);
    char why[300] = "";
    tk_tokenizer *tk = tk_tokenizer_open(json, len, NULL, why, sizeof why);
    if (!tk)
        return ds_fail(err, DS_BAD_FILE, "%s: not a usable tokenizer: %s", where, why);
    return wrap(out, tk, err);
}

void ds_tokenizer_close(ds_tokenizer *tok)
{
    if (!tok)
        return;
    tk_tokenizer_close(tok->tk);
    free(tok->bos.text);
    free(tok->eos.text);
    free(tok->unk.text);
    free(tok);
}

/* ---- special tokens ---- */

static int32_t id_of(const ds_tokenizer *tok, const char *token, size_t len)
{
    int64_t id = tk_tokenizer_id(tok->tk, token, len);
    return id < 0 || (size_t)id >= tok->table.count ? -1 : (int32_t)id;
}

static ds_status set_named(const ds_tokenizer *tok, named *out, const char *token, size_t len, ds_error *err)
{
    int32_t id = id_of(tok, token, len);
    if (id < 0)
        return DS_OK; /* a name for a token that the vocabulary lacks means nothing */
    char *copy = strndup(token, len);
    if (!copy)
        return ds_fail(err, DS_NO_MEMORY, "tokenizer: out of memory");
    free(out->text);
    *out = (named){copy, id};
    return DS_OK;
}

/* "bos_token": a string, or an object with the string as "content" */
static ds_status named_from_config(const ds_tokenizer *tok, named *out, const json_t *config, const char *key,
                                   ds_error *err)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (!json_is_string(value) || out->text)
        return DS_OK;
    return set_named(tok, out, json_string_value(value), json_string_length(value), err);
}

/* Settings ask for a BOS or EOS that some tokenizer.json add themselves: then it is not added twice. */
static ds_status settle_ends(ds_tokenizer *tok, bool bos, bool eos, ds_error *err)
{
    ds_ids ids = {0};
    ds_status status = ds_tokenizer_encode(tok, "", 0, true, &ids, err);
    for (size_t i = 0; i < ids.len; i++) {
        bos &= ids.data[i] != tok->bos.id;
        eos &= ids.data[i] != tok->eos.id;
    }
    tok->add_bos = bos && tok->bos.id >= 0;
    tok->add_eos = eos && tok->eos.id >= 0;
    ds_ids_release(&ids);
    return status;
}

static ds_status read_config(ds_tokenizer *tok, const char *path, bool *bos, bool *eos, ds_error *err)
{
    json_t *config = NULL;
    ds_status status = ds_json_load(&config, path, CONFIG_MAX, err);
    if (!status)
        status = named_from_config(tok, &tok->bos, config, "bos_token", err);
    if (!status)
        status = named_from_config(tok, &tok->eos, config, "eos_token", err);
    if (!status)
        status = named_from_config(tok, &tok->unk, config, "unk_token", err);
    if (!status)
        status = ds_json_bool(config, "add_bos_token", bos, path, err);
    if (!status)
        status = ds_json_bool(config, "add_eos_token", eos, path, err);
    json_decref(config);
    return status;
}

ds_status ds_tokenizer_open(ds_tokenizer **out, const char *dir, ds_error *err)
{
    *out = NULL;
    ds_buf path = {0};
    ds_map map = {0};
    ds_tokenizer *tok = NULL;
    bool bos = false, eos = false;
    ds_buf_fmt(&path, "%s/tokenizer.json", dir);
    ds_status status = ds_map_open(&map, ds_buf_text(&path), err);
    if (!status)
        status = ds_tokenizer_open_json(&tok, (const char *)map.data, map.size, ds_buf_text(&path), err);
    ds_map_close(&map);
    static const char *const configs[] = {"tokenizer_config.json", "special_tokens_map.json"};
    for (size_t i = 0; i < COUNT(configs) && !status; i++) {
        ds_buf_clear(&path);
        ds_buf_fmt(&path, "%s/%s", dir, configs[i]);
        if (ds_file_exists(ds_buf_text(&path)))
            status = read_config(tok, ds_buf_text(&path), &bos, &eos, err);
    }
    if (!status)
        status = settle_ends(tok, bos, eos, err);
    ds_buf_release(&path);
    if (status)
        ds_tokenizer_close(tok);
    else
        *out = tok;
    return status;
}

static ds_status named_from_vocab(const ds_tokenizer *tok, named *out, const ds_vocab *vocab, const char *key,
                                  ds_error *err)
{
    int64_t id = -1;
    ds_status status = ds_json_int(vocab->meta, key, 0, UINT32_MAX, &id, "GGUF", err);
    if (status || id < 0 || (size_t)id >= vocab->n_tokens)
        return status;
    return set_named(tok, out, vocab->tokens[id].data, vocab->tokens[id].len, err);
}

ds_status ds_tokenizer_open_gguf(ds_tokenizer **out, const ds_vocab *vocab, ds_error *err)
{
    *out = NULL;
    tk_tokenizer *tk;
    ds_tokenizer *tok = NULL;
    bool bos = false, eos = false;
    ds_status status = ds_gguf_vocab_open(&tk, vocab, &bos, err);
    if (!status)
        status = wrap(&tok, tk, err);
    named eot = {NULL, -1};
    if (!status)
        status = named_from_vocab(tok, &tok->bos, vocab, "tokenizer.ggml.bos_token_id", err);
    if (!status)
        status = named_from_vocab(tok, &tok->eos, vocab, "tokenizer.ggml.eos_token_id", err);
    if (!status)
        status = named_from_vocab(tok, &tok->unk, vocab, "tokenizer.ggml.unknown_token_id", err);
    if (!status)
        status = named_from_vocab(tok, &eot, vocab, "tokenizer.ggml.eot_token_id", err);
    if (!status)
        status = ds_json_bool(vocab->meta, "tokenizer.ggml.add_bos_token", &bos, "GGUF", err);
    if (!status)
        status = ds_json_bool(vocab->meta, "tokenizer.ggml.add_eos_token", &eos, "GGUF", err);
    if (!status)
        status = settle_ends(tok, bos, eos, err);
    free(eot.text);
    if (status) {
        ds_tokenizer_close(tok);
        return status;
    }
    tok->eot = eot.id;
    *out = tok;
    return DS_OK;
}

/* ---- encode, decode ---- */

ds_status ds_tokenizer_encode(const ds_tokenizer *tok, const char *text, size_t len, bool add_special,
                              ds_ids *out, ds_error *err)
{
    uint32_t *ids = NULL;
    size_t n = 0, before = out->len;
    char why[300] = "";
    if (tk_tokenizer_encode(tok->tk, text, len, add_special, &ids, &n, why, sizeof why))
        return ds_fail(err, DS_INVALID, "cannot tokenize the text: %s", why);
    bool ok = (!add_special || !tok->add_bos || ds_ids_add(out, &tok->bos.id, 1)) &&
              ds_ids_add(out, (const int32_t *)ids, n) &&
              (!add_special || !tok->add_eos || ds_ids_add(out, &tok->eos.id, 1));
    free(ids);
    if (ok)
        return DS_OK;
    out->len = before;
    return ds_fail(err, DS_NO_MEMORY, "out of memory for %zu tokens", n);
}

ds_status ds_tokenizer_decode(const ds_tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                              ds_buf *out, ds_error *err)
{
    char *text = NULL, why[300] = "";
    size_t len = 0;
    if (tk_tokenizer_decode(tok->tk, (const uint32_t *)ids, n, skip_special, &text, &len, why, sizeof why))
        return ds_fail(err, DS_INVALID, "cannot decode the tokens: %s", why);
    bool ok = ds_buf_add(out, text, len);
    free(text);
    return ok ? DS_OK : ds_fail(err, DS_NO_MEMORY, "out of memory for %zu bytes of text", len);
}

/* ---- the table ---- */

static unsigned flags_of(const ds_tokenizer *tok, int32_t id)
{
    return id >= 0 && (size_t)id < tok->table.count ? tok->table.flags[id] : 0;
}

size_t ds_tokenizer_size(const ds_tokenizer *tok)
{
    return tok->table.count;
}

const uint8_t *ds_tokenizer_bytes(const ds_tokenizer *tok, int32_t id, size_t *len)
{
    *len = 0;
    if (!flags_of(tok, id))
        return (const uint8_t *)"";
    uint32_t begin = id ? tok->table.ends[id - 1] : 0;
    *len = tok->table.ends[id] - begin;
    return tok->table.bytes + begin;
}

int32_t ds_tokenizer_id(const ds_tokenizer *tok, const char *token)
{
    return id_of(tok, token, strlen(token));
}

bool ds_tokenizer_is_special(const ds_tokenizer *tok, int32_t id)
{
    return flags_of(tok, id) & TK_SPECIAL;
}

int32_t ds_tokenizer_bos_id(const ds_tokenizer *tok)
{
    return tok->bos.id;
}

int32_t ds_tokenizer_eos_id(const ds_tokenizer *tok)
{
    return tok->eos.id;
}

const char *ds_tokenizer_bos(const ds_tokenizer *tok)
{
    return tok->bos.text ? tok->bos.text : "";
}

const char *ds_tokenizer_eos(const ds_tokenizer *tok)
{
    return tok->eos.text ? tok->eos.text : "";
}

static void add_once(int32_t id, int32_t *out, size_t *count, size_t max)
{
    for (size_t i = 0; i < *count; i++)
        if (out[i] == id)
            return;
    if (id >= 0 && *count < max)
        out[(*count)++] = id;
}

size_t ds_tokenizer_eos_set(const ds_tokenizer *tok, const int32_t *given, size_t n, int32_t *out, size_t max)
{
    /* <|tool_response> is where Gemma 4 ends a turn that calls a tool. */
    static const char *const common[] = {"<turn|>", "<|tool_response>", "<end_of_turn>", "<|im_end|>",
                                         "<|eot|>", "<|endoftext|>",    "<eos>"};
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        add_once(given[i], out, &count, max);
    add_once(tok->eos.id, out, &count, max);
    add_once(tok->eot, out, &count, max);
    for (size_t i = 0; i < COUNT(common); i++) {
        int32_t id = ds_tokenizer_id(tok, common[i]);
        if (id != tok->unk.id)
            add_once(id, out, &count, max);
    }
    return count;
}
