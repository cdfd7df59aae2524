/* The tokenizer keys of a GGUF file as the text of a tokenizer.json. */
#ifndef DS_TEXT_GGUF_VOCAB_H
#define DS_TEXT_GGUF_VOCAB_H

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"

/* *add_bos: whether this kind begins a text with BOS where the file does not say. */
ds_status ds_gguf_vocab_json(ds_buf *out, const json_t *meta, bool *add_bos, ds_error *err);

#endif
