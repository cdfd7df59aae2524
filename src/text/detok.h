/* Tokens to text as they come. A token may end inside a character: its bytes are held back until the
 * character is whole. Bytes that can never become one turn into U+FFFD, as Python's errors="replace"
 * does it, however the tokens were cut into feeds. */
#ifndef DS_TEXT_DETOK_H
#define DS_TEXT_DETOK_H

#include "text/tokenizer.h"

typedef struct {
    const ds_tokenizer *tok;
    bool skip_special; /* special tokens add no text */
    uint8_t held[4];   /* an incomplete character */
    size_t held_len;
} ds_detok;

void ds_detok_init(ds_detok *detok, const ds_tokenizer *tok, bool skip_special); /* tok is borrowed */
/* Appends what has become certain. False: out is full or memory ran out. */
bool ds_detok_feed(ds_detok *detok, const int32_t *ids, size_t n, ds_buf *out);
bool ds_detok_end(ds_detok *detok, ds_buf *out); /* what is held back; then ready for another text */

#endif
