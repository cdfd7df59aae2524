/* Text to token ids and back. A tokenizer comes from a tokenizer.json or from the vocabulary of a GGUF
 * file; one implementation (textkit.h) serves both.
 *
 * An open tokenizer does not change: any thread may use it. */
#ifndef DS_TEXT_TOKENIZER_H
#define DS_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"
#include "textkit.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ds_tokenizer ds_tokenizer;

typedef struct { /* zero-initialise */
    int32_t *data;
    size_t len, cap;
} ds_ids;
bool ds_ids_add(ds_ids *ids, const int32_t *data, size_t n); /* false: out of memory, nothing added */
void ds_ids_release(ds_ids *ids);

/* json: the text of a tokenizer.json; where: its name, for messages */
ds_status ds_tokenizer_open_json(ds_tokenizer **out, const char *json, size_t len, const char *where,
                                 ds_error *err);
/* A model folder: tokenizer.json, and tokenizer_config.json or special_tokens_map.json for the names
 * of BOS, EOS and UNK. */
ds_status ds_tokenizer_open(ds_tokenizer **out, const char *dir, ds_error *err);

/* The tokenizer.ggml.* keys of a GGUF file. Arrays that it lacks are NULL. */
typedef struct {
    const json_t *meta; /* an object with the keys that are no arrays */
    const tk_span *tokens, *merges;
    const double *types, *scores;
    size_t n_tokens, n_merges, n_types, n_scores;
} ds_vocab;
/* vocab is borrowed for the call. A kind that cannot be reproduced exactly is DS_BAD_FILE, by its name. */
ds_status ds_tokenizer_open_gguf(ds_tokenizer **out, const ds_vocab *vocab, ds_error *err);
void ds_tokenizer_close(ds_tokenizer *tok); /* NULL is fine */

/* Appends the ids of text, which must be UTF-8. Strings of special tokens are always recognised.
 * add_special: with the BOS and EOS that this tokenizer puts around a text. */
ds_status ds_tokenizer_encode(const ds_tokenizer *tok, const char *text, size_t len, bool add_special,
                              ds_ids *out, ds_error *err);
/* Appends the text of ids. For a stream of tokens use text/detok.h. */
ds_status ds_tokenizer_decode(const ds_tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                              ds_buf *out, ds_error *err);

size_t ds_tokenizer_size(const ds_tokenizer *tok); /* highest id + 1 */
/* What id adds to a decoded text, not always whole characters; of an unknown id nothing. Borrowed. */
const uint8_t *ds_tokenizer_bytes(const ds_tokenizer *tok, int32_t id, size_t *len);
int32_t ds_tokenizer_id(const ds_tokenizer *tok, const char *token); /* -1: none */
bool ds_tokenizer_is_special(const ds_tokenizer *tok, int32_t id);
/* ids of the named tokens, -1 where there is none; their strings, "" where there is none (borrowed) */
int32_t ds_tokenizer_bos_id(const ds_tokenizer *tok);
int32_t ds_tokenizer_eos_id(const ds_tokenizer *tok);
const char *ds_tokenizer_bos(const ds_tokenizer *tok);
const char *ds_tokenizer_eos(const ds_tokenizer *tok);

/* The ids that end a generation: given[n] (a model's own settings), the tokenizer's EOS, and the
 * turn-ending tokens that chat models share. Returns how many were written, without duplicates, at
 * most max. */
size_t ds_tokenizer_eos_set(const ds_tokenizer *tok, const int32_t *given, size_t n, int32_t *out,
                            size_t max);

#endif
