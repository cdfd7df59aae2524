/* The tokenizer keys of a GGUF file as a tokenizer. */
#ifndef DS_TEXT_GGUF_VOCAB_H
#define DS_TEXT_GGUF_VOCAB_H

#include "text/tokenizer.h"

/* *add_bos: whether this kind begins a text with BOS where the file does not say. */
ds_status ds_gguf_vocab_open(tk_tokenizer **out, const ds_vocab *vocab, bool *add_bos, ds_error *err);

#endif
