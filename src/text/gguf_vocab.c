#include "text/gguf_vocab.h"

#include <math.h>
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

/* Control and user-defined tokens are matched in the text before anything else. */
static uint8_t flags_of(const ds_vocab *vocab, size_t i)
{
    double type = vocab->types ? vocab->types[i] : 0;
    return type == TYPE_USER                              ? TK_ADDED
           : type == TYPE_CONTROL || type == TYPE_UNKNOWN ? TK_ADDED | TK_SPECIAL
                                                          : 0;
}

static ds_status check_counts(const ds_vocab *vocab, ds_error *err)
{
    if (!vocab->n_tokens)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("tokens") " is missing or empty");
    if (vocab->types && vocab->n_types != vocab->n_tokens)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("token_type") " has %zu entries for %zu tokens",
                       vocab->n_types, vocab->n_tokens);
    return DS_OK;
}

/* settings: a tokenizer.json without tokens. */
static ds_status byte_level(ds_buf *settings, const ds_vocab *vocab, tk_vocab *out, ds_error *err)
{
    const char *pre = json_string_value(json_object_get(vocab->meta, KEY("pre")));
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
    if (!vocab->merges)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("merges") " is missing");
    out->merges = vocab->merges;
    out->merge_count = vocab->n_merges;
    ds_buf_fmt(settings,
               "{\"version\":\"1.0\",\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":null,"
               "\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"fuse_unk\":false,\"byte_fallback\":false,"
               "\"ignore_merges\":%s,\"vocab\":{},\"merges\":[]}}",
               kinds[kind].normalizer, kinds[kind].pre_tokenizer, BYTE_LEVEL("true"),
               kinds[kind].ignore_merges);
    return DS_OK;
}

static ds_status sentencepiece(ds_buf *settings, const ds_vocab *vocab, tk_vocab *out, ds_error *err)
{
    size_t n = vocab->n_tokens;
    if (vocab->n_scores != n)
        return ds_fail(err, DS_BAD_FILE, "GGUF: " KEY("scores") " has %zu entries for %zu tokens",
                       vocab->n_scores, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(vocab->scores[i]))
            return ds_fail(err, DS_BAD_FILE, "GGUF: the score of token %zu is NaN or infinite", i);
    bool prefix = true;
    ds_status status = ds_json_bool(vocab->meta, KEY("add_space_prefix"), &prefix, "GGUF", err);
    if (!status)
        status =
            ds_json_int(vocab->meta, KEY("unknown_token_id"), 0, (int64_t)n - 1, &out->unknown, "GGUF", err);
    if (status)
        return status;
    for (size_t i = 0; i < n && out->unknown < 0 && vocab->types; i++)
        if (vocab->types[i] == TYPE_UNKNOWN)
            out->unknown = (int64_t)i;
    out->scores = vocab->scores;
    static const char to_mark[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}";
    ds_buf_str(settings, "{\"version\":\"1.0\",\"normalizer\":");
    if (prefix)
        ds_buf_fmt(settings,
                   "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                   "\"prepend\":\"" SPACE "\"},%s]}",
                   to_mark);
    else
        ds_buf_str(settings, to_mark);
    ds_buf_fmt(settings,
               ",\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\","
               "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE
               "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]},"
               "\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":true,"
               "\"ignore_merges\":false,\"vocab\":{},\"merges\":[]}}",
               prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
    return DS_OK;
}

ds_status ds_gguf_vocab_open(tk_tokenizer **out, const ds_vocab *vocab, bool *add_bos, ds_error *err)
{
    *out = NULL;
    const char *model = json_string_value(json_object_get(vocab->meta, KEY("model")));
    if (!model)
        return ds_fail(err, DS_BAD_FILE, "GGUF: the file has no tokenizer (" KEY("model") ")");
    bool bytes = !strcmp(model, "gpt2");
    if (!bytes && strcmp(model, "llama"))
        return ds_fail(err, DS_BAD_FILE,
                       "GGUF: tokenizers of kind %.60s are not supported; supported: gpt2, llama. Use the "
                       "model's folder with its tokenizer.json instead",
                       model);
    *add_bos = !bytes;
    ds_status status = check_counts(vocab, err);
    if (status)
        return status;
    ds_buf settings = {0};
    uint8_t *added = malloc(vocab->n_tokens);
    tk_vocab given = {.tokens = vocab->tokens, .token_count = vocab->n_tokens, .added = added, .unknown = -1};
    for (size_t i = 0; added && i < vocab->n_tokens; i++)
        added[i] = flags_of(vocab, i);
    status = bytes ? byte_level(&settings, vocab, &given, err) : sentencepiece(&settings, vocab, &given, err);
    if (!status && (!added || settings.failed))
        status = ds_fail(err, DS_NO_MEMORY, "GGUF: out of memory for the tokenizer");
    char why[300] = "";
    if (!status && !(*out = tk_tokenizer_open(settings.data, settings.len, &given, why, sizeof why)))
        status = ds_fail(err, DS_BAD_FILE, "GGUF: not a usable tokenizer: %s", why);
    free(added);
    ds_buf_release(&settings);
    return status;
}
