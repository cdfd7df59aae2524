/* Chat templates: a model's own Jinja text turns messages into its prompt. They come with untrusted
 * model files: work, memory and output of a rendering are bounded.
 *
 * An open template does not change: any thread may use it. */
#ifndef DS_TEXT_TEMPLATE_H
#define DS_TEXT_TEMPLATE_H

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"

typedef struct ds_template ds_template;

/* text: Jinja; where: its name, for messages */
ds_status ds_template_open(ds_template **out, const char *text, size_t len, const char *where, ds_error *err);
/* The template of a model folder (chat_template.jinja, tokenizer_config.json, chat_template.json) or of
 * GGUF metadata. name: which of several; NULL: "default", and "tool_use" where tools are given. A
 * model without a template leaves *out NULL, which is no error; a missing name is DS_INVALID. */
ds_status ds_template_open_folder(ds_template **out, const char *dir, const char *name, ds_error *err);
ds_status ds_template_open_gguf(ds_template **out, const json_t *meta, const char *name, ds_error *err);
void ds_template_close(ds_template *tpl); /* NULL is fine */

/* Whether the text names a variable, e.g. "reasoning_effort". */
bool ds_template_mentions(const ds_template *tpl, const char *word);

/* Appends the prompt to out. messages: an array. options: an object of further variables (tools,
 * add_generation_prompt, enable_thinking, ...) or NULL. bos, eos: the special tokens' strings, or NULL.
 * What the template refuses or cannot handle is DS_INVALID, and out is as before. */
ds_status ds_template_render(const ds_template *tpl, const json_t *messages, const json_t *options,
                             const char *bos, const char *eos, ds_buf *out, ds_error *err);

#endif
