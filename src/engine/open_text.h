/* The tokenizer and the chat template of a model on disk. */
#ifndef DS_ENGINE_OPEN_TEXT_H
#define DS_ENGINE_OPEN_TEXT_H

#include "formats/checkpoint.h"
#include "text/template.h"
#include "text/tokenizer.h"

/* *tpl is NULL where the model has none. */
ds_status ds_text_open(ds_tokenizer **tok, ds_template **tpl, const ds_checkpoint *files, ds_error *err);

#endif
