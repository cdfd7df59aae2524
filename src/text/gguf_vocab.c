#include "text/gguf_vocab.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name)   "tokenizer.ggml." name
#define SPACE       "\xe2\x96\x81" /* U+2581, which stands for a space in SentencePiece vocabularies */
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPLIT(digits)                                                                                        \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" CONTRACTION    \
    "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits                                                       \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}"                \
    ",\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL("false") "]}"
#define BYTE_LEVEL(regex)                                                                                    \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" regex "}"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };

/* How text is cut before byte-level BPE, as each model's authors published it. */
static const struct {
    const char *pre, *normalizer, *pre_tokenizer, *ignore_merges;
} kinds[] = {
    {"gpt-2", "null", BYTE_LEVEL("true"), "false"},
    {"gpt2", "null", BYTE_LEVEL("true"), "false"},
    {"smollm", "null",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL(
         "true") "]}",
     "false"},
    {"qwen2", "{\"type\":\"NFC\"}", SPLIT("\\\\p{N}"), "false"},
    {"llama-bpe", "null", SPLIT("\\\\p{N}{1,3}"), "true"},
};

typedef struct {
    const json_t *meta, *tokens, *types;
    json_t *vocab; /* token -> id */
} source;

static int64_t type_of(const source *src, size_t i)
{
    return json_integer_value(json_array_get(src->types, i)); /* 0 where it is not there */
}

/* JSON text of a value, appended. */
static bool add_json(ds_buf *out, const json_t *value)
{
    size_t n = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = n ? malloc(n) : NULL;
    bool ok = text && json_dumpb(value, text, n, JSON_COMPACT | JSON_ENCODE_ANY) == n;
    ok = ok && ds_buf_add(out, text, n);
    free(text);
    return ok;
}

static ds_status read_vocab(source *src, ds_error *err)
{
    src->tokens = json_object_get(src->meta, KEY("tokens"));
    src->types = json_object_get(src->meta, KEY("token_type"));
    size_t n = json_array_size(src->tokens);
    if (!n)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("tokens") " is missing or empty");
    if (src->types && json_array_size(src->types) != n)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("token_type") " has %zu entries for %zu tokens",
                       json_array_size(src->types), n);
    src->vocab = json_object();
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(src->tokens, i);
        const char *token = json_string_value(item);
        size_t len = json_string_length(item);
        if (!token)
            return ds_fail(err, DS_BAD_FILE, "GGUF: token %zu is not a string", i);
        if (json_object_setn_new(src->vocab, token, len, json_integer((json_int_t)i)))
            return ds_fail(err, DS_BAD_FILE, "GGUF: token %zu cannot be kept", i);
    }
    return DS_OK;
}

/* Control and user-defined tokens are matched in the text before anything else. */
static bool add_added_tokens(ds_buf *out, const source *src)
{
    const char *comma = "";
    ds_buf_str(out, "\"added_tokens\":[");
    for (size_t i = 0; i < json_array_size(src->tokens); i++) {
        int64_t type = type_of(src, i);
        const json_t *token = json_array_get(src->tokens, i);
        if ((type != TYPE_CONTROL && type != TYPE_USER && type != TYPE_UNKNOWN) || !json_string_length(token))
            continue;
        ds_buf_fmt(out, "%s{\"id\":%zu,\"content\":", comma, i);
        add_json(out, token);
        ds_buf_fmt(out,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                   "\"special\":%s}",
                   type == TYPE_USER ? "false" : "true");
        comma = ",";
    }
    return ds_buf_str(out, "]");
}

static ds_status byte_level(ds_buf *out, const source *src, ds_error *err)
{
    const char *pre = json_string_value(json_object_get(src->meta, KEY("pre")));
    const json_t *merges = json_object_get(src->meta, KEY("merges"));
    size_t kind = 0;
    while (kind < COUNT(kinds) && (!pre || strcmp(pre, kinds[kind].pre)))
        kind++;
    if (kind == COUNT(kinds)) {
        ds_buf known = {0};
        for (size_t i = 0; i < COUNT(kinds); i++)
            ds_buf_fmt(&known, "%s%s", i ? ", " : "", kinds[i].pre);
        ds_fail(err, DS_BAD_FILE,
                "GGUF: this file's text splitting (" KEY(
                    "pre") ") is %.60s, which is not supported; "
                           "supported: %s. Use the model's folder with its tokenizer.json instead",
                pre ? pre : "not given", ds_buf_text(&known));
        ds_buf_release(&known);
        return DS_BAD_FILE;
    }
    if (!json_is_array(merges))
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("merges") " is missing");
    ds_buf_fmt(out, ",\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":null,\"decoder\":%s",
               kinds[kind].normalizer, kinds[kind].pre_tokenizer, BYTE_LEVEL("true"));
    ds_buf_fmt(out,
               ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
               "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
               "\"byte_fallback\":false,\"ignore_merges\":%s,\"vocab\":",
               kinds[kind].ignore_merges);
    add_json(out, src->vocab);
    ds_buf_str(out, ",\"merges\":");
    add_json(out, merges);
    ds_buf_str(out, "}");
    return DS_OK;
}

/* ---- SentencePiece ---- */

typedef struct {
    double score;
    uint32_t left, right;             /* ids */
    uint32_t left_chars, right_chars; /* lengths */
    uint32_t order;                   /* of the piece that they make */
} merge;

typedef struct {
    merge *data;
    size_t len, cap;
} merge_list;

/* By score, the longer halves first, then as they were found: the order that Hugging Face's converter
 * gives, with which BPE makes SentencePiece's pieces. */
static int by_score(const void *a, const void *b)
{
    const merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars)
        return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars)
        return x->right_chars > y->right_chars ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

/* Every way to put the piece together from two others. */
static bool split_piece(const source *src, size_t id, double score, merge_list *list)
{
    const json_t *token = json_array_get(src->tokens, id);
    const char *text = json_string_value(token);
    size_t len = json_string_length(token);
    uint32_t chars = 0, left_chars = 0;
    for (size_t i = 0; i < len; i++)
        chars += (text[i] & 0xc0) != 0x80;
    for (size_t cut = 1; cut < len && len <= 512; cut++) {
        if ((text[cut] & 0xc0) == 0x80)
            continue;
        left_chars++;
        const json_t *left = json_object_getn(src->vocab, text, cut);
        const json_t *right = left ? json_object_getn(src->vocab, text + cut, len - cut) : NULL;
        if (!right)
            continue;
        if (list->len == list->cap) {
            size_t cap = list->cap ? 2 * list->cap : 4096;
            merge *grown = realloc(list->data, cap * sizeof *grown);
            if (!grown)
                return false;
            list->data = grown;
            list->cap = cap;
        }
        list->data[list->len++] = (merge){.score = score,
                                          .left = (uint32_t)json_integer_value(left),
                                          .right = (uint32_t)json_integer_value(right),
                                          .left_chars = left_chars,
                                          .right_chars = chars - left_chars,
                                          .order = (uint32_t)id};
    }
    return true;
}

static ds_status add_merges(ds_buf *out, const source *src, const json_t *scores, ds_error *err)
{
    merge_list list = {0};
    size_t n = json_array_size(src->tokens);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        ok = split_piece(src, i, json_number_value(json_array_get(scores, i)), &list);
    if (list.len)
        qsort(list.data, list.len, sizeof *list.data, by_score);
    ds_buf_str(out, ",\"merges\":[");
    for (size_t i = 0; i < list.len && ok; i++) {
        ds_buf_str(out, i ? ",[" : "[");
        add_json(out, json_array_get(src->tokens, list.data[i].left));
        ds_buf_str(out, ",");
        add_json(out, json_array_get(src->tokens, list.data[i].right));
        ok = ds_buf_str(out, "]");
    }
    free(list.data);
    ds_buf_str(out, "]");
    return ok ? DS_OK : ds_fail(err, DS_NO_MEMORY, "GGUF: out of memory for the merges");
}

static ds_status sentencepiece(ds_buf *out, const source *src, ds_error *err)
{
    const json_t *scores = json_object_get(src->meta, KEY("scores"));
    size_t n = json_array_size(src->tokens);
    if (json_array_size(scores) != n)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("scores") " has %zu entries for %zu tokens",
                       json_array_size(scores), n);
    bool prefix = true;
    int64_t unk = -1;
    ds_status status = ds_json_bool(src->meta, KEY("add_space_prefix"), &prefix, "GGUF", err);
    if (!status)
        status = ds_json_int(src->meta, KEY("unknown_token_id"), 0, (int64_t)n - 1, &unk, "GGUF", err);
    if (status)
        return status;
    for (size_t i = 0; i < n && unk < 0; i++)
        if (type_of(src, i) == TYPE_UNKNOWN)
            unk = (int64_t)i;
    static const char to_mark[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}";
    if (prefix)
        ds_buf_fmt(out,
                   ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                   "\"prepend\":\"" SPACE "\"},%s]}",
                   to_mark);
    else
        ds_buf_fmt(out, ",\"normalizer\":%s", to_mark);
    ds_buf_fmt(out,
               ",\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\","
               "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE
               "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]}",
               prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
    ds_buf_str(out, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (unk >= 0)
        add_json(out, json_array_get(src->tokens, (size_t)unk));
    else
        ds_buf_str(out, "null");
    ds_buf_str(out, ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,"
                    "\"byte_fallback\":true,\"ignore_merges\":false,\"vocab\":");
    add_json(out, src->vocab);
    status = add_merges(out, src, scores, err);
    ds_buf_str(out, "}");
    return status;
}

ds_status ds_gguf_vocab_json(ds_buf *out, const json_t *meta, bool *add_bos, ds_error *err)
{
    const char *model = json_string_value(json_object_get(meta, KEY("model")));
    source src = {.meta = meta};
    if (!model)
        return ds_fail(err, DS_BAD_FILE, "GGUF: the file has no tokenizer (" KEY("model") ")");
    bool bytes = !strcmp(model, "gpt2");
    if (!bytes && strcmp(model, "llama"))
        return ds_fail(err, DS_BAD_FILE,
                       "GGUF: tokenizers of kind %.60s are not supported; supported: gpt2, llama. Use the "
                       "model's folder with its tokenizer.json instead",
                       model);
    *add_bos = !bytes;
    ds_status status = read_vocab(&src, err);
    if (!status) {
        ds_buf_str(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
        add_added_tokens(out, &src);
        status = bytes ? byte_level(out, &src, err) : sentencepiece(out, &src, err);
        ds_buf_str(out, "}");
    }
    if (!status && out->failed)
        status = ds_fail(err, DS_NO_MEMORY, "GGUF: out of memory for the tokenizer");
    json_decref(src.vocab);
    return status;
}
