/* Everything about a model that is text: its tokenizer, its chat template, and the ids that end an
 * answer. Any thread may use one once it is open. */
#ifndef DS_ENGINE_PROMPT_H
#define DS_ENGINE_PROMPT_H

#include "formats/checkpoint.h"
#include "text/tokenizer.h"

#include <dspark/request.h>

typedef struct ds_prompter ds_prompter;

ds_status ds_prompter_open(ds_prompter **out, const ds_checkpoint *files, ds_error *err);
void ds_prompter_close(ds_prompter *p); /* NULL is fine */
const ds_tokenizer *ds_prompter_tokenizer(const ds_prompter *p);
/* The set becomes the union of these and of the tokenizer's own. Before the first job. */
void ds_prompter_set_eos(ds_prompter *p, const int32_t *ids, int n);
const int32_t *ds_prompter_eos(const ds_prompter *p, int *n); /* borrowed */
bool ds_prompter_is_eos(const ds_prompter *p, int32_t id);

/* Appends the ids of text; strings of special tokens in it are recognised. bos: begins with BOS where
 * the tokenizer asks for it and text does not bring its own. */
ds_status ds_prompter_encode(const ds_prompter *p, const char *text, size_t len, bool bos, ds_ids *out,
                             ds_error *err);
/* Appends the ids of the messages as the model's template writes them, followed by the opening of an
 * answer; without a template, of their contents joined by newlines. */
ds_status ds_prompter_chat(const ds_prompter *p, const ds_message *messages, size_t n_messages, ds_ids *out,
                           ds_error *err);

#endif
