/* Small tokenizers for the tests: byte-level BPE and SentencePiece, as GGUF metadata. */
#ifndef TEXT_FILES_H
#define TEXT_FILES_H

#include "text/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline tk_span *text_strings(const json_t *list, size_t *n)
{
    tk_span *out = list ? calloc(json_array_size(list) + 1, sizeof *out) : NULL;
    *n = out ? json_array_size(list) : 0;
    for (size_t i = 0; i < *n; i++)
        out[i] = (tk_span){json_string_value(json_array_get(list, i)),
                           json_string_length(json_array_get(list, i))};
    return out;
}

static inline double *text_numbers(const json_t *list, size_t *n)
{
    double *out = list ? calloc(json_array_size(list) + 1, sizeof *out) : NULL;
    *n = out ? json_array_size(list) : 0;
    for (size_t i = 0; i < *n; i++)
        out[i] = json_number_value(json_array_get(list, i));
    return out;
}

/* meta: all tokenizer.ggml.* keys, arrays included. */
static inline ds_status text_open(ds_tokenizer **out, const json_t *meta, ds_error *err)
{
    ds_vocab vocab = {.meta = meta};
    tk_span *tokens = text_strings(json_object_get(meta, "tokenizer.ggml.tokens"), &vocab.n_tokens);
    tk_span *merges = text_strings(json_object_get(meta, "tokenizer.ggml.merges"), &vocab.n_merges);
    double *types = text_numbers(json_object_get(meta, "tokenizer.ggml.token_type"), &vocab.n_types);
    double *scores = text_numbers(json_object_get(meta, "tokenizer.ggml.scores"), &vocab.n_scores);
    vocab.tokens = tokens;
    vocab.merges = merges;
    vocab.types = types;
    vocab.scores = scores;
    ds_status status = ds_tokenizer_open_gguf(out, &vocab, err);
    free(tokens);
    free(merges);
    free(types);
    free(scores);
    return status;
}

static inline void text_put(json_t *meta, const char *key, json_t *value)
{
    char name[80];
    snprintf(name, sizeof name, "tokenizer.ggml.%s", key);
    json_object_set_new(meta, name, value);
}

static inline void text_token(json_t *meta, const char *token, int type, double score)
{
    json_array_append_new(json_object_get(meta, "tokenizer.ggml.tokens"), json_string(token));
    json_array_append_new(json_object_get(meta, "tokenizer.ggml.token_type"), json_integer(type));
    json_array_append_new(json_object_get(meta, "tokenizer.ggml.scores"), json_real(score));
}

static inline json_t *text_meta(const char *model)
{
    json_t *meta = json_object();
    text_put(meta, "model", json_string(model));
    text_put(meta, "tokens", json_array());
    text_put(meta, "token_type", json_array());
    text_put(meta, "scores", json_array());
    return meta;
}

/* Byte-level: ids 0..2 are <|endoftext|> (also UNK), <|im_start|>, <|im_end|>; 3 + b is byte b; then
 * "he", "hel", "\xc4\xa0w" (space, w); last the user-defined <think>. */
enum { BYTE0 = 3, HE = 259, HEL, SPACE_W, THINK, BPE_SIZE };

static inline json_t *text_byte_level(const char *pre)
{
    json_t *meta = text_meta("gpt2"), *merges = json_array();
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const char *const merged[] = {"he", "hel", "\xc4\xa0w"};
    static const char *const pairs[] = {"h e", "he l", "\xc4\xa0 w"};
    for (int i = 0; i < 3; i++)
        text_token(meta, special[i], 3, 0);
    for (int b = 0, next = 0x100; b < 256; b++) {
        int visible = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        int c = visible ? b : next++;
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            text[0] = (char)(0xc0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3f));
        }
        text_token(meta, text, 1, 0);
    }
    for (int i = 0; i < 3; i++) {
        text_token(meta, merged[i], 1, 0);
        json_array_append_new(merges, json_string(pairs[i]));
    }
    text_token(meta, "<think>", 4, 0);
    text_put(meta, "merges", merges);
    if (pre)
        text_put(meta, "pre", json_string(pre));
    text_put(meta, "bos_token_id", json_integer(1));
    text_put(meta, "eos_token_id", json_integer(2));
    text_put(meta, "unknown_token_id", json_integer(0));
    return meta;
}

/* SentencePiece: 0 <unk>, 1 <s>, 2 </s>, 3 + b is <0x..>, then pieces. */
enum { SPM_SPACE = 259, SPM_H, SPM_I, SPM_HI, SPM_SPACE_HI, SPM_SIZE };

static inline json_t *text_sentencepiece(void)
{
    json_t *meta = text_meta("llama");
    text_token(meta, "<unk>", 2, 0);
    text_token(meta, "<s>", 3, 0);
    text_token(meta, "</s>", 3, 0);
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        text_token(meta, text, 6, 0);
    }
    static const char *const pieces[] = {"\xe2\x96\x81", "h", "i", "hi", "\xe2\x96\x81hi"};
    static const double scores[] = {-10, -11, -12, -1, -2};
    for (int i = 0; i < 5; i++)
        text_token(meta, pieces[i], 1, scores[i]);
    text_put(meta, "bos_token_id", json_integer(1));
    text_put(meta, "eos_token_id", json_integer(2));
    text_put(meta, "unknown_token_id", json_integer(0));
    return meta;
}

#endif
