/* Tokenizers (Hugging Face's crate) and Jinja templates (minijinja) behind a small C interface.
 *
 * Errors   A function that can fail writes one sentence to err (err_size bytes, cut on a character).
 * Memory   What is marked malloc is the caller's to free(); the rest is borrowed from its owner.
 * Threads  Objects do not change after they are made: any thread may use them.
 * A panic inside is an error like any other; nothing is printed. */
#ifndef TEXTKIT_H
#define TEXTKIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tk_tokenizer tk_tokenizer;
typedef struct tk_template tk_template;

enum { TK_TOKEN = 1, TK_ADDED = 2, TK_SPECIAL = 4, TK_BYTE = 8 };

typedef struct {
    const char *data;
    size_t len;
} tk_span;

/* The vocabulary of a BPE model; all of it is borrowed for the call. */
typedef struct {
    const tk_span *tokens; /* UTF-8, by id; of equal tokens the last one counts */
    size_t token_count;
    const tk_span *merges; /* two tokens with a space between, first merge first; or NULL: */
    size_t merge_count;
    const double *scores; /* per token, finite: the merges are those that make SentencePiece's pieces */
    const uint8_t *added; /* per token: 0, TK_ADDED (found in a text before anything else), with TK_SPECIAL */
    int64_t unknown;      /* the id that stands for what has none; -1: there is none */
} tk_vocab;

/* json: the text of a tokenizer.json. Truncation and padding settings in it are ignored. vocab: NULL, or
 * a BPE model's tokens, merges and added tokens, where json has only the settings. */
tk_tokenizer *tk_tokenizer_open(const char *json, size_t len, const tk_vocab *vocab, char *err,
                                size_t err_size);
void tk_tokenizer_close(tk_tokenizer *tok); /* NULL is fine */

/* Text (UTF-8) to ids. special: the post-processor adds what it adds (BOS, EOS). Strings of added
 * tokens are always recognised. 0 and *out (malloc, NULL when empty), or -1 */
int tk_tokenizer_encode(const tk_tokenizer *tok, const char *text, size_t len, bool special, uint32_t **out,
                        size_t *out_len, char *err, size_t err_size);
/* Ids to text as the format's own decoder gives it. 0 and *out (malloc, NUL-terminated), or -1 */
int tk_tokenizer_decode(const tk_tokenizer *tok, const uint32_t *ids, size_t n, bool skip_special, char **out,
                        size_t *out_len, char *err, size_t err_size);

/* The bytes each id contributes to decoded text: id i is bytes[ends[i-1] .. ends[i]), and flags[i]
 * says what it is. Ids of no token contribute nothing and have no flags. */
typedef struct {
    const uint8_t *bytes;
    const uint32_t *ends;
    const uint8_t *flags;
    size_t count; /* highest id + 1 */
} tk_table;
tk_table tk_tokenizer_table(const tk_tokenizer *tok);
int64_t tk_tokenizer_id(const tk_tokenizer *tok, const char *token, size_t len); /* -1: none */

/* Jinja as Hugging Face sets it up for chat templates. fuel: the work and (64 bytes a unit) the
 * memory that one rendering may take. */
tk_template *tk_template_open(const char *source, size_t len, uint64_t fuel, char *err, size_t err_size);
void tk_template_close(tk_template *tpl); /* NULL is fine */
/* json: an object of the template's variables, in order. 0 and *out (malloc, NUL-terminated, at most
 * max bytes), or -1 */
int tk_template_render(const tk_template *tpl, const char *json, size_t len, size_t max, char **out,
                       size_t *out_len, char *err, size_t err_size);

#endif
