#include "text/template.h"

#include "base/map.h"
#include "textkit.h"

#include <stdlib.h>
#include <string.h>

enum {
    TEMPLATE_MAX = 1 << 20,
    CONFIG_MAX = 32 << 20,
    FUEL = 2 << 20, /* about as many steps, and 128 MiB of text made on the way */
    PROMPT_MAX = 64 << 20,
};

typedef struct {
    tk_template *tk; /* NULL: none */
    char *text;
} part;

struct ds_template {
    part plain, tools; /* tools: used instead where tools are given */
};

/* Templates run on a thread of their own, for which there may be no memory: no fault of theirs. */
static ds_status cause(const char *why, ds_status otherwise)
{
    return strstr(why, "no thread for the template") ? DS_NO_MEMORY : otherwise;
}

static ds_status open_part(part *out, const char *text, size_t len, const char *where, ds_error *err)
{
    char why[300] = "";
    if (len > TEMPLATE_MAX)
        return ds_fail(err, DS_BAD_FILE, "%s: a chat template longer than %d bytes", where, TEMPLATE_MAX);
    out->text = strndup(text, len);
    if (!out->text)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    out->tk = tk_template_open(text, len, FUEL, why, sizeof why);
    return out->tk ? DS_OK
                   : ds_fail(err, cause(why, DS_BAD_FILE), "%s: the chat template is not usable: %s", where, why);
}

static void close_part(part *p)
{
    tk_template_close(p->tk);
    free(p->text);
}

void ds_template_close(ds_template *tpl)
{
    if (!tpl)
        return;
    close_part(&tpl->plain);
    close_part(&tpl->tools);
    free(tpl);
}

/* tools may be NULL; where both are NULL there is no template and *out stays NULL. */
static ds_status open_parts(ds_template **out, const char *plain, const char *tools, const char *where,
                            ds_error *err)
{
    *out = NULL;
    if (!plain && !tools)
        return DS_OK;
    ds_template *tpl = calloc(1, sizeof *tpl);
    if (!tpl)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    ds_status status = plain ? open_part(&tpl->plain, plain, strlen(plain), where, err) : DS_OK;
    if (!status && tools)
        status = open_part(&tpl->tools, tools, strlen(tools), where, err);
    if (status)
        ds_template_close(tpl);
    else
        *out = tpl;
    return status;
}

ds_status ds_template_open(ds_template **out, const char *text, size_t len, const char *where, ds_error *err)
{
    *out = NULL;
    ds_template *tpl = calloc(1, sizeof *tpl);
    if (!tpl)
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", where);
    ds_status status = open_part(&tpl->plain, text, len, where, err);
    if (status)
        ds_template_close(tpl);
    else
        *out = tpl;
    return status;
}

/* ---- where templates are kept ---- */

/* A text of this name from a "chat_template" value: one string (called "default") or a list of
 * {"name", "template"}. Borrowed; NULL: none */
static const char *named_in(const json_t *value, const char *name)
{
    if (json_is_string(value))
        return strcmp(name, "default") ? NULL : json_string_value(value);
    size_t i;
    const json_t *item;
    json_array_foreach(value, i, item)
    {
        const char *this = json_string_value(json_object_get(item, "name"));
        if (this && !strcmp(this, name))
            return json_string_value(json_object_get(item, "template"));
    }
    return NULL;
}

static ds_status open_value(ds_template **out, const json_t *value, const char *name, const char *where,
                            ds_error *err)
{
    const char *plain = named_in(value, name ? name : "default");
    if (name && !plain && json_is_array(value))
        return ds_fail(err, DS_INVALID, "%s: there is no chat template named %.60s", where, name);
    return open_parts(out, plain, name ? NULL : named_in(value, "tool_use"), where, err);
}

static ds_status open_config(ds_template **out, const char *path, const char *name, ds_error *err)
{
    json_t *config = NULL;
    ds_status status = ds_json_load(&config, path, CONFIG_MAX, err);
    if (!status)
        status = open_value(out, json_object_get(config, "chat_template"), name, path, err);
    json_decref(config);
    return status;
}

/* chat_template.jinja is the default; others lie in additional_chat_templates/NAME.jinja. */
static ds_status open_jinja(ds_template **out, const char *dir, const char *name, ds_error *err)
{
    ds_buf path = {0};
    ds_map maps[2] = {{0}, {0}};
    char *texts[2] = {NULL, NULL};
    ds_status status = DS_OK;
    const char *names[2] = {name ? name : "default", name ? NULL : "tool_use"};
    for (int i = 0; i < 2 && names[i] && !status; i++) {
        ds_buf_clear(&path);
        if (!strcmp(names[i], "default"))
            ds_buf_fmt(&path, "%s/chat_template.jinja", dir);
        else if (!strchr(names[i], '/'))
            ds_buf_fmt(&path, "%s/additional_chat_templates/%s.jinja", dir, names[i]);
        if (!path.len || !ds_file_exists(ds_buf_text(&path)))
            continue;
        status = ds_map_open(&maps[i], ds_buf_text(&path), err);
        if (!status && maps[i].size > TEMPLATE_MAX)
            status = ds_fail(err, DS_BAD_FILE, "%s: longer than %d bytes", ds_buf_text(&path), TEMPLATE_MAX);
        if (!status && !(texts[i] = strndup(maps[i].size ? (const char *)maps[i].data : "", maps[i].size)))
            status = ds_fail(err, DS_NO_MEMORY, "%s: out of memory", ds_buf_text(&path));
    }
    if (!status && (texts[0] || !names[1]))
        status = open_parts(out, texts[0], texts[1], dir, err);
    for (int i = 0; i < 2; i++) {
        ds_map_close(&maps[i]);
        free(texts[i]);
    }
    ds_buf_release(&path);
    return status;
}

ds_status ds_template_open_folder(ds_template **out, const char *dir, const char *name, ds_error *err)
{
    *out = NULL;
    ds_status status = open_jinja(out, dir, name, err);
    static const char *const configs[] = {"tokenizer_config.json", "chat_template.json"};
    ds_buf path = {0};
    for (size_t i = 0; i < COUNT(configs) && !status && !*out; i++) {
        ds_buf_clear(&path);
        ds_buf_fmt(&path, "%s/%s", dir, configs[i]);
        if (ds_file_exists(ds_buf_text(&path)))
            status = open_config(out, ds_buf_text(&path), name, err);
    }
    ds_buf_release(&path);
    if (!status && !*out && name)
        return ds_fail(err, DS_INVALID, "%s: there is no chat template named %.60s", dir, name);
    return status;
}

ds_status ds_template_open_gguf(ds_template **out, const json_t *meta, const char *name, ds_error *err)
{
    *out = NULL;
    const char *plain = json_string_value(json_object_get(meta, "tokenizer.chat_template"));
    if (!name || !strcmp(name, "default")) {
        const json_t *tools = name ? NULL : json_object_get(meta, "tokenizer.chat_template.tool_use");
        return open_parts(out, plain, json_string_value(tools), "GGUF", err);
    }
    ds_buf key = {0};
    ds_buf_fmt(&key, "tokenizer.chat_template.%s", name);
    plain = json_string_value(json_object_get(meta, ds_buf_text(&key)));
    ds_buf_release(&key);
    if (!plain)
        return ds_fail(err, DS_INVALID, "GGUF: there is no chat template named %.60s", name);
    return open_parts(out, plain, NULL, "GGUF", err);
}

bool ds_template_mentions(const ds_template *tpl, const char *word)
{
    return (tpl->plain.text && strstr(tpl->plain.text, word)) ||
           (tpl->tools.text && strstr(tpl->tools.text, word));
}

/* ---- rendering ---- */

/* The variables that a template may rely on, then the caller's. */
static json_t *context_of(const json_t *messages, const json_t *options, const char *bos, const char *eos)
{
    json_t *context = json_pack("{s:O, s:n, s:n, s:b}", "messages", messages, "tools", "documents",
                                "add_generation_prompt", 0);
    if (context && bos && *bos)
        json_object_set_new(context, "bos_token", json_string(bos));
    if (context && eos && *eos)
        json_object_set_new(context, "eos_token", json_string(eos));
    if (context && options && json_object_update(context, (json_t *)options)) {
        json_decref(context);
        return NULL;
    }
    return context;
}

ds_status ds_template_render(const ds_template *tpl, const json_t *messages, const json_t *options,
                             const char *bos, const char *eos, ds_buf *out, ds_error *err)
{
    const json_t *tools = json_object_get(options, "tools");
    bool use_tools = !tpl->plain.tk || (tpl->tools.tk && json_array_size(tools));
    const part *chosen = use_tools ? &tpl->tools : &tpl->plain;
    json_t *context = context_of(messages, options, bos, eos);
    char *json = context ? json_dumps(context, JSON_COMPACT) : NULL;
    json_decref(context);
    if (!json)
        return ds_fail(err, DS_NO_MEMORY, "chat template: the messages cannot be handed over");
    char *text = NULL, why[400] = "";
    size_t len = 0;
    int failed = tk_template_render(chosen->tk, json, strlen(json), PROMPT_MAX, &text, &len, why, sizeof why);
    free(json);
    if (failed)
        return ds_fail(err, cause(why, DS_INVALID), "the chat template could not be applied: %s", why);
    bool ok = ds_buf_add(out, text, len);
    free(text);
    return ok ? DS_OK : ds_fail(err, DS_NO_MEMORY, "out of memory for a prompt of %zu bytes", len);
}
