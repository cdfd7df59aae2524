#include "bench/bench.h"
#include "bench/tally.h"

#include "base/json.h"
#include "base/map.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    ds_tally plain, spec;
    int prompts;
    bool identical;
} comparison;

typedef struct {
    ds_tally *tally;
    int32_t *ids;
    int n;
    ds_error err;
} answer;

static bool on_event(void *user, const ds_event *event)
{
    answer *a = user;
    if (event->kind != DS_EVENT_END)
        return true;
    if (event->end.reason == DS_STOP_ERROR) {
        a->err = event->end.error;
        return true;
    }
    a->ids = malloc(sizeof *a->ids * (size_t)(event->end.n_token_ids + 1));
    if (!a->ids) {
        ds_fail(&a->err, DS_NO_MEMORY, "out of memory for an answer");
        return true;
    }
    a->n = event->end.n_token_ids;
    if (a->n)
        memcpy(a->ids, event->end.token_ids, sizeof *a->ids * (size_t)a->n);
    ds_tally_add(a->tally, event);
    return true;
}

static ds_status run_one(answer *a, ds_engine *engine, const ds_request *req, ds_error *err)
{
    ds_job *job;
    ds_status status = ds_job_submit(&job, engine, req, err);
    if (status)
        return status;
    status = ds_job_run(job, on_event, a);
    ds_job_close(job);
    if (a->err.status && err)
        *err = a->err;
    return a->err.status ? a->err.status : status;
}

/* order: whether the speculative answer comes first */
static ds_status compare(comparison *c, ds_engine *engine, const ds_request *settings, const char *prompt,
                         bool order, ds_error *err)
{
    ds_message message = {"user", prompt};
    ds_request req = *settings;
    req.messages = &message;
    req.n_messages = 1;
    answer a[2] = {{.tally = &c->plain}, {.tally = &c->spec}};
    ds_status status = DS_OK;
    for (int i = 0; i < 2 && !status; i++) {
        int spec = i ^ (int)order;
        req.mode = spec ? DS_MODE_DSPARK : DS_MODE_BASELINE;
        status = run_one(&a[spec], engine, &req, err);
    }
    if (!status) {
        c->prompts++;
        c->identical &= a[0].n == a[1].n && !memcmp(a[0].ids, a[1].ids, sizeof *a[0].ids * (size_t)a[0].n);
    }
    free(a[0].ids);
    free(a[1].ids);
    return status;
}

/* A list of texts. */
static ds_status load_prompts(json_t **out, const char *path, int limit, ds_error *err)
{
    ds_map map;
    ds_status status = ds_map_open(&map, path, err);
    if (status)
        return status;
    *out = json_array();
    const char *text = (const char *)map.data;
    for (size_t at = 0, line = 1, len; at < map.size && !status; at += len + 1, line++) {
        const char *end = memchr(text + at, '\n', map.size - at);
        len = end ? (size_t)(end - text) - at : map.size - at;
        if (!len || (limit && (int)json_array_size(*out) >= limit))
            continue;
        char where[512];
        snprintf(where, sizeof where, "%s:%zu", path, line);
        json_t *object = NULL;
        const char *prompt = NULL;
        status = ds_json_parse(&object, text + at, len, where, err);
        if (!status)
            status = ds_json_text(object, "prompt", &prompt, where, err);
        if (!status && !prompt)
            status = ds_fail(err, DS_BAD_FILE, "%s: there is no \"prompt\"", where);
        if (!status && json_array_append_new(*out, json_string(prompt)))
            status = ds_fail(err, DS_NO_MEMORY, "out of memory for prompts");
        json_decref(object);
    }
    ds_map_close(&map);
    if (!status && !json_array_size(*out))
        status = ds_fail(err, DS_BAD_FILE, "%s: there are no prompts", path);
    return status;
}

ds_status ds_bench_check_prompts(const char *const *files, size_t n_files, int limit, ds_error *err)
{
    ds_status status = DS_OK;
    for (size_t i = 0; i < n_files && !status; i++) {
        json_t *prompts = NULL;
        status = load_prompts(&prompts, files[i], limit, err);
        json_decref(prompts);
    }
    if (status == DS_BAD_FILE)
        status = err->status = DS_INVALID;
    return status;
}

static json_t *report(const comparison *c)
{
    double plain = ds_tally_speed(&c->plain), spec = ds_tally_speed(&c->spec);
    return json_pack("{s:f, s:f, s:f, s:f, s:b, s:i}", "plain_tokens_per_s", plain, "spec_tokens_per_s", spec,
                     "speedup", plain > 0 ? spec / plain : 0.0, "tokens_per_round",
                     ds_tally_per_round(&c->spec), "identical", c->identical, "prompts", c->prompts);
}

static void add_tally(ds_tally *sum, const ds_tally *t)
{
    sum->after_first += t->after_first;
    sum->decode_s += t->decode_s;
    sum->rounds += t->rounds;
}

/* "bench/prompts/gsm8k.jsonl" -> "gsm8k" */
static void set_name(char *out, size_t size, const char *path)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    snprintf(out, size, "%.*s", (int)strcspn(base, "."), base);
}

static ds_status run_set(json_t *sets, comparison *total, ds_engine *engine, const ds_bench_prompts *p,
                         const char *file, ds_error *err)
{
    char name[128];
    comparison c = {.identical = true};
    json_t *prompts = NULL;
    set_name(name, sizeof name, file);
    ds_status status = load_prompts(&prompts, file, p->limit, err);
    int n = (int)json_array_size(prompts);
    for (int i = 0; i < n && !status; i++) {
        if (p->progress)
            p->progress(p->user, name, i, n);
        status = compare(&c, engine, &p->request, json_string_value(json_array_get(prompts, (size_t)i)),
                         i % 2, err);
    }
    json_decref(prompts);
    if (status)
        return status;
    json_object_set_new(sets, name, report(&c));
    total->prompts += c.prompts;
    total->identical &= c.identical;
    add_tally(&total->plain, &c.plain);
    add_tally(&total->spec, &c.spec);
    return DS_OK;
}

ds_status ds_bench_generate(json_t **out, ds_engine *engine, const ds_bench_prompts *p, ds_error *err)
{
    *out = NULL;
    comparison total = {.identical = true}, warm = {.identical = true};
    ds_request settings = p->request;
    settings.max_new_tokens = 8;
    ds_status status = compare(&warm, engine, &settings, "Hello", false, err);
    json_t *sets = json_object();
    for (size_t i = 0; i < p->n_files && !status; i++)
        status = run_set(sets, &total, engine, p, p->files[i], err);
    if (status) {
        json_decref(sets);
        return status;
    }
    *out = json_pack("{s:o, s:o}", "sets", sets, "total", report(&total));
    return *out ? DS_OK : ds_fail(err, DS_NO_MEMORY, "out of memory for the result");
}
