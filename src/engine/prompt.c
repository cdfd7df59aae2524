#include "engine/prompt.h"

#include "engine/open_text.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_EOS = 64, PROMPT_BYTES = 256 << 20 };

struct ds_prompter {
    ds_tokenizer *tok;
    ds_template *tpl; /* NULL: the model has none */
    int32_t eos[MAX_EOS];
    int n_eos;
};

ds_status ds_prompter_open(ds_prompter **out, const ds_checkpoint *files, ds_error *err)
{
    *out = NULL;
    ds_prompter *p = calloc(1, sizeof *p);
    if (!p)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a tokenizer");
    ds_status status = ds_text_open(&p->tok, &p->tpl, files, err);
    if (status) {
        ds_prompter_close(p);
        return status;
    }
    ds_prompter_set_eos(p, NULL, 0);
    *out = p;
    return DS_OK;
}

void ds_prompter_close(ds_prompter *p)
{
    if (!p)
        return;
    ds_template_close(p->tpl);
    ds_tokenizer_close(p->tok);
    free(p);
}

const ds_tokenizer *ds_prompter_tokenizer(const ds_prompter *p)
{
    return p->tok;
}

void ds_prompter_set_eos(ds_prompter *p, const int32_t *ids, int n)
{
    p->n_eos = (int)ds_tokenizer_eos_set(p->tok, ids, (size_t)n, p->eos, MAX_EOS);
}

const int32_t *ds_prompter_eos(const ds_prompter *p, int *n)
{
    *n = p->n_eos;
    return p->eos;
}

bool ds_prompter_is_eos(const ds_prompter *p, int32_t id)
{
    for (int i = 0; i < p->n_eos; i++)
        if (p->eos[i] == id)
            return true;
    return false;
}

static bool ends_with(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);
    return n && n <= len && !memcmp(text + len - n, end, n);
}

ds_status ds_prompter_encode(const ds_prompter *p, const char *text, size_t len, bool bos, ds_ids *out,
                             ds_error *err)
{
    size_t before = out->len;
    ds_status status = ds_tokenizer_encode(p->tok, text, len, bos, out, err);
    if (status || !bos)
        return status;
    /* A text that brings its own BOS needs no second one, and what is to be continued no EOS. */
    int32_t *ids = out->data + before;
    int32_t bos_id = ds_tokenizer_bos_id(p->tok), eos_id = ds_tokenizer_eos_id(p->tok);
    size_t n = out->len - before;
    if (n && eos_id >= 0 && ids[n - 1] == eos_id && !ends_with(text, len, ds_tokenizer_eos(p->tok)))
        n--;
    if (n > 1 && bos_id >= 0 && ids[0] == bos_id && ids[1] == bos_id)
        memmove(ids, ids + 1, --n * sizeof *ids);
    out->len = before + n;
    return DS_OK;
}

/* The messages as one text. */
static ds_status render(const ds_prompter *p, const ds_message *messages, size_t n, ds_buf *text,
                        ds_error *err)
{
    if (!p->tpl) {
        for (size_t i = 0; i < n; i++) {
            ds_buf_str(text, i ? "\n" : "");
            ds_buf_str(text, messages[i].content);
        }
        return text->failed ? ds_fail(err, DS_NO_MEMORY, "out of memory for the prompt") : DS_OK;
    }
    json_t *list = json_array(), *options = json_pack("{s:b}", "add_generation_prompt", 1);
    bool kept = list && options;
    for (size_t i = 0; i < n && kept; i++)
        kept = !json_array_append_new(
            list, json_pack("{s:s, s:s}", "role", messages[i].role, "content", messages[i].content));
    ds_status status = kept ? ds_template_render(p->tpl, list, options, ds_tokenizer_bos(p->tok),
                                                 ds_tokenizer_eos(p->tok), text, err)
                            : ds_fail(err, DS_NO_MEMORY, "out of memory for the prompt");
    json_decref(list);
    json_decref(options);
    return status;
}

ds_status ds_prompter_chat(const ds_prompter *p, const ds_message *messages, size_t n_messages, ds_ids *out,
                           ds_error *err)
{
    ds_buf text = {.max = PROMPT_BYTES};
    ds_status status = render(p, messages, n_messages, &text, err);
    if (!status) /* a template writes BOS itself; joined contents have none yet */
        status = ds_prompter_encode(p, ds_buf_text(&text), text.len, !p->tpl, out, err);
    ds_buf_release(&text);
    return status;
}
