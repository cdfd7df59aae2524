#include "text/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char options_text[] =
    "{\"s\": \"a-b-c\", \"x\": {\"z\": 1, \"a\": [1.5, true, null, \"\\u00fc<&>'\\\"\\n\"], \"e\": {}, "
    "\"l\": []}, \"f\": 1e+16, \"g\": 1e-05, \"h\": 100.0, \"i\": 0.1, \"n\": null, \"big\": "
    "12345678901234567, \"w\": \"  one two  three \", \"u\": \"\\u00e9\\u00df\", \"esc\": "
    "\"\\u0001\\b\\f\\u007f/\"}";

/* clang-format off */
/* What Python's Jinja gives in the environment that Hugging Face sets up for chat templates. */
static const struct {
    const char *name, *text, *out;
} cases[] = {
    {"tojson", "{{ x|tojson }}",
     "{\"z\": 1, \"a\": [1.5, true, null, \"\303\274<&>'\\\"\\n\"], \"e\": {}, \"l\": []}"},
    {"tojson indent", "{{ x|tojson(indent=2) }}",
     "{\n  \"z\": 1,\n  \"a\": [\n    1.5,\n    true,\n    null,\n    \"\303\274<&>'\\\"\\n\"\n  ],\n  \"e\": {},\n  \"l\": []\n}"},
    {"tojson sorted", "{{ x|tojson(sort_keys=true) }}",
     "{\"a\": [1.5, true, null, \"\303\274<&>'\\\"\\n\"], \"e\": {}, \"l\": [], \"z\": 1}"},
    {"tojson ascii", "{{ [u, s]|tojson(ensure_ascii=true) }}",
     "[\"\\u00e9\\u00df\", \"a-b-c\"]"},
    {"tojson separators", "{{ x|tojson(separators=(',', ':')) }}",
     "{\"z\":1,\"a\":[1.5,true,null,\"\303\274<&>'\\\"\\n\"],\"e\":{},\"l\":[]}"},
    {"tojson control characters", "{{ esc|tojson }}",
     "\"\\u0001\\b\\f\177/\""},
    {"tojson numbers", "{{ [f, g, h, i, big, -3, 1e300]|tojson }}",
     "[1e+16, 1e-05, 100.0, 0.1, 12345678901234567, -3, 1e+300]"},
    {"floats", "{{ f }} {{ g }} {{ h }} {{ i }} {{ 1.0 }} {{ 3 / 2 }} {{ -0.0 }}",
     "1e+16 1e-05 100.0 0.1 1.0 1.5 -0.0"},
    {"whole numbers", "{{ big }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }}",
     "12345678901234567 3 3 1024"},
    {"none and booleans", "{{ n }} {{ true }} {{ x.missing }}|",
     "None True |"},
    {"list and map", "{{ [1, 'a', none, 1.0, true, \"it's\"] }} {{ x }}",
     "[1, 'a', None, 1.0, True, \"it's\"] {'z': 1, 'a': [1.5, True, None, '\303\274<&>\\'\"\\n'], 'e': {}, 'l': []}"},
    {"tuple", "{{ (1, 'a') }} {{ (1,) }}",
     "(1, 'a') (1,)"},
    {"string filter", "{{ f|string + '|' + n|string + '|' + [1.0]|string }}",
     "1e+16|None|[1.0]"},
    {"concatenation", "{{ 'a' ~ 1 ~ none ~ true }}",
     "a1NoneTrue"},
    {"rsplit", "{{ s.rsplit('-', 1) }} {{ w.rsplit(none, 1) }} {{ w.rsplit() }} {{ s.rsplit('-') }}",
     "['a-b', 'c'] ['  one two', 'three'] ['one', 'two', 'three'] ['a', 'b', 'c']"},
    {"split", "{{ s.split('-', 1) }} {{ s.split('-', maxsplit=1)[1] }} {{ w.split() }} {{ s.split('-')[-1] }}",
     "['a', 'b-c'] b-c ['one', 'two', 'three'] c"},
    {"partition", "{{ s.partition('-') }} {{ s.rpartition('-') }} {{ s.partition('x') }} {{ s.rpartition('x') }}",
     "('a', '-', 'b-c') ('a-b', '-', 'c') ('a-b-c', '', '') ('', '', 'a-b-c')"},
    {"prefix and suffix", "{{ s.removeprefix('a-') }} {{ s.removesuffix('-c') }} {{ s.removeprefix('x') }}",
     "b-c a-b a-b-c"},
    {"justify", "[{{ s.ljust(7) }}] [{{ s.rjust(7, '.') }}] [{{ s.center(8, '*') }}] [{{ s.center(9, '*') }}] [{{ 'ab'.center(5) }}] {{ '-7'.zfill(4) }}",
     "[a-b-c  ] [..a-b-c] [*a-b-c**] [**a-b-c**] [  ab ] -007"},
    {"find", "{{ s.index('b') }} {{ s.rindex('-') }} {{ s.find('x') }} {{ s.count('-') }}",
     "2 3 -1 2"},
    {"cases", "{{ 'aBc'.swapcase() }} {{ 'aBc'.casefold() }} {{ 'aBc'.upper() }} {{ 'abc def'.title() }} {{ 'abc'.capitalize() }}",
     "AbC abc ABC Abc Def Abc"},
    {"startswith", "{{ s.startswith('a') }} {{ s.startswith(('x', 'a')) }} {{ s.endswith('c') }}",
     "True True True"},
    {"strip", "[{{ w.strip() }}] [{{ w.lstrip() }}] [{{ w.rstrip() }}] {{ 'xxaxx'.strip('x') }}",
     "[one two  three] [one two  three ] [  one two  three] a"},
    {"percent", "{{ '%s and %s' % (s, 2) }} {{ '%s!' % s|upper }} {{ '<%s>' % x.e }} {{ '%d%%' % 5 }} {{ '%.2f' % i }} {{ 7 % 2 }}",
     "a-b-c and 2 A-B-C! <{}> 5% 0.10 1"},
    {"percent in a call", "{{ ['%s' % ('a' ~ '%s' % s)]|join('') }}",
     "aa-b-c"},
    {"indent", "[{{ 'a\nb\n\nc\n'|indent(2) }}] [{{ 'a\nb'|indent(1, true) }}] [{{ 'a\n\nb'|indent(width=2, blank=true) }}]",
     "[a\n  b\n\n  c\n] [ a\n b] [a\n  \n  b]"},
    {"namespace", "{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
     "4"},
    {"cycler", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
     "aba"},
    {"joiner", "{% set j = joiner(', ') %}{% for i in [1, 2] %}{{ j() }}{{ i }}{% endfor %}",
     "1, 2"},
    {"generation", "a\n{% generation %}\nb\n{% endgeneration %}\nc {%- generation -%} d {%- endgeneration +%}\ne",
     "a\nb\ncd\ne"},
    {"generation scope", "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}",
     "1"},
    {"raw", "{% raw %}{{ '%s' % x }}{% generation %}{% endraw %}{{ s }}",
     "{{ '%s' % x }}{% generation %}a-b-c"},
    {"comment", "a{# {% generation %} '%s' % #}b",
     "ab"},
    {"whitespace", "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
     "a\n  b\nc"},
    {"line ends", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc",
     "a\nb\nc"},
    {"break", "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
     "012"},
    {"loop", "{% for k, v in x.items() %}{{ loop.index0 }}{{ k }}{{ loop.last }} {% endfor %}",
     "0zFalse 1aFalse 2eFalse 3lTrue "},
    {"slices", "{{ [1, 2, 3][1:] }} {{ [1, 2, 3][::-1] }} {{ s[:2] }} {{ s[-1] }}",
     "[2, 3] [3, 2, 1] a- c"},
    {"tools default to none", "{{ tools is none }} {{ tools is defined }} {{ documents is none }} {{ add_generation_prompt }}",
     "True True True False"},
    {"undefined", "{{ nothing is defined }} {{ nothing|default('d') }} {{ 'y' if nothing else 'n' }}",
     "False d n"},
    {"get", "{{ x.get('z') }} {{ x.get('q', 'd') }} {{ x['a'][0] }}",
     "1 d 1.5"},
    {"selectattr", "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|map(attribute='content')|join(',') }}",
     "1 hi"},
    {"tests", "{{ s is string }} {{ x is mapping }} {{ [] is sequence }} {{ s is iterable }} {{ 1 is number }} {{ 'a' in s }} {{ 'z' in x }}",
     "True True True True True True True"},
    {"macro", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=3) }}",
     "1213"},
    {"list of a string", "{{ 'ab'|list }} {{ [3, 1]|sort }} {{ {'b': 1, 'a': 2}|dictsort }}",
     "['a', 'b'] [1, 3] [('a', 2), ('b', 1)]"},
    {"replace", "{{ s.replace('-', '') }} {{ s.replace('-', '+', 1) }} {{ s|replace('a', 'x') }}",
     "abc a+b-c x-b-c"},
    {"unicode", "{{ u|length }} {{ u.upper() }} {{ u[0] }}",
     "2 \303\211SS \303\251"},
};
/* clang-format on */

static ds_template *open_text(const char *text)
{
    ds_template *tpl;
    ds_error err = {0};
    if (ds_template_open(&tpl, text, strlen(text), "test", &err))
        fail_msg("%s: %s", text, err.text);
    return tpl;
}

static json_t *json_of(const char *text)
{
    json_t *json;
    ds_error err = {0};
    if (ds_json_parse(&json, text, strlen(text), "test", &err))
        fail_msg("%s", err.text);
    return json;
}

static json_t *one_message(void)
{
    return json_of("[{\"role\":\"user\",\"content\":\"hi\"}]");
}

static void test_cases(void **state)
{
    (void)state;
    json_t *messages = one_message(), *options = json_loads(options_text, 0, NULL);
    int failed = 0;
    assert_non_null(options);
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_template *tpl = open_text(cases[i].text);
        ds_buf out = {0};
        ds_error err = {0};
        ds_status status = ds_template_render(tpl, messages, options, NULL, NULL, &out, &err);
        if (status || strcmp(ds_buf_text(&out), cases[i].out)) {
            print_error("%s: %s\n got  %s\n want %s\n", cases[i].name, err.text, ds_buf_text(&out),
                        cases[i].out);
            failed++;
        }
        ds_buf_release(&out);
        ds_template_close(tpl);
    }
    assert_int_equal(failed, 0);
    json_decref(messages);
    json_decref(options);
}

/* Each is refused with a sentence that says so, soon and without much memory, and out stays as it was. */
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{{ raise_exception('No roles please!') }}", "No roles please!"},
        {"{{ messages[0].content + none }}", "line 1"},
        {"\n{{ nothing.attribute }}", "line 2"},
        {"{{ messages|nofilter }}", "nofilter"},
        {"{{ messages[0].content.nomethod() }}", "nomethod"},
        {"{{ 'a'.split('') }}", "separator"},
        {"{{ nothing|tojson }}", "JSON"},
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "fuel"},
        {"{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
         "fuel"},
        {"{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
         "ns.x|tojson }}",
         "fuel"},
        {"{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
         "ns.x }}",
         "fuel"},
        {"{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ "
         "ns.x|tojson }}",
         "deep"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"},
        {"{{ 'a'.ljust(99999999999) }}", "fuel"},
        {"{{ '%99999999999s' % 'a' }}", ""},
    };
    json_t *messages = one_message();
    for (size_t i = 0; i < COUNT(bad); i++) {
        ds_template *tpl = open_text(bad[i].text);
        ds_buf out = {0};
        ds_error err = {0};
        ds_buf_str(&out, "before");
        assert_int_equal(ds_template_render(tpl, messages, NULL, NULL, NULL, &out, &err), DS_INVALID);
        assert_string_equal(ds_buf_text(&out), "before");
        if (!strstr(err.text, bad[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].text, err.text, bad[i].says);
        ds_buf_release(&out);
        ds_template_close(tpl);
    }
    static const char *const broken[] = {"{% if %}", "{{ 'a", "{% endfor %}", "{% generation %}", "\xff"};
    for (size_t i = 0; i < COUNT(broken); i++) {
        ds_template *tpl;
        ds_error err = {0};
        assert_int_equal(ds_template_open(&tpl, broken[i], strlen(broken[i]), "a folder", &err), DS_BAD_FILE);
        assert_null(tpl);
        assert_non_null(strstr(err.text, "a folder"));
    }
    json_decref(messages);
}

static void render_is(const ds_template *tpl, const char *options_json, const char *want)
{
    json_t *messages = one_message(), *options = json_of(options_json);
    ds_buf out = {0};
    ds_error err = {0};
    if (ds_template_render(tpl, messages, options, "<s>", "</s>", &out, &err))
        fail_msg("%s", err.text);
    assert_string_equal(ds_buf_text(&out), want);
    ds_buf_release(&out);
    json_decref(messages);
    json_decref(options);
}

static void test_variables(void **state)
{
    (void)state;
    ds_template *tpl = open_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ effort }}"
                                 "{{ strftime_now('%%')|length }}");
    render_is(tpl, "{\"effort\":\"low\"}", "<s>hi</s>low1");
    assert_true(ds_template_mentions(tpl, "effort"));
    assert_false(ds_template_mentions(tpl, "reasoning_effort"));
    ds_template_close(tpl);
    ds_template_close(NULL);
}

#define WITH_TOOLS "{\"tools\":[{\"type\":\"function\"}]}"

static void test_gguf(void **state)
{
    (void)state;
    json_t *meta = json_of("{\"tokenizer.ggml.model\":\"gpt2\"}");
    ds_template *tpl = (ds_template *)&meta;
    ds_error err = {0};
    assert_int_equal(ds_template_open_gguf(&tpl, meta, NULL, &err), DS_OK);
    assert_null(tpl);
    json_object_set_new(meta, "tokenizer.chat_template", json_string("plain"));
    assert_int_equal(ds_template_open_gguf(&tpl, meta, NULL, &err), DS_OK);
    render_is(tpl, WITH_TOOLS, "plain");
    ds_template_close(tpl);
    json_object_set_new(meta, "tokenizer.chat_template.tool_use", json_string("tools"));
    json_object_set_new(meta, "tokenizer.chat_template.rag", json_string("rag"));
    assert_int_equal(ds_template_open_gguf(&tpl, meta, NULL, &err), DS_OK);
    render_is(tpl, WITH_TOOLS, "tools");
    render_is(tpl, "{\"tools\":[]}", "plain");
    ds_template_close(tpl);
    assert_int_equal(ds_template_open_gguf(&tpl, meta, "rag", &err), DS_OK);
    render_is(tpl, WITH_TOOLS, "rag");
    ds_template_close(tpl);
    assert_int_equal(ds_template_open_gguf(&tpl, meta, "other", &err), DS_INVALID);
    assert_non_null(strstr(err.text, "other"));
    json_decref(meta);
}

/* The folder's files, by which of them wins; NULL contents: not there. */
static void test_folder(void **state)
{
    (void)state;
    static const char *const files[] = {"chat_template.jinja", "tokenizer_config.json", "chat_template.json",
                                        "additional_chat_templates/tool_use.jinja"};
    static const char list[] =
        "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},"
        "{\"name\":\"tool_use\",\"template\":\"T\"},{\"name\":\"rag\",\"template\":\"R\"}]}";
    static const struct {
        const char *contents[4], *name, *plain, *tools; /* NULL: no template */
    } folders[] = {
        {{NULL, NULL, NULL, NULL}, NULL, NULL, NULL},
        {{NULL, "{}", NULL, NULL}, NULL, NULL, NULL},
        {{"J", "{\"chat_template\":\"C\"}", NULL, NULL}, NULL, "J", "J"},
        {{"J", NULL, NULL, "U"}, NULL, "J", "U"},
        {{"", "{\"chat_template\":\"C\"}", NULL, NULL}, NULL, "", ""},
        {{NULL, "{\"chat_template\":\"C\"}", "{\"chat_template\":\"J\"}", NULL}, NULL, "C", "C"},
        {{NULL, "{}", "{\"chat_template\":\"J\"}", NULL}, NULL, "J", "J"},
        {{NULL, list, NULL, NULL}, NULL, "D", "T"},
        {{NULL, list, NULL, NULL}, "rag", "R", "R"},
        {{NULL, list, NULL, NULL}, "default", "D", "D"},
    };
    char dir[] = "/tmp/ds_template_XXXXXX", path[300];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < COUNT(folders); i++) {
        for (int f = 0; f < 4; f++) {
            snprintf(path, sizeof path, "%s/%s", dir, files[f]);
            unlink(path);
            FILE *file = folders[i].contents[f] ? fopen(path, "w") : NULL;
            if (file) {
                fputs(folders[i].contents[f], file);
                fclose(file);
            }
        }
        ds_template *tpl;
        ds_error err = {0};
        if (ds_template_open_folder(&tpl, dir, folders[i].name, &err))
            fail_msg("folder %zu: %s", i, err.text);
        assert_int_equal(!tpl, !folders[i].plain);
        if (tpl) {
            render_is(tpl, "{}", folders[i].plain);
            render_is(tpl, WITH_TOOLS, folders[i].tools);
        }
        ds_template_close(tpl);
    }
    ds_template *tpl;
    ds_error err = {0};
    assert_int_equal(ds_template_open_folder(&tpl, dir, "../secret", &err), DS_INVALID);
    for (int f = 0; f < 4; f++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[f]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    rmdir(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases), cmocka_unit_test(test_refusals), cmocka_unit_test(test_variables),
        cmocka_unit_test(test_gguf),  cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
