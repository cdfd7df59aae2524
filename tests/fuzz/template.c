#include "text/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A template's text: what compiles is rendered with a short conversation, and ends. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char messages_text[] =
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"hi \\u00fc\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":{\"a\":[1,2.5,null]}}}]},{\"role\":\"tool\",\"content\":\"ok\"}]";
    static const char options_text[] = "{\"add_generation_prompt\":true,\"tools\":[{\"type\":\"function\"}]}";
    ds_template *tpl;
    ds_error err;
    if (size > 1 << 14 || ds_template_open(&tpl, (const char *)data, size, "input", &err))
        return 0;
    json_t *messages = json_loads(messages_text, 0, NULL), *options = json_loads(options_text, 0, NULL);
    ds_buf out = {0};
    if (!messages || !options)
        abort();
    if (ds_template_render(tpl, messages, options, "<s>", "</s>", &out, &err) && out.len)
        abort(); /* a refusal leaves nothing behind */
    ds_buf_release(&out);
    json_decref(messages);
    json_decref(options);
    ds_template_close(tpl);
    return 0;
}
